//! Makes batches durable: one at a time, each by one write and one sync.
//!
//! Writers that wait for each record before they append the next one return just after a commit. A
//! commit that begins immediately includes only the first of these writers, and the others wait for
//! two syncs: the writers split into a small and a large group that alternate. So the commit thread
//! waits briefly for the writers that it has woken, which brings them into one batch. If the wait
//! was in vain, some commits skip it.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use crate::append::Batch;
use crate::config::Event;
use crate::disk::DiskFile;
use crate::error::DiskError;
use crate::format::{BLOCK_BYTES, BatchHeader, SEGMENT_DATA_AT, SegmentHeader, salt};
use crate::segments::segment_name;
use crate::shared::{Committing, Phase, RETRY_AFTER, Shared, State};

/// The place for the next header.
struct Place {
    index: u32,
    file: Arc<dyn DiskFile>,
    header_block: usize,
}

impl Shared {
    /// Commits the next batch, or tries to restart after a failure. Returns whether there was
    /// anything to do.
    pub(crate) fn commit_next(&self) -> bool {
        let mut committer = self.committer.lock();
        let mut state = self.state.lock();
        if let Phase::Failed(due) = state.phase {
            if self.clock.now() < due || state.is_closing {
                return false;
            }
            self.restart(&mut committer, state);
            return true;
        }
        if state.closed.is_empty() {
            state.close_filling();
        }
        let Some((batch, offset)) = state.closed.pop_front() else { return false };
        self.commit(&mut committer, state, batch, offset);
        true
    }

    /// Writes an empty batch. With this batch behind them, damage to the last records cannot be
    /// mistaken for a torn write. The batch also makes the tail durable.
    pub(crate) fn commit_empty(&self) {
        let mut committer = self.committer.lock();
        let mut state = self.state.lock();
        let position = state.next_position;
        let segment_bytes = state.table.segment_bytes;
        let is_idle = state.phase == Phase::Open && state.closed.is_empty() && state.filling.is_none();
        let Some(segment) = state.table.current().filter(|segment| is_idle && segment.is_started) else {
            return;
        };
        if segment.end + BLOCK_BYTES as u64 <= segment_bytes {
            let (index, offset) = (segment.index, segment.end);
            segment.end += BLOCK_BYTES as u64;
            segment.uncommitted += 1;
            let batch = Batch::new(state.buffers.pop().unwrap_or_default(), index, position);
            self.commit(&mut committer, state, batch, offset);
        }
    }

