//! The configuration of an object cache, which of it cannot work, and the numbers by which namespaces and
//! their shares of the memory are known.

use std::time::Duration;

use blocker::{
    BUCKET_BYTES, Capabilities, Durability, Namespace, NamespaceKey, NamespaceSettings,
    OBJECT_BYTES_MAX_DEFAULT, WriteMode,
};

use super::store::StoreTerms;
use crate::arena::MemoryRange;
use crate::insight::Sampling;
use crate::policy;

/// The largest object, in bytes, that a cache can be configured for: a bucket's place in its object is a
/// 16-bit number.
pub const OBJECT_BYTES_LIMIT: u64 = BUCKET_BYTES << 16;

/// Which party is the writer of the changes that reach the store: it claims epochs and stamps changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Writer {
    /// The callers: their stamps and claims are forwarded to the store.
    #[default]
    Callers,
    /// This cache: it claims every namespace that it changes with a new epoch and stamps every change that it
    /// sends, so that a cache that has been replaced can do no harm. Callers' own stamps and claims are
    /// `Unsupported`.
    Cache,
}

/// What one namespace has of its own.
#[derive(Clone, Debug)]
pub struct NamespaceConfig {
    /// The namespace.
    pub namespace: Namespace,
    /// Whether its changes are logged. `None`: if it is written back at the start, and the cache has a
    /// journal.
    pub journal: Option<bool>,
    /// The least durability of an acknowledgement, *cached* or *journaled*.
    pub durability: Durability,
    /// What can change while the cache runs. There can be [`MEMORY_SHARES_MAX`] namespaces with a share of the memory.
    ///
    /// What is used of a quota is counted by listing the namespace once, in the background, and by every change of a
    /// size that goes through this cache. Changes that other writers make are found at the next count: after
    /// a change of the quota, at the start, and after a refusal, at most once a minute. Until the first count
    /// has ended, only what it has seen so far is compared.
    pub settings: NamespaceSettings,
}

/// The largest [`NamespaceKey::MemoryWeight`].
pub const MEMORY_WEIGHT_MAX: u32 = 1000;

impl NamespaceConfig {
    /// Returns the configuration of a namespace with these settings, such as a write mode, and nothing else.
    #[must_use]
    pub fn new(namespace: Namespace, settings: impl Into<NamespaceSettings>) -> Self {
        Self { namespace, journal: None, durability: Durability::Cached, settings: settings.into() }
    }

    /// Returns it with another value of a setting.
    #[must_use]
    pub fn with(mut self, key: NamespaceKey, value: impl Into<Option<u64>>) -> Self {
        self.settings.set(key, value);
        self
    }

    /// Returns it with other terms at the store; what they do not limit or reserve is left to other sources.
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

    /// Returns the value of a setting, if it has one of its own.
    pub(crate) fn own(&self, key: NamespaceKey) -> Option<u64> {
        self.settings.number(key)
    }

    /// Returns what it may have of the store. A weight that is too large for its type is the largest, which no check
    /// lets through.
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

    /// Returns whether it has a share of the memory of its own.
    pub(crate) fn has_own_memory(&self) -> bool {
        let keys = [NamespaceKey::MemoryBytesMin, NamespaceKey::MemoryBytesMax, NamespaceKey::MemoryWeight];
        keys.into_iter().any(|key| self.own(key).is_some())
    }
}

