//! `If-Range`, which decides here between a part and the whole, and the condition that is added for the endpoint.

use std::ops::Range;

use hyper::header::{HeaderValue, IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Response, StatusCode};

use crate::http::read::Read;
use crate::memory::generation::Head;

/// Returns the bytes of a known object that a read asks for, and whether they are answered as a part. `None` if the
/// endpoint must say.
pub(crate) fn wanted(read: &Read, headers: &HeaderMap, head: &Head) -> Option<(Range<u64>, bool)> {
    let mut validators = headers.get_all(IF_RANGE).into_iter();
    let is_met = match (validators.next(), validators.next()) {
        (None, _) => true,
        // A weak validator never is met; that it is, is for the endpoint to say.
        (Some(one), None) => *one == head.etag || Some(one) == head.last_modified.as_ref(),
        _ => return None,
    };
    match read.range {
        Some(asked) if is_met => Some((asked.within(head.size)?, true)),
        _ => Some((0..head.size, false)),
    }
}

/// The size in bytes from which the question about a whole object asks for its first byte alone.
pub(crate) const NARROWED_BYTES_MIN: u64 = 128 << 10;

/// A question whether an object is still the one that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ForChange {
    /// Whether it asks for the first byte alone, in place of the whole object.
    is_narrowed: bool,
}

/// What an answer to the question comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stated {
    /// The object is the one that is known.
    Same,
    /// It is another one, of which the answer brings nothing that the client has asked for.
    Other,
    /// It is the answer to what the client has asked for.
    Answered,
}

/// Adds the question whether the object is still the one that is known.
///
/// Of a long object that is asked for as a whole, the question asks for the first byte alone: radosgw reads the beginning of an
/// object that it is asked for without a range before it looks at the condition. An object that has changed is then asked for once
/// more, since headers of a part are not those of the whole: AWS leaves checksums out.
pub(crate) fn ask_for_change(request: &mut Parts, read: &Read, head: &Head) -> ForChange {
    let headers = &mut request.headers;
    headers.insert(IF_NONE_MATCH, head.etag.clone());
    let is_narrowed = head.size >= NARROWED_BYTES_MIN
        && !read.signed.cover(&RANGE)
        // Without a range it means nothing, and with one it would.
        && [RANGE, IF_RANGE].iter().all(|name| !headers.contains_key(name));
    if is_narrowed {
        headers.insert(RANGE, HeaderValue::from_static("bytes=0-0"));
    }
    ForChange { is_narrowed }
}

impl ForChange {
    /// Returns what an answer comes to.
    pub(crate) fn stated<T>(self, answer: &Response<T>, read: &Read, head: &Head) -> Stated {
        match answer.status() {
            StatusCode::NOT_MODIFIED if head.agrees(answer.headers()) => Stated::Same,
            // The same ETag with other headers.
            StatusCode::NOT_MODIFIED => Stated::Other,
            // The endpoint has not looked at the condition.
            StatusCode::PARTIAL_CONTENT if self.is_narrowed => match Head::of(read, false, answer) {
                Some((stated, _)) if stated.generation == head.generation => Stated::Same,
                _ => Stated::Other,
            },
            // It is empty now.
            StatusCode::RANGE_NOT_SATISFIABLE if self.is_narrowed => Stated::Other,
            _ => Stated::Answered,
        }
    }
}

/// Makes the request one for these bytes of a known object, as far as the client's signature allows: what is signed stays.
pub(crate) fn ask_for_rest(request: &mut Parts, read: &Read, head: &Head, bytes: &Range<u64>) {
    let headers = &mut request.headers;
    if !headers.contains_key(IF_MATCH) {
        headers.insert(IF_MATCH, head.etag.clone());
    }
    if read.signed.cover(&RANGE) && headers.contains_key(RANGE) {
        return;
    }
    if !(read.signed.cover(&IF_RANGE) && headers.contains_key(IF_RANGE)) {
        headers.remove(IF_RANGE);
    }
    if let Ok(range) = format!("bytes={}-{}", bytes.start, bytes.end - 1).parse() {
        headers.insert(RANGE, range);
    }
}
