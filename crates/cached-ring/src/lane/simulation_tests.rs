//! An entry and its owners under faults: messages cut anywhere and late, lost connections that the
//! owner notices later than the entry, owners that end with BYE or refuse requests for a while, clients
//! that go away.
//!
//! The ends are the shipped types; the connection between them and the execution are models. Each
//! step is drawn from the run's seed. After every step each request has at most one outcome and was
//! executed at most once, in order, also among the requests of one slot that were refused and go again;
//! at the end, each has exactly one. `RING_SEED=n` repeats one run and prints its steps,
//! `CACHED_TEST_TIMES=n` multiplies the number of runs.

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::inbound::{Asked, Inbound};
use super::outbound::{LOG_BYTES_MAX, Outbound, RequestId, WAITING_MAX, Waiter};
use super::outcome::{Answer, Executed, Failed};
use crate::wire::{self, Flags, HEAD_BYTES, Kind, MESSAGE_BYTES_MAX, Report};
use crate::{Slot, slot_of};

/// The number of runs, without a factor.
const SEEDS: u64 = 10_000;
/// The number of slots whose requests go again when they are refused, in order. The lane has no such
/// order among requests with parts.
const ORDERED_SLOTS: usize = 3;
/// The longest request, in bytes.
const REQUEST_BYTES_MAX: usize = 4 * MESSAGE_BYTES_MAX;

/// What requests and replies consist of: a slice that begins at their number.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    (0..REQUEST_BYTES_MAX as u32 + 1024).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect()
});

/// Returns the slot of a request, and its number if it is one of the ordered slots.
fn slot_and_order(original: usize, flags: Flags) -> (Option<Slot>, Option<usize>) {
    let ordered = original % ORDERED_SLOTS;
    match flags {
        Flags::EVERY => (None, None),
        Flags::PARTS => (Some(slot_of(&original.to_le_bytes())), None),
        _ => (Slot::new(ordered as u16), Some(ordered)),
    }
}

fn pattern(number: usize, len: usize) -> &'static [u8] {
    &PATTERN[number % 997..][..len]
}

/// A request of a client.
struct Request {
    lane: usize,
    id: Option<RequestId>,
    /// The number of the client's request, which it keeps when it goes again.
    original: usize,
    flags: Flags,
    own: Vec<u8>,
    reply_bytes: usize,
    /// How many bytes of it were queued.
    queued: usize,
    /// Its position among the complete requests of its lane.
    completed: Option<u64>,
    executions: u32,
    got: usize,
    /// Whether a part of the reply came, and more was not asked for.
    waits: bool,
    is_forgotten: bool,
    outcome: Option<Outcome>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    NotMine,
    Failed(Executed),
}

/// The owner's side of a connection, and what is on the way.
struct Link {
    to_owner: Vec<u8>,
    to_entry: Vec<u8>,
    inbound: Inbound,
    input: Vec<u8>,
    bodies: HashMap<u32, Vec<u8>>,
    /// The replies that wait for MORE: which request's, and how many bytes were sent.
    suspended: HashMap<u32, (usize, usize)>,
    is_closed: bool,
}

/// One lane of the entry, with its owner.
struct Lane {
    outbound: Outbound,
    link: Option<Link>,
    /// A connection that the entry has lost, and the owner still reads.
    old: Option<Link>,
    input: Vec<u8>,
    has_other_map: bool,
    completed: u64,
    /// The position of the last executed request.
    executed: u64,
    /// The original numbers of the requests of each ordered slot that go again. Until then, the slot
    /// has no new one.
    again: [BTreeSet<usize>; ORDERED_SLOTS],
    /// The original number of the last executed request of each ordered slot.
    last: [usize; ORDERED_SLOTS],
}

/// What happens in a run. A kind of event that never happens is not tested.
#[derive(Debug, Clone, Copy)]
enum Event {
    Done,
    Part,
    NotMine,
    FailedUnexecuted,
    FailedMaybe,
    FailedPartly,
    Resumed,
    Resent,
    ForgotWaiting,
    ForgotOpen,
    ForgotPartly,
    Large,
    Pong,
    Full,
    Again,
    FailedRefused,
    /// The owner has executed a request of a connection that the entry had lost.
    ExecutedLate,
}

