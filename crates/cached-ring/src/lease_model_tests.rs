//! Model checking of leases: all orders of events of three nodes, a registry and one slot, within
//! bounds. The machines of [`lease`](crate::lease) and the changes of the map are the product's own; the
//! registry, messages, clocks, and the gate before a request are modelled. Each rule is broken in turn,
//! and the checker must notice it.
//!
//! Any event may come late, or never: so a node may be paused, or cut off from the registry or from
//! another node, in either direction. In some models a second process of `a` starts on another host.

mod second;
mod steps;

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock, Mutex};

use stateright::{Checker, HasDiscoveries, Model};

use crate::{Holder, Map, Node, Predecessor, ProcessState, Promise, Slot, Warden};

const NAMES: [&str; 3] = ["a", "b", "c"];
/// The hosts of the processes.
const HOSTS: [&str; 3] = ["first", "second", "third"];
/// A tick of the true time is a millisecond.
const NANOS_PER_TICK: u64 = 1_000_000;

const FRESH: &str = "no item is older than the last acknowledged change";
const ONE_OWNER: &str = "one node executes";
const ANSWERS: &str = "an answer is as new as the last change before its request";
const STRUCK: &str = "another node answers for a node that has gone";
const SUCCEEDED: &str = "a process answers for the slots of an earlier one on another host";
const WITHOUT_REGISTRY: &str = "a node answers while the registry is away for longer than a lease";

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// A lease and a promise count from before they were asked for.
    CountLease,
    CountPromise,
    /// A lease counts from when a map that was read after `alive/NODE` was written is in force.
    ReadAfterAlive,
    /// The clock is read after the bytes of a request have arrived.
    ClockAfterBytes,
    /// Only promises of the warden count.
    FromWarden,
    /// No promise counts while this node changes its warden.
    Changing,
    /// A promise is for one term.
    Term,
    /// A warden promises only while it may answer itself.
    OwnRight,
    /// A warden waits until its promises have run out.
    PromiseOver,
    /// A new warden waits a whole lease.
    WaitAnew,
    /// ... also if it has been the warden before, and did not hear that it was not for a while.
    Since,
    /// ... also if it has struck the earlier one off.
    WardsWait,
    /// ... also for what an earlier process of it has promised.
    Begun,
    /// A node is promised nothing while it is being struck off.
    Striking,
    /// An attempt without an answer may still be made.
    Outcome,
    /// The refusal of one attempt says nothing about an earlier one.
    EachOutcome,
    /// A node is struck off only if `alive/NODE` is absent in that moment.
    AliveAbsent,
    /// A node is struck off only by a change of the map by which the warden has waited.
    Version,
    /// A process changes the map only while `alive/NODE` is its own: so nothing of an earlier process
    /// comes late, once the next one is registered.
    OwnAlive,
    /// A process waits for an earlier one of the node on another host, although that one has no lease.
    Elsewhere,
    /// ... and, if the warden has none either, for the time of a lease from its claim on.
    AfterClaim,
    /// It claims the node only if the warden has no lease in that moment.
    WardenAbsent,
    /// It begins another term.
    AnotherTerm,
    /// No promise is meant for a process whose node is on another host.
    OwnHost,
}

/// A map of the registry.
#[derive(Clone)]
struct Shared(Arc<Map>);

impl PartialEq for Shared {
    fn eq(&self, other: &Self) -> bool {
        self.0.digest() == other.0.digest()
    }
}

impl Eq for Shared {}

impl Hash for Shared {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.digest().hash(hasher);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let wardens = self.0.nodes().iter().map(|node| node.warden.as_ref().map(|of| &of.warden));
        write!(f, "{} of {}, {:?}", self.0.version(), NAMES[self.owner()], wardens.collect::<Vec<_>>())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Change {
    Warden(usize, usize),
    Strike {
        ward: usize,
        by: usize,
        alive: [bool; 3],
    },
    /// The second process of `a` claims it, or joins; without another term if that is broken.
    Place {
        claims: bool,
        begins_term: bool,
    },
    /// The map is not changed: it only seems that this is the host of `a`.
    Host(usize),
    /// The map is not changed: it only seems that all wardens have been the same from the first one.
    AsIfEver,
}

impl Shared {
    fn owner(&self) -> usize {
        self.0.owner(Slot::new(5).unwrap()).index()
    }

