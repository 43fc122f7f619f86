//! From a request to its answer.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, Response};

use crate::admission::{host, refusal};
use crate::answer;
use crate::auth::denial::Denial;
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
    let body = Upload::of(body, shared.config.stall_max);
    let has_body = !body.is_none();
    let upload = match shared.access.admit(&shared.addressing, &mut head, body).await {
        Ok(upload) => upload,
        Err(denial) => return refuse(shared, &denial, has_body),
    };
    let verdict = upload.verdict();
    hop::remove(&mut head.headers);
    let host = host(&head.headers).unwrap_or_default();
    if upload.is_none()
        && let Some(read) = Read::understand(&head, host, &shared.addressing)
    {
        return gateway::answer(shared, upstream, head, read).await;
    }
    match upstream.send(head, upload).await {
        Ok(answer) => (pass(shared, answer, None), Outcome::Passed),
        Err(failure) => match verdict.as_ref().and_then(|verdict| verdict.get()) {
            // The body was not what was signed: it has been broken off.
            Some(denial) => refuse(shared, denial, true),
            None => (failure.answer(), Outcome::Failed),
        },
    }
}

fn refuse(shared: &Shared, denial: &Denial, has_body: bool) -> (Response<Body>, Outcome) {
    shared.counts.refusals.count(denial.reason);
    tracing::debug!(code = denial.code, "a request of an S3 client is refused");
    (denial.answer(has_body), Outcome::Refused)
}
