//! A frame's head: header, names and extensions. It is read and written in one step each.
//!
//! Incomplete input is a result, not an error. An error means that the stream is damaged, or uses
//! another protocol; the connection is then closed. A well-formed but invalid request gets an error
//! as its answer: see [`Request::decode`](super::Request::decode).

use blocker::Error;

use super::header::{self, HEAD_CRC_AT, HEADER_BYTES, Header, Lengths, MAGIC, RequestId, VERSION};
use super::op::Op;

/// The longest extension area.
pub const EXTENSION_BYTES_MAX: u32 = 4096;
/// The longest head: header, four names, extensions.
pub const HEAD_BYTES_MAX: usize = HEADER_BYTES + 4 * 255 + EXTENSION_BYTES_MAX as usize;

/// The first bytes of every frame.
const BEGINNING: [u8; 5] = [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], VERSION];

/// The head of a frame, borrowed from the bytes of which it was decoded.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The fixed fields.
    pub header: Header,
    /// The object's namespace; empty if there is none.
    pub namespace: &'a [u8],
    /// The object's name; empty if there is none.
    pub name: &'a [u8],
    /// The namespace of a copy's target; empty for other operations.
    pub to_namespace: &'a [u8],
    /// The name of a copy's target; empty for other operations.
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
    /// The length of the payload after the header and the names.
    pub payload_bytes: usize,
}

/// Returns the lengths of the frame at the start of `input`, after checking that its head is
/// undamaged; `None` if the head is not complete yet. A payload may have at most
/// `payload_bytes_max` bytes.
///
/// # Errors
/// Returns [`FrameError`]: the caller must close the connection.
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

/// Checks the first bytes as soon as they arrive: a peer with another protocol may never send a
/// whole header.
fn check_beginning(input: &[u8]) -> Result<(), FrameError> {
    let magic_len = input.len().min(MAGIC.len());
    if input[..magic_len] != MAGIC[..magic_len] {
        let mut found = [0; 4];
        found[..magic_len].copy_from_slice(&input[..magic_len]);
        return Err(FrameError::Magic(found));
    }
    match input.get(4) {
        Some(&found) if found != VERSION => Err(FrameError::Version(found)),
        _ => Ok(()),
    }
}

/// Reads a head that [`measure`] has found complete. Bytes after it are ignored.
///
/// # Errors
/// Returns [`FrameError`]: the caller must close the connection.
// The function is inlined because its result is large: it is constructed in place instead of being
// moved several times.
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

/// Performs [`measure`] and [`parse`] in one step.
///
/// # Errors
/// Returns [`FrameError`]: the caller must close the connection.
pub fn decode(input: &[u8], payload_bytes_max: u32) -> Result<Option<Head<'_>>, FrameError> {
    measure(input, payload_bytes_max)?.map(|_| parse(input)).transpose()
}

/// The parts of a frame after its header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attached<'a> {
    /// The names in the order of the frame: namespace, name, target namespace, target name.
    pub names: [&'a [u8]; 4],
    /// The extension area, written by [`super::Writer`].
    pub extension: &'a [u8],
    /// The length of the payload that follows.
    pub payload_bytes: u32,
    /// The payload's CRC-32, if the flag is set.
    pub payload_crc: u32,
}

