//! Requests: the extras, key and value of each opcode.

use super::{Decoded, ErrorReply, HEADER_LEN, Head, Header, MAGIC_REQUEST, Status, opcode as op};
use crate::limits::{BINARY_BODY_LEN_MAX, BINARY_FRAME_HEAD_LEN_MAX, KEY_LEN_MAX};

/// One complete binary request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The parts that the response repeats.
    pub head: Head,
    /// The command.
    pub command: Command<'a>,
}

/// The command of a binary request. Keys have 1 to 250 bytes with any values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// GET, GETK, GAT, GATK and their quiet forms.
    Get {
        /// The key.
        key: &'a [u8],
        /// GETK, GATK: the response contains the key, also on a miss.
        with_key: bool,
        /// GAT, GATK: the new expiry.
        exptime: Option<u32>,
    },
    /// TOUCH. Its response is that of a GET, without the value.
    Touch {
        /// The key.
        key: &'a [u8],
        /// The new expiry.
        exptime: u32,
    },
    /// SET, ADD, REPLACE, APPEND or PREPEND, with the value.
    Store(Store<'a>),
    /// DELETE. It is conditional on `head.cas` unless that is 0.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// INCREMENT, DECREMENT.
    Arithmetic(Arithmetic<'a>),
    /// FLUSH.
    Flush {
        /// Seconds until all present items expire, or a Unix time if above 30 days; 0 means
        /// immediately.
        exptime: u32,
    },
    /// NOOP: respond, and send all responses.
    Noop,
    /// VERSION.
    Version,
    /// STAT. An empty key requests the general statistics.
    Stat {
        /// The name of the report; up to 250 bytes.
        key: &'a [u8],
    },
    /// QUIT: respond unless quiet, then close.
    Quit,
}

/// INCREMENT or DECREMENT. It is conditional on `head.cas` unless that is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Whether to decrement, stopping at 0; an increment wraps at 2^64.
    pub decrement: bool,
    /// The amount.
    pub delta: u64,
    /// The value with which a missing number is created.
    pub initial: u64,
    /// The expiry of a number that is created. `None` (all bits set) means that a missing number is
    /// not created.
    pub exptime: Option<u32>,
}

/// The way of storing a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreVerb {
    /// Unconditionally.
    Set,
    /// Stores only if the item does not exist; otherwise the status is 02.
    Add,
    /// Stores only if the item exists; otherwise the status is 01.
    Replace,
    /// Appends to the value of the item; the status is 05 if the item does not exist.
    Append,
    /// Prepends to the value of the item; the status is 05 if the item does not exist.
    Prepend,
}

/// A storage request without its value.
///
/// With a nonzero `head.cas`, set, add and replace all become compare-and-store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreHeader<'a> {
    /// The parts that the response repeats.
    pub head: Head,
    /// The way in which the value is stored.
    pub verb: StoreVerb,
    /// The key.
    pub key: &'a [u8],
    /// The client's flags; 0 for append and prepend.
    pub flags: u32,
    /// 0: never; up to 30 days: relative, in seconds; above that: Unix time. There is no value for
    /// immediate expiry. 0 for append and prepend.
    pub exptime: u32,
    /// The length of the value in bytes, up to 1 GiB. The server refuses a value above its limit
    /// with status 03 and discards it.
    pub value_len: usize,
}

/// A storage request with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// The request without the value.
    pub header: StoreHeader<'a>,
    /// The value.
    pub value: &'a [u8],
}

/// The lengths that a command requires.
#[derive(Clone, Copy)]
enum Shape {
    /// No body.
    Empty,
    /// A key only.
    Key,
    /// This many bytes of extras, then a key.
    ExtrasKey(u8),
    /// This many bytes of extras, then a key; any further bytes stay in the stream.
    ExtrasKeyLoose(u8),
    /// Extras, a key and a value.
    Value(u8),
}

