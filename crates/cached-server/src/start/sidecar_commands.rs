//! What the admin listener is asked for of the sidecar. Each request is logged with the client's address.
//!
//! | route | body | |
//! |---|---|---|
//! | `POST /s3/invalidate` | `{"bucket": "…", "key": "…"}`, or `"prefix"`, or the bucket alone | what is known of these objects is void |
//! | `POST /s3/events` | event records of S3 | the same for the objects that they name |

use cached_admin::{Request, Response, Routes};
use s3_sidecar::{ControlError, Invalidation, SidecarControl};
use serde::Deserialize;
use serde_json::json;

/// The body of `/s3/invalidate`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    bucket: String,
    key: Option<String>,
    prefix: Option<String>,
}

/// Adds the routes.
pub(crate) fn add_routes(routes: &Routes, control: &SidecarControl) {
    let own = control.clone();
    routes.post("/s3/invalidate", move |request| {
        let response = invalidate(&own, &request);
        async move { response }
    });
    let own = control.clone();
    routes.post("/s3/events", move |request| {
        let response = take_events(&own, &request);
        async move { response }
    });
}

fn invalidate(control: &SidecarControl, request: &Request) -> Response {
    let right = "give {\"bucket\": \"...\"}, and \"key\" or \"prefix\"";
    let what = match serde_json::from_slice(request.body()) {
        Err(error) => return Response::failure(400, format_args!("{right}: {error}")),
        Ok(Body { key: Some(_), prefix: Some(_), .. }) => {
            return Response::failure(400, format_args!("{right}: not both"));
        }
        Ok(Body { bucket, key: Some(key), prefix: None }) => Invalidation::Key { bucket, key },
        Ok(Body { bucket, key: None, prefix }) => {
            Invalidation::Prefix { bucket, prefix: prefix.unwrap_or_default() }
        }
    };
    let done = control.invalidate(&what);
    let outcome = done.as_ref().map_or_else(ToString::to_string, |()| "done".into());
    tracing::info!(peer = %request.peer(), ?what, outcome, "the admin listener invalidates objects of S3");
    done.map_or_else(failure, |()| Response::json(&json!({ "invalidated": true })))
}

fn take_events(control: &SidecarControl, request: &Request) -> Response {
    let taken = control.take_events(request.body());
    match &taken {
        Ok(records) => tracing::debug!(peer = %request.peer(), records, "events of S3"),
        Err(error) => tracing::info!(peer = %request.peer(), cause = %error, "events of S3 are refused"),
    }
    taken.map_or_else(failure, |records| Response::json(&json!({ "records": records })))
}

fn failure(error: ControlError) -> Response {
    let status = match error {
        ControlError::Wrong(_) => 400,
        ControlError::AlwaysAsks => 409,
        _ => 503,
    };
    Response::failure(status, error)
}
