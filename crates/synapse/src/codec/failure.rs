//! The contract's errors in a header's fields, with their reason as the payload.

use std::borrow::Cow;

use blocker::{Epoch, Error, Stamp, Version};

use super::header::Header;
use super::status::Status;

/// The longest reason that is sent, in bytes; the rest is cut off.
pub const REASON_BYTES_MAX: usize = 512;

/// Puts an error into a header. Returns its reason, which is sent as the payload.
pub(super) fn put_error<'a>(header: &mut Header, error: &'a Error) -> &'a str {
    let mut reason = "";
    header.status = match error {
        Error::Missing => Status::Missing,
        Error::Exists => Status::Exists,
        Error::ConditionFailed { version } => {
            header.version = version.0;
            Status::ConditionFailed
        }
        Error::Mismatch { offset } => {
            header.offset = *offset;
            Status::Mismatch
        }
        Error::Fenced { epoch } => {
            header.epoch = epoch.0;
            Status::Fenced
        }
        Error::Superseded { stamp } => {
            (header.epoch, header.sequence) = (stamp.epoch.0, stamp.sequence);
            Status::Superseded
        }
        Error::DeadlinePassed => Status::DeadlinePassed,
        Error::TooLarge { limit_bytes } => {
            header.length = *limit_bytes;
            Status::TooLarge
        }
        Error::NotStored(text)
        | Error::OutcomeUnknown(text)
        | Error::OutOfSpace(text)
        | Error::Retryable(text)
        | Error::Corrupt(text)
        | Error::WritesLost(text)
        | Error::Unsupported(text)
        | Error::Denied(text)
        | Error::Invalid(text) => {
            reason = text;
            match error {
                Error::NotStored(_) => Status::NotStored,
                Error::OutOfSpace(_) => Status::OutOfSpace,
                Error::Retryable(_) => Status::Retryable,
                Error::Corrupt(_) => Status::Corrupt,
                Error::WritesLost(_) => Status::WritesLost,
                Error::Unsupported(_) => Status::Unsupported,
                Error::Denied(_) => Status::Denied,
                Error::Invalid(_) => Status::Invalid,
                _ => Status::OutcomeUnknown,
            }
        }
        // This version has no status for the error: *outcome unknown* promises the least.
        _ => Status::OutcomeUnknown,
    };
    cut(reason)
}

/// Returns the part of a reason that is sent: whole characters up to the limit.
pub(super) fn cut(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)]
}

/// Returns a received reason. It is only text for people, so one that is too long or not UTF-8 is
/// cut or repaired instead of refused: the status must not be lost because of it.
pub(super) fn read_reason(payload: &[u8]) -> Cow<'static, str> {
    let shown = String::from_utf8_lossy(&payload[..payload.len().min(REASON_BYTES_MAX)]);
    // The replacement characters may be longer than the bytes that they replace.
    Cow::Owned(cut(&shown).to_owned())
}

/// Returns the error in a reply's header and payload; `None` if the status is not one of the
/// contract's errors.
pub(super) fn take_error(header: &Header, reason: &[u8]) -> Option<Error> {
    let text = || read_reason(reason);
    Some(match header.status {
        Status::Missing => Error::Missing,
        Status::Exists => Error::Exists,
        Status::ConditionFailed => Error::ConditionFailed { version: Version(header.version) },
        Status::Mismatch => Error::Mismatch { offset: header.offset },
        Status::Fenced => Error::Fenced { epoch: Epoch(header.epoch) },
        Status::Superseded => Error::Superseded { stamp: Stamp::new(header.epoch, header.sequence) },
        Status::NotStored => Error::NotStored(text()),
        Status::OutcomeUnknown => Error::OutcomeUnknown(text()),
        Status::DeadlinePassed => Error::DeadlinePassed,
        Status::OutOfSpace => Error::OutOfSpace(text()),
        Status::Retryable => Error::Retryable(text()),
        Status::Corrupt => Error::Corrupt(text()),
        Status::WritesLost => Error::WritesLost(text()),
        Status::Unsupported => Error::Unsupported(text()),
        Status::TooLarge => Error::TooLarge { limit_bytes: header.length },
        Status::Denied => Error::Denied(text()),
        Status::Invalid => Error::Invalid(text()),
        Status::Ok | Status::Cancelled | Status::Challenge | Status::Replaced | Status::Ending => {
            return None;
        }
    })
}
