//! The configuration file as a whole: reading, checking and writing; and its small tables.

use super::Config;
use super::memcached::MemcachedTable;
use super::ring::RingTable;
#[cfg(feature = "sidecar")]
use super::s3::S3Table;
use cached_admin::AdminTable;
use cached_config::{
    ConfigError, InsightTable, ObjectsTable, Secrets, Size, SynapseTable, config_keys, invalid, parse_config,
    require, within,
};
use cached_core::arbiter::SharedMemory;
use cached_core::arena::MemoryRange;
use cached_core::kv::policy;
use cached_memcached::settings::Settings;
use cached_objects::{NbdTable, VolumesTable, check_election, is_elected};
use cached_process::log::LogTable;
use cached_registry::RegistryTable;
use cached_tracing::TracingTable;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The content of a configuration file; omitted keys have their defaults.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    process: ProcessTable,
    log: LogTable,
    pub(crate) memcached: MemcachedTable,
    /// The ring of nodes to which the server belongs, if it belongs to one.
    pub(crate) ring: Option<RingTable>,
    insight: InsightTable,
    /// The object cache, if one is configured.
    pub objects: Option<ObjectsTable>,
    /// The way in which items and objects share their memory, if they do.
    pub(crate) shared_memory: Option<SharedMemoryTable>,
    /// The synapse listener of the object cache, if one is configured.
    pub synapse: Option<SynapseTable>,
    /// The registry of documents that hosts share, if one is configured.
    pub registry: Option<RegistryTable>,
    /// The volumes in the object cache, if they are configured.
    pub volumes: Option<VolumesTable>,
    /// The NBD listener that serves the volumes, if one is configured.
    pub nbd: Option<NbdTable>,
    /// The sidecar in front of an S3 endpoint, if one is configured.
    #[cfg(feature = "sidecar")]
    pub(crate) s3: Option<S3Table>,
    /// The admin listener, if one is configured.
    pub admin: Option<AdminTable>,
    /// Tracing, if it is configured.
    pub tracing: Option<TracingTable>,
}

/// Returns the file with derived values.
impl From<&Config> for File {
    fn from(config: &Config) -> File {
        File::with_derived_values_absent(config).filled_in()
    }
}

impl File {
    /// Returns the configuration as a file, without values that are derived from others.
    pub(crate) fn with_derived_values_absent(config: &Config) -> File {
        File {
            process: ProcessTable::from(&config.settings),
            log: config.settings.log,
            memcached: MemcachedTable::from(&config.settings),
            insight: config.settings.insight.clone(),
            ..config.file.clone()
        }
    }

    /// Returns the file with derived values.
    pub(crate) fn filled_in(self) -> File {
        let shared = self.settings().ok().zip(self.objects.as_ref()).zip(self.shared_memory.as_ref());
        let shared_memory = match shared {
            Some(((settings, objects), table)) => Some(table.filled_in(settings.memory_bytes, objects)),
            None => self.shared_memory,
        };
        let volumes = self.volumes.map(|table| table.filled_in(self.objects.as_ref()));
        File { shared_memory, volumes, objects: self.objects.map(ObjectsTable::filled_in), ..self }
    }

