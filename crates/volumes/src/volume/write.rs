//! Writes: in place if the object is the volume's own; otherwise a new object is allocated first,
//! or the write goes to an overlay.
//!
//! An allocation gives an object a name that was never used, on the condition that no such object
//! exists. So if the response to an attempt is lost, its outcome changes no object that a map
//! names.

use std::sync::Arc;

use blocker::{
    BlockerExt, ChangeReply, Condition, Durability, Error as Store, InfoRequest, Reply, Segments,
    WriteRequest, WriteZeroesRequest,
};

use super::state::{NewId, State};
use super::{Answer, Inner, Piece, Recorder, Volume, pieces};
use crate::error::{Error, Result};
use crate::format::entry::{Entry, Kind};

/// The maximum number of attempts of a change with an unknown outcome.
const TRIES: u32 = 3;
/// The maximum length of a write that goes to an overlay, in bytes. Compared with writing the bytes
/// of a longer write, the copy takes little time.
pub(super) const WRITE_BYTES_MAX: u64 = 256 << 10;

/// The way in which a part of an object is changed.
#[derive(Clone, Copy)]
pub(super) enum Plan {
    /// In place, because the object is the volume's own. If the stored map still makes log records
    /// over `logged_base` valid, a short change is also logged.
    InPlace { allocation: u64, logged_base: Option<Entry> },
    /// In an overlay of `base`, which a snapshot or another volume shares, or in a copy of it.
    Overlay { base: Entry },
    /// In a new object that needs no bytes of the previous one: there is none, or all of it is
    /// replaced.
    New,
}

/// The new content of a part of an object.
#[derive(Clone)]
pub(super) enum Content {
    Data(Segments),
    Zeroes,
}

impl Content {
    /// Returns the bytes; `None` for zeros.
    pub(super) fn data(&self) -> Option<&Segments> {
        match self {
            Self::Data(data) => Some(data),
            Self::Zeroes => None,
        }
    }
}

/// A change of a part of an object.
pub(super) struct Write {
    pub(super) piece: Piece,
    pub(super) content: Content,
    /// The durability that the change must reach.
    pub(super) durability: Durability,
}

impl Write {
    /// Returns whether an overlay can hold the change.
    pub(super) fn is_short(&self, object_bytes: u64) -> bool {
        self.content.data().is_none() || self.piece.length <= WRITE_BYTES_MAX.min(object_bytes / 4)
    }
}

/// The durability that a change has reached, and whether the entry of its object is stored.
pub(super) type Written = (Durability, bool);

impl Volume {
    /// Writes as [`Self::write`] does. The answer is ready at once if the write need not wait. A
    /// pending answer must be polled to completion, or dropped, because snapshots wait for it.
    pub fn start_write(&self, offset: u64, data: Segments, durability: Durability) -> Answer<Durability> {
        self.inner.try_write(offset, &data, durability).unwrap_or_else(|| {
            let inner = Arc::clone(&self.inner);
            Answer::Pending(Box::pin(async move { inner.write(offset, data, durability).await }))
        })
    }
}

impl Inner {
    /// Writes without a future if the write need not wait: if it is within one object that is the
    /// volume's own or gets an overlay. This applies to most requests of an active disk;
    /// [`Self::write`] handles the others.
    fn try_write(
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
        // The barrier is held until the store has responded, as in `write`.
        let barrier = self.barrier.try_read_arc()?;
        let shared = self.lock_of(piece.index).try_read_arc()?;
        let plan = {
            let state = self.state.lock();
            state.check_range(offset, length).ok()?;
            if !state.has_allocations() {
                return None;
            }
            self.plan(&state, &piece).ok()?
        };
        let write = Write { piece, content: Content::Data(data.clone()), durability };
        let allocation = match plan {
            Plan::InPlace { allocation, logged_base: None } => allocation,
            Plan::InPlace { .. } | Plan::New => return None,
            Plan::Overlay { .. } => {
                self.try_look_at_quota(&piece);
                let is_kept = self.keep_in_overlay(&write).ok()?;
                return is_kept.then_some(Answer::Ready(Ok(Durability::Cached)));
            }
        };
        let begun = match self.send(&write, allocation, Condition::Present) {
            // Before more than *cached* is promised, `complete` checks that this owner still has
            // the volume.
            Reply::Ready(Ok(_)) if durability == Durability::Cached && self.is_kept(piece.index) => {
                return Some(Answer::Ready(Ok(durability)));
            }
            begun => begun,
        };
        let inner = Arc::clone(self);
        Some(Answer::Pending(Box::pin(async move {
            let written = inner.finish_in_place(&write, allocation, begun).await?;
            drop((barrier, shared));
            inner.complete(written, durability).await
        })))
    }

