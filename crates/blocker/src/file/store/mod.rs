//! The operations of the file backend, each a function that may block. This file has their shared
//! state.
//!
//! Every change holds the claims shared and its object exclusively, from its check to its end. A
//! claim holds the claims exclusively, so when it returns no older change is in progress. The order
//! of all locks is in `ranked`.

mod change;
mod list;
pub(super) mod open;
mod sync;
mod table;
mod write;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::file::disk::Disk;
use crate::file::object::Object;
use crate::file::ranked::{Mutex, RwLock};
use crate::file::{Access, FileConfig};
use crate::{BUCKET_BYTES, Error, EventHub, ObjectId, Reason, Result, Version};
use cached_metrics::{Counter, counters};

use list::Names;
use open::ClaimsHeld;
use sync::UnsyncedDirs;

/// Objects by name.
type Table = HashMap<ObjectId, Arc<Object>, foldhash::fast::RandomState>;

const SHARDS: usize = 16;
/// The versions of one start ("boot"): the number of the start in the upper bits, a count in the
/// lower bits.
pub(in crate::file) const BOOT_SHIFT: u32 = 40;

pub(super) struct Store {
    pub(super) config: FileConfig,
    disk: Arc<dyn Disk>,
    root: PathBuf,
    shards: [Shard; SHARDS],
    /// Objects with unstored changes, added under the object's lock.
    unsynced: Mutex<Table>,
    /// Directories with unstored entries.
    pub(super) unsynced_dirs: Mutex<UnsyncedDirs>,
    /// The right to store many objects together.
    pub(super) turn: Mutex<()>,
    pub(super) claims: RwLock<ClaimsHeld>,
    /// Names found by listings.
    names: Mutex<Names>,
    boot: u64,
    version_floor: u64,
    version_count: AtomicU64,
    temporary_count: AtomicU64,
    /// The number of evictions, by which files are closed to limit open files. This is the time
    /// scale of last uses.
    pub(super) evictions: AtomicU64,
    closed: AtomicBool,
    full: AtomicBool,
    pub(super) events: EventHub,
    pub(super) counters: Counters,
}

/// A part of the objects in memory.
struct Shard {
    objects: RwLock<Table>,
    /// The number of objects ever added.
    entered: AtomicU64,
}

counters! {
    /// The store's counters.
    #[derive(Default)]
    pub(super) struct Counters {
        /// Reads done by the file backend.
        pub(super) reads: Counter => "file_reads_total",
        /// Changes made by the file backend.
        pub(super) changes: Counter => "file_changes_total",
        /// Files and directories synced.
        pub(super) syncs: Counter => "file_syncs_total",
        /// Damaged header copies that were restored from the other copy.
        pub(super) copies_damaged: Counter => "file_copies_damaged_total",
    }
}

impl Store {
    fn temporary(&self) -> PathBuf {
        let number = self.temporary_count.fetch_add(1, Ordering::Relaxed);
        // The name differs from those of earlier starts, whose files may remain.
        self.root.join("tmp").join(format!("{}-{number}", self.boot))
    }

    fn next_version(&self) -> Version {
        Version((self.boot << BOOT_SHIFT) + 1 + self.version_count.fetch_add(1, Ordering::Relaxed))
    }

    /// Checks that the store has not been closed. A change makes this check while it holds the
    /// claims, and closing takes the claims exclusively, so no change is in progress afterwards.
    pub(super) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::Denied("the store has been closed".into()));
        }
        Ok(())
    }

    /// Checks before a change, as `check_open` does, that the store can be changed.
    pub(super) fn check_changeable(&self) -> Result<()> {
        if self.config.access == Access::Read {
            return Err(Error::Denied("the store was opened for reading".into()));
        }
        self.check_open()
    }

    pub(super) fn request_bytes_max(&self) -> u64 {
        self.config.object_bytes_max.max(BUCKET_BYTES)
    }
}

/// Returns offset and length of the part of a range within an object of `size` bytes.
fn within(offset: u64, len: u64, size: u64) -> (u64, u64) {
    let from = offset.min(size);
    (from, len.min(size - from))
}

fn ambiguous(error: &io::Error) -> Error {
    Error::OutcomeUnknown(Reason::from(error.to_string()))
}
