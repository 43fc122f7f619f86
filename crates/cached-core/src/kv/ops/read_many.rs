//! Reads of several items in which the waits for memory overlap.
//!
//! A lookup waits for the line of its hash bucket and then for the lines of the item. For a batch of keys,
//! all hash buckets are located and prefetched first, then the items to which their tags lead; then each key
//! is read as a single one is, beginning with the slot in which its tag was seen. Nothing is locked until
//! then: a prefetched line may not be needed, and an item that was seen may be gone.

use crate::KeyHash;
use crate::kv::index::BucketHint;
use crate::kv::{ItemView, Kv, Miss};
use std::mem::MaybeUninit;

/// Keys that [`Kv::read_many`] prefetches together: more waits than a core overlaps, and few enough that no
/// line is evicted from the processor's cache before it is read.
pub const READ_BATCH: usize = 16;

impl Kv {
    /// Prefetches the line of the index in which a key will be looked up. Only a hint. [`Kv::prefetch_item`]
    /// is the next step, once that line has arrived.
    #[inline]
    pub fn prefetch_bucket(&self, hash: KeyHash) {
        self.inner.index.shard(hash).hint(hash).prefetch();
    }

    /// Prefetches the first lines of the item to which the index line of a key leads. Only a hint.
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
            // Sampled in each arm, so that the usual path has one comparison more and nothing else.
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

/// What is known of a key before it is looked up.
#[derive(Clone, Copy)]
struct Ahead<'a> {
    hash: KeyHash,
    hint: BucketHint<'a>,
    /// Where its tag was seen in the hash bucket's first line; no slot's number if it was not.
    slot: usize,
}
