//! The reads that the sidecar handles: `GET` of a plain object, whole or one range, and `HEAD`. All
//! other requests are forwarded unchanged.

use std::ops::Range;

use cached_http::values::{ByteRange, has, number, values_of};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, HeaderName, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_UNMODIFIED_SINCE, ORIGIN, RANGE, TRANSFER_ENCODING,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Uri};

use crate::http::headers::is_harmless;
use crate::http::target::{Class, ObjectKey, Target, object_key};

/// The place of a cache entry: the object, and whether the endpoint was asked for its checksums.
pub(crate) type Place = (ObjectKey, bool);

/// A read that the sidecar handles.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) bucket: Box<str>,
    /// The object's key, decoded.
    pub(crate) name: Box<[u8]>,
    pub(crate) key: ObjectKey,
    /// The identity under which the object is remembered and invalidated: its class, or else `key`.
    pub(crate) kept_as: ObjectKey,
    /// Whether the request is a HEAD, whose response has no body.
    pub(crate) is_head: bool,
    /// The requested range, or `None` for the whole object.
    pub(crate) range: Option<ByteRange>,
    /// Whether the endpoint is asked for checksums, which change its headers.
    pub(crate) has_checksums: bool,
    /// Whether the request has a condition on the client's own copy, which the endpoint evaluates.
    pub(crate) is_conditional: bool,
    pub(crate) signed: SignedHeaders,
}

/// The headers that a client's signature covers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SignedHeaders {
    /// These headers, separated by semicolons.
    These(String),
    /// Unknown headers, perhaps all of them.
    All,
}

impl SignedHeaders {
    pub(crate) fn cover(&self, name: &HeaderName) -> bool {
        match self {
            SignedHeaders::These(names) => {
                names.split(';').any(|each| each.eq_ignore_ascii_case(name.as_str()))
            }
            SignedHeaders::All => true,
        }
    }

    pub(crate) fn of(head: &Parts) -> SignedHeaders {
        let none = || SignedHeaders::These(String::new());
        if let Some(value) = values_of(&head.headers, &AUTHORIZATION).next() {
            let Ok(value) = value.to_str() else { return SignedHeaders::All };
            let listed = value.split([' ', ',']).find_map(|part| part.strip_prefix("SignedHeaders="));
            return match listed {
                Some(names) if value.starts_with("AWS4-") => SignedHeaders::These(names.to_owned()),
                // The older form of signature covers neither ranges nor conditions.
                None if value.starts_with("AWS ") => none(),
                _ => SignedHeaders::All,
            };
        }
        let listed = parameters(&head.uri).find(|(name, _)| name.eq_ignore_ascii_case("x-amz-signedheaders"));
        listed.map_or_else(none, |(_, names)| {
            SignedHeaders::These(names.replace("%3B", ";").replace("%3b", ";"))
        })
    }
}

/// Parameters without influence on the response: those of presigned requests, and one of newer
/// SDKs.
const HARMLESS_PARAMETERS: [&str; 12] = [
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-signedheaders",
    "x-amz-signature",
    "x-amz-security-token",
    "x-amz-content-sha256",
    "x-amz-user-agent",
    "awsaccesskeyid",
    "signature",
    "expires",
];

const CHECKSUM_MODE: HeaderName = HeaderName::from_static("x-amz-checksum-mode");

impl Read {
    /// Returns the read that a request's head describes, or `None` if the sidecar does not handle
    /// the request.
    pub(crate) fn understand(head: &Parts, target: &Target<'_>) -> Option<Read> {
        let Target::Object(bucket, name) = target else { return None };
        let headers = &head.headers;
        let has_body = has(headers, &TRANSFER_ENCODING)
            || values_of(headers, &CONTENT_LENGTH).next().is_some_and(|len| len != "0");
        let is_head = head.method == Method::HEAD;
        let is_read = is_head || head.method == Method::GET;
        if !is_read || has_body || has(headers, &ORIGIN) || has_directive(headers, "no-store") {
            return None;
        }
        let is_parameter_harmless = |(name, value): (&str, &str)| {
            let name = name.to_ascii_lowercase();
            let operation = if is_head { "HeadObject" } else { "GetObject" };
            HARMLESS_PARAMETERS.contains(&name.as_str()) || (name == "x-id" && value == operation)
        };
        if !parameters(&head.uri).all(is_parameter_harmless) {
            return None;
        }
        // A website endpoint's response depends on the client's `Accept` headers.
        if !headers.keys().all(|name| is_harmless(name.as_str()))
            || values_of(headers, &ACCEPT).next().is_some_and(|accept| accept == "text/html")
        {
            return None;
        }
        let has_checksums = match values_of(headers, &CHECKSUM_MODE).next() {
            None => false,
            Some(mode) if mode.as_bytes().eq_ignore_ascii_case(b"enabled") => true,
            Some(_) => return None,
        };
        let mut ranges = values_of(headers, &RANGE);
        let range = match (ranges.next(), ranges.next()) {
            (None, _) => None,
            // Endpoints disagree about whether a range applies to `HEAD`.
            _ if is_head => return None,
            (Some(range), None) => Some(ByteRange::parse(range.to_str().ok()?)?),
            _ => return None,
        };
        let conditions = [IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE];
        let key = object_key(bucket, name);
        Some(Read {
            key,
            kept_as: key,
            bucket: Box::from(&**bucket),
            name: Box::from(&**name),
            is_head,
            range,
            has_checksums,
            is_conditional: conditions.iter().any(|name| has(headers, name)),
            signed: SignedHeaders::of(head),
        })
    }
}

