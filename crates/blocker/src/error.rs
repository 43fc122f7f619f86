//! Errors, grouped by how the caller should react: the documentation of each variant states what
//! has happened to the data, and what the caller should do next.
//!
//! Nothing was changed, except with [`Error::OutcomeUnknown`] (perhaps), [`Error::NotStored`]
//! (changed, but not stored) and [`Error::WritesLost`] (changed, and unstored data may be lost).

use std::borrow::Cow;
use std::io;

use crate::{Epoch, Stamp, Version};

/// The text of an error, for people. Programs use the variant.
pub type Reason = Cow<'static, str>;

/// The result of an operation of the contract.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object does not exist. Create it, or report the error.
    #[error("no such object")]
    Missing,
    /// The object exists, and the request was conditional on its absence.
    #[error("the object exists already")]
    Exists,
    /// The object's version differs from the version that the request requires. Read it again, then
    /// retry.
    #[error("the object has version {version}, not the requested one")]
    ConditionFailed {
        /// The object's version.
        version: Version,
    },
    /// `compare_and_write` found other bytes. Read the object again, then retry.
    #[error("the bytes differ from the expected bytes, first at offset {offset}")]
    Mismatch {
        /// The first differing offset within the object.
        offset: u64,
    },
    /// A writer with a newer epoch has taken over. Stop writing: a retry never succeeds.
    #[error("fenced off: epoch {epoch} has taken over")]
    Fenced {
        /// The epoch in force.
        epoch: Epoch,
    },
    /// The object already carries this stamp, or a later one of the same epoch. If the stamp equals
    /// the request's, that change was applied before: treat the request as done.
    #[error("superseded: the object already has stamp {stamp}")]
    Superseded {
        /// The object's stamp.
        stamp: Stamp,
    },
    /// A flush failed or did not finish in time, or a change was made but not stored as requested.
    /// The affected data are still dirty and readable: flush again.
    #[error("not stored: {0}")]
    NotStored(Reason),
    /// The change may or may not have been applied as a whole; it may even be applied later. Read
    /// the stamp or the bytes before the next change of that object.
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(Reason),
    /// The deadline passed before the operation began. Nothing was changed, and nothing will be.
    #[error("the deadline passed before the operation began")]
    DeadlinePassed,
    /// The store is full, or the namespace's quota is used up. Free space, or back off.
    #[error("out of space: {0}")]
    OutOfSpace(Reason),
    /// Nothing was done. The same request may succeed shortly.
    #[error("try again: {0}")]
    Retryable(Reason),
    /// Stored data fail their checks, or cannot be read from the medium. Repair the data from
    /// another copy: a retry does not help.
    #[error("corrupt: {0}")]
    Corrupt(Reason),
    /// Changes acknowledged as less than *stored* have been lost below, for example by a failed
    /// fsync. Write unstored data again. The error stays until the object is written in full,
    /// deleted, or invalidated.
    #[error("writes not yet stored were lost: {0}")]
    WritesLost(Reason),
    /// This blocker does not support the request, as its capabilities state.
    #[error("unsupported: {0}")]
    Unsupported(Reason),
    /// The request, or the object that the request would create, exceeds a limit. Split the
    /// request.
    #[error("too large: the limit is {limit_bytes} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// The caller lacks the permission, or another process has the store open.
    #[error("denied: {0}")]
    Denied(Reason),
    /// The request is invalid: a bug in the caller.
    #[error("invalid request: {0}")]
    Invalid(Reason),
}

impl Error {
    /// Returns whether the same request, unchanged, may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Retryable(_) | Self::NotStored(_) | Self::OutOfSpace(_))
    }

    /// Returns whether the change may have been applied nevertheless.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, Self::OutcomeUnknown(_))
    }

    /// Returns whether the error only reports the object's state: the object is missing, already
    /// exists, or differs from what the request expects. The store works, so traces and metrics do
    /// not count such an error as a failure.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Missing
                | Self::Exists
                | Self::ConditionFailed { .. }
                | Self::Mismatch { .. }
                | Self::Superseded { .. }
        )
    }

    /// Returns the variant's name for logs, metrics and JSON.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Exists => "exists",
            Self::ConditionFailed { .. } => "condition_failed",
            Self::Mismatch { .. } => "mismatch",
            Self::Fenced { .. } => "fenced",
            Self::Superseded { .. } => "superseded",
            Self::NotStored(_) => "not_stored",
            Self::OutcomeUnknown(_) => "outcome_unknown",
            Self::DeadlinePassed => "deadline_passed",
            Self::OutOfSpace(_) => "out_of_space",
            Self::Retryable(_) => "retryable",
            Self::Corrupt(_) => "corrupt",
            Self::WritesLost(_) => "writes_lost",
            Self::Unsupported(_) => "unsupported",
            Self::TooLarge { .. } => "too_large",
            Self::Denied(_) => "denied",
            Self::Invalid(_) => "invalid",
        }
    }

    /// Converts a system error of an operation that changed nothing. `what` names the operation.
    #[must_use]
    pub fn from_io(error: &io::Error, what: &str) -> Self {
        use io::ErrorKind as Kind;
        let reason = || Reason::from(format!("{what}: {error}"));
        match error.kind() {
            Kind::StorageFull | Kind::QuotaExceeded => Self::OutOfSpace(reason()),
            Kind::PermissionDenied | Kind::ReadOnlyFilesystem | Kind::NotADirectory | Kind::IsADirectory => {
                Self::Denied(reason())
            }
            Kind::Unsupported => Self::Unsupported(reason()),
            // A system error does not prove that data are damaged.
            _ => Self::Retryable(reason()),
        }
    }

    /// Converts a system error of a read of stored data. If the medium cannot return the data, the
    /// error is `Corrupt`; any other error is converted by [`from_io`](Self::from_io).
    #[must_use]
    pub fn from_read(error: &io::Error, what: &str) -> Self {
        /// EIO, EBADMSG, EUCLEAN, EREMOTEIO.
        const MEDIUM: [i32; 4] = [5, 74, 117, 121];
        match error.raw_os_error() {
            Some(code) if MEDIUM.contains(&code) => Self::Corrupt(format!("{what}: {error}").into()),
            _ => Self::from_io(error, what),
        }
    }
}

const _: () = assert!(size_of::<Error>() <= 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_os_error_maps_to_what_the_caller_can_do() {
        let kind = |code| Error::from_io(&io::Error::from_raw_os_error(code), "x").kind();
        assert_eq!(kind(28), "out_of_space");
        assert_eq!(kind(13), "denied");
        assert_eq!(kind(24), "retryable");
        assert_eq!(kind(5), "retryable");
        let read = |code| Error::from_read(&io::Error::from_raw_os_error(code), "x").kind();
        assert_eq!((read(5), read(24), read(13)), ("corrupt", "retryable", "denied"));
    }
}
