//! Produces the response to a request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cached_http::framing::host;
use cached_http::values::has;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::Shared;
use crate::access_log::{Entry, measured};
use crate::auth::denial::Denial;
use crate::auth::{Access, Check, Decision, payload};
use crate::endpoint::upload::Upload;
use crate::endpoint::{Failure, Upstream};
use crate::http::body::{self, Body};
use crate::http::framing::{self, refusal};
use crate::http::read::Read;
use crate::http::target::{Addressing, Class, Target};
use crate::memory::writes::{self, Change, Passing};
use crate::metrics::{NamedBucket, Outcome};
use crate::reads::serving::{pass, pass_change};
use crate::reads::{fresh, gateway};

const EXPECTED_OWNER: HeaderName = HeaderName::from_static("x-amz-expected-bucket-owner");

/// Returns the response to a request.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    upstream: Arc<Upstream>,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Response<Body> {
    let mut bucket = NamedBucket::default();
    let Some(log) = &shared.access_log else {
        let (response, outcome) = route(&shared, &upstream, request, &mut bucket).await;
        count(&shared, bucket, &response, outcome);
        return response;
    };
    let (head, body) = request.into_parts();
    let entry = Entry::of(&head, host(&head.headers).unwrap_or_default(), peer);
    let request = Request::from_parts(head, body);
    let routed = measured(route(&shared, &upstream, request, &mut bucket));
    let ((response, outcome), waited) = Box::pin(routed).await;
    count(&shared, bucket, &response, outcome);
    entry.follow(log, response, outcome, waited)
}

fn count(shared: &Shared, bucket: NamedBucket, response: &Response<Body>, outcome: Outcome) {
    shared.counts.of(outcome).increment();
    let status = response.status();
    shared.buckets.count(bucket, outcome, status.is_success() || status == StatusCode::NOT_MODIFIED);
}

/// Returns the response to a request, and its outcome. Sets `bucket` to the bucket that the request
/// names, once it is clear that the request is not refused.
async fn route(
    shared: &Arc<Shared>,
    upstream: &Arc<Upstream>,
    request: Request<Incoming>,
    bucket: &mut NamedBucket,
) -> (Response<Body>, Outcome) {
    let (mut head, body) = request.into_parts();
    if let Some((status, why)) = refusal(&head) {
        return (body::refused(status, why), Outcome::Refused);
    }
    let body = Upload::of(body, &head.headers, shared.config.stall_max);
    let has_body = !body.is_none();
    let mut upload = match shared.access.admit(&shared.addressing, &mut head, body).await {
        Ok(upload) => upload,
        Err(denial) => return refuse(shared, &denial, has_body),
    };
    let verdict = upload.verdict();
    framing::remove(&mut head.headers);
    let is_here = shared.config.auth.is_here();
    let target = match is_here {
        // The request has become one of the sidecar's own.
        true => Target::by_path(head.uri.path()),
        false => shared.addressing.target(host(&head.headers).unwrap_or_default(), head.uri.path()),
    };
    if let Some(name) = target.bucket() {
        *bucket = shared.buckets.find(name);
    }
    if upload.is_none()
        && let Some(mut read) = Read::understand(&head, &target)
    {
        if is_here {
            let policy = shared.policies.read().of(&read.bucket, &read.name);
            // Only the endpoint knows a bucket's owner.
            let may_answer = policy.caches && !has(&head.headers, &EXPECTED_OWNER);
            let class = Class::of_answerable(shared.config.names, &read.bucket, &read.name, read.key);
            if let Some(class) = class.filter(|_| may_answer) {
                read.take_over(class);
                return fresh::answer(shared, upstream, head, read, policy).await;
            }
        } else if !read.is_head {
            return Box::pin(gateway::answer(shared, upstream, head, read)).await;
        }
    }
    let change = if is_here { begin_change(shared, &head, &target) } else { None };
    upload.passing = change.as_ref().and_then(Change::body);
    let name = target.bucket().map(str::to_owned);
    match (Box::pin(upstream.send(name.as_deref(), head, upload)).await, change) {
        (Ok(answer), None) => (pass(shared, answer, None), Outcome::Passed),
        (Ok(answer), Some(change)) => (pass_change(shared, answer, change), Outcome::Passed),
        (Err(failure), change) => {
            if matches!(failure, Failure::Unreachable(_) | Failure::Busy) {
                // The endpoint has received nothing of the request.
                change.into_iter().for_each(Change::settle);
            }
            match verdict.as_ref().and_then(|verdict| verdict.get()) {
                // The body differed from the signed one, so it was aborted.
                Some(denial) => refuse(shared, denial, true),
                None => (failure.answer(), failure.outcome()),
            }
        }
    }
}

