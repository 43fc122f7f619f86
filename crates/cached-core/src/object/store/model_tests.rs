//! The scheduler with a simulated store, in simulated time: checks the service that namespaces get.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use blocker::Timestamp;

use super::classes::{Class, Lane, Lanes};
use super::scheduler::{Ask, Granted, Number, Scheduler};
use super::terms::{Cost, StoreTerms};

const SECOND: u64 = 1_000_000_000;
const MILLI: u64 = 1_000_000;

/// A source of requests of one kind, which keeps `backlog` requests waiting while it is on.
#[derive(Clone, Copy)]
struct Source {
    ask: Ask,
    backlog: u32,
    from: u64,
    to: u64,
}

/// A request that the store has completed.
#[derive(Clone, Copy)]
struct Done {
    ask: Ask,
    granted_at: u64,
}

struct World {
    now: u64,
    scheduler: Scheduler,
    lanes: Lanes,
    /// The time when each of the store's places becomes free.
    places: BinaryHeap<Reverse<u64>>,
    /// The service time of a request.
    service: u64,
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    under_way: BTreeMap<u64, (Granted, u64)>,
    sources: Vec<(Source, u32)>,
    waiting: BTreeMap<u64, usize>,
    done: Vec<Done>,
}

fn ask(namespace: Number, lane: Lane, class: Class, bytes: u64) -> Ask {
    Ask { namespace, lane, class, bytes }
}

fn terms() -> StoreTerms {
    StoreTerms::default()
}

impl World {
    /// Returns a store that serves `at_once` requests at a time.
    fn new(at_once: usize, service: u64, terms: &[(Number, StoreTerms)]) -> Self {
        let mut scheduler = Scheduler::new(192, Timestamp(0));
        scheduler.set_terms(terms, Timestamp(0));
        Self {
            now: 0,
            scheduler,
            lanes: Lanes::new(128, 64),
            places: (0..at_once).map(|_| Reverse(0)).collect(),
            service,
            ends: BinaryHeap::new(),
            under_way: BTreeMap::new(),
            sources: Vec::new(),
            waiting: BTreeMap::new(),
            done: Vec::new(),
        }
    }

    fn source(&mut self, ask: Ask, backlog: u32, from: u64, to: u64) {
        self.sources.push((Source { ask, backlog, from, to }, 0));
    }

    /// Simulates requests until `end`.
    fn run(&mut self, end: u64) {
        while self.now < end {
            for (index, (source, waiting)) in self.sources.iter_mut().enumerate() {
                while (source.from..source.to).contains(&self.now) && *waiting < source.backlog {
                    let id = self.scheduler.enqueue(source.ask, Timestamp(self.now));
                    self.waiting.insert(id, index);
                    *waiting += 1;
                }
            }
            let due = loop {
                match self.scheduler.next(&self.lanes, Timestamp(self.now)) {
                    Ok(granted) => self.begin(granted),
                    Err(due) => break due,
                }
            };
            let next_source = self.sources.iter().flat_map(|(source, _)| [source.from, source.to]);
            let next = next_source.filter(|at| *at > self.now).min().unwrap_or(end).min(end);
            let next = due.map_or(next, |due| next.min(due.0));
            let next = self.ends.peek().map_or(next, |Reverse((at, _))| next.min(*at));
            assert!(next > self.now, "time must go on");
            self.now = next;
            while let Some(Reverse((at, id))) =
                self.ends.peek().copied().filter(|Reverse((at, _))| *at <= self.now)
            {
                self.ends.pop();
                let (granted, begun) = self.under_way.remove(&id).expect("it is under way");
                let under_way = self.lanes.under_way();
                self.lanes.give_back(granted.ask.lane);
                let (latency, now) = (Duration::from_nanos(at - begun), Timestamp(self.now));
                let Ask { lane, bytes, .. } = granted.ask;
                self.scheduler.width.note_answer((lane, bytes), latency, under_way, now);
            }
        }
        self.scheduler.validate().unwrap();
    }

    fn begin(&mut self, granted: Granted) {
        let index = self.waiting.remove(&granted.id).expect("it waits");
        self.sources[index].1 -= 1;
        let Reverse(free) = self.places.pop().expect("a place");
        let end = free.max(self.now) + self.service;
        self.places.push(Reverse(end));
        self.ends.push(Reverse((end, granted.id)));
        self.under_way.insert(granted.id, (granted, self.now));
        self.done.push(Done { ask: granted.ask, granted_at: self.now });
    }

