//! Errors, grouped by who must act on them.

use std::io;

use thiserror::Error;

/// An operation of the disk failed.
#[derive(Debug, Error)]
#[error("{file}: {operation} failed: {error}")]
pub struct DiskError {
    /// The file's name in the journal's directory.
    pub file: String,
    /// The operation, as a verb: `write`, `sync`, `open`.
    pub operation: &'static str,
    /// The operating system's error.
    #[source]
    pub error: io::Error,
}

impl DiskError {
    pub(crate) fn new(file: &str, operation: &'static str, error: io::Error) -> Self {
        Self { file: file.to_owned(), operation, error }
    }

    /// Returns a function that creates the error of an operation on a file.
    pub(crate) fn in_file(file: &str, operation: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::new(file, operation, error)
    }
}

/// Damaged bytes on disk that no crash of this program explains.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{file} at byte {offset}: {reason}")]
pub struct Corruption {
    /// The file's name in the journal's directory.
    pub file: String,
    /// The offset in the file at which the damage begins.
    pub offset: u64,
    /// A description of the damage: the content found, and the expected content.
    pub reason: String,
}

impl Corruption {
    pub(crate) fn new(file: &str, offset: u64, reason: impl Into<String>) -> Self {
        Self { file: file.to_owned(), offset, reason: reason.into() }
    }
}

/// The reason why a journal could not be opened, or not be read by a tool.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process, or another `Journal` of this one, has the directory open.
    #[error("the journal is in use: another process holds the lock of its directory")]
    Locked,
    /// The configuration cannot be used.
    #[error("the journal's configuration is wrong: {0}")]
    Config(String),
    /// The directory has no journal, or is missing, and none may be created. Nothing was changed.
    #[error("there is no journal")]
    Missing,
    /// The directory has other files, but no journal. Nothing was changed.
    #[error("the directory holds {file}, but no journal: give the journal a directory of its own")]
    Foreign {
        /// The name of one of the files.
        file: String,
    },
    /// The journal is damaged. Nothing was changed. `verify` lists the damage, `export` reads the
    /// readable records, `discard` removes the journal.
    #[error(
        "the journal is corrupt: {0}; verify lists all damage, export saves what is readable, discard starts anew"
    )]
    Corrupt(#[from] Corruption),
    /// The disk failed.
    #[error("the journal's disk failed: {0}")]
    Disk(#[from] DiskError),
}

/// The reason why a record was not appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AppendError {
    /// The journal is full. Releasing holds of the oldest segment frees space; the next event is
    /// `Event::Room`.
    #[error("the journal is full")]
    Full,
    /// More bytes wait for the disk than `unsynced_bytes_max`. The next commit frees space; the
    /// next event is `Event::Room`.
    #[error("the journal's disk is too slow: too many bytes wait for it")]
    Busy,
    /// The disk has failed, and no segment works now. The next event is `Event::Restarted`.
    #[error("the journal's disk has failed")]
    Failed,
    /// The record's payload or name is longer than allowed, or the reservation does not cover it.
    #[error("the record is too large for the journal or for its reservation")]
    TooLarge,
    /// The journal has been closed.
    #[error("the journal is closed")]
    Closed,
}

/// A record did not become durable: the disk failed before it was synced. The next recovery may
/// find it if the process ends before `Event::Restarted`, and never finds it afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the journal's disk failed before the record was synced")]
pub struct NotDurable;

/// A record's payload could not be read back.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The payload does not match its checksum.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl From<ReadError> for OpenError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Corrupt(corruption) => Self::Corrupt(corruption),
            ReadError::Disk(error) => Self::Disk(error),
        }
    }
}