    /// Returns whether a change of an own object is safe enough to promise *cached*.
    fn is_kept(&self, index: u32) -> bool {
        let is_recorded = || {
            let state = self.state.lock();
            state.is_recorded(index) && state.in_flight.is_none()
        };
        !self.promises.records_at_once || is_recorded()
    }

    pub(super) async fn write(
        &self,
        offset: u64,
        data: Segments,
        durability: Durability,
    ) -> Result<Durability> {
        let length = data.len_bytes() as u64;
        self.check_writable()?;
        self.merge_if_scarce().await;
        self.ensure_allocations().await?;
        let written = {
            let _barrier = self.barrier.read().await;
            self.state.lock().check_range(offset, length)?;
            let mut pieces = pieces(self.object_bytes, offset, length);
            let Some(first) = pieces.next() else { return Ok(durability) };
            if first.length == length {
                self.write_piece(Write { piece: first, content: Content::Data(data), durability }).await?
            } else {
                let writes = std::iter::once(first).chain(pieces).map(|piece| {
                    let part = data.slice(piece.at as usize..(piece.at + piece.length) as usize);
                    self.write_piece(Write { piece, content: Content::Data(part), durability })
                });
                let mut all = (Durability::Stored, true);
                for (is, is_recorded) in
                    futures_util::future::join_all(writes).await.into_iter().collect::<Result<Vec<_>>>()?
                {
                    all = (all.0.min(is), all.1 && is_recorded);
                }
                all
            }
        };
        self.complete(written, durability).await
    }

    /// Records the allocations of a change that must be more durable than *cached* in this process.
    /// Returns the durability reached.
    async fn complete(&self, written: Written, wanted: Durability) -> Result<Durability> {
        if let Some(promised) = self.promised(written, wanted) {
            if wanted > Durability::Cached {
                self.check_held().await?;
            }
            return Ok(promised);
        }
        self.flush_as(Durability::Stored).await?;
        Ok(Durability::Stored)
    }

    /// Returns the durability that a change can be acknowledged with, or `None` if allocations have
    /// to be recorded first.
    fn promised(&self, (is, is_recorded): Written, wanted: Durability) -> Option<Durability> {
        let is_recorded = is_recorded && !self.state.lock().is_in_doubt();
        if is_recorded {
            // If nothing below refuses a deposed owner's changes, no more is acknowledged than was
            // requested and checked.
            let is_checked = wanted > Durability::Cached || self.space.is_stamped();
            return Some(if is_checked { is } else { Durability::Cached });
        }
        if wanted == Durability::Cached && !self.promises.records_at_once {
            return Some(Durability::Cached);
        }
        None
    }

    /// Reserves allocation IDs in the head when few are left. The caller holds no lock.
    pub(super) async fn ensure_allocations(&self) -> Result<()> {
        if self.state.lock().has_allocations() {
            return Ok(());
        }
        let mut recorder = self.recorder().await?;
        self.ensure_allocations_as(&mut recorder).await
    }

    /// Reserves ids as [`Self::ensure_allocations`] does, with the recorder.
    pub(super) async fn ensure_allocations_as(&self, recorder: &mut Recorder) -> Result<()> {
        if self.state.lock().has_allocations() {
            return Ok(());
        }
        self.reserve_allocations(recorder).await
    }

