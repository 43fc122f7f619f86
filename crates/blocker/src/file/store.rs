//! The file backend's operations, each a function that may block.
//!
//! Every change holds the claims shared and its object exclusively, from check to change; so a claim,
//! which holds the claims exclusively, returns only when no older change is still to land.
//! Lock order: claims, then objects (of two, the smaller id first), then the small tables.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::FileConfig;
use super::disk::{Disk, DiskFile, Open, WriteFailed};
use super::object::{Object, State};
use super::path;
use super::real::payload;
use super::records::{Superblock, decode_claims, encode_claims};
use super::slot::{HEADER_BYTES, Slot};
use crate::admission::{Claims, admit, check_condition, range_end};
use crate::capabilities::BUCKET_BYTES;
use crate::error::{Error, Reason, Result};
use crate::event::{Event, EventHub};
use crate::name::{Name, Namespace, ObjectId};
use crate::order::{Durability, Epoch, Version};
use crate::request::*;
use crate::response::*;
use crate::segment::Segments;

/// Objects by name.
type Table = HashMap<ObjectId, Arc<Object>, foldhash::fast::RandomState>;

const SHARDS: usize = 16;
/// Up to how many bytes are read under a shard's lock. More would keep those waiting who enter objects.
const SHORT_READ_BYTES: u64 = 4096;
/// Versions of one boot: the boot in the upper bits, a count below.
const BOOT_SHIFT: u32 = 40;

