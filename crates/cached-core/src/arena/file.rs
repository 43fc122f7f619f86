//! An arena in a file: the memory outlives the process.
//!
//! ```text
//!  0            4096                    arena at                             file's length
//! ┌────────────┬───────────────────────┬────────────────────────────────────┐
//! │ superblock │ table of regions,     │ regions                            │
//! │            │ 64 bytes each         │                                    │
//! └────────────┴───────────────────────┴────────────────────────────────────┘
//! ```
//! The whole file is mapped, and shared. If a process is killed, everything that its threads had
//! stored is in the file. The bytes reach a disk in any order, so after a reboot of the system the
//! content is valid only if the process had ended cleanly: then everything was written, and
//! checksums show whether it is still intact. After any other end, the checksum of each entry shows
//! whether it is as it was stored.

use super::superblock::{MemoryState, SUPERBLOCK_BYTES, VERSION, VERSION_WITHOUT_CHECKSUMS};
use super::{Identity, Memory, Region, Superblock};
use crate::clock::FIRST_SECOND;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// From this size on, the regions start at a multiple of [`HUGE_BYTES`].
const LARGE_ARENA_BYTES: u64 = 64 << 20;
/// The size of a huge page.
const HUGE_BYTES: u64 = 2 << 20;

/// The reason why a file cannot hold an arena, in one line.
#[derive(Debug, thiserror::Error)]
pub enum ArenaFileError {
    /// The file cannot be opened, extended or mapped.
    #[error("memory file {path}: {what}: {cause}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        cause: io::Error,
    },
    /// The path is a directory, a device or a socket.
    #[error("memory file {path} is not a regular file; name one on a tmpfs or a disk", path = .0.display())]
    NotAFile(PathBuf),
    /// The file does not contain an arena.
    #[error(
        "memory file {path} holds something else than memory of cached, which would be lost; name another file, or \
         remove this one",
        path = .0.display()
    )]
    Foreign(PathBuf),
    /// Another process uses the file.
    #[error("memory file {path} is in use by another process; give each process a file of its own", path = .0.display())]
    InUse(PathBuf),
    /// The file belongs to another user.
    #[error(
        "memory file {path} belongs to user {owner}, and this process is user {user}; name one of its own, or remove it",
        path = .path.display()
    )]
    NotOwned {
        /// The file.
        path: PathBuf,
        /// The user ID of the file's owner.
        owner: u32,
        /// The user id of this process.
        user: u32,
    },
    /// The content of a file that another process hands over cannot be used.
    #[error("memory file {path} cannot be taken over from the running process: {reason}; restart instead", path = .path.display())]
    NotHandedOver {
        /// The file.
        path: PathBuf,
        /// The reason why not.
        reason: String,
    },
}

/// The reason why a store starts empty although it has a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Cold {
    /// The file is new or empty.
    #[error("the file is new")]
    New,
    /// The file does not contain an arena.
    #[error("the file does not contain memory of cached")]
    Foreign,
    /// The file was created by a program with another layout.
    #[error(
        "the file has layout version {0}, this program reads versions {VERSION_WITHOUT_CHECKSUMS} to {VERSION}"
    )]
    Version(u32),
    /// The superblock or the table of regions does not match its checksum.
    #[error("the file does not match its checksum")]
    Damaged,
    /// The file is shorter than its arena.
    #[error("the file is shorter than it was")]
    Truncated,
    /// The settings require another arena.
    #[error("the settings have changed: {0}")]
    Differs(String),
    /// The system has rebooted since the earlier process, which had not ended cleanly.
    #[error("the system has rebooted since, and the previous process had not ended cleanly")]
    UncleanBoot,
    /// The process that created the file ended before it was ready.
    #[error("the process that created the file did not complete it")]
    Unfinished,
}

