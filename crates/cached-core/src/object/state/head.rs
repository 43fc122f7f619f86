//! The state of an object as a whole: whether it exists, its size, versions and stamp, its state in
//! the store, and the changes of the whole that wait to be stored.

use blocker::{Error, Info, ListEntry, Name, OrderDomain, Result, Stamp, Timestamp, Version};

use super::{Env, Object};
use crate::object::journal::records::PendingState;
use crate::object::lock_ranks;
use crate::object::memory::pool::Reserved;
use crate::object::tasks::deadline::FlushTicket;
use crate::sync::{Arc, Mutex, lock};

/// Whether an object exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Known {
    /// The cache does not know, and must ask the store.
    #[default]
    Unknown,
    Absent,
    Present,
}

/// The known state of an object as a whole.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) known: Known,
    /// Whether `stamp` and `claimed` are also known.
    pub(crate) is_full: bool,
    pub(crate) store_exists: bool,
    /// Whether the store may have received changes of the object that are not in the log: see
    /// `Epochs::note_unlogged`. Used while the object is recovered.
    pub(crate) has_unlogged: bool,
    /// The number of changes in flight to the store.
    pub(crate) store_changes: u32,
    pub(crate) size: u64,
    /// The version that callers see.
    pub(crate) version: u64,
    pub(crate) stamp: Option<Stamp>,
    /// The epoch in force for the object, as the store reported it.
    pub(crate) claimed: u64,
    /// The object's size in the store, as far as it is known.
    pub(crate) store_size: u64,
    /// The store's version of the known content; `None` after overlapping changes.
    pub(crate) store_version: Option<u64>,
    /// Counts the beginnings and ends of changes at the store, to distinguish this cache's changes
    /// from those of other clients.
    pub(crate) store_steps: u32,
    /// The generation of the cache's own epochs under which the object may be changed; 0 if it may
    /// not.
    pub(crate) owned: u32,
    /// The order domain whose current epoch has been requested.
    pub(crate) domain_asked: Option<OrderDomain>,
}

/// The store's report about an object as a whole.
#[derive(Clone, Copy)]
pub(crate) struct ReportedHead {
    /// The object's size and version; `None` if it does not exist.
    pub(crate) head: Option<(u64, u64)>,
    /// Whether the store has reported different versions for different ranges.
    pub(crate) is_mixed: bool,
    /// The value of `Head::store_steps` when the store was asked.
    pub(crate) steps: u32,
}

impl Head {
    /// Returns the version that callers see; `None` if the object does not exist, or is unknown.
    #[inline]
    pub(crate) fn shown_version(&self) -> Option<Version> {
        (self.known == Known::Present).then_some(Version(self.version))
    }

    /// Returns the entry of the object, which exists, in a listing.
    pub(crate) fn list_entry(&self, name: Name) -> ListEntry {
        ListEntry::new(name, self.size, Version(self.version))
    }
}

impl Object {
    /// Returns the offset up to which an absent slot means "ask the store".
    pub(crate) fn content_end(&self) -> u64 {
        match self.head.known {
            Known::Unknown => return u64::MAX,
            Known::Absent => return 0,
            Known::Present => (),
        }
        let flushing = self.flushing.as_deref();
        if self.pending.replace || flushing.is_some_and(|flushing| flushing.replace) {
            return 0;
        }
        let cut_at = flushing.map_or(u64::MAX, |flushing| flushing.truncate_to);
        self.head.store_size.min(self.pending.truncate_to).min(cut_at)
    }

    /// Returns the size, version and stamp, if all of them are known.
    pub(crate) fn info(&self) -> Option<Result<Info>> {
        if !self.head.is_full {
            return None;
        }
        match self.head.known {
            Known::Unknown => None,
            Known::Absent => Some(Err(Error::Missing)),
            Known::Present => {
                Some(Ok(Info::new(self.head.size, Version(self.head.version), self.head.stamp)))
            }
        }
    }

