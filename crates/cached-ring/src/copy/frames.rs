//! The messages of a copy session, in both directions.
//!
//! ```text
//! u32 bytes, u8 kind, then the bytes; little-endian
//!
//! to the source   COPY       the id of the move
//!                 SEAL
//!                 COMMITTED  the version of the map that has the commit
//! to the target   ITEM       an item: flags, CAS, time to live, idle time, bits, key, value
//!                 GONE       the key of an item that does not exist
//!                 READY
//!                 END        the number of ITEM and GONE, and the highest CAS value
//!                 REFUSED    why the source does not begin, as one line
//! both            PING       the sender lives
//! ```
//! An item is one message, however large: the source copies it while its bucket is locked, and the
//! target stores it at once, so both must hold it as a whole.

use thiserror::Error;

use crate::numbered::numbered;
use crate::wire::number;

/// The length of a message's head, in bytes.
pub const HEAD_BYTES: usize = 5;
/// The longest line of REFUSED, in bytes.
pub const REFUSED_BYTES_MAX: usize = 512;
/// The longest key, in bytes.
const KEY_BYTES_MAX: usize = 250;
/// The bytes of ITEM before the key.
const ITEM_HEAD_BYTES: usize = 30;
/// The time to live of an item that does not expire.
const NO_TTL: u64 = u64::MAX;

numbered! {
    /// The kind of a message.
    pub enum Kind {
        /// Begins the session.
        Copy = 1,
        /// Asks the source to seal the slots.
        Seal = 2,
        /// The move is committed.
        Committed = 3,
        /// An item.
        Item = 129,
        /// An item that does not exist.
        Gone = 130,
        /// All items have been sent once.
        Ready = 131,
        /// All messages have been sent.
        End = 132,
        /// The source does not begin.
        Refused = 133,
        /// The sender lives.
        Ping = 255,
    }
}

/// The bits of [`ItemFrame::bits`].
pub mod bits {
    /// The item has been fetched.
    pub const FETCHED: u8 = 1;
    /// The item is stale.
    pub const STALE: u8 = 2;
    /// The token to replace the item has been sent to a client.
    pub const TOKEN_SENT: u8 = 4;
    /// The key is shown in base64.
    pub const BASE64: u8 = 8;
    pub(super) const ALL: u8 = FETCHED | STALE | TOKEN_SENT | BASE64;
}

/// An item with all of its attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemFrame<'a> {
    /// The key: 1 to 250 bytes.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// The client flags.
    pub flags: u32,
    /// The CAS value.
    pub cas: u64,
    /// The time until the item expires, in milliseconds; `None` if it does not.
    pub ttl_ms: Option<u64>,
    /// The time since the item was last used, in milliseconds.
    pub idle_ms: u64,
    /// The state of the item, in [`bits`].
    pub bits: u8,
}

impl ItemFrame<'_> {
    /// Appends the message up to its value, of which the caller appends `value_bytes` bytes.
    ///
    /// # Panics
    /// In debug builds, panics if the key has a length that is not allowed.
    pub fn encode_head(&self, value_bytes: usize, out: &mut Vec<u8>) {
        let len = (ITEM_HEAD_BYTES + self.key.len() + value_bytes) as u32;
        out.extend_from_slice(&len.to_le_bytes());
        out.push(Kind::Item as u8);
        self.encode_fields(out);
    }

    /// Appends all fields but the value.
    fn encode_fields(&self, out: &mut Vec<u8>) {
        let ItemFrame { key, flags, cas, ttl_ms, idle_ms, bits, value: _ } = *self;
        debug_assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
        out.extend_from_slice(&flags.to_le_bytes());
        for field in [cas, ttl_ms.unwrap_or(NO_TTL), idle_ms] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&[bits, key.len() as u8]);
        out.extend_from_slice(key);
    }
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// The target asks for the items of a move.
    Copy {
        /// The id of the move.
        id: u64,
    },
    /// The source must execute no request of the slots any more.
    Seal,
    /// The move is committed.
    Committed {
        /// The version of the map with the commit.
        version: u64,
    },
    /// An item, as it is now.
    Item(ItemFrame<'a>),
    /// There is no item with this key now.
    Gone {
        /// The key: 1 to 250 bytes.
        key: &'a [u8],
    },
    /// All items have been sent once, and few changes wait.
    Ready,
    /// Everything has been sent.
    End {
        /// The number of ITEM and GONE of the session.
        count: u64,
        /// A number that no CAS value at the source exceeds.
        cas: u64,
    },
    /// The source does not begin.
    Refused {
        /// The reason, as one line of at most [`REFUSED_BYTES_MAX`].
        text: &'a str,
    },
    /// The sender lives.
    Ping,
}

