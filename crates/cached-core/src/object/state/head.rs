//! What is known of an object as a whole: whether it exists, its size, versions and stamp, what the store has,
//! and what waits to be stored.

use blocker::{Error, Info, ListEntry, Name, OrderDomain, Result, Stamp, Timestamp, Version};

use super::flush::pinned;
use super::flush_plan::{push, spans};
use super::{Env, Object};
use crate::object::journal::records::PendingState;
use crate::object::lock_ranks;
use crate::object::memory::pool::{BUCKET, Reserved};
use crate::object::memory::slots::State;
use crate::object::tasks::deadline::FlushTicket;
use crate::sync::{Arc, Mutex, lock};

/// Whether an object exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Known {
    /// The store has not been asked.
    #[default]
    Unknown,
    Absent,
    Present,
}

/// An object's entry in a listing, as far as the cache knows it.
pub(crate) enum Listed {
    /// The store knows it: nothing is pending of an object of which nothing is known.
    Unknown,
    Absent,
    Present(ListEntry),
}

/// What is known of an object as a whole.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) known: Known,
    /// Whether `stamp` and `claimed` are known as well.
    pub(crate) is_full: bool,
    pub(crate) store_exists: bool,
    /// Whether the store may have had of the object what the log had not: see `Epochs::note_unlogged`. Of use
    /// while the object is recovered.
    pub(crate) has_unlogged: bool,
    /// The number of changes on their way to the store.
    pub(crate) store_changes: u32,
    pub(crate) size: u64,
    /// The version that callers see.
    pub(crate) version: u64,
    pub(crate) stamp: Option<Stamp>,
    /// The epoch that the store reported to be in force for the object.
    pub(crate) claimed: u64,
    /// The size in the store, as far as known.
    pub(crate) store_size: u64,
    /// The store's version of what is known; `None` after changes that overlapped.
    pub(crate) store_version: Option<u64>,
    /// Counts changes of the store begun and ended, to distinguish this cache's from other clients'.
    pub(crate) store_steps: u32,
    /// The generation of the cache's own epochs under which the object may be changed; 0: none.
    pub(crate) owned: u32,
    /// The order domain whose epoch in force has been asked for.
    pub(crate) domain_asked: Option<OrderDomain>,
}

/// What the store has reported of an object as a whole.
#[derive(Clone, Copy)]
pub(crate) struct ReportedHead {
    /// Its size and version; `None`: there is no such object.
    pub(crate) head: Option<(u64, u64)>,
    /// Whether it has reported several versions, one for each range.
    pub(crate) is_mixed: bool,
    /// The value of `Head::store_steps` when the store was asked.
    pub(crate) steps: u32,
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

    /// Returns size, version and stamp, if all of them are known.
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

    /// Returns the object's entry in a listing, as far as the cache knows it.
    pub(crate) fn listed(&self, name: Name) -> Listed {
        match self.head.known {
            Known::Unknown => Listed::Unknown,
            Known::Absent => Listed::Absent,
            Known::Present => {
                Listed::Present(ListEntry::new(name, self.head.size, Version(self.head.version)))
            }
        }
    }

    /// Takes over what the store reported of the object as a whole.
    pub(crate) fn set_head(&mut self, found: Option<(u64, u64)>) {
        let head = &mut self.head;
        head.known = if found.is_some() { Known::Present } else { Known::Absent };
        let (size, version) = found.unwrap_or((0, head.version));
        (head.size, head.version, head.store_size) = (size, version, size);
        (head.store_exists, head.store_version) = (found.is_some(), found.map(|(_, version)| version));
    }

    /// Forgets what is known of the object as a whole, all of which the store has.
    pub(crate) fn forget_head(&mut self, env: &Env<'_>) {
        let head = &mut self.head;
        if let Some(store) = head.store_version.filter(|store| *store != head.version) {
            env.versions.remember(env.hash, store, head.version);
        }
        (head.known, head.is_full, head.store_version) = (Known::Unknown, false, None);
    }

