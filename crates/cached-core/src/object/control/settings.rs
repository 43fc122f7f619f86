//! The settings of the namespaces by their sources, and the values in force that can change while a cache
//! runs.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use blocker::{Namespace, NamespaceKey, NamespaceSettings, WriteMode};

use super::dirty_room::DirtyLimits;
use super::namespaces::Namespaces;
use super::records::{NO_OWN, NamespaceRecord};
use crate::object::config::{NamespaceConfig, OTHERS, ObjectCacheConfig};
use crate::object::store::{Number, StoreTerms};
use crate::sync::{AtomicU64, Ordering};

/// What has set a value of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SettingSource {
    /// Nothing: it is that of the whole cache.
    Default,
    /// The configuration's part about this namespace.
    File,
    /// The volume in it, when it was attached last.
    Volume,
    /// An operator, or a client, while the cache runs.
    Command,
}

/// Writes `default`, `file`, `volume` or `command`.
impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Volume => "volume",
            Self::Command => "command",
        })
    }
}

/// What is in force for a namespace, each value with its source.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SettingsInForce {
    /// How writes are treated while the cache is attached.
    pub write: (WriteMode, SettingSource),
    /// All other settings; `None` where it has none of its own.
    pub values: BTreeMap<NamespaceKey, (Option<u64>, SettingSource)>,
}

/// The settings of the namespaces by their sources, and the configuration that follows from them.
///
/// ```text
///  command ─> volume ─> file ─> default       each value is that of the first source that has it
/// ```
/// A source is set and taken back as a whole or by key, and the others stay as they are. A configuration that is
/// read again takes back what a command has set for the keys that it changes.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The configuration that was read last: the defaults, and what the file has.
    pub(crate) file: ObjectCacheConfig,
    /// The other sources of each namespace that has any.
    own: BTreeMap<Namespace, Own>,
}

#[derive(Clone, Default, Debug)]
struct Own {
    /// What the volume in it has set when it was attached last.
    volume: NamespaceSettings,
    /// The number of its attachment, as long as it is attached.
    attachment: Option<u64>,
    command: NamespaceSettings,
}

impl Own {
    fn is_empty(&self) -> bool {
        self.attachment.is_none() && self.volume.is_empty() && self.command.is_empty()
    }
}

impl Settings {
    pub(crate) fn new(file: ObjectCacheConfig) -> Self {
        Self { file, own: BTreeMap::new() }
    }

    /// Returns what is in force for a namespace.
    pub(crate) fn of(&self, namespace: &Namespace) -> SettingsInForce {
        let own = self.own.get(namespace);
        let sources = [
            (SettingSource::Command, own.map(|own| &own.command)),
            (SettingSource::Volume, own.map(|own| &own.volume)),
            (SettingSource::File, of_file(&self.file, namespace)),
        ];
        let sources = || sources.iter().filter_map(|(source, settings)| Some((*source, (*settings)?)));
        let write = sources().find_map(|(source, settings)| Some((settings.write?, source)));
        let value = |key| sources().find_map(|(source, settings)| Some((settings.get(key)?, source)));
        SettingsInForce {
            write: write.unwrap_or((self.file.write, SettingSource::Default)),
            values: NamespaceKey::ALL
                .into_iter()
                .map(|key| (key, value(key).unwrap_or((None, SettingSource::Default))))
                .collect(),
        }
    }

    /// Returns the configuration that is in force.
    pub(crate) fn in_force(&self) -> ObjectCacheConfig {
        let mut config = self.file.clone();
        for (namespace, Own { volume, command, .. }) in &self.own {
            let mut own = volume.clone();
            own.extend(command);
            match config.namespaces.iter_mut().find(|each| each.namespace == *namespace) {
                Some(each) => each.settings.extend(&own),
                // An attached volume without settings needs none here.
                None if own.is_empty() => {}
                None => config.namespaces.push(NamespaceConfig {
                    namespace: namespace.clone(),
                    journal: self.file.journal,
                    durability: self.file.durability,
                    settings: own,
                }),
            }
        }
        config
    }

