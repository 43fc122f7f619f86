//! Requests, responses, and the table of routes.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cached_http::values::is_local_host;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, ToStrError};
use hyper::{Method, StatusCode, Uri};
use parking_lot::RwLock;
use percent_encoding::percent_decode_str;

use crate::table::Tokens;

/// The maximum time for which a request waits for its work: shorter than the time after which a
/// response is dropped.
pub const WAIT_MAX: Duration = Duration::from_secs(20);

/// The requests that may use a route. A valid token opens every route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Any client. This is for probes, which reveal only whether the program is well.
    Public,
    /// Any client of a listener on loopback; otherwise only a client with a token.
    Read,
    /// Only a client with a token, even on loopback. This is for routes that change something or
    /// show data of clients.
    Token,
}

/// A request that is allowed to use its route.
#[derive(Clone, Debug)]
pub struct Request {
    /// The path, for example `/metrics`.
    pub path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    /// The body: at most [`body_bytes_max`](crate::AdminConfig::body_bytes_max) bytes, empty for a
    /// GET.
    pub body: Bytes,
    /// The client's address.
    pub peer: SocketAddr,
    /// Whether the request has a valid token. A route with [`Access::Read`] may show more to such a
    /// request.
    pub has_token: bool,
}

impl Request {
    /// Returns the decoded value of the first query parameter called `name`; empty if the parameter
    /// has no value.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<String> {
        self.query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key) == name).then(|| decode(value))
        })
    }

    /// Returns the value of a header, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Decodes `%XX` and `+`. Invalid escapes stay unchanged, and invalid UTF-8 becomes U+FFFD.
fn decode(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

/// The maximum number of letters shown of a key without a token; for a short key, at most half of
/// its letters.
pub(crate) const SHORTENED_LETTERS: usize = 8;

/// Returns the first letters of a key or of an object's name, which are shown without a token.
pub(crate) fn shortened(name: &str) -> String {
    let letters = SHORTENED_LETTERS.min(name.chars().count() / 2);
    name.chars().take(letters).chain(['…']).collect()
}

/// The response of a handler.
#[derive(Clone, Debug)]
pub struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Response {
    /// Returns a response with this body; `content_type` is its media type.
    pub fn new(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Response {
        let mut headers = HeaderMap::new();
        headers.insert(hyper::header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Response { status, headers, body: body.into() }
    }

    /// Returns a response of plain text.
    pub fn text(body: impl Into<Bytes>) -> Response {
        Response::new(200, "text/plain; charset=utf-8", body)
    }

    /// Returns a plain-text response with a status other than 200: one line that states the reason.
    pub fn failure(status: u16, line: impl fmt::Display) -> Response {
        Response::new(status, "text/plain; charset=utf-8", format!("{line}\n"))
    }

    /// Returns a response with a value as JSON.
    pub fn json(value: &impl serde::Serialize) -> Response {
        match serde_json::to_vec(value) {
            Ok(body) => Response::new(200, "application/json", body),
            Err(error) => Response::failure(500, format_args!("the response cannot be serialized: {error}")),
        }
    }

    /// Returns the response with a header, which replaces the listener's own header of the same
    /// name.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &'static str) -> Response {
        self.headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        self
    }

    /// Returns the response with another status.
    #[must_use]
    pub fn status(mut self, status: u16) -> Response {
        self.status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self
    }
}

type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;

type Handler = Arc<dyn Fn(Request) -> Answer + Send + Sync>;

/// Returns a handler whose work may block: it runs on one of the runtime's threads for such work.
pub fn blocking(
    work: impl Fn(&Request) -> Response + Send + Sync + 'static,
) -> impl Fn(Request) -> Pin<Box<dyn Future<Output = Response> + Send>> + Send + Sync + 'static {
    let work: Arc<dyn Fn(&Request) -> Response + Send + Sync> = Arc::new(work);
    move |request| run_blocking(Arc::clone(&work), request)
}

fn run_blocking(work: Arc<dyn Fn(&Request) -> Response + Send + Sync>, request: Request) -> Answer {
    Box::pin(async move {
        let done = tokio::task::spawn_blocking(move || work(&request)).await;
        done.unwrap_or_else(|error| Response::failure(500, format_args!("the request has failed: {error}")))
    })
}

/// The handler of a route's requests.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) access: Access,
    pub(crate) handler: Handler,
}