    /// Returns the units of cost granted between two times to requests for which `of` returns true.
    fn units(&self, from: u64, to: u64, of: impl Fn(&Ask) -> bool) -> f64 {
        let within = self.done.iter().filter(|done| (from..to).contains(&done.granted_at) && of(&done.ask));
        within.map(|done| Cost::of(done.ask.bytes).units).sum()
    }
}

fn reserved(rate: u64) -> StoreTerms {
    StoreTerms { requests_per_second_min: Some(rate), ..terms() }
}

#[test]
fn eight_namespaces_get_what_is_reserved_beside_one_with_all_the_weight() {
    let rates = [100, 200, 400, 800, 1200, 1600, 2000, 2400];
    let mut all: Vec<(Number, StoreTerms)> = (1..).zip(rates.map(reserved)).collect();
    all.push((9, StoreTerms { weight: 10_000, ..terms() }));
    // 10 000 requests a second, 10 625 units.
    let mut world = World::new(10, MILLI, &all);
    for (number, _) in &all {
        let lane = if number % 2 == 0 { Lane::Load } else { Lane::Change };
        world.source(ask(*number, lane, Class::Demand, 4096), 32, 0, u64::MAX);
    }
    world.run(10 * SECOND);
    for (number, rate) in (1..).zip(rates) {
        let got = world.units(0, 10 * SECOND, |ask| ask.namespace == number) / 10.0;
        assert!(got >= rate as f64 * 0.95, "namespace {number}: {got} of {rate}");
        assert!(got <= rate as f64 * 1.05, "namespace {number} has no other share: {got} of {rate}");
    }
    let total = world.units(0, 10 * SECOND, |_| true) / 10.0;
    assert!(total > 10_000.0, "what is not reserved is lent: {total}");
}

#[test]
fn what_is_left_goes_by_weight_and_a_reservation_is_part_of_a_share() {
    let weight = |weight| StoreTerms { weight, ..terms() };
    let all = [(1, weight(3)), (2, weight(6)), (3, StoreTerms { weight: 3, ..reserved(1000) })];
    let mut world = World::new(10, MILLI, &all);
    for number in 1..=3 {
        world.source(ask(number, Lane::Load, Class::Demand, 0), 16, 0, u64::MAX);
    }
    world.run(10 * SECOND);
    for (number, share) in [(1, 0.25), (2, 0.5), (3, 0.25)] {
        let got = world.units(0, 10 * SECOND, |ask| ask.namespace == number);
        let total = world.units(0, 10 * SECOND, |_| true);
        assert!((got / total - share).abs() < 0.02, "namespace {number}: {} of {share}", got / total);
    }
}

#[test]
fn limits_are_never_exceeded_by_more_than_the_burst() {
    let limited = StoreTerms {
        requests_per_second_max: Some(700),
        bytes_per_second_max: Some(20 << 20),
        burst: Duration::from_millis(250),
        ..terms()
    };
    let mut world = World::new(16, MILLI, &[(1, limited), (2, terms())]);
    // On and off, large and small, in all lanes and classes.
    for turn in 0..20_u64 {
        let (from, to) = (turn * SECOND / 2, turn * SECOND / 2 + (turn % 4 + 1) * SECOND / 10);
        let bytes = [0, 4096, 65_536, 1 << 20][turn as usize % 4];
        let lane = Lane::ALL[turn as usize % 3];
        world.source(ask(1, lane, Class::ALL[turn as usize % 4], bytes), 8, from, to);
    }
    world.source(ask(2, Lane::Load, Class::Demand, 4096), 4, 0, u64::MAX);
    world.run(10 * SECOND);
    // A token bucket that drains at the limit and holds a burst and one request.
    let (mut requests, mut bytes, mut before) = (0.0, 0.0, 0);
    let mut most = (0.0_f64, 0.0_f64);
    for done in world.done.iter().filter(|done| done.ask.namespace == 1) {
        let passed = (done.granted_at - before) as f64 / SECOND as f64;
        before = done.granted_at;
        requests = (requests - 700.0 * passed).max(0.0) + 1.0;
        bytes = (bytes - f64::from(20 << 20) * passed).max(0.0) + done.ask.bytes as f64;
        most = (most.0.max(requests), most.1.max(bytes));
        assert!(requests <= 700.0 * 0.25 + 1.01, "{requests} requests at {before}");
        assert!(bytes <= f64::from(20 << 20) * 0.25 + f64::from(1 << 20) + 1.0, "{bytes} bytes at {before}");
    }
    assert!(most.0 > 100.0 && most.1 > f64::from(4 << 20), "the burst was used: {most:?}");
    let others = world.units(0, 10 * SECOND, |ask| ask.namespace == 2);
    assert!(others > 30_000.0, "none waits for the namespace at its limit: {others}");
}

