//! Reading and writing ranges of an object.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::admission::{admit, check_condition, range_end};
use crate::file::disk::{DiskFile, Open, WriteFailed};
use crate::file::object::{Object, State};
use crate::file::real::payload;
use crate::file::slot::{HEADER_BYTES, PACKED_BYTES_MAX, Slot, UNPACKED_AT};
use crate::file::store::{Store, ambiguous, within};
use crate::{
    Change, ChangeReply, ChangeRequest, ChangeTerms, Durability, Error, Info, ObjectId, ReadReply,
    ReadRequest, Result, Run, RunContent, Segments, Version,
};

impl Store {
    /// Changes the file of an object. The change is neither a deletion nor a copy of another
    /// object. Returns the object's new size.
    pub(super) fn write(
        &self,
        object: &Object,
        state: &mut State,
        version: Version,
        change: &Change,
        terms: &ChangeTerms,
    ) -> Result<u64> {
        match change {
            Change::Write { offset, data } => self.write_range(object, state, version, *offset, data),
            Change::CompareAndWrite { offset, expected, data } => {
                let (from, len) = within(*offset, expected.len_bytes() as u64, state.size_bytes);
                let found = read_range(&**state.live()?, state.at(from), len)?.to_vec();
                match expected.first_difference(&found) {
                    Some(at) => Err(Error::Mismatch { offset: offset + at as u64 }),
                    None => self.write_range(object, state, version, *offset, data),
                }
            }
            Change::WriteZeroes { offset, len_bytes } => {
                let file = self.writable(object, state, version, change.end())?;
                zero_range(&*file, state, state.size_bytes, *offset, *len_bytes)
            }
            Change::WriteRuns { runs } => self.write_runs(object, state, version, runs),
            Change::Discard { offset, len_bytes } => {
                let file = state.live()?;
                let (from, len) = within(*offset, *len_bytes, state.size_bytes);
                if len > 0 {
                    file.punch(state.at(from), len).map_err(|error| ambiguous(&error))?;
                }
                Ok(state.size_bytes)
            }
            Change::Truncate { size_bytes } => {
                state.live()?;
                let file = self.writable(object, state, version, *size_bytes)?;
                let resized = file.set_len(state.at(*size_bytes));
                resized.map_err(|error| Error::from_io(&error, "truncating an object"))?;
                Ok(*size_bytes)
            }
            Change::WriteFull { data } => {
                let size = data.len_bytes() as u64;
                self.replace(object, state, version, terms, size, |file, at| file.write_all(at, data))?;
                Ok(size)
            }
            Change::Copy { from_condition, .. } => {
                state.live()?;
                check_condition(Some(state.version), *from_condition)?;
                Ok(state.size_bytes)
            }
            Change::Delete => unreachable!("deleted by `delete`"),
        }
    }

    /// Writes on the caller's thread, if the change only copies bytes into the page cache.
    pub(in crate::file) fn write_at_once(&self, request: &ChangeRequest) -> Option<Result<ChangeReply>> {
        let ChangeRequest { object: id, change: Change::Write { offset, data }, terms, .. } = request else {
            return None;
        };
        let (offset, len) = (*offset, data.len_bytes() as u64);
        if terms.durability != Durability::Cached || len > self.config.inline_write_bytes_max {
            return None;
        }
        let end = range_end(offset, len, self.config.object_bytes_max);
        if let Err(error) = self.check_changeable().and(end) {
            return Some(Err(error));
        }
        let object = self.known(id)?;
        let held = self.claims.try_read()?;
        if let Err(error) = self.check_open() {
            return Some(Err(error));
        }
        let mut state = object.state.try_write().filter(|state| state.loaded && state.alive)?;
        if state.packed && offset + len > PACKED_BYTES_MAX {
            return None;
        }
        let admitted = admit(state.head(), held.claims.in_force(id, terms.domain), terms);
        let applied = admitted.and_then(|()| {
            self.apply(&object, &mut state, terms, |object, state, version| {
                self.write_range(object, state, version, offset, data)
            })
        });
        Some(applied.map(|(version, size)| ChangeReply::new(version, size, Durability::Cached)))
    }

    fn write_range(
        &self,
        object: &Object,
        state: &mut State,
        version: Version,
        offset: u64,
        data: &Segments,
    ) -> Result<u64> {
        let (old_size, len) = (state.size_bytes, data.len_bytes() as u64);
        let end = if len > 0 { offset + len } else { 0 };
        let file = self.writable(object, state, version, end)?;
        if len == 0 {
            return Ok(old_size);
        }
        match file.write_at(state.at(offset), data) {
            Ok(()) => Ok(old_size.max(end)),
            Err(failed) => Err(undo(object, state, offset, &failed)),
        }
    }

