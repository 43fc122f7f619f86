//! Which changes go to an overlay.

use blocker::{Durability, WriteMode};

use super::write::{Content, is_short};
use super::{Inner, Piece};
use crate::error::Result;

impl Inner {
    /// Keeps a change in memory if it can be: a short one, of which no more is promised than that it is *cached* in this
    /// process, of a part of an object that is not the volume's own. Returns whether it is done. The caller shares the
    /// turn and the object, or has the object alone.
    pub(super) fn keep_over(&self, piece: &Piece, content: &Content, durability: Durability) -> Result<bool> {
        // A cache that writes this volume through would answer once the store has it.
        let is_cached = matches!(self.settings.write, None | Some(WriteMode::Back));
        let is_enough = durability == Durability::Cached && is_cached && !self.promises.records_at_once;
        if !is_enough || !is_short(piece, content, self.object_bytes) {
            return Ok(false);
        }
        let mut state = self.state.lock();
        state.check()?;
        let base = state.live.get(piece.index);
        let is_own = state.own_birth(piece.index).is_some();
        if base.is_hole() || is_own || self.is_whole(piece, state.size_bytes) {
            return Ok(false);
        }
        Ok(state.overlays.insert((piece.index, base), (piece.within, piece.length), content.data()))
    }
}
