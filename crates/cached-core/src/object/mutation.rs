//! A change of one object, as the cache applies it or forwards it, and the content that a copy carries.

use blocker::{Change, Run, RunContent};

use super::control::metrics::Metrics;
use super::memory::geometry::{Buckets, SECTORS, WHOLE, buckets_of};
use super::memory::pool::{BUCKET, Pool};
use super::memory::slots::{SECTOR_BYTES, Slot};
use crate::sync::{Arc, Mutex, lock};

/// A change of one object, as the cache makes it: what was asked for, and, of a copy, the content
/// that source and target come to share. A copy without that is one of an object onto itself, which
/// leaves every byte as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mutation<'a> {
    pub(crate) change: &'a Change,
    pub(crate) copied: Option<&'a CopiedContent>,
}

impl<'a> From<&'a Change> for Mutation<'a> {
    #[inline]
    fn from(change: &'a Change) -> Self {
        Self { change, copied: None }
    }
}

impl Mutation<'_> {
    /// The buckets it is about.
    pub(crate) fn buckets(self) -> Buckets {
        match self.change {
            Change::Write { offset, data } => buckets_of(*offset, data.len_bytes() as u64),
            Change::CompareAndWrite { offset, expected, data } => {
                buckets_of(*offset, data.len_bytes().max(expected.len_bytes()) as u64)
            }
            Change::WriteZeroes { offset, len_bytes } | Change::Discard { offset, len_bytes } => {
                buckets_of(*offset, *len_bytes)
            }
            Change::WriteRuns { runs } => {
                let from = runs.first().map_or(0, |run| run.offset);
                buckets_of(from, self.change.end().saturating_sub(from))
            }
            Change::WriteFull { .. } | Change::Truncate { .. } | Change::Delete | Change::Copy { .. } => {
                WHOLE
            }
        }
    }

    /// The most buckets it can use.
    pub(crate) fn buckets_max(self) -> u32 {
        match self.change {
            Change::Truncate { .. } => 1,
            _ => self.buckets_kept(),
        }
    }

    /// Returns the most buckets of the dirty limit that it takes: zeros count by what they cover.
    pub(crate) fn dirty_buckets_max(self) -> u64 {
        let reach = |offset, len| {
            let buckets = buckets_of(offset, len);
            u64::from(buckets.end - buckets.start)
        };
        match self.change {
            Change::WriteZeroes { offset, len_bytes } | Change::Discard { offset, len_bytes } => {
                reach(*offset, *len_bytes)
            }
            Change::WriteRuns { runs } => runs.iter().map(|run| reach(run.offset, run.len_bytes())).sum(),
            // And that all there was before is cut off.
            Change::WriteFull { .. } => u64::from(self.buckets_max()) + 1,
            _ => u64::from(self.buckets_max()),
        }
    }

    /// Returns the size that it gives to an object that has had this one, or was not there.
    pub(crate) fn size_after(self, before: Option<u64>) -> u64 {
        match self.copied {
            Some(content) => content.size(),
            None => self.change.size_after(before.unwrap_or(0)),
        }
    }

    /// Whether it needs an object to be there.
    pub(crate) fn needs_present(self) -> bool {
        !self.change.creates() && self.copied.is_none()
    }

    /// Whether it leaves every byte as it is.
    pub(crate) fn is_touch(self) -> bool {
        matches!(self.change, Change::Copy { .. }) && self.copied.is_none()
    }

    /// Whether it replaces or removes all content.
    pub(crate) fn replaces_content(self) -> bool {
        self.change.replaces_content() || self.copied.is_some()
    }

    /// The most buckets that taking it over can use.
    pub(crate) fn buckets_kept(self) -> u32 {
        match self.change {
            Change::Write { .. } | Change::CompareAndWrite { .. } => {
                let buckets = self.buckets();
                buckets.end - buckets.start
            }
            // Only its two ends are written, the rest becomes a state.
            Change::WriteZeroes { .. } | Change::Discard { .. } => 2,
            Change::WriteRuns { runs } => runs.iter().map(run_buckets_max).sum(),
            Change::WriteFull { data } => data.len_bytes().div_ceil(BUCKET) as u32,
            Change::Truncate { .. } | Change::Delete | Change::Copy { .. } => 0,
        }
    }

    /// Returns how many buckets of its payload can be taken over, at most.
    pub(crate) fn received_buckets(self, pool: &Pool) -> u32 {
        let (Change::Write { data, .. } | Change::WriteFull { data }) = self.change else { return 0 };
        data.iter().filter(|segment| pool.whole_bucket(segment).is_some()).count() as u32
    }
}

/// The most buckets that one of several runs can use.
fn run_buckets_max(run: &Run) -> u32 {
    match &run.content {
        RunContent::Data(_) => {
            let buckets = buckets_of(run.offset, run.len_bytes());
            buckets.end - buckets.start
        }
        RunContent::Zeroes(_) => 2,
    }
}

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
