//! A cache as the place where a server's large payloads land.

use std::io::{self, IoSliceMut};

use blocker::{ObjectId, Segments};
use cached_core::object::{self, ObjectCache};
use synapse::ReceiveBuffer;

/// Large payloads go from the socket into the buckets of this cache.
pub struct CacheReceiveBuffers(ObjectCache);

impl CacheReceiveBuffers {
    /// Where the payloads of writes to `cache` land.
    #[must_use]
    pub fn new(cache: ObjectCache) -> CacheReceiveBuffers {
        CacheReceiveBuffers(cache)
    }
}

impl synapse::ReceiveBuffers for CacheReceiveBuffers {
    fn reserve(&self, object: &ObjectId, offset: u64, len_bytes: usize) -> Option<Box<dyn ReceiveBuffer>> {
        let landing = self.0.receive_buffer(object, offset, len_bytes)?;
        Some(Box::new(Arriving(landing)))
    }
}

struct Arriving(object::ReceiveBuffer);

impl ReceiveBuffer for Arriving {
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
