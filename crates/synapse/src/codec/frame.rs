//! A frame's head: header, names, extensions. Read and written in one step each.
//!
//! Incomplete input is a result, not an error. An error here means that the stream can no longer be
//! understood, or comes from something that does not speak this protocol: the connection is closed. What
//! is wrong with a request that can be understood is answered, see [`super::request`].

use super::error::FrameError;
use super::extension::Extensions;
use super::header::{self, HEAD_CRC_AT, HEADER_BYTES, Header, Lengths, MAGIC, RequestId, VERSION};
use super::op::Op;

/// The longest extension area.
pub const EXTENSION_BYTES_MAX: u32 = 4096;
/// The longest head: header, four names, extensions.
pub const HEAD_BYTES_MAX: usize = HEADER_BYTES + 4 * 255 + EXTENSION_BYTES_MAX as usize;

/// How every frame begins.
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
    /// What else was sent.
    pub extensions: Extensions<'a>,
    /// How long all of this was.
    pub head_bytes: usize,
    /// How long the payload is.
    pub payload_bytes: usize,
    /// The payload's CRC, if it is protected.
    pub payload_crc: Option<u32>,
}

/// What must be known of a frame before it is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// How long header, names and extensions are.
    pub head_bytes: usize,
    /// How long the payload after them is.
    pub payload_bytes: usize,
}

/// Measures the frame at the start of `input`, whose head is then known to be undamaged; `None` if the
/// head is not complete yet. A payload may have at most `payload_bytes_max` bytes.
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
    let said = u32::from_le_bytes([fixed[100], fixed[101], fixed[102], fixed[103]]);
    if !rest.is_empty() {
        crc.update(rest);
    }
    if said != crc.finalize() {
        return Err(FrameError::HeadChecksum);
    }
    limit("a payload", lengths.payload, payload_bytes_max)?;
    Ok(Some(Measured { head_bytes, payload_bytes: lengths.payload as usize }))
}

/// What can be told from the first bytes is told at once: someone who does not speak this protocol may never
/// send a whole header.
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

/// Reads a head that [`measure`] has found to be complete. Bytes after it are ignored.
///
/// # Errors
/// [`FrameError`]: close the connection.
// What it returns is large: inlined, it is made where it is wanted instead of being moved there, several times.
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

/// [`measure`] and [`parse`] in one.
///
/// # Errors
/// [`FrameError`]: close the connection.
pub fn decode(input: &[u8], payload_bytes_max: u32) -> Result<Option<Head<'_>>, FrameError> {
    measure(input, payload_bytes_max)?.map(|_| parse(input)).transpose()
}

/// What is sent with a header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attached<'a> {
    /// Namespace, name, to-namespace, to-name.
    pub names: [&'a [u8]; 4],
    /// Written by [`super::Writer`].
    pub extension: &'a [u8],
    /// How long the payload that follows is.
    pub payload_bytes: u32,
    /// Its CRC, where the flag says so.
    pub payload_crc: u32,
}

/// Appends a head to `out`. The payload is to follow.
///
/// # Panics
/// If a name is longer than 255 bytes or the extensions longer than [`EXTENSION_BYTES_MAX`]: our bug.
pub fn encode(out: &mut Vec<u8>, header: &Header, attached: &Attached<'_>) {
    let len = |name: &[u8]| u8::try_from(name.len()).expect("a name has at most 255 bytes");
    assert!(attached.extension.len() <= EXTENSION_BYTES_MAX as usize, "extensions that fit");
    let [namespace, name, to_namespace, to_name] = attached.names;
    let lengths = Lengths {
        names: [len(namespace), len(name), len(to_namespace), len(to_name)],
        // Just checked.
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

/// Appends a frame that is nothing but a header.
pub fn encode_plain(out: &mut Vec<u8>, header: &Header) {
    encode(out, header, &Attached::default());
}

/// Whether a frame has names, which its operation may know nothing of.
pub(super) fn has_names(head: &Head<'_>) -> bool {
    [head.namespace, head.name, head.to_namespace, head.to_name].iter().any(|name| !name.is_empty())
}

/// A ping, or its answer.
pub fn encode_ping(out: &mut Vec<u8>, is_reply: bool) {
    let mut header = Header::new(Op::Ping, RequestId::default());
    header.flags.put(header::Flags::REPLY, is_reply);
    encode_plain(out, &header);
}

/// How many bytes may be under way: from a server what it grants from now on, as a reply the client's word that it
/// keeps to that, from a client what its next request needs.
pub fn encode_credit(out: &mut Vec<u8>, bytes: u64, is_reply: bool) {
    let mut header = Header::new(Op::Credit, RequestId::default());
    header.flags.put(header::Flags::REPLY, is_reply);
    header.length = bytes;
    encode_plain(out, &header);
}

/// The word that the caller of `id` has gone.
pub fn encode_cancel(out: &mut Vec<u8>, id: RequestId) {
    encode_plain(out, &Header::new(Op::Cancel, id));
}
