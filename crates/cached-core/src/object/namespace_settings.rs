//! What can be set for a namespace while the cache runs, by the keys of the configuration, and what has been set
//! beside the configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use blocker::{Error, Namespace};

use super::config::{ConfigError, NamespaceConfig, ObjectCacheConfig};
use super::gate::StoreTerms;
use super::namespaces::Namespaces;

/// A setting of a namespace that can change while the cache runs, beside its write mode. Each is a number, or not
/// set; the unit is the one in the name, and without one it is a count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum NamespaceKey {
    /// [`NamespaceConfig::dirty_bytes_max`].
    DirtyBytesMax,
    /// [`NamespaceConfig::dirty_age_max`], in milliseconds.
    DirtyAgeMsMax,
    /// [`NamespaceConfig::quota_bytes_max`].
    QuotaBytesMax,
    /// [`StoreTerms::requests_per_second_max`].
    StoreRequestsPerSecondMax,
    /// [`StoreTerms::bytes_per_second_max`].
    StoreBytesPerSecondMax,
    /// [`StoreTerms::requests_per_second_min`].
    StoreRequestsPerSecondMin,
    /// [`StoreTerms::weight`].
    StoreWeight,
    /// [`StoreTerms::burst`], in milliseconds.
    StoreBurstMs,
    /// [`NamespaceConfig::memory_bytes_min`].
    MemoryBytesMin,
    /// [`NamespaceConfig::memory_bytes_max`].
    MemoryBytesMax,
    /// [`NamespaceConfig::memory_weight`].
    MemoryWeight,
    /// [`NamespaceConfig::read_ahead_bytes_max`].
    ReadAheadBytesMax,
    /// [`NamespaceConfig::bypass_read_bytes_min`].
    BypassReadBytesMin,
    /// [`NamespaceConfig::bypass_write_bytes_min`].
    BypassWriteBytesMin,
}

impl NamespaceKey {
    /// All keys.
    pub const ALL: [Self; 14] = [
        Self::DirtyBytesMax,
        Self::DirtyAgeMsMax,
        Self::QuotaBytesMax,
        Self::StoreRequestsPerSecondMax,
        Self::StoreBytesPerSecondMax,
        Self::StoreRequestsPerSecondMin,
        Self::StoreWeight,
        Self::StoreBurstMs,
        Self::MemoryBytesMin,
        Self::MemoryBytesMax,
        Self::MemoryWeight,
        Self::ReadAheadBytesMax,
        Self::BypassReadBytesMin,
        Self::BypassWriteBytesMin,
    ];