/// How often each kind of event has happened.
#[derive(Default, Debug)]
struct Seen([u64; Event::ExecutedLate as usize + 1]);

impl Seen {
    fn add(&mut self, event: Event, count: u64) {
        self.0[event as usize] += count;
    }
}

struct World {
    rng: SmallRng,
    lanes: Vec<Lane>,
    requests: Vec<Request>,
    /// The longest part of a reply that owners send.
    part_bytes_max: usize,
    /// The typical length of requests.
    request_bytes: usize,
    seen: Seen,
    is_told: bool,
}

impl Link {
    fn new() -> Self {
        Self {
            to_owner: Vec::new(),
            to_entry: Vec::new(),
            inbound: Inbound::new(REQUEST_BYTES_MAX),
            input: Vec::new(),
            bodies: HashMap::new(),
            suspended: HashMap::new(),
            is_closed: false,
        }
    }
}

impl World {
    fn new(seed: u64, is_told: bool) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let owners = rng.random_range(1..=4);
        let lanes = (0..owners).map(|_| {
            let mut outbound = Outbound::new();
            // Ids come round.
            let first = [0, u32::MAX - 8, u32::MAX / 2][rng.random_range(0..3)];
            outbound.start_after(first);
            Lane {
                outbound,
                link: Some(Link::new()),
                old: None,
                input: Vec::new(),
                has_other_map: false,
                completed: 0,
                executed: 0,
                again: Default::default(),
                last: [0; ORDERED_SLOTS],
            }
        });
        let lanes = lanes.collect();
        let is_big = rng.random_range(0..64) == 0;
        let part_bytes_max = if is_big { MESSAGE_BYTES_MAX } else { rng.random_range(1..200) };
        let request_bytes = if is_big { MESSAGE_BYTES_MAX } else { rng.random_range(8..120) };
        Self {
            rng,
            lanes,
            requests: Vec::new(),
            part_bytes_max,
            request_bytes,
            seen: Seen::default(),
            is_told,
        }
    }

    fn run(mut self) -> Seen {
        for _ in 0..self.rng.random_range(20..160) {
            let lane = self.rng.random_range(0..self.lanes.len());
            self.step(lane);
            self.check(lane);
        }
        self.heal();
        self.seen
    }

    fn tell(&self, lane: usize, step: impl FnOnce() -> String) {
        if self.is_told {
            println!("lane {lane}: {}", step());
        }
    }

    fn step(&mut self, lane: usize) {
        match self.rng.random_range(0..100) {
            0..=19 => self.request(lane),
            20..=21 => self.again(lane),
            22..=29 => self.part(lane),
            30..=44 => self.write(lane, false),
            45..=59 => self.deliver_to_owner(lane, false),
            60..=74 => self.deliver_to_entry(lane, false),
            75..=80 => self.more(lane),
            81..=85 => self.forget(lane),
            86..=87 => {
                let token = self.rng.random();
                self.lanes[lane].outbound.ping(token);
            }
            88..=89 => self.cut(lane),
            90..=92 => self.bye(lane),
            93..=95 => self.redial(lane),
            96..=97 => self.deliver_to_old(lane),
            98 => self.lanes[lane].has_other_map ^= true,
            _ => {
                for _ in 0..self.rng.random_range(2..40) {
                    self.request(lane);
                }
            }
        }
    }

    fn request(&mut self, lane: usize) {
        self.request_of(lane, self.requests.len());
    }

    /// Sends requests again that were refused, in order.
    fn again(&mut self, lane: usize) {
        for ordered in 0..ORDERED_SLOTS {
            while let Some(original) = self.lanes[lane].again[ordered].first().copied() {
                if !self.request_of(lane, original) {
                    break;
                }
                self.lanes[lane].again[ordered].pop_first();
                self.seen.add(Event::Again, 1);
            }
        }
    }

    /// Queues a new request, or `original` again. Returns whether there was room, and no order to
    /// keep.
    fn request_of(&mut self, lane: usize, original: usize) -> bool {
        let number = self.requests.len();
        let is_again = original != number;
        let len = self.rng.random_range(4..=self.request_bytes);
        let is_large = !is_again && self.rng.random_range(0..8) == 0 && self.lanes[lane].outbound.may_open();
        let (flags, len) = match self.rng.random_range(0..10) {
            _ if is_large => (Flags::PARTS, len * self.rng.random_range(1..=3) + 1),
            0 => (Flags::HEAD, len),
            1 if !is_again => (Flags::EVERY, len),
            2..=4 => (Flags::BINARY, len),
            _ => (Flags::NONE, len),
        };
        let first = if is_large { self.rng.random_range(4..len) } else { len };
        let (slot, ordered) = slot_and_order(original, flags);
        if ordered.is_some_and(|ordered| !is_again && !self.lanes[lane].again[ordered].is_empty()) {
            return false;
        }
        let outbound = &mut self.lanes[lane].outbound;
        if outbound.room() < first.min(MESSAGE_BYTES_MAX) {
            self.seen.add(Event::Full, 1);
            return false;
        }
        if slot.is_some_and(|slot| outbound.must_wait(slot)) {
            return false;
        }
        let first = first.min(MESSAGE_BYTES_MAX);
        let mut own = (number as u32).to_le_bytes().to_vec();
        own.extend_from_slice(pattern(number, len - 4));
        let reply_bytes = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(0..=4 * self.part_bytes_max).min(REQUEST_BYTES_MAX),
            _ => self.rng.random_range(0..40),
        };
        let to = Waiter { slot: lane as u32, tag: !lane as u32, place: number as u32, part: 7 };
        let at = self.rng.random_range(0..=first);
        let id = outbound.request(to, slot, flags, &[&own[..at], &own[at..first]]);
        let completed = (!is_large).then(|| self.lanes[lane].complete());
        self.requests.push(Request {
            lane,
            id: Some(id),
            original,
            flags,
            own,
            reply_bytes,
            queued: first,
            completed,
            executions: 0,
            got: 0,
            waits: false,
            is_forgotten: false,
            outcome: None,
        });
        self.tell(lane, || format!("request {number} (first {original}) {flags:?} {len} bytes"));
        true
    }

    /// Queues a part of an open request.
    fn part(&mut self, lane: usize) {
        let is_open = |request: &Request| {
            request.lane == lane && request.queued < request.own.len() && request.is_pending()
        };
        let Some(number) = self.requests.iter().position(is_open) else { return };
        let request = &mut self.requests[number];
        let rest = &request.own[request.queued..];
        let len = self.rng.random_range(1..=rest.len().min(MESSAGE_BYTES_MAX));
        let (at, lane) = (lane, &mut self.lanes[lane]);
        if lane.outbound.room() < len {
            return;
        }
        let last = len == rest.len();
        lane.outbound.part(request.id.unwrap(), &rest[..len], last);
        request.queued += len;
        if last {
            request.completed = Some(lane.complete());
            self.seen.add(Event::Large, 1);
        }
        self.tell(at, || format!("part of {number}, {len} bytes, last {last}"));
    }

    /// The socket takes some of the unsent bytes, or all.
    fn write(&mut self, lane: usize, all: bool) {
        let Lane { outbound, link: Some(link), .. } = &mut self.lanes[lane] else { return };
        let (first, second) = outbound.unsent();
        let unsent = first.len() + second.len();
        let taken = if all { unsent } else { some(&mut self.rng, unsent) };
        link.to_owner.extend_from_slice(&first[..taken.min(first.len())]);
        link.to_owner.extend_from_slice(&second[..taken.saturating_sub(first.len())]);
        outbound.sent(taken);
    }

    fn deliver_to_owner(&mut self, lane: usize, all: bool) {
        let Some(mut link) = self.lanes[lane].link.take() else { return };
        let arrived = if all { link.to_owner.len() } else { some(&mut self.rng, link.to_owner.len()) };
        self.arrive(lane, &mut link, arrived);
        self.lanes[lane].link = Some(link);
    }

    /// The owner reads bytes of a connection that the entry has lost.
    fn deliver_to_old(&mut self, lane: usize) {
        let Some(mut link) = self.lanes[lane].old.take() else { return };
        let arrived = some(&mut self.rng, link.to_owner.len());
        let before = self.lanes[lane].executed;
        self.arrive(lane, &mut link, arrived);
        self.seen.add(Event::ExecutedLate, u64::from(self.lanes[lane].executed > before));
        self.lanes[lane].old = Some(link);
    }

    /// The owner reads and executes.
    fn arrive(&mut self, lane: usize, link: &mut Link, arrived: usize) {
        if link.is_closed {
            return;
        }
        link.input.extend(link.to_owner.drain(..arrived));
        let input = std::mem::take(&mut link.input);
        let mut rest = &input[..];
        while let Some((asked, used)) = link.inbound.next(rest).unwrap_or_else(|error| panic!("{error}")) {
            rest = &rest[used..];
            match asked {
                Asked::Request { id, slot, flags, bytes } if flags.has(Flags::PARTS) => {
                    assert!(slot.is_some());
                    let is_refused = self.lanes[lane].has_other_map;
                    link.inbound.decided(slot.expect("one slot"), flags, is_refused);
                    assert!(link.bodies.insert(id, bytes.to_vec()).is_none(), "an id in use");
                }
                Asked::Request { id, slot, flags, bytes } => {
                    self.execute(lane, link, id, slot, flags, bytes);
                }
                Asked::Part { id, bytes, last } => {
                    let body = link.bodies.get_mut(&id).expect("open");
                    body.extend_from_slice(bytes);
                    if last {
                        let body = link.bodies.remove(&id).expect("open");
                        self.execute(lane, link, id, None, Flags::PARTS, &body);
                    }
                }
                Asked::More(id) => self.send_part(link, id),
                Asked::Forget(id) => {
                    if link.bodies.remove(&id).is_some() || link.suspended.remove(&id).is_some() {
                        let at = wire::begin(&mut link.to_entry);
                        wire::patch(&mut link.to_entry, at, Kind::Done, id, 0);
                    }
                }
                Asked::Ping(token) => {
                    let report = Report { items: token ^ 1, uptime_ms: 5, ..Report::default() };
                    wire::push_pong(&mut link.to_entry, token, &report);
                }
                Asked::Bye => assert!(rest.is_empty()),
            }
        }
        assert!(rest.len() < HEAD_BYTES + MESSAGE_BYTES_MAX);
        link.input = rest.to_vec();
    }

    fn execute(
        &mut self,
        lane: usize,
        link: &mut Link,
        id: u32,
        slot: Option<Slot>,
        flags: Flags,
        bytes: &[u8],
    ) {
        let number = u32::from_le_bytes(*bytes.first_chunk().expect("a number")) as usize;
        let request = &mut self.requests[number];
        assert_eq!(request.lane, lane);
        assert!(request.own == bytes, "the own bytes of request {number}");
        assert!(flags == request.flags || flags == request.flags.with(Flags::AGAIN));
        let (of_request, ordered) = slot_and_order(request.original, request.flags);
        assert!(request.flags == Flags::PARTS || slot == of_request);
        let completed = request.completed.expect("a request was executed before it was complete");
        let last = std::mem::replace(&mut self.lanes[lane].executed, completed);
        assert!(last < completed, "request {number} was executed after a later one, or again");
        let refuses = slot.is_some_and(|slot| link.inbound.refuses(slot, flags));
        let is_refused = refuses || self.lanes[lane].has_other_map;
        if let Some(slot) = of_request {
            link.inbound.decided(slot, flags, is_refused);
        }
        if is_refused {
            return wire::push_not_mine(&mut link.to_entry, id, 9);
        }
        // A connection that the entry has lost is behind.
        if let (Some(ordered), None) = (ordered, request.outcome) {
            let last = &mut self.lanes[lane].last[ordered];
            assert!(*last <= request.original, "{} was executed after {last}", request.original);
            *last = request.original;
        }
        request.executions += 1;
        assert_eq!(request.executions, 1, "request {number}");
        let unexecuted =
            [Outcome::NotMine, Outcome::Failed(Executed::No), Outcome::Failed(Executed::Refused)];
        assert!(request.outcome.is_none_or(|outcome| !unexecuted.contains(&outcome)));
        assert!(link.suspended.insert(id, (number, 0)).is_none(), "an id in use");
        self.tell(lane, || format!("executes {number}"));
        self.send_part(link, id);
        // An owner that keeps many replies already does not wait.
        if self.rng.random_range(0..8) == 0 {
            while link.suspended.contains_key(&id) {
                self.send_part(link, id);
            }
        }
    }

    /// Sends the next part of a reply.
    fn send_part(&mut self, link: &mut Link, id: u32) {
        let Some((number, sent)) = link.suspended.get_mut(&id) else { return };
        let reply = pattern(*number, self.requests[*number].reply_bytes);
        let rest = &reply[*sent..];
        let part = &rest[..rest.len().min(self.part_bytes_max)];
        let last = part.len() == rest.len();
        *sent += part.len();
        let at = wire::begin(&mut link.to_entry);
        link.to_entry.extend_from_slice(part);
        let kind = if last { Kind::Done } else { Kind::ReplyPart };
        wire::patch(&mut link.to_entry, at, kind, id, part.len());
        if last {
            link.suspended.remove(&id);
        }
    }

    fn deliver_to_entry(&mut self, lane: usize, all: bool) {
        let Lane { outbound, link: Some(link), input, again, .. } = &mut self.lanes[lane] else { return };
        let arrived = if all { link.to_entry.len() } else { some(&mut self.rng, link.to_entry.len()) };
        input.extend(link.to_entry.drain(..arrived));
        let (requests, seen) = (&mut self.requests, &mut self.seen);
        let received = outbound.received(input, &mut |to, id, answer| {
            take_answer(requests, seen, lane, again, to, id, answer);
        });
        input.drain(..received.unwrap_or_else(|error| panic!("{error}")));
        assert!(input.len() < HEAD_BYTES + MESSAGE_BYTES_MAX);
        if let Some((token, report)) = outbound.take_pong() {
            assert_eq!(report, Report { items: token ^ 1, uptime_ms: 5, ..Report::default() });
            seen.add(Event::Pong, 1);
        }
        if outbound.is_ended() {
            assert_eq!(outbound.room(), 0);
            outbound.resume(&mut |failed| {
                let cannot = matches!(failed.executed, Executed::Partly | Executed::Refused);
                assert!(cannot || failed.flags == Flags::PARTS, "it can be resent");
                take_failed(requests, seen, lane, again, failed);
            });
            seen.add(Event::Resumed, 1);
            seen.add(Event::Resent, outbound.in_flight() as u64);
            input.clear();
            self.lanes[lane].link = None;
            self.tell(lane, || "resumes".into());
        }
    }

    fn more(&mut self, lane: usize) {
        let waits = |request: &Request| request.lane == lane && request.waits && request.is_pending();
        let Some(number) = self.requests.iter().position(waits) else { return };
        self.requests[number].waits = false;
        let id = self.requests[number].id.unwrap();
        let outbound = &mut self.lanes[lane].outbound;
        let before = outbound.held().0;
        outbound.more(id);
        outbound.more(id);
        assert_eq!(outbound.held().0, before + HEAD_BYTES, "MORE is said once");
    }

    /// The client of some request goes away, also of one that has its outcome.
    fn forget(&mut self, lane: usize) {
        if self.requests.is_empty() {
            return;
        }
        let number = self.rng.random_range(0..self.requests.len());
        let request = &mut self.requests[number];
        if request.lane != lane {
            return;
        }
        if request.is_pending() {
            let event = match request {
                Request { got: 1.., .. } => Event::ForgotPartly,
                Request { completed: None, .. } => Event::ForgotOpen,
                _ => Event::ForgotWaiting,
            };
            self.seen.add(event, 1);
            request.is_forgotten = true;
        }
        let outbound = &mut self.lanes[lane].outbound;
        let (before, is_idle) = (outbound.held(), outbound.in_flight() == 0);
        outbound.forget(request.id.unwrap());
        if is_idle || matches!(request.outcome, Some(Outcome::Done | Outcome::NotMine)) {
            assert_eq!(outbound.held(), before, "request {number} is over");
        }
        let after = outbound.held();
        outbound.forget(request.id.unwrap());
        assert_eq!(outbound.held(), after, "FORGET is said once");
        self.tell(lane, || format!("forgets {number}"));
    }

    /// The entry loses the connection; the owner may read on.
    fn cut(&mut self, lane: usize) {
        let Some(link) = self.lanes[lane].link.take() else { return };
        self.tell(lane, || "is cut".into());
        let Lane { outbound, old, input, again, .. } = &mut self.lanes[lane];
        *old = Some(link);
        input.clear();
        let (requests, seen) = (&mut self.requests, &mut self.seen);
        outbound.lost(&mut |failed| take_failed(requests, seen, lane, again, failed));
        assert_eq!(outbound.in_flight(), 0);
        assert_eq!(outbound.room(), MESSAGE_BYTES_MAX);
    }

    /// The owner executes what it has received, and ends.
    fn bye(&mut self, lane: usize) {
        let Some(mut link) = self.lanes[lane].link.take() else { return };
        if !link.is_closed {
            self.arrive(lane, &mut link, 0);
            wire::push_bye(&mut link.to_entry, link.inbound.last());
            link.is_closed = true;
            self.tell(lane, || "BYE".into());
        }
        self.lanes[lane].link = Some(link);
    }

    /// Connects again, which ends the connection before.
    fn redial(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        if lane.link.is_none() {
            lane.old = None;
            lane.link = Some(Link::new());
        }
    }

    fn check(&self, lane: usize) {
        let outbound = &self.lanes[lane].outbound;
        let (log, waiting) = outbound.held();
        let control = HEAD_BYTES * (2 * self.requests.len() + 2);
        assert!(log <= LOG_BYTES_MAX + control, "{log} bytes are held");
        assert!(waiting <= WAITING_MAX);
        assert!(outbound.room() <= MESSAGE_BYTES_MAX);
    }

    /// Without further faults, each request gets its outcome, and the lanes forget them all.
    fn heal(&mut self) {
        for lane in 0..self.lanes.len() {
            self.tell(lane, || "heals".into());
            self.lanes[lane].has_other_map = false;
            let pongs = self.seen.0[Event::Pong as usize];
            for round in 0.. {
                assert!(round < 10_000, "no progress");
                self.redial(lane);
                self.again(lane);
                self.lanes[lane].outbound.ping(round);
                while self.requests.iter().any(|request| {
                    request.lane == lane && request.queued < request.own.len() && request.is_pending()
                }) && self.lanes[lane].outbound.room() >= MESSAGE_BYTES_MAX
                {
                    self.part(lane);
                }
                for number in 0..self.requests.len() {
                    let request = &self.requests[number];
                    if request.lane == lane && request.waits && request.is_pending() {
                        self.lanes[lane].outbound.more(request.id.unwrap());
                        self.requests[number].waits = false;
                    }
                }
                self.write(lane, true);
                self.deliver_to_owner(lane, true);
                self.deliver_to_entry(lane, true);
                let is_over = self.lanes[lane].again.iter().all(BTreeSet::is_empty);
                if is_over && self.lanes[lane].outbound.in_flight() == 0 && self.lanes[lane].link.is_some() {
                    break;
                }
            }
            assert!(self.seen.0[Event::Pong as usize] > pongs, "a PING was not answered");
            self.lanes[lane].outbound.bye();
            self.write(lane, true);
            self.deliver_to_owner(lane, true);
            let Lane { outbound, link, .. } = &self.lanes[lane];
            assert!(link.as_ref().is_some_and(|link| link.is_closed || link.inbound.is_ended()));
            assert_eq!(outbound.held(), (0, 0), "all was sent and answered");
        }
        for (number, request) in self.requests.iter().enumerate() {
            assert!(request.executions <= 1);
            match request.outcome {
                Some(Outcome::Done | Outcome::Failed(Executed::Partly)) => assert_eq!(request.executions, 1),
                Some(Outcome::NotMine | Outcome::Failed(Executed::No | Executed::Refused)) => {
                    assert_eq!(request.executions, 0, "request {number} failed as not executed");
                }
                Some(Outcome::Failed(Executed::Maybe)) => {}
                None => assert!(request.is_forgotten, "request {number} has no outcome"),
            }
        }
    }
}

