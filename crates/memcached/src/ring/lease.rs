//! The lease of a node: until when it executes requests for its own slots, in a ring whose map is in a
//! registry; and what it promises to other nodes, as their warden. [`cached_ring`] decides both.
//!
//! Workers ask [`is_valid`](RingLease::is_valid) once the bytes of requests have arrived. So a node that
//! was stopped executes nothing that a client sends after another node may have been given its slots.

use crate::locks::{LEASE, Lock};
use cached_ring::{Holder, Map, Promise, Report, Strike, Warden};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time of a node without leases, which executes requests at any time.
const FOREVER: u64 = u64::MAX;

/// Returns the time since this host has started, in nanoseconds, which includes the time for which it
/// was suspended.
pub(crate) fn boot_time() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    // Neither part is ever negative.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The lease of this node, and its part in the leases of other nodes.
#[derive(Debug)]
pub struct RingLease {
    /// The time until which requests are executed, as [`boot_time`].
    until: AtomicU64,
    /// `None` in a ring without leases.
    parts: Option<Lock<Parts>>,
    /// The time for which the worker that has made no progress for longest has made none, in nanoseconds.
    stalled_ns: AtomicU64,
    lapses: AtomicU64,
    strikes: AtomicU64,
}

#[derive(Debug)]
struct Parts {
    holder: Holder,
    warden: Warden,
}

/// The state of the lease, for reports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseReport {
    /// The time that is left.
    pub(crate) left: Duration,
    /// How often the node had to stop answering for its slots.
    pub(crate) lapses: u64,
    /// The number of nodes that this one has struck off.
    pub(crate) strikes: u64,
}

impl RingLease {
    /// Returns the lease of the node `own` of the map in which it has joined. It has lapsed until it is
    /// [registered](Self::registered).
    pub(super) fn new(own: &str, map: &Map, has_leases: bool) -> RingLease {
        let host = map.find(own).map_or("", |index| &map.node(index).host);
        let mut holder = Holder::new(own, host);
        holder.follow(map);
        let parts = || Parts { holder, warden: Warden::new(own, boot_time()) };
        RingLease {
            until: AtomicU64::new(if has_leases { 0 } else { FOREVER }),
            parts: has_leases.then(|| Lock::ranked(parts(), &LEASE)),
            stalled_ns: AtomicU64::new(0),
            lapses: AtomicU64::new(0),
            strikes: AtomicU64::new(0),
        }
    }

    /// Returns whether this node may execute requests that have arrived for its own slots.
    #[inline]
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let until = self.until.load(Ordering::Acquire);
        until == FOREVER || boot_time() < until
    }

    /// Returns the time, as `registered` and `renewed` need it: to be asked before the registry is.
    #[must_use]
    pub fn now() -> u64 {
        boot_time()
    }

    fn with<R: Default>(&self, body: impl FnOnce(&mut Parts, u64) -> R) -> R {
        let Some(parts) = &self.parts else { return R::default() };
        let mut parts = parts.lock();
        let result = body(&mut parts, boot_time());
        self.until.store(parts.holder.until(), Ordering::Release);
        result
    }

    // ---- for the server ----

    /// A map has been put in force.
    pub(super) fn follow(&self, map: &Map) {
        self.with(|parts, _| parts.holder.follow(map));
    }

    /// The worker that has made no progress for longest has made none for this time. Takes no lock: the
    /// worker may hold it.
    pub(crate) fn note_stall(&self, stalled: Duration) {
        let stalled_ns = u64::try_from(stalled.as_nanos()).unwrap_or(u64::MAX);
        self.stalled_ns.store(stalled_ns, Ordering::Relaxed);
    }

    /// A node has answered the PING that was queued at `sent`. A promise that was not asked for does not
    /// count.
    pub fn promised(&self, by: &str, sent: u64, report: &Report) {
        if report.promise.ms > 0 && !self.is_stalled() {
            self.with(|parts, _| parts.holder.promised(by, report.promise, sent));
        }
    }

    /// Returns the promise to a node whose PING has arrived.
    pub(crate) fn promise(&self, ward: &str) -> Promise {
        self.with(|Parts { holder, warden }, now| warden.promise(ward, holder, now))
    }

    /// Returns the state for reports; `None` without leases.
    pub(super) fn report(&self) -> Option<LeaseReport> {
        self.parts.as_ref()?;
        let left = self.until.load(Ordering::Acquire).saturating_sub(boot_time());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (lapses, strikes) = (count(&self.lapses), count(&self.strikes));
        Some(LeaseReport { left: Duration::from_nanos(left), lapses, strikes })
    }

    // ---- for the steward ----

    /// Returns whether the lease is not to be renewed, because a worker makes no progress.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        let stalled_ns = self.stalled_ns.load(Ordering::Relaxed);
        self.with(|parts, _| parts.holder.gives_up(stalled_ns))
    }

    /// The registry has granted or renewed the lease, by a request of the time `sent`, the node's
    /// document is bound to it, and a map is in force that was read afterwards.
    pub fn registered(&self, sent: u64) {
        self.with(|Parts { holder, warden }, now| {
            if !holder.holds(now) {
                warden.returned(now);
            }
            holder.registered(sent);
        });
    }

    /// The registry has renewed the lease, by a request of the time `sent`. Returns false if this does not
    /// count, because the node must be [registered](Self::registered) before.
    pub fn renewed(&self, sent: u64) -> bool {
        self.parts.is_none() || self.with(|parts, _| parts.holder.renewed(sent))
    }

    /// The lease has ended in the registry, or the node's document is not bound to it.
    pub fn lost(&self) {
        self.with(|parts, _| parts.holder.lost());
    }

    /// The documents of the ring have been read: `is_alive` says whose leases held.
    pub fn read(&self, map: &Map, is_alive: &dyn Fn(&str) -> bool) {
        self.with(|parts, now| parts.warden.follow(map, is_alive, now));
    }

    /// An attempt begins to give this node another warden than in the map of this version.
    pub fn begin_change(&self, version: u64) {
        self.with(|parts, _| parts.holder.begin_change(version));
    }

    /// This attempt was not made.
    pub fn change_refused(&self) {
        self.with(|parts, _| parts.holder.change_refused());
    }

    /// Returns the time after which a node may have to be struck off, if one has gone.
    #[must_use]
    pub fn due_within(&self) -> Option<Duration> {
        self.with(|parts, now| Some(Duration::from_nanos(parts.warden.due()?.saturating_sub(now))))
    }

    /// Begins an attempt to strike off a node that has gone, if the time has come, and this node may
    /// answer itself.
    #[must_use]
    pub fn begin_strike(&self) -> Option<Strike> {
        self.with(
            |Parts { holder, warden }, now| {
                if holder.holds(now) { warden.begin_strike(now) } else { None }
            },
        )
    }

    /// Returns whether an attempt to change the own warden, or to strike a node off, has an outcome that
    /// is not known: until a later map is, its promises do not count, or are not given.
    #[must_use]
    pub fn has_open_attempt(&self) -> bool {
        self.with(|parts, _| parts.holder.has_open_change() || parts.warden.has_open_strike())
    }

    /// This attempt was not made.
    pub fn strike_refused(&self, strike: &Strike) {
        self.with(|parts, _| parts.warden.strike_refused(strike));
    }

    /// Counts a node that this one has struck off.
    pub fn count_strike(&self) {
        self.strikes.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a lapse of the lease.
    pub fn count_lapse(&self) {
        self.lapses.fetch_add(1, Ordering::Relaxed);
    }
}