#[test]
fn a_limit_is_reached_and_not_only_kept() {
    let limited = StoreTerms { requests_per_second_max: Some(500), ..terms() };
    let mut world = World::new(16, MILLI, &[(1, limited)]);
    world.source(ask(1, Lane::Flush, Class::Age, 4096), 4, 0, u64::MAX);
    world.run(10 * SECOND);
    let requests = world.done.len();
    assert!((5000..=5000 + 50 + 1).contains(&requests), "{requests}");
}

#[test]
fn capacity_that_was_lent_is_back_within_a_second() {
    let all = [(1, reserved(8000)), (2, StoreTerms { weight: 100, ..terms() })];
    let mut world = World::new(10, MILLI, &all);
    world.source(ask(1, Lane::Load, Class::Demand, 0), 32, 5 * SECOND, u64::MAX);
    world.source(ask(2, Lane::Load, Class::Demand, 0), 200, 0, u64::MAX);
    world.run(7 * SECOND);
    let lent = world.units(SECOND, 5 * SECOND, |ask| ask.namespace == 2) / 4.0;
    assert!(lent > 9500.0, "all is lent: {lent}");
    let back = world.units(5 * SECOND, 6 * SECOND, |ask| ask.namespace == 1);
    assert!(back >= 8000.0 * 0.95, "{back}");
}

#[test]
fn an_idle_hour_saves_nothing_up_beyond_the_burst() {
    let all = [(1, reserved(1000)), (2, reserved(1000)), (3, StoreTerms { weight: 2, ..terms() })];
    let hour = 3600 * SECOND;
    let mut world = World::new(1, MILLI, &all);
    world.source(ask(2, Lane::Load, Class::Demand, 0), 1, 0, SECOND);
    world.source(ask(1, Lane::Load, Class::Demand, 0), 8, hour, u64::MAX);
    world.source(ask(2, Lane::Load, Class::Demand, 0), 8, hour, u64::MAX);
    world.run(hour + SECOND);
    let got = |number| world.units(hour, hour + SECOND, |ask: &Ask| ask.namespace == number);
    assert!((got(1) - got(2)).abs() <= 120.0, "{} and {}", got(1), got(2));
}

#[test]
fn nothing_starves_whatever_is_reserved_and_however_urgent_others_are() {
    // Twice the store's capacity is reserved.
    let all = [(1, reserved(2000)), (2, StoreTerms { weight: 2, ..terms() }), (3, terms())];
    let mut world = World::new(1, MILLI, &all);
    for number in 1..=3 {
        for class in Class::ALL {
            world.source(ask(number, Lane::Change, class, 4096), 8, 0, u64::MAX);
        }
    }
    let end = 200 * SECOND;
    world.run(end);
    let total = world.units(0, end, |_| true);
    for number in 1..=3 {
        let own = world.units(0, end, |ask| ask.namespace == number);
        assert!(own > 0.0, "namespace {number}");
        let age = world.units(0, end, |ask| ask.namespace == number && ask.class == Class::Age);
        assert!(age >= own * 0.04, "flushes of {number} have {age} of {own}");
        for class in Class::ALL {
            let got = world.units(0, end, |ask| ask.namespace == number && ask.class == class);
            assert!(got > 0.0, "{class:?} of {number}");
        }
    }
    let age = world.units(0, end, |ask| ask.class == Class::Age);
    assert!(age >= total * 0.045, "{age} of {total}");
}

#[test]
fn flushes_by_age_get_their_part_and_callers_the_rest() {
    let mut world = World::new(1, MILLI, &[(1, StoreTerms { weight: 2, ..terms() })]);
    world.source(ask(1, Lane::Load, Class::Demand, 4096), 16, 0, u64::MAX);
    world.source(ask(2, Lane::Flush, Class::Age, 65_536), 16, 0, u64::MAX);
    world.run(20 * SECOND);
    let total = world.units(0, 20 * SECOND, |_| true);
    let age = world.units(0, 20 * SECOND, |ask| ask.class == Class::Age) / total;
    assert!((0.045..0.12).contains(&age), "{age}");
}

