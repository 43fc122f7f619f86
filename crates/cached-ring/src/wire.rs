//! The messages of a lane, in both directions.
//!
//! ```text
//! u32 id, u16 slot, u8 kind, u8 flags, u32 bytes, then the bytes (64 KiB at most); little-endian
//!
//! to the owner        REQUEST  a request's own bytes, or their first part
//!                     PART     the next part of a request
//!                     MORE     send the next part of a reply
//!                     FORGET   end a request whose client has gone
//!                     PING     8 bytes that the PONG repeats; with the highest bit, asks for no promise
//!                     BYE      no message follows
//! to the entry        DONE     a reply, or its last part
//!                     PART     a part of a reply; the next one waits for MORE
//!                     NOT_MINE the map's version: the request was not executed
//!                     PONG     the bytes of the PING, and a report
//!                     BYE      the id of the last request that was answered; no message follows
//! ```
//!
//! The last part of a request completes it, and so does a FORGET while parts are missing. Each
//! request is answered exactly once, by DONE or NOT_MINE, in the order in which requests were
//! completed. Only the parts of a reply after the first may come later than other replies.
//!
//! After NOT_MINE the owner refuses all requests of the slot on this lane, until one has the flag
//! AGAIN: so the requests that were already on their way do not overtake the refused one.

use thiserror::Error;

use crate::lease::Promise;
use crate::numbered::numbered;

/// The length of a message's head, in bytes.
pub const HEAD_BYTES: usize = 12;
/// The maximum number of bytes of a message after its head.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// The maximum number of requests of a lane whose parts have not all arrived.
pub const OPEN_MAX: usize = 64;
/// The maximum number of replies of a lane that wait for MORE. The owner sends further replies
/// without waiting.
pub const SUSPENDED_MAX: usize = 1024;
/// The bit of a PING's token with which the entry asks its warden for no promise.
pub const NO_PROMISE: u64 = 1 << 63;
/// The slot of a message that has none.
pub(crate) const NO_SLOT: u16 = u16::MAX;

numbered! {
    /// The kind of a message.
    pub enum Kind {
        /// A request, or its first part.
        Request = 1,
        /// The next part of a request.
        RequestPart = 2,
        /// Asks for the next part of a reply.
        More = 3,
        /// Ends a request whose client has gone.
        Forget = 4,
        /// Asks for a PONG.
        Ping = 5,
        /// The last message of the entry.
        RequestsEnd = 6,
        /// A reply, or its last part.
        Done = 129,
        /// A part of a reply; the next one waits for MORE.
        ReplyPart = 130,
        /// The owner has a map in which the slot is not its own, and has not executed the request.
        NotMine = 131,
        /// Answers a PING.
        Pong = 133,
        /// The last message of the owner.
        RepliesEnd = 134,
    }
}

impl Kind {
    /// Returns the flags that a message of this kind may have.
    const fn flags(self) -> Flags {
        Flags(match self {
            Self::Request => {
                Flags::BINARY.0 | Flags::PARTS.0 | Flags::HEAD.0 | Flags::EVERY.0 | Flags::AGAIN.0
            }
            Self::RequestPart => Flags::PARTS.0,
            _ => 0,
        })
    }

    /// Returns the numbers of bytes that a message of this kind may have.
    const fn bytes(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::Request | Self::RequestPart | Self::ReplyPart => 1..=MESSAGE_BYTES_MAX,
            Self::Done => 0..=MESSAGE_BYTES_MAX,
            Self::Ping | Self::NotMine => 8..=8,
            Self::Pong => 8 + Report::BYTES..=8 + Report::BYTES,
            Self::More | Self::Forget | Self::RequestsEnd | Self::RepliesEnd => 0..=0,
        }
    }
}

/// The properties of a request that its bytes do not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(u8);

impl Flags {
    /// A request in the text or meta protocol that is complete.
    pub const NONE: Self = Self(0);
    /// The request is in the binary protocol.
    pub const BINARY: Self = Self(1);
    /// More parts follow.
    pub const PARTS: Self = Self(2);
    /// Only the head of a request with a value: the value does not come.
    pub const HEAD: Self = Self(4);
    /// Each node executes the request (`flush_all`): it belongs to no slot.
    pub const EVERY: Self = Self(8);
    /// The owner has refused a request of the slot, and later ones with it: this is the first that
    /// is sent after their answers, and ends that.
    pub const AGAIN: Self = Self(16);

    /// Returns whether all of `flags` are set.
    #[inline]
    #[must_use]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns these flags and `flags`.
    #[inline]
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }
}

