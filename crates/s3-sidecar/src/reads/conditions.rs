//! The conditions of a client, decided from a remembered head in the order of RFC 9110, 13.2.2; its
//! demands on the age of a response; `If-Range`, which chooses between a part and the whole; and
//! the condition that is added for the endpoint.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use cached_http::values::{contains_tag, has, values_of};
use hyper::header::{
    CACHE_CONTROL, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE, PRAGMA, RANGE,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Response, StatusCode};

use crate::http::read::{Read, directives};
use crate::memory::generation::Head;

/// Returns the requested bytes of a remembered object, and whether they are sent as a part. Returns
/// `None` if the endpoint must decide.
pub(crate) fn wanted(read: &Read, headers: &HeaderMap, head: &Head) -> Option<(Range<u64>, bool)> {
    let mut validators = values_of(headers, &IF_RANGE);
    let is_met = match (validators.next(), validators.next()) {
        (None, _) => true,
        // A weak validator never matches, and the endpoint has to state that.
        (Some(one), None) => *one == head.etag || Some(one) == head.last_modified.as_ref(),
        _ => return None,
    };
    match read.range {
        Some(asked) if is_met => Some((asked.within(head.size)?, true)),
        _ => Some((0..head.size, false)),
    }
}

/// The minimum size, in bytes, of a whole object for which the sidecar requests only the first byte
/// when it asks whether the object is unchanged.
pub(crate) const NARROWED_BYTES_MIN: u64 = 128 << 10;

/// The meaning of the response to the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stated {
    /// The object is unchanged.
    Same,
    /// The object has changed, and the response has nothing that the client requested.
    Other,
    /// The response is also the response to the client's request.
    Answered,
}

/// Makes the request conditional on a change of the object. Returns whether the request is narrowed
/// to the first byte.
///
/// For a whole long object the conditional request is for only the first byte, because radosgw
/// otherwise reads the beginning of the object before it checks the condition. A changed object is
/// then requested again, since headers of a part are not those of the whole: AWS leaves out
/// checksums.
pub(crate) fn ask_for_change(request: &mut Parts, read: &Read, head: &Head) -> bool {
    let headers = &mut request.headers;
    headers.insert(IF_NONE_MATCH, head.etag.clone());
    let is_narrowed = head.size >= NARROWED_BYTES_MIN
        && !read.signed.cover(&RANGE)
        // Without a range `If-Range` has no effect, but it would have one with the added range.
        && [RANGE, IF_RANGE].iter().all(|name| !headers.contains_key(name));
    if is_narrowed {
        headers.insert(RANGE, HeaderValue::from_static("bytes=0-0"));
    }
    is_narrowed
}

/// Interprets the response to a conditional request.
pub(crate) fn stated<T>(is_narrowed: bool, answer: &Response<T>, read: &Read, head: &Head) -> Stated {
    match answer.status() {
        StatusCode::NOT_MODIFIED if head.agrees(answer.headers()) => Stated::Same,
        // The object has the same ETag but different headers.
        StatusCode::NOT_MODIFIED => Stated::Other,
        // The endpoint has ignored the condition.
        StatusCode::PARTIAL_CONTENT if is_narrowed => match Head::of(read, false, answer) {
            Some((stated, _)) if stated.generation == head.generation => Stated::Same,
            _ => Stated::Other,
        },
        // The object is empty now.
        StatusCode::RANGE_NOT_SATISFIABLE if is_narrowed => Stated::Other,
        _ => Stated::Answered,
    }
}

/// Restricts the request to these bytes of a remembered object, unless the client's signature
/// covers the headers.
pub(crate) fn ask_for_rest(request: &mut Parts, read: &Read, head: &Head, bytes: &Range<u64>) {
    let headers = &mut request.headers;
    if !headers.contains_key(IF_MATCH) {
        headers.insert(IF_MATCH, head.etag.clone());
    }
    if read.signed.cover(&RANGE) && headers.contains_key(RANGE) {
        return;
    }
    if !(read.signed.cover(&IF_RANGE) && headers.contains_key(IF_RANGE)) {
        headers.remove(IF_RANGE);
    }
    if let Ok(range) = format!("bytes={}-{}", bytes.start, bytes.end - 1).parse() {
        headers.insert(RANGE, range);
    }
}

