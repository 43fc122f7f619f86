//! What is reported: plain values, for JSON, statistics and metrics.

use serde::Serialize;

/// The miss ratio that the cache would have with other amounts of memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MissRatioCurve {
    /// The memory that the cache has, in bytes.
    pub memory_bytes: u64,
    /// The time for which requests have been counted, in seconds: the last ten to twenty minutes.
    pub since_secs: u32,
    /// The number of requests in that time.
    pub requests: u64,
    /// The share of them that missed in the cache itself, 0 to 1.
    pub counted_miss_ratio: f64,
    /// The number of requests that were simulated.
    pub sampled_requests: u64,
    /// The share of all names that are sampled, 0 to 1.
    pub sampled_share: f64,
    /// The number of samples lost since the start because a queue was full.
    pub dropped_samples: u64,
    /// False while the simulated caches are being filled: nothing is counted then.
    pub is_warm: bool,
    /// One point for each amount of memory, rising.
    pub points: Vec<CurvePoint>,
    /// The same by namespace, those with the most requests first.
    pub namespaces: Vec<NamespaceShare>,
}

/// The predicted miss ratio with one amount of memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CurvePoint {
    /// The memory as a multiple of the cache's.
    pub factor: f64,
    /// The memory in bytes.
    pub memory_bytes: u64,
    /// The share of requests that would miss, 0 to 1.
    pub miss_ratio: f64,
}

/// What one namespace has of the cache, estimated from the samples.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NamespaceShare {
    /// The namespace: a key's prefix, or that of objects. `None` for all that are not counted apart.
    pub namespace: Option<String>,
    /// The number of requests.
    pub requests: u64,
    /// The number of those that missed.
    pub misses: u64,
    /// The bytes of its entries.
    pub entry_bytes: u64,
    /// Its miss ratios, if the cache as a whole had these amounts of memory.
    pub points: Vec<CurvePoint>,
}

/// The number of misses by their reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MissesByReason {
    /// The name was never stored, or so long ago that it is not remembered.
    pub never_seen: u64,
    /// The entry had expired.
    pub expired: u64,
    /// The entry was evicted.
    pub evicted: u64,
    /// The entry was flushed.
    pub flushed: u64,
    /// The entry was deleted.
    pub deleted: u64,
    /// The number of sampled misses from which the reasons are estimated, as far as the engine does not know
    /// them.
    pub sampled: u64,
}

/// The names that are asked for most, of the last five to ten minutes.
#[derive(Debug, Clone, PartialEq)]
pub struct HotNames {
    /// The names, the hottest first.
    pub names: Vec<Hot>,
    /// The groups of names, the hottest first.
    pub groups: Vec<Hot>,
    /// The number of sampled requests.
    pub sampled: u64,
    /// The number of samples lost since the start because another thread was counting.
    pub dropped: u64,
    /// The number of all requests per second.
    pub per_sec: f64,
}

/// A key, or a prefix of keys, that is asked for often; or an object, or a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hot {
    /// The key or the prefix.
    pub name: Box<[u8]>,
    /// The number of sampled requests for it, at most.
    pub count: u64,
    /// By how much that may be too high.
    pub error: u64,
}

/// Sizes, idle times and remaining lifetimes of entries, from a sample.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ItemShape {
    /// The number of items looked at.
    pub sampled: u64,
    /// Bytes of an item with its header: the number of items with at most 2^n bytes and more than half of
    /// that, from n = 0.
    pub sizes: Vec<u64>,
    /// Seconds since the last use, the same way; the first has those used in this second.
    pub idle_secs: Vec<u64>,
    /// Seconds since the item was stored, or last kept by an eviction, to within the time in which a region
    /// fills; the same way.
    pub age_secs: Vec<u64>,
    /// Seconds until the item expires, the same way.
    pub ttl_secs: Vec<u64>,
    /// The number of items that never expire.
    pub without_expiry: u64,
    /// The number of items that have been read since they were stored.
    pub fetched: u64,
}
