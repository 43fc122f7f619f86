//! The file of a unix socket that this process listens at.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A unix socket's file. It is removed when this is dropped, unless the path leads to another file by then: a new server may have
/// bound a socket there; and unless it is another process's still.
///
/// To be dropped while the socket is still open: only then can no other file have the same inode.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    file: Option<(u64, u64)>,
    /// Another process has the socket as well, and may go on with it: then the file stays.
    is_another: bool,
}

impl SocketFile {
    /// Takes the file that is at a path.
    pub(crate) fn new(path: &Path) -> SocketFile {
        SocketFile { path: path.to_owned(), file: file_at(path), is_another: false }
    }

    /// Takes the file of a socket that another process has handed over, and may go on with.
    pub(crate) fn of_another(path: &Path) -> SocketFile {
        SocketFile { path: path.to_owned(), file: file_at(path), is_another: true }
    }

    /// Makes the file this process's: the other one does not go on.
    pub(crate) fn own(&mut self) {
        self.is_another = false;
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.is_another && self.file.is_some() && file_at(&self.path) == self.file {
            // Fails if it has been removed meanwhile.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns device and inode of the file at a path.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}
