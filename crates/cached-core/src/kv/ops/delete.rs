//! Removal of one item, of everything, or of a prefix.

use super::link::Replaces;
use super::store::Arrival;
use crate::clock::Expiry;
use crate::kv::inner::{Found, Inner};
use crate::kv::item::state;
use crate::kv::prefixes::{PrefixFlushStats, Sweep};
use crate::kv::request::Change;
use crate::kv::{
    DeleteOptions, DeleteOutcome, KEY_BYTES_MAX, Kv, Miss, PrefixError, StoreMode, StoreOptions, StoreOutcome,
};
use crate::sync::try_lock;
use crate::{KeyHash, stores};

impl Kv {
    /// Deletes an item, marks it as stale, or empties it, depending on the options.
    ///
    /// ```
    /// use cached_core::kv::{Kv, DeleteOptions, DeleteOutcome};
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"k", b"v")?;
    /// let (_, cas) = kv.get_with_cas(b"k").expect("just set");
    /// let only_this = DeleteOptions { compare: Some(cas + 1), ..DeleteOptions::default() };
    /// assert_eq!(kv.delete(b"k", kv.hash(b"k"), &only_this), DeleteOutcome::Exists);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn delete(&self, key: &[u8], hash: KeyHash, options: &DeleteOptions) -> DeleteOutcome {
        let inner = &self.inner;
        loop {
            let now = inner.now();
            let locked = inner.index.shard(hash).lock(hash);
            let Ok(found) = inner.find(&locked, hash, key, now) else {
                inner.notify(Change::Absent, key, 0);
                return DeleteOutcome::NotFound;
            };
            let item = found.item;
            if options.compare.is_some_and(|cas| cas != item.cas()) {
                return DeleteOutcome::Exists;
            }
            if options.clear_value {
                let (location, cas) = (found.location, item.cas());
                let key_binary = item.shape().fields().key_binary;
                drop(locked);
                match self.clear_value(key, hash, options, location, cas, key_binary) {
                    Some(outcome) => return outcome,
                    None => continue,
                }
            }
            if !options.invalidate {
                if inner.insight.sampler.takes(hash.0) {
                    inner.sample_delete(hash);
                }
                inner.remove(&locked, found, Change::Deleted);
                return DeleteOutcome::Done;
            }
            if let Some(expiry) = options.expiry
                && !inner.set_expiry(item, found.location, expiry)
            {
                drop(locked);
                match self.add_expiry_field(key, hash) {
                    Err(Miss::OutOfMemory) => return DeleteOutcome::OutOfMemory,
                    _ => continue,
                }
            }
            // In this order, a restart never finds a stale item with its former CAS value.
            item.set_cas(inner.next_cas(&locked, options.new_cas));
            stores::fence();
            item.set_state(item.state() & !state::TOKEN_SENT | state::STALE);
            inner.notify(Change::Touched, key, item.cas());
            return DeleteOutcome::Done;
        }
    }

    /// Replaces the item at `location` by an empty one; `None` if the item is no longer there.
    fn clear_value(
        &self,
        key: &[u8],
        hash: KeyHash,
        options: &DeleteOptions,
        location: u32,
        cas: u64,
        key_binary: bool,
    ) -> Option<DeleteOutcome> {
        let store = StoreOptions {
            mode: StoreMode::Set,
            client_flags: options.client_flags,
            expiry: options.expiry.unwrap_or(Expiry::NEVER),
            key_binary,
            // An emptied item keeps its CAS value, unless it is also marked as stale.
            new_cas: options.new_cas.or((!options.invalidate).then_some(cas)),
            ..StoreOptions::default()
        };
        let Ok(reservation) = self.reserve_for(key, hash, 0, &store, Arrival::Complete) else {
            return Some(DeleteOutcome::OutOfMemory);
        };
        let marks = if options.invalidate { state::STALE } else { 0 };
        let replaces = Replaces { location, cas, number: None, marks, inherited: None };
        let outcome = reservation.commit_replacing(Some(replaces))?;
        Some(match outcome {
            StoreOutcome::Stored { .. } => DeleteOutcome::Done,
            _ => DeleteOutcome::OutOfMemory,
        })
    }

    /// Removes every item that was stored before this call. When it returns, no client can see
    /// them; their memory is reclaimed afterwards.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"k", b"v")?;
    /// kv.flush_all();
    /// assert_eq!(kv.get(b"k"), None);
    /// while kv.maintain() {}
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush_all(&self) {
        let inner = &self.inner;
        // This flush replaces a scheduled one; one that is already due runs first.
        inner.now();
        let due = inner.flush.due();
        inner.flush.flush(&inner.log, &inner.index);
        inner.flush.clear(due);
    }

    /// Returns the number of flushes so far, of everything and of prefixes; `None` while a flush is in
    /// progress or scheduled. If two calls return the same number, no flush took effect in between.
    #[must_use]
    pub fn flushes(&self) -> Option<u64> {
        self.inner.flush.done()
    }

    /// Schedules a flush of every item that is stored when the clock reaches `secs`. A later call
    /// replaces an earlier one; 0 cancels it.
    pub fn flush_at(&self, secs: u32) {
        // A flush that is already due runs first.
        self.inner.now();
        self.inner.flush.set_due(secs);
    }

    /// Does background work for at most a few milliseconds. Returns whether more work remains. Call
    /// this about once a second (and again immediately while it returns true), from any thread.
    pub fn maintain(&self) -> bool {
        let inner = &*self.inner;
        let now = inner.now();
        inner.note_time(now);
        let has_more = self.sweep_prefixes();
        let boundary = inner.log.boundary();
        if boundary == 0 {
            return inner.log.reclaim_ahead(inner, now) || has_more;
        }
        if !inner.log.has_regions_before(boundary) {
            // No older item remains, so look-ups need not compare any more.
            if inner.log.clear_boundary(boundary) {
                inner.index.shards().iter().for_each(|shard| shard.count_flushed(true));
            }
            return has_more;
        }
        // Flushed regions consist of garbage, so they are reclaimed first. Those that are pinned or
        // being written remain for a later call.
        inner.log.reclaim_some(inner, now) || has_more
    }
}

