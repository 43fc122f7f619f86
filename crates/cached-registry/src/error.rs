//! Errors, grouped by what the caller can do.

use std::borrow::Cow;

use crate::agreement::Usurped;
use crate::document::{Key, Revision};

/// The text of an error, for people.
pub type Reason = Cow<'static, str>;

/// The result of an operation of the registry.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation of the registry failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A document does not have the expected revision, and nothing was changed. Read it again.
    #[error("{key} is not as expected: it {}", .found.map_or("does not exist".to_owned(), |found| format!("has revision {found}")))]
    Conflict {
        /// The document.
        key: Key,
        /// The document's revision; `None` if the document does not exist.
        found: Option<Revision>,
    },
    /// The lease has ended, and nothing was changed. Take a new lease.
    #[error("the lease has ended")]
    LeaseEnded,
    /// The changes after the watch's revision are no longer known: list again, and watch from the
    /// listing's revision.
    #[error("the registry no longer has the changes after revision {after}; list again")]
    Compacted {
        /// The revision after which the watch was to continue.
        after: Revision,
    },
    /// Nothing was changed. The same request may succeed later.
    #[error("the registry is not available: {0}")]
    Unavailable(Reason),
    /// The change may have been made, or may still be made. Read the state before changing it
    /// again.
    #[error("the outcome of the change is unknown: {0}")]
    OutcomeUnknown(Reason),
    /// The registry refuses the caller, or all changes.
    #[error("{0}")]
    Denied(Reason),
    /// The request exceeds a limit.
    #[error("too large: {0}")]
    TooLarge(Reason),
    /// The request is invalid.
    #[error("{0}")]
    Invalid(Reason),
    /// The registry's content is damaged.
    #[error("the registry is damaged: {0}")]
    Corrupt(Reason),
}

impl From<Usurped> for Error {
    fn from(usurped: Usurped) -> Self {
        Self::Denied(usurped.to_string().into())
    }
}
