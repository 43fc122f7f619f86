//! What the journal reports, from any of its threads: noted here, and passed on to the tasks that wait for it
//! and to the background.

use std::task::Waker;

use cached_journal::{Event, Level};

use super::condition::{Condition, JournalState};
use crate::object::lock_ranks;
use crate::object::tasks::wait_queue::WaitQueue;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// See the module.
pub(crate) struct Events {
    level: AtomicU32,
    /// A record has found no room since there was some.
    is_full: AtomicBool,
    /// Whether the journal has failed and not restarted since.
    has_failed: AtomicBool,
    pub(crate) condition: Condition,
    /// The tasks that wait for room in the log, or until changes may be made again.
    pub(crate) room: WaitQueue,
    /// The tasks that may not acknowledge *stored* yet.
    pub(crate) draining: WaitQueue,
    /// The task that logs an object again.
    pub(crate) space: WaitQueue,
    /// The task that leads the log out of trouble.
    pub(crate) trouble: WaitQueue,
    /// The task that keeps objects that cannot be recovered from filling the log.
    pub(crate) stuck: WaitQueue,
    /// How often the trouble has begun.
    pub(crate) troubles: AtomicU64,
    background: Mutex<Option<Waker>>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            level: AtomicU32::new(0),
            is_full: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            condition: Condition::default(),
            room: WaitQueue::default(),
            draining: WaitQueue::default(),
            space: WaitQueue::default(),
            trouble: WaitQueue::default(),
            stuck: WaitQueue::default(),
            troubles: AtomicU64::new(0),
            background: Mutex::ranked(None, &lock_ranks::JOURNAL_EVENTS),
        }
    }
}

impl Events {
    /// Takes note of an event.
    pub(crate) fn observe(&self, event: &Event) {
        match event {
            Event::Level(level) => {
                self.set_level(*level);
                self.note_full(false);
            }
            Event::Room => self.note_full(false),
            Event::Failed { file, operation, error } => {
                self.has_failed.store(true, Ordering::SeqCst);
                self.fail(&format!("{operation} of {file} failed: {error}"));
            }
            Event::Restarted => self.has_failed.store(false, Ordering::SeqCst),
            Event::PrepareFailed { file, error } => {
                tracing::warn!(%file, %error, "a segment of the journal could not be made, will be tried again");
            }
        }
        self.changed();
    }

    /// Changes are no longer logged.
    pub(crate) fn fail(&self, why: &str) {
        if self.condition.step(&[JournalState::Ok], JournalState::Draining, Some(why.to_owned().into())) {
            self.troubles.fetch_add(1, Ordering::Relaxed);
            tracing::error!(
                why,
                "the journal has failed: changes are not logged, and what was logged is being stored"
            );
        }
    }

    /// Something has changed that tasks may wait for.
    pub(crate) fn changed(&self) {
        self.room.notify();
        self.draining.notify();
        self.space.notify();
        self.trouble.notify();
        self.stuck.notify();
        self.wake_background();
    }

    pub(crate) fn wake_background(&self) {
        let waker = lock(&self.background).take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Lets `waker` be woken at the next event.
    pub(crate) fn register(&self, waker: &Waker) {
        *lock(&self.background) = Some(waker.clone());
    }

    pub(super) fn set_level(&self, level: Level) {
        let number = match level {
            Level::Low => 0,
            Level::Half => 1,
            Level::NineTenths => 2,
        };
        self.level.store(number, Ordering::SeqCst);
    }

    pub(super) fn note_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::SeqCst)
    }

    pub(crate) fn level(&self) -> Level {
        match self.level.load(Ordering::SeqCst) {
            0 => Level::Low,
            1 => Level::Half,
            _ => Level::NineTenths,
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }
}