    /// Writes a part of an object. The caller holds the barrier shared.
    pub(super) async fn write_piece(&self, write: Write) -> Result<Written> {
        let (write, piece) = (&write, &write.piece);
        let lock = self.lock_of(piece.index);
        if !self.space.is_stamped() {
            let _shared = lock.read().await;
            match self.planned(piece)? {
                Plan::InPlace { allocation, logged_base } => {
                    return self.write_own(write, allocation, logged_base).await;
                }
                Plan::Overlay { .. } => {
                    self.look_at_quota(piece).await;
                    if self.keep_in_overlay(write)? {
                        return Ok((Durability::Cached, false));
                    }
                    if let Some(logged) = self.log_in_overlay(write).await? {
                        return Ok(logged);
                    }
                }
                Plan::New => {}
            }
        }
        let _alone = lock.write().await;
        match self.planned(piece)? {
            Plan::InPlace { allocation, logged_base } => self.write_own(write, allocation, logged_base).await,
            Plan::Overlay { .. } => {
                if self.keep_in_overlay(write)? {
                    return Ok((Durability::Cached, false));
                }
                let allocation = self.allocate_copy(piece.index).await?;
                self.write_in_place(write, allocation).await
            }
            Plan::New => {
                let send = |allocation| self.send(write, allocation, Condition::Absent);
                let reply = self.allocate(piece.index, send).await?;
                Ok((reply.durability, false))
            }
        }
    }

    /// Returns the way in which a part of an object is to be changed.
    pub(super) fn plan(&self, state: &State, piece: &Piece) -> Result<Plan> {
        state.check()?;
        if let Some(allocation) = state.own_allocation(piece.index) {
            return Ok(Plan::InPlace { allocation, logged_base: state.logged_base(piece.index) });
        }
        let base = state.live.get(piece.index);
        let is_new = base.is_hole() || self.is_whole(piece, state.size_bytes);
        Ok(if is_new { Plan::New } else { Plan::Overlay { base } })
    }

    fn planned(&self, piece: &Piece) -> Result<Plan> {
        self.plan(&self.state.lock(), piece)
    }

    /// Creates an object with `make`, on the condition that its name is unused, and puts it into
    /// the map. The caller holds the object exclusively.
    async fn allocate(&self, index: u32, make: impl Fn(u64) -> Reply<ChangeReply>) -> Result<ChangeReply> {
        let (reply, mut attempt) = self.make(index, NewId::Current, make).await?;
        attempt.ends = Ends::Allocated;
        // Whatever its durability, the object exists; the caller's next flush covers it.
        reply.map_err(|error| self.noted(error))
    }

    /// Creates an object with `make`, on the condition that its name is unused. The caller puts it
    /// into the map, or no map names it. Also returns an error if the object exists but is less
    /// durable than requested.
    pub(super) async fn make(
        &self,
        index: u32,
        new_id: NewId,
        make: impl Fn(u64) -> Reply<ChangeReply>,
    ) -> Result<(Result<ChangeReply, Store>, Attempt<'_>)> {
        let mut tries = 0;
        loop {
            tries += 1;
            let allocation = self.state.lock().next_allocation(new_id)?;
            let mut attempt = Attempt { inner: self, allocation, index, ends: Ends::Unknown };
            match make(allocation).await {
                Ok(reply) => return Ok((Ok(reply), attempt)),
                Err(error @ Store::NotStored(_)) => return Ok((Err(error), attempt)),
                Err(Store::Exists) if tries < TRIES => attempt.ends = Ends::Met,
                Err(Store::OutcomeUnknown(_) | Store::Superseded { .. }) if tries < TRIES => {}
                Err(error @ (Store::OutcomeUnknown(_) | Store::Superseded { .. })) => {
                    return Err(self.noted(error));
                }
                Err(error) => {
                    attempt.ends = Ends::Nothing;
                    return Err(self.noted(error));
                }
            }
        }
    }

    /// Writes a part of an own object, and logs it if necessary.
    async fn write_own(&self, write: &Write, allocation: u64, logged_base: Option<Entry>) -> Result<Written> {
        match logged_base.filter(|_| write.is_short(self.object_bytes)) {
            Some(base) => self.write_and_log(write, allocation, base).await,
            None => self.write_in_place(write, allocation).await,
        }
    }

