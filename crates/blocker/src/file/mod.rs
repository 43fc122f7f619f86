//! The file backend: objects as files in a directory tree, safe against `kill -9` and power loss.
//!
//! ```text
//! DIR/superblock   format, number of starts, whether it was closed in order   DIR/superblock.copy
//! DIR/claims       the fencing epochs in force                                DIR/claims.copy
//! DIR/lock         the process that has the store open, for people; the lock is that of DIR itself
//! DIR/tmp/         files on their way; emptied at every start
//! DIR/objects/     NAMESPACE.ns/NAME.obj, see `path`
//! DIR/damaged/     what a repair has set aside, see `check`
//! ```
//!
//! An object's file is a header (stamp and version, twice, see `slot`), then its bytes, in place: a
//! write is one `pwrite`. It is *cached* while it is in the page cache and *stored* after
//! `fdatasync`, header and directory entries included. `write_full` and `copy` write a new file and
//! rename it over the old one. Many objects are stored together by `syncfs` if it can be trusted
//! (see `real`). A version consists of the number of the start and a count. A start after a crash
//! first stores all existing data and gives every object a new version, since bytes may have
//! changed without their header.
//!
//! Blocking: reads that the page cache can serve immediately (`RWF_NOWAIT`), and small writes to
//! the page cache, run on the caller's thread; everything else runs on a few threads of the store.
//! A write to the page cache can still block when the kernel throttles a process that dirties pages
//! faster than the disk writes them; an embedder that must never block sets
//! `inline_write_bytes_max` to 0.
//!
//! Damage: there are two copies of every header and of both small files, and one copy suffices. If
//! both are damaged, the store returns `Corrupt` and never falls back to older data; [`check`]
//! reports and repairs damage.
//!
//! Out of scope: checksums of the data (left to the file system and the medium), and detection of
//! files changed by others.

mod check;
pub mod directory;
mod disk;
mod object;
mod path;
mod pool;
mod ranked;
mod real;
mod slot;
mod store;
#[cfg(test)]
mod tests;
mod twice;

use std::fmt;
use std::fs::DirBuilder;
use std::path::Path;
use std::sync::Arc;

use cached_metrics::{Collect, Families};

use crate::{
    Attachment, Blocker, Call, Capabilities, ChangeReply, ChangeRequest, ClaimReply, ClaimRequest, Clock,
    Control, Error, FlushReply, FlushRequest, Info, InfoRequest, InvalidateReply, InvalidateRequest,
    ListReply, ListRequest, Namespace, OBJECT_BYTES_MAX_DEFAULT, ReadReply, ReadRequest, Reply, Result,
    Subscription, Survives, SystemClock,
};

pub use check::{CheckReport, Finding, FindingKind, check};
pub use directory::Access;

use directory::{DirectoryLock, open_regular};
use disk::Disk;
use pool::{Begin, Late, Pool};
use real::RealDisk;
use store::Store;

/// The configuration of a file backend.
#[derive(Clone, Copy, Debug)]
pub struct FileConfig {
    /// The maximum size of an object. A store that is opened with a smaller limit keeps its larger
    /// objects.
    pub object_bytes_max: u64,
    /// Whether to bypass the page cache (O_DIRECT) for ranges that are aligned to 4 096 bytes.
    pub direct: bool,
    /// The number of threads for blocking operations. With 0, all operations run on the caller's
    /// thread, which suits command-line tools.
    pub threads: usize,
    /// The maximum number of operations that wait for a thread; further operations are refused with
    /// `Retryable`.
    pub queue_max: usize,
    /// The maximum size of a write to the page cache that runs on the caller's thread. It does not
    /// apply to writes that must be stored, or with `direct`.
    pub inline_write_bytes_max: u64,
    /// The approximate number of files that are kept open.
    pub open_files_max: usize,
    /// Whether this process may change or create the store.
    pub access: Access,
}

/// The maximum number of runs of one change; each run is a system call.
const RUNS_MAX: u32 = 1024;

impl Default for FileConfig {
    fn default() -> Self {
        Self {
            object_bytes_max: OBJECT_BYTES_MAX_DEFAULT,
            direct: false,
            threads: 4,
            queue_max: 4096,
            inline_write_bytes_max: 64 * 1024,
            open_files_max: 512,
            access: Access::Write,
        }
    }
}

