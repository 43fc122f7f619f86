//! The rights of a key: reads and writes in buckets, or under key prefixes.

use crate::http::target::{holds_for, plain_prefix};

/// The scope of a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Every bucket, except names that have a special meaning for some endpoints.
    Everywhere,
    /// Keys of a bucket with this prefix.
    In { bucket: String, prefix: Vec<u8> },
}

/// First path segments that some endpoints use for administration instead of buckets.
const RESERVED: [&str; 6] = ["admin", "minio", "swift", "auth", "rgw", "crossdomain.xml"];

/// Returns whether the name of a bucket has a special meaning for some endpoints.
pub(crate) fn is_reserved(bucket: &str) -> bool {
    RESERVED.contains(&bucket)
}

/// Returns whether a string is a valid bucket name.
pub(crate) fn is_bucket(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let ends = |end: Option<u8>| end.is_some_and(|byte| byte.is_ascii_alphanumeric());
    (3..=255).contains(&name.len())
        && name.bytes().all(is_letter)
        && ends(name.bytes().next())
        && ends(name.bytes().last())
        && !name.contains("..")
}

impl Place {
    /// Parses a scope: `*`, `BUCKET` or `BUCKET/PREFIX`.
    ///
    /// # Errors
    /// The mistake in the string.
    pub(crate) fn parse(text: &str) -> Result<Place, String> {
        if text == "*" {
            return Ok(Place::Everywhere);
        }
        let (bucket, prefix) = text.split_once('/').unwrap_or((text, ""));
        if !is_bucket(bucket) || is_reserved(bucket) {
            return Err(format!("{text:?} is not a scope; expected \"BUCKET\", \"BUCKET/PREFIX\" or \"*\""));
        }
        if prefix.contains('*') {
            return Err(format!("{text:?} has a *, which is not a wildcard here; a prefix needs none"));
        }
        if *plain_prefix(prefix.as_bytes()) != *prefix.as_bytes() {
            return Err(format!(
                "{text:?} has an empty, \".\" or \"..\" segment, which some endpoints drop; use a prefix without such segments"
            ));
        }
        Ok(Place::In { bucket: bucket.into(), prefix: prefix.into() })
    }

    /// Returns whether the scope has keys of a bucket.
    fn is_in(&self, bucket: &str) -> bool {
        match self {
            Place::Everywhere => true,
            Place::In { bucket: own, .. } => own == bucket,
        }
    }

    fn has(&self, bucket: &str, key: &[u8]) -> bool {
        match self {
            Place::Everywhere => true,
            Place::In { bucket: own, prefix } => own == bucket && key.starts_with(prefix),
        }
    }
}

/// The scopes of a key's rights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) read: Vec<Place>,
    pub(crate) write: Vec<Place>,
}

impl Rights {
    /// Returns all rights.
    #[cfg(test)]
    pub(crate) fn all() -> Rights {
        Rights { read: vec![Place::Everywhere], write: vec![Place::Everywhere] }
    }

    /// Returns whether a key, or every key with this prefix, may be read. This includes every
    /// object that an endpoint may access under the name.
    pub(crate) fn may_read(&self, bucket: &str, key: &[u8]) -> bool {
        holds_for(key, |form| self.read.iter().any(|place| place.has(bucket, form)))
    }

    /// Returns whether a key may be written. This includes every object that an endpoint may access
    /// under the name.
    pub(crate) fn may_write(&self, bucket: &str, key: &[u8]) -> bool {
        holds_for(key, |form| self.write.iter().any(|place| place.has(bucket, form)))
    }

    /// Returns whether every key of the bucket may be written.
    pub(crate) fn may_write_all(&self, bucket: &str) -> bool {
        self.write.iter().any(|place| place.has(bucket, b""))
    }

    /// Returns whether all operations are allowed in a bucket.
    pub(crate) fn has_bucket(&self, bucket: &str) -> bool {
        self.may_write_all(bucket) && self.may_read(bucket, b"")
    }

    /// Returns whether any operation is allowed in a bucket.
    pub(crate) fn touches(&self, bucket: &str) -> bool {
        self.read.iter().chain(&self.write).any(|place| place.is_in(bucket))
    }

    /// Returns whether any write is allowed in a bucket.
    pub(crate) fn writes_in(&self, bucket: &str) -> bool {
        self.write.iter().any(|place| place.is_in(bucket))
    }

    /// Returns whether every bucket may be read.
    pub(crate) fn may_read_everywhere(&self) -> bool {
        self.read.contains(&Place::Everywhere)
    }

    /// Returns whether all operations are allowed everywhere.
    pub(crate) fn is_all(&self) -> bool {
        self.may_read_everywhere() && self.write.contains(&Place::Everywhere)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(read: &[&str], write: &[&str]) -> Rights {
        let places = |texts: &[&str]| texts.iter().map(|text| Place::parse(text).unwrap()).collect();
        Rights { read: places(read), write: places(write) }
    }

    #[test]
    fn rights_hold_where_they_are_given() {
        let some = rights(&["public", "logs/2024/"], &["inbox/new-"]);
        assert!(some.may_read("public", b"x") && some.may_read("public", b""));
        assert!(
            some.may_read("logs", b"2024/x")
                && !some.may_read("logs", b"2024")
                && !some.may_read("logs", b"")
        );
        assert!(!some.may_read("inbox", b"new-1") && some.may_write("inbox", b"new-1"));
        for (key, may) in [
            (&b"2024//x"[..], true),
            (b"2024/", true),
            (b"2024/x/", true),
            (b"/2024/x", false),
            (b"2024", false),
            (b"2024/./x", false),
            (b"2024/../x", false),
        ] {
            assert_eq!(some.may_read("logs", key), may, "{key:?}");
        }
        assert!(!some.may_write("inbox", b"old") && !some.may_write("public", b"x"));
        assert!(!some.may_read("publi", b"c/x") && !some.may_read("public2", b"x"));
        assert!(some.touches("logs") && some.touches("inbox") && !some.touches("other"));
        assert!(!some.has_bucket("public") && !some.may_write_all("inbox"));
        let whole = rights(&["b11", "*"], &["b11"]);
        assert!(whole.has_bucket("b11") && !whole.has_bucket("other") && whole.may_read_everywhere());
        assert!(!whole.is_all() && Rights::all().is_all());
    }

    #[test]
    fn places_that_are_none_are_refused() {
        for wrong in [
            "",
            "/",
            "/x",
            "ab",
            "a*",
            "bucket/*",
            "*/x",
            "a b c",
            "..",
            "...",
            "a..b",
            "admin",
            "minio/x",
            "-ab",
            "bucket/a//b",
            "bucket//",
            "bucket/./",
            "bucket/a/..",
        ] {
            assert!(Place::parse(wrong).is_err(), "{wrong}");
        }
    }
}