    fn term(&self, at: usize) -> u64 {
        self.0.nodes()[at].term
    }

    fn warden(&self, at: usize) -> Option<usize> {
        let warden = self.0.nodes()[at].warden.as_ref()?;
        NAMES.iter().position(|name| *name == warden.warden)
    }

    /// Returns the next map; `None` if there is none. There are few maps, and each is made once.
    fn after(&self, change: Change) -> Option<Shared> {
        type Made = HashMap<(u64, Change), Option<Shared>>;
        static MADE: LazyLock<Mutex<Made>> = LazyLock::new(Default::default);
        let mut made = MADE.lock().unwrap();
        let next = made.entry((self.0.digest(), change)).or_insert_with(|| {
            let next = match change {
                Change::Warden(at, to) => self.0.set_warden(NAMES[at], Some(NAMES[to])),
                Change::Strike { ward, by, alive } => {
                    let is_alive =
                        |name: &str| NAMES.iter().zip(alive).any(|(of, alive)| *of == name && alive);
                    self.0.strike(NAMES[ward], NAMES[by], &is_alive)
                }
                Change::Place { claims, begins_term } => {
                    let before = &self.0.nodes()[0];
                    let process = if claims { ProcessState::Claims } else { ProcessState::Runs };
                    let own = Node { host: HOSTS[2].into(), process, ..before.clone() };
                    self.0.set_own(&own).and_then(|mut map| {
                        if !begins_term {
                            map.nodes[0].term = before.term;
                        }
                        map.checked()
                    })
                }
                Change::Host(at) => {
                    let mut map = Map::clone(&self.0);
                    (map.nodes[0].host, map.nodes[0].process) = (HOSTS[at].into(), ProcessState::Runs);
                    Ok(map)
                }
                Change::AsIfEver => {
                    let mut map = Map::clone(&self.0);
                    map.nodes.iter_mut().filter_map(|node| node.warden.as_mut()).for_each(|of| of.since = 1);
                    Ok(map)
                }
            };
            next.ok().map(|map| Shared(Arc::new(map)))
        });
        next.clone()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Word {
    Away,
    Purging,
    Own,
}

/// A request for the lease, whose time is that of the node's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Asks {
    Sent(u64),
    /// `alive/NODE` is bound to the lease, whose end the registry has moved.
    Done(u64),
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Ping {
    to: usize,
    sent: u64,
    /// What the PONG promises.
    promise: Option<Promise>,
}

/// Attempts to strike a node off that have not reached the registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Striking {
    ward: usize,
    version: u64,
    next: Shared,
    under_way: u8,
    by: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Process {
    is_up: bool,
    /// How many processes of the node there have been before.
    number: u8,
    map: Shared,
    word: Word,
    /// The number of the change that wrote the item; 0 is none.
    item: u8,
    holder: Holder,
    is_registered: bool,
    warden: Warden,
    asks: Option<Asks>,
    ping: Option<Ping>,
    /// A map with another warden of this node, on the way to the registry, and the process that has
    /// sent it.
    change: Option<(Shared, u8)>,
    strike: Option<Striking>,
}

/// A request to read the item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Request {
    at: usize,
    /// The last acknowledged change when the bytes arrived.
    floor: Option<u8>,
    /// Whether the node has looked at its clock.
    is_passed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    registry: Shared,
    /// The end of each node's lease in the registry.
    alive_until: [u64; 3],
    /// The process that has written `alive/NODE`.
    alive_of: [u8; 3],
    nodes: [Process; 3],
    /// What the second process of `a` has seen of the first one.
    predecessor: Predecessor,
    /// Its change, on the way to the registry, the nodes that must hold no lease then, and whether it joins
    /// by it.
    place: Option<(Shared, [bool; 3], bool)>,
    /// The number of the last change, which was acknowledged.
    last: u8,
    request: Option<Request>,
    is_stale: bool,
    left: Limits,
}

/// How often things may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Limits {
    ticks: u8,
    asks: u8,
    pings: u8,
    changes: u8,
    strikes: u8,
    stops: u8,
    writes: u8,
    requests: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Tick,
    Ask(usize),
    Grant(usize),
    Hear(usize),
    Read(usize),
    Ping(usize, usize),
    Receive(usize),
    Pong(usize),
    ChangeWarden(usize, usize),
    LandChange(usize),
    Strike(usize),
    /// The attempt reaches the registry, and the warden hears that it was refused, or hears nothing.
    LandStrike(usize, bool),
    /// The warden waits no longer for an answer.
    GiveUp(usize),
    Purge(usize),
    Write(usize),
    Arrive(usize),
    Check(usize),
    Answer,
    Stop(usize),
    Start(usize),
    /// The second process of `a` reads the documents.
    Look,
    LandPlace,
}

#[derive(Clone)]
struct Ring {
    /// The lease of each node, in ticks.
    lease: u64,
    /// Two or three; a third one that takes no part is down for ever.
    nodes: usize,
    /// Whether the third process is a second one of `a`, on another host. Then there are two nodes.
    has_second: bool,
    /// Whether the leases of the others have ended when it begins.
    has_lapsed: bool,
    /// Nodes whose leases the registry always renews at once, so that they need no promises.
    steady: [bool; 3],
    /// How many ticks each node's clock shows in how many true ones.
    speeds: [(u64, u64); 3],
    limits: Limits,
    broken: Option<Rule>,
    /// What must be possible.
    reaches: Option<&'static str>,
}

impl Ring {
    fn keeps(&self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }

