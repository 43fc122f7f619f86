//! One object of the file backend: what is known of it in memory, and how that gets to disk.
//!
//! States of an object's file, and what moves between them:
//!
//! ```text
//! none ──create──> blank slots or live slot, unsynced ──sync──> live slot
//! live ──stamped delete──> tombstone slot, no data ──create──> live slot with the tombstone's stamp
//! live ──delete──> none          live ──write_full, copy──> another file, renamed over it
//! ```
//!
//! Locks, in this order: `state`, then `slot`. A change holds `state` exclusively; readers share it.
//! A sync shares it too, so readers go on while the disk works and writers wait; `slot` makes syncs of
//! one object follow each other.
//!
//! The stamp is written after the data have been synced, and synced itself: a stored stamp never stands
//! for data that are not stored.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::disk::{Disk, DiskFile, Open};
use super::slot::{Found, HEADER_BYTES, Slot};
use crate::admission::Head;
use crate::error::{Error, Result};
use crate::name::ObjectId;
use crate::order::{Stamp, Version};

pub(super) struct Object {
    pub(super) id: ObjectId,
    pub(super) path: PathBuf,
    pub(super) state: RwLock<State>,
    /// What the file's header says; held across a sync.
    pub(super) slot: Mutex<Slot>,
    /// Something acknowledged is not stored yet. Set under `state` held exclusively, cleared by a sync.
    pub(super) unsynced: AtomicBool,
    /// A sync has failed: what was not stored then may be gone.
    pub(super) lost: AtomicBool,
    /// When it was last looked up, as the number of evictions before.
    pub(super) used: AtomicU64,
}

pub(super) struct State {
    /// Whether the disk has been asked.
    pub(super) loaded: bool,
    /// There if there is a file, be it of a tombstone.
    pub(super) file: Option<Arc<dyn DiskFile>>,
    pub(super) alive: bool,
    pub(super) size_bytes: u64,
    pub(super) version: Version,
    pub(super) stamp: Option<Stamp>,
}

/// The header of a file that is not there.
const NO_SLOT: Slot = Slot { count: 0, version: Version(0), stamp: None, tombstone: false };

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
}

impl Object {
    pub(super) fn new(id: ObjectId, path: PathBuf) -> Self {
        let state = State {
            loaded: false,
            file: None,
            alive: false,
            size_bytes: 0,
            version: Version(0),
            stamp: None,
        };
        Self {
            id,
            path,
            state: RwLock::new(state),
            slot: Mutex::new(NO_SLOT),
            unsynced: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            used: AtomicU64::new(0),
        }
    }

    /// Asks the disk, the first time.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported` if the header says so; what the disk says.
    pub(super) fn load(&self, state: &mut State, disk: &dyn Disk, version_floor: u64) -> Result<()> {
        if state.loaded {
            return Ok(());
        }
        let failed = |error: io::Error| Error::from_io(&error, "opening an object");
        let file = match disk.open(&self.path, Open::Existing) {
            // A long name's directories may be missing as well.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                state.loaded = true;
                return Ok(());
            }
            file => file.map_err(failed)?,
        };
        let header = file.read_at(0, HEADER_BYTES as usize).map_err(failed)?;
        let found = match Slot::find(&header) {
            Found::Slot(slot) => slot,
            // A creation that was never stored. The next creation starts it afresh.
            Found::Blank => {
                state.loaded = true;
                return Ok(());
            }
            Found::Damaged => {
                return Err(Error::Corrupt(
                    format!("the header of {} fails its checks", self.path.display()).into(),
                ));
            }
            Found::Newer(format) => {
                let text = format!("{} has format {format}, newer than this program", self.path.display());
                return Err(Error::Unsupported(text.into()));
            }
        };
        let len = file.len().map_err(failed)?;
        *self.slot.lock() = found;
        state.alive = !found.tombstone;
        state.size_bytes = if found.tombstone { 0 } else { len.saturating_sub(HEADER_BYTES) };
        state.version = Version(found.version.0.max(version_floor));
        state.stamp = found.stamp;
        state.file = Some(file);
        state.loaded = true;
        Ok(())
    }

    /// Writes the next header. The caller holds `state`.
    pub(super) fn write_slot(&self, file: &dyn DiskFile, slot: &mut Slot, next: Slot) -> io::Result<()> {
        let next = Slot { count: slot.count + 1, ..next };
        file.write_at(next.offset(), &next.encode().into()).map_err(|failed| failed.error)?;
        *slot = next;
        Ok(())
    }

    /// Forgets the header of a file that has been replaced or removed.
    pub(super) fn reset_slot(&self, slot: Option<Slot>) {
        *self.slot.lock() = slot.unwrap_or(NO_SLOT);
    }

    /// Makes what is acknowledged stored: bytes, then stamp. With `with_version`, the version as well,
    /// which otherwise may stay behind until the store is closed. Whether the directory entry needs a
    /// sync is the caller's business.
    ///
    /// # Errors
    /// `WritesLost` if this or an earlier sync failed.
    pub(super) fn sync(&self, with_version: bool) -> Result<()> {
        let state = self.state.read();
        let mut slot = self.slot.lock();
        self.check_not_lost()?;
        let Some(file) = &state.file else {
            self.unsynced.store(false, Ordering::Release);
            return Ok(());
        };
        let unsynced = self.unsynced.load(Ordering::Acquire);
        let next = Slot { count: 0, version: state.version, stamp: state.stamp, tombstone: !state.alive };
        let header_behind = next.stamp != slot.stamp || next.tombstone != slot.tombstone;
        let version_behind = with_version && next.version != slot.version;
        let synced = (|| {
            if unsynced {
                file.sync_data()?;
            }
            if header_behind || version_behind {
                self.write_slot(&**file, &mut slot, next)?;
                file.sync_data()?;
            }
            Ok(())
        })();
        match synced {
            Ok(()) => {
                self.unsynced.store(false, Ordering::Release);
                Ok(())
            }
            Err(error) => Err(self.lose(&error)),
        }
    }

    fn lose(&self, error: &io::Error) -> Error {
        // The kernel reports a failed write-back once and then forgets it: a second sync would claim
        // success. So the object remembers.
        self.lost.store(true, Ordering::Release);
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
