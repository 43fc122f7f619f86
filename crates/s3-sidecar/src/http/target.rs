//! The target of a request: bucket and key, by path (`NAME/BUCKET/KEY`) or by host
//! (`BUCKET.NAME/KEY`); and the names that an endpoint may treat as one object.
//!
//! An endpoint that keeps objects as files folds empty and dot segments of a key, and so do servers
//! in front of it that normalise paths: `a//b`, `/a/b`, `a/./b`, `a/c/../b` and `a/b/` are `a/b`
//! there, and separate objects elsewhere. It is unknown here which of these an endpoint does, so
//!
//! - only a *plain* name, which no endpoint folds, is ever served without the endpoint;
//! - a change of any name invalidates the plain one of its [`Class`] (requests for other names are
//!   always forwarded);
//! - a right under a prefix must cover both the name and every name for which it may be taken.
//!
//! Whether the endpoint folds letter case and forms of Unicode as well is configured, by [`Names`].

use std::borrow::Cow;
use std::net::IpAddr;

use cached_http::values::percent_decoded;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::http::headers::in_lower_case;
use crate::http::text::{rsplit_once, split_once};

/// An object's identity: a hash of bucket and key.
pub(crate) type ObjectKey = [u8; 32];

/// The names by which clients address the endpoint.
#[derive(Debug)]
pub(crate) struct Addressing {
    domains: Vec<String>,
}

impl Addressing {
    pub(crate) fn new(domains: &[String]) -> Self {
        Self { domains: domains.iter().map(|name| name.to_ascii_lowercase()).collect() }
    }

    /// Returns the target of a host and a path.
    pub(crate) fn target<'a>(&self, host: &str, path: &'a str) -> Target<'a> {
        let host = in_lower_case(without_port(host));
        let by_host =
            self.domains.iter().find_map(|domain| host.strip_suffix(domain.as_str())?.strip_suffix('.'));
        match by_host {
            Some(bucket) if !bucket.is_empty() => match path.strip_prefix('/') {
                Some(key) => Target::of(Cow::Owned(bucket.to_owned()), key),
                None => Target::Unknown,
            },
            _ if self.domains.iter().any(|domain| *domain == *host) || is_local(&host) => {
                Target::by_path(path)
            }
            _ => Target::Unknown,
        }
    }

    /// Returns the identity of the object in a host and a path, or `None` if no object is named or
    /// the host is unknown.
    #[cfg(test)]
    pub(crate) fn object(&self, host: &str, path: &str) -> Option<ObjectKey> {
        match self.target(host, path) {
            Target::Object(bucket, key) => Some(object_key(&bucket, &key)),
            _ => None,
        }
    }
}

