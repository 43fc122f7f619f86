//! Connections of a ring whose other nodes answer late, in any order of nodes and in pieces of any
//! size. There are no sockets: bytes move when the seed says so.
//!
//! The same requests are sent to one server without a ring, whose replies must be the same. The CAS
//! values of different nodes have nothing in common, so the items have none.

use super::*;
use crate::exec::{self, Begun, Next};
use crate::ring::{Lanes, Route};
use crate::settings::{RingSecrets, RingSettings};
use crate::stream::Body;
use cached_core::kv::StoreOutcome;
use cached_proto::text::GetCursor;
use cached_proto::{Decoded, Limits, binary as proto, text};
use cached_ring::wire::{self, Kind};
use cached_ring::{Asked, Flags, Inbound, Map, Node, NodeIndex, Report, SLOTS, slot_of};
use std::collections::HashMap;
use std::time::Duration;
use test_kit::rng::Rng;

/// The limit for an item: larger values are refused.
const ITEM_BYTES_MAX: usize = 256 << 10;
/// A connection never holds more than this: a large value twice, the replies of its places, and
/// parts of replies.
const HELD_BYTES_MAX: usize = 2 << 20;
/// The keys of all requests, few enough to meet again.
const KEYS: u64 = 14;

fn settings(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = Settings {
        threads: 1,
        memory_bytes: 16 << 20,
        item_bytes_max: ITEM_BYTES_MAX,
        cas: false,
        ..Settings::default()
    };
    change(&mut settings);
    settings
}

fn server(settings: Settings) -> Shared {
    let clock = ServerClock::new();
    let config = KvConfig {
        arena_bytes: settings.memory_bytes,
        item_bytes_max: settings.item_bytes_max,
        lanes: 1,
        cas: settings.cas,
        evict: settings.evict,
        clock: clock.ticks(),
        ..KvConfig::default()
    };
    let kv = Kv::new(config).expect("a store");
    let watch = Arc::new(Watch::new(1 << 16, 1 << 16).expect("a descriptor"));
    let queues = [CommandQueue::new().expect("a descriptor")];
    Shared::new(kv, clock, settings, Logging::embedded(0), watch, queues.into())
}

/// Another node, and the bytes on their way from and to it.
struct Owner {
    shared: Shared,
    inbound: Inbound,
    work: Work,
    to: Vec<u8>,
    from: Vec<u8>,
    /// The received beginning of a message, at the entry.
    received: Vec<u8>,
    /// The requests of which parts are missing.
    open: HashMap<u32, (Flags, Vec<u8>)>,
    /// The replies that wait for MORE.
    waiting: HashMap<u32, Rest>,
    /// The maximum length of a reply's part.
    part_bytes: usize,
    /// The number of the next requests that are refused as another node's.
    refuses: u64,
}

/// What is left of a reply.
#[derive(Default)]
struct Rest {
    bytes: Vec<u8>,
    /// A retrieval whose further keys have not been read.
    get: Option<(Vec<u8>, GetCursor)>,
}

impl Owner {
    fn new(part_bytes: usize) -> Owner {
        Owner {
            shared: server(settings(|_| {})),
            inbound: Inbound::new(ITEM_BYTES_MAX + 4096),
            work: Work::new(),
            to: Vec::new(),
            from: Vec::new(),
            received: Vec::new(),
            open: HashMap::new(),
            waiting: HashMap::new(),
            part_bytes,
            refuses: 0,
        }
    }

    /// Forgets the connection to the entry.
    fn disconnect(&mut self) {
        self.inbound = Inbound::new(ITEM_BYTES_MAX + 4096);
        (self.to, self.from, self.received) = Default::default();
        self.open.clear();
        self.waiting.clear();
    }

    /// Executes one message. Returns whether there was one.
    fn step(&mut self) -> bool {
        let to = std::mem::take(&mut self.to);
        let Some((asked, used)) = self.inbound.next(&to).expect("the entry keeps to the protocol") else {
            self.to = to;
            return false;
        };
        match asked {
            Asked::Request { id, slot, flags, bytes } => {
                assert_eq!(slot.is_none(), flags.has(Flags::EVERY));
                if self.refuses > 0 && !flags.has(Flags::PARTS) {
                    self.refuses -= 1;
                    wire::push_not_mine(&mut self.from, id, 7);
                } else if flags.has(Flags::PARTS) {
                    self.open.insert(id, (flags, bytes.to_vec()));
                } else {
                    let rest = self.execute(flags, bytes);
                    // Only long replies have parts, and such requests have none.
                    let part_bytes = if flags.has(Flags::EVERY) { 1000 } else { self.part_bytes };
                    let part_bytes = std::mem::replace(&mut self.part_bytes, part_bytes);
                    self.reply(id, rest);
                    self.part_bytes = part_bytes;
                }
            }
            Asked::Part { id, bytes, last } => {
                self.open.get_mut(&id).expect("an open request").1.extend_from_slice(bytes);
                if last && let Some((flags, whole)) = self.open.remove(&id) {
                    let rest = self.execute(flags, &whole);
                    self.reply(id, rest);
                }
            }
            Asked::More(id) => {
                if let Some(rest) = self.waiting.remove(&id) {
                    self.reply(id, rest);
                }
            }
            Asked::Forget(id) => {
                if self.open.remove(&id).is_some() | self.waiting.remove(&id).is_some() {
                    self.reply(id, Rest::default());
                }
            }
            Asked::Ping(token) => wire::push_pong(&mut self.from, token, &Report::default()),
            Asked::Bye => {}
        }
        self.to = to[used..].to_vec();
        true
    }

