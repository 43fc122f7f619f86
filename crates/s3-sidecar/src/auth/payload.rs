//! The declaration that a request makes about its body, and the headers that the endpoint gets.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use cached_http::values::has;
use hyper::HeaderMap;
use hyper::body::SizeHint;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use sha2::{Digest, Sha256};

use super::chunked::{Chain, Checksum, Decoder, Encoder};
use super::denial::Denial;
use super::signature::{EMPTY_SHA256, parse_hex, push_hex};

const PAYLOAD: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DECODED_LEN: HeaderName = HeaderName::from_static("x-amz-decoded-content-length");
const TRAILER: HeaderName = HeaderName::from_static("x-amz-trailer");

/// A request's declaration of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// The request declares nothing about the body.
    Unsigned,
    /// The body's SHA-256.
    Hash([u8; 32]),
    /// The body is chunked (`aws-chunked`).
    Chunked {
        /// Whether each chunk has a signature.
        is_signed: bool,
        /// Whether a trailer with a checksum follows the last chunk.
        has_trailer: bool,
    },
}

impl Payload {
    /// Reads the value of `x-amz-content-sha256`.
    ///
    /// # Errors
    /// [`Denial`], if the value is unknown.
    pub(crate) fn parse(text: &[u8]) -> Result<Payload, Denial> {
        let chunked = |is_signed, has_trailer| Ok(Payload::Chunked { is_signed, has_trailer });
        match text {
            b"UNSIGNED-PAYLOAD" => Ok(Payload::Unsigned),
            b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD" => chunked(true, false),
            b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" => chunked(true, true),
            b"STREAMING-UNSIGNED-PAYLOAD-TRAILER" => chunked(false, true),
            text if text.starts_with(b"STREAMING-") => {
                Err(Denial::Unsupported("this way of signing chunks is not supported"))
            }
            text => parse_hex(text).map(Payload::Hash).ok_or(Denial::Argument(
                "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, one of STREAMING-..., or a SHA-256",
            )),
        }
    }
}

/// Returns the declaration of the body in a request whose signature is not checked.
///
/// # Errors
/// [`Denial`], if it cannot be parsed.
pub(crate) fn declared(headers: &HeaderMap) -> Result<Payload, Denial> {
    headers.get(PAYLOAD).map_or(Ok(Payload::Unsigned), |value| Payload::parse(value.as_bytes()))
}

/// Returns whether the headers tell the endpoint that the body is empty.
pub(crate) fn is_empty(head: &Parts) -> bool {
    head.headers.get(CONTENT_LENGTH).is_some_and(|len| len == "0")
}

/// Sets the headers for the body that the endpoint gets, and returns the verifier of the body, if
/// there is one. A body that is `read_whole` before it is forwarded has no chunks any more: the
/// checksum of its trailer is then [a header](Check::checksum).
///
/// # Errors
/// [`Denial`] if it is already known that the body differs from the signed one.
pub(crate) fn check(
    head: &mut Parts,
    payload: Payload,
    chain: Option<Chain>,
    has_body: bool,
    read_whole: bool,
) -> Result<Option<Check>, Denial> {
    let headers = &mut head.headers;
    headers.remove(PAYLOAD);
    match payload {
        Payload::Unsigned => {
            drop_framing(headers);
            Ok(None)
        }
        Payload::Hash(hash) if !has_body => {
            drop_framing(headers);
            if parse_hex(EMPTY_SHA256.as_bytes()) == Some(hash) { Ok(None) } else { Err(Denial::Hash) }
        }
        Payload::Hash(hash) => {
            drop_framing(headers);
            let mut text = Vec::with_capacity(64);
            push_hex(&mut text, &hash);
            if let Ok(value) = HeaderValue::from_bytes(&text) {
                headers.insert(PAYLOAD, value);
            }
            let len = headers.get(CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse().ok());
            Ok(Some(Check::hash(hash, len)))
        }
        Payload::Chunked { .. } if !has_body => Err(Denial::Incomplete("the aws-chunked body is missing")),
        Payload::Chunked { is_signed, has_trailer } => {
            let len = headers.get(&DECODED_LEN).and_then(|len| len.to_str().ok());
            let len = len.filter(|len| !len.is_empty() && len.bytes().all(|byte| byte.is_ascii_digit()));
            let len: u64 = len.and_then(|len| len.parse().ok()).ok_or(Denial::NoLength)?;
            let checksum = trailing_checksum(headers, is_signed, has_trailer)?;
            let encodings = other_encodings(headers);
            drop_framing(headers);
            headers.remove(CONTENT_ENCODING);
            if let Some(checksum) = checksum.as_ref().filter(|_| !read_whole) {
                headers.insert(PAYLOAD, HeaderValue::from_static("STREAMING-UNSIGNED-PAYLOAD-TRAILER"));
                headers.insert(TRAILER, HeaderValue::from_static(checksum.name()));
                headers.insert(DECODED_LEN, HeaderValue::from(len));
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("aws-chunked"));
            }
            for encoding in encodings {
                headers.append(CONTENT_ENCODING, encoding);
            }
            let check = Check::chunked(Decoder::new(len, is_signed, chain, checksum), len, read_whole);
            if let Some(len) = check.len {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(len));
            }
            Ok(Some(check))
        }
    }
}

