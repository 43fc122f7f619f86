//! Lanes of another node: what it asks, its mistakes, and what a lane holds meanwhile.

use super::super::lanes::INBOUND_BYTES_MAX;
use super::super::ring_tests::nodes::{Node, map, map_of, pair, read_all, settings};
use super::*;
use cached_ring::wire::{HEAD_BYTES, MESSAGE_BYTES_MAX};
use cached_ring::{Answer, Flags, Outbound, RequestId, Waiter, slot_of};
use rustix::event::Timespec;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

/// One end of a lane, at node a.
struct Entry {
    outbound: Outbound,
    socket: UnixStream,
    received: Vec<u8>,
    ended: oneshot::Receiver<()>,
    /// What was received for each place, and whether it is complete.
    replies: BTreeMap<u32, (Vec<u8>, bool)>,
    /// The places whose requests the owner has refused, each with the version of the owner's map.
    refused: Vec<(u32, u64)>,
}

impl Node {
    /// Opens a lane from node a.
    fn open_lane(&mut self) -> (UnixStream, oneshot::Receiver<()>) {
        let (near, far) = pair();
        let has_ended = self.accept("a", near);
        self.settle();
        (far, has_ended)
    }

    /// Returns the lanes that are served.
    fn inbound(&self) -> impl Iterator<Item = &InboundLane> {
        self.worker.lanes.as_ref().expect("a ring").inbound.iter().flatten().map(|lane| &**lane)
    }

    /// Asks on a lane of its own.
    fn value(&mut self, key: &str) -> Vec<u8> {
        let mut entry = Entry::new(self);
        entry.ask(1, key, &format!("get {key}\r\n"));
        entry.pump(self);
        entry.reply(1)
    }

    fn reserved_bytes(&self) -> u64 {
        self.worker.shared.kv.reserved_bytes()
    }
}

/// Returns whether the lane that this receiver belongs to has been closed.
fn is_closed(ended: &mut oneshot::Receiver<()>) -> bool {
    ended.try_recv() == Err(oneshot::error::TryRecvError::Closed)
}

impl Entry {
    fn new(owner: &mut Node) -> Entry {
        let (socket, ended) = owner.open_lane();
        let (replies, refused) = (BTreeMap::new(), Vec::new());
        Entry { outbound: Outbound::new(), socket, received: Vec::new(), ended, replies, refused }
    }

    fn ask(&mut self, place: u32, key: &str, request: &str) -> RequestId {
        self.ask_with(place, key, Flags::NONE, request.as_bytes())
    }

    fn ask_with(&mut self, place: u32, key: &str, flags: Flags, request: &[u8]) -> RequestId {
        let to = Waiter { place, ..Waiter::default() };
        self.outbound.request(to, Some(slot_of(key.as_bytes())), flags, &[request])
    }