/// The maximum length of a bucket name in bytes. Names in S3 have at most 63 bytes, older names
/// 255.
const BUCKET_BYTES_MAX: usize = 255;

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    /// An object: its bucket and its decoded key.
    Object(Cow<'a, str>, Cow<'a, [u8]>),
    /// Something in a bucket whose key is not encoded properly.
    IllEncoded(Cow<'a, str>),
    /// A bucket.
    Bucket(Cow<'a, str>),
    /// The endpoint itself.
    Service,
    /// The target is unknown, because only the endpoint knows whether the host contains a bucket.
    Unknown,
}

impl<'a> Target<'a> {
    /// Returns the target of a path with the bucket, as in the sidecar's own requests.
    pub(crate) fn by_path(path: &'a str) -> Self {
        let Some(path) = path.strip_prefix('/') else { return Target::Unknown };
        let (bucket, key) = split_once(path, b'/').unwrap_or((path, ""));
        Self::of(Cow::Borrowed(bucket), key)
    }

    fn of(bucket: Cow<'a, str>, key: &'a str) -> Self {
        match () {
            () if bucket.is_empty() && key.is_empty() => Target::Service,
            // Only the endpoint knows the meaning of such a bucket name.
            () if bucket.is_empty() || bucket.contains('%') || bucket.len() > BUCKET_BYTES_MAX => {
                Target::Unknown
            }
            () if key.is_empty() => Target::Bucket(bucket),
            () => match percent_decoded(key) {
                Some(key) => Target::Object(bucket, key),
                None => Target::IllEncoded(bucket),
            },
        }
    }

    /// Returns the bucket, if one is named.
    pub(crate) fn bucket(&self) -> Option<&str> {
        match self {
            Target::Object(bucket, _) | Target::IllEncoded(bucket) | Target::Bucket(bucket) => Some(bucket),
            Target::Service | Target::Unknown => None,
        }
    }
}

/// Returns the identity of an object.
pub(crate) fn object_key(bucket: &str, key: &[u8]) -> ObjectKey {
    let mut hash = Sha256::new();
    hash.update((bucket.len() as u64).to_le_bytes());
    hash.update(bucket.as_bytes());
    hash.update(key);
    hash.finalize().into()
}

/// Returns whether a host, in lower case and without a port, cannot contain a bucket.
fn is_local(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host == "localhost" || address.parse::<IpAddr>().is_ok()
}

fn without_port(host: &str) -> &str {
    match rsplit_once(host, b':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// The keys that an endpoint treats as one, in addition to those with empty or dot segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Names {
    /// No further keys: two keys are two objects, as in S3.
    #[default]
    Exact,
    /// Keys that differ only in letter case or Unicode form, as file systems may treat them.
    ///
    /// Tables of letters differ between file systems and between Unicode versions, so only ASCII is
    /// folded: a key with other characters may be any key of its bucket.
    Folded,
}

impl Names {
    /// Returns whether every key that an endpoint may take for this plain one is in its class.
    fn has_class(self, plain: &[u8]) -> bool {
        self == Names::Exact || plain.is_ascii()
    }

    /// Returns the common form of all plain keys of a class; it begins with the common form of
    /// their prefixes.
    pub(crate) fn folded(self, key: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Names::Folded if key.iter().any(u8::is_ascii_uppercase) => Cow::Owned(key.to_ascii_lowercase()),
            Names::Folded | Names::Exact => Cow::Borrowed(key),
        }
    }

    /// Returns the beginning of the [folded](Self::folded) plain names of all keys that may be
    /// taken for one with this prefix.
    pub(crate) fn folded_prefix(self, prefix: &[u8]) -> Vec<u8> {
        let plain = plain_prefix(prefix);
        let has_class = |byte: &u8| self == Names::Exact || byte.is_ascii();
        let len = plain.iter().take_while(|byte| has_class(byte)).count();
        self.folded(&plain[..len]).into_owned()
    }
}

/// The identity of the object that all names of a class may denote: invalidation by name uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(ObjectKey);

impl Class {
    /// Returns the class of a key in a bucket, or `None` if the key may denote any key of the
    /// bucket, or the bucket itself.
    pub(crate) fn of(names: Names, bucket: &str, key: &[u8]) -> Option<Class> {
        let plain = plain(key);
        let is_one = !plain.is_empty() && names.has_class(&plain);
        is_one.then(|| Class(object_key(bucket, &names.folded(&plain))))
    }

    /// Returns the class of an object that may be served without the endpoint, or `None` if this
    /// object may not.
    pub(crate) fn of_answerable(names: Names, bucket: &str, key: &[u8], object: ObjectKey) -> Option<Class> {
        let is_answerable = is_plain(key) && names.has_class(key);
        is_answerable.then(|| match names.folded(key) {
            Cow::Borrowed(_) => Class(object),
            Cow::Owned(folded) => Class(object_key(bucket, &folded)),
        })
    }

    /// Returns the identity of the plain name.
    pub(crate) fn key(self) -> ObjectKey {
        self.0
    }
}

fn segments(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    key.split(|byte| *byte == b'/')
}

/// Returns whether no endpoint can take the key for another one.
pub(crate) fn is_plain(key: &[u8]) -> bool {
    !segments(key).any(|segment| matches!(segment, b"" | b"." | b".."))
}

/// Returns whether a key has a dot segment, which leads elsewhere if the key is a path.
pub(crate) fn has_dots(key: &[u8]) -> bool {
    segments(key).any(|segment| matches!(segment, b"." | b".."))
}

/// Returns the plain name of a key's class, which is empty if there is none.
pub(crate) fn plain(key: &[u8]) -> Cow<'_, [u8]> {
    if is_plain(key) {
        return Cow::Borrowed(key);
    }
    Cow::Owned(resolved(segments(key)).join(&b'/'))
}

