//! Bodies: those of responses, which are streams from the endpoint or cached buckets that are sent
//! without a copy; and those of multi-object deletions.

use blocker::{Segments, SegmentsBuf};
use bytes::Bytes;
pub(crate) use cached_http::{BodyError, Data, ResponseBody as Body};
use futures_util::stream::Stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;

/// Returns a part of a body with bytes in the cache.
pub(crate) fn cached(segments: Segments) -> Data {
    Box::new(SegmentsBuf::from(segments))
}

/// Returns a body that consists of one part.
pub(crate) fn whole(data: Data) -> Body {
    Full::new(data).map_err(|never| match never {}).boxed_unsync()
}

/// Returns a body of these bytes.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    whole(Box::new(bytes.into()))
}

/// Returns a body of the frames of a stream.
pub(crate) fn streamed(frames: impl Stream<Item = Result<Frame<Data>, BodyError>> + Send + 'static) -> Body {
    StreamBody::new(frames).boxed_unsync()
}

/// Returns an error response with S3's `code` and a message.
pub(crate) fn failure(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let text = message.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{text}</Message></Error>\n"
    );
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// Returns the response to an unintelligible request, after which nothing on its connection can be
/// trusted.
pub(crate) fn refused(status: StatusCode, message: &str) -> Response<Body> {
    let code = match status {
        StatusCode::NOT_IMPLEMENTED => "NotImplemented",
        StatusCode::LENGTH_REQUIRED => "MissingContentLength",
        _ => "InvalidRequest",
    };
    let mut response = failure(status, code, message);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The maximum size of a multi-object deletion in bytes: a thousand keys of 1024 bytes, with markup.
pub(crate) const DELETION_BYTES_MAX: usize = 2 << 20;

/// The maximum number of keys in one deletion, as in S3.
const KEYS_MAX: usize = 1000;

/// Returns the keys in the body of a multi-object deletion. Returns `None` unless the body is such a
/// document in a form that clients send; the parser refuses everything that two parsers could read
/// differently.
pub(crate) fn keys_to_delete(body: &[u8]) -> Option<Vec<String>> {
    let text = std::str::from_utf8(body).ok()?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader::from_str(text);
    reader.config_mut().check_end_names = true;
    // `<a/>` is read as `<a></a>`.
    reader.config_mut().expand_empty_elements = true;
    let mut path: Vec<Vec<u8>> = Vec::new();
    let mut keys = Vec::new();
    let mut key: Option<String> = None;
    let (mut is_begun, mut is_declared) = (false, false);
    loop {
        match reader.read_event().ok()? {
            // If the encoding were not UTF-8, the endpoint could read other keys than this parser.
            Event::Decl(declaration) if !is_begun && !is_declared => {
                is_declared = true;
                let encoding = declaration.encoding().transpose().ok()?;
                let is_utf8 = encoding.is_none_or(|name| name.eq_ignore_ascii_case(b"utf-8"));
                if !is_utf8 || declaration.version().ok()?.as_ref() != b"1.0" {
                    return None;
                }
            }
            Event::Start(start) => {
                let name = start.name().as_ref().to_vec();
                if !may_begin(&path, &name) || (path.is_empty() && is_begun) {
                    return None;
                }
                is_begun = true;
                if name == b"Object" {
                    key = None;
                } else if name == b"Key" {
                    // Some readers would use the second of two keys.
                    if key.is_some() {
                        return None;
                    }
                    key = Some(String::new());
                }
                path.push(name);
            }
            Event::End(_) => {
                if path.pop()? == b"Object" {
                    let key = key.take().filter(|key| !key.is_empty() && keys.len() < KEYS_MAX)?;
                    keys.push(key);
                }
            }
            Event::Text(found) => {
                // Line ends are normalised, as the standard demands.
                let found = found.decode().ok()?;
                match (path.last().map(Vec::as_slice), &mut key) {
                    (Some(b"Key"), Some(key)) if !found.contains('\r') => key.push_str(&found),
                    (Some(b"Key"), _) => return None,
                    (Some(b"Delete" | b"Object") | None, _) => found.trim().is_empty().then_some(())?,
                    _ => {}
                }
            }
            Event::GeneralRef(found) => {
                let name = found.decode().ok()?;
                let mut buffer = [0; 4];
                let resolved: &str = match found.resolve_char_ref().ok()? {
                    Some(letter) => letter.encode_utf8(&mut buffer),
                    None => resolve_predefined_entity(&name)?,
                };
                match (path.last().map(Vec::as_slice), &mut key) {
                    (Some(b"Key"), Some(key)) => key.push_str(resolved),
                    (Some(b"Key" | b"Delete" | b"Object") | None, _) => return None,
                    _ => {}
                }
            }
            Event::Eof => return (is_begun && path.is_empty()).then_some(keys),
            Event::Empty(_)
            | Event::Decl(_)
            | Event::CData(_)
            | Event::Comment(_)
            | Event::PI(_)
            | Event::DocType(_) => return None,
        }
    }
}

/// Returns whether an element may begin here.
fn may_begin(path: &[Vec<u8>], name: &[u8]) -> bool {
    match path {
        [] => name == b"Delete",
        [_] => matches!(name, b"Object" | b"Quiet"),
        [_, object] if object == b"Object" => {
            matches!(name, b"Key" | b"VersionId" | b"ETag" | b"LastModifiedTime" | b"Size")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_clients_write_them() {
        let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\n \
                    <Object><Key>a/b c</Key></Object><Object><VersionId>1&amp;2</VersionId><Key>&lt;&amp;&#x41;&#10;ü&gt; \
                    </Key></Object><Quiet>true</Quiet></Delete>\n";
        assert_eq!(keys_to_delete(body.as_bytes()).unwrap(), ["a/b c", "<&A\nü> "]);
        let many = format!("<Delete>{}</Delete>", "<Object><Key>k</Key></Object>".repeat(1000));
        assert_eq!(keys_to_delete(many.as_bytes()).unwrap().len(), 1000);
    }

    #[test]
    fn what_two_parsers_could_read_differently_is_refused() {
        let object = "<Object><Key>k</Key></Object>";
        for body in [
            "",
            "<Delete>",
            "<Delete></Remove>",
            "<Other><Object><Key>k</Key></Object></Other>",
            "<Delete><Object><Key>k</Key></Object></Delete><Delete><Object><Key>x</Key></Object></Delete>",
            "<Delete><Object></Object></Delete>",
            "<Delete><Object><Key></Key></Object></Delete>",
            "<Delete><Object><Key/></Object></Delete>",
            "<Delete><Object/></Delete>",
            "<Delete><Object><Key>a</Key><Key>b</Key></Object></Delete>",
            "<Delete><Object><Key>a<!-- x -->b</Key></Object></Delete>",
            "<Delete><Object><Key>a<x/>b</Key></Object></Delete>",
            "<Delete><Object><Key><![CDATA[a]]></Key></Object></Delete>",
            "<Delete><!-- x --><Object><Key>a</Key></Object></Delete>",
            "<!DOCTYPE Delete [<!ENTITY e \"x\">]><Delete><Object><Key>&e;</Key></Object></Delete>",
            "<Delete><Object><Key>&e;</Key></Object></Delete>",
            "<Delete><Object><Key>a\rb</Key></Object></Delete>",
            "<Delete><Object><Key>a</Key></Object>text</Delete>",
            "<Delete><s3:Object><Key>a</Key></s3:Object></Delete>",
            "<Delete><Other>x</Other></Delete>",
            "<?xml version=\"1.0\" encoding=\"UTF-7\"?><Delete><Object><Key>a</Key></Object></Delete>",
            "<?xml version=\"1.1\"?><Delete><Object><Key>a</Key></Object></Delete>",
            "<?xml version=\"1.0\"?><?xml version=\"1.0\"?><Delete><Object><Key>a</Key></Object></Delete>",
            &format!("<Delete>{}</Delete>", object.repeat(1001)),
        ] {
            assert!(keys_to_delete(body.as_bytes()).is_none(), "{body}");
        }
        assert!(keys_to_delete(&[b'<', 0xff]).is_none());
        assert!(keys_to_delete(format!("<Delete>{object}</Delete>").as_bytes()).is_some());
    }
}
