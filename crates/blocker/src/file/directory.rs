//! Rules for every program that uses a data directory: only one process has the directory open,
//! only regular files are opened, and files that root creates belong to the directory's owner. The
//! journal follows the last two rules as well.

use std::fs::{self, File, FileType, Metadata};
use std::io;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::file::disk::Kind;
use crate::{Error, Result};

/// Opens a regular file, and refuses any other kind. Never waits for a FIFO, and follows no link.
///
/// # Errors
/// Returns `InvalidInput`, without a system error code, for any other kind; the system's errors.
pub fn open_regular(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::io::retry_on_intr(|| rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)));
    let file_type = match opened {
        Ok(file) => {
            let file = File::from(file);
            let file_type = file.metadata()?.file_type();
            if file_type.is_file() {
                return Ok(file);
            }
            file_type
        }
        // The name is that of a link, of a directory opened for writing, or of a socket.
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => fs::symlink_metadata(path)?.file_type(),
        Err(errno) => return Err(errno.into()),
    };
    Err(kind_of(file_type).refused())
}

pub(super) fn kind_of(found: FileType) -> Kind {
    match found {
        found if found.is_file() => Kind::File,
        found if found.is_dir() => Kind::Dir,
        found if found.is_symlink() => Kind::Other("a symbolic link"),
        found if found.is_fifo() => Kind::Other("a FIFO"),
        found if found.is_socket() => Kind::Other("a socket"),
        _ => Kind::Other("a device"),
    }
}

/// The owner of a directory. Files that root creates in the directory are given to the owner, who
/// could not use them otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Owner(Option<(Uid, Gid)>);

impl Owner {
    /// Returns the owner of a directory, if this process is root's and the directory is not.
    #[must_use]
    pub fn of(directory: &Metadata) -> Self {
        let is_given = rustix::process::geteuid().is_root() && directory.uid() != 0;
        Self(is_given.then(|| (Uid::from_raw(directory.uid()), Gid::from_raw(directory.gid()))))
    }

    /// Makes the directory's owner the owner of a file that this process has just created.
    ///
    /// # Errors
    /// Returns the system's errors.
    pub fn give(self, made: &File) -> io::Result<()> {
        let Some((uid, gid)) = self.0 else { return Ok(()) };
        let found = made.metadata()?;
        // A file that another user has created under this name keeps its owner.
        let is_own = found.uid() == 0 && (found.is_dir() || found.nlink() == 1);
        if is_own && let Err(errno) = rustix::fs::fchown(made, Some(uid), Some(gid)) {
            // Without the right to change owners (in a container, for example), the file stays
            // root's.
            return if errno == Errno::PERM { Ok(()) } else { Err(errno.into()) };
        }
        Ok(())
    }
}

/// The file with the ID of the process that has the store open, for operators.
const HOLDER: &str = "lock";

/// The exclusive lock of the directory itself, because a lock file could be removed. The lock ends
/// when it is dropped, or when the process ends for any reason.
///
/// Closing the directory would not release the lock: it belongs to the open file description, which
/// a child that another thread has just forked also holds until it executes its program.
pub(super) struct DirectoryLock(File);

impl DirectoryLock {
    /// Locks a directory; readers share the lock.
    ///
    /// # Errors
    /// Returns `Denied` while another process holds the lock, with that process's ID; `Unsupported`
    /// if the file system does not support such locks; the disk's errors.
    pub(super) fn take(dir: &Path, access: Access) -> Result<Self> {
        let failed = |error: std::io::Error| Error::from_io(&error, &format!("locking {}", dir.display()));
        let file = File::open(dir).map_err(failed)?;
        let operation = match access {
            Access::Read => FlockOperation::NonBlockingLockShared,
            Access::Write | Access::Create => FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::fs::flock(&file, operation) {
            Ok(()) => Ok(Self(file)),
            Err(Errno::WOULDBLOCK) => {
                let holder = read_holder(dir).map_or(String::new(), |pid| format!(" (process {pid})"));
                Err(Error::Denied(format!("{} is held by another process{holder}", dir.display()).into()))
            }
            // For example, the directory is on a network file system.
            Err(Errno::BADF | Errno::OPNOTSUPP | Errno::NOLCK) => {
                let text =
                    format!("the file system of {} does not support locks on directories", dir.display());
                Err(Error::Unsupported(text.into()))
            }
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Writes this process's ID into the directory, for the error message of another process that
    /// wants the lock.
    pub(super) fn name_holder(dir: &Path) {
        // Errors are ignored, because the file only helps to find the holder of the lock.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let _ = open_regular(&dir.join(HOLDER), flags)
            .and_then(|mut file| writeln!(file, "{}", std::process::id()));
    }
}

fn read_holder(dir: &Path) -> Option<u32> {
    let mut text = String::new();
    let file = open_regular(&dir.join(HOLDER), OFlags::RDONLY).ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // In all other cases, closing the directory releases the lock.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// The access of a process to a file store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Reads an existing store. Nothing in its directory is changed, so this works on a read-only
    /// file system; changes are `Denied`. Other processes may read the store at the same time.
    Read,
    /// Reads and changes an existing store.
    #[default]
    Write,
    /// Like [`Write`](Self::Write), but creates the directory and the store if they are missing.
    Create,
}

#[cfg(test)]
mod tests {
    use super::{Access, DirectoryLock};

    #[test]
    fn a_lock_ends_although_a_child_still_has_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::take(dir.path(), Access::Write).unwrap();
        let of_the_child = lock.0.try_clone().unwrap();
        assert!(DirectoryLock::take(dir.path(), Access::Write).is_err());
        drop(lock);
        DirectoryLock::take(dir.path(), Access::Write).unwrap();
        drop(of_the_child);
    }

    #[test]
    fn readers_share_a_lock_and_keep_writers_out() {
        let dir = tempfile::tempdir().unwrap();
        let readers = [(); 2].map(|()| DirectoryLock::take(dir.path(), Access::Read).unwrap());
        assert!(DirectoryLock::take(dir.path(), Access::Write).is_err());
        drop(readers);
        let _writer = DirectoryLock::take(dir.path(), Access::Write).unwrap();
        assert!(DirectoryLock::take(dir.path(), Access::Read).is_err());
    }
}
