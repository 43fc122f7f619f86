//! A seeded simulation of both elections: hosts with clocks of their own that drift by up to a
//! tenth, delays, lost replies, writes that take effect late, pauses, crashes and returns. Each
//! seed determines one run; after the faults a leader must be elected. `ELECTION_SEED=n` replays
//! one run and prints its events, `CACHED_TEST_TIMES=n` multiplies the number of seeds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use blocker::{Epoch, Timestamp, WriterId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::subject_tests::{ByDocument, Store, Subject};
use super::*;

const SEEDS: u64 = 5_000;
const MS: u64 = 1_000_000;
const LEASE_MS: u64 = 3_000;
/// The faults end at this time, in ms.
const CALM_MS: u64 = 20_000;
/// The run ends at this time, in ms.
const END_MS: u64 = CALM_MS + 5 * LEASE_MS;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Wake(usize, u64),
    Step(usize, u64),
    Reply(usize, u64),
    Lost(usize, u64),
    Stray(usize),
    Claim(usize, u64, u64),
    Claimed(usize, u64, u64),
    Change(u64),
    Send(usize),
    Fault(usize),
    Return(usize),
}

struct Host<S: Subject> {
    machine: Option<S>,
    /// The time that the clock shows at time 0, and its rate in thousandths.
    clock: u64,
    rate: u64,
    starts: u64,
    /// The number of the last scheduled wake-up; earlier wake-ups are void.
    wakes: u64,
    paused_until: u64,
    flight: Option<Flight<S>>,
    /// The epoch with which the host serves.
    leads: Option<Epoch>,
}

struct Flight<S: Subject> {
    id: u64,
    op: S::Op,
    steps: usize,
    began: Timestamp,
    reply: Option<S::Reply>,
}

struct World<S: Subject> {
    rng: SmallRng,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    events: u64,
    place: S::Place,
    store: Store,
    hosts: Vec<Host<S>>,
    strays: Vec<Option<(usize, S::Op, Timestamp)>>,
    outcomes: Vec<Claimed>,
    led: BTreeMap<Epoch, WriterId>,
    /// The epochs of leaderships that have ended.
    ended: BTreeSet<Epoch>,
    /// Breaks a rule of each machine.
    break_rule: fn(&mut S),
    problem: Option<String>,
    traces: bool,
}

fn writer(node: usize, starts: u64) -> WriterId {
    WriterId((node as u128) << 64 | u128::from(starts))
}

