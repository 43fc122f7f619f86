//! One object of the file backend: its state in memory, and the steps that store this state.
//!
//! The states of an object's file, and their transitions:
//!
//! ```text
//! none ──create──> blank or live, unsynced ──sync──> live, stored
//! live ──stamped delete──> tombstone, no data ──create──> live, with the tombstone's stamp
//! live ──delete──> none          live ──write_full, copy, unpack──> another file, renamed over it
//! ```
//!
//! A change holds `state` exclusively; readers share it. A sync shares it too, so readers continue
//! during a sync while writers wait; `header` serialises the syncs of one object. See `ranked` for
//! the order of all locks.
//!
//! The stamp is written and synced after the data have been synced, so a stored stamp never stands
//! for unstored data.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::disk::{Disk, DiskFile, Found, Kind, Open, found};
use super::ranked::{Mutex, Rank, RwLock};
use super::slot::{self, FORMAT, HEADER_BYTES, Slot, data_at};
use crate::admission::Head;
use crate::{Error, ObjectId, Result, Stamp, Version};

pub(super) struct Object {
    pub(super) id: ObjectId,
    pub(super) path: PathBuf,
    pub(super) state: RwLock<State>,
    /// The content of the file's header; held across a sync.
    pub(super) header: Mutex<Header>,
    /// Whether acknowledged data are not stored yet. Set while `state` is held exclusively, and
    /// cleared by a sync.
    pub(super) unsynced: AtomicBool,
    /// Whether a sync has failed: data that were unstored at that time may be lost.
    pub(super) lost: AtomicBool,
    /// Whether parts of the file may be stored, so that an unstored file must not replace it.
    pub(super) may_be_stored: AtomicBool,
    /// The time of the last look-up, as the number of evictions before it.
    pub(super) used: AtomicU64,
}

/// The header of an object's file.
#[derive(Clone, Copy)]
pub(super) struct Header {
    /// The slot written last, with its version raised to the floor of this start.
    slot: Slot,
    /// Whether a later write has failed, perhaps after one of the two copies.
    is_unsure: bool,
}

#[derive(Default)]
pub(super) struct State {
    /// Whether the object's state has been read from disk.
    pub(super) loaded: bool,
    /// The file, if there is one. It may belong to a tombstone.
    pub(super) file: Option<Arc<dyn DiskFile>>,
    pub(super) alive: bool,
    /// Whether the data begin right behind the header.
    pub(super) packed: bool,
    pub(super) size_bytes: u64,
    pub(super) version: Version,
    pub(super) stamp: Option<Stamp>,
    /// Rises with every change, so that a sync knows which changes it covers.
    pub(super) changes: u64,
    /// Whether a failed change has left bytes beyond the object's end that could not be truncated
    /// yet.
    pub(super) excess: bool,
    /// Whether a failed change has left a header that may mark a live object as deleted, or a
    /// deleted one as live.
    pub(super) header_unsure: bool,
}

impl Header {
    fn of(slot: Slot) -> Self {
        Self { slot, is_unsure: false }
    }

    /// Returns the header of a missing file.
    fn missing() -> Self {
        Self::of(Slot { size_bytes: None, ..Slot::first(Version::default(), None, true, 0) })
    }

    /// Returns whether the disk has this version and size. Slots of earlier programs state no size.
    fn shows(&self, version: Version, size_bytes: Option<u64>) -> bool {
        self.slot.version == version && (self.slot.size_bytes.is_none() || self.slot.size_bytes == size_bytes)
    }

    /// Returns whether the disk lacks a part of `next`.
    fn is_behind(&self, next: &Slot, with_version: bool) -> bool {
        let slot = &self.slot;
        self.is_unsure
            || next.stamp != slot.stamp
            || next.tombstone != slot.tombstone
            || (with_version && !self.shows(next.version, next.size_bytes))
    }
}

/// The state of an object when a sync of many objects began.
pub(super) struct Snapshot {
    file: Option<Arc<dyn DiskFile>>,
    changes: u64,
    slot_count: u64,
    next: Slot,
}

