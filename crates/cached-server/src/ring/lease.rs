//! The lease of this node, by which it answers for its slots, and what it does as the warden of other
//! nodes: it strikes those off that have gone.
//!
//! ```text
//!  renewed ─► alive/NODE is bound to the lease ─────────────────────────────────────────► valid
//!  new, or after a lapse ─► alive/NODE is bound to it ─► the map is read ─► in force ──────┘
//! ```
//! [`RingLease`] decides until when the lease is valid, and who may be struck off at which time. Here is
//! what needs the registry.

use super::documents::{Alive, BackOff, Documents, DocumentsError, Guards};
use super::steward::Shared;
use cached_memcached::RingLease;
use cached_registry::{Error, Lease, Revision};
use cached_ring::{Look, Map, Node, Predecessor, Strike};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// The number of times that a lease is renewed within its duration.
const RENEWALS: u32 = 5;

/// The part of a lease's duration that an attempt to renew it may take.
const ATTEMPTS: u32 = 3;

/// The cause of a lapse if nothing else is known that kept the lease from being renewed.
const STOOD_STILL: &str = "this process stood still";

/// The shortest and the longest time between two looks at the other nodes' leases.
const LOOK_MIN: Duration = Duration::from_millis(100);
const LOOK_MAX: Duration = Duration::from_secs(60);

/// The longest time for which the end of the process waits for the registry, which may be choosing a leader
/// of its own, and whose documents other nodes may change that end at the same time.
const SIGN_OFF_MAX: Duration = Duration::from_secs(3);

/// What is known of other processes of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    /// None runs: a lease that is held for the node is that of a process that has ended.
    None,
    /// This process takes over from another one, and goes on with its lease, which is the node's: only
    /// one of them serves.
    Precedes,
    /// A lease that is held for the node, and is not this process's, is that of a second process.
    Second,
}

/// The lease that this node holds in the registry.
#[derive(Debug)]
pub(super) struct NodeLease {
    node: String,
    duration: Duration,
    held: Option<Lease>,
    /// The revision of the node's document that this process has written.
    written: Revision,
    /// The time before the registry was asked to grant or renew it.
    sent: u64,
    others: Others,
    /// What was seen of an earlier process on another host.
    predecessor: Predecessor,
    /// The node's term in the map that was read last.
    term: u64,
}

/// Whose lease is held for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewed {
    /// This process's: the node's document is bound to it.
    Own,
    /// The node's: another process, which takes over or has failed to, has written the node's document,
    /// and goes on with the same lease.
    Shared,
    /// None, or another one.
    No,
}

impl NodeLease {
    /// Returns the lease of the node `own`, which is not held yet, in a start that is not a take-over if it
    /// `is_fresh`.
    pub(super) fn new(own: &Node, is_fresh: bool) -> NodeLease {
        let others = if is_fresh { Others::None } else { Others::Precedes };
        NodeLease {
            node: own.name.clone(),
            duration: Duration::from_millis(own.lease_ms.into()),
            held: None,
            written: Revision::default(),
            sent: 0,
            others,
            predecessor: Predecessor::default(),
            term: 0,
        }
    }

    /// Returns whether this process had bound the node's document to the lease when the documents were
    /// read.
    pub(super) fn is_bound(&self, alive: &Alive) -> bool {
        let held = self.held.as_ref().map(|held| held.id);
        held.is_some() && alive.get(&self.node) == Some((self.written, held))
    }

    /// Renews the lease.
    pub(super) async fn renew(&mut self, documents: &Documents) -> Result<Renewed, Error> {
        let Some(held) = &self.held else { return Ok(Renewed::No) };
        let sent = RingLease::now();
        let Some((renewed, revision)) = documents.renew(&self.node, held).await? else {
            self.held = None;
            return Ok(Renewed::No);
        };
        (self.held, self.sent) = (Some(renewed), sent);
        Ok(if revision == self.written { Renewed::Own } else { Renewed::Shared })
    }

    /// Takes a lease, and binds the node's document to it; the documents have just been read. Returns
    /// false if a second process of this node holds one. The map must be read afterwards, because the
    /// node may have been struck off before.
    pub(super) async fn take(&mut self, documents: &Documents) -> Result<bool, Error> {
        let known = documents.alive().borrow().get(&self.node).and_then(|(_, lease)| lease);
        let is_shared = known.is_some_and(|id| self.held.as_ref().is_some_and(|held| held.id == id));
        if let (Some(id), Others::Precedes) = (known, self.others) {
            self.held = Some(Lease { id, duration: self.duration, until: Default::default() });
            if self.renew(documents).await? == Renewed::No {
                // It has just ended.
                return Err(Error::LeaseEnded);
            }
        } else if known.is_some() && !is_shared && self.others == Others::Second {
            return Ok(false);
        } else if !is_shared {
            let sent = RingLease::now();
            (self.held, self.sent) = (Some(documents.grant(self.duration).await?), sent);
        }
        if let Some(held) = &self.held {
            self.written = documents.bind(&self.node, held).await?;
        }
        Ok(true)
    }