impl<S: Subject> World<S> {
    fn new(seed: u64, break_rule: fn(&mut S), traces: bool) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let nodes = rng.random_range(2..=4);
        let hosts = (0..nodes).map(|_| Host {
            machine: None,
            clock: rng.random_range(1..1 << 40),
            rate: rng.random_range(900..=1100),
            starts: 0,
            wakes: 0,
            paused_until: 0,
            flight: None,
            leads: None,
        });
        let hosts = hosts.collect();
        let mut world = Self {
            rng,
            now: 0,
            queue: BinaryHeap::new(),
            events: 0,
            place: S::place(nodes),
            store: Store::new(),
            hosts,
            strays: Vec::new(),
            outcomes: Vec::new(),
            led: BTreeMap::new(),
            ended: BTreeSet::new(),
            break_rule,
            problem: None,
            traces,
        };
        for node in 0..nodes {
            world.after(0, 500, Event::Return(node));
            world.after(0, CALM_MS / 3, Event::Fault(node));
            world.after(0, 100, Event::Send(node));
        }
        world
    }

    fn is_calm(&self) -> bool {
        self.now >= CALM_MS * MS
    }

    fn at(&mut self, time: u64, event: Event) {
        self.events += 1;
        self.queue.push(Reverse((time, self.events, event)));
    }

    /// Schedules an event at a time between `least` and `most` ms from now.
    fn after(&mut self, least: u64, most: u64, event: Event) {
        let delay = self.rng.random_range(least * MS..=most * MS);
        self.at(self.now + delay, event);
    }

    /// Schedules an event after the latency of the registry or the store.
    fn latency(&mut self, event: Event) {
        let is_slow = !self.is_calm() && self.rng.random_ratio(1, 20);
        self.after(0, if is_slow { LEASE_MS } else { 10 }, event);
    }

    fn clock(&self, node: usize) -> Timestamp {
        let host = &self.hosts[node];
        Timestamp(host.clock + self.now / 1000 * host.rate)
    }

    fn role(&self, node: usize) -> Role {
        let machine = self.hosts[node].machine.as_ref();
        machine.map_or(Role::Standby, |machine| machine.role(self.clock(node)))
    }

    fn poke(&mut self, node: usize) {
        loop {
            let now = self.clock(node);
            let host = &mut self.hosts[node];
            let Some(machine) = &mut host.machine else { return };
            match machine.next(now) {
                Action::Do(op) => {
                    if self.traces {
                        println!("{:10.3} ms host {node} begins {op:?}", self.now as f64 / MS as f64);
                    }
                    let id = self.events;
                    host.flight = Some(Flight { id, op, steps: 0, began: now, reply: None });
                    let is_lost = !self.is_calm() && self.rng.random_ratio(1, 20);
                    if is_lost {
                        self.after(0, LEASE_MS / 2, Event::Lost(node, id));
                    }
                    if !is_lost || self.rng.random() {
                        self.latency(Event::Step(node, id));
                    }
                    return;
                }
                Action::Claim(epoch) => {
                    let starts = host.starts;
                    self.latency(Event::Claim(node, starts, epoch.0));
                }
                Action::Wait(until) => {
                    host.wakes += 1;
                    let (local, rate, wakes) = (until.since(now), host.rate, host.wakes);
                    let wait = u64::try_from(local.as_nanos()).unwrap_or(u64::MAX) / rate;
                    if wait < END_MS * MS / 1000 {
                        self.at(self.now + wait * 1000 + 1000, Event::Wake(node, wakes));
                    }
                    return;
                }
            }
        }
    }

    /// Ends the operation in progress. A write that has not taken effect may do so later.
    fn drop_flight(&mut self, node: usize) -> Option<S::Op> {
        let Flight { op, steps, began, .. } = self.hosts[node].flight.take()?;
        if S::STRAYS && S::is_write(&op) && steps == 0 && self.rng.random() {
            let stray = self.strays.len();
            self.strays.push(Some((node, op.clone(), began)));
            self.after(0, 3 * LEASE_MS, Event::Stray(stray));
        }
        Some(op)
    }

    fn execute(&mut self, event: Event) {
        let nodes = self.hosts.len();
        let owner = match event {
            Event::Wake(node, _)
            | Event::Reply(node, _)
            | Event::Lost(node, _)
            | Event::Claimed(node, ..)
            | Event::Send(node) => Some(node),
            _ => None,
        };
        if let Some(until) = owner.map(|node| self.hosts[node].paused_until).filter(|until| *until > self.now)
        {
            return self.at(until, event);
        }
        match event {
            Event::Wake(node, wakes) if self.hosts[node].wakes == wakes => self.poke(node),
            Event::Step(node, id) => {
                let Some(flight) = self.hosts[node].flight.as_mut().filter(|flight| flight.id == id) else {
                    return;
                };
                let reply = flight.reply.take();
                flight.reply =
                    Some(S::apply(&mut self.place, node, &flight.op, flight.steps, flight.began, reply));
                flight.steps += 1;
                let is_done = flight.steps == S::steps(&flight.op, nodes);
                self.latency(if is_done { Event::Reply(node, id) } else { Event::Step(node, id) });
            }
            Event::Reply(node, id) => {
                let now = self.clock(node);
                let host = &mut self.hosts[node];
                let Some(Flight { op, reply, .. }) = host.flight.take_if(|flight| flight.id == id) else {
                    return;
                };
                if self.traces {
                    println!("{:10.3} ms host {node} has {reply:?}", self.now as f64 / MS as f64);
                }
                if let Some(machine) = &mut host.machine {
                    machine.reply(now, &op, reply);
                    self.poke(node);
                }
            }
            Event::Lost(node, id) => {
                if self.hosts[node].flight.as_ref().is_none_or(|flight| flight.id != id) {
                    return;
                }
                let (op, now) = (self.drop_flight(node), self.clock(node));
                if let (Some(op), Some(machine)) = (op, &mut self.hosts[node].machine) {
                    machine.reply(now, &op, None);
                    self.poke(node);
                }
            }
            Event::Stray(stray) => {
                let Some((node, op, began)) = self.strays[stray].take() else { return };
                S::apply(&mut self.place, node, &op, 0, began, None);
            }
            Event::Claim(node, starts, epoch) => {
                let mut outcome = self.store.claim(Epoch(epoch), writer(node, starts));
                if !self.is_calm() && self.rng.random_ratio(1, 20) {
                    outcome = Claimed::Failed;
                }
                let index = self.outcomes.len() as u64;
                self.outcomes.push(outcome);
                self.latency(Event::Claimed(node, starts, index));
            }
            Event::Claimed(node, starts, index) => {
                let now = self.clock(node);
                let host = &mut self.hosts[node];
                if let Some(machine) = host.machine.as_mut().filter(|_| host.starts == starts) {
                    machine.claimed(now, self.outcomes[index as usize]);
                    self.poke(node);
                }
            }
            Event::Send(node) => {
                if let Role::Leader(epoch, _) = self.role(node) {
                    // A change may take longer than the time of a lease.
                    self.after(0, 2 * LEASE_MS, Event::Change(epoch.0));
                }
                self.after(100, 400, Event::Send(node));
            }
            Event::Change(epoch) => {
                if self.store.change(Epoch(epoch)) && epoch != self.store.epoch() {
                    let in_force = self.store.epoch();
                    self.problem =
                        Some(format!("a change of epoch {epoch} has landed; {in_force} is in force"));
                }
            }
            Event::Fault(node) if !self.is_calm() => {
                self.after(0, 2 * LEASE_MS, Event::Fault(node));
                match self.rng.random_range(0..4) {
                    0 => self.crash(node),
                    1 => {
                        let pause = self.rng.random_range(0..2 * LEASE_MS) * MS;
                        self.hosts[node].paused_until = (self.now + pause).min(CALM_MS * MS);
                    }
                    2 => {
                        let to = self.rng.random_range(0..=nodes);
                        if let Some(machine) = &mut self.hosts[node].machine {
                            machine.step_down(Some(to).filter(|to| *to < nodes));
                            self.poke(node);
                        }
                    }
                    _ => {}
                }
            }
            Event::Return(node) if self.hosts[node].machine.is_none() => {
                let host = &mut self.hosts[node];
                host.starts += 1;
                let lease = Duration::from_millis(LEASE_MS);
                let mut machine = S::start(node, writer(node, host.starts), lease);
                (self.break_rule)(&mut machine);
                host.machine = Some(machine);
                self.poke(node);
            }
            Event::Wake(..) | Event::Fault(_) | Event::Return(_) => {}
        }
    }

    fn crash(&mut self, node: usize) {
        if self.hosts[node].machine.take().is_none() {
            return;
        }
        // A block's write takes effect before the next process reads, or never.
        let lands = !S::STRAYS && self.rng.random();
        if let Some(flight) =
            self.hosts[node].flight.as_ref().filter(|flight| lands && S::is_write(&flight.op))
        {
            S::apply(&mut self.place, node, &flight.op, 0, flight.began, None);
        }
        self.drop_flight(node);
        self.hosts[node].paused_until = 0;
        self.after(0, LEASE_MS, Event::Return(node));
    }

    fn check(&mut self) {
        let mut serving = None;
        for node in 0..self.hosts.len() {
            let role = self.role(node);
            let led = self.hosts[node].leads.take();
            self.ended.extend(led.filter(|led| !matches!(role, Role::Leader(epoch, _) if epoch == *led)));
            let Role::Leader(epoch, _) = role else { continue };
            self.hosts[node].leads = Some(epoch);
            if self.ended.contains(&epoch) {
                self.problem = Some(format!("host {node} leads with epoch {epoch} again"));
            }
            if let Some(other) = serving.replace(node) {
                self.problem = Some(format!("hosts {other} and {node} serve at the same time"));
            }
            let writer = writer(node, self.hosts[node].starts);
            if *self.led.entry(epoch).or_insert(writer) != writer {
                self.problem = Some(format!("epoch {epoch} has two leaders"));
            }
        }
    }

    /// Runs to the end. Returns the number of leaderships, or the first violation.
    fn run(mut self) -> Result<usize, String> {
        while let Some(Reverse((time, _, event))) = self.queue.pop() {
            if time > END_MS * MS {
                break;
            }
            self.now = time;
            if self.traces {
                println!("{:10.3} ms {event:?}", time as f64 / MS as f64);
            }
            self.execute(event);
            self.check();
            if let Some(problem) = self.problem {
                return Err(problem);
            }
        }
        self.now = END_MS * MS;
        let leads = (0..self.hosts.len()).any(|node| matches!(self.role(node), Role::Leader(..)));
        if leads { Ok(self.led.len()) } else { Err("no host leads although the faults have ended".into()) }
    }
}

