//! Writing to the log of overlays.

use blocker::{ChangeReply, Condition, Durability, Segments, WriteRequest};

use super::WRITE_BYTES_MAX;
use crate::entry::{Entry, Kind};
use crate::error::{Error, Result};
use crate::format::{OverlayRecord, Place, SECTOR_BYTES};
use crate::volume::state::State;
use crate::volume::write::Content;
use crate::volume::{Inner, Piece};

/// How often a record is written whose outcome is unknown, each time in a new place.
const TRIES: u32 = 3;

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::volume) enum Way {
    /// Into the volume's own object, of this birth.
    InPlace(u64),
    /// There, and to the log, because the map that is stored has not the object but `base`.
    Both { birth: u64, base: Entry },
    /// To the log, over `base`.
    Over { base: Entry },
    /// Into an object to be born, or one whose overlay has to be merged first. The write needs the object alone.
    Birth,
}

impl Inner {
    /// Returns where a write goes. The caller shares the turn and the object.
    pub(in crate::volume) fn way(&self, piece: &Piece, content: &Content) -> Result<Way> {
        let state = self.state.lock();
        state.check()?;
        let overlays = &state.overlays;
        let is_short = matches!(content, Content::Zeroes) || piece.length <= WRITE_BYTES_MAX;
        let fits = is_short && overlays.log.is_some() && !self.space.is_stamped();
        let is_whole = self.is_whole(piece, state.size_bytes);
        if let Some(overlay) = overlays.objects.get(&piece.index) {
            return Ok(match (overlay.is_merged, state.own_birth(piece.index)) {
                (true, Some(birth)) if fits => Way::Both { birth, base: overlay.base },
                (true, Some(birth)) => Way::InPlace(birth),
                (false, _) if fits && !is_whole => Way::Over { base: overlay.base },
                _ => Way::Birth,
            });
        }
        if let Some(birth) = state.own_birth(piece.index) {
            return Ok(Way::InPlace(birth));
        }
        let base = state.live.get(piece.index);
        let needs_copy = !base.is_hole() && !is_whole;
        let is_over = needs_copy && fits && overlays.kept_out == 0;
        Ok(if is_over { Way::Over { base } } else { Way::Birth })
    }

    /// Writes a part of an object over `base`. Returns the durability of the bytes, and whether what is stored leads to
    /// them; `None` if the log is full. The caller shares the turn and the object.
    pub(in crate::volume) async fn write_over(
        &self,
        piece: &Piece,
        base: Entry,
        content: &Content,
        durability: Durability,
    ) -> Result<Option<(Durability, bool)>> {
        let record = record_of(piece, base, content);
        let data = match content {
            Content::Data(data) => data.clone(),
            Content::Zeroes => Segments::new(),
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let Some((log, place)) = self.state.lock().overlays.place(&record) else { return Ok(None) };
            let mut bytes = Segments::from(record.encode(log, self.space.volume, place).to_vec());
            bytes.append(data.clone());
            // Less than a sector.
            bytes.append(Segments::zeros((record.log_bytes() - bytes.len_bytes() as u64) as usize));
            let object = self.space.object(Kind::Overlay(log.birth, place.part));
            let request = WriteRequest::new(object, place.offset.into(), bytes);
            let request = request.change(self.space.change(durability, Condition::None));
            match self.space.store().write(request).await {
                Ok(ChangeReply { durability, .. }) => {
                    let mut state = self.state.lock();
                    state.overlays.insert(&record, place);
                    return Ok(Some((durability, is_reached(&state, piece.index, base))));
                }
                // Durable as asked or not, it is there.
                Err(error @ blocker::Error::NotStored(_)) => {
                    self.state.lock().overlays.insert(&record, place);
                    return Err(self.noted(error));
                }
                // If it comes later, it has the same bytes, and does not count beside what is behind it.
                Err(blocker::Error::OutcomeUnknown(_) | blocker::Error::Superseded { .. })
                    if tries < TRIES => {}
                Err(error) => return Err(self.noted(error)),
            }
        }
    }

    /// Writes a part of an own object whose entry is not stored yet, and logs it. As [`Self::write_over`].
    pub(in crate::volume) async fn write_both(
        &self,
        piece: &Piece,
        (birth, base): (u64, Entry),
        content: &Content,
        durability: Durability,
    ) -> Result<(Durability, bool)> {
        let in_place = self.write_in_place(piece, birth, content, durability);
        let over = self.write_over(piece, base, content, durability);
        let (in_place, over) = futures_util::future::join(in_place, over).await;
        let (is, is_recorded) = in_place?;
        Ok(match over? {
            Some((logged, is_reached)) => (is.min(logged), is_recorded || is_reached),
            None => (is, is_recorded),
        })
    }

    /// Returns the bytes of a part that lies in the log.
    pub(in crate::volume) async fn read_log(
        &self,
        birth: u64,
        place: Place,
        length: u64,
    ) -> Result<Segments> {
        let object = self.space.object(Kind::Overlay(birth, place.part));
        let request = blocker::ReadRequest::new(object.clone(), place.offset.into(), length);
        let reply = self.space.store().read(request).await.map_err(|error| self.noted(error))?;
        if reply.data.len_bytes() as u64 == length {
            return Ok(reply.data);
        }
        Err(Error::Damaged(format!("part {object} of a volume's log of overlays ends too early")))
    }
}

/// Returns whether what is stored leads to a record over `base`, or to what it was merged into.
fn is_reached(state: &State, index: u32, base: Entry) -> bool {
    state.recorded.get(index) == base || state.is_recorded(index)
}

fn record_of(piece: &Piece, base: Entry, content: &Content) -> OverlayRecord {
    let data_sum = match content {
        Content::Zeroes => None,
        Content::Data(data) => {
            let mut sum = crc32fast::Hasher::new();
            data.iter().for_each(|segment| sum.update(segment.as_slice()));
            Some(sum.finalize())
        }
    };
    let &Piece { index, within, length, .. } = piece;
    OverlayRecord { base, index, within, length, data_sum }
}

const _: () = assert!(SECTOR_BYTES as u64 + WRITE_BYTES_MAX <= super::PART_BYTES_MAX);