impl Request {
    /// Returns whether the client waits for more of the reply.
    fn is_pending(&self) -> bool {
        self.outcome.is_none() && !self.is_forgotten
    }

    fn finish(&mut self, outcome: Outcome) {
        assert!(self.is_pending(), "{outcome:?} after {:?}, forgotten: {}", self.outcome, self.is_forgotten);
        self.outcome = Some(outcome);
    }
}

impl Lane {
    fn complete(&mut self) -> u64 {
        self.completed += 1;
        self.completed
    }
}

/// Returns a number up to `len`: often all.
fn some(rng: &mut SmallRng, len: usize) -> usize {
    if rng.random_range(0..3) == 0 { len } else { rng.random_range(0..=len) }
}

fn take_answer(
    requests: &mut [Request],
    seen: &mut Seen,
    lane: usize,
    again: &mut [BTreeSet<usize>; ORDERED_SLOTS],
    to: Waiter,
    id: RequestId,
    answer: Answer<'_>,
) {
    let request = &mut requests[to.place as usize];
    assert_eq!((to.slot, to.tag, to.part), (lane as u32, !lane as u32, 7));
    assert_eq!(request.id, Some(id));
    match answer {
        Answer::Bytes { bytes, last } => {
            assert!(request.is_pending(), "an answer after the outcome");
            let reply = pattern(to.place as usize, request.reply_bytes);
            assert!(reply[request.got..].starts_with(bytes), "the bytes of the reply, in order");
            request.got += bytes.len();
            request.waits = !last;
            seen.add(Event::Part, u64::from(!last));
            if last {
                assert_eq!(request.got, request.reply_bytes);
                request.finish(Outcome::Done);
                seen.add(Event::Done, 1);
            }
        }
        Answer::NotMine { map_version, flags, own, .. } => {
            assert_eq!((map_version, flags), (9, request.flags));
            is_own(request, own);
            request.finish(Outcome::NotMine);
            goes_again(request, again);
            seen.add(Event::NotMine, 1);
        }
    }
}