fn simulate<S: Subject>() {
    if let Ok(seed) = std::env::var("ELECTION_SEED") {
        let seed = seed.parse().expect("ELECTION_SEED must be a number");
        World::<S>::new(seed, |_| {}, true).run().unwrap();
        return;
    }
    let times: u64 = std::env::var("CACHED_TEST_TIMES").map_or(1, |times| times.parse().expect("a number"));
    let run = |seed| World::<S>::new(seed, |_| {}, false).run();
    let leaderships: usize = (0..SEEDS * times)
        .map(|seed| run(seed).unwrap_or_else(|problem| panic!("ELECTION_SEED={seed}: {problem}")))
        .sum();
    let mean = leaderships as f64 / (SEEDS * times) as f64;
    assert!(mean > 3.0, "a run has only {mean} leaderships");
}

#[test]
fn an_election_by_a_document_survives_faults() {
    simulate::<ByDocument>();
}

#[test]
fn an_election_on_blocks_survives_faults() {
    simulate::<BlockElection>();
}

/// Checks that a broken rule is noticed.
fn is_noticed<S: Subject>(name: &str, problem: &str, break_rule: fn(&mut S)) {
    let mut runs = (0..SEEDS).map(|seed| World::<S>::new(seed, break_rule, false).run());
    assert!(runs.any(|run| run.is_err_and(|found| found.contains(problem))), "{name} is not noticed");
}

#[test]
fn each_broken_rule_is_noticed() {
    const SERVE: &str = "serve at the same time";
    is_noticed("no patience", SERVE, |host: &mut ByDocument| {
        host.machine.own.broken = Some(LeaseRule::Patience);
    });
    is_noticed("counted from the reply", SERVE, |host: &mut ByDocument| {
        host.machine.own.broken = Some(LeaseRule::CountFromBefore);
    });
    is_noticed("by the other's clock", SERVE, |host: &mut ByDocument| host.counts_by_others_clock = true);
    is_noticed("no claim", "has landed", |host: &mut ByDocument| {
        host.machine.own.broken = Some(LeaseRule::ClaimFirst);
    });
    is_noticed("no patience", SERVE, |host: &mut BlockElection| host.own.broken = Some(LeaseRule::Patience));
    is_noticed("counted from the reply", SERVE, |host: &mut BlockElection| {
        host.own.broken = Some(LeaseRule::CountFromBefore);
    });
    is_noticed("no giving up", SERVE, |host: &mut BlockElection| host.own.broken = Some(LeaseRule::GiveUp));
    is_noticed("no claim", "has landed", |host: &mut BlockElection| {
        host.own.broken = Some(LeaseRule::ClaimFirst);
    });
}