    fn commit<'a>(
        &'a self,
        committer: &mut Committer,
        mut state: MutexGuard<'a, State>,
        mut batch: Batch,
        offset: u64,
    ) {
        let begun = self.clock.now();
        let Some(segment) = state.table.find(batch.segment) else { return };
        let (index, file) = (segment.index, Arc::clone(&segment.file));
        let (is_started, header_block) = (segment.is_started, 1 - segment.header_block);
        state.committing = Some(Committing { begun, segment: index, first_position: batch.first_position });
        if std::mem::take(&mut state.is_watcher_asleep) {
            self.watch.notify_one();
        }
        if !is_started {
            let place = Place { index, file: Arc::clone(&file), header_block };
            let tail = state.table.tail_life();
            let last_life = committer.last_life;
            drop(state);
            if let Err(error) = self.write_header(committer, &place, tail, batch.first_position) {
                self.fail(self.state.lock(), batch, error);
                return;
            }
            state = self.state.lock();
            if state.committing.is_none() {
                // The batch was abandoned, so a later response of the disk for it is ignored.
                committer.last_life = last_life;
                return state.keep_buffers(batch);
            }
            let Some(segment) = state.table.find(index) else { return };
            segment.is_started = true;
            segment.life = committer.last_life;
            segment.header_block = place.header_block;
            state.durable_tail = tail.unwrap_or(committer.last_life);
        }
        let life = committer.last_life;
        let tail = state.table.tail_life().unwrap_or(life);
        drop(state);

        let header = BatchHeader {
            number: committer.next_number,
            previous_check: committer.last_check,
            tail,
            life,
            ..BatchHeader::default()
        };
        let check = batch.finish(salt(self.journal, life), header);
        let parts = batch.parts();
        let bytes = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        if let Err(error) = self.write_durably(index, &*file, offset, &parts) {
            self.fail(self.state.lock(), batch, error);
            return;
        }
        let mut state = self.state.lock();
        if state.committing.take().is_none() {
            return state.keep_buffers(batch);
        }
        let (waiting, next_position) =
            (state.filling_records(), batch.first_position + u64::from(batch.count));
        let count = batch.count;
        state.durable_tail = tail;
        if let Some(segment) = state.table.find(index) {
            segment.uncommitted = segment.uncommitted.saturating_sub(1);
        }
        self.forget(&mut state, batch);
        state.table.release();
        if !state.table.condemned.is_empty() {
            self.prepare.notify_one();
        }
        self.unlock(state, None);

        committer.next_number += 1;
        committer.last_check = check;
        // Counted before a waiter is woken, so that a writer finds its durable record in the
        // metrics.
        self.counters.counts.written_bytes.add(bytes);
        self.counters.batch_bytes.add(bytes);
        self.counters.batch_records.add(count.into());
        let took = self.clock.now().since(begun);
        self.counters.commit_micros.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        committer.gather.committed(count, waiting, took);
        // The writers are woken last: they append at once, and would have to wait for the state's lock.
        let wakers = self.durability.advance(next_position);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Removes a batch from the batches that wait for the disk.
    fn forget(&self, state: &mut State, batch: Batch) {
        state.unsynced_bytes = state.unsynced_bytes.saturating_sub(batch.unsynced_bytes);
        state.keep_buffers(batch);
    }

    /// Writes the header of a new life, and syncs it before any batch of that life.
    ///
    /// The header goes into the block without the current header: until the new one is durable, the
    /// segment belongs to its previous life.
    fn write_header(
        &self,
        committer: &mut Committer,
        place: &Place,
        tail: Option<u64>,
        first_position: u64,
    ) -> Result<(), DiskError> {
        let life = committer.next_life;
        // The number is used up even if the header is not written, because the disk's content after
        // a failure is unknown.
        committer.next_life += 1;
        let header = SegmentHeader {
            journal: self.journal,
            life,
            previous_life: committer.last_life,
            tail: tail.unwrap_or(life),
            first_number: committer.next_number,
            first_position,
            previous_check: committer.last_check,
        };
        let mut block = crate::append::AlignedBuffer::default();
        block.extend(&header.encode());
        let offset = (place.header_block * BLOCK_BYTES) as u64;
        self.write_durably(place.index, &*place.file, offset, &[block.as_slice()])?;
        committer.last_life = life;
        Ok(())
    }

    /// Writes to a segment, syncs it, and checks that it still has its name.
    fn write_durably(
        &self,
        index: u32,
        file: &dyn DiskFile,
        offset: u64,
        parts: &[&[u8]],
    ) -> Result<(), DiskError> {
        let name = segment_name(index);
        file.write_at(offset, parts).map_err(DiskError::in_file(&name, "write"))?;
        file.sync().map_err(DiskError::in_file(&name, "sync"))?;
        self.check_name(&name, file)
    }

    /// Abandons all records that are not durable, and the failed segment.
    ///
    /// A failed sync is not retried: the kernel reports an error only once, and forgets the bytes
    /// that it could not write.
    fn fail(&self, mut state: MutexGuard<'_, State>, batch: Batch, error: DiskError) {
        state.keep_buffers(batch);
        // Abandoned records have already failed.
        if let Some(committing) = state.committing.take() {
            self.give_up(state, committing, error);
        }
    }

    /// Fails as [`fail`](Self::fail) does if the disk has not responded for too long. Returns
    /// whether that is so. The disk may still respond: the commit thread then finds that its batch
    /// was abandoned, and restarts the journal.
    pub(crate) fn give_up_late(&self) -> bool {
        let mut state = self.state.lock();
        let is_late = |it: &mut Committing| self.clock.now() >= it.begun + self.commit_timeout;
        let Some(late) = state.committing.take_if(is_late) else { return false };
        let why = format!("no answer within {:?}", self.commit_timeout);
        let error = std::io::Error::new(std::io::ErrorKind::TimedOut, why);
        self.give_up(state, late, DiskError::new(&segment_name(late.segment), "commit", error));
        true
    }

    fn give_up(&self, mut state: MutexGuard<'_, State>, committing: Committing, error: DiskError) {
        state.phase = Phase::Failed(self.clock.now() + RETRY_AFTER);
        let Committing { first_position: first, segment: failed, .. } = committing;
        state.filling = None;
        state.closed.clear();
        state.unsynced_bytes = 0;
        state.table.poison_current(failed);
        let next = state.next_position;
        self.counters.counts.failures.increment();
        let DiskError { file, operation, error } = error;
        let event = Event::Failed { file, operation, error: error.to_string() };
        self.prepare.notify_one();
        // The state stays locked, so that no position is assigned between `next` and the failure.
        let wakers = self.durability.fail(first, next);
        self.unlock(state, Some(event));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Tries to begin a new segment.
    fn restart<'a>(&'a self, committer: &mut Committer, mut state: MutexGuard<'a, State>) {
        state.phase = Phase::Failed(self.clock.now() + RETRY_AFTER);
        drop(state);
        if let Err(error) = self.reopen() {
            self.report_failed_restart(self.state.lock(), error);
            return;
        }
        state = self.state.lock();
        let Some(mut segment) = state.table.free.pop_front() else { return };
        state.in_hand += 1;
        state.restarting = Some(segment.index);
        let (tail, position) = (state.table.tail_life(), state.next_position);
        drop(state);
        let place = Place {
            index: segment.index,
            file: Arc::clone(&segment.file),
            header_block: 1 - segment.header_block,
        };
        let written = self.write_header(committer, &place, tail, position);
        let mut state = self.state.lock();
        state.in_hand -= 1;
        state.restarting = None;
        match written {
            Ok(()) => {
                segment.life = committer.last_life;
                segment.header_block = place.header_block;
                state.durable_tail = tail.unwrap_or(committer.last_life);
                state.table.push_started(segment, position, self.clock.now());
                state.phase = Phase::Open;
                state.table.release();
                self.counters.counts.restarts.increment();
                self.prepare.notify_one();
                self.unlock(state, Some(Event::Restarted));
            }
            Err(error) => {
                // Next time, a different segment is tried first.
                state.table.free.push_back(segment);
                self.report_failed_restart(state, error);
            }
        }
    }

    /// Watches the commits, on a thread of its own: abandons commits that take too long, until the
    /// journal has closed.
    pub(crate) fn run_watch(&self) {
        loop {
            self.give_up_late();
            let mut state = self.state.lock();
            if state.is_closing && state.threads == 0 {
                return;
            }
            match state.committing {
                None => {
                    state.is_watcher_asleep = true;
                    self.watch.wait(&mut state);
                    state.is_watcher_asleep = false;
                }
                Some(committing) => {
                    let due = committing.begun + self.commit_timeout;
                    self.watch.wait_for(&mut state, due.since(self.clock.now()));
                }
            }
        }
    }

    fn report_failed_restart(&self, state: MutexGuard<'_, State>, error: DiskError) {
        self.counters.counts.failures.increment();
        let DiskError { file, operation, error } = error;
        self.unlock(state, Some(Event::Failed { file, operation, error: error.to_string() }));
    }

    /// Waits briefly for the writers that the last commit has woken.
    fn gather(&self) {
        let mut committer = self.committer.lock();
        let mut state = self.state.lock();
        if state.phase != Phase::Open || state.is_closing || !state.closed.is_empty() {
            return;
        }
        let Some(wanted) = committer.gather.wanted(state.filling_records()) else { return };
        let deadline = Instant::now() + wanted.time;
        state.wake_at_records = wanted.records;
        // The thread is woken by the append that reaches this number or closes the batch, and when
        // the journal closes.
        while state.wake_at_records != 0 && !state.is_closing {
            if self.work.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.wake_at_records = 0;
        let is_full = !state.closed.is_empty();
        let records = if is_full { wanted.records } else { state.filling_records() };
        committer.gather.waited(wanted, records);
    }

    /// Commits, on the commit thread, until the journal closes.
    pub(crate) fn run_commits(&self) {
        loop {
            while self.commit_next() {
                self.gather();
            }
            let mut state = self.state.lock();
            let is_idle = state.closed.is_empty() && state.filling.is_none();
            match state.phase {
                Phase::Open if !is_idle => {}
                Phase::Open | Phase::Failed(_) if state.is_closing => break,
                Phase::Open => {
                    state.wake_at_records = 1;
                    self.work.wait(&mut state);
                    state.wake_at_records = 0;
                }
                Phase::Failed(due) => {
                    let wait = due.since(self.clock.now());
                    self.work.wait_for(&mut state, wait);
                }
            }
        }
        self.commit_empty();
    }
}

const _: () = assert!(SEGMENT_DATA_AT as usize == 2 * BLOCK_BYTES);

/// The end of the durable log. Only one thread at a time extends the log.
#[derive(Debug, Default)]
pub(crate) struct Committer {
    /// The number of the next batch.
    pub(crate) next_number: u64,
    /// The check of the last durable batch.
    pub(crate) last_check: u32,
    /// The life of the last segment whose header is durable.
    pub(crate) last_life: u64,
    pub(crate) next_life: u64,
    pub(crate) gather: Gather,
}

/// A wait takes at most this fraction of a commit's time.
const PART: u32 = 4;
/// The maximum wait, however slow the disk is.
const WAIT_MAX: Duration = Duration::from_millis(2);
/// The maximum number of commits that skip the wait after waits in vain.
const SKIPS_MAX: u32 = 64;

/// Statistics of the last commits.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// The number of records of the last commit.
    woken: u32,
    /// The number of records that were waiting for the next commit when the last commit completed.
    waiting: u32,
    /// The moving average of the time that a commit takes.
    commit_time: Duration,
    /// The number of further commits that skip the wait.
    skips: u32,
    /// The number of commits that skip the wait after the next wait in vain.
    next_skips: u32,
}

