//! Nodes of a ring in one process: a worker each, whose lanes are pairs of sockets.

use super::Worker;
use super::maps::{MapThread, Step, adopt_items};
use crate::connections::{
    AcceptedConnection, AtAddress, Command, CommandQueue, ConnInfo, Endpoints, NoLane, OpenLane, ServeLane,
};
use crate::process::Logging;
use crate::settings::{RingSecrets, RingSettings, Settings};
use crate::shared::Shared;
use crate::shared::clock::ServerClock;
use crate::telemetry::watch::Watch;
use cached_core::kv::{Kv, KvConfig};
use cached_ring::wire::{Head, Kind};
use cached_ring::{Flags, Map, Node as MapNode, NodeIndex, SLOTS, Slot, Waiter, slot_of};
use rustix::event::Timespec;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Returns a map of the nodes a and b, in which `owner` owns all slots.
fn map(version: u64, owner: u16) -> Arc<Map> {
    let node = |name: &str, port: u16| MapNode {
        name: name.into(),
        ring: format!("127.0.0.1:{port}"),
        address: format!("127.0.0.1:{}", port + 1),
        weight: 1,
    };
    let owners = Box::new([NodeIndex(owner); SLOTS]);
    Arc::new(Map::new("main", version, vec![node("a", 1), node("b", 3)], owners).expect("a map"))
}

fn settings(name: &str, map: Arc<Map>) -> Settings {
    let ring = RingSettings {
        node: name.into(),
        listen: Vec::new(),
        map,
        secrets: RingSecrets::default(),
        peer_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(1),
        peer_lanes_max: 16,
    };
    Settings { threads: 1, memory_bytes: 64 << 20, ring: Some(Arc::new(ring)), ..Settings::default() }
}

fn shared(settings: Settings) -> Arc<Shared> {
    let clock = ServerClock::new();
    let config = KvConfig {
        arena_bytes: settings.memory_bytes,
        item_bytes_max: settings.joined_bytes_max(),
        lanes: 1,
        clock: clock.ticks(),
        ..KvConfig::default()
    };
    let kv = Kv::new(config).expect("a store");
    let watch = Arc::new(Watch::new(1 << 16, 1 << 16).expect("a descriptor"));
    let queues = [CommandQueue::new().expect("a descriptor")];
    Arc::new(Shared::new(kv, clock, settings, Logging::embedded(0), watch, queues.into()))
}

/// A node.
struct Node {
    worker: Worker,
    lanes: u64,
}

impl Node {
    fn new(name: &str, map: Arc<Map>) -> Node {
        Node { worker: Worker::new(0, shared(settings(name, map))).expect("descriptors"), lanes: 0 }
    }

    /// Runs an iteration of the worker's loop, without waiting.
    fn turn(&mut self) {
        self.worker.wait(&mut Vec::with_capacity(64), Some(Timespec::default()));
        self.worker.work.renew();
        if !self.worker.yielded.is_empty() {
            self.worker.serve_yielded();
        }
    }

    fn connect(&mut self) -> UnixStream {
        let (near, far) = pair();
        let info = ConnInfo::new(near.as_raw_fd(), Endpoints::Unix { path: "/x".into() }, None, 0, 2);
        let info = self.worker.shared.connections.add(info);
        self.worker.open_slot(AcceptedConnection { socket: near.into(), info, tls: None, handed: None });
        far
    }

    /// Takes one end of a lane to the node `to`.
    fn dial(&mut self, to: &str, socket: UnixStream) -> oneshot::Receiver<()> {
        let (ended, has_ended) = oneshot::channel();
        let map = self.worker.shared.ring.as_ref().unwrap().lanes(0).map().clone();
        let address = map.find(to).map_or_else(String::new, |at| map.node(at).ring.clone());
        let lane = OpenLane { node: to.into(), address, socket: socket.into(), ended };
        self.worker.run_lane_command(Command::OpenLane(lane));
        has_ended
    }

