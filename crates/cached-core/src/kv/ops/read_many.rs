//! Reading several items, so that the waits for memory overlap.
//!
//! A lookup waits for its bucket's line and then for the item's lines. For a batch of keys all buckets are worked out and
//! asked for first, then the items that their tags lead to; then each key is read as ever, beginning with the slot in which
//! its tag was seen. Nothing is locked meanwhile: what is asked for may turn out not to be needed, and what was seen to be gone.

use crate::KeyHash;
use crate::kv::index::Spot;
use crate::kv::{ItemView, Kv, Miss, prefetch};

/// Keys asked for together: more waits than a core overlaps, and few enough that nothing asked for is gone again.
pub const READ_BATCH: usize = 16;

impl Kv {
    /// Reads items as [`Kv::read`] does, one after the other in the order of `keys`: `hit` is given each that is found, `miss`
    /// the reason why another is not. Both run while the key's bucket is locked, and share `into`.
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
        let ahead = |key: &[u8]| -> Ahead<'_> {
            let hash = self.hash(key);
            let spot = inner.index.shard(hash).spot(hash);
            spot.prefetch();
            Ahead { hash, spot, slot: usize::MAX }
        };
        let Some(first) = keys.first() else { return };
        let mut last = ahead(first);
        // A batch that is not full ends with its last key several times over, which nobody looks at.
        let mut spots: [_; READ_BATCH] = std::array::from_fn(|at| {
            if at > 0
                && let Some(key) = keys.get(at)
            {
                last = ahead(key);
            }
            last
        });
        for (_, Ahead { hash, spot, slot }) in keys.iter().zip(&mut spots) {
            if let Some((seen, location)) = spot.peek(*hash) {
                *slot = seen;
                let item = inner.ptr(location);
                prefetch(item);
                prefetch(item.wrapping_add(64));
            }
        }
        for (key, Ahead { hash, spot, slot }) in keys.iter().zip(&spots) {
            let locked = spot.lock(*hash);
            match inner.find_peeked(&locked, *slot, *hash, key, now) {
                Ok((item, location)) => {
                    inner.bump(item, now);
                    hit(into, key, &ItemView { kv: inner, item, location, now });
                }
                Err(reason) => miss(into, key, reason),
            }
        }
    }
}

/// What is worked out of a key before it is looked up.
#[derive(Clone, Copy)]
struct Ahead<'a> {
    hash: KeyHash,
    spot: Spot<'a>,
    /// Where it was seen in the bucket's first line; otherwise no slot.
    slot: usize,
}
