//! A frame's head: header, names, extensions. Read and written in one step each.
//!
//! Incomplete input is a result, not an error. An error means that the stream can no longer be understood, or
//! is of another protocol: the connection is closed. A request that can be read but makes no sense is
//! answered instead, see [`Request::decode`](super::Request::decode).

use super::error::FrameError;
use super::extension::Extensions;
use super::header::{self, HEAD_CRC_AT, HEADER_BYTES, Header, Lengths, MAGIC, RequestId, VERSION};
use super::op::Op;

/// The longest extension area.
pub const EXTENSION_BYTES_MAX: u32 = 4096;
/// The longest head: header, four names, extensions.
pub const HEAD_BYTES_MAX: usize = HEADER_BYTES + 4 * 255 + EXTENSION_BYTES_MAX as usize;

/// The first bytes of every frame.
const BEGINNING: [u8; 5] = [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], VERSION];

/// The head of a frame, borrowed from the bytes it was read from.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The fixed fields.
    pub header: Header,
    /// The object's namespace; empty if there is none.
    pub namespace: &'a [u8],
    /// The object's name; empty if there is none.
    pub name: &'a [u8],
    /// Of a copy, the target's namespace; empty otherwise.
    pub to_namespace: &'a [u8],
    /// Of a copy, the target's name; of a listing, the prefix.
    pub to_name: &'a [u8],
    /// The extensions.
    pub extensions: Extensions<'a>,
    /// The length of the head.
    pub head_bytes: usize,
    /// The length of the payload.
    pub payload_bytes: usize,
    /// The payload's CRC-32, if it is protected.
    pub payload_crc: Option<u32>,
}

/// The lengths of a frame, which are known before it is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// The length of header, names and extensions.
    pub head_bytes: usize,
    /// The length of the payload after them.
    pub payload_bytes: usize,
}

/// Returns the lengths of the frame at the start of `input`, whose head is then known to be undamaged; `None`
/// if the head is not complete yet. A payload may have at most `payload_bytes_max` bytes.
///
/// # Errors
/// [`FrameError`]: close the connection.
pub fn measure(input: &[u8], payload_bytes_max: u32) -> Result<Option<Measured>, FrameError> {
    if input.first_chunk() != Some(&BEGINNING) {
        check_beginning(input)?;
    }
    let Some(fixed) = input.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let mut crc = header::checked(fixed).ok_or(FrameError::HeadChecksum)?;
    let lengths = header::read_lengths(fixed);
    let limit = |name, length: u32, limit: u32| {
        let error = FrameError::TooLong { name, length: length.into(), limit: limit.into() };
        if length <= limit { Ok(()) } else { Err(error) }
    };
    limit("an extension area", lengths.extension, EXTENSION_BYTES_MAX)?;
    let head_bytes = lengths.head_bytes();
    let Some(rest) = input.get(HEADER_BYTES..head_bytes) else { return Ok(None) };
    let sent = u32::from_le_bytes([fixed[100], fixed[101], fixed[102], fixed[103]]);
    if !rest.is_empty() {
        crc.update(rest);
    }
    if sent != crc.finalize() {
        return Err(FrameError::HeadChecksum);
    }
    limit("a payload", lengths.payload, payload_bytes_max)?;
    Ok(Some(Measured { head_bytes, payload_bytes: lengths.payload as usize }))
}

/// Checks the first bytes as soon as they are there: a peer with another protocol may never send a whole
/// header.
fn check_beginning(input: &[u8]) -> Result<(), FrameError> {
    let magic_len = input.len().min(MAGIC.len());
    if input[..magic_len] != MAGIC[..magic_len] {
        let mut found = [0; 4];
        found[..magic_len].copy_from_slice(&input[..magic_len]);
        return Err(FrameError::Magic { found });
    }
    match input.get(4) {
        Some(&found) if found != VERSION => Err(FrameError::Version { found }),
        _ => Ok(()),
    }
}

