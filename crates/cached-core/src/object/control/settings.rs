//! The settings of the namespaces by source, and the effective values that can change while a cache
//! runs.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use blocker::{Namespace, NamespaceKey, NamespaceSettings, WriteMode};

use super::dirty_room::DirtyLimits;
use super::namespaces::Namespaces;
use super::records::{NO_OWN, NamespaceRecord, nanos};
use crate::object::config::{NamespaceConfig, OTHERS, ObjectCacheConfig};
use crate::object::store::{Number, StoreTerms};
use crate::sync::{AtomicU64, Ordering};

/// The source of a namespace's value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SettingSource {
    /// No source: the value is the default of the whole cache.
    Default,
    /// The section of the configuration about this namespace.
    File,
    /// The volume in the namespace, when it was last attached.
    Volume,
    /// An operator, or a client, while the cache runs.
    Command,
}

/// Formats the source as `default`, `file`, `volume` or `command`.
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

/// The effective settings of a namespace, each with its source.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SettingsInForce {
    /// The write mode while the cache is attached.
    pub write: (WriteMode, SettingSource),
    /// All other settings, each once; `None` where the namespace has no value of its own.
    pub values: Vec<(NamespaceKey, (Option<u64>, SettingSource))>,
}

/// The settings of the namespaces by source, and the configuration that results from them.
///
/// ```text
///  command ─> volume ─> file ─> default       the first source that has a value determines it
/// ```
/// A source can be set and reset as a whole or by key, without affecting the other sources. When a
/// configuration is read again, a key that it changes overrides an earlier command.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The most recently read configuration: the defaults, and the settings of the file.
    pub(crate) file: ObjectCacheConfig,
    /// The settings from other sources, for each namespace that has any.
    own: Vec<(Namespace, Own)>,
}

#[derive(Clone, Default, Debug)]
struct Own {
    /// The settings of the volume in the namespace, from when it was last attached.
    volume: NamespaceSettings,
    /// The number of the volume's attachment, while it is attached.
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
        Self { file, own: Vec::new() }
    }

    fn own(&self, namespace: &Namespace) -> Option<&Own> {
        self.own.iter().find(|(each, _)| each == namespace).map(|(_, own)| own)
    }

    fn own_mut(&mut self, namespace: &Namespace) -> &mut Own {
        let at = self.own.iter().position(|(each, _)| each == namespace).unwrap_or_else(|| {
            self.own.push((namespace.clone(), Own::default()));
            self.own.len() - 1
        });
        &mut self.own[at].1
    }

    /// Returns the effective settings of a namespace.
    pub(crate) fn of(&self, namespace: &Namespace) -> SettingsInForce {
        let own = self.own(namespace);
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

    /// Returns the effective configuration.
    pub(crate) fn in_force(&self) -> ObjectCacheConfig {
        let mut config = self.file.clone();
        for (namespace, Own { volume, command, .. }) in &self.own {
            let mut own = volume.clone();
            own.extend(command);
            match config.namespaces.iter_mut().find(|each| each.namespace == *namespace) {
                Some(each) => each.settings.extend(&own),
                // An attached volume without settings needs no entry.
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

    /// Returns the settings that result from reading another configuration.
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
        new.own.retain(|(_, own)| !own.is_empty());
        new
    }

    /// Returns a copy of the settings in which a command has set `settings`.
    pub(crate) fn with_command(&self, namespace: &Namespace, settings: &NamespaceSettings) -> Self {
        let mut new = self.clone();
        new.own_mut(namespace).command.extend(settings);
        new
    }

    /// Returns a copy of the settings in which neither a command nor a volume that is no longer
    /// attached has set anything for a namespace.
    pub(crate) fn without(&self, namespace: &Namespace) -> Self {
        let mut new = self.clone();
        new.own.retain(|(each, _)| each != namespace);
        new
    }

    /// Returns a copy of the settings with the settings of an attached volume.
    pub(crate) fn with_volume(
        &self,
        namespace: &Namespace,
        attachment: u64,
        settings: NamespaceSettings,
    ) -> Self {
        let mut new = self.clone();
        let own = new.own_mut(namespace);
        (own.volume, own.attachment) = (settings, Some(attachment));
        new
    }

    /// Records that an attachment of the volume in a namespace has ended. The volume's settings
    /// stay: no effective value changes.
    pub(crate) fn detach(&mut self, namespace: &Namespace, attachment: u64) {
        if self.own(namespace).is_some_and(|own| own.attachment == Some(attachment)) {
            self.own_mut(namespace).attachment = None;
            self.own.retain(|(_, own)| !own.is_empty());
        }
    }

    /// Returns whether a volume in a namespace is attached.
    pub(crate) fn has_volume(&self, namespace: &Namespace) -> bool {
        self.own(namespace).is_some_and(|own| own.attachment.is_some())
    }
}

/// Returns the settings that a configuration has for a namespace, if it names the namespace.
fn of_file<'a>(config: &'a ObjectCacheConfig, namespace: &Namespace) -> Option<&'a NamespaceSettings> {
    config.namespaces.iter().find(|each| each.namespace == *namespace).map(|each| &each.settings)
}

