//! The few file-system operations that the file backend uses, as traits, so that a test can
//! substitute a disk that loses power.
//!
//! The backend relies only on this: `sync_data` makes a file's bytes and length durable, `sync_dir`
//! a directory's entries; a rename is seen as a whole or not at all; a 512-byte sector is written
//! as a whole or not at all. Without a sync, anything may be lost, in any order.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::{Segment, Segments};

/// How to open a file. Only regular files are opened: see [`Kind::refused`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Open {
    /// Opens an existing file for reading.
    Read,
    /// Opens an existing file for reading, and for writing if the file's permissions and the file
    /// system allow it; otherwise writes fail.
    ReadWrite,
    /// Creates an empty file, replacing an existing one.
    Create,
}

/// The kind of a directory entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    File,
    Dir,
    /// An entry of any other kind, which the text names.
    Other(&'static str),
}

impl Kind {
    /// Returns the error for opening an entry of this kind instead of a regular file.
    pub(super) fn refused(self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, NotRegular(self))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "a regular file",
            Self::Dir => "a directory",
            Self::Other(noun) => noun,
        })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("it is {0}, not a regular file")]
struct NotRegular(Kind);

/// The result of looking up a name. After a system error it is unknown whether an entry exists
/// under the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found<T> {
    File(T),
    Absent,
    /// An entry that is not a regular file.
    Foreign(Kind),
}

/// Converts the result of opening a file.
///
/// # Errors
/// Returns the system's error if it is unknown whether the file exists.
pub(super) fn found<T>(opened: io::Result<T>) -> io::Result<Found<T>> {
    opened.map(Found::File).or_else(|error| {
        let foreign = error.get_ref().and_then(|error| error.downcast_ref::<NotRegular>());
        match foreign {
            Some(NotRegular(kind)) => Ok(Found::Foreign(*kind)),
            None if error.kind() == io::ErrorKind::NotFound => Ok(Found::Absent),
            None => Err(error),
        }
    })
}

/// A failed write, and the bytes written before it failed.
#[derive(Debug)]
pub(super) struct WriteFailed {
    pub(super) written_bytes: u64,
    pub(super) error: io::Error,
}

/// The operations on directories and names.
pub(super) trait Disk: Send + Sync {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn unlink(&self, path: &Path) -> io::Result<()>;
    /// Creates a directory. Returns whether it was missing. After an error, it may be there.
    fn make_dir(&self, path: &Path) -> io::Result<bool>;
    /// Calls `each` with every entry of a directory and its kind; a missing directory counts as
    /// empty.
    fn read_dir(&self, path: &Path, each: &mut dyn FnMut(&[u8], Kind)) -> io::Result<()>;
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Reads the first bytes of a file, up to the buffer's length. Returns their number, and the
    /// file's length.
    fn head(&self, path: &Path, buffer: &mut [u8]) -> io::Result<(usize, u64)>;
    /// Makes all files and directories on the disk durable together. Returns false if this cannot
    /// be trusted, so that each file must be synced individually. An error may concern any file;
    /// each file still reports its own error at its own sync.
    fn sync_all(&self) -> io::Result<bool>;
}

/// An open file.
pub(super) trait DiskFile: Send + Sync {
    fn len(&self) -> io::Result<u64>;
    /// Reads up to `len` bytes; fewer only at the end of the file.
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>>;
    /// Reads as `read_at` does, if that is possible without waiting for the disk.
    fn read_at_once(&self, offset: u64, len: usize) -> Option<Segment>;
    fn write_at(&self, offset: u64, data: &Segments) -> Result<(), WriteFailed>;
    /// Writes as `write_at` does, for callers that treat a partial write as a failed one.
    fn write_all(&self, offset: u64, data: &Segments) -> io::Result<()> {
        self.write_at(offset, data).map_err(|failed| failed.error)
    }
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Zeroes a range within the file, and frees its space where the file system can.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Copies `len` bytes at `from_at` of `from` to `to_at` of this file.
    fn copy_from(&self, from: &dyn DiskFile, from_at: u64, to_at: u64, len: u64) -> io::Result<()>;
    fn sync_data(&self) -> io::Result<()>;
    /// Returns the file descriptor, if there is one.
    fn raw(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

/// The unit in which this process copies or zeroes if the kernel cannot.
const CHUNK_BYTES: u64 = 256 * 1024;

/// Copies by reading and writing.
pub(super) fn copy_by_hand(
    to: &dyn DiskFile,
    from: &dyn DiskFile,
    from_at: u64,
    to_at: u64,
    len: u64,
) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let data = from.read_at(from_at + done, CHUNK_BYTES.min(len - done) as usize)?;
        if data.is_empty() {
            return Ok(());
        }
        let read = data.len() as u64;
        to.write_all(to_at + done, &data.into())?;
        done += read;
    }
    Ok(())
}

/// Zeroes by writing.
pub(super) fn zero_by_hand(file: &dyn DiskFile, offset: u64, len: u64) -> io::Result<()> {
    let mut at = offset;
    while at < offset + len {
        let run = CHUNK_BYTES.min(offset + len - at);
        file.write_all(at, &Segments::zeros(run as usize))?;
        at += run;
    }
    Ok(())
}