    /// Returns the settings once another configuration has been read.
    pub(crate) fn reconfigured(&self, after: &ObjectCacheConfig) -> Self {
        let mut new = Self { file: after.clone(), own: self.own.clone() };
        let none = NamespaceSettings::default();
        for (namespace, own) in &mut new.own {
            let before = of_file(&self.file, namespace).unwrap_or(&none);
            let after = of_file(after, namespace).unwrap_or(&none);
            own.command.write = own.command.write.filter(|_| before.write == after.write);
            let changed = NamespaceKey::ALL.into_iter().filter(|key| before.get(*key) != after.get(*key));
            changed.for_each(|key| own.command.unset(key));
        }
        new.own.retain(|_, own| !own.is_empty());
        new
    }

    /// Returns the settings with what a command sets.
    pub(crate) fn with_command(&self, namespace: &Namespace, settings: &NamespaceSettings) -> Self {
        let mut new = self.clone();
        new.own.entry(namespace.clone()).or_default().command.extend(settings);
        new
    }

    /// Returns the settings without what commands, and a volume that is not attached, have set for a namespace.
    pub(crate) fn without(&self, namespace: &Namespace) -> Self {
        let mut new = self.clone();
        new.own.remove(namespace);
        new
    }

    /// Returns the settings with those of a volume that is attached.
    pub(crate) fn with_volume(
        &self,
        namespace: &Namespace,
        attachment: u64,
        settings: NamespaceSettings,
    ) -> Self {
        let mut new = self.clone();
        let own = new.own.entry(namespace.clone()).or_default();
        (own.volume, own.attachment) = (settings, Some(attachment));
        new
    }

    /// Notes that an attachment of the volume in a namespace has ended. What it has set stays: nothing that is in force
    /// changes.
    pub(crate) fn detach(&mut self, namespace: &Namespace, attachment: u64) {
        if let Some(own) = self.own.get_mut(namespace).filter(|own| own.attachment == Some(attachment)) {
            own.attachment = None;
            self.own.retain(|_, own| !own.is_empty());
        }
    }

    /// Returns whether a volume in a namespace is attached.
    pub(crate) fn has_volume(&self, namespace: &Namespace) -> bool {
        self.own.get(namespace).is_some_and(|own| own.attachment.is_some())
    }
}

/// Returns what a configuration has for a namespace, if it names it.
fn of_file<'a>(config: &'a ObjectCacheConfig, namespace: &Namespace) -> Option<&'a NamespaceSettings> {
    config.namespaces.iter().find(|each| each.namespace == *namespace).map(|each| &each.settings)
}

/// The values that are in force, but for those that have a place of their own: the dirty limit, the write
/// modes, the gate.
#[derive(Default)]
pub(crate) struct LiveValues {
    dirty_age_nanos: AtomicU64,
    flush_requests_max: AtomicU64,
    flush_gap_bytes_max: AtomicU64,
    retry_delay_nanos_min: AtomicU64,
    retry_delay_nanos_max: AtomicU64,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl LiveValues {
    pub(crate) fn new(config: &ObjectCacheConfig, namespaces: &Namespaces) -> Self {
        let values = Self::default();
        values.set(config, namespaces);
        values
    }

    pub(crate) fn set(&self, config: &ObjectCacheConfig, namespaces: &Namespaces) {
        set_own_ages(config, namespaces);
        self.dirty_age_nanos.store(nanos(config.dirty_age_max), Ordering::SeqCst);
        self.flush_requests_max.store(config.flush_requests_max as u64, Ordering::SeqCst);
        self.flush_gap_bytes_max.store(config.flush_gap_bytes_max, Ordering::SeqCst);
        self.retry_delay_nanos_min.store(nanos(config.retry_delay_min), Ordering::SeqCst);
        self.retry_delay_nanos_max.store(nanos(config.retry_delay_max), Ordering::SeqCst);
    }

    /// Returns how long a change to a namespace may wait until its flush begins.
    pub(crate) fn dirty_age_max(&self, namespace: &NamespaceRecord) -> Duration {
        let own = namespace.dirty_age_nanos.load(Ordering::SeqCst);
        let nanos = if own == NO_OWN { self.dirty_age_nanos.load(Ordering::SeqCst) } else { own };
        Duration::from_nanos(nanos)
    }

    /// Returns the largest number of requests of flushes that are under way.
    pub(crate) fn flush_requests_max(&self) -> usize {
        usize::try_from(self.flush_requests_max.load(Ordering::SeqCst)).unwrap_or(usize::MAX)
    }

    /// Returns how much clean data a flush may send between two dirty runs, in bytes.
    pub(crate) fn flush_gap_bytes_max(&self) -> u64 {
        self.flush_gap_bytes_max.load(Ordering::SeqCst)
    }

    /// Returns the shortest and the longest time after which a failed flush is tried again.
    pub(crate) fn retry_delays(&self) -> (Duration, Duration) {
        let time = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Ordering::SeqCst));
        (time(&self.retry_delay_nanos_min), time(&self.retry_delay_nanos_max))
    }
}

