//! The records that an earlier process has logged and this one has not yet applied: the records by
//! object, the progress of each object, and the waiting tasks. `shared/log_waits.rs` waits for the
//! recovery, `recovery/` applies the records.

mod found;
mod progress;

use std::collections::HashMap;
use std::sync::OnceLock;

use blocker::executor::block_on;
use blocker::{Epoch, Namespace};
use cached_journal::{Replay, Source};
use futures_channel::{mpsc, oneshot};

pub(crate) use found::{Collector, Found, FoundNamespace, Parts, Stage};
pub(crate) use progress::State;

use super::{ChangeLog, Logged};
use crate::object::lock_ranks;
use crate::object::tasks::Task;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// Creates the task that recovers an object out of turn.
pub(crate) type OutOfTurn = Box<dyn Fn(u32) -> Task + Send + Sync>;

/// The progress of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecoveryProgress {
    /// The number of records in the journal.
    pub records: u64,
    /// The number of records that are applied, or left out because the store already has their
    /// changes.
    pub records_applied: u64,
    /// The number of objects that cannot be recovered because their records are damaged. Operations
    /// on these objects fail; the log names the objects.
    pub objects_failed: u64,
    /// Whether the recovery has ended.
    pub is_done: bool,
}

/// A claim made by an attempt to begin the recovery: its epoch is in the log, and the store has
/// accepted it, or may have.
#[derive(Clone, Copy)]
pub(crate) struct BegunClaim {
    pub(crate) epoch: Epoch,
    /// Whether the records of the namespace are left out, because this cache has voided them.
    pub(crate) is_voided: bool,
}

/// The namespaces that other writers have taken over since the journal was written.
#[derive(Default)]
pub(crate) struct Overtaken {
    /// The directory, within the journal's, that holds a copy of the journal.
    pub(crate) kept_in: Option<String>,
    /// Each namespace whose records the log has declared void, with the journal's epoch and the one
    /// in force.
    pub(crate) namespaces: Vec<(Namespace, Epoch, Epoch)>,
}

/// The records that an earlier process left.
pub(crate) struct Unapplied {
    pub(crate) replay: Replay,
    /// The claims of earlier attempts to begin: the next attempt must not take them for those of
    /// another process.
    pub(crate) claims: HashMap<Namespace, BegunClaim>,
    /// The namespaces that earlier attempts have found to be taken over by other writers.
    pub(crate) overtaken: Overtaken,
    /// Until the recovery has ended, the log must not be declared void.
    pub(crate) logged: Logged,
}

/// The progress of applying an earlier process's records.
pub(crate) struct Recovery {
    /// Whether any object may have unapplied records.
    is_active: AtomicBool,
    is_done: AtomicBool,
    records: u64,
    applied: AtomicU64,
    failed: AtomicU64,
    state: Mutex<State>,
    /// The states of which only a part has been passed.
    pub(crate) parts: Parts,
    /// The records of the earlier process, until the recovery has begun.
    replay: Mutex<Option<Unapplied>>,
    pub(crate) source: Option<Source>,
    /// Whether a separate thread reads the journal.
    reads_apart: bool,
    /// Set when the recovery begins, until it ends.
    reading: Mutex<Arc<Reading>>,
    /// Set when the recovery begins.
    out_of_turn: OnceLock<OutOfTurn>,
}

impl Recovery {
    /// Returns the recovery of the records that an earlier process left in a log. With
    /// `reads_apart`, a separate thread reads them.
    pub(crate) fn new(found: Option<(Replay, &ChangeLog)>, reads_apart: bool) -> Self {
        let found = found.filter(|(replay, _)| !replay.is_empty());
        let is_active = found.is_some();
        let records = found.as_ref().map_or(0, |(replay, _)| replay.len());
        let source = found.as_ref().map(|(replay, _)| replay.source());
        let unapplied = found.map(|(replay, log)| {
            let claims = HashMap::new();
            Unapplied { replay, claims, overtaken: Overtaken::default(), logged: log.count_logged() }
        });
        Self {
            is_active: AtomicBool::new(is_active),
            is_done: AtomicBool::new(!is_active),
            records,
            applied: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            state: Mutex::ranked(State::default(), &lock_ranks::RECOVERY),
            parts: Parts::default(),
            source,
            reads_apart,
            reading: Mutex::ranked(Arc::default(), &lock_ranks::RECOVERY),
            out_of_turn: OnceLock::new(),
            replay: Mutex::ranked(unapplied, &lock_ranks::RECOVERY),
        }
    }

