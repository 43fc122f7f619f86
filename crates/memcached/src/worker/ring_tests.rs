//! Two nodes of a ring in one process, a client of one of them, and the maps of a node.

mod leases;
mod moves;
pub(super) mod nodes;

use super::maps::adopt_items;
use crate::ring::Lanes;
use crate::settings::Settings;
use cached_ring::{Flags, NodeIndex, Slot, Waiter, slot_of};
use nodes::{Node, follow_maps, map, pair, read_all, settings, shared};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// The node a, which owns nothing, and b, which owns everything.
struct Bench {
    entry: Node,
    owner: Node,
    client: UnixStream,
}

impl Bench {
    fn new() -> Bench {
        Bench::of(Node::new("a", map(1, 1)))
    }

    fn of(mut entry: Node) -> Bench {
        let owner = Node::owner();
        let client = entry.connect();
        let mut bench = Bench { entry, owner, client };
        bench.join();
        bench
    }

    /// Connects the entry to the owner.
    fn join(&mut self) {
        let (near, far) = pair();
        self.entry.dial("b", near);
        self.owner.accept("a", far);
    }

    fn turn(&mut self) {
        self.entry.turn();
        self.owner.turn();
    }

    /// Lets the owner end, while the entry takes turns.
    fn owner_leaves(&mut self) {
        let end = Instant::now() + Duration::from_secs(60);
        let owner = &mut self.owner.worker;
        self.entry.turn_during(|| owner.leave_inbound(end));
        assert!(Instant::now() < end, "the entry has closed the lane");
    }

    /// Sends a request, and returns the reply once it ends with `end`.
    fn ask(&mut self, request: &[u8], end: &[u8]) -> Vec<u8> {
        let (mut sent, mut reply) = (0, Vec::new());
        let deadline = Instant::now() + Duration::from_secs(60);
        while !reply.ends_with(end) {
            sent += self.client.write(&request[sent..]).unwrap_or(0);
            self.turn();
            read_all(&mut self.client, &mut reply);
            assert!(Instant::now() < deadline, "{} bytes: {}", reply.len(), reply.escape_ascii());
        }
        reply
    }

    fn expect(&mut self, request: &[u8], reply: &[u8]) {
        let got = self.ask(request, reply);
        assert!(got == reply, "{} instead of {}", got.escape_ascii(), reply.escape_ascii());
    }
}

#[test]
fn a_node_that_owns_nothing_answers_as_the_owner_does() {
    let mut bench = Bench::new();
    bench.expect(b"set k 5 0 5\r\nvalue\r\n", b"STORED\r\n");
    assert!(bench.owner.has(b"k") && !bench.entry.has(b"k"));
    bench.expect(b"get k\r\n", b"VALUE k 5 5\r\nvalue\r\nEND\r\n");
    bench.expect(b"get none k other\r\nmg k v\r\n", b"VALUE k 5 5\r\nvalue\r\nEND\r\nVA 5\r\nvalue\r\n");
    bench.expect(b"set q 0 0 1 noreply\r\n7\r\nincr q 1\r\nmn\r\n", b"8\r\nMN\r\n");
    bench.expect(b"flush_all\r\nget k\r\n", b"OK\r\nEND\r\n");
    let peer = bench.entry.peer();
    assert_eq!((peer.lost, peer.away, peer.in_flight), (0, 0, 0));
    assert!(peer.done >= 7 && peer.round_trip.is_some() && peer.report.is_some());
    assert_eq!(bench.owner.peer().inbound_requests, peer.done);
}

/// The binary protocol's request for statistics, or the end of its reply.
fn binary_stat(magic: u8, name: &[u8]) -> Vec<u8> {
    let mut frame = [0; 24];
    (frame[0], frame[1], frame[3], frame[11]) = (magic, 0x10, name.len() as u8, name.len() as u8);
    [&frame, name].concat()
}