/// A locked file for the memory of a [`Kv`](crate::kv::Kv), which may contain the items of an
/// earlier process.
///
/// ```
/// use cached_core::arena::ArenaFile;
/// use cached_core::clock::SystemClock;
/// use cached_core::kv::{Kv, KvConfig};
/// use std::sync::Arc;
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("cache");
/// for run in 0..2 {
///     let file = ArenaFile::open(&path)?;
///     let clock = Arc::new(SystemClock::starting_at(file.resume_secs()));
///     let kv = Kv::new(KvConfig { arena_bytes: 8 << 20, clock, file: Some(file), ..KvConfig::default() })?;
///     if run == 0 {
///         kv.set(b"greeting", b"hello")?;
///     }
///     assert_eq!(kv.get(b"greeting").as_deref(), Some(&b"hello"[..]));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ArenaFile {
    path: PathBuf,
    file: File,
    earlier: Result<Identity, Cold>,
    resume_secs: u32,
    progress: Arc<RestartProgress>,
    /// Whether another process has handed the file over, and may still resume using it.
    is_handed_over: bool,
}

/// The progress of a store in taking over the contents of its file.
#[derive(Debug, Default)]
pub struct RestartProgress {
    /// The regions read so far.
    pub regions: AtomicU32,
    /// The regions to read; 0 before the start.
    pub regions_max: AtomicU32,
    /// The items found so far.
    pub items: AtomicU64,
}

/// A file and the parts of its memory.
pub(crate) struct Opened {
    pub(crate) superblock: Superblock,
    pub(crate) table: Memory,
    pub(crate) arena: Memory,
    pub(crate) file: MappedFile,
}

/// A file whose memory is mapped.
pub(crate) struct MappedFile {
    /// The identity of the memory, including the seeds of the file.
    pub(crate) identity: Identity,
    /// The reason why there is nothing to take over; `None` if there are contents to take over.
    pub(crate) cold: Option<Cold>,
    /// Whether the earlier process ended cleanly, so that the checksums of regions are valid.
    pub(crate) was_clean: bool,
    /// Whether another process has handed the file over, and may still resume using it.
    pub(crate) is_handed_over: bool,
    pub(crate) held: HeldFile,
    pub(crate) progress: Arc<RestartProgress>,
}

/// A mapped and locked file. Dropping it releases the lock.
pub(crate) struct HeldFile {
    pub(crate) path: PathBuf,
    map: Arc<MmapRaw>,
    /// The open file. Every copy of its descriptor keeps the lock.
    pub(crate) file: File,
}

/// Returns a function that turns the system's error in the operation `what` on a file into an
/// [`ArenaFileError`].
fn failed(path: &Path, what: &'static str) -> impl Fn(io::Error) -> ArenaFileError + use<> {
    let path = path.to_owned();
    move |cause| ArenaFileError::Io { path: path.clone(), what, cause }
}

