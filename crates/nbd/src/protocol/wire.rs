//! The numbers and limits of the protocol, its violations, and the fields of options.

use blocker::Error;

/// The first eight bytes that a server sends.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Begins the rest of the greeting, and each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The bytes of the head of an option: magic number, option, length.
pub const OPTION_HEAD_BYTES: usize = 16;
/// The bytes of a request without its payload.
pub const REQUEST_BYTES: usize = 28;
/// The bytes of a simple reply without its payload.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// The bytes of the head of a structured reply's chunk.
pub const CHUNK_HEAD_BYTES: usize = 20;

/// The longest text of the protocol, in bytes: names of exports and contexts, and messages.
pub const TEXT_BYTES_MAX: usize = 4096;
/// The longest data of an option that is accepted, in bytes. A connection with a longer one is
/// closed.
pub const OPTION_BYTES_MAX: u32 = 64 * 1024;
/// The maximum number of options of one connection.
pub const OPTIONS_MAX: u32 = 4096;
/// The maximum number of contexts that one connection can select, and the maximum number of queries
/// of one option.
pub const CONTEXTS_MAX: usize = 64;
/// The longest reply to a request for the list of exports, in bytes.
pub const LIST_BYTES_MAX: usize = 4 << 20;
/// The longest payload of a request or a reply, in bytes.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// The maximum number of extents that a reply describes in each context.
pub const EXTENTS_MAX: usize = 8192;
/// The longest request, in bytes, that every server must be able to answer in one chunk if the
/// client demands it.
pub const UNFRAGMENTED_BYTES_MIN: u32 = 64 * 1024;

