//! Which changes go to an overlay: short ones that a copy of the object would be waited for, as long as the quota has room
//! for the copies.

use blocker::{Durability, Error as Store, Quota, Reply, WriteMode};

use super::write::{Content, is_short};
use super::{Inner, Piece};
use crate::error::Result;

/// The most objects that get an overlay between two looks at the quota where there is one: together with what else is
/// written meanwhile, their copies may exceed it.
const OBJECTS_MAX: u32 = 64;
/// The same where there is none.
const OBJECTS_MAX_UNLIMITED: u32 = 4096;

impl Inner {
    /// Looks how many objects may get an overlay, if none may as far as is known. The caller has no lock but those of
    /// changes.
    pub(super) async fn look_at_quota(&self, piece: &Piece) {
        if self.is_quota_wanted(piece) {
            let quota = self.space.quota().await;
            self.note_quota(quota);
        }
    }

    /// Looks before changes need it whether there is a quota, so that none of them waits for the store to answer that there
    /// is none. What is left of one is looked at when it is needed: it may have been used up by then.
    pub(crate) async fn look_ahead_at_quota(&self) {
        // Where changes are stamped there are no overlays.
        if self.space.is_stamped() || !self.state.lock().overlays.lacks_allowance() {
            return;
        }
        match self.space.quota().await {
            Ok(Quota { bytes_max: Some(_), .. }) => {}
            Err(error) if !matches!(error, Store::Unsupported(_)) => {}
            quota => self.note_quota(quota),
        }
    }

    /// As [`Self::look_at_quota`], if the store answers at once.
    pub(super) fn look_at_quota_at_once(&self, piece: &Piece) {
        if self.is_quota_wanted(piece)
            && let Reply::Ready(quota) = self.space.quota()
        {
            self.note_quota(quota);
        }
    }

    fn is_quota_wanted(&self, piece: &Piece) -> bool {
        let state = self.state.lock();
        state.overlays.lacks_allowance() && !state.live.get(piece.index).is_hole()
    }

    /// Lets as many objects have an overlay as the quota has room for copies of. Where that is not known, changes make
    /// their copies themselves.
    fn note_quota(&self, quota: Result<Quota, Store>) {
        let mut state = self.state.lock();
        let bytes_max = match quota {
            Ok(Quota { bytes_max: Some(bytes_max), used_bytes, .. }) => bytes_max.saturating_sub(used_bytes),
            Ok(_) | Err(Store::Unsupported(_)) => return state.overlays.allow(OBJECTS_MAX_UNLIMITED, false),
            Err(_) => return state.overlays.allow(0, false),
        };
        // Copies that are due are not counted yet.
        let due = state.overlays.count() as u64 * self.object_bytes;
        let allowed = bytes_max.saturating_sub(due) / self.object_bytes;
        // At most 64.
        state.overlays.allow(allowed.min(OBJECTS_MAX.into()) as u32, allowed < OBJECTS_MAX.into());
    }

    /// Makes the copies that are due before a change, where the quota has no room for further ones: then the change is
    /// refused only if there is none for it. The caller has no lock.
    pub(super) async fn merge_if_scarce(&self) {
        if self.state.lock().overlays.are_scarce() {
            // One that fails is tried again: the change itself may have room.
            let _ = self.merge_overlays().await;
        }
    }

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