#[test]
fn statistics_of_all_nodes_are_added_up() {
    let mut bench = Bench::new();
    bench.expect(
        b"set k 5 0 5\r\nvalue\r\nget k\r\nget none\r\n",
        b"STORED\r\nVALUE k 5 5\r\nvalue\r\nEND\r\nEND\r\n",
    );
    let has = |reply: &[u8], line: &str| {
        let reply = String::from_utf8_lossy(reply);
        assert!(reply.contains(line), "{line} is not in {reply}");
    };
    // Earlier requests are counted, and answered before.
    let reply = bench.ask(b"get k\r\nstats cluster\r\n", b"0\r\nEND\r\n");
    for line in
        ["END\r\nSTAT nodes 2", "nodes_away 0", "cmd_set 1", "cmd_get 3", "get_hits 2", "curr_items 1"]
    {
        has(&reply, &format!("{line}\r\n"));
    }
    has(&reply, &format!("limit_maxbytes {}\r\nSTAT accepting_conns 1\r\n", 2 * (64 << 20)));
    // A connection keeps to the protocol of its first request.
    let binary = bench.entry.connect();
    let text = std::mem::replace(&mut bench.client, binary);
    let reply = bench.ask(&binary_stat(0x80, b"cluster"), &binary_stat(0x81, b""));
    ["nodes2", "nodes_away0", "cmd_get3"].iter().for_each(|pair| has(&reply, pair));
    bench.client = text;
    // Further words are ignored, as after other names.
    has(&bench.ask(b"stats cluster more\r\n", b"0\r\nEND\r\n"), "STAT nodes 2\r\n");
    // The counts of a node that goes while it is asked are missing, and then those of one that is away.
    bench.client.write_all(b"stats cluster\r\n").unwrap();
    bench.entry.turns(4);
    bench.owner = Node::owner();
    let lost = bench.ask(b"", b"0\r\nEND\r\n");
    bench.entry.cannot_reach("b");
    let away = bench.ask(b"stats cluster\r\n", b"0\r\nEND\r\n");
    for reply in [lost, away] {
        has(&reply, "STAT nodes 2\r\nSTAT nodes_away 1\r\n");
        has(&reply, "cmd_set 0\r\n");
    }
}