    /// Parses and validates a file's text; `path` is for error messages.
    ///
    /// # Errors
    /// Returns [`ConfigError`] for the first error found.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<File, ConfigError> {
        let mut file: File = parse_config(path, text)?;
        let settings = file.check().map_err(|error| error.in_file(path))?;
        // Whether memory can be shared is checked later, with the memory that flags set.
        set_range(file.shared_memory.as_ref(), &settings, file.objects.as_mut());
        Ok(file)
    }

    /// Checks the tables, and returns the settings.
    fn check(&self) -> Result<Settings, ConfigError> {
        let settings = self.settings()?;
        let (registry, objects) = (self.registry.as_ref(), self.objects.as_ref());
        self.ring.as_ref().map_or(Ok(()), |ring| ring.check(registry, objects))?;
        self.objects.as_ref().map_or(Ok(()), ObjectsTable::check)?;
        self.admin.as_ref().map_or(Ok(()), AdminTable::check)?;
        self.tracing.as_ref().map_or(Ok(()), TracingTable::check)?;
        #[cfg(feature = "sidecar")]
        self.s3.as_ref().map_or(Ok(()), S3Table::check)?;
        if let Some(synapse) = &self.synapse {
            synapse.check()?;
            if self.objects.is_none() {
                return invalid("synapse", "requires the object cache; add an [objects] table");
            }
        }
        if let Some(volumes) = &self.volumes {
            volumes.check(self.objects.as_ref())?;
        }
        self.nbd.as_ref().map_or(Ok(()), |nbd| nbd.check(self.volumes.as_ref()))?;
        check_election(objects, registry, self.synapse.as_ref())?;
        let is_shared = self.shared_memory.is_some() && objects.is_some_and(is_elected);
        require(!is_shared, "shared_memory", || {
            "cannot be used with writer = \"elected\": a standby has no object cache to share memory with"
                .into()
        })?;
        Ok(settings)
    }

    /// Reads the files of the secrets.
    pub(crate) fn secrets(&self) -> Result<Secrets, ConfigError> {
        Secrets::read(self.synapse.as_ref(), self.objects.as_ref().and_then(|table| table.backend.as_ref()))
    }

    /// Returns the settings of the process and of memcached's listeners, except for the addresses.
    pub(crate) fn settings(&self) -> Result<Settings, ConfigError> {
        let mut settings = Settings::default();
        self.process.check_ranges("process")?;
        self.process.apply(&mut settings);
        settings.drain.check()?;
        settings.log = self.log;
        self.memcached.settle(&mut settings)?;
        self.insight.check()?;
        settings.insight = self.insight.clone();
        Ok(settings)
    }
}

config_keys! {
    /// The table `[process]`. An empty string means none.
    pub(crate) struct ProcessTable over Settings = Settings::default();

    /// `-u`.
    user: String = optional(user);
    /// `-d`.
    daemon: bool = same(daemon);
    /// `-P`.
    pid_file: PathBuf = optional(pid_file);
    /// `-r`.
    core_dumps: bool = same(core_dumps);
    /// `-k`.
    lock_memory: bool = same(lock_memory);
    /// The time for which the process reports that it is not ready before its listeners close.
    drain_delay_secs: u64 = same(drain.delay_secs);
    /// The time that clients have to read their replies once the listeners are closed.
    drain_timeout_secs: u64 = same(drain.timeout_secs);
    /// The maximum time for a new process to start, and again for it to take over.
    upgrade_timeout_secs: u64 = same(upgrade_timeout_secs), in 1..=60 * 60;
}

/// The table `[shared_memory]`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(crate) struct SharedMemoryTable {
    /// The minimum memory for items; `None` means an eighth of the total, if items have that much
    /// at startup.
    pub(crate) items_bytes_min: Option<Size>,
    /// The minimum memory for objects; `None` means an eighth of the total, if objects have that
    /// much at startup.
    pub(crate) objects_bytes_min: Option<Size>,
    /// The cost of a missed item, in microseconds; 0 for the cost of loading a bucket.
    pub(crate) item_miss_us: u64,
}

/// A day: a larger value is probably a typing error.
const MISS_US_MAX: u64 = 24 * 60 * 60 * 1_000_000;
/// The minimum size with which a half works well.
const LEAST_BYTES: Size = Size(2 << 20);

impl SharedMemoryTable {
    /// Returns how `items_bytes` and the memory of `objects` are shared.
    fn memory(&self, items_bytes: usize, objects: &ObjectsTable) -> SharedMemory {
        let (items, objects) = (items_bytes as u64, objects.memory_bytes_max.0);
        let eighth = items.saturating_add(objects) / 8;
        let least = |given: Option<Size>, start: u64| given.map_or(eighth.min(start), |size| size.0);
        SharedMemory {
            items_bytes: items,
            objects_bytes: objects,
            items_bytes_min: least(self.items_bytes_min, items),
            objects_bytes_min: least(self.objects_bytes_min, objects),
            item_miss: Some(self.item_miss_us).filter(|us| *us > 0).map(Duration::from_micros),
        }
    }