/// The result of looking up a request in the table.
pub(crate) enum Found {
    Route(Route),
    /// The path has routes only for these methods.
    OtherMethods(Vec<Method>),
    Nothing,
}

/// The routes of a program. It is cheap to clone; all clones are the same table. Routes can be
/// added while the listener serves.
///
/// Handlers run on the admin listener's thread, one after the other unless they await: a handler
/// that needs more than a few milliseconds should be [`blocking`]. A response that takes
/// longer than [`request_timeout`](crate::AdminConfig::request_timeout) is dropped.
#[derive(Clone, Default)]
pub struct Routes {
    table: Arc<RwLock<BTreeMap<(String, String), Route>>>,
}

impl Routes {
    /// Returns an empty table.
    #[must_use]
    pub fn new() -> Routes {
        Routes::default()
    }

    /// Adds a route for GET and HEAD, replacing an existing one for the path.
    pub fn get<F>(&self, path: &str, access: Access, handler: impl Fn(Request) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Response> + Send + 'static,
    {
        self.add(&Method::GET, path, access, handler);
    }

    /// Adds a route for POST, replacing an existing one for the path. A POST always requires a
    /// token.
    pub fn post<F>(&self, path: &str, handler: impl Fn(Request) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Response> + Send + 'static,
    {
        self.add(&Method::POST, path, Access::Token, handler);
    }

    /// Like [`get`](Self::get), for a handler that does not wait.
    pub fn get_now(
        &self,
        path: &str,
        access: Access,
        handler: impl Fn(Request) -> Response + Send + Sync + 'static,
    ) {
        self.get(path, access, move |request| std::future::ready(handler(request)));
    }

    /// Like [`post`](Self::post), for a handler that does not wait.
    pub fn post_now(&self, path: &str, handler: impl Fn(Request) -> Response + Send + Sync + 'static) {
        self.post(path, move |request| std::future::ready(handler(request)));
    }

    fn add<F>(
        &self,
        method: &Method,
        path: &str,
        access: Access,
        handler: impl Fn(Request) -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = Response> + Send + 'static,
    {
        let handler = Arc::new(move |request| -> Answer { Box::pin(handler(request)) });
        self.insert(method, path, Route { access, handler });
    }

    /// The function is not generic, so that it is compiled only in this crate.
    fn insert(&self, method: &Method, path: &str, route: Route) {
        self.table.write().insert((path.to_owned(), method.to_string()), route);
    }

    /// Returns the paths of GET routes, sorted.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        let table = self.table.read();
        let paths = table.keys().filter(|(_, method)| method == Method::GET.as_str());
        paths.map(|(path, _)| path.clone()).collect()
    }

    pub(crate) fn find(&self, method: &Method, path: &str) -> Found {
        let table = self.table.read();
        let route = |method: &Method| table.get(&(path.to_owned(), method.to_string()));
        if let Some(route) = route(if *method == Method::HEAD { &Method::GET } else { method }) {
            return Found::Route(route.clone());
        }
        let mut others = vec![Method::GET, Method::POST];
        others.retain(|method| route(method).is_some());
        if others.is_empty() { Found::Nothing } else { Found::OtherMethods(others) }
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").field("paths", &self.paths()).finish_non_exhaustive()
    }
}

/// The criteria for access besides the request: the location of the listener, and its tokens.
#[derive(Clone, Copy)]
pub(crate) struct Gate<'a> {
    /// Whether only this host can reach the listener.
    pub(crate) is_loopback: bool,
    pub(crate) tokens: Option<&'a Tokens>,
}

impl Gate<'_> {
    /// Returns whether the request has a valid token, if it may use a route with this access.
    ///
    /// # Errors
    /// Returns the response to a request that is not permitted.
    pub(crate) fn admit(
        &self,
        access: Access,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<bool, Box<Response>> {
        let forbidden = |line: &str| Err(Box::new(Response::failure(StatusCode::FORBIDDEN.as_u16(), line)));
        // A page of another site should not know a token, and cannot read responses. Its requests
        // are refused even with a token, and also if no token is required, so that no such page can
        // make this program do work. Only links may lead here from other sites.
        let is_link = || access == Access::Read && is_navigation(headers);
        if access != Access::Public && is_of_other_site(uri, headers) && !is_link() {
            return forbidden("a browser sent this request for a page of another site");
        }
        let given = headers.get(AUTHORIZATION);
        let token = given.and_then(|value| bearer(value.as_bytes()));
        let has_token = matches!((token, self.tokens), (Some(token), Some(tokens)) if tokens.accept(token));
        if has_token {
            return Ok(true);
        }
        let refused = |line: &str| {
            let response = Response::failure(StatusCode::UNAUTHORIZED.as_u16(), line);
            Err(Box::new(response.header("www-authenticate", "Bearer")))
        };
        match access {
            Access::Public => Ok(false),
            // A wrong token is refused even where no token is required.
            _ if given.is_some() => refused("the token is not valid"),
            Access::Read if self.is_loopback && is_of_this_host(uri, headers) => Ok(false),
            Access::Read if self.is_loopback => {
                forbidden("without a token, the Host must be an IP address or localhost")
            }
            Access::Token if self.tokens.is_none() => {
                forbidden("this route needs a token, and none is configured: set token_file in [admin]")
            }
            Access::Read | Access::Token => refused("a token is needed: Authorization: Bearer TOKEN"),
        }
    }
}

/// Returns the token in an `Authorization` header.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Returns whether a page of another site made a browser send this request. Only browsers send
/// these headers, and no page can change them.
fn is_of_other_site(uri: &Uri, headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site != "same-origin" && site != "none";
    }
    // Without TLS and beyond loopback, a browser sends only this header, and only with a POST.
    headers.get(ORIGIN).is_some_and(|origin| {
        let own = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        let host = authority(uri, headers).ok().flatten();
        !matches!((own, host), (Some((_, own)), Some(host)) if own.eq_ignore_ascii_case(host))
    })
}

