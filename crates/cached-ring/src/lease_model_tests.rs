//! Model checking of leases: all orders of events of three nodes, a registry and one slot, within
//! bounds. The machines of [`lease`](crate::lease) and the changes of the map are the product's own; the
//! registry, messages, clocks, and the gate before a request are modelled. Each rule is broken in turn,
//! and the checker must notice it.
//!
//! Any event may come late, or never: so a node may be paused, or cut off from the registry or from
//! another node, in either direction.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock, Mutex};

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::node::tests::node;
use crate::{Holder, Map, Node, Promise, Slot, Strike, Warden};

const NAMES: [&str; 3] = ["a", "b", "c"];
/// A tick of the true time is a millisecond.
const NANOS_PER_TICK: u64 = 1_000_000;

const FRESH: &str = "no item is older than the last acknowledged change";
const ONE_OWNER: &str = "one node executes";
const ANSWERS: &str = "an answer is as new as the last change before its request";
const STRUCK: &str = "another node answers for a node that has gone";
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
}

#[derive(Clone)]
struct Ring {
    /// The lease of each node, in ticks.
    lease: u64,
    /// Two or three; a third one that takes no part is down for ever.
    nodes: usize,
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

    /// Reads the documents, and puts the map in force.
    fn read(&self, state: &mut State, at: usize) {
        let (alive, now) = (Self::alive(state), self.clock(state, at));
        let (map, node) = (state.registry.clone(), &mut state.nodes[at]);
        let follows = map.0.follows(&node.map.0, NAMES[at]);
        node.word = match node.word {
            _ if map.owner() != at => Word::Away,
            Word::Own if follows => Word::Own,
            _ => Word::Purging,
        };
        node.map = map;
        self.follow(node, alive, now);
    }

    fn follow(&self, node: &mut Process, alive: [bool; 3], now: u64) {
        let map = &node.map;
        node.holder.follow(&map.0);
        node.change.take_if(|change| change.0.0.version() <= map.0.version());
        node.strike.take_if(|strike| strike.version < map.0.version());
        let is_alive = |name: &str| NAMES.iter().zip(alive).any(|(of, alive)| *of == name && alive);
        let earlier = now.saturating_sub(self.lease * NANOS_PER_TICK);
        let is_heir = map.0.struck == map.0.version();
        let waits = if is_heir { self.keeps(Rule::WardsWait) } else { self.keeps(Rule::WaitAnew) };
        let map = match self.keeps(Rule::Since) {
            true => map.clone(),
            false => map.after(Change::AsIfEver).unwrap(),
        };
        node.warden.follow(&map.0, &is_alive, if waits { now } else { earlier });
    }

    fn start(&self, state: &mut State, at: usize) {
        let now = self.clock(state, at);
        let (begun, is_own) = (if self.keeps(Rule::Begun) { now } else { 0 }, state.registry.owner() == at);
        let earlier = &state.nodes[at];
        let mut node = Process {
            is_up: true,
            number: earlier.number + 1,
            map: state.registry.clone(),
            word: if is_own { Word::Own } else { Word::Away },
            item: 0,
            holder: Holder::new(NAMES[at]),
            is_registered: false,
            warden: Warden::new(NAMES[at], begun),
            asks: None,
            ping: None,
            // These may still be under way.
            change: earlier.change.clone(),
            strike: earlier.strike.clone(),
        };
        self.follow(&mut node, Self::alive(state), begun);
        state.nodes[at] = node;
        if self.steady[at] {
            (state.alive_until[at], state.alive_of[at]) = (state.now + self.lease, state.nodes[at].number);
            state.nodes[at].is_registered = true;
            state.nodes[at].holder.registered(now);
        }
    }

