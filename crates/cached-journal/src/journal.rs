//! The journal as its caller sees it.

use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;

use crate::append::{Appended, Reservation};
use crate::config::JournalConfig;
use crate::disk::RealDisk;
use crate::durability::{Wait, block_on};
use crate::environment::Environment;
use crate::error::{AppendError, DiskError, NotDurable, OpenError};
use crate::event::{Level, Observer};
use crate::hold::Hold;
use crate::metrics::Metrics;
use crate::record::{Position, Record};
use crate::recovery;
use crate::replay::Replay;
use crate::shared::{Phase, Shared};

/// A journal: records appended in order, durable in groups, replayed as a prefix after a crash.
///
/// Two threads work for it: one commits batches, one makes segments. Dropping the journal commits what was
/// appended, and ends both.
pub struct Journal {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Journal {
    /// Opens the journal of a directory, or makes one if the directory is empty or missing. Events go to
    /// `observer`.
    ///
    /// Reads the heads of all records from the log's tail to its end, so it takes time in proportion to what
    /// an earlier process left.
    ///
    /// # Errors
    /// If another process has the directory open, if the configuration is wrong, if the journal is damaged or
    /// the directory holds something else, and if the disk fails. Nothing is changed then.
    pub fn open(config: &JournalConfig, observer: Observer) -> Result<(Self, Replay), OpenError> {
        config.validate().map_err(OpenError::Config)?;
        let directory = &config.directory;
        let disk = RealDisk::open(directory, config.direct)
            .map_err(|error| DiskError::new(&directory.display().to_string(), "open", error))?;
        Self::open_in(config, Environment { observer, ..Environment::new(disk) })
    }

    /// As [`open`](Self::open), on the given disk, clock and observer. Segments may be smaller than on a real
    /// disk: 64 KiB at least.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_in(config: &JournalConfig, environment: Environment) -> Result<(Self, Replay), OpenError> {
        config.validate_ratios().map_err(OpenError::Config)?;
        let (shared, replay) = recovery::open(config, environment)?;
        let journal = Self { shared, threads: Mutex::default() };
        let spawn = |name: &str, run: fn(&Shared)| {
            let shared = Arc::clone(&journal.shared);
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(&shared));
            thread.map_err(|error| OpenError::Disk(DiskError::new(name, "start the thread of", error)))
        };
        journal.threads.lock().push(spawn("journal-commit", Shared::run_commits)?);
        journal.threads.lock().push(spawn("journal-prepare", Shared::run_prepares)?);
        Ok((journal, replay))
    }

    /// Opens without threads: the test calls `step_commit` and `step_prepare` instead.
    #[cfg(any(test, feature = "simulated"))]
    #[doc(hidden)]
    pub fn open_stepped(
        config: &JournalConfig,
        environment: Environment,
    ) -> Result<(Self, Replay), OpenError> {
        config.validate_ratios().map_err(OpenError::Config)?;
        let (shared, replay) = recovery::open(config, environment)?;
        Ok((Self { shared, threads: Mutex::default() }, replay))
    }

    /// Does the commit thread's next piece of work. Returns whether there was one.
    #[cfg(any(test, feature = "simulated"))]
    #[doc(hidden)]
    pub fn step_commit(&self) -> bool {
        self.shared.commit_next()
    }

    /// Does what closing does, and leaves the lock's release to the drop.
    #[cfg(test)]
    pub(crate) fn close_stepped(&self) {
        while self.shared.commit_next() {}
        self.shared.commit_empty();
    }

    /// Returns what became of a record.
    #[cfg(test)]
    pub(crate) fn outcome(&self, position: Position) -> Option<Result<(), NotDurable>> {
        self.shared.durability.outcome(position)
    }

    /// Does the preparing thread's next piece of work. Returns whether there was one.
    #[cfg(any(test, feature = "simulated"))]
    #[doc(hidden)]
    pub fn step_prepare(&self) -> bool {
        self.shared.prepare_next()
    }

    /// Appends a record, and takes a hold of its position. Does not wait for the disk.
    ///
    /// Records get rising positions in the order of the calls. The payload is copied.
    ///
    /// # Errors
    /// `Full`, `Busy` or `Failed` if there is no room beside what is reserved, the disk is behind, or it has
    /// failed; `TooLarge`; `Closed`. Nothing was appended then.
    pub fn append(&self, record: &Record<'_>) -> Result<Appended, AppendError> {
        self.shared.append(record, None)
    }

    /// Sets room aside for `records` records with `payload_bytes` bytes of payload in all, so that appending
    /// them later cannot be refused for want of room.
    ///
    /// # Errors
    /// As [`append`](Self::append). Reserve before entering an exclusive section, and wait for `Event::Room`
    /// outside of it.
    pub fn reserve(&self, records: u64, payload_bytes: u64) -> Result<Reservation, AppendError> {
        self.shared.reserve(records, payload_bytes)
    }

    /// Completes when the record at `position` is durable. Any executor may poll it. Cancel safe.
    ///
    /// It does not complete for a position that no append has returned.
    ///
    /// # Errors
    /// [`NotDurable`] if the disk failed before.
    pub fn wait(&self, position: Position) -> Wait {
        Wait { durability: Arc::clone(&self.shared.durability), position, waiter: None }
    }

    /// As [`wait`](Self::wait), blocking the thread.
    ///
    /// # Errors
    /// [`NotDurable`] if the disk failed before.
    pub fn wait_blocking(&self, position: Position) -> Result<(), NotDurable> {
        block_on(self.wait(position))
    }

    /// Returns whether the record at `position` is durable: false if it is not yet, and if it has failed.
    pub fn is_durable(&self, position: Position) -> bool {
        self.shared.durability.outcome(position) == Some(Ok(()))
    }

    /// Takes a hold of a position: its segment and all later ones stay. Returns nothing if the segment has
    /// been released.
    ///
    /// To move an object forward, take the new hold before dropping the old one.
    pub fn hold(&self, position: Position) -> Option<Hold> {
        self.shared.hold(position)
    }

    /// Returns the positions in the oldest segment: data of objects whose oldest record is among them must be
    /// stored before the segment can be used again.
    pub fn oldest(&self) -> Option<std::ops::Range<Position>> {
        self.shared.oldest()
    }

    /// Returns the position that the next record gets. All records appended before are below it: a mark "up
    /// to here" covers `next_position() - 1`.
    pub fn next_position(&self) -> Position {
        Position(self.shared.state.lock().next_position)
    }

    /// Returns how full the journal is.
    pub fn level(&self) -> Level {
        self.shared.level()
    }

    /// Returns whether appends are refused because the disk has failed.
    pub fn is_failed(&self) -> bool {
        self.shared.state.lock().phase != Phase::Open
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> Metrics {
        self.shared.metrics()
    }

    /// Returns the longest payload that a record may have, in bytes.
    pub fn payload_bytes_max(&self) -> u64 {
        crate::format::record_payload_max(self.shared.segment_bytes)
    }

    /// Commits what was appended, ends the threads and releases the directory's lock. Appends are refused
    /// from the beginning.
    ///
    /// # Errors
    /// [`NotDurable`] if a record could not be made durable, or the disk has failed before.
    pub fn close(self) -> Result<(), NotDurable> {
        self.end();
        if self.is_failed() { Err(NotDurable) } else { Ok(()) }
    }

    fn end(&self) {
        self.shared.state.lock().is_closing = true;
        self.shared.work.notify_all();
        self.shared.prepare.notify_all();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has reported it already.
            let _ = thread.join();
        }
        self.shared.lock.lock().take();
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
