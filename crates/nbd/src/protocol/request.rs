//! Requests of the transmission: decoding, and the checks that need nothing but the description of the
//! export.

use super::description::Description;
use super::errno::Errno;
use super::negotiation::Session;
use super::violation::Violation;
use super::wire::{REQUEST_BYTES, REQUEST_MAGIC, UNFRAGMENTED_BYTES_MIN, command, command_flag as flag};

/// A request without its payload, as it arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The flags.
    pub flags: u16,
    /// The number of the command.
    pub command: u16,
    /// What the client recognises the reply by.
    pub cookie: u64,
    /// The first byte concerned.
    pub offset: u64,
    /// The number of bytes concerned.
    pub len_bytes: u32,
}

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Reads; in one chunk if `is_unfragmented`.
    Read {
        /// Whether the reply must be one chunk.
        is_unfragmented: bool,
    },
    /// Writes the payload.
    Write {
        /// Whether the change must be durable before it is acknowledged.
        fua: bool,
    },
    /// Ends the connection.
    Disconnect,
    /// Makes durable what was acknowledged before.
    Flush,
    /// The bytes are no longer needed.
    Trim {
        /// Whether the change must be durable before it is acknowledged.
        fua: bool,
    },
    /// The bytes will be read soon.
    Cache,
    /// Writes zeros.
    WriteZeroes(Zeroes),
    /// Requests extents.
    BlockStatus {
        /// Whether one extent per context is enough.
        is_one: bool,
    },
}

/// How zeros are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Zeroes {
    /// Whether the change must be durable before it is acknowledged.
    pub fua: bool,
    /// Whether the zeros must take up space.
    pub no_hole: bool,
    /// Whether the request is to fail, at once and with `Unsupported`, where it would not be faster than a
    /// write.
    pub fast: bool,
}

/// Why a request is refused before the export is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The error on the wire.
    pub errno: Errno,
    /// The reason, for people.
    pub why: &'static str,
}

impl Request {
    /// Decodes a request from its first [`REQUEST_BYTES`] bytes; `None` if there are fewer.
    ///
    /// # Errors
    /// [`Violation::RequestMagic`]: the stream is out of step.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, Violation> {
        let Some(bytes) = bytes.first_chunk::<REQUEST_BYTES>() else { return Ok(None) };
        let magic = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if magic != REQUEST_MAGIC {
            return Err(Violation::RequestMagic(magic));
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_be_bytes(word)
        };
        Ok(Some(Self {
            flags: u16::from_be_bytes([bytes[4], bytes[5]]),
            command: u16::from_be_bytes([bytes[6], bytes[7]]),
            cookie: word(8),
            offset: word(16),
            len_bytes: u32::from_be_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]),
        }))
    }

    /// Appends the request in its form on the wire, as a client sends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.command.to_be_bytes());
        out.extend_from_slice(&self.cookie.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.len_bytes.to_be_bytes());
    }

    /// Returns the number of bytes of payload that follow.
    #[must_use]
    pub fn payload_bytes(&self) -> u32 {
        if self.command == command::WRITE { self.len_bytes } else { 0 }
    }

    /// Returns whether it is a read.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.command == command::READ
    }

    /// Returns what is asked for, once it is certain that the export offers it and that the range lies
    /// inside.
    ///
    /// # Errors
    /// [`Refusal`], with the value that the protocol names for the case.
    pub fn check(&self, session: &Session, export: &Description) -> Result<Command, Refusal> {
        let of = export.features;
        let has = |bit: u16| self.flags & bit != 0;
        let fua = has(flag::FUA);
        let (command, also) = match self.command {
            command::READ => (Command::Read { is_unfragmented: has(flag::DF) }, flag::DF),
            command::WRITE => (Command::Write { fua }, 0),
            command::DISC => return Ok(Command::Disconnect),
            command::FLUSH if of.flush => (Command::Flush, 0),
            command::TRIM if of.trim => (Command::Trim { fua }, 0),
            command::CACHE if of.cache => (Command::Cache, 0),
            command::WRITE_ZEROES if of.write_zeroes => {
                let zeroes = Zeroes { fua, no_hole: has(flag::NO_HOLE), fast: has(flag::FAST_ZERO) };
                let fast = if of.fast_zero { flag::FAST_ZERO } else { 0 };
                (Command::WriteZeroes(zeroes), flag::NO_HOLE | fast)
            }
            command::BLOCK_STATUS if !session.contexts.is_empty() => {
                (Command::BlockStatus { is_one: has(flag::REQ_ONE) }, flag::REQ_ONE)
            }
            command::BLOCK_STATUS => return refuse(Errno::Einval, "no context was selected"),
            _ => return refuse(Errno::Einval, "the command is unknown, or not offered"),
        };
        // Clients set it on any command, which the protocol allows.
        let fua_bit = if of.flush { flag::FUA } else { 0 };
        if self.flags & !(also | fua_bit) != 0 {
            return refuse(Errno::Einval, "a flag is unknown, or not offered, or does not fit the command");
        }
        if has(flag::DF) && !session.is_structured {
            return refuse(Errno::Einval, "DF needs structured replies");
        }
        self.check_range(command, export)?;
        Ok(command)
    }

    fn check_range(&self, command: Command, export: &Description) -> Result<(), Refusal> {
        let is_change = matches!(command, Command::Write { .. } | Command::WriteZeroes(_));
        if export.features.read_only && (is_change || matches!(command, Command::Trim { .. })) {
            return refuse(Errno::Eperm, "the export is read-only");
        }
        if command == Command::Flush {
            let is_whole = self.offset == 0 && self.len_bytes == 0;
            return if is_whole { Ok(()) } else { refuse(Errno::Einval, "a flush has no range") };
        }
        let end = self.offset.checked_add(u64::from(self.len_bytes));
        if end.is_none_or(|end| end > export.size_bytes) {
            let errno = if is_change { Errno::Enospc } else { Errno::Einval };
            return refuse(errno, "the range ends beyond the export");
        }
        let block = u64::from(export.block_bytes_min.max(1));
        if !self.offset.is_multiple_of(block) || !u64::from(self.len_bytes).is_multiple_of(block) {
            return refuse(Errno::Einval, "the range is not a multiple of the smallest block");
        }
        match command {
            Command::Read { is_unfragmented } if self.len_bytes > export.payload_bytes_max() => {
                debug_assert!(export.payload_bytes_max() >= UNFRAGMENTED_BYTES_MIN);
                let errno = if is_unfragmented { Errno::Eoverflow } else { Errno::Einval };
                refuse(errno, "the read is longer than the longest payload")
            }
            Command::BlockStatus { .. } if self.len_bytes == 0 => {
                refuse(Errno::Einval, "the range has no bytes")
            }
            _ => Ok(()),
        }
    }
}

fn refuse<T>(errno: Errno, why: &'static str) -> Result<T, Refusal> {
    Err(Refusal { errno, why })
}