/// The configuration of an [`super::ObjectCache`]. All sizes are in bytes.
#[derive(Clone, Debug)]
pub struct ObjectCacheConfig {
    /// Memory for buckets in bytes, touched as it is used. Whole regions of up to 1 MiB; at least four of
    /// them.
    pub memory_bytes_max: u64,
    /// The range in which an [`arbiter`](crate::arbiter) can change `memory_bytes_max` while the cache is used;
    /// `None`: it never changes. What must always have room is sized by its least: dirty data, what is received, the
    /// namespaces' minima. Needs a policy that remembers what it has evicted, and no huge pages.
    pub memory_range: Option<MemoryRange>,
    /// How many objects can be known at once, whatever they hold; 2 (a copy needs two) to 2^31. Each takes
    /// about 340 bytes.
    pub objects_count_max: u32,
    /// The largest object in bytes: a multiple of 4 096, up to [`OBJECT_BYTES_LIMIT`] and to what the store
    /// takes.
    pub object_bytes_max: u64,
    /// The most bytes that may wait to be stored; at most three quarters of the memory.
    pub dirty_bytes_max: u64,
    /// How long a change may wait until its flush begins.
    pub dirty_age_max: Duration,
    /// The most requests of flushes that are under way at once.
    pub flush_requests_max: usize,
    /// Two dirty runs of an object go in one request if the gap between them is no longer than this and all
    /// of it is in the cache: stores that take as long for 4 KiB as for 64 are drained many times faster. The
    /// gap is then written once more as it was when it was read, which would undo what another client has
    /// written there since: so this applies only with [`Writer::Cache`], where there is no other. 0: only
    /// dirty bytes are written.
    pub flush_gap_bytes_max: u64,
    /// How long the store may take for one request of a flush. After that the outcome counts as unknown, and
    /// the store is asked what it has before the flush is tried again.
    pub flush_timeout: Duration,
    /// The most reads of the store that are under way at once.
    pub load_requests_max: usize,
    /// How far ahead of a client that reads in order the store is read, in bytes; at most an eighth of the
    /// memory. 0: not at all.
    pub read_ahead_bytes_max: u64,
    /// Nothing is read ahead while at least half of the store's last answers took less than this: over a fast
    /// store it costs more than it saves. 0: whatever they take.
    pub read_ahead_latency_min: Duration,
    /// Reads that have gone on in order for this many bytes, or a single one of as many, are served and not
    /// kept. 0: all are kept.
    pub bypass_read_bytes_min: u64,
    /// Writes that have gone on in order for this many bytes, or a single one of as many, go around the cache,
    /// whatever the write mode. 0: none does.
    pub bypass_write_bytes_min: u64,
    /// A failed flush is tried again after this long, doubled each time …
    pub retry_delay_min: Duration,
    /// … up to this long.
    pub retry_delay_max: Duration,
    /// The eviction policy's name, one of [`policy::NAMES`].
    pub eviction_policy: String,
    /// How writes to namespaces that have no write mode of their own are treated.
    pub write: WriteMode,
    /// Whether changes are logged in namespaces that are not named in `namespaces`. `None`: if they are
    /// written back at the start, and the cache has a journal.
    pub journal: Option<bool>,
    /// The least durability of an acknowledgement in namespaces that are not named in `namespaces`, *cached*
    /// or *journaled*.
    pub durability: Durability,
    /// Namespaces with terms of their own.
    pub namespaces: Vec<NamespaceConfig>,
    /// Whether the cache is in the path of requests; if not, it is [detached](super::ObjectCache::detach_cache) from
    /// the start on, once what an earlier process had logged is stored.
    pub attached: bool,
    /// Which party is the writer of the changes.
    pub writer: Writer,
    /// Ask the kernel for huge pages for the buckets, as advice; for the index it is asked in any case.
    pub huge_pages: bool,
    /// Whether buckets can be [lent](super::ObjectCache::lend) to the kernel. Their memory is in small pages then, and that of a lent
    /// bucket is taken from the system anew before it is used for something else.
    pub lends_buckets: bool,
    /// The sample of the buckets on which to simulate other amounts of memory
    /// ([`ObjectCache::miss_ratio_curve`](super::ObjectCache::miss_ratio_curve)); takes up to about 6 MiB.
    pub insight: Sampling,
    /// The seed of the hash of names and of versions, for tests that replay a run. `None` draws it, which a
    /// cache of real data needs: its versions must be new after every start.
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
            huge_pages: false,
            lends_buckets: false,
            insight: Sampling::Off,
            hash_seed: None,
        }
    }
}

/// A configuration that cannot work: the key, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct ConfigError {
    /// The field of [`ObjectCacheConfig`] at fault.
    pub key: &'static str,
    /// What is wrong with it, and what would be right.
    pub why: String,
}

