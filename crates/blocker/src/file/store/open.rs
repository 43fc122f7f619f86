//! Opening a store, and its claims.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::admission::Claims;
use crate::file::disk::{Disk, DiskFile, Found, Kind, Open, found};
use crate::file::ranked::{Mutex, Rank, RwLock};
use crate::file::store::list::Names;
use crate::file::store::sync::UnsyncedDirs;
use crate::file::store::{BOOT_SHIFT, Counters, Shard, Store, Table, ambiguous};
use crate::file::twice::{
    CLAIMS, SUPERBLOCK, Superblock, Twice, copy_name, decode_claims, encode_claims, is_out_of_space, replace,
};
use crate::file::{Access, FileConfig};
use crate::{
    ClaimReply, ClaimRequest, Epoch, Error, Event, EventHub, InvalidateReply, InvalidateRequest, Namespace,
    Result, Scope,
};

impl Store {
    /// Opens the store in `root`, or creates it if the directory is empty and the configuration
    /// allows that. The caller holds the directory's lock.
    ///
    /// # Errors
    /// Returns `Denied` if the directory does not contain a store, `Unsupported` if another version
    /// of this program wrote it, `Corrupt`; the disk's errors.
    pub(in crate::file) fn open(root: &Path, config: FileConfig, disk: Arc<dyn Disk>) -> Result<Self> {
        let failed = |error: io::Error| Error::from_io(&error, &format!("opening {}", root.display()));
        let superblocks = Twice::read(&*disk, root, SUPERBLOCK, Superblock::decode)?;
        let claims_found = Twice::read(&*disk, root, CLAIMS, decode_claims)?;
        let before = match superblocks.in_force(root, SUPERBLOCK)? {
            Some(value) => Some(*value),
            None if superblocks.is_absent() => {
                check_is_empty(&*disk, root).map_err(failed)??;
                if config.access != Access::Create {
                    return Err(absent(root));
                }
                None
            }
            None => return Err(lost(root, SUPERBLOCK)),
        };
        let claims = match claims_found.in_force(root, CLAIMS)? {
            Some(claims) => claims.clone(),
            // The first start was interrupted before it wrote the claims.
            None if before.is_none() => Default::default(),
            None => return Err(lost(root, CLAIMS)),
        };
        // The second superblock may be older, from a time when the store was closed.
        let is_clean = before.is_some_and(|before| before.clean) && !superblocks.is_from_copy();
        let boot = before.map_or(1, |before| before.boot.saturating_add(1));
        if boot >= 1 << (64 - BOOT_SHIFT) {
            return Err(Error::Unsupported(
                "the store has been opened so often that no new versions are left".into(),
            ));
        }
        let version_floor = match before {
            Some(before) if is_clean => before.version_floor,
            Some(_) => boot << BOOT_SHIFT,
            None => 0,
        };
        let shard =
            || Shard { objects: RwLock::new(Rank::Table, Table::default()), entered: AtomicU64::new(0) };
        let store = Self {
            config,
            disk,
            root: root.to_path_buf(),
            shards: std::array::from_fn(|_| shard()),
            unsynced: Mutex::new(Rank::Table, Table::default()),
            unsynced_dirs: Mutex::new(Rank::Table, UnsyncedDirs::default()),
            turn: Mutex::new(Rank::Turn, ()),
            claims: RwLock::new(Rank::Claims, ClaimsHeld { claims, unstored: false }),
            names: Mutex::new(Rank::Table, Names::default()),
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
        if config.access == Access::Read {
            return Ok(store);
        }
        store.prepare_dirs().map_err(failed)?;
        if before.is_some() && !is_clean {
            store.store_what_is_there(&root.join("objects")).map_err(failed)?;
        }
        let damaged = superblocks.is_damaged() || claims_found.is_damaged();
        if damaged || superblocks.is_from_copy() || claims_found.is_from_copy() {
            store.counters.copies_damaged.increment();
        }
        // Both copies are made equal before anything else, after a crash or damage.
        if !claims_found.is_in_both() {
            let mut held = store.claims.write();
            match store.replace_small(CLAIMS, &encode_claims(&held.claims)) {
                // A full disk must not prevent objects from being deleted; the next claim retries.
                Err(error) if is_out_of_space(&error) && before.is_some() => held.unstored = true,
                replaced => replaced.map_err(failed)?,
            }
        }
        store.write_superblock(false).map_err(failed)?;
        Ok(store)
    }

    fn prepare_dirs(&self) -> io::Result<()> {
        for dir in ["tmp", "objects"] {
            self.disk.make_dir(&self.root.join(dir))?;
        }
        let (mut left, tmp) = (Vec::new(), self.root.join("tmp"));
        self.disk.read_dir(&tmp, &mut |name, kind| {
            if kind != Kind::Dir {
                left.push(tmp.join(std::ffi::OsStr::from_bytes(name)));
            }
        })?;
        for path in left {
            // A remaining file only costs space, because temporary names are not reused.
            let _ = self.disk.unlink(&path);
        }
        self.disk.sync_dir(&self.root)
    }

    /// Stores all existing data after a start that follows a crash. An earlier process may have
    /// changed files and directories without syncing them, and this process's syncs cover only its
    /// own changes.
    fn store_what_is_there(&self, dir: &Path) -> io::Result<()> {
        self.counters.syncs.increment();
        // The failure may concern a foreign file on the same file system.
        if self.disk.sync_all().unwrap_or(false) {
            return Ok(());
        }
        let mut left = vec![dir.to_path_buf()];
        while let Some(dir) = left.pop() {
            let mut files = Vec::new();
            self.disk.read_dir(&dir, &mut |name, kind| {
                let list = if kind == Kind::Dir { &mut left } else { &mut files };
                list.push(dir.join(std::ffi::OsStr::from_bytes(name)));
            })?;
            for path in files {
                let Found::File(file) = found(self.disk.open(&path, Open::ReadWrite))? else { continue };
                if file.sync_data().is_err() {
                    self.renew_file(&path, &*file)?;
                }
            }
            self.disk.sync_dir(&dir)?;
        }
        Ok(())
    }

    /// Rewrites a file that has lost a write-back with its currently readable content, which is the
    /// content that the store serves. A second sync of the same file would falsely report success.
    fn renew_file(&self, path: &Path, file: &dyn DiskFile) -> io::Result<()> {
        let temporary = self.temporary();
        let renewed = self.disk.open(&temporary, Open::Create)?;
        renewed.copy_from(file, 0, 0, file.len()?)?;
        renewed.sync_data()?;
        self.disk.rename(&temporary, path)
    }

    fn write_superblock(&self, clean: bool) -> io::Result<()> {
        let superblock = Superblock { clean, boot: self.boot, version_floor: self.version_floor };
        self.replace_small(SUPERBLOCK, &superblock.encode())
    }

    pub(super) fn replace_small(&self, name: &str, content: &[u8]) -> io::Result<()> {
        replace(&*self.disk, &self.root, name, content, &mut || self.temporary())
    }

    /// Stores everything, and marks the store as closed. No operation works afterwards.
    ///
    /// # Errors
    /// Returns the errors of a flush. The store is closed nevertheless, as after a crash.
    pub(in crate::file) fn close(&self) -> Result<()> {
        {
            // Every change holds the claims from its check to its end: with the exclusive lock, no
            // change is in progress, and none begins any more.
            let _claims = self.claims.write();
            if self.closed.swap(true, Ordering::SeqCst) || self.config.access == Access::Read {
                return Ok(());
            }
        }
        self.sync_many(&self.unsettled(), true)?;
        self.unsynced_dirs().iter().try_for_each(|dir| self.sync_dir(dir))?;
        self.write_superblock(true).map_err(|error| Error::from_io(&error, "closing the store"))
    }
}

/// Returns the error for a directory without a store.
pub(in crate::file) fn absent(root: &Path) -> Error {
    let dir = root.display();
    let text = format!(
        "there is no store in {dir}: `cachectl init {dir}` creates one, and so does a program whose configuration has \
         create = true; if the store is on a disk that is not mounted, mount it"
    );
    Error::Denied(text.into())
}

fn lost(root: &Path, name: &str) -> Error {
    let (dir, copy) = (root.display(), copy_name(name));
    let text = format!(
        "neither {name} nor {copy} in {dir} can be used; `cachectl fsck {dir} --repair` rebuilds them from \
         what else is there"
    );
    Error::Corrupt(text.into())
}

/// Checks that a directory without a superblock is empty, except for the remains of an interrupted
/// first start.
fn check_is_empty(disk: &dyn Disk, root: &Path) -> io::Result<Result<()>> {
    let mut foreign = None;
    let left: [&[u8]; 6] = [b"lock", b"tmp", b"objects", b"lost+found", b"claims", b"claims.copy"];
    disk.read_dir(root, &mut |name, _| {
        if !left.contains(&name) {
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
        None if has_objects => Err(lost(root, SUPERBLOCK)),
        None => Ok(()),
    })
}

/// The current claims.
pub(in crate::file) struct ClaimsHeld {
    pub(super) claims: Claims,
    /// The last attempt to store the claims failed: they are in force now, but perhaps not after a
    /// restart.
    pub(super) unstored: bool,
}

impl Store {
    pub(in crate::file) fn claim(&self, request: &ClaimRequest) -> Result<ClaimReply> {
        let mut held = self.claims.write();
        self.check_open()?;
        if request.epoch > Epoch(0) {
            self.check_changeable()?;
        }
        let mut raised = held.claims.clone();
        let is_news = raised.raise(&request.scope, request.epoch, request.writer)?;
        // A claim that is repeated because it could not be stored is acknowledged only when it is
        // stored.
        if is_news || (held.unstored && request.epoch > Epoch(0)) {
            // From here on the claim is in force, even if the disk reports an error: the file may
            // be in place.
            held.claims = raised;
            held.unstored = true;
            let stored = self.replace_small(CLAIMS, &encode_claims(&held.claims));
            stored.map_err(|error| ambiguous(&error))?;
            held.unstored = false;
            drop(held);
            self.events.publish(&Event::Fenced(request.scope.clone(), request.epoch));
        }
        Ok(ClaimReply::new(request.epoch))
    }

    pub(in crate::file) fn invalidate(&self, request: &InvalidateRequest) -> Result<InvalidateReply> {
        self.check_changeable()?;
        let mut lost = Vec::new();
        for shard in self.shards.iter().filter(|_| request.accepts_losses) {
            let objects = shard.objects.read();
            let of_it = objects.values().filter(|object| request.scope.covers(&object.id, None));
            lost.extend(of_it.filter(|object| object.lost.load(Ordering::Acquire)).cloned());
        }
        for object in lost {
            let _held = self.claims.read();
            self.check_open()?;
            let mut state = self.loaded_mut(&object)?;
            if object.lost.load(Ordering::Acquire) {
                self.renew(&object, &mut state)?;
                self.mark_unsynced(&object);
            }
        }
        self.events.publish(&Event::Changed(request.scope.clone()));
        Ok(InvalidateReply::new(0))
    }

    pub(in crate::file) fn namespace_epoch(&self, namespace: &Namespace) -> Epoch {
        self.claims.read().claims.scope_epoch(&Scope::Namespace(namespace.clone()))
    }
}
