//! Answers of the endpoint on their way to the client.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::unfold;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Body as _, Frame, Incoming};
use tokio::time::timeout;

use crate::absent::BODY_BYTES_MAX;
use crate::body::{Body, BodyError, Data, full, streamed};
use crate::ending::Ending;
use crate::filling::Filling;
use crate::hop;
use crate::shared::Shared;
use crate::upstream::Failure;

/// Returns an answer of the endpoint for the client; what streams by goes to `filling` as well.
pub(crate) fn pass(
    shared: &Arc<Shared>,
    answer: Response<Incoming>,
    filling: Option<Filling>,
) -> Response<Body> {
    pass_with(shared, answer, filling, None)
}

/// Returns the answer of the endpoint to a change. It ends with its body: S3 states there whether it has succeeded.
pub(crate) fn pass_change(
    shared: &Arc<Shared>,
    answer: Response<Incoming>,
    ending: Ending,
) -> Response<Body> {
    // An endpoint in trouble may make the change later.
    let ending = Some(ending).filter(|_| !answer.status().is_server_error());
    pass_with(shared, answer, None, ending)
}

fn pass_with(
    shared: &Arc<Shared>,
    answer: Response<Incoming>,
    filling: Option<Filling>,
    mut ending: Option<Ending>,
) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    hop::remove(&mut head.headers);
    if body.is_end_stream() {
        ending.take().into_iter().for_each(Ending::settle);
        return Response::from_parts(head, full(""));
    }
    let state = Some((Arc::clone(shared), body, filling, ending));
    let frames = unfold(state, |state| async move {
        let (shared, mut body, mut filling, mut ending) = state?;
        let frame = timeout(shared.config.stall_max, body.frame()).await;
        let frame: Result<Frame<_>, BodyError> = match frame {
            Ok(None) => {
                ending.take().into_iter().for_each(Ending::settle);
                return None;
            }
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
                if body.is_end_stream() {
                    // Nobody may ask for more.
                    ending.take().into_iter().for_each(Ending::settle);
                }
                Some((Ok(frame.map_data(Data::Bytes)), Some((shared, body, filling, ending))))
            }
            Err(error) => {
                tracing::debug!(cause = %error, "a body of the endpoint is broken off");
                Some((Err(error), None))
            }
        }
    });
    Response::from_parts(head, streamed(frames))
}

/// Returns an answer of the endpoint for the client, and its body if that has come as a whole and is short.
pub(crate) async fn collect(
    shared: &Arc<Shared>,
    answer: Response<Incoming>,
    is_head: bool,
) -> (Response<Body>, Option<Bytes>) {
    let is_short = answer.body().size_hint().exact().is_some_and(|len| len <= BODY_BYTES_MAX as u64);
    if is_head || !is_short {
        let body = is_head.then(Bytes::new);
        return (pass(shared, answer, None), body);
    }
    let (mut head, body) = answer.into_parts();
    hop::remove(&mut head.headers);
    let limited = timeout(shared.config.stall_max, body.collect()).await;
    match limited {
        Ok(Ok(all)) => {
            let bytes = all.to_bytes();
            shared.counts.bytes_from_upstream.add(bytes.len() as u64);
            (Response::from_parts(head, full(bytes.clone())), Some(bytes))
        }
        broken => {
            let cause = broken.map_or_else(
                |_| "it has stopped sending".into(),
                |broken| match broken {
                    Err(error) => error.to_string(),
                    Ok(_) => String::new(),
                },
            );
            (Failure::Broken(cause).answer(), None)
        }
    }
}