/// A store of objects in a directory, open in one process at a time.
pub struct FileStore {
    // The order of the fields matters: the threads end before the lock is released.
    pool: Option<Pool>,
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    _lock: Option<DirectoryLock>,
}

impl FileStore {
    /// Opens the store in `dir` with the default configuration.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open_with`].
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(dir, FileConfig::default(), Arc::new(SystemClock))
    }

    /// Opens the store as [`open`](Self::open) does, after creating the directory and the store if
    /// they are missing.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open_with`].
    pub fn open_or_create(dir: impl AsRef<Path>) -> Result<Self> {
        let config = FileConfig { access: Access::Create, ..FileConfig::default() };
        Self::open_with(dir, config, Arc::new(SystemClock))
    }

    /// Creates a store in `dir`, which must be empty; a missing directory is created with its
    /// parents.
    ///
    /// # Errors
    /// Returns `Denied` if the directory already contains a store; the errors of
    /// [`Self::open_with`].
    pub fn create(dir: impl AsRef<Path>) -> Result<()> {
        let dir = dir.as_ref();
        if ["superblock", "superblock.copy"].iter().any(|name| dir.join(name).symlink_metadata().is_ok()) {
            return Err(Error::Denied(format!("there is already a store in {}", dir.display()).into()));
        }
        let config = FileConfig { threads: 0, access: Access::Create, ..FileConfig::default() };
        Self::open_with(dir, config, Arc::new(SystemClock))?.close()
    }

    /// Opens the store in `dir`.
    ///
    /// # Errors
    /// Returns `Denied` if there is no store and [`FileConfig::access`] does not permit to create
    /// one, if another process has the store open, if it may not be read or written, or if the
    /// directory contains other files; `Unsupported` if a newer program wrote the store, or the
    /// file system has no O_DIRECT; `Corrupt`; the disk's errors.
    pub fn open_with(dir: impl AsRef<Path>, config: FileConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let dir = dir.as_ref();
        let failed = |error: &std::io::Error| Error::from_io(error, &format!("opening {}", dir.display()));
        if config.access == Access::Create {
            DirBuilder::new().recursive(true).create(dir).map_err(|error| match failed(&error) {
                full @ Error::OutOfSpace(_) => full,
                _ => Error::Denied(format!("{} cannot be created: {error}", dir.display()).into()),
            })?;
        } else if std::fs::metadata(dir).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return Err(store::open::absent(dir));
        }
        let lock = DirectoryLock::take(dir, config.access)?;
        let config = FileConfig {
            inline_write_bytes_max: if config.direct { 0 } else { config.inline_write_bytes_max },
            ..config
        };
        let disk =
            Arc::new(RealDisk::new(config.direct, dir, config.access).map_err(|error| failed(&error))?);
        let opened = Self::over(dir, config, clock, disk, Some(lock))?;
        if config.access != Access::Read {
            DirectoryLock::name_holder(dir);
        }
        if config.direct {
            check_direct(dir)?;
        }
        Ok(opened)
    }

    fn over(
        dir: &Path,
        config: FileConfig,
        clock: Arc<dyn Clock>,
        disk: Arc<dyn Disk>,
        lock: Option<DirectoryLock>,
    ) -> Result<Self> {
        let store = Arc::new(Store::open(dir, config, disk)?);
        let pool = match config.threads {
            0 => None,
            threads => Some(
                Pool::new(threads, config.queue_max).map_err(|e| Error::from_io(&e, "starting threads"))?,
            ),
        };
        Ok(Self { pool, store, clock, _lock: lock })
    }

    /// Stores everything and closes the store, so that versions stay as they are. Every later
    /// operation is `Denied`. Blocks. Dropping a store without closing it has the same effect as a
    /// crash: this is safe, but the kernel decides when *cached* changes are stored, and every
    /// object gets a new version.
    ///
    /// # Errors
    /// Returns the errors of a flush. The store is closed nevertheless.
    pub fn close(&self) -> Result<()> {
        self.store.close()
    }

    /// Attempts an operation on this thread, unless the deadline has passed.
    fn at_once<T>(&self, call: &Call, attempt: impl FnOnce(&Store) -> Option<Result<T>>) -> Option<Reply<T>> {
        match call.check(&*self.clock) {
            Ok(()) => attempt(&self.store).map(Reply::Ready),
            Err(error) => Some(Reply::err(error)),
        }
    }

    /// Runs an operation on this thread, or on a thread of the pool, where it begins at once.
    fn run<T: Send + 'static>(
        &self,
        call: Call,
        late: Late,
        act: impl FnOnce(&Store) -> Result<T> + Send + 'static,
    ) -> Reply<T> {
        self.run_with(call, late, move |store, begin| {
            begin()?;
            act(store)
        })
    }

    /// Runs an operation as [`Self::run`] does, but `act` tells when it begins.
    fn run_with<T: Send + 'static>(
        &self,
        call: Call,
        late: Late,
        act: impl FnOnce(&Store, Begin<'_>) -> Result<T> + Send + 'static,
    ) -> Reply<T> {
        if let Err(error) = call.check(&*self.clock) {
            return Reply::err(error);
        }
        let Some(pool) = &self.pool else { return Reply::Ready(act(&self.store, &|| Ok(()))) };
        let store = Arc::clone(&self.store);
        let deadline = call.deadline.map(|deadline| (deadline, &*self.clock));
        pool.submit(deadline, late, move |begin| act(&store, begin))
    }
}

