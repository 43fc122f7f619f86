//! Appending: free space, the batch that is being filled and its memory, and holds of positions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::AppendError;
use crate::format::{
    BATCH_HEADER_BYTES, BLOCK_BYTES, BatchHeader, Layout, PayloadSum, batch_bytes_max, encode_head,
    head_bytes, record_payload_max,
};
use crate::record::{NAME_BYTES_MAX, Object, Position, Record};
use crate::segments::RECORD_OVERHEAD_BYTES;
use crate::shared::{Shared, State};

/// A record that was appended.
#[derive(Debug)]
pub struct Appended {
    /// The position of the record.
    pub position: Position,
    /// Keeps the record's segment. Keep the hold until the record's data are stored; drop it
    /// earlier if an older hold of the same object covers all of the record's data.
    pub hold: Hold,
}

/// Reserved space. Appends within the reservation are not refused as full.
///
/// Dropping the reservation frees the unused space.
pub struct Reservation {
    shared: Arc<Shared>,
    left_bytes: u64,
}

impl Reservation {
    /// Appends a record in the reserved space.
    ///
    /// # Errors
    /// `TooLarge` if the reservation does not cover the record or the record exceeds the limits,
    /// `Failed` if the disk has failed since, `Closed`. `Full` only if the journal has failed and
    /// restarted since, so that segments are missing.
    pub fn append(&mut self, record: &Record<'_>) -> Result<Appended, AppendError> {
        let shared = Arc::clone(&self.shared);
        shared.append(record, Some(&mut self.left_bytes), 0)
    }

    /// Returns the number of reserved bytes that are left.
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
    /// Checks that there is space in addition to reservations, and that `leave` more bytes remain.
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
        // The checksum is computed before the lock is taken, which also leaves the payload in the
        // processor's cache for the copy.
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
        self.counters.counts.appended_records.increment();
        self.counters.counts.appended_bytes.add(payload_bytes);
        Ok(Appended { position, hold: Hold::new(Arc::clone(self), holds, position) })
    }

    /// Ensures that the filling batch has space for a record. Returns false if the log has no
    /// space.
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

/// The reusable memory of a batch.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    heads: AlignedBuffer,
    payload: AlignedBuffer,
}

/// A batch: records that will become durable together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) buffers: Buffers,
    /// The number of the segment's file.
    pub(crate) segment: u32,
    pub(crate) first_position: u64,
    pub(crate) count: u32,
    /// The total length of the records, which wait for the disk.
    pub(crate) unsynced_bytes: u64,
}

/// A record whose length and checksum were computed before the journal was locked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) heads_bytes: u64,
    pub(crate) payload: PayloadSum,
}

impl Measured {
    pub(crate) fn new(record: &Record<'_>) -> Self {
        let mut crc = crc32fast::Hasher::new();
        record.payload.iter().for_each(|slice| crc.update(slice));
        let payload = PayloadSum { bytes: record.payload_bytes() as u32, crc: crc.finalize() };
        Self { heads_bytes: head_bytes(&record.head) as u64, payload }
    }
}

impl Batch {
    pub(crate) fn new(mut buffers: Buffers, segment: u32, first_position: u64) -> Self {
        buffers.heads.clear();
        buffers.payload.clear();
        buffers.heads.extend_zeros(BATCH_HEADER_BYTES);
        Self { buffers, segment, first_position, count: 0, unsynced_bytes: 0 }
    }

    fn heads_bytes(&self) -> u64 {
        (self.buffers.heads.len() - BATCH_HEADER_BYTES) as u64
    }

    /// Returns the length of the batch in its segment.
    pub(crate) fn total_bytes(&self) -> u64 {
        Layout::new(self.heads_bytes(), self.buffers.payload.len() as u64).total
    }

    /// Returns the length of the batch with one more record.
    pub(crate) fn total_bytes_with(&self, record: &Measured) -> u64 {
        let payload_bytes = self.buffers.payload.len() as u64 + u64::from(record.payload.bytes);
        Layout::new(self.heads_bytes() + record.heads_bytes, payload_bytes).total
    }

