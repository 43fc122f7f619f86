//! A cache's buckets as the receive buffers of a server's large payloads.

use std::fmt;
use std::io::{self, IoSliceMut};

use blocker::{ObjectId, Segments};
use cached_core::object::{self, ObjectCache};
use synapse::ReceiveBuffer;

/// Receives large payloads from the socket into the buckets of a cache, without a copy.
pub struct CacheReceiveBuffers(ObjectCache);

impl CacheReceiveBuffers {
    /// Returns the receive buffers for the payloads of writes to `cache`.
    #[must_use]
    pub fn new(cache: ObjectCache) -> CacheReceiveBuffers {
        CacheReceiveBuffers(cache)
    }
}

impl fmt::Debug for CacheReceiveBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheReceiveBuffers").finish_non_exhaustive()
    }
}

impl synapse::ReceiveBuffers for CacheReceiveBuffers {
    fn reserve(&self, object: &ObjectId, offset: u64, len_bytes: usize) -> Option<Box<dyn ReceiveBuffer>> {
        let buffer = self.0.receive_buffer(object, offset, len_bytes)?;
        Some(Box::new(Buckets(buffer)))
    }
}

struct Buckets(object::ReceiveBuffer);

impl ReceiveBuffer for Buckets {
    fn fill(
        &mut self,
        read: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.0.fill(read)
    }

    fn finish(self: Box<Self>) -> Segments {
        self.0.finish()
    }
}
