//! The head of a request as an operation. Nothing here does I/O or depends on rights.

use std::borrow::Cow;

use blocker::{Condition, Durability, NAME_BYTES_MAX, Name, Namespace, ObjectId, Version};
use cached_http::values::{ByteRange, contains_tag, has, number, percent_decoded, values_of};
use hyper::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, HOST, HeaderName, IF_MATCH, IF_NONE_MATCH, IF_RANGE,
    RANGE, TRANSFER_ENCODING,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode};

/// The header that requests a durability, and states the durability reached.
pub(crate) const DURABILITY: HeaderName = HeaderName::from_static("durability");
const DESTINATION: HeaderName = HeaderName::from_static("destination");
const OVERWRITE: HeaderName = HeaderName::from_static("overwrite");

/// The maximum number of entries in a page of a listing.
pub(crate) const LIST_ENTRIES_MAX: u32 = 1000;

const OBJECT_METHODS: &str = "GET, HEAD, PUT, DELETE, COPY";

/// What a client requests.
#[derive(Debug, PartialEq)]
pub(crate) enum Operation {
    Read(Read),
    /// Replaces the content of an object with the body of the request.
    Put(Change),
    Delete(Change),
    /// Copies an object to the target of the change, if the source has the required version.
    Copy {
        from: ObjectId,
        from_condition: Require,
        to: Change,
    },
    List(List),
}

/// A GET or HEAD of an object.
#[derive(Debug, PartialEq)]
pub(crate) struct Read {
    pub(crate) object: ObjectId,
    pub(crate) is_head: bool,
    /// The requested range. If `None`, the whole object is requested.
    pub(crate) range: Option<ByteRange>,
    /// The conditional headers, whose values are lists of entity tags.
    conditions: HeaderMap,
}

/// A change of an object.
#[derive(Debug, PartialEq)]
pub(crate) struct Change {
    pub(crate) object: ObjectId,
    pub(crate) condition: Require,
    pub(crate) durability: Durability,
}

/// The state that a change requires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Require {
    /// Any state.
    Any,
    Absent,
    Present,
    Version(Version),
    /// A version that no object has.
    Never,
}

/// A request for one page of a namespace.
#[derive(Debug, PartialEq)]
pub(crate) struct List {
    pub(crate) namespace: Namespace,
    pub(crate) prefix: Vec<u8>,
    pub(crate) after: Option<Name>,
    pub(crate) entries_max: u32,
}

/// The reason why a request cannot be an operation.
#[derive(Debug, PartialEq)]
pub(crate) struct Mistake {
    pub(crate) status: StatusCode,
    pub(crate) line: Cow<'static, str>,
    /// The methods that the target allows, if the method is the mistake.
    pub(crate) allow: Option<&'static str>,
}

/// The outcome of the conditions of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The object is to be sent, either the requested range or the whole object.
    Send {
        as_range: bool,
    },
    NotModified,
    Failed,
}

fn bad(line: impl Into<Cow<'static, str>>) -> Mistake {
    Mistake { status: StatusCode::BAD_REQUEST, line: line.into(), allow: None }
}

fn not_allowed(allow: &'static str) -> Mistake {
    let line = format!("the method must be one of {allow}");
    Mistake { status: StatusCode::METHOD_NOT_ALLOWED, line: line.into(), allow: Some(allow) }
}

/// Returns whether this server interprets a header, so that no `Connection` may declare the header
/// as meant for the next hop only.
pub(crate) fn is_essential(name: &str) -> bool {
    ["host", "authorization", "range", "content-", "if-", "expect", "durability", "destination", "overwrite"]
        .iter()
        .any(|start| name.get(..start.len()).is_some_and(|part| part.eq_ignore_ascii_case(start)))
}

