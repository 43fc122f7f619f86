//! From a request to its answer.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, Response};

use crate::access_log::measured;
use crate::auth::denial::Denial;
use crate::endpoint::upload::Upload;
use crate::endpoint::upstream::{Failure, Upstream};
use crate::http::admission::{host, refusal};
use crate::http::alias::Class;
use crate::http::answer;
use crate::http::body::Body;
use crate::http::framing;
use crate::http::read::Read;
use crate::http::target::Target;
use crate::logged::Entry;
use crate::memory::deletes::Passing;
use crate::memory::ending::Ending;
use crate::memory::writes;
use crate::outcome::Outcome;
use crate::reads::passing::{pass, pass_change};
use crate::reads::{fresh, gateway};
use crate::shared::Shared;

/// Answers a request.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    upstream: &Arc<Upstream>,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Response<Body> {
    let Some(log) = &shared.access_log else {
        let (response, outcome) = route(shared, upstream, request).await;
        shared.counts.of(outcome).increment();
        return response;
    };
    let (head, body) = request.into_parts();
    let entry = Entry::of(&head, host(&head.headers).unwrap_or_default(), peer);
    let request = Request::from_parts(head, body);
    let ((response, outcome), waited) = Box::pin(measured(route(shared, upstream, request))).await;
    shared.counts.of(outcome).increment();
    entry.follow(log, response, outcome, waited)
}

async fn route(
    shared: &Arc<Shared>,
    upstream: &Arc<Upstream>,
    request: Request<Incoming>,
) -> (Response<Body>, Outcome) {
    let (mut head, body) = request.into_parts();
    if let Some((status, why)) = refusal(&head) {
        return (answer::refused(status, why), Outcome::Refused);
    }
    let body = Upload::of(body, &head.headers, shared.config.stall_max);
    let has_body = !body.is_none();
    let upload = match shared.access.admit(&shared.addressing, &mut head, body).await {
        Ok(upload) => upload,
        Err(denial) => return refuse(shared, &denial, has_body),
    };
    let verdict = upload.verdict();
    framing::remove(&mut head.headers);
    let host = host(&head.headers).unwrap_or_default();
    let target = shared.addressing.target(host, head.uri.path());
    let is_here = shared.config.auth.is_here();
    if let Some(lane) = target.bucket().and_then(|bucket| shared.lanes.of(bucket)) {
        // It goes with the request to where that is sent.
        head.extensions.insert(lane);
    }
    if upload.is_none()
        && let Some(mut read) = Read::understand(&head, &target)
    {
        if is_here {
            let policy = shared.policies.read().of(&read.bucket, &read.name);
            // The endpoint alone knows whose a bucket is.
            let may_answer = policy.caches && !head.headers.contains_key("x-amz-expected-bucket-owner");
            let class = Class::of_answerable(shared.config.names, &read.bucket, &read.name, read.key);
            if let Some(class) = class.filter(|_| may_answer) {
                read.take_over(class);
                return fresh::answer(shared, upstream, head, read, policy).await;
            }
        } else if !read.is_head {
            return Box::pin(gateway::answer(shared, upstream, head, read)).await;
        }
    }
    let ending = if is_here { begin_change(shared, &head, &target) } else { None };
    let passing = ending.as_ref().and_then(Ending::body);
    match (Box::pin(upstream.send(head, upload.seen_by(passing))).await, ending) {
        (Ok(answer), None) => (pass(shared, answer, None), Outcome::Passed),
        (Ok(answer), Some(ending)) => (pass_change(shared, answer, ending), Outcome::Passed),
        (Err(failure), ending) => {
            if matches!(failure, Failure::Unreachable(_) | Failure::Busy) {
                ending.into_iter().for_each(Ending::settle);
            }
            match verdict.as_ref().and_then(|verdict| verdict.get()) {
                // The body was not what was signed: it has been broken off.
                Some(denial) => refuse(shared, denial, true),
                None => (failure.answer(), failure.outcome()),
            }
        }
    }
}

/// Begins the change that a request may be.
fn begin_change(shared: &Shared, head: &Parts, target: &Target<'_>) -> Option<Ending> {
    let scope = writes::scope(shared.config.names, head, target)?;
    shared.counts.changes.increment();
    let body = writes::deletes_many(head, target).then(|| Passing::new(&shared.held));
    Some(Ending::begin(&shared.knowledge, scope, body))
}

fn refuse(shared: &Shared, denial: &Denial, has_body: bool) -> (Response<Body>, Outcome) {
    shared.counts.refusals.count(denial.reason);
    tracing::debug!(code = denial.code, "a request of an S3 client is refused");
    (denial.answer(has_body), Outcome::Refused)
}
