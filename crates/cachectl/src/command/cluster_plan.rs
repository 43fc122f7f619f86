//! `cluster plan` of a ring whose map is in the registry: the slots that the nodes would move, as the
//! asked node knows the ring. Nothing is changed.

use std::collections::BTreeMap;

use cached_ring::{Map, Slot, from_documents};
use serde_json::{Value, json};

use crate::admin::list;
use crate::output::Failure;

/// Returns the map of `/ring.json` once all moves in progress are done.
pub(crate) fn map_of(ring: &Value) -> Result<Map, String> {
    let name = ring["ring"].as_str().unwrap_or_default();
    let mut documents = vec![("meta".to_owned(), json!({ "format": 1, "version": ring["map_version"] }))];
    for node in list(ring, "nodes") {
        let document =
            json!({ "ring": node["ring_address"], "address": node["address"], "weight": node["weight"] });
        documents.push((format!("nodes/{}", node["node"].as_str().unwrap_or_default()), document));
    }
    let runs = list(ring, "runs").iter();
    let runs: BTreeMap<String, &Value> =
        runs.map(|run| (format!("{}-{}", run["first"], run["last"]), &run["owner"])).collect();
    documents.push(("map".into(), json!(runs)));
    let part = |name: &str, keys: &[(&str, &str)]| -> Value {
        let of =
            |one: &Value| keys.iter().map(|(to, from)| (*to, one[*from].clone())).collect::<BTreeMap<_, _>>();
        list(ring, name).iter().map(|one| json!(of(one))).collect()
    };
    let same = |key| (key, key);
    documents.push(("moves".into(), part("moves", &["id", "from", "to", "slots"].map(same))));
    documents.push(("wishes".into(), part("wishes", &[("to", "node"), same("slots")])));
    let texts: Vec<(String, Vec<u8>)> = documents
        .into_iter()
        .map(|(rest, document)| (format!("ring/{name}/{rest}"), document.to_string().into_bytes()))
        .collect();
    let mut map = from_documents(name, texts.iter().map(|(key, text)| (key.as_str(), &text[..])))
        .map_err(|error| error.to_string())?;
    while let Some(one) = map.moves().first() {
        map = map.commit_move(one.id).map_err(|error| error.to_string())?;
    }
    Ok(map)
}

/// Slots that would go from one node to another.
struct Part<'a> {
    from: &'a str,
    to: &'a str,
    slots: usize,
    /// The items and the bytes of as many of the source's slots as they usually have; `None` if nothing
    /// is known of the source.
    items: Option<u64>,
    bytes: Option<u64>,
}

/// Returns the plan as lines and as a value. `ring` has what the nodes report of themselves.
pub(crate) fn shown(now: &Map, next: &Map, ring: &Value) -> (String, Value) {
    let parts = parts(now, next, ring);
    if parts.is_empty() {
        return ("no slots would move".into(), json!({ "moves": [] }));
    }
    let mut rows = vec![["FROM", "TO", "SLOTS", "ITEMS", "MIB"].map(String::from).to_vec()];
    let or_dash = |number: Option<u64>| number.map_or_else(|| "-".into(), |number| format!("~{number}"));
    for Part { from, to, slots, items, bytes } in &parts {
        let mib = bytes.map(|bytes| bytes.div_ceil(1 << 20));
        rows.push(vec![(*from).into(), (*to).into(), slots.to_string(), or_dash(*items), or_dash(mib)]);
    }
    let moves: Vec<Value> = parts
        .iter()
        .map(|Part { from, to, slots, items, bytes }| {
            json!({ "from": from, "to": to, "slots": slots, "items": items, "bytes": bytes })
        })
        .collect();
    (super::cluster::table(&rows), json!({ "moves": moves }))
}

fn parts<'a>(now: &'a Map, next: &'a Map, ring: &Value) -> Vec<Part<'a>> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for slot in Slot::all() {
        let [from, to] = [now, next].map(|map| map.node(map.owner(slot)).name.as_str());
        if from != to {
            *counts.entry((from, to)).or_default() += 1;
        }
    }
    let owned = now.counts();
    let part = |((from, to), slots): ((&'a str, &'a str), usize)| {
        let reported = list(ring, "nodes").iter().find(|node| node["node"] == from);
        let all = now.find(from).map_or(0, |node| owned[node.index()]);
        let share = |key: &str| {
            let of_all = reported?[key].as_u64()?;
            u64::try_from(u128::from(of_all) * slots as u128 / (all.max(1) as u128)).ok()
        };
        Part { from, to, slots, items: share("items"), bytes: share("item_bytes") }
    };
    counts.into_iter().map(part).collect()
}

/// Returns a failure for a ring that is not in the registry.
pub(crate) fn needs_file() -> Failure {
    Failure::usage("the ring's map is in a file, so name the file: `cluster plan FILE`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cached_ring::planned;

    fn ring() -> Value {
        let node = |name: &str, items: Value| {
            json!({ "node": name, "ring_address": format!("{name}:1"), "address": format!("{name}:2"), "weight": 1,
                "items": items, "item_bytes": 64 << 20 })
        };
        json!({
            "ring": "main", "map_version": 7, "nodes": [node("a", json!(1000)), node("b", Value::Null)],
            "runs": [{ "first": 0, "last": 8191, "owner": "a" }, { "first": 8192, "last": 8195, "owner": "a", "moves_to": "b" },
                { "first": 8196, "last": 16383, "owner": "b" }],
            "moves": [{ "id": 7, "from": "a", "to": "b", "slots": "8192-8195", "slot_count": 4 }],
            "wishes": [{ "node": "a", "slots": "9000", "slot_count": 1, "missing_slots": 1 }],
        })
    }

    #[test]
    fn a_plan_shows_what_goes_from_node_to_node() {
        let ring = ring();
        let now = map_of(&ring).unwrap();
        assert_eq!(now.counts(), [8192, 8192], "the move is done");
        let next = |nodes| planned("main", 8, nodes, Some(&now)).unwrap();
        let (lines, value) = shown(&now, &next(now.nodes().to_vec()), &ring);
        // The wish, and what makes up for it.
        assert_eq!(
            lines,
            "FROM  TO  SLOTS  ITEMS  MIB\na     b   1      ~0     ~1\nb     a   1      -      ~1"
        );
        assert_eq!(
            value["moves"][1],
            json!({ "from": "b", "to": "a", "slots": 1, "items": null, "bytes": 8192 })
        );
        let mut nodes = now.nodes().to_vec();
        nodes[1].weight = 0;
        let (lines, _) = shown(&now, &next(nodes), &ring);
        assert_eq!(lines, "FROM  TO  SLOTS  ITEMS  MIB\nb     a   8192   -      ~64");
        let (lines, value) = shown(&now, &now, &ring);
        assert_eq!((lines.as_str(), value), ("no slots would move", json!({ "moves": [] })));
    }

    #[test]
    fn what_no_server_sends_is_a_line() {
        let mut wrong = ring();
        wrong["moves"][0]["to"] = json!("c");
        assert!(map_of(&wrong).unwrap_err().contains("\"c\" is not a node of the ring"));
        assert!(map_of(&json!([])).is_err() && map_of(&json!({ "nodes": 5, "runs": [1] })).is_err());
    }
}
