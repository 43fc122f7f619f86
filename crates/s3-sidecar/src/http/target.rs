//! The target of a request: bucket and key, by path (`NAME/BUCKET/KEY`) or by host
//! (`BUCKET.NAME/KEY`).

use std::borrow::Cow;
use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};

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
    pub(crate) fn target<'a>(&self, host: &'a str, path: &'a str) -> Target<'a> {
        let host = match without_port(host) {
            host if host.bytes().any(|byte| byte.is_ascii_uppercase()) => {
                Cow::Owned(host.to_ascii_lowercase())
            }
            host => Cow::Borrowed(host),
        };
        let Some(path) = path.strip_prefix('/') else { return Target::Unknown };
        let by_host =
            self.domains.iter().find_map(|domain| host.strip_suffix(domain.as_str())?.strip_suffix('.'));
        let (bucket, key) = match by_host.map(str::len) {
            Some(len) if len > 0 => (start(host, len), path),
            _ if self.domains.iter().any(|domain| *domain == *host) || is_local(&host) => {
                let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
                (Cow::Borrowed(bucket), key)
            }
            _ => return Target::Unknown,
        };
        match () {
            () if bucket.is_empty() && key.is_empty() => Target::Service,
            // Only the endpoint knows the meaning of such a bucket name.
            () if bucket.is_empty() || bucket.contains('%') || bucket.len() > BUCKET_BYTES_MAX => {
                Target::Unknown
            }
            () if key.is_empty() => Target::Bucket(bucket),
            () if !is_encoded_well(key) => Target::IllEncoded(bucket),
            () => Target::Object(bucket, percent_decode_str(key).into()),
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

impl Target<'_> {
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

fn start(text: Cow<'_, str>, len: usize) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[..len]),
        Cow::Owned(text) => Cow::Owned(text[..len].to_owned()),
    }
}

/// Returns whether a host, in lower case and without a port, cannot contain a bucket.
fn is_local(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host == "localhost" || address.parse::<IpAddr>().is_ok()
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Returns whether each `%` is followed by two hexadecimal digits.
fn is_encoded_well(key: &str) -> bool {
    let is_hex = |text: &str| text.len() >= 2 && text.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    key.split('%').skip(1).all(is_hex)
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
}
