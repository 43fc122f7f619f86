//! The table of regions, with a record for each: its state, its readers and writers, and its bytes
//! in use. Also the header at the start of a region.
//!
//! ```text
//!   free ──take──> active ──seal──> sealed ──claim──> reclaiming ──release──> free
//!                    │                 ^                  │  │
//!                    │                 └────requeue───────┘  └─(pinned)─> draining ──last unpin──> free
//!                    └──abandon (empty)──> reclaiming
//! ```
//! *active*: a stream appends to it. *sealed*: full, in a queue. *reclaiming*: the reclaimer walks
//! it.

use super::memory::Atomics;
use crate::stores;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The owner of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Owner {
    /// The byte-keyed store.
    Kv = 1,
    /// The object cache.
    Objects = 2,
}

/// The state of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum RegionState {
    Free = 0,
    Active = 1,
    Sealed = 2,
    Reclaiming = 3,
}

/// The record of one region, stored beside the arena. The fields that writers change are in one
/// cache line.
///
/// A restart takes over the fields that describe the content (state, allocated bytes, owner, queue,
/// sequence, time), and counts the others again. Zeroed memory is the record of a free region.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Region {
    state: AtomicU32,
    pub(crate) pins: Pins,
    /// Lower half: bytes of entries that are in use or being written. Upper half: writers, that is,
    /// entries that are allocated but not published. A region with writers is not reclaimed.
    usage: AtomicU64,
    /// The allocated bytes, including the header. The appending stream writes it once a walk can
    /// skip the entry up to there.
    used_bytes: AtomicU32,
    owner: AtomicU32,
    /// The number of writers that wait for bytes from a client, which may take any time.
    arrivals: AtomicU32,
    /// The queue of the region, or the queue to which it will be added when it is sealed.
    queue: AtomicU32,
    /// The region's position in the age order of the queues. It increases with every region taken
    /// or requeued.
    sequence: AtomicU64,
    /// The time at which the region was opened or requeued, in the clock's seconds.
    opened_at: AtomicU32,
    /// CRC-32 of the allocated bytes, valid from a clean end to the next start.
    crc: AtomicU32,
}

// The layout of a file. Under shuttle, the atomics are larger.
#[cfg(not(shuttle))]
const _: () = assert!(size_of::<Region>() == 64);

const WRITER: u64 = 1 << 32;

impl Region {
    pub(crate) fn open(&self, owner: Owner, sequence: u64) {
        self.usage.store(0, Ordering::Relaxed);
        self.used_bytes.store(REGION_HEADER_BYTES as u32, Ordering::Relaxed);
        self.owner.store(owner as u32, Ordering::Relaxed);
        self.sequence.store(sequence, Ordering::Release);
        stores::done();
        self.state.store(RegionState::Active as u32, Ordering::Release);
        stores::done();
    }

    /// Marks the region free. Returns its last owner.
    pub(crate) fn close(&self) -> Owner {
        self.state.store(RegionState::Free as u32, Ordering::Release);
        stores::done();
        self.pins.reset();
        if self.owner.load(Ordering::Relaxed) == Owner::Objects as u32 { Owner::Objects } else { Owner::Kv }
    }

    pub(crate) fn state(&self) -> RegionState {
        match self.state.load(Ordering::Acquire) {
            0 => RegionState::Free,
            1 => RegionState::Active,
            2 => RegionState::Sealed,
            _ => RegionState::Reclaiming,
        }
    }

