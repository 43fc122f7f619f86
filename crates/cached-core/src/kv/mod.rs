//! The byte-keyed store: memcached's semantics on a log of regions.
//!
//! Items are appended to regions and found through the index; what is overwritten, deleted or
//! expired leaves garbage behind, and the reclaimer turns the oldest or emptiest regions back into free
//! ones, keeping what the policy wants kept. There are no size classes, so memory goes to whatever
//! sizes are in use.
//!
//! Open in this order: `ops/get.rs` and `ops/store.rs` (what commands do), `item.rs` (the bytes),
//! `index/` (finding), `log.rs` (placing), `reclaim.rs` (making room), `extent.rs` (large values).
//!
//! `order.rs` has the order of the locks.

mod config;
mod extent;
mod front;
pub mod hook;
mod index;
mod item;
mod log;
mod ops;
mod order;
mod queues;
mod reclaim;
mod request;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod stats;
#[cfg(all(test, not(shuttle)))]
mod tests;
#[cfg(any(test, feature = "validate"))]
mod validate;
mod view;

pub use crate::policy;
pub use config::{ARENA_BYTES_MIN, ITEM_BYTES_MAX, ITEM_BYTES_MIN, KvConfig, KvConfigError};
pub use front::{CasError, CountError, StoreError};
pub use item::KEY_BYTES_MAX;
pub use ops::{READ_BATCH, Reservation, ScanCursor};
pub use request::*;
pub use stats::{KvLimits, KvStats};
pub use view::{ItemView, PinnedValue};

use crate::KeyHash;
use crate::arena::{Arena, ArenaConfig, RegionId, region_bytes_for};
use crate::clock::{Clock, Expiry};
use crate::hash::KeyHasher;
use crate::prefetch::prefetch;
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering};
use extent::{List, PIECE_HEADER_BYTES, Piece};
use hook::{Change, ChangeHook, EvictionHook};
use index::{Held, Index, Locked, Slot};
use item::{ItemPtr, Usage, state};
use log::Lane;
use policy::Policy;
use queues::Queues;
use reclaim::Reclaimer;
use stats::Events;
// Not from `crate::sync`: a hint that orders nothing between threads, and many of them.
use std::sync::atomic::AtomicU8;

/// A handle on a store. Clones share the store.
#[derive(Clone)]
pub struct Kv {
    inner: Arc<Inner>,
}

/// The store itself.
struct Inner {
    arena: Arena,
    index: Index,
    hasher: KeyHasher,
    clock: Arc<dyn Clock>,
    /// An entry starts at a multiple of `1 << granule_shift` bytes; locations count granules.
    granule_shift: u32,
    /// What a hit makes of an item's marks, the policy's bits among them; renewed as regions are walked.
    hit_states: HitStates,
    /// Items in regions with a lower sequence number are gone; 0 while no flush is being cleaned up.
    flush_boundary: AtomicU64,
    /// The clock's second of a flush asked for in advance; 0 for none.
    flush_due: AtomicU32,
    /// Held while a flush that has become due happens.
    flushing: Mutex<()>,
    cas: bool,
    evict: bool,
    /// Entries up to this size lie in one piece.
    inline_bytes_max: usize,
    item_bytes_max: AtomicU64,
    /// Below so many free regions, whoever allocates also reclaims a little. One more with every lane that comes into use:
    /// what is kept free is memory without items.
    pace_below: AtomicU32,
    lanes: Box<[Lane]>,
    ttl_classes: usize,
    policy: Box<dyn Policy>,
    /// What the policy takes of the memory for itself.
    policy_bytes: usize,
    change_hook: Option<Arc<dyn ChangeHook>>,
    eviction_hook: Option<Arc<dyn EvictionHook>>,
    queues: Mutex<Queues>,
    reclaimer: Mutex<Reclaimer>,
    events: Events,
    /// Bytes announced by those who hold reservations for values that are still to come, and their limit.
    reserved_bytes: AtomicU64,
    reserved_bytes_max: u64,
    /// Regions in which such values lie, which cannot be reclaimed meanwhile, and their limit.
    reserved_regions: AtomicU32,
    reserved_regions_max: u32,
}

/// An item found under its bucket's lock.
#[derive(Clone, Copy)]
struct Found<'a> {
    slot: Slot<'a>,
    item: ItemPtr,
    location: u32,
}

/// Items take so much and more, nearly always; the policy's ghosts are as many as fits that.
const ENTRY_BYTES_USUAL: usize = 256;

