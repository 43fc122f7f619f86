//! The few file operations that the journal uses, so that a test can substitute a disk that loses
//! power.
//!
//! The journal relies on no more than this: [`DiskFile::sync`] makes a file's bytes durable,
//! [`Disk::sync_names`] the names; a rename happens as a whole or not at all; a sector of 512 bytes
//! is written as a whole or not at all. Without a sync anything may be lost, in any order. After a
//! failed sync or write the file's content is unknown.

pub mod simulated;

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blocker::file::directory::{Owner, open_regular};
use rustix::fs::{AtFlags, CWD, FlockOperation, OFlags, StatxFlags, makedev, statx};
use rustix::io::Errno;

/// The identity of a file, whatever names lead to it: its device and inode number.
pub type FileId = (u64, u64);

/// A directory of files.
pub trait Disk: Send + Sync {
    /// Takes the exclusive lock of the directory. The lock is released when the returned value is
    /// dropped or the process ends.
    ///
    /// # Errors
    /// `WouldBlock` if another process or handle has the lock.
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>>;
    /// Returns the names of all files and directories, in any order.
    fn names(&self) -> io::Result<Vec<String>>;
    /// Creates an empty file, replacing an existing one.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Returns the identity of the file with this name.
    fn id(&self, name: &str) -> io::Result<FileId>;
    /// Renames a file, replacing an existing one.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync_names(&self) -> io::Result<()>;
    /// Returns a directory within this one, and creates it if it is missing. The name of the
    /// directory becomes durable in the same way as the names of files.
    fn directory(&self, name: &str) -> io::Result<Box<dyn Disk>>;
    /// Returns an unpredictable number.
    fn random(&self) -> io::Result<u64>;
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Returns the identity of this file.
    fn id(&self) -> io::Result<FileId>;
    /// Returns whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Reads into `buffer` and returns the number of bytes read: fewer than requested only at the
    /// end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes all parts, one after another. Offset and lengths are multiples of 4 KiB.
    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()>;
    /// Makes the file's bytes and length durable.
    fn sync(&self) -> io::Result<()>;
}

const LOCK_NAME: &str = "lock";

/// A directory of the operating system's file system: the disk of every journal but those of tests.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
    is_direct: bool,
    is_read_only: bool,
    /// The user who becomes the owner of files that root creates, or `None`; always `None` for a
    /// read-only directory.
    owner: Option<Owner>,
}

impl RealDisk {
    /// Opens a directory. With `is_direct`, writes bypass the page cache.
    ///
    /// # Errors
    /// The operating system's errors.
    pub fn open(root: &Path, is_direct: bool) -> io::Result<Self> {
        // This fails unless the path is a directory.
        fs::read_dir(root)?;
        let owner = Some(Owner::of(&fs::metadata(root)?));
        Ok(Self { root: root.to_path_buf(), is_direct, is_read_only: false, owner })
    }

    /// Opens a directory as [`open`](Self::open) does, but creates it if it is missing and its
    /// parent exists.
    ///
    /// # Errors
    /// The operating system's errors.
    pub fn create(root: &Path, is_direct: bool) -> io::Result<Self> {
        match fs::create_dir(root) {
            Ok(()) => File::open(
                root.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")),
            )?
            .sync_all()?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && root.is_dir() => {}
            Err(error) => return Err(error),
        }
        Self::open(root, is_direct)
    }

    /// Returns the directory for reading only. Nothing in it is created or changed, so this works
    /// on a read-only file system.
    #[must_use]
    pub fn read_only(root: &Path) -> Self {
        Self { root: root.to_path_buf(), is_direct: false, is_read_only: true, owner: None }
    }

    fn give(&self, made: &File) -> io::Result<()> {
        self.owner.map_or(Ok(()), |owner| owner.give(made))
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.is_read_only { Err(Errno::ROFS.into()) } else { Ok(()) }
    }

    fn file(&self, name: &str, flags: OFlags) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.root.join(name);
        let buffered = open_regular(&path, flags)?;
        if flags.contains(OFlags::CREATE) {
            self.give(&buffered)?;
        }
        let direct = if self.is_direct {
            let opened = open_regular(&path, OFlags::WRONLY | OFlags::DIRECT);
            let hint = |error: io::Error| match Errno::from_io_error(&error) {
                Some(Errno::INVAL) => io::Error::new(
                    error.kind(),
                    "this file system cannot bypass the page cache (O_DIRECT); set direct = false",
                ),
                _ => error,
            };
            Some(opened.map_err(hint)?)
        } else {
            None
        };
        let id = id_of(&buffered, Path::new(""))?;
        Ok(Arc::new(RealFile { buffered, direct, id }))
    }
}