    /// Returns the node of a process.
    fn node(&self, at: usize) -> usize {
        if self.has_second && at == 2 { 0 } else { at }
    }

    fn name(&self, at: usize) -> &'static str {
        NAMES[self.node(at)]
    }

    /// Returns the time that a node's clock shows, in nanoseconds.
    fn clock(&self, state: &State, at: usize) -> u64 {
        let (shown, of) = self.speeds[at];
        state.now * shown / of * NANOS_PER_TICK
    }

    fn executes(&self, state: &State, at: usize) -> bool {
        let node = &state.nodes[at];
        node.word == Word::Own && node.holder.holds(self.clock(state, at))
    }

    fn alive(state: &State) -> [bool; 3] {
        state.alive_until.map(|until| state.now < until)
    }
}

/// The leases of `b` and `c` are renewed at once, that of `a` is not.
const A_ALONE: Ring = Ring {
    lease: 3,
    nodes: 2,
    has_second: false,
    has_lapsed: false,
    steady: [false, true, true],
    speeds: [(1, 1); 3],
    limits: Limits { ticks: 5, asks: 0, pings: 0, changes: 0, strikes: 1, stops: 0, writes: 0, requests: 0 },
    broken: None,
    reaches: None,
};

fn model(nodes: usize, limits: impl Fn(&mut Limits)) -> Ring {
    let mut model = Ring { nodes, ..A_ALONE };
    limits(&mut model.limits);
    model
}

fn holds(name: &str, model: Ring) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{name}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Checks that the checker notices what is broken.
fn is_caught(name: &str, property: &'static str, model: Ring) {
    let wanted = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().threads(2).finish_when(wanted).spawn_bfs().join();
    println!("{name}: {} states", checker.unique_state_count());
    assert!(checker.discovery(property).is_some(), "{name} is not caught");
}

