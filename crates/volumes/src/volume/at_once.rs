//! Reads and writes without a future: within one object, which a write finds to be the volume's own, and with nothing
//! else in the way. Most requests of a disk in use are such.
//!
//! They do what `read.rs` and `write.rs` do, and leave to those what is otherwise.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use blocker::{Condition, Durability, ReadRequest, Reply, Segments};

use super::read::padded;
use super::write::Content;
use super::{Inner, Piece};
use crate::error::Result;

/// The answer of a volume, ready or to come.
#[must_use = "an operation whose answer is dropped is cancelled"]
pub enum Answer<T> {
    /// The answer.
    Ready(Result<T>),
    /// The future of the answer.
    Pending(Pin<Box<dyn Future<Output = Result<T>> + Send>>),
}

impl<T> Answer<T> {
    pub(super) fn pending(future: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        Self::Pending(Box::pin(future))
    }

    /// Waits for the answer.
    pub(super) async fn wait(self) -> Result<T> {
        match self {
            Self::Ready(answer) => answer,
            Self::Pending(future) => future.await,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(answer) => f.debug_tuple("Ready").field(answer).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

impl Inner {
    /// Reads, without a future where the store has the bytes at once.
    pub(super) fn start_read(self: &Arc<Self>, offset: u64, length: u64) -> Answer<Segments> {
        self.read_at_once(offset, length).unwrap_or_else(|| {
            let inner = Arc::clone(self);
            Answer::pending(async move { inner.read(offset, length).await })
        })
    }

    fn read_at_once(self: &Arc<Self>, offset: u64, length: u64) -> Option<Answer<Segments>> {
        let piece = self.only_piece(offset, length)?;
        let entry = {
            let state = self.state.lock();
            state.check_range(offset, length).ok()?;
            if state.overlays.is_over(piece.index) {
                return None;
            }
            state.live.get(piece.index)
        };
        if entry.is_hole() {
            return None;
        }
        let object = self.object_of(entry, piece.index);
        match self.space.store().read(ReadRequest::new(object, piece.within, length)) {
            Reply::Ready(Ok(reply)) => Some(Answer::Ready(Ok(padded(reply.data, length)))),
            // It may have been replaced and removed since the look at the map.
            Reply::Ready(Err(blocker::Error::Missing)) => None,
            Reply::Ready(Err(error)) => Some(Answer::Ready(Err(self.noted(error)))),
            Reply::Pending(future) => {
                let inner = Arc::clone(self);
                Some(Answer::pending(async move {
                    match future.await {
                        Ok(reply) => Ok(padded(reply.data, length)),
                        Err(blocker::Error::Missing) => inner.read(offset, length).await,
                        Err(error) => Err(inner.noted(error)),
                    }
                }))
            }
        }
    }

    /// Writes, without a future where nothing has to be waited for.
    pub(super) fn start_write(
        self: &Arc<Self>,
        offset: u64,
        data: Segments,
        durability: Durability,
    ) -> Answer<Durability> {
        self.write_at_once(offset, &data, durability).unwrap_or_else(|| {
            let inner = Arc::clone(self);
            Answer::pending(async move { inner.write(offset, data, durability).await })
        })
    }

    fn write_at_once(
        self: &Arc<Self>,
        offset: u64,
        data: &Segments,
        durability: Durability,
    ) -> Option<Answer<Durability>> {
        let length = data.len_bytes() as u64;
        let piece = self.only_piece(offset, length)?;
        if self.settings.is_read_only || self.space.is_stamped() {
            return None;
        }
        // Held until the store has answered, as in `write.rs`.
        let turn = self.turn.try_read_arc()?;
        let shared = self.lock_of(piece.index).try_read_arc()?;
        let allocation = {
            let state = self.state.lock();
            state.check_range(offset, length).ok()?;
            if !state.has_allocations() {
                return None;
            }
            if state.logged_base(piece.index).is_some() {
                return None;
            }
            state.own_allocation(piece.index)
        };
        let content = Content::Data(data.clone());
        let Some(allocation) = allocation else {
            self.look_at_quota_at_once(&piece);
            let is_kept = self.keep_over(&piece, &content, durability).ok()?;
            return is_kept.then_some(Answer::Ready(Ok(Durability::Cached)));
        };
        let begun = match self.send(&piece, allocation, &content, durability, Condition::Present) {
            // Before more than *cached* is promised, `settle` checks that the volume is still this owner's.
            Reply::Ready(Ok(_)) if durability == Durability::Cached && self.is_kept(piece.index) => {
                return Some(Answer::Ready(Ok(durability)));
            }
            begun => begun,
        };
        let inner = Arc::clone(self);
        Some(Answer::pending(async move {
            let (is, is_recorded) =
                inner.finish_in_place(&piece, allocation, &content, durability, begun).await?;
            drop((turn, shared));
            inner.settle(is, is_recorded, durability).await
        }))
    }

    /// Returns whether a change of an own object is kept as far as one that asks for *cached* is promised.
    fn is_kept(&self, index: u32) -> bool {
        let is_recorded = || {
            let state = self.state.lock();
            state.is_recorded(index) && state.in_flight.is_none()
        };
        !self.promises.records_at_once || is_recorded()
    }

    /// Returns the only piece of a range; `None` if there are several, or none.
    fn only_piece(&self, offset: u64, length: u64) -> Option<Piece> {
        let within = offset % self.object_bytes;
        let index = u32::try_from(offset / self.object_bytes).ok()?;
        let is_one = length > 0 && length <= self.object_bytes - within;
        is_one.then_some(Piece { index, within, length, at: 0 })
    }
}
