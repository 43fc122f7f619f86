//! `[[s3.buckets]]`, and the keys of `[s3]` that hold for objects without one: for how long what is known answers reads, and what
//! a bucket has for itself.

use cached_config::Size;
use s3_sidecar::{BucketTerms, CachePolicy, Fresh, Rule};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// For how long what is known of an object answers reads: seconds, or `"immutable"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "it must be a number of seconds or \"immutable\"")]
pub enum FreshSecs {
    /// For so many seconds; 0 to ask the endpoint at each read.
    Secs(u64),
    /// For ever.
    Word(FreshWord),
}

/// A word in place of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FreshWord {
    /// Until a change passes through the sidecar or is announced to it.
    Immutable,
}

/// A table of `[[s3.buckets]]`. What it does not have is as in `[s3]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct BucketTable {
    /// The name of the bucket.
    pub name: String,
    /// The beginning of the keys that it holds for; the longest one decides.
    #[serde(default)]
    pub prefix: String,
    /// For how long what is known answers reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fresh_secs: Option<FreshSecs>,
    /// For how long beyond that it answers while the endpoint is away, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_if_error_secs: Option<u64>,
    /// For how long it is remembered that an object is not there, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub negative_secs: Option<u64>,
    /// Whether anything is kept.
    #[serde(default = "yes")]
    pub caches: bool,
    /// Memory for bodies that the other buckets cannot take from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes_min: Option<Size>,
    /// The most memory for its bodies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes_max: Option<Size>,
    /// How much its misses count beside those of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_weight: Option<u32>,
    /// The most requests to the endpoint a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_requests_per_second_max: Option<u64>,
    /// The most bytes to and from the endpoint a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_bytes_per_second_max: Option<Size>,
}

fn yes() -> bool {
    true
}

impl From<FreshSecs> for Fresh {
    fn from(secs: FreshSecs) -> Fresh {
        match secs {
            FreshSecs::Secs(secs) => Fresh::For(Duration::from_secs(secs)),
            FreshSecs::Word(FreshWord::Immutable) => Fresh::Immutable,
        }
    }
}

/// Returns the policy that three keys make.
pub(super) fn policy(fresh: FreshSecs, stale_if_error_secs: u64, negative_secs: u64) -> CachePolicy {
    let (stale_if_error, negative) =
        (Duration::from_secs(stale_if_error_secs), Duration::from_secs(negative_secs));
    CachePolicy { fresh: fresh.into(), stale_if_error, negative, caches: true }
}

impl BucketTable {
    /// Returns the rule that the table makes; `defaults` holds for what it does not have.
    pub(super) fn rule(&self, defaults: &CachePolicy) -> Rule {
        let secs = |secs: Option<u64>, other: Duration| secs.map_or(other, Duration::from_secs);
        let policy = CachePolicy {
            fresh: self.fresh_secs.map_or(defaults.fresh, Fresh::from),
            stale_if_error: secs(self.stale_if_error_secs, defaults.stale_if_error),
            negative: secs(self.negative_secs, defaults.negative),
            caches: self.caches,
        };
        Rule { bucket: self.name.clone(), prefix: self.prefix.clone(), policy }
    }

    /// Returns what the bucket has for itself; a table with a prefix states nothing of that.
    pub(super) fn terms(&self) -> Option<BucketTerms> {
        self.prefix.is_empty().then(|| BucketTerms {
            bucket: self.name.clone(),
            memory_bytes_min: self.memory_bytes_min.map(|size| size.0),
            memory_bytes_max: self.memory_bytes_max.map(|size| size.0),
            memory_weight: self.memory_weight,
            requests_per_second_max: self.upstream_requests_per_second_max,
            bytes_per_second_max: self.upstream_bytes_per_second_max.map(|size| size.0),
        })
    }

    /// Returns the first key that concerns the bucket as a whole and stands in a table with a prefix.
    pub(super) fn misplaced(&self) -> Option<&'static str> {
        let of_bucket = [
            ("memory_bytes_min", self.memory_bytes_min.is_some()),
            ("memory_bytes_max", self.memory_bytes_max.is_some()),
            ("memory_weight", self.memory_weight.is_some()),
            ("upstream_requests_per_second_max", self.upstream_requests_per_second_max.is_some()),
            ("upstream_bytes_per_second_max", self.upstream_bytes_per_second_max.is_some()),
        ];
        let mut set = of_bucket.into_iter().filter(|(_, is_set)| *is_set && !self.prefix.is_empty());
        set.next().map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::s3::{AuthName, S3Table};
    use super::*;