    /// Changes the state from `from` to `to`. Returns false, and changes nothing, if the state is
    /// not `from`.
    pub(crate) fn shift(&self, from: RegionState, to: RegionState) -> bool {
        self.state.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Counts an entry of `bytes` as in use and being written.
    pub(crate) fn begin_entry(&self, bytes: u32) {
        self.usage.fetch_add(WRITER + u64::from(bytes), Ordering::Relaxed);
    }

    /// Counts an entry of `bytes` as in use and published.
    pub(crate) fn entry_moved_in(&self, bytes: u32) {
        self.usage.fetch_add(u64::from(bytes), Ordering::Relaxed);
    }

    /// Counts an entry that waits for bytes from a client. Returns whether it is the only one in
    /// the region.
    pub(crate) fn begin_arrival(&self) -> bool {
        self.arrivals.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Reverts one [`begin_arrival`](Region::begin_arrival). Returns whether no entry of the region
    /// waits any more.
    pub(crate) fn end_arrival(&self) -> bool {
        self.arrivals.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// Records that an entry is published.
    pub(crate) fn end_entry(&self) {
        self.usage.fetch_sub(WRITER, Ordering::Release);
    }

    /// Records that an entry was abandoned before it was published.
    pub(crate) fn abandon_entry(&self, bytes: u32) {
        self.usage.fetch_sub(WRITER + u64::from(bytes), Ordering::Release);
    }

    /// Records that an entry has become garbage. Returns the bytes still in use.
    pub(crate) fn entry_died(&self, bytes: u32) -> u32 {
        let before = self.usage.fetch_sub(u64::from(bytes), Ordering::AcqRel);
        debug_assert!(before as u32 >= bytes, "more bytes became garbage than were in use");
        (before as u32).wrapping_sub(bytes)
    }

    pub(crate) fn live_bytes(&self) -> u32 {
        self.usage.load(Ordering::Acquire) as u32
    }

    pub(crate) fn writers(&self) -> u32 {
        (self.usage.load(Ordering::Acquire) >> 32) as u32
    }

    pub(crate) fn used_bytes(&self) -> u32 {
        self.used_bytes.load(Ordering::Acquire)
    }

    pub(crate) fn set_used_bytes(&self, bytes: u32) {
        self.used_bytes.store(bytes, Ordering::Release);
        stores::done();
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    pub(crate) fn opened_at(&self) -> u32 {
        self.opened_at.load(Ordering::Relaxed)
    }

    pub(crate) fn set_opened_at(&self, now: u32) {
        self.opened_at.store(now, Ordering::Relaxed);
    }

    /// Moves a requeued region to a new position in the age order.
    pub(crate) fn renew(&self, sequence: u64, now: u32) {
        self.sequence.store(sequence, Ordering::Release);
        self.set_opened_at(now);
    }

    /// Changes the region's position in the age order.
    pub(crate) fn set_sequence(&self, sequence: u64) {
        self.sequence.store(sequence, Ordering::Release);
        stores::done();
    }

    pub(crate) fn queue(&self) -> u32 {
        self.queue.load(Ordering::Relaxed)
    }

    pub(crate) fn set_queue(&self, queue: u32) {
        self.queue.store(queue, Ordering::Relaxed);
        stores::done();
    }

    pub(crate) fn crc(&self) -> u32 {
        self.crc.load(Ordering::Relaxed)
    }

    pub(crate) fn set_crc(&self, crc: u32) {
        self.crc.store(crc, Ordering::Relaxed);
    }

    pub(crate) fn is_owned_by(&self, owner: Owner) -> bool {
        self.owner.load(Ordering::Relaxed) == owner as u32
    }

    /// Returns the fields that a restart takes over, for a checksum.
    pub(crate) fn kept_words(&self) -> [u64; 4] {
        [
            u64::from(self.state.load(Ordering::Relaxed)) | u64::from(self.used_bytes()) << 32,
            u64::from(self.owner.load(Ordering::Relaxed)) | u64::from(self.queue()) << 32,
            self.sequence(),
            u64::from(self.opened_at()) | u64::from(self.crc()) << 32,
        ]
    }

    /// Starts taking over the record of an earlier process, with nothing in use and no thread
    /// waiting.
    pub(crate) fn begin_restore(&self) {
        self.pins.reset();
        self.usage.store(0, Ordering::Relaxed);
        self.arrivals.store(0, Ordering::Relaxed);
    }

    /// Marks a region that an earlier process used as open or sealed.
    pub(crate) fn restore(&self, state: RegionState) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// Returns the bytes of entries that are garbage.
    pub(crate) fn dead_bytes(&self) -> u32 {
        let used = self.used_bytes().saturating_sub(REGION_HEADER_BYTES as u32);
        used.saturating_sub(self.live_bytes())
    }
}

// SAFETY: a record consists of atomic integers alone, and a zeroed one is that of a free region.
unsafe impl Atomics for Region {}

/// The size of the header at the start of every region in use.
pub(crate) const REGION_HEADER_BYTES: usize = 32;
const MAGIC: u32 = u32::from_le_bytes(*b"CRGN");
const VERSION: u16 = 1;

/// The header at the start of a region, from which a later process recognises it.
///
/// ```text
///  0       4        6       7       8               16          20            28       32
/// ┌───────┬────────┬───────┬───────┬───────────────┬───────────┬─────────────┬────────┐
/// │ magic │version │ owner │granule│   sequence    │ opened at │ reserved, 0 │ CRC-32 │
/// │ u32   │ u16    │ u8    │ log2  │   u64         │ u32, secs │ 8 bytes     │ u32    │
/// └───────┴────────┴───────┴───────┴───────────────┴───────────┴─────────────┴────────┘
/// ```
/// Little-endian. The CRC (IEEE) covers the 28 bytes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionHeader {
    /// 1 for the byte-keyed store, 2 for the object cache.
    pub(crate) owner: u8,
    /// Entries start at multiples of `1 << granule_shift` bytes.
    pub(crate) granule_shift: u8,
    /// The region's position in the age order.
    pub(crate) sequence: u64,
    /// The time at which the region was opened, in the clock's seconds.
    pub(crate) opened_at: u32,
}

impl RegionHeader {
    /// Returns the header's bytes.
    pub(crate) fn encode(&self) -> [u8; REGION_HEADER_BYTES] {
        let mut bytes = [0u8; REGION_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6] = self.owner;
        bytes[7] = self.granule_shift;
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.opened_at.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..28]);
        bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header; `None` if the bytes are not a header of this version.
    pub(crate) fn decode(bytes: &[u8; REGION_HEADER_BYTES]) -> Option<RegionHeader> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        let is_header =
            u32_at(0) == MAGIC && version == VERSION && u32_at(28) == crc32fast::hash(&bytes[..28]);
        is_header.then(|| RegionHeader {
            owner: bytes[6],
            granule_shift: bytes[7],
            sequence: u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32,
            opened_at: u32_at(16),
        })
    }
}

// A count of readers with a *draining* mark: one atomic word decides which thread frees a region.
//
// ```text
//  31        30                                   0
// ┌──────────┬─────────────────────────────────────┐
// │ draining │ pins                                │
// └──────────┴─────────────────────────────────────┘
// ```
// The owner sets *draining* when it no longer needs the region; from then on no pins are added.
// Exactly one thread changes the word to "draining, no pins", and that thread frees the region.

const DRAINING: u32 = 1 << 31;

#[derive(Debug, Default)]
pub(crate) struct Pins(AtomicU32);

impl Pins {
    /// Adds a reader. The caller ensures that draining has not started, by holding the lock of a
    /// hash bucket with an item in the region.
    pub(crate) fn pin(&self) {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        debug_assert!(before & DRAINING == 0, "a draining region was pinned");
    }

