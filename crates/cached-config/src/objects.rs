//! `[objects]`: the object cache. It is off unless this table is there.

use crate::backend::BackendTable;
use crate::error::{ConfigError, eviction_policy, invalid, require, within};
use crate::journal_table::{DurabilityName, JournalTable, check_durability};
use crate::lifecycle::{StartError, Waiting};
use crate::tables::Size;
use blocker::{Blocker, Capabilities, NAME_BYTES_MAX, Namespace, NamespaceKey, NamespaceSettings, WriteMode};
use cached_core::arena::MemoryRange;
use cached_core::insight::Sampling;
use cached_core::object::{
    Background, ConfigError as CacheConfigError, NamespaceConfig, OBJECT_BYTES_LIMIT, ObjectCache,
    ObjectCacheConfig, OpenJournal, Writer,
};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::sync::Arc;
use std::time::Duration;

/// The table `[objects]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct ObjectsTable {
    /// The memory for buckets.
    pub memory_bytes_max: Size,
    /// The largest number of objects in the index.
    pub objects_count_max: u32,
    /// The largest object.
    pub object_bytes_max: Size,
    /// The most data that may be dirty; `None` for half of the least memory.
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
    /// How far ahead of a client that reads in order the store is read; 0: not at all.
    pub read_ahead_bytes_max: Size,
    /// Nothing is read ahead while the store usually answers faster than this.
    pub read_ahead_latency_us_min: u64,
    /// From how many bytes on reads in order are not kept; 0: all are.
    pub bypass_read_bytes_min: Size,
    /// From how many bytes on writes in order go around the cache; 0: none does.
    pub bypass_write_bytes_min: Size,
    /// The delay before a failed flush is tried again, doubled each time …
    pub retry_delay_ms_min: u64,
    /// … up to this long.
    pub retry_delay_ms_max: u64,
    /// The eviction policy.
    pub eviction_policy: String,
    /// Whether to ask for huge pages.
    pub huge_pages: bool,
    /// Whether requests go to the cache; if not, they go to the store.
    pub attached: bool,
    /// How writes are treated.
    pub write: WriteMode,
    /// Which writer makes the changes that reach the store.
    pub writer: WriterName,
    /// The least durability of an acknowledgement in namespaces with a journal.
    pub durability: DurabilityName,
    /// How long a shutdown may take to store what is dirty.
    pub shutdown_flush_secs: u64,
    /// The journal, if there is to be one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal: Option<JournalTable>,
    /// The store; required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendTable>,
    /// The namespaces with terms of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<NamespaceTable>,
    /// The range in which the memory changes while the program runs. No key: a program that shares memory between
    /// this cache and another sets it.
    #[serde(skip)]
    pub memory_range: Option<MemoryRange>,
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

/// One of `[[objects.namespaces]]`: its settings, each by its key, beside what is here.
#[derive(Debug, Clone, PartialEq)]
pub struct NamespaceTable {
    /// The namespace's name.
    pub name: String,
    /// Whether its changes are logged in the journal; `None`: if there is a journal, and writes are
    /// write-back.
    pub journal: Option<bool>,
    /// The least durability of an acknowledgement; `None`: as `[objects]` has it.
    pub durability: Option<DurabilityName>,
    /// What can change while the program runs; what is not there is as `[objects]` has it.
    pub settings: NamespaceSettings,
}

const NAMESPACE_FIELDS: [&str; 4] = ["name", "write", "journal", "durability"];

impl Serialize for NamespaceTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        self.settings.write.iter().try_for_each(|write| map.serialize_entry("write", write))?;
        self.journal.iter().try_for_each(|journal| map.serialize_entry("journal", journal))?;
        self.durability.iter().try_for_each(|durability| map.serialize_entry("durability", durability))?;
        for (key, value) in self.settings.values().filter_map(|(key, value)| Some((key, value?))) {
            match key.is_bytes() {
                true => map.serialize_entry(key.name(), &Size(value))?,
                false => map.serialize_entry(key.name(), &value)?,
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for NamespaceTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NamespaceVisitor)
    }
}

struct NamespaceVisitor;

