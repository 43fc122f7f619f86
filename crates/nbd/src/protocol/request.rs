//! Decoding of requests, and encoding of replies.

use blocker::{Segment, Segments};

use super::Description;
use super::negotiation::{Session, truncated};
use super::wire::{
    CHUNK_HEAD_BYTES, EXTENTS_MAX, Errno, REQUEST_BYTES, REQUEST_MAGIC, SIMPLE_REPLY_BYTES,
    SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, UNFRAGMENTED_BYTES_MIN, Violation, chunk, command,
    command_flag as flag, state,
};

/// A request without its payload, as it arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The flags.
    pub flags: u16,
    /// The number of the command.
    pub command: u16,
    /// The client's id for matching the reply to the request.
    pub cookie: u64,
    /// The first byte of the range.
    pub offset: u64,
    /// The length of the range, in bytes.
    pub len_bytes: u32,
}

/// The operation that a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Reads the range; the reply is one chunk if `is_unfragmented`.
    Read {
        /// Whether the reply must be one chunk.
        is_unfragmented: bool,
    },
    /// Writes the payload to the range.
    Write {
        /// Whether the change must be durable before it is acknowledged.
        fua: bool,
    },
    /// Closes the connection.
    Disconnect,
    /// Makes everything durable that was acknowledged before.
    Flush,
    /// Discards the range, which is no longer needed.
    Trim {
        /// Whether the change must be durable before it is acknowledged.
        fua: bool,
    },
    /// Reads ahead: the range will be read soon.
    Cache,
    /// Writes zeros.
    WriteZeroes(Zeroes),
    /// Requests the extents of the range.
    BlockStatus {
        /// Whether one extent per context is enough.
        is_one: bool,
    },
}

/// The way of writing zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Zeroes {
    /// Whether the change must be durable before it is acknowledged.
    pub fua: bool,
    /// Whether the zeros must be backed by allocated space.
    pub no_hole: bool,
    /// Whether the request has to fail at once with `Unsupported` if it would not be faster than a
    /// write.
    pub fast: bool,
}

/// The reason why a request is refused before it reaches the export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The error sent to the client.
    pub errno: Errno,
    /// The reason, for people.
    pub why: &'static str,
}

impl Request {
    /// Decodes a request from its first [`REQUEST_BYTES`] bytes; `None` if there are fewer.
    ///
    /// # Errors
    /// [`Violation::RequestMagic`]: the stream has lost its synchronization.
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

    /// Appends the encoded request, as a client sends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.command.to_be_bytes());
        out.extend_from_slice(&self.cookie.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.len_bytes.to_be_bytes());
    }

    /// Returns the length of the payload that follows.
    #[must_use]
    pub fn payload_bytes(&self) -> u32 {
        if self.command == command::WRITE { self.len_bytes } else { 0 }
    }

    /// Returns whether it is a read.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.command == command::READ
    }

    /// Returns the operation, after checking that the export can execute it and that the range
    /// lies inside the export.
    ///
    /// # Errors
    /// [`Refusal`], with the error that the protocol prescribes.
    pub fn check(&self, session: &Session, export: &Description) -> Result<Command, Refusal> {
        let has = |bit: u16| self.flags & bit != 0;
        let fua = has(flag::FUA);
        let (command, also) = match self.command {
            command::READ => (Command::Read { is_unfragmented: has(flag::DF) }, flag::DF),
            command::WRITE => (Command::Write { fua }, 0),
            command::DISC => return Ok(Command::Disconnect),
            command::FLUSH => (Command::Flush, 0),
            command::TRIM => (Command::Trim { fua }, 0),
            command::CACHE => (Command::Cache, 0),
            command::WRITE_ZEROES => {
                let zeroes = Zeroes { fua, no_hole: has(flag::NO_HOLE), fast: has(flag::FAST_ZERO) };
                (Command::WriteZeroes(zeroes), flag::NO_HOLE | flag::FAST_ZERO)
            }
            command::BLOCK_STATUS if !session.contexts.is_empty() => {
                (Command::BlockStatus { is_one: has(flag::REQ_ONE) }, flag::REQ_ONE)
            }
            command::BLOCK_STATUS => return refuse(Errno::Einval, "no context was selected"),
            _ => return refuse(Errno::Einval, "the command is unknown"),
        };
        // Clients set FUA on any command, which the protocol allows.
        if self.flags & !(also | flag::FUA) != 0 {
            return refuse(Errno::Einval, "a flag is unknown, or does not fit the command");
        }
        if has(flag::DF) && !session.is_structured {
            return refuse(Errno::Einval, "DF needs structured replies");
        }
        self.check_range(command, export)?;
        Ok(command)
    }

    fn check_range(&self, command: Command, export: &Description) -> Result<(), Refusal> {
        let is_change = matches!(command, Command::Write { .. } | Command::WriteZeroes(_));
        if export.read_only && (is_change || matches!(command, Command::Trim { .. })) {
            return refuse(Errno::Eperm, "the export is read-only");
        }
        if command == Command::Flush {
            let is_whole = self.offset == 0 && self.len_bytes == 0;
            return if is_whole { Ok(()) } else { refuse(Errno::Einval, "a flush must have no range") };
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
            Command::BlockStatus { .. } if self.len_bytes == 0 => refuse(Errno::Einval, "the range is empty"),
            _ => Ok(()),
        }
    }
}

