//! Memory that a large payload is read into from the socket, and that then is the payload; the buffers for that are reused.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use blocker::Segments;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::stream::Stream;

/// Payloads from this size on, in bytes, are read from the socket into receive buffers, without a copy.
pub const LARGE_BYTES: usize = 32 * 1024;
/// The most slices of one read, that of the next head included.
const PLACES_MAX: usize = 72;

/// Memory for one payload, which is visible to its holder only until it is finished. Dropped before, it is free
/// again.
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

/// What one read has brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filled {
    /// The bytes of the payload; with those beyond it 0 at the end of the stream.
    pub payload_bytes: usize,
    /// The bytes beyond the payload.
    pub beyond_bytes: usize,
}

/// Performs one read into `reserved`, of which `left_bytes` are missing, and, if all of them are there, of the first bytes
/// after them into `beyond`.
///
/// `beyond` has room for one more head, because another large payload is likely to follow, and for little more,
/// because what arrives with its head must be copied.
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

/// Copies bytes that have arrived with their head.
pub fn copy_into(reserved: &mut dyn ReceiveBuffer, mut bytes: &[u8]) {
    let mut read = |places: &mut [IoSliceMut<'_>]| io::Read::read_vectored(&mut bytes, places);
    // Reading from a slice never fails, and the receive buffer has room for all of it.
    while reserved.fill(&mut read).is_ok_and(|count| count > 0) {}
}

// ---- Buffers for large payloads, which are reused: fresh memory costs a page fault per 4 KiB, more than a copy.

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
