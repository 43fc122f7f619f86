//! Responses of the endpoint that are being sent to the client.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::{once, unfold};
use http_body_util::{BodyExt, BodyStream};
use hyper::Response;
use hyper::body::{Body as _, Frame, Incoming};
use tokio::time::timeout;

use crate::endpoint::lane::Lane;
use crate::endpoint::upstream::Failure;
use crate::http::body::{Body, BodyError, Data, full, streamed};
use crate::http::framing;
use crate::memory::filling::Filling;
use crate::memory::heads::BODY_BYTES_MAX;
use crate::memory::writes::{Ending, Root};
use crate::shared::Shared;

/// Returns a response of the endpoint for the client; its bytes go to `filling` as well.
pub(crate) fn pass(
    shared: &Arc<Shared>,
    answer: Response<Incoming>,
    filling: Option<Filling>,
) -> Response<Body> {
    pass_with(shared, answer, filling, None)
}

/// Returns the endpoint's response to a change. The change ends with the body, where S3 states
/// whether it has succeeded.
pub(crate) fn pass_change(
    shared: &Arc<Shared>,
    answer: Response<Incoming>,
    ending: Ending,
) -> Response<Body> {
    // A failing endpoint may still make the change later.
    let ending = Some(ending).filter(|_| !answer.status().is_server_error());
    let is_success = answer.status().is_success();
    let ending = ending.map(|ending| Watched { ending, is_success, root: Root::default() });
    pass_with(shared, answer, None, ending)
}

/// The end of a change whose response is being sent.
struct Watched {
    ending: Ending,
    is_success: bool,
    /// The beginning of the response: after status 200 it may still be an error.
    root: Root,
}

impl Watched {
    fn settle(self) {
        if self.is_success && self.root.is_error() {
            // As after an error status, the endpoint may make the change later.
            return;
        }
        self.ending.settle();
    }
}

fn pass_with(
    shared: &Arc<Shared>,
    answer: Response<Incoming>,
    filling: Option<Filling>,
    mut ending: Option<Watched>,
) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    let lane = head.extensions.remove::<Arc<Lane>>();
    framing::remove(&mut head.headers);
    if body.is_end_stream() {
        ending.take().into_iter().for_each(Watched::settle);
        return Response::from_parts(head, full(""));
    }
    let state = Some((Arc::clone(shared), body, filling, ending, lane));
    let frames = unfold(state, |state| async move {
        let (shared, mut body, mut filling, mut ending, lane) = state?;
        let frame = timeout(shared.config.stall_max, body.frame()).await;
        let frame: Result<Frame<_>, BodyError> = match frame {
            Ok(None) => {
                ending.take().into_iter().for_each(Watched::settle);
                return None;
            }
            Ok(Some(frame)) => frame.map_err(Into::into),
            Err(_) => Err("the endpoint has stopped sending".into()),
        };
        match frame {
            Ok(frame) => {
                if let Some(bytes) = frame.data_ref() {
                    shared.counts.bytes_from_upstream.add(bytes.len() as u64);
                    if let Some(lane) = &lane {
                        lane.pace(bytes.len()).await;
                    }
                    if let Some(filling) = &mut filling {
                        filling.push(bytes).await;
                    }
                    if let Some(ending) = &mut ending {
                        ending.root.see(bytes);
                    }
                }
                if body.is_end_stream() {
                    // It is possible that nothing polls the body again.
                    ending.take().into_iter().for_each(Watched::settle);
                }
                Some((Ok(frame.map_data(Data::Bytes)), Some((shared, body, filling, ending, lane))))
            }
            Err(error) => {
                tracing::debug!(cause = %error, "a body of the endpoint is broken off");
                Some((Err(error), None))
            }
        }
    });
    Response::from_parts(head, streamed(frames))
}

/// Returns a response of the endpoint for the client, and its body if that is short and complete.
pub(crate) async fn collect(
    shared: &Arc<Shared>,
    answer: Response<Incoming>,
    is_head: bool,
) -> (Response<Body>, Option<Bytes>) {
    let is_long = answer.body().size_hint().lower() > BODY_BYTES_MAX as u64;
    if is_head || is_long {
        let body = is_head.then(Bytes::new);
        return (pass(shared, answer, None), body);
    }
    let (mut head, mut body) = answer.into_parts();
    match timeout(shared.config.stall_max, begin(&mut body)).await {
        Ok(Ok((bytes, true))) => {
            framing::remove(&mut head.headers);
            shared.counts.bytes_from_upstream.add(bytes.len() as u64);
            (Response::from_parts(head, full(bytes.clone())), Some(bytes))
        }
        // The length was not stated.
        Ok(Ok((bytes, false))) => {
            shared.counts.bytes_from_upstream.add(bytes.len() as u64);
            let rest = pass(shared, Response::from_parts(head, body), None);
            (rest.map(|rest| after(bytes, rest)), None)
        }
        Ok(Err(error)) => (Failure::Broken(error.to_string()).answer(), None),
        Err(_) => (Failure::Broken("it has stopped sending".into()).answer(), None),
    }
}

/// Reads the beginning of a body, up to slightly more than the maximum that is kept. Returns
/// whether this is the whole body.
async fn begin(body: &mut Incoming) -> Result<(Bytes, bool), hyper::Error> {
    let mut bytes = BytesMut::new();
    while bytes.len() <= BODY_BYTES_MAX {
        match body.frame().await.transpose()? {
            Some(frame) => frame.data_ref().into_iter().for_each(|data| bytes.extend_from_slice(data)),
            None => return Ok((bytes.freeze(), true)),
        }
    }
    Ok((bytes.freeze(), false))
}

/// Returns a body with these bytes in front of it.
fn after(first: Bytes, rest: Body) -> Body {
    let first = std::future::ready(Ok(Frame::data(Data::Bytes(first))));
    streamed(once(first).chain(BodyStream::new(rest)))
}
