//! The segments: which are in use, their holds, and which are free; their creation, in which they
//! are zeroed and synced before they get their names; and the check that the files are where a
//! recovery will look for them. An open file outlives its name: writes to it succeed after its
//! directory was removed, replaced or unmounted, and are lost.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blocker::Timestamp;
use parking_lot::MutexGuard;

use crate::config::Event;
use crate::disk::{Disk, DiskFile};
use crate::error::DiskError;
use crate::format::{BLOCK_BYTES, SEGMENT_DATA_AT, record_payload_max, round_up};
use crate::recovery;
use crate::shared::{RETRY_AFTER, Shared, State};
use crate::survey::{SUPERBLOCK_NAME, read_superblock};

/// The suffix of a file's name until the file is complete.
pub(crate) const NEW_SUFFIX: &str = ".new";

/// The maximum number of bytes that one record adds to a journal, in addition to its payload: a
/// block of heads, a second block if the heads overflow, and padding after the payload.
pub(crate) const RECORD_OVERHEAD_BYTES: u64 = 3 * BLOCK_BYTES as u64;

/// A segment file.
pub(crate) struct Segment {
    /// The number in the file's name.
    pub(crate) index: u32,
    pub(crate) file: Arc<dyn DiskFile>,
    /// The block, 0 or 1, that contains the header of `life`.
    pub(crate) header_block: usize,
    /// The newest life whose header is durable, or 0 if there is none.
    pub(crate) life: u64,
    /// Whether the header of the segment's current use is durable. A segment gets its place in the
    /// log before its header is written.
    pub(crate) is_started: bool,
    pub(crate) first_position: u64,
    /// The offset of the next batch.
    pub(crate) end: u64,
    pub(crate) holds: Arc<AtomicU64>,
    /// The number of batches that are being filled or wait for the disk.
    pub(crate) uncommitted: u32,
    /// Whether a write or a sync has failed. Nothing more is written to such a segment.
    pub(crate) is_poisoned: bool,
    pub(crate) begun: Timestamp,
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
            begun: Timestamp::default(),
        }
    }

    /// Gives the segment a place at the end of the log.
    fn plan(&mut self, first_position: u64, now: Timestamp) {
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

/// All segments except those being created.
#[derive(Default)]
pub(crate) struct SegmentTable {
    pub(crate) segment_bytes: u64,
    /// The segments of the log, oldest first. Batches are planned in the last segment, unless it is
    /// poisoned.
    pub(crate) live: VecDeque<Segment>,
    pub(crate) free: VecDeque<Segment>,
    /// Poisoned segments that are no longer needed and are to be removed and created again.
    pub(crate) condemned: Vec<Segment>,
}

impl SegmentTable {
    /// Returns the guaranteed capacity of a segment, whatever the records are: the space wasted
    /// because a record does not fit is less than the maximum cost of a record.
    fn guaranteed_bytes(&self) -> u64 {
        self.segment_bytes - SEGMENT_DATA_AT - self.record_cost_max()
    }

    /// Returns the maximum space that a record takes.
    fn record_cost_max(&self) -> u64 {
        round_up(record_payload_max(self.segment_bytes)) + RECORD_OVERHEAD_BYTES
    }

    /// Returns the segment in which batches are planned.
    pub(crate) fn current(&mut self) -> Option<&mut Segment> {
        self.live.back_mut().filter(|segment| !segment.is_poisoned)
    }

    /// Returns the guaranteed free space, given the length of the filling batch.
    pub(crate) fn available_bytes(&mut self, filling_bytes: u64) -> u64 {
        let (segment_bytes, cost) = (self.segment_bytes, self.record_cost_max());
        let current = self.current().map_or(0, |segment| segment_bytes - segment.end - filling_bytes);
        self.free.len() as u64 * self.guaranteed_bytes() + current.saturating_sub(cost)
    }

    /// Puts a free segment at the end of the log. Returns false if there is no free segment.
    pub(crate) fn plan_next(&mut self, first_position: u64, now: Timestamp) -> bool {
        let Some(mut segment) = self.free.pop_front() else { return false };
        segment.plan(first_position, now);
        self.live.push_back(segment);
        true
    }

    /// Puts a segment whose header has been written at the end of the log.
    pub(crate) fn push_started(&mut self, mut segment: Segment, first_position: u64, now: Timestamp) {
        segment.plan(first_position, now);
        segment.is_started = true;
        self.live.push_back(segment);
    }

    /// Returns all segments.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut Segment> {
        self.live.iter_mut().chain(&mut self.free).chain(&mut self.condemned)
    }

    /// Returns the numbers of all segments.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = u32> + '_ {
        self.live.iter().chain(&self.free).chain(&self.condemned).map(|segment| segment.index)
    }

    /// Returns the live segment with this number.
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

    /// Removes unneeded segments from the old end of the log. Returns whether any were removed.
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

    /// Handles a failure: the current segment accepts no more records, and planned segments without
    /// holds become free.
    pub(crate) fn poison_current(&mut self, failed: u32) {
        for segment in &mut self.live {
            segment.uncommitted = 0;
            segment.is_poisoned |= segment.index == failed;
        }
        // Segments planned after the failed one were never used.
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
        // A held planned segment cannot be distinguished from one with records; it is not used
        // until it is released.
        if let Some(last) = self.live.back_mut() {
            last.is_poisoned |= !last.is_started;
        }
        self.release();
    }

    /// Returns the bytes from the oldest segment's beginning to the end of the log.
    pub(crate) fn fill_bytes(&self) -> u64 {
        let Some(last) = self.live.back() else { return 0 };
        (self.live.len() as u64 - 1) * self.segment_bytes + last.end
    }

    /// Returns the total size of the usable segments.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        (self.live.len() + self.free.len()) as u64 * self.segment_bytes
    }
}

