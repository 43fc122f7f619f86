//! A small file system in memory, which a test fills.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system. Dropping this value unmounts it.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a tmpfs of this size at a new directory; returns `None` if this machine does not
    /// allow that.
    ///
    /// # Panics
    /// Panics if the directory cannot be created.
    #[must_use]
    pub fn mount(path: &Path, mib: u64) -> Option<Self> {
        Self::mount_as("tmpfs", &format!("size={mib}m"), path)
    }

    /// Mounts a ramfs, which refuses direct writes, like [`mount`](Self::mount). It has no size, so
    /// it must not be filled.
    ///
    /// # Panics
    /// Panics if the directory cannot be created.
    #[must_use]
    pub fn mount_ramfs(path: &Path) -> Option<Self> {
        Self::mount_as("ramfs", "mode=700", path)
    }

    fn mount_as(kind: &str, options: &str, path: &Path) -> Option<Self> {
        std::fs::create_dir(path).expect("a directory");
        let mut command = Command::new("mount");
        command.args(["-t", kind, "-o", options, kind]).arg(path);
        command.output().is_ok_and(|output| output.status.success()).then(|| Self(path.into()))
    }

    /// Returns the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Fills the file system to its last block.
    ///
    /// # Panics
    /// If the file for that cannot be opened.
    pub fn fill(&self) {
        let mut ballast = OpenOptions::new();
        let ballast = ballast.create(true).append(true).open(self.0.join("ballast"));
        let mut ballast = ballast.expect("the ballast");
        while ballast.write_all(&[1; 4096]).is_ok() {}
    }

    /// Undoes [`fill`](Self::fill).
    ///
    /// # Panics
    /// If it was not filled.
    pub fn make_room(&self) {
        std::fs::remove_file(self.0.join("ballast")).expect("the ballast");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // This fails if a process still has a file open there; a detached file system disappears
        // with that process.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}