    /// Sets the head to the state that the store reported.
    pub(crate) fn set_head(&mut self, found: Option<(u64, u64)>) {
        let head = &mut self.head;
        head.known = if found.is_some() { Known::Present } else { Known::Absent };
        let (size, version) = found.unwrap_or((0, head.version));
        (head.size, head.version, head.store_size) = (size, version, size);
        (head.store_exists, head.store_version) = (found.is_some(), found.map(|(_, version)| version));
    }

    /// Forgets the head. The store must have everything in it.
    pub(crate) fn forget_head(&mut self, env: &Env<'_>) {
        let head = &mut self.head;
        if let Some(store) = head.store_version.filter(|store| *store != head.version) {
            env.versions.remember(env.hash, store, head.version);
        }
        (head.known, head.is_full, head.store_version) = (Known::Unknown, false, None);
    }

    /// Applies the store's report about the object as a whole; returns false if the bytes that came
    /// with the report must be requested again.
    pub(crate) fn apply_head(&mut self, env: &Env<'_>, reported: ReportedHead) -> bool {
        let is_quiet = self.head.store_steps == reported.steps && self.head.store_changes == 0;
        match (self.head.known, reported.head) {
            _ if is_quiet && reported.is_mixed => {
                // Another client changed the object while it was being read: it is not known which
                // bytes are older.
                self.invalidate(env, &mut Reserved::none(env.pool));
                return false;
            }
            (Known::Present, None) => return self.gone_below(env, reported, is_quiet),
            // A change overlapped the request: the report may be from before the change.
            _ if !is_quiet => (),
            (Known::Unknown, found) => self.found_below(env, found),
            (Known::Present, Some((_, version))) => {
                // The version differs from the known one, and this cache has made no change in
                // between: another client has changed the object in the store, so the cached
                // content is outdated.
                if self.head.store_version.is_some_and(|known| known != version) {
                    self.invalidate(env, &mut Reserved::none(env.pool));
                    if self.head.known == Known::Unknown {
                        self.found_below(env, reported.head);
                    } else {
                        self.head.store_version = Some(version);
                    }
                }
            }
            (Known::Absent, _) => (),
        }
        true
    }

    /// Applies the store's report about an object of which nothing was known.
    fn found_below(&mut self, env: &Env<'_>, found: Option<(u64, u64)>) {
        self.set_head(found);
        self.head.is_full = false;
        if let Some((_, version)) = found {
            self.head.version = env.versions.shown_for(env.hash, version);
        }
    }

    /// Handles a report that an object which was known to exist is missing: another client has
    /// removed it. Content that is newer than the store stays, and will create the object again.
    /// Returns the same as [`Self::apply_head`].
    fn gone_below(&mut self, env: &Env<'_>, reported: ReportedHead, is_quiet: bool) -> bool {
        let stays = self.has_pending() || self.flushing.is_some();
        // At most one flush of this cache has begun since, and no change has ended.
        let is_flushing = self.flushing.is_some() && self.head.store_changes == 1;
        let has_only_begun = is_flushing && self.head.store_steps.wrapping_sub(reported.steps) <= 1;
        self.invalidate(env, &mut Reserved::none(env.pool));
        if stays && (is_quiet || has_only_begun) {
            // This holds until the flush that creates the object again has ended.
            (self.head.store_size, self.head.store_exists) = (0, false);
        } else if is_quiet {
            self.found_below(env, None);
        } else {
            return false;
        }
        true
    }
}

