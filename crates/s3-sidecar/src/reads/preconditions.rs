//! Conditions of clients on what they have already, decided by what is known of an object, in the order of RFC 9110, 13.2.2.

use std::time::SystemTime;

use hyper::HeaderMap;
use hyper::header::{
    HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE,
};

use crate::memory::generation::Head;

/// What the conditions of a read come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The object is to be sent.
    Send,
    /// The client has it already: 304.
    NotModified,
    /// It is not what the client expects: 412.
    Failed,
    /// What is known does not suffice; the endpoint decides.
    Unknown,
}

/// Decides the conditions of a request.
pub(crate) fn decide(headers: &HeaderMap, head: &Head) -> Verdict {
    let has = |name: HeaderName| headers.contains_key(name);
    if has(IF_MATCH) {
        match matches(headers, &IF_MATCH, head, true) {
            Some(true) => (),
            Some(false) => return Verdict::Failed,
            None => return Verdict::Unknown,
        }
    } else if has(IF_UNMODIFIED_SINCE) {
        match is_modified_since(headers, &IF_UNMODIFIED_SINCE, head) {
            Some(false) => (),
            Some(true) => return Verdict::Failed,
            None => return Verdict::Unknown,
        }
    }
    if has(IF_NONE_MATCH) {
        match matches(headers, &IF_NONE_MATCH, head, false) {
            Some(false) => (),
            Some(true) => return Verdict::NotModified,
            None => return Verdict::Unknown,
        }
    } else if has(IF_MODIFIED_SINCE) {
        match is_modified_since(headers, &IF_MODIFIED_SINCE, head) {
            Some(true) => (),
            Some(false) => return Verdict::NotModified,
            None => return Verdict::Unknown,
        }
    }
    Verdict::Send
}

/// Returns whether a list of tags has the object's; `None` if it is no list of tags.
fn matches(headers: &HeaderMap, name: &HeaderName, head: &Head, is_strong: bool) -> Option<bool> {
    let own = opaque(head.etag.to_str().ok()?);
    let mut has_own = false;
    for value in headers.get_all(name) {
        let mut rest = value.to_str().ok()?.trim();
        if rest == "*" {
            has_own = true;
            continue;
        }
        while !rest.is_empty() {
            let (is_weak, tag) = rest.strip_prefix("W/").map_or((false, rest), |tag| (true, tag));
            let (tag, after) = match tag.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                // S3 takes tags without quotes.
                None => {
                    let end = tag.find(',').unwrap_or(tag.len());
                    (tag[..end].trim(), &tag[end..])
                }
            };
            if tag.is_empty() || tag.contains('"') {
                return None;
            }
            has_own |= tag == own && !(is_strong && is_weak);
            rest = match after.trim_start() {
                "" => "",
                after => after.strip_prefix(',')?.trim_start(),
            };
        }
    }
    Some(has_own)
}

fn opaque(etag: &str) -> &str {
    etag.strip_prefix('"').and_then(|etag| etag.strip_suffix('"')).unwrap_or(etag)
}

/// Returns whether the object has changed since a time; `None` if the endpoint must say.
fn is_modified_since(headers: &HeaderMap, name: &HeaderName, head: &Head) -> Option<bool> {
    let mut values = headers.get_all(name).into_iter();
    let since = time(values.next().filter(|_| values.next().is_none())?)?;
    // Many endpoints take a date in the future for none (RFC 2616, 14.25), and some do not.
    if *name == IF_MODIFIED_SINCE && since > SystemTime::now() {
        return None;
    }
    Some(time(head.last_modified.as_ref()?)? > since)
}

fn time(value: &HeaderValue) -> Option<SystemTime> {
    httpdate::parse_http_date(value.to_str().ok()?).ok()
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

    fn decided(conditions: &[(HeaderName, &str)]) -> Verdict {
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
        use Verdict::{Failed, NotModified, Send, Unknown};
        for (name, value, verdict) in [
            (IF_NONE_MATCH, "\"a,b\"", NotModified),
            (IF_NONE_MATCH, "W/\"a,b\"", NotModified),
            (IF_NONE_MATCH, "\"x\" , \"a,b\"", NotModified),
            (IF_NONE_MATCH, "*", NotModified),
            (IF_NONE_MATCH, "\"a\"", Send),
            (IF_NONE_MATCH, "a, \"y\"", Send),
            (IF_NONE_MATCH, "\"a", Unknown),
            (IF_NONE_MATCH, "\"a\" \"b\"", Unknown),
            (IF_MATCH, "\"a,b\"", Send),
            (IF_MATCH, "*", Send),
            (IF_MATCH, "W/\"a,b\"", Failed),
            (IF_MATCH, "\"x\"", Failed),
            (IF_MATCH, "\"", Unknown),
            (IF_MODIFIED_SINCE, BEFORE, Send),
            (IF_MODIFIED_SINCE, AT, NotModified),
            (IF_MODIFIED_SINCE, "yesterday", Unknown),
            (IF_MODIFIED_SINCE, FUTURE, Unknown),
            (IF_UNMODIFIED_SINCE, BEFORE, Failed),
            (IF_UNMODIFIED_SINCE, AT, Send),
            (IF_UNMODIFIED_SINCE, FUTURE, Send),
            (IF_UNMODIFIED_SINCE, "", Unknown),
        ] {
            assert_eq!(decided(&[(name.clone(), value)]), verdict, "{name}: {value}");
        }
        assert_eq!(decided(&[]), Send);
        assert_eq!(decided(&[(IF_NONE_MATCH, "\"x\""), (IF_NONE_MATCH, "\"a,b\"")]), NotModified);
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
            assert_eq!(decided(&conditions), verdict, "{conditions:?}");
        }
    }
}
