// The loop: ask, take, draw. While the server is unreachable the last figures stay, marked as old.

import { confirmation } from "./actions.js";
import { h, show } from "./dom.js";
import { age, clock } from "./format.js";
import { ask, post, setToken, token } from "./feed.js";
import { Model } from "./model.js";
import { header, sections } from "./panels.js";

const EVERY_MS = 2000;
const OTHERS_EVERY = 5;
const RETRY_MS_MAX = 10000;
const LINES_MAX = 300;

const OTHERS = { mrc: "mrc.json", hot: "hot.json", slow: "slow.json", config: "config.json" };

const dialog = document.getElementById("dialog");
const model = new Model();
// The other documents: {ok}, {refused} or {absent}; absent until the first answer.
const documents = { mrc: {}, hot: {}, slow: {}, config: {}, log: {}, volumes: {}, volume: {}, ring: {} };
// `volume` is the name of the volume whose details are shown, `action` the change in the dialog, `done` the last one made.
const ui = { cursor: null, scope: null, level: "info", filter: "", changed: false, wantsToken: false, volume: null, action: null, done: null, theme: localStorage.getItem("cached-theme") || "auto" };
const feed = { lastMs: null, away: null, refused: false, tries: 0, nextMs: 0, round: 0, restarted: null };
let lines = [];
let timer = 0;
let asking = false;
let askingForVolumes = false;

function change(changes) {
  Object.assign(ui, changes);
  draw();
}

async function others() {
  await Promise.all(
    Object.entries(OTHERS).map(async ([name, path]) => {
      if (documents[name].absent) return;
      const answer = await ask(path);
      // An answer that fails once leaves what there is.
      if (!answer.away) documents[name] = answer;
    }),
  );
}

// The volumes are read from the store, which may be slow or away: the other figures do not wait for them.
async function askForVolumes() {
  if (askingForVolumes || !model.now.volumes || model.now.store?.state === "away") return;
  askingForVolumes = true;
  const answer = await ask("volumes?limit=50");
  askingForVolumes = false;
  if (!answer.away) documents.volumes = answer;
  draw();
}

async function log() {
  if (documents.log.absent) return;
  const last = lines.at(-1)?.id;
  const answer = await ask(last === undefined ? "log.json" : `log.json?after=${encodeURIComponent(last)}`);
  if (answer.away) return;
  if (answer.ok) {
    const fresh = (answer.ok.lines || []).filter((line) => last === undefined || line.id > last);
    lines = lines.concat(fresh).slice(-LINES_MAX);
    answer.ok = lines;
  }
  documents.log = answer;
}

// The slots of a ring, which change with each move.
async function ring() {
  if (!model.now.ring || documents.ring.absent) return;
  const answer = await ask("ring.json");
  if (!answer.away) documents.ring = answer;
}

async function poll() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  let answer = await ask("status.json");
  if (answer.ok && typeof answer.ok.instance !== "string") answer = { away: "the answer is not a status" };
  feed.refused = Boolean(answer.refused);
  if (answer.ok) {
    if (model.take(answer.ok)) {
      feed.restarted = (answer.ok.start_unix_ms ?? answer.ok.now_unix_ms) / 1000;
      lines = [];
      feed.round = 0;
      for (const name of Object.keys(documents)) documents[name] = {};
      ui.volume = null;
    }
    Object.assign(feed, { lastMs: Date.now(), away: null, tries: 0 });
    if (feed.round % OTHERS_EVERY === 0) {
      askForVolumes();
      await others();
    }
    await Promise.all([log(), ring()]);
    feed.round += 1;
  } else {
    feed.away = feed.refused ? null : answer.away || answer.denied || "this address has no status.json";
    feed.tries += 1;
  }
  asking = false;
  if (!feed.refused) {
    const wait = feed.away ? Math.min(1000 * 2 ** (feed.tries - 1), RETRY_MS_MAX) : EVERY_MS;
    feed.nextMs = Date.now() + wait;
    timer = setTimeout(pollIfSeen, wait);
  }
  draw();
}

// A page that is not seen does not ask.
function pollIfSeen() {
  if (!document.hidden) poll();
}

function useToken(event) {
  event.preventDefault();
  setToken(event.currentTarget.elements.token.value.trim());
  feed.round = 0;
  ui.wantsToken = false;
  poll();
}

// Shows the details of a volume, or hides them if they are shown.
function choose(name) {
  // The facts and actions of one volume must not appear under the name of another.
  documents.volume = {};
  change({ volume: name === ui.volume ? null : name });
  return askForVolume();
}