    /// Returns whether the action is possible, and does it.
    fn act(&self, state: &mut State, action: Action) -> Option<()> {
        let is = |yes: bool| yes.then_some(());
        match action {
            Action::Tick => {
                state.left.ticks = state.left.ticks.checked_sub(1)?;
                state.now += 1;
                for at in 0..3 {
                    if self.steady[at] && state.nodes[at].is_up {
                        state.alive_until[at] = state.now + self.lease;
                        let now = self.clock(state, at);
                        state.nodes[at].holder.renewed(now);
                    }
                }
            }
            Action::Ask(at) => {
                state.left.asks = state.left.asks.checked_sub(1)?;
                state.nodes[at].asks = Some(Asks::Sent(self.clock(state, at)));
            }
            Action::Grant(at) => {
                let Some(Asks::Sent(sent)) = state.nodes[at].asks else { return None };
                let has_ended = state.now >= state.alive_until[at];
                state.nodes[at].asks = match state.nodes[at].is_registered && has_ended {
                    true => Some(Asks::Ended),
                    false => {
                        state.alive_until[at] = state.now + self.lease;
                        state.alive_of[at] = state.nodes[at].number;
                        Some(Asks::Done(sent))
                    }
                };
            }
            Action::Hear(at) => match state.nodes[at].asks.take()? {
                Asks::Sent(_) => return None,
                Asks::Done(sent) => {
                    let sent = if self.keeps(Rule::CountLease) { sent } else { self.clock(state, at) };
                    if !state.nodes[at].is_registered && self.keeps(Rule::ReadAfterAlive) {
                        self.read(state, at);
                    }
                    state.nodes[at].is_registered = true;
                    state.nodes[at].holder.registered(sent);
                }
                Asks::Ended => {
                    state.nodes[at].is_registered = false;
                    state.nodes[at].holder.lost();
                }
            },
            Action::Read(at) => {
                is(state.nodes[at].is_up)?;
                self.read(state, at);
            }
            Action::Ping(at, to) => {
                state.left.pings = state.left.pings.checked_sub(1)?;
                let sent = self.clock(state, at);
                state.nodes[at].ping = Some(Ping { to, sent, promise: None });
            }
            Action::Receive(at) => {
                let ping = state.nodes[at].ping.filter(|ping| ping.promise.is_none())?;
                let now = self.clock(state, ping.to);
                let warden = &mut state.nodes[ping.to];
                is(warden.is_up)?;
                let mut own = warden.holder.clone();
                if !self.keeps(Rule::OwnRight) {
                    own.registered(now);
                }
                let promise = match self.keeps(Rule::PromiseOver) {
                    true => warden.warden.promise(NAMES[at], &own, now),
                    false => warden.warden.clone().promise(NAMES[at], &own, now),
                };
                state.nodes[at].ping = (promise.ms > 0).then_some(Ping { promise: Some(promise), ..ping });
            }
            Action::Pong(at) => {
                let Ping { to, sent, promise } = state.nodes[at].ping.take()?;
                let mut promise = promise?;
                let sent = if self.keeps(Rule::CountPromise) { sent } else { self.clock(state, at) };
                let node = &mut state.nodes[at];
                let by = if self.keeps(Rule::FromWarden) { to } else { node.map.warden(at)? };
                if !self.keeps(Rule::Term) {
                    promise.term = node.map.term(at);
                }
                node.holder.promised(NAMES[by], promise, sent);
            }
            Action::ChangeWarden(at, to) => {
                state.left.changes = state.left.changes.checked_sub(1)?;
                let node = &mut state.nodes[at];
                is(node.change.is_none() && node.map.warden(at) != Some(to))?;
                node.change = Some((node.map.after(Change::Warden(at, to))?, node.number));
                if self.keeps(Rule::Changing) {
                    node.holder.begin_change(node.map.0.version());
                }
            }
            Action::LandChange(at) => {
                let (change, by) = state.nodes[at].change.clone()?;
                is(state.alive_of[at] == by || !self.keeps(Rule::OwnAlive))?;
                is(change.0.version() == state.registry.0.version() + 1)?;
                state.registry = change;
            }
            Action::Strike(at) => {
                state.left.strikes = state.left.strikes.checked_sub(1)?;
                let (alive, now) = (Self::alive(state), self.clock(state, at));
                let node = &mut state.nodes[at];
                let Strike { ward, version } = match self.keeps(Rule::Striking) {
                    true => node.warden.begin_strike(now)?,
                    false => node.warden.clone().begin_strike(now)?,
                };
                let ward = NAMES.iter().position(|name| *name == ward)?;
                let next = node.map.after(Change::Strike { ward, by: at, alive })?;
                let under_way = node.strike.as_ref().map_or(0, |strike| strike.under_way) + 1;
                node.strike = Some(Striking { ward, version, next, under_way, by: node.number });
            }
            Action::LandStrike(at, is_heard) => {
                let strike = state.nodes[at].strike.as_mut()?;
                strike.under_way = strike.under_way.checked_sub(1)?;
                let Striking { ward, version, next, by, .. } = strike.clone();
                is(state.alive_of[at] == by || !self.keeps(Rule::OwnAlive))?;
                let is_gone = state.now >= state.alive_until[ward] || !self.keeps(Rule::AliveAbsent);
                let is_latest = version == state.registry.0.version();
                if is_gone && is_latest {
                    state.registry = next;
                } else if is_gone && !self.keeps(Rule::Version) {
                    let alive = Self::alive(state);
                    state.registry = state.registry.after(Change::Strike { ward, by: at, alive })?;
                } else if is_heard {
                    let strike = Strike { ward: NAMES[ward].into(), version };
                    let warden = &mut state.nodes[at].warden;
                    warden.strike_refused(&strike);
                    if !self.keeps(Rule::EachOutcome) {
                        warden.strike_refused(&strike);
                    }
                }
            }
            Action::GiveUp(at) => {
                is(!self.keeps(Rule::Outcome))?;
                let Striking { ward, version, .. } = state.nodes[at].strike.clone()?;
                let strike = Strike { ward: NAMES[ward].into(), version };
                state.nodes[at].warden.strike_refused(&strike);
            }
            Action::Purge(at) => {
                is(state.nodes[at].word == Word::Purging)?;
                (state.nodes[at].word, state.nodes[at].item) = (Word::Own, 0);
            }
            Action::Write(at) => {
                state.left.writes = state.left.writes.checked_sub(1)?;
                is(self.executes(state, at))?;
                state.last += 1;
                state.nodes[at].item = state.last;
            }
            Action::Arrive(at) => {
                let floor = Some(state.last);
                let request = state.request.get_or_insert(Request { at, ..Request::default() });
                is(request.at == at && request.floor.is_none())?;
                is(request.is_passed != self.keeps(Rule::ClockAfterBytes))?;
                state.left.requests = state.left.requests.checked_sub(1)?;
                request.floor = floor;
            }
            Action::Check(at) => {
                is(self.executes(state, at))?;
                let request = state.request.get_or_insert(Request { at, ..Request::default() });
                is(request.at == at && !request.is_passed)?;
                is(request.floor.is_some() == self.keeps(Rule::ClockAfterBytes))?;
                request.is_passed = true;
            }
            Action::Answer => {
                let Request { at, floor, .. } = state.request.take_if(|request| request.is_passed)?;
                let item = state.nodes[at].item;
                state.is_stale |= item != 0 && item < floor?;
            }
            Action::Stop(at) => {
                state.left.stops = state.left.stops.checked_sub(1)?;
                let node = &mut state.nodes[at];
                *node = Process {
                    is_up: false,
                    word: Word::Away,
                    item: 0,
                    holder: Holder::new(NAMES[at]),
                    is_registered: false,
                    asks: None,
                    ping: None,
                    ..node.clone()
                };
                state.request.take_if(|request| request.at == at);
            }
            Action::Start(at) => {
                is(!state.nodes[at].is_up)?;
                self.start(state, at);
            }
        }
        Some(())
    }
}