impl Frame<'_> {
    /// Returns the number of bytes after the head that the message may have. `value_bytes_max` is the
    /// largest value.
    fn bytes(kind: Kind, value_bytes_max: usize) -> std::ops::RangeInclusive<usize> {
        match kind {
            Kind::Copy | Kind::Committed => 8..=8,
            Kind::Seal | Kind::Ready | Kind::Ping => 0..=0,
            Kind::Item => ITEM_HEAD_BYTES + 1..=ITEM_HEAD_BYTES + KEY_BYTES_MAX + value_bytes_max,
            Kind::Gone => 1..=KEY_BYTES_MAX,
            Kind::End => 16..=16,
            Kind::Refused => 1..=REFUSED_BYTES_MAX,
        }
    }

    /// Appends the message.
    ///
    /// # Panics
    /// In debug builds, panics if a key or the text has a length that is not allowed.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.extend_from_slice(&[0; HEAD_BYTES]);
        let kind = match self {
            Self::Copy { id: number } | Self::Committed { version: number } => {
                out.extend_from_slice(&number.to_le_bytes());
                if matches!(self, Self::Copy { .. }) { Kind::Copy } else { Kind::Committed }
            }
            Self::Seal => Kind::Seal,
            Self::Item(item) => {
                item.encode_fields(out);
                out.extend_from_slice(item.value);
                Kind::Item
            }
            Self::Gone { key } => {
                debug_assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
                out.extend_from_slice(key);
                Kind::Gone
            }
            Self::Ready => Kind::Ready,
            Self::End { count, cas } => {
                out.extend_from_slice(&count.to_le_bytes());
                out.extend_from_slice(&cas.to_le_bytes());
                Kind::End
            }
            Self::Refused { text } => {
                debug_assert!((1..=REFUSED_BYTES_MAX).contains(&text.len()));
                out.extend_from_slice(text.as_bytes());
                Kind::Refused
            }
            Self::Ping => Kind::Ping,
        };
        let len = (out.len() - at - HEAD_BYTES) as u32;
        out[at..at + 4].copy_from_slice(&len.to_le_bytes());
        out[at + 4] = kind as u8;
    }
}

/// Returns the first message of `input`, and its length with the head; `None` if it is incomplete.
/// `value_bytes_max` is the largest value that the receiver stores.
///
/// # Errors
/// Returns [`Malformed`] if the message is invalid; its head is checked before its bytes arrive.
pub fn frame(input: &[u8], value_bytes_max: usize) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
    let Some(([a, b, c, d, kind], rest)) = input.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let (len, kind) = (u32::from_le_bytes([*a, *b, *c, *d]), Kind::of(*kind).ok_or(Malformed::Kind(*kind))?);
    if !Frame::bytes(kind, value_bytes_max).contains(&(len as usize)) {
        return Err(Malformed::Length(kind, len));
    }
    let Some(bytes) = rest.get(..len as usize) else { return Ok(None) };
    let frame = match kind {
        Kind::Copy => Frame::Copy { id: number(bytes) },
        Kind::Seal => Frame::Seal,
        Kind::Committed => Frame::Committed { version: number(bytes) },
        Kind::Item => Frame::Item(item(bytes, value_bytes_max)?),
        Kind::Gone => Frame::Gone { key: bytes },
        Kind::Ready => Frame::Ready,
        Kind::End => Frame::End { count: number(bytes), cas: number(&bytes[8..]) },
        Kind::Refused => Frame::Refused { text: line(bytes).ok_or(Malformed::Text)? },
        Kind::Ping => Frame::Ping,
    };
    Ok(Some((frame, HEAD_BYTES + bytes.len())))
}