    /// Sends what the socket takes.
    fn send(&mut self) -> bool {
        let mut has_sent = false;
        loop {
            let (first, _) = self.outbound.unsent();
            match self.socket.write(first) {
                _ if first.is_empty() => return has_sent,
                Ok(count) => {
                    self.outbound.sent(count);
                    has_sent = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return has_sent,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Receives what has come.
    fn receive(&mut self) -> bool {
        let mut input = vec![0; 256 << 10];
        match self.socket.read(&mut input) {
            Ok(0) => panic!("the owner has closed the lane"),
            Ok(count) => self.received.extend_from_slice(&input[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => panic!("{error}"),
        }
        let Entry { outbound, received, replies, refused, .. } = self;
        let used = outbound.received(received, &mut |to, _, answer| match answer {
            Answer::Bytes { bytes, last } => {
                let (reply, is_complete) = replies.entry(to.place).or_default();
                assert!(!*is_complete);
                reply.extend_from_slice(bytes);
                *is_complete = last;
            }
            Answer::NotMine { map_version, .. } => refused.push((to.place, map_version)),
        });
        received.drain(..used.expect("the owner keeps to the protocol"));
        true
    }

    /// Moves bytes until nothing happens any more.
    fn pump(&mut self, owner: &mut Node) {
        loop {
            let has_sent = self.send();
            owner.settle();
            if !self.receive() && !has_sent {
                return;
            }
        }
    }

    /// Returns the complete reply of a place.
    fn reply(&mut self, place: u32) -> Vec<u8> {
        let (reply, is_complete) = self.replies.remove(&place).unwrap_or_default();
        assert!(is_complete, "place {place} has only {:?}", reply.escape_ascii().to_string());
        reply
    }

    /// Stores a long value in parts.
    fn set(&mut self, owner: &mut Node, key: &str, value: &[u8]) {
        let id = self.ask_with(0, key, Flags::PARTS, format!("set {key} 0 0 {}\r\n", value.len()).as_bytes());
        for part in value.chunks(MESSAGE_BYTES_MAX) {
            self.outbound.part(id, part, false);
            self.pump(owner);
        }
        self.outbound.part(id, b"\r\n", true);
        self.pump(owner);
        assert_eq!(self.reply(0), b"STORED\r\n");
    }
}

/// Returns a message with these fields, valid or not.
fn message(id: u32, slot: u16, kind: u8, flags: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = id.to_le_bytes().to_vec();
    out.extend_from_slice(&slot.to_le_bytes());
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
    out
}

/// Returns a request of the binary protocol.
fn binary_request(opcode: u8, key: &[u8], extras: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    out.extend_from_slice(&((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    out.extend_from_slice(&[0; 12]);
    [&out, extras, key, value].concat()
}

#[test]
fn requests_of_all_protocols_are_answered_in_their_order() {
    let mut owner = Node::owner();
    let mut entry = Entry::new(&mut owner);
    entry.ask(1, "k", "set k 7 0 5\r\nvalue\r\n");
    entry.ask(2, "k", "get k\r\n");
    entry.ask(3, "k", "mg k f v\r\n");
    entry.ask_with(4, "k", Flags::BINARY, &binary_request(0, b"k", b"", b""));
    entry.ask(5, "other", "get other\r\n");
    entry.ask(6, "k", "delete k noreply\r\n");
    entry.ask(7, "k", "ms k 1 q\r\nx\r\n");
    entry.ask(8, "k", "get k\r\n");
    // With the version of the map that the other node has.
    let every = Waiter { place: 9, ..Waiter::default() };
    entry.outbound.request(every, None, Flags::EVERY, &[&1u64.to_le_bytes(), b"flush_all\r\n"]);
    // The value does not come, because the other node has no memory for it.
    entry.ask_with(10, "k", Flags::HEAD, b"set k 0 0 100000\r\n");
    entry.pump(&mut owner);
    assert_eq!(entry.reply(1), b"STORED\r\n");
    assert_eq!(entry.reply(2), b"VALUE k 7 5\r\nvalue\r\nEND\r\n");
    assert_eq!(entry.reply(3), b"VA 5 f7\r\nvalue\r\n");
    assert!(entry.reply(4).starts_with(&[0x81, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 9]));
    assert_eq!(entry.reply(5), b"END\r\n");
    assert_eq!((entry.reply(6), entry.reply(7)), (Vec::new(), Vec::new()));
    assert_eq!(entry.reply(8), b"VALUE k 0 1\r\nx\r\nEND\r\n");
    assert_eq!(entry.reply(9), b"OK\r\n");
    assert!(entry.reply(10).starts_with(b"SERVER_ERROR "));
    assert_eq!(entry.outbound.in_flight(), 0);
}

#[test]
fn a_node_that_breaks_the_protocol_loses_its_lane_and_nothing_else() {
    let mut owner = Node::owner();
    let mut other = Entry::new(&mut owner);
    other.ask(1, "k", "set k 0 0 1\r\nv\r\n");
    other.pump(&mut owner);
    assert_eq!(other.reply(1), b"STORED\r\n");
    let k = slot_of(b"k").number();
    let stored = binary_request(1, b"k", &[0; 8], b"vv");
    let open = |id, bytes: &[u8]| message(id, k, 1, 2, bytes);
    let part = |id, flags, bytes: &[u8]| message(id, 0xffff, 2, flags, bytes);
    let text = |id, bytes: &[u8]| message(id, k, 1, 0, bytes);
    // The mistakes of a node, in a request with this id.
    let cases = |id: u32| -> Vec<(&str, Vec<u8>)> {
        vec![
            ("an unknown command", text(id, b"bogus\r\n")),
            ("another unknown command", text(id, b"fetch k\r\n")),
            ("half a request", text(id, b"get k")),
            ("two requests", text(id, b"get k\r\nget k\r\n")),
            ("bytes after a request", text(id, b"get k\r\nx")),
            ("a key of another slot", text(id, b"get other\r\n")),
            ("a key of another slot, in parts", open(id, b"set other 0 0 9\r\n")),
            ("no key", text(id, b"mn\r\n")),
            ("the version", text(id, b"version\r\n")),
            ("a report", text(id, b"stats\r\n")),
            ("a change of settings", text(id, b"cache_memlimit 100\r\n")),
            ("a watcher", text(id, b"watch\r\n")),
            ("a watcher of some events", text(id, b"watch fetchers\r\n")),
            ("a shutdown", text(id, b"shutdown\r\n")),
            ("quit", text(id, b"quit\r\n")),
            ("a flush for one slot", text(id, b"flush_all\r\n")),
            ("a get for every node", message(id, 0xffff, 1, 8, b"get k\r\n")),
            ("a report for every node", message(id, 0xffff, 1, 8, b"stats\r\n")),
            ("text as binary", message(id, k, 1, 1, b"get k\r\n")),
            ("binary as text", text(id, &binary_request(0, b"k", b"", b""))),
            ("half a binary request", message(id, k, 1, 1, &stored[..stored.len() - 1])),
            ("a binary quit", message(id, k, 1, 1, &binary_request(7, b"", b"", b""))),
            ("a binary report", message(id, k, 1, 1, &binary_request(0x10, b"", b"", b""))),
            ("a complete request that announces parts", open(id, b"get k\r\n")),
            ("a complete value that announces parts", open(id, b"set k 0 0 1\r\nv\r\n")),
            ("a get without its value", message(id, k, 1, 4, b"get k\r\n")),
            ("a head with a value", message(id, k, 1, 4, b"set k 0 0 9000\r\nv")),
            ("a value that does not come", text(id, b"set k 0 0 9000\r\nv")),
            ("a value that announces no parts", text(id, b"set k 0 0 9000\r\n")),
            ("a value that is too long", open(id, &[&b"set k 0 0 9000\r\n"[..], &[b'v'; 9003]].concat())),
            (
                "a last part that is too long",
                [open(id, b"set k 0 0 9000\r\nv"), part(id, 0, &[b'v'; 9002])].concat(),
            ),
            (
                "a last part that is too short",
                [open(id, b"set k 0 0 9000\r\nv"), part(id, 0, &[b'v'; 9000])].concat(),
            ),
            (
                "a last part that announces another",
                [open(id, b"set k 0 0 9000\r\nv"), part(id, 2, &[b'v'; 9001])].concat(),
            ),
            (
                "a value whose only part is too long",
                [open(id, b"set k 0 0 9000\r\n"), part(id, 0, &[b'x'; 9003])].concat(),
            ),
            (
                "a value whose only part is too short",
                [open(id, b"set k 0 0 9000\r\n"), part(id, 0, b"short")].concat(),
            ),
            ("a part of nothing", part(id, 0, b"x")),
            ("a part of no request", [open(id, b"append k 0 0 9000\r\nv"), part(id + 1, 0, b"v")].concat()),
            ("a part of a complete request", [text(id, b"get k\r\n"), part(id, 0, b"v")].concat()),
            ("the same id twice", [text(id, b"get k\r\n"), text(id, b"get k\r\n")].concat()),
            ("a reply", message(id, 0xffff, 129, 0, b"END\r\n")),
            ("an unknown kind", message(id, 0xffff, 9, 0, b"")),
            ("unknown flags", message(id, k, 1, 32, b"get k\r\n")),
            ("no such slot", message(id, 16_384, 1, 0, b"get k\r\n")),
            ("a message after BYE", [message(0, 0xffff, 6, 0, b""), text(id, b"get k\r\n")].concat()),
            ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
            ("memcached's protocol", b"get k\r\nget k\r\n".to_vec()),
        ]
    };
    // Values of which a part is missing are dropped with the lane.
    let begun = [open(1, b"set k 0 0 20000\r\nbegun"), open(2, b"append k 0 0 20000\r\nbegun")].concat();
    let reserved = owner.reserved_bytes();
    let after_begun = cases(3).into_iter().map(|(mistake, bytes)| (mistake, [&begun[..], &bytes].concat()));
    for (mistake, bytes) in cases(1).into_iter().chain(after_begun) {
        let (mut socket, mut ended) = owner.open_lane();
        socket.write_all(&bytes).unwrap();
        owner.settle();
        let mut replies = Vec::new();
        let end = socket.read_to_end(&mut replies);
        assert!(end.is_ok(), "{mistake}: the lane is open");
        assert!(is_closed(&mut ended), "{mistake}");
        assert_eq!((owner.inbound().count(), owner.peer().inbound_lanes), (1, 1), "{mistake}");
        assert_eq!(owner.ring().collected_bytes.load(Ordering::Relaxed), 0, "{mistake}");
        assert_eq!(owner.reserved_bytes(), reserved, "{mistake}");
        other.ask(1, "k", "get k\r\n");
        other.pump(&mut owner);
        assert_eq!(other.reply(1), b"VALUE k 0 1\r\nv\r\nEND\r\n", "{mistake}");
        let (mut client, mut answered) = (owner.connect(), Vec::new());
        client.write_all(b"mn\r\n").unwrap();
        owner.settle();
        assert!(read_all(&mut client, &mut answered), "{mistake}");
        assert_eq!(answered, b"MN\r\n", "{mistake}: clients are served");
    }
}

#[test]
fn a_value_is_stored_only_if_its_slot_is_own_until_it_has_arrived() {
    let mut owner = Node::owner();
    let mut entry = Entry::new(&mut owner);
    let value = vec![b'v'; 20_000];
    let head = "set k 0 0 20000\r\n";
    let id = entry.ask_with(1, "k", Flags::PARTS, head.as_bytes());
    entry.outbound.part(id, &value, false);
    entry.pump(&mut owner);
    assert_eq!(owner.inbound().map(|lane| lane.arriving.len()).sum::<usize>(), 1);
    assert!(owner.reserved_bytes() > 0);
    // Now the slot is node a's.
    owner.cannot_reach("a");
    owner.put_in_force(&map_of(2, |slot| u16::from(slot != slot_of(b"k").number())));
    entry.outbound.part(id, b"\r\n", true);
    entry.ask(2, "k", "get k\r\n");
    entry.ask(3, "k", "delete k\r\n");
    let begun = entry.ask_with(4, "k", Flags::PARTS, head.as_bytes());
    entry.outbound.part(begun, &[&value[..], b"\r\n"].concat(), true);
    // One key of several is enough.
    entry.ask(5, "other", "get other k\r\n");
    entry.ask(6, "other", "get other\r\n");
    entry.pump(&mut owner);
    assert_eq!(entry.refused, [1, 2, 3, 4, 5].map(|place| (place, 2)));
    assert_eq!(entry.reply(6), b"END\r\n");
    assert_eq!(owner.worker.shared.kv.stats().items, 0);
    assert_eq!(owner.reserved_bytes(), 0);
}

#[test]
fn the_rest_of_a_long_reply_waits_for_more_and_holds_up_nobody() {
    let mut owner = Node::owner();
    let mut entry = Entry::new(&mut owner);
    let value: Vec<u8> = (0..300_000_u32).map(|at| (at / 7) as u8).collect();
    entry.set(&mut owner, "long", &value);
    let expected = [b"VALUE long 0 300000\r\n", &value[..], b"\r\nEND\r\n"].concat();
    let long = entry.ask(1, "long", "get long\r\n");
    let forgotten = entry.ask(2, "long", "get long\r\n");
    entry.ask(3, "k", "get k\r\n");
    entry.pump(&mut owner);
    assert_eq!(entry.reply(3), b"END\r\n");
    let sent: Vec<usize> = entry.replies.values().map(|(reply, _)| reply.len()).collect();
    assert_eq!(sent, [MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX]);
    entry.outbound.forget(forgotten);
    entry.pump(&mut owner);
    assert_eq!(owner.inbound().map(|lane| lane.suspended.len()).sum::<usize>(), 1);
    assert_eq!(entry.replies[&2].0.len(), MESSAGE_BYTES_MAX);
    for parts in 2..=5 {
        assert!(!entry.replies[&1].1, "complete after {parts} parts");
        entry.outbound.more(long);
        entry.pump(&mut owner);
    }
    assert!(entry.reply(1) == expected, "the bytes of the value");
    assert_eq!(entry.outbound.in_flight(), 0);
    assert_eq!(owner.inbound().map(|lane| lane.suspended_bytes).sum::<usize>(), 0);
}

/// Values that may not stay pinned are sent at once. The keys after them are not read before they are asked for.
#[test]
fn a_retrieval_of_many_large_values_stops_after_those_that_it_has_read() {
    let mut owner = Node::owner();
    let mut entry = Entry::new(&mut owner);
    let value = vec![b'v'; 900_000];
    owner.worker.shared.kv.set(b"large", &value).unwrap();
    let found = [b"VALUE large 0 900000\r\n", &value[..], b"\r\n"].concat();
    assert!(16 * value.len() > suspended_pins_max(&owner.worker.shared.settings));
    let id = entry.ask(1, "large", &format!("get{}\r\n", " large".repeat(40)));
    entry.pump(&mut owner);
    assert_eq!(entry.replies[&1].0.len(), 16 * found.len());
    while !entry.replies[&1].1 {
        entry.outbound.more(id);
        entry.pump(&mut owner);
    }
    assert!(entry.reply(1) == [found.repeat(40), b"END\r\n".to_vec()].concat());
    assert_eq!(owner.ring().suspended_pins.load(Ordering::Relaxed), 0);
}

/// While its replies are sent, nothing is read of what the other node says.
#[test]
fn a_lane_whose_replies_are_taken_is_not_silent() {
    let mut owner = Node::owner();
    let mut entry = Entry::new(&mut owner);
    owner.worker.shared.kv.set(b"large", &vec![b'v'; 900_000]).unwrap();
    entry.ask(1, "large", &format!("get{}\r\n", " large".repeat(16)));
    entry.send();
    let mut ticks = 0;
    while !entry.replies.get(&1).is_some_and(|(_, is_complete)| *is_complete) {
        owner.settle();
        entry.receive();
        owner.worker.tick_inbound();
        ticks += 1;
    }
    assert!(ticks > SILENT_TICKS_MAX, "{ticks}");
    assert!(!is_closed(&mut entry.ended));
}

#[test]
fn a_lane_that_is_not_read_holds_little_and_loses_nothing() {
    let mut owner = Node::owner();
    let mut entry = Entry::new(&mut owner);
    let value = vec![b'v'; 60_000];
    entry.set(&mut owner, "k", &value);
    let mut asked = 0;
    while entry.outbound.room() > 0 {
        asked += 1;
        entry.ask(asked, "k", "get k\r\n");
        if asked % 64 == 0 {
            entry.send();
            owner.settle();
        }
    }
    assert!(asked >= 4000, "{asked}");
    let lane = owner.inbound().next().expect("the lane");
    let held = lane.held.as_ref().expect("replies that the socket has not taken");
    assert!(held.pinned_bytes() + held.capacity() <= FULL_BYTES + MESSAGE_BYTES_MAX + HEAD_BYTES);
    assert!(lane.input.len() <= super::READ_BYTES + MESSAGE_BYTES_MAX + HEAD_BYTES);
    // Other lanes are served.
    assert_eq!(owner.value("other"), b"END\r\n");
    entry.pump(&mut owner);
    let expected = [b"VALUE k 0 60000\r\n", &value[..], b"\r\nEND\r\n"].concat();
    assert!((1..=asked).all(|place| entry.replies[&place] == (expected.clone(), true)));
}

#[test]
fn a_lane_of_whose_long_replies_nothing_is_read_costs_bounded_memory() {
    let mut owner = Node::owner();
    owner.worker.shared.kv.set(b"large", &vec![b'v'; 900_000]).unwrap();
    let (mut socket, mut ended) = owner.open_lane();
    // Returns whether the owner has taken it.
    let mut send = |owner: &mut Node, bytes: &[u8]| {
        let mut sent = 0;
        for _ in 0..1000 {
            sent += socket.write(&bytes[sent..]).unwrap_or(0);
            if sent == bytes.len() {
                return true;
            }
            owner.turn();
        }
        false
    };
    let (mut id, mut stuck) = (0, 0);
    // Each reply has 900 KB, of which the first part is sent without being asked for.
    while stuck < 3 && id < 100_000 {
        id += 1;
        let line = b"get large large large large\r\n";
        let request = message(id, slot_of(b"large").number(), 1, 0, line);
        stuck += u32::from(!send(&mut owner, &request));
        owner.turn();
    }
    assert_eq!(stuck, 3, "the lane is not read while its replies are not taken");
    let held = owner.inbound().next().expect("the lane").memory();
    assert!(held <= INBOUND_BYTES_MAX, "{held} bytes");
    drop(socket);
    owner.settle();
    assert!(is_closed(&mut ended));
    assert_eq!(owner.ring().suspended_pins.load(Ordering::Relaxed), 0);
}

/// A request that walks over the whole index gives others their turn.
#[test]
fn costly_requests_are_executed_one_in_each_turn() {
    let folder = tempfile::tempdir().unwrap();
    let file = Some(folder.path().join("memory"));
    let mut owner = Node::with(Settings { memory_file: file, ..settings("b", map(1, 1)) });
    let mut entry = Entry::new(&mut owner);
    for place in 1..=5 {
        let to = Waiter { place, ..Waiter::default() };
        entry.outbound.request(to, None, Flags::EVERY, &[&1u64.to_le_bytes(), b"flush_prefix p\r\n"]);
    }
    entry.ask(6, "k", "get k\r\n");
    entry.send();
    for turn in 1..=2 {
        owner.worker.wait(&mut Vec::with_capacity(16), Some(Timespec::default()));
        if turn > 1 {
            owner.worker.serve_yielded();
        }
        entry.receive();
        // One for an event, and one because there is more.
        assert!(
            (turn..=2 * turn - 1).contains(&entry.replies.len()),
            "{} in turn {turn}",
            entry.replies.len()
        );
    }
    entry.pump(&mut owner);
    assert!((1..=5).all(|place| entry.reply(place) == b"OK\r\n"));
    assert_eq!(entry.reply(6), b"END\r\n");
}

#[test]
fn a_lost_lane_drops_what_has_arrived_in_part() {
    let mut owner = Node::owner();
    let mut entry = Entry::new(&mut owner);
    entry.set(&mut owner, "k", &[b'v'; 200_000]);
    entry.ask_with(1, "k", Flags::PARTS, b"set k 0 0 20000\r\nhalf");
    entry.ask_with(2, "k", Flags::PARTS, b"append k 0 0 20000\r\nhalf");
    entry.ask(3, "k", "get k\r\n");
    entry.pump(&mut owner);
    assert!(owner.ring().collected_bytes.load(Ordering::Relaxed) > 0);
    let mut ended = entry.ended;
    drop(entry.socket);
    owner.settle();
    assert!(is_closed(&mut ended));
    assert_eq!(owner.inbound().count(), 0);
    assert_eq!(owner.ring().collected_bytes.load(Ordering::Relaxed), 0);
    assert!(owner.value("other").starts_with(b"END"));
}

/// The process that follows has the store: a value that the old one still pins or receives would be
/// released in the memory of the other.
#[test]
fn a_hand_over_ends_lanes_that_hold_something_of_the_store() {
    let mut owner = Node::owner();
    let mut half = Entry::new(&mut owner);
    half.set(&mut owner, "k", &[b'v'; 900_000]);
    half.ask_with(1, "k", Flags::PARTS, b"set k 0 0 200000\r\nhalf");
    half.pump(&mut owner);
    let mut unread = Entry::new(&mut owner);
    unread.ask(1, "k", "get k\r\n");
    unread.send();
    owner.settle();
    let idle = Entry::new(&mut owner);
    assert_eq!(owner.inbound().filter(|lane| lane.has_begun()).count(), 2);
    owner.worker.leave_inbound(Instant::now());
    owner.worker.break_off_inbound();
    assert_eq!(owner.inbound().filter(|lane| lane.has_begun()).count(), 0);
    for mut lane in [half, unread] {
        assert!(is_closed(&mut lane.ended));
    }
    drop(idle);
}

#[test]
fn requests_that_come_too_late_for_bye_are_executed_once_on_the_next_lane() {
    // Wherever the lane is cut.
    for sent in [0, 5, 30, 100, 150] {
        let mut owner = Node::owner();
        let mut entry = Entry::new(&mut owner);
        entry.ask(0, "n", "set n 0 0 1\r\n0\r\n");
        entry.pump(&mut owner);
        (1..=12).for_each(|place| _ = entry.ask(place, "n", "incr n 1\r\n"));
        let bytes = entry.outbound.unsent().0[..sent].to_vec();
        entry.socket.write_all(&bytes).unwrap();
        entry.outbound.sent(sent);
        owner.settle();
        // What has not been read is not executed here.
        entry.send();
        owner.worker.leave_inbound(Instant::now());
        owner.settle();
        while !entry.outbound.is_ended() {
            assert!(entry.receive(), "BYE");
        }
        let executed = entry.replies.len() - 1;
        assert_eq!(executed, sent / (HEAD_BYTES + 10));
        entry.outbound.resume(&mut |failed| panic!("{failed:?}"));
        assert_eq!(entry.outbound.in_flight(), 12 - executed);
        (entry.socket, entry.ended) = owner.open_lane();
        entry.received.clear();
        entry.pump(&mut owner);
        let replies: Vec<_> = (1..=12).map(|place| entry.reply(place)).collect();
        let expected: Vec<_> = (1..=12).map(|count| format!("{count}\r\n").into_bytes()).collect();
        assert_eq!(replies, expected, "after {sent} bytes");
    }
}
