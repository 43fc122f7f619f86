// The parts of the page, each a function of the model and the documents.

import { missRatioChart, swatch, timeChart } from "./chart.js";
import { h } from "./dom.js";
import { token } from "./feed.js";
import { age, bytes, clock, count, day, NONE, percent, printable, rate, seconds, short } from "./format.js";
import { flushOfNamespace } from "./actions.js";
import { curvePoints, objectReads, ratio, requests, risks, s3Hits, s3Reads } from "./model.js";
import { bar, barred, enter, exact, facts, figure, foreign, ms, panel, per, quiet, soft, stack, table, unspoken, us, without } from "./parts.js";
import { ring } from "./ring.js";
import { volumes } from "./volumes.js";

export function header({ status, ui, feed, nextTheme, forget }) {
  const names = { auto: "Automatic", dark: "Dark", light: "Light" };
  const buttons = h("span.buttons", {},
    forget && h("button", { type: "button", onclick: forget }, "Forget token"),
    h("button", { type: "button", onclick: nextTheme, "aria-label": `Colours: ${names[ui.theme].toLowerCase()}. Change` }, `◐ ${names[ui.theme]}`));
  if (!status) return [h("h1", {}, "cached"), buttons];
  const away = feed.away || feed.refused;
  const [kind, sign, word] = away ? ["bad", "✕", "No answer"]
    : status.state === "draining" ? ["warn", "▼", "Draining"]
    : status.state === "starting" ? ["warn", "…", "Starting"]
    : status.health?.ready === false ? ["bad", "▲", "Not ready"] : ["good", "✓", "Ready"];
  return [
    h("h1", {}, figure("program", printable(status.program)), " ", soft(figure("version", printable(status.version)))),
    h("span.state", { class: kind, "data-figure": "state" }, unspoken(sign), ` ${word}`),
    h("span.host", {}, figure("host", printable(status.host))),
    h("span.quiet.wide", {}, "pid ", figure("pid", status.pid)),
    soft("up ", exact("uptime", age, status.uptime_secs)),
    h("span.quiet.wide", { title: day(status.now_unix_ms / 1000) }, clock(status.now_unix_ms / 1000)),
    buttons,
  ];
}

export function sections(context) {
  const { model } = context;
  const found = risks(model, { bytes, count, age, printable });
  return [
    found.length
      ? h("ul.risks", { key: "risks", "aria-label": "At risk" }, found.map((risk) => h("li", { class: risk.bad ? "bad" : "warn" }, unspoken(risk.bad ? "▲ " : "● "), risk.text)))
      : h("p.risks.none", { key: "safe" }, unspoken("✓ "), "Nothing at risk: the server is ready, no data are lost, nothing is refused."),
    h("div.tiles", { key: "tiles" }, tiles(model)),
    h("div.grid", { key: "ring" }, ring(context)),
    h("div.grid", { key: "charts" }, timeCharts(context)),
    h("div.grid", { key: "columns" },
      stack("c6", moreMemory(context), ...hotKeys(context), commands(context)),
      stack("c6", memory(context), sharedMemory(context), ...misses(context), ...prefixes(context), listeners(context), workers(context))),
    h("div.grid", { key: "objects" },
      stack("c4", objects(context)), stack("c8", namespaces(context), store(context), journal(context))),
    h("div.grid", { key: "storage" }, s3(context), volumes(context)),
    h("div.grid", { key: "lists" }, slow(context), log(context), config(context)),
    unused(context),
  ];
}