/// Decodes the bytes of ITEM, of which there are enough for the key's first byte.
fn item(bytes: &[u8], value_bytes_max: usize) -> Result<ItemFrame<'_>, Malformed> {
    let (head, rest) = bytes.split_first_chunk::<ITEM_HEAD_BYTES>().ok_or(Malformed::Item)?;
    let [f0, f1, f2, f3, fields @ .., bits, key_bytes] = *head;
    let key_bytes = usize::from(key_bytes);
    if !(1..=KEY_BYTES_MAX).contains(&key_bytes) || bits & !bits::ALL != 0 {
        return Err(Malformed::Item);
    }
    let (key, value) = rest.split_at_checked(key_bytes).ok_or(Malformed::Item)?;
    if value.len() > value_bytes_max {
        return Err(Malformed::Item);
    }
    let ttl_ms = Some(number(&fields[8..])).filter(|ttl_ms| *ttl_ms != NO_TTL);
    let (flags, cas, idle_ms) =
        (u32::from_le_bytes([f0, f1, f2, f3]), number(&fields), number(&fields[16..]));
    Ok(ItemFrame { key, value, flags, cas, ttl_ms, idle_ms, bits })
}

/// Returns the text if it is one line, which can be logged.
fn line(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.chars().any(char::is_control))
}

/// The mistake of a peer that breaks the protocol. The session is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    /// No message has this kind.
    #[error("there is no copy message of kind {0}")]
    Kind(u8),
    /// Messages of this kind do not have this number of bytes, or the value is too large.
    #[error("a copy message {0:?} has {1} bytes")]
    Length(Kind, u32),
    /// The attributes of an item are invalid.
    #[error("the key, the value or the bits of a copied item are invalid")]
    Item,
    /// The reason of a refusal is not one line.
    #[error("the reason of a refusal is not one line of text")]
    Text,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: ItemFrame<'_> = ItemFrame {
        key: b"key",
        value: b"value",
        flags: 0x0102_0304,
        cas: 5,
        ttl_ms: Some(6),
        idle_ms: 7,
        bits: bits::STALE | bits::BASE64,
    };

    #[test]
    fn each_message_is_decoded_as_it_was_encoded() {
        let frames = [
            Frame::Copy { id: 1 << 40 },
            Frame::Item(ITEM),
            Frame::Item(ItemFrame { ttl_ms: None, value: b"", ..ITEM }),
            Frame::Gone { key: b"k" },
            Frame::Ping,
            Frame::Ready,
            Frame::Seal,
            Frame::End { count: 3, cas: 9 },
            Frame::Committed { version: 4 },
            Frame::Refused { text: "node b has no move 5" },
        ];
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        let mut rest = &bytes[..];
        for expected in frames {
            let (decoded, used) = frame(rest, 5).unwrap().unwrap();
            assert_eq!(decoded, expected);
            assert!((0..used).all(|len| frame(&rest[..len], 5) == Ok(None)));
            rest = &rest[used..];
        }
        assert_eq!(rest, b"");
        let mut item = Vec::new();
        Frame::Item(ITEM).encode(&mut item);
        let expected = b"\x26\0\0\0\x81\x04\x03\x02\x01\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x0a\x03keyvalue";
        assert_eq!(item, expected, "the same on every machine");
    }

    #[test]
    fn a_message_that_no_peer_sends_is_one_line() {
        let with = |at: usize, byte: u8| {
            let mut bytes = Vec::new();
            Frame::Item(ITEM).encode(&mut bytes);
            bytes[at] = byte;
            frame(&bytes, 5).unwrap_err()
        };
        assert_eq!(with(4, 77).to_string(), "there is no copy message of kind 77");
        assert_eq!(with(0, 30), Malformed::Length(Kind::Item, 30));
        // The head alone is enough: the bytes are not waited for.
        assert_eq!(with(3, 1).to_string(), "a copy message Item has 16777254 bytes");
        for (at, byte) in [(33, 16), (34, 0), (34, 251), (34, 9)] {
            assert_eq!(with(at, byte), Malformed::Item);
        }
        // The key is shorter than it could be, and the value longer.
        assert_eq!(with(34, 2), Malformed::Item);
        let refused = |text: &[u8]| {
            let head = [&(text.len() as u32).to_le_bytes()[..], &[133]].concat();
            frame(&[&head, text].concat(), 5).map(drop)
        };
        assert_eq!((refused(b"a\nb"), refused(b"\xff")), (Err(Malformed::Text), Err(Malformed::Text)));
        assert_eq!(refused(b""), Err(Malformed::Length(Kind::Refused, 0)));
        assert_eq!(refused(&[b'x'; 513]), Err(Malformed::Length(Kind::Refused, 513)));
    }
}