    /// Copies a record into the batch. Returns its length.
    pub(crate) fn push(&mut self, record: &Record<'_>, measured: &Measured) -> u64 {
        self.buffers.heads.extend(&encode_head(&record.head, measured.payload));
        if let Object::Name(name) = &record.head.object {
            self.buffers.heads.extend(name);
            self.buffers.heads.extend_zeros(name.len().next_multiple_of(8) - name.len());
        }
        record.payload.iter().for_each(|slice| self.buffers.payload.extend(slice));
        self.count += 1;
        let bytes = measured.heads_bytes + u64::from(measured.payload.bytes);
        self.unsynced_bytes += bytes;
        bytes
    }

    /// Completes the batch: writes the header and the padding, and returns the check. `header`
    /// contains numbers that only the commit knows.
    pub(crate) fn finish(&mut self, salt: u32, mut header: BatchHeader) -> u32 {
        header.count = self.count;
        header.heads_bytes = self.heads_bytes() as u32;
        header.payload_bytes = self.buffers.payload.len() as u32;
        header.first_position = self.first_position;
        let check = header.encode_into(salt, self.buffers.heads.as_mut_slice());
        let layout = header.layout();
        if layout.payload_at == layout.heads_end {
            let Buffers { heads, payload } = &mut self.buffers;
            heads.extend(payload.as_slice());
            payload.clear();
        }
        self.buffers.heads.pad();
        self.buffers.payload.pad();
        check
    }

    /// Returns the parts to write, each a multiple of 4 KiB. Call this only after
    /// [`finish`](Self::finish).
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        [self.buffers.heads.as_slice(), self.buffers.payload.as_slice()]
    }
}

/// Keeps the segment of a position, and all later segments, until the hold is dropped.
///
/// Taking and dropping a hold takes constant time. Dropping a hold never waits for the disk.
pub struct Hold {
    shared: Arc<Shared>,
    count: Arc<AtomicU64>,
    position: Position,
}

impl Hold {
    /// Returns a hold. The caller has already incremented the count.
    pub(crate) fn new(shared: Arc<Shared>, count: Arc<AtomicU64>, position: Position) -> Self {
        Self { shared, count, position }
    }

    /// Returns the position of the hold.
    pub fn position(&self) -> Position {
        self.position
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Hold").field(&self.position).finish()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.release();
        }
    }
}

/// A growing buffer that begins at a multiple of 4 KiB.
#[derive(Debug, Default)]
pub(crate) struct AlignedBuffer {
    bytes: Vec<u8>,
    /// The number of bytes in `bytes` before the aligned address.
    skip: usize,
}

impl AlignedBuffer {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.skip
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.truncate(self.skip);
    }

    pub(crate) fn extend(&mut self, slice: &[u8]) {
        self.make_room(slice.len());
        self.bytes.extend_from_slice(slice);
    }

    pub(crate) fn extend_zeros(&mut self, count: usize) {
        self.make_room(count);
        self.bytes.resize(self.bytes.len() + count, 0);
    }

    /// Appends zeros up to a multiple of 4 KiB.
    pub(crate) fn pad(&mut self) {
        self.extend_zeros(self.len().next_multiple_of(BLOCK_BYTES) - self.len());
    }

    /// Makes room for more bytes. The vector must never reallocate on its own, because its address
    /// would not stay aligned.
    fn make_room(&mut self, more: usize) {
        if self.bytes.capacity() - self.bytes.len() >= more && self.bytes.capacity() > 0 {
            return;
        }
        let wanted = (self.len() + more).next_power_of_two().max(4 * BLOCK_BYTES);
        let mut bytes: Vec<u8> = Vec::with_capacity(wanted + BLOCK_BYTES);
        let skip = bytes.as_ptr().align_offset(BLOCK_BYTES);
        bytes.resize(skip, 0);
        bytes.extend_from_slice(self.as_slice());
        *self = Self { bytes, skip };
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.skip..]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_stays_aligned_while_it_grows() {
        let mut buffer = AlignedBuffer::default();
        for round in 0..200 {
            buffer.extend(&[round; 777]);
            assert!(buffer.as_slice().as_ptr().addr().is_multiple_of(BLOCK_BYTES));
        }
        assert!(buffer.as_slice().chunks(777).enumerate().all(|(round, run)| run == [round as u8; 777]));
        buffer.pad();
        assert_eq!(buffer.len() % BLOCK_BYTES, 0);
        buffer.clear();
        assert_eq!(buffer.len(), 0);
    }
}
