//! What the routes of an object cache have in common: the answer once it has ended, and how long a request waits.

use std::time::Duration;

use crate::routes::Response;

/// The longest that a request waits: shorter than the time after which a response is dropped.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Returns the answer of a route whose cache is gone.
pub(crate) fn ended() -> Response {
    Response::failure(503, "the object cache has ended")
}

/// Returns how long a request waits that asks for `asked_ms` milliseconds, or for no time in particular.
pub(crate) fn wait_of(asked_ms: Option<u64>) -> Duration {
    asked_ms.map_or(WAIT_MAX, |millis| Duration::from_millis(millis).min(WAIT_MAX))
}

#[cfg(test)]
pub(crate) mod tests {
    use hyper::Method;
    use hyper::header::HeaderMap;
    use serde_json::Value;

    use crate::routes::{Found, Request, Routes};

    /// Returns the status and the body of a route's answer.
    pub(crate) fn ask(routes: &Routes, method: &Method, path: &str, query: &str, body: &str) -> (u16, Value) {
        let Found::Route(route) = routes.find(method, path) else { panic!("no route {path}") };
        let request = Request {
            path: path.into(),
            query: query.into(),
            headers: HeaderMap::new(),
            body: body.to_owned().into(),
            peer: ([127, 0, 0, 1], 1).into(),
            has_token: true,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let response = runtime.block_on((route.handler)(request));
        let text = String::from_utf8_lossy(&response.body).into_owned();
        (response.status.as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }
}