    /// Takes one end of a lane from the node `from`.
    fn accept(&mut self, from: &str, socket: UnixStream) -> oneshot::Receiver<()> {
        let (ended, has_ended) = oneshot::channel();
        self.lanes += 1;
        let lane = ServeLane { number: self.lanes, node: from.into(), socket: socket.into(), ended };
        self.worker.run_lane_command(Command::ServeLane(lane));
        has_ended
    }

    fn cannot_reach(&mut self, peer: &str) {
        let why = NoLane { node: peer.into(), found: AtAddress::Nothing, why: "refused".into() };
        self.worker.run_lane_command(Command::NoLane(why));
    }

    fn peer(&self) -> crate::ring::PeerReport {
        self.worker.shared.ring.as_ref().unwrap().report().peers.remove(0)
    }

    fn has(&self, key: &[u8]) -> bool {
        self.worker.shared.kv.get(key).is_some()
    }
}

/// Returns two sockets of which no call blocks.
fn pair() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().expect("sockets");
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    (near, far)
}

/// The node a, which owns nothing, and b, which owns everything.
struct Bench {
    entry: Node,
    owner: Node,
    client: UnixStream,
}

impl Bench {
    fn new() -> Bench {
        let (mut entry, owner) = (Node::new("a", map(1, 1)), Node::new("b", map(1, 1)));
        let client = entry.connect();
        let mut bench = Bench { entry, owner, client };
        bench.join();
        bench
    }

    fn join(&mut self) {
        let (near, far) = pair();
        self.entry.dial("b", near);
        self.owner.accept("a", far);
    }

    fn turn(&mut self) {
        self.entry.turn();
        self.owner.turn();
    }

