//! The few file-system operations that the file backend stands on, so that a test can put a disk that
//! loses power underneath.
//!
//! What the backend relies on, and no more: `sync_data` makes a file's bytes and length durable, `sync_dir`
//! the entries of a directory; a rename is seen wholly or not at all; a 512-byte sector is written
//! wholly or not at all. Without a sync, anything may be lost, in any order.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::segment::{Segment, Segments};

/// How to open a file. Nothing but a regular file is opened: see [`Kind::refused`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Open {
    /// To read it; it must be there.
    Read,
    /// To read it, and to write it if its permissions and the file system allow that: elsewhere writes fail.
    /// It must be there.
    ReadWrite,
    /// Make it, empty, whatever was there.
    Create,
}

/// What a name in a directory leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    File,
    Dir,
    /// Anything else, as a noun.
    Other(&'static str),
}

impl Kind {
    /// Returns the error for opening this where a regular file is wanted.
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

#[derive(Debug)]
struct NotRegular(Kind);

impl fmt::Display for NotRegular {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is {}, not a regular file", self.0)
    }
}

impl std::error::Error for NotRegular {}

/// What was found under a name. An error of the system is none of these: then it is not known what is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found<T> {
    File(T),
    Absent,
    /// Something that is not a regular file.
    Foreign(Kind),
}

/// Returns what an attempt to open a file has found.
///
/// # Errors
/// The system's error if it could not be found out what is there.
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

/// A write that failed, and how much of it was done.
#[derive(Debug)]
pub(super) struct WriteFailed {
    pub(super) written_bytes: u64,
    pub(super) error: io::Error,
}

/// Directories and names.
pub(super) trait Disk: Send + Sync {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn unlink(&self, path: &Path) -> io::Result<()>;
    /// Whether it was made now, rather than there before.
    fn make_dir(&self, path: &Path) -> io::Result<bool>;
    /// The names in a directory and what each leads to; none if there is no such directory.
    fn read_dir(&self, path: &Path, each: &mut dyn FnMut(&[u8], Kind)) -> io::Result<()>;
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Reads the first bytes of a file, as many as there are and fit. Returns how many, and the length of
    /// the file.
    fn head(&self, path: &Path, buffer: &mut [u8]) -> io::Result<(usize, u64)>;
    /// Makes everything on the disk durable at once, files and directories. Returns whether it did: where it
    /// cannot be trusted to, each has to be synced by itself. After an error, which may be another file's,
    /// nothing is known of any of them, and each file still reports its own at its own sync.
    fn sync_all(&self) -> io::Result<bool>;
}

/// An open file.
pub(super) trait DiskFile: Send + Sync {
    fn len(&self) -> io::Result<u64>;
    /// Up to `len` bytes; fewer only at the end of the file.
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>>;
    /// As `read_at`, if that is possible without waiting for the disk.
    fn read_at_once(&self, offset: u64, len: usize) -> Option<Segment>;
    fn write_at(&self, offset: u64, data: &Segments) -> Result<(), WriteFailed>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Zeroes a range within the file, giving the space back where the file system can.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Copies `len` bytes at `from_at` of `from` to `to_at` here.
    fn copy_from(&self, from: &dyn DiskFile, from_at: u64, to_at: u64, len: u64) -> io::Result<()>;
    fn sync_data(&self) -> io::Result<()>;
    /// The descriptor, if there is one.
    fn raw(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

/// How much is copied or zeroed at a time where the kernel does not do it.
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
        to.write_at(to_at + done, &data.into()).map_err(|failed| failed.error)?;
        done += read;
    }
    Ok(())
}

/// Zeroes by writing.
pub(super) fn zero_by_hand(file: &dyn DiskFile, offset: u64, len: u64) -> io::Result<()> {
    let mut at = offset;
    while at < offset + len {
        let run = CHUNK_BYTES.min(offset + len - at);
        file.write_at(at, &Segments::zeros(run as usize)).map_err(|failed| failed.error)?;
        at += run;
    }
    Ok(())
}