/// The maximum number of attempts to write a header that records a loss.
const MARK_ATTEMPTS: u32 = 4;

impl State {
    pub(super) fn head(&self) -> Head {
        Head { version: self.alive.then_some(self.version), stamp: self.stamp }
    }

    /// Returns the file of an existing object.
    ///
    /// # Errors
    /// Returns `Missing`.
    pub(super) fn live(&self) -> Result<&Arc<dyn DiskFile>> {
        self.file.as_ref().filter(|_| self.alive).ok_or(Error::Missing)
    }

    /// Returns the file offset of the object's byte `offset`.
    pub(super) fn at(&self, offset: u64) -> u64 {
        data_at(self.packed) + offset
    }

    /// Truncates bytes that a failed change has left beyond the object's end. Returns whether the
    /// file now ends there.
    pub(super) fn trim(&mut self) -> bool {
        let (true, Some(file)) = (self.alive, &self.file) else { return true };
        let end = self.at(self.size_bytes);
        let trimmed = file.len().and_then(|len| if len > end { file.set_len(end) } else { Ok(()) });
        self.excess = trimmed.is_err();
        !self.excess
    }

    /// Returns the slot for the current state.
    fn next_slot(&self) -> Slot {
        let slot = Slot::first(self.version, self.stamp, self.packed, self.size_bytes);
        Slot { tombstone: !self.alive, ..slot }
    }
}

/// Decodes the first bytes of an object's file.
///
/// # Errors
/// Returns `Corrupt`, or `Unsupported` if another version of this program wrote it.
pub(super) fn check_header(path: &Path, id: &ObjectId, header: &[u8]) -> Result<Option<(Slot, bool)>> {
    match Slot::find(header, slot::name_sum(id)) {
        slot::Found::Slot { slot, one_damaged } => Ok(Some((slot, one_damaged))),
        // The creation of the object was never stored.
        slot::Found::Blank => Ok(None),
        slot::Found::Damaged => {
            let text = format!(
                "both copies of the header of {} fail their checks; `cachectl fsck` sets the file aside",
                path.display()
            );
            Err(Error::Corrupt(text.into()))
        }
        slot::Found::Misplaced => {
            let text = format!(
                "the file {} belongs to another object; `cachectl fsck` sets the file aside",
                path.display()
            );
            Err(Error::Corrupt(text.into()))
        }
        slot::Found::Foreign(format) => {
            let text = format!("{} has format {format}; this program reads {FORMAT}", path.display());
            Err(Error::Unsupported(text.into()))
        }
    }
}

/// Checks the length of an object's file against its header, which is valid if it was written since
/// the last start after a crash, that is, if its version is not below `version_floor`.
///
/// # Errors
/// Returns `Corrupt`.
pub(super) fn check_len(path: &Path, slot: &Slot, len: u64, version_floor: u64) -> Result<()> {
    match size_mismatch(slot, len, version_floor) {
        None => Ok(()),
        Some(text) => {
            let path = path.display();
            Err(Error::Corrupt(format!("{path} {text}; `cachectl fsck` sets the file aside").into()))
        }
    }
}

/// Describes the mismatch between a header and a file of `len` bytes, if there is one; see
/// [`check_len`].
pub(super) fn size_mismatch(slot: &Slot, len: u64, version_floor: u64) -> Option<String> {
    let stated =
        slot.size_bytes.filter(|_| !slot.tombstone && !slot.lost && slot.version.0 >= version_floor)?;
    let size = len.checked_sub(data_at(slot.packed));
    (size != Some(stated))
        .then(|| format!("has {} bytes of data, but its header states {stated}", size.unwrap_or_default()))
}

/// Returns the error for an object whose path is not a regular file.
pub(super) fn foreign(path: &Path, kind: Kind) -> Error {
    let path = path.display();
    Error::Corrupt(format!("{path} is {kind}, not a regular file; `cachectl fsck` sets it aside").into())
}

impl Object {
    pub(super) fn new(id: ObjectId, path: PathBuf) -> Self {
        let state = RwLock::new(Rank::Object, State { packed: true, ..State::default() });
        let header = Mutex::new(Rank::Header, Header::missing());
        let (unsynced, lost, may_be_stored, used) = Default::default();
        Self { id, path, state, header, unsynced, lost, may_be_stored, used }
    }