/// Begins the change that a request may make, if there is one.
fn begin_change(shared: &Shared, head: &Parts, target: &Target<'_>) -> Option<Change> {
    let scope = writes::scope(shared.config.names, head, target)?;
    shared.counts.changes.increment();
    let body = writes::deletes_many(head, target).then(|| Passing::new(&shared.held));
    Some(Change::begin(&shared.knowledge, scope, body))
}

fn refuse(shared: &Shared, denial: &Denial, has_body: bool) -> (Response<Body>, Outcome) {
    shared.counts.refusals.count(denial.reason());
    tracing::debug!(code = denial.code(), "a request of an S3 client is refused");
    (denial.answer(has_body), Outcome::Refused)
}

/// The maximum total length of the bodies that are completely read into memory concurrently, in KiB.
static BODIES_KIB: Semaphore = Semaphore::const_new(32 << 10);

/// The maximum time for reading a whole body into memory, including the wait for its turn.
const BODY_TIME_MAX: Duration = Duration::from_secs(60);

impl Access {
    /// Decides about a request, and turns it into one of the sidecar's own. If the endpoint
    /// decides, the request is not changed.
    ///
    /// # Errors
    /// [`Denial`] if the request is refused.
    pub(crate) async fn admit(
        &self,
        addressing: &Addressing,
        head: &mut Parts,
        mut body: Upload,
    ) -> Result<Upload, Denial> {
        let decided = self.decide(addressing, head).and_then(|decision| {
            let Some(Decision { payload, chain, deletion }) = decision else { return Ok(None) };
            let check = payload::check(head, payload, chain, !body.is_none(), deletion.is_some())?;
            Ok(Some((check, deletion)))
        });
        let (check, deletion) = match decided {
            Ok(Some(decided)) => decided,
            Ok(None) => return Ok(body),
            Err(denial) => {
                Box::pin(body.drain(&head.headers)).await;
                return Err(denial);
            }
        };
        let is_checked = check.is_some();
        body.check = check;
        if let Some(deletion) = deletion {
            let collected = Box::pin(timeout(BODY_TIME_MAX, collect_in_turn(body))).await;
            let (bytes, check) = collected.map_err(|_| Denial::Stalled)??;
            deletion.check(&bytes)?;
            if let Some((name, value)) = check.and_then(|check| check.checksum()) {
                head.headers.insert(name, value);
            }
            head.headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
            return Ok(Upload::whole(bytes));
        }
        if is_checked && payload::is_empty(head) {
            // An empty check would have no byte to withhold.
            Box::pin(collect(body)).await?;
            return Ok(Upload::none());
        }
        Ok(body)
    }
}

async fn collect_in_turn(body: Upload) -> Result<(Bytes, Option<Check>), Denial> {
    // Bodies are usually short, so that many clients may send them slowly before others have to wait.
    let len = body.size_hint().exact().unwrap_or(u64::MAX).min(body::DELETION_BYTES_MAX as u64);
    // The semaphore is never closed.
    let _place = BODIES_KIB.acquire_many(len.div_ceil(1024) as u32).await;
    collect(body).await
}

/// Reads a whole body into memory. Returns it with its verifier, if it has one.
async fn collect(mut body: Upload) -> Result<(Bytes, Option<Check>), Denial> {
    let verdict = body.verdict();
    match Limited::new(&mut body, body::DELETION_BYTES_MAX).collect().await {
        Ok(collected) => Ok((collected.to_bytes(), body.check.take())),
        Err(error) if error.is::<LengthLimitError>() => {
            body.drain(&HeaderMap::new()).await;
            Err(Denial::Document("the document is longer than 2 MiB"))
        }
        Err(_) => Err(verdict.and_then(|verdict| verdict.get().cloned()).unwrap_or(Denial::Stalled)),
    }
}