/// The length of one write of zeros, in bytes.
const ZERO_BYTES: u64 = 256 * 1024;

/// Creates a synced file of zeros, then gives the file its name. Fails with `Interrupted` when
/// `is_wanted` returns false.
///
/// Zeros are written, and not only allocated, because the first write to an allocated block changes
/// file-system metadata, and syncing that change takes many times as long.
pub(crate) fn make_segment(
    disk: &dyn Disk,
    index: u32,
    segment_bytes: u64,
    is_wanted: &dyn Fn() -> bool,
) -> Result<Arc<dyn DiskFile>, DiskError> {
    let name = segment_name(index);
    let new_name = format!("{name}{NEW_SUFFIX}");
    let failed = |operation| DiskError::in_file(&new_name, operation);
    let file = disk.create(&new_name).map_err(failed("create"))?;
    let mut zeros = crate::append::AlignedBuffer::default();
    zeros.extend_zeros(ZERO_BYTES.min(segment_bytes) as usize);
    let mut at = 0;
    while at < segment_bytes {
        if !is_wanted() {
            return Err(failed("write")(std::io::ErrorKind::Interrupted.into()));
        }
        let run = ZERO_BYTES.min(segment_bytes - at);
        file.write_at(at, &[&zeros.as_slice()[..run as usize]]).map_err(failed("write"))?;
        at += run;
    }
    file.sync().map_err(failed("sync"))?;
    disk.rename(&new_name, &name).map_err(failed("rename"))?;
    disk.sync_names().map_err(failed("sync the directory of"))?;
    Ok(file)
}

impl Shared {
    /// Creates one segment, or removes one that has failed. Returns whether there was anything to
    /// do.
    pub(crate) fn prepare_next(&self) -> bool {
        let mut state = self.state.lock();
        if self.clock.now() < state.prepare_at || state.is_closing {
            return false;
        }
        let durable_tail = state.durable_tail;
        // Until the log on disk states that the segment is behind the tail, a recovery would look
        // for it.
        let removable = state.table.condemned.iter().position(|segment| segment.life < durable_tail);
        let Some(removable) = removable else {
            return self.make_next(state);
        };
        let segment = state.table.condemned.swap_remove(removable);
        state.in_hand += 1;
        drop(state);
        let name = segment_name(segment.index);
        let removed = self.check_place().and_then(|()| self.remove(&name, &*segment.file));
        let mut state = self.state.lock();
        state.in_hand -= 1;
        if let Err(error) = removed {
            state.table.condemned.push(segment);
            self.fail_prepare(state, error);
        }
        true
    }

    fn fail_prepare(&self, mut state: MutexGuard<'_, State>, DiskError { file, error, .. }: DiskError) {
        state.prepare_at = self.clock.now() + RETRY_AFTER;
        self.unlock(state, Some(Event::PrepareFailed { file, error: error.to_string() }));
    }