    /// Returns whether any object may have unapplied records.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        // The thread that ends the recovery does so after the last exclusive section in which a record was
        // applied; a thread that enters one of those objects later has synchronized with it by then.
        self.is_active.load(Ordering::Relaxed)
    }

    pub(crate) fn progress(&self) -> RecoveryProgress {
        RecoveryProgress {
            records: self.records,
            records_applied: self.applied.load(Ordering::Relaxed),
            objects_failed: self.failed.load(Ordering::Relaxed),
            is_done: self.is_done.load(Ordering::Relaxed),
        }
    }

    /// Sets the function that creates tasks to recover objects out of turn.
    pub(crate) fn set_out_of_turn(&self, recover: OutOfTurn) {
        // A recovery that could not begin is restarted with the same function.
        let _ = self.out_of_turn.set(recover);
    }

    /// Returns a task that recovers an object out of turn.
    pub(crate) fn out_of_turn(&self, object: u32) -> Option<Task> {
        self.out_of_turn.get().map(|recover| recover(object))
    }

    /// Starts the thread that reads the journal, if the recovery reads on a separate thread.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn start_reading(&self) -> std::io::Result<()> {
        if self.reads_apart {
            *lock(&self.reading) = Arc::new(Reading::start()?);
        }
        Ok(())
    }

    /// Returns the executor of journal reads.
    pub(crate) fn reading(&self) -> Arc<Reading> {
        Arc::clone(&lock(&self.reading))
    }

    /// Takes the records of the earlier process, unless they have been taken.
    pub(crate) fn take_unapplied(&self) -> Option<Unapplied> {
        lock(&self.replay).take()
    }

    /// Puts back the records of the earlier process, because the recovery could not begin.
    pub(crate) fn put_back(&self, unapplied: Unapplied) {
        *lock(&self.replay) = Some(unapplied);
    }

    /// Ends the recovery. The recovery stays active for objects that cannot be recovered.
    pub(crate) fn finish(&self) {
        let wakers = {
            let mut state = lock(&self.state);
            if state.found.failed() == 0 {
                state.found = found::Found::default();
                self.is_active.store(false, Ordering::Release);
            }
            state.take_wakers()
        };
        self.is_done.store(true, Ordering::Relaxed);
        // Dropping the last reference ends the thread. The lock is released first.
        let reading = std::mem::take(&mut *lock(&self.reading));
        drop(reading);
        wakers.into_iter().for_each(std::task::Waker::wake);
    }

    /// Wakes every waiting task, because the background has ended.
    pub(crate) fn abandon(&self) {
        let wakers = lock(&self.state).take_wakers();
        wakers.into_iter().for_each(std::task::Waker::wake);
    }
}

// Reading the journal outside the tasks of the background: on a separate thread, because disk reads
// block.

type Job = Box<dyn FnOnce() + Send>;

/// The executor of read jobs.
#[derive(Default)]
pub(crate) enum Reading {
    /// Jobs run in the requesting task, because a test steps the journal.
    #[default]
    Here,
    /// Jobs run on a thread, which ends when this is dropped.
    Apart(mpsc::UnboundedSender<Job>),
}

impl Reading {
    /// Starts the thread.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (sender, mut jobs) = mpsc::unbounded::<Job>();
        let work = async move {
            while let Ok(job) = jobs.recv().await {
                job();
            }
        };
        std::thread::Builder::new().name("journal-read".into()).spawn(move || block_on(work))?;
        Ok(Self::Apart(sender))
    }

    /// Starts a job. The future completes with the job's result, or with `None` if the thread has
    /// ended.
    pub(crate) fn read<T, J>(&self, job: J) -> impl Future<Output = Option<T>> + Send + use<T, J>
    where
        T: Send + 'static,
        J: FnOnce() -> T + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        // The caller may no longer wait for the result.
        let job = move || drop(sender.send(job()));
        match self {
            Self::Here => job(),
            // A job that the thread does not receive is dropped together with its sender.
            Self::Apart(jobs) => drop(jobs.unbounded_send(Box::new(job))),
        }
        async move { receiver.await.ok() }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_done_on_another_thread_and_a_lost_one_is_not_waited_for() {
        let own = std::thread::current().id();
        let apart = Reading::start().unwrap();
        assert_ne!(block_on(apart.read(move || std::thread::current().id())), Some(own));
        assert_eq!(block_on(Reading::Here.read(move || std::thread::current().id())), Some(own));
        // The thread ends with the panic.
        assert_eq!(block_on(apart.read(|| panic!("of the test"))), None::<()>);
        assert_eq!(block_on(apart.read(|| ())), None);
    }
}
