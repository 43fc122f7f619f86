//! Adjacent buckets as one segment.
//!
//! System calls and the steps before them cost less with one long segment than with many short
//! ones. Only the readers of a cache that lends its buckets get such segments: other payloads return
//! to a cache, which takes over single buckets ([`Pool::whole_bucket`]).

use std::ops::Range;

use blocker::{Segment, Segments};

use super::{BUCKET, PINS_MAX, Pool};

/// Buckets that a read has pinned and that become the next segment of its payload.
pub(crate) struct Run<'a> {
    pool: &'a Pool,
    first: u32,
    /// The number of buckets; 0 if there is no segment.
    count: u32,
    /// The bytes, counted from the beginning of the first bucket.
    range: Range<usize>,
}

impl<'a> Run<'a> {
    /// Returns a run without buckets.
    #[inline]
    pub(crate) fn none(pool: &'a Pool) -> Self {
        Self { pool, first: 0, count: 0, range: 0..0 }
    }

    /// Pins a bucket and adds its bytes `range`. If the bytes do not follow those of the run, the
    /// run is first appended to `data`. Returns false if the bucket already has too many references.
    #[inline]
    pub(crate) fn add(&mut self, bucket: u32, range: Range<usize>, data: &mut Segments) -> bool {
        if self.pool.meta(bucket).refs() >= PINS_MAX {
            return false;
        }
        self.pool.core.retain(bucket);
        // Between the last bucket of a region and the first of the next one there is the number of
        // a header.
        let follows = self.count > 0 && bucket == self.first + self.count && self.pool.lends();
        if follows && range.start == 0 && self.range.end == self.count as usize * BUCKET {
            self.range.end += range.end;
            self.count += 1;
        } else {
            self.end(data);
            (self.first, self.count, self.range) = (bucket, 1, range);
        }
        true
    }

    /// Appends the segment to `data`.
    #[inline]
    pub(crate) fn end(&mut self, data: &mut Segments) {
        if let Some(segment) = self.take() {
            data.push(segment);
        }
    }

    fn take(&mut self) -> Option<Segment> {
        let more = self.count.checked_sub(1)?;
        self.count = 0;
        let token = u64::from(more) << u32::BITS | u64::from(self.first);
        Some(self.pool.segment(token, self.range.clone()))
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // The segment returns the references.
        drop(self.take());
    }
}

/// Returns the buckets of a segment's token: the first one, and in the upper half the number of
/// those that follow it.
#[inline]
pub(super) fn buckets_of(token: u64) -> Range<u32> {
    let (first, more) = (token as u32, (token >> u32::BITS) as u32);
    first..first + 1 + more
}
