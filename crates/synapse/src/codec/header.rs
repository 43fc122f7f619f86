//! The fixed header of every frame: 104 bytes, little-endian.
//!
//! ```text
//!       0       1       2       3       4       5       6       7
//!   +-------+-------+-------+-------+-------+-------+-------+-------+
//!  0|  'S'     'Y'     'N'     'A'  |version|  op   |     flags     |
//!   +-------+-------+-------+-------+-------+-------+-------+-------+
//!  8|             slot              |         slot sequence         |  together: the request id
//!   +-------+-------+-------+-------+-------+-------+-------+-------+
//! 16|status |durab. |replic.|condit.| ns len|namelen|to ns  |toname |
//!   +-------+-------+-------+-------+-------+-------+-------+-------+
//! 24|       extension length        |        payload length         |
//!   +-------+-------+-------+-------+-------+-------+-------+-------+
//! 32|                            offset                             |
//! 40|                            length                             |
//! 48|                        object version                         |
//! 56|                             epoch                             |
//! 64|                           sequence                            |
//! 72|                         order domain                          |
//! 80|                          deadline µs                          |
//!   +-------+-------+-------+-------+-------+-------+-------+-------+
//! 88|             hints             |priorit|     header check      |
//!   +-------+-------+-------+-------+-------+-------+-------+-------+
//! 96|        payload CRC-32         |          head CRC-32          |
//!   +-------+-------+-------+-------+-------+-------+-------+-------+
//! 104: namespace, name, to-namespace, to-name, extensions; then the payload
//! ```
//!
//! The header check is the low 24 bits of the CRC-32 of the first 93 bytes: it verifies the lengths
//! before the receiver waits for that many bytes. The head CRC covers the first 100 bytes, the
//! names and the extensions.

use std::fmt;
use std::sync::OnceLock;

use crc32fast::Hasher;

use super::frame::FrameError;
use super::op::Op;

/// The length of the fixed header.
pub const HEADER_BYTES: usize = 104;
/// The first four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"SYNA";
/// The version of the protocol that this module implements.
pub const VERSION: u8 = 1;
/// The position of the header check.
const CHECK_AT: usize = 93;
/// The position of the head CRC.
pub(super) const HEAD_CRC_AT: usize = 100;

/// The flags of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u16);

impl Flags {
    /// The frame is an answer.
    pub const REPLY: u16 = 1 << 0;
    /// The payload CRC field is valid.
    pub const PAYLOAD_CRC: u16 = 1 << 1;
    /// `epoch` and `sequence` are valid: the frame has a stamp.
    pub const STAMP: u16 = 1 << 2;
    /// `order domain` is valid.
    pub const DOMAIN: u16 = 1 << 3;
    /// `deadline` is valid.
    pub const DEADLINE: u16 = 1 << 4;
    /// In a welcome: the session was known, and its outcomes are remembered.
    pub const RESUMED: u16 = 1 << 5;
    /// In the answer to a list: there may be more.
    pub const MORE: u16 = 1 << 6;
    /// In quotas: `length` is a limit. Without the flag there is none.
    pub const LIMIT: u16 = 1 << 7;
    const ALL: u16 = (1 << 8) - 1;

    /// Returns whether all bits of `flag` are set.
    #[must_use]
    pub const fn has(self, flag: u16) -> bool {
        self.0 & flag == flag
    }

    /// Sets the bits of `flag` if `is`.
    pub const fn put(&mut self, flag: u16, is: bool) {
        if is {
            self.0 |= flag;
        }
    }
}

/// The request that a frame belongs to: a slot of the session, and a sequence number in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RequestId {
    /// The slot, below the number of slots granted.
    pub slot: u32,
    /// A number that rises by one or more with each request in the slot, and wraps around.
    pub sequence: u32,
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.sequence)
    }
}

/// All fields of a header except the lengths and CRCs, which follow from the rest of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The operation.
    pub op: Op,
    /// See [`Flags`].
    pub flags: Flags,
    /// The request.
    pub id: RequestId,
    /// The result; in a request [`Status::Ok`].
    pub status: Status,
    /// The code of a durability: 0 cached (in a flush: stored), 1 journaled, 2 replicated, 3
    /// stored.
    pub durability: u8,
    /// The number of nodes where durability is *replicated*.
    pub replicas: u8,
    /// The code of a condition: 0 none, 1 absent, 2 present, 3 the object version.
    pub condition: u8,
    /// The start of a range, or where bytes differ.
    pub offset: u64,
    /// The length of a range; an object's size; a limit.
    pub length: u64,
    /// An object's version: required, or found.
    pub version: u64,
    /// A fencing epoch.
    pub epoch: u64,
    /// A stamp's sequence.
    pub sequence: u64,
    /// An order domain.
    pub domain: u64,
    /// The caller's remaining time, in microseconds.
    pub deadline_us: u64,
    /// [`blocker::Hints`].
    pub hints: u32,
    /// The code of a [`blocker::Priority`]: 0 low, 1 normal, 2 urgent.
    pub priority: u8,
}

