//! The available bytes of a read's object, and the responses that are built from them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use blocker::Segments;
use hyper::header::{
    AGE, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_RANGE, ETAG, EXPIRES, HeaderName,
    HeaderValue, LAST_MODIFIED, VARY, WARNING,
};
use hyper::{HeaderMap, Method, Response, StatusCode};

use crate::Shared;
use crate::http::body::{Body, failure, full};
use crate::http::read::Read;
use crate::memory::generation::{self, Head};
use crate::memory::tables::Answer;
use crate::reads::conditions::wanted;
use crate::reads::serving::{WHOLE_BYTES_MAX, Whereabouts, from_cache, here_or_coming};

/// An object with a known head, and the first available bytes of a read.
pub(crate) struct Ready {
    pub(crate) head: Arc<Head>,
    pub(crate) bytes: Range<u64>,
    pub(crate) is_part: bool,
    /// The bytes, or `None` if another reader's stream will soon bring them, or if there are none.
    pub(crate) segments: Option<Segments>,
}

/// Returns the available bytes of an object if they suffice: the beginning of the read, in memory
/// or about to arrive.
pub(crate) async fn ready(
    shared: &Shared,
    headers: &HeaderMap,
    read: &Read,
    head: &Arc<Head>,
) -> Option<Ready> {
    let (bytes, is_part) = wanted(read, headers, head)?;
    if !is_part && !head.is_of_whole {
        return None;
    }
    let head = Arc::clone(head);
    if bytes.is_empty() {
        if head.is_claimed_empty {
            return None;
        }
        return Some(Ready { head, bytes, is_part, segments: None });
    }
    let mut segments = None;
    match here_or_coming(shared, &head, bytes.clone()).await {
        Whereabouts::Here(first) => {
            let whole = bytes.end - bytes.start;
            let segments = segments.insert(first);
            while (segments.len_bytes() as u64) < whole && whole <= WHOLE_BYTES_MAX {
                let rest = bytes.start + segments.len_bytes() as u64..bytes.end;
                match here_or_coming(shared, &head, rest).await {
                    Whereabouts::Here(next) => segments.append(next),
                    // A short read waits for all of its bytes before the response begins.
                    Whereabouts::Coming(_) => break,
                    Whereabouts::Missing => return None,
                }
            }
            shared.counts.bytes_from_memory.add(segments.len_bytes() as u64);
            shared.pieces.lend(segments);
        }
        Whereabouts::Coming(_) => (),
        Whereabouts::Missing => return None,
    }
    Some(Ready { head, bytes, is_part, segments })
}

impl Ready {
    /// Returns whether `segments` has all bytes.
    pub(crate) fn is_whole(&self) -> bool {
        let here = self.segments.as_ref().map_or(0, Segments::len_bytes);
        here as u64 == self.bytes.end - self.bytes.start
    }

    /// Returns whether all bytes are in memory now.
    pub(crate) async fn is_all_here(&self, shared: &Shared) -> bool {
        let mut left = self.bytes.clone();
        while !left.is_empty() {
            match from_cache(&shared.pieces, &self.head, left.clone()).await {
                Some(segments) => left.start += segments.len_bytes() as u64,
                None => return false,
            }
        }
        true
    }
}

/// The source of a remembered object's validity.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    /// The endpoint was asked this long ago.
    Memory(Duration),
    /// The endpoint was asked this long ago, but does not respond now.
    Stale(Duration),
    /// The endpoint has confirmed the object for this request, in a response with these headers.
    Verified(&'a HeaderMap),
    /// The endpoint has confirmed the object's bytes for this request, in a response with these
    /// headers. Some of the remembered headers may be outdated.
    Same(&'a HeaderMap),
}

impl Origin<'_> {
    fn state(&self, headers: &mut HeaderMap) {
        match self {
            Origin::Verified(_) | Origin::Same(_) => (),
            Origin::Memory(age) => drop(headers.insert(AGE, HeaderValue::from(age.as_secs()))),
            Origin::Stale(age) => {
                headers.insert(AGE, HeaderValue::from(age.as_secs()));
                headers.insert(WARNING, HeaderValue::from_static("110 - \"Response is Stale\""));
            }
        }
    }
}

/// Returns the response with bytes of a remembered object.
pub(crate) fn part(
    head: &Head,
    bytes: &Range<u64>,
    is_part: bool,
    origin: Origin<'_>,
    body: Body,
) -> Response<Body> {
    let mut headers = match origin {
        Origin::Same(_) => head.settled_headers(),
        _ => head.headers.clone(),
    };
    // Checksums apply to the whole object, which a part may be as well.
    if is_part && *bytes != (0..head.size) {
        generation::remove_checksums(&mut headers);
    }
    if let Origin::Verified(own) | Origin::Same(own) = origin {
        headers.remove(AGE);
        let mut own = own.clone();
        crate::http::framing::remove(&mut own);
        for (name, value) in &own {
            if !name.as_str().starts_with("content-") && *name != ETAG {
                headers.insert(name.clone(), value.clone());
            }
        }
    }
    if is_part {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.end - bytes.start));
        let text = format!("bytes {}-{}/{}", bytes.start, bytes.end - 1, head.size);
        if let Ok(range) = HeaderValue::from_str(&text) {
            headers.insert(CONTENT_RANGE, range);
        }
    }
    origin.state(&mut headers);
    let mut response = Response::new(body);
    *response.status_mut() = if is_part { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    *response.headers_mut() = headers;
    response
}

/// Returns the response with a whole object, or its head.
pub(crate) fn whole(head: &Head, origin: Origin<'_>, body: Body) -> Response<Body> {
    part(head, &(0..head.size), false, origin, body)
}

/// Headers of a 304 response.
static OF_NOT_MODIFIED: [HeaderName; 6] =
    [CACHE_CONTROL, CONTENT_LOCATION, ETAG, EXPIRES, LAST_MODIFIED, VARY];

/// Returns the response which states that the client's copy is current.
pub(crate) fn not_modified(head: &Head, origin: Origin<'_>) -> Response<Body> {
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    for name in &OF_NOT_MODIFIED {
        if let Some(value) = head.headers.get(name) {
            response.headers_mut().insert(name.clone(), value.clone());
        }
    }
    origin.state(response.headers_mut());
    response
}

/// Returns the response which states that the object is not the expected one.
pub(crate) fn precondition_failed() -> Response<Body> {
    let message = "At least one of the pre-conditions you specified did not hold";
    failure(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", message)
}

/// Returns the response which states that an object is missing.
pub(crate) fn absent(answer: &Answer, method: &Method, age: Duration) -> Response<Body> {
    let body = answer.body.clone().filter(|_| *method != Method::HEAD).unwrap_or_default();
    let mut response = Response::new(full(body));
    *response.status_mut() = StatusCode::NOT_FOUND;
    *response.headers_mut() = answer.headers.clone();
    Origin::Memory(age).state(response.headers_mut());
    response
}