    pub(super) async fn write_in_place(&self, write: &Write, allocation: u64) -> Result<Written> {
        // If the object was lost in the store below, it must not be recreated from this write and
        // zeros.
        let begun = self.send(write, allocation, Condition::Present);
        self.finish_in_place(write, allocation, begun).await
    }

    /// Continues [`Self::write_piece`] for an own object, beginning with the store's first
    /// response.
    async fn finish_in_place(
        &self,
        write: &Write,
        allocation: u64,
        begun: Reply<ChangeReply>,
    ) -> Result<Written> {
        let send = || self.send(write, allocation, Condition::Present);
        let reply = self.change_in_place(write.piece.index, allocation, begun, send).await?;
        Ok((reply.durability, self.state.lock().is_recorded(write.piece.index)))
    }

    /// Completes a change of an own object. If its outcome is unknown, the object is queried, which
    /// is ordered after the change, and the change is repeated with `send`. The object is also
    /// queried after the last attempt, so that a late attempt cannot be executed after the next
    /// change.
    pub(super) async fn change_in_place(
        &self,
        index: u32,
        allocation: u64,
        begun: Reply<ChangeReply>,
        send: impl Fn() -> Reply<ChangeReply>,
    ) -> Result<ChangeReply> {
        let (mut tries, mut begun) = (0, begun);
        loop {
            tries += 1;
            let error = match begun.await {
                Err(error @ (Store::OutcomeUnknown(_) | Store::Superseded { .. })) => error,
                Err(Store::Missing) => return Err(self.lost(index, allocation).await),
                answer => return answer.map_err(|error| self.noted(error)),
            };
            let object = self.space.object(Kind::Data(allocation, index));
            match self.space.store().info(InfoRequest::new(object)).await {
                Ok(_) | Err(Store::Missing) => {}
                Err(error) => return Err(self.noted(error)),
            }
            if tries == TRIES {
                return Err(self.noted(error));
            }
            begun = send();
        }
    }

    /// Returns the reason why an object in the map is missing: either another owner has the volume
    /// by now, or the volume is damaged.
    async fn lost(&self, index: u32, allocation: u64) -> Error {
        match self.check_owner_stored().await {
            Ok(()) => {
                let object = self.space.object(Kind::Data(allocation, index));
                Error::Damaged(format!("object {object} of the volume is missing"))
            }
            Err(error) => error,
        }
    }

    fn send(&self, write: &Write, allocation: u64, condition: Condition) -> Reply<ChangeReply> {
        let piece = &write.piece;
        let object = self.space.object(Kind::Data(allocation, piece.index));
        let terms = self.space.terms(write.durability, condition);
        match &write.content {
            Content::Data(data) => {
                self.space.store().write(WriteRequest::new(object, piece.within, data.clone()).terms(terms))
            }
            Content::Zeroes => {
                let request = WriteZeroesRequest::new(object, piece.within, piece.length).terms(terms);
                self.space.store().write_zeroes(request)
            }
        }
    }
}

/// The result of an attempt to create an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// The outcome is unknown, possibly because the caller has stopped waiting.
    Unknown,
    Nothing,
    /// An object with that name exists.
    Met,
    Allocated,
}

/// An attempt to create an object. Unless it had no effect, its name is not used for another
/// object.
pub(super) struct Attempt<'a> {
    inner: &'a Inner,
    pub(super) allocation: u64,
    index: u32,
    ends: Ends,
}

impl Attempt<'_> {
    /// Ends the attempt: the caller puts the object into the map.
    pub(super) fn end_allocated(&mut self) {
        self.ends = Ends::Nothing;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        match self.ends {
            Ends::Allocated => state.set_allocated(self.index, self.allocation),
            Ends::Nothing => {}
            Ends::Met | Ends::Unknown => {
                state.allocation = state.allocation.max(self.allocation + 1);
                if self.ends == Ends::Met {
                    state.births_met += 1;
                } else {
                    state.drops.queue.push_back(Kind::Data(self.allocation, self.index));
                }
            }
        }
    }
}
