//! Leases: until when a node may answer for its slots, and when another node may give them away.
//!
//! In a ring whose map is in a registry, a node answers for its own slots only until a time that it
//! pushes forward again and again ([`Holder`]). Either of two partners does that:
//!
//! - *The registry.* The node holds a lease there, and the document `alive/NODE` is bound to it. The
//!   lease counts only once a map that was read after that document was written is in force: so a node
//!   that was struck off in the meantime knows it.
//! - *Its warden*, another node, which its node document names. Each answer to a ping promises not to
//!   strike the node off for a while. So nodes that reach each other go on while the registry is away.
//!
//! Only the warden may strike a node off ([`Warden`]), by a change of the map that requires that
//! `alive/NODE` is absent: then no lease of the registry holds. The change also requires that the map
//! is the one that it was made from, as each change does. Before, the warden waits until
//!
//! - its own promises have run out; from the attempt on it gives no further one, until it knows that the
//!   attempt has failed;
//! - a whole lease has passed since it learned that it is the warden: promises of an earlier warden have
//!   run out. The node itself counts none of them from the moment in which it begins to change its
//!   warden; and if the earlier warden was struck off, its own time was over before, and with it its
//!   right to promise.
//!
//! A strike, and the change of a node's own warden, also require that `alive/OWN` is as this process has
//! written it: so what an earlier process of the node has asked for does not happen late.
//!
//! A promise names the [term](crate::Node::term) of the node: a node that was struck off and does not
//! know it has another one, and the promise is not meant for it.
//!
//! Times are nanoseconds of one clock of the host that goes on during a suspension. No two hosts compare
//! their times. A node counts each lease and promise from before it asked for it, and relies on two
//! thirds: this permits clocks of which one runs half as fast again as the other.

use std::collections::BTreeMap;

use crate::map::Map;

pub(crate) const NANOS_PER_MS: u64 = 1_000_000;

/// The time until which a node answers that nobody may strike off; no clock shows it.
const UNWATCHED: u64 = u64::MAX - 1;

/// Attempts at a change of the map of one version whose outcomes are not known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Attempts {
    version: u64,
    count: u32,
}

impl Attempts {
    fn begin(&mut self, version: u64) {
        let others = if self.version == version { self.count } else { 0 };
        *self = Attempts { version, count: others.saturating_add(1) };
    }

    /// One attempt was not made, and will not be.
    fn refused(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    /// Each change raises the version: all attempts at an earlier one have been made or never will be.
    fn see(&mut self, version: u64) {
        if version > self.version {
            self.count = 0;
        }
    }

    fn are_open(&self) -> bool {
        self.count > 0
    }
}

/// The promise of a warden, in a PONG.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Promise {
    /// The time for which the warden does not strike the node off, in milliseconds; 0 is no promise.
    pub ms: u32,
    /// The term for which the node has the promise.
    pub term: u64,
}

/// The right of this node to answer for its slots.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holder {
    node: Box<str>,
    host: Box<str>,
    lease_ns: u64,
    /// The node's term in the map in force; 0 before the first map, and if the map does not have the node, or
    /// names another process of it.
    term: u64,
    warden: Option<Box<str>>,
    /// Whether the map in force has no other node, so that nobody may strike this one off. Another node
    /// that joins owns nothing before this one has given it slots.
    is_alone: bool,
    /// Attempts of this node to change its warden.
    changes: Attempts,
    /// Whether `alive/NODE` is bound to this node's lease, and a map that was read later is in force.
    is_registered: bool,
    /// Whether it has been so once: since then no change of an earlier process of this node is made.
    was_registered: bool,
    registry_until: u64,
    promise_until: u64,
}

impl Holder {
    /// Returns the state of the node `node` on the [host](crate::Node::host) `host`, which may not answer
    /// yet.
    #[must_use]
    pub fn new(node: &str, host: &str) -> Holder {
        Holder {
            node: node.into(),
            host: host.into(),
            lease_ns: 0,
            term: 0,
            warden: None,
            is_alone: false,
            changes: Attempts::default(),
            is_registered: false,
            was_registered: false,
            registry_until: 0,
            promise_until: 0,
        }
    }