impl ArenaFile {
    /// Checks that [`open`](Self::open) would not refuse the file at a path, without opening it for
    /// writing or locking it.
    ///
    /// # Errors
    /// Returns [`ArenaFileError`], except for a file in use or of another user.
    pub fn check(path: impl AsRef<Path>) -> Result<(), ArenaFileError> {
        let path = path.as_ref();
        let failed = failed(path, "cannot open it");
        match path.metadata() {
            Ok(metadata) if !metadata.is_file() => Err(ArenaFileError::NotAFile(path.to_owned())),
            Ok(_) => ArenaFile::read(path.to_owned(), File::open(path).map_err(failed)?).map(drop),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                folder.map_or(Ok(()), |folder| folder.metadata().map(drop)).map_err(failed)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Opens or creates a file, locks it, and reads its contents. Nothing in it changes yet.
    ///
    /// # Errors
    /// Returns [`ArenaFileError`], including for a file that does not contain an arena. An arena
    /// that cannot be taken over is not an error.
    pub fn open(path: impl AsRef<Path>) -> Result<ArenaFile, ArenaFileError> {
        let path = path.as_ref().to_owned();
        let failed = |what| failed(&path, what);
        // Opening a pipe would block, and a device cannot be locked.
        if let Ok(metadata) = path.metadata()
            && !metadata.is_file()
        {
            return Err(ArenaFileError::NotAFile(path));
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = std::os::unix::fs::OpenOptionsExt::mode(options, 0o600)
            .open(&path)
            .map_err(failed("cannot open it"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ArenaFileError::InUse(path)),
            Err(TryLockError::Error(cause)) => return Err(failed("cannot lock it")(cause)),
        }
        let metadata = file.metadata().map_err(failed("cannot read its owner"))?;
        // SAFETY: the call only returns a number.
        let user = unsafe { libc::geteuid() };
        if metadata.uid() != user {
            // The owner of the file can read and change the clients' data.
            return Err(ArenaFileError::NotOwned { path, owner: metadata.uid(), user });
        }
        let opened = ArenaFile::read(path.clone(), file)?;
        if metadata.mode() & 0o077 != 0 {
            let private = Permissions::from_mode(0o600);
            opened.file.set_permissions(private).map_err(failed("cannot make it private"))?;
        }
        Ok(opened)
    }

    /// Uses a file that another process has [handed over](crate::kv::Kv::hand_over), along with its
    /// lock. The clock of the store must continue from `resume_secs`.
    ///
    /// The other process may resume using the memory until the store that is created with this file
    /// [confirms](crate::kv::Kv::confirm_hand_over) the takeover. A store that is dropped earlier
    /// leaves the file unchanged.
    ///
    /// # Errors
    /// Returns [`ArenaFileError`] if the file cannot be read.
    pub fn handed_over(
        path: impl AsRef<Path>,
        file: impl Into<File>,
        resume_secs: u32,
    ) -> Result<ArenaFile, ArenaFileError> {
        let file = ArenaFile::read(path.as_ref().to_owned(), file.into())?;
        Ok(ArenaFile { resume_secs, is_handed_over: true, ..file })
    }

    /// Reads the contents of a file.
    fn read(path: PathBuf, file: File) -> Result<ArenaFile, ArenaFileError> {
        let failed = |what| failed(&path, what);
        let mut page = [0; SUPERBLOCK_BYTES];
        let bytes = file.metadata().map_err(failed("cannot read its length"))?.len();
        let begin = bytes.min(SUPERBLOCK_BYTES as u64) as usize;
        file.read_exact_at(&mut page[..begin], 0).map_err(failed("cannot read it"))?;
        let earlier = match Identity::decode(&page) {
            Ok(identity) => Ok(identity),
            Err(_) if bytes == 0 => Err(Cold::New),
            // The process ended after reserving the space.
            Err(_) if page == [0; SUPERBLOCK_BYTES] => Err(Cold::Unfinished),
            Err(Cold::Foreign) => return Err(ArenaFileError::Foreign(path)),
            Err(cold) => Err(cold),
        };
        let earlier = earlier.and_then(|identity| match bytes < identity.bytes {
            true => Err(Cold::Truncated),
            false => Ok(identity),
        });
        let mut resume_secs = FIRST_SECOND;
        if earlier.is_ok() {
            let copy = Memory::map(SUPERBLOCK_BYTES, false).map_err(failed("cannot map a page"))?;
            // SAFETY: both are pages of this size, and the mapping is new and ours alone.
            unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), copy.base(), SUPERBLOCK_BYTES) };
            let (last, passed) = Superblock::over(copy).notes().time_since();
            // A damaged record must not move the clock to its last second.
            resume_secs = last.saturating_add(passed).clamp(FIRST_SECOND, u32::MAX / 2);
        }
        Ok(ArenaFile { path, file, earlier, resume_secs, progress: Arc::default(), is_handed_over: false })
    }

    /// Returns the second at which the clock of the store must start: the second at which the
    /// earlier process ended, plus the time since then by the system's clock; plus nothing if that
    /// clock went back.
    #[must_use]
    pub fn resume_secs(&self) -> u32 {
        self.resume_secs
    }

    /// Returns the progress of taking over, which other threads may read while the store is created
    /// with this file.
    #[must_use]
    pub fn progress(&self) -> Arc<RestartProgress> {
        self.progress.clone()
    }

