//! One object in the cache: what is known of it, what the store does not know yet, and every step from
//! one state to the next.
//!
//! All of this runs in the object's turn ([`super::serial`]): short, without waiting. What a step needs
//! and does not have (buckets, bytes of the store, room for dirty data) it names in [`Need`], having
//! changed nothing; its caller gets it and comes again.
//!
//! Where the bytes of an object are, seen from its end:
//! ```text
//!  0                         content_end                size
//!  ├─ slot known: the cache ───────┼────────────────────────┤
//!  ├─ slot absent: the store ──────┼─ slot absent: zeros ───┤
//! ```

mod buckets;
mod bytes;
mod change;
mod check;
mod doubt;
mod landing;
mod parts;
mod room;
mod sharing;
mod taking;

use blocker::{Clock, OrderDomain, Segments, Stamp, Timestamp};

use super::gauges::Gauges;
use super::pool::{BUCKET, Meta, Pool, Reserved};
use super::queue::{Queues, bucket_hash};
use super::ranges::{Buckets, Ranges, Ticket};
use super::slots::{Slots, State};
use super::versions::Versions;
use super::waiter::FlushTicket;
use crate::sync::Arc;

pub(crate) use bytes::{LINES_READ, LINES_WRITTEN};
pub(crate) use doubt::Doubted;
use parts::BUCKET_U64;
pub(crate) use parts::{buckets_of, parts, touched};

/// What a step can reach beside the object itself.
#[derive(Clone, Copy)]
pub(crate) struct Env<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) queues: &'a Queues,
    pub(crate) gauges: &'a Gauges,
    pub(crate) versions: &'a Versions,
    /// The object's number and the hash of its name.
    pub(crate) node: u32,
    pub(crate) hash: u64,
    pub(crate) clock: &'a dyn Clock,
}

/// Whether an object is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Known {
    /// Nobody has asked.
    #[default]
    Unknown,
    Absent,
    Present,
}

/// What is known of an object as a whole.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) known: Known,
    /// Whether `stamp` and `claimed` are known as well.
    pub(crate) is_full: bool,
    pub(crate) store_exists: bool,
    /// Changes on their way to the store now.
    pub(crate) store_changes: u32,
    pub(crate) size: u64,
    /// The version that callers see.
    pub(crate) version: u64,
    pub(crate) stamp: Option<Stamp>,
    /// The epoch the store said is in force for the object.
    pub(crate) claimed: u64,
    /// What the store has, as far as we know.
    pub(crate) store_size: u64,
    /// The store's version of what we know; `None` after changes that overlapped.
    pub(crate) store_version: Option<u64>,
    /// Changes of the store begun and ended, to tell ours from those of others.
    pub(crate) store_steps: u32,
    /// The generation of the cache's own epochs under which it may be changed; 0: none.
    pub(crate) owned: u32,
    /// The order domain whose epoch in force has been asked for.
    pub(crate) domain_asked: Option<OrderDomain>,
}

/// What the store does not know of the object as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// All its content is to be replaced; or, if it is absent, it is to be removed.
    pub(crate) replace: bool,
    /// The smallest end it had; `u64::MAX`: none.
    pub(crate) truncate_to: u64,
    /// Its end, or that it is there at all.
    pub(crate) size_dirty: bool,
    pub(crate) change_seq: u64,
    /// Changes up to this one are stored.
    pub(crate) stored_seq: u64,
    pub(crate) dirty_since: Timestamp,
    /// The order domain of all changes that are not stored: one of another waits until these are.
    pub(crate) domain: Option<OrderDomain>,
    /// Room taken for what no bucket stands for: see `room.rs`.
    pub(crate) room: u32,
    /// Its place in the registry of what waits to be stored; 0: none.
    pub(crate) registered: u64,
    /// Flushes that failed in a row.
    pub(crate) failures: u32,
    /// Some of what waits has been acknowledged; else all of it is waited for by whoever asked for it as *stored*.
    pub(crate) is_acknowledged: bool,
    /// The store has lost what it had of the object and had not stored: only all of it, in one write, ends that.
    pub(crate) lost_below: bool,
    /// Others may have changed the object below: where it ends there is asked for once what waits is stored.
    pub(crate) is_doubted: bool,
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            is_doubted: false,
            replace: false,
            truncate_to: u64::MAX,
            size_dirty: false,
            change_seq: 0,
            stored_seq: 0,
            dirty_since: Timestamp(0),
            domain: None,
            room: 0,
            registered: 0,
            failures: 0,
            is_acknowledged: false,
            lost_below: false,
        }
    }
}

/// The part of a flush under way that reads and changes must know.
#[derive(Clone, Debug)]
pub(crate) struct Flushing {
    pub(crate) replace: bool,
    pub(crate) truncate_to: u64,
    /// Since when there is something that it does not have.
    pub(crate) newer_since: Option<Timestamp>,
    /// What it sends of each slot, in order of the slots.
    pub(crate) sent: Arc<[Sent]>,
    /// Others may have changed the object since it began: what it stores need not be what the store has after it.
    pub(crate) is_doubted: bool,
}

/// What a flush sends of one slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) at: u32,
    /// The sectors.
    pub(crate) mask: u8,
    /// The state of the slot before.
    pub(crate) was: State,
}

impl Flushing {
    /// The sectors of a slot that are on their way to the store.
    pub(crate) fn mask_of(&self, at: u32) -> u8 {
        self.sent.binary_search_by_key(&at, |sent| sent.at).map_or(0, |found| self.sent[found].mask)
    }
}

