//! Policies of buckets and prefixes, which decide how long remembered objects are served without
//! the endpoint; and the terms of buckets: their shares of the memory and of the endpoint.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use blocker::{Namespace, NamespaceKey, WriteMode};
use cached_core::object::NamespaceConfig;

/// The time for which a remembered object is served without the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fresh {
    /// For this long after the endpoint was asked. Zero means that the endpoint is asked for each
    /// read.
    For(Duration),
    /// Forever, until a change passes through the sidecar or is announced to it.
    Immutable,
}

/// The policy by which reads of some objects are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachePolicy {
    /// The time for which a remembered object is fresh.
    pub fresh: Fresh,
    /// The additional time for which the object is used while the endpoint is unreachable.
    pub stale_if_error: Duration,
    /// The time for which an object is remembered as missing.
    pub negative: Duration,
    /// Whether anything is kept at all.
    pub caches: bool,
}

impl Default for CachePolicy {
    fn default() -> Self {
        let none = Duration::ZERO;
        Self { fresh: Fresh::For(none), stale_if_error: none, negative: none, caches: true }
    }
}

/// The policy of a bucket's objects with a key prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The name of the bucket.
    pub bucket: String,
    /// The prefix, which is empty for all keys. The longest matching prefix decides.
    pub prefix: String,
    /// The policy.
    pub policy: CachePolicy,
}

/// The policies: rules for buckets and prefixes, and a default.
#[derive(Clone, Debug)]
pub(crate) struct Policies {
    default: CachePolicy,
    /// The prefixes of each bucket, the longest first.
    buckets: HashMap<String, Vec<(Vec<u8>, CachePolicy)>>,
}

impl Policies {
    /// Returns the policies of these rules.
    ///
    /// # Errors
    /// A one-line message about the first contradictory rule.
    pub(crate) fn new(default: CachePolicy, rules: &[Rule]) -> Result<Self, String> {
        let mut buckets: HashMap<String, Vec<(Vec<u8>, CachePolicy)>> = HashMap::new();
        for Rule { bucket, prefix, policy } in rules {
            let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            if bucket.is_empty() || !bucket.bytes().all(is_of_name) {
                return Err(format!(
                    "{bucket:?} is not a bucket name; expected a name such as media or my.bucket-1"
                ));
            }
            if rules.len() > RULES_MAX {
                return Err(format!("has {} rules; at most {RULES_MAX} are allowed", rules.len()));
            }
            let prefixes = buckets.entry(bucket.clone()).or_default();
            if prefixes.iter().any(|(other, _)| other == prefix.as_bytes()) {
                return Err(format!("has bucket {bucket:?} with prefix {prefix:?} twice"));
            }
            prefixes.push((prefix.as_bytes().to_vec(), *policy));
        }
        for prefixes in buckets.values_mut() {
            // No two of the same length hold for a key.
            prefixes.sort_unstable_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        }
        Ok(Self { default, buckets })
    }

    /// Returns the policy of an object: the rule of its bucket with the longest prefix of its key.
    pub(crate) fn of(&self, bucket: &str, key: &[u8]) -> CachePolicy {
        let rules = self.buckets.get(bucket).into_iter().flatten();
        let mut matching = rules.filter(|(prefix, _)| key.starts_with(prefix));
        matching.next().map_or(self.default, |(_, policy)| *policy)
    }
}

/// The maximum number of rules. Each read of an object checks the rules of its bucket.
const RULES_MAX: usize = 1024;

impl Fresh {
    /// Returns whether an object is still fresh if the endpoint was asked `age` ago.
    pub(crate) fn holds(self, age: Duration) -> bool {
        match self {
            Fresh::For(time) => age < time,
            Fresh::Immutable => true,
        }
    }
}

impl CachePolicy {
    /// Returns whether an object of this age may be used while the endpoint is unreachable.
    pub(crate) fn is_usable_without_endpoint(&self, age: Duration) -> bool {
        match self.fresh {
            Fresh::For(time) => {
                age < time.saturating_add(self.stale_if_error) && !self.stale_if_error.is_zero()
            }
            Fresh::Immutable => true,
        }
    }
}

/// The terms of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketTerms {
    /// The name of the bucket.
    pub bucket: String,
    /// The amount of memory for bodies, in bytes, that other buckets cannot take from the bucket as
    /// long as it uses that memory.
    pub memory_bytes_min: Option<u64>,
    /// The maximum memory for the bucket's bodies, in bytes.
    pub memory_bytes_max: Option<u64>,
    /// The weight of the bucket's misses, relative to those of other buckets, when memory moves to
    /// the bucket that gains most.
    pub memory_weight: Option<u32>,
    /// The maximum number of requests to the endpoint per second.
    pub requests_per_second_max: Option<u64>,
    /// The maximum number of body bytes to and from the endpoint per second.
    pub bytes_per_second_max: Option<u64>,
}

/// The maximum rate of requests. Above this rate no limit is needed.
const REQUESTS_PER_SECOND_MAX: u64 = 10_000_000;
const BYTES_PER_SECOND_MAX: u64 = 1 << 40;

/// The minimum byte rate: one bucket of memory.
const BYTES_PER_SECOND_MIN: u64 = 4096;

