//! What an earlier process has logged and this one has not applied: the records by object, how far each object
//! is, and the tasks that wait. `recovery_gate.rs` waits for it, `recovery/` applies it.

mod found;
mod parts;
mod progress;
mod reading;

use std::collections::HashMap;
use std::sync::OnceLock;

use blocker::{Epoch, Namespace};
use cached_journal::{Replay, Source};

use super::{ChangeLog, Logged};
use crate::object::lock_ranks;
use crate::object::tasks::background_queue::Task;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};

pub(crate) use found::{Collector, Found, FoundNamespace, Standing};
pub(crate) use parts::Parts;
pub(crate) use progress::State;
pub(crate) use reading::Reading;

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
    parts: Parts,
    /// What was found, until the recovery has begun.
    replay: Mutex<Option<Unapplied>>,
    source: Option<Source>,
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

    pub(crate) fn count_failed(&self, objects: u64) {
        self.failed.fetch_add(objects, Ordering::Relaxed);
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

    /// Returns what keeps the states that are applied in part.
    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    pub(crate) fn source(&self) -> Option<&Source> {
        self.source.as_ref()
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
