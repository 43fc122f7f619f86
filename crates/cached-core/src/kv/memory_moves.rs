//! The store as one half of a memory that it shares with an object cache: what the arbiter sees of it, and
//! how regions go and come.

use super::Kv;
use super::log::Giving;
use crate::arena::Owner;

/// What an arbiter sees of a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KvNeeds {
    /// The memory for items, in bytes; what the policy remembers is not counted.
    pub(crate) bytes: u64,
    /// Of that, what is free.
    pub(crate) spare_bytes: u64,
    /// The number of items stored again that a quarter more of the most memory would have kept, since the
    /// start.
    pub(crate) ghost_hits: u64,
    /// The number of items stored since the start.
    pub(crate) stored: u64,
    /// The bytes of an item, on average.
    pub(crate) item_bytes: u64,
}

impl Kv {
    /// Returns what an arbiter needs to know. That walks over the shards of the index.
    pub(crate) fn needs(&self) -> KvNeeds {
        let inner = &self.inner;
        let (stored, items) = inner.index.stored_and_items();
        let item_bytes: u64 = inner.index.shards().iter().map(|shard| shard.item_bytes()).sum();
        KvNeeds {
            bytes: inner.log.present_bytes() as u64,
            spare_bytes: inner.log.spare_bytes() as u64,
            ghost_hits: inner.log.policy().ghost_hits().unwrap_or(0),
            stored,
            item_bytes: item_bytes / items.max(1),
        }
    }

    /// Returns the bytes of one region, by which memory goes and comes.
    pub(crate) fn move_unit_bytes(&self) -> u64 {
        self.inner.log.arena().region_bytes() as u64
    }

    /// Returns the memory for items, in bytes.
    pub(crate) fn item_memory(&self) -> u64 {
        self.inner.log.present_bytes() as u64
    }

    /// Returns the bytes for items in a memory of `memory_bytes`: whole regions, without what the policy
    /// remembers.
    pub(crate) fn item_memory_in(&self, memory_bytes: u64) -> u64 {
        let unit = self.move_unit_bytes();
        memory_bytes.saturating_sub(self.inner.log.policy_bytes() as u64) / unit * unit
    }

    /// Gives up a region of memory, or does a bounded part of the work for it. Never waits for a request.
    ///
    /// # Errors
    /// If the system does not take the memory back; nothing is given up.
    pub(crate) fn give_step(&self) -> std::io::Result<Giving> {
        let now = self.inner.now();
        self.inner.log.give_step(&*self.inner, now)
    }

    /// Takes one region of memory. Returns false if the store has the most that it can have.
    pub(crate) fn take_region(&self) -> bool {
        self.inner.log.arena().add_to_share(Owner::Kv)
    }
}