#[test]
fn one_node_answers_and_nothing_is_stale() {
    let lease = model(2, |left| (left.asks, left.writes, left.requests) = (1, 1, 1));
    holds("a lease", Ring { reaches: Some(STRUCK), ..lease });
    holds("a promise", model(2, |left| (left.pings, left.writes) = (1, 1)));
    holds("another warden", model(3, |left| (left.ticks, left.pings, left.changes) = (4, 1, 1)));
    holds("the warden ends", model(2, |left| (left.ticks, left.pings, left.stops) = (4, 1, 1)));
    let none = model(3, |left| (left.ticks, left.pings, left.strikes) = (3, 2, 0));
    holds("no registry", Ring { steady: [false; 3], reaches: Some(WITHOUT_REGISTRY), ..none });
}

#[test]
#[ignore = "long: models, because millions of states take minutes"]
fn one_node_answers_among_more_faults() {
    holds("leases", model(3, |left| (left.asks, left.ticks, left.strikes) = (3, 7, 2)));
    holds("promises", model(2, |left| (left.asks, left.pings, left.ticks, left.strikes) = (1, 2, 6, 2)));
    holds("wardens", model(3, |left| (left.changes, left.pings) = (2, 2)));
    holds("stops", model(2, |left| (left.ticks, left.pings, left.strikes, left.stops) = (5, 1, 2, 2)));
    let none = model(3, |left| (left.ticks, left.pings, left.strikes) = (5, 2, 2));
    holds("no registry", Ring { steady: [false; 3], ..none });
    for slow in 0..2 {
        let mut model = model(2, |left| (left.asks, left.pings, left.ticks) = (1, 1, 6));
        model.speeds[slow] = (2, 3);
        holds("a slow clock", model);
    }
}

#[test]
fn each_broken_rule_of_a_lease_is_caught() {
    let caught = |rule: Rule, property, nodes: usize, limits: &dyn Fn(&mut Limits)| {
        is_caught(&format!("{rule:?}"), property, Ring { broken: Some(rule), ..model(nodes, limits) });
    };
    caught(Rule::CountLease, ONE_OWNER, 2, &|left| left.asks = 1);
    caught(Rule::ClockAfterBytes, ANSWERS, 2, &|left| (left.writes, left.requests) = (1, 1));
    for rule in [Rule::ReadAfterAlive, Rule::AliveAbsent] {
        caught(rule, ONE_OWNER, 2, &|left| left.asks = 2);
    }
    let ping = |left: &mut Limits| left.pings = 1;
    for rule in [Rule::CountPromise, Rule::PromiseOver, Rule::Striking, Rule::Outcome, Rule::Term] {
        caught(rule, ONE_OWNER, 2, &ping);
    }
    for rule in [Rule::FromWarden, Rule::Changing, Rule::WaitAnew] {
        caught(rule, ONE_OWNER, 3, &|left| (left.ticks, left.pings, left.changes) = (3, 1, 1));
    }
    for rule in [Rule::Since, Rule::Version] {
        caught(rule, ONE_OWNER, 3, &|left| (left.ticks, left.pings, left.changes) = (3, 1, 2));
    }
    for rule in [Rule::Begun, Rule::OwnAlive] {
        caught(rule, ONE_OWNER, 2, &|left| (left.ticks, left.pings, left.stops) = (3, 1, 1));
    }
    // Shorter leases, because these take two of them.
    let again = model(2, |left| (left.ticks, left.asks, left.pings, left.strikes) = (2, 2, 1, 2));
    let again = Ring { lease: 1, broken: Some(Rule::EachOutcome), ..again };
    is_caught("EachOutcome", ONE_OWNER, again);
    // `b` is struck off by `c`, which then is the warden of `a`.
    for (rule, lease) in [(Rule::OwnRight, 1), (Rule::WardsWait, 2)] {
        let heir = model(3, |left| (left.ticks, left.pings, left.strikes) = (2, 1, 2));
        let heir = Ring { lease, steady: [false, false, true], broken: Some(rule), ..heir };
        is_caught(&format!("{rule:?}"), ONE_OWNER, heir);
    }
    // The margin is two thirds.
    let mut slow = model(2, ping);
    slow.speeds[0] = (1, 2);
    is_caught("a clock of half the speed", ONE_OWNER, slow);
}
