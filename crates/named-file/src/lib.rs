//! Reads the files that a configuration, a flag or an environment variable names: configuration
//! files, certificates, keys, passwords and other secrets.
//!
//! Every program reads these files by the same rule: a regular file of at most [`BYTES_MAX`] bytes
//! or, where a command line may name one, a pipe. Anything else is refused without being read: a
//! device may have no end, and a FIFO would wait for a writer. A [`FileError`] distinguishes a
//! mistake, which persists until a person corrects it, from a failure of a disk or the system,
//! after which another attempt may succeed.
//!
//! ```
//! let error = named_file::read("/no/such/file".as_ref()).unwrap_err();
//! assert_eq!(error.to_string(), "No such file or directory");
//! assert!(error.is_mistake());
//! ```
#![warn(missing_debug_implementations)]

mod secret;

pub use secret::{PutInForce, Reread, SecretFile, equal_digests};

use rustix::fs::{FsWord, Mode, OFlags};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The maximum size of a file, in bytes: each file is read into memory as a whole.
pub const BYTES_MAX: u64 = 16 << 20;

/// Reads a regular file.
///
/// # Errors
/// Returns the reason why the file cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    open(path, Kinds::Regular)?.bytes()
}

/// The kinds of files that may be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kinds {
    /// Regular files.
    Regular,
    /// A regular file or a pipe, which can be read only once. A shell passes a pipe for
    /// `<(command)`, as a path below `/dev/fd`. A FIFO with a name in a directory is not a pipe in
    /// this sense.
    RegularOrPipe,
}

/// Opens a file.
///
/// # Errors
/// Returns the reason why the file cannot be opened.
pub fn open(path: &Path, kinds: Kinds) -> Result<NamedFile, FileError> {
    // The kind is checked before the file is opened, because opening a device can have effects.
    check(path, &std::fs::metadata(path)?, kinds)?;
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC;
    if kinds == Kinds::Regular {
        // Another process may have put a FIFO in place of the file in the meantime.
        flags |= OFlags::NONBLOCK;
    }
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?);
    let metadata = file.metadata()?;
    check(path, &metadata, kinds)?;
    Ok(NamedFile { file, metadata })
}

fn check(path: &Path, found: &Metadata, kinds: Kinds) -> Result<(), FileError> {
    /// The type of the file system of pipes without a name: `PIPEFS_MAGIC`.
    const PIPES: FsWord = 0x5049_5045;
    let kind = found.file_type();
    let kind = match kind {
        kind if kind.is_file() && found.len() <= BYTES_MAX => return Ok(()),
        kind if kind.is_file() => return Err(too_large()),
        kind if kind.is_fifo() => {
            let allows_pipe = kinds == Kinds::RegularOrPipe;
            if allows_pipe && rustix::fs::statfs(path).map_err(io::Error::from)?.f_type == PIPES {
                return Ok(());
            }
            "a FIFO"
        }
        kind if kind.is_dir() => "a directory",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(FileError::mistake(format!("it is {kind}, not a regular file")))
}

fn too_large() -> FileError {
    FileError::mistake(format!("it is larger than {BYTES_MAX} bytes"))
}

/// An open file.
#[derive(Debug)]
pub struct NamedFile {
    file: File,
    /// The file's metadata when it was opened.
    pub metadata: Metadata,
}

impl NamedFile {
    /// Reads the whole file.
    ///
    /// # Errors
    /// Returns the system's error, or an error if the file has become too large.
    pub fn bytes(self) -> Result<Vec<u8>, FileError> {
        let mut bytes = Vec::new();
        self.file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 {
            0..=BYTES_MAX => Ok(bytes),
            _ => Err(too_large()),
        }
    }

    /// Reads the whole file as text.
    ///
    /// # Errors
    /// Returns the errors of [`Self::bytes`], and an error if the file is not UTF-8.
    pub fn text(self) -> Result<String, FileError> {
        String::from_utf8(self.bytes()?).map_err(|_| FileError::mistake("it is not UTF-8 text"))
    }
}

/// The reason why a file cannot be used, without the file's path, as a part of one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileError {
    why: String,
    is_mistake: bool,
}

