//! `cluster`: the ring of nodes, as one of its nodes sees it; and the plan of another map, without any
//! change.

use std::fmt::Write as _;
use std::path::PathBuf;

use cached_registry::documents;
use cached_ring::{Map, Node, SLOTS, from_file, planned, to_file};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::admin::list;
use crate::command::Call;
use crate::command::cluster_change::Change;
use crate::command::cluster_plan;
use crate::output::Failure;

#[derive(Subcommand)]
pub(crate) enum Cluster {
    /// Show the nodes: state, map, slots, items, hits; the requests that the asked node has passed to
    /// each of them; and the moves of slots in progress.
    ///
    /// The exit code is 5 if a node is away (for some threads: partly), or has another map.
    Status,
    /// Show which node owns which slots, and which of them move. The slot of a key is a part of the
    /// key's CRC-32.
    Map,
    #[command(flatten)]
    Change(Change),
    /// Show which slots would move if nodes were added, removed or weighted. Nothing is changed.
    ///
    /// Without options, it shows what the present weights and wishes move. With FILE it prints the next
    /// version of a map file, and asks no node: what moves is cold at the new owner, everything else
    /// stays; write the output to the map file of every node, then reload each.
    Plan(Plan),
}

#[derive(Args)]
pub(crate) struct Plan {
    /// The map file in force, of a ring whose map is not in the registry.
    file: Option<PathBuf>,
    /// The name of the ring, of which FILE may contain several. The output has only this one.
    #[arg(long, default_value = "main", value_name = "NAME")]
    ring: String,
    /// Add a node: its name, its address for other nodes and its address for clients, for example
    /// d=10.0.0.4:11311,10.0.0.4:11211.
    #[arg(long, value_name = "NODE=RING,ADDRESS", value_parser = added)]
    add: Vec<Node>,
    /// Remove a node.
    #[arg(long, value_name = "NODE")]
    remove: Vec<String>,
    /// Set the weight of a node, also of an added one, relative to other nodes' (default: 1). A node
    /// with weight 0 owns no slots.
    #[arg(long, value_name = "NODE=WEIGHT", value_parser = weighted)]
    weight: Vec<(String, u32)>,
}

impl Cluster {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        match self {
            Self::Plan(plan) => plan.run(call),
            Self::Change(change) => change.run(call),
            Self::Map => {
                let ring = call.admin()?.get("/ring.json")?;
                call.output.write(runs(&ring), &ring)
            }
            Self::Status => {
                let admin = call.admin()?;
                let ring = admin.get("/ring.json")?;
                call.output.write(status(&ring), &ring)?;
                let troubled: Vec<&str> = list(&ring, "nodes").iter().filter_map(trouble).collect();
                if troubled.is_empty() {
                    return Ok(());
                }
                let line = format!("away, or with another map: {}", troubled.join(", "));
                Err(Failure::admin(admin.url(), None, line))
            }
        }
    }
}

