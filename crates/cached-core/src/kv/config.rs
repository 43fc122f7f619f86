//! The configuration of a store and its validation, and the errors of the map-like interface.

use std::sync::Arc;

use super::Kv;
use super::request::{ChangeHook, EvictionHook};
use crate::arena::{ArenaError, ArenaFile, ArenaFileError, MemoryRange};
use crate::clock::{Clock, SystemClock};
use crate::insight::Sampling;
use crate::policy::{Policy, S3Fifo};

/// The configuration of a [`Kv`](super::Kv).
///
/// ```
/// use cached_core::kv::{Kv, KvConfig};
///
/// let kv = Kv::new(KvConfig { arena_bytes: 256 << 20, evict: false, ..KvConfig::default() })?;
/// # Ok::<(), cached_core::kv::KvConfigError>(())
/// ```
pub struct KvConfig {
    /// Memory for items (keys, values and their headers) and for the policy's records of evicted
    /// items, in bytes; at least [`ARENA_BYTES_MIN`]. The index needs about 8 more bytes per item.
    pub arena_bytes: usize,
    /// The range in which an [`arbiter`](crate::arbiter) can change `arena_bytes` at run time;
    /// `None` if it never changes. A store with a range must evict, must use a policy that
    /// remembers evicted items, and must have neither a file nor huge pages.
    pub memory_range: Option<MemoryRange>,
    /// The limit for an item, key and value together, in bytes: from [`ITEM_BYTES_MIN`] to
    /// [`ITEM_BYTES_MAX`], and at most half of `arena_bytes` or of the minimum of `memory_range`.
    pub item_bytes_max: usize,
    /// The number of threads that can append simultaneously without waiting for each other; at
    /// least 1.
    pub lanes: usize,
    /// Whether every item has a CAS value, which takes 8 bytes.
    pub cas: bool,
    /// Whether a full store evicts; otherwise it refuses to store (memcached's `-M`).
    pub evict: bool,
    /// The eviction policy; [`by_name`](crate::policy::by_name) returns one by its name.
    pub policy: Box<dyn Policy>,
    /// Whether to ask the system for huge pages, on a best-effort basis.
    pub huge_pages: bool,
    /// The clock by which items expire.
    pub clock: Arc<dyn Clock>,
    /// The hook that is called at every change of an item.
    pub change_hook: Option<Arc<dyn ChangeHook>>,
    /// The hook that is called at every eviction, with the item.
    pub eviction_hook: Option<Arc<dyn EvictionHook>>,
    /// The seed of the key hash. `None` draws a random seed, so that clients cannot aim keys at one
    /// hash bucket.
    pub hash_seed: Option<u64>,
    /// The sample of keys for simulating other amounts of memory ([`Kv::miss_ratio_curve`]). It
    /// needs eviction and a policy known to [`by_name`](crate::policy::by_name). It uses up to
    /// about 6 MiB, and 96 KiB per lane.
    ///
    /// [`Kv::miss_ratio_curve`]: super::Kv::miss_ratio_curve
    pub insight: Sampling,
    /// The file that holds the memory and outlives the process. The [clock](KvConfig::clock) must
    /// start at [`ArenaFile::resume_secs`] or later.
    pub file: Option<ArenaFile>,
    /// The size of regions, smaller than the arena's size would give, so that a test has many
    /// regions.
    #[cfg(test)]
    pub(crate) region_bytes: Option<usize>,
    /// Whether a new memory file has checksums. Files of earlier builds do not have them.
    #[cfg(test)]
    pub(crate) checksums: bool,
}

impl std::fmt::Debug for KvConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvConfig")
            .field("arena_bytes", &self.arena_bytes)
            .field("item_bytes_max", &self.item_bytes_max)
            .field("policy", &self.policy.name())
            .finish_non_exhaustive()
    }
}

impl Default for KvConfig {
    /// Returns the default configuration: 64 MiB, items up to 1 MiB, four lanes, with CAS values,
    /// evicting: memcached's defaults except for the policy.
    fn default() -> Self {
        KvConfig {
            arena_bytes: 64 << 20,
            memory_range: None,
            item_bytes_max: 1 << 20,
            lanes: 4,
            cas: true,
            evict: true,
            policy: Box::new(S3Fifo::balanced()),
            huge_pages: false,
            clock: Arc::new(SystemClock::new()),
            change_hook: None,
            eviction_hook: None,
            hash_seed: None,
            insight: Sampling::Off,
            file: None,
            #[cfg(test)]
            region_bytes: None,
            #[cfg(test)]
            checksums: true,
        }
    }
}

/// The smallest [`KvConfig::arena_bytes`].
pub const ARENA_BYTES_MIN: usize = 1 << 20;
/// The lowest possible minimum of a range. The policy uses up to half of it for its records.
const RANGE_BYTES_MIN: u64 = 2 * ARENA_BYTES_MIN as u64;
/// The smallest [`KvConfig::item_bytes_max`].
pub const ITEM_BYTES_MIN: usize = 1 << 10;
/// The largest [`KvConfig::item_bytes_max`].
pub const ITEM_BYTES_MAX: usize = 1 << 30;

