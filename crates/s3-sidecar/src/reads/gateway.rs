//! The path of a read in the mode "gateway": the endpoint is asked whether the cached object is
//! current, and allowed for this client; or it is asked for the bytes.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Response};

use crate::Shared;
use crate::endpoint::asking::{self, Ended, First};
use crate::endpoint::upload::Upload;
use crate::endpoint::{Failure, Upstream};
use crate::http::body::{Body, full};
use crate::http::read::Read;
use crate::memory::changes::Moment;
use crate::memory::filling::Filling;
use crate::memory::generation::Head;
use crate::metrics::Outcome;
use crate::reads::conditions::{Stated, ask_for_change, stated};
use crate::reads::ready::{self, Origin, Ready};
use crate::reads::serving::{Serving, pass};

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
        Err(failure) => (failure.answer(), failure.outcome()),
    }
}

async fn try_answer(
    shared: &Arc<Shared>,
    upstream: &Arc<Upstream>,
    request: Parts,
    read: &Arc<Read>,
) -> Result<(Response<Body>, Outcome), Failure> {
    let deadline = asking::deadline(&shared.config);
    let mut first = None;
    let mut known = None;
    if !read.is_conditional {
        known = look_up(shared, &request.headers, read).await;
        if known.is_none() {
            match shared.asking.turn(read, false) {
                Ok(turn) => first = Some(turn),
                Err(waiting) => match waiting.end(deadline).await {
                    Ended::LookAgain => known = look_up(shared, &request.headers, read).await,
                    Ended::Apart => (),
                    Ended::Late => return Err(Failure::Late),
                },
            }
        }
    }
    let Some(Ready { head, bytes, is_part, segments }) = known else {
        return ask(shared, upstream, request, read, first).await;
    };
    let mut question = request.clone();
    let is_narrowed = ask_for_change(&mut question, read, &head);
    let asked = shared.knowledge.changes.moment();
    let answer = upstream.send(Some(&read.bucket), question, Upload::none()).await?;
    match stated(is_narrowed, &answer, read, &head) {
        Stated::Same => (),
        Stated::Other => {
            shared.knowledge.forget(read, &head);
            return ask(shared, upstream, request, read, None).await;
        }
        Stated::Answered => return Ok(take(shared, read, answer, asked)),
    }
    let (whole, own) = (bytes.clone(), Arc::clone(&head));
    let mut body = Serving::new((shared, upstream), request.clone(), Arc::clone(read), own, whole, segments);
    if let Err(cause) = body.prepare().await {
        tracing::debug!(%cause, "the missing bytes of a cached object are not available");
        return ask(shared, upstream, request, read, None).await;
    }
    let body = if bytes.is_empty() { full("") } else { body.into_body() };
    Ok((ready::part(&head, &bytes, is_part, Origin::Same(answer.headers()), body), Outcome::Hit))
}

/// Returns the cached object if it suffices for the read.
async fn look_up(shared: &Shared, headers: &HeaderMap, read: &Read) -> Option<Ready> {
    // The endpoint verifies the object in any case.
    let known = shared.knowledge.heads.get(&read.place())?;
    ready::ready(shared, headers, read, &known.head).await
}

/// Requests the bytes from the endpoint.
async fn ask(
    shared: &Arc<Shared>,
    upstream: &Arc<Upstream>,
    request: Parts,
    read: &Arc<Read>,
    first: Option<First>,
) -> Result<(Response<Body>, Outcome), Failure> {
    let asked = shared.knowledge.changes.moment();
    let answer = match upstream.send(Some(&read.bucket), request, Upload::none()).await {
        Ok(answer) => answer,
        Err(failure) => return Err(asking::failed(failure, first)),
    };
    let taken = take(shared, read, answer, asked);
    // Now other readers can use the response.
    drop(first);
    Ok(taken)
}

/// Forwards a response, and keeps its head and its bytes.
fn take(
    shared: &Arc<Shared>,
    read: &Read,
    answer: Response<Incoming>,
    asked: Moment,
) -> (Response<Body>, Outcome) {
    let Some((head, bytes)) = Head::of(read, false, &answer) else {
        return (pass(shared, answer, None), Outcome::Passed);
    };
    // The object is verified at each use.
    let head = shared.knowledge.heads.enter(read.place(), Arc::new(head), asked);
    let filling = Filling::begin(&shared.pieces, &shared.fills, &head, bytes);
    (pass(shared, answer, Some(filling)), Outcome::Miss)
}