    /// Reads the state from disk at the first use. Returns whether a copy of the header is damaged.
    /// If the file is marked as having lost data, the object is marked as well, and the caller has
    /// the file rewritten.
    ///
    /// # Errors
    /// Returns `Corrupt` or `Unsupported`, depending on the header; the disk's errors.
    pub(super) fn load(&self, state: &mut State, disk: &dyn Disk, version_floor: u64) -> Result<bool> {
        if state.loaded {
            return Ok(false);
        }
        let failed = |error: io::Error| Error::from_read(&error, &format!("opening {}", self.path.display()));
        let file = match found(disk.open(&self.path, Open::ReadWrite)).map_err(failed)? {
            Found::File(file) => file,
            // The directories of a long name may be missing too.
            Found::Absent => {
                state.loaded = true;
                return Ok(false);
            }
            Found::Foreign(kind) => return Err(foreign(&self.path, kind)),
        };
        let header = file.read_at(0, HEADER_BYTES as usize).map_err(failed)?;
        let Some((found, one_damaged)) = check_header(&self.path, &self.id, &header)? else {
            state.loaded = true;
            return Ok(false);
        };
        let len = file.len().map_err(failed)?;
        check_len(&self.path, &found, len, version_floor)?;
        let found = Slot { version: Version(found.version.0.max(version_floor)), ..found };
        *self.header.lock() = Header::of(found);
        self.may_be_stored.store(true, Ordering::Release);
        self.lost.store(found.lost, Ordering::Release);
        state.alive = !found.tombstone;
        state.packed = found.packed;
        state.size_bytes = if found.tombstone { 0 } else { len.saturating_sub(data_at(found.packed)) };
        state.version = found.version;
        state.stamp = found.stamp;
        state.file = Some(file);
        state.loaded = true;
        Ok(one_damaged)
    }

    /// Writes the next header. The caller holds `state`.
    pub(super) fn write_slot(&self, file: &dyn DiskFile, header: &mut Header, next: Slot) -> io::Result<()> {
        let lost = self.lost.load(Ordering::Acquire);
        let next = Slot { count: header.slot.count + 1, lost, ..next };
        // A count is never reused, because two different headers with the same count would count as
        // damage.
        header.slot.count = next.count;
        header.is_unsure = true;
        let encoded = next.encode(slot::name_sum(&self.id));
        file.write_all(0, &encoded.into())?;
        *header = Header::of(next);
        Ok(())
    }

    /// Restores the header that the file had before a failed change. The caller holds `state`,
    /// which records whether this must be repeated: the next change must not be lost with the
    /// header.
    pub(super) fn restore_slot(&self, state: &mut State, before: Slot) -> io::Result<()> {
        let Some(file) = &state.file else { return Ok(()) };
        let mut header = self.header.lock();
        header.slot = Slot { count: header.slot.count, ..before };
        let restored = self.write_slot(&**file, &mut header, before);
        state.header_unsure = restored.is_err();
        restored
    }

    /// Returns the content of the header.
    pub(super) fn slot(&self) -> Slot {
        self.header.lock().slot
    }

    /// Syncs the file in the middle of a change. A failure is remembered, because the kernel
    /// reports a failure only once.
    pub(super) fn sync_within(&self, file: &dyn DiskFile) -> io::Result<()> {
        file.sync_data().inspect_err(|error| drop(self.lose(file, &mut self.header.lock(), error)))
    }

    /// Forgets the header of a file that was replaced or removed.
    pub(super) fn reset_slot(&self, slot: Option<Slot>) {
        *self.header.lock() = slot.map_or_else(Header::missing, Header::of);
    }