fn set_own_ages(config: &ObjectCacheConfig, namespaces: &Namespaces) {
    let own = |each: &NamespaceConfig| {
        let age = Duration::from_millis(each.own(NamespaceKey::DirtyAgeMsMax)?);
        Some((namespaces.of(&each.namespace), nanos(age).min(NO_OWN - 1)))
    };
    let ages: HashMap<u16, u64> = config.namespaces.iter().filter_map(own).collect();
    for record in namespaces.records().filter(|record| record.number != OTHERS) {
        record.dirty_age_nanos.store(ages.get(&record.number).copied().unwrap_or(NO_OWN), Ordering::SeqCst);
    }
}

/// Returns how many buckets may be dirty, of `count` that there are.
fn dirty_buckets_max(config: &ObjectCacheConfig, count: u32) -> u64 {
    (config.dirty_bytes_max / blocker::BUCKET_BYTES).min(u64::from(count) / 4 * 3).max(1)
}

/// Returns the limits of dirty data, of `count` buckets that there are.
pub(crate) fn dirty_limits(config: &ObjectCacheConfig, count: u32, namespaces: &Namespaces) -> DirtyLimits {
    let own = |each: &NamespaceConfig| {
        let part = each.own(NamespaceKey::DirtyBytesMax)? / blocker::BUCKET_BYTES;
        Some((namespaces.of(&each.namespace), part)).filter(|(number, _)| *number != OTHERS)
    };
    let own = config.namespaces.iter().filter_map(own).collect();
    DirtyLimits { total: dirty_buckets_max(config, count), own }
}

/// Returns what the namespaces may have of the store that have terms of their own.
pub(crate) fn store_terms(config: &ObjectCacheConfig, numbers: &Namespaces) -> Vec<(Number, StoreTerms)> {
    let terms = config.namespaces.iter().map(|each| (each, each.store_terms()));
    let own = terms.filter(|(_, terms)| *terms != StoreTerms::default());
    own.map(|(each, terms)| (Number::from(numbers.of(&each.namespace)), terms)).collect()
}

/// Returns the quotas of the namespaces that have one.
pub(crate) fn quotas(config: &ObjectCacheConfig, numbers: &Namespaces) -> Vec<(u16, Namespace, u64)> {
    let own = |each: &NamespaceConfig| {
        Some((numbers.of(&each.namespace), each.namespace.clone(), each.own(NamespaceKey::QuotaBytesMax)?))
    };
    config.namespaces.iter().filter_map(own).collect()
}

/// Takes over which namespaces are limited at the store.
pub(crate) fn set_limited(namespaces: &Namespaces, terms: &[(Number, StoreTerms)]) {
    let limited: HashMap<Number, bool> =
        terms.iter().map(|(number, terms)| (*number, terms.is_limited())).collect();
    for record in namespaces.records() {
        let is_limited = limited.get(&Number::from(record.number)).copied().unwrap_or(false);
        record.limited_flushes.set_limited(is_limited);
    }
}
