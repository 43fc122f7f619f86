//! The common part of every change: admission under the claims, a new version, cleaning up after a
//! failure, and storing before the reply. Also deletion, which leaves a tombstone if there is a
//! stamp.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::admission::{admit, check_condition};
use crate::conditional::check;
use crate::file::disk::{DiskFile, Open};
use crate::file::object::{Object, State};
use crate::file::pool::Begin;
use crate::file::slot::{Found, HEADER_BYTES, PACKED_BYTES_MAX, Slot, UNPACKED_AT, data_at, name_sum};
use crate::file::store::{Store, ambiguous};
use crate::{
    Change, ChangeReply, ChangeRequest, ChangeTerms, Condition, Durability, Error, Event, ObjectId, Result,
    Version,
};

impl Store {
    /// Makes a change: admits it under the claims, changes the object, and stores the change before
    /// the reply if the request asks for this. The change begins once it has its locks.
    pub(in crate::file) fn change(&self, request: &ChangeRequest, begin: Begin<'_>) -> Result<ChangeReply> {
        let ChangeRequest { object: id, change, terms, .. } = request;
        check(change, self.config.object_bytes_max)?;
        self.check_changeable()?;
        let object = self.object(id)?;
        let (version, size_bytes) = match change {
            Change::Copy { from, from_condition } if from != id => {
                self.copy(from, *from_condition, &object, terms, begin)?
            }
            _ => {
                let held = self.claims.read();
                self.check_open()?;
                let mut state = self.loaded_mut(&object)?;
                begin()?;
                admit(state.head(), held.claims.in_force(id, terms.domain), terms)?;
                match change {
                    Change::Delete => self.delete(&object, &mut state, terms)?,
                    _ => self.apply(&object, &mut state, terms, |object, state, version| {
                        self.write(object, state, version, change, terms)
                    })?,
                }
            }
        };
        let durability = match terms.durability {
            Durability::Cached => Durability::Cached,
            _ => self.sync_object(&object, false).map(|()| Durability::Stored)?,
        };
        Ok(ChangeReply::new(version, size_bytes, durability))
    }