    /// Takes note of what the store reported of the object as a whole; returns false if the bytes that came
    /// with it must be asked for once more.
    pub(crate) fn apply_head(&mut self, env: &Env<'_>, reported: ReportedHead) -> bool {
        let is_quiet = self.head.store_steps == reported.steps && self.head.store_changes == 0;
        match (self.head.known, reported.head) {
            _ if is_quiet && reported.is_mixed => {
                // Another client has changed it while it was read: which bytes are older is not known.
                self.invalidate(env, &mut Reserved::none(env.pool));
                return false;
            }
            (Known::Present, None) => return self.gone_below(env, reported, is_quiet),
            // A change overlapped it: this may be from before.
            _ if !is_quiet => (),
            (Known::Unknown, found) => self.found_below(env, found),
            (Known::Present, Some((_, version))) => {
                // Another version than the known one, with no change of this cache in between: another client
                // has changed the object in the store. What is here of it is old.
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

    /// Takes over what the store reported of an object of which nothing was known.
    fn found_below(&mut self, env: &Env<'_>, found: Option<(u64, u64)>) {
        self.set_head(found);
        self.head.is_full = false;
        if let Some((_, version)) = found {
            self.head.version = env.versions.shown_for(env.hash, version);
        }
    }

    /// The store has no object that was known to exist: another client has removed it. What is newer here
    /// than the store stays, and creates it anew. Returns as [`Self::apply_head`].
    fn gone_below(&mut self, env: &Env<'_>, reported: ReportedHead, is_quiet: bool) -> bool {
        let stays = self.has_pending() || self.flushing.is_some();
        // Of this cache's own changes at most one flush has begun since, and none has ended.
        let is_flushing = self.flushing.is_some() && self.head.store_changes == 1;
        let has_only_begun = is_flushing && self.head.store_steps.wrapping_sub(reported.steps) <= 1;
        self.invalidate(env, &mut Reserved::none(env.pool));
        if stays && (is_quiet || has_only_begun) {
            // Until the flush that creates it anew has ended.
            (self.head.store_size, self.head.store_exists) = (0, false);
        } else if is_quiet {
            self.found_below(env, None);
        } else {
            return false;
        }
        true
    }
}

/// What waits to be stored of the object as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// All content is to be replaced; or, if the object is absent, it is to be removed.
    pub(crate) replace: bool,
    /// The smallest size since the object was last stored; `u64::MAX`: it was not cut.
    pub(crate) truncate_to: u64,
    /// The size is to be stored, or that the object exists at all.
    pub(crate) size_dirty: bool,
    pub(crate) change_seq: u64,
    /// Changes up to this one are stored.
    pub(crate) stored_seq: u64,
    pub(crate) dirty_since: Timestamp,
    /// The order domain of all changes that are not stored: a change of another domain waits until they are.
    pub(crate) domain: Option<OrderDomain>,
    /// Room in the dirty limit for what has no bucket: see `buckets.rs`.
    pub(crate) bucketless: u32,
    /// The object's number in the dirty queue; 0: none.
    pub(crate) queue_number: u64,
    /// Whether the dirty queue keeps the log from its oldest record on that is not stored.
    pub(crate) is_held: bool,
    /// The position in the log of its last change; 0: none.
    pub(crate) logged_to: u64,
    /// The number of flushes that failed in a row.
    pub(crate) failures: u32,
    /// Some of what is pending has been acknowledged; otherwise callers wait for all of it to be *stored*.
    pub(crate) is_acknowledged: bool,
    /// The store has lost writes of the object that it had not stored: only a write of all of it ends that.
    pub(crate) lost_below: bool,
    /// Other clients may have changed the object in the store: its size there is asked for once what is
    /// pending is stored.
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

impl Object {
    /// Whether the store lacks something of the object.
    pub(crate) fn has_pending(&self) -> bool {
        let pending = &self.pending;
        pending.replace
            || pending.truncate_to != u64::MAX
            || pending.size_dirty
            || self.slots.dirty_count() > 0
    }

    /// Whether changes of another order domain than `domain` are not stored yet.
    #[inline]
    pub(crate) fn has_other_domain(&self, domain: Option<OrderDomain>) -> bool {
        self.pending.domain != domain && self.pending.change_seq > self.pending.stored_seq
    }

    /// Whether [`Self::note_change`] needs the time of the next change.
    pub(crate) fn asks_for_time(&self) -> bool {
        self.pending.queue_number == 0
            || self.pending.change_seq == self.pending.stored_seq
            || self.flushing.as_ref().is_some_and(|it| it.newer_since.is_none())
    }

    /// Notes a change that the store does not know of, made `now` if [`Self::asks_for_time`].
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

    /// Removes the tickets whose changes are stored, and returns them with their results.
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
}

// All that an object has pending, to be logged once more.

impl Object {
    /// Returns what the object has pending. No flush of it may be under way.
    pub(crate) fn pending_state(&self, env: &Env<'_>) -> PendingState {
        let (head, pending) = (self.head, self.pending);
        let is_present = head.known == Known::Present;
        let truncate_to = (pending.truncate_to != u64::MAX).then_some(pending.truncate_to);
        let has_size = is_present && (pending.size_dirty || pending.replace || truncate_to.is_some());
        let mut state = PendingState {
            is_present,
            is_replaced: pending.replace,
            truncate_to,
            size: has_size.then_some(head.size),
            runs: Vec::new(),
        };
        if !is_present {
            return state;
        }
        for (at, slot) in self.slots.known_from(0) {
            let start = u64::from(at) * BUCKET as u64;
            let reach = head.size.saturating_sub(start).min(BUCKET as u64) as usize;
            let mask = match slot.state() {
                State::Dirty if !pending.replace => env.meta(slot.bucket()).dirty(),
                State::Dirty | State::DirtyWhole => env.meta(slot.bucket()).valid(),
                // Part of a replacement as well.
                State::Clean if pending.replace => env.meta(slot.bucket()).valid(),
                State::ZeroDirty if reach > 0 => {
                    push(&mut state.runs, start, reach as u64, None, u64::MAX);
                    continue;
                }
                _ => continue,
            };
            for (lo, hi) in spans(mask) {
                let hi = hi.min(reach);
                if lo < hi {
                    let bytes = pinned(env, slot.bucket(), lo..hi);
                    push(&mut state.runs, start + lo as u64, (hi - lo) as u64, Some(bytes), u64::MAX);
                }
            }
        }
        state
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

/// The versions by which callers knew objects that have left the cache.
///
/// A change that is acknowledged before the store has seen it gets a version of the cache's own; the store
/// gives it another when it is flushed. While the object is in the cache callers continue to see the first.
/// This table lets them see it when the object comes back as well: for names that left lately it remembers
/// the store's version and the one that stood for it. It is bounded, and forgets: then callers see the
/// store's version, as if the object had been changed without effect, and a conditional request fails and has
/// to read again.
pub(crate) struct Versions {
    stripes: Box<[Mutex<Box<[Entry]>>]>,
}

impl Versions {
    /// Makes a table for an index of `objects` nodes.
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

    /// Remembers, for an object that leaves, that `shown` stood for the store's version `store`.
    pub(crate) fn remember(&self, hash: u64, store: u64, shown: u64) {
        self.with(hash, |entry| *entry = Entry { hash, store, shown });
    }

    /// Returns the version that stood for the store's version `store`, or `store` if none is remembered.
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
