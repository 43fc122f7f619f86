//! A node of a ring with one client, the other nodes as models, and the same server without a ring.

use super::*;
use crate::exec::{self, Begun, Next};
use crate::ring::{Lanes, Outcome, Ring, Route, VERSION_BYTES, Why};
use crate::settings::{RingSecrets, RingSettings};
use crate::stream::Body;
use cached_proto::text::GetCursor;
use cached_proto::{Decoded, Limits, binary as proto, text};
use cached_ring::wire::{self, Kind};
use cached_ring::{Asked, Flags, Inbound, Map, Node, NodeIndex, Report, SLOTS, Slot, SlotSet, slot_of};
use std::time::Duration;

/// A connection never holds more than this: a large value twice, the replies of its places, and
/// parts of replies.
const HELD_BYTES_MAX: usize = 2 << 20;
/// The version of the first map.
pub(super) const VERSION: u64 = 3;
/// The slot of the client's connection in its worker.
const SLOT: u32 = 5;

/// Sets what the servers of all nodes, and the one without a ring, have in common.
pub(super) fn limits(settings: &mut Settings) {
    settings.item_bytes_max = ITEM_BYTES_MAX;
    settings.cas = false;
}

/// Returns the description of a client's connection in its slot.
pub(super) fn client_info() -> Arc<ConnInfo> {
    let info = info();
    info.set_slot(SLOT as usize);
    Arc::new(info)
}

/// Another node, and the bytes on their way from and to it.
pub(super) struct Owner {
    pub(super) shared: Arc<Shared>,
    inbound: Inbound,
    work: Work,
    to: Vec<u8>,
    from: Vec<u8>,
    /// The received beginning of a message, at the entry.
    received: Vec<u8>,
    /// The requests of which parts are missing.
    open: HashMap<u32, (Slot, Flags, bool, Vec<u8>)>,
    /// The replies that wait for MORE.
    waiting: HashMap<u32, Rest>,
    /// The maximum length of a reply's part.
    pub(super) part_bytes: usize,
    /// The number of the next requests that are refused as another node's.
    pub(super) refuses: u64,
    /// The slots whose requests the node does not execute.
    pub(super) away: SlotSet,
    /// The version of the node's map.
    pub(super) version: u64,
    /// The version that it tells of its map.
    pub(super) told_version: u64,
    /// Whether the node hands slots over.
    pub(super) is_sealed: bool,
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
            shared: shared(limits),
            inbound: Inbound::new(ITEM_BYTES_MAX + 4096),
            work: Work::new(),
            to: Vec::new(),
            from: Vec::new(),
            received: Vec::new(),
            open: HashMap::new(),
            waiting: HashMap::new(),
            part_bytes,
            refuses: 0,
            away: SlotSet::new(),
            version: VERSION,
            told_version: 7,
            is_sealed: false,
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
    pub(super) fn step(&mut self) -> bool {
        let to = std::mem::take(&mut self.to);
        let Some((asked, used)) = self.inbound.next(&to).expect("the entry keeps to the protocol") else {
            self.to = to;
            return false;
        };
        match asked {
            Asked::Request { id, slot, flags, bytes } => {
                assert_eq!(slot.is_none(), flags.has(Flags::EVERY));
                let (version, bytes) = bytes.split_at(if slot.is_none() { VERSION_BYTES } else { 0 });
                let is_of_map = slot.is_some() || version == self.version.to_le_bytes() && !self.is_sealed;
                let is_refused = self.is_refused(slot, flags, bytes) || !is_of_map;
                if flags.has(Flags::PARTS) {
                    self.open.insert(id, (slot.expect("a slot"), flags, is_refused, bytes.to_vec()));
                } else if is_refused {
                    wire::push_not_mine(&mut self.from, id, self.told_version);
                } else {
                    let rest = self.execute(flags, bytes);
                    // A request for every node has no long reply, and only long replies have parts.
                    let part_bytes = if flags.has(Flags::EVERY) { 1000 } else { self.part_bytes };
                    self.reply(id, rest, part_bytes);
                }
            }
            Asked::Part { id, bytes, last } => {
                self.open.get_mut(&id).expect("an open request").3.extend_from_slice(bytes);
                if last && let Some((slot, flags, is_refused, whole)) = self.open.remove(&id) {
                    if is_refused || self.is_refused(Some(slot), flags.with(Flags::AGAIN), &whole) {
                        self.inbound.decided(slot, flags, true);
                        wire::push_not_mine(&mut self.from, id, self.told_version);
                    } else {
                        let rest = self.execute(flags, &whole);
                        self.reply(id, rest, self.part_bytes);
                    }
                }
            }
            Asked::More(id) => {
                if let Some(rest) = self.waiting.remove(&id) {
                    self.reply(id, rest, self.part_bytes);
                }
            }
            Asked::Forget(id) => {
                if self.open.remove(&id).is_some() | self.waiting.remove(&id).is_some() {
                    self.reply(id, Rest::default(), self.part_bytes);
                }
            }
            Asked::Ping(token) => wire::push_pong(&mut self.from, token, &Report::default()),
            Asked::Bye => {}
        }
        self.to = to[used..].to_vec();
        true
    }

