//! The journal's interface.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use blocker::metrics::Counter;
use parking_lot::Mutex;

use crate::append::{Appended, Hold, Reservation};
use crate::config::{Environment, JournalConfig, Level, Observer};
use crate::disk::RealDisk;
use crate::durability::Wait;
use crate::error::{AppendError, DiskError, NotDurable, OpenError};
use crate::record::{Position, Record};
use crate::recovery;
use crate::replay::Replay;
use crate::shared::{Metrics, Phase, Shared};

/// Runs a thread that uses the disk, and that has been counted.
fn counted(shared: &Shared, run: impl FnOnce(&Shared)) {
    struct Counted<'a>(&'a Shared);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.state.lock().threads -= 1;
            self.0.ended.notify_all();
            self.0.watch.notify_all();
        }
    }
    let _counted = Counted(shared);
    run(shared);
}

/// A journal: records are appended in order, become durable in groups, and are replayed as a prefix
/// after a crash.
///
/// The journal has three threads: one commits batches, one creates segments, and one gives up on a
/// disk that does not respond. Dropping the journal commits all appended records, and ends the
/// threads.
pub struct Journal {
    shared: Arc<Shared>,
    /// The threads that use the disk.
    threads: Mutex<Vec<JoinHandle<()>>>,
    watcher: Mutex<Option<JoinHandle<()>>>,
}

