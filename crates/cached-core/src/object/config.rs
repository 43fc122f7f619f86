//! The configuration of an object cache, and which of it cannot work.

use std::time::Duration;

use blocker::{BUCKET_BYTES, Capabilities, Namespace, OBJECT_BYTES_MAX_DEFAULT, WriteMode};

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

/// How writes to one namespace are treated.
#[derive(Clone, Debug)]
pub struct NamespaceConfig {
    /// The namespace.
    pub namespace: Namespace,
    /// How writes to it are treated.
    pub write: WriteMode,
}

/// The configuration of an [`super::ObjectCache`]. All sizes are in bytes.
#[derive(Clone, Debug)]
pub struct ObjectCacheConfig {
    /// Memory for buckets in bytes, touched as it is used. Whole regions of up to 1 MiB; at least four of
    /// them.
    pub memory_bytes_max: u64,
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
    /// A failed flush is tried again after this long, doubled each time …
    pub retry_delay_min: Duration,
    /// … up to this long.
    pub retry_delay_max: Duration,
    /// The eviction policy's name, one of [`policy::NAMES`].
    pub eviction_policy: String,
    /// How writes to namespaces that are not named in `namespaces` are treated.
    pub write: WriteMode,
    /// Namespaces with a write mode of their own.
    pub namespaces: Vec<NamespaceConfig>,
    /// Which party is the writer of the changes.
    pub writer: Writer,
    /// Ask the kernel for huge pages for the buckets, as advice; for the index it is asked in any case.
    pub huge_pages: bool,
    /// The seed of the hash of names and of versions, for tests that replay a run. `None` draws it, which a
    /// cache of real data needs: its versions must be new after every start.
    pub hash_seed: Option<u64>,
}

impl Default for ObjectCacheConfig {
    fn default() -> Self {
        Self {
            memory_bytes_max: 256 << 20,
            objects_count_max: 64 * 1024,
            object_bytes_max: OBJECT_BYTES_MAX_DEFAULT,
            dirty_bytes_max: 128 << 20,
            dirty_age_max: Duration::from_secs(30),
            flush_requests_max: 64,
            flush_gap_bytes_max: 64 << 10,
            flush_timeout: Duration::from_secs(60),
            load_requests_max: 256,
            retry_delay_min: Duration::from_millis(50),
            retry_delay_max: Duration::from_secs(5),
            eviction_policy: policy::NAMES[0].into(),
            write: WriteMode::Through,
            namespaces: Vec::new(),
            writer: Writer::Callers,
            huge_pages: false,
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
        if self.dirty_bytes_max < BUCKET_BYTES || self.dirty_bytes_max > self.memory_bytes_max / 4 * 3 {
            let most = self.memory_bytes_max / 4 * 3;
            return wrong(
                "dirty_bytes_max",
                format!("must be between {BUCKET_BYTES} and {most}, three quarters of memory_bytes_max"),
            );
        }
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

    /// Returns how writes to `namespace` are treated at the start.
    #[must_use]
    pub fn write_mode(&self, namespace: &Namespace) -> WriteMode {
        let own = self.namespaces.iter().find(|each| each.namespace == *namespace);
        own.map_or(self.write, |each| each.write)
    }
}

/// The least memory, in bytes, with which a cache works.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;