function tiles(model) {
  const { items, objects: cache, process, connections, synapse, election, s3: sidecar } = model.now;
  const tile = (title, value, ...below) => h("section.tile", { key: title }, h("h2", {}, title), h("p.value", {}, value), quiet(below));
  const minutes = Math.round(model.historySecs() / 60);
  const span = minutes >= 60 ? "last hour" : minutes > 0 ? `last ${minutes} min` : "last hour";
  const hour = items ? model.itemHitsHour() : model.objectHitsHour();
  const hits = items ? (at) => at.items.get_hits : (at) => at.objects?.read_hits;
  const reads = items ? (at) => at.items.gets : objectReads;
  const fetched = model.perSec((at) => at.items?.gets ?? objectReads(at));
  const stored = model.perSec((at) => at.items?.sets ?? at.objects?.writes_back + at.objects?.writes_through);
  const cores = model.perSec((at) => at.process.cpu_user_secs + at.process.cpu_system_secs);
  const used = items && ratio(items.bytes, items.limit_bytes);
  return [
    (items || cache) && tile(`${items ? "Hit ratio" : "Read hit ratio"}, ${span}`, exact("hit-ratio-hour", percent, hour),
      "now ", percent(model.ratioNow(hits, reads)), " · since start ", figure("hit-ratio", percent(ratio(hits(model.now), reads(model.now))))),
    sidecar && tile(`S3 hit ratio, ${span}`, exact("s3-hit-ratio-hour", percent, model.s3HitsHour()),
      "now ", percent(model.ratioNow(s3Hits, s3Reads)), " · since start ", figure("s3-hit-ratio", percent(ratio(s3Hits(model.now), s3Reads(model.now))))),
    election && tile("Elected writer", figure("election-role", printable(election.role)),
      election.leader ? [printable(election.leader.node), " at ", printable(election.leader.address), " leads · epoch ", count(election.leader.epoch)] : "no host leads",
      " · ", printable(election.reason)),
    tile("Requests", per(model.perSec(requests)),
      items || cache ? [items ? "gets " : "reads ", per(fetched), items ? " · sets " : " · writes ", per(stored)] : [count(synapse?.requests), " since start"]),
    items && tile("Latency of gets, p99", us(model.lastOf("get_p99_us")), "p50 ", us(model.lastOf("get_p50_us")), " · last 10 s with gets"),
    items && tile("Memory for items", exact("item-bytes", bytes, items.bytes),
      figure("item-share", percent(used)), " of ", exact("item-limit", bytes, items.limit_bytes), " · ", exact("item-count", count, items.count), " items"),
    items && tile("Evictions", per(model.perSec((at) => at.items.evictions)), exact("evictions", count, items.evictions), " since start · ", exact("evicted-unfetched", count, items.evicted_unfetched), " never read"),
    cache && tile("Dirty, not stored yet", exact("dirty-bytes", bytes, cache.dirty_bytes),
      "of ", bytes(cache.dirty_limit_bytes), cache.dirty_bytes > 0 ? [" · oldest ", ms(cache.dirty_age_ms), ", limit ", ms(cache.dirty_age_limit_ms)] : " · nothing to lose"),
    connections && tile("Connections", exact("connections", count, connections.current),
      "of ", exact("connections-limit", count, connections.limit), " · ", exact("connections-refused", count, connections.refused), " refused"),
    tile("Processor", cores === null ? NONE : `${rate(cores)} cores`, exact("resident", bytes, process.resident_bytes), " resident · ", count(process.threads), " threads"),
  ];
}