/// Returns the operation that a well-framed request asks for.
///
/// # Errors
/// Returns the mistake in the request.
pub(crate) fn understand(head: &Parts) -> Result<Operation, Mistake> {
    let (namespace, name) = target(head.uri.path())?;
    let headers = &head.headers;
    let Some(name) = name else {
        return match head.method {
            Method::GET => {
                without_body(headers)?;
                list(namespace, head.uri.query().unwrap_or_default()).map(Operation::List)
            }
            _ => Err(not_allowed("GET")),
        };
    };
    let object = ObjectId::new(namespace, name);
    let method = head.method.as_str();
    if !OBJECT_METHODS.split(", ").any(|allowed| allowed == method) {
        return Err(not_allowed(OBJECT_METHODS));
    }
    if head.uri.query().is_some() {
        return Err(bad("a request for an object takes no parameters; a ? in a name must be written %3F"));
    }
    match method {
        "GET" | "HEAD" => read(object, method == "HEAD", headers).map(Operation::Read),
        "PUT" => {
            if headers.contains_key(CONTENT_RANGE) {
                return Err(bad("Content-Range is not supported; a PUT must carry the whole object"));
            }
            let coding = headers.get(CONTENT_ENCODING);
            if coding.is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
                return Err(bad(
                    "Content-Encoding is not kept; leave it out, and decode the object in the client",
                ));
            }
            change(object, headers).map(Operation::Put)
        }
        "DELETE" => {
            without_body(headers)?;
            let change = change(object, headers)?;
            match change.condition {
                Require::Absent => Err(bad("If-None-Match has no use with DELETE; use If-Match")),
                // Only an object that exists can be removed.
                Require::Present => Ok(Operation::Delete(Change { condition: Require::Any, ..change })),
                _ => Ok(Operation::Delete(change)),
            }
        }
        // COPY.
        _ => {
            without_body(headers)?;
            copy(object, headers)
        }
    }
}

/// Splits and decodes a path: `/NAMESPACE/NAME`, or `/NAMESPACE/` for a listing.
fn target(path: &str) -> Result<(Namespace, Option<Name>), Mistake> {
    let text = path.strip_prefix('/').unwrap_or(path);
    let Some((namespace, name)) = text.split_once('/') else {
        return Err(bad("the path must be /NAMESPACE/NAME, or /NAMESPACE/ for a listing"));
    };
    let decoded = |text| {
        percent_decoded(text).ok_or_else(|| {
            bad("a % in the path must be followed by two hexadecimal digits; a percent sign is %25")
        })
    };
    let in_range = |what: &str, bytes: &[u8]| match bytes.len() {
        1..=NAME_BYTES_MAX => Ok(()),
        len => Err(bad(format!("the {what} has {len} bytes; it must have 1 to {NAME_BYTES_MAX}"))),
    };
    let namespace = decoded(namespace)?;
    in_range("namespace", &namespace)?;
    let namespace = Namespace::copy_from(&namespace).map_err(|error| bad(error.to_string()))?;
    if name.is_empty() {
        return Ok((namespace, None));
    }
    let name = decoded(name)?;
    in_range("name", &name)?;
    let name = Name::copy_from(&name).map_err(|error| bad(error.to_string()))?;
    Ok((namespace, Some(name)))
}

fn without_body(headers: &HeaderMap) -> Result<(), Mistake> {
    let has_body = has(headers, &TRANSFER_ENCODING)
        || values_of(headers, &CONTENT_LENGTH).next().is_some_and(|length| length != "0");
    if has_body { Err(bad("the request must have no body; only PUT has one")) } else { Ok(()) }
}

fn read(object: ObjectId, is_head: bool, headers: &HeaderMap) -> Result<Read, Mistake> {
    without_body(headers)?;
    let mut conditions = HeaderMap::new();
    for name in [IF_MATCH, IF_NONE_MATCH, IF_RANGE] {
        for value in values_of(headers, &name) {
            conditions.append(name.clone(), value.clone());
        }
        if name != IF_RANGE && contains_tag(&conditions, &name, "", true).is_none() {
            return Err(not_tags(&name));
        }
    }
    let mut ranges = values_of(headers, &RANGE);
    let range = match (ranges.next(), ranges.next()) {
        // A range applies only to GET. A range of a form that is not known here is ignored, as RFC
        // 9110 allows, and several ranges as well.
        (Some(range), None) if !is_head => range.to_str().ok().and_then(ByteRange::parse),
        _ => None,
    };
    Ok(Read { object, is_head, range, conditions })
}

fn not_tags(name: &HeaderName) -> Mistake {
    bad(format!("{name} must be * or a list of ETags, such as \"42\" with its quotes"))
}

