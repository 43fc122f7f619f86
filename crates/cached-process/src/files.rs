//! Files from which other programs learn how to reach a process: a reader never sees an incomplete
//! file, and the process removes its socket files when it ends.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Writes a file under a temporary name first, so that no reader finds an incomplete file.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write_whole(path: &Path, draft_suffix: &str, text: &str) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(draft_suffix);
    fs::write(&draft, text)?;
    fs::rename(&draft, path)
}

/// The file of a unix socket on which this process listens. Dropping this value removes the file,
/// unless the path leads to another file by then (a new server may have bound a socket there), or
/// the file still belongs to another process.
///
/// This value must be dropped while the socket is still open: only then can no other file have the
/// same inode.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// The device and inode of the file.
    file: Option<(u64, u64)>,
    /// Whether another process also has the socket, and may continue to use it. In this case the
    /// file stays.
    is_another: bool,
}

impl SocketFile {
    /// Takes ownership of the file at a path.
    pub fn new(path: &Path) -> SocketFile {
        SocketFile { path: path.to_owned(), file: file_at(path), is_another: false }
    }

    /// Records the file of a socket that another process has handed over, and may continue to use.
    pub fn of_another(path: &Path) -> SocketFile {
        SocketFile { path: path.to_owned(), file: file_at(path), is_another: true }
    }

    /// Makes the file this process's own, because the other process no longer uses it.
    pub fn own(&mut self) {
        self.is_another = false;
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.is_another && self.file.is_some() && file_at(&self.path) == self.file {
            // This fails if the file has been removed in the meantime.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns the device and inode of the file at a path.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}
