//! Lanes: the open regions of the threads that store.
//!
//! Every thread has a lane (threads share lanes when there are more of them), so that appending takes a lock
//! for which no other thread waits. A lane keeps one open region per lifetime class: items that expire at
//! about the same time lie together, and their region becomes garbage as a whole.

use super::queues::LARGE;
use super::stream::{Place, Stream};
use super::{LOW_WATER_MIN, Log};
use crate::clock::Expiry;
use crate::kv::lock_ranks;
use crate::policy::QueueId;
use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, lock};
use crate::thread_number::thread_number;
use std::sync::atomic::Ordering;

/// The classes of lifetimes: a day and more or none, an hour and more, two minutes and more, less.
const TTL_CLASSES: usize = 4;
const TTL_CLASS_SECS: [u32; TTL_CLASSES - 1] = [86_400, 3_600, 120];

/// Streams of a lane: one per class, and one for pieces of large values.
const STREAMS: usize = TTL_CLASSES + 1;
pub(super) const LARGE_STREAM: usize = STREAMS - 1;

/// The queue that a stream's regions join when they are full.
pub(super) fn queue_of_stream(stream: usize) -> usize {
    if stream == LARGE_STREAM { LARGE } else { usize::from(QueueId::ENTRY.0) }
}

/// All lanes.
pub(super) struct Lanes {
    lanes: Box<[Lane]>,
    ttl_classes: usize,
    /// With fewer free regions than this, a thread that allocates also reclaims a little. It rises by one
    /// with every lane that comes into use: free regions are memory without items.
    low_water: AtomicU32,
}

/// The streams of one lane, on cache lines of their own.
#[repr(align(128))]
pub(super) struct Lane {
    streams: Mutex<[Stream; STREAMS]>,
    /// Whether a thread has asked for a region here.
    is_used: AtomicBool,
}

impl Lanes {
    /// Makes `count` lanes for a log of `regions` regions, or fewer: a lane may hold several half-filled
    /// regions.
    pub(super) fn new(count: usize, regions: u32) -> Lanes {
        let count = count.min(regions as usize / 32).max(1);
        Lanes {
            lanes: (0..count).map(|number| Lane::new(number as u32)).collect(),
            ttl_classes: if regions as usize >= 64 * count { TTL_CLASSES } else { 1 },
            low_water: AtomicU32::new(LOW_WATER_MIN),
        }
    }

    /// The number of free regions below which regions are reclaimed.
    #[inline]
    pub(super) fn low_water(&self) -> u32 {
        self.low_water.load(Ordering::Relaxed)
    }

    /// The calling thread's lane.
    pub(super) fn own(&self) -> &Lane {
        &self.lanes[thread_number() % self.lanes.len()]
    }

    /// The calling thread's lane, which is about to get a region: from now on one more free region is kept
    /// for it.
    pub(super) fn own_in_use(&self) -> &Lane {
        let lane = self.own();
        if !lane.is_used.load(Ordering::Relaxed) && !lane.is_used.swap(true, Ordering::Relaxed) {
            self.low_water.fetch_add(1, Ordering::Relaxed);
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

    /// Seals every open region, then calls `f` while none can be opened.
    pub(super) fn with_all_sealed(&self, log: &Log, f: impl FnOnce()) {
        let mut lanes: Vec<_> = self.lanes.iter().map(Lane::lock).collect();
        for streams in &mut lanes {
            for (stream, open) in streams.iter_mut().enumerate() {
                open.seal(log, queue_of_stream(stream), Place::Newest);
            }
        }
        f();
    }

    /// Whether no thread holds the first lane.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn is_first_free(&self) -> bool {
        self.lanes[0].try_lock().is_some()
    }

    /// Locks the first lane.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn lock_first(&self) -> impl Sized + '_ {
        self.lanes[0].lock()
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

    /// Locks the lane's streams if that needs no waiting.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, [Stream; STREAMS]>> {
        crate::sync::try_lock(&self.streams)
    }
}