/// Returns whether the user of a browser has followed a link, or has sent a form.
fn is_navigation(headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|own| own == value);
    is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document")
}

/// Returns the host and the port that the request names, if it names a host.
///
/// # Errors
/// Fails if the name is not text.
fn authority<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Result<Option<&'a str>, ToStrError> {
    match uri.authority() {
        Some(authority) => Ok(Some(authority.as_str())),
        None => headers.get(HOST).map(HeaderValue::to_str).transpose(),
    }
}

/// Returns whether the request names this host by an address or as `localhost`, or does not name
/// any host.
///
/// See [`is_local_host`] for the reason.
fn is_of_this_host(uri: &Uri, headers: &HeaderMap) -> bool {
    authority(uri, headers)
        .is_ok_and(|named| named.is_none_or(|named| named.is_empty() || is_local_host(named)))
}

/// The path prefixes of parts, each with the table that configures the part; the table is empty for
/// parts that every program has while it serves.
const PARTS: [(&str, &str); 12] = [
    ("/cache", "[objects]"),
    ("/config.json", ""),
    ("/drain", ""),
    ("/flush-prefix", ""),
    ("/hot.json", ""),
    ("/log.json", ""),
    ("/mrc.json", ""),
    ("/namespaces", "[objects]"),
    ("/reload", ""),
    ("/s3/", "[s3]"),
    ("/slow.json", ""),
    ("/volumes", "[volumes]"),
];

