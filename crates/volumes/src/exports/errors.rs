//! Errors of volumes, as the NBD server has them.

use crate::error::Error;
use blocker::{Epoch, Error as StoreError};
use nbd::protocol::NoExport;

/// Returns why a volume cannot be exported.
pub(crate) fn no_export(error: Error) -> NoExport {
    match error {
        Error::NoSuchVolume(_) => NoExport::Unknown,
        error => NoExport::Refused(error.to_string()),
    }
}

/// Returns the error of a request.
pub(crate) fn of_request(error: Error) -> StoreError {
    match error {
        Error::Io(error) => error,
        Error::Fenced { epoch } => StoreError::Fenced { epoch },
        // To a client both mean: another server has it.
        Error::HandedOver => StoreError::Fenced { epoch: Epoch(0) },
        // What is used up is to be freed by an operator, and the guest can wait for that.
        Error::NoSpace(why) | Error::Limit(why) => StoreError::OutOfSpace(why.into()),
        Error::ReadOnly => StoreError::Denied("the volume is read-only".into()),
        Error::NotFast => StoreError::Unsupported("zeros are no faster than data here".into()),
        error @ (Error::Closed | Error::Interrupted) => StoreError::Retryable(error.to_string().into()),
        error @ Error::Damaged(_) => StoreError::Corrupt(error.to_string().into()),
        error => StoreError::Invalid(error.to_string().into()),
    }
}
