//! What exists of an object only while the store is asked, or a task waits.

use std::task::Waker;

use super::Object;
use super::ranges::{Ranges, Ticket};
use crate::object::memory::geometry::Buckets;
use crate::object::tasks::flush_ticket::FlushTicket;
use crate::sync::Arc;

/// See the module.
#[derive(Default)]
pub(crate) struct Activity {
    pub(crate) ranges: Ranges,
    /// The tickets that wait until changes up to a number are stored.
    pub(crate) flush_waiters: Vec<(u64, Arc<FlushTicket>)>,
    /// An eviction has been given up since a range was last released.
    pub(super) kept_buckets: bool,
}

impl Object {
    pub(crate) fn activity(&mut self) -> &mut Activity {
        self.activity.get_or_insert_default()
    }

    pub(crate) fn activity_mut(&mut self) -> Option<&mut Activity> {
        self.activity.as_deref_mut()
    }

    pub(crate) fn activity_ref(&self) -> Option<&Activity> {
        self.activity.as_deref()
    }

    /// Drops the activity if nothing is left of it.
    pub(crate) fn drop_if_idle(&mut self) {
        let idle = |activity: &Activity| activity.ranges.is_idle() && activity.flush_waiters.is_empty();
        if self.activity.as_deref().is_some_and(idle) {
            self.activity = None;
        }
    }

    /// Whether a change of a range is on its way to the store, or waits for the range.
    pub(crate) fn is_changing(&self, buckets: &Buckets) -> bool {
        self.activity.as_ref().is_some_and(|activity| activity.ranges.is_changing(buckets))
    }

    /// Whether a change of part of the object is on its way to the store.
    pub(crate) fn is_forwarding(&self) -> bool {
        self.activity.as_ref().is_some_and(|activity| activity.ranges.is_forwarding())
    }

    /// Makes bytes of the slots `buckets` void that the store has been asked for.
    pub(crate) fn invalidate_bytes(&mut self, buckets: Buckets) {
        if let Some(activity) = &mut self.activity {
            activity.ranges.invalidate_bytes(&buckets);
        }
    }

    /// Whether the answer to what was asked of the store under this entry is void.
    pub(crate) fn is_stale(&self, ticket: Ticket) -> bool {
        self.activity.as_ref().is_some_and(|activity| activity.ranges.is_stale(ticket))
    }

    /// As [`Self::is_stale`], and the entry asks for nothing from now on.
    pub(crate) fn take_stale(&mut self, ticket: Ticket) -> bool {
        self.activity.as_mut().is_some_and(|activity| activity.ranges.take_stale(ticket))
    }

    /// Removes an entry; returns the tasks that may continue, and whether an eviction was given up meanwhile.
    pub(crate) fn release_range(&mut self, ticket: Ticket) -> (Vec<Waker>, bool) {
        let Some(activity) = &mut self.activity else { return (Vec::new(), false) };
        let woken = activity.ranges.release(ticket);
        let kept_buckets = std::mem::take(&mut activity.kept_buckets);
        self.drop_if_idle();
        (woken, kept_buckets)
    }

    /// Notes that a bucket could not be evicted: perhaps it can when what is under way has ended.
    pub(crate) fn note_kept(&mut self) {
        if let Some(activity) = &mut self.activity {
            activity.kept_buckets = true;
        }
    }
}
