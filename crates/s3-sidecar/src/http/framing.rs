//! The framing of messages according to RFC 9112, section 6, and connection headers. Requests that
//! two readers could interpret differently are refused. The HTTP library decodes bodies and
//! generates their framing; this module checks messages that the library accepts but another reader
//! could interpret differently.

use hyper::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING,
    UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Response, StatusCode};

use crate::http::headers::is_end_to_end;
use crate::http::read::SignedHeaders;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Returns the names listed in `Connection`, except those that always concern the connection.
pub(crate) fn nominated(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    elements(headers, &CONNECTION).filter(|name| !name.is_empty())
}

/// Removes connection headers. The HTTP library generates the framing of the body again.
pub(crate) fn remove(headers: &mut HeaderMap) {
    let nominated: Vec<HeaderName> = nominated(headers).filter_map(|name| name.parse().ok()).collect();
    for name in nominated {
        headers.remove(name);
    }
    static ALL: [HeaderName; 7] =
        [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE];
    // Most requests have no such headers.
    if headers.keys().any(|name| ALL.contains(name)) {
        ALL.iter().for_each(|name| drop(headers.remove(name)));
    }
}

/// Returns the elements of a list header. A value that is not text becomes an element that equals
/// nothing.
fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().map(|value| value.to_str().unwrap_or("\u{fffd}"));
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Returns whether the only transfer coding is a single `chunked`, the only one that the library
/// decodes.
fn is_chunked_alone(headers: &HeaderMap) -> bool {
    let mut codings = elements(headers, &TRANSFER_ENCODING);
    codings.next().is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) && codings.next().is_none()
}

/// Returns the status and reason with which a request is refused for its framing, or `None` if the
/// framing is correct. The library itself refuses two different lengths, and codings after
/// `chunked`. If there are both `Transfer-Encoding` and `Content-Length`, the library keeps the
/// first, and closes the connection after that request.
pub(crate) fn wrong_framing(head: &Parts) -> Option<(StatusCode, &'static str)> {
    if !head.headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    if !is_chunked_alone(&head.headers) {
        return Some((StatusCode::NOT_IMPLEMENTED, "Transfer-Encoding must be only chunked"));
    }
    let has_no_use = [Method::GET, Method::HEAD].contains(&head.method);
    has_no_use
        .then_some((StatusCode::LENGTH_REQUIRED, "a body of a GET or a HEAD must state its Content-Length"))
}

/// Checks the framing of the endpoint's response, and keeps at most one unambiguous statement of
/// its length.
///
/// # Errors
/// The reason why the response cannot be forwarded.
pub(crate) fn judge<B>(answer: &mut Response<B>) -> Result<(), &'static str> {
    let status = answer.status();
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Err("it switches to another protocol, which was not requested");
    }
    let headers = answer.headers_mut();
    if headers.contains_key(TRANSFER_ENCODING) {
        if !is_chunked_alone(headers) {
            return Err("its Transfer-Encoding is not only chunked");
        }
        headers.remove(CONTENT_LENGTH);
        return Ok(());
    }
    if !headers.contains_key(CONTENT_LENGTH) {
        return Ok(());
    }
    let number = |text: &str| -> Option<u64> {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
    };
    let same = |one: Option<u64>, other: Option<u64>| one.filter(|_| one == other);
    let Some(len) = elements(headers, &CONTENT_LENGTH).map(number).reduce(same).flatten() else {
        return Err("its Content-Length is not a single number");
    };
    match status {
        // Such a response has no body, and must not state a length.
        StatusCode::NO_CONTENT => drop(headers.remove(CONTENT_LENGTH)),
        _ => drop(headers.insert(CONTENT_LENGTH, HeaderValue::from(len))),
    }
    Ok(())
}

/// Returns the status and reason with which a request is refused, or `None` if the request is
/// accepted.
pub(crate) fn refusal(head: &Parts) -> Option<(StatusCode, &'static str)> {
    wrong_framing(head).or_else(|| wrong(head).map(|why| (StatusCode::BAD_REQUEST, why)))
}

fn wrong(head: &Parts) -> Option<&'static str> {
    if head.method == Method::CONNECT || head.method == Method::TRACE {
        return Some("CONNECT and TRACE are not forwarded");
    }
    if head.uri.scheme().is_some() || head.uri.authority().is_some() {
        return Some(
            "the request's target is a complete URL, but this is not a forward proxy; set it as the endpoint's URL",
        );
    }
    if !head.uri.path().starts_with('/') {
        return Some("the request's target does not begin with a slash");
    }
    let headers = &head.headers;
    if let Some(why) = host(headers).err() {
        return Some(why);
    }
    // If a header that is signed or checked were declared a connection header, the request would
    // change.
    let is_forbidden = |name: &str| {
        let is_signed = |name: &HeaderName| headers.contains_key(name) && SignedHeaders::of(head).cover(name);
        is_end_to_end(name) || name.parse().is_ok_and(|name| is_signed(&name))
    };
    nominated(headers).any(is_forbidden).then_some("Connection names a header that is meant for the endpoint")
}

/// Returns the single `Host` of a request.
///
/// # Errors
/// The mistake in the header.
pub(crate) fn host(headers: &HeaderMap) -> Result<&str, &'static str> {
    let mut hosts = headers.get_all(HOST).into_iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err("the request must have exactly one Host header");
    };
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    match host.to_str() {
        Ok(host) if !host.is_empty() && host.bytes().all(is_right) => Ok(host),
        _ => Err("the request's Host is not a name or address"),
    }
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

    #[test]
    fn an_answer_states_its_length_once_or_is_none() {
        let judged = |status: u16, headers: &[(&str, &str)]| {
            let answer = Response::builder().status(status);
            let answer = headers.iter().fold(answer, |answer, (name, value)| answer.header(*name, *value));
            let mut answer = answer.body(()).unwrap();
            judge(&mut answer).ok()?;
            let lengths = answer.headers().get_all(CONTENT_LENGTH).into_iter();
            Some(lengths.map(|len| len.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(";"))
        };
        let (te, cl) = ("transfer-encoding", "content-length");
        for (status, headers, expected) in [
            (200, &[][..], Some("")),
            (200, &[(cl, "5")], Some("5")),
            (200, &[(cl, "5"), (cl, "5")], Some("5")),
            (200, &[(cl, "5, 5")], Some("5")),
            (200, &[(cl, "005")], Some("5")),
            (206, &[(cl, "5"), (cl, "6")], None),
            (200, &[(cl, "5, 6")], None),
            (200, &[(cl, "+5")], None),
            (200, &[(cl, "")], None),
            (200, &[(cl, "5,")], None),
            (200, &[(cl, "18446744073709551616")], None),
            (304, &[(cl, "-1")], None),
            (304, &[(cl, "5")], Some("5")),
            (204, &[(cl, "5")], Some("")),
            (200, &[(te, "chunked")], Some("")),
            (200, &[(te, "chunked"), (cl, "2")], Some("")),
            (200, &[(cl, "x"), (te, "Chunked")], Some("")),
            (200, &[(te, "gzip, chunked")], None),
            (200, &[(te, "gzip")], None),
            (200, &[(te, "identity"), (cl, "2")], None),
            (200, &[(te, "chunked"), (te, "chunked")], None),
            (101, &[("upgrade", "websocket")], None),
        ] {
            assert_eq!(judged(status, headers).as_deref(), expected, "{status} {headers:?}");
        }
    }

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
