//! A namespace's settings, write mode and state.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Namespace, Result};

macro_rules! keys {
    ($($(#[$doc:meta])* $key:ident = $name:literal,)*) => {
        /// A setting of a namespace, beside its write mode, that can change while the cache runs.
        /// Each is a number, with the unit in its name; without one it is a count.
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
    /// The namespace's own limit of dirty data. None: it shares the common limit.
    DirtyBytesMax = "dirty_bytes_max",
    /// How long a change may be dirty before its flush begins. None: as for the whole cache.
    DirtyAgeMsMax = "dirty_age_ms_max",
    /// The largest sum of its objects' sizes. None: no quota. A change that would exceed it is
    /// refused with [`OutOfSpace`](crate::Error::OutOfSpace) before it is acknowledged.
    QuotaBytesMax = "quota_bytes_max",
    /// The most requests to the store a second. None: no limit.
    StoreRequestsPerSecondMax = "store_requests_per_second_max",
    /// The most bytes to and from the store a second. None: no limit.
    StoreBytesPerSecondMax = "store_bytes_per_second_max",
    /// Store requests per second that are reserved for it. None: none.
    StoreRequestsPerSecondMin = "store_requests_per_second_min",
    /// Its weight in sharing the unreserved rest of the store. None: 1.
    StoreWeight = "store_weight",
    /// How long it can save up unused rates. None: 100 ms.
    StoreBurstMs = "store_burst_ms",
    /// Memory that other namespaces cannot take from it while it uses it. With this or one of the
    /// next two settings the namespace has a share of memory of its own. None: 0.
    MemoryBytesMin = "memory_bytes_min",
    /// The most memory that it may have; requests in progress and dirty data may exceed it. None:
    /// all.
    MemoryBytesMax = "memory_bytes_max",
    /// The weight of its misses, beside those of others, when memory moves to where it gains most.
    /// None: 1.
    MemoryWeight = "memory_weight",
    /// How far the cache reads ahead of a sequential client. None: as for the whole cache.
    ReadAheadBytesMax = "read_ahead_bytes_max",
    /// The length from which sequential reads bypass the cache. None: as for the whole cache.
    BypassReadBytesMin = "bypass_read_bytes_min",
    /// The length from which sequential writes bypass the cache. None: as for the whole cache.
    BypassWriteBytesMin = "bypass_write_bytes_min",
}

impl NamespaceKey {
    /// Returns whether its value is a number of bytes.
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
            Error::Invalid(format!("{text:?} cannot be set for a namespace; there are {known}").into())
        })
    }
}

/// The settings that one source makes for a namespace; other sources decide missing ones.
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
    values: BTreeMap<NamespaceKey, Option<u64>>,
}

impl NamespaceSettings {
    /// Returns the settings with another value: a number, or `None`, which removes the value of a
    /// weaker source.
    #[must_use]
    pub fn with(mut self, key: NamespaceKey, value: impl Into<Option<u64>>) -> Self {
        self.set(key, value);
        self
    }

    /// Sets a value, as [`with`](Self::with).
    pub fn set(&mut self, key: NamespaceKey, value: impl Into<Option<u64>>) {
        self.values.insert(key, value.into());
    }

    /// Removes a value, so that other sources decide it.
    pub fn unset(&mut self, key: NamespaceKey) {
        self.values.remove(&key);
    }

    /// Returns a value: `None` if it is not set, `Some(None)` if it is set to no value.
    #[must_use]
    pub fn get(&self, key: NamespaceKey) -> Option<Option<u64>> {
        self.values.get(&key).copied()
    }

    /// Returns a key's number, if it has one.
    #[must_use]
    pub fn number(&self, key: NamespaceKey) -> Option<u64> {
        self.get(key).flatten()
    }

    /// Returns the values that are set, beside the write mode, in the order of the keys.
    pub fn values(&self) -> impl ExactSizeIterator<Item = (NamespaceKey, Option<u64>)> {
        self.values.iter().map(|(key, value)| (*key, *value))
    }

    /// Returns whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.write.is_none() && self.values.is_empty()
    }

    /// Overrides these settings with those of a stronger source.
    pub fn extend(&mut self, stronger: &Self) {
        self.write = stronger.write.or(self.write);
        self.values.extend(&stronger.values);
    }
}

/// Settings with only a write mode.
impl From<WriteMode> for NamespaceSettings {
    fn from(mode: WriteMode) -> Self {
        Self { write: Some(mode), values: BTreeMap::new() }
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
    /// Whether an earlier write mode has not ended: its changes are in progress, or unstored.
    pub is_changing: bool,
    /// Whether the configuration file names it.
    pub is_configured: bool,
    /// Its settings in force, beside the write mode.
    pub settings: NamespaceSettings,
    /// Counts of its data in the cache and of its operations, by name.
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
    /// Their states, in bytewise order of the names.
    pub states: Vec<NamespaceState>,
    /// Whether there may be more after the last of them.
    pub has_more: bool,
}

/// The treatment of a namespace's unstored data at its removal.
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

/// The data that left the cache with a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RemovedNamespace {
    /// Bytes dropped that the store has.
    pub dropped_bytes: u64,
    /// Acknowledged bytes dropped that the store does not have, by whole buckets.
    pub discarded_bytes: u64,
}

/// How a cache treats writes to a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteMode {
    /// Write-back: acknowledged from the cache, stored later.
    Back,
    /// Write-through: made below, with the requested durability, before the acknowledgement; kept
    /// in the cache.
    #[default]
    Through,
    /// Write-around: made below, with the requested durability; not kept in the cache.
    Around,
    /// Every change is refused with [`Error::Denied`]; reads are answered.
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
            Error::Invalid(format!("{text:?} is no write mode; there are {known}").into())
        })
    }
}
