//! The segments in memory: which are in use, by what they are held, and which are free.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::disk::DiskFile;
use crate::format::{BLOCK_BYTES, SEGMENT_DATA_AT, record_payload_max, round_up};

/// What a file is called until it is complete.
pub(crate) const NEW_SUFFIX: &str = ".new";

/// The most bytes that one record adds to a journal besides its payload: a block of heads, a second one if
/// the heads run over, and padding behind the payload.
pub(crate) const RECORD_OVERHEAD_BYTES: u64 = 3 * BLOCK_BYTES as u64;

/// A segment file.
pub(crate) struct Segment {
    /// The number in the file's name.
    pub(crate) index: u32,
    pub(crate) file: Arc<dyn DiskFile>,
    /// The header block, 0 or 1, that holds the header of `life`.
    pub(crate) header_block: usize,
    /// The newest life whose header is durable, 0 if there is none.
    pub(crate) life: u64,
    /// Whether `life` is the one that the segment is in use for. A segment is given a place in the log before
    /// its header is written.
    pub(crate) is_started: bool,
    pub(crate) first_position: u64,
    /// Where the next batch goes.
    pub(crate) end: u64,
    pub(crate) holds: Arc<AtomicU64>,
    /// Batches that are filling, or wait for the disk.
    pub(crate) uncommitted: u32,
    /// A write or sync failed: nothing more is written here.
    pub(crate) is_poisoned: bool,
    pub(crate) begun: Duration,
}

impl Segment {
    pub(crate) fn fresh(index: u32, file: Arc<dyn DiskFile>) -> Self {
        Self {
            index,
            file,
            header_block: 1,
            life: 0,
            is_started: false,
            first_position: 0,
            end: SEGMENT_DATA_AT,
            holds: Arc::default(),
            uncommitted: 0,
            is_poisoned: false,
            begun: Duration::ZERO,
        }
    }

    /// Gives the segment a place at the end of the log.
    fn plan(&mut self, first_position: u64, now: Duration) {
        self.is_started = false;
        self.first_position = first_position;
        self.end = SEGMENT_DATA_AT;
        self.begun = now;
    }

    fn is_needed(&self) -> bool {
        self.uncommitted > 0 || self.holds.load(Ordering::Acquire) > 0
    }
}

/// Returns the name of a segment's file.
pub(crate) fn segment_name(index: u32) -> String {
    format!("segment-{index:06}")
}

/// All segments but the ones that are being made.
#[derive(Default)]
pub(crate) struct SegmentTable {
    pub(crate) segment_bytes: u64,
    /// The log, oldest first. The last one is where batches are planned, unless it is poisoned.
    pub(crate) live: VecDeque<Segment>,
    pub(crate) free: VecDeque<Segment>,
    /// Poisoned and no longer needed: to be removed and made anew.
    pub(crate) condemned: Vec<Segment>,
}

impl SegmentTable {
    /// The bytes that a segment takes for sure, whatever the records: the last one that does not fit wastes
    /// less than the rest.
    fn guaranteed_bytes(&self) -> u64 {
        self.segment_bytes - SEGMENT_DATA_AT - self.record_cost_max()
    }

    /// The most bytes that a record takes.
    fn record_cost_max(&self) -> u64 {
        round_up(record_payload_max(self.segment_bytes)) + RECORD_OVERHEAD_BYTES
    }

    /// Returns the segment where batches are planned.
    pub(crate) fn current(&mut self) -> Option<&mut Segment> {
        self.live.back_mut().filter(|segment| !segment.is_poisoned)
    }

    /// Returns the bytes that can be appended for sure, when the filling batch takes `filling_bytes`.
    pub(crate) fn available_bytes(&mut self, filling_bytes: u64) -> u64 {
        let (segment_bytes, cost) = (self.segment_bytes, self.record_cost_max());
        let current = self.current().map_or(0, |segment| segment_bytes - segment.end - filling_bytes);
        self.free.len() as u64 * self.guaranteed_bytes() + current.saturating_sub(cost)
    }

    /// Puts a free segment at the end of the log. Returns false if there is none.
    pub(crate) fn plan_next(&mut self, first_position: u64, now: Duration) -> bool {
        let Some(mut segment) = self.free.pop_front() else { return false };
        segment.plan(first_position, now);
        self.live.push_back(segment);
        true
    }

    /// Puts a segment whose header has been written at the end of the log.
    pub(crate) fn push_started(&mut self, mut segment: Segment, first_position: u64, now: Duration) {
        segment.plan(first_position, now);
        segment.is_started = true;
        self.live.push_back(segment);
    }

    /// Returns all segments.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut Segment> {
        self.live.iter_mut().chain(&mut self.free).chain(&mut self.condemned)
    }

    /// Returns the number of a live segment in `live`.
    pub(crate) fn find(&mut self, index: u32) -> Option<&mut Segment> {
        self.live.iter_mut().rev().find(|segment| segment.index == index)
    }

    /// Returns the segment that holds a position.
    pub(crate) fn holding(&self, position: u64) -> Option<&Segment> {
        let behind = self.live.partition_point(|segment| segment.first_position <= position);
        self.live.get(behind.checked_sub(1)?)
    }

    /// Returns the life of the oldest segment that the log needs, if one has been started.
    pub(crate) fn tail_life(&self) -> Option<u64> {
        self.live.iter().find(|segment| segment.is_started).map(|segment| segment.life)
    }

    /// Takes segments off the old end of the log up to the first one that is needed. Returns whether there
    /// was one.
    pub(crate) fn release(&mut self) -> bool {
        let live = self.live.len();
        while self.live.len() > 1 || self.live.front().is_some_and(|segment| segment.is_poisoned) {
            if self.live[0].is_needed() {
                break;
            }
            let Some(segment) = self.live.pop_front() else { break };
            self.retire(segment);
        }
        self.live.len() < live
    }

    fn retire(&mut self, segment: Segment) {
        if segment.is_poisoned {
            self.condemned.push(segment);
        } else {
            self.free.push_back(segment);
        }
    }

    /// After a failure: the current segment takes nothing more, and planned ones that nothing holds are free
    /// again.
    pub(crate) fn poison_current(&mut self, failed: u32) {
        for segment in &mut self.live {
            segment.uncommitted = 0;
            segment.is_poisoned |= segment.index == failed;
        }
        // What was planned behind the failed segment was never begun.
        let planned: Vec<_> = (0..self.live.len())
            .rev()
            .filter(|at| {
                let segment = &self.live[*at];
                !segment.is_started && !segment.is_poisoned && !segment.is_needed()
            })
            .collect();
        for at in planned {
            self.free.extend(self.live.remove(at));
        }
        // A planned segment that is held cannot be told from one with records; it is not used until it is
        // released.
        if let Some(last) = self.live.back_mut() {
            last.is_poisoned |= !last.is_started;
        }
        self.release();
    }

    /// Returns the bytes between the oldest segment's beginning and the end of the log.
    pub(crate) fn fill_bytes(&self) -> u64 {
        let Some(last) = self.live.back() else { return 0 };
        (self.live.len() as u64 - 1) * self.segment_bytes + last.end
    }

    /// Returns the bytes of all segments that are of use.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        (self.live.len() + self.free.len()) as u64 * self.segment_bytes
    }
}