/// Returns whether a condition holds for a key and for every key that an endpoint may take it for;
/// if the key has dot segments, this is the whole bucket. A trailing slash stays, because a folder
/// and a file cannot have the same name.
pub(crate) fn holds_for(key: &[u8], holds: impl Fn(&[u8]) -> bool) -> bool {
    if has_dots(key) {
        return holds(b"");
    }
    if is_plain(key) {
        return holds(key);
    }
    let mut plain = plain(key).into_owned();
    if key.ends_with(b"/") && !plain.is_empty() {
        plain.push(b'/');
    }
    holds(key) && holds(&plain)
}

/// Returns the beginning of the plain names of all keys with this prefix.
pub(crate) fn plain_prefix(prefix: &[u8]) -> Cow<'_, [u8]> {
    let (folders, last) = match prefix.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&prefix[..at], &prefix[at + 1..]),
        None => (&b""[..], prefix),
    };
    // The last segment may continue: one of dots as a name, or as two dots.
    if prefix.is_empty()
        || (folders.is_empty() || is_plain(folders)) && prefix[0] != b'/' && last.first() != Some(&b'.')
    {
        return Cow::Borrowed(prefix);
    }
    let mut all = resolved(segments(folders));
    let is_of_dots = matches!(last, b"." | b"..");
    if is_of_dots {
        all.pop();
    }
    let mut plain = all.join(&b'/');
    if !plain.is_empty() {
        plain.push(b'/');
    }
    if !is_of_dots {
        plain.extend_from_slice(last);
    }
    Cow::Owned(plain)
}

