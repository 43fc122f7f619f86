//! One object of the file backend: what is known of it in memory, and how that gets to disk.
//!
//! States of an object's file, and what moves between them:
//!
//! ```text
//! none ──create──> blank or live, unsynced ──sync──> live, stored
//! live ──stamped delete──> tombstone, no data ──create──> live, with the tombstone's stamp
//! live ──delete──> none          live ──write_full, copy, unpack──> another file, renamed over it
//! ```
//!
//! A change holds `state` exclusively; readers share it. A sync shares it too, so readers go on while the
//! disk works and writers wait; `header` makes syncs of one object follow each other. See `ranked` for the
//! order of all locks.
//!
//! The stamp is written after the data have been synced, and synced itself: a stored stamp never stands
//! for data that are not stored.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::disk::{Disk, DiskFile, Found, Kind, Open, found};
use super::ranked::{Mutex, Rank, RwLock};
use super::slot::{self, FORMAT, HEADER_BYTES, Slot, data_at};
use crate::admission::Head;
use crate::error::{Error, Result};
use crate::name::ObjectId;
use crate::order::{Stamp, Version};

pub(super) struct Object {
    pub(super) id: ObjectId,
    pub(super) path: PathBuf,
    pub(super) state: RwLock<State>,
    /// The content of the file's header; held across a sync.
    pub(super) header: Mutex<Header>,
    /// Something acknowledged is not stored yet. Set under `state` held exclusively, cleared by a sync.
    pub(super) unsynced: AtomicBool,
    /// A sync has failed: what was not stored then may be gone.
    pub(super) lost: AtomicBool,
    /// Something of the file may be stored: it must not be replaced by what is not.
    pub(super) may_be_stored: AtomicBool,
    /// When it was last looked up, as the number of evictions before.
    pub(super) used: AtomicU64,
}

/// The header of an object's file.
#[derive(Clone, Copy)]
pub(super) struct Header {
    /// What was written last, its version raised to the floor of this start.
    slot: Slot,
    /// A write has failed since, perhaps after one of the two copies.
    is_unsure: bool,
}

pub(super) struct State {
    /// Whether the disk has been asked.
    pub(super) loaded: bool,
    /// There if there is a file, be it of a tombstone.
    pub(super) file: Option<Arc<dyn DiskFile>>,
    pub(super) alive: bool,
    /// The data begin right behind the header.
    pub(super) packed: bool,
    pub(super) size_bytes: u64,
    pub(super) version: Version,
    pub(super) stamp: Option<Stamp>,
    /// Rises with every change, so that a sync knows what it covers.
    pub(super) changes: u64,
    /// A failed change has left bytes behind the object's end that could not be cut off yet.
    pub(super) excess: bool,
    /// A failed change has left a header that may mark a living object as deleted, or a deleted one as
    /// living.
    pub(super) header_unsure: bool,
}

impl Header {
    fn of(slot: Slot) -> Self {
        Self { slot, is_unsure: false }
    }

    /// Whether the disk has this version and size. A slot of an earlier program states no size.
    fn shows(&self, version: Version, size_bytes: Option<u64>) -> bool {
        self.slot.version == version && (self.slot.size_bytes.is_none() || self.slot.size_bytes == size_bytes)
    }

    /// Whether the disk lacks something of `next`.
    fn is_behind(&self, next: &Slot, with_version: bool) -> bool {
        let slot = &self.slot;
        self.is_unsure
            || next.stamp != slot.stamp
            || next.tombstone != slot.tombstone
            || (with_version && !self.shows(next.version, next.size_bytes))
    }
}

/// What an object was when a sync of many began.
pub(super) struct Snapshot {
    file: Option<Arc<dyn DiskFile>>,
    changes: u64,
    slot_count: u64,
    next: Slot,
}

/// How often the writing of a header that records a loss is tried.
const MARK_ATTEMPTS: u32 = 4;

