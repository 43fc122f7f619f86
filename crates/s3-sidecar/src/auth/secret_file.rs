//! Files with secrets: read whole, bounded, and only if no others can read them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// What distinguishes one state of a file from another: device, inode, length, times of the last changes.
pub(crate) type Stamp = Option<(u64, u64, u64, i64, i64, i64, i64)>;

/// Returns the state of a file; `None` if there is none.
pub(crate) fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).ok()?;
    let (modified, changed) = ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()));
    Some((found.dev(), found.ino(), found.len(), modified.0, modified.1, changed.0, changed.1))
}

/// Returns the text of a file.
///
/// # Errors
/// One line: what is wrong with it, and what would be right. No part of the text is in it.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let failed = |error: io::Error| format!("cannot read {shown}: {error}");
    let file = open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(format!("{shown} is no file"));
    }
    let mode = found.mode() & 0o777;
    if mode & 0o027 != 0 {
        return Err(format!(
            "{shown} can be read by everyone, or changed by others than its owner (mode {mode:03o}); chmod 600 {shown} mends it"
        ));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{shown} is longer than {FILE_BYTES_MAX} bytes"));
    }
    Ok(text)
}

fn open(path: &Path) -> io::Result<File> {
    // A pipe without a writer must not block the process.
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}