    /// Maps the memory. `check` returns the [`Identity::hash_check`] of seeds; `seeds` are for a
    /// new file.
    ///
    /// # Errors
    /// Returns [`ArenaFileError`] if the file cannot be extended or mapped.
    pub(crate) fn map(
        self,
        wanted: Identity,
        seeds: (u64, u64),
        huge_pages: bool,
        check: impl Fn(u64, u64) -> u64,
    ) -> Result<Opened, ArenaFileError> {
        let ArenaFile { path, file, earlier, progress, is_handed_over, .. } = self;
        let failed = |what| failed(&path, what);
        let metadata = file.metadata().map_err(failed("cannot read its length"))?;
        let mut wanted = placed(wanted, metadata.blksize());
        let usable = earlier.and_then(|found| match found.differs(&wanted) {
            Some(what) => Err(Cold::Differs(what)),
            None if check(found.hash_seed, found.shared_seed) != found.hash_check => {
                Err(Cold::Differs("keys are hashed differently".to_owned()))
            }
            None => Ok(found),
        });
        if let Err(reason) = &usable {
            if is_handed_over {
                return Err(ArenaFileError::NotHandedOver { path, reason: reason.to_string() });
            }
            renew(&path, &file, wanted.bytes)?;
        }
        let map =
            MmapOptions::new().len(wanted.bytes as usize).map_raw(&file).map_err(failed("cannot map it"))?;
        if huge_pages {
            // This is only advice: a kernel without huge pages uses small ones, which is not an
            // error.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        let map = Arc::new(map);
        let arena_bytes = wanted.regions as usize * wanted.region_bytes as usize;
        let table_bytes = wanted.regions as usize * size_of::<Region>();
        let mut opened = Opened {
            superblock: Superblock::over(Memory::part(&map, 0, SUPERBLOCK_BYTES)),
            table: Memory::part(&map, wanted.table_at as usize, table_bytes),
            arena: Memory::part(&map, wanted.arena_at as usize, arena_bytes),
            file: MappedFile {
                identity: wanted,
                cold: None,
                was_clean: false,
                is_handed_over,
                held: HeldFile { path: path.clone(), map, file },
                progress,
            },
        };
        if is_handed_over {
            // The other process still owns the file, so nothing is written.
            return match opened.superblock.notes().state() {
                MemoryState::Running => {
                    opened.file.identity = usable.unwrap_or(wanted);
                    Ok(opened)
                }
                _ => Err(ArenaFileError::NotHandedOver { path, reason: Cold::Unfinished.to_string() }),
            };
        }
        let boot = boot_id();
        let mut cold = usable.as_ref().err().cloned();
        if let Ok(found) = usable {
            opened.file.identity = found;
            cold = opened.cold_content(boot);
            if cold.is_some() {
                renew(&path, &opened.file.held.file, wanted.bytes)?;
            } else {
                opened.file.was_clean = opened.superblock.notes().state() == MemoryState::Clean;
            }
        }
        if cold.is_some() {
            (wanted.hash_seed, wanted.shared_seed) = seeds;
            wanted.hash_check = check(seeds.0, seeds.1);
            opened.file.identity = wanted;
            opened.superblock.write_identity(&wanted);
        }
        opened.file.cold = cold;
        // This is written to the disk before any other change, so that after a crash of the system
        // the file does not count as cleanly closed.
        let notes = opened.superblock.notes();
        notes.set_state(MemoryState::Running);
        notes.set_boot(boot);
        opened.file.held.sync_superblock().map_err(failed("cannot write it"))?;
        Ok(opened)
    }
}

impl Opened {
    /// Returns the reason why the content cannot be taken over.
    fn cold_content(&self, boot: u128) -> Option<Cold> {
        let notes = self.superblock.notes();
        match notes.state() {
            MemoryState::None => Some(Cold::Unfinished),
            MemoryState::Running => (boot == 0 || notes.boot() != boot).then_some(Cold::UncleanBoot),
            MemoryState::Clean => {
                // SAFETY: the table lies in the mapping, aligned; any bytes are valid records.
                let table = unsafe {
                    std::slice::from_raw_parts(
                        self.table.base().cast::<Region>(),
                        self.file.identity.regions as usize,
                    )
                };
                (notes.crc() != clean_crc(&self.file.identity, &self.superblock, table))
                    .then_some(Cold::Damaged)
            }
        }
    }
}

impl HeldFile {
    /// Returns a copy of the superblock and of the table of regions. No other thread may change them.
    pub(crate) fn head(&self, identity: &Identity) -> Vec<u64> {
        self.head_words(identity).iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// Restores a copy returned by [`head`](Self::head). Returns whether that changes anything. No
    /// other thread or process may use the memory.
    pub(crate) fn put_head(&self, identity: &Identity, head: &[u64]) -> bool {
        let words = self.head_words(identity).iter().zip(head);
        let changed = words.filter(|(word, value)| word.swap(**value, Ordering::AcqRel) != **value);
        changed.count() > 0
    }

    fn head_words(&self, identity: &Identity) -> &[AtomicU64] {
        let bytes = identity.table_at as usize + identity.regions as usize * size_of::<Region>();
        let bytes = bytes.min(self.map.len());
        // SAFETY: the range lies inside the mapping, which starts at a page; any bytes are valid words, which are
        // shared and accessed as atomics.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().cast::<AtomicU64>(), bytes / 8) }
    }

    fn sync_superblock(&self) -> io::Result<()> {
        self.map.flush_range(0, SUPERBLOCK_BYTES)
    }

    /// Writes everything to the disk, and then records a clean end. No thread may use the memory
    /// any more.
    ///
    /// # Errors
    /// Returns the system's error, after which the bytes may not be on the disk. A process in the
    /// same boot takes them over nevertheless.
    pub(crate) fn end(
        &self,
        identity: &Identity,
        superblock: &Superblock,
        table: &[Region],
    ) -> io::Result<()> {
        self.map.flush()?;
        let notes = superblock.notes();
        notes.set_crc(clean_crc(identity, superblock, table));
        notes.set_state(MemoryState::Clean);
        self.sync_superblock()
    }
}

/// Returns the checksum of a clean end.
fn clean_crc(identity: &Identity, superblock: &Superblock, table: &[Region]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&identity.encode());
    let notes = superblock.notes();
    notes.words().into_iter().chain(notes.covered_mark()).for_each(|word| hasher.update(&word.to_le_bytes()));
    table.iter().flat_map(Region::kept_words).for_each(|word| hasher.update(&word.to_le_bytes()));
    hasher.finalize()
}

/// Computes the positions of the parts of the file.
fn placed(identity: Identity, block_bytes: u64) -> Identity {
    let arena_bytes = u64::from(identity.regions) * u64::from(identity.region_bytes);
    let align = if arena_bytes >= LARGE_ARENA_BYTES { HUGE_BYTES } else { SUPERBLOCK_BYTES as u64 };
    let table_at = SUPERBLOCK_BYTES as u64;
    let arena_at =
        (table_at + u64::from(identity.regions) * size_of::<Region>() as u64).next_multiple_of(align);
    // On a hugetlbfs, the length must be a multiple of the page size.
    let end_align = if block_bytes.is_power_of_two() { block_bytes.max(align) } else { align };
    Identity { table_at, arena_at, bytes: (arena_at + arena_bytes).next_multiple_of(end_align), ..identity }
}

/// Discards a file's content, and reserves space for `bytes` zeroes.
fn renew(path: &Path, file: &File, bytes: u64) -> Result<(), ArenaFileError> {
    file.set_len(0).map_err(failed(path, "cannot empty it"))?;
    reserve(file, bytes).map_err(failed(path, "there is no space for the memory"))
}

/// Sets the file's length and reserves its space. Otherwise, a page for which there is no space
/// later would kill the process.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    if file.metadata()?.len() != bytes {
        file.set_len(bytes)?;
    }
    loop {
        // SAFETY: the descriptor is open, and the call takes no pointers.
        let code = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes.cast_signed()) };
        if code == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // This file system allocates space on use.
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return Ok(()),
            _ => return Err(error),
        }
    }
}

/// Returns the ID of the system's boot; 0 if it is unknown.
fn boot_id() -> u128 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&text.trim().replace('-', ""), 16).unwrap_or(0)
}
