//! `-P`: a file with the process ID, for scripts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Writes the file, under another name first, so that no reader finds half of it.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path) -> io::Result<()> {
    if let Some(pid) = running(path) {
        tracing::warn!(pid, "the pid file contained the ID of a running process");
    }
    replace(path)
}

/// Writes the file in place of that of the process that has handed over to this one.
///
/// # Errors
/// When the file cannot be written.
pub fn replace(path: &Path) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".tmp");
    let draft = PathBuf::from(draft);
    fs::write(&draft, format!("{}\n", std::process::id()))?;
    fs::rename(&draft, path)
}

/// Removes the file. Called at the end.
pub fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(cause = %error, path = %path.display(), "cannot remove the pid file");
    }
}

/// Returns the process that the file names, if it exists.
fn running(path: &Path) -> Option<i32> {
    let pid: i32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    // SAFETY: plain numbers; signal 0 only checks whether the process exists.
    (pid > 0 && pid != std::process::id() as i32 && unsafe { libc::kill(pid, 0) } == 0).then_some(pid)
}
