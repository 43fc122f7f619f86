//! What every program of a data directory observes: one process has it open, it opens regular files only, and what root makes
//! belongs to the directory's owner. The journal uses the latter two as well.

use std::fs::{self, File, FileType, Metadata};
use std::io;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::file::disk::Kind;

/// Opens a regular file, and refuses anything else: nothing is waited for at a FIFO, no link is followed.
///
/// # Errors
/// `InvalidInput`, without a number of the system's, for anything else; those of the system.
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
        // A link; a directory, to write to; a socket.
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

/// The user to whom what root makes in a directory is given: the directory's owner, who could not use it otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Owner(Option<(Uid, Gid)>);

impl Owner {
    /// Returns the owner of a directory, if this process is root's and the directory is not.
    #[must_use]
    pub fn of(directory: &Metadata) -> Self {
        let is_given = rustix::process::geteuid().is_root() && directory.uid() != 0;
        Self(is_given.then(|| (Uid::from_raw(directory.uid()), Gid::from_raw(directory.gid()))))
    }

    /// Gives what this process has just made to the owner.
    ///
    /// # Errors
    /// Those of the system.
    pub fn give(self, made: &File) -> io::Result<()> {
        let Some((uid, gid)) = self.0 else { return Ok(()) };
        let found = made.metadata()?;
        // What another user has put there under this name is not given away.
        let is_own = found.uid() == 0 && (found.is_dir() || found.nlink() == 1);
        if is_own && let Err(errno) = rustix::fs::fchown(made, Some(uid), Some(gid)) {
            // A root without that right, as in a container, keeps what it makes.
            return if errno == Errno::PERM { Ok(()) } else { Err(errno.into()) };
        }
        Ok(())
    }
}

/// The file that names the process which has the store open, for people.
const HOLDER: &str = "lock";

/// The exclusive lock of a directory itself: no file that could be removed. It ends when it is dropped, and with
/// the process, however that ends.
///
/// Closing the directory would not end it: the lock belongs to the open file description, and a child that another
/// thread has just forked holds that too, until it executes its program.
pub(super) struct DirectoryLock(File);

impl DirectoryLock {
    /// Takes the lock of a directory, which readers share.
    ///
    /// # Errors
    /// `Denied` while another process holds it, with that process's id; `Unsupported` if the file system has no
    /// such locks; the disk's errors.
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
            // Over a network, for one.
            Err(Errno::BADF | Errno::OPNOTSUPP | Errno::NOLCK) => {
                let text = format!("the file system of {} has no locks of directories", dir.display());
                Err(Error::Unsupported(text.into()))
            }
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Writes this process's id into the directory, for the message of the next one that wants the lock.
    pub(super) fn name_holder(dir: &Path) {
        // It helps to find the holder; the lock works without it.
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
        // Closing the directory ends the lock in all other cases.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// What a process may do with a file store, and whether it makes one that is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Reads an existing store. Nothing in its directory is changed, so that a read-only file system serves;
    /// changes are `Denied`. Others may read it at the same time.
    Read,
    /// Reads and changes an existing store.
    #[default]
    Write,
    /// As [`Write`](Self::Write); the directory and the store are made if they are missing.
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
