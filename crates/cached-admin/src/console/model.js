// What the answers of the server mean: rates from differences, ratios over the history, and what is at risk.

// Live rates are differences over about this time.
const WINDOW_SECS = 10;

const sum = (column) => (column || []).reduce((all, value) => all + (value ?? 0), 0);
const ratio = (part, all) => (all > 0 ? part / all : null);

export class Model {
  answers = [];

  // Takes an answer. Returns whether it is the first of another process than the one before.
  take(answer) {
    const status = { program: "cached", version: "", host: "", process: {}, ...answer };
    const before = this.answers.at(-1);
    const restarted = before !== undefined && before.instance !== status.instance;
    if (restarted) this.answers = [];
    this.answers.push(status);
    const from = status.now_unix_ms - WINDOW_SECS * 1000;
    while (this.answers.length > 2 && this.answers[1].now_unix_ms <= from) this.answers.shift();
    return restarted;
  }

  get now() {
    return this.answers.at(-1);
  }

  // The increase of a counter per second; null if there is no earlier answer, or the counter is not there.
  perSec(pick) {
    const [first, last] = [this.answers[0], this.now];
    const secs = (last.now_unix_ms - first.now_unix_ms) / 1000;
    const rise = pick(last) - pick(first);
    return secs > 0 && Number.isFinite(rise) && rise >= 0 ? rise / secs : null;
  }

  rose = (pick) => this.perSec(pick) > 0;

  ratioNow(part, all) {
    const [rise, whole] = [this.perSec(part), this.perSec(all)];
    return rise === null || whole === null ? null : ratio(rise, whole);
  }

  columns() {
    return this.now.history?.columns || {};
  }

  historySecs() {
    const longest = Math.max(0, ...Object.values(this.columns()).map((column) => column.length));
    return longest * (this.now.history?.step_secs || 0);
  }

  // A column as exactly `length` values ending at the history's end.
  column(name, change = (value) => value) {
    const column = this.columns()[name];
    return column && column.map((value) => (value === null ? null : change(value)));
  }

  perSecColumn = (name) => this.column(name, (value) => value / this.now.history.step_secs);

  ratioColumn(hits, all) {
    const [part, whole] = [this.columns()[hits], all(this.columns())];
    return part && part.map((value, i) => (value === null ? null : ratio(value, whole(i))));
  }

  itemHits = () => this.ratioColumn("get_hits", (columns) => (i) => columns.gets[i]);
  objectHits = () => this.hits("object_read_hits", "object_read_misses");
  s3Hits = () => this.hits("s3_hits", "s3_misses");

  itemHitsHour = () => ratio(sum(this.columns().get_hits), sum(this.columns().gets));
  objectHitsHour = () => this.hitsHour("object_read_hits", "object_read_misses");
  s3HitsHour = () => this.hitsHour("s3_hits", "s3_misses");

  // The hit ratio of two columns at each time, and that of the whole history.
  hits = (hits, misses) => this.ratioColumn(hits, (columns) => (i) => columns[hits][i] + columns[misses][i]);

  hitsHour(hits, misses) {
    const [hit, missed] = [hits, misses].map((name) => sum(this.columns()[name]));
    return ratio(hit, hit + missed);
  }

  lastOf = (name) => (this.columns()[name] || []).findLast((value) => value !== null) ?? null;
}

// All commands on items that were executed.
export const itemRequests = ({ items: of }) => of && of.gets + of.sets + of.touches + of.deletes + of.incrs + of.decrs;
export const s3Hits = ({ s3: of }) => of && of.hits + of.revalidated + of.stale + of.absent;
export const s3Reads = (status) => s3Hits(status) + status.s3?.misses;
const s3Requests = (status) => s3Reads(status) + status.s3?.passed + status.s3?.refused + status.s3?.failed;
export const requests = (status) => (itemRequests(status) || 0) + (status.synapse?.requests || 0) + (s3Requests(status) || 0);
export const objectReads = ({ objects: of }) => of && of.read_hits + of.read_misses;
export { ratio };

// What an operator should look at, the worst first: [{bad, text}].
export function risks(model, write) {
  const { health, objects, store, connections, journal, items, s3, state, ring } = model.now;
  const found = [];
  const add = (when, text, bad = false) => when && found.push({ bad, text });
  add(objects?.lost_bytes > 0 || objects?.lost_objects > 0,
    () => `Acknowledged data are lost: ${write.bytes(objects.lost_bytes)} of ${write.count(objects.lost_objects)} objects. cachectl lost lists them.`, true);
  add(journal?.failed, () => "The journal has failed: changes are not journaled.", true);
  for (const reason of health?.reasons || []) add(true, () => `Not ready: ${write.printable(reason)}`, true);
  add(store?.state === "away" && !health?.reasons?.length, () => `The store has not answered for ${write.age(store.away_ms / 1000)}.`, true);
  add(s3?.state === "away", () => `The S3 endpoint has not been reachable for ${write.age(s3.away_ms / 1000)}.`, true);
  add(s3?.state === "slow", () => "The S3 endpoint does not respond in time; objects in memory are served without it.");
  const lost = (ring?.nodes || []).filter((one) => one.state === "away").map((one) => one.node);
  add(lost.length, () => `Nodes of the ring are away, with their keys: ${write.printable(lost.join(", "))}.`, true);
  add(objects?.attach_state === "detached", () => "The object cache is detached: requests go to the store. cachectl cache attach puts it back.");
  add(["storing", "transit"].includes(objects?.attach_state), () => "The object cache is being detached.");
  add(state === "draining", () => "The server is draining: it takes no new connections and stores what is dirty.");
  const old = objects?.namespaces?.find((of) => of.dirty_age_ms > of.dirty_age_limit_ms * 2);
  add(old, () => `Dirty data of ${write.printable(old.namespace)} are ${write.age(old.dirty_age_ms / 1000)} old, over twice the limit.`);
  add(objects?.dirty_bytes >= objects?.dirty_limit_bytes * 0.9, () => "Dirty data are at nine tenths of their limit or above: writers wait at the limit.");
  add(model.rose((at) => at.objects?.flush_failures), () => "Flushes fail; they are repeated.");
  add(connections?.accepting === false, () => "No connections are accepted: the limit is reached, or no descriptors are left.", true);
  add(model.rose((at) => at.connections?.refused), () => "Connections are refused.");
  add(model.rose((at) => at.items?.refused_no_memory), () => "Items are refused: memory is full.");
  add(items && model.rose((at) => at.items?.refused_too_large), () => "Items are refused: they are too large.");
  return found.map(({ bad, text }) => ({ bad, text: text() })).sort((a, b) => b.bad - a.bad);
}

// The points of a predicted curve, smallest memory first, without what is not a number.
export function curvePoints(curve) {
  return (curve?.points || [])
    .filter((point) => point.factor > 0 && typeof point.miss_ratio === "number")
    .map((point) => ({ factor: point.factor, bytes: point.memory_bytes ?? point.bytes, ratio: point.miss_ratio }))
    .sort((a, b) => a.factor - b.factor);
}