    fn executor<'a>(&'a mut self, out: &'a mut Output) -> Executor<'a> {
        self.work.renew();
        let counters = self.shared.counters(0);
        Executor { shared: &self.shared, counters, out, work: &mut self.work, client: -1 }
    }

    fn execute(&mut self, flags: Flags, bytes: &[u8]) -> Rest {
        let mut out = Output::default();
        let mut get = None;
        let mut executor = self.executor(&mut out);
        if flags.has(Flags::BINARY) {
            match proto::decode(bytes) {
                Decoded::Request { request, consumed } => {
                    assert_eq!(consumed, bytes.len());
                    exec::binary_other(&mut executor, &request);
                }
                Decoded::Body { header, body_len, .. } if flags.has(Flags::HEAD) => {
                    if !matches!(exec::begin_binary(&mut executor, &header), Begun::Refused) {
                        exec::refuse(&mut executor, Body::collected(Protocol::Binary, bytes, body_len));
                    }
                }
                other => panic!("{other:?}"),
            }
        } else {
            match text::decode(bytes, 0, &Limits::DEFAULT) {
                Decoded::Request { request, consumed } => {
                    assert_eq!(consumed, bytes.len(), "{}", bytes.escape_ascii());
                    if let Next::Suspend(cursor) = exec::text(&mut executor, &request) {
                        get = Some((bytes.to_vec(), cursor));
                    }
                }
                Decoded::Body { header, body_len, .. } if flags.has(Flags::HEAD) => {
                    if !matches!(exec::begin_text(&mut executor, &header), Begun::Refused) {
                        exec::refuse(&mut executor, Body::collected(Protocol::Text, bytes, body_len - 2));
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        let mut rest = Rest { bytes: Vec::new(), get };
        out.take_front(usize::MAX / 2, &mut rest.bytes);
        rest
    }

    /// Sends what is left of a reply, or its next part.
    fn reply(&mut self, id: u32, mut rest: Rest) {
        while rest.bytes.len() <= self.part_bytes
            && let Some((line, cursor)) = rest.get.take()
        {
            let mut out = Output::default();
            if let Next::Suspend(cursor) =
                exec::get_many(&mut self.executor(&mut out), &mut cursor.resume(&line))
            {
                rest.get = Some((line, cursor));
            }
            out.take_front(usize::MAX / 2, &mut rest.bytes);
        }
        // A long reply has longer parts, or the test would take long.
        let part_bytes = self.part_bytes.max(rest.bytes.len() / 30);
        let is_last = rest.bytes.len() <= part_bytes;
        let count = rest.bytes.len().min(part_bytes);
        let at = wire::begin(&mut self.from);
        self.from.extend_from_slice(&rest.bytes[..count]);
        wire::patch(&mut self.from, at, if is_last { Kind::Done } else { Kind::ReplyPart }, id, count);
        if !is_last {
            rest.bytes.drain(..count);
            self.waiting.insert(id, rest);
        }
    }
}

/// A node of a ring with one client, and the other nodes.
struct World {
    bench: Bench,
    /// The other nodes, by lane.
    owners: Vec<Owner>,
    /// The same server without a ring.
    alone: Bench,
    name: &'static str,
    /// Whether the client's connection must be driven.
    is_due: bool,
    is_closed: bool,
}

impl World {
    fn new(rng: &mut Rng, requests_per_wake: Option<u32>) -> World {
        let node = |name: &str, port: u32| Node {
            name: name.to_owned(),
            ring: format!("{name}:{port}"),
            address: format!("{name}:11211"),
            weight: 1,
        };
        let nodes = vec![node("a", 1), node("b", 2), node("c", 3)];
        let mut owners = Box::new([NodeIndex(0); SLOTS]);
        for run in owners.chunks_mut(16) {
            run.fill(NodeIndex(rng.below(3) as u16));
        }
        let map = Arc::new(Map::new("main", 3, nodes, owners).expect("a map"));
        let name = *rng.pick(&["a", "b", "c"]);
        let ring = RingSettings {
            node: name.into(),
            listen: Vec::new(),
            map,
            secrets: RingSecrets::default(),
            peer_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(1),
            peer_lanes_max: 16,
        };
        let shared = server(settings(|settings| {
            settings.ring = Some(Arc::new(ring));
            settings.requests_per_wake = requests_per_wake;
        }));
        let mut world = World {
            bench: Bench { shared, ..Bench::new(|_| {}) },
            owners: vec![Owner::new(1), Owner::new(1)],
            alone: Bench { shared: server(settings(|_| {})), ..Bench::new(|_| {}) },
            name,
            is_due: false,
            is_closed: false,
        };
        world.with_lanes(|lanes, _| (0..2).for_each(|lane| lanes.open(lane)));
        world
    }

    /// Begins with a new client and without items.
    fn begin(&mut self, rng: &mut Rng) {
        for shared in
            self.owners.iter().map(|owner| &owner.shared).chain([&self.bench.shared, &self.alone.shared])
        {
            shared.kv.flush_all();
        }
        let info = || Arc::new(ConnInfo::new(9, Endpoints::Unix { path: "/x".into() }, None, 0, 2));
        self.alone.connection = Connection::new(info());
        self.alone.io = Fake::default();
        let info = info();
        info.set_slot(5);
        self.bench.connection = Connection::new(info);
        let tag = self.with_lanes(|lanes, _| lanes.next_tag());
        self.bench.connection.join_ring(tag);
        self.bench.io = Fake::default();
        (self.is_due, self.is_closed) = (false, false);
        for owner in &mut self.owners {
            owner.part_bytes = *rng.pick(&[3, 60, 5000, 64 << 10]);
        }
    }

    fn with_lanes<R>(&mut self, call: impl FnOnce(&mut Lanes, &mut Connection) -> R) -> R {
        let ring = self.bench.shared.ring.as_ref().expect("a ring");
        let mut lanes = ring.lanes(0);
        let result = call(&mut lanes, &mut self.bench.connection);
        for slot in lanes.take_woken() {
            assert_eq!(slot, 5);
            self.bench.connection.wake();
            self.is_due = true;
        }
        result
    }

    /// Drives the client's connection once.
    fn drive(&mut self) {
        self.bench.work.renew();
        match self.bench.drive() {
            DriveResult::Yield => {}
            DriveResult::Wait => self.is_due = false,
            DriveResult::Close => {
                self.is_due = false;
                self.is_closed = true;
                self.with_lanes(|lanes, connection| connection.abandon(lanes));
            }
        }
        let held = self.bench.connection.held(0).buffer_bytes;
        assert!(held <= HELD_BYTES_MAX, "the connection holds {held} bytes");
    }

    /// Moves bytes to a node, at most `bytes_max`.
    fn send(&mut self, lane: usize, bytes_max: usize) -> bool {
        let bytes = self.with_lanes(|lanes, _| {
            let (front, back) = lanes.unsent(lane);
            let bytes: Vec<u8> = front.iter().chain(back).copied().take(bytes_max).collect();
            lanes.sent(lane, bytes.len());
            bytes
        });
        self.owners[lane].to.extend_from_slice(&bytes);
        !bytes.is_empty()
    }

    /// Delivers bytes of a node, at most `bytes_max`.
    fn receive(&mut self, lane: usize, bytes_max: usize) -> bool {
        let owner = &mut self.owners[lane];
        let fresh = owner.from.len().min(bytes_max);
        owner.received.extend(owner.from.drain(..fresh));
        let mut received = std::mem::take(&mut owner.received);
        let (mut is_due, is_closed) = (false, self.is_closed);
        let used = self.with_lanes(|lanes, connection| {
            lanes.received(lane, fresh, &received, &mut |to, id, outcome| {
                is_due |= !is_closed && connection.answer(to, id, outcome);
            })
        });
        received.drain(..used.expect("the owner keeps to the protocol"));
        self.is_due |= is_due;
        self.owners[lane].received = received;
        fresh > 0
    }

    /// Loses the lane to a node, which is connected again at once if `reopens`.
    fn lose(&mut self, lane: usize, reopens: bool) {
        let (mut is_due, is_closed) = (false, self.is_closed);
        self.with_lanes(|lanes, connection| {
            lanes.end(lane, &mut |to, id, outcome| {
                is_due |= !is_closed && connection.answer(to, id, outcome);
            });
            if reopens {
                lanes.open(lane);
            }
        });
        self.is_due |= is_due;
        self.owners[lane].disconnect();
    }

    /// Lets a node end the lane in order, and connects again.
    fn say_bye(&mut self, lane: usize) {
        while self.owners[lane].step() {}
        let owner = &mut self.owners[lane];
        if !owner.waiting.is_empty() || !owner.open.is_empty() || !owner.to.is_empty() {
            return;
        }
        wire::push_bye(&mut owner.from, owner.inbound.last());
        self.receive(lane, usize::MAX);
        self.with_lanes(|lanes, _| {
            assert!(lanes.has_said_bye(lane));
            lanes.end(lane, &mut |_, _, outcome| panic!("{outcome:?}"));
            lanes.open(lane);
        });
        self.owners[lane].disconnect();
    }

    /// Does one thing that the seed chooses.
    fn step(&mut self, rng: &mut Rng) {
        let lane = rng.index(self.owners.len());
        let bytes_max = *rng.pick(&[1, 13, 400, 1 << 20]);
        match rng.below(10) {
            0..3 if self.is_due && !self.is_closed => self.drive(),
            3..5 => drop(self.send(lane, bytes_max)),
            5..8 => drop(self.owners[lane].step()),
            8..10 => drop(self.receive(lane, bytes_max)),
            _ => {}
        }
    }

    /// Sends `script` in pieces, and does everything that follows from it. If `ends`, the client
    /// sends nothing after it.
    fn play(
        &mut self,
        rng: &mut Rng,
        script: &[u8],
        ends: bool,
        mut event: impl FnMut(&mut World, &mut Rng),
    ) {
        let mut left = script;
        let piece_bytes = *rng.pick(&[1, 20, 300, 1 << 20]) as u64;
        let is_slow = rng.permille(300);
        self.bench.io.room = if is_slow { 0 } else { usize::MAX };
        while !left.is_empty() && !self.is_closed {
            // A large value comes faster, or the test would take long.
            let at_least = left.len() as u64 / 100;
            let count = left.len().min(1 + (at_least + rng.below(piece_bytes)) as usize);
            self.bench.io.pieces.push_back(left[..count].to_vec());
            left = &left[count..];
            self.is_due = true;
            for _ in 0..rng.below(12) {
                self.step(rng);
                event(self, rng);
            }
            if is_slow && rng.permille(300) {
                self.bench.io.room += rng.below(5000) as usize;
                self.is_due |= std::mem::take(&mut self.bench.io.is_full);
            }
        }
        if ends {
            self.bench.io.is_ended = true;
            self.is_due = true;
        }
        self.finish();
        self.bench.io.room = usize::MAX;
        self.is_due |= std::mem::take(&mut self.bench.io.is_full);
        self.finish();
    }

    /// Moves all bytes until nothing is left to do.
    fn finish(&mut self) {
        loop {
            let mut goes_on = false;
            if self.is_due && !self.is_closed {
                self.drive();
                goes_on = true;
            }
            for lane in 0..self.owners.len() {
                goes_on |= self.send(lane, usize::MAX);
                goes_on |= self.owners[lane].step();
                goes_on |= self.receive(lane, usize::MAX);
            }
            if !goes_on {
                return;
            }
        }
    }

    /// Returns the replies of the server without a ring, and whether it has closed the connection.
    fn expected(&mut self, script: &[u8], ends: bool) -> (Vec<u8>, bool) {
        self.alone.io.room = usize::MAX;
        self.alone.io.pieces.push_back(script.to_vec());
        self.alone.io.is_ended = ends;
        loop {
            self.alone.work.renew();
            match self.alone.drive() {
                DriveResult::Yield => {}
                result => {
                    return (std::mem::take(&mut self.alone.io.written), result == DriveResult::Close);
                }
            }
        }
    }

    fn owner_of(&self, key: &[u8]) -> Option<usize> {
        let lanes = self.bench.shared.ring.as_ref().expect("a ring").lanes(0);
        match lanes.route(slot_of(key)) {
            Route::Own => None,
            Route::Peer(node) => lanes.find(&lanes.map().node(node).name),
        }
    }
}

/// Returns the name of a key.
fn key(rng: &mut Rng) -> String {
    match rng.below(20) {
        0 => "long".repeat(62),
        _ => format!("key:{}", rng.below(KEYS)),
    }
}

fn keys(rng: &mut Rng) -> String {
    let count = if rng.permille(20) { rng.within(1000, 3000) } else { rng.within(1, 30) };
    (0..count).map(|_| key(rng)).collect::<Vec<_>>().join(" ")
}

fn value(rng: &mut Rng) -> Vec<u8> {
    let bytes = match rng.weighted(&[800, 140, 30, 6, 3, 15]) {
        0 => rng.below(20),
        1 => rng.below(2000),
        2 => rng.within(4000, 20_000),
        3 => rng.within(60_000, 200_000),
        // Too large.
        4 => ITEM_BYTES_MAX as u64 + rng.below(1000),
        _ => return rng.below(1000).to_string().into_bytes(),
    };
    let first = rng.below(256);
    (0..bytes).map(|at| b'a' + ((first + at) % 26) as u8).collect()
}

/// Appends a text or meta request.
fn text_request(rng: &mut Rng, script: &mut Vec<u8>) {
    let noreply = if rng.permille(150) { " noreply" } else { "" };
    let (name, number) = (key(rng), rng.below(100));
    let mut put = |line: String| script.extend_from_slice(line.as_bytes());
    match rng.below(30) {
        0..5 => put(format!("get {name}\r\n")),
        5..8 => put(format!("get {}\r\n", keys(rng))),
        8 => put(format!("gets {}\r\n", keys(rng))),
        // Such a line must not be longer than 2048 bytes if it arrives in pieces.
        9 => put(format!("gat 0 {name} {} {} {name}\r\n", key(rng), key(rng))),
        10 => put(format!("delete {name}{noreply}\r\n")),
        11 => put(format!("{} {name} {number}{noreply}\r\n", rng.pick(&["incr", "decr"]))),
        12 => put(format!("touch {name} {}{noreply}\r\n", rng.pick(&[0, 0, -1]))),
        13 => {
            let flags = rng.pick(&["v", "s v f", "k v Oabc q", "", "N0 v", "v q", "Oxyz k s"]);
            put(format!("mg {name} {flags}\r\n"));
        }
        14 => put(format!("mg Zm9vOjE= b v k {}\r\n", rng.pick(&["q", "N0", ""]))),
        15 => put(format!("md {name} {}\r\n", rng.pick(&["", "q", "Oq k", "I"]))),
        16 => put(format!("ma {name} {}\r\n", rng.pick(&["", "v", "N0 J5 v", "q", "MD D3 v"]))),
        17 => put(format!(
            "{}\r\n",
            rng.pick(&["mn", "version", "verbosity 0", "cache_memlimit 1", "me nothing"])
        )),
        18 => put(format!("{}{noreply}\r\n", rng.pick(&["flush_all", "flush_all 0", "flush_all x"]))),
        19 if rng.permille(300) => put(format!("flush_prefix key:1{noreply}\r\n")),
        20 => {
            let bad = ["nonsense", "get", "get  ", "set key:1 0 0 x", "incr key:1 x", "touch key:2 y", "ab"];
            put(format!("{}\r\n", rng.pick(&bad)));
        }
        21 => put(format!("delete {}\r\n", "k".repeat(251))),
        22 => {
            let value = value(rng);
            let flags = rng.pick(&["", "q", "MA", "ME", "F7", "k Oab"]);
            put(format!("ms {name} {} {flags}\r\n", value.len()));
            script.extend_from_slice(&value);
            script.extend_from_slice(b"\r\n");
        }
        _ => {
            let value = value(rng);
            let verb = rng.weighted(&[60, 10, 10, 10, 10]);
            let verb = ["set", "add", "replace", "append", "prepend"][verb];
            put(format!("{verb} {name} {number} 0 {}{noreply}\r\n", value.len()));
            script.extend_from_slice(&value);
            let end: &[u8] = if rng.permille(30) { b"xy" } else { b"\r\n" };
            script.extend_from_slice(end);
        }
    }
}

/// Appends a binary request.
fn binary_request(rng: &mut Rng, script: &mut Vec<u8>) {
    use cached_proto::binary::opcode as op;
    let name = key(rng).into_bytes();
    let frame = |rng: &mut Rng, opcode: u8, extras: &[u8], key: &[u8], value: &[u8]| {
        let header = proto::Header {
            magic: proto::MAGIC_REQUEST,
            opcode,
            key_len: key.len() as u16,
            extras_len: extras.len() as u8,
            body_len: (extras.len() + key.len() + value.len()) as u32,
            opaque: rng.next_u64() as u32,
            cas: 0,
        };
        [&header.to_bytes()[..], extras, key, value].concat()
    };
    let request = match rng.below(20) {
        0..6 => {
            let opcode = *rng.pick(&[op::GET, op::GETQ, op::GETK, op::GETKQ]);
            frame(rng, opcode, b"", &name, b"")
        }
        6 => {
            let opcode = *rng.pick(&[op::DELETE, op::DELETEQ]);
            frame(rng, opcode, b"", &name, b"")
        }
        7 => {
            let mut extras = [0; 20];
            (extras[7], extras[15]) = (3, 5);
            extras[16..].fill(*rng.pick(&[0, 0xff]));
            let opcode = *rng.pick(&[op::INCREMENT, op::INCREMENTQ, op::DECREMENT]);
            frame(rng, opcode, &extras, &name, b"")
        }
        8 => {
            let opcode = *rng.pick(&[op::TOUCH, op::GAT, op::GATKQ]);
            frame(rng, opcode, &[0; 4], &name, b"")
        }
        9 => {
            let opcode = *rng.pick(&[op::NOOP, op::VERSION]);
            frame(rng, opcode, b"", b"", b"")
        }
        10 if rng.permille(500) => {
            let opcode = *rng.pick(&[op::FLUSH, op::FLUSHQ]);
            frame(rng, opcode, b"", b"", b"")
        }
        11 => frame(rng, 0xee, b"", b"k", b""),
        12 => {
            let value = value(rng);
            let opcode = *rng.pick(&[op::APPEND, op::APPENDQ, op::PREPEND]);
            frame(rng, opcode, b"", &name, &value)
        }
        _ => {
            let value = value(rng);
            let opcode = *rng.pick(&[op::SET, op::SET, op::SETQ, op::ADD, op::ADDQ, op::REPLACE]);
            frame(rng, opcode, &[0, 0, 0, 9, 0, 0, 0, 0], &name, &value)
        }
    };
    script.extend_from_slice(&request);
}

/// Runs a test for each seed. The seed is printed if it fails.
fn each_seed(count: u64, mut run: impl FnMut(u64, &mut Rng)) {
    struct Seed(u64);
    impl Drop for Seed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("replay with CACHED_TEST_SEED={}", self.0);
            }
        }
    }
    let only = std::env::var("CACHED_TEST_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    let seeds = only.map_or(0..count * test_kit::times(), |seed| seed..seed + 1);
    for seed in seeds {
        let _told = Seed(seed);
        run(seed, &mut Rng::new(seed));
    }
}

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
            script[..script.len().min(3000)].escape_ascii()
        );
    }
}