pub(super) struct Store {
    pub(super) config: FileConfig,
    disk: Arc<dyn Disk>,
    root: PathBuf,
    shards: [RwLock<Table>; SHARDS],
    /// Objects with something that is not stored. Entered under the object's lock.
    unsynced: Mutex<Table>,
    /// Directories with entries that are not stored.
    /// For each, how many times it has been entered: a sync removes it only if it was not entered again.
    unsynced_dirs: Mutex<BTreeMap<PathBuf, u64>>,
    claims: RwLock<Claims>,
    boot: u64,
    version_floor: u64,
    version_count: AtomicU64,
    temporary_count: AtomicU64,
    /// How often files were closed to make room: the time by which objects are old or young.
    evictions: AtomicU64,
    closed: AtomicBool,
    full: AtomicBool,
    pub(super) events: EventHub,
    pub(super) counters: Counters,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) reads: AtomicU64,
    pub(super) changes: AtomicU64,
    pub(super) syncs: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Store {
    /// Opens the store in `root`, making it if the directory is empty. The caller holds its lock.
    ///
    /// # Errors
    /// `Denied` if the directory is not a store, `Unsupported` if a newer program wrote it, `Corrupt`.
    pub(super) fn open(root: &Path, config: FileConfig, disk: Arc<dyn Disk>) -> Result<Self> {
        let failed = |error: io::Error| Error::from_io(&error, &format!("opening {}", root.display()));
        let before = match read_small(&*disk, &root.join("superblock")).map_err(failed)? {
            Some(bytes) => Some(Superblock::decode(&bytes)?),
            None => {
                check_is_empty(&*disk, root).map_err(failed)??;
                None
            }
        };
        let claims = match read_small(&*disk, &root.join("claims")).map_err(failed)? {
            Some(bytes) => decode_claims(&bytes)?,
            None => Claims::default(),
        };
        let boot = before.map_or(1, |before| before.boot + 1);
        if boot >= 1 << (64 - BOOT_SHIFT) {
            return Err(Error::Unsupported(
                "the store has been opened too often to give new versions".into(),
            ));
        }
        let version_floor = match before {
            Some(before) if before.clean => before.version_floor,
            Some(_) => boot << BOOT_SHIFT,
            None => 0,
        };
        let store = Self {
            config,
            disk,
            root: root.to_path_buf(),
            shards: Default::default(),
            unsynced: Mutex::default(),
            unsynced_dirs: Mutex::default(),
            claims: RwLock::new(claims),
            boot,
            version_floor,
            version_count: AtomicU64::new(0),
            temporary_count: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            full: AtomicBool::new(false),
            events: EventHub::new(),
            counters: Counters::default(),
        };
        store.prepare_dirs().map_err(failed)?;
        store.write_superblock(false).map_err(failed)?;
        Ok(store)
    }

    fn prepare_dirs(&self) -> io::Result<()> {
        for dir in ["tmp", "objects"] {
            self.disk.make_dir(&self.root.join(dir))?;
        }
        let (mut left, tmp) = (Vec::new(), self.root.join("tmp"));
        self.disk.read_dir(&tmp, &mut |name, _| {
            left.extend(std::str::from_utf8(name).map(|name| tmp.join(name)));
        })?;
        left.iter().try_for_each(|path| self.disk.unlink(path))?;
        self.disk.sync_dir(&self.root)
    }

    fn write_superblock(&self, clean: bool) -> io::Result<()> {
        let superblock = Superblock { clean, boot: self.boot, version_floor: self.version_floor };
        self.replace_small("superblock", superblock.encode())
    }

    /// Replaces a small file of the store: all or nothing, and stored when it returns.
    fn replace_small(&self, name: &str, content: Vec<u8>) -> io::Result<()> {
        let temporary = self.temporary();
        let file = self.disk.open(&temporary, Open::Create)?;
        file.write_at(0, &content.into()).map_err(|failed| failed.error)?;
        file.sync_data()?;
        self.disk.rename(&temporary, &self.root.join(name))?;
        self.disk.sync_dir(&self.root)
    }

    fn temporary(&self) -> PathBuf {
        let number = self.temporary_count.fetch_add(1, Ordering::Relaxed);
        self.root.join("tmp").join(number.to_string())
    }

    fn next_version(&self) -> Version {
        Version((self.boot << BOOT_SHIFT) + 1 + self.version_count.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::Denied("the store has been closed".into()));
        }
        Ok(())
    }

    // ---- the table of objects

    fn shard(&self, id: &ObjectId) -> &RwLock<Table> {
        // The map hashes properly; to spread objects over a few locks the end of the name will do.
        let name = id.name.as_bytes();
        let last = name.last().copied().unwrap_or(0);
        &self.shards[(usize::from(last) ^ name.len()) % SHARDS]
    }

    /// The object if it is in memory.
    pub(super) fn known(&self, id: &ObjectId) -> Option<Arc<Object>> {
        let object = Arc::clone(self.shard(id).read().get(id)?);
        self.note_use(&object);
        Some(object)
    }

    fn note_use(&self, object: &Object) {
        // Written only when it changes: a hit must not write what every hit writes.
        let now = self.evictions.load(Ordering::Relaxed);
        if object.used.load(Ordering::Relaxed) != now {
            object.used.store(now, Ordering::Relaxed);
        }
    }

    fn object(&self, id: &ObjectId) -> Result<Arc<Object>> {
        if let Some(object) = self.known(id) {
            return Ok(object);
        }
        self.make_room(id)?;
        let object = || Arc::new(Object::new(id.clone(), self.path_of(id)));
        Ok(Arc::clone(self.shard(id).write().entry(id.clone()).or_insert_with(object)))
    }

    fn namespace_dir(&self, namespace: &Namespace) -> PathBuf {
        path::encode(&self.root.join("objects"), namespace.as_bytes(), path::NAMESPACE_SUFFIX)
    }

    fn path_of(&self, id: &ObjectId) -> PathBuf {
        path::encode(&self.namespace_dir(&id.namespace), id.name.as_bytes(), path::OBJECT_SUFFIX)
    }

    /// Closes the files that were used least, if as many are open as may be. What a closed object has
    /// not written is written first: its version must not fall back.
    fn make_room(&self, id: &ObjectId) -> Result<()> {
        let shard_max = self.config.open_files_max.div_ceil(SHARDS).max(2);
        let shard = self.shard(id);
        let mut oldest: Vec<Arc<Object>> = {
            let shard = shard.read();
            if shard.len() < shard_max {
                return Ok(());
            }
            shard.values().cloned().collect()
        };
        count(&self.evictions);
        oldest.sort_by_key(|object| object.used.load(Ordering::Relaxed));
        oldest.truncate(shard_max.div_ceil(4));
        for object in oldest {
            // An object that cannot be synced stays, and says so to whoever flushes it.
            if self.sync_object(&object, true).is_err() {
                continue;
            }
            let mut shard = shard.write();
            // Two: the table's and ours. More: someone is at work on it. (Who works on it under the
            // shard's lock has let go by now.)
            if Arc::strong_count(&object) == 2 && !object.unsynced.load(Ordering::Acquire) {
                shard.remove(&object.id);
            }
        }
        if shard.read().len() >= 4 * shard_max {
            return Err(Error::Retryable("too many objects are in use at once".into()));
        }
        Ok(())
    }

    /// The object's state, loaded, shared.
    fn loaded<'a>(&self, object: &'a Object) -> Result<RwLockReadGuard<'a, State>> {
        loop {
            let state = object.state.read();
            if state.loaded {
                return Ok(state);
            }
            drop(state);
            object.load(&mut object.state.write(), &*self.disk, self.version_floor)?;
        }
    }

    fn loaded_mut<'a>(&self, object: &'a Object) -> Result<RwLockWriteGuard<'a, State>> {
        let mut state = object.state.write();
        object.load(&mut state, &*self.disk, self.version_floor)?;
        Ok(state)
    }

    /// Enters the object among those with something to store. Under its lock.
    fn mark_unsynced(&self, object: &Arc<Object>) {
        if !object.unsynced.swap(true, Ordering::AcqRel) {
            self.unsynced.lock().insert(object.id.clone(), Arc::clone(object));
        }
    }

    // ---- reading

    pub(super) fn read(&self, request: &ReadRequest) -> Result<ReadReply> {
        self.check_read(request)?;
        let object = self.object(&request.object)?;
        let state = self.loaded(&object)?;
        let file = state.live()?;
        check_condition(Some(state.version), request.condition)?;
        let (from, len) = within(request.offset, request.len_bytes, state.size_bytes);
        let data = read_range(&**file, from, len)?;
        Ok(ReadReply::new(data, state.size_bytes, state.version))
    }

    fn check_read(&self, request: &ReadRequest) -> Result<()> {
        self.check_open()?;
        let limit_bytes = self.request_bytes_max();
        if request.len_bytes > limit_bytes { Err(Error::TooLarge { limit_bytes }) } else { Ok(()) }
    }

    /// The read, if it can be done without waiting for anything.
    pub(super) fn read_at_once(&self, request: &ReadRequest) -> Option<Result<ReadReply>> {
        if let Err(error) = self.check_read(request) {
            return Some(Err(error));
        }
        // Here and nowhere else: every read comes this way first. And before the bytes are copied: an
        // atomic operation right behind the copy would wait for all of its stores.
        count(&self.counters.reads);
        let shard = self.shard(&request.object).read();
        let object = shard.get(&request.object)?;
        self.note_use(object);
        if request.len_bytes <= SHORT_READ_BYTES {
            return object_read_at_once(object, request);
        }
        let object = Arc::clone(object);
        drop(shard);
        object_read_at_once(&object, request)
    }

    pub(super) fn info(&self, id: &ObjectId) -> Result<Info> {
        self.check_open()?;
        let object = self.object(id)?;
        let state = self.loaded(&object)?;
        state.live()?;
        Ok(Info::new(state.size_bytes, state.version, state.stamp))
    }

    pub(super) fn info_at_once(&self, id: &ObjectId) -> Option<Result<Info>> {
        if let Err(error) = self.check_open() {
            return Some(Err(error));
        }
        let object = self.known(id)?;
        let state = object.state.try_read().filter(|state| state.loaded)?;
        Some(state.live().map(|_| Info::new(state.size_bytes, state.version, state.stamp)))
    }

    // ---- changing

    /// Admits a change of `object`, under the claims, and runs `act` on its state. `act` makes the file
    /// what it shall be and gives the new size; version, stamp and bookkeeping are done here.
    fn change(
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

    fn apply(
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
    fn reply(
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

    pub(super) fn write(&self, request: &WriteRequest) -> Result<ChangeReply> {
        let len = request.data.len_bytes() as u64;
        range_end(request.offset, len, self.config.object_bytes_max)?;
        self.change(&request.object, &request.change, |object, state, version| {
            self.write_range(object, state, version, request.offset, &request.data)
        })
    }

    /// The write, if it takes no more than copying into the page cache.
    pub(super) fn write_at_once(&self, request: &WriteRequest) -> Option<Result<ChangeReply>> {
        let len = request.data.len_bytes() as u64;
        let change = &request.change;
        if change.durability != Durability::Cached || len > self.config.inline_write_bytes_max {
            return None;
        }
        let checked = self
            .check_open()
            .and_then(|()| range_end(request.offset, len, self.config.object_bytes_max).map(drop));
        if let Err(error) = checked {
            return Some(Err(error));
        }
        let object = self.known(&request.object)?;
        let claims = self.claims.try_read()?;
        let mut state = object.state.try_write().filter(|state| state.loaded && state.alive)?;
        let admitted = admit(state.head(), claims.in_force(&request.object, change.domain), change);
        let applied = admitted.and_then(|()| {
            self.apply(&object, &mut state, change, |object, state, version| {
                self.write_range(object, state, version, request.offset, &request.data)
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
        let file = self.writable(object, state, version)?;
        let (old_size, len) = (state.size_bytes, data.len_bytes() as u64);
        if len == 0 {
            return Ok(old_size);
        }
        match file.write_at(HEADER_BYTES + offset, data) {
            Ok(()) => Ok(old_size.max(offset + len)),
            Err(failed) => Err(undo(&*file, state, offset, failed)),
        }
    }

    /// The object's file, made if it is not there.
    fn writable(&self, object: &Object, state: &mut State, version: Version) -> Result<Arc<dyn DiskFile>> {
        if let (Some(file), true) = (&state.file, state.alive) {
            return Ok(Arc::clone(file));
        }
        let failed = |error: io::Error| Error::from_io(&error, "creating an object");
        if let Some(file) = &state.file {
            // A tombstone's file. The object lives again from here on, so that it survives kill -9; it
            // keeps the tombstone's stamp until its own data are stored. Synced in between: the old
            // data must be gone from the disk before there can be an object again.
            let mut slot = object.slot.lock();
            let alive = Slot { count: 0, version, stamp: state.stamp, tombstone: false };
            let revived = file
                .set_len(HEADER_BYTES)
                .and_then(|()| file.sync_data())
                .and_then(|()| object.write_slot(&**file, &mut slot, alive));
            revived.map_err(failed)?;
            return Ok(Arc::clone(file));
        }
        self.make_parents(&object.path).map_err(failed)?;
        let file = self.disk.open(&object.path, Open::Create).map_err(failed)?;
        let mut slot = object.slot.lock();
        let first = Slot { count: 0, version, stamp: None, tombstone: false };
        let prepared = file.set_len(HEADER_BYTES).and_then(|()| object.write_slot(&*file, &mut slot, first));
        if let Err(error) = prepared {
            // A blank file is no object; the next creation finds and reuses it.
            let _ = self.disk.unlink(&object.path);
            return Err(failed(error));
        }
        drop(slot);
        self.entry_changed(&object.path);
        state.file = Some(Arc::clone(&file));
        state.stamp = None;
        Ok(file)
    }

    fn make_parents(&self, path: &Path) -> io::Result<()> {
        let objects = self.root.join("objects");
        let mut missing: Vec<&Path> = path.ancestors().skip(1).take_while(|dir| **dir != objects).collect();
        while let Some(dir) = missing.pop() {
            if self.disk.make_dir(dir)? {
                self.disk.sync_dir(dir.parent().unwrap_or(&objects))?;
            }
        }
        Ok(())
    }

    fn entry_changed(&self, path: &Path) {
        if let Some(dir) = path.parent() {
            *self.unsynced_dirs.lock().entry(dir.to_path_buf()).or_default() += 1;
        }
    }

    pub(super) fn write_zeroes(&self, request: &WriteZeroesRequest) -> Result<ChangeReply> {
        let (offset, len) = (request.offset, request.len_bytes);
        let end = range_end(offset, len, self.config.object_bytes_max)?;
        self.change(&request.object, &request.change, |object, state, version| {
            let file = self.writable(object, state, version)?;
            let old_size = state.size_bytes;
            let (from, within_len) = within(offset, len, old_size);
            let grows = len > 0 && end > old_size;
            if grows {
                let grown = file.set_len(HEADER_BYTES + end);
                grown.map_err(|error| Error::from_io(&error, "extending an object"))?;
            }
            if within_len > 0 {
                file.punch(HEADER_BYTES + from, within_len).map_err(|error| ambiguous(&error))?;
            }
            Ok(if grows { end } else { old_size })
        })
    }

    pub(super) fn discard(&self, request: &DiscardRequest) -> Result<ChangeReply> {
        self.change(&request.object, &request.change, |_, state, _| {
            let file = state.live()?;
            let (from, len) = within(request.offset, request.len_bytes, state.size_bytes);
            if len > 0 {
                file.punch(HEADER_BYTES + from, len).map_err(|error| ambiguous(&error))?;
            }
            Ok(state.size_bytes)
        })
    }

    pub(super) fn truncate(&self, request: &TruncateRequest) -> Result<ChangeReply> {
        range_end(0, request.size_bytes, self.config.object_bytes_max)?;
        self.change(&request.object, &request.change, |_, state, _| {
            let resized = state.live()?.set_len(HEADER_BYTES + request.size_bytes);
            resized.map_err(|error| Error::from_io(&error, "truncating an object"))?;
            Ok(request.size_bytes)
        })
    }

    pub(super) fn compare_and_write(&self, request: &CompareAndWriteRequest) -> Result<ChangeReply> {
        let CompareAndWriteRequest { object, offset, expected, data, change, .. } = request;
        if expected.len_bytes() as u64 > BUCKET_BYTES {
            return Err(Error::TooLarge { limit_bytes: BUCKET_BYTES });
        }
        range_end(*offset, data.len_bytes() as u64, self.config.object_bytes_max)?;
        self.change(object, change, |object, state, version| {
            let (from, len) = within(*offset, expected.len_bytes() as u64, state.size_bytes);
            let found = read_range(&**state.live()?, from, len)?.to_vec();
            if let Some(at) = expected.first_difference(&found) {
                return Err(Error::Mismatch { offset: offset + at as u64 });
            }
            self.write_range(object, state, version, *offset, data)
        })
    }

    pub(super) fn write_full(&self, request: &WriteFullRequest) -> Result<ChangeReply> {
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

    pub(super) fn delete(&self, request: &DeleteRequest) -> Result<DeleteReply> {
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

    pub(super) fn copy(&self, request: &CopyRequest) -> Result<ChangeReply> {
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

    // ---- storing

    fn sync_object(&self, object: &Arc<Object>, with_version: bool) -> Result<()> {
        object.sync(with_version)?;
        count(&self.counters.syncs);
        if let Some(dir) = object.path.parent() {
            self.sync_dir(dir)?;
        }
        // Changed again meanwhile: then it has entered itself again, or will.
        let mut unsynced = self.unsynced.lock();
        if !object.unsynced.load(Ordering::Acquire) {
            unsynced.remove(&object.id);
        }
        Ok(())
    }

    /// Stores a directory's entries, if there is anything to store. It stays among the unsynced until
    /// that is done, so that nobody else takes it for stored meanwhile.
    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let Some(entered) = self.unsynced_dirs.lock().get(dir).copied() else { return Ok(()) };
        match self.disk.sync_dir(dir) {
            // Its entries were removed, and then it: nothing is left to store.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::NotStored(format!("sync of {}: {error}", dir.display()).into()))
            }
            _ => {
                let mut dirs = self.unsynced_dirs.lock();
                if dirs.get(dir) == Some(&entered) {
                    dirs.remove(dir);
                }
                Ok(())
            }
        }
    }

    pub(super) fn flush(&self, scope: &Scope) -> Result<FlushReply> {
        self.check_open()?;
        // A domain's changes are all in its namespace: flush that.
        let wider = match scope {
            Scope::Domain(namespace, _) => Scope::Namespace(namespace.clone()),
            scope => scope.clone(),
        };
        let objects: Vec<_> = {
            let unsynced = self.unsynced.lock();
            unsynced.values().filter(|object| wider.covers(&object.id, None)).cloned().collect()
        };
        let mut first_error = None;
        for object in objects {
            if let Err(error) = self.sync_object(&object, false) {
                first_error.get_or_insert(error);
            }
        }
        // A flush that runs beside another may find an object clean whose directory is not yet.
        for dir in self.unsynced_dirs() {
            if let Err(error) = self.sync_dir(&dir) {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(FlushReply::new(Durability::Stored)), Err)
    }

    fn unsynced_dirs(&self) -> Vec<PathBuf> {
        self.unsynced_dirs.lock().keys().cloned().collect()
    }

    pub(super) fn claim(&self, request: &ClaimRequest) -> Result<ClaimReply> {
        self.check_open()?;
        let mut claims = self.claims.write();
        let mut raised = claims.clone();
        if raised.raise(&request.scope, request.epoch)? {
            let stored = self.replace_small("claims", encode_claims(&raised));
            // Perhaps it is in place: from here on it binds, whatever the disk says.
            *claims = raised;
            drop(claims);
            stored.map_err(|error| ambiguous(&error))?;
            self.events.publish(&Event::Fenced(request.scope.clone(), request.epoch));
        }
        Ok(ClaimReply::new(request.epoch))
    }

    pub(super) fn invalidate(&self, request: &InvalidateRequest) -> Result<InvalidateReply> {
        self.check_open()?;
        for shard in &self.shards {
            let lost =
                shard.read().values().filter(|o| o.lost.load(Ordering::Acquire)).cloned().collect::<Vec<_>>();
            for object in lost.iter().filter(|object| request.scope.covers(&object.id, None)) {
                object.lost.store(false, Ordering::Release);
            }
        }
        self.events.publish(&Event::Changed(request.scope.clone()));
        Ok(InvalidateReply::new(0))
    }

    /// Stores everything and notes that it was closed in order. Nothing works afterwards.
    ///
    /// # Errors
    /// As a flush; the store is closed nevertheless, as after a crash.
    pub(super) fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        // Whoever is at work has finished once its object's lock is to be had.
        for shard in &self.shards {
            let objects: Vec<_> = shard.read().values().cloned().collect();
            for object in objects {
                self.sync_object(&object, true)?;
            }
        }
        self.unsynced_dirs().iter().try_for_each(|dir| self.sync_dir(dir))?;
        self.write_superblock(true).map_err(|error| Error::from_io(&error, "closing the store"))
    }

    // ---- listing

    pub(super) fn list(&self, request: &ListRequest, entries_max: usize) -> Result<ListReply> {
        self.check_open()?;
        let mut entries = Vec::new();
        let mut after = request.after.clone();
        loop {
            // One more than fits, to know whether there is more.
            let wanted = entries_max + 1 - entries.len();
            let names = self.names_after(&request.namespace, &request.prefix, after.as_ref(), wanted)?;
            let is_last = names.len() < wanted;
            after = names.last().cloned().or(after);
            for name in names {
                let id = ObjectId::new(request.namespace.clone(), name);
                if let Some((size_bytes, version)) = self.entry(&id)? {
                    entries.push(ListEntry::new(id.name, size_bytes, version));
                }
            }
            if is_last || entries.len() > entries_max {
                break;
            }
        }
        let has_more = entries.len() > entries_max;
        entries.truncate(entries_max);
        Ok(ListReply::new(entries, has_more))
    }

    /// Size and version of an object that is there. A tombstone that a claim has made needless goes.
    fn entry(&self, id: &ObjectId) -> Result<Option<(u64, Version)>> {
        let object = self.object(id)?;
        let needless = {
            let state = self.loaded(&object)?;
            if state.alive {
                return Ok(Some((state.size_bytes, state.version)));
            }
            let in_force = self.claims.read().in_force(id, None);
            state.file.is_some() && state.stamp.is_some_and(|stamp| stamp.epoch < in_force)
        };
        if needless {
            let mut state = object.state.write();
            if !state.alive && state.file.take().is_some() {
                // If it stays, it is found and removed another time.
                let _ = self.disk.unlink(&object.path);
                self.entry_changed(&object.path);
                state.stamp = None;
                object.reset_slot(None);
            }
        }
        Ok(None)
    }

    /// The first `count` names after `after`, in order. Reads the whole namespace's directory: the cost
    /// of a page is that of its namespace; the memory, that of the page.
    fn names_after(
        &self,
        namespace: &Namespace,
        prefix: &[u8],
        after: Option<&Name>,
        count: usize,
    ) -> Result<Vec<Name>> {
        let mut first = BTreeSet::new();
        self.walk(&self.namespace_dir(namespace), false, path::OBJECT_SUFFIX, &mut |name, _| {
            let is_wanted =
                name.starts_with(prefix) && after.is_none_or(|after| name.as_slice() > after.as_bytes());
            if is_wanted && (first.len() < count || first.last().is_some_and(|last| name < *last)) {
                first.insert(name);
                if first.len() > count {
                    first.pop_last();
                }
            }
        })?;
        first.into_iter().map(Name::new).collect()
    }

    /// Every name encoded below `dir`, and where the last piece of it lies.
    fn walk(
        &self,
        dir: &Path,
        last_is_dir: bool,
        suffix: &str,
        each: &mut dyn FnMut(Vec<u8>, PathBuf),
    ) -> Result<()> {
        let mut left = vec![(dir.to_path_buf(), String::new())];
        while let Some((dir, before)) = left.pop() {
            let listed = self.disk.read_dir(&dir, &mut |file_name, is_dir| match path::entry(
                &before,
                file_name,
                last_is_dir,
                is_dir,
                suffix,
            ) {
                Some(path::Entry::More(text)) => {
                    let file_name = String::from_utf8_lossy(file_name);
                    left.push((dir.join(&*file_name), text));
                }
                Some(path::Entry::Last(text)) => {
                    if let Some(name) = path::decode(&text) {
                        each(name, dir.join(&*String::from_utf8_lossy(file_name)));
                    }
                }
                None => {}
            });
            listed.map_err(|error| Error::from_io(&error, "listing a namespace"))?;
        }
        Ok(())
    }

    /// The namespaces that have a directory, or a claim.
    pub(super) fn namespaces(&self) -> Result<Vec<Namespace>> {
        self.check_open()?;
        let mut names = BTreeSet::new();
        self.walk(&self.root.join("objects"), true, path::NAMESPACE_SUFFIX, &mut |name, _| {
            names.insert(name);
        })?;
        for (scope, _) in self.claims.read().iter() {
            match scope {
                Scope::Namespace(namespace) | Scope::Domain(namespace, _) => {
                    names.insert(namespace.as_bytes().to_vec())
                }
                Scope::Object(object) => names.insert(object.namespace.as_bytes().to_vec()),
                Scope::All => false,
            };
        }
        names.into_iter().map(Namespace::new).collect()
    }

    pub(super) fn namespace_epoch(&self, namespace: &Namespace) -> Epoch {
        let whole = Scope::Namespace(namespace.clone());
        let claims = self.claims.read();
        let of_it = |(scope, epoch)| (scope == whole || scope == Scope::All).then_some(epoch);
        claims.iter().filter_map(of_it).max().unwrap_or_default()
    }

    /// Lets go of a namespace's open files, having stored what they hold.
    pub(super) fn detach(&self, namespace: &Namespace) -> Result<()> {
        self.flush(&Scope::Namespace(namespace.clone()))?;
        for shard in &self.shards {
            let objects: Vec<_> =
                shard.read().values().filter(|object| object.id.namespace == *namespace).cloned().collect();
            for object in objects {
                self.sync_object(&object, true)?;
                let mut shard = shard.write();
                if Arc::strong_count(&object) == 2 && !object.unsynced.load(Ordering::Acquire) {
                    shard.remove(&object.id);
                }
            }
        }
        Ok(())
    }

    pub(super) fn request_bytes_max(&self) -> u64 {
        self.config.object_bytes_max.max(BUCKET_BYTES)
    }

    pub(super) fn open_count(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().len() as u64).sum()
    }

    pub(super) fn unsynced_count(&self) -> u64 {
        self.unsynced.lock().len() as u64
    }
}

/// The part of a range that lies within an object of `size` bytes: where, and how long.
fn within(offset: u64, len: u64, size: u64) -> (u64, u64) {
    let from = offset.min(size);
    (from, len.min(size - from))
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
        _ => file.read_at_once(HEADER_BYTES + from, len as usize)?.into(),
    };
    Some(Ok(ReadReply::new(data, state.size_bytes, state.version)))
}

fn read_range(file: &dyn DiskFile, from: u64, len: u64) -> Result<Segments> {
    if len == 0 {
        return Ok(Segments::new());
    }
    let bytes = file.read_at(HEADER_BYTES + from, len as usize);
    let bytes = bytes.map_err(|error| Error::from_io(&error, "reading an object"))?;
    if (bytes.len() as u64) < len {
        return Err(Error::Corrupt("an object's file is shorter than it was".into()));
    }
    Ok(payload(bytes))
}

fn ambiguous(error: &io::Error) -> Error {
    Error::OutcomeUnknown(Reason::from(error.to_string()))
}

/// Takes back what a failed write has done, where that is possible.
fn undo(file: &dyn DiskFile, state: &State, offset: u64, failed: WriteFailed) -> Error {
    let WriteFailed { written_bytes, error } = failed;
    let beyond_end = offset >= state.size_bytes;
    if written_bytes == 0 || (beyond_end && file.set_len(HEADER_BYTES + state.size_bytes).is_ok()) {
        // EIO on a write is the medium's failure, not evidence that stored data are damaged.
        return match Error::from_io(&error, "writing an object") {
            Error::Corrupt(reason) => Error::Retryable(reason),
            other => other,
        };
    }
    ambiguous(&error)
}

fn read_small(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    /// Far more than all claims together can take.
    const SMALL_BYTES_MAX: u64 = 64 << 20;
    match disk.open(path, Open::Existing) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(file) => {
            let len = file.len()?.min(SMALL_BYTES_MAX);
            file.read_at(0, len as usize).map(Some)
        }
    }
}

/// A directory without a superblock must hold nothing but what a store's first start may have left.
fn check_is_empty(disk: &dyn Disk, root: &Path) -> io::Result<Result<()>> {
    let mut foreign = None;
    disk.read_dir(root, &mut |name, _| {
        if ![&b"lock"[..], b"tmp", b"objects", b"lost+found"].contains(&name) {
            foreign = Some(String::from_utf8_lossy(name).into_owned());
        }
    })?;
    let mut has_objects = false;
    disk.read_dir(&root.join("objects"), &mut |_, _| has_objects = true)?;
    Ok(match foreign {
        Some(name) => {
            let text = format!("{} is not a store: it has no superblock, but {name:?}", root.display());
            Err(Error::Denied(text.into()))
        }
        None if has_objects => {
            Err(Error::Corrupt(format!("{} has objects but no superblock", root.display()).into()))
        }
        None => Ok(()),
    })
}
