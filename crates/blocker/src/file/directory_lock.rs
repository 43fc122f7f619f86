//! The lock of a store's directory: one process at a time.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::access::Access;
use super::regular::open_regular;
use crate::error::{Error, Result};

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