    /// Returns the object's file, which is created if it is missing, in a format that is large
    /// enough for a change up to `end`.
    fn writable(
        &self,
        object: &Object,
        state: &mut State,
        version: Version,
        end: u64,
    ) -> Result<Arc<dyn DiskFile>> {
        let packed = end <= PACKED_BYTES_MAX;
        if state.alive {
            if state.packed && !packed {
                self.unpack(object, state)?;
            }
            return state.live().map(Arc::clone);
        }
        let failed = |error: io::Error| Error::from_io(&error, "creating an object");
        if let Some(file) = &state.file {
            // The file is a tombstone's. The object lives again from here on, so that it survives
            // `kill -9`; it keeps the tombstone's stamp until its own data are stored. The sync in
            // between removes the old data from the disk before the object exists again.
            let alive = Slot::first(version, state.stamp, packed, end);
            let revived = file
                .set_len(HEADER_BYTES)
                .and_then(|()| object.sync_within(&**file))
                .and_then(|()| if packed { Ok(()) } else { file.set_len(UNPACKED_AT) })
                .and_then(|()| object.write_slot(&**file, &mut object.header.lock(), alive));
            revived.map_err(failed)?;
            state.packed = packed;
            return Ok(Arc::clone(file));
        }
        self.make_parents(&object.path).map_err(failed)?;
        let file = self.disk.open(&object.path, Open::Create).map_err(failed)?;
        let mut header = object.header.lock();
        let first = Slot::first(version, None, packed, end);
        let grown = if packed { Ok(()) } else { file.set_len(UNPACKED_AT) };
        let prepared = grown.and_then(|()| object.write_slot(&*file, &mut header, first));
        if let Err(error) = prepared {
            drop(header);
            object.reset_slot(None);
            // A remaining file could appear as an empty object.
            let removed = self.disk.unlink(&object.path);
            self.entry_changed(&object.path);
            return Err(match removed {
                Ok(()) => self.store_undo(object, failed(error)),
                Err(unlink) => ambiguous(&unlink),
            });
        }
        drop(header);
        self.entry_changed(&object.path);
        self.names.lock().note_made(&object.id.namespace, object.id.name.as_bytes());
        object.may_be_stored.store(false, Ordering::Release);
        state.packed = packed;
        state.file = Some(Arc::clone(&file));
        state.stamp = None;
        Ok(file)
    }

    /// Creates the directories that lead to `path`. New ones are stored together with the first
    /// entry in them.
    pub(super) fn make_parents(&self, path: &Path) -> io::Result<()> {
        let objects = self.root.join("objects");
        let mut missing: Vec<&Path> = path.ancestors().skip(1).take_while(|dir| **dir != objects).collect();
        while let Some(dir) = missing.pop() {
            // The lock is held until the new entry is recorded: another thread that finds the
            // directory must not find that its entry is stored.
            let mut unsynced = self.unsynced_dirs.lock();
            let made = self.disk.make_dir(dir);
            // After an error, the directory may be there: the next attempt finds it.
            if !matches!(made, Ok(false)) {
                unsynced.entry_changed(dir);
            }
            made?;
        }
        Ok(())
    }

    /// Writes several checked ranges, one after the other, while readers wait; the header with the
    /// change's stamp is written after all of them are stored. A failure after the first write has
    /// begun leaves an unknown outcome, as a failure in the middle of a single write does.
    fn write_runs(&self, object: &Object, state: &mut State, version: Version, runs: &[Run]) -> Result<u64> {
        let file = self.writable(object, state, version, runs.last().map_or(0, Run::end))?;
        let mut size_bytes = state.size_bytes;
        for (index, run) in runs.iter().enumerate() {
            let written = match &run.content {
                RunContent::Data(data) => match file.write_at(state.at(run.offset), data) {
                    Ok(()) => Ok(size_bytes.max(run.end())),
                    Err(failed) => Err(undo(object, state, run.offset, &failed)),
                },
                RunContent::Zeroes(len) => zero_range(&*file, state, size_bytes, run.offset, *len),
            };
            size_bytes = match written {
                Ok(size_bytes) => size_bytes,
                Err(error) if index == 0 => return Err(error),
                Err(error) => return Err(unsure(error)),
            };
        }
        Ok(size_bytes)
    }
}

/// Zeroes a range of an object that is already `size_bytes` long. Returns the new size.
fn zero_range(file: &dyn DiskFile, state: &State, size_bytes: u64, offset: u64, len: u64) -> Result<u64> {
    let (from, within_len) = within(offset, len, size_bytes);
    let end = offset + len;
    let grows = len > 0 && end > size_bytes;
    if grows {
        let grown = file.set_len(state.at(end));
        grown.map_err(|error| Error::from_io(&error, "extending an object"))?;
    }
    if within_len > 0 {
        file.punch(state.at(from), within_len).map_err(|error| ambiguous(&error))?;
    }
    Ok(if grows { end } else { size_bytes })
}

