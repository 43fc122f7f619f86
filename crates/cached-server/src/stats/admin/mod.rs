//! What the admin listener shows of a server: metrics, its part of the status, whether its threads make progress, and the
//! routes that answer for items.
//!
//! | module | content |
//! |---|---|
//! | `families` | metrics under names of their own, and the part of `/status.json` |
//! | `exporter` | the same under the names of memcached's exporter |
//!
//! | route | |
//! |---|---|
//! | `POST /flush-prefix` | removes the items whose keys begin with a prefix; logged with the client's address |
//! | `GET /mrc.json`, `/hot.json`, `/slow.json` | the documents of [`Reports`] |

mod exporter;
mod families;

use super::insight::Reports;
use crate::shared::Shared;
use cached_admin::insight::documents::hot_count;
use cached_admin::sources::Shown;
use cached_admin::{Access, AdminServer, Request, Response};
use cached_core::kv::PrefixError;
use cached_metrics::{Collect, Families};
use serde::Deserialize;
use serde_json::json;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// For how many seconds a thread may make no progress before the process should be restarted.
const STALLED_SECS_MAX: u32 = 30;

/// A server as the admin listener sees it.
pub(crate) struct ServerSource {
    shared: Arc<Shared>,
}

impl ServerSource {
    /// Shows a server, until the result is dropped.
    pub(crate) fn show(admin: &AdminServer, shared: &Arc<Shared>) -> Shown {
        let source = Arc::new(ServerSource { shared: shared.clone() });
        let watched = Arc::downgrade(&source);
        add_insight_routes(admin, shared);
        add_flush_route(admin, shared);
        admin.health().check_liveness(move || not_live(&watched.upgrade()?.shared));
        Shown::new(admin, &source)
    }
}

/// Returns which thread makes no progress.
fn not_live(shared: &Shared) -> Option<String> {
    let stalled = shared.stalled_secs.iter().map(|secs| secs.load(Ordering::Relaxed)).enumerate();
    let (index, secs) =
        stalled.max_by_key(|(_, secs)| *secs).filter(|(_, secs)| *secs >= STALLED_SECS_MAX)?;
    let thread = if index < shared.workers() { format!("worker {index}") } else { "the acceptor".into() };
    Some(format!("{thread} has made no progress for {secs} s"))
}

impl Collect for ServerSource {
    fn collect(&self, into: &mut Families) {
        families::collect(&self.shared, into);
        exporter::collect(&self.shared, into);
        if let Some(arbiter) = self.shared.arbiter.get() {
            arbiter.collect(into);
        }
        Reports::new(self.shared.clone()).collect(into);
    }
}

impl cached_admin::status::Source for ServerSource {
    fn fill(&self, document: &mut cached_admin::status::Document) {
        families::fill(&self.shared, document);
    }
}

/// The body of the request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    prefix: String,
}

/// Adds the route. It works under `-F` too: that is for clients, and this needs the listener's token.
fn add_flush_route(admin: &AdminServer, shared: &Arc<Shared>) {
    let shared = Arc::downgrade(shared);
    admin.routes().post("/flush-prefix", move |request| {
        let shared = shared.clone();
        async move {
            // With a memory file it takes as long as sweeping all items; the listener has other requests meanwhile.
            let flushed = tokio::task::spawn_blocking(move || flush_prefix(&shared, &request)).await;
            flushed.unwrap_or_else(|error| Response::failure(500, format_args!("flushing failed: {error}")))
        }
    });
}

fn flush_prefix(shared: &Weak<Shared>, request: &Request) -> Response {
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

/// Adds the routes. They show what is known at the moment of the request, and nothing once the server has ended.
///
/// Keys are clients' data: without a token only their first letters are shown, on loopback too.
fn add_insight_routes(admin: &AdminServer, shared: &Arc<Shared>) {
    let add = |path: &str, answer: fn(&Reports, &Request) -> Response| {
        let shared = Arc::downgrade(shared);
        admin.routes().get_now(path, Access::Read, move |request| match shared.upgrade() {
            Some(shared) => answer(&Reports::new(shared), &request),
            None => Response::failure(503, "the server has ended"),
        });
    };
    add("/mrc.json", |reports, _| Response::json(&reports.miss_ratios()));
    add("/hot.json", |reports, request| match hot_count(request) {
        Ok(count) => Response::json(&reports.hot(count, request.has_token())),
        Err(refused) => *refused,
    });
    add("/slow.json", |reports, request| reports.slow_requests().response(request));
}