    /// Returns the key's name in the configuration file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DirtyBytesMax => "dirty_bytes_max",
            Self::DirtyAgeMsMax => "dirty_age_ms_max",
            Self::QuotaBytesMax => "quota_bytes_max",
            Self::StoreRequestsPerSecondMax => "store_requests_per_second_max",
            Self::StoreBytesPerSecondMax => "store_bytes_per_second_max",
            Self::StoreRequestsPerSecondMin => "store_requests_per_second_min",
            Self::StoreWeight => "store_weight",
            Self::StoreBurstMs => "store_burst_ms",
            Self::MemoryBytesMin => "memory_bytes_min",
            Self::MemoryBytesMax => "memory_bytes_max",
            Self::MemoryWeight => "memory_weight",
            Self::ReadAheadBytesMax => "read_ahead_bytes_max",
            Self::BypassReadBytesMin => "bypass_read_bytes_min",
            Self::BypassWriteBytesMin => "bypass_write_bytes_min",
        }
    }

    /// Whether its value is a number of bytes.
    #[must_use]
    pub fn is_bytes(self) -> bool {
        self.name().contains("bytes")
    }

    /// Returns the value in a configuration; `None` where it is not set.
    #[must_use]
    pub fn value(self, of: &NamespaceConfig) -> Option<u64> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let without = StoreTerms::default();
        match self {
            Self::DirtyBytesMax => of.dirty_bytes_max,
            Self::DirtyAgeMsMax => of.dirty_age_max.map(millis),
            Self::QuotaBytesMax => of.quota_bytes_max,
            Self::StoreRequestsPerSecondMax => of.store.requests_per_second_max,
            Self::StoreBytesPerSecondMax => of.store.bytes_per_second_max,
            Self::StoreRequestsPerSecondMin => of.store.requests_per_second_min,
            Self::StoreWeight => (of.store.weight != without.weight).then(|| u64::from(of.store.weight)),
            Self::StoreBurstMs => (of.store.burst != without.burst).then(|| millis(of.store.burst)),
            Self::MemoryBytesMin => of.memory_bytes_min,
            Self::MemoryBytesMax => of.memory_bytes_max,
            Self::MemoryWeight => of.memory_weight.map(u64::from),
            Self::ReadAheadBytesMax => of.read_ahead_bytes_max,
            Self::BypassReadBytesMin => of.bypass_read_bytes_min,
            Self::BypassWriteBytesMin => of.bypass_write_bytes_min,
        }
    }

    /// Sets the value in a configuration; `None` for none of its own. A weight that is too large for its type is
    /// set as the largest, which no check lets through.
    fn put(self, value: Option<u64>, into: &mut NamespaceConfig) {
        let without = StoreTerms::default();
        let weight = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        match self {
            Self::DirtyBytesMax => into.dirty_bytes_max = value,
            Self::DirtyAgeMsMax => into.dirty_age_max = value.map(Duration::from_millis),
            Self::QuotaBytesMax => into.quota_bytes_max = value,
            Self::StoreRequestsPerSecondMax => into.store.requests_per_second_max = value,
            Self::StoreBytesPerSecondMax => into.store.bytes_per_second_max = value,
            Self::StoreRequestsPerSecondMin => into.store.requests_per_second_min = value,
            Self::StoreWeight => into.store.weight = value.map_or(without.weight, weight),
            Self::StoreBurstMs => into.store.burst = value.map_or(without.burst, Duration::from_millis),
            Self::MemoryBytesMin => into.memory_bytes_min = value,
            Self::MemoryBytesMax => into.memory_bytes_max = value,
            Self::MemoryWeight => into.memory_weight = value.map(weight),
            Self::ReadAheadBytesMax => into.read_ahead_bytes_max = value,
            Self::BypassReadBytesMin => into.bypass_read_bytes_min = value,
            Self::BypassWriteBytesMin => into.bypass_write_bytes_min = value,
        }
    }
}

impl fmt::Display for NamespaceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for NamespaceKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|key| key.name() == text).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::Invalid(format!("{text:?} cannot be set for a namespace; there are {known}").into())
        })
    }
}

/// The settings of one namespace, by key; `None`: none of its own.
pub(crate) type Values = BTreeMap<NamespaceKey, Option<u64>>;

/// What is in force for the namespaces: the configuration, and what has been set since.
#[derive(Clone, Debug)]
pub(crate) struct NamespaceSettings {
    /// The configuration that was read last.
    pub(crate) base: ObjectCacheConfig,
    set: BTreeMap<Namespace, Values>,
}

impl NamespaceSettings {
    pub(crate) fn new(base: ObjectCacheConfig) -> Self {
        Self { base, set: BTreeMap::new() }
    }

    /// Returns what is in force once the configuration has changed from `before` to `after`: a value that differs
    /// in them is the configuration's again.
    pub(crate) fn reconfigured(&self, before: &ObjectCacheConfig, after: &ObjectCacheConfig) -> Self {
        let mut new = Self { base: after.clone(), set: self.set.clone() };
        for (namespace, values) in &mut new.set {
            let of = |config: &ObjectCacheConfig, key: NamespaceKey| {
                let own = config.namespaces.iter().find(|each| each.namespace == *namespace);
                own.and_then(|own| key.value(own))
            };
            values.retain(|key, _| of(before, *key) == of(after, *key));
        }
        new.set.retain(|_, values| !values.is_empty());
        new
    }

    /// Returns what is in force with other settings of a namespace.
    pub(crate) fn with(&self, namespace: &Namespace, values: &[(NamespaceKey, Option<u64>)]) -> Self {
        let mut new = self.clone();
        new.set.entry(namespace.clone()).or_default().extend(values.iter().copied());
        new
    }