async function askForVolume() {
  const name = ui.volume;
  if (name === null) return;
  const answer = await ask(`volumes/show?name=${encodeURIComponent(name)}`);
  if (name !== ui.volume) return;
  documents.volume = answer;
  draw();
}

let dialogCount = 0;
function begin(action) {
  change({ action: { ...action, state: "asked", id: ++dialogCount }, done: null });
  dialog.showModal();
}

const cancel = () => change({ action: null });

async function submit(event) {
  event.preventDefault();
  const action = ui.action;
  if (action.state === "running") return;
  const values = Object.fromEntries(new FormData(event.currentTarget));
  change({ action: { ...action, state: "running" } });
  const why = await post(action.path, action.body(values));
  if (why === null) change({ action: null, done: action.done(values) });
  else change({ action: { ...action, state: "failed", why } });
  await Promise.all([others(), askForVolumes(), askForVolume()]);
  draw();
}

function forget() {
  setToken(null);
  location.reload();
}

function notice() {
  if (feed.refused || ui.wantsToken) {
    return h("form.notice", { onsubmit: useToken },
      h("label", { for: "token" }, feed.refused && token() ? "The server does not accept this token. Another one:" : "The admin token of this server:"),
      h("input", { id: "token", name: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" }),
      h("button", { type: "submit" }, "Use it"),
      h("span.quiet", {}, "It is kept until this tab is closed."));
  }
  if (feed.away) {
    const wait = Math.max(0, Math.ceil((feed.nextMs - Date.now()) / 1000));
    return h("p.notice.bad", {},
      h("b", {}, "▲ No answer from the server"), ` (${feed.away}). `,
      feed.lastMs ? `The figures are those of ${clock(feed.lastMs / 1000)}. ` : "",
      h("span", { "aria-hidden": "true" }, feed.lastMs ? `${age((Date.now() - feed.lastMs) / 1000)} old. ` : "", `Next attempt in ${wait} s. `),
      h("button", { type: "button", onclick: poll }, "Try again"));
  }
  if (ui.done) {
    return h("p.notice", {}, "✓ ", ui.done, " ", h("button", { type: "button", onclick: () => change({ done: null }) }, "Dismiss"));
  }
  if (feed.restarted) {
    return h("p.notice", {}, `The server was restarted at ${clock(feed.restarted)}. `,
      h("button", { type: "button", onclick: () => { feed.restarted = null; draw(); } }, "Dismiss"));
  }
  return null;
}

function theme() {
  document.documentElement.dataset.theme = ui.theme;
}

function nextTheme() {
  const next = { auto: "dark", dark: "light", light: "auto" }[ui.theme];
  localStorage.setItem("cached-theme", next);
  change({ theme: next });
}

function draw() {
  theme();
  const status = model.now;
  document.body.classList.toggle("old", Boolean(status && (feed.away || feed.refused)));
  show(document.getElementById("head"), header({ status, feed, ui, nextTheme, forget: token() && forget }));
  const asked = document.getElementById("token");
  show(document.getElementById("notice"), notice());
  if (!asked) document.getElementById("token")?.focus();
  show(dialog, ui.action && confirmation({ action: ui.action, submit, cancel }));
  // Only `begin` opens it: the browser may just have closed it.
  if (!ui.action) dialog.close();
  if (!status) {
    const text = feed.refused || feed.away ? "No figures yet." : "Asking the server …";
    show(document.getElementById("main"), h("p.quiet.wait", {}, text));
    document.title = "cached";
    return;
  }
  const log = document.getElementById("log");
  const atEnd = !log || log.scrollHeight - log.scrollTop - log.clientHeight < 8;
  show(document.getElementById("main"), sections({ model, documents, ui, change, choose, begin }));
  if (atEnd) document.getElementById("log")?.scrollTo(0, 1e9);
  const mark = feed.away || feed.refused ? "✕ " : status.health?.ready === false ? "▲ " : "";
  document.title = `${mark}${status.host} – ${status.program}`;
  // Tests and screenshots wait for this.
  document.documentElement.dataset.drawn = status.now_unix_ms;
}

// The Escape key closes the dialog, unless a change is under way. The event of a close comes later: the next dialog may be open by then.
dialog.addEventListener("cancel", (event) => ui.action?.state === "running" && event.preventDefault());
dialog.addEventListener("close", () => ui.action && !dialog.open && cancel());
addEventListener("resize", draw);
document.addEventListener("visibilitychange", pollIfSeen);
setInterval(() => feed.away && draw(), 1000);
theme();
// The first drawing measures, the second one knows the widths of the charts.
poll().then(draw);
