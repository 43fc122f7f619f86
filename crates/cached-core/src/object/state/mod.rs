//! The state of an object in the cache: its known content, the changes that the store does not have
//! yet, and every transition from one state to the next; the index that finds the object, and the
//! queue in which it waits for a flush.
//!
//! A step runs in the object's exclusive section ([`super::tasks::serial`]): it is short and never
//! waits. A step that lacks something (buckets, bytes of the store, room for dirty data) changes
//! nothing and returns [`Missing`]; its caller obtains what is missing and retries. Nothing in this
//! chapter asks the store.
//!
//! The location of an object's bytes:
//! ```text
//!  0                         content_end                size
//!  ├─ slot known: the cache ───────┼────────────────────────┤
//!  ├─ slot absent: the store ──────┼─ slot absent: zeros ───┤
//! ```

mod buckets;
pub(crate) mod dirty_queue;
mod flush;
mod flush_plan;
mod head;
pub(crate) mod index;
pub(crate) mod losses;
pub(crate) mod ranges;
mod read;
mod write;
mod write_through;

use std::task::Waker;

use blocker::Clock;
use flush::Flushing;
use head::Pending;
use ranges::{Ranges, Ticket};

pub(crate) use buckets::{Load, Loaded, Missing, Resources};
pub(crate) use flush_plan::{FlushPlan, RunLimits};
pub(crate) use head::{Head, Known, ReportedHead, Versions};
pub(crate) use read::{Keep, PREFETCHED_BYTES_MAX};
pub(crate) use write::Rewrite;

use super::control::Metrics;
use super::memory::pool::{BUCKET, Meta, Pool};
use super::memory::queue::{Queues, bucket_hash};
use super::memory::slots::{STATES, Slots, State};
use super::memory::{BUCKET_U64, Buckets};
use super::read_ahead::ReadAhead;
use super::tasks::deadline::FlushTicket;
use crate::ensure;
use crate::sync::Arc;

/// The context of a step, apart from the object itself.
#[derive(Clone, Copy)]
pub(crate) struct Env<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) queues: &'a Queues,
    pub(crate) metrics: &'a Metrics,
    pub(crate) versions: &'a Versions,
    pub(crate) read_ahead: &'a ReadAhead,
    /// The number of the object's node in the index.
    pub(crate) node: u32,
    /// The hash of the object's name.
    pub(crate) hash: u64,
    /// The number of the object's namespace, for its counters.
    pub(crate) namespace: u16,
    pub(crate) clock: &'a dyn Clock,
}

/// See the module. The fields that a read needs come first, because `index/` prefetches only those.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Object {
    pub(crate) slots: Slots,
    pub(crate) head: Head,
    pub(crate) pending: Pending,
    pub(crate) flushing: Option<Box<Flushing>>,
    activity: Option<Box<Activity>>,
}

impl Env<'_> {
    pub(crate) fn meta(&self, bucket: u32) -> &Meta {
        self.pool.meta(bucket)
    }

    /// Returns the hash that identifies a slot's bucket to the eviction policy.
    pub(crate) fn bucket_name(&self, at: u32) -> u64 {
        bucket_hash(self.hash, at)
    }

    /// Returns the bytes of a bucket that only one slot refers to, to be changed in its object's
    /// exclusive section.
    #[allow(clippy::mut_from_ref)]
    fn bytes_mut(&self, bucket: u32) -> &mut [u8] {
        debug_assert_eq!(self.meta(bucket).refs(), 1, "readers or other slots can see this bucket");
        debug_assert!(!self.pool.is_lent(bucket), "the kernel may see this bucket");
        // SAFETY: the caller is in the exclusive section of the object whose slot holds the only
        // reference to the bucket (every caller has checked with acquire that the count is 1), so
        // no other thread has its bytes, and none can get them before the section ends. The bucket
        // lies completely within the arena.
        unsafe { std::slice::from_raw_parts_mut(self.pool.at(bucket), BUCKET) }
    }
}

impl Object {
    /// Returns whether the object can be evicted from the index: nothing waits to be stored, and
    /// nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_pending()
            && self.flushing.is_none()
            && self.head.store_changes == 0
            && self.activity.is_none()
            && self.pending.queue_number == 0
    }
}

/// The part of an object's state that exists only while a request to the store is in flight or a
/// task waits.
#[derive(Default)]
pub(crate) struct Activity {
    pub(crate) ranges: Ranges,
    /// The tickets that wait until all changes up to a sequence number are stored.
    pub(crate) flush_waiters: Vec<(u64, Arc<FlushTicket>)>,
    /// Whether an eviction has failed since a range was last released.
    pub(crate) kept_buckets: bool,
}