/// Converts the error of a later step of a change whose first steps were applied.
fn unsure(error: Error) -> Error {
    if error.is_ambiguous() { error } else { Error::OutcomeUnknown(error.to_string().into()) }
}

/// Undoes a failed write as far as possible, and returns the error to report: bytes beyond the end
/// are truncated again, bytes before the end stay. The truncation is stored before the error
/// promises that nothing changed.
fn undo(object: &Object, state: &mut State, offset: u64, failed: &WriteFailed) -> Error {
    let WriteFailed { written_bytes, error } = failed;
    // A new object is removed as a whole.
    let is_undone = *written_bytes == 0 || !state.alive || {
        let file = state.file.clone();
        let synced = || file.is_some_and(|file| object.sync_within(&*file).is_ok());
        offset >= state.size_bytes && state.trim() && synced()
    };
    if is_undone { Error::from_io(error, "writing an object") } else { ambiguous(error) }
}

/// The maximum number of bytes read under a shard's lock. More would delay threads that enter
/// objects.
const SHORT_READ_BYTES: u64 = 4096;

impl Store {
    pub(in crate::file) fn read(&self, request: &ReadRequest) -> Result<ReadReply> {
        self.check_read(request)?;
        let object = self.object(&request.object)?;
        let state = self.loaded(&object)?;
        let file = state.live()?;
        check_condition(Some(state.version), request.condition)?;
        let (from, len) = within(request.offset, request.len_bytes, state.size_bytes);
        let data = read_range(&**file, state.at(from), len)?;
        Ok(ReadReply::new(data, state.size_bytes, state.version))
    }

    fn check_read(&self, request: &ReadRequest) -> Result<()> {
        self.check_open()?;
        let limit_bytes = self.request_bytes_max();
        if request.len_bytes > limit_bytes { Err(Error::TooLarge { limit_bytes }) } else { Ok(()) }
    }

    /// Reads on the caller's thread, if the read need not wait.
    pub(in crate::file) fn read_at_once(&self, request: &ReadRequest) -> Option<Result<ReadReply>> {
        if let Err(error) = self.check_read(request) {
            return Some(Err(error));
        }
        // Every read comes here first, so reads are counted only here. They are counted before the
        // bytes are copied, because an atomic operation right after the copy would wait for all of
        // its stores.
        self.counters.reads.increment();
        let shard = self.shard(&request.object).objects.read();
        let object = shard.get(&request.object)?;
        self.note_use(object);
        if request.len_bytes <= SHORT_READ_BYTES {
            return object_read_at_once(object, request);
        }
        let object = Arc::clone(object);
        drop(shard);
        object_read_at_once(&object, request)
    }

    pub(in crate::file) fn info(&self, id: &ObjectId) -> Result<Info> {
        self.check_open()?;
        let object = self.object(id)?;
        let state = self.loaded(&object)?;
        state.live()?;
        Ok(Info::new(state.size_bytes, state.version, state.stamp))
    }

    pub(in crate::file) fn info_at_once(&self, id: &ObjectId) -> Option<Result<Info>> {
        if let Err(error) = self.check_open() {
            return Some(Err(error));
        }
        let object = self.known(id)?;
        let state = object.state.try_read().filter(|state| state.loaded)?;
        Some(state.live().map(|_| Info::new(state.size_bytes, state.version, state.stamp)))
    }
}

/// Reads on the caller's thread, if the read need not wait for the object.
fn object_read_at_once(object: &Object, request: &ReadRequest) -> Option<Result<ReadReply>> {
    let state = object.state.try_read().filter(|state| state.loaded)?;
    let file = match state.live() {
        Ok(file) => file,
        Err(error) => return Some(Err(error)),
    };
    if let Err(error) = check_condition(Some(state.version), request.condition) {
        return Some(Err(error));
    }
    let (from, len) = within(request.offset, request.len_bytes, state.size_bytes);
    let data = match len {
        0 => Segments::new(),
        _ => file.read_at_once(state.at(from), len as usize)?.into(),
    };
    Some(Ok(ReadReply::new(data, state.size_bytes, state.version)))
}

/// Reads `len` bytes at offset `at` of an object's file.
pub(super) fn read_range(file: &dyn DiskFile, at: u64, len: u64) -> Result<Segments> {
    if len == 0 {
        return Ok(Segments::new());
    }
    let bytes = file.read_at(at, len as usize);
    let bytes = bytes.map_err(|error| Error::from_read(&error, "reading an object"))?;
    if (bytes.len() as u64) < len {
        return Err(Error::Corrupt("an object's file has become shorter".into()));
    }
    Ok(payload(bytes))
}
