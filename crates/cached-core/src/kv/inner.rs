//! The shared state of a store's handles: an index, a log, and the operations on items that all
//! commands use.

use super::flight::Flights;
use super::hooks::ChangeHooks;
use super::index::{BucketGuard, BucketLock, Index, Slot};
use super::item::extent::{List, PIECE_HEADER_BYTES, Piece};
use super::item::{ItemPtr, Usage, state};
use super::lock_ranks;
use super::log::Log;
use super::prefixes::PrefixFlushes;
use super::request::{Change, EvictionHook, Miss};
use super::restart::StoreFile;
use crate::KeyHash;
use crate::arena::{Superblock, prefetch};
use crate::clock::{Clock, Expiry};
use crate::hash::KeyHasher;
use crate::insight::Insight;
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// The store itself.
pub(super) struct Inner {
    pub(super) index: Index,
    pub(super) log: Log,
    pub(super) hasher: KeyHasher,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) flush: FlushSchedule,
    pub(super) prefixes: PrefixFlushes,
    /// Values that callers of [`get_or_insert_with`](super::Kv::get_or_insert_with) are creating.
    pub(super) flights: Flights,
    /// Whether items have CAS values.
    pub(super) has_cas: bool,
    /// Entries of up to this size are contiguous.
    pub(super) inline_bytes_max: usize,
    pub(super) item_bytes_max: usize,
    pub(super) change_hooks: ChangeHooks,
    pub(super) eviction_hook: Option<Arc<dyn EvictionHook>>,
    pub(super) expirations: Expirations,
    pub(super) insight: Insight,
    /// The file of the memory, if the memory is in a file.
    pub(super) store_file: Option<StoreFile>,
}

/// Counters of expirations, off the hot path and on a cache line that hits do not read.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Expirations {
    /// Items that expired without having been read.
    pub(super) unfetched: AtomicU64,
    /// Expired items removed while reclaiming memory.
    pub(super) reclaimed: AtomicU64,
}

/// An item found while its hash bucket is locked.
#[derive(Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) slot: Slot<'a>,
    pub(super) item: ItemPtr,
    pub(super) location: u32,
}

