//! The framing of the endpoint's responses according to RFC 9112, section 6, and connection headers.
//! `cached_http` checks the framing of requests.

use cached_http::framing::{self, elements, is_chunked_alone, nominated};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, HeaderName, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Response, StatusCode};

use crate::http::headers::is_end_to_end;
use crate::http::read::SignedHeaders;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

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
        _ => drop(headers.insert(CONTENT_LENGTH, len.into())),
    }
    Ok(())
}

/// Returns the status and reason with which a request is refused, or `None` if the request is
/// accepted.
pub(crate) fn refusal(head: &Parts) -> Option<(StatusCode, &'static str)> {
    // If a header that is signed or checked were declared a connection header, the request would
    // change.
    let is_signed =
        |name: &HeaderName| head.headers.contains_key(name) && SignedHeaders::of(head).cover(name);
    let is_essential = |name: &str| is_end_to_end(name) || name.parse().is_ok_and(|name| is_signed(&name));
    framing::refusal(head, is_essential)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

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