/// Returns the identity of the file at `path` from the directory `at`, or of `at` itself, which may be a
/// file, if `path` is empty.
///
/// Asks for nothing else: after someone has asked for a file's times, file systems with fine-grained
/// timestamps change them at the next write, and some write them to the disk with the next sync.
fn id_of(at: impl AsFd, path: &Path) -> io::Result<FileId> {
    let found = statx(at, path, AtFlags::EMPTY_PATH, StatxFlags::INO)?;
    Ok((makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

impl Disk for RealDisk {
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        let path = self.root.join(LOCK_NAME);
        if !self.is_read_only {
            let lock = Lock::take(&path)?;
            self.give(&lock.0)?;
            return Ok(Box::new(lock));
        }
        match Lock::share(&path) {
            // A process that has the journal open would have created the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Box::new(())),
            lock => Ok(Box::new(lock?)),
        }
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let names =
            fs::read_dir(&self.root)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.filter(|name| !matches!(name, Ok(name) if name == LOCK_NAME)).collect()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.check_writable()?;
        self.file(name, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.file(name, if self.is_read_only { OFlags::RDONLY } else { OFlags::RDWR })
    }

    fn id(&self, name: &str) -> io::Result<FileId> {
        id_of(CWD, &self.root.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.check_writable()?;
        fs::rename(self.root.join(from), self.root.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.check_writable()?;
        fs::remove_file(self.root.join(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.root)?.sync_all()
    }

    fn directory(&self, name: &str) -> io::Result<Box<dyn Disk>> {
        self.check_writable()?;
        let root = self.root.join(name);
        let disk = Self::create(&root, false)?;
        self.give(&File::open(&root)?)?;
        Ok(Box::new(Self { owner: self.owner, ..disk }))
    }

    fn random(&self) -> io::Result<u64> {
        getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
    }
}

/// A lock that is released when it is dropped.
///
/// Closing the file would not release the lock in every case: the lock belongs to the open file
/// description, which is also held by a child process that another thread has just forked, until
/// the child executes its program.
struct Lock(File);

impl Lock {
    fn take(path: &Path) -> io::Result<Self> {
        let file = open_regular(path, OFlags::WRONLY | OFlags::CREATE)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self(file))
    }

    /// Takes a shared lock, for readers.
    fn share(path: &Path) -> io::Result<Self> {
        let file = open_regular(path, OFlags::RDONLY)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)?;
        Ok(Self(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // In all other cases closing the file releases the lock.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

struct RealFile {
    /// Used for reads, which benefit from the page cache's read-ahead, and for writes without
    /// `O_DIRECT`.
    buffered: File,
    direct: Option<File>,
    id: FileId,
}

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.buffered.metadata()?.len())
    }

    fn id(&self) -> io::Result<FileId> {
        Ok(self.id)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.buffered.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, mut offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        let file = self.direct.as_ref().unwrap_or(&self.buffered);
        let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = &mut slices[..];
        while left.iter().any(|slice| !slice.is_empty()) {
            match rustix::io::pwritev(file, left, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut left, written);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.buffered.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FileType, Mode};

    use super::{Disk, Lock, RealDisk};

    #[test]
    fn a_lock_ends_although_a_child_still_has_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = Lock::take(&path).unwrap();
        let of_the_child = lock.0.try_clone().unwrap();
        assert!(Lock::take(&path).is_err());
        drop(lock);
        Lock::take(&path).unwrap();
        drop(of_the_child);
    }

    #[test]
    fn readers_share_a_lock_and_keep_writers_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        drop(Lock::take(&path).unwrap());
        let readers = [(); 2].map(|()| Lock::share(&path).unwrap());
        assert!(Lock::take(&path).is_err());
        drop(readers);
        let _writer = Lock::take(&path).unwrap();
        assert!(Lock::share(&path).is_err());
    }

    #[test]
    fn what_is_read_only_is_not_changed_and_what_is_no_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path(), false).unwrap();
        disk.create("file").unwrap();
        let reading = RealDisk::read_only(dir.path());
        drop(reading.lock().unwrap());
        reading.open("file").unwrap();
        let errors = [
            reading.create("new").map(drop),
            reading.rename("file", "other"),
            reading.remove("file"),
            reading.open("file").unwrap().write_at(0, &[&[0; 4096]]),
        ];
        assert!(errors.iter().all(Result::is_err), "{errors:?}");
        assert_eq!(disk.names().unwrap(), ["file"], "no lock either");
        rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
        std::fs::create_dir(dir.path().join("dir")).unwrap();
        for disk in [&disk, &reading] {
            for name in ["fifo", "link", "dir"] {
                let error = disk.open(name).map(drop).unwrap_err();
                assert!(error.to_string().ends_with("not a regular file"), "{name}: {error}");
            }
        }
        std::fs::rename(dir.path().join("fifo"), dir.path().join("lock")).unwrap();
        assert!(disk.lock().is_err() && reading.lock().is_err());
    }
}