/// The condition that ends a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// The wait ends when the batch has this number of records.
    pub(crate) records: u32,
    /// The number of these records that are not from woken writers.
    waiting: u32,
    /// The maximum time to wait.
    pub(crate) time: Duration,
}

impl Gather {
    /// Records that a commit has taken `took`. The writers of its `woken` records are woken now,
    /// while `waiting` other records wait for the next commit.
    pub(crate) fn committed(&mut self, woken: u32, waiting: u32, took: Duration) {
        (self.woken, self.waiting) = (woken, waiting);
        self.commit_time = if self.commit_time.is_zero() { took } else { (self.commit_time * 7 + took) / 8 };
    }

    /// Returns the condition for which the next commit, with `present` records, should wait, or
    /// `None` if it should not wait.
    pub(crate) fn wanted(&mut self, present: u32) -> Option<Wanted> {
        let (woken, waiting) = (std::mem::take(&mut self.woken), self.waiting);
        let records = woken.saturating_add(waiting);
        // The next record of a single writer wakes the sleeping thread anyway.
        if woken == 0 || records <= 1 {
            return None;
        }
        if present >= records {
            self.next_skips = 0;
            return None;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return None;
        }
        let time = (self.commit_time / PART).min(WAIT_MAX);
        Some(Wanted { records, waiting, time })
    }

