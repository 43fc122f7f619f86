//! Answers that are made here of what is known.

use std::ops::Range;
use std::time::Duration;

use hyper::header::{
    AGE, CACHE_CONTROL, CONTENT_LOCATION, ETAG, EXPIRES, HeaderName, HeaderValue, LAST_MODIFIED, VARY,
    WARNING,
};
use hyper::{HeaderMap, Method, Response, StatusCode};

use crate::http::answer::failure;
use crate::http::body::{Body, full};
use crate::memory::absent::Answer;
use crate::memory::generation::Head;
use crate::reads::ready;

/// Since when what is known holds.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    /// The endpoint was asked so long ago.
    Memory(Duration),
    /// The same, and it does not answer now.
    Stale(Duration),
    /// The endpoint has stated it for this request, in an answer with these headers of its own.
    Verified(&'a HeaderMap),
}

impl Origin<'_> {
    fn stated(&self) -> ready::HeadersOf<'_> {
        match self {
            Origin::Verified(own) => ready::HeadersOf::With(own),
            Origin::Memory(_) | Origin::Stale(_) => ready::HeadersOf::Known,
        }
    }

    fn state(&self, headers: &mut HeaderMap) {
        match self {
            Origin::Verified(_) => (),
            Origin::Memory(age) => drop(headers.insert(AGE, HeaderValue::from(age.as_secs()))),
            Origin::Stale(age) => {
                headers.insert(AGE, HeaderValue::from(age.as_secs()));
                headers.insert(WARNING, HeaderValue::from_static("110 - \"Response is Stale\""));
            }
        }
    }
}

/// Returns the answer with bytes of a known object.
pub(crate) fn part(
    head: &Head,
    bytes: &Range<u64>,
    is_part: bool,
    origin: Origin<'_>,
    body: Body,
) -> Response<Body> {
    let mut response = ready::answer(head, (bytes, is_part), origin.stated(), body);
    origin.state(response.headers_mut());
    response
}

/// Returns the answer with a whole object, or its head.
pub(crate) fn whole(head: &Head, origin: Origin<'_>, body: Body) -> Response<Body> {
    part(head, &(0..head.size), false, origin, body)
}

/// Headers of an answer without a body to a client that has the object.
static OF_NOT_MODIFIED: [HeaderName; 6] =
    [CACHE_CONTROL, CONTENT_LOCATION, ETAG, EXPIRES, LAST_MODIFIED, VARY];

/// Returns the answer that the client has the object as it is.
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

/// Returns the answer that the object is not what the client expects.
pub(crate) fn precondition_failed() -> Response<Body> {
    let message = "At least one of the pre-conditions you specified did not hold";
    failure(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", message)
}

/// Returns the answer that an object is not there.
pub(crate) fn absent(answer: &Answer, method: &Method, age: Duration) -> Response<Body> {
    let body = answer.body.clone().filter(|_| *method != Method::HEAD).unwrap_or_default();
    let mut response = Response::new(full(body));
    *response.status_mut() = StatusCode::NOT_FOUND;
    *response.headers_mut() = answer.headers.clone();
    Origin::Memory(age).state(response.headers_mut());
    response
}
