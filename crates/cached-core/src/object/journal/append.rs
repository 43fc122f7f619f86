//! Appending the record of a change, reserving room for it, and holding records that are still
//! needed.

use blocker::Error;
use cached_journal::{AppendError, Hold, Level, Position, Record, Reservation};

use super::condition::{Events, JournalState};
use super::names::NamespaceLog;
use super::records::Origin;
use super::{AtLimit, ChangeLog, records};
use crate::object::mutation::Mutation;
use crate::sync::{Arc, Ordering};

/// The log entry of a change.
pub(crate) enum Entry {
    /// The change needs no record: there would be nothing to replay.
    Nothing,
    /// The change is applied without a record, because the journal has failed.
    Unlogged {
        _until_queued: Unlogged,
    },
    Record(Position, KeptHold),
}

/// The reason why a change was not logged.
pub(crate) enum Refusal {
    /// There is no room, or changes must wait; see [`ChangeLog::take_room`].
    Wait,
    Failed(Error),
}

/// Room in the log for a task that has waited.
pub(crate) enum Room {
    Reserved(Reservation),
    /// No room is needed: changes are applied without records.
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
        // The change must be counted before the condition is read.
        let logged = Logged::new(&self.events);
        match self.events.condition.state() {
            JournalState::Ok => (),
            JournalState::Resuming => return Err(Refusal::Wait),
            _ => return self.unlogged(),
        }
        let appended = records::encode(origin, mutation, |record| match room {
            Some(Room::Reserved(reservation)) => reservation.append(record),
            // Tasks that already wait come first.
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
                    // The reservation is for a smaller payload.
                    false => Err(Refusal::Wait),
                }
            }
            Some(Err(error @ (AppendError::Failed | AppendError::Closed))) => {
                self.events.fail(&error.to_string());
                self.unlogged()
            }
        }
    }

    /// Allows a change to be applied without a record, unless changes must wait.
    fn unlogged(&self) -> Result<Entry, Refusal> {
        // The change must be counted before the condition is read again.
        let unlogged = Unlogged::new(&self.events);
        match self.events.condition.state() {
            JournalState::Draining | JournalState::Void => Ok(Entry::Unlogged { _until_queued: unlogged }),
            JournalState::Ok | JournalState::Resuming => Err(Refusal::Wait),
        }
    }

    /// Reserves room for the record of a change with `payload_bytes`; `None` if there is none at
    /// present.
    pub(crate) fn take_room(&self, payload_bytes: u64) -> Option<Room> {
        // Events from two threads may arrive in the wrong order, so the recorded level may be
        // stale.
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

    /// Reserves room for a record without a payload that may use the last tenth of the journal;
    /// `None` if there is none at present.
    pub(crate) fn take_privileged_room(&self) -> Option<Room> {
        if self.events.condition.state() != JournalState::Ok {
            return Some(Room::NotNeeded);
        }
        match self.journal.reserve_leaving(1, 0, self.leave.privileged) {
            Ok(reservation) => Some(Room::Reserved(reservation)),
            Err(AppendError::Full | AppendError::Busy) => None,
            // The append fails as well.
            Err(_) => Some(Room::NotNeeded),
        }
    }

    /// Appends a record that may use the last tenth of the journal: a mark or an epoch. Returns
    /// `Ok(None)` if the journal has failed.
    pub(super) fn append_privileged(
        &self,
        record: &Record<'_>,
        room: Option<Room>,
    ) -> Result<Option<Position>, Full> {
        if self.events.condition.state() != JournalState::Ok {
            return Ok(None);
        }
        let appended = match room {
            Some(Room::Reserved(mut reservation)) => reservation.append(record),
            _ => self.journal.append_leaving(record, self.leave.privileged),
        };
        match appended {
            // The hold is dropped: a mark is needed only as long as the records before it.
            Ok(appended) => Ok(Some(appended.position)),
            Err(AppendError::Full | AppendError::Busy) => Err(Full),
            Err(error) => {
                self.events.fail(&error.to_string());
                Ok(None)
            }
        }
    }

    /// Returns whether nine tenths of the journal are in use, or the last record found no room.
    pub(crate) fn is_at_limit(&self) -> bool {
        self.events.is_nearly_full() || self.events.is_full()
    }

    /// Returns whether a change must go to the store at once, with a mark, instead of being logged:
    /// it is too large for the log, or the log has reached its limit.
    pub(crate) fn goes_through(&self, mutation: Mutation<'_>) -> bool {
        records::payload_bytes(mutation) > self.options.journaled_bytes_max
            || self.options.at_limit == AtLimit::Through && self.is_at_limit()
    }
}

/// There is no room for the record at present.
pub(crate) struct Full;

// Guards that keep the log from changing its condition: changes whose records are still needed, and
// changes that are being applied without a record.

/// Counts a change as logged until it is dropped: until then, the log is not declared void.
pub(crate) struct Logged(Arc<Events>);

impl Logged {
    pub(super) fn new(events: &Arc<Events>) -> Self {
        events.condition.logged.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(events))
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let was_last = self.0.condition.logged.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.0.condition.state() != JournalState::Ok {
            self.0.changed();
        }
    }
}

/// Keeps the log from a record on, until the record's data are stored.
///
/// Drop it without holding locks: the journal may report free room during the drop.
pub(crate) struct KeptHold {
    // The order of the fields matters: a task that waits for the log to be void must find the hold
    // released.
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

/// Counts a change that is being applied without a record, until the change is in the dirty queue.
pub(crate) struct Unlogged(Arc<Events>);

impl Unlogged {
    pub(super) fn new(events: &Arc<Events>) -> Self {
        events.condition.unlogged.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(events))
    }
}

impl Drop for Unlogged {
    fn drop(&mut self) {
        let was_last = self.0.condition.unlogged.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.0.condition.state() == JournalState::Resuming {
            self.0.changed();
        }
    }
}
