//! Walking over all items, one hash bucket at a time, while the store is in use.

use crate::kv::{ItemView, Kv};

/// The position of a scan. It stays valid whatever happens to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanCursor {
    shard: u32,
    bucket: u32,
}

impl ScanCursor {
    /// The position of a hash bucket.
    pub(in crate::kv) fn at(shard: u32, bucket: u32) -> ScanCursor {
        ScanCursor { shard, bucket }
    }
}

impl Kv {
    /// Calls `f` with the items of one hash bucket, and returns the cursor of the next one; `None` at the
    /// end. Start with the default cursor.
    ///
    /// An item that exists from the first step to the last is passed to `f` at least once (twice, if the
    /// index grows past it meanwhile); others may be. Expired and flushed items are left out, and no item
    /// counts as used. `f` runs while the hash bucket is locked; there are about ten items in one.
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
