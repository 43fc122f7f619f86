//! The configuration of an object cache, its validation, and the numeric IDs of namespaces and of
//! their memory shares.

use std::time::Duration;

use blocker::{
    BUCKET_BYTES, Capabilities, Durability, Epoch, Namespace, NamespaceKey, NamespaceSettings,
    OBJECT_BYTES_MAX_DEFAULT, WriteMode, WriterId,
};
use serde::{Deserialize, Serialize};

use super::store::StoreTerms;
use crate::arena::MemoryRange;
use crate::insight::Sampling;
use crate::policy;

/// The largest object size, in bytes, that a cache can be configured for: the index of a bucket in
/// its object is a 16-bit number.
pub const OBJECT_BYTES_LIMIT: u64 = BUCKET_BYTES << 16;

/// The party that acts as the writer towards the store: the writer claims epochs and stamps
/// changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Writer {
    /// The callers: their stamps and claims are forwarded to the store.
    #[default]
    Callers,
    /// The cache itself: it claims every namespace that it changes with a new epoch and stamps
    /// every change that it sends, so that a cache that has been replaced can do no harm. Stamps
    /// and claims of callers are refused as `Unsupported`.
    Cache,
    /// The cache itself, for as long as it leads in an election among several hosts
    /// ([`ObjectCacheConfig::leadership`]). As with `Cache`, but every namespace is claimed with the
    /// epoch of the leadership, before the first request to the store that reads or changes
    /// something in the namespace. If another leader has taken over, the cache refuses everything
    /// that needs the store, in all namespaces, for good.
    Elected,
}

/// A leadership in an election of the one writer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leadership {
    /// The epoch, which no other leadership has.
    pub epoch: Epoch,
    /// The identity with which the epoch is claimed.
    pub writer: WriterId,
    /// The namespace with the records of the election itself, which all hosts change: the cache
    /// neither claims it nor serves it.
    pub records: Option<Namespace>,
}

/// The configuration of a single namespace.
#[derive(Clone, Debug)]
pub struct NamespaceConfig {
    /// The namespace.
    pub namespace: Namespace,
    /// Whether changes of the namespace are logged. `None`: they are logged if the namespace is in
    /// write-back mode at the start and the cache has a journal.
    pub journal: Option<bool>,
    /// The minimum durability of an acknowledgement: *cached* or *journaled*.
    pub durability: Durability,
    /// The settings that can change while the cache runs. At most [`MEMORY_SHARES_MAX`] namespaces
    /// can have a share of the memory.
    ///
    /// The usage of a quota is found by listing the namespace once in the background, and then
    /// updated by every size change that goes through this cache. Size changes by other writers are
    /// found at the next count. A count begins at the start, after a change of the quota, and after
    /// a refusal, at most once a minute. Until the first count has ended, the quota is compared
    /// with the bytes counted so far.
    pub settings: NamespaceSettings,
}

/// The largest [`NamespaceKey::MemoryWeight`].
pub const MEMORY_WEIGHT_MAX: u32 = 1000;

impl NamespaceConfig {
    /// Returns a configuration that has only these settings, such as a write mode.
    #[must_use]
    pub fn new(namespace: Namespace, settings: impl Into<NamespaceSettings>) -> Self {
        Self { namespace, journal: None, durability: Durability::Cached, settings: settings.into() }
    }

    /// Returns this configuration with one setting changed.
    #[must_use]
    pub fn with(mut self, key: NamespaceKey, value: impl Into<Option<u64>>) -> Self {
        self.settings.set(key, value);
        self
    }

    /// Returns this configuration with other store terms. Limits and reservations that `terms` does
    /// not set are left to the other sources of settings.
    #[must_use]
    pub fn with_store_terms(self, terms: StoreTerms) -> Self {
        let without = StoreTerms::default();
        let burst = u64::try_from(terms.burst.as_millis()).unwrap_or(u64::MAX);
        let all = [
            (NamespaceKey::StoreRequestsPerSecondMax, terms.requests_per_second_max),
            (NamespaceKey::StoreBytesPerSecondMax, terms.bytes_per_second_max),
            (NamespaceKey::StoreRequestsPerSecondMin, terms.requests_per_second_min),
            (NamespaceKey::StoreWeight, (terms.weight != without.weight).then_some(terms.weight.into())),
            (NamespaceKey::StoreBurstMs, (terms.burst != without.burst).then_some(burst)),
        ];
        let set = all.into_iter().filter(|(_, value)| value.is_some());
        set.fold(self, |config, (key, value)| config.with(key, value))
    }

