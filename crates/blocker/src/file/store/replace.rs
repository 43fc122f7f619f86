//! Changes that give an object a new file, all or nothing, by renaming it over the old one.

use std::io;
use std::sync::atomic::Ordering;

use super::{Store, count};
use crate::admission::{admit, check_condition, range_end};
use crate::error::{Error, Result};
use crate::file::disk::{DiskFile, Open};
use crate::file::object::{Object, State};
use crate::file::slot::{HEADER_BYTES, Slot};
use crate::order::Version;
use crate::request::{Change, CopyRequest, WriteFullRequest};
use crate::response::ChangeReply;

impl Store {
    pub(in crate::file) fn write_full(&self, request: &WriteFullRequest) -> Result<ChangeReply> {
        let size = range_end(0, request.data.len_bytes() as u64, self.config.object_bytes_max)?;
        let change = &request.change;
        self.change(&request.object, change, |object, state, version| {
            self.replace(object, state, version, change, |file| {
                file.write_at(HEADER_BYTES, &request.data).map_err(|failed| failed.error)?;
                Ok(size)
            })
        })
    }

    /// Gives an object a new file, all or nothing: `fill` writes it, a rename puts it in place.
    fn replace(
        &self,
        object: &Object,
        state: &mut State,
        version: Version,
        change: &Change,
        fill: impl FnOnce(&dyn DiskFile) -> io::Result<u64>,
    ) -> Result<u64> {
        let failed = |error: io::Error| Error::from_io(&error, "replacing an object");
        self.make_parents(&object.path).map_err(failed)?;
        let temporary = self.temporary();
        let slot = Slot { count: 1, version, stamp: change.stamp.or(state.stamp), tombstone: false };
        let prepared = (|| {
            let file = self.disk.open(&temporary, Open::Create)?;
            file.set_len(HEADER_BYTES)?;
            file.write_at(slot.offset(), &slot.encode().into()).map_err(|failed| failed.error)?;
            let size = fill(&*file)?;
            // Before the rename, which may reach the disk at any time after.
            file.sync_data()?;
            count(&self.counters.syncs);
            self.disk.rename(&temporary, &object.path)?;
            Ok((file, size))
        })();
        let (file, size) = match prepared {
            Ok(done) => done,
            Err(error) => {
                let _ = self.disk.unlink(&temporary);
                return Err(failed(error));
            }
        };
        object.reset_slot(Some(slot));
        object.lost.store(false, Ordering::Release);
        state.file = Some(file);
        self.entry_changed(&object.path);
        Ok(size)
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
        self.check_open()?;
        let (source, target) = (self.object(from)?, self.object(to)?);
        let (version, size_bytes) = {
            let claims = self.claims.read();
            let source_first = from < to;
            let early = if source_first { Some(self.loaded(&source)?) } else { None };
            let mut state = self.loaded_mut(&target)?;
            let source = match early {
                Some(source) => source,
                None => self.loaded(&source)?,
            };
            admit(state.head(), claims.in_force(to, change.domain), change)?;
            let file = source.live()?;
            check_condition(Some(source.version), *from_condition)?;
            self.apply(&target, &mut state, change, |object, state, version| {
                self.replace(object, state, version, change, |copy| {
                    copy.set_len(HEADER_BYTES + source.size_bytes)?;
                    copy.copy_from(&**file, HEADER_BYTES, source.size_bytes)?;
                    Ok(source.size_bytes)
                })
            })?
        };
        self.reply(&target, change, version, size_bytes)
    }
}
