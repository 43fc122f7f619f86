//! The choice of the waiting request to admit next: pure functions of the time that the caller
//! passes.
//!
//! In this order:
//! 1. the service owed to flushes by age and to idle requests because others were served first;
//! 2. namespaces whose reservation is due, the one that has waited longest first;
//! 3. requests that callers wait for, then flushes by age, then idle requests, each by weight.
//!
//! Within a namespace the class decides, together with the service owed to each class. A namespace
//! at its limit waits, and delays no other. Unused capacity is lent to all that have requests: no
//! request waits while its lane and the gate have room and its namespace is within its limits.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use blocker::Timestamp;

use super::classes::{CLASSES, Class, LANES, Lane, Lanes, Shares};
use super::terms::{By, Cost, StoreTerms, Tags};
use super::width::Width;
use crate::ensure;

/// The number of a namespace.
pub(crate) type Number = u64;

/// The number under which all requests wait, first come, first served, while no namespace has
/// terms.
const ALL: Number = Number::MAX;

/// The minimum fraction of the store's capacity that is shared by weight even if reservations take
/// all of it, so that nothing starves.
const BY_WEIGHT_LEAST: f64 = 0.02;

/// The maximum number of namespaces without their own terms that are remembered although none of
/// their requests waits.
const IDLE_MAX: usize = 256;

/// The parameters of a request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Ask {
    pub(crate) namespace: Number,
    pub(crate) lane: Lane,
    pub(crate) class: Class,
    /// The payload, in bytes.
    pub(crate) bytes: u64,
}

/// An admitted request, and its charge.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Granted {
    pub(super) id: u64,
    pub(super) ask: Ask,
    /// The reason why the request was chosen, by which it was charged.
    pub(super) by: By,
}

/// See the module.
pub(super) struct Scheduler {
    /// The terms of the namespaces that have their own.
    terms: HashMap<Number, StoreTerms>,
    clients: HashMap<Number, Client>,
    /// The namespaces with waiting requests.
    active: BTreeSet<Number>,
    waiting: BTreeMap<u64, Ask>,
    next_id: u64,
    /// The share of the last request that was admitted by weight.
    virtual_time: f64,
    shares: Shares,
    /// The service owed to requests by weight because reserved ones were admitted.
    owed_by_weight: f64,
    pub(super) width: Width,
}

/// The state of a namespace.
struct Client {
    tags: Tags,
    shares: Shares,
    queues: [[BTreeSet<u64>; LANES]; CLASSES],
    waiting: u32,
}

impl Client {
    fn new(terms: StoreTerms, now: Timestamp, virtual_time: f64) -> Self {
        Self {
            tags: Tags::new(terms, now, virtual_time),
            shares: Shares::default(),
            queues: Default::default(),
            waiting: 0,
        }
    }

    /// Returns, for each class, the request in an open lane that has waited longest.
    fn heads(&self, is_open: [bool; LANES]) -> [Option<(u64, Lane)>; CLASSES] {
        std::array::from_fn(|class| {
            let open = Lane::ALL.into_iter().filter(|lane| is_open[*lane as usize]);
            let heads = open.filter_map(|lane| Some((*self.queues[class][lane as usize].first()?, lane)));
            heads.min_by_key(|(id, _)| *id)
        })
    }
}

/// A namespace whose next request could be admitted now.
struct Candidate {
    namespace: Number,
    heads: [Option<(u64, Lane)>; CLASSES],
    share: f64,
    reserved_since: Option<u64>,
}

impl Candidate {
    fn waits(&self) -> [bool; CLASSES] {
        self.heads.map(|head| head.is_some())
    }

    fn first(&self) -> u64 {
        self.heads.iter().flatten().map(|(id, _)| *id).min().unwrap_or(u64::MAX)
    }

    fn has_any(&self, classes: &[Class]) -> bool {
        classes.iter().any(|class| self.heads[*class as usize].is_some())
    }
}

/// Among the candidates with a request of these classes, returns the one with the least share.
fn by_weight<'a>(candidates: &'a [Candidate], classes: &[Class]) -> Option<&'a Candidate> {
    let of_them = candidates.iter().filter(|candidate| candidate.has_any(classes));
    of_them
        .min_by(|one, other| one.share.total_cmp(&other.share).then_with(|| one.first().cmp(&other.first())))
}

impl Scheduler {
    pub(super) fn new(width_max: u32, now: Timestamp) -> Self {
        Self {
            terms: HashMap::new(),
            clients: HashMap::new(),
            active: BTreeSet::new(),
            waiting: BTreeMap::new(),
            next_id: 0,
            virtual_time: 0.0,
            shares: Shares::default(),
            owed_by_weight: 0.0,
            width: Width::new(width_max, now),
        }
    }

