//! The operating system's disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::{Disk, DiskFile};

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
        Ok(Arc::new(RealFile { buffered, direct }))
    }
}

impl Disk for RealDisk {
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        let path = self.root.join(LOCK_NAME);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(file))
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

struct RealFile {
    /// Reads, which want the page cache's read-ahead, and writes without `O_DIRECT`.
    buffered: File,
    direct: Option<File>,
}

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.buffered.metadata()?.len())
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
