//! Discarding and writing zeros.
//!
//! A whole object becomes a hole, and is removed once that is stored. A part of an own object is discarded in
//! the store. A part of an inherited object cannot be given back: a discard leaves it, which it may, and
//! zeros are written into an object of the volume's own.

use blocker::{Condition, DiscardRequest, Durability, Hints};

use super::drops::DROPS_MAX;
use super::write::Content;
use super::{Inner, Piece};
use crate::error::{Error, Result};
use crate::format::entry::Kind;

/// The most objects that are zeroed in one turn.
const PIECES_MAX: usize = 64;

/// What is to become of a part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// Nothing is needed there any more.
    Discard,
    /// It must read as zeros; space may be given back.
    Punch,
    /// It must read as zeros and keep its space.
    Keep,
}

impl Inner {
    pub(super) async fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.zero(offset, length, Wish::Discard).await
    }

    pub(super) async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        may_punch: bool,
        fast_only: bool,
    ) -> Result<()> {
        self.check_writable()?;
        if fast_only {
            let state = self.state.lock();
            state.check_range(offset, length)?;
            let is_slow = |piece: &Piece| {
                let entry = state.live.get(piece.index);
                let is_inherited = !entry.is_hole() && !state.owns(piece.index, entry);
                is_inherited && !self.is_whole(piece, state.size_bytes)
            };
            if self.pieces(offset, length).any(|piece| is_slow(&piece)) {
                return Err(Error::NotFast);
            }
        }
        self.zero(offset, length, if may_punch { Wish::Punch } else { Wish::Keep }).await
    }

    async fn zero(&self, offset: u64, length: u64, wish: Wish) -> Result<()> {
        self.check_writable()?;
        // One after the other: a range may have as many objects as the volume.
        let mut pieces = self.pieces(offset, length).peekable();
        loop {
            if self.state.lock().drops.len() >= DROPS_MAX {
                self.clear_drops().await?;
            }
            self.merge_if_scarce().await;
            self.ensure_births().await?;
            // Not for all of them: a snapshot waits for the turn, and other changes wait for it.
            let _turn = self.turn.read().await;
            self.state.lock().check_range(offset, length)?;
            for piece in pieces.by_ref().take(PIECES_MAX) {
                self.zero_piece(piece, wish).await?;
            }
            if pieces.peek().is_none() {
                break;
            }
        }
        // What was discarded may come back.
        let is_promised = wish != Wish::Discard && self.promises.records_at_once;
        if is_promised && self.state.lock().has_unrecorded() {
            self.flush_as(Durability::Stored).await?;
        }
        Ok(())
    }

    async fn zero_piece(&self, piece: Piece, wish: Wish) -> Result<()> {
        let write = wish != Wish::Discard;
        {
            let _alone = self.lock_of(piece.index).write().await;
            let (entry, own) = {
                let mut state = self.state.lock();
                state.check()?;
                let is_whole = self.is_whole(&piece, state.size_bytes);
                if is_whole && wish != Wish::Keep {
                    state.set_hole(piece.index);
                    return Ok(());
                }
                (state.live.get(piece.index), state.own_birth(piece.index))
            };
            if entry.is_hole() && wish != Wish::Keep {
                return Ok(());
            }
            if let Some(birth) = own.filter(|_| wish != Wish::Keep) {
                return self.discard_own(&piece, birth).await;
            }
            if !write {
                return Ok(());
            }
        }
        self.write_piece(piece, Content::Zeroes, Durability::Cached).await.map(drop)
    }

    /// Zeroes a part of an own object. The caller has the object alone.
    pub(super) async fn discard_own(&self, piece: &Piece, birth: u64) -> Result<()> {
        let object = self.space.object(Kind::Data(birth, piece.index));
        let send = || {
            let change = self.space.change(Durability::Cached, Condition::None);
            let request = DiscardRequest::new(object.clone(), piece.within, piece.length).change(change);
            self.space.store().discard(request.hints(Hints::NO_CACHE))
        };
        self.change_in_place(piece.index, birth, send(), send).await.map(drop)
    }
}