/// Free regions that only the reclaimer may take, so that survivors always find a place.
const RECLAIM_RESERVE: u32 = 2;

impl Kv {
    /// Makes an empty store. Memory is mapped, not touched.
    ///
    /// # Errors
    /// [`KvConfigError`] when the configuration contradicts itself or the system refuses the memory.
    pub fn new(config: KvConfig) -> Result<Kv, KvConfigError> {
        config.check()?;
        let mut policy = config.policy;
        // What the policy remembers of evicted items comes out of the same memory.
        let policy_bytes =
            if config.evict { policy.attach(config.arena_bytes, ENTRY_BYTES_USUAL) } else { 0 };
        let region_bytes = region_bytes_for(config.arena_bytes);
        #[cfg(test)]
        let region_bytes = config.region_bytes.unwrap_or(region_bytes);
        let regions = ((config.arena_bytes - policy_bytes) / region_bytes) as u32;
        let arena = Arena::new(ArenaConfig {
            bytes: regions as usize * region_bytes,
            region_bytes,
            kv_regions_max: regions,
            objects_regions_max: 0,
            huge_pages: config.huge_pages,
        })?;
        // Locations have 32 bits: 4-byte granules reach 16 GiB, each doubling doubles the reach.
        let granule_shift = (2..).find(|shift| arena.bytes() >> shift <= u32::MAX as usize).unwrap_or(2);
        let entry_bytes_min = item::entry_bytes_min(config.cas).next_multiple_of(1 << granule_shift);
        let index = Index::new((arena.bytes() / entry_bytes_min) as u64).map_err(KvConfigError::Index)?;
        // A lane may hold several half-filled regions: few lanes where there are few regions.
        let lanes = config.lanes.min(regions as usize / 32).max(1);
        let inner = Inner {
            index,
            hasher: KeyHasher::new(config.hash_seed),
            clock: config.clock,
            granule_shift,
            hit_states: HitStates::new(&*policy),
            flush_boundary: AtomicU64::new(0),
            flush_due: AtomicU32::new(0),
            flushing: Mutex::ranked((), &order::FLUSH),
            cas: config.cas,
            evict: config.evict,
            inline_bytes_max: region_bytes / 16,
            item_bytes_max: AtomicU64::new(config.item_bytes_max as u64),
            pace_below: AtomicU32::new(RECLAIM_RESERVE + 2),
            lanes: (0..lanes).map(|number| Lane::new(number as u32)).collect(),
            ttl_classes: if regions as usize >= 64 * lanes { log::TTL_CLASSES } else { 1 },
            policy,
            policy_bytes,
            change_hook: config.change_hook,
            eviction_hook: config.eviction_hook,
            queues: Mutex::ranked(Queues::new(arena.region_count()), &order::QUEUES),
            reclaimer: Mutex::ranked(Reclaimer::new(region_bytes), &order::RECLAIMER),
            events: Events::default(),
            reserved_bytes: AtomicU64::new(0),
            reserved_bytes_max: (arena.bytes() as u64 / 4).max(config.item_bytes_max as u64),
            reserved_regions: AtomicU32::new(0),
            // One value alone may always come in.
            reserved_regions_max: (regions / 4).max((config.item_bytes_max / region_bytes) as u32 + 2),
            arena,
        };
        Ok(Kv { inner: Arc::new(inner) })
    }

    /// Hashes a key for this store: the first step of every operation.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.inner.hasher.hash(key)
    }

    /// The store's clock, now.
    pub fn now_secs(&self) -> u32 {
        self.inner.clock.now_secs()
    }

    /// The largest item, header included.
    pub fn item_bytes_max(&self) -> usize {
        self.inner.item_bytes_max.load(Ordering::Relaxed) as usize
    }
}