#[test]
fn the_most_urgent_request_of_a_namespace_is_the_first() {
    let mut world = World::new(1, MILLI, &[(1, StoreTerms { weight: 2, ..terms() })]);
    world.scheduler.width.set_max(1);
    let lane = Lane::Change;
    for class in [Class::Idle, Class::Age, Class::Demand, Class::Urgent] {
        world.source(ask(1, lane, class, 0), 1, 0, 1);
    }
    world.run(SECOND);
    let order: Vec<Class> = world.done.iter().map(|done| done.ask.class).collect();
    assert_eq!(order, Class::ALL);
}

#[test]
fn without_terms_requests_go_first_come_first_served() {
    let mut scheduler = Scheduler::new(2, Timestamp(0));
    let lanes = Lanes::new(1, 1);
    let now = Timestamp(0);
    let asks = [
        ask(1, Lane::Load, Class::Idle, 9),
        ask(2, Lane::Load, Class::Urgent, 9),
        ask(1, Lane::Flush, Class::Age, 9),
        ask(3, Lane::Load, Class::Demand, 9),
    ];
    let ids: Vec<u64> = asks.iter().map(|ask| scheduler.enqueue(*ask, now)).collect();
    let mut next = || scheduler.next(&lanes, now).map(|granted| granted.id);
    assert_eq!((next(), next(), next()), (Ok(ids[0]), Ok(ids[2]), Err(None)));
    lanes.give_back(Lane::Load);
    assert_eq!((next(), next()), (Ok(ids[1]), Err(None)));
    lanes.give_back(Lane::Load);
    assert_eq!((next(), next()), (Ok(ids[3]), Err(None)));
}

#[test]
fn what_was_not_sent_and_not_carried_is_taken_back() {
    let limited = StoreTerms { bytes_per_second_max: Some(1 << 20), burst: Duration::ZERO, ..terms() };
    let mut scheduler = Scheduler::new(8, Timestamp(0));
    scheduler.set_terms(&[(1, limited)], Timestamp(0));
    let lanes = Lanes::new(8, 8);
    let asked = ask(1, Lane::Load, Class::Demand, 1 << 20);
    let next = |scheduler: &mut Scheduler, at| {
        scheduler.enqueue(asked, Timestamp(at));
        scheduler.next(&lanes, Timestamp(at))
    };
    let first = next(&mut scheduler, 0).unwrap();
    assert_eq!(next(&mut scheduler, 0), Err(Some(Timestamp(SECOND))), "all of a second is used");
    scheduler.adjust(&first, 1 << 19);
    assert_eq!(scheduler.next(&lanes, Timestamp(0)), Err(Some(Timestamp(SECOND / 2))));
    let second = scheduler.next(&lanes, Timestamp(SECOND / 2)).unwrap();
    assert_eq!(next(&mut scheduler, SECOND / 2), Err(Some(Timestamp(SECOND * 3 / 2))));
    scheduler.refund(&second);
    assert!(scheduler.next(&lanes, Timestamp(SECOND / 2)).is_ok());
}

#[test]
fn other_terms_void_what_is_owed_under_the_former_ones() {
    let slow = StoreTerms { bytes_per_second_max: Some(4096), ..terms() };
    let mut scheduler = Scheduler::new(8, Timestamp(0));
    scheduler.set_terms(&[(1, slow)], Timestamp(0));
    let lanes = Lanes::new(8, 8);
    for _ in 0..2 {
        scheduler.enqueue(ask(1, Lane::Load, Class::Demand, 16 << 20), Timestamp(0));
    }
    assert!(scheduler.next(&lanes, Timestamp(0)).is_ok());
    assert!(matches!(scheduler.next(&lanes, Timestamp(0)), Err(Some(due)) if due.0 > 4000 * SECOND));
    let faster = StoreTerms { bytes_per_second_max: Some(1 << 30), ..terms() };
    scheduler.set_terms(&[(1, faster)], Timestamp(SECOND));
    assert!(scheduler.next(&lanes, Timestamp(SECOND)).is_ok());
    scheduler.set_terms(&[], Timestamp(SECOND));
    assert!(!scheduler.is_scheduling());
}