/// The header of a file that is not there.
const NO_SLOT: Slot = Slot {
    count: 0,
    version: Version(0),
    stamp: None,
    tombstone: false,
    packed: true,
    lost: false,
    size_bytes: None,
};

impl State {
    pub(super) fn head(&self) -> Head {
        Head { version: self.alive.then_some(self.version), stamp: self.stamp }
    }

    /// The file of an object that is there.
    ///
    /// # Errors
    /// `Missing`.
    pub(super) fn live(&self) -> Result<&Arc<dyn DiskFile>> {
        self.file.as_ref().filter(|_| self.alive).ok_or(Error::Missing)
    }

    /// Where the object's byte `offset` is in its file.
    pub(super) fn at(&self, offset: u64) -> u64 {
        data_at(self.packed) + offset
    }

    /// Cuts off what a failed change has left behind the end. Returns whether nothing is left there.
    pub(super) fn trim(&mut self) -> bool {
        let (true, Some(file)) = (self.alive, &self.file) else { return true };
        let end = self.at(self.size_bytes);
        let trimmed = file.len().and_then(|len| if len > end { file.set_len(end) } else { Ok(()) });
        self.excess = trimmed.is_err();
        !self.excess
    }

    /// Returns the slot with the known content.
    fn next_slot(&self) -> Slot {
        Slot {
            count: 0,
            version: self.version,
            stamp: self.stamp,
            tombstone: !self.alive,
            packed: self.packed,
            lost: false,
            size_bytes: Some(self.size_bytes),
        }
    }
}

