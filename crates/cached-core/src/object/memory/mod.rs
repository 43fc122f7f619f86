//! The memory of the cache: the pool of 4 KiB buckets, the eviction queues that choose among clean ones, the
//! slots through which an object refers to its buckets, and the arithmetic of ranges. It knows no object, no
//! namespace's settings and no store.

pub(crate) mod geometry;
pub(crate) mod pool;
pub(crate) mod queue;
pub(crate) mod slots;