/// The result of a read's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The object must be sent.
    Send,
    /// The client already has the object, so the response is 304.
    NotModified,
    /// The object is not the expected one, so the response is 412.
    Failed,
}

/// Evaluates the conditions of a request. Returns `None` if the remembered head does not suffice,
/// and the endpoint must decide.
pub(crate) fn decide(headers: &HeaderMap, head: &Head) -> Option<Verdict> {
    let is_other = if has(headers, &IF_MATCH) {
        !contains_tag(headers, &IF_MATCH, head.etag.to_str().ok()?, true)?
    } else {
        has(headers, &IF_UNMODIFIED_SINCE) && is_modified_since(headers, &IF_UNMODIFIED_SINCE, head)?
    };
    if is_other {
        return Some(Verdict::Failed);
    }
    let is_same = if has(headers, &IF_NONE_MATCH) {
        contains_tag(headers, &IF_NONE_MATCH, head.etag.to_str().ok()?, false)?
    } else {
        has(headers, &IF_MODIFIED_SINCE) && !is_modified_since(headers, &IF_MODIFIED_SINCE, head)?
    };
    Some(if is_same { Verdict::NotModified } else { Verdict::Send })
}

/// Returns whether the object has changed since a time, or `None` if the endpoint must decide.
fn is_modified_since(headers: &HeaderMap, name: &HeaderName, head: &Head) -> Option<bool> {
    let mut values = headers.get_all(name).into_iter();
    let since = time(values.next().filter(|_| values.next().is_none())?)?;
    // Many endpoints ignore a date in the future (RFC 2616, 14.25), and some do not.
    if *name == IF_MODIFIED_SINCE && since > SystemTime::now() {
        return None;
    }
    Some(time(head.last_modified.as_ref()?)? > since)
}

fn time(value: &HeaderValue) -> Option<SystemTime> {
    httpdate::parse_http_date(value.to_str().ok()?).ok()
}

/// The maximum age that a client accepts, or `None` for any age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand(Option<Duration>);

