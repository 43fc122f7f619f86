//! The few operations on files that the journal stands on, so that a test can put a disk that loses power
//! underneath.
//!
//! What the journal relies on, and no more: [`DiskFile::sync`] makes a file's bytes durable,
//! [`Disk::sync_names`] the names; a rename happens wholly or not at all; a sector of 512 bytes is written
//! wholly or not at all. Without a sync anything may be lost, in any order. After a failed sync or write
//! nothing is known of the file.

use std::io;
use std::sync::Arc;

pub(crate) mod real;
pub mod simulated;

pub use real::RealDisk;

/// What tells a file from all others, whatever names lead to it: its device and its number there.
pub type FileId = (u64, u64);

/// A directory of files.
pub trait Disk: Send + Sync {
    /// Takes the exclusive lock of the directory. It is released when the result is dropped or the process
    /// ends.
    ///
    /// # Errors
    /// `WouldBlock` if it is taken.
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>>;
    /// Returns the names of all files and directories, in any order.
    fn names(&self) -> io::Result<Vec<String>>;
    /// Creates an empty file, whatever was there.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Returns which file a name leads to.
    fn id(&self, name: &str) -> io::Result<FileId>;
    /// Renames a file, replacing what has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync_names(&self) -> io::Result<()>;
    /// Returns a directory within this one, made if it is missing. Its name is durable as those of files are.
    fn directory(&self, name: &str) -> io::Result<Box<dyn Disk>>;
    /// Returns a number that cannot be guessed.
    fn random(&self) -> io::Result<u64>;
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Returns which file this is.
    fn id(&self) -> io::Result<FileId>;
    /// Returns whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Reads into `buffer` and returns the number of bytes read: fewer than asked for only at the end of the
    /// file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Requests that these bytes are read into the system's memory, without waiting for it: a hint.
    fn read_ahead(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// Writes all parts, one behind the other. Offset and lengths are multiples of 4 KiB.
    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()>;
    /// Makes the file's bytes and length durable.
    fn sync(&self) -> io::Result<()>;
}