impl Inner {
    /// The time, after a flush that has become due. An operation asks once, before it takes a lock, and hands the answer on:
    /// the flush takes every lane.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    fn now(&self) -> u32 {
        lock_order::assert_none_from(order::LOWEST);
        let now = self.clock.now_secs();
        let due = self.flush_due.load(Ordering::Relaxed);
        if due != 0 && due <= now {
            self.flush_if_due(due);
        }
        now
    }

    #[inline]
    fn ptr(&self, location: u32) -> *mut u8 {
        self.arena.at((location as usize) << self.granule_shift)
    }

    #[inline]
    fn region_of(&self, location: u32) -> RegionId {
        self.arena.region_of((location as usize) << self.granule_shift)
    }

    #[inline]
    fn padded(&self, bytes: usize) -> u32 {
        let mask = (1usize << self.granule_shift) - 1;
        ((bytes + mask) & !mask) as u32
    }

    /// The item at a location that was found in a locked bucket.
    #[inline]
    fn item_at(&self, location: u32) -> ItemPtr {
        // SAFETY: locations in the index lead to complete items, and a region is not reused before
        // the reclaimer has taken each of its items out of the index, under the lock of its bucket,
        // which our caller holds.
        unsafe { ItemPtr::new(self.ptr(location)) }
    }

    /// Where a piece's data lie.
    fn piece_data(&self, piece: Piece) -> *const u8 {
        self.ptr(piece.location).wrapping_add(PIECE_HEADER_BYTES)
    }

    /// Memory an item takes, with its pieces.
    fn item_bytes(&self, item: ItemPtr) -> u64 {
        let mut bytes = u64::from(self.padded(item.shape().entry_bytes()));
        if item.shape().fields().extents {
            for piece in List::new(item.payload()).pieces() {
                bytes += u64::from(self.padded(PIECE_HEADER_BYTES + piece.bytes as usize));
            }
        }
        bytes
    }

    /// Looks a key up in its locked bucket, whatever the state of the item.
    #[inline(always)]
    fn find_any<'a>(&self, locked: &Locked<'a>, hash: KeyHash, key: &[u8]) -> Option<Found<'a>> {
        let (slot, (item, location)) = locked.find_map(hash, |location| {
            let item = self.item_at(location);
            item.is_of(key).then_some((item, location))
        })?;
        Some(Found { slot, item, location })
    }

    /// Looks a key up in its locked bucket; what is flushed or expired is removed and missed.
    #[inline(always)] // On the way of every request; what is rare is kept out of it.
    fn find<'a>(&self, locked: &Locked<'a>, hash: KeyHash, key: &[u8], now: u32) -> Result<Found<'a>, Miss> {
        let found = self.find_any(locked, hash, key).ok_or(Miss::Absent)?;
        if self.flush_boundary.load(Ordering::Acquire) != 0 || found.item.expiry().is_past(now) {
            self.judge(locked, found, now)?;
        }
        Ok(found)
    }

    /// The live item of a key in a slot where a [`peek`](index::Guess::peek) has seen it, if it is still there.
    #[inline(always)]
    fn find_seen<'a>(
        &self,
        held: Held<'a>,
        slot: usize,
        key: &[u8],
        now: u32,
    ) -> Option<(Held<'a>, ItemPtr, u32)> {
        let location = held.location(slot)?;
        let item = self.item_at(location);
        let live = item.is_of(key)
            && self.flush_boundary.load(Ordering::Acquire) == 0
            && !item.expiry().is_past(now);
        live.then_some((held, item, location))
    }

    /// Locks and looks as [`find`](Inner::find) does, out of line: only where the item lies, which fits a register.
    #[inline(never)]
    fn find_anew(&self, hash: KeyHash, key: &[u8], now: u32) -> Result<(Held<'_>, u32), Miss> {
        let locked = self.index.shard(hash).lock(hash);
        let location = self.find(&locked, hash, key, now)?.location;
        Ok((locked.into_held(), location))
    }

    /// Removes an item that is flushed or expired.
    #[cold]
    fn judge(&self, locked: &Locked<'_>, found: Found<'_>, now: u32) -> Result<(), Miss> {
        if self.is_flushed(found.location) {
            self.remove(locked, found, Change::Flushed);
            return Err(Miss::Flushed);
        }
        if found.item.expiry().is_past(now) {
            self.count_expired(found.item);
            self.remove(locked, found, Change::Expired);
            return Err(Miss::Expired);
        }
        Ok(())
    }

    #[inline]
    fn is_flushed(&self, location: u32) -> bool {
        let boundary = self.flush_boundary.load(Ordering::Acquire);
        boundary != 0 && self.arena.region(self.region_of(location)).sequence() < boundary
    }

    fn count_expired(&self, item: ItemPtr) {
        if item.state() & state::FETCHED == 0 {
            self.events.expired_unfetched.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes a use of the item: at most one write, and none if nothing changes.
    #[inline]
    fn bump(&self, item: ItemPtr, now: u32) {
        let before = item.usage();
        let after = Usage::new(self.hit_states.after(before.state()), now);
        if after != before {
            item.set_usage(after);
        }
    }

    /// Notes a use of the item by a client that was not shown it: it stays as a read one would, but does not count as read.
    fn bump_unread(&self, item: ItemPtr, now: u32) {
        let before = item.state();
        let after = self.hit_states.after(before) & !state::FETCHED | before & state::FETCHED;
        item.set_usage(Usage::new(after, now));
    }

    /// Takes an item out of the index and leaves its bytes to the reclaimer.
    fn remove(&self, locked: &Locked<'_>, found: Found<'_>, change: Change) {
        self.tell(change, found.item.key(), found.item.cas());
        let bytes = self.item_bytes(found.item);
        locked.remove(found.slot, bytes);
        if change == Change::Flushed {
            locked.shard().flushed_item_gone(bytes);
        }
        self.bury(found.item, found.location);
    }

    /// The item's entry and pieces are garbage from now on.
    fn bury(&self, item: ItemPtr, location: u32) {
        let expiry = item.expiry();
        self.each_entry(item, location, |location, bytes| self.bury_entry(location, bytes, expiry));
    }

    /// Calls `each` with the places and padded bytes of an item's pieces and of its own entry, which comes last.
    #[inline]
    fn each_entry(&self, item: ItemPtr, location: u32, mut each: impl FnMut(u32, u32)) {
        if item.shape().fields().extents {
            for piece in List::new(item.payload()).pieces() {
                each(piece.location, self.padded(PIECE_HEADER_BYTES + piece.bytes as usize));
            }
        }
        each(location, self.padded(item.shape().entry_bytes()));
    }

    /// The regions of an item that has just been linked learn when it expires.
    fn note_expiry(&self, item: ItemPtr, location: u32, expiry: Expiry) {
        if expiry != Expiry::NEVER {
            self.each_entry(item, location, |location, bytes| {
                self.arena.note_expiry(self.region_of(location), bytes, expiry);
            });
        }
    }

    /// Gives an item another expiry; false if its entry has no room for one. Its bucket is locked.
    #[must_use]
    fn set_expiry(&self, item: ItemPtr, location: u32, expiry: Expiry) -> bool {
        let before = item.expiry();
        if before == expiry {
            return true;
        }
        if !item.set_expiry(expiry) {
            return false;
        }
        self.each_entry(item, location, |location, bytes| {
            let region = self.region_of(location);
            self.arena.forget_expiry(region, bytes, before);
            self.arena.note_expiry(region, bytes, expiry);
        });
        true
    }

    fn bury_entry(&self, location: u32, bytes: u32, expiry: Expiry) {
        let region = self.region_of(location);
        self.arena.forget_expiry(region, bytes, expiry);
        if self.arena.region(region).entry_died(bytes) == 0 {
            self.free_if_dead(region);
        }
    }

    #[inline]
    fn tell(&self, change: Change, key: &[u8], version: u64) {
        if let Some(hook) = &self.change_hook {
            hook.on_change(change, key, version);
        }
    }

    /// Divides a bucket of the shard if it has become too full. Not under a bucket's lock.
    fn grow_index(&self, hash: KeyHash) {
        self.index.shard(hash).grow(|location| self.hasher.hash(self.item_at(location).key()));
    }
}

/// What a hit makes of an item's state, for each that there is.
struct HitStates {
    states: [AtomicU8; state::COUNT],
    /// The policy's answers for its eight bit patterns, a byte each, of which the states follow.
    bits: AtomicU64,
}

impl HitStates {
    fn new(policy: &dyn Policy) -> HitStates {
        let table = HitStates {
            states: std::array::from_fn(|_| AtomicU8::new(0)),
            // No policy's: bits have three bits.
            bits: AtomicU64::new(u64::MAX),
        };
        table.renew(policy);
        table
    }

    /// Asks the policy again.
    fn renew(&self, policy: &dyn Policy) {
        let bits = policy::hits(policy);
        let word = u64::from_le_bytes(bits);
        if self.bits.load(Ordering::Relaxed) == word {
            return;
        }
        self.bits.store(word, Ordering::Relaxed);
        for (before, after) in self.states.iter().enumerate() {
            let marks = before as u8 & ((1 << state::POLICY_SHIFT) - 1);
            let bits = bits[before >> state::POLICY_SHIFT];
            after.store(marks | state::FETCHED | bits << state::POLICY_SHIFT, Ordering::Relaxed);
        }
    }

    /// The state after a hit.
    #[inline]
    fn after(&self, state: u8) -> u8 {
        self.states[usize::from(state)].load(Ordering::Relaxed)
    }
}
