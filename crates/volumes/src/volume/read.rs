//! Reading.

use blocker::{ObjectId, ReadRequest, Segments};

use super::runs::Source;
use super::{Inner, Piece};
use crate::error::{Error, Result};
use crate::format::entry::{Entry, Kind};

/// How often a place is looked up again because its object was removed meanwhile.
const TRIES: u32 = 64;

impl Inner {
    pub(super) async fn read(&self, offset: u64, length: u64) -> Result<Segments> {
        self.state.lock().check_range(offset, length)?;
        let mut pieces = self.pieces(offset, length);
        let Some(first) = pieces.next() else { return Ok(Segments::new()) };
        if first.length == length {
            return self.read_piece(first).await;
        }
        let all = std::iter::once(first).chain(pieces).map(|piece| self.read_piece(piece));
        let mut data = Segments::new();
        for part in futures_util::future::join_all(all).await {
            data.append(part?);
        }
        Ok(data)
    }

    /// Returns the object that an entry of the map names.
    pub(super) fn object_of(&self, entry: Entry, index: u32) -> ObjectId {
        let kind = Kind::Data(entry.birth(), index);
        match entry.volume() == self.space.volume {
            true => self.space.object(kind),
            false => self.space.pool.object(entry.volume(), kind),
        }
    }

    async fn read_piece(&self, piece: Piece) -> Result<Segments> {
        let mut before = None;
        for _ in 0..TRIES {
            let (entry, parts) = {
                let state = self.state.lock();
                state.check()?;
                let parts = state.overlays.parts(piece.index, piece.within, piece.length);
                (state.live.get(piece.index), parts)
            };
            if entry.is_hole() {
                return Ok(zeros(piece.length));
            }
            let object = self.object_of(entry, piece.index);
            if before == Some(entry) {
                return Err(Error::Damaged(format!("object {object} of the volume is missing")));
            }
            let read = match parts {
                None => self.read_object(object, piece.within, piece.length).await,
                Some(parts) => self.read_overlaid(object, piece.within, parts).await,
            };
            match read {
                Ok(data) => return Ok(data),
                // It may have been replaced and removed since the look at the map.
                Err(blocker::Error::Missing) => before = Some(entry),
                Err(error) => return Err(self.noted(error)),
            }
        }
        Err(Error::Io(blocker::Error::Retryable("the range is discarded faster than it can be read".into())))
    }

    async fn read_object(
        &self,
        object: ObjectId,
        within: u64,
        length: u64,
    ) -> Result<Segments, blocker::Error> {
        let reply = self.space.store().read(ReadRequest::new(object, within, length)).await?;
        Ok(padded(reply.data, length))
    }

    /// Reads what was written over an object, and what lies between that of the object itself.
    async fn read_overlaid(
        &self,
        object: ObjectId,
        within: u64,
        parts: Vec<(u64, Source)>,
    ) -> Result<Segments, blocker::Error> {
        let (mut data, mut at) = (Segments::new(), within);
        for (length, source) in parts {
            data.append(match source {
                Source::Data(data) => data,
                Source::Zeroes => zeros(length),
                Source::Base => self.read_object(object.clone(), at, length).await?,
            });
            at += length;
        }
        Ok(data)
    }
}

/// Returns the bytes of an object's part, with zeros where the object ends and the volume goes on.
pub(super) fn padded(mut data: Segments, length: u64) -> Segments {
    let found = data.len_bytes() as u64;
    if found < length {
        data.append(zeros(length - found));
    }
    data
}

fn zeros(length: u64) -> Segments {
    // At most an object.
    Segments::zeros(length as usize)
}