    /// Returns the duration of the lease, in milliseconds. A process that takes over keeps to that of the
    /// lease with which it goes on, `known_ms`; 0 is none.
    pub(super) fn duration_ms(&mut self, known_ms: u32) -> u32 {
        if self.others == Others::Precedes && known_ms > 0 {
            self.duration = Duration::from_millis(known_ms.into());
        }
        self.duration.as_millis() as u32
    }

    /// Returns whether this process takes over from no other, and has not joined yet.
    pub(super) fn is_first(&self) -> bool {
        self.others == Others::None
    }

    /// Returns what this process, which is `own`, may do next, because an earlier one may run on another
    /// host. The documents have just been read.
    pub(super) fn look<'a>(&mut self, own: &Node, map: &'a Map, alive: &Alive) -> Look<'a> {
        self.predecessor.look(map, own, &|node| alive.has(node), RingLease::now())
    }

    /// Says that this process has joined the ring, with this map.
    pub(super) fn set_joined(&mut self, map: Option<&Map>) {
        self.others = Others::Second;
        self.term = map.map_or(0, |map| self.term_in(map));
    }

    fn term_in(&self, map: &Map) -> u64 {
        map.find(&self.node).map_or(0, |own| map.node(own).term)
    }

    /// Says that a map is in force that was read since the node's document is bound to the lease.
    pub(super) fn register(&self, own: &RingLease) {
        own.registered(self.sent);
    }

    /// Notes a map that was read. Returns whether the node was struck off since the one before.
    fn is_struck(&mut self, map: &Map) -> bool {
        let term = self.term_in(map);
        let before = std::mem::replace(&mut self.term, term);
        ![0, term].contains(&before)
    }
}

/// What was logged of the lease.
struct Told {
    is_valid: bool,
    renewed: Instant,
    is_away: bool,
    is_stalled: bool,
}

impl Shared {
    /// Keeps this node's lease.
    pub(super) async fn keep_lease(&self, mut lease: NodeLease) {
        let Some(own) = self.live.ring_lease() else { return std::future::pending().await };
        self.written.set(Some(lease.written));
        let (is_valid, renewed) = (own.is_valid(), Instant::now());
        let mut told = Told { is_valid, renewed, is_away: false, is_stalled: false };
        let mut back_off = BackOff::short();
        loop {
            self.wait_for_disk().await;
            // The memory file of a server that has ended may take long, and others can answer meanwhile.
            if self.live.ring_lease().is_none() || self.is_replaced() {
                return std::future::pending().await;
            }
            if self.is_stalled(&own, &mut told) {
                sleep(lease.duration / RENEWALS).await;
                continue;
            }
            self.tell(&own, &mut told, STOOD_STILL);
            let renewing = timeout(lease.duration / ATTEMPTS, self.renew(&mut lease, &own));
            match self.changing(renewing).await {
                Ok(Ok(())) => {
                    (told.renewed, told.is_away) = (Instant::now(), false);
                    self.tell(&own, &mut told, STOOD_STILL);
                    back_off.reset();
                    sleep(lease.duration / RENEWALS).await;
                }
                failed => {
                    let cause = match failed {
                        Ok(Err(error)) => error.to_string(),
                        _ => "the registry does not answer in time".to_owned(),
                    };
                    self.tell(&own, &mut told, &cause);
                    if told.is_valid
                        && told.renewed.elapsed() > lease.duration
                        && !std::mem::replace(&mut told.is_away, true)
                    {
                        tracing::warn!(
                            cause,
                            "the registry has not renewed the lease of this node: another node's promises hold it"
                        );
                    }
                    back_off.wait().await;
                }
            }
        }
    }

    /// Returns whether the latest map lacks the node, or names another process of it: then the server ends.
    fn is_replaced(&self) -> bool {
        let latest = self.documents.latest().borrow().clone();
        let own = |map: &Map| Some(map.node(map.find(&self.own.name)?).runs_on(&self.own.host));
        latest.is_some_and(|map| own(&map) != Some(true))
    }

