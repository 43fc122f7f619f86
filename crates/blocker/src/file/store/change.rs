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
        self.check_open()?;
        let object = self.object(id)?;
        let (version, size_bytes) = {
            let claims = self.claims.read();
            let mut state = self.loaded_mut(&object)?;
            admit(state.head(), claims.in_force(id, change.domain), change)?;
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
        let version = self.next_version();
        match act(object, state, version) {
            Ok(size_bytes) => {
                count(&self.counters.changes);
                state.alive = true;
                state.size_bytes = size_bytes;
                state.version = version;
                state.stamp = change.stamp.or(state.stamp);
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
                if error.is_ambiguous() && state.alive {
                    // Whatever is there now, it is not what the old version stood for.
                    state.version = version;
                    self.mark_unsynced(object);
                }
                Err(error)
            }
        }
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
        self.check_open()?;
        let DeleteRequest { object: id, change, .. } = request;
        let object = self.object(id)?;
        {
            let claims = self.claims.read();
            let mut state = self.loaded_mut(&object)?;
            admit(state.head(), claims.in_force(id, change.domain), change)?;
            let file = Arc::clone(state.live()?);
            match change.stamp {
                Some(_) => {
                    // The tombstone is stored before the data go, and at once: half a delete would be
                    // an object of holes.
                    let mut slot = object.slot.lock();
                    let tombstone =
                        Slot { count: 0, version: state.version, stamp: change.stamp, tombstone: true };
                    let buried =
                        object.write_slot(&*file, &mut slot, tombstone).and_then(|()| file.sync_data());
                    buried.map_err(|error| ambiguous(&error))?;
                    count(&self.counters.syncs);
                    // Costs space if it fails; whoever creates the object again does it again.
                    let _ = file.set_len(HEADER_BYTES);
                    state.stamp = change.stamp;
                }
                None => {
                    self.disk
                        .unlink(&object.path)
                        .map_err(|error| Error::from_io(&error, "deleting an object"))?;
                    object.reset_slot(None);
                    self.entry_changed(&object.path);
                    state.file = None;
                    state.stamp = None;
                }
            }
            count(&self.counters.changes);
            object.lost.store(false, Ordering::Release);
            state.alive = false;
            state.size_bytes = 0;
            self.mark_unsynced(&object);
        }
        self.make_durable(&object, change).map(DeleteReply::new)
    }
}
