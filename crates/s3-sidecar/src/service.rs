//! From a request to its answer.

use std::sync::Arc;

use futures_util::stream::unfold;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, Incoming};
use hyper::{Request, Response};
use tokio::time::timeout;

use crate::admission::{host, refusal};
use crate::answer;
use crate::asking::Asking;
use crate::body::{Body, BodyError, Data, full, streamed};
use crate::config::SidecarConfig;
use crate::filling::Filling;
use crate::fills::Fills;
use crate::gateway;
use crate::heads::Heads;
use crate::hop;
use crate::metrics::Counts;
use crate::pieces::Pieces;
use crate::read::Read;
use crate::target::Addressing;
use crate::upload::Upload;
use crate::upstream::Upstream;

/// What all threads share.
pub(crate) struct Shared {
    pub(crate) config: SidecarConfig,
    pub(crate) addressing: Addressing,
    pub(crate) heads: Heads,
    pub(crate) pieces: Arc<Pieces>,
    pub(crate) fills: Arc<Fills>,
    pub(crate) asking: Arc<Asking>,
    pub(crate) counts: Arc<Counts>,
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// From memory.
    Hit,
    /// By the endpoint, and kept.
    Miss,
    /// By the endpoint.
    Passed,
    /// With an error of the proxy's own: the request cannot be forwarded.
    Refused,
    /// With an error of the proxy's own: the endpoint does not answer.
    Failed,
}

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

/// Returns an answer of the endpoint for the client; what streams by goes to `filling` as well.
pub(crate) fn pass(
    shared: &Arc<Shared>,
    answer: Response<Incoming>,
    filling: Option<Filling>,
) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    hop::remove(&mut head.headers);
    if body.is_end_stream() {
        return Response::from_parts(head, full(""));
    }
    let state = Some((Arc::clone(shared), body, filling));
    let frames = unfold(state, |state| async move {
        let (shared, mut body, mut filling) = state?;
        let frame = timeout(shared.config.stall_max, body.frame()).await;
        let frame: Result<Frame<_>, BodyError> = match frame {
            Ok(None) => return None,
            Ok(Some(frame)) => frame.map_err(Into::into),
            Err(_) => Err("the endpoint has stopped sending".into()),
        };
        match frame {
            Ok(frame) => {
                if let Some(bytes) = frame.data_ref() {
                    shared.counts.bytes_from_upstream.add(bytes.len() as u64);
                    if let Some(filling) = &mut filling {
                        filling.push(bytes).await;
                    }
                }
                Some((Ok(frame.map_data(Data::Bytes)), Some((shared, body, filling))))
            }
            Err(error) => {
                tracing::debug!(cause = %error, "a body of the endpoint is broken off");
                Some((Err(error), None))
            }
        }
    });
    Response::from_parts(head, streamed(frames))
}