impl<'de> Visitor<'de> for NamespaceVisitor {
    type Value = NamespaceTable;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NamespaceTable, A::Error> {
        let (mut name, mut journal, mut durability) = (None, None, None);
        let mut settings = NamespaceSettings::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "name" => name = Some(map.next_value()?),
                "write" => settings.write = Some(map.next_value()?),
                "journal" => journal = Some(map.next_value()?),
                "durability" => durability = Some(map.next_value()?),
                key => match key.parse::<NamespaceKey>() {
                    Ok(key) if key.is_bytes() => settings.set(key, map.next_value::<Size>()?.0),
                    Ok(key) => settings.set(key, map.next_value::<u64>()?),
                    Err(_) => {
                        let known =
                            NAMESPACE_FIELDS.into_iter().chain(NamespaceKey::ALL.map(NamespaceKey::name));
                        let known: Vec<String> = known.map(|name| format!("`{name}`")).collect();
                        let known = known.join(", ");
                        return Err(A::Error::custom(format_args!(
                            "unknown field `{key}`, expected one of {known}"
                        )));
                    }
                },
            }
        }
        let name = name.ok_or_else(|| A::Error::missing_field("name"))?;
        Ok(NamespaceTable { name, journal, durability, settings })
    }
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
            read_ahead_bytes_max: Size(cache.read_ahead_bytes_max),
            read_ahead_latency_us_min: u64::try_from(cache.read_ahead_latency_min.as_micros())
                .unwrap_or(u64::MAX),
            bypass_read_bytes_min: Size(cache.bypass_read_bytes_min),
            bypass_write_bytes_min: Size(cache.bypass_write_bytes_min),
            retry_delay_ms_min: millis(cache.retry_delay_min),
            retry_delay_ms_max: millis(cache.retry_delay_max),
            eviction_policy: cache.eviction_policy.clone(),
            huge_pages: cache.huge_pages,
            attached: cache.attached,
            write: cache.write,
            writer: match cache.writer {
                Writer::Callers => WriterName::Callers,
                Writer::Cache => WriterName::Cache,
            },
            durability: DurabilityName::Cached,
            shutdown_flush_secs: SHUTDOWN_FLUSH_SECS,
            journal: None,
            backend: None,
            namespaces: Vec::new(),
            memory_range: cache.memory_range,
        }
    }
}

impl ObjectsTable {
    /// Returns the most data that may be dirty.
    #[must_use]
    pub fn dirty_bytes_max(&self) -> Size {
        let least = self.memory_range.map_or(self.memory_bytes_max.0, |range| range.bytes_min);
        self.dirty_bytes_max.unwrap_or(Size(least / 2))
    }