/// The approximate number of hash buckets that one call sweeps: some ten thousand items, a
/// millisecond or two.
const SLICE_BUCKETS: u64 = 1024;
/// The number of units whose items are prefetched together.
const BATCH: u64 = 8;

impl Kv {
    /// Removes every item whose key begins with `prefix`: items stored before this call are gone
    /// when it returns, and items stored after it stay. The call takes the same short time
    /// regardless of the store's size, unless the memory is in a file. Memory is reclaimed
    /// afterwards, by [`Kv::sweep_prefixes`] or [`Kv::maintain`]; until then, operations take
    /// somewhat longer.
    ///
    /// If the memory is in a [file](crate::arena::ArenaFile), the call returns once all such items
    /// have been removed, so that they do not come back.
    ///
    /// Until the memory is reclaimed, a prefix is pending. At most 256 may be pending; those that a
    /// later prefix covers count as one. A key with a pending prefix that is stored again occupies
    /// some more bytes until then; if there are too many such keys, further ones are refused with
    /// [`StoreOutcome::OutOfMemory`].
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"user:1", b"Ann")?;
    /// kv.set(b"page:1", b"...")?;
    /// kv.flush_prefix(b"user:")?;
    /// assert_eq!((kv.get(b"user:1"), kv.get(b"page:1").is_some()), (None, true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`PrefixError`]. In that case nothing is removed.
    pub fn flush_prefix(&self, prefix: &[u8]) -> Result<(), PrefixError> {
        if !(1..=KEY_BYTES_MAX).contains(&prefix.len()) {
            return Err(PrefixError::Length);
        }
        let inner = &*self.inner;
        inner.now();
        let enter = || inner.prefixes.request(prefix, || inner.log.set_owner_ended(true));
        let entered = inner.flush.count(enter);
        if !entered {
            return Err(PrefixError::TooMany);
        }
        if inner.store_file.is_some() {
            self.sweep_all_prefixes();
        }
        Ok(())
    }

    /// Removes all items that prefix flushes have ended, because a later process does not know of
    /// these flushes.
    fn sweep_all_prefixes(&self) {
        while self.inner.prefixes.is_pending() {
            if !self.sweep_prefixes() {
                // Another thread is sweeping or has just finished.
                std::thread::yield_now();
            }
        }
    }

    /// Removes items that prefix flushes have ended, for a millisecond or two. Returns whether more
    /// remain, unless another thread is sweeping at the moment.
    pub fn sweep_prefixes(&self) -> bool {
        self.sweep_buckets(SLICE_BUCKETS)
    }

    /// Sweeps about `buckets` hash buckets.
    pub(in crate::kv) fn sweep_buckets(&self, buckets: u64) -> bool {
        let inner = &*self.inner;
        inner.now();
        let Some(mut place) = try_lock(&inner.prefixes.sweep) else { return false };
        let Some(mut sweep) = place.take().or_else(|| inner.begin_sweep()) else { return false };
        if inner.sweep_slice(&mut sweep, buckets) {
            *place = Some(sweep);
            return true;
        }
        inner.prefixes.end_sweep(&sweep, || inner.log.set_owner_ended(false));
        drop(place);
        inner.prefixes.is_pending()
    }

    /// Returns the statistics of prefix flushes.
    pub fn prefix_flushes(&self) -> PrefixFlushStats {
        self.inner.prefixes.stats(self.inner.index.shards().len())
    }
}