/// The content of the first bytes of an object's file.
///
/// # Errors
/// `Corrupt`, or `Unsupported` if another version of this program wrote it.
pub(super) fn check_header(path: &Path, id: &ObjectId, header: &[u8]) -> Result<Option<(Slot, bool)>> {
    match Slot::find(header, slot::name_sum(id)) {
        slot::Found::Slot { slot, one_damaged } => Ok(Some((slot, one_damaged))),
        // A creation that was never stored. The next creation starts it afresh.
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
                "the file {} was made for another object; `cachectl fsck` sets it aside",
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

/// Checks the length of an object's file, if its header states what it should be: it does if it was written since
/// the last start that followed a crash, that is, if its version is not below `version_floor`.
///
/// # Errors
/// `Corrupt`.
pub(super) fn check_len(path: &Path, slot: &Slot, len: u64, version_floor: u64) -> Result<()> {
    match size_mismatch(slot, len, version_floor) {
        None => Ok(()),
        Some(text) => {
            let path = path.display();
            Err(Error::Corrupt(format!("{path} {text}; `cachectl fsck` sets the file aside").into()))
        }
    }
}

/// Returns what is wrong with a file of `len` bytes, see [`check_len`].
pub(super) fn size_mismatch(slot: &Slot, len: u64, version_floor: u64) -> Option<String> {
    let stated =
        slot.size_bytes.filter(|_| !slot.tombstone && !slot.lost && slot.version.0 >= version_floor)?;
    let size = len.checked_sub(data_at(slot.packed));
    (size != Some(stated))
        .then(|| format!("has {} bytes of data where its header states {stated}", size.unwrap_or_default()))
}

/// The error for an object in whose place something else lies.
pub(super) fn foreign(path: &Path, kind: Kind) -> Error {
    let path = path.display();
    Error::Corrupt(format!("{path} is {kind}, not a regular file; `cachectl fsck` sets it aside").into())
}

impl Object {
    pub(super) fn new(id: ObjectId, path: PathBuf) -> Self {
        let state = State {
            loaded: false,
            file: None,
            alive: false,
            packed: true,
            size_bytes: 0,
            version: Version(0),
            stamp: None,
            changes: 0,
            excess: false,
            header_unsure: false,
        };
        Self {
            id,
            path,
            state: RwLock::new(Rank::Object, state),
            header: Mutex::new(Rank::Header, Header::of(NO_SLOT)),
            unsynced: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            may_be_stored: AtomicBool::new(false),
            used: AtomicU64::new(0),
        }
    }

    /// Asks the disk, the first time. Returns whether a copy of the header turned out to be damaged. If the
    /// file has lost something, the object has too, and the caller has the file written anew.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported`, by the header; the disk's errors.
    pub(super) fn load(&self, state: &mut State, disk: &dyn Disk, version_floor: u64) -> Result<bool> {
        if state.loaded {
            return Ok(false);
        }
        let failed = |error: io::Error| Error::from_read(&error, &format!("opening {}", self.path.display()));
        let file = match found(disk.open(&self.path, Open::ReadWrite)).map_err(failed)? {
            Found::File(file) => file,
            // A long name's directories may be missing as well.
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
        // No count is used twice: two headers of one count would be damage.
        header.slot.count = next.count;
        header.is_unsure = true;
        let encoded = next.encode(slot::name_sum(&self.id));
        file.write_at(0, &encoded.into()).map_err(|failed| failed.error)?;
        *header = Header::of(next);
        Ok(())
    }

    /// Writes the header again as it was before a change that failed. The caller holds `state`, to which it
    /// is noted whether that has to be done once more: what is changed next must not be lost with the header.
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

    /// Syncs the file in the middle of a change. A failure is remembered, for the kernel forgets it.
    pub(super) fn sync_within(&self, file: &dyn DiskFile) -> io::Result<()> {
        file.sync_data().inspect_err(|error| drop(self.lose(file, &mut self.header.lock(), error)))
    }

    /// Forgets the header of a file that has been replaced or removed.
    pub(super) fn reset_slot(&self, slot: Option<Slot>) {
        *self.header.lock() = Header::of(slot.unwrap_or(NO_SLOT));
    }

    /// Makes what is acknowledged stored: bytes, then stamp. With `with_version`, the version as well,
    /// which otherwise may stay behind until the store is closed. Whether the directory entry needs a
    /// sync is the caller's business.
    ///
    /// # Errors
    /// `WritesLost` if this or an earlier sync failed.
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

    /// What the object is now, for a sync of many; nothing if it has to be synced by itself.
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

    /// Writes the header of a snapshot whose data are stored by now, if the one on disk is behind and none
    /// was written since. Returns whether it did; then `mark` has entered the object among the unsynced.
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

    /// Notes that the snapshot is stored: unless it was changed since, the object is.
    pub(super) fn note_stored(&self, snapshot: &Snapshot) {
        let state = self.state.read();
        if state.changes == snapshot.changes {
            self.unsynced.store(false, Ordering::Release);
        }
    }

    /// Whether the disk has all that is known, so that the object may be forgotten. Does not wait.
    pub(super) fn is_settled(&self) -> bool {
        let (Some(state), Some(header)) = (self.state.try_read(), self.header.try_lock()) else {
            return false;
        };
        let is_stored = !self.unsynced.load(Ordering::Acquire) && !self.lost.load(Ordering::Acquire);
        let shows_version = !state.alive || header.shows(state.version, Some(state.size_bytes));
        is_stored && !state.excess && !header.is_unsure && shows_version
    }

    fn lose(&self, file: &dyn DiskFile, header: &mut Header, error: &io::Error) -> Error {
        // The kernel reports a failed write-back once and then forgets it: a second sync would claim
        // success. So the object remembers, and its header does for the next process.
        self.lost.store(true, Ordering::Release);
        let slot = header.slot;
        // More than once, for a disk that fails is likely to fail here too.
        let _ = (0..MARK_ATTEMPTS).any(|_| self.write_slot(file, header, slot).is_ok());
        Error::WritesLost(format!("sync of {}: {error}", self.path.display()).into())
    }

    /// # Errors
    /// `WritesLost`.
    pub(super) fn check_not_lost(&self) -> Result<()> {
        if self.lost.load(Ordering::Acquire) {
            return Err(Error::WritesLost(
                format!("an earlier sync of {} failed", self.path.display()).into(),
            ));
        }
        Ok(())
    }
}
