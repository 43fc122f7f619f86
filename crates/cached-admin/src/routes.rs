//! Requests, responses, and the table of routes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use parking_lot::RwLock;

/// Which requests may use a route. A valid token opens every route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Any client: for probes, which tell nothing but whether the program is well.
    Public,
    /// Any client of a listener on loopback; beyond it only with a token.
    Read,
    /// Only with a token, on loopback too: for what changes something, and for what shows clients' data.
    Token,
}

/// A request that may use its route.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) peer: SocketAddr,
    pub(crate) has_token: bool,
}

impl Request {
    /// Returns the path, for example `/metrics`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the decoded value of the query's first parameter called `name`; empty if it has no value.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<String> {
        self.query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key) == name).then(|| decode(value).into_owned())
        })
    }

    /// Returns a header's value, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the body: at most [`body_bytes_max`](crate::AdminConfig::body_bytes_max) bytes, empty for a GET.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Returns the client's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns whether the request has a valid token. A route with [`Access::Read`] may show more to one that has.
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.has_token
    }
}

/// Decodes `%XX` and `+`; what is no such code stays as it is, and what is not UTF-8 becomes U+FFFD.
fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let code = bytes.get(at + 1..at + 3).filter(|code| code.iter().all(u8::is_ascii_hexdigit));
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match (byte, code.and_then(|code| u8::from_str_radix(code, 16).ok())) {
            (b'%', Some(code)) => {
                decoded.push(code);
                at += 2;
            }
            (b'+', _) => decoded.push(b' '),
            _ => decoded.push(*byte),
        }
        at += 1;
    }
    Cow::Owned(String::from_utf8_lossy(&decoded).into_owned())
}

/// What a handler answers.
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

    /// Returns a response of plain text with another status than 200: one line that states the reason.
    pub fn failure(status: u16, line: impl fmt::Display) -> Response {
        Response::new(status, "text/plain; charset=utf-8", format!("{line}\n"))
    }

    /// Returns a response with a value as JSON.
    pub fn json(value: &impl serde::Serialize) -> Response {
        match serde_json::to_vec(value) {
            Ok(body) => Response::new(200, "application/json", body),
            Err(error) => Response::failure(500, format_args!("the answer cannot be written: {error}")),
        }
    }

    /// Returns a response of HTML.
    pub fn html(body: impl Into<Bytes>) -> Response {
        Response::new(200, "text/html; charset=utf-8", body)
    }

    /// Returns the response with a header, which replaces the listener's own of that name.
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

/// What answers the requests of a route.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) access: Access,
    pub(crate) handler: Arc<dyn Fn(Request) -> Answer + Send + Sync>,
}

/// What the table has for a request.
pub(crate) enum Found {
    Route(Route),
    /// The path has routes for these methods only.
    OtherMethods(Vec<Method>),
    Nothing,
}

/// The routes of a program. Cheap to clone; all clones are the same table. Routes can be added while the listener serves.
///
/// Handlers run on the admin listener's thread, one after the other where they do not await: one that needs more than some
/// milliseconds belongs on a thread of its own. A response that takes longer than
/// [`request_timeout`](crate::AdminConfig::request_timeout) is dropped.
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

    /// Adds a route for GET and HEAD, which replaces the one that the path had.
    pub fn get<F>(&self, path: &str, access: Access, handler: impl Fn(Request) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Response> + Send + 'static,
    {
        self.add(&Method::GET, path, access, handler);
    }

    /// Adds a route for POST, which replaces the one that the path had. A POST always needs a token.
    pub fn post<F>(&self, path: &str, handler: impl Fn(Request) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Response> + Send + 'static,
    {
        self.add(&Method::POST, path, Access::Token, handler);
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
        let handler = Arc::new(move |request: Request| -> Answer { Box::pin(handler(request)) });
        let key = (path.to_owned(), method.as_str().to_owned());
        self.table.write().insert(key, Route { access, handler });
    }

    /// Returns the paths of GET routes, sorted.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        let table = self.table.read();
        let paths = table.keys().filter(|(_, method)| method == Method::GET.as_str());
        paths.map(|(path, _)| path.clone()).collect()
    }

    pub(crate) fn find(&self, method: &Method, path: &str) -> Found {
        let wanted = if *method == Method::HEAD { &Method::GET } else { method };
        let table = self.table.read();
        if let Some(route) = table.get(&(path.to_owned(), wanted.as_str().to_owned())) {
            return Found::Route(route.clone());
        }
        let others: Vec<Method> = [Method::GET, Method::POST]
            .into_iter()
            .filter(|method| table.contains_key(&(path.to_owned(), method.as_str().to_owned())))
            .collect();
        if others.is_empty() { Found::Nothing } else { Found::OtherMethods(others) }
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").field("paths", &self.paths()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
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
