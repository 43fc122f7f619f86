//! Copies of disks in files.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::succeeded::succeeded;

/// The bytes of a disk, in a file. Dropping this value removes the file.
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
}

impl Image {
    /// Returns a copy of a server's disk.
    ///
    /// # Panics
    /// Panics if the disk cannot be read.
    pub fn of(socket: &Path, disk: &str, path: PathBuf) -> Self {
        let uri = format!("nbd+unix:///{disk}?socket={}", socket.display());
        succeeded(Command::new("nbdcopy").arg(uri).arg(&path)).unwrap_or_else(|why| panic!("{why}"));
        Self { path }
    }

    /// Returns whether the files have the same bytes.
    ///
    /// # Panics
    /// Panics if one of the files cannot be read.
    pub fn is_same(&self, other: &Path) -> bool {
        let status = Command::new("cmp").arg(&self.path).arg(other).status();
        status.expect("cmp runs").success()
    }

    /// Returns the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replays the journal of the file system, as a mount does, and then checks that the file
    /// system is intact.
    ///
    /// # Panics
    /// Panics if the file system is damaged.
    pub fn check_after_replay(&self) {
        let mut replay = Command::new("e2fsck");
        replay.args(["-y", "-E", "journal_only"]).arg(&self.path);
        succeeded(&mut replay).unwrap_or_else(|why| panic!("{why}"));
        succeeded(Command::new("e2fsck").arg("-fn").arg(&self.path)).unwrap_or_else(|why| panic!("{why}"));
    }

    /// Copies a directory of the file system into a directory of this machine.
    ///
    /// # Panics
    /// Panics if the copy fails.
    pub fn extract(&self, folder: &str, into: &Path) {
        std::fs::create_dir_all(into).expect("a folder");
        let mut dump = Command::new("debugfs");
        dump.arg("-R").arg(format!("rdump {folder} {}", into.display())).arg(&self.path);
        succeeded(&mut dump).unwrap_or_else(|why| panic!("{why}"));
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