/// Returns the response for a path without a route. `starting` is the step for which the startup
/// waits, until the startup is complete.
pub(crate) fn absent(path: &str, starting: Option<String>) -> Response {
    let part = PARTS.iter().find(|(begin, _)| path.starts_with(begin));
    match (part, starting) {
        (Some(_), Some(why)) => Response::failure(503, format_args!("the start is not complete: {why}")),
        (Some((_, table)), None) if !table.is_empty() => {
            Response::failure(404, format_args!("the configuration of this program has no {table}"))
        }
        _ => Response::failure(404, "there is nothing here; try /, /metrics, /readyz or /status.json"),
    }
}

#[cfg(test)]
mod routes_tests {
    use super::*;

    fn request(query: &str) -> Request {
        Request {
            path: "/x".into(),
            query: query.into(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            peer: ([127, 0, 0, 1], 1).into(),
            has_token: false,
        }
    }

    #[test]
    fn a_query_is_decoded() {
        let request = request("a=1&b=x%20y+z&c&d=%&e=%zz&f=%ff&a=2&%67=%2F");
        let value = |name: &str| request.query(name);
        assert_eq!(value("a").as_deref(), Some("1"));
        assert_eq!(value("b").as_deref(), Some("x y z"));
        assert_eq!(value("c").as_deref(), Some(""));
        assert_eq!(value("d").as_deref(), Some("%"));
        assert_eq!(value("e").as_deref(), Some("%zz"));
        assert_eq!(value("f").as_deref(), Some("\u{fffd}"));
        assert_eq!(value("g").as_deref(), Some("/"));
        assert_eq!(value("h"), None);
    }

    #[test]
    fn a_path_is_found_by_method_and_a_post_needs_a_token() {
        let routes = Routes::new();
        routes.get("/a", Access::Public, |_| async { Response::text("") });
        routes.post("/b", |_| async { Response::text("") });
        let access = |method: &Method, path: &str| match routes.find(method, path) {
            Found::Route(route) => Some(route.access),
            _ => None,
        };
        assert_eq!(access(&Method::GET, "/a"), Some(Access::Public));
        assert_eq!(access(&Method::HEAD, "/a"), Some(Access::Public));
        assert_eq!(access(&Method::POST, "/b"), Some(Access::Token));
        assert!(
            matches!(routes.find(&Method::GET, "/b"), Found::OtherMethods(methods) if methods == [Method::POST])
        );
        assert!(matches!(routes.find(&Method::GET, "/c"), Found::Nothing));
        assert_eq!(routes.paths(), ["/a"]);
    }
}

#[cfg(test)]
mod access_tests {
    use super::*;
    use hyper::header::HeaderValue;

    const TOKEN: &str = "0123456789abcdef";