    /// Runs `act` on the state of an object whose change is admitted. `act` changes the file and
    /// returns the new size; this function sets version, stamp and bookkeeping.
    pub(super) fn apply(
        &self,
        object: &Arc<Object>,
        state: &mut State,
        terms: &ChangeTerms,
        act: impl FnOnce(&Arc<Object>, &mut State, Version) -> Result<u64>,
    ) -> Result<(Version, u64)> {
        if state.excess && !state.trim() {
            return Err(Error::Retryable(
                "the object's file could not be truncated after an earlier failure".into(),
            ));
        }
        mend_header(object, state)?;
        let version = self.next_version();
        let had_file = state.file.is_some();
        match act(object, state, version) {
            Ok(size_bytes) => {
                self.counters.changes.increment();
                state.alive = true;
                state.size_bytes = size_bytes;
                state.version = version;
                state.stamp = terms.stamp.or(state.stamp);
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
                    // Bytes beyond the end would be read if the object grew later.
                    let is_trimmed = state.trim();
                    if error.is_ambiguous() || !is_trimmed {
                        // The content may have changed, so it must not keep the old version.
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

    /// Undoes a failed creation, and stores the undo, so that the next start finds no remains of
    /// the object. Returns the error to report.
    fn uncreate(&self, object: &Arc<Object>, state: &mut State, had_file: bool, error: Error) -> Error {
        if state.file.is_none() {
            return error;
        }
        if !had_file && self.disk.unlink(&object.path).is_ok() {
            self.forget_file(object, state);
            return self.store_undo(object, error);
        }
        // The header of a tombstone's file, or of a file that cannot be removed, may now mark the
        // object as live.
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

    /// Stores that the file of a failed creation has been removed: without that, a power loss could
    /// leave the file. Returns the error to report.
    pub(super) fn store_undo(&self, object: &Object, error: Error) -> Error {
        let synced = object.path.parent().map_or(Ok(()), |dir| self.sync_dir(dir));
        synced.map_or_else(|sync| Error::OutcomeUnknown(sync.to_string().into()), |()| error)
    }

    /// Records that the object's file has been removed.
    pub(super) fn forget_file(&self, object: &Object, state: &mut State) {
        object.reset_slot(None);
        self.entry_changed(&object.path);
        state.file = None;
        state.stamp = None;
        state.changes += 1;
        self.names.lock().note_gone(&object.id.namespace, object.id.name.as_bytes());
    }

    fn delete(&self, object: &Arc<Object>, state: &mut State, terms: &ChangeTerms) -> Result<(Version, u64)> {
        let file = Arc::clone(state.live()?);
        mend_header(object, state)?;
        match terms.stamp {
            Some(_) => {
                // The tombstone is stored before the data are removed, in a step of its own:
                // half a delete would be an object of holes.
                let before = object.slot();
                let tombstone = Slot::tombstone(state.version, terms.stamp);
                let written = object.write_slot(&*file, &mut object.header.lock(), tombstone);
                self.counters.syncs.increment();
                if let Err(error) = written.and_then(|()| object.sync_within(&*file)) {
                    // The object stays live, so the next start must not find a tombstone below
                    // later changes.
                    let _ = object.restore_slot(state, before);
                    state.changes += 1;
                    self.mark_unsynced(object);
                    return Err(ambiguous(&error));
                }
                // A failure costs only space, and the object's next creation repeats this.
                let _ = file.set_len(HEADER_BYTES);
                state.stamp = terms.stamp;
                state.packed = true;
            }
            None => {
                let unlinked = self.disk.unlink(&object.path);
                unlinked.map_err(|error| Error::from_io(&error, "deleting an object"))?;
                self.forget_file(object, state);
            }
        }
        self.counters.changes.increment();
        object.lost.store(false, Ordering::Release);
        state.alive = false;
        (state.excess, state.header_unsure) = (false, false);
        state.size_bytes = 0;
        state.changes += 1;
        self.mark_unsynced(object);
        Ok((Version(0), 0))
    }

    /// Gives an object a new file of `size` bytes, completely or not at all. `fill` writes the data
    /// from the given offset on.
    pub(super) fn replace(
        &self,
        object: &Object,
        state: &mut State,
        version: Version,
        terms: &ChangeTerms,
        size: u64,
        fill: impl FnOnce(&dyn DiskFile, u64) -> io::Result<()>,
    ) -> Result<()> {
        let packed = size <= PACKED_BYTES_MAX;
        let slot = Slot { count: 1, ..Slot::first(version, terms.stamp.or(state.stamp), packed, size) };
        self.put_file(object, state, slot, true, fill)?;
        // The loss of the old file no longer matters, because the new file has replaced all of its
        // data.
        object.lost.store(false, Ordering::Release);
        Ok(())
    }

    /// Moves the data of a packed object to where larger objects have their data. The content stays
    /// the same.
    pub(super) fn unpack(&self, object: &Object, state: &mut State) -> Result<()> {
        let old = Arc::clone(state.live()?);
        let size = state.size_bytes;
        // A file that may be stored must not be replaced by an unstored one: the new file is synced
        // first, with everything that the object's stamp covers. If no part is stored, nothing can
        // be lost.
        let sync = object.may_be_stored.load(Ordering::Acquire);
        let stamp = if sync { state.stamp } else { None };
        let slot = Slot { count: 1, ..Slot::first(state.version, stamp, false, size) };
        self.put_file(object, state, slot, sync, |file, at| {
            file.set_len(at + size)?;
            file.copy_from(&*old, HEADER_BYTES, at, size)
        })?;
        object.may_be_stored.store(sync, Ordering::Release);
        state.changes += 1;
        Ok(())
    }

    /// Rewrites the file of an object that has lost data, with its currently readable content. The
    /// store serves this content, and no sync of the old file would make it stored.
    pub(super) fn renew(&self, object: &Object, state: &mut State) -> Result<()> {
        let Some(old) = state.file.clone() else { return Ok(()) };
        let (version, stamp, packed) = (state.version, state.stamp, state.packed);
        let (from_at, size) = (state.at(0), state.size_bytes);
        let first = Slot::first(version, stamp, packed, size);
        let slot = Slot { count: 1, tombstone: !state.alive, ..first };
        self.put_file(object, state, slot, true, |file, at| {
            if size > 0 {
                file.set_len(at + size)?;
            }
            file.copy_from(&*old, from_at, at, size)
        })?;
        object.lost.store(false, Ordering::Release);
        (state.changes, state.excess) = (state.changes + 1, false);
        Ok(())
    }

    /// Replaces an object's file by a new one, with `slot` as its header and data written by
    /// `fill`, which gets the offset of the data. With `sync`, the new file is stored before the
    /// rename.
    fn put_file(
        &self,
        object: &Object,
        state: &mut State,
        slot: Slot,
        sync: bool,
        fill: impl FnOnce(&dyn DiskFile, u64) -> io::Result<()>,
    ) -> Result<()> {
        let failed = |error: io::Error| Error::from_io(&error, "replacing an object");
        self.make_parents(&object.path).map_err(failed)?;
        let temporary = self.temporary();
        let prepared = (|| {
            let file = self.disk.open(&temporary, Open::Create)?;
            file.write_all(0, &slot.encode(name_sum(&object.id)).into())?;
            if !slot.packed {
                file.set_len(UNPACKED_AT)?;
            }
            fill(&*file, data_at(slot.packed))?;
            if sync {
                // The sync is counted before the rename, because the rename may reach the disk at
                // any time afterwards.
                self.counters.syncs.increment();
                file.sync_data()?;
            }
            match self.disk.rename(&temporary, &object.path) {
                Err(error) if !self.is_in_place(object, &slot) => Err(error),
                _ => Ok(file),
            }
        })();
        let file = match prepared {
            Ok(file) => file,
            Err(error) => {
                let _ = self.disk.unlink(&temporary);
                return Err(failed(error));
            }
        };
        object.reset_slot(Some(slot));
        object.may_be_stored.store(true, Ordering::Release);
        (state.packed, state.header_unsure) = (slot.packed, false);
        if state.file.replace(file).is_none() {
            self.names.lock().note_made(&object.id.namespace, object.id.name.as_bytes());
        }
        self.entry_changed(&object.path);
        Ok(())
    }

    /// Returns whether the file with this header has replaced the object's file, although the
    /// rename reported a failure. Without this check, later writes could go to a file without a
    /// name.
    fn is_in_place(&self, object: &Object, slot: &Slot) -> bool {
        let mut header = [0; HEADER_BYTES as usize];
        let head = self.disk.head(&object.path, &mut header);
        let Ok((read, _)) = head else { return false };
        let found = Slot::find(&header[..read], name_sum(&object.id));
        found == Found::Slot { slot: *slot, one_damaged: false }
    }

    /// Makes `target` a copy of another object.
    fn copy(
        &self,
        from: &ObjectId,
        from_condition: Condition,
        target: &Arc<Object>,
        terms: &ChangeTerms,
        begin: Begin<'_>,
    ) -> Result<(Version, u64)> {
        let source = self.object(from)?;
        let held = self.claims.read();
        self.check_open()?;
        let (source_state, mut state);
        if *from < target.id {
            source_state = self.loaded(&source)?;
            state = target.state.write_pair();
            self.load(target, &mut state)?;
        } else {
            state = self.loaded_mut(target)?;
            source_state = self.loaded_by(&source, |source| source.state.read_pair())?;
        }
        begin()?;
        admit(state.head(), held.claims.in_force(&target.id, terms.domain), terms)?;
        let file = source_state.live()?;
        check_condition(Some(source_state.version), from_condition)?;
        // Data that the source may have lost must not become *stored* in the target.
        source.check_not_lost()?;
        let (from_at, size) = (source_state.at(0), source_state.size_bytes);
        self.apply(target, &mut state, terms, |object, state, version| {
            self.replace(object, state, version, terms, size, |copy, at| {
                copy.set_len(at + size)?;
                copy.copy_from(&**file, from_at, at, size)
            })?;
            Ok(size)
        })
    }
}

/// Rewrites a header whose content on disk is uncertain after a failed change.
fn mend_header(object: &Object, state: &mut State) -> Result<()> {
    if !state.header_unsure {
        return Ok(());
    }
    let restored = object.restore_slot(state, object.slot());
    restored.map_err(|error| Error::from_io(&error, "writing a header again after an earlier failure"))
}