    /// Returns the time until which the node may answer, which a later event may push forward: it
    /// executes a request only if the clock shows an earlier time *after* all of its bytes have arrived.
    #[inline]
    #[must_use]
    pub fn until(&self) -> u64 {
        let is_unwatched = self.is_alone && self.registry_until > 0;
        if is_unwatched { UNWATCHED } else { self.registry_until.max(self.promise_until) }
    }

    /// Returns whether the node may answer.
    #[inline]
    #[must_use]
    pub fn holds(&self, now: u64) -> bool {
        now < self.until()
    }

    /// A map has been put in force. If the node is another process there, nothing that is promised to it is
    /// meant for this one.
    pub fn follow(&mut self, map: &Map) {
        let node = map.find(&self.node).map(|index| map.node(index)).filter(|node| node.runs_on(&self.host));
        let term = node.map_or(0, |node| node.term);
        if term != self.term {
            // Promises for the earlier term say nothing about this one.
            (self.term, self.promise_until) = (term, 0);
        }
        self.lease_ns = node.map_or(0, |node| u64::from(node.lease_ms) * NANOS_PER_MS);
        self.warden = node.and_then(|node| Some(node.warden.as_ref()?.warden.as_str().into()));
        self.is_alone = node.is_some() && map.nodes().len() == 1;
        self.changes.see(map.version());
    }

    /// `alive/NODE` is bound to the node's lease, which was granted or renewed by a request of the time
    /// `sent`; and a map that was read after that document was written or seen is in force.
    pub fn registered(&mut self, sent: u64) {
        (self.is_registered, self.was_registered) = (true, true);
        self.renewed(sent);
    }

    /// The registry has renewed the lease, by a request of the time `sent`. Returns whether this counts, as
    /// it does only while the node is [registered](Self::registered).
    pub fn renewed(&mut self, sent: u64) -> bool {
        if self.is_registered {
            self.registry_until = self.registry_until.max(relied_on(sent, self.lease_ns));
        }
        self.is_registered
    }

    /// The lease has ended in the registry, or `alive/NODE` is not bound to it: the node must be
    /// [registered](Self::registered) again.
    pub fn lost(&mut self) {
        (self.is_registered, self.registry_until) = (false, 0);
    }

    /// Returns whether the node asks for no more time, neither the registry nor its warden, because a part
    /// of it has stood still for `stalled_ns`. So it answers for about a lease longer at most.
    #[must_use]
    pub fn gives_up(&self, stalled_ns: u64) -> bool {
        self.lease_ns > 0 && stalled_ns >= self.lease_ns / 3
    }

    /// Begins an attempt of this node to change its warden in the map of this version: promises of the
    /// earlier warden do not count from here on, because the other one will not know of them. The
    /// outcome is known from the next map that is [put in force](Self::follow) and has a higher version.
    pub fn begin_change(&mut self, version: u64) {
        self.changes.begin(version);
    }

    /// Returns whether the outcome of an attempt is not known.
    #[must_use]
    pub fn has_open_change(&self) -> bool {
        self.changes.are_open()
    }

    /// The attempt was refused, and not made.
    pub fn change_refused(&mut self) {
        self.changes.refused();
    }

    /// The node `by` has answered the ping of the time `sent` with this promise.
    pub fn promised(&mut self, by: &str, promise: Promise, sent: u64) {
        let is_warden = self.warden.as_deref() == Some(by) && !self.changes.are_open();
        if is_warden && self.was_registered && promise.term == self.term && self.term != 0 {
            let promised_ns = u64::from(promise.ms) * NANOS_PER_MS;
            let until = relied_on(sent, promised_ns.min(self.lease_ns));
            self.promise_until = self.promise_until.max(until);
        }
    }
}

/// Returns the time until which a node relies on a lease, or a promise, that it asked for at `sent`.
fn relied_on(sent: u64, lease_ns: u64) -> u64 {
    sent.saturating_add(lease_ns / 3 * 2)
}