    /// Sends a request, and returns the reply once it ends with `end`.
    fn ask(&mut self, request: &[u8], end: &[u8]) -> Vec<u8> {
        let (mut sent, mut reply) = (0, Vec::new());
        let deadline = Instant::now() + Duration::from_secs(20);
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

/// Reads what has come. Returns false at the end of the stream.
fn read_all(from: &mut UnixStream, into: &mut Vec<u8>) -> bool {
    let mut bytes = [0; 1 << 16];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return false,
            Ok(count) => into.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(_) => return false,
        }
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

/// Sends messages to an owner as another node would.
struct Raw {
    owner: Node,
    socket: UnixStream,
    has_ended: oneshot::Receiver<()>,
    received: Vec<u8>,
}

impl Raw {
    fn new() -> Raw {
        let (near, far) = pair();
        let mut owner = Node::new("b", map(1, 1));
        let has_ended = owner.accept("a", far);
        owner.worker.shared.kv.set(b"large", &vec![b'v'; 900_000]).unwrap();
        Raw { owner, socket: near, has_ended, received: Vec::new() }
    }

    fn send(&mut self, message: &[u8]) -> bool {
        let mut sent = 0;
        for _ in 0..1000 {
            sent += self.socket.write(&message[sent..]).unwrap_or(0);
            if sent == message.len() {
                return true;
            }
            self.owner.turn();
        }
        false
    }

    fn is_closed(&mut self) -> bool {
        self.has_ended.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    fn lane(&self) -> &super::inbound::InboundLane {
        self.owner.worker.lanes.as_ref().unwrap().inbound[0].as_deref().expect("open")
    }
}

fn message(kind: Kind, id: u32, slot: Option<Slot>, flags: Flags, bytes: &[u8]) -> Vec<u8> {
    [&Head { id, slot, kind, flags, bytes: bytes.len() as u32 }.encode()[..], bytes].concat()
}

fn request(id: u32, key: &[u8], flags: Flags, bytes: &[u8]) -> Vec<u8> {
    message(Kind::Request, id, Some(slot_of(key)), flags, bytes)
}

#[test]
fn a_node_that_breaks_the_protocol_loses_its_lane() {
    let none = Flags::NONE;
    let parts = request(1, b"k", Flags::PARTS, b"set k 0 0 9000\r\n");
    let part = |bytes: &[u8], flags| message(Kind::RequestPart, 1, None, flags, bytes);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("not a message", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("a reply", message(Kind::Done, 1, None, none, b"END\r\n")),
        ("half a request", request(1, b"k", none, b"get k")),
        ("two requests", request(1, b"k", none, b"get k\r\nget k\r\n")),
        ("no such command", request(1, b"k", none, b"fetch k\r\n")),
        ("no key", request(1, b"k", none, b"version\r\n")),
        ("statistics", request(1, b"k", none, b"stats\r\n")),
        ("the end", request(1, b"k", none, b"quit\r\n")),
        ("a shutdown", request(1, b"k", none, b"shutdown\r\n")),
        ("a watcher", request(1, b"k", none, b"watch fetchers\r\n")),
        ("a flush of one slot", request(1, b"k", none, b"flush_all\r\n")),
        ("a get of every node", message(Kind::Request, 1, None, Flags::EVERY, b"get k\r\n")),
        ("text as binary", request(1, b"k", Flags::BINARY, b"get k\r\n")),
        (
            "an id again",
            [request(5, b"k", none, b"get k\r\n"), request(5, b"k", none, b"get k\r\n")].concat(),
        ),
        ("a part of nothing", part(b"x", none)),
        ("a head that is a request", request(1, b"k", Flags::HEAD, b"get k\r\n")),
        ("a value without parts", request(1, b"k", none, b"set k 0 0 9000\r\n")),
        ("too short a value", [parts.clone(), part(b"short", none)].concat()),
        ("too long a value", [parts.clone(), part(&[b'x'; 9003], none)].concat()),
        ("parts after the value", [parts, part(&[b'x'; 9002], Flags::PARTS), part(b"x", none)].concat()),
    ];
    for (name, bytes) in cases {
        let mut raw = Raw::new();
        // A value that is on its way is given up with the lane.
        let begun = request(u32::MAX / 4, b"k", Flags::PARTS, b"set k 0 0 500000\r\n");
        let before = raw.owner.worker.shared.kv.reserved_bytes();
        let bytes = if name.starts_with("an id") { [bytes, begun].concat() } else { bytes };
        raw.send(&bytes);
        for _ in 0..4 {
            raw.owner.turn();
        }
        assert!(raw.is_closed(), "{name}");
        assert_eq!(raw.owner.worker.shared.kv.reserved_bytes(), before, "{name}");
        assert_eq!(raw.owner.peer().inbound_lanes, 0);
        let mut client = raw.owner.connect();
        client.write_all(b"mn\r\n").unwrap();
        raw.owner.turn();
        raw.owner.turn();
        assert!(read_all(&mut client, &mut raw.received));
        assert!(raw.received.ends_with(b"MN\r\n"), "{name}: others are served");
    }
}

#[test]
fn a_node_that_never_reads_costs_bounded_memory() {
    let mut raw = Raw::new();
    let mut id = 0;
    let mut stuck = 0;
    // Each reply has 900 KB, of which the first part is sent without being asked for.
    while stuck < 3 && id < 100_000 {
        id += 1;
        let line = b"get large large large large\r\n";
        stuck += u32::from(!raw.send(&request(id, b"large", Flags::NONE, line)));
        raw.owner.turn();
    }
    assert_eq!(stuck, 3, "the lane is not read while its replies are not taken");
    assert!(raw.lane().memory() <= super::lanes::INBOUND_BYTES_MAX, "{} bytes", raw.lane().memory());
    drop(raw.socket);
    raw.socket = UnixStream::pair().unwrap().0;
    for _ in 0..4 {
        raw.owner.turn();
    }
    assert!(raw.is_closed());
    let pins = &raw.owner.worker.shared.ring.as_ref().unwrap().suspended_pins;
    assert_eq!(pins.load(Ordering::Relaxed), 0);
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
            let mut bench = Bench::new();
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
            let deadline = Instant::now() + Duration::from_secs(20);
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
    let leaving = |owner: &mut Node, entry: &mut Node| {
        let end = Instant::now() + Duration::from_secs(5);
        let is_done = AtomicBool::new(false);
        // The entry runs meanwhile, in its own thread.
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) {
                    entry.turn();
                }
            });
            owner.worker.leave_inbound(end);
            is_done.store(true, Ordering::Release);
        });
        assert!(Instant::now() < end, "the entry has closed the lane");
    };
    bench.client.write_all(b"incr k 1\r\nincr k 1\r\n").unwrap();
    leaving(&mut bench.owner, &mut bench.entry);
    let mut reply = Vec::new();
    bench.client.write_all(b"incr k 1\r\n").unwrap();
    (0..4).for_each(|_| bench.entry.turn());
    read_all(&mut bench.client, &mut reply);
    assert!(!reply.ends_with(b"4\r\n"), "there is no lane");
    bench.join();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !reply.ends_with(b"4\r\n") {
        assert!(Instant::now() < deadline, "{}", reply.escape_ascii());
        bench.turn();
        read_all(&mut bench.client, &mut reply);
    }
    assert_eq!(reply, b"2\r\n3\r\n4\r\n", "each is executed once");
    // Without a process that follows, they fail.
    leaving(&mut bench.owner, &mut bench.entry);
    bench.client.write_all(b"incr k 1\r\nget k\r\n").unwrap();
    (0..4).for_each(|_| bench.entry.turn());
    bench.entry.cannot_reach("b");
    (0..4).for_each(|_| bench.entry.turn());
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
    let ring = entry.worker.shared.ring.as_ref().unwrap();
    let mut lanes = ring.lanes(0);
    let mut ask = |slot: u32| {
        let to = Waiter { slot, ..Waiter::default() };
        lanes.request(NodeIndex(1), to, Slot::new(1), Flags::NONE, &[&[b'x'; 10_000]]).is_ok()
    };
    while ask(1) {}
    assert!(!ask(2));
    let sent = lanes.unsent(0).0.len().min(100_000);
    lanes.sent(0, sent);
    let mut ask = |slot: u32| {
        let to = Waiter { slot, ..Waiter::default() };
        lanes.request(NodeIndex(1), to, Slot::new(1), Flags::NONE, &[&[b'x'; 10_000]]).is_ok()
    };
    assert!(!ask(3), "there is room, for those who wait");
    drop(lanes);
}

