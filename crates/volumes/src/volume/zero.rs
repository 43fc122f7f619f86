//! Discards, writes of zeros, and changes of the size.
//!
//! A whole object becomes a hole, and is removed once that is stored. A part of an own object is
//! discarded in the store. A part of an inherited object cannot be freed: a discard leaves it
//! unchanged, which is allowed, and zeros are written into a copy of the volume's own.

use blocker::{BlockerExt, Condition, DiscardRequest, Durability, Hints};

use super::state::DROPS_MAX;
use super::write::{Content, Plan, Write};
use super::{Inner, Piece, Volume, pieces};
use crate::error::{Error, Result};
use crate::format::entry::{Entry, Kind};
use crate::format::pages_of;
use crate::settings::Settings;

/// The maximum number of objects that are zeroed while the barrier is held.
const PIECES_MAX: usize = 64;

/// The desired effect on a part of the range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// The content is no longer needed.
    Discard,
    /// The part must read as zeros; its space may be freed.
    Punch,
    /// The part must read as zeros and keep its space.
    Keep,
}

impl Volume {
    /// Makes the range read as zeros. With `may_punch` its space may be freed. With `fast_only`
    /// nothing is changed if an object would have to be copied.
    ///
    /// # Errors
    /// See [`Volume`]; `NotFast`.
    pub async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        may_punch: bool,
        fast_only: bool,
    ) -> Result<()> {
        let inner = &*self.inner;
        inner.check_writable()?;
        if fast_only {
            let state = inner.state.lock();
            state.check_range(offset, length)?;
            let needs_copy = |piece: Piece| matches!(inner.plan(&state, &piece), Ok(Plan::Overlay { .. }));
            if pieces(inner.object_bytes, offset, length).any(needs_copy) {
                return Err(Error::NotFast);
            }
        }
        inner.zero(offset, length, if may_punch { Wish::Punch } else { Wish::Keep }).await
    }
}

impl Inner {
    pub(super) async fn zero(&self, offset: u64, length: u64, wish: Wish) -> Result<()> {
        self.check_writable()?;
        // The pieces are handled one after the other, because a range may have as many objects as
        // the volume.
        let mut pieces = pieces(self.object_bytes, offset, length).peekable();
        loop {
            if self.state.lock().drops.queue.len() >= DROPS_MAX {
                self.clear_drops().await?;
            }
            self.merge_if_scarce().await;
            self.ensure_allocations().await?;
            // The barrier is not held across all pieces, because a snapshot waits for the barrier,
            // and other changes wait for the snapshot.
            let _barrier = self.barrier.read().await;
            self.state.lock().check_range(offset, length)?;
            for piece in pieces.by_ref().take(PIECES_MAX) {
                self.zero_piece(piece, wish).await?;
            }
            if pieces.peek().is_none() {
                break;
            }
        }
        // A discard promises nothing: discarded data may come back.
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
            let plan = {
                let mut state = self.state.lock();
                let plan = self.plan(&state, &piece)?;
                if wish != Wish::Keep && self.is_whole(&piece, state.size_bytes) {
                    state.set_hole(piece.index);
                    return Ok(());
                }
                if wish != Wish::Keep && state.live.get(piece.index).is_hole() {
                    return Ok(());
                }
                plan
            };
            if let Plan::InPlace { allocation, .. } = plan
                && wish != Wish::Keep
            {
                return self.discard_own(&piece, allocation).await;
            }
            if !write {
                return Ok(());
            }
        }
        let write = Write { piece, content: Content::Zeroes, durability: Durability::Cached };
        self.write_piece(write).await.map(drop)
    }

    /// Zeroes a part of an own object. The caller holds the object exclusively.
    pub(super) async fn discard_own(&self, piece: &Piece, allocation: u64) -> Result<()> {
        let object = self.space.object(Kind::Data(allocation, piece.index));
        let send = || {
            let terms = self.space.terms(Durability::Cached, Condition::None);
            let request = DiscardRequest::new(object.clone(), piece.within, piece.length).terms(terms);
            self.space.store().discard(request.hints(Hints::NO_CACHE))
        };
        self.change_in_place(piece.index, allocation, send(), send).await.map(drop)
    }
}