/// The reason why a [`KvConfig`] is invalid or a store cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum KvConfigError {
    /// The arena is too small.
    #[error("arena_bytes is {0}; a store needs at least {ARENA_BYTES_MIN}")]
    ArenaTooSmall(usize),
    /// The item limit is out of range.
    #[error(
        "item_bytes_max is {item}; it must be between {ITEM_BYTES_MIN} and {ITEM_BYTES_MAX}, and at most half of the memory ({arena})"
    )]
    ItemLimit {
        /// The item limit requested.
        item: usize,
        /// The arena's size.
        arena: usize,
    },
    /// The range of the memory is invalid.
    #[error("memory_range: {0}")]
    Range(String),
    /// The number of lanes is zero.
    #[error("lanes must be at least 1")]
    NoLane,
    /// The system refused the memory.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The system refused the index's address space.
    #[error("cannot reserve address space for the index: {0}")]
    Index(std::io::Error),
    /// The file cannot hold the memory.
    #[error(transparent)]
    File(#[from] ArenaFileError),
    /// The clock is behind that of the earlier process, so items would live longer than they may.
    #[error(
        "the clock is at {clock} s, the file was left at {resume} s; start the clock at ArenaFile::resume_secs"
    )]
    ClockBehind {
        /// The clock's time, in seconds.
        clock: u32,
        /// The time at which the clock must start, in seconds.
        resume: u32,
    },
}

/// Converts a number of bytes. A number beyond the address space becomes the maximum.
fn bytes(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl KvConfig {
    pub(super) fn check(&self) -> Result<(), KvConfigError> {
        if self.arena_bytes < ARENA_BYTES_MIN {
            return Err(KvConfigError::ArenaTooSmall(self.arena_bytes));
        }
        let arena = self.arena_bytes_min();
        let item = self.item_bytes_max;
        if !(ITEM_BYTES_MIN..=ITEM_BYTES_MAX).contains(&item) || item > arena / 2 {
            return Err(KvConfigError::ItemLimit { item, arena });
        }
        if self.lanes == 0 {
            return Err(KvConfigError::NoLane);
        }
        self.memory_range.as_ref().map_or(Ok(()), |range| self.check_range(range))
    }

    /// Returns the minimum of the memory for items, in bytes.
    pub(super) fn arena_bytes_min(&self) -> usize {
        self.memory_range.map_or(self.arena_bytes, |range| bytes(range.bytes_min))
    }

    /// Returns the maximum of the memory for items, in bytes.
    pub(super) fn arena_bytes_max(&self) -> usize {
        self.memory_range.map_or(self.arena_bytes, |range| bytes(range.bytes_max))
    }

    fn check_range(&self, range: &MemoryRange) -> Result<(), KvConfigError> {
        range.check("arena_bytes", self.arena_bytes as u64, RANGE_BYTES_MIN).map_err(KvConfigError::Range)?;
        let why = if !self.evict {
            "a store that does not evict cannot release memory"
        } else if self.huge_pages {
            "huge_pages must be false, because single regions of a huge page cannot be released"
        } else if self.file.is_some() {
            "the size of a memory file cannot change"
        } else if self.policy.ghost_hits().is_none() {
            "the policy must remember what it has evicted, as \"balanced\" does"
        } else {
            return Ok(());
        };
        Err(KvConfigError::Range(why.to_owned()))
    }
}

impl Kv {
    /// Creates an empty store with `bytes` of memory for items, which evicts when it is full. All
    /// other settings have the values of [`KvConfig::default`].
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"key", b"value")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`KvConfigError`] when `bytes` is below [`ARENA_BYTES_MIN`] or the system refuses
    /// the memory.
    pub fn with_capacity_bytes(bytes: usize) -> Result<Kv, KvConfigError> {
        let config = KvConfig::default();
        // A small store keeps the default limit for items as far as possible.
        let item_bytes_max = config.item_bytes_max.min(bytes / 2);
        Kv::new(KvConfig { arena_bytes: bytes, item_bytes_max, ..config })
    }
}

/// The reason why a value was not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The key is empty or has more than [`KEY_BYTES_MAX`](super::KEY_BYTES_MAX) bytes, or key and value
    /// together exceed [`KvConfig::item_bytes_max`](super::KvConfig::item_bytes_max).
    #[error("the key or the value exceeds the store's limits")]
    TooLarge,
    /// No memory could be freed: the store does not evict and is full, or all of its memory is
    /// pinned.
    #[error("no memory could be freed for the item")]
    OutOfMemory,
}

/// The reason why a compare-and-set did not store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CasError {
    /// The item has changed since its CAS value was read.
    #[error("the item has changed since its CAS value was read")]
    Changed,
    /// The item does not exist.
    #[error("there is no item with this key")]
    NotFound,
    /// The value cannot be stored at all.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The reason why the items of a prefix were not flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// The prefix is empty or has more than [`KEY_BYTES_MAX`](super::KEY_BYTES_MAX) bytes.
    #[error("a prefix has 1 to 250 bytes")]
    Length,
    /// Too many prefixes are pending: their items have ended, but not all of them have been
    /// removed.
    #[error("too many flushes of prefixes are pending")]
    TooMany,
}

/// The reason why a number was not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CountError {
    /// The item does not exist.
    #[error("there is no item with this key")]
    NotFound,
    /// The value is not a decimal number below 2^64.
    #[error("the value is not a decimal number below 2^64")]
    NonNumeric,
    /// No memory could be freed for a longer number.
    #[error("no memory could be freed for the item")]
    OutOfMemory,
}
