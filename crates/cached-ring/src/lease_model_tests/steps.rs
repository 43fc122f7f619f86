//! The steps of the model: its first state, the events that are possible in a state, and what each of them does.

use stateright::Property;

use super::*;
use crate::Strike;
use crate::node::tests::node;

impl Ring {
    /// Reads the documents, and puts the map in force.
    fn read(&self, state: &mut State, at: usize) {
        let (alive, now) = (Self::alive(state), self.clock(state, at));
        let (map, node) = (state.registry.clone(), &mut state.nodes[at]);
        let follows = map.0.follows(&node.map.0, self.name(at));
        node.word = match node.word {
            _ if map.owner() != self.node(at) => Word::Away,
            Word::Own if follows => Word::Own,
            _ => Word::Purging,
        };
        node.map = map;
        self.follow(node, at, alive, now);
    }

    fn follow(&self, node: &mut Process, at: usize, alive: [bool; 3], now: u64) {
        let map = &node.map;
        match self.has_second && !self.keeps(Rule::OwnHost) {
            true => node.holder.follow(&map.after(Change::Host(at)).unwrap().0),
            false => node.holder.follow(&map.0),
        }
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
        let begun = if self.keeps(Rule::Begun) { now } else { 0 };
        let is_own = state.registry.owner() == self.node(at);
        let earlier = &state.nodes[at];
        let mut node = Process {
            is_up: true,
            number: earlier.number + 1,
            map: state.registry.clone(),
            word: if is_own { Word::Own } else { Word::Away },
            item: 0,
            holder: Holder::new(self.name(at), HOSTS[at]),
            is_registered: false,
            warden: Warden::new(self.name(at), begun),
            asks: None,
            ping: None,
            // These may still be under way.
            change: earlier.change.clone(),
            strike: earlier.strike.clone(),
        };
        self.follow(&mut node, at, Self::alive(state), begun);
        state.nodes[at] = node;
        if self.steady[at] {
            let alive = self.node(at);
            (state.alive_until[alive], state.alive_of[alive]) =
                (state.now + self.lease, state.nodes[at].number);
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
                        state.alive_until[self.node(at)] = state.now + self.lease;
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
                let (alive, node) = (self.node(at), &mut state.nodes[at]);
                let has_ended = state.now >= state.alive_until[alive];
                // A process that has just started replaces the lease of another one.
                let is_anothers = self.has_second && at == 0 && state.alive_of[alive] != node.number;
                node.asks = match node.is_registered && has_ended || is_anothers && !has_ended {
                    true => Some(Asks::Ended),
                    false => {
                        state.alive_until[alive] = state.now + self.lease;
                        state.alive_of[alive] = node.number;
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
                    let node = &mut state.nodes[at];
                    node.is_registered = true;
                    node.holder.registered(sent);
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
                    true => warden.warden.promise(self.name(at), &own, now),
                    false => warden.warden.clone().promise(self.name(at), &own, now),
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
                let next = node.map.after(Change::Strike { ward, by: self.node(at), alive })?;
                let under_way = node.strike.as_ref().map_or(0, |strike| strike.under_way) + 1;
                node.strike = Some(Striking { ward, version, next, under_way, by: node.number });
            }
            Action::LandStrike(at, is_heard) => {
                let strike = state.nodes[at].strike.as_mut()?;
                strike.under_way = strike.under_way.checked_sub(1)?;
                let Striking { ward, version, next, by, .. } = strike.clone();
                is(state.alive_of[self.node(at)] == by || !self.keeps(Rule::OwnAlive))?;
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
                    holder: Holder::new(self.name(at), HOSTS[at]),
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
            Action::Look => {
                if let Some((claims, absent)) = self.look(state) {
                    let begins_term = self.keeps(Rule::AnotherTerm);
                    let next = state.registry.after(Change::Place { claims, begins_term })?;
                    state.place = Some((next, absent, !claims));
                }
            }
            Action::LandPlace => {
                let (next, absent, joins) = state.place.take()?;
                let alive = Self::alive(state);
                is(next.0.version() == state.registry.0.version() + 1)?;
                is((0..3).all(|node| !(absent[node] && alive[node])))?;
                state.registry = next;
                if joins {
                    self.start(state, 2);
                }
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
        let node = |at: usize| {
            let host = HOSTS[at].into();
            Node { lease_ms: self.lease as u32, host, ..node(NAMES[at], u32::from(at < 2)) }
        };
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
            holder: Holder::new("", ""),
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
            alive_until: [0, 1, 2].map(|at| {
                if at < self.nodes && (self.steady[at] || !self.has_lapsed) { self.lease } else { 0 }
            }),
            alive_of: [1; 3],
            nodes: [0, 0, if self.has_second { 100 } else { 0 }]
                .map(|number| Process { number, ..placeholder.clone() }),
            predecessor: Predecessor::default(),
            place: None,
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
            if self.has_lapsed && !self.steady[at] {
                node.is_registered = false;
                node.holder.lost();
            }
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
        add(self.has_second && !state.nodes[2].is_up, &[A::Look, A::LandPlace]);
        let is_part = |at: usize| at < self.nodes || self.has_second && state.nodes[2].is_up;
        for (at, node) in state.nodes.iter().enumerate().filter(|(at, _)| is_part(*at)) {
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
            Property::sometimes(SUCCEEDED, |model: &Self, state: &State| model.executes(state, 2)),
            Property::sometimes(STRUCK, |model: &Self, state: &State| model.executes(state, 1)),
            Property::sometimes(WITHOUT_REGISTRY, |model: &Self, state: &State| {
                Self::alive(state) == [false; 3] && model.executes(state, 0)
            }),
        ];
        all.extend(reaches.into_iter().filter(|property| self.reaches == Some(property.name)));
        all
    }
}