impl Header {
    /// Returns a header for `op` with all other fields at their defaults.
    #[must_use]
    pub const fn new(op: Op, id: RequestId) -> Self {
        Self {
            op,
            flags: Flags(0),
            id,
            status: Status::Ok,
            durability: 0,
            replicas: 0,
            condition: 0,
            offset: 0,
            length: 0,
            version: 0,
            epoch: 0,
            sequence: 0,
            domain: 0,
            deadline_us: 0,
            hints: 0,
            priority: 1,
        }
    }
}

/// The lengths in a header, and the payload's CRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Lengths {
    /// The lengths of namespace, name, to-namespace and to-name.
    pub(super) names: [u8; 4],
    /// The length of the extensions.
    pub(super) extension: u32,
    /// The length of the payload.
    pub(super) payload: u32,
    /// The CRC-32 of the payload, if the flag is set.
    pub(super) payload_crc: u32,
}

impl Lengths {
    /// Returns the length from the first byte of the header to the last of the extensions.
    #[must_use]
    pub(super) fn head_bytes(&self) -> usize {
        let names: usize = self.names.iter().map(|len| usize::from(*len)).sum();
        HEADER_BYTES + names + self.extension as usize
    }
}

/// Returns header and lengths as bytes, with the head CRC still 0, and the CRC over the bytes that
/// it covers so far.
#[inline]
pub(super) fn write(header: &Header, lengths: &Lengths) -> ([u8; HEADER_BYTES], Hasher) {
    let mut bytes = [0; HEADER_BYTES];
    put(&mut bytes, 0, MAGIC);
    put(&mut bytes, 4, [VERSION, header.op.code()]);
    put(&mut bytes, 6, header.flags.0.to_le_bytes());
    put(&mut bytes, 8, header.id.slot.to_le_bytes());
    put(&mut bytes, 12, header.id.sequence.to_le_bytes());
    put(&mut bytes, 16, [header.status.code(), header.durability, header.replicas, header.condition]);
    put(&mut bytes, 20, lengths.names);
    put(&mut bytes, 24, lengths.extension.to_le_bytes());
    put(&mut bytes, 28, lengths.payload.to_le_bytes());
    put(&mut bytes, 32, header.offset.to_le_bytes());
    put(&mut bytes, 40, header.length.to_le_bytes());
    put(&mut bytes, 48, header.version.to_le_bytes());
    put(&mut bytes, 56, header.epoch.to_le_bytes());
    put(&mut bytes, 64, header.sequence.to_le_bytes());
    put(&mut bytes, 72, header.domain.to_le_bytes());
    put(&mut bytes, 80, header.deadline_us.to_le_bytes());
    put(&mut bytes, 88, header.hints.to_le_bytes());
    bytes[92] = header.priority;
    put(&mut bytes, 96, lengths.payload_crc.to_le_bytes());
    let (mut crc, check) = begin_crc(&bytes);
    put(&mut bytes, CHECK_AT, check);
    crc.update(&bytes[CHECK_AT..HEAD_CRC_AT]);
    (bytes, crc)
}

/// Writes `value` at the offset `at`. It takes an array instead of a slice, because that compiles
/// to one store instead of a call to copy a few bytes.
#[inline(always)]
fn put<const N: usize>(bytes: &mut [u8; HEADER_BYTES], at: usize, value: [u8; N]) {
    if let Some(place) = bytes[at..].first_chunk_mut() {
        *place = value;
    }
}

/// Returns the CRC over the bytes of the header check, from which the head CRC continues, and the
/// check.
fn begin_crc(bytes: &[u8; HEADER_BYTES]) -> (Hasher, [u8; 3]) {
    // Creating a hasher detects the processor's features, which takes half as long as a whole
    // header.
    static NEW: OnceLock<Hasher> = OnceLock::new();
    let mut crc = NEW.get_or_init(Hasher::new).clone();
    crc.update(&bytes[..CHECK_AT]);
    let [low, middle, high, _] = crc.clone().finalize().to_le_bytes();
    (crc, [low, middle, high])
}

/// Returns the CRC so far if the header check is right, which shows that at least the lengths are
/// undamaged.
pub(super) fn checked(bytes: &[u8; HEADER_BYTES]) -> Option<Hasher> {
    let (mut crc, check) = begin_crc(bytes);
    if bytes[CHECK_AT..CHECK_AT + 3] != check {
        return None;
    }
    crc.update(&bytes[CHECK_AT..HEAD_CRC_AT]);
    Some(crc)
}