function timeCharts({ model, ui, change }) {
  const { history, items, objects: cache, store: behind, synapse, s3: sidecar } = model.now;
  if (!history) return null;
  // A young process has a shorter axis.
  const have = model.historySecs();
  const length = Math.round(([300, 900, 1800].find((secs) => secs >= have) ?? 3600) / history.step_secs);
  // A column that is shorter than an hour ends at the same time as the others.
  const fill = (values) => values && Array(Math.max(0, length - values.length)).fill(null).concat(values).slice(-length);
  const one = (name, kind, values) => values && { name, kind, values: fill(values) };
  const onCursor = (at, last) => change({ cursor: at === null ? null : Math.min(Math.max(at, 0), last) });
  const chart = (id, title, format, series, more) =>
    series.some(Boolean) && { id, title, format, series: series.filter(Boolean), length, end: history.end_unix_ms / 1000, step: history.step_secs, cursor: ui.cursor, onCursor, ...more };
  const latency = (name) => model.column(name, (value) => value / 1e6);
  const charts = [
    (items || cache || sidecar) && chart("chart-hits", "Hit ratio", percent,
      [items && one("items", "one", model.itemHits()), cache && one("objects", items ? "two" : "one", model.objectHits()), sidecar && one("S3", "three", model.s3Hits())], { top: 1, area: true }),
    chart("chart-rate", "Requests per second", rate,
      [one("gets", "one", model.perSecColumn("gets")), one("sets", "two", model.perSecColumn("sets")), synapse ? one("objects", "three", model.perSecColumn("synapse_requests")) : sidecar && one("S3", "three", model.perSecColumn("s3_requests"))]),
    chart("chart-latency", "Latency", seconds,
      [one("gets p99", "one", latency("get_p99_us")), one("p50", "two", latency("get_p50_us")), one("sets p99", "three", latency("set_p99_us"))], { log: true }),
    behind && chart("chart-store", "Latency of the store, p99", seconds,
      [one("reads", "one", latency("store_read_p99_us")), one("writes", "two", latency("store_write_p99_us"))], { log: true }),
    cache && chart("chart-dirty", "Dirty data", bytes, [one("dirty", "one", model.column("dirty_bytes"))], { area: true, bytes: true }),
    chart("chart-bytes", "Bytes per second", bytes,
      [one("received", "one", model.perSecColumn("received_bytes")), one("sent", "two", model.perSecColumn("sent_bytes"))], { bytes: true }),
  ].filter(Boolean);
  // Rows of three; what is left over, or a four, in rows of two.
  const threes = charts.length === 4 ? 0 : charts.length - (charts.length % 3);
  return charts.map((one, i) => panel(`panel-${one.id}`, one.title, i < threes ? "c4" : "c6", timeChart(one)));
}

const factorText = (factor) => `${{ 0.25: "¼", 0.5: "½", 0.125: "⅛" }[factor] || rate(factor)} ×`;

function scopeName(scope) {
  const [kind, ...name] = scope.split(":");
  return name.length ? `${kind === "objects" ? "Objects of" : "Keys of"} ${printable(name.join(":"), 40)}` : kind === "items" ? "All items" : "All objects";
}

function moreMemory({ documents: { mrc }, ui, change }) {
  if (mrc.absent) return null;
  const title = "What would more memory give?";
  const curves = (mrc.ok?.curves || []).filter((curve) => curvePoints(curve).length > 1 && curve.is_warm !== false && curve.requests !== 0);
  if (!curves.length) return panel("mrc", title, "", without(mrc, "Predictions", change) || quiet("No prediction yet: the simulated caches are being filled."));
  const curve = curves.find((one) => one.scope === ui.scope) || curves[0];
  const points = curvePoints(curve);
  const at = (factor) => points.find((point) => point.factor === factor);
  const here = at(1);
  const hits = (factor, words) => at(factor) && [words, " ", h("b", {}, percent(1 - at(factor).ratio))];
  const summary = here && at(2) && [hits(2, `Twice the memory (${bytes(at(2).bytes)}) would give`), ` hits instead of ${percent(1 - here.ratio)}`, hits(4, ", four times"), hits(0.5, ", half"), "."];
  return panel("mrc", title, "",
    curves.length > 1 && h("label.choice", {}, "For ", h("select", { onchange: (event) => change({ scope: event.target.value }) },
      curves.map((one) => h("option", { value: one.scope, selected: one === curve }, scopeName(one.scope))))),
    h("p", {}, summary),
    h("p.legend", {}, h("span", {}, swatch("one"), "predicted miss ratio"),
      typeof curve.counted_miss_ratio === "number" && soft("counted at this size: ", exact("counted-miss-ratio", percent, curve.counted_miss_ratio))),
    missRatioChart({ id: "chart-mrc", points, counted: curve.counted_miss_ratio, ratio: percent, bytes, factor: factorText,
      label: `Predicted miss ratio over memory. ${points.map((point) => `${factorText(point.factor)} ${bytes(point.bytes)}: ${percent(point.ratio)}`).join("; ")}` }));
}