impl Read {
    /// Records that the request is sent without the client's signature, which therefore covers
    /// nothing, and that the object is invalidated by its class.
    pub(crate) fn take_over(&mut self, class: Class) {
        self.signed = SignedHeaders::These(String::new());
        self.kept_as = class.key();
    }

    /// Returns the place of the object's cache entry.
    pub(crate) fn place(&self) -> Place {
        (self.kept_as, self.has_checksums)
    }
}

/// Returns whether `Cache-Control` has this directive.
pub(crate) fn has_directive(headers: &HeaderMap, directive: &str) -> bool {
    directives(headers).any(|word| word.eq_ignore_ascii_case(directive))
}

/// Returns the directives of `Cache-Control`.
pub(crate) fn directives(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = values_of(headers, &CACHE_CONTROL).filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

pub(crate) fn parameters(uri: &Uri) -> impl Iterator<Item = (&str, &str)> {
    let parts = uri.query().unwrap_or_default().split('&').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').unwrap_or((part, "")))
}

/// Parses `Content-Range: bytes FIRST-LAST/SIZE` into the range and the object's size.
pub(crate) fn parse_content_range(value: &str) -> Option<(Range<u64>, u64)> {
    let (range, size) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, size) = (number(first)?, number(last)?, number(size)?);
    (first <= last && last < size).then(|| (first..last + 1, size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::target::Addressing;
    use hyper::Request;
    use hyper::http::request::Builder;

    fn understood(request: Builder) -> Option<Read> {
        let head = request.body(()).unwrap().into_parts().0;
        Read::understand(&head, &Addressing::new(&[]).target("localhost", head.uri.path()))
    }

    #[test]
    fn reads_of_objects_are_understood() {
        let read = understood(Request::get("/b/k")).unwrap();
        assert_eq!((read.range, read.has_checksums, read.is_conditional), (None, false, false));
        assert!(!read.signed.cover(&RANGE));
        let read = understood(Request::get("/b/k?x-id=GetObject").header("range", "bytes=3-")).unwrap();
        assert_eq!(read.range, Some(ByteRange::From(3, None)));
        let read = understood(Request::get("/b/k").header("x-amz-checksum-mode", "ENABLED")).unwrap();
        assert!(read.has_checksums);
        assert!(understood(Request::get("/b/k").header("x-amz-api-version", "2006-03-01")).is_some());
        assert!(understood(Request::get("/b/k").header("if-none-match", "\"x\"")).unwrap().is_conditional);
        let read = understood(Request::head("/bucket/a%20b?x-id=HeadObject")).unwrap();
        assert!(read.is_head && &*read.bucket == "bucket" && &*read.name == b"a b");
    }

    #[test]
    fn what_is_signed_is_known() {
        let v4 = "AWS4-HMAC-SHA256 Credential=a/b/c/s3/aws4_request, SignedHeaders=host;range;x-amz-date, Signature=0";
        let signed =
            |value: &str| understood(Request::get("/b/k").header("authorization", value)).unwrap().signed;
        assert!(signed(v4).cover(&RANGE) && !signed(v4).cover(&IF_NONE_MATCH));
        assert!(!signed("AWS key:signature").cover(&RANGE));
        assert!(signed("Bearer x").cover(&RANGE));
        let presigned =
            "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-SignedHeaders=host%3Brange&X-Amz-Signature=0";
        let signed = understood(Request::get(presigned)).unwrap().signed;
        assert!(signed.cover(&RANGE) && !signed.cover(&IF_NONE_MATCH));
    }

    #[test]
    fn what_else_there_is_is_passed_on() {
        let get = |path: &str| Request::get(path);
        for request in [
            Request::put("/b/k"),
            Request::head("/b/k").header("range", "bytes=0-1"),
            Request::head("/b/k?x-id=GetObject"),
            get("/b"),
            get("/b/?list-type=2"),
            get("/b/k?versionId=1"),
            get("/b/k?partNumber=1"),
            get("/b/k?response-content-type=a"),
            get("/b/k?acl"),
            get("/b/k?x-id=GetObjectAcl"),
            get("/b/k").header("x-amz-server-side-encryption-customer-algorithm", "AES256"),
            get("/b/k").header("cache-control", "max-age=0, No-Store"),
            get("/b/k").header("range", "bytes=0-1,4-5"),
            get("/b/k").header("range", "bytes=0-1").header("range", "bytes=4-5"),
            get("/b/k").header("origin", "https://example.com"),
            get("/b/k").header("content-length", "1"),
            get("/b/k").header("x-amz-new-thing", "1"),
            get("/b/k").header("x-amz_checksum-mode", "ENABLED"),
        ] {
            let text = format!("{request:?}");
            assert!(understood(request).is_none(), "{text}");
        }
    }

    #[test]
    fn a_content_range_states_its_place() {
        assert_eq!(parse_content_range("bytes 3-5/10"), Some((3..6, 10)));
        for wrong in [
            "bytes */10",
            "bytes 3-5/*",
            "bytes 5-3/10",
            "bytes 3-10/10",
            "3-5/10",
            "bytes 3-18446744073709551615/18446744073709551615",
        ] {
            assert_eq!(parse_content_range(wrong), None, "{wrong}");
        }
    }
}
