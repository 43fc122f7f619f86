//! Appending the record of a change, room for it, and holds of records that are still needed.

use blocker::Error;
use cached_journal::{AppendError, Hold, Level, Position, Record, Reservation};

use super::condition::{Events, JournalState};
use super::names::NamespaceLog;
use super::records::Origin;
use super::{AtLimit, ChangeLog, records};
use crate::object::mutation::Mutation;
use crate::sync::Arc;

/// What the log has of a change.
pub(crate) enum Entry {
    /// It needs none: nothing would be replayed.
    Nothing,
    /// The change is to be applied without one: the journal is in trouble.
    Unlogged(Unlogged),
    Record(Position, KeptHold),
}

/// Why a change was not logged.
pub(crate) enum Refusal {
    /// There is no room, or changes must wait: see [`ChangeLog::take_room`].
    Wait,
    Failed(Error),
}

/// Room in the log that a task has waited for.
pub(crate) enum Room {
    Reserved(Reservation),
    /// None is needed: changes are applied without records.
    NotNeeded,
}

impl ChangeLog {
    /// Appends the record of a change that is certain to be applied.
    pub(crate) fn append(
        &self,
        namespace: &NamespaceLog,
        origin: &Origin<'_>,
        mutation: Mutation<'_>,
        room: Option<&mut Room>,
    ) -> Result<Entry, Refusal> {
        // Counted before the condition is looked at.
        let logged = Logged::new(&self.events);
        match self.events.condition.state() {
            JournalState::Ok => (),
            JournalState::Resuming => return Err(Refusal::Wait),
            _ => return self.unlogged(),
        }
        let appended = records::encode(origin, mutation, |record| match room {
            Some(Room::Reserved(reservation)) => reservation.append(record),
            // Those who wait are first.
            _ if self.events.room.has_waiters() || self.is_at_limit() => Err(AppendError::Full),
            _ => self.journal.append_leaving(record, self.leave.ordinary),
        });
        match appended {
            None => Ok(Entry::Nothing),
            Some(Ok(appended)) => {
                namespace.note_record(appended.position);
                Ok(Entry::Record(appended.position, KeptHold::new(appended.hold, logged)))
            }
            Some(Err(AppendError::Full)) => {
                self.events.note_full(true);
                Err(Refusal::Wait)
            }
            Some(Err(AppendError::Busy)) => Err(Refusal::Wait),
            Some(Err(AppendError::TooLarge)) => {
                let limit_bytes = self.journal.payload_bytes_max();
                match records::payload_bytes(mutation) > limit_bytes {
                    true => Err(Refusal::Failed(Error::TooLarge { limit_bytes })),
                    // The room that it brought is for less.
                    false => Err(Refusal::Wait),
                }
            }
            Some(Err(error @ (AppendError::Failed | AppendError::Closed))) => {
                self.events.fail(&error.to_string());
                self.unlogged()
            }
        }
    }

    /// Lets a change be applied without a record, unless changes must wait.
    fn unlogged(&self) -> Result<Entry, Refusal> {
        // Counted before the condition is looked at again.
        let unlogged = Unlogged::new(&self.events);
        match self.events.condition.state() {
            JournalState::Draining | JournalState::Void => Ok(Entry::Unlogged(unlogged)),
            JournalState::Ok | JournalState::Resuming => Err(Refusal::Wait),
        }
    }

    /// Takes room for the record of a change with `payload_bytes`; `None` if there is none at present.
    pub(crate) fn take_room(&self, payload_bytes: u64) -> Option<Room> {
        // Events of two threads may come in the wrong order: what is noted need not be the last.
        let level = self.journal.level();
        self.events.set_level(level);
        self.events.note_full(false);
        match self.events.condition.state() {
            JournalState::Ok if level == Level::NineTenths => None,
            JournalState::Ok => match self.journal.reserve_leaving(1, payload_bytes, self.leave.ordinary) {
                Ok(reservation) => Some(Room::Reserved(reservation)),
                Err(AppendError::Full) => {
                    self.events.note_full(true);
                    None
                }
                Err(AppendError::Busy) => None,
                Err(AppendError::TooLarge) => Some(Room::NotNeeded),
                Err(error @ (AppendError::Failed | AppendError::Closed)) => {
                    self.events.fail(&error.to_string());
                    Some(Room::NotNeeded)
                }
            },
            JournalState::Resuming => None,
            _ => Some(Room::NotNeeded),
        }
    }

    /// Appends a record that may use the last tenth of the journal: a mark, an epoch. `Ok(None)`: the journal
    /// is in trouble.
    pub(super) fn append_privileged(&self, record: &Record<'_>) -> Result<Option<Position>, Full> {
        if self.events.condition.state() != JournalState::Ok {
            return Ok(None);
        }
        match self.journal.append_leaving(record, self.leave.privileged) {
            // The hold is dropped: a mark is needed no longer than what is before it.
            Ok(appended) => Ok(Some(appended.position)),
            Err(AppendError::Full | AppendError::Busy) => Err(Full),
            Err(error) => {
                self.events.fail(&error.to_string());
                Ok(None)
            }
        }
    }

    /// Whether nine tenths of the journal are in use, or the last record found no room.
    pub(crate) fn is_at_limit(&self) -> bool {
        self.events.level() == Level::NineTenths || self.events.is_full()
    }

    /// Whether a change is not to be logged but to go to the store at once, marked: it is too large for the
    /// log, or the log has come to its limit.
    pub(crate) fn goes_through(&self, mutation: Mutation<'_>) -> bool {
        records::payload_bytes(mutation) > self.options.journaled_bytes_max
            || self.options.at_limit == AtLimit::Through && self.is_at_limit()
    }
}

/// There is no room for the record at present.
pub(crate) struct Full;

// What keeps the log's trouble from ending: changes whose records are still needed, and changes that are
// being applied without one.

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
