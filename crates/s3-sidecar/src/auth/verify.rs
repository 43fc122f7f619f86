//! Verifies the signature of a request: version 4, in a header or a presigned URL.

use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use hyper::http::request::Parts;

use super::canonical::{parse_hex, push_header, push_path, push_query, push_string_to_sign};
use super::chunked::Chain;
use super::claim::Claim;
use super::denial::Denial;
use super::keys::{Key, Ring};
use super::time;
use crate::http::headers::is_of_s3;

/// The maximum difference between the clocks of a client and the sidecar, in seconds.
const SKEW_MAX: u64 = 15 * 60;

/// Headers that decide how a request is verified, or that determine its effect. If one of them
/// occurred twice, one reader could use the first value, and another reader the last.
static ONCE: [HeaderName; ONCE_COUNT] = [
    AUTHORIZATION,
    PAYLOAD,
    DATE,
    TOKEN,
    HeaderName::from_static("x-amz-copy-source"),
    HeaderName::from_static("x-amz-decoded-content-length"),
    HeaderName::from_static("x-amz-trailer"),
];

const ONCE_COUNT: usize = 7;

const PAYLOAD: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

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
                Err(Denial::unsupported("this way of signing chunks is not known here"))
            }
            text => parse_hex(text).map(Payload::Hash).ok_or_else(|| {
                Denial::argument(
                    "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, one of STREAMING-..., or a SHA-256",
                )
            }),
        }
    }
}

/// A request with a valid signature.
#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) key: Arc<Key>,
    pub(crate) payload: Payload,
    /// The beginning of the chunks' signature chain, if they are signed.
    pub(crate) chain: Option<Chain>,
}

/// Verifies the signature of a request. Returns `None` if the request has no signature.
///
/// # Errors
/// [`Denial`] if the signature is wrong.
pub(crate) fn verify(ring: &Ring, region: &str, head: &Parts, now: u64) -> Result<Option<Verified>, Denial> {
    let query = head.uri.query().unwrap_or_default();
    let in_query = Claim::of_query(query)?;
    let [authorization, payload_header, date, token, ..] = each_once(&head.headers)?;
    let in_header = authorization
        .map(|value| value.to_str().map_err(|_| Denial::header("Authorization is no ASCII")))
        .transpose()?;
    if token.is_some() {
        return Err(Denial::token());
    }
    let claim = match (in_header, in_query) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(Denial::argument("only one way of signing is allowed: a header, or a presigned URL"));
        }
        (Some(text), None) => Claim::of_header(text)?,
        (None, Some(claim)) => claim,
    };
    let payload_header = payload_header.map(HeaderValue::as_bytes);
    let stamp = match &claim.presigned {
        Some(presigned) => presigned.stamp.as_bytes(),
        None => date.map(HeaderValue::as_bytes).ok_or_else(Denial::no_date)?,
    };
    check_time(&claim, stamp, now)?;
    if !region.is_empty() && claim.region() != region {
        let text = format!("the region {} is wrong; expecting {region}", claim.region());
        return Err(if claim.presigned.is_some() { Denial::parameters(text) } else { Denial::header(text) });
    }
    let key = ring.find(&claim.access_key).ok_or_else(Denial::unknown_key)?;
    if !claim.covers("host") {
        return Err(Denial::unsigned_header("host"));
    }
    let unsigned = head.headers.keys().find(|name| is_of_s3(name.as_str()) && !claim.covers(name.as_str()));
    if let Some(name) = unsigned {
        return Err(Denial::unsigned_header(name.as_str()));
    }
    let payload_text = match &claim.presigned {
        Some(presigned) => {
            let in_query = presigned.payload.as_ref().map(|text| text.as_bytes());
            in_query.or(payload_header).unwrap_or(b"UNSIGNED-PAYLOAD")
        }
        None => {
            payload_header.ok_or_else(|| Denial::missing("the signed request needs x-amz-content-sha256"))?
        }
    };
    let payload = Payload::parse(payload_text)?;
    let mut text = Vec::with_capacity(1024);
    push_request(&mut text, head, query, &claim, payload_text).ok_or_else(Denial::signature)?;
    let mut to_sign = Vec::with_capacity(192);
    push_string_to_sign(&mut to_sign, stamp, &claim.scope, &text);
    let (signing, is_known) = key.signing_key(&claim.scope);
    if !signing.is_signature(&to_sign, &claim.signature) {
        return Err(Denial::signature());
    }
    let is_chain = matches!(payload, Payload::Chunked { is_signed: true, .. });
    let chain = is_chain.then(|| Chain::new(signing.clone(), stamp, &claim.scope, &claim.signature));
    if !is_known {
        key.keep(&claim.scope, signing);
    }
    Ok(Some(Verified { key: Arc::clone(key), payload, chain }))
}

/// Returns the values of the headers in [`ONCE`]. Done in one pass, because requests have few
/// headers, and each lookup would have to hash a name.
///
/// # Errors
/// [`Denial`] if one of these headers occurs twice.
fn each_once(headers: &HeaderMap) -> Result<[Option<&HeaderValue>; ONCE_COUNT], Denial> {
    let mut found = [None; ONCE_COUNT];
    for (name, value) in headers {
        let Some(at) = ONCE.iter().position(|once| once == name) else { continue };
        if found[at].replace(value).is_some() {
            return Err(match *name == AUTHORIZATION {
                true => Denial::header("Authorization comes twice"),
                false => Denial::argument("a header of the signature comes twice"),
            });
        }
    }
    Ok(found)
}

fn check_time(claim: &Claim<'_>, stamp: &[u8], now: u64) -> Result<(), Denial> {
    let wrong = |text: &'static str| match claim.presigned {
        Some(_) => Denial::parameters(text),
        None => Denial::header(text),
    };
    let signed_at = time::parse(stamp).ok_or_else(|| match claim.presigned {
        Some(_) => Denial::parameters("X-Amz-Date must be as 20130524T000000Z"),
        None => Denial::no_date(),
    })?;
    if !stamp.starts_with(claim.day().as_bytes()) {
        return Err(wrong("the day of the Credential is not that of the request's time"));
    }
    match &claim.presigned {
        None if signed_at.abs_diff(now) > SKEW_MAX => Err(Denial::skew()),
        Some(_) if signed_at > now + SKEW_MAX => Err(Denial::expired("Request is not valid yet")),
        Some(presigned) if now > signed_at + presigned.expires_secs => {
            Err(Denial::expired("Request has expired"))
        }
        _ => Ok(()),
    }
}

/// Appends the canonical request, or returns `None` if a listed header is missing.
fn push_request(
    into: &mut Vec<u8>,
    head: &Parts,
    query: &str,
    claim: &Claim<'_>,
    payload: &[u8],
) -> Option<()> {
    into.extend_from_slice(head.method.as_str().as_bytes());
    into.push(b'\n');
    push_path(into, head.uri.path());
    into.push(b'\n');
    push_query(into, query);
    into.push(b'\n');
    for name in claim.signed_headers.split(';') {
        push_header(into, &head.headers, name).then_some(())?;
    }
    into.push(b'\n');
    into.extend_from_slice(claim.signed_headers.as_bytes());
    into.push(b'\n');
    into.extend_from_slice(payload);
    Some(())
}