fn goes_again(request: &Request, again: &mut [BTreeSet<usize>; ORDERED_SLOTS]) {
    if let (_, Some(ordered)) = slot_and_order(request.original, request.flags) {
        assert!(again[ordered].insert(request.original), "it goes again already");
    }
}

fn take_failed(
    requests: &mut [Request],
    seen: &mut Seen,
    lane: usize,
    again: &mut [BTreeSet<usize>; ORDERED_SLOTS],
    failed: Failed<'_>,
) {
    let request = &mut requests[failed.to.place as usize];
    assert_eq!((request.lane, request.id, request.flags), (lane, Some(failed.id), failed.flags));
    let event = match failed.executed {
        Executed::No => Event::FailedUnexecuted,
        Executed::Maybe => Event::FailedMaybe,
        Executed::Partly => Event::FailedPartly,
        Executed::Refused => Event::FailedRefused,
    };
    seen.add(event, 1);
    if failed.executed == Executed::Partly {
        assert!(failed.own.is_empty() && request.got > 0);
    } else {
        assert_eq!(request.got, 0);
        is_own(request, failed.own);
    }
    if failed.executed == Executed::Refused {
        goes_again(request, again);
    }
    request.finish(Outcome::Failed(failed.executed));
}

/// Checks the own bytes with which a request fails: of one with parts, the head.
fn is_own(request: &Request, own: &[u8]) {
    if request.flags != Flags::PARTS {
        assert!(own == request.own);
        return;
    }
    let (last, before) = own.split_last().expect("a head");
    assert!(request.own.starts_with(own) && !before.contains(&b'\n'), "to the end of its line");
    assert!(*last == b'\n' || !request.own[..4].contains(&b'\n'));
}

#[test]
fn each_request_has_one_outcome_and_is_executed_once_in_order() {
    if let Ok(seed) = std::env::var("RING_SEED") {
        World::new(seed.parse().expect("RING_SEED must be a number"), true).run();
        return;
    }
    let times: u64 = std::env::var("CACHED_TEST_TIMES").map_or(1, |times| times.parse().expect("a number"));
    let mut seen = Seen::default().0;
    for seed in 0..SEEDS * times {
        let ran = std::panic::catch_unwind(|| World::new(seed, false).run());
        let ran = ran.unwrap_or_else(|_| panic!("RING_SEED={seed} repeats this run"));
        seen.iter_mut().zip(ran.0).for_each(|(all, count)| *all += count);
    }
    assert!(seen.iter().all(|count| *count > SEEDS / 100), "something hardly happens: {seen:?}");
}
