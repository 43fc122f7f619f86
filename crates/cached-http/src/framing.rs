//! The framing of requests according to RFC 9112, section 6, and connection headers. Requests that
//! two readers could interpret differently are refused. The HTTP library decodes bodies; this
//! module checks messages that the library accepts but another reader could interpret differently.

use hyper::header::{CONNECTION, EXPECT, HOST, HeaderName, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode};

use crate::values::{has, values_of};

/// Returns the names listed in `Connection`, except those that always concern the connection.
pub fn nominated(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    elements(headers, &CONNECTION).filter(|name| !name.is_empty())
}

/// Returns the elements of a list header. A value that is not text becomes an element that equals
/// nothing.
pub fn elements<'a>(headers: &'a HeaderMap, name: &'a HeaderName) -> impl Iterator<Item = &'a str> {
    let values = values_of(headers, name).map(|value| value.to_str().unwrap_or("\u{fffd}"));
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Returns whether the only transfer coding is a single `chunked`, the only one that the library
/// decodes.
#[must_use]
pub fn is_chunked_alone(headers: &HeaderMap) -> bool {
    let mut codings = elements(headers, &TRANSFER_ENCODING);
    codings.next().is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) && codings.next().is_none()
}

/// Returns the status and reason with which a request is refused for its framing, or `None` if the
/// framing is correct. The library itself refuses two different lengths, and codings after
/// `chunked`. If there are both `Transfer-Encoding` and `Content-Length`, the library uses the
/// first, and closes the connection after that request.
fn wrong_framing(head: &Parts) -> Option<(StatusCode, &'static str)> {
    if !has(&head.headers, &TRANSFER_ENCODING) {
        return None;
    }
    if !is_chunked_alone(&head.headers) {
        return Some((StatusCode::NOT_IMPLEMENTED, "Transfer-Encoding must be only chunked"));
    }
    let has_no_use = [Method::GET, Method::HEAD].contains(&head.method);
    has_no_use
        .then_some((StatusCode::LENGTH_REQUIRED, "a body of a GET or a HEAD must state its Content-Length"))
}

/// Returns the status and reason with which a request is refused, or `None` if the request is
/// accepted. `is_essential` tells which headers must not be declared connection headers: another
/// reader would drop them.
#[must_use]
pub fn refusal(head: &Parts, is_essential: impl Fn(&str) -> bool) -> Option<(StatusCode, &'static str)> {
    wrong_framing(head).or_else(|| wrong(head, is_essential).map(|why| (StatusCode::BAD_REQUEST, why)))
}

fn wrong(head: &Parts, is_essential: impl Fn(&str) -> bool) -> Option<&'static str> {
    if head.method == Method::CONNECT || head.method == Method::TRACE {
        return Some("CONNECT and TRACE are not supported");
    }
    if head.uri.scheme().is_some() || head.uri.authority().is_some() {
        return Some(
            "the request's target is a complete URL, but this is not a forward proxy; set it as the server's own URL",
        );
    }
    if !head.uri.path().starts_with('/') {
        return Some("the request's target does not begin with a slash");
    }
    if let Some(why) = host(&head.headers).err() {
        return Some(why);
    }
    nominated(&head.headers)
        .any(is_essential)
        .then_some("Connection names a header that is meant for the server")
}

/// Returns the single `Host` of a request.
///
/// # Errors
/// Returns the mistake in the header.
pub fn host(headers: &HeaderMap) -> Result<&str, &'static str> {
    let mut hosts = values_of(headers, &HOST);
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err("the request must have exactly one Host header");
    };
    let is_right =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':' | b'[' | b']');
    match host.to_str() {
        Ok(host) if !host.is_empty() && host.bytes().all(is_right) => Ok(host),
        _ => Err("the request's Host is not a name or address"),
    }
}

/// Returns whether the client waits for permission to send its body.
#[must_use]
pub fn expects_continue(headers: &HeaderMap) -> bool {
    headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    #[test]
    fn requests_are_framed_in_one_way() {
        let refused = |method: &str, codings: &[&str]| {
            let request = Request::builder().method(method).uri("/");
            let request =
                codings.iter().fold(request, |request, coding| request.header("transfer-encoding", *coding));
            wrong_framing(&request.body(()).unwrap().into_parts().0).map(|(status, _)| status.as_u16())
        };
        for (method, codings, status) in [
            ("PUT", &[][..], None),
            ("GET", &[], None),
            ("PUT", &["chunked"], None),
            ("PUT", &["Chunked "], None),
            ("PUT", &["gzip, chunked"], Some(501)),
            ("PUT", &["gzip", "chunked"], Some(501)),
            ("PUT", &["chunked, chunked"], Some(501)),
            ("PUT", &["chunked", "chunked"], Some(501)),
            ("PUT", &["chunked,"], Some(501)),
            ("PUT", &["identity"], Some(501)),
            ("PUT", &[""], Some(501)),
            ("GET", &["chunked"], Some(411)),
            ("HEAD", &["chunked"], Some(411)),
            ("DELETE", &["chunked"], None),
        ] {
            assert_eq!(refused(method, codings), status, "{method} {codings:?}");
        }
    }
}