impl Inner {
    /// Returns the time, after running a scheduled flush that has become due. Each operation calls
    /// this once, before it takes a lock, and passes on the time: a flush takes every lane's lock.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn now(&self) -> u32 {
        crate::lock_order::assert_none_from(lock_ranks::LOWEST);
        let now = self.clock.now_secs();
        let due = self.flush.due();
        if due != 0 && due <= now {
            self.flush.run_due(due, &self.log, &self.index);
        }
        now
    }

    /// Returns the item at a location found in a locked hash bucket.
    #[inline]
    pub(super) fn item_at(&self, location: u32) -> ItemPtr {
        // SAFETY: locations in the index lead to complete items, and a region is not reused before
        // the reclaimer has taken each of its items out of the index, under the lock of its hash bucket,
        // which our caller holds.
        unsafe { ItemPtr::new(self.log.ptr(location)) }
    }

    /// Returns the data of a piece.
    pub(super) fn piece_data(&self, piece: Piece) -> *const u8 {
        self.log.ptr(piece.location).wrapping_add(PIECE_HEADER_BYTES)
    }

    /// Calls `each` with the locations and padded sizes of an item's pieces and then of its own
    /// entry.
    #[inline]
    pub(super) fn each_entry(&self, item: ItemPtr, location: u32, mut each: impl FnMut(u32, u32)) {
        if item.shape().fields().extents {
            for piece in List::new(item.payload()).pieces() {
                each(piece.location, self.log.padded(PIECE_HEADER_BYTES + piece.bytes as usize));
            }
        }
        each(location, self.log.padded(item.shape().entry_bytes()));
    }

    /// Returns the memory use of an item, including its pieces.
    pub(super) fn item_bytes(&self, item: ItemPtr) -> u64 {
        let mut sum = 0;
        self.each_entry(item, 0, |_, bytes| sum += u64::from(bytes));
        sum
    }

    /// Prefetches the first lines of an item.
    #[inline]
    pub(super) fn prefetch_item(&self, location: u32) {
        let item = self.log.ptr(location);
        prefetch(item);
        prefetch(item.wrapping_add(64));
    }

    /// Looks up a key in its locked hash bucket, regardless of the item's state.
    #[inline(always)]
    pub(super) fn find_any<'a>(
        &self,
        bucket: &BucketGuard<'a>,
        hash: KeyHash,
        key: &[u8],
    ) -> Option<Found<'a>> {
        let (slot, (item, location)) = bucket.find_map(hash, |location| {
            let item = self.item_at(location);
            item.is_of(key).then_some((item, location))
        })?;
        Some(Found { slot, item, location })
    }

    /// Looks up a key in its locked hash bucket. A flushed or expired item is removed and counts as
    /// missing.
    #[inline(always)] // On the path of every request; what is rare is kept out of it.
    pub(super) fn find<'a>(
        &self,
        bucket: &BucketGuard<'a>,
        hash: KeyHash,
        key: &[u8],
        now: u32,
    ) -> Result<Found<'a>, Miss> {
        let found = self.find_any(bucket, hash, key).ok_or(Miss::Absent)?;
        if self.log.may_have_ended() || found.item.expiry().is_past(now) {
            self.remove_if_ended(bucket, found, now)?;
        }
        Ok(found)
    }

    /// Looks up an item that was created with an expiry in the past: only its creator gets it.
    #[cold]
    pub(super) fn find_created<'a>(
        &self,
        bucket: &BucketGuard<'a>,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Found<'a>, Miss> {
        let found = self.find_any(bucket, hash, key).ok_or(Miss::Absent)?;
        let is_flushed = self.log.is_flushed(found.location) || self.is_ended_by_prefix(found.item);
        if is_flushed { Err(Miss::Flushed) } else { Ok(found) }
    }

    /// Returns the live item of a key, if it is in the slot in which
    /// [`peek`](super::index::BucketHint::peek) saw its tag.
    #[inline(always)]
    pub(super) fn find_seen<'a>(
        &self,
        lock: BucketLock<'a>,
        slot: usize,
        key: &[u8],
        now: u32,
    ) -> Option<(BucketLock<'a>, ItemPtr, u32)> {
        let location = lock.location(slot)?;
        let item = self.item_at(location);
        let live = item.is_of(key) && !self.log.may_have_ended() && !item.expiry().is_past(now);
        live.then_some((lock, item, location))
    }

    /// Locks and looks up as [`find`](Inner::find) does, but is not inlined. It returns only the
    /// location, which fits a register.
    #[inline(never)]
    pub(super) fn find_again(
        &self,
        hash: KeyHash,
        key: &[u8],
        now: u32,
    ) -> Result<(BucketLock<'_>, u32), Miss> {
        let bucket = self.index.shard(hash).lock(hash);
        let location = self.find(&bucket, hash, key, now)?.location;
        Ok((bucket.into_lock(), location))
    }

    /// Removes a flushed or expired item, and returns the reason as an error.
    #[cold]
    pub(super) fn remove_if_ended(
        &self,
        bucket: &BucketGuard<'_>,
        found: Found<'_>,
        now: u32,
    ) -> Result<(), Miss> {
        if self.log.is_flushed(found.location) {
            self.remove(bucket, found, Change::Flushed);
            return Err(Miss::Flushed);
        }
        if self.is_ended_by_prefix(found.item) {
            self.remove_flushed(bucket, found);
            return Err(Miss::Flushed);
        }
        if found.item.expiry().is_past(now) {
            self.count_expired(found.item);
            self.remove(bucket, found, Change::Expired);
            return Err(Miss::Expired);
        }
        Ok(())
    }

    /// Returns whether a prefix flush has ended an item that was found in a locked hash bucket.
    pub(super) fn is_ended_by_prefix(&self, item: ItemPtr) -> bool {
        self.log.owner_ended()
            && self.prefixes.is_ended(&self.index, self.hasher.hash(item.key()), item.key())
    }

    /// Records that a key without an item is being stored. Returns false if it must not be stored.
    /// The caller holds the lock of its hash bucket.
    #[inline]
    #[must_use]
    pub(super) fn note_stored(&self, hash: KeyHash, key: &[u8]) -> bool {
        !self.log.may_have_ended() || self.note_stored_again(hash, key)
    }

    #[cold]
    fn note_stored_again(&self, hash: KeyHash, key: &[u8]) -> bool {
        !self.log.owner_ended() || self.prefixes.note_stored(&self.index, hash, key)
    }

    /// Removes an item that a prefix flush has ended.
    pub(super) fn remove_flushed(&self, bucket: &BucketGuard<'_>, found: Found<'_>) {
        let bytes = self.item_bytes(found.item);
        self.prefixes.count_removed(bytes);
        if self.log.is_flushed(found.location) {
            return self.remove(bucket, found, Change::Flushed);
        }
        // Such items do not count among those ended by a flush of everything.
        self.notify(Change::Flushed, found.item.key(), found.item.cas());
        self.log.make_dead(found.item);
        bucket.remove(found.slot, bytes);
        self.item_died(found.item, found.location);
    }

    /// Counts an item that has expired.
    pub(super) fn count_expired(&self, item: ItemPtr) {
        if item.state() & state::FETCHED == 0 {
            self.expirations.unfetched.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records a use of the item with at most one write, and with none if nothing changes.
    #[inline]
    pub(super) fn bump(&self, item: ItemPtr, now: u32) {
        let before = item.usage();
        let after = Usage::new(self.log.hits.after(before.state()), now);
        if after != before {
            item.set_usage(after);
        }
    }

    /// Records a use of the item by a client that did not get its value. The item is as safe from
    /// eviction as one that was read, but does not count as read.
    pub(super) fn bump_unread(&self, item: ItemPtr, now: u32) {
        let before = item.state();
        let after = self.log.hits.after(before) & !state::FETCHED | before & state::FETCHED;
        item.set_usage(Usage::new(after, now));
    }

    /// Removes an item from the index. Its entries become garbage.
    pub(super) fn remove(&self, bucket: &BucketGuard<'_>, found: Found<'_>, change: Change) {
        self.notify(change, found.item.key(), found.item.cas());
        self.log.make_dead(found.item);
        let bytes = self.item_bytes(found.item);
        bucket.remove(found.slot, bytes);
        if change == Change::Flushed {
            bucket.shard().flushed_item_gone(bytes);
        }
        self.item_died(found.item, found.location);
    }

    /// Records that the item's entry and pieces are garbage.
    pub(super) fn item_died(&self, item: ItemPtr, location: u32) {
        let expiry = item.expiry();
        self.each_entry(item, location, |location, bytes| self.log.entry_died(location, bytes, expiry));
    }

    /// Records in its regions when a newly linked item expires.
    pub(super) fn note_expiry(&self, item: ItemPtr, location: u32, expiry: Expiry) {
        if expiry != Expiry::NEVER {
            self.each_entry(item, location, |location, bytes| self.log.note_expiry(location, bytes, expiry));
        }
    }

    /// Changes an item's expiry. Returns false if its entry has no expiry field. The caller holds
    /// the lock of its hash bucket.
    #[must_use]
    pub(super) fn set_expiry(&self, item: ItemPtr, location: u32, expiry: Expiry) -> bool {
        let before = item.expiry();
        if before == expiry {
            return true;
        }
        if !item.set_expiry(expiry) {
            return false;
        }
        self.each_entry(item, location, |location, bytes| {
            self.log.change_expiry(location, bytes, before, expiry);
        });
        true
    }

    /// Calls the change hooks, if there are any. The caller holds the lock of the key's hash bucket.
    #[inline]
    pub(super) fn notify(&self, change: Change, key: &[u8], version: u64) {
        if self.change_hooks.exist() {
            self.change_hooks.call(change, key, version);
        }
    }

    /// Splits a hash bucket of the shard if the load has become too high. Must not be called with a
    /// hash bucket locked.
    pub(super) fn grow_index(&self, hash: KeyHash) {
        self.index.shard(hash).grow(|location| self.hasher.hash(self.item_at(location).key()));
    }
}

// Flushes: everything that is stored ends immediately.
//
// A flush seals all open regions and sets a boundary in the age order. From that moment, the items
// in older regions are gone. Their memory is reclaimed afterwards, a region at a time, by
// `Kv::maintain` and by threads that need memory.

/// A scheduled flush.
pub(super) struct FlushSchedule {
    /// The time at which the flush is due, in the clock's seconds; 0 means no flush.
    due: AtomicU32,
    /// The number of flushes so far.
    flushes: AtomicU32,
    /// The numbers of flushes, of everything and of prefixes, that have begun and that are done.
    begun: AtomicU64,
    done: AtomicU64,
    /// Held while a due flush runs, and while the schedule changes.
    running: Mutex<()>,
    /// Stores the schedule for a later process.
    superblock: Arc<Superblock>,
}

impl FlushSchedule {
    /// Takes over the schedule of an earlier process.
    pub(super) fn new(superblock: Arc<Superblock>) -> FlushSchedule {
        FlushSchedule {
            due: AtomicU32::new(superblock.notes().flush_due()),
            flushes: AtomicU32::new(0),
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            running: Mutex::ranked((), &lock_ranks::FLUSH),
            superblock,
        }
    }

    /// Returns the time at which a flush is due, in the clock's seconds; 0 means no flush.
    #[inline]
    pub(super) fn due(&self) -> u32 {
        self.due.load(Ordering::Relaxed)
    }

    /// Schedules a flush, replacing an earlier schedule; 0 cancels it.
    pub(super) fn set_due(&self, secs: u32) {
        let _running = lock(&self.running);
        self.change_due(secs);
    }

    /// Cancels the flush that was due at `due`, unless another one has been scheduled since.
    pub(super) fn clear(&self, due: u32) {
        let _running = lock(&self.running);
        self.clear_locked(due);
    }

    fn clear_locked(&self, due: u32) {
        if due != 0 && self.due() == due {
            self.change_due(0);
        }
    }

    /// Changes the schedule, first in the copy for a later process. The caller holds the lock.
    fn change_due(&self, secs: u32) {
        self.superblock.notes().set_flush_due(secs);
        self.due.store(secs, Ordering::Relaxed);
    }

    /// Runs a due flush for the operation that found it. Operations that start during the flush
    /// wait for its end, because none may still see an item that the flush removes.
    #[cold]
    pub(super) fn run_due(&self, due: u32, log: &Log, index: &Index) {
        let _running = lock(&self.running);
        if self.due() == due {
            self.flush(log, index);
            self.clear_locked(due);
        }
    }

    /// Ends every item stored so far.
    pub(super) fn flush(&self, log: &Log, index: &Index) {
        self.count(|| {
            log.draw_boundary();
            index.shards().iter().for_each(|shard| shard.count_flushed(false));
        });
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs a flush that [`done`](FlushSchedule::done) is to notice.
    pub(super) fn count<T>(&self, flush: impl FnOnce() -> T) -> T {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let result = flush();
        self.done.fetch_add(1, Ordering::SeqCst);
        result
    }

    /// Returns the number of flushes, of everything and of prefixes, that are done; `None` while one
    /// is in progress or scheduled.
    pub(super) fn done(&self) -> Option<u64> {
        // In this order, so that the numbers are equal only if all flushes that have begun are done.
        let done = self.done.load(Ordering::SeqCst);
        (self.due() == 0 && self.begun.load(Ordering::SeqCst) == done).then_some(done)
    }

    /// Returns the number of flushes so far.
    pub(super) fn flushes(&self) -> u32 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Returns whether an operation is running a flush. For tests.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn is_running(&self) -> bool {
        crate::sync::try_lock(&self.running).is_none()
    }
}
