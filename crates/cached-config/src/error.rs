//! Errors about single values of a configuration: the key, the problem and the remedy.

use cached_core::policy;
use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use synapse::Secret;

/// A key with an invalid value. [`ConfigFileError`](crate::ConfigFileError) adds the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The key with its tables, separated by dots.
    pub key: String,
    /// The problem and the remedy.
    pub why: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.why)
    }
}

/// Returns an error about `key`.
///
/// # Errors
/// Always.
pub fn invalid<T>(key: impl Into<String>, why: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError { key: key.into(), why: why.into() })
}

/// Returns an error about `key` unless `holds`.
///
/// # Errors
/// [`ConfigError`] with `why`.
pub fn require(holds: bool, key: &str, why: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { invalid(key, why()) }
}

/// Returns `value`, which must be within `range`.
///
/// # Errors
/// [`ConfigError`] if it is not.
pub fn within<T: PartialOrd + fmt::Display>(
    key: &str,
    value: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, ConfigError> {
    if range.contains(&value) {
        return Ok(value);
    }
    invalid(key, format!("is {value}; it must be between {} and {}", range.start(), range.end()))
}

/// Checks that the file is readable, if one is named.
///
/// # Errors
/// [`ConfigError`] with the reason why it is not.
pub(crate) fn can_be_read(key: &str, path: &Path) -> Result<(), ConfigError> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    match std::fs::File::open(path) {
        Ok(_) => Ok(()),
        Err(error) => invalid(key, format!("is {}, which cannot be read: {error}", path.display())),
    }
}

/// Returns the secret in the file `path`, or `None` if `path` is empty.
///
/// # Errors
/// [`ConfigError`] with the problem of the file.
pub fn secret(key: &str, path: &Path) -> Result<Option<Secret>, ConfigError> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    Secret::from_file(path).map(Some).map_err(|error| ConfigError { key: key.into(), why: error.to_string() })
}

/// Returns a warning if users other than the owner can read the file of a secret.
#[must_use]
pub fn secret_warning(path: &Path) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & 0o044 != 0).then(|| {
        let path = path.display();
        format!("the secret in {path} can be read by others (mode {mode:03o}); chmod 600 {path} keeps it")
    })
}

/// Returns whether `error` persists until the configured path, what is there, or the permissions
/// are changed. All other errors are failures of a disk or the system, which may pass.
#[must_use]
pub fn is_mistake(error: &io::Error) -> bool {
    let is_loop = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    is_loop
        || matches!(
            error.kind(),
            ErrorKind::NotFound
                | ErrorKind::PermissionDenied
                | ErrorKind::AlreadyExists
                | ErrorKind::NotADirectory
                | ErrorKind::IsADirectory
                | ErrorKind::ReadOnlyFilesystem
                | ErrorKind::InvalidInput
                | ErrorKind::InvalidFilename
                | ErrorKind::InvalidData
                | ErrorKind::Unsupported
        )
}

/// The maximum number of bytes of a named file that are read to find out whether it is readable;
/// most files are smaller.
const NAMED_BYTES_READ: u64 = 1 << 20;

/// The maximum size of a file that the configuration may name, in bytes: each is read as a whole.
const NAMED_BYTES_MAX: u64 = 16 << 20;

/// Returns the reason why a configured path is not a regular file, if it is not: reading a FIFO
/// would wait for a writer, and reading a device would never end. Directories and missing files are
/// left for the reader to report.
pub(crate) fn unreadable_kind(path: &Path) -> Option<String> {
    let found = std::fs::metadata(path).ok()?;
    let kind = found.file_type();
    if kind.is_file() {
        let (size, most) = (found.len(), NAMED_BYTES_MAX);
        return (size > most).then(|| format!("which has {size} bytes; it may have at most {most}"));
    }
    let kind = match kind {
        kind if kind.is_dir() => return None,
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Some(format!("which is {kind}; it must be a regular file"))
}

/// Returns the reason why a configured file cannot be read at present through no fault of the
/// configuration. A missing file or a lack of permission is such a fault, which the check of the
/// key reports.
#[must_use]
pub fn reading_trouble(path: &Path) -> Option<io::Error> {
    let read = || {
        // Nothing here waits for the writer of a FIFO.
        if !std::fs::metadata(path)?.is_file() {
            return Ok(());
        }
        let file = std::fs::File::open(path)?;
        io::copy(&mut file.take(NAMED_BYTES_READ), &mut io::sink()).map(drop)
    };
    read().err().filter(|error| !is_mistake(error))
}

/// Returns the eviction policy called `name`.
///
/// # Errors
/// [`ConfigError`] if there is no such policy.
pub fn eviction_policy(key: &str, name: &str) -> Result<&'static str, ConfigError> {
    match policy::NAMES.iter().find(|known| **known == name) {
        Some(known) => Ok(known),
        None => invalid(key, format!("is \"{name}\"; it must be one of {}", policy::NAMES.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn a_disk_or_a_system_that_fails_is_no_mistake_of_the_configuration() {
        for mistake in [
            Errno::NOENT,
            Errno::ACCESS,
            Errno::PERM,
            Errno::NOTDIR,
            Errno::ISDIR,
            Errno::ROFS,
            Errno::LOOP,
            Errno::NAMETOOLONG,
            Errno::INVAL,
        ] {
            assert!(is_mistake(&mistake.into()), "{mistake}");
        }
        for trouble in [
            Errno::IO,
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::STALE,
            Errno::TIMEDOUT,
            Errno::AGAIN,
            Errno::INTR,
        ] {
            assert!(!is_mistake(&trouble.into()), "{trouble}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_now_is_told_from_one_that_is_wrong() {
        // The first page of this file is not mapped: EIO.
        let error = reading_trouble("/proc/self/mem".as_ref()).unwrap();
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
        for wrong in ["/no/such/file", "/etc", "/dev/null/file", "/etc/hostname"] {
            assert!(reading_trouble(wrong.as_ref()).is_none(), "{wrong}");
        }
    }

    #[test]
    fn what_has_no_end_is_no_file_to_be_read() {
        for none in ["/no/such/file", "/etc", "/etc/hostname"] {
            assert_eq!(unreadable_kind(none.as_ref()), None, "{none}");
        }
        let device = unreadable_kind("/dev/zero".as_ref());
        assert_eq!(device.as_deref(), Some("which is a device; it must be a regular file"));
        let large = std::env::temp_dir().join(format!("cached-config-large-{}", std::process::id()));
        std::fs::File::create(&large).unwrap().set_len(NAMED_BYTES_MAX + 1).unwrap();
        let found = unreadable_kind(&large);
        std::fs::remove_file(&large).unwrap();
        assert!(found.unwrap().starts_with("which has 16777217 bytes"));
    }
}
