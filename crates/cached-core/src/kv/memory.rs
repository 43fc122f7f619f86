//! The memory of a store, anonymous or in a file that outlives the process, and the exchange of
//! memory with an object cache that shares it.

use super::Kv;
use super::config::{KvConfig, KvConfigError};
use super::log::Released;
use crate::arena::{Arena, ArenaConfig, ArenaError, ArenaFile, Identity, MappedFile, Owner, Superblock};
use crate::balance::Needs;
use crate::hash::{KeyHasher, random_seed};
use crate::sync::Arc;

/// An arena and the data that belong to its memory.
pub(super) struct KvMemory {
    pub(super) arena: Arena,
    pub(super) superblock: Arc<Superblock>,
    pub(super) hasher: KeyHasher,
    /// Whether entries have checksums.
    pub(super) has_checksums: bool,
    /// The file, with the state to take over.
    pub(super) mapped: Option<MappedFile>,
}

impl KvMemory {
    /// Maps the memory, in the configuration's file if it has one.
    pub(super) fn new(
        arena: ArenaConfig,
        granule_shift: u32,
        config: &mut KvConfig,
        policy: &str,
    ) -> Result<KvMemory, KvConfigError> {
        if let Some(file) = config.file.take() {
            return KvMemory::in_file(arena, granule_shift, config, policy, file);
        }
        let bytes = arena.bytes;
        let no_superblock = |source| ArenaError::Map { bytes, source };
        Ok(KvMemory {
            arena: Arena::new(arena)?,
            superblock: Arc::new(Superblock::without_file().map_err(no_superblock)?),
            hasher: KeyHasher::new(config.hash_seed),
            has_checksums: false,
            mapped: None,
        })
    }

    fn in_file(
        arena: ArenaConfig,
        granule_shift: u32,
        config: &KvConfig,
        policy: &str,
        file: ArenaFile,
    ) -> Result<KvMemory, KvConfigError> {
        let (clock, resume) = (config.clock.now_secs(), file.resume_secs());
        if clock < resume {
            return Err(KvConfigError::ClockBehind { clock, resume });
        }
        let regions = (arena.bytes / arena.region_bytes) as u32;
        let identity = Identity::new(arena.region_bytes, regions, granule_shift, config.cas, policy);
        #[cfg(test)]
        let identity = identity.with_checksums(config.checksums);
        let seed = config.hash_seed.unwrap_or_else(random_seed);
        let shared = config.hash_seed.unwrap_or_else(random_seed);
        let check = |seed, shared| KeyHasher::stable(seed, shared).check();
        let opened = file.map(identity, (seed, shared), arena.huge_pages, check)?;
        let identity = &opened.file.identity;
        Ok(KvMemory {
            arena: Arena::in_memory_of(arena, opened.table, opened.arena)?,
            superblock: Arc::new(opened.superblock),
            hasher: KeyHasher::stable(identity.hash_seed, identity.shared_seed),
            has_checksums: identity.has_checksums,
            mapped: Some(opened.file),
        })
    }
}

// The store as one half of a memory that it shares with an object cache: how the arbiter observes
// the store, and how regions are released and returned.

impl Kv {
    /// Returns the store's needs in a shared memory, except for the minimum and the cost of a miss.
    /// This goes through all shards of the index.
    pub(crate) fn needs(&self) -> Needs {
        let inner = &self.inner;
        let (stored, items) = inner.index.stored_and_items();
        let item_bytes: u64 = inner.index.shards().iter().map(|shard| shard.item_bytes()).sum();
        Needs {
            bytes: inner.log.present_bytes() as u64,
            spare_bytes: inner.log.spare_bytes() as u64,
            ghost_hits: inner.log.policy.ghost_hits().unwrap_or(0),
            stored,
            entry_bytes: item_bytes / items.max(1),
            ..Needs::default()
        }
    }

    /// Returns the size of one region, the unit in which memory is moved.
    pub(crate) fn move_unit_bytes(&self) -> u64 {
        self.inner.log.arena.region_bytes() as u64
    }

    /// Returns the memory for items, in bytes.
    pub(crate) fn item_memory(&self) -> u64 {
        self.inner.log.present_bytes() as u64
    }

    /// Returns how many bytes a memory of `memory_bytes` has for items: whole regions, without the
    /// policy's records.
    pub(crate) fn item_memory_in(&self, memory_bytes: u64) -> u64 {
        let unit = self.move_unit_bytes();
        memory_bytes.saturating_sub(self.inner.log.policy_bytes as u64) / unit * unit
    }

    /// Releases a region of memory to the system, or does a bounded part of the work for that. It
    /// never waits for a request.
    ///
    /// # Errors
    /// Fails if the system does not take the memory back; nothing is released.
    pub(crate) fn release_step(&self) -> std::io::Result<Released> {
        let now = self.inner.now();
        self.inner.log.release_step(&*self.inner, now)
    }

    /// Adds one region of memory. Returns false if the store already has its maximum.
    pub(crate) fn take_region(&self) -> bool {
        self.inner.log.arena.add_to_share(Owner::Kv)
    }
}
