//! Receive buffers: the bytes of a write are received from a socket directly into the buckets that
//! will keep them.
//!
//! ```text
//! receive_buffer ─> buckets reserved ─> filled from a socket ─> finish: a payload ─> write: the slots take the
//!                         │                    │                        │            buckets over, without a copy
//!                         └── dropped ─────────┴────────────────────────┴──> free again
//! ```
//! Bytes that do not fill a whole bucket are kept separately and copied. Reserved buckets are
//! counted until a write has taken them over or nothing refers to them any more, and are limited to
//! an eighth of all buckets: so a client that never sends the rest, or whose writes wait, takes no
//! memory that others need. Nothing waits here: if there is no room at once, the bytes are received
//! elsewhere and copied.

use std::io::{self, IoSliceMut};

use blocker::{ObjectId, Segments, WriteMode};
use bytes::Bytes;

use crate::object::memory::parts;
use crate::object::memory::pool::BUCKET;
use crate::object::shared::Shared;
use crate::object::shared::resources::reserve;
use crate::sync::Arc;

/// At most this fraction of all buckets is reserved for receiving.
const SHARE: u32 = 8;
/// The maximum number of slices passed to a single read.
const SLICES_MAX: usize = 64;

/// Memory of a cache for a payload that is being received. If it is dropped before
/// [`Self::finish`], its memory is free again.
///
/// Created by [`ObjectCache::receive_buffer`](crate::object::ObjectCache::receive_buffer).
pub struct ReceiveBuffer {
    shared: Arc<Shared>,
    /// The bytes before the first whole bucket and after the last.
    head: Vec<u8>,
    tail: Vec<u8>,
    /// The buckets, in order. The buffer owns the only reference to each.
    buckets: Vec<u32>,
    filled: usize,
}

impl ReceiveBuffer {
    /// Returns memory for `len_bytes` that are to be written at `offset` of `object`. Returns
    /// `None` if the bytes fill no whole bucket, are not kept or are refused in the namespace's
    /// write mode, exceed the object's size limit, or find no room at once.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        object: &ObjectId,
        offset: u64,
        len_bytes: usize,
    ) -> Option<Self> {
        offset.checked_add(len_bytes as u64).filter(|end| *end <= shared.control.config.object_bytes_max)?;
        let mode = shared.control.namespaces.write_mode(&object.namespace);
        if matches!(mode, WriteMode::Around | WriteMode::ReadOnly) {
            return None;
        }
        let (mut head, mut tail, mut count) = (0, 0, 0);
        for (_, lo, hi) in parts(offset, len_bytes as u64) {
            match hi - lo {
                BUCKET => count += 1,
                len if count == 0 && hi == BUCKET => head = len,
                len => tail = len,
            }
        }
        if count == 0 || !shared.memory.pool.reserve_receive(count, shared.memory.pool.count_min() / SHARE) {
            return None;
        }
        let Some(mut reserved) = shared.memory.pool.waiters().try_take(|| reserve(shared, count)) else {
            shared.memory.pool.unreserve_receive(count);
            return None;
        };
        let buckets = std::iter::from_fn(|| reserved.take_receiving()).collect();
        let (head, tail) = (vec![0; head], vec![0; tail]);
        Some(Self { shared: Arc::clone(shared), head, tail, buckets, filled: 0 })
    }

    /// Returns the size of the buffer, in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.head.len() + self.buckets.len() * BUCKET + self.tail.len()
    }

    /// Calls `read` once with slices for the next bytes, in order, and counts the number of bytes
    /// that it returns as filled.
    ///
    /// # Errors
    /// The error of `read`.
    pub fn fill(
        &mut self,
        read: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut slices = Vec::with_capacity(SLICES_MAX);
        let mut skip = self.filled;
        let room = self.len_bytes() - self.filled;
        let mut add = |start: *mut u8, len: usize| {
            let skipped = skip.min(len);
            skip -= skipped;
            if skipped == len || slices.len() == SLICES_MAX {
                return;
            }
            // SAFETY: `start` and `len` denote one of our two buffers, or adjacent buckets, which
            // lie completely within the arena: a single mapping that `shared` keeps and whose
            // memory is initialised. Nothing else refers to them until `finish`; each is added
            // once, so no two slices overlap; and the slices are gone when this returns, while
            // `self` is borrowed.
            slices.push(IoSliceMut::new(unsafe {
                std::slice::from_raw_parts_mut(start.add(skipped), len - skipped)
            }));
        };
        add(self.head.as_mut_ptr(), self.head.len());
        // Adjacent buckets form a single slice. The buckets of a payload are returned together, so
        // the next payload gets adjacent ones too.
        let mut rest = &self.buckets[..];
        while let Some(first) = rest.first() {
            let start = self.shared.memory.pool.at(*first);
            let run = (0..).zip(rest).take_while(|(nth, bucket)| {
                self.shared.memory.pool.at(**bucket) == start.wrapping_add(nth * BUCKET)
            });
            let count = run.count();
            add(start, count * BUCKET);
            rest = &rest[count..];
        }
        add(self.tail.as_mut_ptr(), self.tail.len());
        let count = read(&mut slices)?.min(room);
        self.filled += count;
        Ok(count)
    }

    /// Returns the payload. A write of the payload at the offset for which the buffer was made
    /// takes over its buckets; any other write copies the payload.
    ///
    /// The caller must have filled the whole buffer: bytes that were not filled are unspecified.
    #[must_use]
    pub fn finish(mut self) -> Segments {
        let mut payload = Segments::from(std::mem::take(&mut self.head));
        for bucket in std::mem::take(&mut self.buckets) {
            payload.push(self.shared.memory.pool.received_segment(bucket));
        }
        payload.append(Bytes::from(std::mem::take(&mut self.tail)).into());
        payload
    }
}