/// Returns the name of a node that is away or has another map.
fn trouble(node: &Value) -> Option<&str> {
    let is_troubled = node["state"] == "away" || node["state"] == "partly" || node["has_same_map"] == false;
    is_troubled.then(|| text(&node["node"]))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the table of nodes.
fn status(ring: &Value) -> String {
    let mut rows = vec![
        [
            "NODE", "STATE", "MAP", "SLOTS", "ITEMS", "MEMORY", "HITS", "LANES", "PASSED", "FAILED", "RTT",
            "CLOCK", "ADDRESS",
        ]
        .map(String::from)
        .to_vec(),
    ];
    rows.extend(list(ring, "nodes").iter().map(row));
    let mut shown = format!(
        "ring {}, map {}, seen from {}\n{}",
        text(&ring["ring"]),
        ring["map_version"],
        text(&ring["node"]),
        table(&rows)
    );
    let purging = &ring["purging_slots"];
    if purging.as_u64().is_some_and(|slots| slots > 0) {
        let _ = write!(shown, "\n{purging} slots are still being prepared at {}", text(&ring["node"]));
    }
    if ring["lease_left_ms"] == 0 {
        let _ =
            write!(shown, "\nthe lease of {} has lapsed: requests for its slots wait", text(&ring["node"]));
    }
    for one in list(ring, "moves") {
        let (from, to) = (text(&one["from"]), text(&one["to"]));
        let _ = write!(shown, "\nmove {}: {} slots from {from} to {to}", one["id"], one["slot_count"]);
    }
    shown.push_str(&left(ring).unwrap_or_default());
    for wish in list(ring, "wishes") {
        let (count, node) = (&wish["slot_count"], text(&wish["node"]));
        let _ = write!(shown, "\nwish: {count} slots for {node}");
        if let Some(missing) = wish["missing_slots"].as_u64().filter(|missing| *missing > 0) {
            let _ = write!(shown, ", which has {missing} of them not yet");
        }
    }
    if ring["paused"] == true {
        shown.push_str("\npaused: no further move begins");
    }
    shown
}

/// Returns a line about the slots that have to move, and the time that the node that receives most of
/// them needs at the pace of the asked node's moves so far. `None` if nothing moves.
fn left(ring: &Value) -> Option<String> {
    let missing = |node: &Value| node["planned_slots"].as_u64()?.checked_sub(node["slots"].as_u64()?);
    let missing: Vec<u64> = list(ring, "nodes").iter().filter_map(missing).collect();
    let (all, most) = (missing.iter().sum::<u64>(), missing.iter().max()?);
    let moved = ring["moved_slots"].as_f64().filter(|moved| *moved > 0.0);
    let pace = moved.zip(ring["moving_secs"].as_f64()).map(|(moved, secs)| secs / moved);
    let time =
        pace.map(|pace| format!(", in about {:.0} s at the pace so far", (*most as f64 * pace).ceil()));
    (all > 0).then(|| format!("\nleft: {all} slots have to move{}", time.unwrap_or_default()))
}

/// Returns rows of cells as lines, in which columns begin below each other.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn row(node: &Value) -> Vec<String> {
    let number = |name: &str| node[name].as_u64();
    let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".into());
    let is_here = node["state"] == "here";
    let of_peer = |cell: String| if is_here { "-".into() } else { cell };
    let map = number("map_version").map(|version| match node["has_same_map"] == false {
        true => format!("{version}!"),
        false => version.to_string(),
    });
    let hits = number("hits").zip(number("gets")).filter(|(_, gets)| *gets > 0);
    let failed = ["not_mine", "lost", "away"].iter().filter_map(|name| number(name)).sum::<u64>();
    let lanes = format!("{}/{}", node["lanes"], node["lanes_max"]);
    let round_trip = node["round_trip_us"].as_f64().map(|micros| format!("{:.2} ms", micros / 1000.0));
    vec![
        text(&node["node"]).to_owned(),
        text(&node["state"]).to_owned(),
        or_dash(map),
        match number("planned_slots").filter(|planned| Some(*planned) != number("slots")) {
            Some(planned) => format!("{} → {planned}", node["slots"]),
            None => node["slots"].to_string(),
        },
        or_dash(number("items").map(|items| items.to_string())),
        or_dash(number("memory_bytes").map(|bytes| format!("{} MiB", bytes >> 20))),
        or_dash(hits.map(|(hits, gets)| format!("{:.1} %", 100.0 * hits as f64 / gets as f64))),
        of_peer(lanes),
        of_peer(number("done").unwrap_or(0).to_string()),
        of_peer(failed.to_string()),
        or_dash(round_trip),
        or_dash(node["clock_ms"].as_i64().map(|ms| format!("{ms:+} ms"))),
        text(&node["address"]).to_owned(),
    ]
}

/// Returns one line for each run of slots.
fn runs(ring: &Value) -> String {
    let mut shown = format!("ring {}, map {}", text(&ring["ring"]), ring["map_version"]);
    for run in list(ring, "runs") {
        let _ = write!(shown, "\n{}-{} {}", run["first"], run["last"], text(&run["owner"]));
        if let Some(to) = run["moves_to"].as_str() {
            let _ = write!(shown, " → {to}");
        }
        if let Some(node) = run["wished_for"].as_str() {
            let _ = write!(shown, " (wished for {node})");
        }
    }
    shown
}