/// Appends a head to `out`. The caller appends the payload.
///
/// # Panics
/// Panics if a name is longer than 255 bytes, or the extensions are longer than
/// [`EXTENSION_BYTES_MAX`].
pub fn encode(out: &mut Vec<u8>, header: &Header, attached: &Attached<'_>) {
    let len = |name: &[u8]| u8::try_from(name.len()).expect("a name has at most 255 bytes");
    assert!(attached.extension.len() <= EXTENSION_BYTES_MAX as usize, "extensions that fit");
    let [namespace, name, to_namespace, to_name] = attached.names;
    let lengths = Lengths {
        names: [len(namespace), len(name), len(to_namespace), len(to_name)],
        // The assertion keeps the length within the limit.
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

/// Returns whether a frame has names.
pub(super) fn has_names(head: &Head<'_>) -> bool {
    [head.namespace, head.name, head.to_namespace, head.to_name].iter().any(|name| !name.is_empty())
}

/// Appends a ping, or the reply to one.
pub fn encode_ping(out: &mut Vec<u8>, is_reply: bool) {
    let mut header = Header::new(Op::Ping, RequestId::default());
    header.flags.put(header::Flags::REPLY, is_reply);
    encode_plain(out, &header);
}

/// Appends a credit frame. From a server it has the newly granted bytes; from a client it has the
/// cost of its next request, or, as a reply, the client's acceptance.
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

// ---- The extension area: how the protocol grows without a new version.
//
// ```text
//   0       1       2       3       4
//   +-------+-------+-------+-------+----------------+
//   |C|    kind     |    length     | length bytes   |  repeated, to the end of the area
//   +-------+-------+-------+-------+----------------+
// ```
//
// `C`, the highest bit of the kind, means *critical*: a side that does not know the kind must not act on the
// frame. Other unknown kinds are skipped.

/// The bit that marks critical kinds: a side that does not know the kind must not act on the frame.
pub const CRITICAL: u16 = 0x8000;

/// The kinds of this version.
pub mod kind {
    use super::CRITICAL;

    /// In a hello: 16 bytes for the client and a `u16` for the lane, which together name the
    /// session.
    pub const SESSION: u16 = 1;
    /// In a hello, the requested features; in a welcome, the granted ones; each a `u64`.
    pub const FEATURES: u16 = 2;
    /// In a hello and a challenge: 32 bytes drawn at random.
    pub const NONCE: u16 = 3;
    /// In proofs: the 32 bytes of an HMAC-SHA-256.
    pub const PROOF: u16 = 4;
    /// In a welcome: the 16 bytes of the server's instance.
    pub const INSTANCE: u16 = 5;
    /// In a hello and a welcome: the number of slots (`u32`), and the number of bytes in flight
    /// (`u64`).
    pub const CREDITS: u16 = 6;
    /// In a welcome: the number of milliseconds (`u32`) after which either side considers the other
    /// one dead.
    pub const PEER_TIMEOUT: u16 = 7;
    /// In a welcome: the backend's capabilities.
    pub const CAPABILITIES: u16 = 8;
    /// In a welcome: a `u64` drawn at random when the session begins. Another value means another
    /// session, even with the same ID.
    pub const GENERATION: u16 = 11;
    /// In a welcome: the 16 bytes of the identity of the served store. Left out if the store has
    /// none.
    pub const STORE: u16 = 12;
    /// In a welcome: the server's name in UTF-8.
    pub const SERVER_NAME: u16 = 13;
    /// In a welcome: the instances (16 bytes each) that ended with everything stored, the latest
    /// one first.
    pub const CLOSED: u16 = 14;
    /// In a hello and a goodbye: the lowest and the highest version that the sender supports, each
    /// a `u8`.
    pub const VERSIONS: u16 = 15;
    /// In a hello: the client's name in UTF-8.
    pub const CLIENT_NAME: u16 = 18;
    /// In a hello: the name of the secret that the client proves to know.
    pub const KEY: u16 = 19;
    /// In requests of the contract: 16 bytes for the trace and 8 bytes for the span, as in W3C
    /// Trace Context. Only traced requests have it.
    pub const TRACE: u16 = 20;
    /// In a hello: reserved for the start of TLS.
    pub const TLS: u16 = 9 | CRITICAL;
    /// In a hello: reserved for the client's permissions.
    pub const PERMISSIONS: u16 = 10 | CRITICAL;
    /// In a copy: the condition on the source, a `u8`, and its version, a `u64`.
    pub const FROM_CONDITION: u16 = 16 | CRITICAL;

    /// Returns whether a critical kind is known. TLS and permissions are not, in this version.
    pub(super) fn is_known(kind: u16) -> bool {
        kind & CRITICAL == 0 || kind == FROM_CONDITION
    }
}

/// A well-formed extension area.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extensions<'a>(&'a [u8]);

impl<'a> Extensions<'a> {
    /// Returns the extensions of `area` if their lengths add up and all critical ones are known.
    ///
    /// # Errors
    /// Returns [`FrameError::Extensions`], [`FrameError::CriticalExtension`].
    pub fn check(area: &'a [u8]) -> Result<Self, FrameError> {
        let mut left = area;
        while !left.is_empty() {
            let (kind, _, rest) = split(left).ok_or(FrameError::Extensions)?;
            if !kind::is_known(kind) {
                return Err(FrameError::CriticalExtension(kind));
            }
            left = rest;
        }
        Ok(Self(area))
    }

    /// Returns the first extension of this kind.
    #[must_use]
    pub fn get(&self, kind: u16) -> Option<&'a [u8]> {
        let mut left = self.0;
        while let Some((found, value, rest)) = split(left) {
            if found == kind {
                return Some(value);
            }
            left = rest;
        }
        None
    }

    /// Returns the first extension of this kind, if it has exactly `N` bytes.
    #[must_use]
    pub fn get_array<const N: usize>(&self, kind: u16) -> Option<[u8; N]> {
        self.get(kind)?.try_into().ok()
    }
}

fn split(area: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (fixed, rest) = area.split_first_chunk::<4>()?;
    let kind = u16::from_le_bytes([fixed[0], fixed[1]]);
    let length = usize::from(u16::from_le_bytes([fixed[2], fixed[3]]));
    let (value, rest) = rest.split_at_checked(length)?;
    Some((kind, value, rest))
}

/// Writes an extension area.
#[derive(Clone, Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Appends an extension.
    ///
    /// # Panics
    /// Panics if `value` is longer than 65 535 bytes.
    pub fn put(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let length = u16::try_from(value.len()).expect("a short extension");
        self.0.extend_from_slice(&kind.to_le_bytes());
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(value);
        self
    }

    /// Returns the area so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

// ---- The reasons for which bytes are refused: a damaged stream, or a meaningless frame.

/// The reason why a stream cannot be understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The peer uses another protocol; the first four bytes are given.
    #[error("not the synapse protocol: the frame begins with {0:02x?}")]
    Magic([u8; 4]),
    /// The peer sends this version instead.
    #[error("the frame has version {0} of the protocol, but this side has version 1")]
    Version(u8),
    /// The head was damaged in transit.
    #[error("the head fails its checksum")]
    HeadChecksum,
    /// No operation has this code.
    #[error("no operation has the code {0}")]
    Op(u8),
    /// A field has an invalid value.
    #[error("{name} cannot be {value}")]
    Field {
        /// The name of the field.
        name: &'static str,
        /// The value of the field.
        value: u64,
    },
    /// A part of the frame exceeds the agreed length.
    #[error("{name} has {length} bytes; the limit is {limit}")]
    TooLong {
        /// The name of the part.
        name: &'static str,
        /// The length of the part.
        length: u64,
        /// The maximum length.
        limit: u64,
    },
    /// The extensions do not fill their area exactly.
    #[error("the extensions do not fill their area exactly")]
    Extensions,
    /// A critical extension of this kind is unknown.
    #[error("the critical extension {0} is not known")]
    CriticalExtension(u16),
}