impl blocker::ReceiveBuffer for ReceiveBuffer {
    fn fill(
        &mut self,
        read: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.fill(read)
    }

    fn finish(self: Box<Self>) -> Segments {
        (*self).finish()
    }
}

impl Drop for ReceiveBuffer {
    fn drop(&mut self) {
        self.buckets.drain(..).for_each(|bucket| self.shared.memory.pool.release(bucket));
    }
}

impl std::fmt::Debug for ReceiveBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveBuffer")
            .field("len_bytes", &self.len_bytes())
            .field("filled_bytes", &self.filled)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::object::{ObjectCache, ObjectCacheConfig};
    use blocker::executor::block_on;
    use blocker::{
        Blocker, BlockerExt, FlushRequest, Memory, Name, Namespace, ReadRequest, Scope, SystemClock,
        WriteRequest,
    };

    fn cache(write: WriteMode) -> ObjectCache {
        let config = ObjectCacheConfig {
            memory_bytes_max: 8 << 20,
            dirty_bytes_max: 4 << 20,
            write,
            ..ObjectCacheConfig::default()
        };
        let (cache, background) =
            ObjectCache::new(Arc::new(Memory::default()), config, Arc::new(SystemClock)).unwrap();
        std::thread::spawn(move || block_on(background));
        cache
    }

    fn object(name: &'static str) -> ObjectId {
        ObjectId::new(Namespace::new("n").unwrap(), Name::new(name).unwrap())
    }

    fn fill(buffer: &mut ReceiveBuffer, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let mut read = |slices: &mut [IoSliceMut<'_>]| {
                // Returns only some of the bytes, as a socket would.
                let few = bytes.len().min(10_000);
                io::Read::read_vectored(&mut &bytes[..few], slices)
            };
            let count = buffer.fill(&mut read).unwrap();
            bytes = &bytes[count..];
        }
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| ((at * 7) >> 3) as u8).collect()
    }

    #[test]
    fn a_write_takes_over_received_buckets_and_copies_only_the_edges() {
        for write in [WriteMode::Back, WriteMode::Through] {
            let cache = cache(write);
            let data = pattern(100_000);
            for round in 0..3_u64 {
                let mut buffer = cache.receive_buffer(&object("o"), 1000, data.len()).expect("room");
                assert_eq!((buffer.len_bytes(), buffer.buckets.len()), (data.len(), 23));
                assert_eq!(cache.counters().receive_buffer_bytes, 23 * 4096);
                cache.validate().unwrap();
                fill(&mut buffer, &data);
                let write = WriteRequest::new(object("o"), 1000, buffer.finish());
                block_on(cache.write(write)).unwrap();
                let counters = cache.counters();
                assert_eq!(counters.receive_buffer_bytes, 0);
                assert_eq!(counters.zero_copy_bytes, (round + 1) * 23 * 4096, "{counters:?}");
                cache.validate().unwrap();
                let read = block_on(cache.read(ReadRequest::new(object("o"), 1000, 200_000))).unwrap();
                assert!(read.data.to_vec() == data);
                drop(read);
                // Overwrites a part: the bucket is like any other.
                block_on(cache.write(WriteRequest::new(object("o"), 8192 + 10, &[7; 20]))).unwrap();
                let read =
                    block_on(cache.read(ReadRequest::new(object("o"), 8192, 40))).unwrap().data.to_vec();
                assert_eq!(read[10..30], [7; 20]);
                assert_eq!(read[..10], data[7192..7202]);
                cache.validate().unwrap();
                block_on(cache.flush(FlushRequest::new(Scope::All))).unwrap();
                cache.validate().unwrap();
            }
        }
    }

    #[test]
    fn reserved_buckets_are_bounded_and_come_back() {
        let cache = cache(WriteMode::Back);
        let free = cache.counters().free_bytes;
        let most = cache.counters().memory_bytes / u64::from(SHARE);
        let mut all = Vec::new();
        while let Some(buffer) = cache.receive_buffer(&object("o"), 0, 64 << 10) {
            all.push(buffer);
        }
        assert!((most - (64 << 10)..=most).contains(&cache.counters().receive_buffer_bytes));
        cache.validate().unwrap();
        // This payload is finished but never written.
        drop(all.pop().unwrap().finish());
        fill(all.last_mut().unwrap(), &[1; 5000]);
        drop(all);
        assert_eq!((cache.counters().receive_buffer_bytes, cache.counters().free_bytes), (0, free));
        cache.validate().unwrap();
        assert!(cache.receive_buffer(&object("o"), 100, 4096).is_none(), "no whole bucket");
        assert!(cache.receive_buffer(&object("o"), u64::MAX, 1 << 20).is_none());
    }

    #[test]
    fn two_writes_of_one_payload_share_its_buckets_and_go_their_own_ways() {
        let cache = cache(WriteMode::Back);
        let mut buffer = cache.receive_buffer(&object("a"), 0, 64 << 10).unwrap();
        let data = pattern(64 << 10);
        fill(&mut buffer, &data);
        let payload = buffer.finish();
        for name in ["a", "b"] {
            block_on(cache.write(WriteRequest::new(object(name), 0, payload.clone()))).unwrap();
        }
        drop(payload);
        block_on(cache.write(WriteRequest::new(object("a"), 0, &[9; 4096]))).unwrap();
        let b = block_on(cache.read(ReadRequest::new(object("b"), 0, 64 << 10))).unwrap().data.to_vec();
        assert!(b == data);
        block_on(cache.flush(FlushRequest::new(Scope::All))).unwrap();
        cache.validate().unwrap();
        assert_eq!(cache.counters().receive_buffer_bytes, 0);
    }
}
