//! What a call returns whose answer does not arrive.

use blocker::Error;

use crate::codec::{Kind, Op};

/// Returns the error of a request whose deadline passes after it was sent.
pub(super) fn deadline_error(op: Op) -> Error {
    const WHY: &str = "no answer before the deadline";
    match op.kind() {
        Kind::Change => Error::OutcomeUnknown(WHY.into()),
        Kind::Flush => Error::NotStored(WHY.into()),
        Kind::Repeatable if op == Op::Claim => Error::OutcomeUnknown(WHY.into()),
        Kind::Repeatable => Error::Retryable(WHY.into()),
        Kind::Query | Kind::Connection => Error::DeadlinePassed,
    }
}

/// Returns the error of a request that was sent and whose answer cannot arrive any more.
pub(super) fn lost_error(op: Op) -> Error {
    const WHY: &str = "the server was gone before it answered";
    match op.kind() {
        Kind::Change => Error::OutcomeUnknown(WHY.into()),
        Kind::Flush => Error::NotStored(WHY.into()),
        Kind::Repeatable if op == Op::Claim => Error::OutcomeUnknown(WHY.into()),
        Kind::Repeatable | Kind::Query | Kind::Connection => Error::Retryable(WHY.into()),
    }
}

/// Returns the error of a request that was not sent because there is no connection.
pub(super) fn unreachable_error(why: &Error) -> Error {
    match why {
        Error::Denied(_) => why.clone(),
        Error::Retryable(text) => Error::Retryable(text.clone()),
        other => Error::Retryable(format!("not connected: {other}").into()),
    }
}

/// Returns the error of a request whose answer arrived with a damaged payload: only its head can be trusted.
pub(super) fn damaged_error(op: Op) -> Error {
    match op.kind() {
        Kind::Change => Error::OutcomeUnknown("the answer was damaged on the way".into()),
        _ => Error::Retryable("the answer was damaged on the way".into()),
    }
}
