//! What an earlier process has logged and this one has not applied: the records by object, how far each object
//! is, and the tasks that wait. `shared/log_waits.rs` waits for it, `recovery/` applies it.

mod found;
mod progress;

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::task::{Poll, Waker};

use blocker::{Epoch, Namespace};
use cached_journal::{Replay, Source};

pub(crate) use found::{Collector, Found, FoundNamespace, Parts, Standing};
pub(crate) use progress::State;

use super::{ChangeLog, Logged};
use crate::object::lock_ranks;
use crate::object::tasks::background_queue::Task;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// Makes the task that recovers an object out of turn.
pub(crate) type OutOfTurn = Box<dyn Fn(u32) -> Task + Send + Sync>;

/// How far a recovery is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecoveryProgress {
    /// The records that the journal held.
    pub records: u64,
    /// Those that are applied, or left out because the store has what they state.
    pub records_applied: u64,
    /// The objects that cannot be recovered, because their records are damaged. Operations on them fail; the
    /// log names them.
    pub objects_failed: u64,
    /// Whether nothing more will be applied.
    pub is_done: bool,
}

/// A claim that an attempt to begin has made: its epoch is in the log, and the store has taken it, or may have.
#[derive(Clone, Copy)]
pub(crate) struct BegunClaim {
    pub(crate) epoch: Epoch,
    /// Whether the records of the namespace are left out: this cache has voided them.
    pub(crate) is_voided: bool,
}

/// The namespaces that other writers have taken over since the journal was written.
#[derive(Default)]
pub(crate) struct Overtaken {
    /// The directory that keeps a copy of the journal, within the journal's.
    pub(crate) kept_in: Option<String>,
    /// Each namespace whose records the log states to be void by now, with the journal's epoch and the one in force.
    pub(crate) namespaces: Vec<(Namespace, Epoch, Epoch)>,
}

/// What an earlier process left.
pub(crate) struct Unapplied {
    pub(crate) replay: Replay,
    /// The claims of earlier attempts to begin: the next one must not take them for those of another process.
    pub(crate) claims: HashMap<Namespace, BegunClaim>,
    /// What earlier attempts have found of other writers.
    pub(crate) overtaken: Overtaken,
    /// Until nothing more of it will be applied the log is not declared void.
    pub(crate) logged: Logged,
}

/// See the module.
pub(crate) struct Recovery {
    /// Whether an object may have records that are not applied.
    is_active: AtomicBool,
    is_done: AtomicBool,
    records: u64,
    applied: AtomicU64,
    failed: AtomicU64,
    state: Mutex<State>,
    /// The states that are applied in part.
    pub(crate) parts: Parts,
    /// What was found, until the recovery has begun.
    replay: Mutex<Option<Unapplied>>,
    pub(crate) source: Option<Source>,
    /// Whether the journal is read on a thread of its own.
    reads_apart: bool,
    /// Set when the recovery begins, until it ends.
    reading: Mutex<Arc<Reading>>,
    /// Set when the recovery begins.
    out_of_turn: OnceLock<OutOfTurn>,
}

