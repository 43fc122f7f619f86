//! Changes the head by a conditional write, whose outcome is resolved before anything depends on
//! it.

use async_lock::MutexGuard;
use blocker::{Condition, Epoch, Error as Store, InfoRequest, InvalidateRequest, Scope, Version};

use super::state::{Status, next_limit};
use super::{Inner, Recorder};
use crate::error::{Error, Result};
use crate::format::entry::Kind;
use crate::format::{Head, Node};

/// The maximum number of attempts to write a head while the outcome is unknown.
const TRIES: u32 = 4;

impl Inner {
    /// Obtains the right to change the volume's structure, after the outcome of every head sent so
    /// far has been resolved.
    pub(super) async fn recorder(&self) -> Result<MutexGuard<'_, Recorder>> {
        let mut recorder = self.recorder.lock().await;
        self.resolve(&mut recorder).await?;
        Ok(recorder)
    }

    /// Replaces the volume's head with `head`, which is based on the recorder's head. When this
    /// returns, `head` is *stored*, or the old head is in force, or the next [`Self::recorder`]
    /// resolves the outcome.
    pub(super) async fn commit(&self, recorder: &mut Recorder, mut head: Head) -> Result<()> {
        {
            let state = self.state.lock();
            state.check()?;
            // A head in flight could undo changes that `head` does not contain.
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
        // True if an earlier attempt may still be executed.
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
                // This attempt changed nothing.
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

    /// Resolves a head write with an unknown outcome, and prevents it from being executed later.
    pub(super) async fn resolve(&self, recorder: &mut Recorder) -> Result<()> {
        let in_flight = self.state.lock().in_flight.clone();
        if let Some(bytes) = in_flight {
            self.find_out(recorder, bytes).await?;
        }
        // The snapshot was not stored, and will not be.
        if recorder.frozen.is_some() {
            self.thaw(recorder).await;
        }
        if let Some(id) = recorder.unwanted {
            // Boxed, because it is rare and large.
            Box::pin(self.delete_unwanted(recorder, id)).await?;
        }
        Ok(())
    }

    /// Deletes a snapshot that other volumes do not have. If the store refuses this, it is tried
    /// again later, and the volume can be used meanwhile.
    async fn delete_unwanted(&self, recorder: &mut Recorder, id: u64) -> Result<()> {
        let name = recorder.head.node(id).map(|node| node.name.clone()).filter(|name| !name.is_empty());
        if let Some(name) = name
            && let Err(error) = self.delete_snapshot_named(recorder, &name).await
        {
            let is_in_doubt = self.state.lock().in_flight.is_some();
            return if is_in_doubt { Err(error) } else { Ok(()) };
        }
        recorder.unwanted = None;
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
            // The other write was on the condition of the previous head.
            recorder.earlier = None;
        } else if found != recorder.head.encode() {
            return Err(self.found_other(&found));
        } else if recorder.earlier.is_none() {
            recorder.earlier = Some(bytes.clone());
        }
        // The head is written again with a number above both, so that a late write finds a
        // different version.
        let mut head = recorder.head.clone();
        head.sequence += 2;
        // The volume keeps its owner, and so stays open, even if it was being closed.
        head.owner = owner;
        let again = self.encoded(&head)?;
        let sent = self.send_head(recorder, head, again).await;
        let mut state = self.state.lock();
        if sent.is_err() {
            // Nothing prevents the late write now.
            state.in_flight.get_or_insert(bytes);
        } else {
            recorder.earlier = None;
            state.allocation_limit = recorder.head.allocation_limit;
        }
        sent
    }

    /// Adopts a head of this owner whose write had an unknown outcome.
    async fn adopt(&self, recorder: &mut Recorder, head: Head) -> Result<()> {
        let old = &recorder.head;
        // The volume was frozen for this snapshot, so its changes in memory come after the
        // snapshot.
        let is_snapshot = recorder.frozen.as_ref().is_some_and(|frozen| is_made(frozen.id, old, &head));
        let has_same_tree =
            is_snapshot || head.parent == old.parent && have_same_tree(&head.nodes, &old.nodes);
        // A larger size does not conflict with the state in memory. A rollback to a larger size
        // does.
        let is_grown = !is_snapshot && head.size_bytes > old.size_bytes && head.root.starts_with(&old.root);
        let has_same_shape = has_same_tree && (is_grown || head.size_bytes == old.size_bytes);
        // Without a required log, the head does not lead to all acknowledged changes.
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

    /// Checks after a flush that this owner still has the volume, if nothing below refuses a
    /// deposed owner's changes. If it has, the flushed changes were stored before any other owner
    /// came, which will read them. The caller does not hold the recorder.
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
        // An operation of this owner may have just written the head, or a cache below may have the
        // same head under a different version.
        let mut recorder = self.recorder().await?;
        self.state.lock().check()?;
        self.check_head(&mut recorder).await
    }

    /// Checks that the stored head is the recorder's head.
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

    /// Checks that the stored head names this owner.
    pub(super) async fn check_owner_stored(&self) -> Result<()> {
        let head = self.space.object(Kind::Head);
        // Read from the store, not from a cache below.
        let fresh = InvalidateRequest::new(Scope::Object(head.clone())).accepts_losses(false);
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

    /// Reserves allocation IDs in the head.
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

/// Returns whether two lists of nodes differ at most in the nodes' names.
fn have_same_tree(some: &[Node], others: &[Node]) -> bool {
    let same = |one: &Node, other: &Node| {
        (one.id, one.parent, one.size_bytes) == (other.id, other.parent, other.size_bytes)
    };
    some.len() == others.len() && some.iter().zip(others).all(|(one, other)| same(one, other))
}

/// Returns whether `new` differs from `old` only by a snapshot with this number.
fn is_made(id: u64, old: &Head, new: &Head) -> bool {
    let Some((node, before)) = new.nodes.split_last() else { return false };
    let is_last = (node.id, node.parent, new.parent) == (id, old.parent, id);
    is_last && before == old.nodes && new.root == old.root
}

/// Marks a head as being sent for as long as this value exists. Unlike a head with an unknown
/// outcome, such a head is not in doubt.
struct Sending<'a>(&'a Inner);

impl<'a> Sending<'a> {
    fn new(inner: &'a Inner) -> Self {
        let mut state = inner.state.lock();
        // The mark is not set if the outcome of the previous head is unknown.
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
