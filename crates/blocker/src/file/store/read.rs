//! Reading: at once from the page cache where that needs no waiting, otherwise by a thread of the pool.

use std::sync::Arc;

use super::{Store, count, within};
use crate::admission::check_condition;
use crate::error::{Error, Result};
use crate::file::disk::DiskFile;
use crate::file::object::Object;
use crate::file::real::payload;
use crate::name::ObjectId;
use crate::request::ReadRequest;
use crate::response::{Info, ReadReply};
use crate::segment::Segments;

/// The largest number of bytes read under a shard's lock. More would delay the threads that enter objects.
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

    /// The read, if it can be done without waiting for anything.
    pub(in crate::file) fn read_at_once(&self, request: &ReadRequest) -> Option<Result<ReadReply>> {
        if let Err(error) = self.check_read(request) {
            return Some(Err(error));
        }
        // Here and nowhere else: every read comes this way first. And before the bytes are copied: an
        // atomic operation right behind the copy would wait for all of its stores.
        count(&self.counters.reads);
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

/// The read, if nothing of the object's must be waited for.
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

/// Reads `len` bytes at `at` of an object's file.
pub(super) fn read_range(file: &dyn DiskFile, at: u64, len: u64) -> Result<Segments> {
    if len == 0 {
        return Ok(Segments::new());
    }
    let bytes = file.read_at(at, len as usize);
    let bytes = bytes.map_err(|error| Error::from_read(&error, "reading an object"))?;
    if (bytes.len() as u64) < len {
        return Err(Error::Corrupt("an object's file is shorter than it was".into()));
    }
    Ok(payload(bytes))
}