/// A reply of which most is still with the owner comes completely when the owner ends.
#[test]
fn replies_that_wait_are_completed_when_their_owner_ends() {
    let mut bench = Bench::new();
    bench.owner.worker.shared.kv.set(b"large", &vec![b'v'; 900_000]).unwrap();
    bench.client.write_all(b"get large large large\r\n").unwrap();
    // The client does not read, so the entry asks only for what it can hold.
    (0..20).for_each(|_| bench.turn());
    let mut reply = Vec::new();
    let end = Instant::now() + Duration::from_secs(5);
    let is_done = AtomicBool::new(false);
    let Bench { entry, owner, client } = &mut bench;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                entry.turn();
            }
        });
        owner.worker.leave_inbound(end);
        is_done.store(true, Ordering::Release);
    });
    assert!(Instant::now() < end);
    let expected = 3 * ("VALUE large 0 900000\r\n".len() + 900_002) + 5;
    let deadline = Instant::now() + Duration::from_secs(20);
    while reply.len() < expected {
        assert!(Instant::now() < deadline, "{} bytes", reply.len());
        assert!(read_all(client, &mut reply), "closed after {} bytes", reply.len());
        entry.turn();
    }
    assert_eq!(replies(&reply), 1);
    assert_eq!(owner.worker.shared.ring.as_ref().unwrap().suspended_pins.load(Ordering::Relaxed), 0);
}

