//! `[objects]`: the object cache, which is off unless this table is present.

use crate::backend::BackendTable;
use crate::config_file::{ConfigError, eviction_policy, invalid, require};
use crate::config_keys;
use crate::election_table::{ElectionTable, check_election};
use crate::http_table::HttpTable;
use crate::journal_table::{DurabilityName, JournalTable, check_durability};
use crate::lifecycle::{StartError, Waiting};
use crate::quantity::Size;
use blocker::{Blocker, Capabilities, NAME_BYTES_MAX, Namespace, NamespaceKey, NamespaceSettings, WriteMode};
use cached_core::arena::MemoryRange;
use cached_core::insight::Sampling;
use cached_core::object::{
    Background, ConfigError as CacheConfigError, Leadership, NamespaceConfig, OBJECT_BYTES_LIMIT,
    ObjectCache, ObjectCacheConfig, OpenJournal, Writer,
};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::sync::Arc;

config_keys! {
    /// The table `[objects]`.
    pub struct ObjectsTable over ObjectCacheConfig = ObjectCacheConfig::default();

    /// The memory for buckets.
    pub memory_bytes_max: Size = size(memory_bytes_max), in Size(0)..=Size(MEMORY_BYTES_MAX);
    /// The maximum number of objects in the index.
    pub objects_count_max: u32 = same(objects_count_max);
    /// The maximum size of an object.
    pub object_bytes_max: Size = size(object_bytes_max);
    /// The maximum amount of dirty data; `None` means half of the minimum memory.
    pub dirty_bytes_max: Option<Size> = own(None);
    /// The maximum time for which a change may be dirty before its flush begins.
    pub dirty_age_ms_max: u64 = millis(dirty_age_max), in 0..=TIME_MS_MAX;
    /// The maximum number of flush requests in flight.
    pub flush_requests_max: u32 = count(flush_requests_max);
    /// The maximum amount of clean data that is written between two dirty runs to save a request.
    pub flush_gap_bytes_max: Size = size(flush_gap_bytes_max);
    /// The maximum number of reads from the store in flight.
    pub load_requests_max: u32 = count(load_requests_max);
    /// The distance by which the store is read ahead of a sequential reader; 0 disables read-ahead.
    pub read_ahead_bytes_max: Size = size(read_ahead_bytes_max);
    /// The usual response time of the store below which nothing is read ahead.
    pub read_ahead_latency_us_min: u64 = micros(read_ahead_latency_min), in 0..=TIME_MS_MAX * 1000;
    /// The length from which sequential reads are not cached; 0 to cache all of them.
    pub bypass_read_bytes_min: Size = size(bypass_read_bytes_min);
    /// The length from which sequential writes bypass the cache; 0 disables the bypass.
    pub bypass_write_bytes_min: Size = size(bypass_write_bytes_min);
    /// The delay before a failed flush is retried, doubled with each failure …
    pub retry_delay_ms_min: u64 = millis(retry_delay_min);
    /// … up to this maximum delay.
    pub retry_delay_ms_max: u64 = millis(retry_delay_max), in 1..=TIME_MS_MAX;
    /// The eviction policy.
    pub eviction_policy: String = same(eviction_policy);
    /// Whether to ask for huge pages.
    pub huge_pages: bool = same(huge_pages);
    /// Whether requests go to the cache; otherwise they go to the store.
    pub attached: bool = same(attached);
    /// The write mode.
    pub write: WriteMode = same(write);
    /// The writer of the changes that reach the store.
    pub writer: Writer = same(writer);
    /// The election of the writer, if the writer is elected; `None` means the defaults.
    pub election: Option<ElectionTable> = own(None);
    /// The minimum durability of an acknowledgement in namespaces with a journal.
    pub durability: DurabilityName = own(DurabilityName::Cached);
    /// The maximum time for a shutdown to store dirty data.
    pub shutdown_flush_secs: u64 = own(SHUTDOWN_FLUSH_SECS), in 1..=24 * 60 * 60;
    /// The journal, if there is one.
    pub journal: Option<JournalTable> = own(None);
    /// The listener for HTTP requests, if there is one.
    pub http: Option<HttpTable> = own(None);
    /// The store; required.
    pub backend: Option<BackendTable> = own(None);
    /// The namespaces that have their own settings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<NamespaceTable> = own(Vec::new());
    /// The range within which the memory changes at run time. This is not a key: a program that
    /// shares memory between this cache and another one sets it.
    #[serde(skip)]
    pub memory_range: Option<MemoryRange> = same(memory_range);
    /// The leadership of this process, if the writer is elected. Not a key.
    #[serde(skip)]
    pub leadership: Option<Leadership> = same(leadership);
}

/// An element of `[[objects.namespaces]]`. In the file, its settings are keys beside the other
/// fields.
#[derive(Debug, Clone, PartialEq)]
pub struct NamespaceTable {
    /// The name of the namespace.
    pub name: String,
    /// Whether changes in the namespace are logged in the journal. `None` means yes if there is a
    /// journal and writes are write-back.
    pub journal: Option<bool>,
    /// The minimum durability of an acknowledgement; `None` means that of `[objects]`.
    pub durability: Option<DurabilityName>,
    /// The settings that can change at run time. For absent ones, the settings of `[objects]`
    /// apply.
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

/// The default of the maximum time for a shutdown to store dirty data.
const SHUTDOWN_FLUSH_SECS: u64 = 60;

impl ObjectsTable {
    /// Returns the maximum amount of dirty data.
    #[must_use]
    pub fn dirty_bytes_max(&self) -> Size {
        let least = self.memory_range.map_or(self.memory_bytes_max.0, |range| range.bytes_min);
        self.dirty_bytes_max.unwrap_or(Size(least / 2))
    }