/// Removes headers that only a chunked body has.
fn drop_framing(headers: &mut HeaderMap) {
    for name in [&DECODED_LEN, &TRAILER] {
        // Most requests have no such header.
        if has(headers, name) {
            headers.remove(name);
        }
    }
}

/// Returns the checksum expected after the last chunk. As in S3, unsigned chunks have no checksum
/// if no trailer is announced.
fn trailing_checksum(
    headers: &HeaderMap,
    is_signed: bool,
    has_trailer: bool,
) -> Result<Option<Checksum>, Denial> {
    let name = match (headers.get(TRAILER), has_trailer) {
        (None, has_trailer) if !has_trailer || !is_signed => return Ok(None),
        (None, _) => {
            return Err(Denial::Trailer("x-amz-trailer must name the checksum that comes after the body"));
        }
        (Some(name), true) => name.to_str().unwrap_or_default().trim().to_ascii_lowercase(),
        (Some(_), false) => {
            return Err(Denial::Trailer(
                "x-amz-content-sha256 must announce the trailer that x-amz-trailer names",
            ));
        }
    };
    Checksum::named(&name).map(Some).ok_or(Denial::Unsupported(
        "x-amz-trailer must be x-amz-checksum- followed by crc32, crc32c, crc64nvme, sha1 or sha256",
    ))
}

