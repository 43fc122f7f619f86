//! Append streams: the open regions to which storing threads append.
//!
//! Every thread has a *lane*, a set of streams under one lock, so that appending usually takes a
//! lock for which no other thread waits. (Threads share lanes if there are more threads than
//! lanes.) A lane has one stream per lifetime class, so that items which expire at about the same
//! time are stored together and their region becomes garbage as a whole.

use std::sync::atomic::Ordering;

use super::queues::LARGE;
use super::{LOW_WATER_MIN, Log};
use crate::arena::{Owner, RegionHeader, RegionId, RegionState};
use crate::clock::Expiry;
use crate::kv::lock_ranks;
use crate::policy::QueueId;
use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, lock, thread_number};

/// The classes of lifetimes: at least a day or unlimited, at least an hour, at least two minutes,
/// and less.
const TTL_CLASSES: usize = 4;
const TTL_CLASS_SECS: [u32; TTL_CLASSES - 1] = [86_400, 3_600, 120];

/// The streams of a lane: one for each class, and one for pieces of large values.
const STREAMS: usize = TTL_CLASSES + 1;
pub(super) const LARGE_STREAM: usize = STREAMS - 1;

/// Returns the queue to which a stream's full regions are added.
pub(super) fn queue_of_stream(stream: usize) -> usize {
    if stream == LARGE_STREAM { LARGE } else { usize::from(QueueId::ENTRY.0) }
}

/// All lanes.
pub(super) struct Lanes {
    lanes: Box<[Lane]>,
    ttl_classes: usize,
    /// The number of free regions below which a thread that allocates also reclaims a little. It
    /// rises by one for every lane in use, because a lane's free regions contain no items.
    low_water: AtomicU32,
}

/// The streams of one lane, on separate cache lines.
#[repr(align(128))]
pub(super) struct Lane {
    streams: Mutex<[Stream; STREAMS]>,
    /// Whether a thread has asked for a region in this lane.
    is_used: AtomicBool,
}

impl Lanes {
    /// Creates at most `count` lanes for a log of `regions` regions. A small log gets fewer lanes,
    /// because a lane may hold several half-filled regions.
    pub(super) fn new(count: usize, regions: u32) -> Lanes {
        let count = count.min(regions as usize / 32).max(1);
        Lanes {
            lanes: (0..count).map(|number| Lane::new(number as u32)).collect(),
            ttl_classes: if regions as usize >= 64 * count { TTL_CLASSES } else { 1 },
            low_water: AtomicU32::new(LOW_WATER_MIN),
        }
    }

    /// Returns the number of free regions below which regions are reclaimed.
    #[inline]
    pub(super) fn low_water(&self) -> u32 {
        self.low_water.load(Ordering::Relaxed)
    }

    /// Returns the calling thread's lane.
    pub(super) fn own(&self) -> &Lane {
        &self.lanes[thread_number() % self.lanes.len()]
    }

    /// Returns the calling thread's lane, which is about to get a region. From now on, one more
    /// free region is kept for it.
    pub(super) fn own_in_use(&self) -> &Lane {
        let lane = self.own();
        if !lane.is_used.load(Ordering::Relaxed) && !lane.is_used.swap(true, Ordering::Relaxed) {
            self.low_water.fetch_add(1, Ordering::Relaxed);
        }
        lane
    }

    /// Returns the stream for a new item with this expiry.
    pub(super) fn stream_for(&self, expiry: Expiry, now: u32) -> usize {
        match expiry.remaining_secs(now) {
            Some(secs) if self.ttl_classes > 1 => {
                TTL_CLASS_SECS.iter().filter(|&&limit| secs < limit).count()
            }
            _ => 0,
        }
    }

    /// Seals every open region, and then calls `f`, during which no region can be opened.
    pub(super) fn with_all_sealed(&self, log: &Log, f: impl FnOnce()) {
        let mut lanes: Vec<_> = self.lanes.iter().map(Lane::lock).collect();
        for streams in &mut lanes {
            for (stream, open) in streams.iter_mut().enumerate() {
                open.seal(log, queue_of_stream(stream), Place::Newest);
            }
        }
        f();
    }

    #[cfg(all(test, not(shuttle)))]
    pub(super) fn first(&self) -> &Lane {
        &self.lanes[0]
    }
}

impl Lane {
    fn new(number: u32) -> Lane {
        let streams = [const { Stream::new() }; STREAMS];
        Lane {
            streams: Mutex::ranked_nth(streams, &lock_ranks::LANE, number),
            is_used: AtomicBool::new(false),
        }
    }

    /// Locks the lane's streams.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn lock(&self) -> MutexGuard<'_, [Stream; STREAMS]> {
        lock(&self.streams)
    }

    /// Locks the lane's streams if that is possible without waiting.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, [Stream; STREAMS]>> {
        crate::sync::try_lock(&self.streams)
    }
}

/// An open region, if any.
pub(super) struct Stream {
    region: Option<RegionId>,
    used: u32,
}

/// The position that a sealed region gets in its queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The newest end, however long the region took to fill: every entry in it stays for at least
    /// one full round before the policy decides about it.
    Newest,
    /// The position of the region's sequence number: it contains items compacted from regions of
    /// that age.
    Inherited,
}

/// Space for an entry to which nothing refers yet. It must be published or abandoned.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub(in crate::kv) struct Entry {
    pub(in crate::kv) region: RegionId,
    /// The location, in granules from the start of the arena.
    pub(in crate::kv) location: u32,
    /// The size, padded to whole granules.
    pub(in crate::kv) bytes: u32,
}

impl Stream {
    /// Returns a stream without an open region.
    pub(super) const fn new() -> Stream {
        Stream { region: None, used: 0 }
    }

    /// Returns a stream that continues a region of an earlier process.
    pub(super) fn adopted(log: &Log, region: RegionId) -> Stream {
        Stream { region: Some(region), used: log.arena.region(region).used_bytes() }
    }

    /// Returns the open region.
    pub(super) fn region(&self) -> Option<RegionId> {
        self.region
    }

    /// Returns the bytes left in the open region.
    pub(super) fn free_bytes(&self, region_bytes: usize) -> u32 {
        if self.region.is_some() { region_bytes as u32 - self.used } else { 0 }
    }

    /// Allocates an entry in the open region; `None` if it does not fit. The region is not
    /// reclaimed until the entry is published or abandoned.
    #[inline]
    pub(super) fn append(&mut self, log: &Log, bytes: u32) -> Option<Entry> {
        let entry = self.allocate(log, bytes)?;
        log.arena.region(entry.region).begin_entry(bytes);
        Some(entry)
    }

    /// Does the same as [`append`](Stream::append) for an entry that counts as published
    /// immediately. Use it only if the thread that writes the entry is also the only one that seals
    /// the region.
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
        log.write_placeholder(location, bytes);
        log.arena.region(region).set_used_bytes(self.used);
        Some(Entry { region, location, bytes })
    }

    /// Opens a newly taken region, which will be added to `queue` when sealed. The stream must not
    /// have an open region.
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
        *self = Stream { region: Some(region), used: log.first_entry() };
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