/// Reads the lengths, which are needed before anything else can be read.
pub(super) fn read_lengths(bytes: &[u8; HEADER_BYTES]) -> Lengths {
    Lengths {
        names: [bytes[20], bytes[21], bytes[22], bytes[23]],
        extension: long32(bytes, 24),
        payload: long32(bytes, 28),
        payload_crc: long32(bytes, 96),
    }
}

/// Reads all other fields, each within its range. Inlined for the same reason as
/// [`parse`](super::parse).
#[inline(always)]
pub(super) fn read(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
    let flags = u16::from_le_bytes([bytes[6], bytes[7]]);
    let header = Header {
        op: Op::from_code(bytes[5])?,
        flags: Flags(flags),
        id: RequestId { slot: long32(bytes, 8), sequence: long32(bytes, 12) },
        status: Status::from_code(bytes[16])?,
        durability: bytes[17],
        replicas: bytes[18],
        condition: bytes[19],
        offset: long64(bytes, 32),
        length: long64(bytes, 40),
        version: long64(bytes, 48),
        epoch: long64(bytes, 56),
        sequence: long64(bytes, 64),
        domain: long64(bytes, 72),
        deadline_us: long64(bytes, 80),
        hints: long32(bytes, 88),
        priority: bytes[92],
    };
    let may_have_status = header.flags.has(Flags::REPLY) || header.op == Op::Goodbye;
    let wrong = if flags & !Flags::ALL != 0 {
        ("flags", u64::from(flags))
    } else if header.status != Status::Ok && !may_have_status {
        ("status of a request", u64::from(bytes[16]))
    } else if header.durability > 3 {
        ("durability", u64::from(header.durability))
    } else if header.replicas != 0 && header.durability != 2 {
        ("replicas", u64::from(header.replicas))
    } else if header.condition > 3 {
        ("condition", u64::from(header.condition))
    } else if header.priority > 2 {
        ("priority", u64::from(header.priority))
    } else {
        return Ok(header);
    };
    Err(FrameError::Field { name: wrong.0, value: wrong.1 })
}

#[inline(always)]
fn long32(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
fn long64(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from(long32(bytes, at)) | u64::from(long32(bytes, at + 4)) << 32
}

// ---- The status of a frame: one per error of the contract, and the protocol's own.

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        /// The result of a request, or the cause of a goodbye.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Status {
            $($(#[$doc])* $name = $code,)*
        }

        impl Status {
            /// All statuses.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the status with this byte on the wire.
            ///
            /// # Errors
            /// Returns [`FrameError::Field`] if no status has this code.
            pub fn from_code(code: u8) -> Result<Self, FrameError> {
                match code {
                    $($code => Ok(Self::$name),)*
                    _ => Err(FrameError::Field { name: "status", value: u64::from(code) }),
                }
            }
        }
    };
}

statuses! {
    /// Success.
    Ok = 0;
    /// [`blocker::Error::Missing`].
    Missing = 1;
    /// [`blocker::Error::Exists`].
    Exists = 2;
    /// [`blocker::Error::ConditionFailed`], with its `object version`.
    ConditionFailed = 3;
    /// [`blocker::Error::Mismatch`]: `offset`.
    Mismatch = 4;
    /// [`blocker::Error::Fenced`]: `epoch`.
    Fenced = 5;
    /// [`blocker::Error::Superseded`], with its `epoch` and `sequence`.
    Superseded = 6;
    /// [`blocker::Error::NotStored`].
    NotStored = 7;
    /// [`blocker::Error::OutcomeUnknown`].
    OutcomeUnknown = 8;
    /// [`blocker::Error::DeadlinePassed`].
    DeadlinePassed = 9;
    /// [`blocker::Error::OutOfSpace`].
    OutOfSpace = 10;
    /// [`blocker::Error::Retryable`].
    Retryable = 11;
    /// [`blocker::Error::Corrupt`].
    Corrupt = 12;
    /// [`blocker::Error::WritesLost`].
    WritesLost = 13;
    /// [`blocker::Error::Unsupported`].
    Unsupported = 14;
    /// [`blocker::Error::TooLarge`]: `length`.
    TooLarge = 15;
    /// [`blocker::Error::Denied`].
    Denied = 16;
    /// [`blocker::Error::Invalid`].
    Invalid = 17;
    /// The request was cancelled by its caller.
    Cancelled = 64;
    /// In the answer to a hello: the server demands a proof.
    Challenge = 65;
    /// In a goodbye: another connection has taken over the session.
    Replaced = 66;
    /// In a goodbye: the sender shuts down.
    Ending = 67;
}

impl Status {
    /// Returns the byte on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}
