//! Reusable buffers for large payloads, which are read from the socket directly into them.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use blocker::{ReceiveBuffer, Segments};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::stream::Stream;

/// The minimum size of payloads that are read from the socket into receive buffers, without a copy.
pub const LARGE_BYTES: usize = 32 * 1024;
/// The maximum number of slices of one read, including the one for the next head.
const PLACES_MAX: usize = 72;

/// The result of one read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filled {
    /// The number of payload bytes read. If `beyond_bytes` is also 0, the stream has ended.
    pub payload_bytes: usize,
    /// The number of bytes read beyond the payload.
    pub beyond_bytes: usize,
}

/// Performs one read into `reserved`, which lacks `left_bytes`. If that completes the payload, the
/// same read also fills `beyond` with the bytes that follow.
///
/// `beyond` has space for one more head, because another large payload is likely to follow. It has
/// little more space, because bytes that arrive with that head must be copied.
pub fn poll_fill(
    cx: &mut Context<'_>,
    stream: &mut Stream,
    reserved: &mut dyn ReceiveBuffer,
    left_bytes: usize,
    beyond: &mut [u8],
) -> Poll<io::Result<Filled>> {
    let mut beyond_bytes = 0;
    let mut read = |places: &mut [IoSliceMut<'_>]| {
        let offered: usize = places.iter().map(|place| place.len()).sum();
        let done = if offered == left_bytes && places.len() < PLACES_MAX {
            let mut all: [_; PLACES_MAX] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let count = places.len();
            all.iter_mut().zip(places).for_each(|(one, place)| *one = IoSliceMut::new(place));
            all[count] = IoSliceMut::new(beyond);
            stream.poll_read_vectored(cx, &mut all[..=count])
        } else {
            stream.poll_read_vectored(cx, places)
        };
        match done {
            Poll::Ready(Ok(count)) => {
                beyond_bytes = count.saturating_sub(offered);
                Ok(count - beyond_bytes)
            }
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    };
    match reserved.fill(&mut read) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        Err(error) => Poll::Ready(Err(error)),
        Ok(payload_bytes) => Poll::Ready(Ok(Filled { payload_bytes, beyond_bytes })),
    }
}

/// Copies the payload bytes that have arrived together with the head.
pub fn copy_into(reserved: &mut dyn ReceiveBuffer, mut bytes: &[u8]) {
    let mut read = |places: &mut [IoSliceMut<'_>]| io::Read::read_vectored(&mut bytes, places);
    // A read from a slice never fails, and the receive buffer has space for all of it.
    while reserved.fill(&mut read).is_ok_and(|count| count > 0) {}
}

// ---- Reusable buffers for large payloads. Fresh memory costs a page fault per 4 KiB, more than a
// copy.

/// The number of buffer sizes: the powers of two from [`LARGE_BYTES`] to 4 MiB.
const CLASS_COUNT: usize = 8;

/// A pool of large buffers for reuse.
#[derive(Debug)]
pub struct PayloadPool {
    classes: [Mutex<Vec<Vec<u8>>>; CLASS_COUNT],
    kept_bytes: AtomicUsize,
    kept_bytes_max: usize,
}

impl PayloadPool {
    /// Creates a pool that keeps at most `kept_bytes_max` bytes for reuse.
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
        // Two threads that return a buffer at the same time may exceed the limit by one buffer, or
        // stay one below it. That is harmless.
        if self.kept_bytes.fetch_add(memory.len(), Ordering::Relaxed) + memory.len() <= self.kept_bytes_max {
            self.classes[class].lock().push(memory);
        } else {
            self.kept_bytes.fetch_sub(memory.len(), Ordering::Relaxed);
        }
    }
}

/// Returns the smallest size class that holds `len_bytes`, if there is one.
fn class_of(len_bytes: usize) -> Option<usize> {
    let class =
        len_bytes.next_power_of_two().max(LARGE_BYTES).trailing_zeros() - LARGE_BYTES.trailing_zeros();
    Some(class as usize).filter(|class| *class < CLASS_COUNT)
}

/// A buffer borrowed from the pool for one payload. Dropping the lease returns the buffer.
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