impl Read {
    /// Returns whether the response depends on the object's version.
    pub(crate) fn is_conditional(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// Evaluates the conditions for an object with this ETag, in the order of RFC 9110, 13.2.2.
    pub(crate) fn verdict(&self, etag: &str) -> Verdict {
        let contains = |name: HeaderName, is_strong| {
            self.conditions
                .contains_key(&name)
                .then(|| contains_tag(&self.conditions, &name, etag, is_strong) == Some(true))
        };
        if contains(IF_MATCH, true) == Some(false) {
            return Verdict::Failed;
        }
        if contains(IF_NONE_MATCH, false) == Some(true) {
            return Verdict::NotModified;
        }
        // A date does not match either, because objects have no dates.
        let if_range = self.conditions.get(IF_RANGE);
        Verdict::Send { as_range: if_range.is_none_or(|validator| validator == etag) }
    }
}

fn change(object: ObjectId, headers: &HeaderMap) -> Result<Change, Mistake> {
    let condition = match (single(headers, &IF_MATCH)?, single(headers, &IF_NONE_MATCH)?) {
        (None, None) => Require::Any,
        (Some(tag), None) => version(tag)?,
        (None, Some("*")) => Require::Absent,
        (None, Some(_)) => {
            return Err(bad("If-None-Match of a change must be *, which means that no object may exist"));
        }
        (Some(_), Some(_)) => {
            return Err(bad("If-Match and If-None-Match contradict each other; send one of them"));
        }
    };
    Ok(Change { object, condition, durability: durability(headers)? })
}

/// Returns the version that the value of `If-Match` requires.
fn version(tag: &str) -> Result<Require, Mistake> {
    if tag == "*" {
        return Ok(Require::Present);
    }
    let is_weak = tag.starts_with("W/");
    let quoted = tag.strip_prefix("W/").unwrap_or(tag);
    let opaque = quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let Some(opaque) = opaque.filter(|text| !text.contains('"')) else {
        return Err(bad("If-Match of a change must be * or one ETag, such as \"42\" with its quotes"));
    };
    match number(opaque) {
        // The number has no leading zeros, because the tag must be the one that the server has
        // sent.
        Some(version) if !is_weak && version.to_string() == opaque => Ok(Require::Version(Version(version))),
        _ => Ok(Require::Never),
    }
}

fn durability(headers: &HeaderMap) -> Result<Durability, Mistake> {
    match single(headers, &DURABILITY)? {
        None => Ok(Durability::default()),
        Some(text) => text
            .to_ascii_lowercase()
            .parse()
            .map_err(|_| bad("Durability must be one of cached, journaled, replicated(NODES) and stored")),
    }
}

/// Returns the value of a header that may occur once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Mistake> {
    let mut values = headers.get_all(name).into_iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => match value.to_str() {
            Ok(text) => Ok(Some(text.trim())),
            Err(_) => Err(bad(format!("{name} must be visible ASCII"))),
        },
        (Some(_), Some(_)) => Err(bad(format!("{name} occurs twice; it must occur once"))),
    }
}

fn copy(from: ObjectId, headers: &HeaderMap) -> Result<Operation, Mistake> {
    let form = "Destination must be /NAMESPACE/NAME, or a URL with the same host";
    let Some(text) = single(headers, &DESTINATION)? else {
        return Err(bad(format!("Destination is missing; {form}")));
    };
    let path = match text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")) {
        None => text,
        Some(rest) => {
            let (host, _) = rest.split_once('/').ok_or_else(|| bad(form))?;
            let own =
                headers.get(HOST).is_some_and(|own| own.as_bytes().eq_ignore_ascii_case(host.as_bytes()));
            if !own {
                return Err(bad(
                    "Destination names another host; objects are copied only within this server",
                ));
            }
            &rest[host.len()..]
        }
    };
    if !path.starts_with('/') || path.contains(['?', '#']) {
        return Err(bad(form));
    }
    let (namespace, Some(name)) = target(path)? else { return Err(bad(form)) };
    let condition = match single(headers, &OVERWRITE)? {
        None | Some("T") => Require::Any,
        Some("F") => Require::Absent,
        Some(_) => return Err(bad("Overwrite must be T or F")),
    };
    if headers.contains_key(IF_NONE_MATCH) {
        return Err(bad("If-None-Match has no use with COPY; Overwrite: F creates only"));
    }
    let from_condition = match single(headers, &IF_MATCH)? {
        None => Require::Any,
        Some(tag) => version(tag)?,
    };
    let to = Change { object: ObjectId::new(namespace, name), condition, durability: durability(headers)? };
    Ok(Operation::Copy { from, from_condition, to })
}

