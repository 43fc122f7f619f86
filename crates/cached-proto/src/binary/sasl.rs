//! Frames that a client may send before SASL authentication (`-S`), and the authentication frames,
//! which may come at any time.

use super::{ErrorReply, HEADER_LEN, Head, Header, MAGIC_REQUEST, Status, opcode as op};
use crate::limits::{
    AUTH_TOKEN_LEN_MAX, BINARY_BODY_LEN_MAX, BINARY_FRAME_HEAD_LEN_MAX, KEY_LEN_MAX, SASL_MECHANISM_LEN_MAX,
};
use std::convert::Infallible;

/// The mechanisms that SASL_LIST_MECHS names.
pub const MECHANISMS: &[u8] = b"PLAIN";

/// A frame that needs no authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaslRequest<'a> {
    /// The parts that the response repeats.
    pub head: Head,
    /// The command.
    pub command: SaslCommand<'a>,
}

/// The command of a SASL frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslCommand<'a> {
    /// VERSION.
    Version,
    /// SASL_LIST_MECHS.
    Mechanisms,
    /// SASL_AUTH, which begins with a mechanism. PLAIN without data continues with SASL_STEP.
    Start {
        /// The mechanism's name, of 1 to 32 bytes.
        mechanism: &'a [u8],
        /// The data of the mechanism.
        data: &'a [u8],
    },
    /// SASL_STEP.
    Step {
        /// The data of the mechanism.
        data: &'a [u8],
    },
}

/// The result of [`decode`].
pub type Decoded<'a> = crate::Decoded<SaslRequest<'a>, Infallible, ErrorReply>;

/// Returns whether `opcode` belongs to SASL.
#[inline]
pub fn is_sasl(opcode: u8) -> bool {
    matches!(opcode, op::SASL_LIST_MECHS | op::SASL_AUTH | op::SASL_STEP)
}

/// Decodes the frame at the start of `input` for a client that is not authenticated. Any command
/// that is not in [`SaslCommand`] is refused, and the connection is closed.
pub fn decode(input: &[u8]) -> Decoded<'_> {
    let Some(header) = Header::read(input) else {
        // Text is not a frame, so the decoder does not wait for its end.
        let is_frame = input.first().is_none_or(|first| *first == MAGIC_REQUEST);
        return if is_frame { Decoded::Incomplete } else { Decoded::Close };
    };
    if header.magic != MAGIC_REQUEST {
        return Decoded::Close;
    }
    let head_len = header.head_len();
    let Some(frame) = input.get(HEADER_LEN..head_len) else {
        let buffer_full = head_len > BINARY_FRAME_HEAD_LEN_MAX && input.len() >= BINARY_FRAME_HEAD_LEN_MAX;
        return if buffer_full { Decoded::Close } else { Decoded::Incomplete };
    };
    let (_, key) = frame.split_at(usize::from(header.extras_len));
    let head = Head { opcode: header.opcode, opaque: header.opaque, cas: header.cas, quiet: false };
    let close = |status| Decoded::refused_close(ErrorReply { head, status }, head_len);
    let Some(value_len) = (HEADER_LEN + header.body_len as usize).checked_sub(head_len) else {
        return close(Status::UnknownCommand);
    };
    if !is_sasl(header.opcode) && header.opcode != op::VERSION {
        return close(Status::AuthError);
    }
    if header.body_len > BINARY_BODY_LEN_MAX || key.len() > KEY_LEN_MAX || header.extras_len > 0 {
        return close(Status::InvalidArguments);
    }
    let request = |command, consumed| Decoded::Request { request: SaslRequest { head, command }, consumed };
    if matches!(header.opcode, op::VERSION | op::SASL_LIST_MECHS) {
        let command =
            if header.opcode == op::VERSION { SaslCommand::Version } else { SaslCommand::Mechanisms };
        return if header.body_len == 0 {
            request(command, head_len)
        } else {
            close(Status::InvalidArguments)
        };
    }
    if key.is_empty() {
        return close(Status::InvalidArguments);
    }
    let skip = |status| Decoded::swallow(ErrorReply { head, status }, head_len, value_len);
    if key.len() > SASL_MECHANISM_LEN_MAX {
        return skip(Status::InvalidArguments);
    }
    if value_len > AUTH_TOKEN_LEN_MAX {
        return skip(Status::OutOfMemory);
    }
    let Some(data) = input.get(head_len..head_len + value_len) else { return Decoded::Incomplete };
    let command = match header.opcode {
        op::SASL_AUTH => SaslCommand::Start { mechanism: key, data },
        _ => SaslCommand::Step { data },
    };
    request(command, head_len + value_len)
}

/// Returns the user and the password from the data of PLAIN: an identity to act for, which must be
/// empty or the user, then the user and the password, separated by NUL.
pub fn plain(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = data.split(|byte| *byte == 0);
    let (identity, user, password) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && !user.is_empty();
    (is_whole && (identity.is_empty() || identity == user)).then_some((user, password))
}