impl Journal {
    /// Opens the journal in a directory. If the directory is empty or missing, creates a journal,
    /// or fails with [`OpenError::Missing`], depending on the configuration. Events go to
    /// `observer`.
    ///
    /// Opening reads the heads of all records from the log's tail to its end, so the time is
    /// proportional to the size of the earlier process's log.
    ///
    /// # Errors
    /// If another process has the directory open, if the configuration is invalid, if the journal
    /// is damaged or the directory contains something else, or if the disk fails. In these cases
    /// nothing is changed.
    pub fn open(config: &JournalConfig, observer: Observer) -> Result<(Self, Replay), OpenError> {
        config.validate().map_err(OpenError::Config)?;
        let directory = &config.directory;
        let opened = match config.create {
            true => RealDisk::create(directory, config.direct),
            false => RealDisk::open(directory, config.direct),
        };
        let disk = opened.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound if !config.create => OpenError::Missing,
            _ => DiskError::new(&directory.display().to_string(), "open", error).into(),
        })?;
        Self::open_in(config, Environment { observer, ..Environment::new(disk) })
    }

    /// Opens a journal as [`open`](Self::open) does, with the given disk, clock and observer.
    /// Segments may be smaller than on a real disk: at least 64 KiB.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_in(config: &JournalConfig, environment: Environment) -> Result<(Self, Replay), OpenError> {
        let (journal, replay) = Self::open_stepped(config, environment)?;
        let spawn = |name: &str, run: fn(&Shared)| {
            let shared = Arc::clone(&journal.shared);
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(&shared));
            thread.map_err(|error| OpenError::Disk(DiskError::new(name, "start the thread of", error)))
        };
        *journal.watcher.lock() = Some(spawn("journal-watch", Shared::run_watch)?);
        for (name, run) in [
            ("journal-commit", (|shared| counted(shared, Shared::run_commits)) as fn(&Shared)),
            ("journal-prepare", |shared| counted(shared, Shared::run_prepares)),
        ] {
            journal.shared.state.lock().threads += 1;
            match spawn(name, run) {
                Ok(thread) => journal.threads.lock().push(thread),
                Err(error) => {
                    journal.shared.state.lock().threads -= 1;
                    return Err(error);
                }
            }
        }
        Ok((journal, replay))
    }

    /// Opens a journal without threads: a test calls `step_commit` and `step_prepare` instead.
    #[doc(hidden)]
    pub fn open_stepped(
        config: &JournalConfig,
        environment: Environment,
    ) -> Result<(Self, Replay), OpenError> {
        config.validate_ratios().map_err(OpenError::Config)?;
        let (shared, replay) = recovery::open(config, environment)?;
        Ok((Self { shared, threads: Mutex::default(), watcher: Mutex::default() }, replay))
    }

    /// Does the next piece of the commit thread's work. Returns whether there was anything to do.
    #[doc(hidden)]
    pub fn step_commit(&self) -> bool {
        self.shared.commit_next()
    }

    /// Does the work of a close, except for releasing the lock.
    #[cfg(test)]
    pub(crate) fn close_stepped(&self) {
        while self.shared.commit_next() {}
        self.shared.commit_empty();
    }

    /// Returns the outcome of a record.
    #[cfg(test)]
    pub(crate) fn outcome(&self, position: Position) -> Option<Result<(), NotDurable>> {
        self.shared.durability.outcome(position)
    }

    /// Abandons a commit that takes too long. Returns whether there was such a commit.
    #[doc(hidden)]
    pub fn step_watch(&self) -> bool {
        self.shared.give_up_late()
    }

    /// Does the next piece of the preparing thread's work. Returns whether there was anything to
    /// do.
    #[doc(hidden)]
    pub fn step_prepare(&self) -> bool {
        self.shared.prepare_next()
    }

    /// Appends a record, and takes a hold of its position. Does not wait for the disk.
    ///
    /// Positions increase in the order of the calls. The payload is copied.
    ///
    /// # Errors
    /// `Full` if there is no unreserved space, `Busy` if too many bytes wait for the disk, `Failed`
    /// if the disk has failed; `TooLarge`; `Closed`. After an error nothing was appended.
    pub fn append(&self, record: &Record<'_>) -> Result<Appended, AppendError> {
        self.shared.append(record, None, 0)
    }

    /// Appends as [`append`](Self::append) does, but fails with `Full` unless `leave` bytes remain
    /// free for more important records.
    ///
    /// # Errors
    /// The errors of [`append`](Self::append).
    pub fn append_leaving(&self, record: &Record<'_>, leave: u64) -> Result<Appended, AppendError> {
        self.shared.append(record, None, leave)
    }

    /// Reserves space for `records` records with a total payload of `payload_bytes`, so that
    /// appending them later cannot be refused as full. Reserve before entering an exclusive
    /// section, and wait for `Event::Room` outside the section.
    ///
    /// # Errors
    /// The errors of [`append`](Self::append); `Full` also unless `leave` bytes remain free.
    pub fn reserve_leaving(
        &self,
        records: u64,
        payload_bytes: u64,
        leave: u64,
    ) -> Result<Reservation, AppendError> {
        self.shared.reserve(records, payload_bytes, leave)
    }

    /// Returns a future that completes when the record at `position` is durable. Any executor may
    /// poll the future, and it is cancel safe.
    ///
    /// The future never completes for a position that no append has returned.
    ///
    /// # Errors
    /// [`NotDurable`] if the disk failed before the record was durable.
    pub fn wait(&self, position: Position) -> Wait {
        Wait { durability: Arc::clone(&self.shared.durability), position, waiter: None }
    }

    /// Waits as [`wait`](Self::wait) does, but blocks the thread.
    ///
    /// # Errors
    /// [`NotDurable`] if the disk failed before the record was durable.
    pub fn wait_blocking(&self, position: Position) -> Result<(), NotDurable> {
        blocker::executor::block_on(self.wait(position))
    }

    /// Returns whether the record at `position` is durable. Returns false while the outcome is
    /// undecided, and if the record has failed.
    pub fn is_durable(&self, position: Position) -> bool {
        self.shared.durability.outcome(position) == Some(Ok(()))
    }

    /// Takes a hold of a position, so that its segment and all later ones stay. Returns `None` if
    /// the segment has already been released.
    ///
    /// To move an object forward, take the new hold before dropping the old one.
    pub fn hold(&self, position: Position) -> Option<Hold> {
        let state = self.shared.state.lock();
        if position.0 >= state.next_position {
            return None;
        }
        let segment = state.table.holding(position.0)?;
        segment.holds.fetch_add(1, Ordering::AcqRel);
        Some(Hold::new(Arc::clone(&self.shared), Arc::clone(&segment.holds), position))
    }

    /// Returns the positions in the oldest segment. Before the segment can be reused, the data of
    /// all objects whose oldest record is in it must be stored.
    pub fn oldest(&self) -> Option<std::ops::Range<Position>> {
        let state = self.shared.state.lock();
        let first = state.table.live.front()?.first_position;
        let next = state.table.live.get(1).map_or(state.next_position, |segment| segment.first_position);
        Some(Position(first)..Position(next))
    }

    /// Returns the position that the next record will get. All records appended so far have lower
    /// positions, so a mark "up to here" covers `next_position() - 1`.
    pub fn next_position(&self) -> Position {
        Position(self.shared.state.lock().next_position)
    }

    /// Returns the journal's fill level.
    pub fn level(&self) -> Level {
        self.shared.state.lock().level
    }

    /// Returns whether appends are refused because the disk has failed.
    pub fn is_failed(&self) -> bool {
        self.shared.state.lock().phase != Phase::Open
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> Metrics {
        let (counters, state) = (&self.shared.counters, self.shared.state.lock());
        let oldest = state.table.live.front();
        Metrics {
            counts: counters.counts.map(Counter::get),
            fill_bytes: state.table.fill_bytes(),
            capacity_bytes: state.table.capacity_bytes(),
            live_segments: state.table.live.len() as u64,
            free_segments: state.table.free.len() as u64,
            unsynced_bytes: state.unsynced_bytes,
            oldest: oldest.map(|segment| Position(segment.first_position)),
            oldest_age: oldest.map_or(Duration::ZERO, |segment| self.shared.clock.now().since(segment.begun)),
            is_failed: state.phase != Phase::Open,
            batch_bytes: counters.batch_bytes.read(),
            batch_records: counters.batch_records.read(),
            commit_micros: counters.commit_micros.read(),
        }
    }

    /// Returns the random number that identifies this journal, drawn when it was created, and kept
    /// as long as its directory.
    pub fn id(&self) -> u64 {
        self.shared.journal
    }

    /// Returns the maximum total size of the segments, and the size of one segment.
    pub fn limit_bytes(&self) -> (u64, u64) {
        (self.shared.segments_max * self.shared.segment_bytes, self.shared.segment_bytes)
    }

    /// Returns the maximum length of a record's payload, in bytes.
    pub fn payload_bytes_max(&self) -> u64 {
        crate::format::record_payload_max(self.shared.segment_bytes)
    }

    /// Commits all appended records, ends the threads and releases the directory's lock. Appends
    /// are refused as soon as the close begins. The close waits for the disk no longer than a
    /// commit may take; if the disk has not responded by then, the lock stays until the process
    /// ends, because the disk may still write.
    ///
    /// # Errors
    /// [`NotDurable`] if a record could not be made durable, or the disk has failed before.
    pub fn close(self) -> Result<(), NotDurable> {
        self.shut_down()
    }

    /// Closes the journal as [`close`](Self::close) does, while others share it.
    ///
    /// # Errors
    /// The errors of [`close`](Self::close).
    pub fn shut_down(&self) -> Result<(), NotDurable> {
        self.end();
        if self.is_failed() { Err(NotDurable) } else { Ok(()) }
    }

    fn end(&self) {
        self.shared.state.lock().is_closing = true;
        self.shared.work.notify_all();
        self.shared.prepare.notify_all();
        self.shared.watch.notify_all();
        // The last handle may be dropped by a task that the commit thread, or the watcher, has just
        // woken.
        let is_own = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        let threads = std::mem::take(&mut *self.threads.lock());
        let own = threads.iter().filter(|thread| is_own(thread)).count();
        let is_second = threads.is_empty() && self.shared.state.lock().threads > 0;
        if is_second || !self.wait_for_threads(own as u32) {
            return;
        }
        // The watcher ends after all other threads.
        let watcher = self.watcher.lock().take().filter(|_| own == 0);
        for thread in threads.into_iter().chain(watcher).filter(|thread| !is_own(thread)) {
            // A thread that panicked has already reported it.
            let _ = thread.join();
        }
        self.shared.lock.lock().take();
    }

    /// Waits until only `own` threads that use the disk remain. Returns false if the disk blocks a
    /// thread and there was no progress for as long as a commit may take.
    fn wait_for_threads(&self, own: u32) -> bool {
        let shared = &self.shared;
        let mut due = shared.clock.now() + shared.commit_timeout;
        let mut state = shared.state.lock();
        let mut seen = (state.threads, shared.durability.decided());
        while state.threads > own {
            let left = due.since(shared.clock.now());
            if left.is_zero() {
                return false;
            }
            shared.ended.wait_for(&mut state, left);
            let now_seen = (state.threads, shared.durability.decided());
            if now_seen != seen {
                (seen, due) = (now_seen, shared.clock.now() + shared.commit_timeout);
            }
        }
        true
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Journal").field("metrics", &self.metrics()).finish()
    }
}