    /// Returns the table with the values filled in that follow from other keys.
    #[must_use]
    pub fn filled_in(self) -> ObjectsTable {
        let dirty_bytes_max = Some(self.dirty_bytes_max());
        ObjectsTable { dirty_bytes_max, journal: self.journal.map(JournalTable::filled_in), ..self }
    }

    /// Returns the table without its journal.
    #[must_use]
    pub fn without_journal(mut self) -> ObjectsTable {
        self.journal = None;
        self.namespaces.iter_mut().for_each(|table| table.journal = None);
        self
    }

    /// Returns the configuration of the cache.
    ///
    /// # Errors
    /// Returns a namespace whose name is invalid or occurs twice.
    pub fn cache(&self) -> Result<ObjectCacheConfig, ConfigError> {
        let mut namespaces = Vec::new();
        for (index, table) in self.namespaces.iter().enumerate() {
            let key = || format!("objects.namespaces[{index}].name");
            let Ok(namespace) = Namespace::copy_from(table.name.as_bytes()) else {
                let count = table.name.len();
                return invalid(
                    key(),
                    format!("has {count} bytes; a namespace must have 1 to {NAME_BYTES_MAX}"),
                );
            };
            require(!namespace.is_reserved(), &key(), || {
                format!("\"{namespace}\" is reserved: names that begin with a dot are for servers' records")
            })?;
            let twice = self.namespaces[..index].iter().any(|other| other.name == table.name);
            require(!twice, &key(), || format!("\"{}\" occurs twice; it must occur once", table.name))?;
            let inherited =
                if table.journal == Some(false) { DurabilityName::Cached } else { self.durability };
            namespaces.push(NamespaceConfig {
                namespace,
                journal: table.journal,
                durability: table.durability.unwrap_or(inherited).into(),
                settings: table.settings.clone(),
            });
        }
        let mut config = ObjectCacheConfig {
            dirty_bytes_max: self.dirty_bytes_max().0,
            durability: self.durability.into(),
            namespaces,
            ..ObjectCacheConfig::default()
        };
        self.apply(&mut config);
        Ok(config)
    }

    /// Opens the journal, if one is configured, for [`open_cache`](Self::open_cache). While the
    /// journal's disk fails, retries every second.
    ///
    /// # Cancel safety
    /// The same as for [`JournalTable::open`].
    ///
    /// # Errors
    /// Returns one line that names the directory, the problem and the remedy.
    pub async fn open_journal(&self, waiting: &mut Waiting<'_>) -> Result<Option<OpenJournal>, StartError> {
        match &self.journal {
            Some(table) => table.open(waiting).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns a cache over `below`, with the journal that [`open_journal`](Self::open_journal) has
    /// opened, and the background task that the cache needs. With `insight`, other amounts of
    /// memory are simulated on a sample of the requests.
    ///
    /// # Errors
    /// Returns the key with an invalid value.
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
        builder.build().map_err(ConfigError::from)
    }

    /// Checks the values as far as this is possible without opening the store.
    ///
    /// # Errors
    /// Returns the first key with an invalid value.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Some(backend) = &self.backend else {
            return invalid("objects.backend", "is missing; its kind must name the store of the objects");
        };
        backend.check()?;
        self.check_cache()
    }

    /// Checks the files and directories that keys name as far as this is possible without opening
    /// the journal or the store: files that must be readable are read.
    ///
    /// # Errors
    /// Returns the first key that names an invalid file or directory.
    pub fn check_files(&self) -> Result<(), ConfigError> {
        self.backend.as_ref().map_or(Ok(()), BackendTable::check_files)?;
        self.journal.as_ref().map_or(Ok(()), JournalTable::check_place)
    }

    /// Checks the values except those of the store.
    ///
    /// # Errors
    /// Returns the first key with an invalid value.
    pub fn check_cache(&self) -> Result<(), ConfigError> {
        self.check_ranges("objects")?;
        eviction_policy("objects.eviction_policy", &self.eviction_policy)?;
        self.cache()?.check(&Capabilities::full(OBJECT_BYTES_LIMIT)).map_err(ConfigError::from)?;
        check_election(self)?;
        check_durability(self)?;
        self.http.as_ref().map_or(Ok(()), |http| http.check(self.object_bytes_max.0))?;
        self.journal.as_ref().map_or(Ok(()), |journal| journal.check(self))
    }

    /// Returns the maximum memory use of the cache, in bytes: content, and bookkeeping as if every
    /// object had the maximum size and all of its slots were known, which copies and discards can
    /// cause without content.
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

/// The memory use of a bucket in addition to its content: its masks and count, and its share of the
/// policy's queues.
const BUCKET_OVERHEAD_BYTES: u64 = 24;
/// The memory use of an object in the index, with a name of typical length.
const OBJECT_BYTES: u64 = 350;
/// The number of slots in a chunk, the unit in which an object's slots are allocated, and the
/// memory of a chunk.
const CHUNK_SLOTS: u64 = 64;
const CHUNK_BYTES: u64 = 280;

/// The maximum of a memory size. A larger value is more probably a typing error than the memory of
/// a real machine.
const MEMORY_BYTES_MAX: u64 = 4 << 40;
/// One day.
const TIME_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// An error of the cache names a field; the keys here end in the unit.
impl From<CacheConfigError> for ConfigError {
    fn from(error: CacheConfigError) -> ConfigError {
        let key = match error.key {
            "dirty_age_max" => "dirty_age_ms_max",
            "read_ahead_latency_min" => "read_ahead_latency_us_min",
            "retry_delay_min" => "retry_delay_ms_min",
            "retry_delay_max" => "retry_delay_ms_max",
            key => key,
        };
        ConfigError::new(format!("objects.{key}"), error.why)
    }
}