/// The changes of the object as a whole that wait to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// Whether all content will be replaced or, if the object is absent, whether it will be
    /// removed.
    pub(crate) replace: bool,
    /// The smallest size since the object was last stored; `u64::MAX` if it was not truncated.
    pub(crate) truncate_to: u64,
    /// Whether the size, or the existence of the object, must be stored.
    pub(crate) size_dirty: bool,
    pub(crate) change_seq: u64,
    /// The sequence number up to which changes are stored.
    pub(crate) stored_seq: u64,
    pub(crate) dirty_since: Timestamp,
    /// The order domain of all changes that are not stored: a change of another domain waits until
    /// they are stored.
    pub(crate) domain: Option<OrderDomain>,
    /// Room in the dirty limit for changes without a bucket: see `buckets.rs`.
    pub(crate) bucketless: u32,
    /// The object's number in the dirty queue; 0 if it is not queued.
    pub(crate) queue_number: u64,
    /// Whether the dirty queue holds the log from the object's oldest record that is not stored.
    pub(crate) is_held: bool,
    /// The log position of the object's last change; 0 if it has none.
    pub(crate) logged_to: u64,
    /// The number of consecutive failed flushes.
    pub(crate) failures: u32,
    /// Whether some of the pending changes have been acknowledged; otherwise all their callers
    /// still wait for *stored*.
    pub(crate) is_acknowledged: bool,
    /// Whether the store has lost writes of the object that it had not stored: only a write of the
    /// whole object repairs this.
    pub(crate) lost_below: bool,
    /// Whether other clients may have changed the object in the store: its size there is requested
    /// once the pending changes are stored.
    pub(crate) is_invalidated: bool,
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            is_invalidated: false,
            replace: false,
            truncate_to: u64::MAX,
            size_dirty: false,
            change_seq: 0,
            stored_seq: 0,
            dirty_since: Timestamp(0),
            domain: None,
            bucketless: 0,
            queue_number: 0,
            is_held: false,
            logged_to: 0,
            failures: 0,
            is_acknowledged: false,
            lost_below: false,
        }
    }
}

impl Pending {
    /// Forgets the changes of the object as a whole, because a flush sends them or they are lost.
    pub(super) fn forget_whole(&mut self) {
        (self.replace, self.truncate_to, self.size_dirty, self.bucketless) = (false, u64::MAX, false, 0);
    }
}

impl Object {
    /// Returns whether any change of the object is not stored.
    pub(crate) fn has_pending(&self) -> bool {
        let pending = &self.pending;
        pending.replace
            || pending.truncate_to != u64::MAX
            || pending.size_dirty
            || self.slots.dirty_count() > 0
    }

    /// Returns whether changes of an order domain other than `domain` are not stored yet.
    #[inline]
    pub(crate) fn has_other_domain(&self, domain: Option<OrderDomain>) -> bool {
        self.pending.domain != domain && self.pending.change_seq > self.pending.stored_seq
    }

    /// Returns whether [`Self::note_change`] needs the time of the next change.
    pub(crate) fn asks_for_time(&self) -> bool {
        self.pending.queue_number == 0
            || self.pending.change_seq == self.pending.stored_seq
            || self.flushing.as_ref().is_some_and(|it| it.newer_since.is_none())
    }

    /// Records a change that the store does not have, made at `now` if [`Self::asks_for_time`].
    pub(crate) fn note_change(&mut self, now: Timestamp, version: u64, domain: Option<OrderDomain>) {
        let was_pending = self.pending.change_seq > self.pending.stored_seq;
        if let Some(flushing) = &mut self.flushing {
            flushing.newer_since.get_or_insert(now);
        }
        let pending = &mut self.pending;
        if !was_pending {
            (pending.dirty_since, pending.domain) = (now, domain);
        }
        debug_assert_eq!(pending.domain, domain, "changes of two domains wait for one flush");
        pending.change_seq += 1;
        self.head.version = version;
    }

    /// Adds all changes of the object so far to `ticket`.
    pub(crate) fn wait_until_stored(&mut self, ticket: Arc<FlushTicket>) {
        ticket.add();
        let seq = self.pending.change_seq;
        self.activity().flush_waiters.push((seq, ticket));
    }

