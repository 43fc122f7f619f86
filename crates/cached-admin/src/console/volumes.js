// The volumes: all of them with their clients, and one with its snapshots, its usage and its actions.

import { cloneOf, detachOf, flushOf, snapshotOf } from "./actions.js";
import { h } from "./dom.js";
import { token } from "./feed.js";
import { bytes, count, day, NONE, printable, short } from "./format.js";
import { enter, exact, facts, foreign, panel, per, quiet, table, without } from "./parts.js";

const SNAPSHOTS_MAX = 50;

const doer = (text, action, begin) => h("button", { type: "button", onclick: () => begin(action) }, text);

export function volumes(context) {
  const { model, documents: { volumes: answer }, ui, change, choose } = context;
  if (!model.now.volumes) return null;
  const missing = without(answer, "Volumes", change);
  if (missing) return panel("volumes", "Volumes", "c12", missing);
  const rows = answer.ok.volumes || [];
  const counts = (at, name) => at.volumes?.volumes?.find((one) => one.volume === name);
  const rateOf = (name, key) => per(model.perSec((at) => counts(at, name)?.[key]));
  const opener = ({ name }) => h("button.link.key", { type: "button", title: printable(name, 1000), "aria-expanded": String(name === ui.volume), onclick: () => choose(name) }, short(name));
  return panel("volumes", "Volumes", "c12",
    table("Volumes", [["volume"], ["size", "n"], ["used", "n", "w"], ["snapshots", "n"], ["clients", "n"], ["reads", "n", "w"], ["writes", "n", "w"], ["owner", "w"]],
      rows.map((one) => [opener(one), bytes(one.size_bytes), bytes(one.usage?.referenced_bytes), count(one.snapshot_count),
        exact(`clients-${one.name}`, count, counts(model.now, one.name)?.connections ?? 0), rateOf(one.name, "reads"), rateOf(one.name, "writes"), one.owner ? foreign(one.owner) : NONE]),
      "There are no volumes."),
    (answer.ok.damaged || []).map((one) => h("p.bad", {}, "▲ ", foreign(one.name), " is damaged: ", printable(one.error))),
    answer.ok.volumes_other > 0 && quiet(`and ${count(answer.ok.volumes_other)} more.`),
    ui.volume !== null && details(context));
}

function details({ documents: { volume: answer }, ui, change, begin }) {
  const missing = answer.away ? quiet(`Not known: ${answer.away}.`) : answer.absent ? quiet("The volume does not exist.") : without(answer, "Volumes", change);
  const of = answer.ok;
  return h("section.details.wide-facts", { key: `volume-${ui.volume}`, "aria-labelledby": "volume-title" },
    h("h3", { id: "volume-title" }, foreign(ui.volume)),
    missing || [
      facts([
        ["Size", exact("volume-size", bytes, of.size_bytes), ", objects of ", bytes(of.object_bytes)],
        of.usage && ["Used", exact("volume-used", bytes, of.usage.referenced_bytes), ", changed since the last snapshot ", bytes(of.usage.exclusive_bytes)],
        ["Attached by", of.owner ? foreign(of.owner) : "nobody", `, ${count(of.connections)} ${of.connections === 1 ? "client" : "clients"} here`],
        of.origin && ["Clone of", foreign(of.origin.volume ?? "a deleted volume"), of.origin.snapshot && [" at ", foreign(of.origin.snapshot)]],
        ["Settings", of.settings?.is_read_only ? "read-only" : printable(of.settings?.write ?? "write mode of the cache")],
      ]),
      table("Snapshots", [["snapshot"], ["created"], ["size", "n"]],
        (of.snapshots || []).slice(-SNAPSHOTS_MAX).reverse().map((one) => [foreign(one.name), day(one.created_unix_secs), bytes(one.size_bytes)]), "No snapshots."),
      of.snapshots?.length > SNAPSHOTS_MAX && quiet(`and ${count(of.snapshots.length - SNAPSHOTS_MAX)} older ones.`),
      token()
        ? h("p.doers", {}, doer("Snapshot …", snapshotOf(of), begin), doer("Clone …", cloneOf(of), begin), doer("Flush …", flushOf(of), begin), doer("Detach …", detachOf(of), begin))
        : quiet("Snapshots and other changes need the admin token. ", enter(change)),
    ]);
}