/// What exists only while the store is asked, or somebody waits.
#[derive(Default)]
pub(crate) struct Activity {
    pub(crate) ranges: Ranges,
    /// Who waits until changes up to a number are stored.
    pub(crate) flush_waiters: Vec<(u64, Arc<FlushTicket>)>,
    /// An evictor has been sent away since a range was last let go.
    kept_buckets: bool,
}

/// See the module. What a read looks at comes first: `index.rs` asks the memory for that alone.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Object {
    pub(crate) slots: Slots,
    pub(crate) head: Head,
    pub(crate) pending: Pending,
    pub(crate) flushing: Option<Box<Flushing>>,
    activity: Option<Box<Activity>>,
}

/// What a step lacks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Need {
    pub(crate) buckets: u32,
    /// Buckets that will become dirty.
    pub(crate) credits: u32,
    /// The first and last bucket whose bytes the store must be asked for, the end excluded.
    pub(crate) load: Option<Buckets>,
}

impl Need {
    /// Both together.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.buckets += other.buckets;
        self.credits += other.credits;
        if let Some(load) = other.load {
            self.load_of(load.start);
            self.load_of(load.end - 1);
        }
        self
    }

    fn load_of(&mut self, at: u32) {
        let range = self.load.get_or_insert(at..at + 1);
        range.start = range.start.min(at);
        range.end = range.end.max(at + 1);
    }
}

/// Bytes that the store gave for a range.
#[derive(Default)]
pub(crate) struct Loaded {
    /// Where each begins, how much was asked for, and what came; zeros after that.
    pub(crate) runs: Vec<(u64, u64, Segments)>,
}

impl Loaded {
    /// The bytes of a range that one run covers.
    fn slice(&self, from: u64, to: u64) -> Option<Segments> {
        let covers = |run: &&(u64, u64, Segments)| run.0 <= from && to <= run.0 + run.1;
        let (start, _, data) = self.runs.iter().find(covers)?;
        let len = data.len_bytes() as u64;
        let (low, high) = ((from - start).min(len), (to - start).min(len));
        let mut part = data.slice(low as usize..high as usize);
        let rest = (to - from) - (high - low);
        part.append(Segments::zeros(rest as usize));
        Some(part)
    }

    fn covers(&self, at: u32) -> bool {
        let from = u64::from(at) * BUCKET_U64;
        self.runs.iter().any(|run| run.0 <= from && from + BUCKET_U64 <= run.0 + run.1)
    }
}

/// What a step may use up.
pub(crate) struct Means<'a> {
    pub(crate) reserved: Reserved<'a>,
    /// Room for so many more dirty buckets, taken from the gauge already.
    pub(crate) credits: u32,
    pub(crate) loaded: Option<&'a Loaded>,
}

impl Env<'_> {
    pub(crate) fn meta(&self, bucket: u32) -> &Meta {
        self.pool.meta(bucket)
    }

    /// The name of a slot's content, for the eviction policy.
    pub(crate) fn bucket_name(&self, at: u32) -> u64 {
        bucket_hash(self.hash, at)
    }

    /// The bytes of a bucket that one slot alone points at, to be changed in its object's turn.
    #[allow(clippy::mut_from_ref)]
    fn bytes_mut(&self, bucket: u32) -> &mut [u8] {
        debug_assert_eq!(self.meta(bucket).refs(), 1, "others can see this bucket");
        // SAFETY: we are in the turn of the object whose slot alone points at the bucket (count of one,
        // checked with acquire by every caller), so nobody else has its bytes, and nobody can get
        // them before this turn ends. The bucket lies whole within the arena.
        unsafe { std::slice::from_raw_parts_mut(self.pool.at(bucket), BUCKET) }
    }
}

impl Object {
    /// Up to where an absent slot means "ask the store".
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

    /// Whether the store lacks something of it.
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

    /// Whether it can be forgotten: nothing waits, nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_pending()
            && self.flushing.is_none()
            && self.head.store_changes == 0
            && self.activity.is_none()
            && self.pending.registered == 0
    }

    pub(crate) fn activity(&mut self) -> &mut Activity {
        self.activity.get_or_insert_default()
    }

    pub(crate) fn activity_mut(&mut self) -> Option<&mut Activity> {
        self.activity.as_deref_mut()
    }

    pub(crate) fn activity_ref(&self) -> Option<&Activity> {
        self.activity.as_deref()
    }

    /// Drops what is empty.
    pub(crate) fn tidy(&mut self) {
        let idle = |activity: &Activity| activity.ranges.is_idle() && activity.flush_waiters.is_empty();
        if self.activity.as_deref().is_some_and(idle) {
            self.activity = None;
        }
    }

    /// Whether a change is on its way to, or waits for, a range.
    pub(crate) fn is_changing(&self, buckets: &Buckets) -> bool {
        self.activity.as_ref().is_some_and(|activity| activity.ranges.is_changing(buckets))
    }

    /// Bytes of the slots `buckets` that the store has been asked for are void.
    pub(crate) fn spoil_bytes(&mut self, buckets: Buckets) {
        if let Some(activity) = &mut self.activity {
            activity.ranges.spoil_bytes(&buckets);
        }
    }

    /// Whether what was asked of the store under this entry is void.
    pub(crate) fn is_stale(&self, ticket: Ticket) -> bool {
        self.activity.as_ref().is_some_and(|activity| activity.ranges.is_stale(ticket))
    }

    /// As [`Self::is_stale`], and the entry asks for nothing from now on.
    pub(crate) fn take_stale(&mut self, ticket: Ticket) -> bool {
        self.activity.as_mut().is_some_and(|activity| activity.ranges.take_stale(ticket))
    }
}
