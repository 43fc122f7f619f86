// What the panels are made of: figures, tables, bars and texts.

import { h } from "./dom.js";
import { NONE, percent, printable, rate, seconds, short } from "./format.js";

export const us = (n) => seconds(typeof n === "number" ? n / 1e6 : n);
export const ms = (n) => seconds(typeof n === "number" ? n / 1e3 : n);
export const per = (n) => (n === null || n === undefined ? NONE : `${rate(n)}/s`);

// A figure of status.json: what is shown, and the exact value for those who point at it.
export const figure = (id, text, value) => h("span", { "data-figure": id, title: value }, text);
export const exact = (id, write, value) => figure(id, write(value), value);

export const panel = (id, title, span, ...content) =>
  h("section.panel", { key: id, class: span, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), ...content);

// Panels one below the other, in one column of the grid.
export const stack = (span, ...panels) => panels.some(Boolean) && h("div.stack", { class: span }, panels);

export const quiet = (...parts) => h("p.quiet", {}, parts);

export const soft = (...parts) => h("span.quiet", {}, parts);

export const enter = (change) => h("button", { type: "button", onclick: () => change({ wantsToken: true }) }, "Enter it");

export const unspoken = (text) => h("span", { "aria-hidden": "true" }, text);

export const foreign = (text) => h("bdi.key", { title: printable(text, 1000) }, short(text));

export const bar = (share, kind = "") => h("span.bar", { "aria-hidden": "true" }, h("span", { class: kind, "width%": Math.round(Math.min(Math.max(share || 0, 0), 1) * 1000) / 10 }));

// A share as a bar, whole at `most`, and as a number.
export const barred = (share, most = 1) => [bar(share / (most || 1)), " ", percent(share)];

// columns: [title, "n" for numbers, "w" for what a narrow page leaves out]; rows of cells.
export function table(label, columns, rows, none = "None.") {
  if (!rows.length) return quiet(none);
  const kinds = columns.map(([, ...kinds]) => kinds.join(" "));
  return h("div.scroll", { role: "region", tabindex: 0, "aria-label": label },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map(([title], i) => h("th", { class: kinds[i], scope: "col" }, title)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, i) => h("td", { class: kinds[i] }, cell)))))));
}

export const facts = (pairs) => h("dl", {}, pairs.filter(Boolean).map(([name, ...value]) => h("div", {}, h("dt", {}, name), h("dd", {}, ...value))));

// A document that the server refuses, or has not answered yet.
export function without(answer, what, change) {
  if (answer.ok) return null;
  if (!answer.refused) return quiet(answer.denied ? printable(answer.denied) : "Not known yet.");
  return quiet(`${what} are shown with the admin token only. `, enter(change));
}
