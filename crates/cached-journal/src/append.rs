//! Appending: room, the filling batch, and holds.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::batch::{Batch, Measured};
use crate::error::AppendError;
use crate::format::{batch_bytes_max, record_payload_max};
use crate::hold::Hold;
use crate::metrics::Counters;
use crate::record::{NAME_BYTES_MAX, Object, Position, Record};
use crate::shared::{Shared, State};
use crate::table::RECORD_OVERHEAD_BYTES;

/// A record that was appended.
#[derive(Debug)]
pub struct Appended {
    /// The record's place.
    pub position: Position,
    /// Keeps the record's segment. Keep it until the record's data are stored, or drop it if an older hold of
    /// the same object stands for all its data.
    pub hold: Hold,
}

/// Room that was set aside: appends within it are not refused for want of room.
///
/// Dropping it gives the rest back.
pub struct Reservation {
    shared: Arc<Shared>,
    left_bytes: u64,
}

impl Reservation {
    /// Appends a record in the reserved room.
    ///
    /// # Errors
    /// `TooLarge` if the reservation does not cover the record or the record is over the limits, `Failed` if
    /// the disk has failed since, `Closed`. `Full` only if the journal has failed and restarted since, so
    /// that segments are missing.
    pub fn append(&mut self, record: &Record<'_>) -> Result<Appended, AppendError> {
        let shared = Arc::clone(&self.shared);
        shared.append(record, Some(&mut self.left_bytes), 0)
    }

    /// Returns the bytes that are left.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Reservation").field("left_bytes", &self.left_bytes).finish()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.left_bytes > 0 {
            let mut state = self.shared.state.lock();
            state.reserved_bytes -= self.left_bytes;
            self.shared.unlock(state, None);
        }
    }
}

fn cost(payload_bytes: u64) -> u64 {
    payload_bytes + RECORD_OVERHEAD_BYTES
}

impl State {
    /// Checks that there is room beside what is reserved, and `leave` bytes more.
    fn check_room(&mut self, cost: u64, leave: u64, unsynced_bytes_max: u64) -> Result<(), AppendError> {
        let needed = self.reserved_bytes.saturating_add(cost).saturating_add(leave);
        let refusal = if self.available_bytes() < needed {
            AppendError::Full
        } else if self.unsynced_bytes.saturating_add(cost) > unsynced_bytes_max && self.unsynced_bytes > 0 {
            AppendError::Busy
        } else {
            return Ok(());
        };
        self.is_room_wanted = true;
        Err(refusal)
    }
}

impl Shared {
    pub(crate) fn reserve(
        self: &Arc<Self>,
        records: u64,
        payload_bytes: u64,
        leave: u64,
    ) -> Result<Reservation, AppendError> {
        let cost = records.saturating_mul(RECORD_OVERHEAD_BYTES).saturating_add(payload_bytes);
        let mut state = self.state.lock();
        state.check_open()?;
        state.check_room(cost, leave, self.unsynced_bytes_max)?;
        state.reserved_bytes += cost;
        drop(state);
        Ok(Reservation { shared: Arc::clone(self), left_bytes: cost })
    }

    pub(crate) fn append(
        self: &Arc<Self>,
        record: &Record<'_>,
        reserved: Option<&mut u64>,
        leave: u64,
    ) -> Result<Appended, AppendError> {
        let payload_bytes = record.payload_bytes();
        let is_name_too_long =
            matches!(&record.head.object, Object::Name(name) if name.len() > NAME_BYTES_MAX);
        let cost = cost(payload_bytes);
        if is_name_too_long || reserved.as_ref().is_some_and(|left| **left < cost) {
            return Err(AppendError::TooLarge);
        }
        let payload_max = record_payload_max(self.segment_bytes);
        if payload_bytes > payload_max {
            return Err(AppendError::TooLarge);
        }
        // The checksum is made before the lock is taken, and leaves the payload in the processor's cache for
        // the copy.
        let measured = Measured::new(record);
        let mut state = self.state.lock();
        state.check_open()?;
        match reserved {
            Some(left) => {
                *left -= cost;
                state.reserved_bytes -= cost;
            }
            None => state.check_room(cost, leave, self.unsynced_bytes_max)?,
        }
        if !self.place(&mut state, &measured) {
            state.is_room_wanted = true;
            return Err(AppendError::Full);
        }
        let State { filling: Some(batch), table, .. } = &mut *state else { return Err(AppendError::Full) };
        let Some(segment) = table.current() else { return Err(AppendError::Full) };
        let bytes = batch.push(record, &measured);
        segment.holds.fetch_add(1, Ordering::AcqRel);
        let holds = Arc::clone(&segment.holds);
        let position = Position(state.next_position);
        state.next_position += 1;
        state.unsynced_bytes += bytes;
        let is_wake_due = state.take_wake();
        self.unlock(state, None);
        if is_wake_due {
            self.work.notify_one();
        }
        Counters::add(&self.counters.appended_records, 1);
        Counters::add(&self.counters.appended_bytes, payload_bytes);
        Ok(Appended { position, hold: Hold::new(Arc::clone(self), holds, position) })
    }

    /// Makes the filling batch one that has room for a record. Returns false if the log has none.
    fn place(&self, state: &mut State, measured: &Measured) -> bool {
        let segment_bytes = state.table.segment_bytes;
        if let (Some(batch), Some(segment)) = (&state.filling, state.table.current()) {
            let with_record = batch.total_bytes_with(measured);
            if with_record <= batch_bytes_max(segment_bytes) && segment.end + with_record <= segment_bytes {
                return true;
            }
        }
        state.close_filling();
        let first_position = state.next_position;
        let mut alone = Batch::new(state.buffers.pop().unwrap_or_default(), 0, first_position);
        let alone_bytes = alone.total_bytes_with(measured);
        let has_room =
            state.table.current().is_some_and(|segment| segment.end + alone_bytes <= segment_bytes);
        if !has_room && !state.table.plan_next(first_position, self.clock.now()) {
            return false;
        }
        let Some(segment) = state.table.current() else { return false };
        segment.uncommitted += 1;
        alone.segment = segment.index;
        state.filling = Some(alone);
        true
    }
}
