//! Answers of the endpoint on their way to the client.

use std::sync::Arc;

use futures_util::stream::unfold;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Body as _, Frame, Incoming};
use tokio::time::timeout;

use crate::body::{Body, BodyError, Data, full, streamed};
use crate::filling::Filling;
use crate::hop;
use crate::shared::Shared;

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
