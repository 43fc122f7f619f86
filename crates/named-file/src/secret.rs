//! Files with secrets, which can be replaced while they are in use, and the comparison of secrets.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::{FileError, Kinds, Stamp, stamp};

/// The content of a file with secrets.
pub struct SecretFile<T> {
    path: PathBuf,
    parse: fn(&str) -> Result<T, String>,
    content: RwLock<Arc<T>>,
    /// The state of the file at the last check.
    stamp: Mutex<Stamp>,
}

impl<T> SecretFile<T> {
    /// Reads a file.
    ///
    /// # Errors
    /// Returns a one-line message that states the mistake in the file and the correct form, without
    /// any secret.
    pub fn open(path: PathBuf, parse: fn(&str) -> Result<T, String>) -> Result<Self, FileError> {
        let stamp = Mutex::new(stamp(&path));
        let content = RwLock::new(Arc::new(read(&path, parse)?));
        Ok(SecretFile { path, parse, content, stamp })
    }

    /// Returns the content in force.
    #[must_use]
    pub fn current(&self) -> Arc<T> {
        Arc::clone(&self.content.read())
    }
}

impl<T> fmt::Debug for SecretFile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A file that can be read again.
pub trait Reread: Send + Sync {
    /// Reads the file again. Its content applies once the returned function is called.
    ///
    /// # Errors
    /// Returns the errors of [`SecretFile::open`]. In that case the current content stays in force.
    fn read_again(self: Arc<Self>) -> Result<PutInForce, FileError>;

    /// Reads the file again and puts its content in force, if the file has changed since the last
    /// check. Returns whether the file has changed.
    ///
    /// # Errors
    /// Returns the errors of [`Reread::read_again`].
    fn reload_if_changed(self: Arc<Self>) -> Result<bool, FileError>;
}

/// Puts the content of a file that was read again in force.
pub type PutInForce = Box<dyn FnOnce() + Send>;

impl<T: Send + Sync + 'static> Reread for SecretFile<T> {
    fn read_again(self: Arc<Self>) -> Result<PutInForce, FileError> {
        let stamp = stamp(&self.path);
        let content = read(&self.path, self.parse).inspect_err(|error| {
            // A mistake is reported only once; after a failure that may pass, the file is read again.
            if error.is_mistake() {
                *self.stamp.lock() = stamp;
            }
        })?;
        Ok(Box::new(move || {
            *self.content.write() = Arc::new(content);
            *self.stamp.lock() = stamp;
        }))
    }

    fn reload_if_changed(self: Arc<Self>) -> Result<bool, FileError> {
        let has_changed = stamp(&self.path) != *self.stamp.lock();
        if has_changed {
            self.read_again()?();
        }
        Ok(has_changed)
    }
}

/// Returns whether two digests of secrets are equal. The time does not depend on their bytes, so
/// that it reveals nothing about a secret.
#[must_use]
pub fn equal_digests(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Returns the content of a file that others must not be able to read. No error contains any part
/// of the text.
fn read<T>(path: &Path, parse: fn(&str) -> Result<T, String>) -> Result<T, FileError> {
    let file = crate::open(path, Kinds::Regular).map_err(|error| error.unread(path))?;
    let shown = path.display();
    let mode = file.metadata.mode() & 0o777;
    if mode & 0o027 != 0 {
        return Err(FileError::mistake(format!(
            "{shown} is readable by everyone, or writable by others than its owner (mode {mode:03o}); \
             run chmod 600 {shown}"
        )));
    }
    let text = file.text().map_err(|error| error.unread(path))?;
    parse(&text).map_err(|why| FileError::mistake(format!("{shown}: {why}")))
}