/// A node that ends opens no lane any more, so what waits for one is answered.
#[test]
fn a_node_that_ends_waits_for_no_other_that_ends() {
    let mut bench = Bench::new();
    bench.expect(b"set k 0 0 1\r\n1\r\n", b"STORED\r\n");
    let is_done = AtomicBool::new(false);
    let Bench { entry, owner, client } = &mut bench;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                entry.turn();
            }
        });
        owner.worker.leave_inbound(Instant::now() + Duration::from_secs(20));
        is_done.store(true, Ordering::Release);
    });
    client.write_all(b"incr k 1\r\nget k\r\n").unwrap();
    (0..4).for_each(|_| entry.turn());
    let mut reply = Vec::new();
    entry.worker.drain(&mut Vec::with_capacity(8));
    assert!(!read_all(client, &mut reply), "the end of the stream");
    assert_eq!(reply, b"SERVER_ERROR node b is away\r\nEND\r\n");
}

/// Puts a map in force at a node.
fn put_in_force(node: &mut Node, map: &Map) {
    let shared = node.worker.shared.clone();
    let ring = shared.ring.as_ref().unwrap();
    ring.set_map(map.clone()).unwrap();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut thread = MapThread::new(&shared, ring);
            while ring.next_map().is_some() || ring.is_purging() {
                assert_eq!(thread.step(&|| false), Step::Done);
            }
            is_done.store(true, Ordering::Release);
        });
        while !is_done.load(Ordering::Acquire) {
            node.turn();
        }
    });
}

#[test]
fn a_slot_that_is_gained_again_is_cold() {
    let mut node = Node::new("b", map(1, 1));
    node.cannot_reach("a");
    let shared = node.worker.shared.clone();
    adopt_items(&shared);
    let own = shared.kv.mark();
    assert_eq!(own, map(1, 1).mark(NodeIndex(1)));
    for number in 0..500 {
        shared.kv.set(format!("key {number}").as_bytes(), b"old").unwrap();
    }
    put_in_force(&mut node, &map(2, 0));
    assert_eq!(shared.kv.stats().items, 0, "the memory of a lost slot is freed");
    assert_ne!(shared.kv.mark(), own);
    // What a defect may have left is not found either.
    shared.kv.set(b"key 7", b"old").unwrap();
    put_in_force(&mut node, &map(3, 1));
    assert_eq!((shared.kv.get(b"key 7"), shared.kv.mark()), (None, map(3, 1).mark(NodeIndex(1))));
    assert!(shared.ring.as_ref().unwrap().owns(slot_of(b"key 7")));
    let error = shared.ring.as_ref().unwrap().set_map((*map(3, 0)).clone()).unwrap_err();
    assert!(error.contains("version: is 3"), "{error}");
}

/// A map that was missed may have given the node's slots to another one.
#[test]
fn items_stay_under_the_next_map_and_not_under_a_later_one() {
    let mut node = Node::new("b", map(1, 1));
    node.cannot_reach("a");
    let shared = node.worker.shared.clone();
    adopt_items(&shared);
    shared.kv.set(b"key", b"value").unwrap();
    put_in_force(&mut node, &map(2, 1));
    assert_eq!((shared.kv.get(b"key").is_some(), shared.kv.mark()), (true, map(2, 1).mark(NodeIndex(1))));
    put_in_force(&mut node, &map(4, 1));
    assert_eq!((shared.kv.get(b"key"), shared.kv.mark()), (None, map(4, 1).mark(NodeIndex(1))));
    assert!(shared.ring.as_ref().unwrap().owns(slot_of(b"key")));
}

