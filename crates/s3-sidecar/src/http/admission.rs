//! What is refused before anything else: requests of which two readers could have different opinions.
//!
//! How long a body is, `framing` judges.

use hyper::header::{HOST, HeaderName};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode};

use crate::http::framing::{self, nominated};
use crate::http::headers::is_end_to_end;
use crate::http::read::SignedHeaders;

/// Returns the status and the reason with which a request is refused; `None` if it is not.
pub(crate) fn refusal(head: &Parts) -> Option<(StatusCode, &'static str)> {
    framing::refusal(head).or_else(|| wrong(head).map(|why| (StatusCode::BAD_REQUEST, why)))
}

fn wrong(head: &Parts) -> Option<&'static str> {
    if head.method == Method::CONNECT || head.method == Method::TRACE {
        return Some("CONNECT and TRACE are not forwarded");
    }
    if head.uri.scheme().is_some() || head.uri.authority().is_some() {
        return Some(
            "the request's target is a whole URL: this is no forward proxy; use it as the endpoint's URL",
        );
    }
    if !head.uri.path().starts_with('/') {
        return Some("the request's target does not begin with a slash");
    }
    let headers = &head.headers;
    if let Some(why) = host(headers).err() {
        return Some(why);
    }
    // Without what was judged, or signed, it would be another request.
    let is_forbidden = |name: &str| {
        let is_signed = |name: &HeaderName| headers.contains_key(name) && SignedHeaders::of(head).cover(name);
        is_end_to_end(name) || name.parse().is_ok_and(|name| is_signed(&name))
    };
    nominated(headers).any(is_forbidden).then_some("Connection names a header that concerns the endpoint")
}

/// Returns the one `Host` of a request.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn host(headers: &HeaderMap) -> Result<&str, &'static str> {
    let mut hosts = headers.get_all(HOST).into_iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err("the request must have one Host header");
    };
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    match host.to_str() {
        Ok(host) if !host.is_empty() && host.bytes().all(is_right) => Ok(host),
        _ => Err("the request's Host is no name or address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn refused(request: hyper::http::request::Builder) -> bool {
        refusal(&request.body(()).unwrap().into_parts().0).is_some()
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        let get = || Request::get("/b/k");
        assert!(!refused(get().header("host", "s3.example.com:80")));
        assert!(!refused(get().header("host", "[::1]:80").header("connection", "Keep-Alive, x-mine")));
        assert!(refused(get()));
        assert!(refused(get().header("host", "a").header("host", "a")));
        assert!(refused(get().header("host", "a/b")));
        assert!(refused(get().header("host", "")));
        assert!(refused(Request::get("http://a/b/k").header("host", "a")));
        assert!(refused(Request::connect("a:80").header("host", "a")));
        for name in ["Host", "authorization", "X-Amz-Date", "range", "Content-MD5", "content_md5", "origin"] {
            assert!(refused(get().header("host", "a").header("connection", format!("close, {name}"))));
        }
        let signed = |names: &str| {
            let value = format!("AWS4-HMAC-SHA256 Credential=a, SignedHeaders={names}, Signature=0");
            let request = get().header("host", "a").header("authorization", value).header("x-mine", "1");
            refused(request.header("connection", "x-mine"))
        };
        assert!(signed("host;x-mine") && !signed("host"));
    }
}
