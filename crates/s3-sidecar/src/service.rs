//! From a request to its answer.

use std::sync::Arc;

use hyper::body::{Body as _, Incoming};
use hyper::{Request, Response};

use crate::admission::{host, refusal};
use crate::answer;
use crate::body::Body;
use crate::gateway;
use crate::hop;
use crate::passing::pass;
use crate::read::Read;
use crate::shared::{Outcome, Shared};
use crate::upload::Upload;
use crate::upstream::Upstream;

/// Answers a request.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    upstream: &Arc<Upstream>,
    request: Request<Incoming>,
) -> Response<Body> {
    let (response, outcome) = route(shared, upstream, request).await;
    let counts = &shared.counts;
    match outcome {
        Outcome::Hit => &counts.hits,
        Outcome::Miss => &counts.misses,
        Outcome::Passed => &counts.passed,
        Outcome::Refused => &counts.refused,
        Outcome::Failed => &counts.failed,
    }
    .increment();
    response
}

async fn route(
    shared: &Arc<Shared>,
    upstream: &Arc<Upstream>,
    request: Request<Incoming>,
) -> (Response<Body>, Outcome) {
    let (mut head, body) = request.into_parts();
    if let Some(why) = refusal(&head) {
        return (answer::refused(why), Outcome::Refused);
    }
    hop::remove(&mut head.headers);
    let host = host(&head.headers).unwrap_or_default();
    if body.is_end_stream()
        && let Some(read) = Read::understand(&head, host, &shared.addressing)
    {
        return gateway::answer(shared, upstream, head, read).await;
    }
    let upload = Upload::of(body, shared.config.stall_max);
    match upstream.send(head, upload).await {
        Ok(answer) => (pass(shared, answer, None), Outcome::Passed),
        Err(failure) => (failure.answer(), Outcome::Failed),
    }
}
