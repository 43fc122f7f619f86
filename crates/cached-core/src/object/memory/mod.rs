//! The memory of the cache: the pool of 4 KiB buckets, the eviction queues that choose among clean
//! buckets, the slots through which an object refers to its buckets, and the arithmetic of ranges.
//! This chapter knows nothing of objects, settings of namespaces, or the store.

pub(crate) mod geometry;
pub(crate) mod pool;
pub(crate) mod queue;
pub(crate) mod slots;