    /// Returns whether a request must be refused.
    fn is_refused(&mut self, slot: Option<Slot>, flags: Flags, bytes: &[u8]) -> bool {
        let mut slots = Vec::from_iter(slot);
        if !flags.has(Flags::BINARY)
            && let Decoded::Request { request: text::Request::Get(mut get), .. } =
                text::decode(bytes, 0, &Limits::DEFAULT)
        {
            slots = std::iter::from_fn(|| get.next_key()).map(slot_of).collect();
        }
        let is_away = |slot: &Slot| self.away.contains(*slot) || self.inbound.refuses(*slot, flags);
        let is_refused = self.refuses > 0 || slots.iter().any(is_away);
        self.refuses = self.refuses.saturating_sub(1);
        for slot in &slots {
            if slots.len() == 1 || !is_refused {
                self.inbound.decided(*slot, flags, is_refused);
            }
        }
        is_refused
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

    /// Reads what retrievals have not read, before slots are another node's.
    pub(super) fn complete_retrievals(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        for rest in waiting.values_mut() {
            while let Some((line, cursor)) = rest.get.take() {
                self.read_on(rest, line, cursor);
            }
        }
        self.waiting = waiting;
    }

    fn read_on(&mut self, rest: &mut Rest, line: Vec<u8>, cursor: GetCursor) {
        let mut out = Output::default();
        let next = exec::get_many(&mut self.executor(&mut out), &mut cursor.resume(&line));
        if let Next::Suspend(cursor) = next {
            rest.get = Some((line, cursor));
        }
        out.take_front(usize::MAX / 2, &mut rest.bytes);
    }

    /// Sends what is left of a reply, or its next part of at least `part_bytes`.
    fn reply(&mut self, id: u32, mut rest: Rest, part_bytes: usize) {
        while rest.bytes.len() <= part_bytes
            && let Some((line, cursor)) = rest.get.take()
        {
            self.read_on(&mut rest, line, cursor);
        }
        // A long reply has longer parts, or the test would take long.
        let part_bytes = part_bytes.max(rest.bytes.len() / 30);
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
pub(super) struct World {
    pub(super) bench: Bench,
    /// The other nodes, by lane.
    pub(super) owners: Vec<Owner>,
    /// The same server without a ring.
    alone: Bench,
    pub(super) name: &'static str,
    /// Whether the client's connection must be driven.
    pub(super) is_due: bool,
    pub(super) is_closed: bool,
    /// The number of requests that were refused.
    pub(super) refused: u64,
}

impl World {
    pub(super) fn new(rng: &mut Rng, requests_per_wake: Option<u32>) -> World {
        let node = |name: &str, port: u32| Node::new(name, format!("{name}:{port}"), format!("{name}:11211"));
        let nodes = vec![node("a", 1), node("b", 2), node("c", 3)];
        let mut owners = Box::new([NodeIndex(0); SLOTS]);
        for run in owners.chunks_mut(16) {
            run.fill(NodeIndex(rng.below(3) as u16));
        }
        let map = Arc::new(Map::new("main", VERSION, nodes, owners).expect("a map"));
        let name = *rng.pick(&["a", "b", "c"]);
        let ring = RingSettings {
            node: name.into(),
            listen: Vec::new(),
            map,
            secrets: RingSecrets::default(),
            peer_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(1),
            tls: None,
            peer_lanes_max: 16,
            has_leases: false,
        };
        let mut world = World {
            bench: Bench::new(|settings| {
                limits(settings);
                settings.ring = Some(Arc::new(ring));
                settings.requests_per_wake = requests_per_wake;
            }),
            owners: vec![Owner::new(1), Owner::new(1)],
            alone: Bench::new(limits),
            name,
            is_due: false,
            is_closed: false,
            refused: 0,
        };
        world.with_lanes(|lanes, _| (0..2).for_each(|lane| lanes.open(lane)));
        world
    }

    /// Begins with a new client and without items.
    pub(super) fn begin(&mut self, rng: &mut Rng) {
        for shared in
            self.owners.iter().map(|owner| &owner.shared).chain([&self.bench.shared, &self.alone.shared])
        {
            shared.kv.flush_all();
        }
        self.alone.connection = Connection::new(Arc::new(info()));
        self.alone.io = Fake::default();
        self.bench.connection = Connection::new(client_info());
        let tag = self.with_lanes(|lanes, _| lanes.next_tag());
        self.bench.connection.join_ring(tag);
        self.bench.io = Fake::default();
        (self.is_due, self.is_closed) = (false, false);
        for owner in &mut self.owners {
            owner.part_bytes = *rng.pick(&[3, 60, 5000, 64 << 10]);
        }
    }

    pub(super) fn with_lanes<R>(&mut self, call: impl FnOnce(&mut Lanes, &mut Connection) -> R) -> R {
        let ring = self.bench.shared.ring.as_ref().expect("a ring");
        let mut lanes = ring.lanes(0);
        let result = call(&mut lanes, &mut self.bench.connection);
        for slot in lanes.take_woken() {
            assert_eq!(slot, SLOT);
            self.bench.connection.wake();
            self.is_due = true;
        }
        result
    }

    pub(super) fn with_ring(&mut self, call: impl FnOnce(&Ring, &mut Lanes)) {
        let shared = self.bench.shared.clone();
        let ring = shared.ring.as_ref().expect("a ring");
        self.with_lanes(|lanes, _| call(ring, lanes));
    }

    /// Drives the client's connection once.
    pub(super) fn drive(&mut self) {
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
    pub(super) fn send(&mut self, lane: usize, bytes_max: usize) -> bool {
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
    pub(super) fn receive(&mut self, lane: usize, bytes_max: usize) -> bool {
        let owner = &mut self.owners[lane];
        let fresh = owner.from.len().min(bytes_max);
        owner.received.extend(owner.from.drain(..fresh));
        let mut received = std::mem::take(&mut owner.received);
        let (mut is_due, mut refused, is_closed) = (false, 0, self.is_closed);
        let used = self.with_lanes(|lanes, connection| {
            lanes.received(lane, fresh, &received, &mut |to, id, outcome| {
                refused += u64::from(matches!(outcome, Outcome::Failed { why: Why::NotMine(_), .. }));
                is_due |= !is_closed && connection.answer(to, id, outcome);
            })
        });
        received.drain(..used.expect("the owner keeps to the protocol"));
        self.is_due |= is_due;
        self.refused += refused;
        self.owners[lane].received = received;
        fresh > 0
    }

    /// Loses the lane to a node, which is connected again at once if `reopens`.
    pub(super) fn lose(&mut self, lane: usize, reopens: bool) {
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
    pub(super) fn say_bye(&mut self, lane: usize) {
        while self.owners[lane].step() {}
        let owner = &mut self.owners[lane];
        if !owner.waiting.is_empty() || !owner.open.is_empty() || !owner.to.is_empty() {
            return;
        }
        wire::push_bye(&mut owner.from, owner.inbound.last());
        self.receive(lane, usize::MAX);
        let (mut is_due, is_closed) = (false, self.is_closed);
        self.with_lanes(|lanes, connection| {
            assert!(lanes.has_said_bye(lane));
            lanes.end(lane, &mut |to, id, outcome| {
                assert!(matches!(outcome, Outcome::Failed { why: Why::Unready, .. }), "{outcome:?}");
                is_due |= !is_closed && connection.answer(to, id, outcome);
            });
            lanes.open(lane);
        });
        self.is_due |= is_due;
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
    pub(super) fn play(
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
    pub(super) fn finish(&mut self) {
        for turn in 0.. {
            assert!(turn < 1_000_000, "the connection always has more to do");
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
    pub(super) fn expected(&mut self, script: &[u8], ends: bool) -> (Vec<u8>, bool) {
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

    /// Returns the name of the node to which a lane leads.
    pub(super) fn name_of(&mut self, lane: usize) -> String {
        self.with_lanes(|lanes, _| lanes.peer(lane).name.to_string())
    }

    /// Returns the lane to the owner of a key; `None` if the node itself owns it.
    pub(super) fn owner_of(&self, key: &[u8]) -> Option<usize> {
        let lanes = self.bench.shared.ring.as_ref().expect("a ring").lanes(0);
        match lanes.route(slot_of(key)) {
            Route::Own | Route::Wait => None,
            Route::Peer(node) => lanes.find(&lanes.map().node(node).name),
        }
    }

    /// Sends requests without moving anything to other nodes.
    pub(super) fn ask(&mut self, script: &[u8]) {
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
    pub(super) fn replies(&mut self, expected: &str) {
        self.finish();
        let written = std::mem::take(&mut self.bench.io.written);
        assert_eq!(String::from_utf8_lossy(&written), expected);
    }
}