    fn table(lines: &str) -> Result<S3Table, String> {
        let text = format!("upstream = \"http://a\"\nauth = \"none\"\n{lines}");
        toml::from_str(&text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_table_of_a_bucket_has_what_it_lacks_from_the_whole() {
        let read = table(
            "fresh_secs = 60\nnegative_secs = 5\n[[buckets]]\nname = \"a\"\nprefix = \"x/\"\nfresh_secs = \"immutable\"\n\
             [[buckets]]\nname = \"b\"\nstale_if_error_secs = 7\ncaches = false\n",
        );
        let read = read.unwrap();
        assert!(read.check().is_ok());
        let (default, rules) = read.policies();
        let secs = Duration::from_secs;
        let whole = CachePolicy {
            fresh: Fresh::For(secs(60)),
            stale_if_error: secs(0),
            negative: secs(5),
            caches: true,
        };
        assert_eq!(default, whole);
        let first = CachePolicy { fresh: Fresh::Immutable, ..whole };
        let second = CachePolicy { stale_if_error: secs(7), caches: false, ..whole };
        let rule = |bucket: &str, prefix: &str, policy| Rule {
            bucket: bucket.into(),
            prefix: prefix.into(),
            policy,
        };
        assert_eq!(rules, [rule("a", "x/", first), rule("b", "", second)]);
        assert_eq!(read.terms().len(), 1);
        // It is written as it is read.
        let again: S3Table = toml::from_str(&toml::to_string(&read).unwrap()).unwrap();
        assert_eq!(again, read);
    }

    #[test]
    fn a_table_states_what_a_bucket_has_for_itself() {
        let read = table(
            "[[buckets]]\nname = \"a\"\nmemory_bytes_min = \"8 MiB\"\nmemory_bytes_max = \"16 MiB\"\nmemory_weight = 3\n\
             upstream_requests_per_second_max = 5\nupstream_bytes_per_second_max = \"1 MiB\"\n\
             [[buckets]]\nname = \"a\"\nprefix = \"x\"\n",
        );
        let read = read.unwrap();
        assert!(read.check().is_ok());
        let terms = BucketTerms {
            bucket: "a".into(),
            memory_bytes_min: Some(8 << 20),
            memory_bytes_max: Some(16 << 20),
            memory_weight: Some(3),
            requests_per_second_max: Some(5),
            bytes_per_second_max: Some(1 << 20),
        };
        assert_eq!(read.terms(), [terms]);
        let again: S3Table = toml::from_str(&toml::to_string(&read).unwrap()).unwrap();
        assert_eq!(again, read);
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        for (lines, words) in [
            ("fresh_secs = \"never\"", "it must be a number of seconds or \"immutable\""),
            ("fresh_secs = -1", "it must be a number of seconds or \"immutable\""),
            ("[[buckets]]\nprefix = \"x\"", "name"),
            ("[[buckets]]\nname = \"x\"\nfresh = 1", "fresh"),
        ] {
            let error = table(lines).unwrap_err();
            assert!(error.contains(words), "{lines}: {error}");
        }
        for (lines, key) in [
            ("[[buckets]]\nname = \"\"", "s3.buckets"),
            ("[[buckets]]\nname = \"a\"\n[[buckets]]\nname = \"a\"", "s3.buckets"),
            ("[[buckets]]\nname = \"a\"\nprefix = \"x\"\nmemory_weight = 1", "s3.buckets"),
            ("[[buckets]]\nname = \"a\"\nmemory_weight = 0", "s3.buckets"),
            ("[[buckets]]\nname = \"a\"\nmemory_bytes_min = \"1 GiB\"", "s3.buckets"),
            ("[[buckets]]\nname = \"a\"\nupstream_requests_per_second_max = 0", "s3.buckets"),
            ("[[buckets]]\nname = \"a\"\nupstream_bytes_per_second_max = 1", "s3.buckets"),
            ("negative_max = 0", "s3.negative_max"),
            ("fresh_secs = 999999999999", "s3.fresh_secs"),
        ] {
            assert_eq!(table(lines).unwrap().check().unwrap_err().key, key, "{lines}");
        }
        let error =
            S3Table { auth: AuthName::Gateway, ..table("fresh_secs = 1").unwrap() }.check().unwrap_err();
        assert_eq!(error.key, "s3.fresh_secs");
        assert!(error.why.contains("auth = \"listener\""), "{}", error.why);
    }
}
