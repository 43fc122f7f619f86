//! The way of a read: the endpoint is asked whether what is known still holds, and for this client; or it is asked for the bytes.

use std::ops::Range;
use std::sync::Arc;

use blocker::Segments;
use futures_util::stream::unfold;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Response, StatusCode};

use crate::asking::{First, Turn};
use crate::body::{Body, full, streamed};
use crate::conditions::{ask_for_change, wanted};
use crate::filling::Filling;
use crate::generation::Head;
use crate::passing::pass;
use crate::read::Read;
use crate::serving::{STEP_BYTES, Serving, from_cache};
use crate::shared::{Outcome, Shared};
use crate::upload::Upload;
use crate::upstream::{Failure, Upstream};

/// The length in bytes up to which a read is answered from memory only if all of it is there. The object may change before
/// the endpoint is asked for the rest, and an answer that has begun could then only be broken off.
const WHOLE_BYTES_MAX: u64 = STEP_BYTES;

/// What is known of an object, and can answer a read.
struct Known {
    head: Arc<Head>,
    bytes: Range<u64>,
    is_part: bool,
    ready: Option<Segments>,
}

/// Answers a read.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    upstream: &Arc<Upstream>,
    request: Parts,
    read: Read,
) -> (Response<Body>, Outcome) {
    let read = Arc::new(read);
    match try_answer(shared, upstream, request, &read).await {
        Ok(answered) => answered,
        Err(failure) => (failure.answer(), Outcome::Failed),
    }
}

async fn try_answer(
    shared: &Arc<Shared>,
    upstream: &Arc<Upstream>,
    request: Parts,
    read: &Arc<Read>,
) -> Result<(Response<Body>, Outcome), Failure> {
    let mut first = None;
    let mut known = None;
    if !read.is_conditional {
        known = look_up(shared, &request.headers, read).await;
        if known.is_none() {
            match shared.asking.turn(read) {
                Turn::First(turn) => first = Some(turn),
                Turn::After(mut answered) => {
                    // Ends with an error when the other reader's answer has begun, or failed.
                    let _ = answered.changed().await;
                    known = look_up(shared, &request.headers, read).await;
                }
            }
        }
    }
    let Some(Known { head, bytes, is_part, ready }) = known else {
        return ask(shared, upstream, request, read, first).await;
    };
    let mut question = request.clone();
    ask_for_change(&mut question, &head);
    let answer = upstream.send(question, Upload::none()).await?;
    if answer.status() != StatusCode::NOT_MODIFIED {
        return Ok(take(shared, read, answer));
    }
    if !head.agrees(answer.headers()) {
        // The same ETag with other headers: what is known is no more.
        shared.heads.forget(read.key, read.has_checksums, &head);
        return ask(shared, upstream, request, read, None).await;
    }
    let upstreams = (shared, upstream);
    let mut body =
        Serving::new(upstreams, request.clone(), Arc::clone(read), Arc::clone(&head), bytes.clone(), ready);
    if let Err(cause) = body.prepare().await {
        tracing::debug!(%cause, "an object from memory cannot be had");
        return ask(shared, upstream, request, read, None).await;
    }
    Ok((from_memory(&head, (bytes, is_part), answer.headers(), body), Outcome::Hit))
}

/// Returns what is known of an object if it is enough: its head, and the beginning of its bytes, here or about to come.
async fn look_up(shared: &Shared, headers: &HeaderMap, read: &Read) -> Option<Known> {
    let head = shared.heads.get(read.key, read.has_checksums)?;
    let (bytes, is_part) = wanted(read, headers, &head)?;
    if !is_part && !head.is_of_whole {
        return None;
    }
    if bytes.is_empty() {
        return Some(Known { head, bytes, is_part, ready: None });
    }
    let mut ready = from_cache(&shared.pieces, &head, bytes.clone()).await;
    let len = bytes.end - bytes.start;
    if let Some(ready) = &mut ready
        && len <= WHOLE_BYTES_MAX
    {
        while (ready.len_bytes() as u64) < len {
            let rest = bytes.start + ready.len_bytes() as u64..bytes.end;
            ready.append(from_cache(&shared.pieces, &head, rest).await?);
        }
    }
    if let Some(ready) = &ready {
        shared.counts.bytes_from_memory.add(ready.len_bytes() as u64);
    } else {
        shared.fills.find(&head.generation, bytes.start)?;
    }
    Some(Known { head, bytes, is_part, ready })
}

/// Asks the endpoint for the bytes.
async fn ask(
    shared: &Arc<Shared>,
    upstream: &Arc<Upstream>,
    request: Parts,
    read: &Arc<Read>,
    first: Option<First>,
) -> Result<(Response<Body>, Outcome), Failure> {
    let answer = upstream.send(request, Upload::none()).await?;
    let taken = take(shared, read, answer);
    // Now others know what it states.
    drop(first);
    Ok(taken)
}

/// Passes an answer on, and keeps what it states and brings.
fn take(shared: &Arc<Shared>, read: &Read, answer: Response<Incoming>) -> (Response<Body>, Outcome) {
    let Some((head, bytes)) = Head::of(read, &answer) else {
        return (pass(shared, answer, None), Outcome::Passed);
    };
    let head = shared.heads.enter(read.key, read.has_checksums, head);
    let filling = Filling::begin(&shared.pieces, &shared.fills, &head, bytes);
    (pass(shared, answer, Some(filling)), Outcome::Miss)
}

/// Returns the answer with bytes of a known object, with the headers of the endpoint's answer that are its own.
fn from_memory(
    head: &Head,
    (bytes, is_part): (Range<u64>, bool),
    fresh: &HeaderMap,
    body: Serving,
) -> Response<Body> {
    let mut headers = if is_part { head.headers_of_part() } else { head.headers.clone() };
    let mut own = fresh.clone();
    crate::hop::remove(&mut own);
    for (name, value) in &own {
        if !name.as_str().starts_with("content-") && *name != ETAG {
            headers.insert(name.clone(), value.clone());
        }
    }
    headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.end - bytes.start));
    if is_part {
        let text = format!("bytes {}-{}/{}", bytes.start, bytes.end - 1, head.size);
        if let Ok(range) = HeaderValue::from_str(&text) {
            headers.insert(CONTENT_RANGE, range);
        }
    }
    let body = if bytes.is_empty() {
        full("")
    } else {
        streamed(unfold(Some(body), |body| async move { body?.next().await }))
    };
    let mut response = Response::new(body);
    *response.status_mut() = if is_part { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    *response.headers_mut() = headers;
    response
}