impl Plan {
    fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        let Some(file) = &self.file else { return self.of_registry(call) };
        let documents = documents(file).map_err(|error| Failure::usage(error.to_string()))?;
        let now = from_file(&self.ring, documents.iter().map(|(key, value)| (key.as_str(), &value[..])));
        let now = now.map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
        let next = self.next(&now).map_err(Failure::usage)?;
        let file = to_file(&next).map_err(|error| Failure::usage(error.to_string()))?;
        let moved = moved(&now, &next);
        let nodes: Vec<Value> = changes(&now, &next)
            .map(|(name, before, after)| json!({ "node": name, "slots_before": before, "slots": after }))
            .collect();
        let value = json!({ "version": next.version(), "moved_slots": moved, "nodes": nodes, "file": &file });
        call.output.write(format!("{}\n{}", summary(&now, &next), file.trim_end()), &value)
    }

    /// Shows the plan of a ring whose map is in the registry.
    fn of_registry(&self, call: &Call<'_>) -> Result<(), Failure> {
        let admin = call.admin()?;
        let ring = admin.get("/ring.json")?;
        // Only such a ring follows the weights.
        if list(&ring, "nodes").iter().all(|node| node["planned_slots"].is_null()) {
            return Err(cluster_plan::needs_file());
        }
        let now = cluster_plan::map_of(&ring).map_err(|line| Failure::admin(admin.url(), None, line))?;
        let next = self.next(&now).map_err(Failure::usage)?;
        let (lines, value) = cluster_plan::shown(&now, &next, &ring);
        call.output.write(lines, &value)
    }

    /// Returns the next map.
    fn next(&self, now: &Map) -> Result<Map, String> {
        let mut nodes = now.nodes().to_vec();
        let missing = |name: &str| {
            let names: Vec<&str> = now.nodes().iter().map(|node| node.name.as_str()).collect();
            format!("there is no node {name:?}; the nodes are {}", names.join(", "))
        };
        for name in &self.remove {
            let at = nodes.iter().position(|node| node.name == *name).ok_or_else(|| missing(name))?;
            nodes.remove(at);
        }
        for node in &self.add {
            if nodes.iter().any(|other| other.name == node.name) {
                return Err(format!("--add {}: the node is in the map", node.name));
            }
            nodes.push(node.clone());
        }
        for (name, weight) in &self.weight {
            let node = nodes.iter_mut().find(|node| node.name == *name).ok_or_else(|| missing(name))?;
            node.weight = *weight;
        }
        if nodes.is_empty() {
            return Err("no node is left; a map must have one at least".into());
        }
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        let version = now.version().checked_add(1).ok_or("the version cannot be raised any more")?;
        planned(now.ring(), version, nodes, Some(now)).map_err(|error| error.to_string())
    }
}

/// Returns comment lines about what changes.
fn summary(now: &Map, next: &Map) -> String {
    let moved = moved(now, next);
    let mut shown = format!(
        "# Version {} instead of {}: {moved} of {SLOTS} slots change their owner, so {:.1} % of all keys become cold.",
        next.version(),
        now.version(),
        100.0 * moved as f64 / SLOTS as f64
    );
    for (name, before, after) in changes(now, next).filter(|(_, before, after)| before != after) {
        let count = |slots: Option<usize>| slots.map_or("-".into(), |slots| slots.to_string());
        let _ = write!(shown, "\n# {name}: {} slots instead of {}", count(after), count(before));
    }
    shown
}