impl Shape {
    #[inline]
    fn fits(self, header: &Header) -> bool {
        let has_key = header.key_len > 0;
        let has_value =
            header.body_len as usize > usize::from(header.key_len) + usize::from(header.extras_len);
        match self {
            Shape::Empty => header.extras_len == 0 && header.body_len == 0,
            Shape::Key => header.extras_len == 0 && has_key && !has_value,
            Shape::ExtrasKey(extras) => header.extras_len == extras && has_key && !has_value,
            Shape::ExtrasKeyLoose(extras) => header.extras_len == extras && has_key,
            Shape::Value(extras) => header.extras_len == extras && has_key,
        }
    }
}

/// Decodes the frame at the start of `input`.
#[inline]
pub(super) fn decode<'a>(header: &Header, input: &'a [u8]) -> Decoded<'a> {
    if header.magic != MAGIC_REQUEST {
        return Decoded::Close;
    }
    let head_len = header.head_len();
    let Some(frame) = input.get(HEADER_LEN..head_len) else {
        let buffer_full = head_len > BINARY_FRAME_HEAD_LEN_MAX && input.len() >= BINARY_FRAME_HEAD_LEN_MAX;
        return if buffer_full { Decoded::Close } else { Decoded::Incomplete };
    };
    let (extras, key) = frame.split_at(usize::from(header.extras_len));
    let (command, quiet) = op::loud(header.opcode);
    let head = Head { opcode: header.opcode, opaque: header.opaque, cas: header.cas, quiet };

    let error = |status| ErrorReply { head, status };
    let malformed = || Decoded::refused_close(error(Status::InvalidArguments), head_len);
    // At most 24 + 255 + 65535 bytes plus a 32-bit length, which fits a usize.
    let Some(value_len) = (HEADER_LEN + header.body_len as usize).checked_sub(head_len) else {
        return Decoded::refused_close(error(Status::UnknownCommand), head_len);
    };
    if header.body_len > BINARY_BODY_LEN_MAX || key.len() > KEY_LEN_MAX {
        return malformed();
    }

    let shape = match command {
        op::GET | op::GETK | op::DELETE => Shape::Key,
        op::SET | op::ADD | op::REPLACE => Shape::Value(8),
        op::APPEND | op::PREPEND => Shape::Value(0),
        op::INCREMENT | op::DECREMENT => Shape::ExtrasKey(20),
        op::TOUCH | op::GAT | op::GATK => Shape::ExtrasKeyLoose(4),
        op::QUIT | op::NOOP | op::VERSION | op::SASL_LIST_MECHS => Shape::Empty,
        op::SASL_AUTH | op::SASL_STEP => Shape::Value(0),
        op::FLUSH if key.is_empty() && value_len == 0 && matches!(extras.len(), 0 | 4) => {
            return request(head, Command::Flush { exptime: be_u32(extras, 0) }, head_len);
        }
        op::STAT if extras.is_empty() => return request(head, Command::Stat { key }, head_len),
        op::FLUSH | op::STAT => return malformed(),
        _ => {
            let reply = error(Status::UnknownCommand);
            return Decoded::swallow(reply, head_len, header.body_len as usize);
        }
    };
    if !shape.fits(header) {
        return malformed();
    }
    let command = match command {
        op::GET | op::GETK => Command::Get { key, with_key: command == op::GETK, exptime: None },
        op::GAT | op::GATK => {
            Command::Get { key, with_key: command == op::GATK, exptime: Some(be_u32(extras, 0)) }
        }
        op::TOUCH => Command::Touch { key, exptime: be_u32(extras, 0) },
        op::DELETE => Command::Delete { key },
        op::INCREMENT | op::DECREMENT => Command::Arithmetic(Arithmetic {
            key,
            decrement: command == op::DECREMENT,
            delta: be_u64(extras, 0),
            initial: be_u64(extras, 8),
            exptime: Some(be_u32(extras, 16)).filter(|exptime| *exptime != u32::MAX),
        }),
        op::QUIT => Command::Quit,
        op::NOOP => Command::Noop,
        op::VERSION => Command::Version,
        op::SASL_LIST_MECHS | op::SASL_AUTH | op::SASL_STEP => {
            // These commands are not implemented. The reply is that of a memcached without -S.
            return Decoded::swallow(error(Status::UnknownCommand), head_len, value_len);
        }
        op::SET | op::ADD | op::REPLACE | op::APPEND | op::PREPEND => {
            let verb = match command {
                op::SET => StoreVerb::Set,
                op::ADD => StoreVerb::Add,
                op::REPLACE => StoreVerb::Replace,
                op::APPEND => StoreVerb::Append,
                _ => StoreVerb::Prepend,
            };
            let header = StoreHeader {
                head,
                verb,
                key,
                flags: be_u32(extras, 0),
                exptime: be_u32(extras, 4),
                value_len,
            };
            let Some(value) = input.get(head_len..head_len + value_len) else {
                return Decoded::Body { header, consumed: head_len, body_len: value_len };
            };
            return request(head, Command::Store(Store { header, value }), head_len + value_len);
        }
        _ => return Decoded::swallow(error(Status::UnknownCommand), head_len, value_len),
    };
    request(head, command, head_len)
}

