//! Documents that become a map and are written again, and the line for each mistake in them.

use super::*;
use crate::node::tests::node;
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
            "ring/main/nodes/b: unknown field `adress`, expected one of `ring`, `address`, `weight`, `term`, `lease_ms`, `warden`, `host`, `process`",
        ),
        (
            vec![META, A, node(r#"{"ring":"h:1","address":"h:2","host":"h","process":"asleep"}"#)],
            "ring/main/nodes/b: unknown variant `asleep`, expected one of `runs`, `ended`, `claims`",
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
            r#"{"ring":"h1:1","address":"h1:2","weight":1,"term":1,"lease_ms":3000,"warden":{"node":"b","since":4},"host":"h"}"#,
        ),
        ("ring/main/nodes/b", r#"{"ring":"h2:1","address":"h2:2","weight":0,"term":3}"#),
        (
            "ring/main/nodes/d",
            r#"{"ring":"h3:1","address":"h3:2","weight":1,"term":2,"host":"h","process":"ended"}"#,
        ),
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
        (r#"[{"id":5,"from":"b","to":"a","slots":""}]"#, "move 5: \"\" is not a run; expected FIRST-LAST"),
        (r#"[{"id":5,"from":"b","to":"b","slots":"5000"}]"#, "move 5: from and to must be two nodes"),
        (r#"[{"id":5,"from":"b","to":"a","slots":"9"}]"#, "move 5: slot 9 belongs to a; it must belong to"),
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
    let warden = ("ring/main/nodes/b", r#"{"ring":"h:1","address":"h:2","warden":{"node":"a","since":7}}"#);
    let host = ("ring/main/nodes/b", r#"{"ring":"h:1","address":"h:2","host":"h"}"#);
    let process = ("ring/main/nodes/b", r#"{"ring":"h:1","address":"h:2","process":"ended"}"#);
    let meta = ("ring/main/meta", r#"{"format":1,"version":7,"paused":true}"#);
    let struck = ("ring/main/meta", r#"{"format":1,"version":7,"struck":7}"#);
    let moves = ("ring/main/moves", r#"[{"id":5,"from":"b","to":"a","slots":"16383"}]"#);
    for (documents, what) in [
        ([META, A, node], "nodes/b: term: is set"),
        ([META, A, lease], "nodes/b: lease_ms: is set"),
        ([META, A, warden], "nodes/b: warden: is set"),
        ([META, A, host], "nodes/b: host: is set"),
        ([META, A, process], "nodes/b: process: is set"),
        ([meta, A, B], "meta: paused: is set"),
        ([struck, A, B], "meta: struck: is set"),
        ([META, A, B], "moves: is present"),
    ] {
        let documents =
            if what.starts_with("moves") { [&documents[..], &[moves]].concat() } else { documents.to_vec() };
        let line =
            format!("ring/main/{what}; a map file cannot have it, only a ring whose map is in a registry");
        assert_eq!(file(&documents), Err(line));
    }
}

#[test]
fn a_map_with_more_runs_than_a_document_holds_is_not_written() {
    let nodes = ["a", "b"].map(|name| node(name, 1));
    let mut owners: Owners = Box::new([NodeIndex(0); SLOTS]);
    owners.iter_mut().step_by(2).for_each(|owner| *owner = NodeIndex(1));
    let map = Map::new("main", 1, nodes.to_vec(), owners).unwrap();
    let line = to_file(&map).unwrap_err().to_string();
    assert!(line.starts_with("ring/main/map: would have 16384 runs of slots, more than fit"), "{line}");
}

/// Each node that joins takes slots of all others, so that the runs become many.
#[test]
fn a_ring_that_has_grown_node_by_node_fits_into_its_documents() {
    let mut map: Option<Map> = None;
    for count in 1..=45 {
        let nodes = (0..count).map(|number| node(&format!("cached-ring-{number:02}"), 1)).collect();
        map = Some(planned("main", count, nodes, map.as_ref()).unwrap());
    }
    let map = map.unwrap();
    let documents = super::documents(&map).unwrap();
    assert!(documents["ring/main/map"].len() > 16 << 10, "{} runs", map.runs().count());
}
