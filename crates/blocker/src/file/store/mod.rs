//! The file backend's operations, each a function that may block. Here: what they share, opening a store
//! and closing it.
//!
//! Every change holds the claims shared and its object exclusively, from check to change; so a claim,
//! which holds the claims exclusively, returns only when no older change is still to land.
//! Lock order: claims, then objects (of two, the smaller id first), then the small tables.

mod change;
mod claims;
mod list;
mod read;
mod replace;
mod sync;
mod table;
mod write;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::admission::Claims;
use crate::capabilities::BUCKET_BYTES;
use crate::error::{Error, Reason, Result};
use crate::event::EventHub;
use crate::file::FileConfig;
use crate::file::disk::{Disk, Open};
use crate::file::object::Object;
use crate::file::records::{Superblock, decode_claims};
use crate::name::ObjectId;
use crate::order::Version;

/// Objects by name.
type Table = HashMap<ObjectId, Arc<Object>, foldhash::fast::RandomState>;

const SHARDS: usize = 16;
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
        let boot = before.map_or(1, |before| before.boot.saturating_add(1));
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

    pub(super) fn request_bytes_max(&self) -> u64 {
        self.config.object_bytes_max.max(BUCKET_BYTES)
    }
}

/// The part of a range that lies within an object of `size` bytes: where, and how long.
fn within(offset: u64, len: u64, size: u64) -> (u64, u64) {
    let from = offset.min(size);
    (from, len.min(size - from))
}

fn ambiguous(error: &io::Error) -> Error {
    Error::OutcomeUnknown(Reason::from(error.to_string()))
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