fn list(namespace: Namespace, query: &str) -> Result<List, Mistake> {
    let (mut prefix, mut after, mut limit) = (None, None, None);
    for parameter in query.split('&').filter(|part| !part.is_empty()) {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let place = match key {
            "prefix" => &mut prefix,
            "after" => &mut after,
            "limit" => &mut limit,
            _ => return Err(bad("the parameters of a listing are prefix, after and limit")),
        };
        let value = value.replace('+', "%20");
        let Some(value) = percent_decoded(&value) else {
            return Err(bad(format!("a % in {key} must be followed by two hexadecimal digits")));
        };
        if place.replace(value.into_owned()).is_some() {
            return Err(bad(format!("{key} occurs twice; it must occur once")));
        }
    }
    let in_range = |key: &str, value: Option<Vec<u8>>| match value.unwrap_or_default() {
        value if value.len() <= NAME_BYTES_MAX => Ok(value),
        value => Err(bad(format!("{key} has {} bytes; names have at most {NAME_BYTES_MAX}", value.len()))),
    };
    let (prefix, after) = (in_range("prefix", prefix)?, in_range("after", after)?);
    let after = (!after.is_empty()).then(|| Name::new(after)).transpose();
    let limit = limit.map(|limit| std::str::from_utf8(&limit).ok().and_then(number));
    let entries_max = match limit {
        None => LIST_ENTRIES_MAX,
        Some(Some(limit @ 1..)) => u32::try_from(limit).unwrap_or(u32::MAX).min(LIST_ENTRIES_MAX),
        Some(_) => return Err(bad(format!("limit must be a number from 1 to {LIST_ENTRIES_MAX}"))),
    };
    Ok(List { namespace, prefix, after: after.map_err(|error| bad(error.to_string()))?, entries_max })
}