impl Recovery {
    /// `replay`: what an earlier process left in `log`.
    /// `reads_apart`: whether it is read on a thread of its own.
    pub(crate) fn new(replay: Option<Replay>, log: Option<&ChangeLog>, reads_apart: bool) -> Self {
        let replay = replay.filter(|replay| !replay.is_empty());
        let is_active = replay.is_some();
        let (records, source) = (replay.as_ref().map_or(0, Replay::len), replay.as_ref().map(Replay::source));
        let unapplied = replay.zip(log).map(|(replay, log)| {
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

    /// Whether an object may have records that are not applied.
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

    /// Sets how an object is recovered out of turn.
    pub(crate) fn set_out_of_turn(&self, recover: OutOfTurn) {
        // A recovery that could not begin is begun once more, by the same means.
        let _ = self.out_of_turn.set(recover);
    }

    /// Returns the task that recovers an object out of turn.
    pub(crate) fn out_of_turn(&self, object: u32) -> Option<Task> {
        self.out_of_turn.get().map(|recover| recover(object))
    }

    /// Starts the thread that reads, if there is to be one.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start_reading(&self) -> std::io::Result<()> {
        if self.reads_apart {
            *lock(&self.reading) = Arc::new(Reading::start()?);
        }
        Ok(())
    }

    /// Returns where the journal is read.
    pub(crate) fn reading(&self) -> Arc<Reading> {
        Arc::clone(&lock(&self.reading))
    }

    /// Takes what an earlier process left, unless it is taken.
    pub(crate) fn take_unapplied(&self) -> Option<Unapplied> {
        lock(&self.replay).take()
    }

    /// Puts back what an earlier process left, because the recovery could not begin.
    pub(crate) fn put_back(&self, unapplied: Unapplied) {
        *lock(&self.replay) = Some(unapplied);
    }

    /// Ends the recovery. It stays active for the objects that cannot be recovered.
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
        // Ends the thread.
        let reading = std::mem::take(&mut *lock(&self.reading));
        drop(reading);
        wakers.into_iter().for_each(std::task::Waker::wake);
    }

    /// Wakes every task that waits, because the background has ended.
    pub(crate) fn abandon(&self) {
        let wakers = lock(&self.state).take_wakers();
        wakers.into_iter().for_each(std::task::Waker::wake);
    }
}

// Reading the journal beside the tasks of the background: on a thread of its own, because a disk takes its time.

type Job = Box<dyn FnOnce() + Send>;

/// Where jobs that read are done.
#[derive(Default)]
pub(crate) enum Reading {
    /// In the task that asks: a test steps the journal.
    #[default]
    Here,
    /// On a thread, which ends when this is dropped.
    Apart(Sender<Job>),
}

/// The result of a job.
enum Slot<T> {
    Waiting(Option<Waker>),
    Done(T),
    /// The thread has ended without doing it.
    Abandoned,
}

/// The side of the thread: abandons the slot unless it has been filled.
struct Promise<T>(Arc<Mutex<Slot<T>>>);

impl<T> Promise<T> {
    fn set(&self, to: Slot<T>) {
        let before = {
            let mut slot = lock(&self.0);
            if matches!(*slot, Slot::Done(_)) {
                return;
            }
            std::mem::replace(&mut *slot, to)
        };
        if let Slot::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.set(Slot::Abandoned);
    }
}

impl Reading {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (sender, jobs) = channel::<Job>();
        let thread = std::thread::Builder::new().name("journal-read".into());
        thread.spawn(move || jobs.into_iter().for_each(|job| job()))?;
        Ok(Self::Apart(sender))
    }

    /// Begins a job; the future completes with its result, or with nothing if the thread has ended.
    pub(crate) fn read<T, J>(&self, job: J) -> impl Future<Output = Option<T>> + Send + use<T, J>
    where
        T: Send + 'static,
        J: FnOnce() -> T + Send + 'static,
    {
        let slot = Arc::new(Mutex::ranked(Slot::Waiting(None), &lock_ranks::RECOVERY));
        let promise = Promise(Arc::clone(&slot));
        let job = move || promise.set(Slot::Done(job()));
        match self {
            Self::Here => job(),
            // A job that is not taken is dropped, and abandons its slot.
            Self::Apart(sender) => drop(sender.send(Box::new(job))),
        }
        poll_fn(move |cx| {
            let mut slot = lock(&slot);
            match std::mem::replace(&mut *slot, Slot::Waiting(Some(cx.waker().clone()))) {
                Slot::Waiting(_) => Poll::Pending,
                Slot::Done(result) => Poll::Ready(Some(result)),
                Slot::Abandoned => Poll::Ready(None),
            }
        })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use blocker::executor::block_on;

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