    /// Returns what is in force without what has been set for a namespace; `None` if nothing has been.
    pub(crate) fn without(&self, namespace: &Namespace) -> Option<Self> {
        let mut new = self.clone();
        new.set.remove(namespace).map(|_| new)
    }

    /// Returns the configuration that is in force.
    pub(crate) fn in_force(&self, namespaces: &Namespaces) -> ObjectCacheConfig {
        let mut config = self.base.clone();
        for (namespace, values) in &self.set {
            let at = config.namespaces.iter().position(|each| each.namespace == *namespace);
            let at = at.unwrap_or_else(|| {
                let mode = namespaces.set_mode_of(namespace);
                let mut own = NamespaceConfig::new(namespace.clone(), mode);
                (own.journal, own.durability) = (config.journal, config.durability);
                config.namespaces.push(own);
                config.namespaces.len() - 1
            });
            values.iter().for_each(|(key, value)| key.put(*value, &mut config.namespaces[at]));
        }
        config
    }

    /// Returns the settings that are in force for a namespace.
    pub(crate) fn values(&self, namespace: &Namespace, namespaces: &Namespaces) -> Values {
        let config = self.in_force(namespaces);
        let own = config.namespaces.into_iter().find(|each| each.namespace == *namespace);
        let value = |key: NamespaceKey| own.as_ref().and_then(|own| key.value(own));
        NamespaceKey::ALL.into_iter().map(|key| (key, value(key))).collect()
    }
}

/// Returns the error of a setting that cannot work.
pub(crate) fn invalid(error: &ConfigError) -> Error {
    Error::Invalid(format!("{}: {}", error.key, error.why).into())
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use blocker::WriteMode;

    use super::*;

    #[test]
    fn every_key_is_put_where_it_is_read() {
        let of = NamespaceConfig::new(Namespace::new("n").unwrap(), WriteMode::Back);
        for key in NamespaceKey::ALL {
            assert_eq!(key.name().parse(), Ok(key));
            let mut changed = of.clone();
            assert_eq!(key.value(&changed), None, "{key}");
            key.put(Some(7), &mut changed);
            assert_eq!(key.value(&changed), Some(7), "{key}");
            let others = NamespaceKey::ALL.into_iter().filter(|other| *other != key);
            assert!(others.into_iter().all(|other| other.value(&changed).is_none()), "{key}");
            key.put(None, &mut changed);
            assert_eq!(key.value(&changed), None, "{key}");
        }
        assert!("write".parse::<NamespaceKey>().is_err());
    }

    #[test]
    fn what_has_been_set_holds_until_the_configuration_changes_it() {
        let (one, other) = (Namespace::new("one").unwrap(), Namespace::new("other").unwrap());
        let config = |quota: Option<u64>| {
            let mut own = NamespaceConfig::new(one.clone(), WriteMode::Back);
            own.quota_bytes_max = quota;
            ObjectCacheConfig { namespaces: vec![own], ..ObjectCacheConfig::default() }
        };
        let (first, second) = (config(Some(1)), config(Some(2)));
        let namespaces = Namespaces::new(&first);
        let (quota, age) = (NamespaceKey::QuotaBytesMax, NamespaceKey::DirtyAgeMsMax);
        let settings = NamespaceSettings::new(first.clone());
        let settings =
            settings.with(&one, &[(quota, None), (age, Some(5))]).with(&other, &[(quota, Some(9))]);
        let value =
            |settings: &NamespaceSettings, of: &Namespace, key| settings.values(of, &namespaces)[&key];
        assert_eq!((value(&settings, &one, quota), value(&settings, &one, age)), (None, Some(5)));
        assert_eq!(value(&settings, &other, quota), Some(9));
        let same = settings.reconfigured(&first, &first);
        assert_eq!(value(&same, &one, quota), None, "as it was set");
        let changed = settings.reconfigured(&first, &second);
        assert_eq!((value(&changed, &one, quota), value(&changed, &one, age)), (Some(2), Some(5)));
        assert_eq!(value(&changed, &other, quota), Some(9));
        let without = changed.without(&one).unwrap();
        assert_eq!((value(&without, &one, age), value(&without, &other, quota)), (None, Some(9)));
        assert!(without.without(&one).is_none());
    }
}
