// Charts as inline SVG, drawn in the pixels that they take on the page.

import { h } from "./dom.js";
import { clock } from "./format.js";

const RIGHT = 4;
const TOP = 8;
const BOTTOM = 18;

// The width of an element of an earlier drawing.
export const widthOf = (id) => document.getElementById(id)?.clientWidth || 360;

// The next of 1, 2, 5, 10, … that is not smaller.
export function roundUp(n) {
  if (!(n > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(n));
  return power * ([1, 2, 5, 10].find((step) => step * power >= n * 0.999999) || 10);
}

// The next 1, 2, 4, 8 … of a unit of 1024, for sizes.
export const roundUpBytes = (n) => 2 ** Math.ceil(Math.log2(Math.max(n, 1024)));

// The text of a tick without decimals that are 0.
const round = (text) => text.replace(/\.0+(?=\D|$)/, "");

const stroke = (kind, x1, x2, y1, y2) => h("line", { class: kind, x1, x2, y1, y2 });

const tickText = (x, y, anchor, text) => h("text.tick", { x, y, "text-anchor": anchor }, text);

function scale(spec, values) {
  const known = values.filter((value) => value !== null);
  if (spec.log) {
    const positive = known.filter((value) => value > 0);
    const low = 10 ** Math.floor(Math.log10(Math.min(...positive, 1)));
    const from = positive.length ? Math.min(low, 0.1) : 1e-5;
    const to = Math.max(positive.length ? 10 ** Math.ceil(Math.log10(Math.max(...positive) * 1.0001)) : 1e-2, from * 100);
    const steps = Math.round(Math.log10(to / from));
    const every = Math.ceil(steps / 4);
    const ticks = [];
    for (let i = 0; i <= steps; i += every) ticks.push(from * 10 ** i);
    const share = (value) => Math.log10(Math.max(value, from) / from) / steps;
    return { ticks, share };
  }
  const top = spec.top ?? (spec.bytes ? roundUpBytes : roundUp)(Math.max(...known, 0));
  return { ticks: [0, top / 2, top], share: (value) => Math.min(Math.max(value / top, 0), 1) };
}

// A line goes on over at most so many steps without a value.
const BRIDGE = 6;

function path(values, x, y) {
  let line = "";
  let before = -Infinity;
  values.forEach((value, i) => {
    if (value === null) return;
    // The short stroke is a dot where a value stands alone.
    line += i - before > BRIDGE ? `M${x(i).toFixed(1)} ${y(value).toFixed(1)}h.1` : `L${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    before = i;
  });
  return line;
}

const number = (value) => (Number.isFinite(value) ? value : null);

// The swatch of a line in a legend: the same colour and dashes.
export const swatch = (kind) =>
  h("svg.swatch", { viewBox: "0 0 18 8", width: 18, height: 8, "aria-hidden": "true" }, h("path", { class: `line ${kind}`, d: "M1 4H17" }));

// spec: {id, title, series: [{name, kind, values}], format, end, step, length, top, log, bytes, area, cursor, onCursor}
// Every series has `length` values, the last one ends at `end`.
export function timeChart(spec) {
  const width = widthOf(spec.id);
  const height = spec.height || 138;
  const series = spec.series.map((one) => ({ ...one, values: one.values.map(number) }));
  const last = Math.max(spec.length - 1, 1);
  const { ticks, share } = scale(spec, series.flatMap((one) => one.values));
  const texts = ticks.map((tick) => round(spec.format(tick)));
  const left = 10 + 6.4 * Math.max(...texts.map((text) => text.length));
  const x = (i) => left + (i / last) * (width - left - RIGHT);
  const y = (value) => TOP + (1 - share(value)) * (height - TOP - BOTTOM);
  const timeOf = (i) => spec.end - (last - i) * spec.step;
  const at = spec.cursor === null ? null : Math.min(spec.cursor, last);
  const nowOf = (values) => values.findLast((value) => value !== null) ?? null;

  const grid = ticks.map((tick, i) => [
    stroke("rule", left, width - RIGHT, y(tick), y(tick)),
    tickText(left - 6, y(tick) + 4, "end", texts[i]),
  ]);
  const minutes = (last * spec.step) / 60;
  const every = ([1, 2, 5, 10, 15].find((step) => minutes / step <= width / 90) ?? 30) * 60;
  const times = [];
  for (let time = Math.ceil(timeOf(0) / every) * every; time <= spec.end; time += every) {
    const place = x(last - (spec.end - time) / spec.step);
    if (place > left + 16 && place < width - 20) {
      times.push(stroke("rule", place, place, TOP, height - BOTTOM));
      times.push(tickText(place, height - 4, "middle", clock(time, false)));
    }
  }
  const lines = series.map((one, i) => {
    const d = path(one.values, x, y);
    const first = one.values.findIndex((value) => value !== null);
    const whole = first >= 0 && !one.values.slice(first).includes(null);
    return [
      i === 0 && spec.area && whole && h("path.area", { class: one.kind, d: `${d}L${x(last)} ${y(0)}L${x(first)} ${y(0)}Z` }),
      h("path.line", { class: one.kind, d }),
    ];
  });
  const marks = at !== null && [
    stroke("cursor", x(at), x(at), TOP, height - BOTTOM),
    series.map((one) => (one.values[at] ?? null) !== null && h("circle.dot", { class: one.kind, cx: x(at), cy: y(one.values[at]), r: 3 })),
  ];
  const spoken = series.map((one) => {
    const known = one.values.filter((value) => value !== null);
    return known.length
      ? `${one.name} ${spec.format(nowOf(one.values))}, between ${spec.format(Math.min(...known))} and ${spec.format(Math.max(...known))}`
      : `${one.name} without data`;
  });
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    spec.onCursor(Math.round(((event.clientX - box.left - left) / (box.width - left - RIGHT)) * last), last);
  };
  const key = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -last, End: last }[event.key];
    if (event.key === "Escape") spec.onCursor(null);
    else if (step) spec.onCursor((at ?? last) + step, last);
    else return;
    event.preventDefault();
  };
  return [
    h("p.legend", {},
      series.map((one) => h("span", {}, swatch(one.kind), `${one.name} `, h("b", {}, spec.format(at === null ? nowOf(one.values) : one.values[at])))),
      at !== null && h("span.quiet", {}, clock(timeOf(at))),
    ),
    h("svg.chart",
      {
        id: spec.id, width: "100%", height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
        "aria-label": `${spec.title}, last ${Math.round(minutes)} minutes. ${spoken.join(". ")}. Arrow keys move a mark through time.`,
        onpointermove: move, onpointerdown: move, onpointerleave: () => spec.onCursor(null), onblur: () => spec.onCursor(null), onkeydown: key,
      },
      lines, grid, times, marks,
    ),
  ];
}

// The predicted miss ratios over the memory: points [{factor, bytes, ratio}], with the place of today's memory.
export function missRatioChart(spec) {
  const width = widthOf(spec.id);
  const height = 168;
  const bottom = 32;
  const points = spec.points;
  const [low, high] = [Math.log2(points[0].factor), Math.log2(points.at(-1).factor)];
  const [from, to] = [76, 34];
  const x = (factor) => from + ((Math.log2(factor) - low) / Math.max(high - low, 1e-9)) * (width - from - to);
  const top = Math.min(1, roundUp(Math.max(...points.map((point) => point.ratio), spec.counted ?? 0, 0.02)));
  const y = (ratio) => TOP + (1 - Math.min(ratio / top, 1)) * (height - TOP - bottom);
  const here = points.find((point) => point.factor === 1);
  const d = points.map((point, i) => `${i ? "L" : "M"}${x(point.factor).toFixed(1)} ${y(point.ratio).toFixed(1)}`).join("");
  return h("svg.chart",
    { id: spec.id, width: "100%", height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.label },
    [0, top / 2, top].map((tick) => [
      stroke("rule", 44, width - RIGHT, y(tick), y(tick)),
      tickText(38, y(tick) + 4, "end", round(spec.ratio(tick))),
    ]),
    here && stroke("cursor", x(1), x(1), TOP, height - bottom),
    h("path.line.one", { d }),
    points.map((point) => [
      h("circle.dot.one", { cx: x(point.factor), cy: y(point.ratio), r: point.factor === 1 ? 5 : 3 }),
      tickText(x(point.factor), height - 18, "middle", round(spec.factor(point.factor))),
      tickText(x(point.factor), height - 5, "middle", round(spec.bytes(point.bytes))),
    ]),
    here && h("text.here", { x: x(1) + 8, y: Math.max(y(here.ratio) - 8, TOP + 10) }, "you are here"),
  );
}
