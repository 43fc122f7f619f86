// The ring of nodes: which node has which slots, what moves, and who is away.

import { h } from "./dom.js";
import { bytes, count, NONE, percent } from "./format.js";
import { ratio } from "./model.js";
import { exact, foreign, panel, quiet, soft, table, without } from "./parts.js";

const SLOTS = 16384;
const STATES = { here: ["good", "✓ here"], up: ["good", "✓ up"], partly: ["warn", "● partly"], away: ["bad", "▲ away"] };

export function ring({ model, documents: { ring: answer }, change }) {
  const of = model.now.ring;
  if (!of) return null;
  const runs = answer.ok?.runs || [];
  const planned = new Map((answer.ok?.nodes || []).map((one) => [one.node, one.planned_slots]));
  return panel("ring", ["Ring ", foreign(of.ring)], "c12",
    quiet("Map ", exact("ring-map", count, of.map_version), ".", of.paused && " Paused: no further move begins.",
      of.purging_slots > 0 && ` ${count(of.purging_slots)} slots are being prepared here.`),
    table("Nodes of the ring", [["node"], ["state"], ["slots", "slots", "w"], ["", "n"], ["share", "n"], ["items", "n"], ["memory", "n", "w"], ["hit ratio", "n", "w"], ["clients", "w"]],
      (of.nodes || []).map((one) => [foreign(one.node), state(one), strip(one.node, runs), slots(one, planned.get(one.node)), percent(ratio(one.slots, SLOTS)),
        count(one.items), bytes(one.memory_bytes), percent(ratio(one.hits, one.gets)), foreign(one.address)])),
    (of.moves || []).map((one) => h("p", {}, exact(`move-${one.id}`, count, one.slot_count), " slots move from ", foreign(one.from), " to ", foreign(one.to), ".")),
    without(answer, "Slots", change));
}

function state(one) {
  const [kind, word] = STATES[one.state] || ["warn", NONE];
  return [h("span.state", { class: kind }, word), one.has_same_map === false && one.state !== "away" && soft(" another map")];
}

const slots = (one, planned) =>
  [exact(`slots-${one.node}`, count, one.slots), planned !== undefined && planned !== one.slots && [" → ", count(planned)]];

// All slots from left to right: those that the node keeps, those that leave it, and those that come.
function strip(node, runs) {
  const paths = { own: "", going: "", coming: "" };
  for (const { first, last, owner, moves_to: to } of runs) {
    const kind = owner === node ? (to === undefined ? "own" : "going") : to === node ? "coming" : null;
    if (kind) paths[kind] += `M${first} 0H${last + 1}V1H${first}z`;
  }
  return h("svg", { viewBox: `0 0 ${SLOTS} 1`, preserveAspectRatio: "none", "aria-hidden": "true" },
    Object.entries(paths).map(([kind, d]) => h("path", { class: kind, d })));
}