// ---- size and settings

impl Inner {
    /// Stores the settings that apply when the volume is opened again.
    pub(crate) async fn set(&self, settings: Settings) -> Result<()> {
        let object_bytes = Some(self.object_bytes);
        if settings.object_bytes.is_some() && settings.object_bytes != object_bytes {
            let why = format!("object_bytes is {}, which can no longer change", self.object_bytes);
            return Err(Error::Invalid(why));
        }
        let mut recorder = self.recorder().await?;
        let mut head = recorder.head.clone();
        head.settings = Settings { object_bytes, ..settings };
        self.commit(&mut recorder, head).await
    }

    /// Changes the size of the volume. New ranges read as zeros, even if they were cut off before.
    /// Returns whether the size was changed: a volume that is larger stays unchanged unless it
    /// `may_shrink`.
    pub(crate) async fn resize(&self, size_bytes: u64, may_shrink: bool) -> Result<bool> {
        self.check_writable()?;
        self.ensure_allocations().await?;
        let mut recorder = self.recorder().await?;
        let barrier = self.barrier.write().await;
        let old_bytes = {
            let state = self.state.lock();
            // The volume may have been closed since.
            state.check()?;
            state.size_bytes
        };
        if size_bytes < old_bytes && !may_shrink {
            return Ok(false);
        }
        let pages = pages_of(size_bytes, self.object_bytes);
        if size_bytes < old_bytes {
            self.cut(size_bytes, old_bytes).await?;
            // Entries are stored before the head, so that a head with the new size has no entry
            // beyond it.
            self.record(&mut recorder).await?;
        }
        let mut head = recorder.head.clone();
        head.size_bytes = size_bytes;
        let gone = head.root.split_off(pages.min(head.root.len()));
        head.root.resize(pages, Entry::HOLE);
        self.commit(&mut recorder, head).await?;
        {
            let mut state = self.state.lock();
            state.size_bytes = size_bytes;
            state.live.pages.resize(pages, None);
            state.recorded.pages.resize(pages, None);
            let first = recorder.head.root.len();
            let own = gone.iter().enumerate().filter(|(at, page)| {
                let is_shared = recorder.parent_root.get(first + at) == Some(page);
                page.volume() == self.space.volume && !is_shared
            });
            let own = own.map(|(at, page)| Kind::Page(page.allocation(), (first + at) as u32));
            state.drops.queue.extend(own);
            // A later page with this number gets another name.
            state.allocation += 1;
        }
        recorder.page_versions.retain(|page, _| (*page as usize) < pages);
        drop(barrier);
        self.record(&mut recorder).await?;
        drop(recorder);
        self.remove_drops(usize::MAX).await;
        Ok(true)
    }

    /// Removes the objects between the new end and the old one, and zeroes the rest of the object
    /// at the new end. The caller holds the barrier exclusively.
    async fn cut(&self, size_bytes: u64, old_bytes: u64) -> Result<()> {
        let within = size_bytes % self.object_bytes;
        let first_gone = size_bytes.div_ceil(self.object_bytes);
        {
            let mut state = self.state.lock();
            let gone: Vec<u32> = state.live.objects().map(|(index, _)| index).collect();
            for index in gone.into_iter().filter(|index| u64::from(*index) >= first_gone) {
                state.set_hole(index);
            }
        }
        if within == 0 {
            return Ok(());
        }
        // A volume has less than 2^32 objects.
        let index = (size_bytes / self.object_bytes) as u32;
        let length = (old_bytes - size_bytes).min(self.object_bytes - within);
        let piece = Piece { index, within, length, at: 0 };
        let (entry, own) = {
            let state = self.state.lock();
            (state.live.get(index), state.own_allocation(index))
        };
        if entry.is_hole() {
            return Ok(());
        }
        let allocation = match own {
            Some(allocation) => allocation,
            None => self.allocate_copy(index).await?,
        };
        self.discard_own(&piece, allocation).await
    }
}