const OWNERS = { items: "Items", index: "Index of items", connections: "Connections", objects: "Objects", object_index: "Index of objects", store: "Store", listener: "Object listener", journal: "Journal", s3: "S3 objects" };

function memory({ model }) {
  const rows = model.now.memory || [];
  return panel("memory", "Memory by owner", "",
    h("table.plain", {},
      h("thead.unseen", {}, h("tr", {}, ["owner", "share", "used", "limit"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, rows.map((row) => h("tr", {},
        h("th", { scope: "row" }, OWNERS[row.owner] || printable(row.owner)),
        h("td.meter", {}, bar(ratio(row.used_bytes, row.limit_bytes))),
        h("td.n", {}, exact(`memory-${row.owner}`, bytes, row.used_bytes)),
        h("td.n.quiet", {}, "of ", bytes(row.limit_bytes)))))),
    quiet("Resident ", bytes(model.now.process.resident_bytes), "; all limits together ", bytes(rows.reduce((all, row) => all + row.limit_bytes, 0)), "."));
}

function sharedMemory({ model }) {
  const of = model.now.shared_memory;
  return of && panel("shared-memory", "Memory of items and objects", "",
    table("Shared memory", [["half"], ["has", "n"], ["at least", "n", "w"], ["gave", "n"], ["more would save", "n"]],
      of.halves.map((one) => [OWNERS[one.half], exact(`shared-${one.half}`, bytes, one.bytes), bytes(one.least_bytes), bytes(one.given_bytes), us(one.gain_us)])),
    quiet(exact("shared-moves", count, of.moves), " moves since start", of.failures > 0 && h("b.bad", {}, `, ${count(of.failures)} failed`), "."));
}

const REASONS = { never_seen: ["Never seen", "asked for before it was stored, or forgotten long ago"], expired: ["Expired", "its time had passed"], evicted: ["Evicted", "more memory would have kept it"], flushed: ["Flushed", "removed by flush_all"], deleted: ["Deleted", "removed by a client"] };

const WORDS = { items: ["gets", "keys", "key", "prefixes", "prefix"], objects: ["reads", "objects", "object", "namespaces", "namespace"] };

/// The parts of a document of hot names: of the items, and of the object cache; in a program without items of that only.
function partsOf({ model, documents: { hot } }) {
  const own = model.now.items ? "items" : "objects";
  return [[own, hot.ok], ...(hot.ok?.objects ? [["objects", hot.ok.objects]] : [])];
}

function misses(page) {
  return partsOf(page).map(([kind, of]) => missesOf(kind, of?.misses));
}

function missesOf(kind, reasons) {
  if (!reasons) return null;
  const all = Object.values(reasons).reduce((sum, value) => sum + value, 0);
  const id = kind === "items" ? "misses" : "misses-objects";
  return panel(id, `Why ${WORDS[kind][0]} missed`, "", table(`Why ${WORDS[kind][0]} missed`, [["reason"], ["share", "s"], ["misses", "n"], ["", "w"]],
    Object.entries(reasons).map(([name, value]) => [REASONS[name]?.[0] || printable(name), barred(ratio(value, all)), exact(`${id}-${name}`, count, value), soft(REASONS[name]?.[1])])));
}

function hotKeys(page) {
  const { documents: { hot }, change } = page;
  if (hot.absent) return [];
  return partsOf(page).map(([kind, of], i) => {
    const [gets, names, name] = WORDS[kind];
    const keys = of?.keys || [];
    return panel(kind === "items" ? "hot" : "hot-objects", `Hot ${names}`, "", without(hot, `Hot ${names}`, change) ||
      table(`Hot ${names}`, [[name], [`of all ${gets}`, "s"], ["per second", "n"]],
        keys.slice(0, 20).map((one) => [foreign(one.key), barred(one.share, keys[0].share), rate(one.per_sec)]), "None yet."),
      i === 0 && hot.ok && !token() && quiet(`Whole ${names} are shown with the admin token. `, enter(change)));
  });
}

function prefixes(page) {
  return partsOf(page).map(([kind, of]) => {
    const [gets, , , prefixes, prefix] = WORDS[kind];
    const rows = of?.prefixes;
    return rows && panel(kind === "items" ? "prefixes" : "hot-namespaces", `Hot ${prefixes}`, "",
      table(`Hot ${prefixes}`, [[prefix], [`of all ${gets}`, "s"], ["hit ratio", "n"]],
        rows.slice(0, 20).map((one) => [foreign(one.prefix), barred(one.share, rows[0].share), percent(one.hit_ratio)]), "None yet."));
  });
}

function objects({ model }) {
  const of = model.now.objects;
  if (!of) return null;
  return panel("objects", "Object cache", "", facts([
    of.attach_state && of.attach_state !== "attached" && ["Requests", h("b.bad", {}, printable(of.attach_state))],
    ["Objects", exact("objects", count, of.count)],
    ["Read hit ratio", percent(ratio(of.read_hits, objectReads(model.now))), soft(" since start")],
    ["Clean in the cache", exact("clean-bytes", bytes, of.clean_bytes)],
    ["Free", exact("free-bytes", bytes, of.free_bytes)],
    ["Written to the cache", exact("writes-back", count, of.writes_back), soft(" ", per(model.perSec((at) => at.objects.writes_back)))],
    ["Written through", exact("writes-through", count, of.writes_through)],
    ["Writes that waited", exact("writes-throttled", count, of.writes_throttled)],
    ["Flushes", exact("flushes", count, of.flushes), soft(" ", bytes(of.flush_bytes))],
    ["Failed flushes", exact("flush-failures", count, of.flush_failures)],
    ["Lost", of.lost_bytes || of.lost_objects ? h("b.bad", {}, bytes(of.lost_bytes), " of ", count(of.lost_objects), " objects") : "nothing"],
  ]));
}

function namespaces({ model, begin }) {
  const of = model.now.objects;
  if (!of) return null;
  const flusher = ({ namespace }) => h("button", { type: "button", "aria-label": `Flush ${short(namespace)} …`, onclick: () => begin(flushOfNamespace(namespace)) }, "Flush …");
  return panel("namespaces", "Namespaces", "",
    table("Namespaces", [["namespace"], ["write"], ["objects", "n", "w"], ["cached", "n"], ["dirty", "n"], ["oldest", "n"], token() && [""]].filter(Boolean),
      (of.namespaces || []).map((one) => [foreign(one.namespace), printable(one.write), count(one.objects), bytes(one.cached_bytes),
        exact(`dirty-${one.namespace}`, bytes, one.dirty_bytes), one.dirty_bytes ? ms(one.dirty_age_ms) : NONE, token() && flusher(one)].filter((cell) => cell !== null)), "No namespace has been used."),
    of.namespaces_other > 0 && quiet(`and ${count(of.namespaces_other)} more.`));
}

function store({ model }) {
  const of = model.now.store;
  if (!of) return null;
  const away = of.state !== "serving";
  return panel("store", "Store", "",
    h("p", {}, h("span.state", { class: away ? "bad" : "good" }, away ? `▲ away for ${age(of.away_ms / 1000)}` : "✓ serving"), " ", foreign(of.backend)),
    table("Operations of the store since start", [["operation"], ["count", "n"], ["errors", "n"], ["p50", "n"], ["p99", "n"], ["p99.9", "n", "w"]],
      (of.operations || []).map((one) => [printable(one.operation), exact(`store-${one.operation}`, count, one.count), one.errors ? h("b.bad", {}, count(one.errors)) : "0", us(one.p50_us), us(one.p99_us), us(one.p999_us)]), "None yet."));
}

const S3_STATES = { serving: ["good", "✓ serving"], slow: ["warn", "● slow"] };

function s3({ model }) {
  const of = model.now.s3;
  if (!of) return null;
  const [kind, word] = S3_STATES[of.state] || ["bad", `▲ away for ${age(of.away_ms / 1000)}`];
  const counts = (at, name) => at.s3?.buckets?.find((one) => one.bucket === name);
  const reads = (one) => one && one.hits + one.misses;
  return panel("s3", "S3 sidecar", "c12 wide-facts",
    h("p", {}, h("span.state", { class: kind }, word), " ", foreign(of.endpoint)),
    facts([
      ["Hit ratio", percent(ratio(s3Hits(model.now), s3Reads(model.now))), soft(" since start")],
      ["Objects known", exact("s3-objects", count, of.objects)],
      ["From memory", exact("s3-memory-bytes", bytes, of.memory_bytes), soft(" of ", bytes(of.memory_bytes + of.endpoint_bytes))],
      ["Confirmed by the endpoint", exact("s3-revalidated", count, of.revalidated)],
      ["Without the endpoint", exact("s3-stale", count, of.stale)],
      ["Forwarded", exact("s3-passed", count, of.passed)],
      ["Refused", exact("s3-refused", count, of.refused)],
      ["Failed", of.failed ? h("b.bad", {}, exact("s3-failed", count, of.failed)) : "0"],
    ]),
    table("Buckets", [["bucket"], ["hit ratio", "n"], ["now", "n", "w"], ["hits", "n"], ["misses", "n"], ["others", "n", "w"], ["cached", "n"]],
      (of.buckets || []).map((one) => [one.bucket === "/others" ? soft("all others") : foreign(one.bucket), percent(ratio(one.hits, reads(one))),
        percent(model.ratioNow((at) => counts(at, one.bucket)?.hits, (at) => reads(counts(at, one.bucket)))),
        exact(`hits-${one.bucket}`, count, one.hits), count(one.misses), count(one.others), bytes(one.cached_bytes)]), "No bucket has been used."),
    of.buckets_other > 0 && quiet(`and ${count(of.buckets_other)} more.`));
}

function journal({ model }) {
  const of = model.now.journal;
  if (!of) return null;
  return panel("journal", "Journal", "wide-facts",
    h("p.fill", {}, barred(ratio(of.fill_bytes, of.capacity_bytes)), " filled"),
    facts([
      ["Filled", exact("journal-fill", bytes, of.fill_bytes), " of ", bytes(of.capacity_bytes)],
      ["Oldest record", ms(of.oldest_age_ms)],
      ["Commits", count(of.commit?.count)],
      ["Commit, p50 and p99", us(of.commit?.p50_us), " · ", us(of.commit?.p99_us)],
      ["State", of.failed ? h("b.bad", {}, "▲ failed") : "✓ working"],
    ]));
}

function commands({ model }) {
  const rows = model.now.latency;
  if (!rows?.length) return null;
  return panel("commands", "Latency by command since start", "", table("Latency by command", [["command"], ["measured", "n", "w"], ["p50", "n"], ["p90", "n", "w"], ["p99", "n"], ["p99.9", "n"]],
    rows.map((one) => [printable(one.command), count(one.count), exact(`p50-${one.command}`, us, one.p50_us), us(one.p90_us), exact(`p99-${one.command}`, us, one.p99_us), us(one.p999_us)])),
    quiet("Measured on a sample of the requests, from their arrival to their reply."));
}

function listeners({ model }) {
  const rows = model.now.listeners || [];
  return panel("listeners", "Listeners", "", table("Listeners", [["address"], ["protocol"], ["open", "n"], ["accepted", "n"], ["refused", "n"]],
    rows.map((one) => [foreign(one.listener), printable(one.protocol), exact(`open-${one.listener}`, count, one.connections), count(one.accepted), one.refused ? h("b.bad", {}, count(one.refused)) : "0"])));
}

function workers({ model }) {
  const rows = model.now.workers;
  if (!rows?.length) return null;
  const of = (at, worker) => at.workers?.find((one) => one.worker === worker);
  return panel("workers", "Workers", "", table("Workers", [["worker"], ["gets", "n"], ["sets", "n"], ["sent", "n", "w"], ["p99", "n"], ["state"]],
    rows.map((one) => [String(one.worker), per(model.perSec((at) => of(at, one.worker)?.gets)), per(model.perSec((at) => of(at, one.worker)?.sets)), `${bytes(model.perSec((at) => of(at, one.worker)?.sent_bytes))}/s`, us(one.p99_us), one.busy ? "busy" : "waiting"])));
}

function slow({ documents: { slow: answer }, change }) {
  if (answer.absent) return null;
  const rows = answer.ok?.requests || [];
  return panel("slow", "Slow requests", "c12", without(answer, "Slow requests", change) || [
    quiet(answer.ok.threshold_ms > 0 ? `Slower than ${ms(answer.ok.threshold_ms)}.` : "The slow log is off."),
    table("Slow requests", [["time"], ["through", "w"], ["command"], ["key"], ["client", "w"], ["bytes", "n", "w"], ["took", "n"], ["in the store", "n"]],
      rows.slice(0, 25).map((one) => [clock(one.unix_ms / 1000), printable(one.listener), printable(one.command), foreign(one.key ?? NONE), foreign(one.client ?? NONE), bytes(one.bytes), us(one.total_us), us(one.store_us)]))]);
}

const LEVELS = ["error", "warn", "info", "debug", "trace"];

function log({ documents: { log: answer }, ui, change }) {
  if (answer.absent) return null;
  const chosen = LEVELS.indexOf(ui.level);
  const rows = (answer.ok || []).filter((line) => LEVELS.indexOf(line.level) <= chosen);
  return panel("logs", "Log", "c12", without(answer, "Log lines", change) || [
    h("label.choice", {}, "From level ", h("select", { onchange: (event) => change({ level: event.target.value }) }, LEVELS.map((level) => h("option", { value: level, selected: level === ui.level }, level)))),
    h("div.log", { id: "log", role: "log", tabindex: 0, "aria-label": "Log, newest last", "aria-live": "off" },
      rows.map((line) => h("p", { key: `line-${line.id}`, class: line.level },
        h("time", { title: day(line.unix_ms / 1000) }, clock(line.unix_ms / 1000)), " ", h("b", {}, printable(line.level).padEnd(5)), " ", h("bdi", {}, printable(line.message, 2000)))),
      !rows.length && quiet("No lines of this level."))]);
}

function config({ documents: { config: answer }, ui, change }) {
  if (answer.absent) return null;
  const wanted = ui.filter.toLowerCase();
  const rows = (answer.ok?.entries || []).filter((one) => (!ui.changed || one.changed) && one.key.toLowerCase().includes(wanted));
  return panel("config", "Configuration in effect", "c12", without(answer, "Settings", change) || h("details", {},
    h("summary", {}, answer.ok.file ? ["From ", foreign(answer.ok.file), " and flags"] : "From flags and defaults"),
    h("p.choice", {},
      h("label", {}, "Key contains ", h("input", { type: "search", spellcheck: "false", oninput: (event) => change({ filter: event.target.value }) })), " ",
      h("label", {}, h("input", { type: "checkbox", onchange: (event) => change({ changed: event.target.checked }) }), " only what differs from the defaults")),
    table("Configuration", [["key"], ["value"], ["", "w"]],
      rows.map((one) => [h("code", {}, printable(one.key)), h("code", {}, printable(one.value, 300)), soft("by ", printable(one.origin), one.live ? " · changes by reload" : " · changes by restart")]), "No such key.")));
}

const DOCUMENTS = { mrc: "predictions", hot: "hot keys", slow: "slow requests", log: "log lines", config: "settings" };

function unused({ model, documents }) {
  const { items, objects: cache, synapse, journal: log, volumes: disks, s3: sidecar } = model.now;
  const parts = [!items && "items", !cache && "object cache", !synapse && "object listener", !log && "journal", !disks && "volumes", !sidecar && "S3 sidecar"].filter(Boolean);
  const silent = Object.keys(DOCUMENTS).filter((name) => documents[name].absent).map((name) => DOCUMENTS[name]);
  return h("p.quiet.unused", { key: "unused" },
    parts.length > 0 && `Not configured: ${parts.join(", ")}. `, silent.length > 0 && `This server does not report ${silent.join(", ")}.`);
}
