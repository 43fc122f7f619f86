//! The builder of a store.

use super::Kv;
use super::config::{KvConfig, KvConfigError};
use super::hook::{ChangeHook, EvictionHook};
#[cfg(not(any(miri, shuttle)))]
use crate::arena::ArenaFile;
use crate::arena::MemoryRange;
use crate::clock::Clock;
use crate::insight::Sampling;
use crate::policy::Policy;
use std::sync::Arc;

/// Builds a [`Kv`]. What is not set has the value of [`KvConfig::default`].
///
/// ```
/// use cached_core::kv::Kv;
/// use cached_core::policy::Lru;
///
/// let kv = Kv::builder().memory_bytes(256 << 20).item_bytes_max(8 << 20).policy(Lru::default()).build()?;
/// # Ok::<(), cached_core::kv::KvConfigError>(())
/// ```
#[derive(Debug, Default)]
#[must_use = "a builder makes a store when `build` is called"]
pub struct KvBuilder {
    config: KvConfig,
}

impl Kv {
    /// Returns a builder with the values of [`KvConfig::default`].
    pub fn builder() -> KvBuilder {
        KvBuilder::default()
    }

    /// Makes an empty store with `bytes` of memory for items, which evicts when it is full; the rest is as in
    /// [`KvConfig::default`].
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"key", b"value")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`KvConfigError`] when `bytes` is below [`ARENA_BYTES_MIN`](super::ARENA_BYTES_MIN) or the system
    /// refuses the memory.
    pub fn with_capacity_bytes(bytes: usize) -> Result<Kv, KvConfigError> {
        let config = KvConfig::default();
        // A small store keeps the default's limit for items as far as it can.
        let item_bytes_max = config.item_bytes_max.min(bytes / 2);
        Kv::new(KvConfig { arena_bytes: bytes, item_bytes_max, ..config })
    }
}

impl From<KvConfig> for KvBuilder {
    fn from(config: KvConfig) -> KvBuilder {
        KvBuilder { config }
    }
}

impl KvBuilder {
    /// Sets the memory for items and for what the policy remembers of evicted ones, in bytes.
    pub fn memory_bytes(mut self, bytes: usize) -> KvBuilder {
        self.config.arena_bytes = bytes;
        self
    }

    /// Sets the range in which an [`arbiter`](crate::arbiter) can change that memory, see
    /// [`KvConfig::memory_range`].
    pub fn memory_range(mut self, range: MemoryRange) -> KvBuilder {
        self.config.memory_range = Some(range);
        self
    }

    /// Sets the limit for an item, key and value together, in bytes.
    pub fn item_bytes_max(mut self, bytes: usize) -> KvBuilder {
        self.config.item_bytes_max = bytes;
        self
    }

    /// Sets how many threads may append at the same time without waiting for each other.
    pub fn lanes(mut self, lanes: usize) -> KvBuilder {
        self.config.lanes = lanes;
        self
    }

    /// Sets whether every item has a CAS value, which takes 8 bytes.
    pub fn cas(mut self, cas: bool) -> KvBuilder {
        self.config.cas = cas;
        self
    }

    /// Sets whether a full store evicts (true) or refuses to store (false).
    pub fn evict(mut self, evict: bool) -> KvBuilder {
        self.config.evict = evict;
        self
    }

    /// Sets the eviction policy.
    pub fn policy(self, policy: impl Policy) -> KvBuilder {
        self.boxed_policy(Box::new(policy))
    }

    /// Sets the eviction policy, for instance one that [`by_name`](crate::policy::by_name) has found.
    pub fn boxed_policy(mut self, policy: Box<dyn Policy>) -> KvBuilder {
        self.config.policy = policy;
        self
    }

    /// Sets whether to ask the system for huge pages (best effort).
    pub fn huge_pages(mut self, huge_pages: bool) -> KvBuilder {
        self.config.huge_pages = huge_pages;
        self
    }

    /// Sets the clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> KvBuilder {
        self.config.clock = clock;
        self
    }

    /// Sets a hook that is called at every change of an item.
    pub fn change_hook(mut self, hook: Arc<dyn ChangeHook>) -> KvBuilder {
        self.config.change_hook = Some(hook);
        self
    }

    /// Sets a hook that is called at every eviction.
    pub fn eviction_hook(mut self, hook: Arc<dyn EvictionHook>) -> KvBuilder {
        self.config.eviction_hook = Some(hook);
        self
    }

    /// Sets the seed of the key hash, for reproducible tests. By default it is random, so that clients cannot
    /// aim keys at one hash bucket.
    pub fn hash_seed(mut self, seed: u64) -> KvBuilder {
        self.config.hash_seed = Some(seed);
        self
    }

    /// Sets the sample of the keys on which to simulate other amounts of memory, see [`KvConfig::insight`].
    pub fn insight(mut self, insight: Sampling) -> KvBuilder {
        self.config.insight = insight;
        self
    }

    /// Sets the file in which the memory is, which the next process takes over.
    #[cfg(not(any(miri, shuttle)))]
    pub fn file(mut self, file: ArenaFile) -> KvBuilder {
        self.config.file = Some(file);
        self
    }

    /// Makes the store. Memory is mapped, not touched.
    ///
    /// # Errors
    /// [`KvConfigError`] when the values contradict each other or the system refuses the memory.
    pub fn build(self) -> Result<Kv, KvConfigError> {
        Kv::new(self.config)
    }
}