    /// Returns the namespace's own value of a setting, if any.
    pub(crate) fn own(&self, key: NamespaceKey) -> Option<u64> {
        self.settings.number(key)
    }

    /// Returns the namespace's store terms. A weight that is too large for its type becomes
    /// `u32::MAX`, which every check rejects.
    pub(crate) fn store_terms(&self) -> StoreTerms {
        let without = StoreTerms::default();
        let weight = self.own(NamespaceKey::StoreWeight);
        StoreTerms {
            requests_per_second_max: self.own(NamespaceKey::StoreRequestsPerSecondMax),
            bytes_per_second_max: self.own(NamespaceKey::StoreBytesPerSecondMax),
            requests_per_second_min: self.own(NamespaceKey::StoreRequestsPerSecondMin),
            weight: weight.map_or(without.weight, |weight| u32::try_from(weight).unwrap_or(u32::MAX)),
            burst: self.own(NamespaceKey::StoreBurstMs).map_or(without.burst, Duration::from_millis),
        }
    }

    /// Returns whether the namespace has its own share of the memory.
    pub(crate) fn has_own_memory(&self) -> bool {
        let keys = [NamespaceKey::MemoryBytesMin, NamespaceKey::MemoryBytesMax, NamespaceKey::MemoryWeight];
        keys.into_iter().any(|key| self.own(key).is_some())
    }
}

