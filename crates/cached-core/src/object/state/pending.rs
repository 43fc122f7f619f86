//! What waits to be stored of the object as a whole.

use blocker::{OrderDomain, Result, Timestamp};

use super::Object;
use crate::object::tasks::flush_ticket::FlushTicket;
use crate::sync::Arc;

/// See the module.
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
    /// Room in the dirty limit for what has no bucket: see `bucketless_credits.rs`.
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
