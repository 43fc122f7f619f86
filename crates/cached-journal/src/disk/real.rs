//! The operating system's disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Advice, FlockOperation, OFlags};
use rustix::io::Errno;

use super::{Disk, DiskFile, FileId};

const LOCK_NAME: &str = "lock";

/// A directory of the operating system's file system.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
    is_direct: bool,
}

impl RealDisk {
    /// Opens a directory, and makes it if it is missing and its parent is there. With `is_direct`, writes
    /// bypass the page cache.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn open(root: &Path, is_direct: bool) -> io::Result<Self> {
        match fs::create_dir(root) {
            Ok(()) => File::open(
                root.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")),
            )?
            .sync_all()?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && root.is_dir() => {}
            Err(error) => return Err(error),
        }
        Ok(Self { root: root.to_path_buf(), is_direct })
    }

    fn file(&self, name: &str, options: &mut OpenOptions) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.root.join(name);
        let buffered = options.read(true).write(true).open(&path)?;
        let direct = if self.is_direct {
            let flags = OFlags::DIRECT.bits() as i32;
            let opened = OpenOptions::new().write(true).custom_flags(flags).open(&path);
            let hint = |error: io::Error| match error.kind() {
                io::ErrorKind::InvalidInput => io::Error::new(
                    error.kind(),
                    "this file system cannot bypass the page cache (O_DIRECT); set direct = false",
                ),
                _ => error,
            };
            Some(opened.map_err(hint)?)
        } else {
            None
        };
        let metadata = buffered.metadata()?;
        Ok(Arc::new(RealFile { buffered, direct, id: (metadata.dev(), metadata.ino()) }))
    }
}

impl Disk for RealDisk {
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        Ok(Box::new(Lock::take(&self.root.join(LOCK_NAME))?))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let names =
            fs::read_dir(&self.root)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.filter(|name| !matches!(name, Ok(name) if name == LOCK_NAME)).collect()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.file(name, OpenOptions::new().create(true).truncate(true))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.file(name, &mut OpenOptions::new())
    }

    fn id(&self, name: &str) -> io::Result<FileId> {
        fs::metadata(self.root.join(name)).map(|found| (found.dev(), found.ino()))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.root.join(from), self.root.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.root.join(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.root)?.sync_all()
    }

    fn random(&self) -> io::Result<u64> {
        getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
    }
}

/// A lock that ends when it is dropped.
///
/// Closing the file would not do: the lock belongs to the open file description, and a child that another thread
/// has just forked holds that too, until it executes its program.
struct Lock(File);

impl Lock {
    fn take(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file ends the lock in all other cases.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

struct RealFile {
    /// Reads, which want the page cache's read-ahead, and writes without `O_DIRECT`.
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

    fn read_ahead(&self, offset: u64, len: u64) {
        // A hint: a file system that does not take it reads later.
        let _ = rustix::fs::fadvise(&self.buffered, offset, NonZeroU64::new(len), Advice::WillNeed);
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
    use super::Lock;

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
}
