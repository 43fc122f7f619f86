//! One object in the cache: what is known of it, what the store does not have yet, and every step from one
//! state to the next.
//!
//! All of this runs in the object's exclusive section ([`super::tasks::serial`]): short, without waiting. A step
//! that lacks something (buckets, bytes of the store, room for dirty data) changes nothing and returns
//! [`Missing`]; its caller obtains it and tries again.
//!
//! All methods of [`Object`] are in this directory:
//!
//! | file | steps |
//! |---|---|
//! | `head.rs` | what is known as a whole: existence, size, version, stamp |
//! | `read.rs` | reading |
//! | `load.rs` | filling slots with bytes of the store |
//! | `mutate.rs` | one change of any kind: what it needs, how it is applied |
//! | `write.rs` | the changes themselves, newer than the store |
//! | `write_through.rs` | taking over what the store has done already |
//! | `copy.rs` | sharing all buckets with another object |
//! | `adopt.rs` | taking over the buckets of a received payload |
//! | `flush.rs`, `flush_plan.rs` | what a flush sends, and what becomes of it |
//! | `invalidate.rs` | dropping what other clients may have changed in the store |
//! | `pending.rs` | what waits to be stored |
//! | `log_state.rs` | the same, to be logged once more |
//! | `bucketless_credits.rs` | room in the dirty limit for what has no bucket |
//! | `activity.rs` | ranges, loads and waiting tasks |
//! | `buckets.rs` | slots and their buckets; eviction |
//! | `validate.rs` | the invariants |
//!
//! Where the bytes of an object are:
//! ```text
//!  0                         content_end                size
//!  ├─ slot known: the cache ───────┼────────────────────────┤
//!  ├─ slot absent: the store ──────┼─ slot absent: zeros ───┤
//! ```

mod activity;
mod adopt;
mod bucketless_credits;
mod buckets;
mod copy;
pub(crate) mod dirty_line;
pub(crate) mod dirty_queue;
mod flush;
mod flush_plan;
mod head;
pub(crate) mod index;
mod invalidate;
mod load;
mod log_state;
pub(crate) mod losses;
mod mutate;
pub(crate) mod packed_name;
mod pending;
pub(crate) mod ranges;
mod read;
mod resources;
mod validate;
pub(crate) mod versions;
mod write;
mod write_through;

use blocker::Clock;

use self::versions::Versions;
use super::control::metrics::Metrics;
use super::memory::pool::{BUCKET, Meta, Pool};
use super::memory::queue::{Queues, bucket_hash};
use super::memory::slots::Slots;
use super::read_ahead::ReadAhead;
use activity::Activity;
use flush::Flushing;
use head::Head;
use pending::Pending;

pub(crate) use flush::Ended;
pub(crate) use flush_plan::{FlushPlan, RunLimits};
pub(crate) use head::{Known, Listed, ReportedHead};
pub(crate) use invalidate::Invalidated;
pub(crate) use load::Keep;
pub(crate) use read::{LINES_READ, LINES_WRITTEN, Lookup};
pub(crate) use resources::{Loaded, Missing, Resources};

/// What a step can reach beside the object itself.
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
    /// The number of the object's namespace, by which is counted.
    pub(crate) namespace: u16,
    pub(crate) clock: &'a dyn Clock,
}

/// See the module. The fields that a read needs come first: `index.rs` prefetches those alone.
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

    /// The hash of a slot's content, for the eviction policy.
    pub(crate) fn bucket_name(&self, at: u32) -> u64 {
        bucket_hash(self.hash, at)
    }

    /// The bytes of a bucket that one slot alone points at, to be changed in its object's exclusive section.
    #[allow(clippy::mut_from_ref)]
    fn bytes_mut(&self, bucket: u32) -> &mut [u8] {
        debug_assert_eq!(self.meta(bucket).refs(), 1, "readers or other slots can see this bucket");
        debug_assert!(!self.pool.is_lent(bucket), "the kernel may see this bucket");
        // SAFETY: the caller is in the exclusive section of the object whose slot alone points at the bucket
        // (count of one, checked with acquire by every caller), so no other thread has its bytes, and none
        // can get them before the section ends. The bucket lies whole within the arena.
        unsafe { std::slice::from_raw_parts_mut(self.pool.at(bucket), BUCKET) }
    }
}

impl Object {
    /// Whether the object can be forgotten: nothing waits to be stored, and nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_pending()
            && self.flushing.is_none()
            && self.head.store_changes == 0
            && self.activity.is_none()
            && self.pending.queue_number == 0
    }
}
