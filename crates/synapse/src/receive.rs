//! Receive buffers: memory that a large payload is read into from the socket, and that then is the payload.
//!
//! A backend that keeps payloads in buckets of its own hands those out through [`ReceiveBuffers`]; the bytes
//! then go from the socket into their bucket. Otherwise they go into buffers that are reused, because fresh
//! memory costs a page fault per 4 KiB, more than the copy that is saved.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use blocker::{ObjectId, Segments};
use bytes::Bytes;
use parking_lot::Mutex;

/// Payloads from this size on, in bytes, are read from the socket into receive buffers, without a copy.
pub const LARGE_BYTES: usize = 32 * 1024;

/// A backend's receive buffers for payloads that are about to arrive.
///
/// The methods must not block. A buffer that is dropped before [`ReceiveBuffer::finish`] is free again.
pub trait ReceiveBuffers: Send + Sync {
    /// Returns memory for `len_bytes` to be written at `offset` of `object`; `None` if none is free, and the
    /// payload is received into a buffer of the server. Whether the write will be allowed is not known yet.
    fn reserve(&self, object: &ObjectId, offset: u64, len_bytes: usize) -> Option<Box<dyn ReceiveBuffer>>;
}

/// Memory for one payload, which is visible to its holder only until it is finished.
pub trait ReceiveBuffer: Send {
    /// Calls `read` once with slices for the next bytes, in order, and counts what it reads as filled. The
    /// slices never add up to more than what is missing. Returns the number of bytes read.
    ///
    /// # Errors
    /// The error of `read`.
    fn fill(&mut self, read: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>)
    -> io::Result<usize>;

    /// Returns the payload, once all of it has been read.
    fn finish(self: Box<Self>) -> Segments;
}

/// The number of buffer sizes: the powers of two from [`LARGE_BYTES`] to 4 MiB.
const CLASS_COUNT: usize = 8;

/// Large buffers that are reused.
#[derive(Debug)]
pub(crate) struct PayloadPool {
    classes: [Mutex<Vec<Vec<u8>>>; CLASS_COUNT],
    kept_bytes: AtomicUsize,
    kept_bytes_max: usize,
}

impl PayloadPool {
    /// Returns a pool that keeps at most `kept_bytes_max` bytes for reuse.
    pub(crate) fn new(kept_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { classes: Default::default(), kept_bytes: AtomicUsize::new(0), kept_bytes_max })
    }

    pub(crate) fn reserve(self: &Arc<Self>, len_bytes: usize) -> Box<dyn ReceiveBuffer> {
        let class = class_of(len_bytes);
        let kept = class.and_then(|class| self.classes[class].lock().pop());
        let memory = match (kept, class) {
            (Some(memory), _) => {
                self.kept_bytes.fetch_sub(memory.len(), Ordering::Relaxed);
                memory
            }
            (None, Some(class)) => vec![0; LARGE_BYTES << class],
            (None, None) => vec![0; len_bytes],
        };
        Box::new(Lease { memory, filled: 0, len_bytes, pool: Arc::clone(self) })
    }

    fn return_memory(&self, memory: Vec<u8>) {
        let Some(class) = class_of(memory.len()).filter(|class| memory.len() == LARGE_BYTES << class) else {
            return;
        };
        // Two threads that return a buffer at the same time may keep one more than allowed, or one less:
        // harmless.
        if self.kept_bytes.fetch_add(memory.len(), Ordering::Relaxed) + memory.len() <= self.kept_bytes_max {
            self.classes[class].lock().push(memory);
        } else {
            self.kept_bytes.fetch_sub(memory.len(), Ordering::Relaxed);
        }
    }
}

/// Returns the smallest class that holds `len_bytes`, if one does.
fn class_of(len_bytes: usize) -> Option<usize> {
    let class =
        len_bytes.next_power_of_two().max(LARGE_BYTES).trailing_zeros() - LARGE_BYTES.trailing_zeros();
    Some(class as usize).filter(|class| *class < CLASS_COUNT)
}

/// One of the pool's buffers. Returned to the pool when it is dropped.
struct Lease {
    memory: Vec<u8>,
    filled: usize,
    len_bytes: usize,
    pool: Arc<PayloadPool>,
}

impl ReceiveBuffer for Lease {
    fn fill(
        &mut self,
        read: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let place = &mut self.memory[self.filled..self.len_bytes];
        let room = place.len();
        let count = read(&mut [IoSliceMut::new(place)])?.min(room);
        self.filled += count;
        Ok(count)
    }

    fn finish(self: Box<Self>) -> Segments {
        let len_bytes = self.len_bytes;
        Bytes::from_owner(*self).slice(..len_bytes).into()
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.return_memory(std::mem::take(&mut self.memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(pool: &Arc<PayloadPool>, len: usize, byte: u8) -> Segments {
        let mut reserved = pool.reserve(len);
        let mut left = len;
        while left > 0 {
            let mut read = |places: &mut [IoSliceMut<'_>]| {
                let count = places[0].len().min(10_000);
                places[0][..count].fill(byte);
                Ok(count)
            };
            left -= reserved.fill(&mut read).unwrap();
        }
        reserved.finish()
    }

    #[test]
    fn a_buffer_is_reused_and_the_pool_is_bounded() {
        let pool = PayloadPool::new(128 * 1024);
        let first = filled(&pool, 100_000, 1);
        assert_eq!(first.to_vec(), vec![1; 100_000]);
        let address = first.as_slice()[0].as_slice().as_ptr();
        drop(first);
        assert_eq!(pool.kept_bytes.load(Ordering::Relaxed), 128 * 1024);
        // The pool is full.
        drop((filled(&pool, 100_000, 2), filled(&pool, 40_000, 3)));
        assert_eq!(pool.kept_bytes.load(Ordering::Relaxed), 128 * 1024);
        let again = filled(&pool, 120_000, 4);
        assert_eq!(again.as_slice()[0].as_slice().as_ptr(), address);
        // A buffer beyond the largest class is not kept.
        drop(again);
        drop(filled(&pool, 5 << 20, 5));
        assert_eq!(pool.kept_bytes.load(Ordering::Relaxed), 128 * 1024);
    }
}
