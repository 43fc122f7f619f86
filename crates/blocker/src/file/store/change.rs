//! What every change has in common: admission under the claims, a new version, what a failure leaves
//! behind, and storing it before the reply. And deleting, which leaves a tombstone where there is a stamp.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Store, ambiguous, count};
use crate::admission::admit;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::file::object::{Object, State};
use crate::file::slot::{HEADER_BYTES, Slot};
use crate::name::ObjectId;
use crate::order::{Durability, Version};
use crate::request::{Change, DeleteRequest};
use crate::response::{ChangeReply, DeleteReply};

impl Store {
    /// Admits a change of `object`, under the claims, and runs `act` on its state. `act` makes the file
    /// what it shall be and gives the new size; version, stamp and bookkeeping are done here.
    pub(super) fn change(
        &self,
        id: &ObjectId,
        change: &Change,
        act: impl FnOnce(&Arc<Object>, &mut State, Version) -> Result<u64>,
    ) -> Result<ChangeReply> {
        self.check_changeable()?;
        let object = self.object(id)?;
        let (version, size_bytes) = {
            let held = self.claims.read();
            self.check_open()?;
            let mut state = self.loaded_mut(&object)?;
            admit(state.head(), held.claims.in_force(id, change.domain), change)?;
            self.apply(&object, &mut state, change, act)?
        };
        self.reply(&object, change, version, size_bytes)
    }

    pub(super) fn apply(
        &self,
        object: &Arc<Object>,
        state: &mut State,
        change: &Change,
        act: impl FnOnce(&Arc<Object>, &mut State, Version) -> Result<u64>,
    ) -> Result<(Version, u64)> {
        if state.excess && !state.trim() {
            return Err(Error::Retryable(
                "the object's file could not be cut after an earlier failure".into(),
            ));
        }
        if state.header_unsure {
            let restored = object.restore_slot(state, object.slot());
            restored
                .map_err(|error| Error::from_io(&error, "writing a header again after an earlier failure"))?;
        }
        let version = self.next_version();
        let had_file = state.file.is_some();
        match act(object, state, version) {
            Ok(size_bytes) => {
                count(&self.counters.changes);
                state.alive = true;
                state.size_bytes = size_bytes;
                state.version = version;
                state.stamp = change.stamp.or(state.stamp);
                state.changes += 1;
                self.mark_unsynced(object);
                if self.full.load(Ordering::Relaxed) && self.full.swap(false, Ordering::Relaxed) {
                    self.events.publish(&Event::Recovered);
                }
                Ok((version, size_bytes))
            }
            Err(error) => {
                if matches!(error, Error::OutOfSpace(_)) && !self.full.swap(true, Ordering::Relaxed) {
                    self.events.publish(&Event::Full);
                }
                if state.alive {
                    // Bytes behind the end would be read if the end moved out.
                    let is_trimmed = state.trim();
                    if error.is_ambiguous() || !is_trimmed {
                        // Whatever is there now, it is not what the old version stood for.
                        state.version = version;
                        state.changes += 1;
                        self.mark_unsynced(object);
                    }
                    return Err(error);
                }
                Err(self.uncreate(object, state, had_file, error))
            }
        }
    }

    /// Takes back a creation that failed, and stores that: what is left of it must not be found at the next
    /// start. Returns the error to answer.
    fn uncreate(&self, object: &Arc<Object>, state: &mut State, had_file: bool, error: Error) -> Error {
        if state.file.is_none() {
            return error;
        }
        if !had_file && self.disk.unlink(&object.path).is_ok() {
            self.forget_file(object, state);
            let synced = object.path.parent().map_or(Ok(()), |dir| self.sync_dir(dir));
            return synced.map_or_else(|sync| Error::OutcomeUnknown(sync.to_string().into()), |()| error);
        }
        // The file of a tombstone, or one that cannot be removed: its header may by now mark the object as
        // living.
        let (version, stamp) = (state.version, state.stamp);
        let tombstone = Slot::tombstone(version, stamp);
        state.packed = true;
        state.changes += 1;
        self.mark_unsynced(object);
        let restored = object.restore_slot(state, tombstone);
        let file = state.file.clone();
        match restored.and_then(|()| file.map_or(Ok(()), |file| object.sync_within(&*file))) {
            Ok(()) => error,
            Err(failed) => ambiguous(&failed),
        }
    }

    /// Notes that the object's file has been removed.
    pub(super) fn forget_file(&self, object: &Object, state: &mut State) {
        object.reset_slot(None);
        self.entry_changed(&object.path);
        state.file = None;
        state.stamp = None;
        state.changes += 1;
        self.names.lock().note_gone(&object.id.namespace, object.id.name.as_bytes());
    }

    /// Stores the change first if that was asked for.
    pub(super) fn reply(
        &self,
        object: &Arc<Object>,
        change: &Change,
        version: Version,
        size_bytes: u64,
    ) -> Result<ChangeReply> {
        let durability = self.make_durable(object, change)?;
        Ok(ChangeReply::new(version, size_bytes, durability))
    }

    fn make_durable(&self, object: &Arc<Object>, change: &Change) -> Result<Durability> {
        if change.durability == Durability::Cached {
            return Ok(Durability::Cached);
        }
        self.sync_object(object, false)?;
        Ok(Durability::Stored)
    }

    pub(in crate::file) fn delete(&self, request: &DeleteRequest) -> Result<DeleteReply> {
        self.check_changeable()?;
        let DeleteRequest { object: id, change, .. } = request;
        let object = self.object(id)?;
        {
            let held = self.claims.read();
            self.check_open()?;
            let mut state = self.loaded_mut(&object)?;
            admit(state.head(), held.claims.in_force(id, change.domain), change)?;
            let file = Arc::clone(state.live()?);
            if state.header_unsure {
                let restored = object.restore_slot(&mut state, object.slot());
                restored.map_err(|error| {
                    Error::from_io(&error, "writing a header again after an earlier failure")
                })?;
            }
            match change.stamp {
                Some(_) => {
                    // The tombstone is stored before the data go, and at once: half a delete would be
                    // an object of holes.
                    let before = object.slot();
                    let tombstone = Slot::tombstone(state.version, change.stamp);
                    let written = object.write_slot(&*file, &mut object.header.lock(), tombstone);
                    count(&self.counters.syncs);
                    if let Err(error) = written.and_then(|()| object.sync_within(&*file)) {
                        // It lives on here, so what is changed next must not find a tombstone at the next
                        // start.
                        let _ = object.restore_slot(&mut state, before);
                        state.changes += 1;
                        self.mark_unsynced(&object);
                        return Err(ambiguous(&error));
                    }
                    // Costs space if it fails; creating the object again repeats it.
                    let _ = file.set_len(HEADER_BYTES);
                    state.stamp = change.stamp;
                    state.packed = true;
                }
                None => {
                    let unlinked = self.disk.unlink(&object.path);
                    unlinked.map_err(|error| Error::from_io(&error, "deleting an object"))?;
                    self.forget_file(&object, &mut state);
                }
            }
            count(&self.counters.changes);
            object.lost.store(false, Ordering::Release);
            state.alive = false;
            (state.excess, state.header_unsure) = (false, false);
            state.size_bytes = 0;
            state.changes += 1;
            self.mark_unsynced(&object);
        }
        self.make_durable(&object, change).map(DeleteReply::new)
    }
}