/// The configuration of an [`super::ObjectCache`]. All sizes are in bytes.
#[derive(Clone, Debug)]
pub struct ObjectCacheConfig {
    /// The memory for buckets, in bytes. The cache touches it only as it is used, and allocates it
    /// in whole regions of up to 1 MiB, at least four of them.
    pub memory_bytes_max: u64,
    /// The range in which an [`arbiter`](crate::arbiter) can change `memory_bytes_max` while the
    /// cache runs; `None`: the size is fixed. Dirty data, receive buffers and the minima of
    /// namespaces must always fit, so their limits are derived from the lower end of the range. A
    /// range requires a policy that remembers what it has evicted, and no huge pages.
    pub memory_range: Option<MemoryRange>,
    /// The maximum number of objects in the index, cached data or not: from 2 (a copy needs two) to
    /// 2^31. Each object takes about 340 bytes.
    pub objects_count_max: u32,
    /// The maximum size of an object, in bytes: a multiple of 4096, at most [`OBJECT_BYTES_LIMIT`]
    /// and at most what the store accepts.
    pub object_bytes_max: u64,
    /// The maximum amount of dirty data, in bytes; at most three quarters of the memory.
    pub dirty_bytes_max: u64,
    /// The maximum time that a change stays dirty before its flush begins.
    pub dirty_age_max: Duration,
    /// The maximum number of flush requests in flight.
    pub flush_requests_max: usize,
    /// Two dirty runs of an object are sent in a single request if the gap between them is no
    /// longer than this and is cached completely: stores that take as long for 4 KiB as for 64 KiB
    /// are drained many times faster. The gap is then rewritten with the data that were read
    /// earlier, which would undo a later write of another client. So this applies only if the cache
    /// itself is the [writer](Self::writer). 0: only dirty bytes are written.
    pub flush_gap_bytes_max: u64,
    /// The timeout of a flush request. When it expires, the outcome counts as unknown, and the
    /// cache asks the store what it has before it retries the flush.
    pub flush_timeout: Duration,
    /// The maximum number of store reads in flight.
    pub load_requests_max: usize,
    /// The maximum read-ahead for a client that reads sequentially, in bytes; at most an eighth of
    /// the memory. 0 disables read-ahead.
    pub read_ahead_bytes_max: u64,
    /// The cache does not read ahead while at least half of the store's recent responses took less
    /// than this: with a fast store, read-ahead costs more than it saves. 0: the latency does not
    /// matter.
    pub read_ahead_latency_min: Duration,
    /// A sequential run of reads of at least this many bytes, or a single read that large, is
    /// served but not cached. 0: all reads are cached.
    pub bypass_read_bytes_min: u64,
    /// A sequential run of writes of at least this many bytes, or a single write that large,
    /// bypasses the cache, whatever the write mode. 0 disables the bypass.
    pub bypass_write_bytes_min: u64,
    /// The initial delay before a failed flush is retried; it doubles with each further failure.
    pub retry_delay_min: Duration,
    /// The maximum delay before a failed flush is retried.
    pub retry_delay_max: Duration,
    /// The name of the eviction policy, one of [`policy::NAMES`].
    pub eviction_policy: String,
    /// The write mode of namespaces that have none of their own.
    pub write: WriteMode,
    /// Whether changes are logged in namespaces that `namespaces` does not name. `None`: they are
    /// logged if the namespace is in write-back mode at the start and the cache has a journal.
    pub journal: Option<bool>,
    /// The minimum durability of an acknowledgement in namespaces that `namespaces` does not name:
    /// *cached* or *journaled*.
    pub durability: Durability,
    /// The namespaces that have their own configuration.
    pub namespaces: Vec<NamespaceConfig>,
    /// Whether the cache is in the request path. If not, it is
    /// [detached](super::ObjectCache::detach_cache) from the start, as soon as the changes that an
    /// earlier process logged are stored.
    pub attached: bool,
    /// The party that acts as the writer towards the store.
    pub writer: Writer,
    /// The leadership of the cache; required with [`Writer::Elected`], and only there.
    pub leadership: Option<Leadership>,
    /// Whether to ask the kernel (`madvise`) for huge pages for the buckets. The index always asks
    /// for them.
    pub huge_pages: bool,
    /// Whether buckets can be [lent](super::ObjectCache::lend) to the kernel. If so, they are in
    /// small pages, and a lent bucket gets fresh pages from the system before it is reused. A
    /// segment of a read can then contain several adjacent buckets.
    pub lends_buckets: bool,
    /// The sample of buckets used to simulate other memory sizes
    /// ([`ObjectCache::miss_ratio_curve`](super::ObjectCache::miss_ratio_curve)); takes up to about
    /// 6 MiB.
    pub insight: Sampling,
    /// The seed of the hash of names and of versions, for tests that replay a run. `None` draws a
    /// random seed, which a cache of real data needs: its versions must be new after every start.
    pub hash_seed: Option<u64>,
}

impl Default for ObjectCacheConfig {
    fn default() -> Self {
        Self {
            memory_bytes_max: 256 << 20,
            memory_range: None,
            objects_count_max: 64 * 1024,
            object_bytes_max: OBJECT_BYTES_MAX_DEFAULT,
            dirty_bytes_max: 128 << 20,
            dirty_age_max: Duration::from_secs(30),
            flush_requests_max: 64,
            flush_gap_bytes_max: 64 << 10,
            flush_timeout: Duration::from_secs(60),
            load_requests_max: 256,
            read_ahead_bytes_max: 1 << 20,
            read_ahead_latency_min: Duration::from_micros(200),
            bypass_read_bytes_min: 0,
            bypass_write_bytes_min: 0,
            retry_delay_min: Duration::from_millis(50),
            retry_delay_max: Duration::from_secs(5),
            eviction_policy: policy::NAMES[0].into(),
            write: WriteMode::Through,
            journal: None,
            durability: Durability::Cached,
            namespaces: Vec::new(),
            attached: true,
            writer: Writer::Callers,
            leadership: None,
            huge_pages: false,
            lends_buckets: false,
            insight: Sampling::Off,
            hash_seed: None,
        }
    }
}

/// An invalid configuration: the key at fault, and what would be valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct ConfigError {
    /// The field of [`ObjectCacheConfig`] at fault.
    pub key: &'static str,
    /// The error in the value, and the valid values.
    pub why: String,
}

/// Returns an error about `key` if its value is not valid; `why` names the valid values.
pub(crate) fn ensure(
    is_valid: bool,
    key: &'static str,
    why: impl FnOnce() -> String,
) -> Result<(), ConfigError> {
    if is_valid { Ok(()) } else { Err(ConfigError { key, why: why() }) }
}

