//! The last frame of a connection: why it is closed, and which versions of the protocol the sender has.

use blocker::Error;

use super::extension::{Writer, kind};
use super::failure::{put_error, take_error};
use super::frame::{Attached, encode};
use super::header::{Header, RequestId};
use super::hello::Versions;
use super::op::Op;
use super::status::Status;

/// Appends a goodbye with its cause, a status or an error, and with the versions that this side supports.
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
