//! A namespace's settings, write mode and state.

use std::fmt;
use std::str::FromStr;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, Namespace, Result};

macro_rules! keys {
    ($($(#[$doc:meta])* $key:ident = $name:literal,)*) => {
        /// A setting of a namespace, besides its write mode, that can change at run time. Each
        /// value is a number, whose unit is in the key's name; without a unit it is a count.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum NamespaceKey {
            $($(#[$doc])* #[serde(rename = $name)] $key,)*
        }

        impl NamespaceKey {
            /// All keys.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$key),*];

            /// Returns the key's name, which the configuration file uses as well.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$key => $name,)*
                }
            }
        }
    };
}

keys! {
    /// The namespace's own limit on dirty data. Without a value, the namespace shares the common
    /// limit.
    DirtyBytesMax = "dirty_bytes_max",
    /// The maximum time for which a change is dirty before its flush begins. Without a value, the
    /// cache's setting applies.
    DirtyAgeMsMax = "dirty_age_ms_max",
    /// The maximum total size of the namespace's objects. A change that would exceed it is refused
    /// with [`OutOfSpace`](crate::Error::OutOfSpace) before it is acknowledged. Without a value,
    /// there is no quota.
    QuotaBytesMax = "quota_bytes_max",
    /// The maximum number of store requests per second. Without a value, there is no limit.
    StoreRequestsPerSecondMax = "store_requests_per_second_max",
    /// The maximum number of bytes to and from the store per second. Without a value, there is no
    /// limit.
    StoreBytesPerSecondMax = "store_bytes_per_second_max",
    /// The number of store requests per second that are reserved for the namespace. Without a
    /// value, none are reserved.
    StoreRequestsPerSecondMin = "store_requests_per_second_min",
    /// The namespace's weight when the unreserved capacity of the store is shared. The default is
    /// 1.
    StoreWeight = "store_weight",
    /// The time for which the namespace can save up unused rates. The default is 100 ms.
    StoreBurstMs = "store_burst_ms",
    /// The memory that other namespaces cannot take from the namespace while it is in use. With
    /// this or one of the next two settings the namespace has a memory share of its own. The
    /// default is 0.
    MemoryBytesMin = "memory_bytes_min",
    /// The maximum memory of the namespace, which requests in progress and dirty data may exceed.
    /// Without a value, there is no limit.
    MemoryBytesMax = "memory_bytes_max",
    /// The weight of the namespace's misses, relative to other namespaces, when memory moves to the
    /// namespaces in which it prevents most misses. The default is 1.
    MemoryWeight = "memory_weight",
    /// The distance that the cache reads ahead of a sequential client. Without a value, the cache's
    /// setting applies.
    ReadAheadBytesMax = "read_ahead_bytes_max",
    /// The length from which sequential reads bypass the cache. Without a value, the cache's
    /// setting applies.
    BypassReadBytesMin = "bypass_read_bytes_min",
    /// The length from which sequential writes bypass the cache. Without a value, the cache's
    /// setting applies.
    BypassWriteBytesMin = "bypass_write_bytes_min",
}

impl NamespaceKey {
    /// Returns whether the key's value is a number of bytes.
    #[must_use]
    pub fn is_bytes(self) -> bool {
        self.name().contains("bytes")
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
            Error::Invalid(format!("{text:?} is not a setting of a namespace; expected {known}").into())
        })
    }
}

/// The settings of a namespace from one source. Other sources decide the missing settings.
///
/// ```
/// use blocker::{NamespaceKey, NamespaceSettings, WriteMode};
///
/// let mut file = NamespaceSettings::from(WriteMode::Through).with(NamespaceKey::QuotaBytesMax, 4096);
/// let command = NamespaceSettings::default().with(NamespaceKey::QuotaBytesMax, None);
/// file.extend(&command);
/// assert_eq!(file.write, Some(WriteMode::Through));
/// assert_eq!(file.get(NamespaceKey::QuotaBytesMax), Some(None), "no quota, whatever the file has");
/// assert_eq!(file.get(NamespaceKey::StoreWeight), None, "not set");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NamespaceSettings {
    /// How writes are treated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<WriteMode>,
    #[serde(flatten)]
    values: Values,
}

impl NamespaceSettings {
    /// Returns the settings with another value for `key`: a number, or `None`, which overrides the
    /// value of a weaker source with no value.
    #[must_use]
    pub fn with(mut self, key: NamespaceKey, value: impl Into<Option<u64>>) -> Self {
        self.set(key, value);
        self
    }

    /// Sets a value as [`with`](Self::with) does.
    pub fn set(&mut self, key: NamespaceKey, value: impl Into<Option<u64>>) {
        let value = value.into();
        match self.place(key) {
            Ok(at) => self.values.0[at].1 = value,
            Err(at) => self.values.0.insert(at, (key, value)),
        }
    }