impl ObjectCacheConfig {
    /// Checks that this configuration can work with a store that has the capabilities `below`.
    ///
    /// # Errors
    /// The first invalid key.
    pub fn check(&self, below: &Capabilities) -> Result<(), ConfigError> {
        ensure(self.memory_bytes_max >= MEMORY_BYTES_MIN, "memory_bytes_max", || {
            format!("must be at least {MEMORY_BYTES_MIN}")
        })?;
        self.check_memory_range()?;
        ensure((2..=1 << 31).contains(&self.objects_count_max), "objects_count_max", || {
            "must be between 2, for a copy, and 2147483648".into()
        })?;
        let is_possible = (1..=OBJECT_BYTES_LIMIT).contains(&self.object_bytes_max);
        ensure(
            is_possible && self.object_bytes_max.is_multiple_of(BUCKET_BYTES),
            "object_bytes_max",
            || format!("must be a multiple of {BUCKET_BYTES} up to {OBJECT_BYTES_LIMIT}"),
        )?;
        ensure(self.object_bytes_max <= below.object_bytes_max, "object_bytes_max", || {
            format!("the store accepts objects of up to {} bytes", below.object_bytes_max)
        })?;
        let most = self.memory_bytes_min() / 4 * 3;
        ensure((BUCKET_BYTES..=most).contains(&self.dirty_bytes_max), "dirty_bytes_max", || {
            format!("must be between {BUCKET_BYTES} and {most}, three quarters of {}", self.minimum_key())
        })?;
        self.check_namespaces()?;
        self.check_memory_shares()?;
        ensure(self.flush_requests_max > 0, "flush_requests_max", || "must be at least 1".into())?;
        ensure(!self.flush_timeout.is_zero(), "flush_timeout", || "must be above 0".into())?;
        ensure(self.load_requests_max > 0, "load_requests_max", || "must be at least 1".into())?;
        let is_delay = !self.retry_delay_min.is_zero() && self.retry_delay_min <= self.retry_delay_max;
        ensure(is_delay, "retry_delay_min", || "must be above 0 and at most retry_delay_max".into())?;
        ensure(policy::by_name(&self.eviction_policy).is_some(), "eviction_policy", || {
            format!("must be one of {}", policy::NAMES.join(", "))
        })?;
        ensure(self.writer == Writer::Callers || below.fencing, "writer", || {
            "must be Callers, because the store below does not support fencing".into()
        })
    }

    /// Returns the minimum memory of the cache, in bytes.
    pub(crate) fn memory_bytes_min(&self) -> u64 {
        self.memory_range.map_or(self.memory_bytes_max, |range| range.bytes_min)
    }

