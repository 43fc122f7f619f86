//! `[objects]`: the object cache. It is off unless this table is there.

use crate::backend::BackendTable;
use crate::error::{ConfigError, eviction_policy, invalid, require, within};
use crate::size::Size;
use blocker::{Blocker, Capabilities, NAME_BYTES_MAX, Namespace, SystemClock, WriteMode};
use cached_core::object::{
    Background, ConfigError as CacheConfigError, NamespaceConfig, OBJECT_BYTES_LIMIT, ObjectCache,
    ObjectCacheConfig, Writer,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// The table `[objects]`, or `[cache]` of `synapsed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct ObjectsTable {
    /// The memory for buckets.
    pub memory_bytes_max: Size,
    /// The largest number of objects in the index.
    pub objects_count_max: u32,
    /// The largest object.
    pub object_bytes_max: Size,
    /// The most data that may be dirty; `None` for half of the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_bytes_max: Option<Size>,
    /// How long a change may be dirty before its flush begins.
    pub dirty_age_ms_max: u64,
    /// The largest number of flush requests under way.
    pub flush_requests_max: u32,
    /// How much clean data may be written between two dirty runs, to save a request.
    pub flush_gap_bytes_max: Size,
    /// The largest number of reads of the store under way.
    pub load_requests_max: u32,
    /// The delay before a failed flush is tried again, doubled each time …
    pub retry_delay_ms_min: u64,
    /// … up to this long.
    pub retry_delay_ms_max: u64,
    /// The eviction policy.
    pub eviction_policy: String,
    /// Whether to ask for huge pages.
    pub huge_pages: bool,
    /// How writes are treated.
    pub write: Write,
    /// Which writer makes the changes that reach the store.
    pub writer: WriterName,
    /// How long a shutdown may take to store what is dirty.
    pub shutdown_flush_secs: u64,
    /// The store; required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendTable>,
    /// The namespaces with a write mode of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<NamespaceTable>,
}

/// How writes are treated: the write mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Write {
    /// Write-through: stored before they are acknowledged, and kept.
    Through,
    /// Write-back: acknowledged from memory, stored later.
    Back,
    /// Write-around: stored before they are acknowledged, not kept.
    Around,
}

/// Which writer makes the changes that reach the store.
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
    /// The namespace's name.
    pub name: String,
    /// How writes to it are treated.
    pub write: Write,
}

impl Default for ObjectsTable {
    fn default() -> Self {
        ObjectsTable::from(&ObjectCacheConfig::default())
    }
}

/// How long a shutdown may take to store what is dirty, by default.
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
    /// Returns the most data that may be dirty.
    #[must_use]
    pub fn dirty_bytes_max(&self) -> Size {
        self.dirty_bytes_max.unwrap_or(Size(self.memory_bytes_max.0 / 2))
    }

    /// Returns the table with the values that follow from other keys filled in.
    #[must_use]
    pub fn filled_in(self) -> ObjectsTable {
        ObjectsTable { dirty_bytes_max: Some(self.dirty_bytes_max()), ..self }
    }

    /// Returns how long a shutdown may take to store what is dirty.
    #[must_use]
    pub fn shutdown_flush(&self) -> Duration {
        Duration::from_secs(self.shutdown_flush_secs)
    }

    /// Returns the configuration of the cache.
    ///
    /// # Errors
    /// A namespace whose name is none, or that is there twice.
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
            // No key: it limits how long a store may break the contract, not how it is used.
            flush_timeout: ObjectCacheConfig::default().flush_timeout,
            hash_seed: None,
        })
    }

    /// Returns a cache over `below`, and the background task that it needs.
    ///
    /// # Errors
    /// The key whose value cannot work.
    pub fn open_cache(&self, below: Arc<dyn Blocker>) -> Result<(ObjectCache, Background), ConfigError> {
        let opened = ObjectCache::new(below, self.cache()?, Arc::new(SystemClock));
        opened.map_err(|error| ConfigError::from(&error))
    }

    /// Checks the values, as far as that is possible without opening the store.
    ///
    /// # Errors
    /// The first key whose value cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Some(backend) = &self.backend else {
            return invalid("objects.backend", "is missing; its kind must say where the objects are kept");
        };
        backend.check()?;
        self.check_cache()
    }

    /// Checks the values except those of the store.
    ///
    /// # Errors
    /// The first key whose value cannot work.
    pub fn check_cache(&self) -> Result<(), ConfigError> {
        within("objects.shutdown_flush_secs", self.shutdown_flush_secs, 1..=24 * 60 * 60)?;
        eviction_policy("objects.eviction_policy", &self.eviction_policy)?;
        // Above that, a typing error is more likely than such a machine.
        within("objects.memory_bytes_max", self.memory_bytes_max, Size(0)..=Size(MEMORY_BYTES_MAX))?;
        within("objects.dirty_age_ms_max", self.dirty_age_ms_max, 0..=TIME_MS_MAX)?;
        within("objects.retry_delay_ms_max", self.retry_delay_ms_max, 1..=TIME_MS_MAX)?;
        self.cache()?
            .check(&Capabilities::full(OBJECT_BYTES_LIMIT))
            .map_err(|error| ConfigError::from(&error))
    }

    /// Returns the most memory that the cache takes, in bytes: content, and bookkeeping as if every object
    /// were of the largest size and all of its slots were known, which copies and discards reach without
    /// content.
    #[must_use]
    pub fn cache_bytes_max(&self) -> u64 {
        let buckets = self.memory_bytes_max.0 / blocker::BUCKET_BYTES;
        let chunks = (self.object_bytes_max.0 / blocker::BUCKET_BYTES).div_ceil(CHUNK_SLOTS);
        self.memory_bytes_max.0
            + buckets * BUCKET_OVERHEAD_BYTES
            + u64::from(self.objects_count_max) * (OBJECT_BYTES + chunks * CHUNK_BYTES)
    }
}

/// The memory of a bucket beside its content: its masks and count, and its share of the policy's queues.
const BUCKET_OVERHEAD_BYTES: u64 = 24;
/// The memory of an object in the index, with a name of usual length.
const OBJECT_BYTES: u64 = 350;
/// The slots of a chunk, in which an object's slots are allocated, and the memory of a chunk.
const CHUNK_SLOTS: u64 = 64;
const CHUNK_BYTES: u64 = 280;

const MEMORY_BYTES_MAX: u64 = 4 << 40;
/// One day.
const TIME_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// The cache's error names its field; the keys here end in the unit.
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