    /// Removes the tickets whose changes are stored, and returns each with its result.
    pub(crate) fn take_stored_waiters(&mut self) -> Vec<(Arc<FlushTicket>, Result<()>)> {
        if self.flushing.is_none() && !self.has_pending() {
            self.pending.stored_seq = self.pending.change_seq;
            self.pending.is_acknowledged = false;
        }
        let stored = self.pending.stored_seq;
        let Some(activity) = self.activity_mut() else { return Vec::new() };
        let (done, waiting) = std::mem::take(&mut activity.flush_waiters)
            .into_iter()
            .partition::<Vec<_>, _>(|(seq, _)| *seq <= stored);
        activity.flush_waiters = waiting;
        self.drop_if_idle();
        done.into_iter().map(|(_, ticket)| (ticket, Ok(()))).collect()
    }

    // The pending changes of an object, to be logged again.

    /// Returns the pending changes of the object. No flush of the object may be in flight.
    pub(crate) fn pending_state(&self, env: &Env<'_>) -> PendingState {
        let (head, pending) = (self.head, self.pending);
        let is_present = head.known == Known::Present;
        let truncate_to = (pending.truncate_to != u64::MAX).then_some(pending.truncate_to);
        let has_size = is_present && (pending.size_dirty || pending.replace || truncate_to.is_some());
        let size = has_size.then_some(head.size);
        let mut runs = Vec::new();
        self.slots.known_from(0).for_each(|slot| self.push_pending(env, &mut runs, slot, u64::MAX));
        PendingState { is_present, is_replaced: pending.replace, truncate_to, size, runs }
    }
}

const STRIPES: usize = 16;
const ENTRIES_MIN: u32 = 1024;

#[derive(Clone, Copy, Default)]
struct Entry {
    hash: u64,
    store: u64,
    shown: u64,
}

/// The versions by which callers knew objects that have been evicted from the cache.
///
/// A change that is acknowledged before the store has seen it gets a version from the cache; the
/// store assigns another one when the change is flushed. While the object is cached, callers
/// continue to see the cache's version. This table lets them see the same version when the object
/// is loaded again: for recently evicted objects it remembers the store's version and the one that
/// callers saw for it. The table is bounded and forgets old entries. For a forgotten entry, callers
/// see the store's version, as if the object had been changed without effect; a conditional request
/// then fails, and the caller must read again.
pub(crate) struct Versions {
    stripes: Box<[Mutex<Box<[Entry]>>]>,
}

impl Versions {
    /// Creates a table for an index of `objects` nodes.
    pub(crate) fn new(objects: u32) -> Self {
        let entries = objects.clamp(ENTRIES_MIN, 1 << 20).next_power_of_two() as usize / STRIPES;
        let stripe =
            || Mutex::ranked(vec![Entry::default(); entries].into_boxed_slice(), &lock_ranks::VERSIONS);
        Self { stripes: (0..STRIPES).map(|_| stripe()).collect() }
    }

    fn with<R>(&self, hash: u64, job: impl FnOnce(&mut Entry) -> R) -> R {
        let mut entries = lock(&self.stripes[hash as usize % STRIPES]);
        let at = (hash >> 8) as usize & (entries.len() - 1);
        job(&mut entries[at])
    }

    /// Remembers that callers saw the version `shown` for the store's version `store` of an evicted
    /// object.
    pub(crate) fn remember(&self, hash: u64, store: u64, shown: u64) {
        self.with(hash, |entry| *entry = Entry { hash, store, shown });
    }

    /// Returns the version that callers saw for the store's version `store`, or `store` if none is
    /// remembered.
    pub(crate) fn shown_for(&self, hash: u64, store: u64) -> u64 {
        self.with(hash, |entry| if (entry.hash, entry.store) == (hash, store) { entry.shown } else { store })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_shown_again_as_long_as_the_store_has_what_it_stood_for() {
        let versions = Versions::new(1);
        versions.remember(5, 100, 7);
        assert_eq!(versions.shown_for(5, 100), 7);
        assert_eq!(versions.shown_for(5, 101), 101, "changed below");
        assert_eq!(versions.shown_for(6, 100), 100, "another object");
    }
}