    /// Returns whether any namespace has its own terms.
    pub(super) fn is_scheduling(&self) -> bool {
        !self.terms.is_empty()
    }

    /// Applies the terms of the namespaces that have their own. Without any, requests are admitted
    /// first come, first served, and the width is fixed.
    pub(super) fn set_terms(&mut self, terms: &[(Number, StoreTerms)], now: Timestamp) {
        let was_scheduling = self.is_scheduling();
        self.terms = terms.iter().copied().filter(|(_, terms)| *terms != StoreTerms::default()).collect();
        if self.is_scheduling() != was_scheduling {
            self.width = Width::new(self.width.max, now);
        }
        for (number, client) in &mut self.clients {
            client.tags.set_terms(self.terms.get(number).copied().unwrap_or_default(), now);
        }
    }

    /// Returns the number of waiting requests.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the first waiting request.
    pub(super) fn first_waiting(&self) -> Option<u64> {
        self.waiting.keys().next().copied()
    }

    /// Returns whether this request is waiting.
    pub(super) fn is_waiting(&self, id: u64) -> bool {
        self.waiting.contains_key(&id)
    }

    /// Queues a request; returns its number.
    pub(super) fn enqueue(&mut self, mut ask: Ask, now: Timestamp) -> u64 {
        if !self.is_scheduling() {
            (ask.namespace, ask.class) = (ALL, Class::Demand);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.waiting.insert(id, ask);
        let terms = self.terms.get(&ask.namespace).copied().unwrap_or_default();
        let virtual_time = self.virtual_time;
        let new = || Client::new(terms, now, virtual_time);
        let client = self.clients.entry(ask.namespace).or_insert_with(new);
        if client.waiting == 0 {
            client.tags.begin(virtual_time);
            self.active.insert(ask.namespace);
        }
        client.waiting += 1;
        client.queues[ask.class as usize][ask.lane as usize].insert(id);
        id
    }

    /// Withdraws a waiting request.
    pub(super) fn withdraw(&mut self, id: u64) {
        if let Some(ask) = self.waiting.remove(&id) {
            self.leave(id, &ask);
        }
    }

    fn leave(&mut self, id: u64, ask: &Ask) {
        let Some(client) = self.clients.get_mut(&ask.namespace) else { return };
        client.queues[ask.class as usize][ask.lane as usize].remove(&id);
        client.waiting -= 1;
        if client.waiting == 0 {
            self.active.remove(&ask.namespace);
            if self.clients.len() > IDLE_MAX && !self.terms.contains_key(&ask.namespace) {
                self.clients.remove(&ask.namespace);
            }
        }
    }

    /// Refunds the charge of a request that is not sent after all.
    pub(super) fn refund(&mut self, granted: &Granted) {
        if let Some(client) = self.clients.get_mut(&granted.ask.namespace) {
            client.tags.refund(1.0, Cost::of(granted.ask.bytes), granted.by);
        }
    }

    /// Refunds the charge for bytes that a request did not carry after all: a read may reach beyond
    /// its object's end.
    pub(super) fn adjust(&mut self, granted: &Granted, bytes: u64) {
        let asked = granted.ask.bytes;
        if bytes < asked
            && let Some(client) = self.clients.get_mut(&granted.ask.namespace)
        {
            let units = Cost::of(asked).units - Cost::of(bytes).units;
            client.tags.refund(0.0, Cost { bytes: asked - bytes, units }, granted.by);
        }
    }

    /// Returns the number of requests that wait only because their namespace is at a limit.
    pub(super) fn limited(&self, now: Timestamp) -> usize {
        let clients = self.active.iter().filter_map(|number| self.clients.get(number));
        let limited = clients.filter(|client| client.tags.limited_until() > now);
        limited.map(|client| client.waiting as usize).sum()
    }

    /// Admits the next request and takes its place in its lane. If none can proceed now, returns
    /// `Err` with the time at which a limit admits one, if that is the only obstacle.
    pub(super) fn next(&mut self, lanes: &Lanes, now: Timestamp) -> Result<Granted, Option<Timestamp>> {
        if self.waiting.is_empty() {
            return Err(None);
        }
        let under_way = lanes.under_way();
        let is_full = self.is_scheduling() && under_way >= self.width.get();
        let has_room = Lane::ALL.map(|lane| lanes.has_room(lane));
        let is_open = has_room.map(|has_room| has_room && !is_full);
        let (mut due, mut candidates, mut is_held_up) = (None::<Timestamp>, Vec::new(), false);
        for number in &self.active {
            let Some(client) = self.clients.get(number) else { continue };
            let until = client.tags.limited_until();
            if until > now {
                due = Some(due.map_or(until, |due| due.min(until)));
                continue;
            }
            let heads = client.heads(is_open);
            is_held_up |= is_full && client.heads(has_room).iter().any(Option::is_some);
            if heads.iter().any(Option::is_some) {
                let (share, reserved_since) = (client.tags.share, client.tags.reserved_since(now));
                candidates.push(Candidate { namespace: *number, heads, share, reserved_since });
            }
        }
        if is_held_up {
            self.width.note_queued();
        }
        let Some((chosen, class, by)) = self.choose(&candidates) else { return Err(due) };
        let Some((id, lane)) = chosen.heads[class as usize] else { return Err(due) };
        if !lanes.try_take(lane) {
            // The place has just been taken by a request that did not have to wait; the end of that
            // request triggers another call.
            return Err(due);
        }
        let all = std::array::from_fn(|class| candidates.iter().any(|each| each.waits()[class]));
        let (namespace, waits) = (chosen.namespace, chosen.waits());
        self.width.note_begun(under_way + 1);
        Ok(self.grant(id, namespace, class, by, now, (waits, all)))
    }

    /// Returns the namespace whose turn it is, the class of its request, and the reason.
    fn choose<'a>(&self, candidates: &'a [Candidate]) -> Option<(&'a Candidate, Class, By)> {
        let waits = |class| candidates.iter().any(|each| each.has_any(&[class]));
        let unattended = [false, false, waits(Class::Age), waits(Class::Idle)];
        if let Some(class) = self.shares.due(unattended) {
            return by_weight(candidates, &[class]).map(|chosen| (chosen, class, By::Weight));
        }
        // Reservations do not apply to a namespace that has only idle requests.
        let not_idle = [Class::Urgent, Class::Demand, Class::Age];
        let next_of = |chosen: &'a Candidate, by: By| {
            let shares = &self.clients.get(&chosen.namespace)?.shares;
            Some((chosen, shares.next(chosen.waits())?, by))
        };
        let is_by_weight = self.owed_by_weight >= 1.0;
        let reserved = candidates.iter().filter(|each| !is_by_weight && each.has_any(&not_idle));
        let reserved = reserved.filter_map(|each| Some((each.reserved_since?, each)));
        if let Some((_, chosen)) = reserved.min_by_key(|(since, each)| (*since, each.first())) {
            return next_of(chosen, By::Reservation);
        }
        let bands: [&[Class]; 3] = [&[Class::Urgent, Class::Demand], &[Class::Age], &[Class::Idle]];
        let chosen = bands.into_iter().find_map(|band| by_weight(candidates, band));
        next_of(chosen?, By::Weight)
    }

    fn grant(
        &mut self,
        id: u64,
        namespace: Number,
        class: Class,
        by: By,
        now: Timestamp,
        (waits, all): ([bool; CLASSES], [bool; CLASSES]),
    ) -> Granted {
        let ask = self.waiting.remove(&id).expect("a request in a queue waits");
        let cost = Cost::of(ask.bytes);
        let client = self.clients.get_mut(&namespace).expect("a candidate is known");
        match by {
            By::Weight => {
                self.virtual_time = self.virtual_time.max(client.tags.share);
                self.owed_by_weight = (self.owed_by_weight - cost.units).max(0.0);
            }
            By::Reservation => {
                self.owed_by_weight = (self.owed_by_weight + cost.units * BY_WEIGHT_LEAST).min(1.0);
            }
        }
        client.tags.charge(cost, by, now, self.virtual_time);
        client.shares.charge(class, cost.units, waits);
        self.shares.charge(class, cost.units, all);
        self.leave(id, &ask);
        Granted { id, ask, by }
    }

    /// Checks that queues, counts and sets agree.
    #[inline]
    pub(super) fn validate(&self) -> Result<(), String> {
        for (id, ask) in &self.waiting {
            let is_queued =
                |client: &Client| client.queues[ask.class as usize][ask.lane as usize].contains(id);
            ensure(self.clients.get(&ask.namespace).is_some_and(is_queued), || {
                format!("request {id} waits, and is not in its queue")
            })?;
        }
        let mut queued = 0;
        for (number, client) in &self.clients {
            let own: usize = client.queues.iter().flatten().map(BTreeSet::len).sum();
            let counted = client.waiting;
            ensure(own == counted as usize && self.active.contains(number) == (own > 0), || {
                format!("{own} requests of namespace {number} are queued, {counted} counted")
            })?;
            queued += own;
        }
        let waiting = self.waiting.len();
        ensure(queued == waiting, || format!("{waiting} requests wait at the gate, {queued} are queued"))
    }
}
