//! The condition of a cache's log, and the journal's events that change it.

use std::task::Waker;

use blocker::{Clock, Reason, Timestamp};
use cached_journal::{Event, Level};

use crate::object::lock_ranks;
use crate::object::tasks::wait_queue::WaitQueue;
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// The state of a cache's journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum JournalState {
    /// Changes are logged.
    Ok,
    /// The journal's disk has failed. Changes are not logged, and the changes logged before are
    /// being stored; until they are, *stored* is not acknowledged in journaled namespaces.
    Draining,
    /// All logged changes are stored, and will not be replayed. Changes are not logged.
    Void,
    /// The journal works again. Changes made without it are being stored; new changes wait.
    Resuming,
}

/// The health of a cache's journal.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct JournalHealth {
    /// The current state of the journal.
    pub state: JournalState,
    /// The time at which the journal entered this state, by the cache's clock.
    pub since: Timestamp,
    /// The failure that the journal has not recovered from; `None` while it works.
    pub reason: Option<Reason>,
}

struct Story {
    since: Timestamp,
    reason: Option<Reason>,
    clock: Option<Arc<dyn Clock>>,
}

/// The condition of a cache's log: working, failed, or on its way back.
///
/// ```text
///  Ok ──the disk fails──> Draining ──logged changes are stored, the log is void──> Void
///   ↑                                                                              │ ↑
///   └──the rest is stored, a mark is durable── Resuming <──the journal works───────┘ │ it takes too long,
///                                                  └─────────────────────────────────┘ or the disk fails
/// ```
/// While the log does not work, changes are applied without records. Two counts make the
/// transitions safe: a change is counted before it reads the phase, and a transition reads the
/// counts after it has set the phase. So either the change sees the new phase, or the transition
/// sees the change.
pub(crate) struct Condition {
    phase: AtomicU32,
    /// The number of changes that are being logged, and of objects with logged changes that are not
    /// stored.
    pub(super) logged: AtomicU64,
    /// The number of changes that are being applied without a record.
    pub(super) unlogged: AtomicU64,
    story: Mutex<Story>,
}

impl Default for Condition {
    fn default() -> Self {
        let story = Story { since: Timestamp(0), reason: None, clock: None };
        Self {
            phase: AtomicU32::new(JournalState::Ok as u32),
            logged: AtomicU64::new(0),
            unlogged: AtomicU64::new(0),
            story: Mutex::ranked(story, &lock_ranks::JOURNAL_CONDITION),
        }
    }
}

impl Condition {
    #[inline]
    pub(crate) fn state(&self) -> JournalState {
        const STATES: [JournalState; 4] =
            [JournalState::Ok, JournalState::Draining, JournalState::Void, JournalState::Resuming];
        STATES[self.phase.load(Ordering::SeqCst) as usize & 3]
    }

    /// Returns whether logged changes are being stored because the journal has failed.
    pub(crate) fn is_draining(&self) -> bool {
        self.state() == JournalState::Draining
    }

    /// Enters the state `to`; returns false if the current state is not in `from`.
    pub(crate) fn step(&self, from: &[JournalState], to: JournalState, reason: Option<Reason>) -> bool {
        let mut story = lock(&self.story);
        if !from.contains(&self.state()) {
            return false;
        }
        self.phase.store(to as u32, Ordering::SeqCst);
        story.since = story.clock.as_ref().map_or(Timestamp(0), |clock| clock.now());
        if to == JournalState::Ok {
            story.reason = None;
        } else if reason.is_some() {
            story.reason = reason;
        }
        true
    }

    /// Uses `clock` from now on.
    pub(crate) fn set_clock(&self, clock: Arc<dyn Clock>) {
        let mut story = lock(&self.story);
        story.since = clock.now();
        story.clock = Some(clock);
    }

    pub(crate) fn health(&self) -> JournalHealth {
        let story = lock(&self.story);
        JournalHealth { state: self.state(), since: story.since, reason: story.reason.clone() }
    }

    /// Returns whether any logged change is not stored.
    pub(crate) fn has_logged(&self) -> bool {
        self.logged.load(Ordering::SeqCst) > 0
    }

    /// Returns whether a change is being applied without a record.
    pub(crate) fn has_unlogged(&self) -> bool {
        self.unlogged.load(Ordering::SeqCst) > 0
    }
}

/// The events that the journal reports from any of its threads: they are recorded here, and passed
/// on to the waiting tasks and to the background.
pub(crate) struct Events {
    /// Whether nine tenths of the journal are in use.
    is_nearly_full: AtomicBool,
    /// Whether a record has found no room since there last was some.
    is_full: AtomicBool,
    /// Whether the journal has failed and not restarted since.
    has_failed: AtomicBool,
    pub(crate) condition: Condition,
    /// The tasks that wait for room in the log, or until changes are allowed again.
    pub(crate) room: WaitQueue,
    /// The tasks that may not acknowledge *stored* yet.
    pub(crate) draining: WaitQueue,
    /// The task that logs an object again.
    pub(crate) space: WaitQueue,
    /// The task that brings the log back into operation.
    pub(crate) trouble: WaitQueue,
    /// The task that prevents unrecoverable objects from filling the log.
    pub(crate) stuck: WaitQueue,
    background: Mutex<Option<Waker>>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            is_nearly_full: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            condition: Condition::default(),
            room: WaitQueue::default(),
            draining: WaitQueue::default(),
            space: WaitQueue::default(),
            trouble: WaitQueue::default(),
            stuck: WaitQueue::default(),
            background: Mutex::ranked(None, &lock_ranks::JOURNAL_EVENTS),
        }
    }
}

impl Events {
    /// Records an event.
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
                tracing::warn!(%file, %error, "cannot prepare a segment of the journal; will retry");
            }
        }
        self.changed();
    }

    /// Changes are no longer logged.
    pub(crate) fn fail(&self, why: &str) {
        if self.condition.step(&[JournalState::Ok], JournalState::Draining, Some(why.to_owned().into())) {
            tracing::error!(
                why,
                "the journal has failed: changes are no longer logged, and logged changes are being stored"
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
        let waker = lock(&self.background).take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Lets `waker` be woken at the next event.
    pub(crate) fn register(&self, waker: &Waker) {
        *lock(&self.background) = Some(waker.clone());
    }

    pub(super) fn set_level(&self, level: Level) {
        self.is_nearly_full.store(level == Level::NineTenths, Ordering::SeqCst);
    }

    pub(super) fn note_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::SeqCst)
    }

    pub(super) fn is_nearly_full(&self) -> bool {
        self.is_nearly_full.load(Ordering::SeqCst)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }
}
