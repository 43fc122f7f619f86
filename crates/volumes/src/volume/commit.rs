//! Changing the head: a conditional write, whose outcome is known before anything builds on it.

use async_lock::MutexGuard;
use blocker::{Condition, Epoch, Error as Store, InfoRequest, InvalidateRequest, Scope, Version};

use super::state::{Status, next_limit};
use super::{Inner, Recorder};
use crate::error::{Error, Result};
use crate::format::entry::Kind;
use crate::format::{Head, Node};

/// How often a head is written whose outcome is unknown.
const TRIES: u32 = 4;

impl Inner {
    /// Takes the right to change the volume's shape, once it is known what became of every head that was sent.
    pub(super) async fn recorder(&self) -> Result<MutexGuard<'_, Recorder>> {
        let mut recorder = self.recorder.lock().await;
        self.resolve(&mut recorder).await?;
        Ok(recorder)
    }

    /// Makes `head`, a change of the recorder's, the volume's head. Either it is *stored* when this returns, or
    /// the old one is in force, or [`Self::recorder`] finds out.
    pub(super) async fn commit(&self, recorder: &mut Recorder, mut head: Head) -> Result<()> {
        {
            let state = self.state.lock();
            state.check()?;
            // It would undo what `head` does not know of.
            debug_assert!(state.in_flight.is_none());
        }
        head.sequence = recorder.head.sequence + 1;
        let bytes = self.encoded(&head)?;
        self.send_head(recorder, head, bytes).await
    }

    fn encoded(&self, head: &Head) -> Result<Vec<u8>> {
        let bytes = head.encode();
        let can = &self.space.pool.capabilities;
        if bytes.len() as u64 > can.request_bytes_max.min(can.object_bytes_max) {
            return Err(Error::Limit(
                "the head of the volume is longer than an object: delete snapshots".into(),
            ));
        }
        Ok(bytes)
    }

    async fn send_head(&self, recorder: &mut Recorder, head: Head, bytes: Vec<u8>) -> Result<()> {
        let mut tries = 0;
        // Whether an earlier try may still be made.
        let mut may_come = false;
        let _sending = Sending::new(self);
        loop {
            tries += 1;
            self.state.lock().in_flight = Some(bytes.clone());
            let condition = Condition::Version(recorder.head_version);
            let error = match self.space.put(Kind::Head, bytes.clone(), condition).await {
                Ok(version) => {
                    recorder.head = head;
                    self.note_version(recorder, version);
                    self.state.lock().in_flight = None;
                    return Ok(());
                }
                Err(error) => error,
            };
            if !matches!(
                error,
                Store::OutcomeUnknown(_)
                    | Store::NotStored(_)
                    | Store::ConditionFailed { .. }
                    | Store::Superseded { .. }
                    | Store::Missing
            ) {
                // Nothing was changed, by this try.
                if !may_come {
                    self.state.lock().in_flight = None;
                }
                return Err(self.noted(error));
            }
            may_come |=
                matches!(error, Store::OutcomeUnknown(_) | Store::NotStored(_) | Store::Superseded { .. });
            let (found, version) = match self.space.pool.get(self.space.object(Kind::Head)).await {
                Ok((found, version)) => (found.to_vec(), version),
                Err(Store::Missing) => return Err(self.deposed()),
                Err(error) => return Err(self.noted(error)),
            };
            self.note_version(recorder, version);
            if found == bytes {
                let is_stored = self.space.ensure_stored(Kind::Head, blocker::Durability::Cached).await;
                is_stored.map_err(|error| self.noted(error))?;
                recorder.head = head;
                self.state.lock().in_flight = None;
                return Ok(());
            }
            if found != recorder.head.encode() {
                return Err(self.found_other(&found));
            }
            if tries == TRIES {
                return Err(self.noted(error));
            }
        }
    }

    /// Finds out what became of a head whose write was not seen to end, and keeps it from coming later.
    pub(super) async fn resolve(&self, recorder: &mut Recorder) -> Result<()> {
        let in_flight = self.state.lock().in_flight.clone();
        if let Some(bytes) = in_flight {
            self.find_out(recorder, bytes).await?;
        }
        // A snapshot of which nothing was stored, and of which nothing will be.
        if recorder.frozen.is_some() {
            self.thaw(recorder).await;
        }
        Ok(())
    }

    async fn find_out(&self, recorder: &mut Recorder, bytes: Vec<u8>) -> Result<()> {
        self.state.lock().check()?;
        let owner = recorder.head.owner.clone();
        let found = self.space.pool.get(self.space.object(Kind::Head)).await;
        let (found, version) = found.map_err(|error| self.noted(error))?;
        let found = found.to_vec();
        self.note_version(recorder, version);
        if found == bytes || recorder.earlier.as_ref() == Some(&found) {
            self.adopt(recorder, Head::decode(&found).map_err(Error::Damaged)?).await?;
            // The other one was on the condition of the head before.
            recorder.earlier = None;
        } else if found != recorder.head.encode() {
            return Err(self.found_other(&found));
        } else if recorder.earlier.is_none() {
            recorder.earlier = Some(bytes.clone());
        }
        // Written once more, under a number above both: what is still on its way meets another version.
        let mut head = recorder.head.clone();
        head.sequence += 2;
        // Also where the volume was to be closed: it is open.
        head.owner = owner;
        let again = self.encoded(&head)?;
        let sent = self.send_head(recorder, head, again).await;
        let mut state = self.state.lock();
        if sent.is_err() {
            // Nothing keeps it from coming.
            state.in_flight.get_or_insert(bytes);
        } else {
            recorder.earlier = None;
            state.allocation_limit = recorder.head.allocation_limit;
        }
        sent
    }

    /// Takes over a head that this owner has written without seeing the write end.
    async fn adopt(&self, recorder: &mut Recorder, head: Head) -> Result<()> {
        let old = &recorder.head;
        // The volume was frozen for it: what it has in memory comes after the snapshot.
        let is_snapshot = recorder.frozen.as_ref().is_some_and(|frozen| is_made(frozen.id, old, &head));
        let has_same_tree =
            is_snapshot || head.parent == old.parent && have_same_tree(&head.nodes, &old.nodes);
        // A larger size takes nothing away: all that is in memory is beside it. Not so what a rollback has made larger.
        let is_grown = !is_snapshot && head.size_bytes > old.size_bytes && head.root.starts_with(&old.root);
        let has_same_shape = has_same_tree && (is_grown || head.size_bytes == old.size_bytes);
        // Without a log that is needed, it has not all that was acknowledged.
        let has_same_shape = has_same_shape && self.state.lock().overlays.are_enough(&head.logs);
        if !has_same_shape || head.is_deleted != old.is_deleted || head.origin != old.origin {
            self.state.lock().set_status(Status::Interrupted);
            return Err(Error::Interrupted);
        }
        let recorded = self.state.lock().recorded.clone();
        let map = self.space.pool.load(&head.root, Some((&old.root, &recorded))).await?;
        recorder
            .page_versions
            .retain(|page, _| old.root.get(*page as usize) == head.root.get(*page as usize));
        {
            let mut state = self.state.lock();
            state.recorded = map;
            state.forget_recorded();
            if is_grown {
                state.size_bytes = head.size_bytes;
                state.live.pages.resize(head.root.len(), None);
            }
        }
        recorder.head = head;
        if is_snapshot {
            self.note_snapshot(recorder);
        }
        Ok(())
    }

    fn note_version(&self, recorder: &mut Recorder, version: Version) {
        recorder.head_version = version;
        self.state.lock().head_version = version;
    }

    /// Checks after a flush that the volume is still this owner's, where nothing below refuses what an owner sends that
    /// was deposed. What was flushed was then stored before another owner came, which finds it. The caller does not
    /// have the recorder.
    pub(super) async fn check_held(&self) -> Result<()> {
        if self.space.is_stamped() {
            return Ok(());
        }
        let head = self.space.object(Kind::Head);
        match self.space.store().info(InfoRequest::new(head)).await {
            Ok(info) if info.version == self.state.lock().head_version => return Ok(()),
            Ok(_) | Err(Store::Missing) => {}
            Err(error) => return Err(self.noted(error)),
        }
        // An operation of this owner may just have written it, or a cache below have another version of the same.
        let mut recorder = self.recorder().await?;
        self.state.lock().check()?;
        self.check_head(&mut recorder).await
    }

    /// Checks that the head is the recorder's.
    pub(super) async fn check_head(&self, recorder: &mut Recorder) -> Result<()> {
        let (found, version) = match self.space.pool.get(self.space.object(Kind::Head)).await {
            Ok((found, version)) => (found.to_vec(), version),
            Err(Store::Missing) => return Err(self.deposed()),
            Err(error) => return Err(self.noted(error)),
        };
        if found != recorder.head.encode() {
            return Err(self.found_other(&found));
        }
        self.note_version(recorder, version);
        Ok(())
    }

    /// Checks that the head that the store has names this owner.
    pub(super) async fn check_owner_stored(&self) -> Result<()> {
        let head = self.space.object(Kind::Head);
        // Not what a cache below remembers.
        let fresh = InvalidateRequest::new(Scope::Object(head.clone()));
        match self.space.store().invalidate(fresh).await {
            Ok(_) | Err(Store::Unsupported(_)) => {}
            Err(error) => return Err(self.noted(error)),
        }
        match self.space.pool.head_if_any(self.space.volume).await? {
            Some((head, _)) if head.owner.as_ref().is_some_and(|owner| owner.writer == self.writer) => Ok(()),
            _ => Err(self.deposed()),
        }
    }

    fn found_other(&self, found: &[u8]) -> Error {
        match Head::decode(found) {
            Ok(_) => self.deposed(),
            Err(why) => Error::Damaged(format!("the head of volume {}: {why}", self.space.volume)),
        }
    }

    fn deposed(&self) -> Error {
        self.fence(Epoch(0));
        Error::Fenced { epoch: Epoch(0) }
    }

    /// Reserves allocation ids in the head.
    pub(super) async fn reserve_allocations(&self, recorder: &mut Recorder) -> Result<()> {
        let mut head = recorder.head.clone();
        let allocation = self.state.lock().allocation.max(head.allocation_limit);
        head.allocation_limit = next_limit(allocation)?;
        let limit = head.allocation_limit;
        self.commit(recorder, head).await?;
        let mut state = self.state.lock();
        state.allocation_limit = limit;
        Ok(())
    }
}

/// Returns whether nodes differ in their names at most.
fn have_same_tree(some: &[Node], others: &[Node]) -> bool {
    let same = |one: &Node, other: &Node| {
        (one.id, one.parent, one.size_bytes) == (other.id, other.parent, other.size_bytes)
    };
    some.len() == others.len() && some.iter().zip(others).all(|(one, other)| same(one, other))
}

/// Returns whether all that `new` has and `old` has not is a snapshot of this number.
fn is_made(id: u64, old: &Head, new: &Head) -> bool {
    let Some((node, before)) = new.nodes.split_last() else { return false };
    let is_last = (node.id, node.parent, new.parent) == (id, old.parent, id);
    is_last && before == old.nodes && new.root == old.root
}

/// A head is being sent as long as it lives: it is not in doubt as one is that nothing was heard of.
struct Sending<'a>(&'a Inner);

impl<'a> Sending<'a> {
    fn new(inner: &'a Inner) -> Self {
        let mut state = inner.state.lock();
        // Not where it is not known what became of the one before.
        state.is_sending = state.in_flight.is_none();
        drop(state);
        Self(inner)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_sending = false;
    }
}