    /// Removes a reader. Returns whether the caller must free the region.
    #[must_use]
    pub(crate) fn unpin(&self) -> bool {
        // Release: this thread's reads happen before the region is reused; Acquire: so do those of the other
        // readers.
        self.0.fetch_sub(1, Ordering::AcqRel) == DRAINING | 1
    }

    /// Starts draining. Returns whether the caller must free the region.
    #[must_use]
    pub(crate) fn drain(&self) -> bool {
        self.0.fetch_or(DRAINING, Ordering::AcqRel) == 0
    }

    /// Removes the mark after the region has been freed.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Returns the present number of readers.
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire) & !DRAINING
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips_and_damage_is_refused() {
        let header =
            RegionHeader { owner: 1, granule_shift: 2, sequence: 0x0123_4567_89ab_cdef, opened_at: 99 };
        let bytes = header.encode();
        assert_eq!(bytes.len(), 32);
        assert_eq!(RegionHeader::decode(&bytes), Some(header));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(RegionHeader::decode(&damaged).is_none(), "bit {bit} flipped unnoticed");
        }
    }

    #[test]
    fn the_last_reader_of_a_draining_region_frees_it() {
        let pins = Pins::default();
        pins.pin();
        pins.pin();
        assert!(!pins.drain());
        assert!(!pins.unpin());
        assert!(pins.unpin());
        pins.reset();
        assert!(pins.drain(), "without readers the owner frees");
    }
}

#[cfg(all(test, shuttle))]
mod shuttle_tests {
    use super::*;
    use crate::sync::Arc;

    /// In any interleaving of two readers and the owner, exactly one of them frees the region.
    #[test]
    fn exactly_one_thread_frees() {
        shuttle::check_random(
            || {
                let pins = Arc::new(Pins::default());
                let freed = Arc::new(AtomicU32::new(0));
                pins.pin();
                pins.pin();
                let threads: Vec<_> = (0..3)
                    .map(|i| {
                        let (pins, freed) = (pins.clone(), freed.clone());
                        shuttle::thread::spawn(move || {
                            if if i == 0 { pins.drain() } else { pins.unpin() } {
                                freed.fetch_add(1, Ordering::SeqCst);
                            }
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|t| t.join().unwrap());
                assert_eq!(freed.load(Ordering::SeqCst), 1);
            },
            2000,
        );
    }
}