fn refuse<T>(errno: Errno, why: &'static str) -> Result<T, Refusal> {
    Err(Refusal { errno, why })
}

// ---- Replies. A success without data is always a simple reply, which the protocol allows. Errors
// and data are structured if the client has negotiated that.

/// The shortest run of zeros, in bytes, that is described instead of sent.
const HOLE_BYTES_MIN: usize = 4096;

/// A run of bytes with the same state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The number of bytes.
    pub len_bytes: u64,
    /// The state, see [`state`].
    pub flags: u32,
}

impl Extent {
    /// Returns an extent with data, in `base:allocation`.
    #[must_use]
    pub fn data(len_bytes: u64) -> Self {
        Self { len_bytes, flags: 0 }
    }

    /// Returns an extent that takes up no space and reads as zeros, in `base:allocation`.
    #[must_use]
    pub fn hole(len_bytes: u64) -> Self {
        Self { len_bytes, flags: state::HOLE | state::ZERO }
    }
}

/// Appends a simple reply without data.
pub fn encode_done(out: &mut Vec<u8>, cookie: u64) {
    encode_simple(out, cookie, 0);
}

fn encode_simple(out: &mut Vec<u8>, cookie: u64, error: u32) {
    let mut reply = [0; SIMPLE_REPLY_BYTES];
    reply[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    reply[4..8].copy_from_slice(&error.to_be_bytes());
    reply[8..].copy_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&reply);
}

