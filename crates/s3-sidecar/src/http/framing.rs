//! Where messages end, by RFC 9112, 6, and the headers that concern one connection. The library decodes bodies, and makes their framing
//! anew; what it takes for right and a next reader could read differently is judged here.

use hyper::header::{
    CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Response, StatusCode};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Returns the names that `Connection` lists, without those that concern the connection anyway.
pub(crate) fn nominated(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    elements(headers, &CONNECTION).filter(|name| !name.is_empty())
}

/// Removes the headers that concern the connection they came by. The framing of the body is made anew by the library.
pub(crate) fn remove(headers: &mut HeaderMap) {
    let nominated: Vec<HeaderName> = nominated(headers).filter_map(|name| name.parse().ok()).collect();
    for name in nominated {
        headers.remove(name);
    }
    static ALL: [HeaderName; 7] =
        [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE];
    // Most requests have none of them.
    if headers.keys().any(|name| ALL.contains(name)) {
        ALL.iter().for_each(|name| drop(headers.remove(name)));
    }
}

/// Returns the elements of a header that is a list. What is no text is an element that nothing equals.
fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().map(|value| value.to_str().unwrap_or("\u{fffd}"));
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Returns whether the only transfer coding is `chunked`, once: the library takes off no other.
fn is_chunked_alone(headers: &HeaderMap) -> bool {
    let mut codings = elements(headers, &TRANSFER_ENCODING);
    codings.next().is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) && codings.next().is_none()
}

/// Returns the status and the reason with which a request is refused for its framing; `None` if it is not. Two different lengths, and
/// codings of which `chunked` is not the last one, the library refuses; of `Transfer-Encoding` and `Content-Length` it leaves the first,
/// and ends the connection with that request.
pub(crate) fn refusal(head: &Parts) -> Option<(StatusCode, &'static str)> {
    if !head.headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    if !is_chunked_alone(&head.headers) {
        return Some((StatusCode::NOT_IMPLEMENTED, "Transfer-Encoding must be chunked alone"));
    }
    let has_no_use = [Method::GET, Method::HEAD].contains(&head.method);
    has_no_use
        .then_some((StatusCode::LENGTH_REQUIRED, "a body of a GET or a HEAD must state its Content-Length"))
}

/// Judges the framing of an answer of the endpoint, and leaves one statement of its length at most, which the next reader reads as this
/// one does.
///
/// # Errors
/// Why it is no answer that can be passed on.
pub(crate) fn judge<B>(answer: &mut Response<B>) -> Result<(), &'static str> {
    let status = answer.status();
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Err("it switches to another protocol, for which nobody has asked");
    }
    let headers = answer.headers_mut();
    if headers.contains_key(TRANSFER_ENCODING) {
        if !is_chunked_alone(headers) {
            return Err("its Transfer-Encoding is not chunked alone");
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
        return Err("its Content-Length is no number, or several");
    };
    match status {
        // It has no body, and must not speak of one.
        StatusCode::NO_CONTENT => drop(headers.remove(CONTENT_LENGTH)),
        _ => drop(headers.insert(CONTENT_LENGTH, HeaderValue::from(len))),
    }
    Ok(())
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
            refusal(&request.body(()).unwrap().into_parts().0).map(|(status, _)| status.as_u16())
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
}