    /// Records the end of a wait, with `records` records in the batch.
    pub(crate) fn waited(&mut self, wanted: Wanted, records: u32) {
        let came = records.saturating_sub(wanted.waiting);
        let woken = wanted.records - wanted.waiting;
        // The wait was worthwhile if half of the woken writers have come.
        if came >= woken.div_ceil(2) {
            self.next_skips = 0;
        } else {
            self.next_skips = (2 * self.next_skips + 1).min(SKIPS_MAX);
            self.skips = self.next_skips;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: Duration = Duration::from_millis(1);

    #[test]
    fn two_groups_that_take_turns_become_one() {
        let mut gather = Gather::default();
        gather.committed(3, 13, COMMIT);
        let wanted = gather.wanted(14).expect("a wait");
        assert_eq!((wanted.records, wanted.time), (16, COMMIT / 4));
        gather.waited(wanted, 16);
        gather.committed(16, 0, COMMIT);
        assert_eq!(gather.wanted(0).map(|wanted| wanted.records), Some(16));
        gather.committed(16, 0, COMMIT);
        assert_eq!(gather.wanted(16), None, "all of them are there");
    }

    #[test]
    fn a_writer_alone_and_an_idle_journal_wait_for_nothing() {
        let mut gather = Gather::default();
        assert_eq!(gather.wanted(1), None);
        gather.committed(1, 0, COMMIT);
        assert_eq!(gather.wanted(0), None);
        gather.committed(0, 5, COMMIT);
        assert_eq!(gather.wanted(5), None);
    }

    #[test]
    fn writers_that_do_not_come_back_are_waited_for_less_and_less() {
        let mut gather = Gather::default();
        let mut waits = 0;
        for _ in 0..1000 {
            gather.committed(10, 10, COMMIT);
            if let Some(wanted) = gather.wanted(11) {
                waits += 1;
                gather.waited(wanted, 14);
            }
        }
        // 1, 3, 7, 15, 31, 63 and then 64 commits go without a wait.
        assert_eq!(waits, 6 + (1000 - 126) / 65 + 1);
        while gather.skips > 0 {
            gather.committed(10, 10, COMMIT);
            assert_eq!(gather.wanted(10), None);
        }
        gather.committed(10, 10, COMMIT);
        let wanted = gather.wanted(10).expect("a wait");
        gather.waited(wanted, 15);
        gather.committed(15, 5, COMMIT);
        assert!(gather.wanted(5).is_some(), "half of them came");
    }

    #[test]
    fn a_slow_disk_does_not_make_the_wait_long() {
        let mut gather = Gather::default();
        gather.committed(2, 0, Duration::from_secs(1));
        assert_eq!(gather.wanted(1).map(|wanted| wanted.time), Some(WAIT_MAX));
    }
}