/// Returns the encodings of the object itself.
fn other_encodings(headers: &HeaderMap) -> Vec<HeaderValue> {
    let values = headers.get_all(CONTENT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    let each = values.flat_map(|value| value.split(',')).map(str::trim);
    let others =
        each.filter(|encoding| !encoding.is_empty() && !encoding.eq_ignore_ascii_case("aws-chunked"));
    others.filter_map(|encoding| HeaderValue::from_str(encoding).ok()).collect()
}

/// The error found in a body, for the task that waits for the endpoint's response. Empty as long as
/// there is no error.
pub(crate) type Verdict = Arc<OnceLock<Denial>>;

/// Verifies a body.
#[derive(Debug)]
pub(crate) struct Check {
    kind: Kind,
    /// Bytes to be forwarded. The last of them are withheld.
    ready: VecDeque<Bytes>,
    has_ended: bool,
    /// The length of the forwarded body, if known.
    len: Option<u64>,
    verdict: Verdict,
}

#[derive(Debug)]
enum Kind {
    /// The body must have this hash.
    Hash(Box<Sha256>, [u8; 32]),
    /// The body arrives in chunks, and is forwarded without chunks or in different ones.
    Chunked(Box<Decoder>, Option<Encoder>),
}

impl Check {
    /// Returns the verifier of a body with this hash, and with this length if the length is known.
    pub(crate) fn hash(expected: [u8; 32], len: Option<u64>) -> Check {
        Self::new(Kind::Hash(Box::default(), expected), len)
    }

    /// Returns the verifier of a chunked body of this length. A body with a trailing checksum is
    /// forwarded with that checksum, unless it is `read_whole`.
    fn chunked(decoder: Decoder, len: u64, read_whole: bool) -> Check {
        let checksum = decoder.checksum().filter(|_| !read_whole);
        let encoded = checksum.map(|checksum| Encoder::encoded_len(len, checksum));
        let encoder = checksum.map(|_| Encoder::new(len));
        Self::new(Kind::Chunked(Box::new(decoder), encoder), Some(encoded.unwrap_or(len)))
    }

    fn new(kind: Kind, len: Option<u64>) -> Check {
        Check { kind, ready: VecDeque::new(), has_ended: false, len, verdict: Verdict::default() }
    }

    /// Returns the place where an error is recorded.
    pub(crate) fn verdict(&self) -> Verdict {
        Arc::clone(&self.verdict)
    }

    /// Returns the header that states the checksum of the bytes verified so far, if the body has a
    /// checksum in its trailer.
    pub(crate) fn checksum(&self) -> Option<(HeaderName, HeaderValue)> {
        let Kind::Chunked(decoder, _) = &self.kind else { return None };
        let checksum = decoder.checksum()?;
        let value = HeaderValue::from_str(&checksum.text()).ok()?;
        Some((HeaderName::from_static(checksum.name()), value))
    }

    /// Verifies the next bytes.
    ///
    /// # Errors
    /// The error found in the body, which is also recorded in the verdict.
    pub(crate) fn push(&mut self, bytes: Bytes) -> Result<(), Denial> {
        let taken = match &mut self.kind {
            Kind::Hash(hash, _) => {
                hash.update(&bytes);
                self.ready.push_back(bytes);
                Ok(())
            }
            Kind::Chunked(decoder, None) => decoder.push(bytes, &mut self.ready),
            Kind::Chunked(decoder, Some(encoder)) => {
                let mut body = VecDeque::new();
                let taken = decoder.push(bytes, &mut body);
                body.into_iter().for_each(|part| encoder.push(part, &mut self.ready));
                taken
            }
        };
        taken.map_err(|denial| self.refuse(denial))
    }

    /// Completes the verification of the body.
    ///
    /// # Errors
    /// The errors of `push`.
    pub(crate) fn finish(&mut self) -> Result<(), Denial> {
        let ended = match &mut self.kind {
            Kind::Hash(hash, expected) => match hash.finalize_reset() == *expected {
                true => Ok(()),
                false => Err(Denial::Hash),
            },
            Kind::Chunked(decoder, encoder) => decoder.finish().inspect(|()| {
                if let Some(checksum) = decoder.checksum().filter(|_| encoder.is_some()) {
                    Encoder::finish(checksum, &mut self.ready);
                }
            }),
        };
        ended.map_err(|denial| self.refuse(denial))?;
        self.has_ended = true;
        Ok(())
    }

    fn refuse(&mut self, denial: Denial) -> Denial {
        self.ready.clear();
        // Only the first error is recorded.
        let _ = self.verdict.set(denial.clone());
        denial
    }

    /// Returns the next bytes to forward.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        while self.ready.front().is_some_and(Bytes::is_empty) {
            self.ready.pop_front();
        }
        // An empty part at the end would withhold nothing.
        let has_more = self.has_ended || self.ready.iter().skip(1).any(|part| !part.is_empty());
        if has_more { self.ready.pop_front() } else { None }
    }

    /// Returns whether the body was correct, and all of it has been forwarded.
    pub(crate) fn is_done(&self) -> bool {
        self.has_ended && self.ready.iter().all(Bytes::is_empty)
    }

    /// Returns the size of the body. Only called before any bytes are forwarded.
    pub(crate) fn size_hint(&self) -> SizeHint {
        self.len.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