/// Returns each node with its slots before and after; `None` if it is not in the map.
fn changes<'a>(now: &'a Map, next: &'a Map) -> impl Iterator<Item = (&'a str, Option<usize>, Option<usize>)> {
    let mut names: Vec<&str> =
        now.nodes().iter().chain(next.nodes()).map(|node| node.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let (before, after) = (now.counts(), next.counts());
    names.into_iter().map(move |name| {
        let of = |map: &Map, counts: &[usize]| map.find(name).map(|node| counts[node.index()]);
        (name, of(now, &before), of(next, &after))
    })
}

/// Returns the number of slots that change their owner.
fn moved(now: &Map, next: &Map) -> usize {
    next.nodes().iter().map(|node| next.gained(now, &node.name).count()).sum()
}

fn added(text: &str) -> Result<Node, String> {
    let parts = text.split_once('=').and_then(|(name, addresses)| Some((name, addresses.split_once(',')?)));
    let (name, (ring, address)) = parts.ok_or("expected NODE=RING,ADDRESS")?;
    Ok(Node::new(name, ring, address))
}

fn weighted(text: &str) -> Result<(String, u32), String> {
    let parts = text.split_once('=').and_then(|(name, weight)| Some((name, weight.parse().ok()?)));
    let (name, weight) = parts.ok_or("expected NODE=WEIGHT, a whole number")?;
    Ok((name.into(), weight))
}

#[cfg(test)]
mod cluster_tests {
    use super::*;

    const FILE: &str = "\
        \"ring/main/meta\" = { format = 1, version = 7 }\n\
        \"ring/main/nodes/a\" = { ring = \"h1:1\", address = \"h1:2\" }\n\
        \"ring/main/nodes/b\" = { ring = \"h2:1\", address = \"h2:2\" }\n";

    fn map(text: &str) -> Map {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let documents = documents(file.path()).unwrap();
        from_file("main", documents.iter().map(|(key, value)| (key.as_str(), &value[..]))).unwrap()
    }

    fn options(add: &[&str], remove: &[&str], weight: &[&str]) -> Plan {
        Plan {
            file: None,
            ring: "main".into(),
            add: add.iter().map(|text| added(text).unwrap()).collect(),
            remove: remove.iter().map(ToString::to_string).collect(),
            weight: weight.iter().map(|text| weighted(text).unwrap()).collect(),
        }
    }

    #[test]
    fn a_plan_is_a_file_that_moves_the_fewest_slots() {
        let now = map(FILE);
        let next = options(&["c=h3:1,h3:2"], &[], &["c=2"]).next(&now).unwrap();
        let file = to_file(&next).unwrap();
        assert_eq!(map(&file), next);
        assert_eq!((next.version(), next.counts()), (8, vec![4096, 4096, 8192]));
        let lines = "# Version 8 instead of 7: 8192 of 16384 slots change their owner, so 50.0 % of all keys become cold.\n\
                     # a: 4096 slots instead of 8192\n# b: 4096 slots instead of 8192\n# c: 8192 slots instead of -";
        assert_eq!(summary(&now, &next), lines);
        let commented = format!("{}\n{file}", summary(&now, &next));
        assert_eq!(map(&commented), next);
        let back = options(&[], &["c"], &[]).next(&next).unwrap();
        assert_eq!((moved(&next, &back), back.version(), back.counts()), (8192, 9, vec![8192, 8192]));
    }

    #[test]
    fn what_cannot_be_planned_is_told() {
        let now = map(FILE);
        let error = |plan: Plan| plan.next(&now).unwrap_err();
        assert_eq!(error(options(&[], &["c"], &[])), "there is no node \"c\"; the nodes are a, b");
        assert_eq!(error(options(&["a=h3:1,h3:2"], &[], &[])), "--add a: the node is in the map");
        assert_eq!(error(options(&[], &["a", "b"], &[])), "no node is left; a map must have one at least");
        let same = error(options(&["c=h1:1,h3:2"], &[], &[]));
        assert_eq!(same, "nodes a and c have the same address h1:1; each address must occur once");
        for wrong in ["c", "c=h:1", ""] {
            assert_eq!(added(wrong).unwrap_err(), "expected NODE=RING,ADDRESS");
        }
        assert!(weighted("c=much").is_err());
    }

    #[test]
    fn the_state_of_each_node_is_a_row() {
        let ring = json!({
            "ring": "main", "node": "a", "map_version": 7, "purging_slots": 0, "moved_slots": 1024, "moving_secs": 2.5,
            "nodes": [
                { "node": "a", "state": "here", "map_version": 7, "has_same_map": true, "slots": 8192, "items": 5,
                  "memory_bytes": 64 << 20, "gets": 8, "hits": 6, "lanes": 0, "lanes_max": 0, "address": "h1:2" },
                { "node": "bb", "state": "up", "map_version": 6, "has_same_map": false, "slots": 8192, "lanes": 4,
                  "lanes_max": 4, "done": 9, "lost": 1, "not_mine": 2, "away": 0, "round_trip_us": 130.0,
                  "clock_ms": -3, "address": "h2:2", "planned_slots": 8192 },
                { "node": "c", "state": "up", "map_version": 7, "has_same_map": true, "slots": 0, "lanes": 4,
                  "lanes_max": 4, "address": "h3:2", "planned_slots": 5461 },
            ],
            "moves": [{ "id": 7, "from": "bb", "to": "c", "slots": "16000-16383", "slot_count": 384 }],
            "wishes": [{ "node": "a", "slots": "0-9", "slot_count": 10, "missing_slots": 0 },
                { "node": "c", "slots": "10,16000", "slot_count": 2, "missing_slots": 1 }],
            "paused": true,
            "runs": [{ "first": 0, "last": 8191, "owner": "a", "wished_for": "a" }, { "first": 8192, "last": 15999, "owner": "bb" },
                { "first": 16000, "last": 16383, "owner": "bb", "moves_to": "c" }],
        });
        assert_eq!(
            status(&ring),
            "ring main, map 7, seen from a\n\
             NODE  STATE  MAP  SLOTS     ITEMS  MEMORY  HITS    LANES  PASSED  FAILED  RTT      CLOCK  ADDRESS\n\
             a     here   7    8192      5      64 MiB  75.0 %  -      -       -       -        -      h1:2\n\
             bb    up     6!   8192      -      -       -       4/4    9       3       0.13 ms  -3 ms  h2:2\n\
             c     up     7    0 → 5461  -      -       -       4/4    0       0       -        -      h3:2\n\
             move 7: 384 slots from bb to c\n\
             left: 5461 slots have to move, in about 14 s at the pace so far\n\
             wish: 10 slots for a\n\
             wish: 2 slots for c, which has 1 of them not yet\n\
             paused: no further move begins"
        );
        assert_eq!(list(&ring, "nodes").iter().filter_map(trouble).collect::<Vec<_>>(), ["bb"]);
        assert_eq!(
            runs(&ring),
            "ring main, map 7\n0-8191 a (wished for a)\n8192-15999 bb\n16000-16383 bb → c"
        );
    }
}