/// An attempt to strike a node off, which the warden has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strike {
    /// The name of the node.
    pub ward: String,
    /// The version of the map from which the change is to be made, and from no other.
    pub version: u64,
}

/// What this node knows of the nodes whose warden it is: its *wards*.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Warden {
    node: Box<str>,
    /// From this time on no earlier process of this node promises anything.
    begun: u64,
    /// The version of the latest map.
    version: u64,
    wards: BTreeMap<Box<str>, Ward>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Ward {
    /// The version of the map in which the node became this node's ward.
    since: u64,
    term: u64,
    lease_ns: u64,
    is_alive: bool,
    is_missed: bool,
    /// All promises, those of earlier wardens as well, have run out.
    promised_until: u64,
    strikes: Attempts,
}

impl Warden {
    /// Returns the state of the node `node`, of which no earlier process promises anything from now on.
    #[must_use]
    pub fn new(node: &str, now: u64) -> Warden {
        Warden { node: node.into(), begun: now, version: 0, wards: BTreeMap::new() }
    }

    /// A map was read, and `is_alive` says which nodes had a document `alive/NODE` in the same state of
    /// the registry. An earlier map than the latest one changes nothing.
    pub fn follow(&mut self, map: &Map, is_alive: &dyn Fn(&str) -> bool, now: u64) {
        if map.version() < self.version {
            return;
        }
        self.version = map.version();
        let (begun, mut before) = (self.begun, std::mem::take(&mut self.wards));
        for (index, node) in map.indexed() {
            let Some(since) = node.warden.as_ref().filter(|of| *of.warden == *self.node).map(|of| of.since)
            else {
                continue;
            };
            let lease_ns = u64::from(node.lease_ms) * NANOS_PER_MS;
            let earlier = before.remove(&*node.name).filter(|ward| ward.since == since);
            let (promised_until, mut strikes) = match earlier {
                Some(ward) => (ward.promised_until, ward.strikes),
                None => (now.max(begun).saturating_add(lease_ns), Attempts::default()),
            };
            strikes.see(map.version());
            let (is_alive, is_missed) = (is_alive(&node.name), map.is_missed(index));
            let ward =
                Ward { since, term: node.term, lease_ns, is_alive, is_missed, promised_until, strikes };
            self.wards.insert(node.name.as_str().into(), ward);
        }
    }

    /// This node has its lease anew: other nodes may be about to take theirs, after the same outage, so
    /// none is struck off before it has had the time of its lease for that.
    pub fn returned(&mut self, now: u64) {
        self.begun = self.begun.max(now);
        for ward in self.wards.values_mut() {
            ward.promised_until = ward.promised_until.max(now.saturating_add(ward.lease_ns));
        }
    }

    /// Returns whether the outcome of an attempt to strike a node off is not known.
    #[must_use]
    pub fn has_open_strike(&self) -> bool {
        self.wards.values().any(|ward| ward.strikes.are_open())
    }

    /// Returns the promise to the node `ward`, whose ping has arrived. `own` is this node's own right:
    /// without it, this node may have been struck off, and another one may be the warden.
    pub fn promise(&mut self, ward: &str, own: &Holder, now: u64) -> Promise {
        let ward = self.wards.get_mut(ward).filter(|ward| own.holds(now) && !ward.strikes.are_open());
        ward.map_or(Promise::default(), |ward| {
            ward.promised_until = ward.promised_until.max(now.saturating_add(ward.lease_ns));
            Promise { ms: (ward.lease_ns / NANOS_PER_MS) as u32, term: ward.term }
        })
    }