impl ObjectCacheConfig {
    /// Checks that this can work over a store with the capabilities `below`.
    ///
    /// # Errors
    /// The first key that cannot work.
    pub fn check(&self, below: &Capabilities) -> Result<(), ConfigError> {
        let wrong = |key, why: String| Err(ConfigError { key, why });
        if self.memory_bytes_max < MEMORY_BYTES_MIN {
            return wrong("memory_bytes_max", format!("must be at least {MEMORY_BYTES_MIN}"));
        }
        self.check_memory_range()?;
        if self.objects_count_max < 2 || self.objects_count_max > 1 << 31 {
            return wrong("objects_count_max", "must be between 2, for a copy, and 2147483648".into());
        }
        if self.object_bytes_max == 0
            || !self.object_bytes_max.is_multiple_of(BUCKET_BYTES)
            || self.object_bytes_max > OBJECT_BYTES_LIMIT
        {
            let why = format!("must be a multiple of {BUCKET_BYTES} up to {OBJECT_BYTES_LIMIT}");
            return wrong("object_bytes_max", why);
        }
        if self.object_bytes_max > below.object_bytes_max {
            let why = format!("the store takes objects of up to {} bytes", below.object_bytes_max);
            return wrong("object_bytes_max", why);
        }
        let most = self.memory_bytes_min() / 4 * 3;
        if self.dirty_bytes_max < BUCKET_BYTES || self.dirty_bytes_max > most {
            let of = self.name_of_least();
            return wrong(
                "dirty_bytes_max",
                format!("must be between {BUCKET_BYTES} and {most}, three quarters of {of}"),
            );
        }
        self.check_namespaces()?;
        self.check_memory_shares()?;
        if self.flush_requests_max == 0 {
            return wrong("flush_requests_max", "must be at least 1".into());
        }
        if self.flush_timeout.is_zero() {
            return wrong("flush_timeout", "must be above 0".into());
        }
        if self.load_requests_max == 0 {
            return wrong("load_requests_max", "must be at least 1".into());
        }
        if self.retry_delay_min.is_zero() || self.retry_delay_min > self.retry_delay_max {
            return wrong("retry_delay_min", "must be above 0 and not above retry_delay_max".into());
        }
        if policy::by_name(&self.eviction_policy).is_none() {
            return wrong("eviction_policy", format!("must be one of {}", policy::NAMES.join(", ")));
        }
        if self.writer == Writer::Cache && !below.fencing {
            return wrong("writer", "the store below refuses no one: it has no fencing".into());
        }
        Ok(())
    }

    /// Returns the least memory that the cache has, in bytes.
    pub(crate) fn memory_bytes_min(&self) -> u64 {
        self.memory_range.map_or(self.memory_bytes_max, |range| range.bytes_min)
    }