    /// Returns the status or, on success, 200 and whether there was a valid token.
    fn status(gate: Gate<'_>, access: Access, headers: &[(&'static str, &str)]) -> (u16, bool) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_str(value).unwrap());
        }
        match gate.admit(access, &Uri::from_static("/x"), &map) {
            Ok(has_token) => (200, has_token),
            Err(response) => (response.status.as_u16(), false),
        }
    }

    #[test]
    fn access_depends_on_address_token_and_host() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("t"), TOKEN).unwrap();
        let tokens = Tokens::from_file(dir.path().join("t")).unwrap();
        let open = Gate { is_loopback: true, tokens: None };
        let inside = Gate { is_loopback: true, tokens: Some(&tokens) };
        let outside = Gate { is_loopback: false, tokens: Some(&tokens) };
        let right = [("authorization", "Bearer 0123456789abcdef")];
        let lower = [("authorization", "bearer  0123456789abcdef ")];
        let wrong = [("authorization", "Bearer 0123456789abcdeF")];
        let basic = [("authorization", "Basic 0123456789abcdef")];
        for gate in [open, inside, outside] {
            assert_eq!(status(gate, Access::Public, &[]), (200, false));
        }
        assert_eq!(status(open, Access::Read, &[]), (200, false));
        assert_eq!(status(inside, Access::Read, &[]), (200, false));
        assert_eq!(status(outside, Access::Read, &[]), (401, false));
        assert_eq!(status(open, Access::Token, &right), (401, false));
        assert_eq!(status(open, Access::Token, &[]), (403, false));
        assert_eq!(status(inside, Access::Token, &[]), (401, false));
        for gate in [inside, outside] {
            for access in [Access::Public, Access::Read, Access::Token] {
                assert_eq!(status(gate, access, &right), (200, true));
                assert_eq!(status(gate, access, &lower), (200, true));
            }
            for access in [Access::Read, Access::Token] {
                assert_eq!(status(gate, access, &wrong), (401, false));
                assert_eq!(status(gate, access, &basic), (401, false));
            }
        }
    }

    #[test]
    fn a_page_of_another_site_can_neither_act_nor_ask() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("t"), TOKEN).unwrap();
        let tokens = Tokens::from_file(dir.path().join("t")).unwrap();
        let gate = Gate { is_loopback: true, tokens: Some(&tokens) };
        let host = ("host", "127.0.0.1:9150");
        let token = ("authorization", "Bearer 0123456789abcdef");
        let of = |access, more: &[(&'static str, &str)]| {
            status(gate, access, &[&[host, token][..], more].concat()).0
        };
        for own in [
            &[][..],
            &[("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:9150")],
            // Behind a proxy, the names differ.
            &[("sec-fetch-site", "same-origin"), ("origin", "https://cached.example")],
            &[("sec-fetch-site", "none")],
            &[("origin", "http://127.0.0.1:9150")],
        ] {
            assert_eq!((of(Access::Token, own), of(Access::Read, own)), (200, 200), "{own:?}");
        }
        for other in [
            &[("sec-fetch-site", "cross-site")][..],
            // A page on another port belongs to the same site.
            &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")],
            &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")],
            &[("origin", "http://127.0.0.1:8080")],
            &[("origin", "http://evil.example")],
            &[("origin", "null")],
        ] {
            assert_eq!((of(Access::Token, other), of(Access::Read, other)), (403, 403), "{other:?}");
            assert_eq!(of(Access::Public, other), 200, "{other:?}");
        }
        let link = [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert_eq!((of(Access::Token, &link), of(Access::Read, &link)), (403, 200));
    }

    #[test]
    fn a_foreign_name_for_this_host_needs_a_token() {
        let gate = Gate { is_loopback: true, tokens: None };
        for host in ["127.0.0.1:9150", "127.0.0.1", "[::1]:9150", "[::1]", "localhost", "LocalHost:9150", ""]
        {
            assert_eq!(status(gate, Access::Read, &[("host", host)]), (200, false), "{host}");
        }
        for host in
            ["evil.example", "evil.example:9150", "localhost.evil.example", "[evil", ":", "127.0.0.1.evil:1"]
        {
            assert_eq!(status(gate, Access::Read, &[("host", host)]).0, 403, "{host}");
        }
    }
}

#[cfg(test)]
mod parts_tests {
    use super::*;

    #[test]
    fn a_route_that_is_missing_says_why() {
        let answer = |path: &str, starting: Option<&str>| {
            let response = absent(path, starting.map(Into::into));
            (response.status.as_u16(), String::from_utf8_lossy(&response.body).into_owned())
        };
        for path in
            ["/volumes", "/volumes/show", "/cache.json", "/namespaces/set", "/reload", "/s3/invalidate"]
        {
            let (status, line) = answer(path, Some("waiting for the store"));
            assert_eq!((status, line.as_str()), (503, "the start is not complete: waiting for the store\n"));
        }
        for (path, words) in [
            ("/volumes/show", "has no [volumes]"),
            ("/cache/attach", "has no [objects]"),
            ("/s3/events", "has no [s3]"),
            ("/reload", "nothing here"),
            ("/nonsense", "nothing here"),
        ] {
            let (status, line) = answer(path, None);
            assert!(status == 404 && line.contains(words), "{path}: {status} {line}");
        }
        assert_eq!(answer("/nonsense", Some("waiting for the store")).0, 404);
    }
}
