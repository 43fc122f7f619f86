//! Connections of a ring whose other nodes answer late, in any order of nodes and in pieces of any
//! size. There are no sockets: bytes move when the seed says so.
//!
//! The same requests are sent to one server without a ring, whose replies must be the same. The CAS
//! values of different nodes have nothing in common, so the items have none.

mod moves;
mod requests;
mod situations;
mod world;

use super::*;
use moves::Moves;
use requests::{binary_request, key, text_request, value};
use std::collections::HashMap;
use test_kit::rng::Rng;
use world::{World, client_info, limits};

/// The limit for an item: larger values are refused.
const ITEM_BYTES_MAX: usize = 256 << 10;

#[track_caller]
fn assert_same(found: &[u8], expected: &[u8], script: &[u8]) {
    if found != expected {
        let at = found.iter().zip(expected).take_while(|(found, expected)| found == expected).count();
        let show = |bytes: &[u8]| {
            let from = at.saturating_sub(60).min(bytes.len());
            bytes[from..bytes.len().min(at + 120)].escape_ascii().to_string()
        };
        panic!(
            "{} bytes of replies, expected {}; they differ after {at} bytes:\nfound    {}\nexpected {}\nscript {}",
            found.len(),
            expected.len(),
            show(found),
            show(expected),
            shown(script)
        );
    }
}

/// Returns a script without most bytes of its long values.
fn shown(script: &[u8]) -> String {
    let mut shown = String::new();
    for line in script.split_inclusive(|byte| *byte == b'\n') {
        shown += &line[..line.len().min(100)].escape_ascii().to_string();
        shown.push(if line.len() > 100 { '…' } else { ' ' });
    }
    shown.truncate(shown.floor_char_boundary(4000));
    shown
}

/// Whatever the order in which the nodes answer, the client receives what one server would send.
#[test]
fn replies_are_those_of_one_server() {
    let mut world = None;
    test_kit::each_seed(2000, |seed, _| {
        let rng = &mut Rng::new(seed);
        let (group, in_group) = (seed / 250, seed % 250);
        if in_group == 0 {
            world = None;
        }
        let limit = [None, Some(1), None, Some(3)][(group % 4) as usize];
        // A seed that is repeated alone has the world of its group.
        let world = world.get_or_insert_with(|| World::new(&mut Rng::new(group), limit));
        world.begin(rng);
        let is_binary = rng.permille(350);
        let mut script = Vec::new();
        for _ in 0..rng.within(1, 40) {
            if is_binary {
                binary_request(rng, &mut script);
            } else {
                text_request(rng, &mut script);
            }
        }
        let ends = rng.permille(500);
        if rng.permille(200) {
            let quit = if is_binary { binary(0x07, b"") } else { b"quit\r\n".to_vec() };
            script.extend_from_slice(&quit);
        }
        // A value that is being passed on is lost with the lane.
        let says_bye = script.len() < 4000 && rng.permille(600);
        world.play(rng, &script, ends, |world, rng| {
            if says_bye && rng.permille(20) {
                world.say_bye(rng.index(2));
            }
        });
        let expected = world.expected(&script, ends);
        assert_same(&world.bench.io.written, &expected.0, &script);
        assert_eq!(world.is_closed, expected.1, "{} of node {}", script.escape_ascii(), world.name);
        if !world.is_closed {
            assert!(matches!(&world.bench.connection.phase, Phase::Routed(routed) if !routed.has_places()));
        }
    });
}

/// Whatever is lost or refused, each request has one reply in the order of the requests, and a value
/// is one that was sent.
#[test]
fn each_request_has_a_reply_when_nodes_are_lost() {
    let mut world = None;
    let mut failures = 0;
    test_kit::each_seed(600, |seed, _| {
        let rng = &mut Rng::new(seed);
        let (group, in_group) = (seed / 200, seed % 200);
        if in_group == 0 {
            world = None;
        }
        let (world, moves) = world.get_or_insert_with(|| {
            let mut world = World::new(&mut Rng::new(group), None);
            let moves = Moves::new(&mut world);
            (world, moves)
        });
        world.begin(rng);
        let (mut script, mut requests) = (Vec::new(), Vec::new());
        let mut sent: HashMap<String, Vec<Vec<u8>>> = HashMap::new();
        for _ in 0..rng.within(1, 60) {
            let name = key(rng);
            if rng.permille(500) {
                script.extend_from_slice(format!("get {name}\r\n").as_bytes());
                requests.push((name, true));
            } else {
                let value = value(rng);
                if value.len() > ITEM_BYTES_MAX - 1000 {
                    continue;
                }
                script.extend_from_slice(format!("set {name} 0 0 {}\r\n", value.len()).as_bytes());
                script.extend_from_slice(&value);
                script.extend_from_slice(b"\r\n");
                sent.entry(name.clone()).or_default().push(value);
                requests.push((name, false));
            }
        }
        let reopens = rng.permille(700);
        world.play(rng, &script, false, |world, rng| match rng.below(200) {
            0 => world.lose(rng.index(2), reopens),
            1 => world.owners[rng.index(2)].refuses = rng.below(4),
            2..12 if group == 2 => moves.step(world, rng),
            _ => {}
        });
        moves.settle(world, rng);
        if let Phase::Routed(routed) = &world.bench.connection.phase {
            assert!(world.is_closed || !routed.has_places() && !routed.is_blocked, "seed {seed}: {routed:?}");
        }
        let mut written = &world.bench.io.written[..];
        for (name, is_get) in &requests {
            if written.is_empty() && world.is_closed {
                break;
            }
            let end = written.iter().position(|byte| *byte == b'\n').map_or(written.len(), |end| end + 1);
            let (line, rest) = written.split_at(end);
            if world.is_closed && !line.ends_with(b"\n") {
                // The rest of the reply was lost.
                written = &[];
                break;
            }
            let line = String::from_utf8_lossy(line).into_owned();
            written = rest;
            let is_of_peer = group == 2 || world.owner_of(name.as_bytes()).is_some();
            match (is_get, line.as_str()) {
                (true, "END\r\n") | (false, "STORED\r\n") => {}
                (false, error) if is_of_peer && error.starts_with("SERVER_ERROR ") => failures += 1,
                (true, value) => {
                    let head = format!("VALUE {name} 0 ");
                    let bytes =
                        value.strip_prefix(&head).and_then(|bytes| bytes.trim_end().parse::<usize>().ok());
                    let Some(bytes) = bytes else { panic!("{name}: {value:?}") };
                    if world.is_closed && written.len() < bytes + 7 {
                        written = &[];
                        break;
                    }
                    let known =
                        sent.get(name).is_some_and(|all| all.iter().any(|value| *value == written[..bytes]));
                    assert!(known, "{name} has a value that was not sent");
                    assert_eq!(&written[bytes..bytes + 7], b"\r\nEND\r\n");
                    written = &written[bytes + 7..];
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(written.is_empty(), "{} bytes too many", written.len());
        if !world.is_closed {
            assert!(matches!(&world.bench.connection.phase, Phase::Routed(routed) if !routed.has_places()));
        }
        for lane in 0..2 {
            world.owners[lane].refuses = 0;
            world.with_lanes(|lanes, _| {
                if !lanes.is_open(lane) {
                    lanes.open(lane);
                }
            });
        }
        world.finish();
    });
    assert!(failures > 0, "nothing was lost");
}