#[inline]
fn request(head: Head, command: Command<'_>, consumed: usize) -> Decoded<'_> {
    Decoded::Request { request: Request { head, command }, consumed }
}

/// Returns a number in the extras, or 0 if the command has no extras.
#[inline]
fn be_u32(extras: &[u8], at: usize) -> u32 {
    extras.get(at..at + 4).map_or(0, |bytes| u32::from_be_bytes(bytes.try_into().expect("four bytes")))
}

#[inline]
fn be_u64(extras: &[u8], at: usize) -> u64 {
    extras.get(at..at + 8).map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().expect("eight bytes")))
}

#[cfg(test)]
mod tests {
    use super::super::test_frame::{CAS, OPAQUE, frame};
    use super::super::{decode, opcode};
    use super::*;

    fn command(input: &[u8]) -> (Command<'_>, bool) {
        match decode(input) {
            Decoded::Request { request, consumed } => {
                assert_eq!(consumed, input.len());
                assert_eq!(
                    (request.head.opcode, request.head.opaque, request.head.cas),
                    (input[1], OPAQUE, CAS)
                );
                (request.command, request.head.quiet)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Returns the status, the bytes consumed, the bytes to discard, and whether to close.
    fn refusal(input: &[u8]) -> (Status, usize, usize, bool) {
        match decode(input) {
            Decoded::Refused(refused) => {
                (refused.reply.status, refused.consumed, refused.swallow, refused.close)
            }
            other => panic!("{other:?}"),
        }
    }

    const INVALID: Status = Status::InvalidArguments;
    const UNKNOWN: Status = Status::UnknownCommand;

    #[test]
    fn gets() {
        for (opcode, with_key, touch, quiet) in [
            (opcode::GET, false, false, false),
            (opcode::GETQ, false, false, true),
            (opcode::GETK, true, false, false),
            (opcode::GETKQ, true, false, true),
            (opcode::GAT, false, true, false),
            (opcode::GATQ, false, true, true),
            (opcode::GATK, true, true, false),
            (opcode::GATKQ, true, true, true),
        ] {
            let extras: &[u8] = if touch { &[0, 0, 0, 9] } else { &[] };
            let get = Command::Get { key: b"key", with_key, exptime: touch.then_some(9) };
            assert_eq!(command(&frame(opcode, extras, b"key", b"")), (get, quiet));
            assert_eq!(refusal(&frame(opcode, &[0; 5], b"key", b"")).0, INVALID);
            assert_eq!(refusal(&frame(opcode, extras, b"", b"")).0, INVALID);
        }
        assert_eq!(refusal(&frame(opcode::GET, b"", b"key", b"v")), (INVALID, 27, 0, true));
        let touch = Command::Touch { key: b"k", exptime: 0xffff_ffff };
        assert_eq!(command(&frame(opcode::TOUCH, &[0xff; 4], b"k", b"")), (touch, false));
        // If a command must not have a value, the value is read as the next frame.
        assert!(matches!(
            decode(&frame(opcode::TOUCH, &[0; 4], b"k", b"v")),
            Decoded::Request { consumed: 29, .. }
        ));
    }

    #[test]
    fn stores() {
        let extras = [0, 0, 0, 5, 0, 0, 0, 6];
        for (opcode, verb, quiet) in [
            (opcode::SET, StoreVerb::Set, false),
            (opcode::SETQ, StoreVerb::Set, true),
            (opcode::ADD, StoreVerb::Add, false),
            (opcode::ADDQ, StoreVerb::Add, true),
            (opcode::REPLACE, StoreVerb::Replace, false),
            (opcode::REPLACEQ, StoreVerb::Replace, true),
            (opcode::APPEND, StoreVerb::Append, false),
            (opcode::APPENDQ, StoreVerb::Append, true),
            (opcode::PREPEND, StoreVerb::Prepend, false),
            (opcode::PREPENDQ, StoreVerb::Prepend, true),
        ] {
            let concat = matches!(verb, StoreVerb::Append | StoreVerb::Prepend);
            let extras: &[u8] = if concat { &[] } else { &extras };
            let input = frame(opcode, extras, b"key", b"value");
            let (Command::Store(store), seen) = command(&input) else { panic!("not a store") };
            let (flags, exptime) = if concat { (0, 0) } else { (5, 6) };
            let header = store.header;
            assert_eq!((header.verb, seen, store.value), (verb, quiet, &b"value"[..]));
            assert_eq!((header.key, header.flags, header.exptime), (&b"key"[..], flags, exptime));
            assert_eq!(header.value_len, 5);
            assert_eq!(refusal(&frame(opcode, extras, b"", b"v")).0, INVALID);
            assert_eq!(refusal(&frame(opcode, &[0; 4], b"k", b"v")).0, INVALID);
            for have in 27 + extras.len()..input.len() {
                let Decoded::Body { header: announced, consumed, body_len } = decode(&input[..have]) else {
                    panic!("with {have} bytes");
                };
                assert_eq!((announced, consumed, body_len), (header, 27 + extras.len(), 5));
            }
        }
    }

    #[test]
    fn deletes_and_numbers() {
        assert_eq!(command(&frame(opcode::DELETE, b"", b"k", b"")), (Command::Delete { key: b"k" }, false));
        assert_eq!(command(&frame(opcode::DELETEQ, b"", b"k", b"")), (Command::Delete { key: b"k" }, true));
        assert_eq!(refusal(&frame(opcode::DELETE, b"", b"", b"")), (INVALID, 24, 0, true));
        let mut extras = [0; 20];
        (extras[7], extras[15], extras[19]) = (1, 2, 3);
        let number = Arithmetic { key: b"k", decrement: false, delta: 1, initial: 2, exptime: Some(3) };
        assert_eq!(
            command(&frame(opcode::INCREMENT, &extras, b"k", b"")),
            (Command::Arithmetic(number), false)
        );
        extras[16..].fill(0xff);
        let number = Arithmetic { decrement: true, exptime: None, ..number };
        assert_eq!(
            command(&frame(opcode::DECREMENTQ, &extras, b"k", b"")),
            (Command::Arithmetic(number), true)
        );
        assert_eq!(refusal(&frame(opcode::INCREMENT, &extras[..19], b"k", b"")).0, INVALID);
        assert_eq!(refusal(&frame(opcode::INCREMENT, &extras, b"k", b"v")).0, INVALID);
    }

    #[test]
    fn commands_without_a_key() {
        for (opcode, wanted, quiet) in [
            (opcode::NOOP, Command::Noop, false),
            (opcode::VERSION, Command::Version, false),
            (opcode::QUIT, Command::Quit, false),
            (opcode::QUITQ, Command::Quit, true),
            (opcode::FLUSH, Command::Flush { exptime: 0 }, false),
            (opcode::FLUSHQ, Command::Flush { exptime: 0 }, true),
            (opcode::STAT, Command::Stat { key: b"" }, false),
        ] {
            assert_eq!(command(&frame(opcode, b"", b"", b"")), (wanted, quiet));
            assert_eq!(refusal(&frame(opcode, &[0; 3], b"", b"")), (INVALID, 27, 0, true));
        }
        assert_eq!(refusal(&frame(opcode::NOOP, b"", b"k", b"")).0, INVALID);
        assert_eq!(refusal(&frame(opcode::VERSION, b"", b"", b"v")).0, INVALID);
        assert_eq!(refusal(&frame(opcode::FLUSH, b"", b"k", b"")).0, INVALID);
        assert_eq!(refusal(&frame(opcode::FLUSH, b"", b"", b"v")).0, INVALID);
        assert_eq!(command(&frame(opcode::FLUSH, &[0, 0, 0, 9], b"", b"")).0, Command::Flush { exptime: 9 });
        assert_eq!(command(&frame(opcode::STAT, b"", b"items", b"")).0, Command::Stat { key: b"items" });
    }

    #[test]
    fn unknown_opcodes_discard_the_same_bytes_as_memcached() {
        assert_eq!(refusal(&frame(0xff, b"", b"k", b"vvvv")), (UNKNOWN, 25, 5, false));
        assert_eq!(refusal(&frame(0x1b, &[0; 4], b"", b"")), (UNKNOWN, 28, 4, false));
        assert_eq!(refusal(&frame(opcode::SASL_AUTH, b"", b"PLAIN", b"\0a\0b")), (UNKNOWN, 29, 4, false));
        assert_eq!(refusal(&frame(opcode::SASL_STEP, b"", b"", b"x")), (INVALID, 24, 0, true));
        assert_eq!(refusal(&frame(opcode::SASL_LIST_MECHS, b"", b"", b"")), (UNKNOWN, 24, 0, false));
        assert_eq!(refusal(&frame(opcode::SASL_LIST_MECHS, b"", b"k", b"")), (INVALID, 25, 0, true));
    }

    #[test]
    fn lengths_that_contradict_each_other() {
        for opcode in 0..=u8::MAX {
            let mut input = frame(opcode, &[0; 8], b"key", b"");
            input[11] = 10;
            assert_eq!(
                decode(&input[..input.len() - 1]),
                Decoded::Incomplete,
                "not before they have arrived"
            );
            assert_eq!(refusal(&input), (UNKNOWN, 35, 0, true));
            for body_len in [BINARY_BODY_LEN_MAX + 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffe8, 0xffff_ffff] {
                input[8..12].copy_from_slice(&body_len.to_be_bytes());
                assert_eq!(refusal(&input), (INVALID, 35, 0, true));
            }
            let long = frame(opcode, &[0; 8], &[b'k'; 251], b"v");
            assert_eq!(refusal(&long), (INVALID, 24 + 8 + 251, 0, true));
        }
        let mut input = frame(opcode::SET, &[0; 8], b"key", b"");
        input[8..12].copy_from_slice(&BINARY_BODY_LEN_MAX.to_be_bytes());
        assert!(matches!(decode(&input), Decoded::Body { body_len, .. } if body_len == (1 << 30) - 11));
    }

    #[test]
    fn a_frame_head_above_the_buffer_closes() {
        let input = frame(opcode::GET, b"", &[b'k'; 17_000], b"");
        assert_eq!(decode(&input[..BINARY_FRAME_HEAD_LEN_MAX - 1]), Decoded::Incomplete);
        assert_eq!(decode(&input[..BINARY_FRAME_HEAD_LEN_MAX]), Decoded::Close);
        let input = frame(opcode::GET, b"", &[b'k'; 16_360], b"");
        assert_eq!(decode(&input[..input.len() - 1]), Decoded::Incomplete);
        assert_eq!(refusal(&input), (INVALID, input.len(), 0, true));
    }

    #[test]
    fn another_magic_closes() {
        let mut input = frame(opcode::NOOP, b"", b"", b"");
        input[0] = 0x81;
        assert_eq!(decode(&input[..23]), Decoded::Incomplete);
        assert_eq!(decode(&input), Decoded::Close);
    }
}