/// The head of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The request that the message is about; 0 for PING, PONG and the entry's BYE.
    pub id: u32,
    /// The slot of a request; `None` for all other messages, and for requests to every node.
    pub slot: Option<crate::Slot>,
    /// The kind of the message.
    pub kind: Kind,
    /// The flags of a request.
    pub flags: Flags,
    /// The number of bytes that follow.
    pub bytes: u32,
}

impl Head {
    /// Returns the head of a reply.
    #[inline]
    #[must_use]
    pub fn of_reply(kind: Kind, id: u32, bytes: usize) -> Self {
        debug_assert!(kind.bytes().contains(&bytes), "a message {kind:?} of {bytes} bytes");
        Self { id, slot: None, kind, flags: Flags::NONE, bytes: bytes as u32 }
    }

    /// Returns the head's bytes.
    #[inline]
    #[must_use]
    pub fn encode(self) -> [u8; HEAD_BYTES] {
        let mut out = [0; HEAD_BYTES];
        out[..4].copy_from_slice(&self.id.to_le_bytes());
        out[4..6].copy_from_slice(&self.slot.map_or(NO_SLOT, crate::Slot::number).to_le_bytes());
        out[6] = self.kind as u8;
        out[7] = self.flags.0;
        out[8..].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }

    #[inline]
    fn decode(bytes: &[u8; HEAD_BYTES]) -> Result<Self, Hostile> {
        let [a, b, c, d, slot_low, slot_high, kind, flags, rest @ ..] = *bytes;
        let (kind, flags) = (Kind::of(kind).ok_or(Hostile::Kind(kind))?, Flags(flags));
        if !kind.flags().has(flags) {
            return Err(Hostile::Flags(kind, flags.0));
        }
        let slot = match u16::from_le_bytes([slot_low, slot_high]) {
            NO_SLOT => None,
            number => Some(crate::Slot::new(number).ok_or(Hostile::Slot(number))?),
        };
        if slot.is_some() != (kind == Kind::Request && !flags.has(Flags::EVERY)) {
            return Err(if slot.is_some() { Hostile::SlotGiven(kind) } else { Hostile::NoSlot });
        }
        let len = u32::from_le_bytes(rest);
        if !kind.bytes().contains(&(len as usize)) {
            return Err(Hostile::Length(kind, len));
        }
        Ok(Self { id: u32::from_le_bytes([a, b, c, d]), slot, kind, flags, bytes: len })
    }
}

/// Returns the first message of `input`, with its bytes; `None` if it is incomplete.
///
/// # Errors
/// Returns [`Hostile`] if the head is invalid, even before the bytes have arrived.
#[inline]
pub fn message(input: &[u8]) -> Result<Option<(Head, &[u8])>, Hostile> {
    let Some((head, rest)) = input.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let head = Head::decode(head)?;
    Ok(rest.get(..head.bytes as usize).map(|bytes| (head, bytes)))
}

/// Begins a message to the entry whose bytes are written next. Returns the head's position, for
/// [`patch`].
#[inline]
pub fn begin(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; HEAD_BYTES]);
    out.len() - HEAD_BYTES
}

/// Writes the head of the message that was begun at `at`, now that the number of its bytes is
/// known. They need not lie in `out`.
///
/// # Panics
/// Panics if no message was begun at `at`.
#[inline]
pub fn patch(out: &mut [u8], at: usize, kind: Kind, id: u32, bytes: usize) {
    out[at..at + HEAD_BYTES].copy_from_slice(&Head::of_reply(kind, id, bytes).encode());
}

/// Appends NOT_MINE: the request was not executed, because the map of this version gives its slot
/// to another node.
pub fn push_not_mine(out: &mut Vec<u8>, id: u32, map_version: u64) {
    out.extend_from_slice(&Head::of_reply(Kind::NotMine, id, 8).encode());
    out.extend_from_slice(&map_version.to_le_bytes());
}

/// Appends the PONG to a PING with this token.
pub fn push_pong(out: &mut Vec<u8>, token: u64, report: &Report) {
    out.extend_from_slice(&Head::of_reply(Kind::Pong, 0, 8 + Report::BYTES).encode());
    out.extend_from_slice(&token.to_le_bytes());
    report.encode(out);
}

/// Appends BYE: the last answered request is `last` ([`Inbound::last`](crate::Inbound::last)), and
/// nothing follows.
pub fn push_bye(out: &mut Vec<u8>, last: u32) {
    out.extend_from_slice(&Head::of_reply(Kind::RepliesEnd, last, 0).encode());
}