impl Inner {
    fn begin_sweep(&self) -> Option<Sweep> {
        let mut sweep = self.prefixes.begin_sweep()?;
        self.enter_shard(&mut sweep);
        Some(sweep)
    }

    /// Fixes the number of units of the shard that the sweep has reached.
    fn enter_shard(&self, sweep: &mut Sweep) {
        let Some(shard) = self.index.shards().get(sweep.shard) else { return };
        // The number of hash buckets at the start of this round of splits. A split moves items to a
        // hash bucket whose number is equal modulo this one.
        sweep.units = 1 << shard.bucket_count().ilog2();
        sweep.unit = 0;
        self.prefixes.advance(sweep);
    }

    /// Sweeps units of about `buckets` hash buckets. Returns false at the end.
    fn sweep_slice(&self, sweep: &mut Sweep, buckets: u64) -> bool {
        let mut left = buckets;
        while let Some(shard) = self.index.shards().get(sweep.shard) {
            let to = (sweep.unit + left.clamp(1, BATCH)).min(sweep.units);
            let batch = sweep.unit..to;
            for bucket in batch.clone() {
                if let Some(locked) = shard.lock_bucket(bucket) {
                    locked.for_each(|location| self.prefetch_item(location));
                }
            }
            for unit in batch {
                // The order is ascending, because a concurrent split moves items to a higher number
                // of the same unit.
                let mut bucket = unit;
                while self.sweep_bucket(sweep, bucket) {
                    bucket += sweep.units;
                    left = left.saturating_sub(1);
                }
            }
            sweep.unit = to;
            self.prefixes.advance(sweep);
            if sweep.unit == sweep.units {
                sweep.shard += 1;
                self.enter_shard(sweep);
            }
            if left == 0 {
                return sweep.shard < self.index.shards().len();
            }
        }
        false
    }

    /// Removes ended items from a hash bucket. Returns false if the bucket does not exist.
    fn sweep_bucket(&self, sweep: &Sweep, bucket: u64) -> bool {
        let Some(locked) = self.index.shards()[sweep.shard].lock_bucket(bucket) else { return false };
        let mut ended: Vec<(KeyHash, u32)> = Vec::new();
        locked.for_each(|location| {
            let key = self.item_at(location).key();
            if let Some(hash) = self.prefixes.is_due(sweep, key, || self.hasher.hash(key)) {
                ended.push((hash, location));
            }
        });
        for (hash, location) in ended {
            // Each removal may move other items of the chain.
            if let Some(slot) = locked.find(hash, |found| found == location) {
                self.remove_flushed(&locked, Found { slot, item: self.item_at(location), location });
            }
        }
        true
    }
}
