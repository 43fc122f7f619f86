//! Bytes of the cache that are lent to the kernel, which may then send them from where they are.

use super::cache::ObjectCache;

impl ObjectCache {
    /// Returns whether buckets can be lent: it was [asked for](super::ObjectCacheConfig::lends_buckets), and the system takes single
    /// pages of memory back.
    #[must_use]
    pub fn lends(&self) -> bool {
        self.shared().pool.lends()
    }

    /// Lends the bucket that `bytes`, of a segment of this cache, lie in: from now on its bytes never change, even when every
    /// segment is dropped and the bucket is used for another object. Pages of it can be handed to the kernel (`vmsplice`), without
    /// knowing when it has done with them.
    ///
    /// Returns false if nothing was lent: the cache does not lend, or these are not bytes of one bucket.
    #[must_use]
    pub fn lend(&self, bytes: &[u8]) -> bool {
        self.shared().pool.lend(bytes)
    }

    /// Returns whether these bytes, of a segment of this cache, were lent.
    #[must_use]
    pub fn has_lent(&self, bytes: &[u8]) -> bool {
        self.shared().pool.has_lent(bytes)
    }
}
