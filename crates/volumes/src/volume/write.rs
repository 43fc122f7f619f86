//! Writing: in place where an object is the volume's own; anything else is born first.
//!
//! A birth gives an object a name that was never used, on the condition that there is nothing of that name,
//! so whatever becomes of an attempt whose answer is lost, it changes nothing that a map has.

use blocker::{
    ChangeReply, Condition, CopyRequest, Durability, InfoRequest, Reply, Segments, WriteRequest,
    WriteZeroesRequest,
};

use super::overlay::Way;
use super::state::State;
use super::{Inner, Piece};
use crate::entry::{Entry, Kind};
use crate::error::{Error, Result};

/// How often a change is tried whose outcome is unknown.
const TRIES: u32 = 3;
/// As many births are reserved at least when a change begins.
pub(super) const BIRTHS_MIN: u64 = 512;

/// The new content of a part of an object.
#[derive(Clone)]
pub(super) enum Content {
    Data(Segments),
    Zeroes,
}

/// What a change can be answered with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Promise {
    Holds(Durability),
    /// It holds if the volume is still this owner's.
    IfHeld(Durability),
    /// What was born has to be recorded first.
    OnceRecorded,
}

impl Inner {
    pub(super) async fn write(
        &self,
        offset: u64,
        data: Segments,
        durability: Durability,
    ) -> Result<Durability> {
        let length = data.len_bytes() as u64;
        self.check_writable()?;
        self.ensure_births().await?;
        let (is, is_recorded) = {
            let _turn = self.turn.read().await;
            self.state.lock().check_range(offset, length)?;
            let mut pieces = self.pieces(offset, length);
            let Some(first) = pieces.next() else { return Ok(durability) };
            if first.length == length {
                self.write_piece(first, Content::Data(data), durability).await?
            } else {
                let writes = std::iter::once(first).chain(pieces).map(|piece| {
                    let part = data.slice(piece.at as usize..(piece.at + piece.length) as usize);
                    self.write_piece(piece, Content::Data(part), durability)
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
        self.settle(is, is_recorded, durability).await
    }

    /// Records the births of a change that promises more than *cached* in this process; returns what it promises.
    pub(super) async fn settle(
        &self,
        is: Durability,
        is_recorded: bool,
        wanted: Durability,
    ) -> Result<Durability> {
        match self.promise(is, is_recorded, wanted) {
            Promise::Holds(promised) => Ok(promised),
            Promise::IfHeld(promised) => {
                self.check_held().await?;
                Ok(promised)
            }
            Promise::OnceRecorded if wanted == Durability::Cached => {
                self.record_births().await?;
                Ok(Durability::Cached)
            }
            Promise::OnceRecorded => {
                self.flush_as(Durability::Stored).await?;
                Ok(Durability::Stored)
            }
        }
    }

    /// Returns what a change promises, and what has to be done before.
    pub(super) fn promise(&self, is: Durability, is_recorded: bool, wanted: Durability) -> Promise {
        if is_recorded && !self.state.lock().is_in_doubt() {
            // Where nothing below refuses a deposed owner's change, no more is promised than was asked for and checked.
            return match wanted {
                _ if self.space.is_stamped() => Promise::Holds(is),
                Durability::Cached => Promise::Holds(Durability::Cached),
                _ => Promise::IfHeld(is),
            };
        }
        if wanted == Durability::Cached && !self.promises.records_at_once {
            return Promise::Holds(Durability::Cached);
        }
        Promise::OnceRecorded
    }

    /// Reserves births in the head when few are left. The caller holds no lock.
    pub(super) async fn ensure_births(&self) -> Result<()> {
        let has_enough = || {
            let state = self.state.lock();
            state.birth + BIRTHS_MIN <= state.birth_limit
        };
        if has_enough() {
            return Ok(());
        }
        let mut recorder = self.recorder().await?;
        if has_enough() {
            return Ok(());
        }
        self.reserve_births(&mut recorder).await
    }

    /// Writes a part of an object. Returns the durability of the bytes, and whether the object's entry is
    /// stored. The caller shares the turn.
    pub(super) async fn write_piece(
        &self,
        piece: Piece,
        content: Content,
        durability: Durability,
    ) -> Result<(Durability, bool)> {
        let lock = self.lock_of(piece.index);
        if !self.space.is_stamped() {
            let _shared = lock.read().await;
            let written = match self.way(&piece, &content)? {
                Way::InPlace(birth) => Some(self.write_in_place(&piece, birth, &content, durability).await?),
                Way::Both { birth, base } => {
                    Some(self.write_both(&piece, (birth, base), &content, durability).await?)
                }
                Way::Over { base } => self.write_over(&piece, base, &content, durability).await?,
                Way::Birth => None,
            };
            if let Some(written) = written {
                return Ok(written);
            }
        }
        let _alone = lock.write().await;
        let (is_over, is_whole) = {
            let state = self.state.lock();
            (state.overlays.is_over(piece.index), self.is_whole(&piece, state.size_bytes))
        };
        if is_over && !is_whole {
            self.merge_alone(piece.index).await?;
        }
        if let Some(birth) = self.own(piece.index)? {
            return self.write_in_place(&piece, birth, &content, durability).await;
        }
        let old = self.state.lock().live.get(piece.index);
        if old.is_hole() || is_whole {
            let reply = self
                .bear(piece.index, |birth| self.send(&piece, birth, &content, durability, Condition::Absent))
                .await?;
            return Ok((reply.durability, false));
        }
        let birth = self.bear_copy(piece.index, old).await?;
        self.write_in_place(&piece, birth, &content, durability).await
    }

    fn own(&self, index: u32) -> Result<Option<u64>> {
        let state = self.state.lock();
        state.check()?;
        Ok(state.own_birth(index))
    }

    /// Gives the volume an object of its own with the content of `old`. The caller has the object alone.
    /// Returns its birth.
    pub(super) async fn bear_copy(&self, index: u32, old: Entry) -> Result<u64> {
        let from = self.space.pool.object(old.volume(), Kind::Data(old.birth(), index));
        self.bear(index, |birth| {
            let to = self.space.object(Kind::Data(birth, index));
            let change = self.space.change(Durability::Cached, Condition::Absent);
            self.space.store().copy(CopyRequest::new(from.clone(), to).change(change))
        })
        .await
        .map_err(|error| match error {
            Error::Io(blocker::Error::Missing) => {
                Error::Damaged(format!("object {from} of the volume is missing"))
            }
            other => other,
        })?;
        Ok(self.state.lock().live.get(index).birth())
    }

    /// Makes a new object by `make`, on the condition that there is none of its name, and puts it into the
    /// map. The caller has the object alone.
    async fn bear(&self, index: u32, make: impl Fn(u64) -> Reply<ChangeReply>) -> Result<ChangeReply> {
        let (reply, mut attempt) = self.make(index, make).await?;
        attempt.ends = Ends::Born;
        // Durable as asked or not, it is there; the caller's next flush covers it.
        reply.map_err(|error| self.noted(error))
    }

    /// Makes a new object by `make`, on the condition that there is none of its name. It is to be put into the map;
    /// else nothing names it. Returns an error beside it if it is there and less durable than was asked for.
    pub(super) async fn make(
        &self,
        index: u32,
        make: impl Fn(u64) -> Reply<ChangeReply>,
    ) -> Result<(Result<ChangeReply, blocker::Error>, Attempt<'_>)> {
        let mut tries = 0;
        loop {
            tries += 1;
            let birth = self.state.lock().current_birth()?;
            let mut attempt = Attempt { inner: self, birth, index, ends: Ends::Unknown };
            match make(birth).await {
                Ok(reply) => return Ok((Ok(reply), attempt)),
                Err(error @ blocker::Error::NotStored(_)) => return Ok((Err(error), attempt)),
                Err(blocker::Error::Exists) if tries < TRIES => attempt.ends = Ends::Met,
                Err(blocker::Error::OutcomeUnknown(_) | blocker::Error::Superseded { .. })
                    if tries < TRIES => {}
                Err(error @ (blocker::Error::OutcomeUnknown(_) | blocker::Error::Superseded { .. })) => {
                    return Err(self.noted(error));
                }
                Err(error) => {
                    attempt.ends = Ends::Nothing;
                    return Err(self.noted(error));
                }
            }
        }
    }

    pub(super) async fn write_in_place(
        &self,
        piece: &Piece,
        birth: u64,
        content: &Content,
        durability: Durability,
    ) -> Result<(Durability, bool)> {
        let begun = self.send(piece, birth, content, durability, Condition::None);
        self.finish_in_place(piece, birth, content, durability, begun).await
    }

    /// As [`Self::write_piece`], of an own object, from the store's first answer on.
    pub(super) async fn finish_in_place(
        &self,
        piece: &Piece,
        birth: u64,
        content: &Content,
        durability: Durability,
        begun: Reply<ChangeReply>,
    ) -> Result<(Durability, bool)> {
        let send = || self.send(piece, birth, content, durability, Condition::None);
        let reply = self.change_in_place(piece.index, birth, begun, send).await?;
        Ok((reply.durability, self.state.lock().is_recorded(piece.index)))
    }

    /// Finishes a change of an own object. Where its outcome is unknown, the object is asked for, which comes
    /// after it, and the change is made again, by `send`.
    pub(super) async fn change_in_place(
        &self,
        index: u32,
        birth: u64,
        begun: Reply<ChangeReply>,
        send: impl Fn() -> Reply<ChangeReply>,
    ) -> Result<ChangeReply> {
        let (mut tries, mut begun) = (0, begun);
        loop {
            tries += 1;
            match begun.await {
                Err(blocker::Error::OutcomeUnknown(_) | blocker::Error::Superseded { .. })
                    if tries < TRIES =>
                {
                    let object = self.space.object(Kind::Data(birth, index));
                    match self.space.store().info(InfoRequest::new(object)).await {
                        Ok(_) | Err(blocker::Error::Missing) => begun = send(),
                        Err(error) => return Err(self.noted(error)),
                    }
                }
                answer => return answer.map_err(|error| self.noted(error)),
            }
        }
    }

    pub(super) fn send(
        &self,
        piece: &Piece,
        birth: u64,
        content: &Content,
        durability: Durability,
        condition: Condition,
    ) -> Reply<ChangeReply> {
        let object = self.space.object(Kind::Data(birth, piece.index));
        let change = self.space.change(durability, condition);
        match content {
            Content::Data(data) => {
                self.space.store().write(WriteRequest::new(object, piece.within, data.clone()).change(change))
            }
            Content::Zeroes => {
                let request = WriteZeroesRequest::new(object, piece.within, piece.length).change(change);
                self.space.store().write_zeroes(request)
            }
        }
    }
}

/// How an attempt to make an object ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// Not at all as far as is known: also where the caller has given up.
    Unknown,
    Nothing,
    /// There was an object of that name.
    Met,
    Born,
}

/// An attempt to make an object. Unless nothing came of it, its name is not used for another one.
pub(super) struct Attempt<'a> {
    inner: &'a Inner,
    pub(super) birth: u64,
    pub(super) index: u32,
    ends: Ends,
}

impl Attempt<'_> {
    /// Puts the object into the map.
    pub(super) fn end_born(&mut self, state: &mut State) {
        state.set_born(self.index, self.birth);
        self.ends = Ends::Nothing;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        match self.ends {
            Ends::Born => {
                state.set_born(self.index, self.birth);
                state.overlays.forget(self.index);
            }
            Ends::Nothing => {}
            Ends::Met | Ends::Unknown => {
                state.birth = state.birth.max(self.birth + 1);
                if self.ends == Ends::Met {
                    state.births_met += 1;
                } else {
                    state.drops.push(Kind::Data(self.birth, self.index));
                }
            }
        }
    }
}