#[cfg(test)]
mod tests {
    use super::super::test_frame::{OPAQUE, frame};
    use super::*;

    /// Returns the status, the bytes consumed, the bytes to discard, and whether to close.
    fn refusal(input: &[u8]) -> (Status, usize, usize, bool) {
        match decode(input) {
            Decoded::Refused(refused) => {
                (refused.reply.status, refused.consumed, refused.swallow, refused.close)
            }
            other => panic!("{other:?}"),
        }
    }

    fn command(input: &[u8]) -> SaslCommand<'_> {
        match decode(input) {
            Decoded::Request { request, consumed } => {
                assert_eq!((consumed, request.head.opaque), (input.len(), OPAQUE));
                request.command
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn frames_that_need_no_authentication() {
        assert_eq!(command(&frame(op::VERSION, b"", b"", b"")), SaslCommand::Version);
        assert_eq!(command(&frame(op::SASL_LIST_MECHS, b"", b"", b"")), SaslCommand::Mechanisms);
        let start = frame(op::SASL_AUTH, b"", b"PLAIN", b"\0u\0p");
        assert_eq!(command(&start), SaslCommand::Start { mechanism: b"PLAIN", data: b"\0u\0p" });
        let step = frame(op::SASL_STEP, b"", b"PLAIN", b"");
        assert_eq!(command(&step), SaslCommand::Step { data: b"" });
        for have in 0..start.len() {
            assert_eq!(decode(&start[..have]), Decoded::Incomplete, "{have}");
        }
    }

    #[test]
    fn every_other_opcode_is_refused_and_closes() {
        for opcode in (0..=u8::MAX).filter(|opcode| !is_sasl(*opcode) && *opcode != op::VERSION) {
            for (key, value) in [(&b"k"[..], &b""[..]), (b"", b""), (b"k", b"a value"), (&[b'k'; 300], b"")] {
                let input = frame(opcode, &[0; 8], key, value);
                let expected = (Status::AuthError, HEADER_LEN + 8 + key.len(), 0, true);
                assert_eq!(refusal(&input), expected, "{opcode:#x}");
            }
        }
    }

    #[test]
    fn malformed_frames() {
        let invalid = Status::InvalidArguments;
        assert_eq!(refusal(&frame(op::VERSION, b"", b"k", b"")), (invalid, 25, 0, true));
        assert_eq!(refusal(&frame(op::SASL_LIST_MECHS, b"", b"", b"v")), (invalid, 24, 0, true));
        assert_eq!(refusal(&frame(op::SASL_AUTH, b"", b"", b"v")), (invalid, 24, 0, true));
        assert_eq!(refusal(&frame(op::SASL_AUTH, b"x", b"PLAIN", b"v")), (invalid, 30, 0, true));
        assert_eq!(refusal(&frame(op::SASL_AUTH, b"", &[b'm'; 251], b"v")), (invalid, 275, 0, true));
        assert_eq!(refusal(&frame(op::SASL_AUTH, b"", &[b'm'; 33], b"va")), (invalid, 57, 2, false));
        for opcode in [op::SASL_AUTH, op::SASL_STEP, op::GET, op::SET] {
            let mut short = frame(opcode, b"", b"PLAIN", b"");
            short[8..12].copy_from_slice(&4u32.to_be_bytes());
            assert_eq!(refusal(&short), (Status::UnknownCommand, 29, 0, true));
        }
        for body_len in [AUTH_TOKEN_LEN_MAX as u32 + 6, 1 << 30] {
            let mut long = frame(op::SASL_AUTH, b"", b"PLAIN", b"");
            long[8..12].copy_from_slice(&body_len.to_be_bytes());
            assert_eq!(refusal(&long), (Status::OutOfMemory, 29, body_len as usize - 5, false));
        }
        for body_len in [0x4000_0001u32, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
            let mut long = frame(op::SASL_AUTH, b"", b"PLAIN", b"");
            long[8..12].copy_from_slice(&body_len.to_be_bytes());
            assert_eq!(refusal(&long), (invalid, 29, 0, true));
        }
        assert_eq!(decode(b"get k\r\n"), Decoded::Close);
        assert_eq!(decode(&[0x81; 24]), Decoded::Close);
        assert_eq!(decode(b""), Decoded::Incomplete);
    }

    #[test]
    fn the_data_of_plain() {
        assert_eq!(plain(b"\0user\0secret"), Some((&b"user"[..], &b"secret"[..])));
        assert_eq!(plain(b"user\0user\0"), Some((&b"user"[..], &b""[..])));
        for wrong in
            [&b""[..], b"\0", b"\0user", b"\0\0secret", b"other\0user\0secret", b"\0user\0secret\0", b"user"]
        {
            assert_eq!(plain(wrong), None, "{wrong:?}");
        }
    }
}