impl Require {
    /// Returns the condition of the storage contract. `None` means that the condition is never met.
    pub(crate) fn condition(self) -> Option<Condition> {
        Some(match self {
            Require::Any => Condition::None,
            Require::Absent => Condition::Absent,
            Require::Present => Condition::Present,
            Require::Version(version) => Condition::Version(version),
            Require::Never => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn parsed(method: &str, target: &str, headers: &[(&str, &str)]) -> Result<Operation, Mistake> {
        let request = Request::builder().method(method).uri(target).header("host", "node:80");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        understand(&request.body(()).unwrap().into_parts().0)
    }

    fn status(method: &str, target: &str, headers: &[(&str, &str)]) -> u16 {
        parsed(method, target, headers).map_or_else(|mistake| mistake.status.as_u16(), |_| 0)
    }

    fn id(namespace: &'static [u8], name: &'static [u8]) -> ObjectId {
        ObjectId::new(Namespace::new(namespace).unwrap(), Name::new(name).unwrap())
    }

    #[test]
    fn a_path_is_a_namespace_and_a_name_of_any_bytes() {
        for (path, namespace, name) in [
            ("/vm/disk", &b"vm"[..], &b"disk"[..]),
            ("/vm/a/b//c/", b"vm", b"a/b//c/"),
            ("/vm//x", b"vm", b"/x"),
            ("/vm/../x/.", b"vm", b"../x/."),
            ("/a%2Fb/c%2fd", b"a/b", b"c/d"),
            ("/vm/%00%ff%25+", b"vm", b"\0\xff%+"),
        ] {
            let Ok(Operation::Read(read)) = parsed("GET", path, &[]) else { panic!("{path}") };
            assert_eq!(read.object, id(namespace, name), "{path}");
        }
        let (long, longer) = ("n".repeat(255), "%41".repeat(256));
        assert_eq!(status("GET", &format!("/{long}/{long}"), &[]), 0);
        for wrong in [
            "/",
            "/vm",
            "//x",
            "/vm/%",
            "/vm/%2",
            "/vm/%g0",
            "/%/x",
            &format!("/vm/{longer}"),
            &format!("/{longer}/x"),
            &format!("/{longer}/"),
            "/vm/x?",
            "/vm/x?versionId=1",
        ] {
            assert_eq!(status("GET", wrong, &[]), 400, "{wrong}");
        }
    }

    #[test]
    fn a_method_that_the_target_does_not_have_is_refused() {
        for method in ["POST", "PATCH", "OPTIONS", "PROPFIND", "MKCOL", "get", "COPYY"] {
            let mistake = parsed(method, "/vm/x", &[]).unwrap_err();
            assert_eq!((mistake.status.as_u16(), mistake.allow), (405, Some(OBJECT_METHODS)), "{method}");
        }
        for method in ["PUT", "DELETE", "HEAD", "COPY"] {
            let mistake = parsed(method, "/vm/", &[]).unwrap_err();
            assert_eq!((mistake.status.as_u16(), mistake.allow), (405, Some("GET")), "{method}");
        }
    }

    #[test]
    fn reads_have_ranges_and_conditions() {
        let read = |headers: &[(&str, &str)]| match parsed("GET", "/vm/x", headers) {
            Ok(Operation::Read(read)) => read,
            other => panic!("{headers:?}: {other:?}"),
        };
        let send = |as_range| Verdict::Send { as_range };
        assert_eq!(read(&[("range", "bytes=2-")]).range, Some(ByteRange::From(2, None)));
        for ignored in ["bytes=1-2,4-5", "bytes=x", "items=1-2", "bytes=5-2"] {
            assert_eq!(read(&[("range", ignored)]).range, None, "{ignored}");
        }
        assert_eq!(read(&[("range", "bytes=1-2"), ("range", "bytes=4-5")]).range, None);
        for (headers, verdict) in [
            (&[][..], send(true)),
            (&[("if-match", "\"7\"")], send(true)),
            (&[("if-match", "\"6\", \"7\"")], send(true)),
            (&[("if-match", "*")], send(true)),
            (&[("if-match", "W/\"7\"")], Verdict::Failed),
            (&[("if-match", "\"6\"")], Verdict::Failed),
            (&[("if-none-match", "\"7\"")], Verdict::NotModified),
            (&[("if-none-match", "W/\"7\"")], Verdict::NotModified),
            (&[("if-none-match", "*")], Verdict::NotModified),
            (&[("if-none-match", "\"6\"")], send(true)),
            (&[("if-match", "\"6\""), ("if-none-match", "\"7\"")], Verdict::Failed),
            (&[("if-range", "\"7\"")], send(true)),
            (&[("if-range", "W/\"7\"")], send(false)),
            (&[("if-range", "Mon, 01 Jan 2024 00:00:00 GMT")], send(false)),
        ] {
            assert_eq!(read(headers).verdict("\"7\""), verdict, "{headers:?}");
        }
        for wrong in ["\"7", "\"a\" \"b\""] {
            assert_eq!(status("GET", "/vm/x", &[("if-match", wrong)]), 400, "{wrong}");
            assert_eq!(status("GET", "/vm/x", &[("if-none-match", wrong)]), 400, "{wrong}");
        }
        let Ok(Operation::Read(head)) = parsed("HEAD", "/vm/x", &[("range", "bytes=0-1")]) else {
            panic!("a HEAD")
        };
        assert!(head.is_head && head.range.is_none());
    }

    #[test]
    fn changes_have_one_condition_and_a_durability() {
        let put = |headers: &[(&str, &str)]| match parsed("PUT", "/vm/x", headers) {
            Ok(Operation::Put(change)) => (change.condition, change.durability),
            other => panic!("{headers:?}: {other:?}"),
        };
        let default = Durability::Cached;
        for (headers, expected) in [
            (&[][..], (Require::Any, default)),
            (&[("if-none-match", "*")], (Require::Absent, default)),
            (&[("if-match", "*")], (Require::Present, default)),
            (&[("if-match", "\"42\"")], (Require::Version(Version(42)), default)),
            (&[("if-match", "\"042\"")], (Require::Never, default)),
            (&[("if-match", "W/\"42\"")], (Require::Never, default)),
            (&[("if-match", "\"abc\"")], (Require::Never, default)),
            (&[("if-match", "\"18446744073709551616\"")], (Require::Never, default)),
            (&[("durability", "Stored")], (Require::Any, Durability::Stored)),
            (&[("durability", "journaled")], (Require::Any, Durability::Journaled)),
            (&[("content-encoding", "identity")], (Require::Any, default)),
        ] {
            assert_eq!(put(headers), expected, "{headers:?}");
        }
        for wrong in [
            &[("if-none-match", "\"1\"")][..],
            &[("if-match", "\"1\", \"2\"")],
            &[("if-match", "42")],
            &[("if-match", "")],
            &[("if-match", "\"1\""), ("if-match", "\"2\"")],
            &[("if-match", "*"), ("if-none-match", "*")],
            &[("durability", "safe")],
            &[("durability", "stored"), ("durability", "cached")],
            &[("content-range", "bytes 0-1/2")],
            &[("content-encoding", "gzip")],
        ] {
            assert_eq!(status("PUT", "/vm/x", wrong), 400, "{wrong:?}");
        }
        let Ok(Operation::Delete(delete)) = parsed("DELETE", "/vm/x", &[("if-match", "*")]) else {
            panic!("a DELETE")
        };
        assert_eq!(delete.condition, Require::Any);
        assert_eq!(status("DELETE", "/vm/x", &[("if-none-match", "*")]), 400);
        for method in ["GET", "HEAD", "DELETE", "COPY"] {
            assert_eq!(status(method, "/vm/x", &[("content-length", "1")]), 400, "{method}");
        }
    }

    #[test]
    fn a_copy_names_its_destination() {
        let copy = |headers: &[(&str, &str)]| match parsed("COPY", "/vm/x", headers) {
            Ok(Operation::Copy { from_condition, to, .. }) => (to.object, to.condition, from_condition),
            other => panic!("{headers:?}: {other:?}"),
        };
        let to = id(b"b/c", b"y");
        for (headers, condition, from_condition) in [
            (&[("destination", "/b%2Fc/y")][..], Require::Any, Require::Any),
            (&[("destination", "http://NODE:80/b%2fc/y"), ("overwrite", "T")], Require::Any, Require::Any),
            (&[("destination", "/b%2Fc/y"), ("overwrite", "F")], Require::Absent, Require::Any),
            (
                &[("destination", "https://node:80/b%2Fc/y"), ("if-match", "\"3\"")],
                Require::Any,
                Require::Version(Version(3)),
            ),
        ] {
            assert_eq!(copy(headers), (to.clone(), condition, from_condition), "{headers:?}");
        }
        for wrong in [
            &[][..],
            &[("destination", "y")],
            &[("destination", "/y")],
            &[("destination", "/vm/")],
            &[("destination", "/vm/y?x")],
            &[("destination", "/vm/y#x")],
            &[("destination", "/vm/%")],
            &[("destination", "http://other/vm/y")],
            &[("destination", "http://node:80")],
            &[("destination", "ftp://node:80/vm/y")],
            &[("destination", "/vm/y"), ("overwrite", "X")],
            &[("destination", "/vm/y"), ("if-none-match", "*")],
        ] {
            assert_eq!(status("COPY", "/vm/x", wrong), 400, "{wrong:?}");
        }
    }

    #[test]
    fn a_listing_has_parameters() {
        let list = |query: &str| match parsed("GET", &format!("/a%2Fb/{query}"), &[]) {
            Ok(Operation::List(list)) => list,
            other => panic!("{query}: {other:?}"),
        };
        let all = list("");
        assert_eq!((all.namespace.as_bytes(), all.entries_max, all.after), (&b"a/b"[..], 1000, None));
        let some = list("?prefix=a%2F+b%2B%ff&after=%00&limit=7");
        assert_eq!((&some.prefix[..], some.entries_max), (&b"a/ b+\xff"[..], 7));
        assert_eq!(some.after.unwrap().as_bytes(), b"\0");
        assert_eq!(list("?limit=99999999999&after=").entries_max, 1000);
        for wrong in [
            "?limit=0",
            "?limit=-1",
            "?limit=x",
            "?limit=99999999999999999999",
            "?prefix=%",
            "?prefix=a&prefix=b",
            "?marker=a",
            &format!("?after={}", "a".repeat(256)),
        ] {
            assert_eq!(status("GET", &format!("/vm/{wrong}"), &[]), 400, "{wrong}");
        }
    }

    #[test]
    fn headers_that_are_interpreted_belong_to_the_request() {
        for name in ["Host", "If-Match", "if-range", "Content-MD5", "RANGE", "durability", "Authorization"] {
            assert!(is_essential(name), "{name}");
        }
        for name in ["keep-alive", "close", "x-mine", "upgrade", "i", "te"] {
            assert!(!is_essential(name), "{name}");
        }
    }
}