    /// Returns the name of the minimum memory, for messages.
    fn minimum_key(&self) -> &'static str {
        if self.memory_range.is_some() { "the minimum memory of the cache" } else { "memory_bytes_max" }
    }

    /// Checks the range in which the memory can change.
    fn check_memory_range(&self) -> Result<(), ConfigError> {
        let Some(range) = self.memory_range else { return Ok(()) };
        let checked = range.check("memory_bytes_max", self.memory_bytes_max, MEMORY_BYTES_MIN);
        checked.map_err(|why| ConfigError { key: "memory_range", why })?;
        ensure(!self.huge_pages, "memory_range", || {
            "huge_pages must be false, because single buckets of a huge page cannot be released".into()
        })?;
        // `check` reports an unknown policy.
        let remembers = policy::by_name(&self.eviction_policy).is_none_or(|it| it.ghost_hits().is_some());
        ensure(remembers, "memory_range", || {
            format!(
                "\"{}\" does not remember what it has evicted; \"balanced\" and \"s3fifo\" do",
                self.eviction_policy
            )
        })
    }

    /// Checks the configuration of individual namespaces.
    fn check_namespaces(&self) -> Result<(), ConfigError> {
        let sum_of =
            |key| self.namespaces.iter().filter_map(|each| each.own(key)).fold(0, u64::saturating_add);
        let count = self.namespaces.len();
        ensure(count <= NAMESPACES_MAX, "namespaces", || {
            format!("{count} of them have settings of their own; {NAMESPACES_MAX} can have")
        })?;
        for each in &self.namespaces {
            let limit = each.own(NamespaceKey::DirtyBytesMax);
            ensure(limit.is_none_or(|limit| limit >= BUCKET_BYTES), "namespaces", || {
                format!("dirty_bytes_max of \"{}\" must be at least {BUCKET_BYTES}", each.namespace)
            })?;
            let terms = each.store_terms().check().map_err(|why| format!("\"{}\": {why}", each.namespace));
            terms.map_err(|why| ConfigError { key: "namespaces", why })?;
        }
        let (sum, most) = (sum_of(NamespaceKey::StoreRequestsPerSecondMin), StoreTerms::RATE_MAX);
        ensure(sum <= most, "namespaces", || {
            format!("their store_requests_per_second_min add up to {sum}; {most} can be reserved in total")
        })?;
        let (sum, most) = (sum_of(NamespaceKey::DirtyBytesMax), self.dirty_bytes_max - BUCKET_BYTES);
        ensure(sum <= most, "namespaces", || {
            format!(
                "their own dirty_bytes_max add up to {sum}; at most {most} of the {} in total are allowed, so that the \
                 other namespaces keep a share",
                self.dirty_bytes_max
            )
        })
    }

    /// Checks the namespaces' shares of the memory.
    fn check_memory_shares(&self) -> Result<(), ConfigError> {
        let own = || self.namespaces.iter().filter(|each| each.has_own_memory());
        let count = own().count();
        ensure(count <= MEMORY_SHARES_MAX, "namespaces", || {
            format!(
                "{count} of them have a share of the memory (memory_bytes_min, memory_bytes_max, memory_weight); \
                 {MEMORY_SHARES_MAX} can have"
            )
        })?;
        for each in own() {
            let name = &each.namespace;
            let min = each.own(NamespaceKey::MemoryBytesMin).unwrap_or(0);
            let max = each.own(NamespaceKey::MemoryBytesMax).unwrap_or(u64::MAX);
            ensure(max >= BUCKET_BYTES, "namespaces", || {
                format!("memory_bytes_max of \"{name}\" must be at least {BUCKET_BYTES}")
            })?;
            ensure(min <= max, "namespaces", || {
                format!("memory_bytes_min of \"{name}\" must not be above its memory_bytes_max")
            })?;
            let weight = each.own(NamespaceKey::MemoryWeight).unwrap_or(1);
            ensure((1..=u64::from(MEMORY_WEIGHT_MAX)).contains(&weight), "namespaces", || {
                format!("memory_weight of \"{name}\" must be between 1 and {MEMORY_WEIGHT_MAX}")
            })?;
        }
        let sizes = own().filter_map(|each| each.own(NamespaceKey::MemoryBytesMin));
        let (sum, most) = (sizes.fold(0, u64::saturating_add), self.memory_bytes_min() / 8 * 7);
        ensure(sum <= most, "namespaces", || {
            format!(
                "their memory_bytes_min add up to {sum}; they can have {most}, seven eighths of {}",
                self.minimum_key()
            )
        })
    }

    /// Returns the write mode of `namespace`.
    #[must_use]
    pub fn write_mode(&self, namespace: &Namespace) -> WriteMode {
        let own = self.namespaces.iter().find(|each| each.namespace == *namespace);
        own.and_then(|each| each.settings.write).unwrap_or(self.write)
    }
}

/// The minimum memory of a cache, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;

// The numbers that identify namespaces in the cache's accounting.

/// The maximum number of namespaces that are counted separately, and can have their own settings.
pub(crate) const NAMESPACES_MAX: usize = 4096;
/// The number of the record that all other namespaces share.
pub(crate) const OTHERS: u16 = 0;

// The numbers that identify the namespaces' shares of the memory.

/// The number of shares: the common share, and one for each namespace with its own.
pub(crate) const SHARES: usize = 16;

/// The maximum number of namespaces with their own share of the memory.
pub const MEMORY_SHARES_MAX: usize = SHARES - 1;

/// The number of a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Share(pub(crate) u8);

impl Share {
    /// The share of all namespaces that do not have their own.
    pub(crate) const COMMON: Self = Self(0);
}
