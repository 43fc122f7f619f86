//! The condition of a cache's log: in order, or on its way through trouble and back.
//!
//! ```text
//!  Ok ──the disk fails──> Draining ──what was logged is stored, the log void──> Void
//!   ↑                                                                            │ ↑
//!   └──the rest is stored, a mark is durable── Resuming <──the journal works──────┘ │ it takes too long,
//!                                                  └───────────────────────────────┘ or the disk fails
//! ```
//! While the log is not in order, changes are applied without records. Two counts make the steps safe: a
//! change is counted before it looks at the phase, and a step looks at the count after it has set the phase.
//! So either the change sees the new phase, or the step sees the change.

use blocker::{Clock, Reason, Timestamp};

use crate::object::lock_ranks;
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// What a journal is to its cache at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum JournalState {
    /// Changes are logged.
    Ok,
    /// The journal's disk has failed. Changes are not logged, and what had been logged before is being
    /// stored; until it is, *stored* is not acknowledged in journaled namespaces.
    Draining,
    /// All that had been logged is stored, and will not be replayed. Changes are not logged.
    Void,
    /// The journal works again. What was changed without it is being stored; changes wait.
    Resuming,
}

/// The state of a cache's journal.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct JournalHealth {
    /// What it is at present.
    pub state: JournalState,
    /// When it became that, on the cache's clock.
    pub since: Timestamp,
    /// The failure that began the trouble; `None` while all is well.
    pub reason: Option<Reason>,
}

struct Story {
    since: Timestamp,
    reason: Option<Reason>,
    clock: Option<Arc<dyn Clock>>,
}

/// See the module.
pub(crate) struct Condition {
    phase: AtomicU32,
    /// Changes that are being logged, and objects with logged changes that are not stored.
    logged: AtomicU64,
    /// Changes that are being applied without a record.
    unlogged: AtomicU64,
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

    /// Goes from one state to another; returns false if it is in none of `from`.
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

    /// Takes the time from `clock` from now on.
    pub(crate) fn set_clock(&self, clock: Arc<dyn Clock>) {
        let mut story = lock(&self.story);
        story.since = clock.now();
        story.clock = Some(clock);
    }

    pub(crate) fn health(&self) -> JournalHealth {
        let story = lock(&self.story);
        JournalHealth { state: self.state(), since: story.since, reason: story.reason.clone() }
    }

    /// Whether anything that was logged is not stored.
    pub(crate) fn has_logged(&self) -> bool {
        self.logged.load(Ordering::SeqCst) > 0
    }

    /// Whether a change is being applied without a record.
    pub(crate) fn has_unlogged(&self) -> bool {
        self.unlogged.load(Ordering::SeqCst) > 0
    }

    pub(super) fn add_logged(&self) {
        self.logged.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns whether it was the last.
    pub(super) fn remove_logged(&self) -> bool {
        self.logged.fetch_sub(1, Ordering::SeqCst) == 1
    }

    pub(super) fn add_unlogged(&self) {
        self.unlogged.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns whether it was the last.
    pub(super) fn remove_unlogged(&self) -> bool {
        self.unlogged.fetch_sub(1, Ordering::SeqCst) == 1
    }
}