    /// Renews the lease, or takes another one.
    async fn renew(&self, lease: &mut NodeLease, own: &RingLease) -> Result<(), DocumentsError> {
        let renewed = lease.renew(&self.documents).await?;
        if renewed == Renewed::No {
            own.lost();
        }
        // A promise may hold the node that has taken another lease, and has not read the map since.
        let counts = match renewed {
            Renewed::Own => own.is_valid() && own.renewed(lease.sent),
            Renewed::Shared if *self.is_held.borrow() => {
                own.renewed(lease.sent);
                true
            }
            Renewed::Shared | Renewed::No => false,
        };
        if counts {
            self.written.set(Some(lease.written));
            return Ok(());
        }
        if renewed != Renewed::Own {
            self.documents.find().await?;
            if !lease.take(&self.documents).await? {
                return Err(DocumentsError::Twin);
            }
        }
        // The node may have been struck off in the meantime.
        let read = self.documents.read().await?;
        if !lease.is_bound(&read.alive) {
            return Err(DocumentsError::Twin);
        }
        if lease.is_struck(&read.map) {
            tracing::warn!(
                node = self.own.name,
                version = read.map.version(),
                "this node was struck off while its lease had ended: it starts with no items, and is given slots anew"
            );
        }
        self.until_in_force(read.map.version()).await;
        self.written.set(Some(lease.written));
        lease.register(own);
        Ok(())
    }