/// The node that has had a slot executes requests for it until it has the map, too.
#[test]
fn a_slot_has_no_two_owners() {
    let mut bench = Bench::new();
    bench.expect(b"set k 0 0 1\r\n1\r\n", b"STORED\r\n");
    let shared = [&bench.entry, &bench.owner].map(|node| node.worker.shared.clone());
    let [entry, owner] = [0, 1].map(|at| shared[at].ring.as_ref().unwrap());
    let (map, is_done) = (map(2, 0), [AtomicBool::new(false), AtomicBool::new(false)]);
    let follow = |at: usize| {
        let ring = shared[at].ring.as_ref().unwrap();
        let mut thread = MapThread::new(&shared[at], ring);
        while ring.next_map().is_some() || ring.is_purging() {
            assert_eq!(thread.step(&|| false), Step::Done);
        }
        is_done[at].store(true, Ordering::Release);
    };
    let slot = slot_of(b"k");
    thread::scope(|scope| {
        entry.set_map((*map).clone()).unwrap();
        scope.spawn(|| follow(0));
        while entry.map_in_force().version < 2 {
            bench.turn();
        }
        for _ in 0..100 {
            bench.turn();
            assert!(owner.owns(slot) && !entry.owns(slot));
        }
        owner.set_map((*map).clone()).unwrap();
        scope.spawn(|| follow(1));
        while !is_done.iter().all(|is_done| is_done.load(Ordering::Acquire)) {
            bench.turn();
            assert!(!(owner.owns(slot) && entry.owns(slot)));
        }
    });
    assert!(entry.owns(slot) && !owner.owns(slot));
    bench.expect(b"get k\r\nset k 0 0 1\r\n2\r\n", b"END\r\nSTORED\r\n");
    assert!(bench.entry.has(b"k"));
}

/// A value is stored only if its slot is still this node's when the last part comes.
#[test]
fn a_slot_that_is_lost_while_a_value_arrives_does_not_get_it() {
    let mut raw = Raw::new();
    let part = |bytes: &[u8], flags| message(Kind::RequestPart, 1, None, flags, bytes);
    assert!(raw.send(&request(1, b"k", Flags::PARTS, b"set k 0 0 9000\r\nvvvvv")));
    assert!(raw.send(&part(&[b'v'; 8000], Flags::PARTS)));
    (0..3).for_each(|_| raw.owner.turn());
    assert!(raw.owner.worker.shared.kv.reserved_bytes() > 0);
    raw.owner.cannot_reach("a");
    put_in_force(&mut raw.owner, &map(2, 0));
    assert!(raw.send(&part(&[&[b'v'; 995][..], b"\r\n"].concat(), Flags::NONE)));
    assert!(raw.send(&request(2, b"k", Flags::NONE, b"get k\r\n")));
    (0..3).for_each(|_| raw.owner.turn());
    read_all(&mut raw.socket, &mut raw.received);
    let refused = |id| [&Head::of_reply(Kind::NotMine, id, 8).encode()[..], &2u64.to_le_bytes()].concat();
    assert_eq!(raw.received, [refused(1), refused(2)].concat());
    assert!(!raw.owner.has(b"k"));
    assert_eq!(raw.owner.worker.shared.kv.reserved_bytes(), 0);
}

#[test]
fn the_mark_decides_which_items_of_an_earlier_process_are_kept() {
    let own = map(1, 1).mark(NodeIndex(1));
    let with_ring = |mark: u64| {
        let shared = shared(settings("b", map(1, 1)));
        shared.kv.set(b"key", b"value").unwrap();
        shared.kv.set_mark(mark);
        adopt_items(&shared);
        (shared.kv.get(b"key").is_some(), shared.kv.mark(), shared.ring.as_ref().unwrap().is_purging())
    };
    assert_eq!(with_ring(own), (true, own, false));
    assert_eq!(with_ring(0), (true, 1, true));
    assert_eq!(with_ring(1), (false, 1, true));
    assert_eq!(with_ring(own ^ 1), (false, 1, true));
    let without = |mark: u64| {
        let shared = shared(Settings { ring: None, ..settings("b", map(1, 1)) });
        shared.kv.set(b"key", b"value").unwrap();
        shared.kv.set_mark(mark);
        adopt_items(&shared);
        (shared.kv.get(b"key").is_some(), shared.kv.mark())
    };
    assert_eq!([without(0), without(own), without(1)], [(true, 0), (true, own), (false, 0)]);
}