    fn name_of_least(&self) -> &'static str {
        if self.memory_range.is_some() { "the least memory of the cache" } else { "memory_bytes_max" }
    }

    /// Checks the range in which the memory can change.
    fn check_memory_range(&self) -> Result<(), ConfigError> {
        let Some(range) = self.memory_range else { return Ok(()) };
        let wrong = |why: String| Err(ConfigError { key: "memory_range", why });
        if range.bytes_min < MEMORY_BYTES_MIN {
            return wrong(format!("its least must be at least {MEMORY_BYTES_MIN}"));
        }
        if !(range.bytes_min..=range.bytes_max).contains(&self.memory_bytes_max) {
            return wrong("memory_bytes_max must lie in it".into());
        }
        if range.bytes_max / MemoryRange::RATIO_MAX > range.bytes_min {
            return wrong(format!("its most must be at most {} times its least", MemoryRange::RATIO_MAX));
        }
        if self.huge_pages {
            return wrong(
                "memory in huge pages cannot be given up by buckets; huge_pages must be false".into(),
            );
        }
        // A policy that is not known is found by another check.
        if policy::by_name(&self.eviction_policy).is_some_and(|policy| policy.ghost_hits().is_none()) {
            return wrong(format!(
                "\"{}\" does not remember what it has evicted; \"balanced\" and \"s3fifo\" do",
                self.eviction_policy
            ));
        }
        Ok(())
    }

    /// Checks what namespaces have of their own.
    fn check_namespaces(&self) -> Result<(), ConfigError> {
        let wrong = |why| Err(ConfigError { key: "namespaces", why });
        let count = self.namespaces.len();
        let parts =
            || self.namespaces.iter().filter_map(|each| Some((each, each.own(NamespaceKey::DirtyBytesMax)?)));
        if count > NAMESPACES_MAX {
            return wrong(format!("{count} of them have settings of their own; {NAMESPACES_MAX} can have"));
        }
        if let Some((each, _)) = parts().find(|(_, part)| *part < BUCKET_BYTES) {
            return wrong(format!(
                "dirty_bytes_max of \"{}\" must be at least {BUCKET_BYTES}",
                each.namespace
            ));
        }
        for each in &self.namespaces {
            each.store_terms().check().or_else(|why| wrong(format!("\"{}\": {why}", each.namespace)))?;
        }
        let reserved = |each: &NamespaceConfig| each.own(NamespaceKey::StoreRequestsPerSecondMin);
        let reserved = self.namespaces.iter().filter_map(reserved);
        let sum = reserved.fold(0, u64::saturating_add);
        if sum > StoreTerms::RATE_MAX {
            return wrong(format!(
                "their store_requests_per_second_min add up to {sum}; {} can be reserved in all",
                StoreTerms::RATE_MAX
            ));
        }
        let sum = parts().map(|(_, part)| part).fold(0, u64::saturating_add);
        let most = self.dirty_bytes_max - BUCKET_BYTES;
        if sum > most {
            return wrong(format!(
                "their own dirty_bytes_max add up to {sum}; they can have {most} of the {} of all, so that something \
                 is left for the others",
                self.dirty_bytes_max
            ));
        }
        Ok(())
    }

    /// Checks the namespaces' shares of the memory.
    fn check_memory_shares(&self) -> Result<(), ConfigError> {
        let wrong = |why| Err(ConfigError { key: "namespaces", why });
        let own = || self.namespaces.iter().filter(|each| each.has_own_memory());
        if own().count() > MEMORY_SHARES_MAX {
            return wrong(format!(
                "{} of them have a share of the memory (memory_bytes_min, memory_bytes_max, memory_weight); \
                 {MEMORY_SHARES_MAX} can have",
                own().count()
            ));
        }
        for each in own() {
            let name = &each.namespace;
            let (min, max) = (each.own(NamespaceKey::MemoryBytesMin), each.own(NamespaceKey::MemoryBytesMax));
            if max.is_some_and(|max| max < BUCKET_BYTES) {
                return wrong(format!("memory_bytes_max of \"{name}\" must be at least {BUCKET_BYTES}"));
            }
            if max.is_some_and(|max| min > Some(max)) {
                return wrong(format!(
                    "memory_bytes_min of \"{name}\" must not be above its memory_bytes_max"
                ));
            }
            let weight = each.own(NamespaceKey::MemoryWeight);
            if !weight.is_none_or(|weight| (1..=u64::from(MEMORY_WEIGHT_MAX)).contains(&weight)) {
                return wrong(format!(
                    "memory_weight of \"{name}\" must be between 1 and {MEMORY_WEIGHT_MAX}"
                ));
            }
        }
        let sum =
            own().filter_map(|each| each.own(NamespaceKey::MemoryBytesMin)).fold(0, u64::saturating_add);
        let most = self.memory_bytes_min() / 8 * 7;
        if sum > most {
            return wrong(format!(
                "their memory_bytes_min add up to {sum}; they can have {most}, seven eighths of {}",
                self.name_of_least()
            ));
        }
        Ok(())
    }

    /// Returns how writes to `namespace` are treated.
    #[must_use]
    pub fn write_mode(&self, namespace: &Namespace) -> WriteMode {
        let own = self.namespaces.iter().find(|each| each.namespace == *namespace);
        own.and_then(|each| each.settings.write).unwrap_or(self.write)
    }
}

/// The least memory, in bytes, with which a cache works.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;

// The numbers by which is counted what each namespace has.

/// The most namespaces that are counted apart, and can have settings of their own.
pub(crate) const NAMESPACES_MAX: usize = 4096;
/// The number of the record that stands for all others.
pub(crate) const OTHERS: u16 = 0;

// The numbers of the namespaces' shares of the memory.

/// The number of shares: the common one, and those of namespaces with one of their own.
pub(crate) const SHARES: usize = 16;

/// The most namespaces with a share of the memory of their own.
pub const MEMORY_SHARES_MAX: usize = SHARES - 1;

/// The number of a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Share(pub(crate) u8);

impl Share {
    /// The one of all namespaces that have none of their own.
    pub(crate) const COMMON: Self = Self(0);
}