impl FileError {
    /// Returns a mistake, for example in the content of the file.
    pub fn mistake(why: impl Into<String>) -> FileError {
        FileError { why: why.into(), is_mistake: true }
    }

    /// Returns the same kind of error, with the reason replaced by what `text` returns for it.
    #[must_use]
    pub fn reworded(self, text: impl FnOnce(&str) -> String) -> FileError {
        FileError { why: text(&self.why), ..self }
    }

    /// Returns the same kind of error with the path.
    #[must_use]
    pub fn unread(self, path: &Path) -> FileError {
        self.reworded(|why| format!("cannot read {}: {why}", path.display()))
    }

    /// Returns whether the error persists until a person changes the path, the file or its
    /// permissions. Otherwise it is a failure of a disk or the system, which may pass.
    #[must_use]
    pub fn is_mistake(&self) -> bool {
        self.is_mistake
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> FileError {
        let text = error.to_string();
        // The text is shown without the number of the error.
        let why = text.split(" (os error").next().unwrap_or_default().to_owned();
        FileError { why, is_mistake: is_mistake(&error) }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for FileError {}

impl From<FileError> for String {
    fn from(error: FileError) -> String {
        error.why
    }
}

/// Returns whether `error` persists until a person changes the path, what is there, or the
/// permissions. All other errors are failures of a disk or the system, which may pass.
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

/// Identifies the state of a file: device, inode, length, and the times of the last changes; `None`
/// for a missing file.
pub type Stamp = Option<(u64, u64, u64, i64, i64, i64, i64)>;

/// Returns the state of a file.
#[must_use]
pub fn stamp(path: &Path) -> Stamp {
    let found = std::fs::metadata(path).ok()?;
    let (modified, changed) = ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()));
    Some((found.dev(), found.ino(), found.len(), modified.0, modified.1, changed.0, changed.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_disk_or_a_system_that_fails_is_no_mistake() {
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
        // The first page of this file is not mapped, so the read fails with EIO.
        let error = read("/proc/self/mem".as_ref()).unwrap_err();
        assert!(!error.is_mistake() && error.to_string() == "Input/output error", "{error}");
    }

    #[test]
    fn only_regular_files_of_limited_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        File::create(path("most")).unwrap().set_len(BYTES_MAX).unwrap();
        File::create(path("large")).unwrap().set_len(BYTES_MAX + 1).unwrap();
        symlink(path("loop"), path("loop")).unwrap();
        symlink(path("most"), path("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        for name in ["most", "link"] {
            assert_eq!(read(&path(name)).unwrap().len() as u64, BYTES_MAX, "{name}");
        }
        for kinds in [Kinds::Regular, Kinds::RegularOrPipe] {
            for (wrong, why) in [
                (path("large"), "it is larger than 16777216 bytes"),
                (path("loop"), "Too many levels of symbolic links"),
                (path("socket"), "it is a socket, not a regular file"),
                (path("fifo"), "it is a FIFO, not a regular file"),
                (path(""), "it is a directory, not a regular file"),
                (path("most/file"), "Not a directory"),
                (path(&"n".repeat(300)), "File name too long"),
                ("/dev/zero".into(), "it is a device, not a regular file"),
            ] {
                let error = open(&wrong, kinds).unwrap_err();
                assert_eq!((error.to_string().as_str(), error.is_mistake()), (why, true), "{wrong:?}");
            }
        }
    }

    #[test]
    fn a_pipe_is_read_to_its_end_where_it_is_allowed() {
        let (reader, mut writer) = io::pipe().unwrap();
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        let path = Path::new(&path);
        assert_eq!(read(path).unwrap_err().to_string(), "it is a FIFO, not a regular file");
        let text = std::thread::spawn(move || {
            writer.write_all(b"a").unwrap();
            writer.write_all(b"b").unwrap();
        });
        assert_eq!(open(path, Kinds::RegularOrPipe).unwrap().text().as_deref(), Ok("ab"));
        text.join().unwrap();
    }
}
