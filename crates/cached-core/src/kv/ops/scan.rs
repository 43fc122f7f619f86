//! Walking over all items, a bucket at a time, while the store is in use.

use crate::kv::{ItemView, Kv};

/// Where a scan goes on. It stays valid whatever happens to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanCursor {
    shard: u32,
    bucket: u32,
}

impl Kv {
    /// Shows `f` the items of one bucket and tells where to go on; `None` at the end. Start with
    /// the default cursor.
    ///
    /// An item that is there from the first step to the last is shown at least once (twice, if the
    /// index grows past it meanwhile); others may be shown. Expired and flushed items are left out,
    /// and nothing counts as used. `f` runs while the bucket is locked.
    pub fn scan(&self, cursor: ScanCursor, mut f: impl FnMut(&ItemView<'_>)) -> Option<ScanCursor> {
        let inner = &self.inner;
        let now = inner.now();
        let shard = inner.index.shards().get(cursor.shard as usize)?;
        if let Some(locked) = shard.lock_bucket(u64::from(cursor.bucket)) {
            locked.for_each(|location| {
                let item = inner.item_at(location);
                if !inner.is_flushed(location) && !item.expiry().is_past(now) {
                    f(&ItemView { kv: inner, item, location, now });
                }
            });
            return Some(ScanCursor { bucket: cursor.bucket + 1, ..cursor });
        }
        let next = ScanCursor { shard: cursor.shard + 1, bucket: 0 };
        ((next.shard as usize) < inner.index.shards().len()).then_some(next)
    }
}
