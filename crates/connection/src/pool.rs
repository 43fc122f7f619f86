//! Buffers for large payloads, which are reused: fresh memory costs a page fault per 4 KiB, more than a copy.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use blocker::Segments;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::receive::{LARGE_BYTES, ReceiveBuffer};

/// The number of buffer sizes: the powers of two from [`LARGE_BYTES`] to 4 MiB.
const CLASS_COUNT: usize = 8;

/// Large buffers that are reused.
#[derive(Debug)]
pub struct PayloadPool {
    classes: [Mutex<Vec<Vec<u8>>>; CLASS_COUNT],
    kept_bytes: AtomicUsize,
    kept_bytes_max: usize,
}

impl PayloadPool {
    /// Returns a pool that keeps at most `kept_bytes_max` bytes for reuse.
    #[must_use]
    pub fn new(kept_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { classes: Default::default(), kept_bytes: AtomicUsize::new(0), kept_bytes_max })
    }

    /// Returns a buffer for a payload of `len_bytes`.
    #[must_use]
    pub fn reserve(self: &Arc<Self>, len_bytes: usize) -> Box<dyn ReceiveBuffer> {
        let class = class_of(len_bytes);
        let kept = class.and_then(|class| self.classes[class].lock().pop());
        let memory = match (kept, class) {
            (Some(memory), _) => {
                self.kept_bytes.fetch_sub(memory.len(), Ordering::Relaxed);
                memory
            }
            (None, _) => vec![0; Self::buffer_bytes(len_bytes)],
        };
        Box::new(Lease { memory, filled: 0, len_bytes, pool: Arc::clone(self) })
    }

    /// Returns the length in bytes of the buffer of a payload of `len_bytes`.
    #[must_use]
    pub fn buffer_bytes(len_bytes: usize) -> usize {
        class_of(len_bytes).map_or(len_bytes, |class| LARGE_BYTES << class)
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

/// One of the pool's buffers, for one payload. Returned to the pool when it is dropped.
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
        let mut lease = pool.reserve(len);
        let mut left = len;
        while left > 0 {
            let mut read = |places: &mut [IoSliceMut<'_>]| {
                let count = places[0].len().min(10_000);
                places[0][..count].fill(byte);
                Ok(count)
            };
            left -= lease.fill(&mut read).unwrap();
        }
        lease.finish()
    }

    #[test]
    fn a_buffer_is_reused_and_the_pool_is_bounded() {
        let pool = PayloadPool::new(128 * 1024);
        let first = filled(&pool, 100_000, 1);
        assert_eq!(first.to_vec(), vec![1; 100_000]);
        let address = first.as_slice()[0].as_slice().as_ptr();
        drop(first);
        drop((filled(&pool, 100_000, 2), filled(&pool, 40_000, 3)));
        assert_eq!(pool.kept_bytes.load(Ordering::Relaxed), 128 * 1024, "the pool is full");
        let again = filled(&pool, 120_000, 4);
        assert_eq!(again.as_slice()[0].as_slice().as_ptr(), address);
        drop(filled(&pool, 5 << 20, 5));
        assert_eq!(pool.kept_bytes.load(Ordering::Relaxed), 0, "larger than the largest class");
    }
}
