//! `If-Range`, which decides here between a part and the whole, and the condition that is added for the endpoint.

use hyper::HeaderMap;
use hyper::header::{IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE};
use hyper::http::request::Parts;
use std::ops::Range;

use crate::generation::Head;
use crate::read::Read;

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

/// Adds the question whether the object is still the one that is known.
pub(crate) fn ask_for_change(request: &mut Parts, head: &Head) {
    request.headers.insert(IF_NONE_MATCH, head.etag.clone());
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