impl Object {
    pub(crate) fn activity(&mut self) -> &mut Activity {
        self.activity.get_or_insert_default()
    }

    pub(crate) fn activity_mut(&mut self) -> Option<&mut Activity> {
        self.activity.as_deref_mut()
    }

    pub(crate) fn ranges(&self) -> &Ranges {
        static NONE: Ranges = Ranges::NONE;
        self.activity.as_ref().map_or(&NONE, |activity| &activity.ranges)
    }

    /// Returns whether tasks wait until changes are stored.
    pub(crate) fn has_flush_waiters(&self) -> bool {
        self.activity.as_ref().is_some_and(|activity| !activity.flush_waiters.is_empty())
    }

    /// Drops the activity if it is idle.
    pub(crate) fn drop_if_idle(&mut self) {
        if self.ranges().is_idle() && !self.has_flush_waiters() {
            self.activity = None;
        }
    }

    /// Invalidates bytes of the slots `buckets` that have been requested from the store.
    pub(crate) fn invalidate_bytes(&mut self, buckets: Buckets) {
        if let Some(activity) = &mut self.activity {
            activity.ranges.invalidate_bytes(&buckets);
        }
    }

    /// Returns whether the response to the request of this entry is void, and resets the entry,
    /// which then has no request.
    pub(crate) fn take_stale(&mut self, ticket: Ticket) -> bool {
        self.activity.as_mut().is_some_and(|activity| activity.ranges.take_stale(ticket))
    }

    /// Removes an entry; returns the tasks that may continue, and whether an eviction has failed in
    /// the meantime.
    pub(crate) fn release_range(&mut self, ticket: Ticket) -> (Vec<Waker>, bool) {
        let Some(activity) = &mut self.activity else { return (Vec::new(), false) };
        let woken = activity.ranges.release(ticket);
        let kept_buckets = std::mem::take(&mut activity.kept_buckets);
        self.drop_if_idle();
        (woken, kept_buckets)
    }

    /// Records that a bucket could not be evicted: it may become evictable when the current
    /// activity ends.
    pub(crate) fn note_kept(&mut self) {
        if let Some(activity) = &mut self.activity {
            activity.kept_buckets = true;
        }
    }

    /// Checks every invariant that depends only on the object; returns the number of slots in each
    /// state.
    #[inline]
    pub(crate) fn validate(&self, env: &Env<'_>) -> Result<[u64; STATES], String> {
        let mut counts = [0; STATES];
        let end = self.head.size.div_ceil(BUCKET_U64);
        for (at, slot) in self.slots.known_from(0) {
            counts[slot.state() as usize] += 1;
            ensure(self.head.known != Known::Present || u64::from(at) < end, || {
                format!("slot {at} is {:?} beyond the end {}", slot.state(), self.head.size)
            })?;
            if slot.state().has_bucket() {
                let meta = env.meta(slot.bucket());
                ensure(meta.refs() > 0, || format!("slot {at} points at a free bucket"))?;
                let is_own = meta.owner() == Some((env.node, at));
                let may_be_clean = slot.state() != State::Clean || is_own;
                ensure(may_be_clean, || format!("clean slot {at} does not own its bucket"))?;
                // A dirty slot may have no dirty sector: a truncation may have removed them.
                let (dirty, valid) = (meta.dirty(), meta.valid());
                let may_be_dirty = slot.state() != State::Dirty || is_own && dirty & !valid == 0;
                ensure(may_be_dirty, || format!("dirty slot {at}: dirty {dirty:08b} valid {valid:08b}"))?;
            }
        }
        let count = |is_meant: fn(State) -> bool| -> u64 {
            State::ALL.into_iter().filter(|state| is_meant(*state)).map(|state| counts[state as usize]).sum()
        };
        let found = (count(State::is_dirty), count(State::has_bucket));
        let counted = (u64::from(self.slots.dirty_count()), u64::from(self.slots.held_count()));
        ensure(found == counted, || {
            format!("slots that are dirty, and that have a bucket: {found:?}, counted {counted:?}")
        })?;
        let is_newer = self.pending.change_seq > self.pending.stored_seq;
        ensure(self.has_pending() == is_newer || self.flushing.is_some(), || {
            format!("pending {:?} with {} dirty slots", self.pending, self.slots.dirty_count())
        })?;
        let is_queued = !self.has_pending() || self.pending.queue_number != 0;
        ensure(is_queued, || "something is pending and not in the dirty queue".into())?;
        Ok(counts)
    }
}