/// Whatever the order in which the nodes answer, the client receives what one server would send.
#[test]
fn replies_are_those_of_one_server() {
    let mut world = None;
    each_seed(2000, |seed, rng| {
        if seed % 250 == 0 {
            world = None;
        }
        let limit = [None, Some(1), None, Some(3)][(seed / 250 % 4) as usize];
        let world = world.get_or_insert_with(|| World::new(rng, limit));
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
            let quit = if is_binary { super::binary(0x07, b"") } else { b"quit\r\n".to_vec() };
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
    each_seed(600, |seed, rng| {
        if seed % 200 == 0 {
            world = None;
        }
        let world = world.get_or_insert_with(|| World::new(rng, None));
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
            _ => {}
        });
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
            let is_of_peer = world.owner_of(name.as_bytes()).is_some();
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

/// Returns a world whose node owns `key:0`, while `key:1` and `key:2` belong to one other node and
/// `key:3` to the third.
fn small_world() -> (World, [usize; 2]) {
    let mut world = each_of(|seed| {
        let world = World::new(&mut Rng::new(seed), None);
        let owners = [0, 1, 2, 3].map(|number| world.owner_of(format!("key:{number}").as_bytes()));
        match owners {
            [None, Some(one), Some(same), Some(other)] if one == same && one != other => {
                Some((world, [one, other]))
            }
            _ => None,
        }
    });
    world.0.begin(&mut Rng::new(0));
    world.0.owners.iter_mut().for_each(|owner| owner.part_bytes = 64 << 10);
    world
}

fn each_of<R>(mut of: impl FnMut(u64) -> Option<R>) -> R {
    (0..).find_map(&mut of).expect("one of them")
}

impl World {
    /// Sends requests without moving anything to other nodes.
    fn ask(&mut self, script: &[u8]) {
        self.bench.io.pieces.push_back(script.to_vec());
        self.is_due = true;
        for _ in 0..100 {
            if !self.is_due || self.is_closed {
                return;
            }
            self.drive();
        }
        panic!("the connection always has more to do");
    }

    #[track_caller]
    fn replies(&mut self, expected: &str) {
        self.finish();
        let written = std::mem::take(&mut self.bench.io.written);
        assert_eq!(String::from_utf8_lossy(&written), expected);
    }
}

#[test]
fn reads_miss_and_changes_fail_while_their_owner_is_away() {
    let (mut world, [b, c]) = small_world();
    world.ask(b"set key:0 0 0 1\r\nx\r\nset key:1 0 0 1\r\ny\r\nset key:3 0 0 1\r\nz\r\n");
    world.replies("STORED\r\nSTORED\r\nSTORED\r\n");
    let name = world.with_lanes(|lanes, _| lanes.peer(b).name.clone());
    world.lose(b, false);
    world.ask(b"get key:1\r\nget key:0 key:1 key:3\r\nmg key:1 v\r\nmg key:1 v q\r\nme key:1\r\nmn\r\n");
    world.replies("END\r\nVALUE key:0 0 1\r\nx\r\nVALUE key:3 0 1\r\nz\r\nEND\r\nEN\r\nEN\r\nMN\r\n");
    for request in
        ["delete key:1", "incr key:1 1", "touch key:1 0", "mg key:1 N30 v", "ma key:1", "gat 0 key:1"]
    {
        world.ask(format!("{request}\r\nmn\r\n").as_bytes());
        world.replies(&format!("SERVER_ERROR node {name} is away\r\nMN\r\n"));
    }
    world.ask(b"delete key:1 noreply\r\nset key:1 0 0 5000\r\n");
    world.ask(&[&vec![b'x'; 5000][..], b"\r\nflush_all\r\nget key:0 key:3\r\n"].concat());
    world.replies(&format!(
        "SERVER_ERROR node {name} is away\r\nSERVER_ERROR flush_all has not reached node {name}\r\nEND\r\n"
    ));
    // A request that was sent may have been executed.
    world.ask(b"get key:3\r\nset key:3 0 0 1\r\nx\r\nget key:0\r\n");
    world.send(c, usize::MAX);
    let name = world.with_lanes(|lanes, _| lanes.peer(c).name.clone());
    world.lose(c, false);
    world.replies(&format!(
        "END\r\nSERVER_ERROR the connection to node {name} was lost; the request may have been executed\r\nEND\r\n"
    ));
    world.with_lanes(|lanes, _| lanes.open(b));
    world.owners[b].refuses = 2;
    world.ask(b"set key:1 0 0 1\r\nx\r\nget key:1\r\n");
    let name = world.with_lanes(|lanes, _| lanes.peer(b).name.clone());
    world.replies(&format!("SERVER_ERROR node {name} has another map (version 7)\r\nEND\r\n"));
}

#[test]
fn a_binary_client_is_told_to_try_again() {
    let (mut world, [b, _]) = small_world();
    world.lose(b, false);
    let delete = super::binary(0x04, b"key:1");
    let requests =
        [super::binary(0x00, b"key:1"), super::binary(0x09, b"key:1"), delete, super::binary(0x0a, b"")];
    world.ask(&requests.concat());
    world.finish();
    let statuses: Vec<u8> = {
        let mut rest = &world.bench.io.written[..];
        std::iter::from_fn(|| {
            let body_bytes = usize::from(*rest.get(11)?);
            let status = rest[7];
            rest = &rest[24 + body_bytes..];
            Some(status)
        })
        .collect()
    };
    assert_eq!(statuses, [0x01, 0x86, 0x00], "a quiet miss has no reply");
}

/// A retrieval that is read in steps does not see what the same client writes after it.
#[test]
fn a_retrieval_in_steps_is_read_before_later_changes() {
    let (mut world, [b, _]) = small_world();
    let value = vec![b'v'; 60_000];
    for key in ["key:1", "key:2"] {
        world.ask(&[format!("set {key} 0 0 60000\r\n").as_bytes(), &value, b"\r\n"].concat());
    }
    world.replies("STORED\r\nSTORED\r\n");
    world.owners[b].part_bytes = 1000;
    let keys = " key:2".repeat(20);
    for first in ["key:1", "key:0"] {
        world.ask(format!("get {first}{keys}\r\nset key:2 0 0 60000\r\n").as_bytes());
        world.ask(&[&value[..], b"\r\n"].concat());
        world.finish();
        let written = std::mem::take(&mut world.bench.io.written);
        let head = b"VALUE key:2 0 60000\r\n";
        assert_eq!(written.windows(head.len()).filter(|bytes| bytes == head).count(), 20);
        assert!(written.ends_with(b"\r\nEND\r\nSTORED\r\n"));
    }
}

#[test]
fn a_connection_is_handed_over_once_it_has_its_replies() {
    let (mut world, _) = small_world();
    world.ask(b"get key:1\r\nget key:0\r\nget ke");
    assert!(!world.bench.connection.is_at_rest() && world.bench.connection.hand_over(false).is_none());
    world.replies("END\r\nEND\r\n");
    let handed = world.bench.connection.hand_over(false).expect("it is at rest");
    assert_eq!((handed.phase, &handed.input[..]), (HandedPhase::Command, &b"get ke"[..]));
    let info = ConnInfo::new(9, Endpoints::Unix { path: "/x".into() }, None, 0, 2);
    info.set_slot(5);
    world.bench.connection = Connection::resume_handed(Arc::new(info), handed, false);
    world.bench.connection.join_ring(77);
    world.ask(b"y:1\r\n");
    world.replies("END\r\n");
}

/// Answers to an earlier client of the slot do not reach the next one.
#[test]
fn the_next_client_of_a_slot_gets_its_own_replies() {
    let (mut world, [b, _]) = small_world();
    world.ask(b"set key:1 0 0 5\r\nfirst\r\n");
    world.replies("STORED\r\n");
    world.ask(b"get key:1\r\n");
    let info = ConnInfo::new(9, Endpoints::Unix { path: "/x".into() }, None, 0, 2);
    info.set_slot(5);
    world.send(b, usize::MAX);
    world.bench.connection = Connection::new(Arc::new(info));
    world.bench.connection.join_ring(78);
    world.ask(b"delete key:1\r\n");
    world.replies("DELETED\r\n");
}

#[test]
fn a_datagram_does_not_wait_for_another_node() {
    let (mut world, [b, _]) = small_world();
    let local = "127.0.0.1:11211".parse().expect("an address");
    let info = Arc::new(ConnInfo::new(9, Endpoints::Udp { local }, None, 0, 2));
    world.bench.connection = Connection::new(info);
    world.bench.connection.join_ring(79);
    world.ask(b"set key:0 0 0 1\r\nx\r\nget key:1 key:0\r\nset key:1 0 0 1\r\ny\r\n");
    let name = world.with_lanes(|lanes, _| lanes.peer(b).name.clone());
    world.replies(&format!("STORED\r\nVALUE key:0 0 1\r\nx\r\nEND\r\nSERVER_ERROR node {name} is away\r\n"));
}

/// As without a ring, a value for which memory runs out while it arrives is refused at once.
#[test]
fn a_value_for_which_memory_runs_out_is_refused() {
    let mut replies = Vec::new();
    for is_in_ring in [false, true] {
        let (mut world, _) = small_world();
        let settings = |settings: &mut Settings| {
            settings.evict = false;
            settings.ring = world.bench.shared.settings.ring.clone().filter(|_| is_in_ring);
        };
        world.bench.shared = server(self::settings(settings));
        let info = ConnInfo::new(9, Endpoints::Unix { path: "/x".into() }, None, 0, 2);
        world.bench.connection = Connection::new(Arc::new(info));
        if is_in_ring {
            world.bench.connection.join_ring(1);
        }
        let value_bytes = ITEM_BYTES_MAX - 1000;
        world.bench.io.pieces.push_back(format!("set key:0 0 0 {value_bytes}\r\nabc").into_bytes());
        world.bench.drive_until_it_waits();
        let kv = &world.bench.shared.kv;
        for bytes in [200_000, 20_000, 1000, 10] {
            let value = vec![b'x'; bytes];
            let store = |number: u32| {
                let key = format!("fill:{bytes}:{number}");
                kv.store(key.as_bytes(), kv.hash(key.as_bytes()), &value, &StoreOptions::default())
            };
            (0..).find(|number| store(*number) == StoreOutcome::OutOfMemory);
        }
        for _ in 0..200 {
            world.bench.io.pieces.push_back(vec![b'x'; 1400]);
            assert!(world.bench.drive_until_it_waits() < 50);
        }
        replies.push(String::from_utf8(world.bench.io.written).expect("text"));
    }
    assert_eq!(replies[0], "SERVER_ERROR out of memory storing object\r\n");
    assert_eq!(replies[1], replies[0]);
}

/// What depends on the requests before it waits for their replies.
#[test]
fn administrative_requests_wait_for_earlier_replies() {
    let (mut world, _) = small_world();
    world.ask(b"get key:1\r\nwatch\r\ncache_memlimit 1\r\nmn\r\n");
    assert_eq!(world.bench.io.written, b"");
    world.replies(
        "END\r\nERROR cannot pipeline other commands before watch\r\n\
         MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\nMN\r\n",
    );
    world.ask(b"get key:1\r\nquit\r\n");
    assert!(!world.is_closed);
    world.replies("END\r\n");
    assert!(world.is_closed);
}

/// A request for every node is executed once, however long a lane has no room for it.
#[test]
fn a_flush_that_waits_for_room_is_executed_once() {
    let (mut world, [b, _]) = small_world();
    let request = format!("set key:1 0 0 4000 noreply\r\n{}\r\n", "x".repeat(4000));
    let count = 300;
    world.ask(&[request.repeat(count).as_bytes(), b"flush_all\r\nget key:1\r\n"].concat());
    let flushes = |world: &World| world.bench.shared.totals().flushes;
    assert_eq!(flushes(&world), 0, "the lane has no room");
    for _ in 0..20 {
        world.send(b, 30_000);
        while world.owners[b].step() {}
        world.receive(b, usize::MAX);
        if world.is_due {
            world.drive();
        }
    }
    world.replies("OK\r\nEND\r\n");
    assert_eq!(flushes(&world), 1);
    assert_eq!(world.owners[b].shared.totals().flushes, 1);
}

/// What a lost node has not delivered of a merged reply is a miss. Only a value that was begun ends
/// the connection.
#[test]
fn a_merged_reply_of_which_a_part_is_lost_has_misses() {
    for part_bytes in [40, 20] {
        let (mut world, [b, _]) = small_world();
        for key in ["key:0", "key:1", "key:2"] {
            world.ask(format!("set {key} 0 0 9\r\nabcdefghi\r\n").as_bytes());
        }
        world.replies(&"STORED\r\n".repeat(3));
        world.owners[b].part_bytes = part_bytes;
        world.ask(b"get key:1 key:2 key:0\r\nmn\r\n");
        world.send(b, usize::MAX);
        while world.owners[b].step() {}
        world.receive(b, usize::MAX);
        world.drive();
        world.lose(b, false);
        let value = |key| format!("VALUE {key} 0 9\r\nabcdefghi\r\n");
        match part_bytes {
            40 => world.replies(&format!("{}{}END\r\nMN\r\n", value("key:1"), value("key:0"))),
            _ => {
                world.replies(&value("key:1")[..20]);
                assert!(world.is_closed);
            }
        }
    }
}
