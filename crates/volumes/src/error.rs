//! Errors, by what the caller of a volume can do about them.

use blocker::Epoch;

/// The result of an operation on volumes.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason for which an operation on volumes failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no volume with this name.
    #[error("there is no volume {0:?}")]
    NoSuchVolume(String),
    /// The volume has no snapshot with this name.
    #[error("there is no snapshot {0:?} of this volume")]
    NoSuchSnapshot(String),
    /// A volume or a snapshot with this name exists.
    #[error("{0:?} exists already")]
    Exists(String),
    /// Another owner has the volume attached. That owner must close the volume, or this one take it
    /// over.
    #[error("the volume is in use by {owner:?}; close it there, or take it over")]
    InUse {
        /// The owner's name.
        owner: String,
    },
    /// The range ends beyond the end of the volume. Nothing was read or changed.
    #[error("the range of {length} bytes at {offset} ends beyond the volume's end, {size_bytes}")]
    OutOfRange {
        /// The offset at which the range begins, in bytes.
        offset: u64,
        /// The length of the range in bytes.
        length: u64,
        /// The size of the volume in bytes.
        size_bytes: u64,
    },
    /// The volume refuses changes: it was opened read-only, or its settings make it read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The store is full, or the volume's quota is exhausted. A part of the operation may have been
    /// done.
    #[error("no space: {0}")]
    NoSpace(String),
    /// Another owner has taken over the volume. This handle never works again.
    #[error("fenced off: another owner has taken the volume over")]
    Fenced {
        /// The epoch in force if the store reported it; otherwise 0.
        epoch: Epoch,
    },
    /// The volume was closed through this or another handle.
    #[error("the volume is closed")]
    Closed,
    /// The volume was handed over to another owner. This handle never works again.
    #[error("the volume was handed over to another owner")]
    HandedOver,
    /// An operation on the volume's snapshots was interrupted. Close the volume and open it again.
    #[error("an operation on the volume was abandoned half way: close it and open it again")]
    Interrupted,
    /// `write_zeroes` was called with `fast_only`, but zeroing the range is not fast. Nothing was
    /// changed.
    #[error("writing zeros here is no faster than writing data")]
    NotFast,
    /// Stored data are damaged. The text names the object.
    #[error("damaged: {0}")]
    Damaged(String),
    /// The request contradicts itself, or a value is out of its range.
    #[error("invalid: {0}")]
    Invalid(String),
    /// The store below lacks a feature that volumes need.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// A limit is reached.
    #[error("limit: {0}")]
    Limit(String),
    /// Any other failure of the store. After a failed write the range has the old bytes, the new
    /// bytes, or a mix of both.
    #[error("the store failed: {0}")]
    Io(blocker::Error),
}

impl From<blocker::Error> for Error {
    fn from(error: blocker::Error) -> Self {
        match error {
            blocker::Error::Fenced { epoch } => Self::Fenced { epoch },
            blocker::Error::OutOfSpace(why) => Self::NoSpace(why.into_owned()),
            other => Self::Io(other),
        }
    }
}