fn encode_chunk(out: &mut Vec<u8>, cookie: u64, flags: u16, kind: u16, len_bytes: usize) {
    let mut head = [0; CHUNK_HEAD_BYTES];
    head[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    head[4..6].copy_from_slice(&flags.to_be_bytes());
    head[6..8].copy_from_slice(&kind.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    // Payloads are at most 32 MiB, by the checks.
    head[16..].copy_from_slice(&(len_bytes as u32).to_be_bytes());
    out.extend_from_slice(&head);
}

/// Appends an error. `why` is a message for people.
pub fn encode_error(out: &mut Vec<u8>, cookie: u64, is_structured: bool, errno: Errno, why: &str) {
    if !is_structured {
        return encode_simple(out, cookie, errno as u32);
    }
    let why = truncated(why).as_bytes();
    encode_chunk(out, cookie, chunk::DONE, chunk::ERROR, 6 + why.len());
    out.extend_from_slice(&(errno as u32).to_be_bytes());
    // The message is at most 4096 bytes long.
    out.extend_from_slice(&(why.len() as u16).to_be_bytes());
    out.extend_from_slice(why);
}

/// Passes the parts of the reply to a read to `send`, in order.
///
/// Holes of at least 4 KiB are described instead of sent if replies are structured and may consist
/// of several chunks.
pub fn encode_read(
    cookie: u64,
    is_structured: bool,
    is_unfragmented: bool,
    offset: u64,
    data: Segments,
    mut send: impl FnMut(&mut dyn FnMut(&mut Vec<u8>), Segments),
) {
    if !is_structured {
        return send(&mut |out| encode_done(out, cookie), data);
    }
    let len_bytes = data.len_bytes();
    if len_bytes == 0 {
        return send(&mut |out| encode_chunk(out, cookie, chunk::DONE, chunk::NONE, 0), Segments::new());
    }
    if is_unfragmented || !data.iter().any(Segment::is_hole) {
        return send(&mut |out| encode_data_head(out, cookie, chunk::DONE, offset, len_bytes), data);
    }
    let mut at = 0;
    for (run, is_hole) in runs(data) {
        let run_bytes = run.len_bytes();
        let from = offset + at as u64;
        at += run_bytes;
        let flags = if at == len_bytes { chunk::DONE } else { 0 };
        if !is_hole {
            send(&mut |out| encode_data_head(out, cookie, flags, from, run_bytes), run);
            continue;
        }
        let mut head = |out: &mut Vec<u8>| {
            encode_chunk(out, cookie, flags, chunk::OFFSET_HOLE, 12);
            out.extend_from_slice(&from.to_be_bytes());
            out.extend_from_slice(&(run_bytes as u32).to_be_bytes());
        };
        send(&mut head, Segments::new());
    }
}

fn encode_data_head(out: &mut Vec<u8>, cookie: u64, flags: u16, offset: u64, len_bytes: usize) {
    encode_chunk(out, cookie, flags, chunk::OFFSET_DATA, 8 + len_bytes);
    out.extend_from_slice(&offset.to_be_bytes());
}

/// Splits a payload into runs of data and of holes. A hole too short to be described counts as
/// data.
fn runs(data: Segments) -> Vec<(Segments, bool)> {
    let mut holes: Vec<(Segments, bool)> = Vec::new();
    for segment in &data {
        let is_hole = segment.is_hole();
        match holes.last_mut() {
            Some((run, of_holes)) if *of_holes == is_hole => run.push(segment.clone()),
            _ => holes.push((segment.clone().into(), is_hole)),
        }
    }
    let mut runs: Vec<(Segments, bool)> = Vec::with_capacity(holes.len());
    for (run, is_hole) in holes {
        let is_hole = is_hole && run.len_bytes() >= HOLE_BYTES_MIN;
        match runs.last_mut() {
            Some((before, false)) if !is_hole => before.append(run),
            _ => runs.push((run, is_hole)),
        }
    }
    runs
}

/// Appends the extents of every selected context.
///
/// Adjacent extents with the same state are merged. Those beyond `len_bytes` or [`EXTENTS_MAX`]
/// extents are left out, and the client asks again from there. A context without extents is
/// described by one extent of state 0.
pub fn encode_block_status(
    out: &mut Vec<u8>,
    cookie: u64,
    len_bytes: u32,
    is_one: bool,
    contexts: &[(u32, Vec<Extent>)],
) {
    for (index, (id, extents)) in contexts.iter().enumerate() {
        let joined = sent_extents(extents, len_bytes, is_one);
        let flags = if index + 1 == contexts.len() { chunk::DONE } else { 0 };
        encode_chunk(out, cookie, flags, chunk::BLOCK_STATUS, 4 + 8 * joined.len());
        out.extend_from_slice(&id.to_be_bytes());
        for extent in joined {
            // The extent lies within the request, whose length has 32 bits.
            out.extend_from_slice(&(extent.len_bytes as u32).to_be_bytes());
            out.extend_from_slice(&extent.flags.to_be_bytes());
        }
    }
}

/// Returns the extents that [`encode_block_status`] sends for one context.
#[must_use]
pub fn sent_extents(extents: &[Extent], len_bytes: u32, is_one: bool) -> Vec<Extent> {
    let extents_max = if is_one { 1 } else { EXTENTS_MAX };
    let mut joined: Vec<Extent> = Vec::new();
    let mut left = u64::from(len_bytes);
    for extent in extents.iter().filter(|extent| extent.len_bytes > 0) {
        if left == 0 {
            break;
        }
        let part = extent.len_bytes.min(left);
        let is_full = joined.len() == extents_max;
        match joined.last_mut() {
            Some(last) if last.flags == extent.flags => last.len_bytes += part,
            _ if is_full => break,
            _ => joined.push(Extent { len_bytes: part, flags: extent.flags }),
        }
        left -= part;
    }
    if joined.is_empty() {
        joined.push(Extent::data(len_bytes.into()));
    }
    joined
}
