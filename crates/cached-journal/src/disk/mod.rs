//! The few file operations that the journal uses, so that a test can substitute a disk that loses
//! power.
//!
//! The journal relies on no more than this: [`DiskFile::sync`] makes a file's bytes durable,
//! [`Disk::sync_names`] the names; a rename happens as a whole or not at all; a sector of 512 bytes
//! is written as a whole or not at all. Without a sync anything may be lost, in any order. After a
//! failed sync or write the file's content is unknown.

use std::io;
use std::sync::Arc;

pub(crate) mod real;
pub mod simulated;

pub use real::RealDisk;

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
    /// Asks the system to read these bytes into its cache in the background.
    fn read_ahead(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// Writes all parts, one after another. Offset and lengths are multiples of 4 KiB.
    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()>;
    /// Makes the file's bytes and length durable.
    fn sync(&self) -> io::Result<()>;
}
