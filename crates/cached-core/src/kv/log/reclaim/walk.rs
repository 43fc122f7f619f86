//! A walk over the entries of one region.

use super::{BATCH, EntryOwner, Log, Purpose, Scanned};
use crate::arena::{REGION_HEADER_BYTES, RegionId};

/// A region being walked.
pub(super) struct Job {
    pub(super) region: RegionId,
    pub(super) queue: usize,
    /// Where the next entry starts, and where the last one ends.
    cursor: u32,
    end: u32,
    pub(super) purpose: Purpose,
    /// Bytes in use when the walk began.
    pub(super) live_bytes_before: u32,
    /// The region stays as it is: nearly all of it is kept (pieces of large values).
    pub(super) requeues: bool,
}

/// An entry of the region, before it is locked.
#[derive(Clone, Copy)]
pub(super) struct Walked<H> {
    pub(super) scanned: Scanned<H>,
    pub(super) location: u32,
    /// Padded.
    pub(super) bytes: u32,
}

impl<H> Walked<H> {
    /// Where the entry lies, and its padded size.
    pub(super) fn place(&self) -> (u32, u32) {
        (self.location, self.bytes)
    }
}

impl Job {
    pub(super) fn new(log: &Log, region: RegionId, queue: usize, purpose: Purpose) -> Job {
        let cursor = (REGION_HEADER_BYTES as u32).next_multiple_of(1 << log.granule_shift);
        let record = log.arena.region(region);
        Job {
            region,
            queue,
            cursor,
            end: record.used_bytes(),
            purpose,
            live_bytes_before: record.live_bytes(),
            requeues: false,
        }
    }

    /// Whether every entry has been scanned.
    pub(super) fn is_done(&self) -> bool {
        self.cursor >= self.end
    }

    /// Scans the next entries into `batch`, and prefetches their index lines. Returns their number.
    pub(super) fn scan<'a, O: EntryOwner>(
        &mut self,
        log: &Log,
        owner: &'a O,
        batch: &mut [Option<Walked<O::Hint<'a>>>],
    ) -> usize {
        let mut count = 0;
        while count < batch.len() && self.cursor < self.end {
            let location = log.location_in(self.region, self.cursor);
            // SAFETY: the cursor stands on an entry of a region that only this job can give away;
            // entries are complete, since the region had no writers when the job began.
            let scanned = unsafe { owner.scan(log.ptr(location)) };
            let bytes = log.padded(scanned.bytes as usize);
            batch[count] = Some(Walked { scanned, location, bytes });
            count += 1;
            self.cursor += bytes;
        }
        count
    }

    /// Calls `each` with the entries that are still to be walked, which stay to be walked.
    pub(super) fn for_each_ahead<'a, O: EntryOwner>(
        &self,
        log: &Log,
        owner: &'a O,
        mut each: impl FnMut(&Walked<O::Hint<'a>>),
    ) {
        let mut ahead = Job { ..*self };
        while !ahead.is_done() {
            let mut batch = [None; BATCH];
            let count = ahead.scan(log, owner, &mut batch);
            batch[..count].iter().flatten().for_each(&mut each);
        }
    }
}
