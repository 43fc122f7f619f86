//! Reading several items, so that the waits for memory overlap.
//!
//! A lookup waits for its bucket's line and then for the item's lines. For a batch of keys all buckets are worked out and
//! asked for first, then the items that their tags lead to; then each key is read as ever, beginning with the slot in which
//! its tag was seen. Nothing is locked meanwhile: what is asked for may turn out not to be needed, and what was seen to be gone.

use crate::KeyHash;
use crate::kv::index::Guess;
use crate::kv::{Inner, ItemView, Kv, Miss, prefetch};
use std::mem::MaybeUninit;

/// Keys asked for together: more waits than a core overlaps, and few enough that nothing asked for is gone again.
pub const READ_BATCH: usize = 16;

impl Kv {
    /// Asks the processor for the line of the index where a key will be looked for. Only a hint, as is [`Kv::prefetch_item`], which
    /// is for a little later.
    #[inline]
    pub fn prefetch_bucket(&self, hash: KeyHash) {
        self.inner.index.shard(hash).guess(hash).prefetch();
    }

    /// Asks the processor for the first lines of the item to which that line leads.
    #[inline]
    pub fn prefetch_item(&self, hash: KeyHash) {
        if let Some((_, location)) = self.inner.index.shard(hash).guess(hash).peek(hash) {
            self.inner.prefetch_item(location);
        }
    }

    /// Reads items as [`Kv::read`] does, one after the other in the order of `keys`: `hit` is given each that is found, while its
    /// bucket is locked, `miss` the reason why another is not. They share `into`.
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
            let guess = inner.index.shard(hash).guess(hash);
            guess.prefetch();
            place.write(Ahead { hash, guess, slot: usize::MAX });
        }
        // SAFETY: there are at most `READ_BATCH` keys, and for each of them the loop above has written its place.
        let ahead = unsafe { ahead[..keys.len()].assume_init_mut() };
        for Ahead { hash, guess, slot } in &mut *ahead {
            if let Some((seen, location)) = guess.peek(*hash) {
                *slot = seen;
                inner.prefetch_item(location);
            }
        }
        for (key, Ahead { hash, guess, slot }) in keys.iter().zip(&*ahead) {
            let found = match inner.find_seen(guess.lock(), *slot, key, now) {
                Some(found) => Ok(found),
                None => inner
                    .find_anew(*hash, key, now)
                    .map(|(held, location)| (held, inner.item_at(location), location)),
            };
            match found {
                Ok((_held, item, location)) => {
                    inner.bump(item, now);
                    hit(into, key, &ItemView { kv: inner, item, location, now });
                }
                Err(reason) => miss(into, key, reason),
            }
        }
    }
}

impl Inner {
    #[inline]
    fn prefetch_item(&self, location: u32) {
        let item = self.ptr(location);
        prefetch(item);
        prefetch(item.wrapping_add(64));
    }
}

/// What is worked out of a key before it is looked up.
#[derive(Clone, Copy)]
struct Ahead<'a> {
    hash: KeyHash,
    guess: Guess<'a>,
    /// Where it was seen in the bucket's first line; otherwise no slot.
    slot: usize,
}
