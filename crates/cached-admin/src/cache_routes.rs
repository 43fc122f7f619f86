//! The routes of an object cache: detaching it from the request path and reattaching it, and its
//! namespaces.

use std::cmp::Reverse;
use std::time::Duration;

use blocker::{Blocker, Error, FlushRequest, Namespace, NamespaceSettings, Scope, WriteMode};
use cached_core::object::{
    DirtyData, NamespaceCounters, ObjectCache, SettingSource, SettingsInForce, WeakObjectCache,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::routes::{Access, Request, Response, Routes, WAIT_MAX};

/// Returns the response of a route whose cache no longer exists.
pub(crate) fn ended() -> Response {
    Response::failure(503, "the object cache has ended")
}

/// Returns the time for which a request waits that specifies `asked_ms` milliseconds, or no time.
pub(crate) fn wait_of(asked_ms: Option<u64>) -> Duration {
    asked_ms.map_or(WAIT_MAX, |millis| Duration::from_millis(millis).min(WAIT_MAX))
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Switch {
    wait_ms: Option<u64>,
}

/// Adds the routes, which do not keep the cache open.
pub(crate) fn add_attach_routes(routes: &Routes, cache: &ObjectCache) {
    let shown = cache.downgrade();
    routes.get_now("/cache.json", Access::Read, move |_| {
        shown.upgrade().map_or_else(ended, |cache| Response::json(&status(&cache)))
    });
    for (path, verb, is_attached) in
        [("/cache/detach", "detaches", false), ("/cache/attach", "attaches", true)]
    {
        let switched = cache.downgrade();
        routes.post(path, move |request| switch(switched.clone(), request, verb, is_attached));
    }
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

async fn switch(cache: WeakObjectCache, request: Request, verb: &'static str, is_attached: bool) -> Response {
    let Some(cache) = cache.upgrade() else { return ended() };
    let body = match &request.body[..] {
        [] => Ok(Switch::default()),
        body => serde_json::from_slice(body),
    };
    let wait = match body {
        Ok(Switch { wait_ms }) => wait_of(wait_ms),
        Err(error) => return Response::failure(400, format_args!("give {{\"wait_ms\": 5000}}: {error}")),
    };
    tracing::info!(peer = %request.peer, "the admin listener {verb} the object cache");
    // A detachment begins with the call.
    let switched = if is_attached { cache.attach_cache(None) } else { cache.detach_cache(None) };
    let (is_done, why) = match tokio::time::timeout(wait, switched).await {
        Ok(Ok(())) => (true, None),
        Ok(Err(error)) => (false, Some(error.to_string())),
        Err(_) => (false, None),
    };
    let mut answer = status(&cache);
    answer["done"] = json!(is_done);
    if let Some(why) = why {
        answer["why"] = json!(why);
    } else if !is_done && answer["why"].is_null() {
        answer["why"] = json!("dirty data are not stored yet, or changes are in progress");
    }
    Response::json(&answer)
}

/// The maximum number of namespaces that are listed.
const LISTED_MAX: usize = 4097;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    namespace: String,
    write: Option<WriteMode>,
    #[serde(default)]
    settings: NamespaceSettings,
    wait_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    namespace: String,
    #[serde(default)]
    flush: bool,
    #[serde(default)]
    discard_dirty: bool,
    wait_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Flush {
    namespace: String,
    wait_ms: Option<u64>,
}

/// Adds the routes, which do not keep the cache open.
pub(crate) fn add_namespace_routes(routes: &Routes, cache: &ObjectCache) {
    let listed = cache.downgrade();
    routes.get_now("/namespaces.json", Access::Read, move |request| {
        listed.upgrade().map_or_else(ended, |cache| list(&cache, request.query("name")))
    });
    let changed = cache.downgrade();
    routes.post("/namespaces/set", move |request| set(changed.clone(), request));
    let flushed = cache.downgrade();
    routes.post("/namespaces/flush", move |request| flush(flushed.clone(), request));
    let removed = cache.downgrade();
    routes.post("/namespaces/remove", move |request| remove(removed.clone(), request));
}

/// Returns the response for a namespace that is neither configured nor in use. `cachectl` recognizes
/// it by the words "no namespace".
fn no_such_namespace(name: &str) -> Response {
    Response::failure(404, format_args!("no namespace {name:?} is configured or in use"))
}

fn list(cache: &ObjectCache, name: Option<String>) -> Response {
    let mut all = cache.namespaces();
    if let Some(name) = name {
        let found = all.iter().find(|of| of.namespace.as_ref().is_some_and(|own| own.to_string() == name));
        return match found {
            Some(of) => {
                let mut value = value(of);
                if let Some(name) = &of.namespace {
                    add_settings(cache, name, &mut value);
                }
                Response::json(&value)
            }
            None => no_such_namespace(&name),
        };
    }
    all.sort_by_key(|of| Reverse((of.dirty_bytes, of.cached_bytes)));
    let values: Vec<Value> = all.iter().take(LISTED_MAX).map(value).collect();
    Response::json(&json!({ "namespaces": values }))
}

/// Adds the settings of a namespace, by key, and their sources. A setting that the namespace does
/// not have itself is `null`.
fn add_settings(cache: &ObjectCache, name: &Namespace, value: &mut Value) {
    let SettingsInForce { write: (_, write), values, .. } = cache.namespace_settings(name);
    value["sources"]["write"] = json!(write.to_string());
    for (key, (number, source)) in values {
        value["settings"][key.name()] = json!(number);
        if source != SettingSource::Default {
            value["sources"][key.name()] = json!(source.to_string());
        }
    }
}

/// Returns the description of a namespace; the name is `null` for all namespaces together that are
/// not counted individually.
fn value(of: &NamespaceCounters) -> Value {
    json!({
        "namespace": of.namespace.as_ref().map(ToString::to_string),
        "write": of.write_mode.to_string(),
        "changing": of.is_mode_changing,
        "configured": of.is_configured,
        "objects": of.objects,
        "cached_bytes": of.cached_bytes,
        "dirty_bytes": of.dirty_bytes,
        "dirty_bytes_max": of.dirty_bytes_max,
        "dirty_age_ms": u64::try_from(of.dirty_age.as_millis()).unwrap_or(u64::MAX),
        "writes_throttled": of.writes_throttled,
        "read_hits": of.read_hits,
        "read_misses": of.read_misses,
        "writes": of.writes.iter().sum::<u64>(),
    })
}

async fn set(cache: WeakObjectCache, request: Request) -> Response {
    let Some(cache) = cache.upgrade() else { return ended() };
    let form = r#"{"namespace": "NAME", "write": "back"}"#;
    let (body, name) = match body_of(&request, form, |body: &Set| &body.namespace) {
        Ok(body) => body,
        Err(refused) => return *refused,
    };
    let Set { namespace, write, mut settings, wait_ms } = body;
    settings.write = write.or(settings.write);
    if settings.is_empty() {
        return Response::failure(400, "expected a write mode, settings, or both");
    }
    let values = serde_json::to_string(&settings).unwrap_or_default();
    tracing::info!(peer = %request.peer, %namespace, settings = values, "the admin listener changes a namespace");
    // Remaining dirty data are stored in the background, without a waiting caller.
    match tokio::time::timeout(wait_of(wait_ms), cache.change_namespace(&name, &settings, None)).await {
        Ok(Ok(())) => Response::json(&json!({ "done": true })),
        Ok(Err(error @ (Error::Invalid(_) | Error::OutOfSpace(_)))) => Response::failure(409, error),
        Ok(Err(error)) => Response::json(&json!({ "done": false, "why": error.to_string() })),
        Err(_) => {
            let why = "changes made in the previous mode are in progress, or not stored yet";
            Response::json(&json!({ "done": false, "why": why }))
        }
    }
}

/// The form of a body that names a namespace.
const NAME_FORM: &str = r#"{"namespace": "NAME"}"#;

/// Returns the body of a request, and the namespace that the body names. `form` is an example of the
/// body; `namespace` returns the name.
///
/// # Errors
/// Returns the response, if the body or the name is invalid.
fn body_of<T: DeserializeOwned>(
    request: &Request,
    form: &str,
    namespace: fn(&T) -> &str,
) -> Result<(T, Namespace), Box<Response>> {
    let refused = |line: String| Box::new(Response::failure(400, line));
    let body = serde_json::from_slice(&request.body);
    let body: T = body.map_err(|error| refused(format!("give {form}: {error}")))?;
    let name = name_of(namespace(&body)).map_err(|error| refused(error.to_string()))?;
    Ok((body, name))
}

/// Returns the namespace with this name.
///
/// # Errors
/// Fails if the name is invalid, or reserved for servers.
fn name_of(text: &str) -> blocker::Result<Namespace> {
    let name = Namespace::copy_from(text.as_bytes())?;
    name.check_unreserved().map(|()| name)
}

/// Stores everything that is acknowledged in a namespace.
async fn flush(cache: WeakObjectCache, request: Request) -> Response {
    let Some(cache) = cache.upgrade() else { return ended() };
    let (body, name) = match body_of(&request, NAME_FORM, |body: &Flush| &body.namespace) {
        Ok(body) => body,
        Err(refused) => return *refused,
    };
    let Flush { namespace, wait_ms } = body;
    // A record without a name covers several namespaces, which may include this one.
    if cache.namespaces().iter().all(|of| of.namespace.as_ref().is_some_and(|own| *own != name)) {
        return no_such_namespace(&namespace);
    }
    tracing::info!(peer = %request.peer, %namespace, "the admin listener flushes a namespace");
    let flushed = cache.flush(FlushRequest::new(Scope::Namespace(name)));
    match tokio::time::timeout(wait_of(wait_ms), flushed).await {
        Ok(Ok(_)) => Response::json(&json!({ "done": true })),
        // To wait does not help: `lost` lists the objects to be repaired.
        Ok(Err(error @ Error::WritesLost(_))) => Response::failure(409, error),
        Ok(Err(error)) => Response::json(&json!({ "done": false, "why": error.to_string() })),
        Err(_) => Response::json(&json!({ "done": false, "why": "its dirty data are not stored yet" })),
    }
}

async fn remove(cache: WeakObjectCache, request: Request) -> Response {
    let Some(cache) = cache.upgrade() else { return ended() };
    let (body, name) = match body_of(&request, NAME_FORM, |body: &Remove| &body.namespace) {
        Ok(body) => body,
        Err(refused) => return *refused,
    };
    let Remove { namespace, flush, discard_dirty, wait_ms } = body;
    let dirty_data = match (flush, discard_dirty) {
        (false, false) => DirtyData::Refuse,
        (true, false) => DirtyData::Store,
        (false, true) => DirtyData::Discard,
        (true, true) => {
            let why = "flush and discard_dirty exclude each other: dirty data are either stored or discarded";
            return Response::failure(400, why);
        }
    };
    tracing::info!(peer = %request.peer, %namespace, ?dirty_data, "the admin listener removes a namespace");
    match tokio::time::timeout(wait_of(wait_ms), cache.remove_namespace(name, dirty_data, None)).await {
        Ok(Ok(removed)) => Response::json(&json!({
            "done": true,
            "dropped_bytes": removed.dropped_bytes,
            "discarded_bytes": removed.discarded_bytes,
        })),
        Ok(Err(Error::Missing)) => no_such_namespace(&namespace),
        Ok(Err(error @ Error::Denied(_))) => Response::failure(409, error),
        Ok(Err(error)) => Response::json(&json!({ "done": false, "why": error.to_string() })),
        Err(_) => Response::json(&json!({ "done": false, "why": "its dirty data are not stored yet" })),
    }
}

#[cfg(test)]
pub(crate) mod cache_routes_tests {
    use hyper::Method;
    use hyper::header::HeaderMap;
    use serde_json::Value;

    use crate::routes::{Found, Request, Routes};

    /// Returns the status and the body of a route's response.
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

#[cfg(test)]
mod attaching_tests {
    use std::sync::Arc;

    use blocker::executor::block_on;
    use blocker::{BlockerExt, Memory, Namespace, WriteMode, WriteRequest};
    use hyper::Method;

    use super::cache_routes_tests::ask;
    use super::*;

    #[test]
    fn the_cache_is_detached_and_attached() {
        let cache = ObjectCache::builder(Arc::new(Memory::default())).memory_bytes(8 << 20);
        let name = Namespace::new("vm").expect("a name");
        let cache = cache.namespace_write_mode(name, WriteMode::Back).start().expect("a cache");
        let routes = Routes::new();
        add_attach_routes(&routes, &cache);
        let write = WriteRequest::new("vm/o".parse().expect("a name"), 0, vec![1; 4096]);
        block_on(cache.write(write)).expect("it is written");
        let shown = ask(&routes, &Method::GET, "/cache.json", "", "").1;
        assert_eq!(shown["state"], "attached", "{shown}");
        assert!(shown["dirty_bytes"].as_u64() >= Some(4096), "{shown}");
        for body in ["{\"wait\": 1}", "{\"wait_ms\": -1}", "detach"] {
            assert_eq!(ask(&routes, &Method::POST, "/cache/detach", "", body).0, 400, "{body}");
            assert_eq!(ask(&routes, &Method::GET, "/cache.json", "", "").1["state"], "attached", "{body}");
        }
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

#[cfg(test)]
mod namespaces_tests {
    use std::sync::Arc;

    use blocker::executor::block_on;
    use blocker::{Blocker, BlockerExt, ClaimRequest, Epoch, Memory, ReadRequest, WriteRequest, WriterId};
    use hyper::Method;

    use super::cache_routes_tests::ask;
    use super::*;

    #[test]
    fn namespaces_are_listed_set_and_removed() {
        let cache = ObjectCache::builder(Arc::new(Memory::default())).memory_bytes(8 << 20);
        let cache = cache.start().expect("a cache");
        let routes = Routes::new();
        add_namespace_routes(&routes, &cache);
        let post = |path: &str, body: Value| ask(&routes, &Method::POST, path, "", &body.to_string());
        let show = |query: &str| ask(&routes, &Method::GET, "/namespaces.json", query, "null");
        assert_eq!(
            post("/namespaces/set", json!({"namespace": "vm", "write": "back"})),
            (200, json!({"done": true}))
        );
        let write = WriteRequest::new("vm/o".parse().expect("a name"), 0, vec![1; 4096]);
        block_on(cache.write(write)).expect("it is written");
        let (status, vm) = show("name=vm");
        assert_eq!((status, &vm["write"], &vm["changing"]), (200, &json!("back"), &json!(false)));
        assert!(vm["dirty_bytes"].as_u64() >= Some(4096), "{vm}");
        let settings = json!({"namespace": "vm", "settings": {"quota_bytes_max": 8192, "store_weight": 3}});
        assert_eq!(post("/namespaces/set", settings), (200, json!({"done": true})));
        let vm = show("name=vm").1;
        assert_eq!(
            (&vm["settings"]["quota_bytes_max"], &vm["write"]),
            (&json!(8192), &json!("back")),
            "{vm}"
        );
        let sources = json!({"write": "command", "quota_bytes_max": "command", "store_weight": "command"});
        assert_eq!(vm["sources"], sources);
        let write = WriteRequest::new("vm/p".parse().expect("a name"), 0, vec![1; 16384]);
        assert!(matches!(block_on(cache.write(write)), Err(Error::OutOfSpace(_))));
        let wrong = json!({"namespace": "vm", "settings": {"store_weight": 0}});
        assert_eq!(post("/namespaces/set", wrong).0, 409);
        let none = json!({"namespace": "vm", "settings": {"quota_bytes_max": null}});
        assert_eq!(post("/namespaces/set", none).0, 200);
        assert_eq!(show("name=vm").1["settings"]["quota_bytes_max"], Value::Null);
        assert_eq!(post("/namespaces/set", json!({"namespace": "vm", "settings": {"colour": 1}})).0, 400);
        assert_eq!(show("name=none").0, 404);
        let listed = show("").1;
        assert_eq!(
            (listed["namespaces"].as_array().map(Vec::len), &listed["namespaces"][0]["namespace"]),
            (Some(1), &json!("vm"))
        );
        assert_eq!(post("/namespaces/flush", json!({"namespace": "none"})).0, 404);
        assert_eq!(post("/namespaces/flush", json!({"namespace": "vm"})), (200, json!({"done": true})));
        assert_eq!(show("name=vm").1["dirty_bytes"], 0);
        let write = WriteRequest::new("vm/o".parse().expect("a name"), 0, vec![1; 4096]);
        block_on(cache.write(write)).expect("it is written");
        let (status, why) = post("/namespaces/remove", json!({"namespace": "vm"}));
        assert_eq!(status, 409);
        assert!(why.to_string().contains("bytes that are not stored"), "{why}");
        let (status, done) = post("/namespaces/remove", json!({"namespace": "vm", "flush": true}));
        assert_eq!((status, done), (200, json!({"done": true, "dropped_bytes": 4096, "discarded_bytes": 0})));
        assert_eq!(show("name=vm").1["write"], "through");
        assert_eq!(post("/namespaces/remove", json!({"namespace": "none"})).0, 404);
        let both = json!({"namespace": "vm", "flush": true, "discard_dirty": true});
        assert_eq!(post("/namespaces/remove", both).0, 400);
        post("/namespaces/set", json!({"namespace": "vm", "write": "back"}));
        let write = WriteRequest::new("vm/o".parse().expect("a name"), 0, vec![2; 4096]);
        block_on(cache.write(write)).expect("it is written");
        let (status, done) = post("/namespaces/remove", json!({"namespace": "vm", "discard_dirty": true}));
        assert_eq!((status, &done["done"], &done["discarded_bytes"]), (200, &json!(true), &json!(4096)));
        let kept =
            block_on(cache.read(ReadRequest::new("vm/o".parse().expect("a name"), 0, 1))).expect("there");
        assert_eq!(kept.data.to_vec(), [1], "as the store has it");
        for wrong in
            [json!({"namespace": "vm"}), json!({"namespace": "vm", "write": "sideways"}), json!({"x": 1})]
        {
            assert_eq!(post("/namespaces/set", wrong).0, 400);
        }
        for (path, body) in [
            ("/namespaces/set", json!({"namespace": ".synapse", "write": "back"})),
            ("/namespaces/remove", json!({"namespace": ".synapse", "discard_dirty": true})),
        ] {
            let (status, why) = post(path, body);
            assert!(status == 400 && why.to_string().contains("reserved"), "{path}: {status} {why}");
        }
        drop(cache);
        assert_eq!(show("").0, 503);
    }

    /// The loss is permanent, so a repeated request would not help.
    #[test]
    fn a_flush_of_data_that_can_never_be_stored_fails() {
        let store = Arc::new(Memory::default());
        let cache = ObjectCache::builder(Arc::clone(&store) as _).memory_bytes(8 << 20);
        let name = Namespace::new("vm").expect("a name");
        let cache = cache.namespace_write_mode(name.clone(), WriteMode::Back).start().expect("a cache");
        let routes = Routes::new();
        add_namespace_routes(&routes, &cache);
        let write = WriteRequest::new("vm/o".parse().expect("a name"), 0, vec![1; 4096]);
        block_on(cache.write(write)).expect("it is written");
        let claim = ClaimRequest::new(Scope::Namespace(name), Epoch(5), WriterId(99));
        block_on(store.claim(claim)).expect("another writer takes over");
        let (status, why) = ask(&routes, &Method::POST, "/namespaces/flush", "", r#"{"namespace": "vm"}"#);
        assert_eq!((status, why.to_string().contains("lost")), (409, true), "{why}");
    }
}
