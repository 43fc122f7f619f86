//! What a bucket has for itself: a share of the memory for bodies, and limits of what is asked of the endpoint for it.

use std::collections::HashSet;

use blocker::{Namespace, NamespaceKey, WriteMode};
use cached_core::object::NamespaceConfig;

/// The terms of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketTerms {
    /// The name of the bucket.
    pub bucket: String,
    /// Memory for bodies that other buckets cannot take from it as long as it uses it, in bytes.
    pub memory_bytes_min: Option<u64>,
    /// The most memory for its bodies, in bytes.
    pub memory_bytes_max: Option<u64>,
    /// How much a miss of it counts beside a miss of the others, when memory goes to where it gains most.
    pub memory_weight: Option<u32>,
    /// The most requests to the endpoint a second.
    pub requests_per_second_max: Option<u64>,
    /// The most bytes of bodies to and from the endpoint a second.
    pub bytes_per_second_max: Option<u64>,
}

/// The highest rates: what is beyond them needs no limit.
const REQUESTS_PER_SECOND_MAX: u64 = 10_000_000;
const BYTES_PER_SECOND_MAX: u64 = 1 << 40;

/// The least rate of bytes: a bucket of memory.
const BYTES_PER_SECOND_MIN: u64 = 4096;

impl BucketTerms {
    /// Returns what the object cache is to know of the bucket; `None` if it has no share of the memory.
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
        // Nothing is ever written to it.
        let config = NamespaceConfig::new(name, WriteMode::Through);
        Some(shares.into_iter().fold(config, |config, (key, value)| config.with(key, value)))
    }
}

/// Checks what buckets have for themselves, as far as the memory has no part in it.
///
/// # Errors
/// The first that cannot be meant, in one line.
pub(crate) fn check(all: &[BucketTerms]) -> Result<(), String> {
    let mut names = HashSet::new();
    for terms in all {
        let bucket = &terms.bucket;
        if !names.insert(bucket) {
            return Err(format!("has shares and rates of bucket {bucket:?} twice; once is right"));
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

    #[test]
    fn terms_that_cannot_be_meant_are_refused() {
        let of = |bucket: &str| BucketTerms { bucket: bucket.into(), ..BucketTerms::default() };
        let requests = |rate| BucketTerms { requests_per_second_max: Some(rate), ..of("a") };
        let bytes = |rate| BucketTerms { bytes_per_second_max: Some(rate), ..of("a") };
        assert_eq!(check(&[of("a"), of("b"), requests(1)][1..]), Ok(()));
        for (terms, word) in [
            (vec![of("a"), of("a")], "twice"),
            (vec![requests(0)], "between 1 and"),
            (vec![requests(10_000_001)], "between 1 and"),
            (vec![bytes(4095)], "between 4096 and"),
        ] {
            assert!(check(&terms).unwrap_err().contains(word), "{word}");
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
