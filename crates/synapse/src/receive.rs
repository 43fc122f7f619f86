//! Where large payloads come to lie: memory that is read into from the socket and then is the payload.
//!
//! A backend that keeps payloads in buckets of its own can hand those out, through [`ReceiveBuffers`]; the
//! bytes then go from the socket into their bucket. Otherwise they land in buffers that are used again,
//! because fresh memory costs a page fault per 4 KiB, more than the copy that is saved.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use blocker::{ObjectId, Segments};
use bytes::Bytes;
use parking_lot::Mutex;

/// Payloads from this size on go from the socket straight to where they belong.
pub const LARGE_BYTES: usize = 32 * 1024;

/// Hands out memory for payloads that are about to arrive.
///
/// The implementor owes an answer at once, and takes back what is dropped unfinished.
pub trait ReceiveBuffers: Send + Sync {
    /// Memory for `len_bytes` to be written at `offset` of `object`; `None` if there is none now, and the
    /// payload lands elsewhere. Nothing is known yet about whether the write will be allowed.
    fn reserve(&self, object: &ObjectId, offset: u64, len_bytes: usize) -> Option<Box<dyn ReceiveBuffer>>;
}

/// Memory handed out, which nobody else sees until it is finished.
pub trait ReceiveBuffer: Send {
    /// Calls `read` once with places for the next bytes, in order, and takes what it reads as filled. The
    /// places never add up to more than is still to come.
    ///
    /// # Errors
    /// What `read` says.
    fn fill(&mut self, read: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>)
    -> io::Result<usize>;

    /// The payload, once all of it is there.
    fn finish(self: Box<Self>) -> Segments;
}

/// Sizes of buffers: powers of two from [`LARGE_BYTES`] to 4 MiB.
const CLASS_COUNT: usize = 8;

/// Large buffers that are used again.
#[derive(Debug)]
pub(crate) struct PayloadPool {
    classes: [Mutex<Vec<Vec<u8>>>; CLASS_COUNT],
    kept_bytes: AtomicUsize,
    kept_bytes_max: usize,
}

impl PayloadPool {
    /// A pool that keeps at most `kept_bytes_max` bytes for later.
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

    fn give_back(&self, memory: Vec<u8>) {
        let Some(class) = class_of(memory.len()).filter(|class| memory.len() == LARGE_BYTES << class) else {
            return;
        };
        // Two that give back at once may keep a buffer more than allowed, or one less: of no account.
        if self.kept_bytes.fetch_add(memory.len(), Ordering::Relaxed) + memory.len() <= self.kept_bytes_max {
            self.classes[class].lock().push(memory);
        } else {
            self.kept_bytes.fetch_sub(memory.len(), Ordering::Relaxed);
        }
    }
}

/// The smallest class that holds so much, if one does.
fn class_of(len_bytes: usize) -> Option<usize> {
    let class =
        len_bytes.next_power_of_two().max(LARGE_BYTES).trailing_zeros() - LARGE_BYTES.trailing_zeros();
    Some(class as usize).filter(|class| *class < CLASS_COUNT)
}

/// One of the pool's buffers; goes back when it is dropped.
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
        self.pool.give_back(std::mem::take(&mut self.memory));
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
    fn a_buffer_is_used_again_and_the_pool_is_bounded() {
        let pool = PayloadPool::new(128 * 1024);
        let first = filled(&pool, 100_000, 1);
        assert_eq!(first.to_vec(), vec![1; 100_000]);
        let address = first.as_slice()[0].as_slice().as_ptr();
        drop(first);
        assert_eq!(pool.kept_bytes.load(Ordering::Relaxed), 128 * 1024);
        // No room for another one.
        drop((filled(&pool, 100_000, 2), filled(&pool, 40_000, 3)));
        assert_eq!(pool.kept_bytes.load(Ordering::Relaxed), 128 * 1024);
        let again = filled(&pool, 120_000, 4);
        assert_eq!(again.as_slice()[0].as_slice().as_ptr(), address);
        // Beyond the largest class nothing is kept.
        drop(again);
        drop(filled(&pool, 5 << 20, 5));
        assert_eq!(pool.kept_bytes.load(Ordering::Relaxed), 128 * 1024);
    }
}
