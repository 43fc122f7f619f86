//! The cache's memory for the payloads of large writes.

use std::io::{self, IoSliceMut};
use std::sync::Arc;

use blocker::Segments;
use cached_core::object::{self, ObjectCache};
use nbd::ReceiveBuffer;
use volumes::exports::ReceiveBuffers;

/// Returns the memory of `cache` into which payloads are received, which it then has without a copy.
pub(super) fn buffers_of(cache: &ObjectCache) -> ReceiveBuffers {
    let cache = cache.clone();
    Arc::new(move |object, offset, len_bytes| {
        let buffer = cache.receive_buffer(object, offset, len_bytes)?;
        Some(Box::new(Buckets(buffer)) as _)
    })
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
