//! `POST /flush-prefix`: removes the items whose keys begin with a prefix. Each is logged with the client's address.

use crate::shared::Shared;
use cached_admin::{AdminServer, Request, Response};
use cached_core::kv::PrefixError;
use serde::Deserialize;
use serde_json::json;
use std::sync::{Arc, Weak};

/// The body of the request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    prefix: String,
}

/// Adds the route. It works under `-F` too: that is for clients, and this needs the listener's token.
pub(super) fn add_route(admin: &AdminServer, shared: &Arc<Shared>) {
    let shared = Arc::downgrade(shared);
    admin.routes().post("/flush-prefix", move |request| {
        let shared = shared.clone();
        async move {
            // With a memory file it takes as long as sweeping all items; the listener has other requests meanwhile.
            let flushed = tokio::task::spawn_blocking(move || flush(&shared, &request)).await;
            flushed.unwrap_or_else(|error| Response::failure(500, format_args!("flushing failed: {error}")))
        }
    });
}

fn flush(shared: &Weak<Shared>, request: &Request) -> Response {
    let Some(shared) = shared.upgrade() else { return Response::failure(503, "the server has ended") };
    let Body { prefix } = match serde_json::from_slice(request.body()) {
        Ok(body) => body,
        Err(error) => return Response::failure(400, format_args!("give {{\"prefix\": \"...\"}}: {error}")),
    };
    let is_handed_over = shared.is_handed_over.lock();
    if *is_handed_over {
        return Response::failure(503, "another process has taken over");
    }
    let done = shared.flush_prefix(prefix.as_bytes());
    drop(is_handed_over);
    let outcome = done.as_ref().map_or_else(ToString::to_string, |()| "done".into());
    tracing::info!(peer = %request.peer(), prefix, outcome, "the admin listener flushes a prefix");
    match done {
        Ok(()) => Response::json(&json!({ "pending": shared.kv.prefix_flushes().pending })),
        Err(error @ PrefixError::Length) => Response::failure(400, error),
        Err(error @ PrefixError::TooMany) => Response::failure(503, error),
    }
}