fn resolved<'a>(segments: impl Iterator<Item = &'a [u8]>) -> Vec<&'a [u8]> {
    let mut all = Vec::new();
    for segment in segments {
        match segment {
            b"" | b"." => (),
            b".." => drop(all.pop()),
            _ => all.push(segment),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_addressing_name_the_same_object() {
        let names = Addressing::new(&["S3.example.com".into()]);
        let object = names.object("s3.example.com", "/bucket/a/b").unwrap();
        for (host, path) in [
            ("S3.EXAMPLE.COM:8080", "/bucket/a/b"),
            ("bucket.s3.example.com", "/a/b"),
            ("127.0.0.1:9000", "/bucket/a/b"),
            ("localhost", "/bucket/a/b"),
            ("[::1]:9000", "/bucket/a%2Fb"),
            ("[::1]", "/bucket/%61/b"),
        ] {
            assert_eq!(names.object(host, path), Some(object), "{host}{path}");
        }
        for path in ["/", "/bucket", "/bucket/", "/bucket/a%2Fb", "/bucket/%", "//key", "/b%61/k", "*"] {
            assert_eq!(Target::by_path(path), names.target("localhost", path), "{path}");
        }
    }

    #[test]
    fn different_keys_are_different_objects() {
        let names = Addressing::new(&[]);
        let keys =
            ["a", "a/", "/a", "//a", "./a", "x/../a", "A", "+a", "%20a", "%2520a", "%2Ba%", "a%", "b/a"];
        let all: Vec<_> =
            keys.iter().map(|key| names.object("localhost", &format!("/bucket/{key}"))).collect();
        for (at, one) in all.iter().enumerate() {
            let ill = keys[at].ends_with('%');
            assert_eq!(one.is_none(), ill, "{}", keys[at]);
            assert!(ill || !all[..at].contains(one), "{}", keys[at]);
        }
        assert_eq!(names.object("localhost", "/bucket/%2Ba"), names.object("localhost", "/bucket/+a"));
        assert_ne!(names.object("localhost", "/ab/c"), names.object("localhost", "/a/bc"));
    }

    #[test]
    fn what_names_no_object_has_no_identity() {
        let names = Addressing::new(&["s3.example.com".into()]);
        for (host, path) in [
            ("s3.example.com", "/"),
            ("s3.example.com", "/bucket"),
            ("s3.example.com", "/bucket/"),
            ("s3.example.com", "//key"),
            ("bucket.s3.example.com", "/"),
            ("elsewhere.example.com", "/bucket/key"),
            ("bucket.s3.example.com.evil.net", "/key"),
            ("xs3.example.com", "/bucket/key"),
            (".s3.example.com", "/bucket/key"),
        ] {
            assert_eq!(names.object(host, path), None, "{host}{path}");
        }
    }

    fn exact(bucket: &str, key: &str) -> Option<Class> {
        Class::of(Names::Exact, bucket, key.as_bytes())
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn all_names_of_a_class_have_its_plain_one() {
        for key in [
            "q/y", "q//y", "/q/y", "//q///y", "./q/y", "q/./y", "q/z/../y", "q/y/", "q/y/.", "x/../q/y",
            "../q/y",
        ] {
            assert_eq!(
                (text(&plain(key.as_bytes())), is_plain(key.as_bytes())),
                ("q/y", key == "q/y"),
                "{key}"
            );
            assert_eq!(exact("b", key), exact("b", "q/y"));
        }
        assert_ne!(exact("b", "q/y"), exact("c", "q/y"));
        for key in ["q", ".q", "q..", "..q/..y", "...", "q\\y", "Q/y", " /y"] {
            assert!(is_plain(key.as_bytes()) && plain(key.as_bytes()) == key.as_bytes(), "{key}");
        }
        for key in ["", "/", ".", "..", "./", "a/.."] {
            assert_eq!((text(&plain(key.as_bytes())), is_plain(key.as_bytes())), ("", false), "{key}");
            assert_eq!(exact("b", key), None, "{key}");
        }
    }

    #[test]
    fn letter_case_and_unicode_are_folded_where_the_endpoint_folds_them() {
        let folded = |key: &str| Class::of(Names::Folded, "b", key.as_bytes());
        let answerable = |names, key: &str| {
            let object = object_key("b", key.as_bytes());
            Class::of_answerable(names, "b", key.as_bytes(), object)
        };
        for key in ["q/y", "Q/y", "q/Y", "Q//./Y/"] {
            assert_eq!(folded(key), exact("b", "q/y"), "{key}");
            assert_eq!(exact("b", key) == exact("b", "q/y"), key == "q/y", "{key}");
        }
        for key in ["q/y", "Q/y"] {
            assert_eq!(answerable(Names::Folded, key), folded(key), "{key}");
            assert_eq!(answerable(Names::Exact, key), exact("b", key), "{key}");
        }
        // The first may be "\u{fc}", the second "k", the third "ab".
        for key in ["u\u{308}", "\u{212a}", "a\u{200d}b"] {
            assert!(folded(key).is_none() && exact("b", key).is_some(), "{key}");
            assert!(answerable(Names::Folded, key).is_none(), "{key}");
        }
        for key in ["q//y", "q/."] {
            assert!(answerable(Names::Folded, key).is_none() && answerable(Names::Exact, key).is_none());
        }
        for (prefix, exact, folded) in [
            ("Q/Y", "Q/Y", "q/y"),
            ("Q//./Y", "Q/Y", "q/y"),
            ("Q/\u{fc}x/Y", "Q/\u{fc}x/Y", "q/"),
            ("\u{fc}", "\u{fc}", ""),
        ] {
            assert_eq!(text(&Names::Exact.folded_prefix(prefix.as_bytes())), exact);
            assert_eq!(text(&Names::Folded.folded_prefix(prefix.as_bytes())), folded);
        }
    }

    #[test]
    fn the_plain_name_of_what_begins_with_a_prefix_begins_with_its_plain_prefix() {
        let ends = ["", "x", "/", "/x", ".", "./x", "../x", ".x", "x/../y", "/../y"];
        for prefix in [
            "", "a", "a/", "a/b", "a//", "a//b", "/", "/a", "//a", "./a", "a/./", "a/.", "a/..", "a/../",
            "a/../b", ".", "..", "a/b/..", "a.", "a/.b",
        ] {
            let folded = plain_prefix(prefix.as_bytes());
            for end in ends.iter().filter(|end| !end.contains("..") && !prefix.ends_with("..")) {
                let key = format!("{prefix}{end}");
                let plain = plain(key.as_bytes());
                let is_short = plain.len() < folded.len();
                // A name that ends where the prefix does is shorter by its slash.
                let begins = plain.starts_with(&folded) || is_short && folded.starts_with(&plain);
                assert!(begins, "{key}: {} after {}", text(&plain), text(&folded));
            }
        }
        assert_eq!(text(&plain_prefix(b"a//b")), "a/b");
        assert_eq!(text(&plain_prefix(b"a/..")), "");
        assert_eq!(text(&plain_prefix(b"a/b/../c")), "a/c");
        assert!(matches!(plain_prefix(b"a/b/"), Cow::Borrowed(b"a/b/")));
    }
}
