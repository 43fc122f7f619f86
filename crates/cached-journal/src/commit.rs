//! Making batches durable: one at a time, each by one write and one sync.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use parking_lot::MutexGuard;

use crate::batch::Batch;
use crate::committer::Committer;
use crate::disk::DiskFile;
use crate::error::DiskError;
use crate::event::Event;
use crate::format::batch::BatchHeader;
use crate::format::segment::SegmentHeader;
use crate::format::{BLOCK_BYTES, SEGMENT_DATA_AT, salt};
use crate::metrics::Counters;
use crate::shared::{Committing, Phase, RETRY_AFTER, Shared, State};
use crate::table::segment_name;

/// Where a header is to be written.
struct Place {
    index: u32,
    file: Arc<dyn DiskFile>,
    header_block: usize,
}

impl Shared {
    /// Commits the next batch, or tries to restart after a failure. Returns whether there was something to
    /// do.
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

    /// Writes an empty batch: behind it, damage to the last records cannot be taken for a torn write. Also
    /// makes the tail durable.
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
                // Given up: what the disk has done since is not believed.
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
        let name = segment_name(index);
        let written = file
            .write_at(offset, &parts)
            .map_err(|error| DiskError::new(&name, "write", error))
            .and_then(|()| file.sync().map_err(|error| DiskError::new(&name, "sync", error)));
        let written = written.and_then(|()| self.check_name(&name, &*file));
        if let Err(error) = written {
            self.fail(self.state.lock(), batch, error);
            return;
        }
        let mut state = self.state.lock();
        if state.committing.take().is_none() {
            return state.keep_buffers(batch);
        }
        let waiting = state.filling_records();
        drop(state);

        committer.next_number += 1;
        committer.last_check = check;
        // Counted before a waiter is woken: a writer whose record is durable finds it in the metrics.
        Counters::add(&self.counters.written_bytes, bytes);
        self.counters.batch_bytes.add(bytes);
        self.counters.batch_records.add(batch.count.into());
        let took = self.clock.now().saturating_sub(begun);
        self.counters.commit_micros.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        committer.gather.committed(batch.count, waiting, took);
        let wakers = self.durability.advance(batch.first_position + u64::from(batch.count));
        wakers.into_iter().for_each(Waker::wake);

        let mut state = self.state.lock();
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
    }

    /// A batch waits for the disk no longer.
    fn forget(&self, state: &mut State, batch: Batch) {
        state.unsynced_bytes = state.unsynced_bytes.saturating_sub(batch.unsynced_bytes);
        state.keep_buffers(batch);
    }

    /// Writes the header of a new life, durably before any batch of that life.
    ///
    /// The header goes into the block that does not hold the header in force: as long as the new one is not
    /// durable, the segment is what it was before.
    fn write_header(
        &self,
        committer: &mut Committer,
        place: &Place,
        tail: Option<u64>,
        first_position: u64,
    ) -> Result<(), DiskError> {
        let life = committer.next_life;
        // Used up even if the header is not written: what is on disk after a failure is not known.
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
        let name = segment_name(place.index);
        let mut block = crate::buffer::AlignedBuffer::default();
        block.extend(&header.encode());
        let offset = (place.header_block * BLOCK_BYTES) as u64;
        place
            .file
            .write_at(offset, &[block.as_slice()])
            .map_err(|error| DiskError::new(&name, "write", error))?;
        place.file.sync().map_err(|error| DiskError::new(&name, "sync", error))?;
        self.check_name(&name, &*place.file)?;
        committer.last_life = life;
        Ok(())
    }

    /// Gives up all records that are not durable, and the segment that failed.
    ///
    /// A sync that failed is not repeated: the kernel reports an error once, and forgets the bytes that it
    /// could not write.
    fn fail(&self, mut state: MutexGuard<'_, State>, batch: Batch, error: DiskError) {
        state.keep_buffers(batch);
        // What was given up has failed already.
        if let Some(committing) = state.committing.take() {
            self.give_up(state, committing, error);
        }
    }

    /// As [`fail`](Self::fail), if the disk has not answered for too long. Returns whether it has not. It may
    /// answer yet: the commit thread then finds that its batch was given up, and restarts the journal.
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
        Counters::add(&self.counters.failures, 1);
        let DiskError { file, operation, error } = error;
        let event = Event::Failed { file, operation, error: error.to_string() };
        self.prepare.notify_one();
        // The state stays locked: no position is given out between `next` and the failure.
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
                Counters::add(&self.counters.restarts, 1);
                self.prepare.notify_one();
                self.unlock(state, Some(Event::Restarted));
            }
            Err(error) => {
                // Another one is tried first next time.
                state.table.free.push_back(segment);
                self.report_failed_restart(state, error);
            }
        }
    }

    /// The thread that watches the commits: gives up what takes too long, until the journal has closed.
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
                    self.watch.wait_for(&mut state, due.saturating_sub(self.clock.now()));
                }
            }
        }
    }

    fn report_failed_restart(&self, state: MutexGuard<'_, State>, error: DiskError) {
        Counters::add(&self.counters.failures, 1);
        let DiskError { file, operation, error } = error;
        self.unlock(state, Some(Event::Failed { file, operation, error: error.to_string() }));
    }

    /// Waits a little for the writers that the last commit has woken.
    fn gather(&self) {
        let mut committer = self.committer.lock();
        let mut state = self.state.lock();
        if state.phase != Phase::Open || state.is_closing || !state.closed.is_empty() {
            return;
        }
        let Some(wanted) = committer.gather.wanted(state.filling_records()) else { return };
        let deadline = Instant::now() + wanted.time;
        state.wake_at_records = wanted.records;
        // Woken by the append that makes the number full or closes the batch, and when the journal closes.
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

    /// The commit thread: commits until the journal closes.
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
                    let wait = due.saturating_sub(self.clock.now());
                    self.work.wait_for(&mut state, wait);
                }
            }
        }
        self.commit_empty();
    }
}

const _: () = assert!(SEGMENT_DATA_AT as usize == 2 * BLOCK_BYTES);