/// Returns the error of a frame that is well-formed but meaningless.
pub(super) fn invalid(what: &'static str) -> Error {
    Error::Invalid(what.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_found_and_unknown_ones_skipped() {
        let mut writer = Writer::default();
        writer.put(700, b"from the future").put(kind::FEATURES, &7_u64.to_le_bytes()).put(kind::NONCE, b"");
        let found = Extensions::check(writer.bytes()).unwrap();
        assert_eq!(found.get_array(kind::FEATURES).map(u64::from_le_bytes), Some(7));
        assert_eq!(found.get(kind::NONCE), Some(&b""[..]));
        assert_eq!(found.get(kind::PROOF), None);
        assert_eq!(found.get_array::<4>(kind::FEATURES), None);
    }

    #[test]
    fn an_area_with_wrong_lengths_or_an_unknown_critical_kind_is_refused() {
        let mut writer = Writer::default();
        writer.put(kind::NONCE, &[1; 32]);
        for len in 1..writer.bytes().len() {
            assert_eq!(
                Extensions::check(&writer.bytes()[..len]).unwrap_err(),
                FrameError::Extensions,
                "{len}"
            );
        }
        for kind in [kind::TLS, kind::PERMISSIONS, 700 | CRITICAL] {
            let mut writer = Writer::default();
            writer.put(kind, b"");
            let error = Extensions::check(writer.bytes()).unwrap_err();
            assert_eq!(error, FrameError::CriticalExtension(kind));
        }
    }
}