    /// Stores acknowledged changes: first the bytes, then the stamp. With `with_version`, also
    /// stores the version, which otherwise may wait until the store is closed. The caller syncs the
    /// directory entry if necessary.
    ///
    /// # Errors
    /// Returns `WritesLost` if this or an earlier sync failed.
    pub(super) fn sync(&self, with_version: bool) -> Result<()> {
        let state = self.state.read();
        let mut header = self.header.lock();
        self.check_not_lost()?;
        let Some(file) = &state.file else {
            self.unsynced.store(false, Ordering::Release);
            return Ok(());
        };
        let next = state.next_slot();
        if self.unsynced.load(Ordering::Acquire) {
            self.may_be_stored.store(true, Ordering::Release);
            file.sync_data().map_err(|error| self.lose(&**file, &mut header, &error))?;
        }
        if header.is_behind(&next, with_version) {
            let written = self.write_slot(&**file, &mut header, next);
            written.map_err(|error| {
                Error::NotStored(format!("writing the header of {}: {error}", self.path.display()).into())
            })?;
            file.sync_data().map_err(|error| self.lose(&**file, &mut header, &error))?;
        }
        self.unsynced.store(false, Ordering::Release);
        Ok(())
    }

    /// Returns the object's state for a sync of many objects, or `None` if the object has to be
    /// synced individually.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        let state = self.state.read();
        if state.excess || self.check_not_lost().is_err() {
            return None;
        }
        self.may_be_stored.store(true, Ordering::Release);
        let slot_count = self.header.lock().slot.count;
        Some(Snapshot {
            file: state.file.clone(),
            changes: state.changes,
            slot_count,
            next: state.next_slot(),
        })
    }

    /// Writes the header of a snapshot whose data are stored, if the header on disk is older and
    /// none was written since. Returns whether the header was written; if so, `mark` has added the
    /// object to the unsynced objects.
    pub(super) fn write_slot_of(
        &self,
        snapshot: &Snapshot,
        with_version: bool,
        mark: impl FnOnce(),
    ) -> io::Result<bool> {
        let state = self.state.read();
        let mut header = self.header.lock();
        let same_file = match (&snapshot.file, &state.file) {
            (Some(then), Some(now)) => Arc::ptr_eq(then, now),
            _ => false,
        };
        let (true, Some(file)) = (same_file && header.slot.count == snapshot.slot_count, &snapshot.file)
        else {
            return Ok(false);
        };
        if !header.is_behind(&snapshot.next, with_version) {
            return Ok(false);
        }
        mark();
        self.write_slot(&**file, &mut header, snapshot.next)?;
        Ok(true)
    }

    /// Records that the snapshot is stored. The object is then stored as well, unless it has
    /// changed since.
    pub(super) fn note_stored(&self, snapshot: &Snapshot) {
        let state = self.state.read();
        if state.changes == snapshot.changes {
            self.unsynced.store(false, Ordering::Release);
        }
    }

    /// Returns whether the disk has the complete state, so that the object may be evicted from
    /// memory. Does not wait.
    pub(super) fn is_settled(&self) -> bool {
        let (Some(state), Some(header)) = (self.state.try_read(), self.header.try_lock()) else {
            return false;
        };
        let is_stored = !self.unsynced.load(Ordering::Acquire) && !self.lost.load(Ordering::Acquire);
        let shows_version = !state.alive || header.shows(state.version, Some(state.size_bytes));
        is_stored && !state.excess && !header.is_unsure && shows_version
    }

    fn lose(&self, file: &dyn DiskFile, header: &mut Header, error: &io::Error) -> Error {
        // The kernel reports a failed write-back only once: a second sync would report success. So
        // this process records the failure in memory, and marks the loss in the file's header for
        // the next process that opens the store.
        self.lost.store(true, Ordering::Release);
        let slot = header.slot;
        // There are several attempts, because a failing disk is likely to fail here too.
        let _ = (0..MARK_ATTEMPTS).any(|_| self.write_slot(file, header, slot).is_ok());
        Error::WritesLost(format!("sync of {}: {error}", self.path.display()).into())
    }

    /// # Errors
    /// Returns `WritesLost`.
    pub(super) fn check_not_lost(&self) -> Result<()> {
        if self.lost.load(Ordering::Acquire) {
            return Err(Error::WritesLost(
                format!("an earlier sync of {} failed", self.path.display()).into(),
            ));
        }
        Ok(())
    }
}