/// Reads a head that [`measure`] has found complete. Bytes after it are ignored.
///
/// # Errors
/// [`FrameError`]: close the connection.
// Inlined because the result is large: it is constructed in its place instead of being moved there several
// times.
#[inline(always)]
pub fn parse(head: &[u8]) -> Result<Head<'_>, FrameError> {
    let Some(fixed) = head.first_chunk::<HEADER_BYTES>() else { return Err(FrameError::HeadChecksum) };
    let lengths = header::read_lengths(fixed);
    let header = header::read(fixed)?;
    let head_bytes = lengths.head_bytes();
    let mut names = head.get(HEADER_BYTES..head_bytes).ok_or(FrameError::HeadChecksum)?;
    let mut take = |index: usize| {
        let (name, left) = names.split_at(usize::from(lengths.names[index]));
        names = left;
        name
    };
    let (namespace, name, to_namespace, to_name) = (take(0), take(1), take(2), take(3));
    let has_crc = header.flags.has(header::Flags::PAYLOAD_CRC);
    Ok(Head {
        header,
        namespace,
        name,
        to_namespace,
        to_name,
        extensions: Extensions::check(names)?,
        head_bytes,
        payload_bytes: lengths.payload as usize,
        payload_crc: has_crc.then_some(lengths.payload_crc),
    })
}

/// [`measure`] and [`parse`] in one step.
///
/// # Errors
/// [`FrameError`]: close the connection.
pub fn decode(input: &[u8], payload_bytes_max: u32) -> Result<Option<Head<'_>>, FrameError> {
    measure(input, payload_bytes_max)?.map(|_| parse(input)).transpose()
}

/// The parts of a frame after its header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attached<'a> {
    /// Namespace, name, to-namespace, to-name.
    pub names: [&'a [u8]; 4],
    /// Written by [`super::Writer`].
    pub extension: &'a [u8],
    /// The length of the payload that follows.
    pub payload_bytes: u32,
    /// Its CRC-32, if the flag is set.
    pub payload_crc: u32,
}

/// Appends a head to `out`. The caller appends the payload.
///
/// # Panics
/// If a name is longer than 255 bytes, or the extensions than [`EXTENSION_BYTES_MAX`].
pub fn encode(out: &mut Vec<u8>, header: &Header, attached: &Attached<'_>) {
    let len = |name: &[u8]| u8::try_from(name.len()).expect("a name has at most 255 bytes");
    assert!(attached.extension.len() <= EXTENSION_BYTES_MAX as usize, "extensions that fit");
    let [namespace, name, to_namespace, to_name] = attached.names;
    let lengths = Lengths {
        names: [len(namespace), len(name), len(to_namespace), len(to_name)],
        // Within the limit, by the assertion.
        extension: attached.extension.len() as u32,
        payload: attached.payload_bytes,
        payload_crc: attached.payload_crc,
    };
    let (fixed, mut crc) = header::write(header, &lengths);
    let start = out.len();
    out.extend_from_slice(&fixed);
    for part in [namespace, name, to_namespace, to_name, attached.extension] {
        if !part.is_empty() {
            out.extend_from_slice(part);
        }
    }
    if out.len() > start + HEADER_BYTES {
        crc.update(&out[start + HEADER_BYTES..]);
    }
    out[start + HEAD_CRC_AT..start + HEADER_BYTES].copy_from_slice(&crc.finalize().to_le_bytes());
}

/// Appends a frame that consists of a header.
pub fn encode_plain(out: &mut Vec<u8>, header: &Header) {
    encode(out, header, &Attached::default());
}

/// Whether a frame has names.
pub(super) fn has_names(head: &Head<'_>) -> bool {
    [head.namespace, head.name, head.to_namespace, head.to_name].iter().any(|name| !name.is_empty())
}

/// Appends a ping, or its answer.
pub fn encode_ping(out: &mut Vec<u8>, is_reply: bool) {
    let mut header = Header::new(Op::Ping, RequestId::default());
    header.flags.put(header::Flags::REPLY, is_reply);
    encode_plain(out, &header);
}

/// Appends a credit frame: from a server the bytes that it grants from now on, as a reply the client's
/// acceptance, from a client the cost of its next request.
pub fn encode_credit(out: &mut Vec<u8>, bytes: u64, is_reply: bool) {
    let mut header = Header::new(Op::Credit, RequestId::default());
    header.flags.put(header::Flags::REPLY, is_reply);
    header.length = bytes;
    encode_plain(out, &header);
}

/// Appends a cancellation of the request `id`.
pub fn encode_cancel(out: &mut Vec<u8>, id: RequestId) {
    encode_plain(out, &Header::new(Op::Cancel, id));
}