    /// Removes a segment's file, unless its name belongs to a different file by now.
    fn remove(&self, name: &str, file: &dyn DiskFile) -> Result<(), DiskError> {
        if self.check_name(name, file).is_err() {
            return Ok(());
        }
        self.disk.remove(name).map_err(DiskError::in_file(name, "remove"))?;
        self.disk.sync_names().map_err(DiskError::in_file(name, "sync the directory of"))
    }

    /// Creates one segment, if there are fewer than the limit. Returns whether there are.
    fn make_next(&self, mut state: MutexGuard<'_, State>) -> bool {
        let used: Vec<_> = state.table.indexes().chain(state.restarting).collect();
        if state.table.indexes().count() as u64 + state.in_hand >= self.segments_max {
            return false;
        }
        let Some(index) = (0..).find(|index| !used.contains(index)) else { return false };
        state.in_hand += 1;
        drop(state);
        let is_wanted = || !self.state.lock().is_closing;
        let made = self.check_place();
        let made = made.and_then(|()| make_segment(&*self.disk, index, self.segment_bytes, &is_wanted));
        let mut state = self.state.lock();
        state.in_hand -= 1;
        match made {
            Ok(file) => {
                state.table.free.push_back(Segment::fresh(index, file));
                self.unlock(state, None);
            }
            Err(DiskError { error, .. }) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => self.fail_prepare(state, error),
        }
        true
    }

    /// Creates segments, on a thread of its own, until the journal closes.
    pub(crate) fn run_prepares(&self) {
        loop {
            while self.prepare_next() {}
            let mut state = self.state.lock();
            if state.is_closing {
                return;
            }
            match state.prepare_at.since(self.clock.now()) {
                Duration::ZERO => self.prepare.wait(&mut state),
                wait => _ = self.prepare.wait_for(&mut state, wait),
            }
        }
    }

    /// Checks that a name still leads to the file that was opened under this name.
    ///
    /// Called after a sync, before the synced data count as durable.
    pub(crate) fn check_name(&self, name: &str, file: &dyn DiskFile) -> Result<(), DiskError> {
        let failed = DiskError::in_file(name, "find");
        match self.disk.id(name).map_err(&failed)? == file.id().map_err(&failed)? {
            true => Ok(()),
            false => Err(failed(io::Error::new(io::ErrorKind::NotFound, "another file has its name"))),
        }
    }

    /// Checks that the directory still contains this journal.
    pub(crate) fn check_place(&self) -> Result<(), DiskError> {
        let failed = DiskError::in_file(SUPERBLOCK_NAME, "find");
        let other = |why: String| failed(io::Error::other(why));
        match read_superblock(&*self.disk) {
            Ok(Some(superblock)) if superblock.journal == self.journal => Ok(()),
            Ok(Some(_)) => Err(other("another journal is in its directory".into())),
            Ok(None) => Err(failed(io::ErrorKind::NotFound.into())),
            Err(error) => Err(other(error.to_string())),
        }
    }

    /// Reopens all files after a failure, because the disk may have been unmounted, which makes the
    /// open files useless. Free segments whose files are gone are forgotten, and created again
    /// later.
    pub(crate) fn reopen(&self) -> Result<(), DiskError> {
        self.check_place()?;
        let mut lock = self.lock.lock();
        // The lock file may be a different file by now, and the same file cannot be locked twice.
        lock.take();
        *lock = Some(
            recovery::lock(&*self.disk)
                .map_err(|error| DiskError::new("lock", "lock", io::Error::other(error.to_string())))?,
        );
        drop(lock);
        let open = |index: &u32| -> Option<(u32, Arc<dyn DiskFile>)> {
            let file = self.disk.open(&segment_name(*index)).ok()?;
            (file.len().ok()? == self.segment_bytes).then_some((*index, file))
        };
        // The state is not locked during the calls of `open`, which may block as long as any
        // operation on a failing disk does.
        let known: Vec<u32> = self.state.lock().table.indexes().collect();
        let opened: Vec<_> = known.iter().filter_map(open).collect();
        let mut state = self.state.lock();
        for segment in state.table.all() {
            if let Some((_, file)) = opened.iter().find(|(index, _)| *index == segment.index) {
                segment.file = Arc::clone(file);
            }
        }
        let is_gone = |segment: &Segment| {
            known.contains(&segment.index) && !opened.iter().any(|(index, _)| *index == segment.index)
        };
        state.table.free.retain(|segment| !is_gone(segment));
        self.prepare.notify_one();
        Ok(())
    }
}
