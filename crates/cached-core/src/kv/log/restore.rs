//! Taking over the regions of an earlier process.

use super::Log;
use super::lanes::queue_of_stream;
use super::queues::{LARGE, QUEUES};
use crate::arena::{Owner, REGION_HEADER_BYTES, RegionId, RegionState};
use crate::clock::Expiry;
use crate::kv::item;
use crate::sync::{Ordering, lock, on_all_cores};

impl Log {
    /// Prepares every region to be scanned, with no bytes in use yet. Returns the regions that have
    /// entries, and the number of those that are invalid; invalid and empty regions are freed. No
    /// other thread may use the store.
    pub(in crate::kv) fn begin_restore(&self, now: u32) -> (Vec<RegionId>, u64) {
        let (mut with_entries, mut damaged) = (Vec::new(), 0);
        for id in (0..self.arena.region_count()).map(RegionId) {
            let record = self.arena.region(id);
            record.begin_restore();
            let used = record.used_bytes() as usize;
            let has_entries = record.state() != RegionState::Free && used > REGION_HEADER_BYTES;
            let is_ours = has_entries
                && record.is_owned_by(Owner::Kv)
                && used <= self.arena.region_bytes()
                && self.arena.read_header(id).is_some_and(|header| {
                    header.owner == Owner::Kv as u8 && u32::from(header.granule_shift) == self.granule_shift
                });
            if is_ours {
                self.arena.begin(id, record.opened_at().min(now));
                with_entries.push(id);
            } else {
                damaged += u64::from(has_entries);
                self.arena.region(id).close();
            }
        }
        (with_entries, damaged)
    }

    /// Returns whether a piece found in a walk matches its checksum.
    pub(in crate::kv) fn matches_piece_checksum(&self, location: u32, data: u32, bytes: u32) -> bool {
        // SAFETY: the walk has found an entry of this size in its region, and no other thread uses the store.
        unsafe { item::piece_matches_checksum(self.ptr(location), data, bytes) }
    }

    /// Counts an entry to which the index now refers.
    pub(in crate::kv) fn entry_restored(&self, location: u32, bytes: u32, expiry: Expiry) {
        let region = self.region_of(location);
        self.arena.region(region).entry_moved_in(bytes);
        self.arena.expiring.note(region, bytes, expiry);
    }

    /// Reverts one call of [`entry_restored`](Log::entry_restored).
    pub(in crate::kv) fn entry_not_restored(&self, location: u32, bytes: u32, expiry: Expiry) {
        let region = self.region_of(location);
        self.arena.expiring.forget(region, bytes, expiry);
        self.arena.region(region).entry_died(bytes);
    }

    /// Frees the scanned regions in which nothing is in use, and adds the others to their queues.
    /// Without eviction, those with the most free space stay open.
    pub(in crate::kv) fn end_restore(
        &self,
        mut scanned: Vec<RegionId>,
        holds_items: &dyn Fn(RegionId) -> bool,
    ) {
        // Every entry before the boundary has lost its mark.
        self.superblock.notes().clear_boundary(self.superblock.notes().boundary());
        scanned.retain(|id| {
            let is_used = self.arena.region(*id).live_bytes() != 0;
            if !is_used {
                self.arena.region(*id).close();
            }
            is_used
        });
        scanned.sort_unstable_by_key(|id| (self.arena.region(*id).sequence(), *id));
        self.arena.restore_free(Owner::Kv, &scanned);
        for id in scanned {
            let record = self.arena.region(id);
            let queue = match record.queue() as usize {
                LARGE if holds_items(id) => queue_of_stream(0),
                queue if queue < QUEUES => queue,
                _ => queue_of_stream(0),
            };
            let was_open = record.state() == RegionState::Active;
            if was_open && !self.evicts && lock(&self.reclaimer).survivors.adopt(self, queue, id) {
                continue;
            }
            record.restore(RegionState::Sealed);
            lock(&self.queues).insert(&self.arena, queue, id);
        }
    }

    /// Records the CRC of every region that has entries, for a later process. No other thread may
    /// use the store.
    pub(in crate::kv) fn note_crcs(&self) {
        let regions = self.arena.region_count();
        let next = crate::sync::AtomicU32::new(0);
        let work = || {
            loop {
                let id = RegionId(next.fetch_add(1, Ordering::Relaxed));
                if id.0 >= regions {
                    return;
                }
                let record = self.arena.region(id);
                record.set_crc(if record.state() == RegionState::Free { 0 } else { self.arena.crc_of(id) });
            }
        };
        on_all_cores(regions as usize, work);
    }
}
