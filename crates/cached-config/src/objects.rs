//! `[objects]`: the object cache. It is off unless this table is there.

use crate::backend::BackendTable;
use crate::error::{ConfigError, eviction_policy, invalid, require, within};
use crate::size::Size;
use blocker::{Capabilities, NAME_BYTES_MAX, Namespace, WriteMode};
use cached_core::object::{
    ConfigError as CacheConfigError, NamespaceConfig, OBJECT_BYTES_LIMIT, ObjectCacheConfig, Writer,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct ObjectsTable {
    /// Memory for buckets.
    pub memory_bytes_max: Size,
    /// How many objects can be known at once.
    pub objects_count_max: u32,
    /// The largest object.
    pub object_bytes_max: Size,
    /// The most that may wait to be stored; `None` for half of the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_bytes_max: Option<Size>,
    /// How long a change may wait until its flush begins.
    pub dirty_age_ms_max: u64,
    /// The most flush requests under way at once.
    pub flush_requests_max: u32,
    /// How much that is not dirty may be written between two dirty runs, to save a request.
    pub flush_gap_bytes_max: Size,
    /// The most reads of the store under way at once.
    pub load_requests_max: u32,
    /// A failed flush is tried again after this long, doubled each time …
    pub retry_delay_ms_min: u64,
    /// … up to this long.
    pub retry_delay_ms_max: u64,
    /// Which clean buckets stay.
    pub eviction_policy: String,
    /// Ask for huge pages.
    pub huge_pages: bool,
    /// What becomes of writes.
    pub write: Write,
    /// Who stands behind the changes that reach the store.
    pub writer: WriterName,
    /// How long an orderly end may take to store what is dirty.
    pub shutdown_flush_secs: u64,
    /// Where the objects are kept; required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendTable>,
    /// Namespaces with a policy of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<NamespaceTable>,
}

/// What becomes of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Write {
    /// Stored before they are acknowledged, and kept.
    Through,
    /// Acknowledged from memory, stored later.
    Back,
    /// Stored, not kept.
    Around,
}

/// Who stands behind changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WriterName {
    /// The clients, with stamps and claims of their own.
    Callers,
    /// The cache: it claims what it changes.
    Cache,
}

/// One of `[[objects.namespaces]]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct NamespaceTable {
    /// Its name.
    pub name: String,
    /// What becomes of writes to it.
    pub write: Write,
}

impl Default for ObjectsTable {
    fn default() -> Self {
        ObjectsTable::from(&ObjectCacheConfig::default())
    }
}

/// How long SIGTERM may take, unless told otherwise.
const SHUTDOWN_FLUSH_SECS: u64 = 60;

impl From<&ObjectCacheConfig> for ObjectsTable {
    fn from(cache: &ObjectCacheConfig) -> Self {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        ObjectsTable {
            memory_bytes_max: Size(cache.memory_bytes_max),
            objects_count_max: cache.objects_count_max,
            object_bytes_max: Size(cache.object_bytes_max),
            dirty_bytes_max: None,
            dirty_age_ms_max: millis(cache.dirty_age_max),
            flush_requests_max: count(cache.flush_requests_max),
            flush_gap_bytes_max: Size(cache.flush_gap_bytes_max),
            load_requests_max: count(cache.load_requests_max),
            retry_delay_ms_min: millis(cache.retry_delay_min),
            retry_delay_ms_max: millis(cache.retry_delay_max),
            eviction_policy: cache.eviction_policy.clone(),
            huge_pages: cache.huge_pages,
            write: cache.write.into(),
            writer: match cache.writer {
                Writer::Callers => WriterName::Callers,
                Writer::Cache => WriterName::Cache,
            },
            shutdown_flush_secs: SHUTDOWN_FLUSH_SECS,
            backend: None,
            namespaces: Vec::new(),
        }
    }
}

impl From<WriteMode> for Write {
    fn from(policy: WriteMode) -> Write {
        match policy {
            WriteMode::Through => Write::Through,
            WriteMode::Back => Write::Back,
            WriteMode::Around => Write::Around,
        }
    }
}

impl From<Write> for WriteMode {
    fn from(write: Write) -> WriteMode {
        match write {
            Write::Through => WriteMode::Through,
            Write::Back => WriteMode::Back,
            Write::Around => WriteMode::Around,
        }
    }
}

impl ObjectsTable {
    /// The most that may wait to be stored.
    #[must_use]
    pub fn dirty_bytes_max(&self) -> Size {
        self.dirty_bytes_max.unwrap_or(Size(self.memory_bytes_max.0 / 2))
    }

    /// The same, with what follows from other keys.
    #[must_use]
    pub fn filled_in(self) -> ObjectsTable {
        ObjectsTable { dirty_bytes_max: Some(self.dirty_bytes_max()), ..self }
    }

    /// How long an orderly end may take to store what is dirty.
    #[must_use]
    pub fn shutdown_flush(&self) -> Duration {
        Duration::from_secs(self.shutdown_flush_secs)
    }