/// The effective values, except the dirty limit, the write modes and the terms of the gate, which
/// are stored elsewhere.
#[derive(Default)]
pub(crate) struct LiveValues {
    dirty_age_nanos: AtomicU64,
    flush_requests_max: AtomicU64,
    flush_gap_bytes_max: AtomicU64,
    retry_delay_nanos_min: AtomicU64,
    retry_delay_nanos_max: AtomicU64,
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

    /// Returns the maximum time that a change to a namespace stays dirty before its flush begins.
    pub(crate) fn dirty_age_max(&self, namespace: &NamespaceRecord) -> Duration {
        let own = namespace.dirty_age_nanos.load(Ordering::SeqCst);
        let nanos = if own == NO_OWN { self.dirty_age_nanos.load(Ordering::SeqCst) } else { own };
        Duration::from_nanos(nanos)
    }

    /// Returns the maximum number of flush requests in flight.
    pub(crate) fn flush_requests_max(&self) -> usize {
        usize::try_from(self.flush_requests_max.load(Ordering::SeqCst)).unwrap_or(usize::MAX)
    }

    /// Returns the maximum amount of clean data that a flush may send between two dirty runs, in
    /// bytes.
    pub(crate) fn flush_gap_bytes_max(&self) -> u64 {
        self.flush_gap_bytes_max.load(Ordering::SeqCst)
    }

    /// Returns the minimum and maximum delay before a failed flush is retried.
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

/// Returns the limits of dirty data in a cache of `count` buckets.
pub(crate) fn dirty_limits(config: &ObjectCacheConfig, count: u32, namespaces: &Namespaces) -> DirtyLimits {
    let own = |each: &NamespaceConfig| {
        let part = each.own(NamespaceKey::DirtyBytesMax)? / blocker::BUCKET_BYTES;
        Some((namespaces.of(&each.namespace), part)).filter(|(number, _)| *number != OTHERS)
    };
    let own = config.namespaces.iter().filter_map(own).collect();
    let total = (config.dirty_bytes_max / blocker::BUCKET_BYTES).min(u64::from(count) / 4 * 3).max(1);
    DirtyLimits { total, own }
}

/// Returns the store terms of the namespaces that have their own.
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

/// Records which namespaces `terms` limits at the store.
pub(crate) fn set_limited(namespaces: &Namespaces, terms: &[(Number, StoreTerms)]) {
    let limited: HashMap<Number, bool> =
        terms.iter().map(|(number, terms)| (*number, terms.is_limited())).collect();
    for record in namespaces.records() {
        let is_limited = limited.get(&Number::from(record.number)).copied().unwrap_or(false);
        record.limited_flushes.set_limited(is_limited);
    }
}