#[test]
fn values_of_any_size_go_both_ways() {
    let mut bench = Bench::new();
    for bytes in [4000, 4097, 9000, 65_400, 65_536, 70_000, 200_000, 1_000_000] {
        let value: Vec<u8> = (0..bytes).map(|at| (at * 7 % 251) as u8).collect();
        let request = [format!("set k 0 0 {bytes}\r\n").as_bytes(), &value, b"\r\n"].concat();
        bench.expect(&request, b"STORED\r\n");
        let reply = [format!("VALUE k 0 {bytes}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();
        assert!(bench.ask(b"get k\r\n", b"\r\nEND\r\n") == reply, "{bytes} bytes");
    }
    let stored = [&b"append k 0 0 20000\r\n"[..], &vec![b'x'; 20_000], b"\r\n"].concat();
    bench.expect(&stored, b"STORED\r\n");
    let head = b"VALUE k 0 1020000\r\n";
    let keys = b"get k none k k k k k k k k k k k k k k k k k k k\r\n";
    let reply = bench.ask(keys, b"\r\nEND\r\n");
    assert_eq!(reply.len(), 20 * (head.len() + 1_020_002) + 5);
    // Too large for an item: refused by the owner, which drops the former value.
    let large = [&b"set k 0 0 2000000\r\n"[..], &vec![b'x'; 2_000_000], b"\r\nget k\r\n"].concat();
    bench.expect(&large, b"SERVER_ERROR object too large for cache\r\nEND\r\n");
    assert_eq!((bench.entry.peer().in_flight, bench.entry.peer().lost), (0, 0));
}

/// Returns the number of replies, each of which is complete.
fn replies(mut rest: &[u8]) -> usize {
    let (mut count, mut is_within) = (0, false);
    while let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
        let line = &rest[..end];
        let word = |at: usize| std::str::from_utf8(line.split(|byte| *byte == b' ').nth(at)?).ok();
        let value_bytes = match word(0) {
            Some("VALUE") => word(3),
            Some("VA") => word(1),
            _ => None,
        };
        is_within = word(0) == Some("VALUE");
        count += usize::from(!is_within);
        rest = &rest[end + 2 + value_bytes.map_or(0, |bytes| bytes.parse::<usize>().unwrap() + 2)..];
    }
    assert!(rest.is_empty() && !is_within);
    count
}

/// Cuts the lane after each number of bytes, in each direction: each request gets one reply.
#[test]
fn a_lost_lane_answers_every_request_once() {
    let value = vec![b'v'; 70_000];
    let large = [&b"set large 0 0 70000\r\n"[..], &value, b"\r\n"].concat();
    let input =
        [&b"set k 0 0 1\r\nx\r\nget k\r\nmg k v\r\n"[..], &large, b"get large k\r\ndelete k\r\nmn\r\n"]
            .concat();
    for turns in 0..14 {
        for cut_is_silent in [false, true] {
            let mut bench = Bench::of(Node::impatient("a", map(1, 1)));
            let (near, relay) = pair();
            // A lane through a relay, which passes a few bytes on in each turn.
            let (mut to_owner, far) = pair();
            let mut to_entry = relay;
            bench.entry.dial("b", near);
            bench.owner.accept("a", far);
            let (mut sent, mut reply, mut buffer) = (0, Vec::new(), vec![0; 30_011]);
            let mut pass = |from: &mut UnixStream, to: &mut UnixStream| {
                if let Ok(count) = from.read(&mut buffer) {
                    let _ = to.write(&buffer[..count]);
                }
            };
            for _ in 0..turns {
                sent += bench.client.write(&input[sent..]).unwrap_or(0);
                bench.entry.turn();
                pass(&mut to_entry, &mut to_owner);
                bench.owner.turn();
                pass(&mut to_owner, &mut to_entry);
            }
            if cut_is_silent {
                // Nothing comes any more, and ticks notice it.
                for _ in 0..8 {
                    bench.entry.worker.tick_lanes();
                    bench.entry.turn();
                }
            }
            drop((to_entry, to_owner));
            let deadline = Instant::now() + Duration::from_secs(60);
            while !reply.ends_with(b"MN\r\n") {
                sent += bench.client.write(&input[sent..]).unwrap_or(0);
                bench.turn();
                // A part of a reply cannot be taken back, so the client's connection ends with it.
                if !read_all(&mut bench.client, &mut reply) {
                    assert!(reply.windows(11).any(|word| word == b"VALUE large"), "turn {turns}");
                    break;
                }
                assert!(Instant::now() < deadline, "turn {turns}: {}", reply.escape_ascii());
            }
            assert_eq!(bench.entry.peer().in_flight, 0);
            if reply.ends_with(b"MN\r\n") {
                assert_eq!(replies(&reply), 7, "turn {turns}: {}", reply.escape_ascii());
            }
        }
    }
}

#[test]
fn requests_wait_for_the_process_that_follows() {
    let mut bench = Bench::new();
    bench.expect(b"set k 0 0 1\r\n1\r\n", b"STORED\r\n");
    bench.client.write_all(b"incr k 1\r\nincr k 1\r\n").unwrap();
    bench.owner_leaves();
    let mut reply = Vec::new();
    bench.client.write_all(b"incr k 1\r\n").unwrap();
    bench.entry.turns(4);
    read_all(&mut bench.client, &mut reply);
    assert!(!reply.ends_with(b"4\r\n"), "there is no lane");
    bench.join();
    reply.extend(bench.ask(b"", b"4\r\n"));
    assert_eq!(reply, b"2\r\n3\r\n4\r\n", "each is executed once");
    // Without a process that follows, they fail.
    bench.owner_leaves();
    bench.client.write_all(b"incr k 1\r\nget k\r\n").unwrap();
    bench.entry.turns(4);
    bench.entry.cannot_reach("b");
    bench.entry.turns(4);
    reply.clear();
    read_all(&mut bench.client, &mut reply);
    assert_eq!(reply, b"SERVER_ERROR node b is away\r\nEND\r\n");
}

/// The owner has said BYE and closed, which the entry notices when it writes.
#[test]
fn bye_counts_although_a_write_fails_before_it_is_read() {
    let mut bench = Bench::new();
    let (near, far) = pair();
    bench.entry.dial("b", near);
    bench.entry.turn();
    bench.client.write_all(b"incr k 1\r\n").unwrap();
    bench.entry.worker.slots[0].as_mut().unwrap().ready.read = true;
    bench.entry.worker.serve(0, None);
    let mut bye = Vec::new();
    cached_ring::wire::push_bye(&mut bye, 0);
    (&far).write_all(&bye).unwrap();
    drop(far);
    let shared = bench.entry.worker.shared.clone();
    let ring = shared.ring.as_ref().unwrap();
    assert!(!ring.lanes(0).unsent(0).0.is_empty(), "a request is queued");
    bench.entry.worker.flush_lanes();
    assert!(ring.lanes(0).is_resuming(0), "its connection is closed, and it waits for the next");
    bench.owner.worker.shared.kv.set(b"k", b"1").unwrap();
    bench.join();
    bench.expect(b"", b"2\r\n");
}

/// Newcomers do not take the room from those who wait for it.
#[test]
fn who_waits_for_room_in_a_lane_is_served_before_newcomers() {
    let mut entry = Node::new("a", map(1, 1));
    let (near, _far) = pair();
    entry.dial("b", near);
    let mut lanes = entry.ring().lanes(0);
    let ask = |lanes: &mut Lanes, slot: u32| {
        let to = Waiter { slot, ..Waiter::default() };
        lanes.request(NodeIndex(1), to, Slot::new(1), Flags::NONE, &[b'x'; 10_000]).is_ok()
    };
    while ask(&mut lanes, 1) {}
    assert!(!ask(&mut lanes, 2));
    let sent = lanes.unsent(0).0.len().min(100_000);
    lanes.sent(0, sent);
    assert!(!ask(&mut lanes, 3), "there is room, for those who wait");
}

/// A reply of which most is still with the owner comes completely when the owner ends.
#[test]
fn replies_that_wait_are_completed_when_their_owner_ends() {
    let mut bench = Bench::new();
    bench.owner.worker.shared.kv.set(b"large", &vec![b'v'; 900_000]).unwrap();
    bench.client.write_all(b"get large large large\r\n").unwrap();
    // The client does not read, so the entry asks only for what it can hold.
    (0..20).for_each(|_| bench.turn());
    bench.owner_leaves();
    let mut reply = Vec::new();
    let Bench { entry, owner, client } = &mut bench;
    let expected = 3 * ("VALUE large 0 900000\r\n".len() + 900_002) + 5;
    let deadline = Instant::now() + Duration::from_secs(60);
    while reply.len() < expected {
        assert!(Instant::now() < deadline, "{} bytes", reply.len());
        assert!(read_all(client, &mut reply), "closed after {} bytes", reply.len());
        entry.turn();
    }
    assert_eq!(replies(&reply), 1);
    assert_eq!(owner.ring().suspended_pins.load(Ordering::Relaxed), 0);
}

/// A retrieval whose reply has begun finds all of its keys, although their slots become another node's,
/// whether they have been read or not.
#[test]
fn a_retrieval_that_has_begun_is_completed_when_its_slots_are_lost() {
    for (bytes, count) in [(900_000, 3), (20_000, 60), (3_000, 400)] {
        let mut bench = Bench::new();
        let value = vec![b'v'; bytes];
        bench.owner.worker.shared.kv.set(b"k", &value).unwrap();
        bench.client.write_all(format!("get{}\r\n", " k".repeat(count)).as_bytes()).unwrap();
        (0..20).for_each(|_| bench.turn());
        bench.owner.put_in_force(&map(2, 0));
        assert!(!bench.owner.has(b"k"));
        let item = [format!("VALUE k 0 {bytes}\r\n").as_bytes(), &value, b"\r\n"].concat();
        let reply = bench.ask(b"", b"END\r\n");
        assert!(reply == [&*item.repeat(count), b"END\r\n"].concat(), "{count} values of {bytes} bytes");
    }
}

/// A node that ends opens no lane any more, so what waits for one is answered.
#[test]
fn a_node_that_ends_waits_for_no_other_that_ends() {
    let mut bench = Bench::new();
    bench.expect(b"set k 0 0 1\r\n1\r\n", b"STORED\r\n");
    bench.owner_leaves();
    let Bench { entry, client, .. } = &mut bench;
    client.write_all(b"incr k 1\r\nget k\r\n").unwrap();
    entry.turns(4);
    let mut reply = Vec::new();
    entry.worker.drain(&mut Vec::with_capacity(8));
    assert!(!read_all(client, &mut reply), "the end of the stream");
    assert_eq!(reply, b"SERVER_ERROR node b is away\r\nEND\r\n");
}

/// Returns the mark of a memory file of the node b, which owns all slots.
fn mark(version: u64) -> u64 {
    map(version, 1).mark(NodeIndex(1)) & !3 | 4
}

#[test]
fn a_slot_that_is_gained_again_is_cold() {
    let mut node = Node::owner();
    node.cannot_reach("a");
    let shared = node.worker.shared.clone();
    adopt_items(&shared);
    let own = shared.kv.mark();
    assert_eq!(own, mark(1));
    for number in 0..500 {
        shared.kv.set(format!("key {number}").as_bytes(), b"old").unwrap();
    }
    node.put_in_force(&map(2, 0));
    assert_eq!(shared.kv.stats().items, 0, "the memory of a lost slot is freed");
    assert_ne!(shared.kv.mark(), own);
    // What a defect may have left is not found either.
    shared.kv.set(b"key 7", b"old").unwrap();
    node.put_in_force(&map(3, 1));
    assert_eq!((shared.kv.get(b"key 7"), shared.kv.mark()), (None, mark(3)));
    assert!(shared.ring.as_ref().unwrap().owns(slot_of(b"key 7")));
    let error = shared.ring.as_ref().unwrap().set_map((*map(3, 0)).clone()).unwrap_err();
    assert!(error.contains("version: is 3"), "{error}");
}

/// A map that was missed may have given the node's slots to another one.
#[test]
fn items_stay_under_the_next_map_and_not_under_a_later_one() {
    let mut node = Node::owner();
    node.cannot_reach("a");
    let shared = node.worker.shared.clone();
    adopt_items(&shared);
    shared.kv.set(b"key", b"value").unwrap();
    node.put_in_force(&map(2, 1));
    assert_eq!((shared.kv.get(b"key").is_some(), shared.kv.mark()), (true, mark(2)));
    node.put_in_force(&map(4, 1));
    assert_eq!((shared.kv.get(b"key"), shared.kv.mark()), (None, mark(4)));
    assert!(shared.ring.as_ref().unwrap().owns(slot_of(b"key")));
}

/// The node that has had a slot executes requests for it until it has the map, too.
#[test]
fn a_slot_has_no_two_owners() {
    let mut bench = Bench::new();
    bench.expect(b"set k 0 0 1\r\n1\r\n", b"STORED\r\n");
    let shared = [&bench.entry, &bench.owner].map(|node| node.worker.shared.clone());
    let [entry, owner] = [0, 1].map(|at| shared[at].ring.as_ref().unwrap());
    let (map, slot) = (map(2, 0), slot_of(b"k"));
    thread::scope(|scope| {
        entry.set_map((*map).clone()).unwrap();
        let entry_follows = scope.spawn(|| follow_maps(&shared[0]));
        while entry.map_in_force().version < 2 && !entry_follows.is_finished() {
            bench.turn();
        }
        for _ in 0..100 {
            bench.turn();
            assert!(owner.owns(slot) && !entry.owns(slot));
        }
        owner.set_map((*map).clone()).unwrap();
        let owner_follows = scope.spawn(|| follow_maps(&shared[1]));
        while !(entry_follows.is_finished() && owner_follows.is_finished()) {
            bench.turn();
            assert!(!(owner.owns(slot) && entry.owns(slot)));
        }
    });
    assert!(entry.owns(slot) && !owner.owns(slot));
    bench.expect(b"get k\r\nset k 0 0 1\r\n2\r\n", b"END\r\nSTORED\r\n");
    assert!(bench.entry.has(b"k"));
}

#[test]
fn the_mark_decides_which_items_of_an_earlier_process_are_kept() {
    let own = mark(1);
    let with_ring = |mark: u64| {
        let shared = shared(settings("b", map(1, 1)));
        shared.kv.set(b"key", b"value").unwrap();
        shared.kv.set_mark(mark);
        adopt_items(&shared);
        (shared.kv.get(b"key").is_some(), shared.kv.mark(), shared.ring.as_ref().unwrap().is_purging())
    };
    assert_eq!(with_ring(own), (true, own, false));
    assert_eq!(with_ring(0), (true, own | 1, true));
    assert_eq!(with_ring(1), (false, 1, true));
    assert_eq!(with_ring(own ^ 8), (false, 1, true));
    assert_eq!(with_ring(own | 2), (true, own | 1, true), "a server without a ring has had it");
    assert_eq!(with_ring(own | 1), (true, own | 1, true), "with items of other slots, which are removed");
    let without = |mark: u64| {
        let shared = shared(Settings { ring: None, ..settings("b", map(1, 1)) });
        shared.kv.set(b"key", b"value").unwrap();
        shared.kv.set_mark(mark);
        adopt_items(&shared);
        (shared.kv.get(b"key").is_some(), shared.kv.mark())
    };
    assert_eq!(
        [without(0), without(own), without(own | 2), without(1), without(own | 1)],
        [(true, 0), (true, own | 2), (true, own | 2), (false, 0), (false, 0)]
    );
}

/// More clients than one system call serves, some with replies that are too large for it.
#[test]
fn replies_of_many_connections_come_in_order() {
    let mut bench = Bench::new();
    bench.expect(b"set small 0 0 1\r\ns\r\n", b"STORED\r\n");
    let value = "l".repeat(3000);
    bench.expect(format!("set large 0 0 3000\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
    let small = "VALUE small 0 1\r\ns\r\nEND\r\n".to_owned();
    let large = format!("VALUE large 0 3000\r\n{value}\r\nEND\r\n");
    let mut clients: Vec<_> = (0..70).map(|_| (bench.entry.connect(), Vec::new())).collect();
    for round in 0..3 {
        for (number, (client, _)) in clients.iter_mut().enumerate() {
            let key = if number % 5 == round { "large" } else { "small" };
            client.write_all(format!("get {key}\r\nget small\r\n").as_bytes()).unwrap();
        }
        for (number, (client, reply)) in clients.iter_mut().enumerate() {
            let expected = if number % 5 == round { &large } else { &small }.clone() + &small;
            let deadline = Instant::now() + Duration::from_secs(60);
            while reply.len() < expected.len() {
                bench.turn();
                read_all(client, reply);
                assert!(Instant::now() < deadline, "{number}: {}", reply.escape_ascii());
            }
            assert_eq!(String::from_utf8(std::mem::take(reply)).unwrap(), expected);
        }
        // Some leave while the others are answered.
        clients.truncate(70 - 20 * (round + 1));
    }
}
