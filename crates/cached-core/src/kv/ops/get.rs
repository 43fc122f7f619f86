//! Reads of one item, including fetches that touch it, create it, or assign its refresh; reads of
//! several items, whose waits for memory overlap; and walks over all items.

use std::mem::MaybeUninit;

use crate::clock::Expiry;
use crate::kv::index::BucketHint;
use crate::kv::inner::Inner;
use crate::kv::item::{Attributes, ItemPtr, Shape, state};
use crate::kv::request::Change;
use crate::kv::{FetchOptions, Fetched, ItemView, Kv, Miss, StoreMode, StoreOptions, StoreOutcome};
use crate::{KeyHash, stores};

impl Kv {
    /// Reads an item, which counts as used. `f` runs while the key's hash bucket is locked: the
    /// value is read in place, and nothing is allocated. `f` must not call the store.
    ///
    /// ```
    /// # use cached_core::kv::{Kv, KvConfig};
    /// # let kv = Kv::new(KvConfig::default())?;
    /// kv.set(b"port", b"11211")?;
    /// let port = kv.read(b"port", kv.hash(b"port"), |item| {
    ///     // Only values above a 16th of a region (4 KiB at least) may lie in several pieces.
    ///     item.inline_value().and_then(|value| str::from_utf8(value).ok()?.parse::<u16>().ok())
    /// });
    /// assert_eq!(port, Ok(Some(11211)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`Miss`] with the reason why there is no item.
    #[inline]
    pub fn read<R>(&self, key: &[u8], hash: KeyHash, f: impl FnOnce(&ItemView<'_>) -> R) -> Result<R, Miss> {
        let inner = &self.inner;
        let now = inner.now();
        let locked = inner.index.shard(hash).lock(hash);
        // Each branch takes its own sample, so that the common path has only one more comparison.
        let found = match inner.find(&locked, hash, key, now) {
            Ok(found) => found,
            Err(miss) => {
                if inner.insight.sampler.takes(hash.0) {
                    inner.sample_read(hash, key, Err(miss));
                }
                return Err(miss);
            }
        };
        if inner.insight.sampler.takes(hash.0) {
            inner.sample_read(hash, key, Ok(found.item));
        }
        inner.bump(found.item, now);
        Ok(f(&ItemView { kv: inner, item: found.item, location: found.location, now }))
    }

    /// Reads an item without counting it as used. `f` runs while the key's hash bucket is locked, and must
    /// not call the store.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"k", b"v")?;
    /// let was_read = kv.peek(b"k", kv.hash(b"k"), |item| item.fetched());
    /// assert_eq!(was_read, Ok(false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`Miss`] with the reason why there is no item.
    pub fn peek<R>(&self, key: &[u8], hash: KeyHash, f: impl FnOnce(&ItemView<'_>) -> R) -> Result<R, Miss> {
        let inner = &self.inner;
        let now = inner.now();
        let locked = inner.index.shard(hash).lock(hash);
        let found = inner.find(&locked, hash, key, now)?;
        Ok(f(&ItemView { kv: inner, item: found.item, location: found.location, now }))
    }

    /// Reads an item, and in the same step touches or creates it, or decides which caller has to
    /// refresh it.
    ///
    /// ```
    /// use cached_core::kv::{Kv, FetchOptions};
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// use cached_core::clock::Expiry;
    ///
    /// kv.set(b"session", b"{}")?;
    /// let touch = Some(Expiry::after(kv.now_secs(), 300));
    /// let options = FetchOptions { touch, ..FetchOptions::default() };
    /// let before = kv.fetch(b"session", kv.hash(b"session"), &options, |_item, fetched| fetched.expiry_before);
    /// assert_eq!(before, Ok(Expiry::NEVER));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`Miss`] with the reason why there is no item; with `vivify` only
    /// [`Miss::OutOfMemory`] remains.
    pub fn fetch<R>(
        &self,
        key: &[u8],
        hash: KeyHash,
        options: &FetchOptions,
        f: impl FnOnce(&ItemView<'_>, &Fetched) -> R,
    ) -> Result<R, Miss> {
        let inner = &self.inner;
        let mut created = false;
        loop {
            let now = inner.now();
            let locked = inner.index.shard(hash).lock(hash);
            let found = match options.vivify {
                Some(expiry) if created && expiry.is_past(now) => inner.find_created(&locked, hash, key),
                _ => inner.find(&locked, hash, key, now),
            };
            if inner.insight.sampler.takes(hash.0) && !created {
                inner.sample_fetch(hash, key, found.map(|found| found.item), options.touch);
            }
            let found = match found {
                Ok(found) => found,
                Err(miss) => {
                    drop(locked);
                    let Some(expiry) = options.vivify else { return Err(miss) };
                    let store = StoreOptions {
                        mode: StoreMode::Add,
                        expiry,
                        key_binary: options.key_binary,
                        new_cas: options.new_cas,
                        ..StoreOptions::default()
                    };
                    match self.store(key, hash, b"", &store) {
                        StoreOutcome::Stored { .. } => created = true,
                        StoreOutcome::NotStored => {} // Another thread was faster: read its item.
                        _ => return Err(Miss::OutOfMemory),
                    }
                    continue;
                }
            };
            let item = found.item;
            let expiry_before = item.expiry();
            if let Some(expiry) = options.touch.filter(|_| !created)
                && !inner.set_expiry(item, found.location, expiry)
            {
                drop(locked);
                self.add_expiry_field(key, hash)?;
                continue;
            }
            let mut fetched = Fetched {
                created,
                fetched_before: item.state() & state::FETCHED != 0,
                idle_secs: item.idle_secs(now),
                expiry_before,
                ..Fetched::default()
            };
            if options.tokens {
                inner.assign_refresh(item, options, &mut fetched);
            }
            if options.touch.is_some() && !created {
                inner.notify(Change::Touched, key, item.cas());
            }
            let result = f(&ItemView { kv: inner, item, location: found.location, now }, &fetched);
            if !options.no_bump {
                inner.bump(item, now);
            }
            return Ok(result);
        }
    }

    /// Rewrites an item that never expires so that its entry has an expiry field. Without eviction,
    /// every entry has one.
    ///
    /// # Errors
    /// Returns [`Miss::OutOfMemory`] only if no memory can be freed; otherwise the reason why the
    /// item no longer exists.
    pub(super) fn add_expiry_field(&self, key: &[u8], hash: KeyHash) -> Result<(), Miss> {
        let inner = &self.inner;
        loop {
            let now = inner.now();
            // A pinned item is not evicted to free memory, and an item that counts as used survives
            // a walk in progress.
            let (location, shape, _pins) = {
                let locked = inner.index.shard(hash).lock(hash);
                let found = inner.find(&locked, hash, key, now)?;
                inner.bump_unread(found.item, now);
                let view = ItemView { kv: inner, item: found.item, location: found.location, now };
                (found.location, found.item.shape(), (view.pin_entry(), view.pin()))
            };
            let mut fields = shape.fields();
            if fields.expiry {
                return Ok(());
            }
            fields.expiry = true;
            let shape = Shape::item(shape.key_bytes(), shape.payload_bytes(), fields);
            let log = &inner.log;
            let stream = log.stream_for(Expiry::NEVER, now);
            let entry =
                log.alloc(&**inner, stream, log.padded(shape.entry_bytes()), now).ok_or(Miss::OutOfMemory)?;
            let locked = inner.index.shard(hash).lock(hash);
            let found = inner.find(&locked, hash, key, now);
            let attributes = match &found {
                Ok(found) => {
                    let attributes = found.item.attributes();
                    Attributes { usage: attributes.usage.without(state::LIVE), ..attributes }
                }
                // The entry is abandoned below. Walks need only its shape and key.
                Err(_) => inner.fresh_attributes(&StoreOptions::default(), now),
            };
            // SAFETY: the entry is ours, with room for the shape.
            let new = unsafe { ItemPtr::write(log.ptr(entry.location), shape, key, &attributes) };
            match found {
                // The item is at the same location with the same payload length, so it is copied.
                Ok(old)
                    if old.location == location
                        && old.item.shape().payload_bytes() == shape.payload_bytes()
                        && !old.item.shape().fields().expiry =>
                {
                    let payload = old.item.payload();
                    // SAFETY: the new entry's payload has this length; the two entries are apart.
                    unsafe {
                        stores::copy(payload.as_ptr(), new.payload_ptr(), payload.len());
                    }
                    log.make_live(new, attributes.usage);
                    log.make_dead(old.item);
                    let old_bytes = log.padded(old.item.shape().entry_bytes());
                    old.slot.set_location(entry.location);
                    locked.shard().adjust_bytes(u64::from(entry.bytes), u64::from(old_bytes));
                    // Only the entry moves; pieces of a large value stay in place.
                    log.entry_died(old.location, old_bytes, Expiry::NEVER);
                    log.publish(entry);
                    return Ok(());
                }
                Ok(_) => log.abandon(entry),
                Err(miss) => {
                    log.abandon(entry);
                    return Err(miss);
                }
            }
        }
    }

    /// Changes an item's expiry. The item counts as used.
    ///
    /// # Errors
    /// Returns [`Miss`] with the reason why there is no item.
    pub fn touch(&self, key: &[u8], hash: KeyHash, expiry: Expiry) -> Result<(), Miss> {
        let options = FetchOptions { touch: Some(expiry), ..FetchOptions::default() };
        self.fetch(key, hash, &options, |_, _| ())
    }
}

impl Inner {
    /// Prevents stampedes: of all callers that read an item that is stale, newly created, or about to
    /// expire, one wins the right to refresh it.
    fn assign_refresh(&self, item: ItemPtr, options: &FetchOptions, fetched: &mut Fetched) {
        let marks = item.state();
        fetched.token_sent = marks & state::TOKEN_SENT != 0;
        fetched.stale = marks & state::STALE != 0;
        fetched.won = fetched.created;
        if !fetched.token_sent {
            let expiry = if options.recache_after_touch { item.expiry() } else { fetched.expiry_before };
            let soon = options
                .recache_below
                .is_some_and(|below| expiry != Expiry::NEVER && expiry.as_secs() < below.as_secs());
            fetched.won |= fetched.stale || soon && !fetched.created;
        }
        if fetched.won {
            item.set_state(marks | state::TOKEN_SENT);
            self.notify(Change::Touched, item.key(), item.cas());
        }
    }
}

// Reads of several items, whose waits for memory overlap.
//
// A look-up waits for the line of its hash bucket and then for the lines of the item. For a batch
// of keys, all hash buckets are located and prefetched first, then the items to which their tags
// lead. Then each key is read like a single one, starting with the slot in which its tag was seen.
// Nothing is locked before that, so a prefetched line may turn out to be unneeded, and an item that
// was seen may be gone.

/// The number of keys that [`Kv::read_many`] prefetches together. These are more waits than a core
/// can overlap, and few enough that no line is evicted from the CPU cache before it is read.
pub const READ_BATCH: usize = 16;

impl Kv {
    /// Prefetches the index line in which a key will be looked up. This is only a hint. The next
    /// step, once that line has arrived, is [`Kv::prefetch_item`].
    #[inline]
    pub fn prefetch_bucket(&self, hash: KeyHash) {
        self.inner.index.shard(hash).hint(hash).prefetch();
    }

    /// Prefetches the first lines of the item to which a key's index line leads. This is only a
    /// hint.
    #[inline]
    pub fn prefetch_item(&self, hash: KeyHash) {
        if let Some((_, location)) = self.inner.index.shard(hash).hint(hash).peek(hash) {
            self.inner.prefetch_item(location);
        }
    }

    /// Reads items as [`Kv::read`] does, one after the other in the order of `keys`. Calls `hit` with each
    /// item that is found, while its hash bucket is locked, and `miss` with the reason for each key without
    /// one. Both get `into`.
    ///
    /// ```
    /// # use cached_core::kv::{Kv, KvConfig};
    /// # let kv = Kv::new(KvConfig::default())?;
    /// kv.set(b"a", b"1")?;
    /// let mut sizes = Vec::new();
    /// kv.read_many(
    ///     &[b"a", b"b"],
    ///     &mut sizes,
    ///     |sizes, _key, item| sizes.push(Some(item.value_bytes())),
    ///     |sizes, _key, _why| sizes.push(None),
    /// );
    /// assert_eq!(sizes, [Some(1), None]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn read_many<C>(
        &self,
        keys: &[&[u8]],
        into: &mut C,
        hit: impl Fn(&mut C, &[u8], &ItemView<'_>),
        miss: impl Fn(&mut C, &[u8], Miss),
    ) {
        for batch in keys.chunks(READ_BATCH) {
            self.read_batch(batch, into, &hit, &miss);
        }
    }

    #[inline(always)]
    fn read_batch<C>(
        &self,
        keys: &[&[u8]],
        into: &mut C,
        hit: &impl Fn(&mut C, &[u8], &ItemView<'_>),
        miss: &impl Fn(&mut C, &[u8], Miss),
    ) {
        let inner = &self.inner;
        let now = inner.now();
        let mut ahead = [const { MaybeUninit::<Ahead<'_>>::uninit() }; READ_BATCH];
        for (key, place) in keys.iter().zip(&mut ahead) {
            let hash = self.hash(key);
            let hint = inner.index.shard(hash).hint(hash);
            hint.prefetch();
            place.write(Ahead { hash, hint, slot: usize::MAX });
        }
        // SAFETY: there are at most `READ_BATCH` keys, and for each of them the loop above has written its
        // place.
        let ahead = unsafe { ahead[..keys.len()].assume_init_mut() };
        for Ahead { hash, hint, slot } in &mut *ahead {
            if let Some((seen, location)) = hint.peek(*hash) {
                *slot = seen;
                inner.prefetch_item(location);
            }
        }
        for (key, Ahead { hash, hint, slot }) in keys.iter().zip(&*ahead) {
            let found = match inner.find_seen(hint.lock(), *slot, key, now) {
                Some(found) => Ok(found),
                None => inner
                    .find_again(*hash, key, now)
                    .map(|(lock, location)| (lock, inner.item_at(location), location)),
            };
            // Each branch takes its own sample, so that the common path has only one more
            // comparison.
            match found {
                Ok((_lock, item, location)) => {
                    if inner.insight.sampler.takes(hash.0) {
                        inner.sample_read(*hash, key, Ok(item));
                    }
                    inner.bump(item, now);
                    hit(into, key, &ItemView { kv: inner, item, location, now });
                }
                Err(reason) => {
                    if inner.insight.sampler.takes(hash.0) {
                        inner.sample_read(*hash, key, Err(reason));
                    }
                    miss(into, key, reason);
                }
            }
        }
    }
}

/// The properties of a key that are known before its look-up.
#[derive(Clone, Copy)]
struct Ahead<'a> {
    hash: KeyHash,
    hint: BucketHint<'a>,
    /// The slot of the hash bucket's first line in which the key's tag was seen; an invalid number
    /// if the tag was not seen.
    slot: usize,
}

/// The position of a scan. It stays valid, whatever changes in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanCursor {
    shard: u32,
    bucket: u32,
}

impl ScanCursor {
    /// Returns the position of a hash bucket.
    pub(in crate::kv) fn at(shard: u32, bucket: u32) -> ScanCursor {
        ScanCursor { shard, bucket }
    }
}

impl Kv {
    /// Calls `f` with the items of one hash bucket, and returns the cursor of the next one; `None`
    /// at the end. A scan starts with the default cursor.
    ///
    /// An item that exists throughout the scan is passed to `f` at least once (twice, if the index
    /// grows past it); other items may be passed. Expired and flushed items are left out, and no
    /// item counts as used. `f` runs while the hash bucket is locked; a hash bucket has about ten
    /// items.
    ///
    /// ```
    /// use cached_core::kv::{Kv, ScanCursor};
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"k", b"value")?;
    /// let (mut cursor, mut bytes) = (Some(ScanCursor::default()), 0);
    /// while let Some(at) = cursor {
    ///     cursor = kv.scan(at, |item| bytes += item.value_bytes());
    /// }
    /// assert_eq!(bytes, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan(&self, cursor: ScanCursor, mut f: impl FnMut(&ItemView<'_>)) -> Option<ScanCursor> {
        let inner = &self.inner;
        let now = inner.now();
        let shard = inner.index.shards().get(cursor.shard as usize)?;
        if let Some(guard) = shard.lock_bucket(u64::from(cursor.bucket)) {
            // None of them is in the processor's caches, so they are fetched together.
            guard.for_each(|location| inner.prefetch_item(location));
            guard.for_each(|location| {
                let item = inner.item_at(location);
                if !inner.log.is_flushed(location)
                    && !item.expiry().is_past(now)
                    && !inner.is_ended_by_prefix(item)
                {
                    f(&ItemView { kv: inner, item, location, now });
                }
            });
            return Some(ScanCursor { bucket: cursor.bucket + 1, ..cursor });
        }
        let next = ScanCursor { shard: cursor.shard + 1, bucket: 0 };
        ((next.shard as usize) < inner.index.shards().len()).then_some(next)
    }
}
