//! A stream: one open region to which entries are appended.

use super::Log;
use crate::arena::{Owner, REGION_HEADER_BYTES, RegionHeader, RegionId, RegionState};
use crate::sync::lock;

/// An open region, if any.
pub(super) struct Stream {
    region: Option<RegionId>,
    used: u32,
}

/// Where in its queue a region goes when it is sealed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// To the newest end, however long it took to fill: every entry in it stays for at least one
    /// whole round before the policy decides about it.
    Newest,
    /// Where the region's sequence number puts it: it holds items compacted out of regions of that age.
    Inherited,
}

/// Space for one entry that nothing refers to yet. It must be published or abandoned.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub(in crate::kv) struct Entry {
    pub(in crate::kv) region: RegionId,
    /// In granules from the start of the arena.
    pub(in crate::kv) location: u32,
    /// Padded to whole granules.
    pub(in crate::kv) bytes: u32,
}

impl Stream {
    /// A stream without an open region.
    pub(super) const fn new() -> Stream {
        Stream { region: None, used: 0 }
    }

    /// A stream that continues a region of an earlier process.
    #[cfg(not(any(miri, shuttle)))]
    pub(super) fn adopted(log: &Log, region: RegionId) -> Stream {
        Stream { region: Some(region), used: log.arena.region(region).used_bytes() }
    }

    /// The open region.
    pub(super) fn region(&self) -> Option<RegionId> {
        self.region
    }

    /// Bytes left in the open region.
    pub(super) fn room(&self, region_bytes: usize) -> u32 {
        if self.region.is_some() { region_bytes as u32 - self.used } else { 0 }
    }

    /// Allocates an entry in the open region; `None` if it does not fit. The region is not reclaimed until
    /// the entry is published or abandoned.
    #[inline]
    pub(super) fn append(&mut self, log: &Log, bytes: u32) -> Option<Entry> {
        let entry = self.allocate(log, bytes)?;
        log.arena.region(entry.region).begin_entry(bytes);
        Some(entry)
    }

    /// As [`append`](Stream::append), for an entry that counts as published at once: only where the thread
    /// that writes it is also the only one that seals the region.
    #[inline]
    pub(super) fn append_published(&mut self, log: &Log, bytes: u32) -> Option<Entry> {
        let entry = self.allocate(log, bytes)?;
        log.arena.region(entry.region).entry_moved_in(bytes);
        Some(entry)
    }

    #[inline]
    fn allocate(&mut self, log: &Log, bytes: u32) -> Option<Entry> {
        let region = self.region?;
        if self.used as usize + bytes as usize > log.arena.region_bytes() {
            return None;
        }
        let location = log.location_in(region, self.used);
        self.used += bytes;
        log.begin_unborn(location, bytes);
        log.arena.region(region).set_used_bytes(self.used);
        Some(Entry { region, location, bytes })
    }

    /// Opens a region that has just been taken, which will join `queue`. The stream has no open one.
    pub(super) fn open(&mut self, log: &Log, region: RegionId, queue: usize, now: u32) {
        debug_assert!(self.region.is_none());
        log.arena.region(region).set_queue(queue as u32);
        log.arena.begin(region, now);
        log.arena.write_header(
            region,
            &RegionHeader {
                owner: Owner::Kv as u8,
                granule_shift: log.granule_shift as u8,
                sequence: log.arena.region(region).sequence(),
                opened_at: now,
            },
        );
        *self = Stream {
            region: Some(region),
            used: (REGION_HEADER_BYTES as u32).next_multiple_of(1 << log.granule_shift),
        };
    }

    /// Seals the open region, if there is one, and adds it to its queue.
    pub(super) fn seal(&mut self, log: &Log, queue: usize, place: Place) {
        let Some(region) = self.region.take() else { return };
        let record = log.arena.region(region);
        if place == Place::Newest {
            record.set_sequence(log.arena.take_sequence());
        }
        {
            let mut queues = lock(&log.queues);
            queues.insert(&log.arena, queue, region);
            record.shift(RegionState::Active, RegionState::Sealed);
        }
        if record.live_bytes() == 0 {
            log.free_if_dead(region);
        }
    }
}
