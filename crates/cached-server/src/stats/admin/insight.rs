//! The documents `/mrc.json`, `/hot.json` and `/slow.json`, and the metrics of what is predicted.

use crate::shared::Shared;
use crate::stats::reports::Reports;
use cached_admin::insight::documents::hot_count;
use cached_admin::{Access, AdminServer, Request, Response};
use std::sync::Arc;

/// Adds the routes. They show what is known at the moment of the request, and nothing once the server has ended.
///
/// Keys are clients' data: without a token only their first letters are shown, on loopback too.
pub(super) fn add_routes(admin: &AdminServer, shared: &Arc<Shared>) {
    let add = |path: &str, answer: fn(&Reports, &Request) -> Response| {
        let shared = Arc::downgrade(shared);
        admin.routes().get(path, Access::Read, move |request| {
            let response = match shared.upgrade() {
                Some(shared) => answer(&Reports::new(shared), &request),
                None => Response::failure(503, "the server has ended"),
            };
            async move { response }
        });
    };
    add("/mrc.json", |reports, _| Response::json(&reports.miss_ratios()));
    add("/hot.json", |reports, request| match hot_count(request) {
        Ok(count) => Response::json(&reports.hot(count, request.has_token())),
        Err(refused) => *refused,
    });
    add("/slow.json", |reports, request| reports.slow_requests().response(request));
}
