//! The caches, accessed through a small trait, each used as its documentation recommends.
//!
//! Values are reference-counted (`Arc<[u8]>`) if a get borrows them, and owned (`Box<[u8]>`) if it
//! copies them, because quick_cache and moka return clones. foyer returns reference-counted
//! entries, so only the first way applies to it. Hashers, shards and policies are each cache's
//! defaults.

use std::sync::Arc;

use anyhow::{Result, bail};
use cached_core::kv::{Kv, KvConfig};

use super::load::{ENTRIES, Items, Load};

/// A cache under measurement.
pub(crate) trait Subject: Sized + Sync {
    /// The name in the table.
    const NAME: &'static str;

    /// Returns the capacity at which a hundred thousand items fit, as a number of items or of
    /// bytes.
    fn room(_load: &Load) -> Result<u64> {
        Ok(ENTRIES)
    }

    fn new(items: Items, room: u64) -> Result<Self>;

    /// Passes the value, if there is one, to `look`.
    fn get(&self, key: &[u8], look: impl FnOnce(&[u8]) -> bool) -> Option<bool>;

    fn set(&self, key: &[u8], value: &[u8]);

    /// Returns the number of items held.
    fn entries(&self) -> u64;
}

/// Determines by trial the arena in which a hundred thousand items fit once eviction has
/// stabilised.
fn kv_room<S: Subject>(load: &Load) -> Result<u64> {
    let items = load.items;
    let mut room = ENTRIES * (items.key_bytes() + items.value_bytes() + 25) as u64;
    for _ in 0..8 {
        let subject = S::new(items, room)?;
        load.run(&subject, 0, 2_000_000)?;
        let held = subject.entries();
        if held.abs_diff(ENTRIES) < ENTRIES / 100 {
            return Ok(room);
        }
        room = room * ENTRIES / held;
    }
    bail!("no arena holds a hundred thousand items of {}", items.name())
}

/// This project's store, copying values; with a CAS value in each item or, like the other caches,
/// without.
pub(crate) struct KvCopy<const CAS: bool>(Kv);

impl<const CAS: bool> Subject for KvCopy<CAS> {
    const NAME: &'static str = if CAS { "cached, CAS" } else { "cached" };

    fn room(load: &Load) -> Result<u64> {
        kv_room::<Self>(load)
    }

    fn new(_: Items, room: u64) -> Result<Self> {
        let arena_bytes = usize::try_from(room)?;
        Ok(Self(Kv::new(KvConfig { arena_bytes, cas: CAS, ..KvConfig::default() })?))
    }

    fn get(&self, key: &[u8], look: impl FnOnce(&[u8]) -> bool) -> Option<bool> {
        self.0.get(key).map(|value| look(&value))
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.0.set(key, value).expect("an evicting store has room");
    }

    fn entries(&self) -> u64 {
        self.0.stats().items
    }
}

/// This project's store, reading values in place.
pub(crate) struct KvBorrow<const CAS: bool>(KvCopy<CAS>);

impl<const CAS: bool> Subject for KvBorrow<CAS> {
    const NAME: &'static str = KvCopy::<CAS>::NAME;

    fn room(load: &Load) -> Result<u64> {
        kv_room::<Self>(load)
    }

    fn new(items: Items, room: u64) -> Result<Self> {
        Ok(Self(KvCopy::new(items, room)?))
    }

    fn get(&self, key: &[u8], look: impl FnOnce(&[u8]) -> bool) -> Option<bool> {
        let kv = &self.0.0;
        kv.read(key, kv.hash(key), |item| look(item.inline_value().expect("small values lie in one piece")))
            .ok()
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.0.set(key, value);
    }

    fn entries(&self) -> u64 {
        self.0.entries()
    }
}

/// quick_cache with owned values.
pub(crate) struct QuickCopy(quick_cache::sync::Cache<Box<[u8]>, Box<[u8]>>);

impl Subject for QuickCopy {
    const NAME: &'static str = "quick_cache";

    fn new(_: Items, room: u64) -> Result<Self> {
        Ok(Self(quick_cache::sync::Cache::new(usize::try_from(room)?)))
    }

    fn get(&self, key: &[u8], look: impl FnOnce(&[u8]) -> bool) -> Option<bool> {
        self.0.get(key).map(|value| look(&value))
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.0.insert(key.into(), value.into());
    }

    fn entries(&self) -> u64 {
        self.0.len() as u64
    }
}

/// quick_cache with reference-counted values.
pub(crate) struct QuickBorrow(quick_cache::sync::Cache<Box<[u8]>, Arc<[u8]>>);

impl Subject for QuickBorrow {
    const NAME: &'static str = "quick_cache";

    fn new(_: Items, room: u64) -> Result<Self> {
        Ok(Self(quick_cache::sync::Cache::new(usize::try_from(room)?)))
    }

    fn get(&self, key: &[u8], look: impl FnOnce(&[u8]) -> bool) -> Option<bool> {
        self.0.get(key).map(|value| look(&value))
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.0.insert(key.into(), value.into());
    }

    fn entries(&self) -> u64 {
        self.0.len() as u64
    }
}

/// moka with owned values.
pub(crate) struct MokaCopy(moka::sync::Cache<Box<[u8]>, Box<[u8]>>);

impl Subject for MokaCopy {
    const NAME: &'static str = "moka";

    fn new(_: Items, room: u64) -> Result<Self> {
        Ok(Self(moka::sync::Cache::new(room)))
    }

    fn get(&self, key: &[u8], look: impl FnOnce(&[u8]) -> bool) -> Option<bool> {
        self.0.get(key).map(|value| look(&value))
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.0.insert(key.into(), value.into());
    }

    fn entries(&self) -> u64 {
        self.0.run_pending_tasks();
        self.0.entry_count()
    }
}

/// moka with reference-counted values.
pub(crate) struct MokaBorrow(moka::sync::Cache<Box<[u8]>, Arc<[u8]>>);

impl Subject for MokaBorrow {
    const NAME: &'static str = "moka";

    fn new(_: Items, room: u64) -> Result<Self> {
        Ok(Self(moka::sync::Cache::new(room)))
    }

    fn get(&self, key: &[u8], look: impl FnOnce(&[u8]) -> bool) -> Option<bool> {
        self.0.get(key).map(|value| look(&value))
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.0.insert(key.into(), value.into());
    }

    fn entries(&self) -> u64 {
        self.0.run_pending_tasks();
        self.0.entry_count()
    }
}

/// foyer's in-memory cache.
pub(crate) struct FoyerBorrow(foyer_memory::Cache<Box<[u8]>, Box<[u8]>>);

impl Subject for FoyerBorrow {
    const NAME: &'static str = "foyer";

    fn new(_: Items, room: u64) -> Result<Self> {
        Ok(Self(foyer_memory::CacheBuilder::new(usize::try_from(room)?).build()))
    }

    fn get(&self, key: &[u8], look: impl FnOnce(&[u8]) -> bool) -> Option<bool> {
        self.0.get(key).map(|entry| look(entry.value()))
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.0.insert(key.into(), value.into());
    }

    fn entries(&self) -> u64 {
        self.0.entries() as u64
    }
}