/// The report of an owner in a PONG.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// The number of items.
    pub items: u64,
    /// The size of all items, in bytes.
    pub item_bytes: u64,
    /// The memory for items, in bytes.
    pub memory_bytes: u64,
    /// The number of keys that were asked for.
    pub gets: u64,
    /// The number of keys that were found.
    pub hits: u64,
    /// The time since the node has started, in milliseconds.
    pub uptime_ms: u64,
    /// The version of the map in force.
    pub map_version: u64,
    /// The [digest](crate::Map::digest) of the map in force.
    pub map_digest: u64,
    /// What the owner promises to the entry as its warden.
    pub promise: Promise,
}

impl Report {
    const BYTES: usize = 80;

    fn encode(&self, out: &mut Vec<u8>) {
        let Self { items, item_bytes, memory_bytes, gets, hits, uptime_ms, map_version, map_digest, promise } =
            self;
        let Promise { ms, term } = promise;
        for field in [
            items,
            item_bytes,
            memory_bytes,
            gets,
            hits,
            uptime_ms,
            map_version,
            map_digest,
            &u64::from(*ms),
            term,
        ] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }

    /// Decodes the bytes after the token of a PONG, whose number was checked.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut fields = bytes.chunks_exact(8).map(number);
        let mut next = || fields.next().unwrap_or(0);
        let [items, item_bytes, memory_bytes, gets, hits, uptime_ms, map_version, map_digest, ms, term] =
            std::array::from_fn(|_| next());
        // The entry relies on its own lease at most.
        let promise = Promise { ms: u32::try_from(ms).unwrap_or(u32::MAX), term };
        Self { items, item_bytes, memory_bytes, gets, hits, uptime_ms, map_version, map_digest, promise }
    }
}

/// Returns the number in the first 8 bytes; 0 if there are fewer.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The mistake of a peer that breaks the protocol. The lane is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Hostile {
    /// No message has this kind.
    #[error("there is no message of kind {0}")]
    Kind(u8),
    /// Messages of this kind do not have these flags.
    #[error("a message {0:?} has the flags {1}")]
    Flags(Kind, u8),
    /// Messages of this kind do not have this number of bytes.
    #[error("a message {0:?} has {1} bytes")]
    Length(Kind, u32),
    /// There is no such slot.
    #[error("there is no slot {0}")]
    Slot(u16),
    /// A message of this kind has no slot.
    #[error("a message {0:?} has a slot")]
    SlotGiven(Kind),
    /// A request for one node has no slot.
    #[error("a request has no slot")]
    NoSlot,
    /// The message goes in the other direction.
    #[error("a message {0:?} came from the wrong side")]
    Direction(Kind),
    /// A message that needs the id of a request has 0, or the reverse.
    #[error("a message {0:?} has the id {1}")]
    Id(Kind, u32),
    /// The id of a request is not above the one before.
    #[error("request {id} came after request {before}")]
    RequestOrder {
        /// The id of the request.
        id: u32,
        /// The id of the request before.
        before: u32,
    },
    /// These flags exclude each other.
    #[error("a request for every node, or without its value, has parts")]
    Parts,
    /// A request for every node is of no slot, and is never refused.
    #[error("a request for every node is sent again")]
    EveryAgain,
    /// More than [`OPEN_MAX`] requests are incomplete.
    #[error("parts of more than {OPEN_MAX} requests are missing")]
    Open,
    /// A part of a request that is not open.
    #[error("a part came of request {0}, which misses none")]
    UnknownPart(u32),
    /// A request is longer than any request may be.
    #[error("request {0} is longer than the largest item")]
    TooLong(u32),
    /// An answer to a request that was not sent, or has been answered.
    #[error("an answer came to request {0}, which was not sent or has been answered")]
    UnknownAnswer(u32),
    /// An answer came before the answer to an earlier request.
    #[error("the answer to request {id} came before the one to request {first}")]
    AnswerOrder {
        /// The request that was answered.
        id: u32,
        /// The request that was to be answered first.
        first: u32,
    },
    /// A request was partly answered, and then refused.
    #[error("request {0} was refused after a part of its reply")]
    RefusedLate(u32),
    /// More replies wait for MORE than an owner keeps.
    #[error("more than {} replies wait for MORE", 2 * SUSPENDED_MAX)]
    Suspended,
    /// A PONG without a PING, or with other bytes.
    #[error("a PONG came without a PING")]
    Pong,
    /// The owner says that it has answered another request last.
    #[error("BYE names request {named} as the last one that was answered; it was {last}")]
    Bye {
        /// The request that BYE names.
        named: u32,
        /// The request that was answered last.
        last: u32,
    },
    /// A message came after BYE.
    #[error("a message {0:?} came after BYE")]
    AfterBye(Kind),
}
