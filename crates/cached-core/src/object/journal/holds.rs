//! What keeps the log's trouble from ending: changes whose records are still needed, and changes that are
//! being applied without one.

use cached_journal::{Hold, Position};

use super::condition::JournalState;
use super::events::Events;
use crate::sync::Arc;

/// Counts as logged until it is dropped: the log is not declared void before.
pub(crate) struct Logged(Arc<Events>);

impl Logged {
    pub(super) fn new(events: &Arc<Events>) -> Self {
        events.condition.add_logged();
        Self(Arc::clone(events))
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        if self.0.condition.remove_logged() && self.0.condition.state() != JournalState::Ok {
            self.0.changed();
        }
    }
}

/// Keeps the log from a record on, until the record's data are stored.
///
/// Drop it without locks held: the journal may report at that moment that it has room.
pub(crate) struct KeptHold {
    // In this order: what waits for the log to be void must find it released.
    hold: Hold,
    _logged: Logged,
}

impl KeptHold {
    pub(crate) fn new(hold: Hold, logged: Logged) -> Self {
        Self { hold, _logged: logged }
    }

    pub(crate) fn position(&self) -> Position {
        self.hold.position()
    }
}

/// A change that is being applied without a record: kept until the change is in the dirty queue.
pub(crate) struct Unlogged(Arc<Events>);

impl Unlogged {
    pub(super) fn new(events: &Arc<Events>) -> Self {
        events.condition.add_unlogged();
        Self(Arc::clone(events))
    }
}

impl Drop for Unlogged {
    fn drop(&mut self) {
        if self.0.condition.remove_unlogged() && self.0.condition.state() == JournalState::Resuming {
            self.0.changed();
        }
    }
}
