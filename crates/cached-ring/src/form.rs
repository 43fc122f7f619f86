//! Maps as documents: in a file that a person writes, and as keys and values in a registry.
//!
//! A ring has the document `ring/NAME/meta`, one document `ring/NAME/nodes/NODE` for each node,
//! `ring/NAME/map` with the owner of each run of slots, and in a registry `ring/NAME/moves` if slots
//! move and `ring/NAME/wishes` if slots are wished at nodes. Without `ring/NAME/map` the slots are divided by weight in the order of the nodes' names.
//! Values are JSON; a file of documents is TOML, with one key for each document.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::map::{Map, MapError, Owners, VERSION_MAX};
use crate::moves::Move;
use crate::node::{Node, NodeIndex, ProcessState, Wardship, check_name};
use crate::plan::planned;
use crate::slots::{NotARun, SLOTS, run};
use crate::wishes::Wish;

/// The format of the documents, which is the only one so far.
const FORMAT: u32 = 1;
/// The largest value of a document in a registry, in bytes.
const DOCUMENT_BYTES_MAX: usize = 64 << 10;

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct MetaDocument {
    format: u32,
    version: u64,
    #[serde(default)]
    paused: bool,
    /// The version in which a node was struck off last; 0 if none was.
    #[serde(default)]
    struck: u64,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct NodeDocument {
    ring: String,
    address: String,
    #[serde(default = "weight_default")]
    weight: u32,
    #[serde(default)]
    term: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    lease_ms: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    warden: Option<WardenDocument>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    host: String,
    #[serde(default, skip_serializing_if = "is_default")]
    process: ProcessState,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct WardenDocument {
    node: String,
    /// The version in which it became the warden.
    since: u64,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct MoveDocument {
    id: u64,
    from: String,
    to: String,
    slots: String,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct WishDocument {
    to: String,
    slots: String,
}

fn weight_default() -> u32 {
    1
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Returns the map of the ring `ring` from the documents of a file, whose values are JSON.
///
/// # Errors
/// Returns the errors of [`from_documents`], and a line if there is anything that only a ring in a
/// registry can have.
pub fn from_file<'a>(
    ring: &str,
    documents: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Result<Map, MapError> {
    let map = from_documents(ring, documents)?;
    let first = |has: &dyn Fn(&&Node) -> bool, field| {
        map.nodes.iter().find(has).map(|Node { name, .. }| format!("nodes/{name}: {field}: is set"))
    };
    let of_node = first(&|node| node.term != 0, "term")
        .or_else(|| first(&|node| node.lease_ms != 0, "lease_ms"))
        .or_else(|| first(&|node| node.warden.is_some(), "warden"))
        .or_else(|| first(&|node| !node.host.is_empty(), "host"))
        .or_else(|| first(&|node| !is_default(&node.process), "process"));
    let document = match of_node {
        _ if !map.moves.is_empty() => "moves: is present".to_owned(),
        _ if !map.wishes.is_empty() => "wishes: is present".to_owned(),
        _ if map.is_paused => "meta: paused: is set".to_owned(),
        _ if map.struck != 0 => "meta: struck: is set".to_owned(),
        Some(document) => document,
        None => return Ok(map),
    };
    Err(MapError::new(format_args!(
        "ring/{ring}/{document}; a map file cannot have it, only a ring whose map is in a registry"
    )))
}

/// Returns the map of the ring `ring` from documents, whose values are JSON. Documents of other
/// rings, and all others whose keys do not begin with `ring/`, are ignored.
///
/// # Errors
/// Returns the first mistake, as one line that begins with the document's key: a missing document,
/// an invalid value, a slot without owner or with two, an owner that is not among the nodes, an
/// address that occurs twice, a move of slots that are not its source's.
pub fn from_documents<'a>(
    ring: &str,
    documents: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Result<Map, MapError> {
    let (mut own, mut others) = (BTreeMap::new(), BTreeMap::new());
    for (key, value) in documents {
        let Some((name, rest)) = key.strip_prefix("ring/").and_then(|key| key.split_once('/')) else {
            continue;
        };
        match name == ring {
            true => drop(own.insert(rest, value)),
            false => drop(others.insert(name, ())),
        }
    }
    let key = |rest: &str| format!("ring/{ring}/{rest}");
    let Some(meta) = own.remove("meta") else {
        let known: Vec<&str> = others.into_keys().collect();
        let hint = match (own.is_empty(), known.is_empty()) {
            (true, false) => format!("; there are the rings {}", known.join(", ")),
            _ => String::new(),
        };
        let expected = "{ format = 1, version = NUMBER }";
        return Err(MapError::new(format_args!("{}: is missing; expected {expected}{hint}", key("meta"))));
    };
    let meta: MetaDocument = value(&key("meta"), meta)?;
    if meta.format != FORMAT {
        let format = meta.format;
        return Err(MapError::new(format_args!(
            "{}: format: is {format}; this program knows {FORMAT}",
            key("meta")
        )));
    }
    if meta.struck > meta.version {
        let (struck, version) = (meta.struck, meta.version);
        return Err(MapError::new(format_args!(
            "{}: struck: is {struck}; it must be at most the version, {version}",
            key("meta")
        )));
    }
    if !(1..=VERSION_MAX).contains(&meta.version) {
        let version = meta.version;
        return Err(MapError::new(format_args!(
            "{}: version: is {version}; it must be between 1 and {VERSION_MAX}",
            key("meta")
        )));
    }
    let [map, moves, wishes] = ["map", "moves", "wishes"].map(|rest| own.remove(rest));
    let mut nodes = Vec::new();
    for (rest, document) in own {
        let key = key(rest);
        let Some(name) = rest.strip_prefix("nodes/") else {
            let expected = "meta, nodes/NODE, map, moves or wishes";
            return Err(MapError::new(format_args!("{key}: is not known; expected {expected}")));
        };
        nodes.push(node(&key, name, value(&key, document)?)?);
    }
    nodes.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    if nodes.is_empty() {
        let expected = "{ ring = \"HOST:PORT\", address = \"HOST:PORT\" }";
        return Err(MapError::new(format_args!(
            "{}: is missing; expected one for each node: {expected}",
            key("nodes/NODE")
        )));
    }
    let map = match map {
        Some(map) => {
            let owners = owners(&key("map"), value(&key("map"), map)?, &nodes)?;
            Map::new(ring, meta.version, nodes, owners)
        }
        None => planned(ring, meta.version, nodes, None),
    };
    let map = map.map_err(|error| MapError::new(format_args!("ring/{ring}: {error}")))?;
    let moves = match moves {
        Some(document) => moves_of(&key("moves"), value(&key("moves"), document)?, &map)?,
        None => Vec::new(),
    };
    let wishes = match wishes {
        Some(document) => wishes_of(&key("wishes"), value(&key("wishes"), document)?, &map)?,
        None => Vec::new(),
    };
    let map = Map { is_paused: meta.paused, moves, wishes, struck: meta.struck, ..map }.checked();
    map.map_err(|error| MapError::new(format_args!("ring/{ring}/{error}")))
}

/// Returns all documents of the ring, whose values are JSON. There is no document for moves or wishes
/// if there are none.
///
/// # Errors
/// Returns a line if a document would be larger than a registry permits.
pub fn documents(map: &Map) -> Result<BTreeMap<String, String>, MapError> {
    let ring = map.ring();
    let mut all = BTreeMap::new();
    let mut put = |rest: &str, value: String| match value.len() > DOCUMENT_BYTES_MAX {
        true => Err(MapError::new(format_args!(
            "ring/{ring}/{rest}: would have {} bytes; a document has {DOCUMENT_BYTES_MAX} at most",
            value.len()
        ))),
        false => {
            all.insert(format!("ring/{ring}/{rest}"), value);
            Ok(())
        }
    };
    let Map { version, is_paused: paused, struck, .. } = *map;
    put("meta", json(&MetaDocument { format: FORMAT, version, paused, struck }))?;
    for node in map.nodes.iter().cloned() {
        let Node { name, ring, address, weight, term, lease_ms, warden, host, process } = node;
        let warden = warden.map(|Wardship { warden: node, since }| WardenDocument { node, since });
        let document = NodeDocument { ring, address, weight, term, lease_ms, warden, host, process };
        put(&format!("nodes/{name}"), json(&document))?;
    }
    let mut runs = String::from("{");
    for one in map.runs() {
        let (comma, owner) = (if runs.len() > 1 { "," } else { "" }, &map.node(one.owner).name);
        let _ = write!(runs, "{comma}\"{}-{}\":\"{owner}\"", one.first.number(), one.last.number());
    }
    put("map", runs + "}")?;
    let name = |index: NodeIndex| map.node(index).name.clone();
    if !map.moves.is_empty() {
        let moves = map.moves.iter().map(|Move { id, from, to, slots }| MoveDocument {
            id: *id,
            from: name(*from),
            to: name(*to),
            slots: slots.to_string(),
        });
        put("moves", json(&moves.collect::<Vec<_>>()))?;
    }
    if !map.wishes.is_empty() {
        let wishes = map
            .wishes
            .iter()
            .map(|Wish { to, slots }| WishDocument { to: name(*to), slots: slots.to_string() });
        put("wishes", json(&wishes.collect::<Vec<_>>()))?;
    }
    Ok(all)
}

fn json(document: &impl Serialize) -> String {
    serde_json::to_string(document).expect("no map with keys that are not texts")
}

/// Returns the moves in a document.
fn moves_of(key: &str, documents: Vec<MoveDocument>, map: &Map) -> Result<Vec<Move>, MapError> {
    let parsed = documents.into_iter().map(|MoveDocument { id, from, to, slots }| {
        let wrong = |line: String| MapError::new(format_args!("{key}: move {id}: {line}"));
        let node =
            |name: &str| map.find(name).ok_or_else(|| wrong(format!("{name:?} is not a node of the ring")));
        let (from, to) = (node(&from)?, node(&to)?);
        let slots = slots.parse().map_err(|error: NotARun| wrong(error.to_string()))?;
        Ok(Move { id, from, to, slots })
    });
    parsed.collect()
}

/// Returns the wishes in a document, in the order of their nodes.
fn wishes_of(key: &str, documents: Vec<WishDocument>, map: &Map) -> Result<Vec<Wish>, MapError> {
    let parsed = documents.into_iter().map(|WishDocument { to, slots }| {
        let wrong = |line: String| MapError::new(format_args!("{key}: {line}"));
        let node = map.find(&to).ok_or_else(|| wrong(format!("{to:?} is not a node of the ring")))?;
        let slots = slots.parse().map_err(|error: NotARun| wrong(format!("{to}: {error}")))?;
        Ok(Wish { to: node, slots })
    });
    let mut wishes = parsed.collect::<Result<Vec<_>, _>>()?;
    wishes.sort_by_key(|wish| wish.to);
    Ok(wishes)
}

/// Returns a file of documents with the nodes and the owners of the map.
///
/// # Errors
/// Returns a line if the document with the runs would be larger than a registry permits.
pub fn to_file(map: &Map) -> Result<String, MapError> {
    let ring = map.ring();
    let mut text = format!("\"ring/{ring}/meta\" = {{ format = {FORMAT}, version = {} }}\n", map.version());
    for Node { name, ring: peers, address, weight, .. } in map.nodes() {
        let weight = if *weight == 1 { String::new() } else { format!(", weight = {weight}") };
        let _ = writeln!(
            text,
            "\"ring/{ring}/nodes/{name}\" = {{ ring = \"{peers}\", address = \"{address}\"{weight} }}"
        );
    }
    let _ = write!(text, "\n[\"ring/{ring}/map\"]\n");
    let before = text.len();
    for run in map.runs() {
        let owner = &map.node(run.owner).name;
        let _ = writeln!(text, "\"{}-{}\" = \"{owner}\"", run.first.number(), run.last.number());
    }
    // In JSON, each line is two bytes shorter.
    let (bytes, runs) = (text.len() - before, map.runs().count());
    if bytes.saturating_sub(2 * runs) > DOCUMENT_BYTES_MAX {
        return Err(MapError::new(format_args!(
            "ring/{ring}/map: would have {runs} runs of slots, more than fit into {DOCUMENT_BYTES_MAX} bytes; leave \
             the document out, and slots are divided by weight in the order of names"
        )));
    }
    Ok(text)
}

fn node(key: &str, name: &str, document: NodeDocument) -> Result<Node, MapError> {
    check_name(name).map_err(|error| MapError::new(format_args!("{key}: {error}")))?;
    let NodeDocument { ring, address, weight, term, lease_ms, warden, host, process } = document;
    let warden = warden.map(|WardenDocument { node, since }| Wardship { warden: node, since });
    let node = Node { name: name.into(), ring, address, weight, term, lease_ms, warden, host, process };
    node.check_addresses().map_err(|error| MapError::new(format_args!("{key}: {error}")))?;
    Ok(node)
}

/// Returns the owners in a document that maps runs (`FIRST-LAST`, or one slot) to names.
fn owners(key: &str, runs: BTreeMap<String, String>, nodes: &[Node]) -> Result<Owners, MapError> {
    let wrong = |line: String| MapError::new(format_args!("{key}: {line}"));
    let mut parsed = Vec::with_capacity(runs.len());
    for (text, owner) in &runs {
        let (first, last) = run(text).map_err(|error| wrong(error.to_string()))?;
        let Ok(owner) = nodes.binary_search_by(|node| node.name.as_str().cmp(owner)) else {
            return Err(wrong(format!("{text} belongs to {owner:?}, which is not a node of the ring")));
        };
        parsed.push((usize::from(first.number()), usize::from(last.number()), NodeIndex(owner as u16)));
    }
    parsed.sort_unstable();
    let mut owners: Owners = Box::new([NodeIndex(0); SLOTS]);
    let mut next = 0;
    for (first, last, owner) in parsed {
        if first < next {
            return Err(wrong(format!("slot {first} has two owners; each slot must have one")));
        }
        if first > next {
            return Err(wrong(gap(next, first - 1)));
        }
        owners[first..=last].fill(owner);
        next = last + 1;
    }
    match next == SLOTS {
        true => Ok(owners),
        false => Err(wrong(gap(next, SLOTS - 1))),
    }
}

fn gap(first: usize, last: usize) -> String {
    match first == last {
        true => format!("slot {first} has no owner; each slot must have one"),
        false => format!("slots {first}-{last} have no owner; each slot must have one"),
    }
}

/// Parses a document's value.
fn value<'a, T: Deserialize<'a>>(key: &str, bytes: &'a [u8]) -> Result<T, MapError> {
    serde_json::from_slice(bytes).map_err(|error| {
        // The position is that in the JSON, which a person does not see.
        let line = error.to_string();
        let line = line.split(" at line ").next().unwrap_or_default();
        MapError::new(format_args!("{key}: {line}"))
    })
}