    /// Returns what a change as a warden, or of the own warden, requires: that no other process of this
    /// node has its lease.
    fn guards<'a>(&'a self, lost: &'a [&'a str]) -> Option<Guards<'a>> {
        Some(Guards { lost, own: Some((&self.own.name, self.written.get()?)) })
    }

    /// Returns whether the lease is not to be renewed, because a worker makes no progress: clients of that
    /// worker wait in vain, and other nodes can answer.
    fn is_stalled(&self, own: &RingLease, told: &mut Told) -> bool {
        let is_stalled = own.is_stalled();
        if is_stalled && !told.is_stalled {
            tracing::error!(
                "a worker makes no progress: this node does not renew its lease, and is struck off unless the worker \
                 goes on"
            );
        }
        told.is_stalled = is_stalled;
        if is_stalled {
            self.tell(own, told, "a worker makes no progress");
        }
        is_stalled
    }

    /// Logs a lapse of the lease with its cause, and its end, once each.
    fn tell(&self, own: &RingLease, told: &mut Told, cause: &str) {
        let is_valid = own.is_valid();
        match (std::mem::replace(&mut told.is_valid, is_valid), is_valid) {
            (true, false) => {
                own.count_lapse();
                tracing::error!(
                    cause,
                    "the lease of this node has lapsed: until it is renewed, requests for its slots wait"
                );
            }
            (false, true) => tracing::info!("this node has its lease, and answers for its slots"),
            _ => {}
        }
    }

    /// Keeps this node's warden, and strikes off nodes whose warden it is.
    pub(super) async fn keep_wards(&self) {
        let Some(own) = self.live.ring_lease() else { return std::future::pending().await };
        let (mut latest, mut alive) = (self.documents.latest(), self.documents.alive());
        let mut held = self.is_held.subscribe();
        let mut back_off = BackOff::short();
        loop {
            latest.mark_unchanged();
            alive.mark_unchanged();
            let is_held = *held.borrow_and_update();
            // While another process takes over this node, this one changes nothing.
            let tended = if is_held { Ok(()) } else { self.changing(self.tend(&own)).await };
            if let Err(error) = tended {
                tracing::debug!(cause = %error, "a change of a warden, or a strike, was not made");
                back_off.wait().await;
                continue;
            }
            back_off.reset();
            let due = own.due_within().filter(|_| !is_held);
            tokio::select! {
                _ = latest.changed() => {}
                _ = alive.changed() => {}
                _ = held.changed() => {}
                () = sleep(look_within(due)) => {}
            }
        }
    }

    /// Makes one change, if one is due.
    async fn tend(&self, own: &RingLease) -> Result<(), DocumentsError> {
        let (latest, alive) = (self.documents.latest(), self.documents.alive());
        let (map, alive) = (latest.borrow().clone(), alive.borrow().clone());
        if let Some(map) = map
            && wanted_warden(&map, &alive, &self.own.name).is_some()
        {
            return self.set_warden(own).await;
        }
        match own.begin_strike() {
            Some(strike) => self.strike(own, &strike).await,
            None if own.has_open_attempt() => self.raise_version().await,
            None => Ok(()),
        }
    }

    /// Makes a change that only raises the version: after it, no earlier attempt can be made any more.
    async fn raise_version(&self) -> Result<(), DocumentsError> {
        let before = self.documents.read().await?;
        let Some(guards) = self.guards(&[]) else { return Ok(()) };
        let after = before.map.set_paused(before.map.is_paused())?;
        self.documents.write(Some(&before), &after, guards).await
    }

    /// Gives this node another warden.
    async fn set_warden(&self, own: &RingLease) -> Result<(), DocumentsError> {
        let before = self.documents.read().await?;
        let Some(warden) = wanted_warden(&before.map, &before.alive, &self.own.name) else { return Ok(()) };
        let Some(guards) = self.guards(&[]) else { return Ok(()) };
        let after = before.map.set_warden(&self.own.name, Some(warden))?;
        own.begin_change(before.map.version());
        let written = self.documents.write(Some(&before), &after, guards).await;
        match &written {
            Ok(()) => tracing::debug!(warden, version = after.version(), "this node has another warden"),
            Err(error) if !error.is_unknown() => own.change_refused(),
            Err(_) => {}
        }
        written
    }

    /// Strikes off a node that has gone.
    async fn strike(&self, own: &RingLease, strike: &Strike) -> Result<(), DocumentsError> {
        let struck = self.try_strike(strike).await;
        match &struck {
            Ok(Some(after)) => {
                own.count_strike();
                let (node, version) = (&strike.ward, after.version());
                tracing::warn!(
                    node,
                    version,
                    "a node is struck off, whose lease has ended: its slots are given to the others, without its items"
                );
            }
            Err(error) if error.is_unknown() => {}
            Ok(None) | Err(_) => own.strike_refused(strike),
        }
        struck.map(drop)
    }

    /// Returns the map in which a node is struck off; `None` if there is another map by now, or the node
    /// has its lease.
    async fn try_strike(&self, Strike { ward, version }: &Strike) -> Result<Option<Map>, DocumentsError> {
        let before = self.documents.read().await?;
        let lost = [ward.as_str()];
        let guards =
            self.guards(&lost).filter(|_| before.map.version() == *version && !before.alive.has(ward));
        let Some(guards) = guards else { return Ok(None) };
        let after = before.map.strike(ward, &self.own.name, &|node| before.alive.has(node))?;
        self.documents.write(Some(&before), &after, guards).await?;
        Ok(Some(after))
    }

    /// Notes in the registry that this process, whose server has ended, has ended in order, so that the next
    /// one of this node need not wait, on whichever host it starts.
    pub(super) async fn sign_off(&self) {
        // The server needs no map any more.
        self.documents.hold(true);
        let mut back_off = BackOff::short();
        let mut cause = "the registry does not answer in time".to_owned();
        let signing_off = async {
            loop {
                match self.try_sign_off().await {
                    // The map has changed in the meantime, or the registry is away for a moment. If the
                    // change was made, the next attempt finds that.
                    Err(DocumentsError::Registry(
                        error @ (Error::Conflict { .. } | Error::Unavailable(_) | Error::OutcomeUnknown(_)),
                    )) => cause = error.to_string(),
                    other => return other,
                }
                back_off.wait().await;
            }
        };
        let signed_off = timeout(SIGN_OFF_MAX, signing_off).await;
        match signed_off {
            Ok(Ok(())) => return,
            Ok(Err(error)) => cause = error.to_string(),
            Err(_) => {}
        }
        tracing::warn!(
            cause,
            "the registry does not know that this node has ended in order: on another host it starts once it is struck \
             off"
        );
    }

    async fn try_sign_off(&self) -> Result<(), DocumentsError> {
        let before = self.documents.read().await?;
        let (map, Node { name, host, .. }) = (&before.map, &self.own);
        let is_own = map.find(name).is_some_and(|index| map.node(index).runs_on(host));
        let Some(guards) = self.guards(&[]).filter(|_| is_own) else { return Ok(()) };
        if before.alive.get(name).map(|(written, _)| written) != self.written.get() {
            // Nobody renews it any more.
            return Err(Error::LeaseEnded.into());
        }
        self.documents.write(Some(&before), &map.sign_off(name)?, guards).await
    }
}

/// Returns the time until the next look at the other nodes' leases, if one may have to be struck off after
/// the time `due`. One whose time is over stays while this node has no lease itself.
fn look_within(due: Option<Duration>) -> Duration {
    due.map_or(LOOK_MAX, |due| due.clamp(LOOK_MIN, LOOK_MAX))
}

/// Returns the name of the node that is to be the warden of `node` instead of the present one.
fn wanted_warden<'a>(map: &'a Map, alive: &Alive, node: &str) -> Option<&'a str> {
    let own = map.node(map.find(node)?);
    // Without its lease this node could be struck off in the meantime.
    let wanted = map.warden_for(node, &|node| alive.has(node)).filter(|_| alive.has(node))?;
    (own.warden.as_ref().map(|of| of.warden.as_str()) != Some(wanted)).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_lease_does_not_look_at_others_all_the_time() {
        assert_eq!(look_within(Some(Duration::ZERO)), LOOK_MIN);
        assert_eq!(look_within(Some(Duration::from_secs(3))), Duration::from_secs(3));
        assert_eq!([Some(Duration::MAX), None].map(look_within), [LOOK_MAX; 2]);
    }
}