    /// Removes a value, so that other sources decide the setting.
    pub fn unset(&mut self, key: NamespaceKey) {
        if let Ok(at) = self.place(key) {
            self.values.0.remove(at);
        }
    }

    /// Returns a value: `None` if the key is not set, `Some(None)` if the key is set to no value.
    #[must_use]
    pub fn get(&self, key: NamespaceKey) -> Option<Option<u64>> {
        self.place(key).ok().map(|at| self.values.0[at].1)
    }

    /// Returns where a key is among the values, or where it would be inserted.
    fn place(&self, key: NamespaceKey) -> Result<usize, usize> {
        self.values.0.binary_search_by_key(&key, |(key, _)| *key)
    }

    /// Returns a key's number, if it has one.
    #[must_use]
    pub fn number(&self, key: NamespaceKey) -> Option<u64> {
        self.get(key).flatten()
    }

    /// Returns the values that are set, except the write mode, in the order of the keys.
    pub fn values(&self) -> impl ExactSizeIterator<Item = (NamespaceKey, Option<u64>)> {
        self.values.0.iter().copied()
    }

    /// Returns whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.write.is_none() && self.values.0.is_empty()
    }

    /// Overrides these settings with the settings of a stronger source.
    pub fn extend(&mut self, stronger: &Self) {
        self.write = stronger.write.or(self.write);
        stronger.values().for_each(|(key, value)| self.set(key, value));
    }
}

/// The values that are set, in the order of their keys. Serialized as a map.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Values(Vec<(NamespaceKey, Option<u64>)>);

impl Serialize for Values {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Values;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the settings of a namespace")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Values, A::Error> {
                let mut settings = NamespaceSettings::default();
                while let Some((key, value)) = map.next_entry::<NamespaceKey, Option<u64>>()? {
                    settings.set(key, value);
                }
                Ok(settings.values)
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

/// Returns settings with only a write mode.
impl From<WriteMode> for NamespaceSettings {
    fn from(mode: WriteMode) -> Self {
        Self { write: Some(mode), ..Self::default() }
    }
}

/// A namespace's state in a cache, and its settings.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NamespaceState {
    /// The namespace.
    pub namespace: Namespace,
    /// How writes are treated.
    pub write: WriteMode,
    /// Whether an earlier write mode has not ended yet, because some of its changes are in progress
    /// or not stored.
    pub is_changing: bool,
    /// Whether the namespace is in the configuration file.
    pub is_configured: bool,
    /// The effective settings of the namespace, except the write mode.
    pub settings: NamespaceSettings,
    /// The namespace's counters of cached data and of operations, by name.
    pub counts: Vec<(String, u64)>,
}

impl NamespaceState {
    /// Returns the state of a namespace without settings and counts.
    #[must_use]
    pub fn new(namespace: Namespace, write: WriteMode) -> Self {
        Self {
            namespace,
            write,
            is_changing: false,
            is_configured: false,
            settings: NamespaceSettings::default(),
            counts: Vec::new(),
        }
    }
}

/// One page of the namespaces that a cache knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct NamespacePage {
    /// The states of the namespaces, in bytewise order of the names.
    pub states: Vec<NamespaceState>,
    /// Whether there may be more namespaces after the last one in this page.
    pub has_more: bool,
}

/// The treatment of a namespace's unstored data when the namespace is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DirtyData {
    /// Refuse the removal.
    #[default]
    Refuse,
    /// Store the data first.
    Store,
    /// Drop the data. Changes acknowledged as *cached* or *journaled*, but not stored, are lost.
    Discard,
}

/// The data that were dropped with a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RemovedNamespace {
    /// Dropped bytes that the store has.
    pub dropped_bytes: u64,
    /// Dropped acknowledged bytes that the store does not have, in whole buckets.
    pub discarded_bytes: u64,
}

/// The write mode of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteMode {
    /// Write-back: writes are acknowledged from the cache, and stored later.
    Back,
    /// Write-through: writes are made below, with the requested durability, before they are
    /// acknowledged, and stay in the cache.
    #[default]
    Through,
    /// Write-around: writes are made below, with the requested durability, and do not stay in the
    /// cache.
    Around,
    /// Read-only: every change is refused with [`Error::Denied`].
    ReadOnly,
}

/// Writes `back`, `through`, `around` or `read-only`.
impl fmt::Display for WriteMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Back => "back",
            Self::Through => "through",
            Self::Around => "around",
            Self::ReadOnly => "read-only",
        })
    }
}

/// Reads what `Display` writes.
///
/// ```
/// use blocker::WriteMode;
///
/// assert_eq!("back".parse(), Ok(WriteMode::Back));
/// ```
impl FromStr for WriteMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let all = [Self::Back, Self::Through, Self::Around, Self::ReadOnly];
        all.into_iter().find(|mode| mode.to_string() == text).ok_or_else(|| {
            let known = "back, through, around and read-only";
            Error::Invalid(format!("{text:?} is not a write mode; expected {known}").into())
        })
    }
}