fn check_direct(dir: &Path) -> Result<()> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT;
    let opened = open_regular(&dir.join("superblock"), flags);
    opened.map(drop).map_err(|error| {
        Error::Unsupported(
            format!("the file system of {} does not support O_DIRECT: {error}", dir.display()).into(),
        )
    })
}

const LATE_READ: Late = || Error::DeadlinePassed;
const LATE_CHANGE: Late = || Error::OutcomeUnknown("the deadline passed during the operation".into());
const LATE_FLUSH: Late = || Error::NotStored("the deadline passed".into());

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore").finish_non_exhaustive()
    }
}

impl Blocker for FileStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full(self.store.config.object_bytes_max);
        capabilities.runs_max = RUNS_MAX;
        capabilities.crash_atomic_bytes = 512;
        capabilities.survives = Survives::PowerLoss;
        capabilities
    }

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        self.at_once(&request.call, |store| store.read_at_once(&request))
            .unwrap_or_else(|| self.run(request.call, LATE_READ, move |store| store.read(&request)))
    }

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        if let Err(error) = request.change.check_runs(|| self.capabilities()) {
            return Reply::err(error);
        }
        self.at_once(&request.call, |store| store.write_at_once(&request)).unwrap_or_else(|| {
            self.run_with(request.call, LATE_CHANGE, move |store, begin| store.change(&request, begin))
        })
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        self.at_once(&request.call, |store| store.info_at_once(&request.object))
            .unwrap_or_else(|| self.run(request.call, LATE_READ, move |store| store.info(&request.object)))
    }

    fn list(&self, request: ListRequest) -> Reply<ListReply> {
        let entries_max = request.entries_max.clamp(1, self.capabilities().list_entries_max) as usize;
        self.run(request.call, LATE_READ, move |store| store.list(&request, entries_max))
    }

    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        self.run(request.call, LATE_FLUSH, move |store| store.flush(&request.scope))
    }

    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        self.run(request.call, LATE_CHANGE, move |store| store.claim(&request))
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        self.run(request.call, LATE_READ, move |store| store.invalidate(&request))
    }

    fn subscribe(&self) -> Subscription {
        self.store.events.subscribe()
    }

    fn control(&self) -> &dyn Control {
        self
    }
}

impl Collect for FileStore {
    fn collect(&self, into: &mut Families) {
        self.store.counters.collect(into);
        into.gauge("file_objects_open", "Objects whose file is open.", self.store.open_count());
        let help = "Objects with changes not synced yet.";
        into.gauge("file_objects_unsynced", help, self.store.unsynced_count());
    }
}

impl Control for FileStore {
    fn attach(&self, namespace: Namespace) -> Reply<Attachment> {
        Reply::ok(Attachment::new(self.capabilities(), self.store.namespace_epoch(&namespace)))
    }

    fn detach(&self, namespace: Namespace) -> Reply<()> {
        self.run(Call::default(), LATE_FLUSH, move |store| store.detach(&namespace))
    }

    fn metrics(&self) -> Reply<Families> {
        Reply::ok(self.families())
    }

    fn namespaces(&self) -> Reply<Vec<Namespace>> {
        self.run(Call::default(), LATE_READ, Store::namespaces)
    }
}
