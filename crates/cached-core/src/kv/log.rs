//! Where an item's bytes go: lanes of streams, each appending to a region of its own.
//!
//! Every thread has a lane (threads share lanes when there are more of them), so that appending
//! takes a lock nobody else wants. A lane keeps one open region per lifetime class: items
//! that expire at about the same time lie together, and their region dies as a whole.

use super::queues::LARGE;
use super::reclaim::{BATCH, COMPACTED_FOR_ONE_BYTES_MAX, Effort, SWEPT_FOR_ONE_BYTES_MAX};
use super::{Inner, RECLAIM_RESERVE, order};
use crate::arena::{Owner, REGION_HEADER_BYTES, RegionHeader, RegionId, RegionState};
use crate::clock::Expiry;
use crate::policy::QueueId;
use crate::sync::{AtomicBool, Mutex, lock, try_lock};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Lifetimes told apart: a day and more or none, an hour and more, two minutes and more, less.
pub(super) const TTL_CLASSES: usize = 4;
const TTL_CLASS_SECS: [u32; TTL_CLASSES - 1] = [86_400, 3_600, 120];

/// Streams of a lane: one per class, and one for pieces of large values.
const STREAMS: usize = TTL_CLASSES + 1;
pub(super) const LARGE_STREAM: usize = STREAMS - 1;

/// The queue that a stream's regions join when they are full.
pub(super) fn queue_of_stream(stream: usize) -> usize {
    if stream == LARGE_STREAM { LARGE } else { usize::from(QueueId::ENTRY.0) }
}

/// Who needs a region watches so many being walked in which all may be kept.
const PATIENCE_JOBS: u64 = 3;

/// An open region, if any.
pub(super) struct Stream {
    pub(super) region: Option<RegionId>,
    used: u32,
}

impl Stream {
    pub(super) const fn new() -> Stream {
        Stream { region: None, used: 0 }
    }

    /// Bytes left in the open region.
    pub(super) fn room(&self, region_bytes: usize) -> u32 {
        if self.region.is_some() { region_bytes as u32 - self.used } else { 0 }
    }
}

/// The streams of one lane, on cache lines of their own.
#[repr(align(128))]
pub(super) struct Lane {
    pub(super) streams: Mutex<[Stream; STREAMS]>,
    /// Some thread has come to it for a region.
    is_used: AtomicBool,
}

impl Lane {
    pub(super) fn new(number: u32) -> Lane {
        let streams = [const { Stream::new() }; STREAMS];
        Lane { streams: Mutex::ranked_nth(streams, &order::LANE, number), is_used: AtomicBool::new(false) }
    }
}

/// Where in its queue a region goes when it is full.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// To the newest end, however long it took to fill: everything in it gets at least one whole
    /// round before it is judged.
    Newest,
    /// Where the region's sequence number says: it holds items compacted out of regions of that age.
    Inherited,
}

/// Space for one entry, not yet known to anybody. It must be published or abandoned.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub(super) struct Entry {
    pub(super) region: RegionId,
    /// In granules.
    pub(super) location: u32,
    /// Padded.
    pub(super) bytes: u32,
}

