//! The content of one object, on its way to another: what a copy within the cache takes over.

use super::metrics::Metrics;
use super::pool::Pool;
use super::slots::Slot;
use crate::sync::{Arc, Mutex, lock};

/// The memory and the credits that copied content goes back to when no object takes it over.
pub(crate) trait ContentOwner: Send + Sync {
    fn pool(&self) -> &Pool;
    fn metrics(&self) -> &Metrics;
}

/// All of an object's content, until another object takes it over. Its buckets carry one more count each.
#[derive(Clone)]
pub(crate) struct CopiedContent(Arc<Mutex<Option<Content>>>);

/// See [`CopiedContent`].
pub(crate) struct Content {
    owner: Arc<dyn ContentOwner>,
    slots: Vec<(u32, Slot)>,
    /// The size of the object in bytes.
    pub(crate) size: u64,
    /// Room taken in the dirty limit, in buckets.
    credits: u32,
    /// The part of `credits` that stands for what has no bucket: zeros, and the change itself.
    pub(crate) bucketless: u32,
}

impl CopiedContent {
    /// Content of `size` bytes: `slots` with one more count of each bucket, and `credits` taken from the
    /// dirty limit.
    pub(crate) fn new(
        owner: Arc<dyn ContentOwner>,
        slots: Vec<(u32, Slot)>,
        size: u64,
        credits: u32,
        bucketless: u32,
    ) -> Self {
        Self(Arc::new(Mutex::new(Some(Content { owner, slots, size, credits, bucketless }))))
    }

    /// The content, once.
    pub(crate) fn take(&self) -> Option<Content> {
        lock(&self.0).take()
    }
}

impl Content {
    /// The slots, whose counts and credits belong to the caller from now on.
    pub(crate) fn into_slots(mut self) -> Vec<(u32, Slot)> {
        self.credits = 0;
        std::mem::take(&mut self.slots)
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        let buckets = self.slots.iter().filter(|(_, slot)| slot.state().has_bucket());
        buckets.for_each(|(_, slot)| self.owner.pool().release(slot.bucket()));
        self.owner.metrics().return_credits(self.credits);
    }
}

impl std::fmt::Debug for CopiedContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the content of another object")
    }
}
