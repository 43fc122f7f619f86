//! What a server sends without being asked (events and goodbyes), and errors as bytes.

use std::borrow::Cow;

use blocker::{Epoch, Error, Event, Stamp, Version};

use super::fields::{Names, put_scope, take_scope};
use super::frame::{Attached, Head, Writer, encode, invalid, kind};
use super::header::{Header, RequestId, Status};
use super::hello::{Features, Versions};
use super::op::Op;

/// Appends an event, for a peer with these features.
pub fn encode_event(out: &mut Vec<u8>, event: &Event, features: Features) {
    let mut header = Header::new(Op::Event, RequestId::default());
    let mut names: [&[u8]; 4] = [&[]; 4];
    let mut reason: &[u8] = &[];
    header.length = match event {
        Event::Changed(scope) => {
            put_scope(&mut header, &mut names, scope);
            1
        }
        Event::Fenced(scope, epoch) => {
            put_scope(&mut header, &mut names, scope);
            header.epoch = epoch.0;
            2
        }
        Event::Full => 3,
        Event::Degraded(text) => {
            reason = cut(text).as_bytes();
            4
        }
        Event::Recovered => 5,
        Event::WritesLost(scope) if features.has(Features::WRITES_LOST) => {
            put_scope(&mut header, &mut names, scope);
            7
        }
        // `Missed`, and events for which the peer has no code, make the peer treat everything as
        // changed.
        _ => 6,
    };
    let attached = Attached { names, payload_bytes: reason.len() as u32, ..Attached::default() };
    encode(out, &header, &attached);
    out.extend_from_slice(reason);
}

/// Reads an event.
///
/// # Errors
/// Returns [`Error::Invalid`] if the event is malformed.
pub fn decode_event(head: &Head<'_>, payload: &[u8], names: &mut Names) -> Result<Event, Error> {
    Ok(match head.header.length {
        1 => Event::Changed(take_scope(head, names)?),
        2 => Event::Fenced(take_scope(head, names)?, Epoch(head.header.epoch)),
        3 => Event::Full,
        4 => Event::Degraded(read_reason(payload)),
        5 => Event::Recovered,
        6 => Event::Missed,
        7 => Event::WritesLost(take_scope(head, names)?),
        _ => return Err(invalid("no such event")),
    })
}

// ---- The last frame of a connection: why it is closed, and which versions of the protocol the sender has.

/// Appends a goodbye with its cause, which is a status or an error, and with the versions that this
/// side supports.
pub fn encode_goodbye(out: &mut Vec<u8>, why: Result<Status, &Error>) {
    let mut header = Header::new(Op::Goodbye, RequestId::default());
    let reason = match why {
        Ok(status) => {
            header.status = status;
            ""
        }
        Err(error) => put_error(&mut header, error),
    };
    let mut writer = Writer::default();
    writer.put(kind::VERSIONS, &[Versions::OWN.lowest, Versions::OWN.highest]);
    let payload_bytes = reason.len() as u32;
    encode(out, &header, &Attached { extension: writer.bytes(), payload_bytes, ..Attached::default() });
    out.extend_from_slice(reason.as_bytes());
}

/// Returns why the peer closes the connection.
#[must_use]
pub fn decode_goodbye(header: &Header, reason: &[u8]) -> Error {
    take_error(header, reason).unwrap_or(match header.status {
        Status::Replaced => Error::Retryable("another connection has taken the session over".into()),
        Status::Ending => Error::Retryable("the other side is ending".into()),
        _ => Error::Retryable("the other side has closed the connection".into()),
    })
}

// ---- The contract's errors in a header's fields, with the reason as the payload.

/// The longest reason that is sent, in bytes; the rest is cut off.
pub const REASON_BYTES_MAX: usize = 512;

/// Puts an error into a header. Returns the error's reason, which is sent as the payload.
pub(super) fn put_error<'a>(header: &mut Header, error: &'a Error) -> &'a str {
    let (status, reason): (Status, &str) = match error {
        Error::Missing => (Status::Missing, ""),
        Error::Exists => (Status::Exists, ""),
        Error::ConditionFailed { version } => {
            header.version = version.0;
            (Status::ConditionFailed, "")
        }
        Error::Mismatch { offset } => {
            header.offset = *offset;
            (Status::Mismatch, "")
        }
        Error::Fenced { epoch } => {
            header.epoch = epoch.0;
            (Status::Fenced, "")
        }
        Error::Superseded { stamp } => {
            (header.epoch, header.sequence) = (stamp.epoch.0, stamp.sequence);
            (Status::Superseded, "")
        }
        Error::DeadlinePassed => (Status::DeadlinePassed, ""),
        Error::TooLarge { limit_bytes } => {
            header.length = *limit_bytes;
            (Status::TooLarge, "")
        }
        Error::NotStored(text) => (Status::NotStored, text),
        Error::OutcomeUnknown(text) => (Status::OutcomeUnknown, text),
        Error::OutOfSpace(text) => (Status::OutOfSpace, text),
        Error::Retryable(text) => (Status::Retryable, text),
        Error::Corrupt(text) => (Status::Corrupt, text),
        Error::WritesLost(text) => (Status::WritesLost, text),
        Error::Unsupported(text) => (Status::Unsupported, text),
        Error::Denied(text) => (Status::Denied, text),
        Error::Invalid(text) => (Status::Invalid, text),
        // The error has no status of its own. An unknown outcome claims the least.
        _ => (Status::OutcomeUnknown, ""),
    };
    header.status = status;
    cut(reason)
}

/// Returns the part of a reason that is sent: whole characters.
pub(super) fn cut(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)]
}

/// Returns a reason as text for people. A reason decides nothing, so one that is too long is cut,
/// and bytes that are not UTF-8 are replaced: the status, which counts, must not be lost because of
/// them.
pub(super) fn read_reason(payload: &[u8]) -> Cow<'static, str> {
    let shown = String::from_utf8_lossy(&payload[..payload.len().min(REASON_BYTES_MAX)]);
    // The replacement characters may be longer than the bytes that they replace.
    Cow::Owned(cut(&shown).to_owned())
}

/// Returns the error of a reply's header and payload; `None` if the status is not one of the contract's
/// errors.
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

#[cfg(test)]
mod tests {
    use super::super::frame::decode;
    use super::super::hello::versions;
    use super::*;

    #[test]
    fn a_goodbye_carries_its_cause() {
        let mut out = Vec::new();
        encode_goodbye(&mut out, Err(&Error::Denied("wrong secret".into())));
        let head = decode(&out, 512).unwrap().unwrap();
        let reason = &out[head.head_bytes..];
        assert_eq!(decode_goodbye(&head.header, reason), Error::Denied("wrong secret".into()));
        assert_eq!(versions(&head), Some(Versions::OWN));
    }
}