static THREADS: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// A small number for this thread.
fn thread_number() -> usize {
    THREAD.with(|thread| {
        if thread.get() == usize::MAX {
            thread.set(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        thread.get()
    })
}

impl Inner {
    fn lane(&self) -> &Lane {
        &self.lanes[thread_number() % self.lanes.len()]
    }

    /// The thread's lane, which is about to get a region: another free one is kept for it from now on.
    fn lane_in_use(&self) -> &Lane {
        let lane = self.lane();
        if !lane.is_used.load(Ordering::Relaxed) && !lane.is_used.swap(true, Ordering::Relaxed) {
            self.pace_below.fetch_add(1, Ordering::Relaxed);
        }
        lane
    }

    /// The stream for a new item of this expiry.
    pub(super) fn stream_for(&self, expiry: Expiry, now: u32) -> usize {
        match expiry.remaining_secs(now) {
            Some(secs) if self.ttl_classes > 1 => {
                TTL_CLASS_SECS.iter().filter(|&&limit| secs < limit).count()
            }
            _ => 0,
        }
    }

    /// Space in the open region of a stream; never waits, so it may be called under a bucket's lock.
    #[inline]
    pub(super) fn try_alloc(&self, stream: usize, bytes: u32) -> Option<Entry> {
        if self.arena.kv_available() < self.pace_below.load(Ordering::Relaxed) {
            return None;
        }
        let mut streams = try_lock(&self.lane().streams)?;
        self.append(&mut streams[stream], bytes)
    }

    /// Space in a stream, reclaiming if need be. Not under a bucket's lock. `None`: no memory.
    pub(super) fn alloc(&self, stream: usize, bytes: u32, now: u32) -> Option<Entry> {
        self.pace(now);
        let mut streams = lock(&self.lane_in_use().streams);
        let open = &mut streams[stream];
        if let Some(entry) = self.append(open, bytes) {
            return Some(entry);
        }
        let Some(region) = self.obtain_region(now) else {
            self.take_over(open, queue_of_stream(stream), bytes)?;
            return self.append(open, bytes);
        };
        {
            // The reclaimer renews the table with the same lock.
            let _queues = lock(&self.queues);
            if self.policy.advance(self.arena.region_bytes() as u64) {
                self.hit_states.renew(&*self.policy);
            }
        }
        self.seal(open, queue_of_stream(stream), Place::Newest);
        self.open(open, region, now);
        self.append(open, bytes)
    }

    /// Space for a piece of at most `wanted` bytes of data: whatever is left of the open region, or
    /// a fresh one when too little is left. Tells how much data fit.
    pub(super) fn alloc_piece(&self, wanted: usize, now: u32) -> Option<(Entry, u32)> {
        let header = super::extent::PIECE_HEADER_BYTES;
        let region_bytes = self.arena.region_bytes();
        self.pace(now);
        let mut streams = lock(&self.lane_in_use().streams);
        let open = &mut streams[LARGE_STREAM];
        // A last sliver is cheaper wasted than listed.
        if (open.room(region_bytes) as usize) < (header + wanted).min(region_bytes / 64) {
            match self.obtain_region(now) {
                Some(region) => {
                    self.seal(open, LARGE, Place::Newest);
                    self.open(open, region, now);
                }
                None => self.take_over(open, LARGE, (header + wanted).min(region_bytes / 64) as u32)?,
            }
        }
        let data = wanted.min(open.room(region_bytes) as usize - header) as u32;
        let entry = self.append(open, self.padded(header + data as usize))?;
        Some((entry, data))
    }

    #[inline]
    pub(super) fn append(&self, stream: &mut Stream, bytes: u32) -> Option<Entry> {
        let entry = self.cut(stream, bytes)?;
        self.arena.region(entry.region).begin_entry(bytes);
        Some(entry)
    }

    /// As [`append`](Inner::append), for an entry that counts as published at once: only where whoever
    /// writes it is also the only one to close the region.
    #[inline]
    pub(super) fn append_survivor(&self, stream: &mut Stream, bytes: u32) -> Option<Entry> {
        let entry = self.cut(stream, bytes)?;
        self.arena.region(entry.region).entry_moved_in(bytes);
        Some(entry)
    }

    #[inline]
    fn cut(&self, stream: &mut Stream, bytes: u32) -> Option<Entry> {
        let region = stream.region?;
        if stream.used as usize + bytes as usize > self.arena.region_bytes() {
            return None;
        }
        let at = self.arena.offset_of(region, stream.used);
        stream.used += bytes;
        Some(Entry { region, location: (at >> self.granule_shift) as u32, bytes })
    }

    /// Makes a region just taken the open one of a stream that has none.
    pub(super) fn open(&self, stream: &mut Stream, region: RegionId, now: u32) {
        debug_assert!(stream.region.is_none());
        self.arena.begin(region, now);
        self.arena.write_header(
            region,
            &RegionHeader {
                owner: Owner::Kv as u8,
                granule_shift: self.granule_shift as u8,
                sequence: self.arena.region(region).sequence(),
                opened_at: now,
            },
        );
        *stream = Stream {
            region: Some(region),
            used: (REGION_HEADER_BYTES as u32).next_multiple_of(1 << self.granule_shift),
        };
    }

    /// Closes the open region of a stream, if there is one, and puts it into its queue.
    pub(super) fn seal(&self, stream: &mut Stream, queue: usize, place: Place) {
        let Some(region) = stream.region.take() else { return };
        let record = self.arena.region(region);
        record.set_used_bytes(stream.used);
        if place == Place::Newest {
            record.set_sequence(self.arena.take_sequence());
        }
        {
            let mut queues = lock(&self.queues);
            queues.insert(&self.arena, queue, region);
            record.shift(RegionState::Active, RegionState::Sealed);
        }
        if record.live_bytes() == 0 {
            self.free_if_dead(region);
        }
    }

    /// Closes every open region of every lane, then calls `f` while none can be opened.
    pub(super) fn with_lanes_sealed(&self, f: impl FnOnce()) {
        let mut lanes: Vec<_> = self.lanes.iter().map(|lane| lock(&lane.streams)).collect();
        for streams in &mut lanes {
            for (stream, open) in streams.iter_mut().enumerate() {
                self.seal(open, queue_of_stream(stream), Place::Newest);
            }
        }
        f();
    }

    /// A free region, reclaiming until there is one. `None` when nothing more can be reclaimed.
    fn obtain_region(&self, now: u32) -> Option<RegionId> {
        if let Some(region) = self.arena.take(Owner::Kv, RECLAIM_RESERVE) {
            return Some(region);
        }
        let mut reclaimer = lock(&self.reclaimer);
        let (begun, swept) = (reclaimer.jobs(), reclaimer.sweeps());
        let region_bytes = self.arena.region_bytes() as u64;
        let (jobs_max, sweeps_max) = if self.evict {
            // Every walk frees a quarter of a region at least; only pins can make us give up.
            (begun + 4 * u64::from(self.arena.region_count()) + 64, u64::MAX)
        } else {
            (
                begun + COMPACTED_FOR_ONE_BYTES_MAX / region_bytes,
                swept + SWEPT_FOR_ONE_BYTES_MAX / region_bytes,
            )
        };
        loop {
            if reclaimer.jobs() == begun + PATIENCE_JOBS {
                reclaimer.keep_no_more();
            }
            if let Some(region) = self.arena.take(Owner::Kv, RECLAIM_RESERVE) {
                return Some(region);
            }
            if reclaimer.jobs() > jobs_max
                || reclaimer.sweeps() > sweeps_max
                || !self.reclaim_step(&mut reclaimer, now, 256, Effort::Need)
            {
                return None;
            }
        }
    }

    /// Makes a region to which the reclaimer has copied survivors the stream's open one, if that has room for so many bytes.
    #[cold]
    fn take_over(&self, stream: &mut Stream, queue: usize, bytes: u32) -> Option<()> {
        if self.evict {
            return None;
        }
        let other = self.give_room(&mut lock(&self.reclaimer), bytes)?;
        self.seal(stream, queue, Place::Newest);
        *stream = other;
        Some(())
    }

    /// Reclaims a little when free regions run low, so that nobody has to reclaim a whole region.
    #[inline]
    fn pace(&self, now: u32) {
        if self.arena.kv_available() < self.pace_below.load(Ordering::Relaxed)
            && let Some(mut reclaimer) = try_lock(&self.reclaimer)
        {
            self.reclaim_step(&mut reclaimer, now, BATCH, Effort::Pace);
        }
    }

    /// The entry is in the index: its region may be reclaimed again.
    #[inline]
    pub(super) fn publish(&self, entry: Entry) {
        self.arena.region(entry.region).end_entry();
    }

    /// The entry is not wanted. Its first word must have been written, so that walks can step over it.
    pub(super) fn abandon(&self, entry: Entry) {
        let record = self.arena.region(entry.region);
        record.abandon_entry(entry.bytes);
        if record.live_bytes() == 0 {
            self.free_if_dead(entry.region);
        }
    }

    /// Frees a sealed region in which nothing lives, without a walk.
    pub(super) fn free_if_dead(&self, region: RegionId) {
        let record = self.arena.region(region);
        if record.state() != RegionState::Sealed {
            return;
        }
        {
            let mut queues = lock(&self.queues);
            // A piece can die before its writer has finished: it is published after the item that lists it.
            if record.live_bytes() != 0
                || record.writers() != 0
                || !record.shift(RegionState::Sealed, RegionState::Reclaiming)
            {
                return;
            }
            queues.remove(region);
        }
        self.arena.release(region);
    }
}
