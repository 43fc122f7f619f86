//! `-P`: a file with the process's number, for scripts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Writes the file, under another name first, so that nobody reads half of it.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path) -> io::Result<()> {
    if let Some(pid) = running(path) {
        tracing::warn!(pid, "the pid file contained the number of a running process");
    }
    let mut draft = path.as_os_str().to_owned();
    draft.push(".tmp");
    let draft = PathBuf::from(draft);
    fs::write(&draft, format!("{}\n", std::process::id()))?;
    fs::rename(&draft, path)
}

/// Removes the file at the end.
pub fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(cause = %error, path = %path.display(), "cannot remove the pid file");
    }
}

/// The process that the file names, if there is one.
fn running(path: &Path) -> Option<i32> {
    let pid: i32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    // SAFETY: plain numbers; signal 0 only asks whether the process exists.
    (pid > 0 && pid != std::process::id() as i32 && unsafe { libc::kill(pid, 0) } == 0).then_some(pid)
}
