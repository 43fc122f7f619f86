//! The routes that take the object cache out of the path of requests, and put it back.
//!
//! | route | |
//! |---|---|
//! | `GET /cache.json` | whether it is attached, and what it has |
//! | `POST /cache/detach` | `{"wait_ms"}`: everything is stored, then requests go to the store |
//! | `POST /cache/attach` | `{"wait_ms"}`: requests go to the cache again |
//!
//! A change waits until it is done, for 20 seconds at most: then the answer has `done`: false with the reason. It goes
//! on all the same.

use std::future::Future;

use blocker::Result;
use cached_core::object::{ObjectCache, WeakObjectCache};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cache_routes::{ended, wait_of};
use crate::routes::{Access, Request, Response, Routes};

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Switch {
    wait_ms: Option<u64>,
}

/// Adds the routes. They keep no cache open.
pub(crate) fn add_routes(routes: &Routes, cache: &ObjectCache) {
    let shown = cache.downgrade();
    routes.get("/cache.json", Access::Read, move |_| {
        let response = shown.upgrade().map_or_else(ended, |cache| Response::json(&status(&cache)));
        async move { response }
    });
    let detached = cache.downgrade();
    routes.post("/cache/detach", move |request| detach(detached.clone(), request));
    let attached = cache.downgrade();
    routes.post("/cache/attach", move |request| attach(attached.clone(), request));
}

fn status(cache: &ObjectCache) -> Value {
    let (status, counters) = (cache.attach_status(), cache.counters());
    json!({
        "state": status.state.name(),
        "why": status.why,
        "cached_bytes": counters.memory_bytes.saturating_sub(counters.free_bytes),
        "dirty_bytes": counters.dirty_bytes,
    })
}

async fn detach(cache: WeakObjectCache, request: Request) -> Response {
    let Some(cache) = cache.upgrade() else { return ended() };
    tracing::info!(peer = %request.peer(), "the admin listener detaches the object cache");
    switch(&cache, &request, cache.detach_cache(None)).await
}

async fn attach(cache: WeakObjectCache, request: Request) -> Response {
    let Some(cache) = cache.upgrade() else { return ended() };
    tracing::info!(peer = %request.peer(), "the admin listener attaches the object cache");
    switch(&cache, &request, cache.attach_cache(None)).await
}

async fn switch(
    cache: &ObjectCache,
    request: &Request,
    switched: impl Future<Output = Result<()>>,
) -> Response {
    let body = match request.body() {
        [] => Ok(Switch::default()),
        body => serde_json::from_slice(body),
    };
    let wait = match body {
        Ok(Switch { wait_ms }) => wait_of(wait_ms),
        Err(error) => return Response::failure(400, format_args!("give {{\"wait_ms\": 5000}}: {error}")),
    };
    let (is_done, why) = match tokio::time::timeout(wait, switched).await {
        Ok(Ok(())) => (true, None),
        Ok(Err(error)) => (false, Some(error.to_string())),
        Err(_) => (false, None),
    };
    let mut answer = status(cache);
    answer["done"] = json!(is_done);
    if let Some(why) = why {
        answer["why"] = json!(why);
    } else if !is_done && answer["why"].is_null() {
        answer["why"] = json!("what is dirty is not stored yet, or changes are under way");
    }
    Response::json(&answer)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use blocker::executor::block_on;
    use blocker::{Blocker, Memory, Namespace, WriteMode, WriteRequest};
    use hyper::Method;

    use super::*;
    use crate::cache_routes::tests::ask;

    #[test]
    fn the_cache_is_detached_and_attached() {
        let cache = ObjectCache::builder(Arc::new(Memory::default())).memory_bytes(8 << 20);
        let name = Namespace::new("vm").expect("a name");
        let cache = cache.namespace_write_mode(name, WriteMode::Back).start().expect("a cache");
        let routes = Routes::new();
        add_routes(&routes, &cache);
        let write = WriteRequest::new("vm/o".parse().expect("a name"), 0, vec![1; 4096]);
        block_on(cache.write(write)).expect("it is written");
        let shown = ask(&routes, &Method::GET, "/cache.json", "", "").1;
        assert_eq!(shown["state"], "attached", "{shown}");
        assert!(shown["dirty_bytes"].as_u64() >= Some(4096), "{shown}");
        for body in ["", "{\"wait_ms\": 20000}"] {
            let (status, done) = ask(&routes, &Method::POST, "/cache/detach", "", body);
            let wanted =
                json!({"done": true, "state": "detached", "why": null, "cached_bytes": 0, "dirty_bytes": 0});
            assert_eq!((status, done), (200, wanted));
        }
        let (status, done) = ask(&routes, &Method::POST, "/cache/attach", "", "{}");
        assert_eq!((status, &done["done"], &done["state"]), (200, &json!(true), &json!("attached")));
        assert_eq!(ask(&routes, &Method::POST, "/cache/attach", "", "{\"wait\": 1}").0, 400);
        drop(cache);
        assert_eq!(ask(&routes, &Method::POST, "/cache/detach", "", "").0, 503);
    }
}