    /// Returns the table, with the values filled in that follow from the memory of items and of
    /// `objects`.
    pub(super) fn filled_in(&self, items_bytes: usize, objects: &ObjectsTable) -> SharedMemoryTable {
        let memory = self.memory(items_bytes, objects);
        SharedMemoryTable {
            items_bytes_min: Some(Size(memory.items_bytes_min)),
            objects_bytes_min: Some(Size(memory.objects_bytes_min)),
            item_miss_us: self.item_miss_us,
        }
    }
}

/// If memory is shared, sets the range of the objects' memory, from which other values follow. Does
/// not validate anything.
fn set_range(table: Option<&SharedMemoryTable>, settings: &Settings, objects: Option<&mut ObjectsTable>) {
    if let (Some(table), Some(objects)) = (table, objects) {
        objects.memory_range = Some(table.memory(settings.memory_bytes, objects).objects_range());
    }
}

/// Returns how items and objects share their memory, and sets the range of the objects' memory.
///
/// # Errors
/// Returns the key whose value does not allow sharing.
pub(crate) fn share(
    table: &SharedMemoryTable,
    settings: &Settings,
    objects: Option<&mut ObjectsTable>,
) -> Result<SharedMemory, ConfigError> {
    let Some(objects) = objects else {
        return invalid("shared_memory", "requires the object cache; add an [objects] table");
    };
    within("shared_memory.item_miss_us", table.item_miss_us, 0..=MISS_US_MAX)?;
    let never = [
        (
            settings.memory_file.is_some(),
            "the memory of a file (memory_file, -e) cannot be shared; remove one of the two",
        ),
        (
            settings.huge_pages || objects.huge_pages,
            "huge pages cannot be shared; huge_pages (-L) must be false for both",
        ),
        (settings.lock_memory, "locked memory (lock_memory, -k) cannot be shared; remove one of the two"),
        (!settings.evict, "items must be evictable to release memory; evict must be true (no -M)"),
    ];
    if let Some((_, why)) = never.iter().find(|(is_so, _)| *is_so) {
        return invalid("shared_memory", *why);
    }
    let policies = [
        ("memcached.eviction_policy", settings.eviction_policy),
        ("objects.eviction_policy", objects.eviction_policy.as_str()),
    ];
    for (key, name) in policies {
        let remembers = policy::by_name(name).is_some_and(|policy| policy.ghost_hits().is_some());
        require(remembers, key, || {
            format!(
                "is {name}, which cannot predict the effect of more memory; with [shared_memory] it must be \
                     balanced or s3fifo"
            )
        })?;
    }
    let memory = table.memory(settings.memory_bytes, objects);
    let halves = [
        ("items", memory.items_range(), memory.items_bytes),
        ("objects", memory.objects_range(), memory.objects_bytes),
    ];
    for (half, range, start) in halves {
        let key = format!("shared_memory.{half}_bytes_min");
        within(&key, Size(range.bytes_min), LEAST_BYTES..=Size(start))?;
        let least = range.bytes_max.div_ceil(MemoryRange::RATIO_MAX);
        require(range.bytes_min >= least, &key, || {
            format!(
                "is {}; it must be at least {}, a {}nd of the maximum of {half}",
                Size(range.bytes_min),
                Size(least),
                MemoryRange::RATIO_MAX
            )
        })?;
    }
    require(
        settings.item_bytes_max as u64 <= memory.items_bytes_min / 2,
        "shared_memory.items_bytes_min",
        || format!("is {}; it must be at least twice item_bytes_max", Size(memory.items_bytes_min)),
    )?;
    objects.memory_range = Some(memory.objects_range());
    objects.check_cache()?;
    Ok(memory)
}