impl BucketTerms {
    /// Returns the bucket's settings in the object cache, or `None` if it has no share of the
    /// memory.
    pub(crate) fn namespace(&self) -> Option<NamespaceConfig> {
        let shares = [
            (NamespaceKey::MemoryBytesMin, self.memory_bytes_min),
            (NamespaceKey::MemoryBytesMax, self.memory_bytes_max),
            (NamespaceKey::MemoryWeight, self.memory_weight.map(u64::from)),
        ];
        if shares.iter().all(|(_, value)| value.is_none()) {
            return None;
        }
        let name = Namespace::copy_from(self.bucket.as_bytes()).ok()?;
        // Clients never write to the cache.
        let config = NamespaceConfig::new(name, WriteMode::Through);
        Some(shares.into_iter().fold(config, |config, (key, value)| config.with(key, value)))
    }
}

/// Checks the terms of buckets, except for the memory.
///
/// # Errors
/// A one-line message about the first contradictory terms.
pub(crate) fn check_terms(all: &[BucketTerms]) -> Result<(), String> {
    let mut names = HashSet::new();
    for terms in all {
        let bucket = &terms.bucket;
        if !names.insert(bucket) {
            return Err(format!("has shares and rates of bucket {bucket:?} twice"));
        }
        for (key, rate, least, most) in [
            ("upstream_requests_per_second_max", terms.requests_per_second_max, 1, REQUESTS_PER_SECOND_MAX),
            (
                "upstream_bytes_per_second_max",
                terms.bytes_per_second_max,
                BYTES_PER_SECOND_MIN,
                BYTES_PER_SECOND_MAX,
            ),
        ] {
            if let Some(rate) = rate.filter(|rate| !(least..=most).contains(rate)) {
                return Err(format!(
                    "has {key} = {rate} for bucket {bucket:?}; it must be between {least} and {most}"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(secs: u64) -> CachePolicy {
        CachePolicy { fresh: Fresh::For(Duration::from_secs(secs)), ..CachePolicy::default() }
    }

    fn rule(bucket: &str, prefix: &str, secs: u64) -> Rule {
        Rule { bucket: bucket.into(), prefix: prefix.into(), policy: fresh(secs) }
    }

    #[test]
    fn the_longest_prefix_of_the_bucket_decides() {
        let rules = [rule("a", "x/", 2), rule("a", "x/y", 3), rule("a", "", 1), rule("b", "x/", 4)];
        let policies = Policies::new(fresh(9), &rules).unwrap();
        for (bucket, key, secs) in [
            ("a", "x/y/z", 3),
            ("a", "x/z", 2),
            ("a", "z", 1),
            ("b", "x/y", 4),
            ("b", "y", 9),
            ("c", "x/y", 9),
        ] {
            assert_eq!(policies.of(bucket, key.as_bytes()), fresh(secs), "{bucket}/{key}");
        }
    }

    #[test]
    fn rules_that_cannot_be_meant_are_refused() {
        for (rules, word) in [
            (vec![rule("", "", 1)], "not a bucket name"),
            (vec![rule("a/b", "", 1)], "not a bucket name"),
            (vec![rule("a", "x", 1), rule("a", "x", 2)], "twice"),
            ((0..=RULES_MAX).map(|number| rule("a", &number.to_string(), 1)).collect(), "at most"),
        ] {
            assert!(Policies::new(fresh(0), &rules).unwrap_err().contains(word), "{word}");
        }
    }

    #[test]
    fn times_end_when_they_are_over() {
        let secs = Duration::from_secs;
        let policy = CachePolicy { stale_if_error: secs(5), ..fresh(10) };
        assert!(policy.fresh.holds(Duration::from_nanos(9_999_999_999)) && !policy.fresh.holds(secs(10)));
        assert!(policy.is_usable_without_endpoint(secs(14)) && !policy.is_usable_without_endpoint(secs(15)));
        assert!(!fresh(10).is_usable_without_endpoint(secs(11)) && !fresh(0).fresh.holds(Duration::ZERO));
        let never = CachePolicy { fresh: Fresh::Immutable, ..policy };
        assert!(never.fresh.holds(secs(1 << 40)) && never.is_usable_without_endpoint(secs(1 << 40)));
    }

    #[test]
    fn terms_that_cannot_be_meant_are_refused() {
        let of = |bucket: &str| BucketTerms { bucket: bucket.into(), ..BucketTerms::default() };
        let requests = |rate| BucketTerms { requests_per_second_max: Some(rate), ..of("a") };
        let bytes = |rate| BucketTerms { bytes_per_second_max: Some(rate), ..of("a") };
        assert_eq!(check_terms(&[of("a"), of("b"), requests(1)][1..]), Ok(()));
        for (terms, word) in [
            (vec![of("a"), of("a")], "twice"),
            (vec![requests(0)], "between 1 and"),
            (vec![requests(10_000_001)], "between 1 and"),
            (vec![bytes(4095)], "between 4096 and"),
        ] {
            assert!(check_terms(&terms).unwrap_err().contains(word), "{word}");
        }
    }

    #[test]
    fn only_what_concerns_the_memory_makes_a_share() {
        let of = BucketTerms { bucket: "a".into(), ..BucketTerms::default() };
        assert!(of.namespace().is_none());
        let limited = BucketTerms { requests_per_second_max: Some(1), ..of.clone() };
        assert!(limited.namespace().is_none());
        let weighted = BucketTerms { memory_weight: Some(2), ..of };
        assert_eq!(weighted.namespace().unwrap().settings.number(NamespaceKey::MemoryWeight), Some(2));
    }
}