    /// Returns the time at which the first of the nodes that have gone may be struck off, unless it is
    /// promised something before; `None` if none has gone.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        self.gone().map(|(_, ward)| ward.promised_until).min()
    }

    /// Begins an attempt to strike off a node that has gone, if there is one whose time is over: from
    /// here on the node is promised nothing. The outcome is known from the next map that is
    /// [followed](Self::follow) and has a higher version.
    pub fn begin_strike(&mut self, now: u64) -> Option<Strike> {
        let (name, _) = self.gone().find(|(_, ward)| ward.promised_until <= now)?;
        let strike = Strike { ward: name.to_owned(), version: self.version };
        self.wards.get_mut(&*strike.ward)?.strikes.begin(strike.version);
        Some(strike)
    }

    /// The attempt was refused, and not made.
    pub fn strike_refused(&mut self, strike: &Strike) {
        if let Some(ward) = self.wards.get_mut(&*strike.ward) {
            ward.strikes.refused();
        }
    }

    fn gone(&self) -> impl Iterator<Item = (&str, &Ward)> {
        let gone = |ward: &Ward| !ward.is_alive && ward.is_missed && ward.lease_ns > 0;
        self.wards.iter().filter(move |(_, ward)| gone(ward)).map(|(name, ward)| (&**name, ward))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Node;
    use crate::node::tests::node;

    const MS: u64 = NANOS_PER_MS;

    /// A ring of `a`, the owner of all slots, whose warden is `b`, and of `c`, whose warden is `a`.
    fn map() -> Map {
        let leased = |name: &str, weight| Node { lease_ms: 3000, ..node(name, weight) };
        let map = Map::first("main", leased("a", 1)).unwrap().join(leased("b", 1)).unwrap();
        let map = map.join(leased("c", 0)).unwrap().set_warden("a", Some("b")).unwrap();
        map.set_warden("c", Some("a")).unwrap()
    }

    fn holder(map: &Map, node: &str, sent: u64) -> Holder {
        let mut holder = Holder::new(node, "");
        holder.follow(map);
        holder.registered(sent);
        holder
    }

    #[test]
    fn a_node_relies_on_two_thirds_of_a_lease_and_of_a_promise_of_its_warden() {
        let map = map();
        let mut holder = Holder::new("a", "");
        holder.follow(&map);
        holder.renewed(5 * MS);
        let promise = Promise { ms: 3000, term: 1 };
        holder.promised("b", promise, 6 * MS);
        assert_eq!(holder.until(), 0, "not before the node is registered");
        holder.registered(10 * MS);
        assert_eq!(
            (holder.until(), holder.holds(2010 * MS - 1), holder.holds(2010 * MS)),
            (2010 * MS, true, false)
        );
        assert!(holder.renewed(20 * MS) && holder.renewed(15 * MS));
        assert_eq!(holder.until(), 2020 * MS);

        holder.promised("c", promise, 100 * MS);
        holder.promised("b", Promise { term: 2, ..promise }, 100 * MS);
        holder.promised("b", Promise { ms: 0, ..promise }, 100 * MS);
        assert_eq!(holder.until(), 2020 * MS);
        holder.promised("b", Promise { ms: u32::MAX, ..promise }, 30 * MS);
        assert_eq!(holder.until(), 2030 * MS, "at most the node's own lease");
        holder.lost();
        assert!(!holder.renewed(50 * MS), "also while a promise holds");
        assert_eq!(holder.until(), 2030 * MS);

        // While it changes its warden, until it knows which one it has.
        holder.begin_change(map.version());
        holder.promised("b", promise, 60 * MS);
        holder.follow(&map);
        holder.promised("b", promise, 60 * MS);
        assert_eq!(holder.until(), 2030 * MS);
        holder.change_refused();
        holder.promised("b", promise, 60 * MS);
        assert_eq!(holder.until(), 2060 * MS);
        holder.begin_change(map.version());
        holder.follow(&map.set_warden("a", Some("c")).unwrap());
        holder.promised("b", promise, 70 * MS);
        holder.promised("c", promise, 65 * MS);
        assert_eq!(holder.until(), 2065 * MS);

        // What was promised to a node that has been struck off is over.
        let struck = map.strike("a", "b", &|_| true).unwrap();
        holder.follow(&struck);
        assert_eq!(holder.until(), 0);
        // What is promised to a process on another host is not meant for this one.
        holder.registered(80 * MS);
        holder.follow(&struck.set_own(&Node { host: "other".into(), ..struck.nodes()[0].clone() }).unwrap());
        holder.promised("b", Promise { ms: 3000, term: struck.version() }, 90 * MS);
        holder.renewed(90 * MS);
        assert_eq!(holder.until(), 2080 * MS);
    }

    #[test]
    fn a_warden_strikes_a_node_off_when_all_promises_are_over() {
        let map = map();
        let own = holder(&map, "b", 0);
        let mut warden = Warden::new("b", 10 * MS);
        assert_eq!(warden.promise("a", &own, 20 * MS), Promise::default());
        warden.follow(&map, &|_| true, 5 * MS);
        assert_eq!(warden.due(), None);
        warden.follow(&map, &|name| name != "a", 50 * MS);
        // Since its process has begun, after it has read the map.
        assert_eq!(warden.due(), Some(3010 * MS));
        let promise = Promise { ms: 3000, term: 1 };
        assert_eq!(warden.promise("a", &own, 100 * MS), promise);
        assert_eq!(warden.promise("c", &own, 110 * MS), Promise::default(), "another node's ward");
        assert_eq!(warden.promise("a", &own, 2000 * MS), Promise::default(), "its own lease is over");
        assert_eq!((warden.due(), warden.begin_strike(3100 * MS - 1)), (Some(3100 * MS), None));

        let own = holder(&map, "b", 3100 * MS);
        let strike = Strike { ward: "a".into(), version: map.version() };
        assert_eq!(warden.begin_strike(3100 * MS), Some(strike.clone()));
        assert_eq!(warden.promise("a", &own, 3100 * MS), Promise::default());
        // Another attempt, whose refusal says nothing about the first one.
        assert_eq!(warden.begin_strike(3110 * MS), Some(strike.clone()));
        warden.strike_refused(&strike);
        assert_eq!(warden.promise("a", &own, 3110 * MS), Promise::default());
        let later = map.set_paused(true).unwrap();
        warden.follow(&later, &|_| true, 3120 * MS);
        warden.follow(&map, &|_| false, 3130 * MS);
        assert_eq!((warden.due(), warden.promise("a", &own, 3140 * MS)), (None, promise));

        // It takes the place of the node as a warden, and waits anew.
        let struck = map.strike("a", "b", &|name| name != "a").unwrap();
        warden.follow(&struck, &|_| false, 7000 * MS);
        assert_eq!(warden.due(), None, "nothing waits for either of them");
        let owns =
            struck.begin_move("b", "c", struck.slots_of(crate::NodeIndex(1)).take(9).collect()).unwrap();
        let owns = owns.commit_move(owns.version()).unwrap();
        warden.follow(&owns, &|_| false, 8000 * MS);
        assert_eq!(warden.due(), Some(10_000 * MS));
        // Also if another node has been the warden in between, of which it has heard nothing.
        let again = owns.set_warden("c", Some("a")).unwrap().set_warden("c", Some("b")).unwrap();
        warden.follow(&again, &|_| false, 9000 * MS);
        assert_eq!(warden.due(), Some(12_000 * MS));
    }
    #[test]
    fn a_node_without_others_answers_once_it_has_had_its_lease() {
        let two = map().remove("c").unwrap();
        let one = two.remove("b").unwrap();
        let mut holder = Holder::new("a", "");
        holder.follow(&one);
        assert!(!holder.holds(0));
        holder.registered(10 * MS);
        assert!(holder.holds(u64::MAX - 2));
        holder.follow(&two);
        assert_eq!(holder.until(), 2010 * MS);
        holder.follow(&one);
        holder.lost();
        assert!(!holder.holds(0), "another process may have the lease");
    }

    #[test]
    fn a_warden_that_returns_gives_its_wards_the_time_to_return_as_well() {
        let map = map();
        let mut warden = Warden::new("b", 0);
        warden.follow(&map, &|name| name != "a", 0);
        assert_eq!(warden.due(), Some(3000 * MS));
        warden.returned(9000 * MS);
        assert_eq!((warden.due(), warden.begin_strike(11_999 * MS)), (Some(12_000 * MS), None));
        assert!(!warden.has_open_strike() && warden.begin_strike(12_000 * MS).is_some());
        assert!(warden.has_open_strike());
    }
}
