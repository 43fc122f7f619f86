//! Changes that give an object a new file, all or nothing, by renaming it over the old one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Store, count};
use crate::admission::{admit, check_condition, range_end};
use crate::error::{Error, Result};
use crate::file::disk::{DiskFile, Open};
use crate::file::object::{Object, State};
use crate::file::slot::{Found, HEADER_BYTES, PACKED_BYTES_MAX, Slot, UNPACKED_AT, data_at, name_sum};
use crate::order::Version;
use crate::request::{Change, CopyRequest, WriteFullRequest};
use crate::response::ChangeReply;

impl Store {
    pub(in crate::file) fn write_full(&self, request: &WriteFullRequest) -> Result<ChangeReply> {
        let size = range_end(0, request.data.len_bytes() as u64, self.config.object_bytes_max)?;
        let change = &request.change;
        self.change(&request.object, change, |object, state, version| {
            self.replace(object, state, version, change, size, |file, at| {
                file.write_at(at, &request.data).map_err(|failed| failed.error)
            })?;
            // Whatever was lost of the old file, nothing of it is left.
            object.lost.store(false, Ordering::Release);
            Ok(size)
        })
    }

    /// Gives an object a new file of `size` bytes, all or nothing: `fill` writes it, from an offset on.
    fn replace(
        &self,
        object: &Object,
        state: &mut State,
        version: Version,
        change: &Change,
        size: u64,
        fill: impl FnOnce(&dyn DiskFile, u64) -> io::Result<()>,
    ) -> Result<()> {
        let packed = size <= PACKED_BYTES_MAX;
        let slot = Slot { count: 1, ..Slot::first(version, change.stamp.or(state.stamp), packed, size) };
        self.put_file(object, state, slot, true, fill)
    }

    /// Moves a packed object's data to where larger ones have them. Its content stays what it is.
    pub(super) fn unpack(&self, object: &Object, state: &mut State) -> Result<()> {
        let old = Arc::clone(state.live()?);
        let size = state.size_bytes;
        // What may be stored must not give way to a file that is not: the new one is stored first, and all
        // that the object's stamp stands for is in it. If nothing is, nothing can be lost.
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

    /// Writes the file of an object that has lost something anew, with what is read of it now: that is what
    /// is served, and no sync of the old file would make it stored.
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

    /// Puts a new file in the place of an object's, with `slot` as its header and filled by `fill`, which is
    /// given the place where the data begin. With `sync` the file is stored before it takes its place.
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
            file.write_at(0, &slot.encode(name_sum(&object.id)).into()).map_err(|failed| failed.error)?;
            if !slot.packed {
                file.set_len(UNPACKED_AT)?;
            }
            fill(&*file, data_at(slot.packed))?;
            if sync {
                // Before the rename, which may reach the disk at any time after.
                count(&self.counters.syncs);
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

    /// Whether the file with this header is the object's, although the rename reported a failure: to continue
    /// with the other would be to write into a file without a name.
    fn is_in_place(&self, object: &Object, slot: &Slot) -> bool {
        let mut header = [0; HEADER_BYTES as usize];
        let head = self.disk.head(&object.path, &mut header);
        let Ok((read, _)) = head else { return false };
        let found = Slot::find(&header[..read], name_sum(&object.id));
        found == Found::Slot { slot: *slot, one_damaged: false }
    }

    pub(in crate::file) fn copy(&self, request: &CopyRequest) -> Result<ChangeReply> {
        let CopyRequest { from, from_condition, to, change, .. } = request;
        if from == to {
            return self.change(to, change, |_, state, _| {
                state.live()?;
                check_condition(Some(state.version), *from_condition)?;
                Ok(state.size_bytes)
            });
        }
        self.check_changeable()?;
        let (source, target) = (self.object(from)?, self.object(to)?);
        let (version, size_bytes) = {
            let held = self.claims.read();
            self.check_open()?;
            let (source_state, mut state);
            if from < to {
                source_state = self.loaded(&source)?;
                state = self.loaded_mut_pair(&target)?;
            } else {
                state = self.loaded_mut(&target)?;
                source_state = self.loaded_pair(&source)?;
            }
            admit(state.head(), held.claims.in_force(to, change.domain), change)?;
            let file = source_state.live()?;
            check_condition(Some(source_state.version), *from_condition)?;
            // What may have been lost there must not become *stored* here.
            source.check_not_lost()?;
            let (from_at, size) = (source_state.at(0), source_state.size_bytes);
            self.apply(&target, &mut state, change, |object, state, version| {
                self.replace(object, state, version, change, size, |copy, at| {
                    copy.set_len(at + size)?;
                    copy.copy_from(&**file, from_at, at, size)
                })?;
                object.lost.store(false, Ordering::Release);
                Ok(size)
            })?
        };
        self.reply(&target, change, version, size_bytes)
    }
}