impl Model for Ring {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // With these weights, `b` is given the slots of `a`.
        let node = |at: usize| Node { lease_ms: self.lease as u32, ..node(NAMES[at], u32::from(at < 2)) };
        let first = Map::first("main", node(0)).unwrap();
        let map = (1..3).fold(first, |map, at| map.join(node(at)).unwrap());
        let set = |map: Map, at: usize| map.set_warden(NAMES[at], Some(NAMES[(at + 1) % 3])).unwrap();
        let registry = Shared(Arc::new((0..3).fold(map, set)));
        let placeholder = Process {
            is_up: false,
            number: 0,
            map: registry.clone(),
            word: Word::Away,
            item: 0,
            holder: Holder::new(""),
            is_registered: false,
            warden: Warden::new("", 0),
            asks: None,
            ping: None,
            change: None,
            strike: None,
        };
        let mut state = State {
            now: 0,
            registry,
            alive_until: [0, 1, 2].map(|at| if at < self.nodes { self.lease } else { 0 }),
            alive_of: [1; 3],
            nodes: [placeholder.clone(), placeholder.clone(), placeholder],
            last: 2,
            request: None,
            is_stale: false,
            left: self.limits,
        };
        for at in 0..self.nodes {
            self.start(&mut state, at);
            let node = &mut state.nodes[at];
            // The others have been owners before.
            (node.item, node.is_registered) = (if at == 0 { 2 } else { 1 }, true);
            node.holder.registered(0);
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        use Action as A;
        let left = &state.left;
        let mut add = |condition: bool, some: &[Action]| {
            if condition {
                actions.extend_from_slice(some);
            }
        };
        add(left.ticks > 0, &[A::Tick]);
        add(state.request.is_some(), &[A::Answer]);
        for (at, node) in state.nodes[..self.nodes].iter().enumerate() {
            let others = [(at + 1) % 3, (at + 2) % 3];
            add(!node.is_up, &[A::Start(at)]);
            add(node.is_up && left.stops > 0, &[A::Stop(at)]);
            let asks = node.is_up && node.asks.is_none() && left.asks > 0 && !self.steady[at];
            add(asks, &[A::Ask(at)]);
            add(node.asks.is_some(), &[A::Grant(at), A::Hear(at)]);
            add(node.is_up, &[A::Read(at)]);
            let pings = node.is_up && left.pings > 0 && !self.steady[at];
            add(pings, &others.map(|to| A::Ping(at, to)));
            add(node.ping.is_some(), &[A::Receive(at), A::Pong(at)]);
            let changes = node.is_up && left.changes > 0 && !self.steady[at];
            add(changes, &others.map(|to| A::ChangeWarden(at, to)));
            add(node.change.is_some(), &[A::LandChange(at)]);
            add(node.is_up && left.strikes > 0, &[A::Strike(at)]);
            let lands = [A::LandStrike(at, true), A::LandStrike(at, false), A::GiveUp(at)];
            add(node.strike.is_some(), &lands);
            add(node.word == Word::Purging, &[A::Purge(at)]);
            add(left.writes > 0, &[A::Write(at)]);
            add(left.requests > 0 || state.request.is_some(), &[A::Arrive(at), A::Check(at)]);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.act(&mut state, action)?;
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always(FRESH, |model: &Self, state: &State| {
                let is_fresh = |at: usize| [0, state.last].contains(&state.nodes[at].item);
                (0..3).filter(|at| model.executes(state, *at)).all(is_fresh)
            }),
            Property::always(ONE_OWNER, |model: &Self, state: &State| {
                (0..3).filter(|at| model.executes(state, *at)).count() <= 1
            }),
            Property::always(ANSWERS, |_, state: &State| !state.is_stale),
        ];
        let reaches = [
            Property::sometimes(STRUCK, |model: &Self, state: &State| model.executes(state, 1)),
            Property::sometimes(WITHOUT_REGISTRY, |model: &Self, state: &State| {
                Self::alive(state) == [false; 3] && model.executes(state, 0)
            }),
        ];
        all.extend(reaches.into_iter().filter(|property| self.reaches == Some(property.name)));
        all
    }
}

/// The leases of `b` and `c` are renewed at once, that of `a` is not.
const A_ALONE: Ring = Ring {
    lease: 3,
    nodes: 2,
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
