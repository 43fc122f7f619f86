//! A change of an object, as the cache applies or forwards it, and the content of a copy.

use blocker::{Change, Run, RunContent, Segments};

use super::control::Metrics;
use super::memory::pool::{BUCKET, Pool};
use super::memory::slots::{SECTOR_BYTES, Slot};
use super::memory::{BUCKET_U64, Buckets, SECTORS, WHOLE, buckets_of};
use crate::sync::{Arc, Mutex, lock};

/// A change of an object, as the cache makes it: the requested change and, for a copy, the content
/// that source and target will share. A copy without content copies an object onto itself, which
/// leaves every byte unchanged.
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
    /// Returns the buckets that the change affects.
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

    /// Returns the maximum number of buckets that the change can use.
    pub(crate) fn buckets_max(self) -> u32 {
        match self.change {
            Change::Truncate { .. } => 1,
            _ => self.buckets_kept(),
        }
    }

    /// Returns the maximum number of buckets of the dirty limit that the change takes: zeros count
    /// by the buckets that they cover.
    pub(crate) fn dirty_buckets_max(self) -> u64 {
        let written: u64 = self.pieces(u64::MAX).map(Piece::buckets).sum();
        // The additional bucket is for the truncation of the previous content.
        written + u64::from(matches!(self.change, Change::Truncate { .. } | Change::WriteFull { .. }))
    }

    /// Returns the size of the object after the change, given its size before; `None` if it did not
    /// exist.
    pub(crate) fn size_after(self, before: Option<u64>) -> u64 {
        match self.copied {
            Some(content) => content.size(),
            None => self.change.size_after(before.unwrap_or(0)),
        }
    }

    /// Returns whether the change requires the object to exist.
    pub(crate) fn needs_present(self) -> bool {
        !self.change.creates() && self.copied.is_none()
    }

    /// Returns whether the change leaves every byte unchanged.
    pub(crate) fn is_touch(self) -> bool {
        matches!(self.change, Change::Copy { .. }) && self.copied.is_none()
    }

    /// Returns whether the change replaces or removes all content.
    pub(crate) fn replaces_content(self) -> bool {
        self.change.replaces_content() || self.copied.is_some()
    }

    /// Returns the maximum number of buckets needed to apply the change to the cache.
    pub(crate) fn buckets_kept(self) -> u32 {
        let kept = |piece: Piece<'_>| match piece {
            Piece::Data(..) => piece.buckets(),
            // Only the two ends are written; the rest only changes its state.
            Piece::Zeroes(..) => 2,
        };
        self.pieces(u64::MAX).map(kept).sum::<u64>() as u32
    }

    /// Returns the maximum number of buckets of the payload that can be taken over.
    pub(crate) fn received_buckets(self, pool: &Pool) -> u32 {
        let (Change::Write { data, .. } | Change::WriteFull { data }) = self.change else { return 0 };
        data.iter().filter(|segment| pool.whole_bucket(segment).is_some()).count() as u32
    }
}

/// A range of bytes that a change writes.
#[derive(Clone, Copy)]
pub(crate) enum Piece<'a> {
    /// The offset, and the data.
    Data(u64, &'a Segments),
    /// The offset, and the number of zeros.
    Zeroes(u64, u64),
}

impl<'a> Piece<'a> {
    fn of(run: &'a Run) -> Self {
        match &run.content {
            RunContent::Data(data) => Self::Data(run.offset, data),
            RunContent::Zeroes(len) => Self::Zeroes(run.offset, *len),
        }
    }

    /// Returns the number of buckets that the range touches.
    fn buckets(self) -> u64 {
        let (offset, len) = match self {
            Self::Data(offset, data) => (offset, data.len_bytes() as u64),
            Self::Zeroes(offset, len) => (offset, len),
        };
        if len == 0 { 0 } else { offset.saturating_add(len).div_ceil(BUCKET_U64) - offset / BUCKET_U64 }
    }
}

impl<'a> Mutation<'a> {
    /// Returns the ranges that the change writes, in an object of `size` bytes.
    pub(crate) fn pieces(self, size: u64) -> impl Iterator<Item = Piece<'a>> {
        let (piece, runs): (_, &[Run]) = match self.change {
            Change::Write { offset, data } | Change::CompareAndWrite { offset, data, .. } => {
                (Some(Piece::Data(*offset, data)), &[])
            }
            Change::WriteFull { data } => (Some(Piece::Data(0, data)), &[]),
            Change::WriteZeroes { offset, len_bytes } => (Some(Piece::Zeroes(*offset, *len_bytes)), &[]),
            Change::Discard { offset, len_bytes } => {
                let within = size.saturating_sub(*offset).min(*len_bytes);
                (Some(Piece::Zeroes(*offset, within)), &[])
            }
            Change::WriteRuns { runs } => (None, runs),
            Change::Truncate { .. } | Change::Delete | Change::Copy { .. } => (None, &[]),
        };
        piece.into_iter().chain(runs.iter().map(Piece::of))
    }
}

/// The owner of the memory and the credits of copied content, which return to it if no object takes
/// over the content.
pub(crate) trait ContentOwner: Send + Sync {
    fn pool(&self) -> &Pool;
    fn metrics(&self) -> &Metrics;
}

/// The whole content of an object, until another object takes it over. It holds a reference to each
/// bucket.
#[derive(Clone)]
pub(crate) struct CopiedContent(Arc<Mutex<Option<Content>>>);

/// The content in a [`CopiedContent`].
pub(crate) struct Content {
    pub(crate) owner: Arc<dyn ContentOwner>,
    /// The number of the target's namespace, for which the credits are taken.
    pub(crate) namespace: u16,
    /// The known slots; the content holds a reference to each bucket.
    pub(crate) slots: Vec<(u32, Slot)>,
    /// The size of the object in bytes.
    pub(crate) size: u64,
    /// Room taken in the dirty limit, in buckets.
    pub(crate) credits: u32,
    /// The part of `credits` for changes without a bucket: zeros, and the change itself.
    pub(crate) bucketless: u32,
}

impl CopiedContent {
    pub(crate) fn new(content: Content) -> Self {
        Self(Arc::new(Mutex::new(Some(content))))
    }

    /// Returns the size of the object in bytes; 0 once the content has been taken.
    pub(crate) fn size(&self) -> u64 {
        lock(&self.0).as_ref().map_or(0, |content| content.size)
    }

    /// Returns all bytes of the object; none once the content has been taken.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let content = lock(&self.0);
        let Some(content) = &*content else { return Vec::new() };
        let mut bytes = vec![0; content.size as usize];
        for (at, slot) in content.slots.iter().filter(|(_, slot)| slot.state().has_bucket()) {
            let (from, valid) = (*at as usize * BUCKET, content.owner.pool().meta(slot.bucket()).valid());
            let own = content.owner.pool().bytes(slot.bucket());
            // Invalid sectors are zeros beyond the content.
            for sector in (0..SECTORS).filter(|sector| valid & 1 << sector != 0) {
                let lo = (from + sector * SECTOR_BYTES).min(bytes.len());
                let hi = (lo + SECTOR_BYTES).min(bytes.len());
                bytes[lo..hi].copy_from_slice(&own[sector * SECTOR_BYTES..][..hi - lo]);
            }
        }
        bytes
    }

    /// Takes the content; only the first call returns it.
    pub(crate) fn take(&self) -> Option<Content> {
        lock(&self.0).take()
    }
}

impl Content {
    /// Returns the slots, whose references and credits now belong to the caller.
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
