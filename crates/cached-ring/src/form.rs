//! Maps as documents: in a file that a person writes, and as keys and values in a registry.
//!
//! A ring has the document `ring/NAME/meta`, one document `ring/NAME/nodes/NODE` for each node,
//! `ring/NAME/map` with the owner of each run of slots, and in a registry `ring/NAME/moves` if slots
//! move and `ring/NAME/wishes` if slots are wished at nodes. Without `ring/NAME/map` the slots are divided by weight in the order of the nodes' names.
//! Values are JSON; a file of documents is TOML, with one key for each document.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::map::{Map, MapError, Owners, VERSION_MAX};
use crate::moves::Move;
use crate::node::{Node, NodeIndex, Wardship, check_name};
use crate::plan::planned;
use crate::slots::{NotARun, SLOTS, run};
use crate::wishes::Wish;

/// The format of the documents, which is the only one so far.
const FORMAT: u32 = 1;
/// The largest value of a document in a registry, in bytes.
const DOCUMENT_BYTES_MAX: usize = 16 << 10;

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
    #[serde(default, skip_serializing_if = "is_zero")]
    lease_ms: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    warden: Option<WardenDocument>,
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

fn is_zero(number: &u32) -> bool {
    *number == 0
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
        .or_else(|| first(&|node| node.warden.is_some(), "warden"));
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
    nodes.sort_by(|one, other| one.name.cmp(&other.name));
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
    for Node { name, ring, address, weight, term, lease_ms, warden } in map.nodes.iter().cloned() {
        let warden = warden.map(|Wardship { warden: node, since }| WardenDocument { node, since });
        let document = NodeDocument { ring, address, weight, term, lease_ms, warden };
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
    let NodeDocument { ring, address, weight, term, lease_ms, warden } = document;
    let warden = warden.map(|WardenDocument { node, since }| Wardship { warden: node, since });
    let node = Node { name: name.into(), ring, address, weight, term, lease_ms, warden };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Slot;

    const META: (&str, &str) = ("ring/main/meta", r#"{"format":1,"version":7}"#);
    const A: (&str, &str) = ("ring/main/nodes/a", r#"{"ring":"10.0.0.1:11311","address":"10.0.0.1:11211"}"#);
    const B: (&str, &str) =
        ("ring/main/nodes/b", r#"{"ring":"10.0.0.2:11311","address":"10.0.0.2:11211","weight":3}"#);

    fn read(documents: &[(&str, &str)]) -> Result<Map, String> {
        let documents = documents.iter().map(|(key, value)| (*key, value.as_bytes()));
        from_documents("main", documents).map_err(|error| error.to_string())
    }

    #[test]
    fn documents_become_a_map_and_a_file() {
        let map = read(&[B, META, A, ("motd", "hello"), ("ring/other/meta", "x")]).unwrap();
        assert_eq!((map.ring(), map.version()), ("main", 7));
        assert_eq!(map.counts(), [4096, 12288]);
        assert_eq!(
            to_file(&map).unwrap(),
            "\"ring/main/meta\" = { format = 1, version = 7 }\n\
             \"ring/main/nodes/a\" = { ring = \"10.0.0.1:11311\", address = \"10.0.0.1:11211\" }\n\
             \"ring/main/nodes/b\" = { ring = \"10.0.0.2:11311\", address = \"10.0.0.2:11211\", weight = 3 }\n\
             \n[\"ring/main/map\"]\n\"0-4095\" = \"a\"\n\"4096-16383\" = \"b\"\n"
        );
        let runs = ("ring/main/map", r#"{"8-16383":"a","0-6":"b","7":"a"}"#);
        let other = read(&[META, A, B, runs]).unwrap();
        assert_eq!(other.counts(), [16377, 7]);
        assert_eq!(other.runs().count(), 2);
    }

    #[test]
    fn a_mistake_is_one_line_that_names_the_document() {
        let node = |value| ("ring/main/nodes/b", value);
        let map = |value| ("ring/main/map", value);
        for (documents, line) in [
            (
                vec![("ring/east/meta", "{}"), ("ring/west/meta", "{}")],
                "ring/main/meta: is missing; expected { format = 1, version = NUMBER }; there are the rings east, west",
            ),
            (vec![], "ring/main/meta: is missing; expected { format = 1, version = NUMBER }"),
            (vec![A], "ring/main/meta: is missing; expected { format = 1, version = NUMBER }"),
            (
                vec![("ring/main/meta", r#"{"format":2,"version":7}"#)],
                "ring/main/meta: format: is 2; this program knows 1",
            ),
            (
                vec![("ring/main/meta", r#"{"format":1,"version":7,"struck":8}"#)],
                "ring/main/meta: struck: is 8; it must be at most the version, 7",
            ),
            (
                vec![("ring/main/meta", r#"{"format":1,"version":0}"#)],
                "ring/main/meta: version: is 0; it must be between 1 and 9223372036854775807",
            ),
            (vec![("ring/main/meta", r#"{"format":1}"#)], "ring/main/meta: missing field `version`"),
            (vec![("ring/main/meta", "seven")], "ring/main/meta: expected value"),
            (
                vec![META],
                "ring/main/nodes/NODE: is missing; expected one for each node: { ring = \"HOST:PORT\", address = \
                 \"HOST:PORT\" }",
            ),
            (
                vec![META, A, ("ring/main/maps", "{}")],
                "ring/main/maps: is not known; expected meta, nodes/NODE, map, moves or wishes",
            ),
            (
                vec![META, A, node(r#"{"ring":"h","address":"h:1"}"#)],
                "ring/main/nodes/b: ring: is \"h\"; expected HOST:PORT or [V6]:PORT",
            ),
            (
                vec![META, A, node(r#"{"ring":"h:1","address":"h:1"}"#)],
                "ring/main: node b: ring and address are both h:1; they must differ",
            ),
            (
                vec![META, A, node(r#"{"ring":"h:1","adress":"h:2"}"#)],
                "ring/main/nodes/b: unknown field `adress`, expected one of `ring`, `address`, `weight`, `term`, `lease_ms`, `warden`",
            ),
            (
                vec![META, A, node(r#"{"ring":"10.0.0.1:11311","address":"h:2"}"#)],
                "ring/main: nodes a and b have the same address 10.0.0.1:11311; each address must occur once",
            ),
            (
                vec![META, A, node(r#"{"ring":"h:1","address":"h:2","lease_ms":120001}"#)],
                "ring/main: node b: lease_ms: is 120001; it must be at most 120000",
            ),
            (
                vec![META, A, node(r#"{"ring":"h:1","address":"h:2","warden":{"node":"b","since":1}}"#)],
                "ring/main: nodes/b: warden: is \"b\"; it must be another node of the ring",
            ),
            (
                vec![META, A, node(r#"{"ring":"h:1","address":"h:2","warden":{"node":"c","since":1}}"#)],
                "ring/main: nodes/b: warden: is \"c\"; it must be another node of the ring",
            ),
            (
                vec![META, A, node(r#"{"ring":"h:1","address":"h:2","warden":{"node":"a","since":8}}"#)],
                "ring/main: nodes/b: warden: since: is 8; it must be 1 to 7, the map's version",
            ),
            (
                vec![META, A, map(r#"{"0-16384":"a"}"#)],
                "ring/main/map: \"0-16384\" is not a run; expected FIRST-LAST, slots from 0 to 16383",
            ),
            (
                vec![META, A, map(r#"{"9-8":"a"}"#)],
                "ring/main/map: \"9-8\" is not a run; expected FIRST-LAST, slots from 0 to 16383",
            ),
            (
                vec![META, A, map(r#"{"0-16383":"c"}"#)],
                "ring/main/map: 0-16383 belongs to \"c\", which is not a node of the ring",
            ),
            (
                vec![META, A, B, map(r#"{"0-100":"a","100-16383":"b"}"#)],
                "ring/main/map: slot 100 has two owners; each slot must have one",
            ),
            (
                vec![META, A, B, map(r#"{"0-99":"a","101-16383":"b"}"#)],
                "ring/main/map: slot 100 has no owner; each slot must have one",
            ),
            (
                vec![META, A, map(r#"{"0-99":"a"}"#)],
                "ring/main/map: slots 100-16383 have no owner; each slot must have one",
            ),
        ] {
            assert_eq!(read(&documents).unwrap_err(), line, "{documents:?}");
        }
        let name = read(&[META, ("ring/main/nodes/a:b", A.1)]).unwrap_err();
        assert!(name.starts_with("ring/main/nodes/a:b: \"a:b\" is not a name"), "{name}");
    }

    #[test]
    fn a_ring_in_a_registry_is_written_as_it_was_read() {
        let documents = BTreeMap::from([
            ("ring/main/map", r#"{"0-4095":"a","4096-16383":"b"}"#),
            ("ring/main/meta", r#"{"format":1,"version":7,"paused":true,"struck":3}"#),
            ("ring/main/moves", r#"[{"id":5,"from":"b","to":"a","slots":"4096-4100,5000"}]"#),
            (
                "ring/main/nodes/a",
                r#"{"ring":"h1:1","address":"h1:2","weight":1,"term":1,"lease_ms":3000,"warden":{"node":"b","since":4}}"#,
            ),
            ("ring/main/nodes/b", r#"{"ring":"h2:1","address":"h2:2","weight":0,"term":3}"#),
        ]);
        let map = read(&documents.clone().into_iter().collect::<Vec<_>>()).unwrap();
        let again = super::documents(&map).unwrap();
        assert!(again.iter().map(|(key, value)| (&**key, &**value)).eq(documents.clone()));
        assert!(map.is_paused() && map.find_move(5).is_some_and(|one| one.slots.len() == 6));
        assert_eq!(map.move_of(Slot::new(5000).unwrap()).map(|one| one.id), Some(5));
        assert_eq!(map.move_of(Slot::new(4101).unwrap()), None);

        let with = |key, value| {
            let documents = documents.clone().into_iter().filter(|(other, _)| *other != key);
            let documents: Vec<_> = documents.chain([(key, value)]).collect();
            read(&documents).unwrap_err()
        };
        let moves = |value| with("ring/main/moves", value);
        for (value, line) in [
            (r#"[{"id":5,"from":"c","to":"a","slots":"1"}]"#, "move 5: \"c\" is not a node of the ring"),
            (
                r#"[{"id":5,"from":"b","to":"a","slots":""}]"#,
                "move 5: \"\" is not a run; expected FIRST-LAST",
            ),
            (r#"[{"id":5,"from":"b","to":"b","slots":"5000"}]"#, "move 5: from and to must be two nodes"),
            (
                r#"[{"id":5,"from":"b","to":"a","slots":"9"}]"#,
                "move 5: slot 9 belongs to a; it must belong to",
            ),
            (
                r#"[{"id":8,"from":"b","to":"a","slots":"5000"}]"#,
                "move 8: is after move 0; ids must rise, up to 7",
            ),
            (
                r#"[{"id":5,"from":"b","to":"a","slots":"5000"},{"id":6,"from":"b","to":"a","slots":"5000"}]"#,
                "move 6: slot 5000 is in two moves; a slot must be in one at most",
            ),
        ] {
            let told = moves(value);
            assert!(told.starts_with(&format!("ring/main/moves: {line}")), "{told}");
        }
    }

    #[test]
    fn a_file_has_no_part_of_a_ring_in_a_registry() {
        let file = |documents: &[(&str, &str)]| {
            let documents = documents.iter().map(|(key, value)| (*key, value.as_bytes()));
            from_file("main", documents).map_err(|error| error.to_string())
        };
        assert!(file(&[META, A, B]).is_ok());
        let node = ("ring/main/nodes/b", r#"{"ring":"h:1","address":"h:2","term":1}"#);
        let lease = ("ring/main/nodes/b", r#"{"ring":"h:1","address":"h:2","lease_ms":9}"#);
        let warden =
            ("ring/main/nodes/b", r#"{"ring":"h:1","address":"h:2","warden":{"node":"a","since":7}}"#);
        let meta = ("ring/main/meta", r#"{"format":1,"version":7,"paused":true}"#);
        let struck = ("ring/main/meta", r#"{"format":1,"version":7,"struck":7}"#);
        let moves = ("ring/main/moves", r#"[{"id":5,"from":"b","to":"a","slots":"16383"}]"#);
        for (documents, what) in [
            ([META, A, node], "nodes/b: term: is set"),
            ([META, A, lease], "nodes/b: lease_ms: is set"),
            ([META, A, warden], "nodes/b: warden: is set"),
            ([meta, A, B], "meta: paused: is set"),
            ([struck, A, B], "meta: struck: is set"),
            ([META, A, B], "moves: is present"),
        ] {
            let documents = if what.starts_with("moves") {
                [&documents[..], &[moves]].concat()
            } else {
                documents.to_vec()
            };
            let line = format!(
                "ring/main/{what}; a map file cannot have it, only a ring whose map is in a registry"
            );
            assert_eq!(file(&documents), Err(line));
        }
    }

    #[test]
    fn a_map_with_more_runs_than_a_document_holds_is_not_written() {
        let nodes = ["a", "b"].map(|name| Node {
            name: name.into(),
            ring: format!("{name}:1"),
            address: format!("{name}:2"),
            weight: 1,
            term: 0,
            lease_ms: 0,
            warden: None,
        });
        let mut owners: Owners = Box::new([NodeIndex(0); SLOTS]);
        owners.iter_mut().step_by(2).for_each(|owner| *owner = NodeIndex(1));
        let map = Map::new("main", 1, nodes.to_vec(), owners).unwrap();
        let line = to_file(&map).unwrap_err().to_string();
        assert!(line.starts_with("ring/main/map: would have 16384 runs of slots, more than fit"), "{line}");
    }
}
