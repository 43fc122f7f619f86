//! Responses: their headers, their bodies, and the statuses of errors.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use blocker::{Durability, Error, Segments, SegmentsBuf, Version};
use bytes::{Buf, Bytes};
use cached_http::{Data, ResponseBody};
use cached_metrics::Counter;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, RETRY_AFTER,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use parking_lot::Mutex;

use crate::memory::Charge;
use crate::request::{DURABILITY, Mistake};

/// The number of bytes that are handed to the HTTP library at a time. If the client turns out to be
/// slow, only these bytes cannot be copied.
const PART_BYTES: usize = 64 << 10;

/// The reason why a request is not done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request is refused.
    Refused(Mistake),
    /// The request is refused, and the bytes after it on its connection cannot be trusted.
    Unintelligible(StatusCode, &'static str),
    /// The client has to present a valid key.
    Unauthorized(&'static str),
    /// The client lacks the right.
    Forbidden(String),
    /// The client did not send its body in time.
    Slow,
    /// The server had no memory for the request in time.
    Busy,
    /// The client has closed the connection, or its body has ended early.
    Broken,
    /// The blocker has failed.
    Store(Error),
    /// The requested range contains none of the object's bytes, whose number is given.
    Range(u64),
    /// A condition is not met.
    Condition(&'static str),
}

impl From<Mistake> for Failure {
    fn from(mistake: Mistake) -> Failure {
        Failure::Refused(mistake)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Store(error)
    }
}

/// Returns the ETag of a version.
pub(crate) fn etag(version: Version) -> String {
    format!("\"{version}\"")
}

/// Returns a response without a body.
pub(crate) fn empty(status: StatusCode) -> Response<ResponseBody> {
    whole(status, Bytes::new())
}

fn whole(status: StatusCode, bytes: Bytes) -> Response<ResponseBody> {
    let body = Full::new(Box::new(bytes) as Data).map_err(|never: Infallible| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    response
}

/// Sets a header whose value consists of visible ASCII.
pub(crate) fn set(response: &mut Response<ResponseBody>, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// Returns the response to a change.
pub(crate) fn changed(
    status: StatusCode,
    version: Option<Version>,
    durability: Durability,
) -> Response<ResponseBody> {
    let mut response = empty(status);
    if let Some(version) = version {
        set(&mut response, ETAG, &etag(version));
    }
    set(&mut response, DURABILITY, &durability.to_string());
    response
}

/// Returns a response with bytes of an object or a listing, whose memory `charge` counts.
pub(crate) fn content(
    status: StatusCode,
    content_type: &'static str,
    bytes: Segments,
    charge: Charge,
    counter: &Arc<Counter>,
) -> Response<ResponseBody> {
    let mut response = Response::new(Outgoing::new(bytes, charge, counter).boxed_unsync());
    *response.status_mut() = status;
    finish_content(&mut response, content_type);
    response
}

/// Sets the headers of a response with bytes of an object.
pub(crate) fn finish_content(response: &mut Response<ResponseBody>, content_type: &'static str) {
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Only this server knows whether the object has changed, so other caches must ask.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
}

impl Failure {
    /// Returns the response that reports the failure, with one line of text.
    pub(crate) fn response(&self) -> Response<ResponseBody> {
        let (status, line) = self.status();
        let mut response = whole(status, format!("{line}\n").into());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        match self {
            Failure::Refused(Mistake { allow: Some(allow), .. }) => {
                headers.insert(ALLOW, HeaderValue::from_static(allow));
            }
            Failure::Unauthorized(_) => {
                let realm = HeaderValue::from_static("Basic realm=\"objects\", charset=\"UTF-8\"");
                headers.insert(WWW_AUTHENTICATE, realm);
            }
            Failure::Range(size) => {
                set(&mut response, hyper::header::CONTENT_RANGE, &format!("bytes */{size}"));
            }
            Failure::Unintelligible(..) | Failure::Slow | Failure::Broken => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }

    /// Returns whether the client was refused because it has no valid key or lacks a right.
    pub(crate) fn is_denial(&self) -> bool {
        matches!(self, Failure::Unauthorized(_) | Failure::Forbidden(_))
    }

    fn status(&self) -> (StatusCode, Cow<'_, str>) {
        match self {
            Failure::Refused(mistake) => (mistake.status, Cow::Borrowed(&*mistake.line)),
            Failure::Unintelligible(status, line) => (*status, Cow::Borrowed(*line)),
            Failure::Unauthorized(line) => (StatusCode::UNAUTHORIZED, Cow::Borrowed(*line)),
            Failure::Forbidden(line) => (StatusCode::FORBIDDEN, line.into()),
            Failure::Slow => {
                (StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time; send it faster".into())
            }
            Failure::Busy => {
                let line = "other requests use all memory for bodies (bytes_max); try again";
                (StatusCode::SERVICE_UNAVAILABLE, line.into())
            }
            Failure::Broken => (
                StatusCode::BAD_REQUEST,
                "the body is malformed or has ended early; send it again as a whole".into(),
            ),
            Failure::Range(size) => {
                let line = format!("the range has no byte of the object, which has {size} bytes");
                (StatusCode::RANGE_NOT_SATISFIABLE, line.into())
            }
            Failure::Condition(line) => (StatusCode::PRECONDITION_FAILED, Cow::Borrowed(*line)),
            Failure::Store(error) => {
                let status = status_of(error);
                // A text from a store may have several lines.
                let line = match error {
                    Error::TooLarge { limit_bytes } => {
                        format!("the object is too large; it may have at most {limit_bytes} bytes")
                    }
                    error => error.to_string().replace(['\r', '\n'], " "),
                };
                (status, line.into())
            }
        }
    }
}

/// Returns the status for an error of a blocker.
fn status_of(error: &Error) -> StatusCode {
    match error {
        Error::Missing => StatusCode::NOT_FOUND,
        Error::Exists | Error::ConditionFailed { .. } | Error::Mismatch { .. } => {
            StatusCode::PRECONDITION_FAILED
        }
        Error::Fenced { .. } | Error::Superseded { .. } => StatusCode::CONFLICT,
        Error::NotStored(_) | Error::DeadlinePassed | Error::Retryable(_) => StatusCode::SERVICE_UNAVAILABLE,
        Error::OutcomeUnknown(_) => StatusCode::GATEWAY_TIMEOUT,
        Error::OutOfSpace(_) => StatusCode::INSUFFICIENT_STORAGE,
        Error::Unsupported(_) => StatusCode::NOT_IMPLEMENTED,
        Error::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        Error::Denied(_) => StatusCode::FORBIDDEN,
        Error::Invalid(_) => StatusCode::BAD_REQUEST,
        // These are corrupt data, lost writes, and errors that this program does not know.
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A body whose bytes are sent from where they are in memory, without a copy.
struct Outgoing {
    /// The parts that the HTTP library has not taken yet.
    unsent: Arc<Mutex<VecDeque<Segments>>>,
    left_bytes: u64,
    charge: Arc<Charge>,
    counter: Arc<Counter>,
}

impl Outgoing {
    fn new(bytes: Segments, mut charge: Charge, counter: &Arc<Counter>) -> Outgoing {
        let left_bytes = bytes.len_bytes() as u64;
        charge.shrink(left_bytes);
        let unsent = Arc::new(Mutex::new(parts(&bytes)));
        charge.of_response(&unsent);
        Outgoing { unsent, left_bytes, charge: Arc::new(charge), counter: Arc::clone(counter) }
    }
}

/// Returns parts of [`PART_BYTES`], the last of which may be shorter. All parts are made in
/// advance, because an object has a segment for every 4 KiB.
fn parts(bytes: &Segments) -> VecDeque<Segments> {
    let (mut parts, mut part) = (VecDeque::new(), Segments::new());
    for segment in bytes {
        let (len, mut from) = (segment.len_bytes(), 0);
        while from < len {
            let to = len.min(from + PART_BYTES - part.len_bytes());
            part.push(segment.slice(from..to));
            from = to;
            if part.len_bytes() == PART_BYTES {
                parts.push_back(std::mem::take(&mut part));
            }
        }
    }
    if !part.is_empty() {
        parts.push_back(part);
    }
    parts
}

impl Body for Outgoing {
    type Data = Data;
    type Error = cached_http::BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Data>, Self::Error>>> {
        let this = self.get_mut();
        let part = this.unsent.lock().pop_front();
        let Some(part) = part else { return Poll::Ready(None) };
        let part_bytes = part.len_bytes() as u64;
        this.left_bytes -= part_bytes;
        this.counter.add(part_bytes);
        let part = Part { bytes: part.into(), _charge: Arc::clone(&this.charge) };
        Poll::Ready(Some(Ok(Frame::data(Box::new(part) as Data))))
    }

    fn is_end_stream(&self) -> bool {
        self.left_bytes == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left_bytes)
    }
}

/// Bytes that are being sent. The charge is freed with the last of them.
struct Part {
    bytes: SegmentsBuf,
    _charge: Arc<Charge>,
}

impl Buf for Part {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        self.bytes.chunks_vectored(into)
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocker::Segment;

    #[test]
    fn a_body_is_sent_in_parts_with_every_byte_once() {
        for lens in
            [&[][..], &[1], &[PART_BYTES], &[PART_BYTES + 1], &[4096; 40], &[7, PART_BYTES, 3 * PART_BYTES]]
        {
            let whole: Vec<u8> = (0..lens.iter().sum::<usize>()).map(|at| (at % 251) as u8).collect();
            let mut rest = &whole[..];
            let segments = lens.iter().map(|len| {
                let (first, after) = rest.split_at(*len);
                rest = after;
                Segment::copied(first)
            });
            let segments: Segments = segments.collect();
            let parts = parts(&segments);
            let sent: Vec<u8> = parts.iter().flat_map(Segments::to_vec).collect();
            assert!(sent == whole, "{lens:?}");
            let is_full = |part: &Segments| part.len_bytes() == PART_BYTES;
            assert!(parts.iter().rev().skip(1).all(is_full), "{lens:?}");
            assert!(parts.iter().all(|part| (1..=PART_BYTES).contains(&part.len_bytes())), "{lens:?}");
        }
    }

    #[test]
    fn each_error_has_a_status_and_one_line() {
        for (error, status) in [
            (Error::Missing, 404),
            (Error::Exists, 412),
            (Error::ConditionFailed { version: Version(1) }, 412),
            (Error::Fenced { epoch: blocker::Epoch(1) }, 409),
            (Error::NotStored("a\nb".into()), 503),
            (Error::DeadlinePassed, 503),
            (Error::Retryable("x".into()), 503),
            (Error::OutcomeUnknown("x".into()), 504),
            (Error::OutOfSpace("x".into()), 507),
            (Error::Corrupt("x".into()), 500),
            (Error::WritesLost("x".into()), 500),
            (Error::Unsupported("x".into()), 501),
            (Error::TooLarge { limit_bytes: 5 }, 413),
            (Error::Denied("x".into()), 403),
        ] {
            let response = Failure::Store(error).response();
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers().contains_key(RETRY_AFTER), status == 503, "{status}");
        }
        let failure = Failure::Store(Error::NotStored("a\nb".into()));
        assert_eq!(failure.status().1, "not stored: a b");
    }
}