    /// Returns the table with the values that follow from other keys filled in.
    #[must_use]
    pub fn filled_in(self) -> ObjectsTable {
        let dirty_bytes_max = Some(self.dirty_bytes_max());
        ObjectsTable { dirty_bytes_max, journal: self.journal.map(JournalTable::filled_in), ..self }
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
            require(!namespace.is_reserved(), &key(), || {
                format!(
                    "\"{namespace}\" is reserved: names that begin with a dot are those of servers' records"
                )
            })?;
            let twice = self.namespaces[..index].iter().any(|other| other.name == table.name);
            require(!twice, &key(), || format!("\"{}\" is there twice; once is right", table.name))?;
            let inherited =
                if table.journal == Some(false) { DurabilityName::Cached } else { self.durability };
            namespaces.push(NamespaceConfig {
                namespace,
                journal: table.journal,
                durability: table.durability.unwrap_or(inherited).into(),
                settings: table.settings.clone(),
            });
        }
        Ok(ObjectCacheConfig {
            memory_bytes_max: self.memory_bytes_max.0,
            memory_range: self.memory_range,
            objects_count_max: self.objects_count_max,
            object_bytes_max: self.object_bytes_max.0,
            dirty_bytes_max: self.dirty_bytes_max().0,
            dirty_age_max: Duration::from_millis(self.dirty_age_ms_max),
            flush_requests_max: self.flush_requests_max as usize,
            load_requests_max: self.load_requests_max as usize,
            read_ahead_bytes_max: self.read_ahead_bytes_max.0,
            read_ahead_latency_min: Duration::from_micros(self.read_ahead_latency_us_min),
            bypass_read_bytes_min: self.bypass_read_bytes_min.0,
            bypass_write_bytes_min: self.bypass_write_bytes_min.0,
            retry_delay_min: Duration::from_millis(self.retry_delay_ms_min),
            retry_delay_max: Duration::from_millis(self.retry_delay_ms_max),
            eviction_policy: self.eviction_policy.clone(),
            attached: self.attached,
            write: self.write,
            journal: None,
            durability: self.durability.into(),
            namespaces,
            writer: match self.writer {
                WriterName::Callers => Writer::Callers,
                WriterName::Cache => Writer::Cache,
            },
            huge_pages: self.huge_pages,
            lends_buckets: false,
            flush_gap_bytes_max: self.flush_gap_bytes_max.0,
            // No key: it limits how long a store may break the contract, not how it is used.
            flush_timeout: ObjectCacheConfig::default().flush_timeout,
            // The program's switch, see `open_cache`.
            insight: Sampling::Off,
            hash_seed: None,
        })
    }

    /// Opens the journal, if one is configured, for [`open_cache`](Self::open_cache). While its disk fails, tries again
    /// every second.
    ///
    /// # Cancel safety
    /// As [`JournalTable::open`].
    ///
    /// # Errors
    /// One line that names the directory, what is wrong with it, and the way out.
    pub async fn open_journal(&self, waiting: &mut Waiting<'_>) -> Result<Option<OpenJournal>, StartError> {
        match &self.journal {
            Some(table) => table.open(waiting).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns a cache over `below`, with the journal that [`open_journal`](Self::open_journal) has opened, and
    /// the background task that it needs. With `insight`, other amounts of memory are simulated on a sample of
    /// the requests.
    ///
    /// # Errors
    /// The key whose value cannot work.
    pub fn open_cache(
        &self,
        below: Arc<dyn Blocker>,
        journal: Option<OpenJournal>,
        insight: Sampling,
    ) -> Result<(ObjectCache, Background), ConfigError> {
        let config = ObjectCacheConfig { insight, ..self.cache()? };
        let mut builder = ObjectCache::builder(below).config(config);
        if let (Some(table), Some(journal)) = (&self.journal, journal) {
            builder = builder.journal(journal, table.options());
        }
        builder.build().map_err(|error| ConfigError::from(&error))
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

    /// Checks what the keys name, as far as that is possible without opening the journal or the store: files that must be
    /// readable are read.
    ///
    /// # Errors
    /// The first key that names something else than it must.
    pub fn check_files(&self) -> Result<(), ConfigError> {
        self.backend.as_ref().map_or(Ok(()), BackendTable::check_files)?;
        self.journal.as_ref().map_or(Ok(()), JournalTable::check_place)
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
        within("objects.read_ahead_latency_us_min", self.read_ahead_latency_us_min, 0..=TIME_MS_MAX * 1000)?;
        within("objects.retry_delay_ms_max", self.retry_delay_ms_max, 1..=TIME_MS_MAX)?;
        self.cache()?
            .check(&Capabilities::full(OBJECT_BYTES_LIMIT))
            .map_err(|error| ConfigError::from(&error))?;
        check_durability(self)?;
        self.journal.as_ref().map_or(Ok(()), |journal| journal.check(self))
    }

    /// Returns the most memory that the cache takes, in bytes: content, and bookkeeping as if every object
    /// were of the largest size and all of its slots were known, which copies and discards reach without
    /// content.
    #[must_use]
    pub fn cache_bytes_max(&self) -> u64 {
        let most = self.memory_range.map_or(self.memory_bytes_max.0, |range| range.bytes_max);
        let buckets = most / blocker::BUCKET_BYTES;
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
            "read_ahead_latency_min" => "read_ahead_latency_us_min",
            "retry_delay_min" => "retry_delay_ms_min",
            "retry_delay_max" => "retry_delay_ms_max",
            key => key,
        };
        ConfigError { key: format!("objects.{key}"), why: error.why.clone() }
    }
}