    /// What the cache is told.
    ///
    /// # Errors
    /// Which namespace cannot be one.
    pub fn cache(&self) -> Result<ObjectCacheConfig, ConfigError> {
        let mut namespaces = Vec::new();
        for (index, table) in self.namespaces.iter().enumerate() {
            let key = || format!("objects.namespaces[{index}].name");
            let Ok(namespace) = Namespace::copy_from(table.name.as_bytes()) else {
                let count = table.name.len();
                return invalid(key(), format!("has {count} bytes; a namespace has 1 to {NAME_BYTES_MAX}"));
            };
            let twice = self.namespaces[..index].iter().any(|other| other.name == table.name);
            require(!twice, &key(), || format!("\"{}\" is there twice; once is right", table.name))?;
            namespaces.push(NamespaceConfig { namespace, write: table.write.into() });
        }
        Ok(ObjectCacheConfig {
            memory_bytes_max: self.memory_bytes_max.0,
            objects_count_max: self.objects_count_max,
            object_bytes_max: self.object_bytes_max.0,
            dirty_bytes_max: self.dirty_bytes_max().0,
            dirty_age_max: Duration::from_millis(self.dirty_age_ms_max),
            flush_requests_max: self.flush_requests_max as usize,
            load_requests_max: self.load_requests_max as usize,
            retry_delay_min: Duration::from_millis(self.retry_delay_ms_min),
            retry_delay_max: Duration::from_millis(self.retry_delay_ms_max),
            eviction_policy: self.eviction_policy.clone(),
            write: self.write.into(),
            namespaces,
            writer: match self.writer {
                WriterName::Callers => Writer::Callers,
                WriterName::Cache => Writer::Cache,
            },
            huge_pages: self.huge_pages,
            flush_gap_bytes_max: self.flush_gap_bytes_max.0,
            // No key: it bounds how long a store may break its promise to answer, not how it is used.
            flush_timeout: ObjectCacheConfig::default().flush_timeout,
            hash_seed: None,
        })
    }

    /// Whether it can work, as far as can be told without opening the store.
    ///
    /// # Errors
    /// What cannot.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Some(backend) = &self.backend else {
            return invalid("objects.backend", "is missing; its kind must say where the objects are kept");
        };
        backend.check()?;
        self.check_cache()
    }

    /// The same but for the store.
    ///
    /// # Errors
    /// What cannot work.
    pub fn check_cache(&self) -> Result<(), ConfigError> {
        within("objects.shutdown_flush_secs", self.shutdown_flush_secs, 1..=24 * 60 * 60)?;
        eviction_policy("objects.eviction_policy", &self.eviction_policy)?;
        // Above that, a slip of the pen is more likely than a wish.
        within("objects.memory_bytes_max", self.memory_bytes_max, Size(0)..=Size(MEMORY_BYTES_MAX))?;
        within("objects.dirty_age_ms_max", self.dirty_age_ms_max, 0..=TIME_MS_MAX)?;
        within("objects.retry_delay_ms_max", self.retry_delay_ms_max, 1..=TIME_MS_MAX)?;
        self.cache()?
            .check(&Capabilities::full(OBJECT_BYTES_LIMIT))
            .map_err(|error| ConfigError::from(&error))
    }

    /// The most memory that the cache takes: content, and bookkeeping as if every object were of the largest size and known
    /// throughout; after copies and discards that takes no content.
    #[must_use]
    pub fn cache_bytes_max(&self) -> u64 {
        let buckets = self.memory_bytes_max.0 / blocker::BUCKET_BYTES;
        let chunks = (self.object_bytes_max.0 / blocker::BUCKET_BYTES).div_ceil(CHUNK_SLOTS);
        self.memory_bytes_max.0
            + buckets * BUCKET_OVERHEAD_BYTES
            + u64::from(self.objects_count_max) * (OBJECT_BYTES + chunks * CHUNK_BYTES)
    }
}

/// What a bucket takes beside its content: its masks and count, and its share of the policy's queues.
const BUCKET_OVERHEAD_BYTES: u64 = 24;
/// What an object takes in the index, with a name of usual length.
const OBJECT_BYTES: u64 = 350;
/// An object's slots come in chunks of so many, each of so many bytes.
const CHUNK_SLOTS: u64 = 64;
const CHUNK_BYTES: u64 = 280;

const MEMORY_BYTES_MAX: u64 = 4 << 40;
/// A day.
const TIME_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// The cache names its own fields; here they have their unit in the name.
impl From<&CacheConfigError> for ConfigError {
    fn from(error: &CacheConfigError) -> ConfigError {
        let key = match error.key {
            "dirty_age_max" => "dirty_age_ms_max",
            "retry_delay_min" => "retry_delay_ms_min",
            "retry_delay_max" => "retry_delay_ms_max",
            key => key,
        };
        ConfigError { key: format!("objects.{key}"), why: error.why.clone() }
    }
}