/// Flags of the server's greeting and of the client's answer to it.
pub mod handshake {
    /// Options other than `EXPORT_NAME` are understood, and each gets a reply.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The reply to `EXPORT_NAME` ends without 124 zeros.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options.
pub mod option {
    /// Selects an export and starts the transmission; the reply cannot carry an error.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the connection.
    pub const ABORT: u32 = 2;
    /// Requests the names of the exports.
    pub const LIST: u32 = 3;
    /// Requests TLS.
    pub const STARTTLS: u32 = 5;
    /// Requests information about an export.
    pub const INFO: u32 = 6;
    /// Selects an export, requests information about it, and starts the transmission.
    pub const GO: u32 = 7;
    /// Requests structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Requests the names of contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Selects contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod option_reply {
    /// The option is accepted, or its answer is complete.
    pub const ACK: u32 = 1;
    /// The name of an export.
    pub const SERVER: u32 = 2;
    /// A piece of information about an export.
    pub const INFO: u32 = 3;
    /// The name of a context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The option is known and not allowed.
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    /// The data of the option are invalid.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// The client must start TLS first.
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    /// The data of the option, or the answer, are too long.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Types of information about an export.
pub mod info {
    /// The size and the transmission flags of the export.
    pub const EXPORT: u16 = 0;
    /// The name of the export.
    pub const NAME: u16 = 1;
    /// The description of the export for people.
    pub const DESCRIPTION: u16 = 2;
    /// The block sizes of the export.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export offers.
pub mod transmission {
    /// The other flags are valid.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// The export cannot be written.
    pub const READ_ONLY: u16 = 1 << 1;
    /// The command `FLUSH` is available.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The command flag `FUA` is available.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The command `TRIM` is available.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// The command `WRITE_ZEROES` is available.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The command flag `DF` is available.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections see the same data, and a flush on one covers all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// The command `CACHE` is available.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The command flag `FAST_ZERO` is available.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Types of requests.
pub mod command {
    /// Reads.
    pub const READ: u16 = 0;
    /// Writes.
    pub const WRITE: u16 = 1;
    /// Closes the connection after everything has been answered.
    pub const DISC: u16 = 2;
    /// Makes everything durable that was acknowledged before.
    pub const FLUSH: u16 = 3;
    /// Discards bytes that are no longer needed.
    pub const TRIM: u16 = 4;
    /// Reads ahead: the bytes will be read soon.
    pub const CACHE: u16 = 5;
    /// Writes zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Requests the extents of contexts.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    /// The change must be durable before it is acknowledged.
    pub const FUA: u16 = 1 << 0;
    /// The zeros must be backed by allocated space.
    pub const NO_HOLE: u16 = 1 << 1;
    /// The reply to a read must be one chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent per context is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Writing zeros must be faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types and flags of chunks.
pub mod chunk {
    /// The flag of the last chunk of a reply.
    pub const DONE: u16 = 1 << 0;
    /// A chunk without data.
    pub const NONE: u16 = 0;
    /// Bytes at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeros at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one context.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// Flags of extents.
pub mod state {
    /// In `base:allocation`: the extent takes up no space.
    pub const HOLE: u32 = 1 << 0;
    /// In `base:allocation`: the extent reads as zeros.
    pub const ZERO: u32 = 1 << 1;
    /// In `qemu:dirty-bitmap:…`: the extent has changed.
    pub const DIRTY: u32 = 1 << 0;
}

/// The error of a request. The protocol defines these values independently of the system's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "they are POSIX's")]
#[repr(u32)]
pub enum Errno {
    Eperm = 1,
    Eio = 5,
    Enomem = 12,
    Einval = 22,
    Enospc = 28,
    Eoverflow = 75,
    Enotsup = 95,
    Eshutdown = 108,
}

impl Errno {
    /// Returns the value for an error of the storage contract.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        match error {
            Error::OutOfSpace(_) => Self::Enospc,
            Error::Denied(_) => Self::Eperm,
            Error::Unsupported(_) => Self::Enotsup,
            Error::Invalid(_) | Error::TooLarge { .. } => Self::Einval,
            // Another server has taken over the export. This server will never serve it again, so
            // the client has to reconnect.
            Error::Fenced { .. } => Self::Eshutdown,
            _ => Self::Eio,
        }
    }
}

/// A violation of the protocol that ends the connection, because no error reply is possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The client sets handshake flags that the server did not offer.
    #[error("the client's flags {0:#x} are not known")]
    ClientFlags(u32),
    /// An option does not begin with its magic number.
    #[error("an option has the wrong magic number {0:#x}")]
    OptionMagic(u64),
    /// The data of an option are longer than the limit.
    #[error("an option has {0} bytes of data; {OPTION_BYTES_MAX} are accepted")]
    OptionTooLong(u32),
    /// The client sends more options than the limit.
    #[error("the client sent {OPTIONS_MAX} options")]
    TooManyOptions,
    /// A client that did not agree to fixed newstyle sends an option other than `EXPORT_NAME`.
    #[error("option {0} of a client that did not agree to fixed newstyle")]
    NotFixed(u32),
    /// The client sends unprotected bytes after its request for TLS.
    #[error("bytes follow STARTTLS before it was answered")]
    PlainAfterTls,
    /// A request does not begin with its magic number.
    #[error("a request begins with {0:#x}")]
    RequestMagic(u32),
    /// A write is longer than the limit.
    #[error("a write of {0} bytes; {PAYLOAD_BYTES_MAX} are accepted")]
    PayloadTooLong(u32),
}

/// The unread rest of an option's data. Each method takes bytes from its beginning, and fails if
/// there are too few.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

/// The reason why the data of an option cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bad {
    /// The data are malformed.
    Form,
    /// A text in the data is too long.
    TooBig,
}

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Bad> {
        let (first, rest) = self.0.split_at_checked(count).ok_or(Bad::Form)?;
        self.0 = rest;
        Ok(first)
    }

    pub(super) fn half(&mut self) -> Result<u16, Bad> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    pub(super) fn word(&mut self) -> Result<u32, Bad> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Takes a string that is preceded by its length.
    pub(super) fn text(&mut self) -> Result<&'a str, Bad> {
        let length = self.word()? as usize;
        text(self.take(length)?)
    }

    /// Checks that no data remain.
    pub(super) fn end(&self) -> Result<(), Bad> {
        if self.0.is_empty() { Ok(()) } else { Err(Bad::Form) }
    }
}

/// Returns bytes as a string: UTF-8 without NUL, of a valid length.
pub(super) fn text(bytes: &[u8]) -> Result<&str, Bad> {
    if bytes.len() > TEXT_BYTES_MAX {
        return Err(Bad::TooBig);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| Bad::Form)?;
    if text.contains('\0') { Err(Bad::Form) } else { Ok(text) }
}
