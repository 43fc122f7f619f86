//! Writing to a log: what a change over an object that is not copied yet has to outlive the process with.
//!
//! A record has the bytes, where they belong, and over which object. It counts as long as the stored map has that object
//! in its place. So the entry of the copy voids the records, and nothing is removed for that; but until it is stored,
//! changes of the copy are logged as well.

use blocker::{ChangeReply, Condition, Durability, Segments, WriteRequest};

use super::logs::Taken;
use super::overlay::Order;
use super::state::State;
use super::write::{Content, WRITE_BYTES_MAX, is_short};
use super::{Inner, Piece};
use crate::error::Result;
use crate::format::entry::{Entry, Kind};
use crate::format::{OverlayRecord, SECTOR_BYTES};

/// How often a record is written whose outcome is unknown, each time in a new place.
const TRIES: u32 = 3;

impl Inner {
    /// Logs a short change of a part of an object that is not the volume's own, and keeps it in memory. Returns the
    /// durability of the record, and whether what is stored leads to it; `None` if nothing was done. The caller shares
    /// the turn and the object.
    pub(super) async fn log_over(
        &self,
        piece: &Piece,
        content: &Content,
        durability: Durability,
    ) -> Result<Option<(Durability, bool)>> {
        if !is_short(piece, content, self.object_bytes) {
            return Ok(None);
        }
        let base = {
            let state = self.state.lock();
            state.check()?;
            let base = state.live.get(piece.index);
            let is_own = state.own_birth(piece.index).is_some();
            let is_recorded = state.is_recorded(piece.index);
            if !is_recorded || base.is_hole() || is_own || self.is_whole(piece, state.size_bytes) {
                return Ok(None);
            }
            base
        };
        let record = record_of(piece, base, content);
        let place = |state: &mut State| state.overlays.place(&record);
        let Some((durability, order)) = self.append(&record, content, durability, place).await? else {
            return Ok(None);
        };
        let data = content.data();
        let mut state = self.state.lock();
        state.overlays.add(piece.index, (piece.within, piece.length), data, order);
        Ok(Some((durability, is_reached(&state, piece.index, base))))
    }

    /// Changes a part of an own object whose entry is not stored yet, and logs it over `base`, which the stored map has.
    /// As [`Self::log_over`].
    pub(super) async fn write_and_log(
        &self,
        piece: &Piece,
        (birth, base): (u64, Entry),
        content: &Content,
        durability: Durability,
    ) -> Result<(Durability, bool)> {
        let record = record_of(piece, base, content);
        let place = |state: &mut State| state.overlays.place_beside(&record);
        let in_place = self.write_in_place(piece, birth, content, durability);
        let logged = self.append(&record, content, durability, place);
        let (in_place, logged) = futures_util::future::join(in_place, logged).await;
        let ((is, is_recorded), logged) = (in_place?, logged?);
        let Some((logged, _)) = logged else { return Ok((is, is_recorded)) };
        let is_reached = is_reached(&self.state.lock(), piece.index, base);
        Ok((is.min(logged), is_recorded || is_reached))
    }

    /// Appends a record at a place that `place` takes. Returns its durability, and its order among all changes; `None` if
    /// there is no room.
    async fn append(
        &self,
        record: &OverlayRecord,
        content: &Content,
        durability: Durability,
        place: impl Fn(&mut State) -> Option<(Taken, Order)>,
    ) -> Result<Option<(Durability, Order)>> {
        let mut tries = 0;
        loop {
            tries += 1;
            let Some((taken, order)) = place(&mut self.state.lock()) else { return Ok(None) };
            let (log, place) = (taken.log, taken.place);
            let mut bytes = Segments::from(record.encode(log, self.space.volume, place).to_vec());
            bytes.append(content.data().cloned().unwrap_or_default());
            // Less than a sector.
            bytes.append(Segments::zeros((record.log_bytes() - bytes.len_bytes() as u64) as usize));
            let object = self.space.object(Kind::Overlay(log.birth, place.part));
            let request = WriteRequest::new(object, place.offset.into(), bytes);
            let request = request.change(self.space.change(durability, Condition::None));
            match self.space.store().write(request).await {
                Ok(ChangeReply { durability, .. }) => return Ok(Some((durability, order))),
                // If it comes later, it has the same bytes, and does not count beside what is behind it.
                Err(blocker::Error::OutcomeUnknown(_) | blocker::Error::Superseded { .. })
                    if tries < TRIES => {}
                // It may count after a crash. So the object has its overlay all the same, until a copy of it is recorded.
                Err(error) => return Err(self.noted(error)),
            }
        }
    }
}

/// Returns whether what is stored leads to a record over `base`, or to what it was merged into.
fn is_reached(state: &State, index: u32, base: Entry) -> bool {
    state.recorded.get(index) == base || state.is_recorded(index)
}

fn record_of(piece: &Piece, base: Entry, content: &Content) -> OverlayRecord {
    let data_sum = content.data().map(|data| {
        let mut sum = crc32fast::Hasher::new();
        data.iter().for_each(|segment| sum.update(segment.as_slice()));
        sum.finalize()
    });
    let &Piece { index, within, length, .. } = piece;
    OverlayRecord { base, index, within, length, data_sum }
}

const _: () = assert!(SECTOR_BYTES as u64 + WRITE_BYTES_MAX <= super::logs::PART_BYTES_MAX);
