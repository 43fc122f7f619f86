//! The content of one object, on its way to another: what a copy within the cache takes over.

use super::control::metrics::Metrics;
use super::memory::geometry::SECTORS;
use super::memory::pool::{BUCKET, Pool};
use super::memory::slots::{SECTOR_BYTES, Slot};
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
    /// The number of the target's namespace, which the credits are taken for.
    namespace: u16,
    slots: Vec<(u32, Slot)>,
    /// The size of the object in bytes.
    pub(crate) size: u64,
    /// Room taken in the dirty limit, in buckets.
    credits: u32,
    /// The part of `credits` that stands for what has no bucket: zeros, and the change itself.
    pub(crate) bucketless: u32,
}

impl CopiedContent {
    /// Content of `size` bytes for an object in the namespace with this number: `slots` with one more count of
    /// each bucket, and `credits` taken from the room for its dirty data.
    pub(crate) fn new(
        owner: Arc<dyn ContentOwner>,
        namespace: u16,
        slots: Vec<(u32, Slot)>,
        size: u64,
        credits: u32,
        bucketless: u32,
    ) -> Self {
        Self(Arc::new(Mutex::new(Some(Content { owner, namespace, slots, size, credits, bucketless }))))
    }

    /// The size of the object in bytes; 0 once the content has been taken.
    pub(crate) fn size(&self) -> u64 {
        lock(&self.0).as_ref().map_or(0, |content| content.size)
    }

    /// All bytes of the object; none once the content has been taken.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let content = lock(&self.0);
        let Some(content) = &*content else { return Vec::new() };
        let mut bytes = vec![0; content.size as usize];
        for (at, slot) in content.slots.iter().filter(|(_, slot)| slot.state().has_bucket()) {
            let (from, valid) = (*at as usize * BUCKET, content.owner.pool().meta(slot.bucket()).valid());
            let own = content.owner.pool().bytes(slot.bucket());
            // Sectors that are not valid are zeros that no content reaches.
            for sector in (0..SECTORS).filter(|sector| valid & 1 << sector != 0) {
                let lo = (from + sector * SECTOR_BYTES).min(bytes.len());
                let hi = (lo + SECTOR_BYTES).min(bytes.len());
                bytes[lo..hi].copy_from_slice(&own[sector * SECTOR_BYTES..][..hi - lo]);
            }
        }
        bytes
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
        self.owner.metrics().dirty_room.give_back(self.namespace, self.credits);
    }
}

impl std::fmt::Debug for CopiedContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the content of another object")
    }
}