impl Demand {
    /// Returns a request's demand: `Cache-Control: no-cache` or `max-age`, or else `Pragma:
    /// no-cache`.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        if !has(headers, &CACHE_CONTROL) {
            let mut values = values_of(headers, &PRAGMA);
            let pragma =
                values.next().is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"no-cache"));
            return Self(pragma.then_some(Duration::ZERO));
        }
        let age = |word: &str| match word.split_once('=') {
            None => word.eq_ignore_ascii_case("no-cache").then_some(0),
            Some((name, secs)) if name.trim().eq_ignore_ascii_case("max-age") => {
                // If the number is invalid, the endpoint is asked.
                Some(secs.trim().trim_matches('"').parse().unwrap_or(0))
            }
            Some(_) => None,
        };
        Self(directives(headers).filter_map(age).min().map(Duration::from_secs))
    }

    /// Returns whether a response of this age suffices.
    pub(crate) fn takes(self, age: Duration) -> bool {
        self.0.is_none_or(|most| age < most)
    }

    /// Returns whether only a new request to the endpoint suffices.
    pub(crate) fn asks(self) -> bool {
        self.0 == Some(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head {
            object: [1; 32],
            generation: [0; 24],
            namespace: blocker::Namespace::new(&b"b"[..]).unwrap(),
            etag: HeaderValue::from_static("\"a,b\""),
            last_modified: Some(HeaderValue::from_static("Mon, 01 Jan 2024 00:00:00 GMT")),
            size: 1,
            headers: HeaderMap::new(),
            is_of_whole: true,
            is_claimed_empty: false,
            is_always_verified: false,
        }
    }

    fn decided(conditions: &[(HeaderName, &str)]) -> Option<Verdict> {
        let mut headers = HeaderMap::new();
        for (name, value) in conditions {
            headers.append(name, value.parse().unwrap());
        }
        decide(&headers, &head())
    }

    const BEFORE: &str = "Sun, 31 Dec 2023 23:59:59 GMT";
    const AT: &str = "Mon, 01 Jan 2024 00:00:00 GMT";
    const FUTURE: &str = "Fri, 31 Dec 9999 23:59:59 GMT";

    #[test]
    fn each_condition_is_decided() {
        use Verdict::{Failed, NotModified, Send};
        for (name, value, verdict) in [
            (IF_NONE_MATCH, "\"a,b\"", Some(NotModified)),
            (IF_NONE_MATCH, "W/\"a,b\"", Some(NotModified)),
            (IF_NONE_MATCH, "\"x\" , \"a,b\"", Some(NotModified)),
            (IF_NONE_MATCH, "*", Some(NotModified)),
            (IF_NONE_MATCH, "\"a\"", Some(Send)),
            (IF_NONE_MATCH, "a, \"y\"", Some(Send)),
            (IF_NONE_MATCH, "\"a", None),
            (IF_NONE_MATCH, "\"a\" \"b\"", None),
            (IF_MATCH, "\"a,b\"", Some(Send)),
            (IF_MATCH, "*", Some(Send)),
            (IF_MATCH, "W/\"a,b\"", Some(Failed)),
            (IF_MATCH, "\"x\"", Some(Failed)),
            (IF_MATCH, "\"", None),
            (IF_MODIFIED_SINCE, BEFORE, Some(Send)),
            (IF_MODIFIED_SINCE, AT, Some(NotModified)),
            (IF_MODIFIED_SINCE, "yesterday", None),
            (IF_MODIFIED_SINCE, FUTURE, None),
            (IF_UNMODIFIED_SINCE, BEFORE, Some(Failed)),
            (IF_UNMODIFIED_SINCE, AT, Some(Send)),
            (IF_UNMODIFIED_SINCE, FUTURE, Some(Send)),
            (IF_UNMODIFIED_SINCE, "", None),
        ] {
            assert_eq!(decided(&[(name.clone(), value)]), verdict, "{name}: {value}");
        }
        assert_eq!(decided(&[]), Some(Send));
        assert_eq!(decided(&[(IF_NONE_MATCH, "\"x\""), (IF_NONE_MATCH, "\"a,b\"")]), Some(NotModified));
    }

    #[test]
    fn the_order_of_conditions_is_kept() {
        use Verdict::{Failed, NotModified, Send};
        for (conditions, verdict) in [
            ([(IF_MATCH, "\"a,b\""), (IF_UNMODIFIED_SINCE, BEFORE)], Send),
            ([(IF_MATCH, "\"x\""), (IF_NONE_MATCH, "\"a,b\"")], Failed),
            ([(IF_MATCH, "\"a,b\""), (IF_NONE_MATCH, "\"a,b\"")], NotModified),
            ([(IF_NONE_MATCH, "\"x\""), (IF_MODIFIED_SINCE, AT)], Send),
            ([(IF_NONE_MATCH, "\"a,b\""), (IF_MODIFIED_SINCE, BEFORE)], NotModified),
            ([(IF_UNMODIFIED_SINCE, BEFORE), (IF_NONE_MATCH, "\"a,b\"")], Failed),
            ([(IF_UNMODIFIED_SINCE, AT), (IF_MODIFIED_SINCE, AT)], NotModified),
        ] {
            assert_eq!(decided(&conditions), Some(verdict), "{conditions:?}");
        }
    }

    #[test]
    fn a_demand_is_the_least_age_of_all() {
        let of = |pairs: &[(&str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(name.parse::<hyper::header::HeaderName>().unwrap(), value.parse().unwrap());
            }
            Demand::of(&headers).0.map(|age| age.as_secs())
        };
        for (value, secs) in [
            ("no-cache", Some(0)),
            ("No-Cache", Some(0)),
            ("max-age=0", Some(0)),
            ("max-age=60, max-age=5", Some(5)),
            ("max-stale=9, MAX-AGE = \"7\"", Some(7)),
            ("max-age=x", Some(0)),
            ("no-transform", None),
        ] {
            assert_eq!(of(&[("cache-control", value)]), secs, "{value}");
        }
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("pragma", "no-cache")]), Some(0));
        assert_eq!(of(&[("pragma", "no-cache"), ("cache-control", "max-age=9")]), Some(9));
        let demand = Demand(Some(Duration::from_secs(5)));
        assert!(demand.takes(Duration::from_millis(4999)) && !demand.takes(Duration::from_secs(5)));
        assert!(Demand(None).takes(Duration::MAX) && !Demand(Some(Duration::ZERO)).takes(Duration::ZERO));
    }
}
