//! Landing: bytes about to be written are received into the buckets that will keep them.
//!
//! ```text
//! land ──► buckets claimed ──► filled from a socket ──► finish: a payload ──► write: the slots take the buckets
//!                 │                    │                          │                       over, nothing is copied
//!                 └── dropped ─────────┴──────────────────────────┴──► free again
//! ```
//! What does not fill a whole bucket lies beside them and is copied. Buckets so claimed count until a write has
//! taken them over or nobody points at them any more, and together are at most an eighth of all: who never sends
//! the rest, or whose writes wait, takes no memory that others could not do without. Nothing waits here: where
//! there is no room at once, bytes land elsewhere and are copied.

use std::io::{self, IoSliceMut};

use blocker::{ObjectId, Segments, WriteMode};
use bytes::Bytes;

use super::ObjectCache;
use super::back::Mutation;
use super::pool::{BUCKET, Pool};
use super::shared::Shared;
use super::state::parts;
use crate::sync::Arc;

/// Buckets of which one may be claimed.
const SHARE: u32 = 8;
/// The most places that are handed out at once.
const PLACES_MAX: usize = 64;

/// Memory of a cache for a payload that arrives; dropped unfinished, it goes back.
pub struct Landing {
    shared: Arc<Shared>,
    /// Before the first whole bucket, and after the last.
    head: Vec<u8>,
    tail: Vec<u8>,
    /// In order. Each has one count, which is ours, and nobody else knows it.
    buckets: Vec<u32>,
    filled: usize,
}

impl ObjectCache {
    /// Memory for `len_bytes` that are to be written at `offset` of `object`, if that makes sense there and there
    /// is some at once.
    #[must_use]
    pub fn land(&self, object: &ObjectId, offset: u64, len_bytes: usize) -> Option<Landing> {
        let shared = self.shared();
        offset.checked_add(len_bytes as u64).filter(|end| *end <= shared.config.object_bytes_max)?;
        if shared.write_policy(&object.namespace) == WriteMode::Around {
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
        if count == 0 || !shared.pool.claim_landed(count, shared.pool.count() / SHARE) {
            return None;
        }
        let Some(mut reserved) = shared.pool.waiters().try_take(|| shared.reserve(count)) else {
            shared.pool.unclaim_landed(count);
            return None;
        };
        let buckets = std::iter::from_fn(|| reserved.take_landed()).collect();
        let (head, tail) = (vec![0; head], vec![0; tail]);
        Some(Landing { shared: Arc::clone(shared), head, tail, buckets, filled: 0 })
    }
}

impl Landing {
    /// How many bytes land here.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.head.len() + self.buckets.len() * BUCKET + self.tail.len()
    }

    /// Calls `read` once with places for the next bytes, in order, and takes what it reads as filled.
    ///
    /// # Errors
    /// What `read` says.
    pub fn fill(
        &mut self,
        read: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut places = Vec::with_capacity(PLACES_MAX);
        let mut skip = self.filled;
        let room = self.len_bytes() - self.filled;
        let mut add = |place: *mut u8, len: usize| {
            let skipped = skip.min(len);
            skip -= skipped;
            if skipped == len || places.len() == PLACES_MAX {
                return;
            }
            // SAFETY: `place` and `len` are one of our two buffers, or a bucket that lies whole within the arena,
            // which `shared` keeps and whose memory is initialised. We alone point at it until `finish`; each is
            // added once, so no two places overlap; and they are gone when this returns, while `self` is
            // borrowed.
            places.push(IoSliceMut::new(unsafe {
                std::slice::from_raw_parts_mut(place.add(skipped), len - skipped)
            }));
        };
        add(self.head.as_mut_ptr(), self.head.len());
        self.buckets.iter().for_each(|bucket| add(self.shared.pool.at(*bucket), BUCKET));
        add(self.tail.as_mut_ptr(), self.tail.len());
        let count = read(&mut places)?.min(room);
        self.filled += count;
        Ok(count)
    }

    /// The payload, which a write to the offset that was told takes over. What was not filled is zeros, or whatever
    /// else was there: the caller has filled all of it.
    #[must_use]
    pub fn finish(mut self) -> Segments {
        let mut payload = Segments::from(std::mem::take(&mut self.head));
        for bucket in std::mem::take(&mut self.buckets) {
            payload.push(self.shared.pool.landed_segment(bucket));
        }
        payload.append(Bytes::from(std::mem::take(&mut self.tail)).into());
        payload
    }
}

impl Mutation {
    /// How many buckets its payload has landed in, at most.
    pub(super) fn landed(&self, pool: &Pool) -> u32 {
        let (Self::Write { data, .. } | Self::WriteFull { data }) = self else { return 0 };
        data.iter().filter(|segment| pool.whole_bucket(segment).is_some()).count() as u32
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.buckets.drain(..).for_each(|bucket| self.shared.pool.release(bucket));
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::object::ObjectCacheConfig;
    use blocker::executor::block_on;
    use blocker::{
        Blocker, FlushRequest, Memory, Name, Namespace, ReadRequest, Scope, SystemClock, WriteRequest,
    };

    fn cache(write: WriteMode) -> ObjectCache {
        let config = ObjectCacheConfig {
            memory_bytes_max: 8 << 20,
            dirty_bytes_max: 4 << 20,
            write,
            ..ObjectCacheConfig::default()
        };
        let cache = ObjectCache::new(Arc::new(Memory::default()), config, Arc::new(SystemClock)).unwrap();
        let background = cache.run();
        std::thread::spawn(move || block_on(background));
        cache
    }

    fn object(name: &'static str) -> ObjectId {
        ObjectId::new(Namespace::new("n").unwrap(), Name::new(name).unwrap())
    }

    fn fill(landing: &mut Landing, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let mut read = |places: &mut [IoSliceMut<'_>]| {
                // As a socket would: some of it.
                let few = bytes.len().min(10_000);
                io::Read::read_vectored(&mut &bytes[..few], places)
            };
            let count = landing.fill(&mut read).unwrap();
            bytes = &bytes[count..];
        }
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| ((at * 7) >> 3) as u8).collect()
    }

    #[test]
    fn a_write_takes_over_what_has_landed_and_copies_only_the_edges() {
        for write in [WriteMode::Back, WriteMode::Through] {
            let cache = cache(write);
            let data = pattern(100_000);
            for round in 0..3_u64 {
                let mut landing = cache.land(&object("o"), 1000, data.len()).expect("room");
                assert_eq!((landing.len_bytes(), landing.buckets.len()), (data.len(), 23));
                assert_eq!(cache.counters().landing_bytes, 23 * 4096);
                cache.validate().unwrap();
                fill(&mut landing, &data);
                let write = WriteRequest::new(object("o"), 1000, landing.finish());
                block_on(cache.write(write)).unwrap();
                let counters = cache.counters();
                assert_eq!(counters.landing_bytes, 0);
                assert_eq!(counters.landed_bytes, (round + 1) * 23 * 4096, "{counters:?}");
                cache.validate().unwrap();
                let read = block_on(cache.read(ReadRequest::new(object("o"), 1000, 200_000))).unwrap();
                assert!(read.data.to_vec() == data);
                drop(read);
                // Part of it again: it is a bucket like any other.
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
    fn what_is_claimed_is_bounded_and_comes_back() {
        let cache = cache(WriteMode::Back);
        let free = cache.counters().free_bytes;
        let most = cache.counters().memory_bytes / u64::from(SHARE);
        let mut all = Vec::new();
        while let Some(landing) = cache.land(&object("o"), 0, 64 << 10) {
            all.push(landing);
        }
        assert!((most - (64 << 10)..=most).contains(&cache.counters().landing_bytes));
        cache.validate().unwrap();
        // Finished, and never written.
        drop(all.pop().unwrap().finish());
        fill(all.last_mut().unwrap(), &[1; 5000]);
        drop(all);
        assert_eq!((cache.counters().landing_bytes, cache.counters().free_bytes), (0, free));
        cache.validate().unwrap();
        assert!(cache.land(&object("o"), 100, 4096).is_none(), "no whole bucket");
        assert!(cache.land(&object("o"), u64::MAX, 1 << 20).is_none());
    }

    #[test]
    fn two_writes_of_one_payload_share_its_buckets_and_go_their_own_ways() {
        let cache = cache(WriteMode::Back);
        let mut landing = cache.land(&object("a"), 0, 64 << 10).unwrap();
        let data = pattern(64 << 10);
        fill(&mut landing, &data);
        let payload = landing.finish();
        for name in ["a", "b"] {
            block_on(cache.write(WriteRequest::new(object(name), 0, payload.clone()))).unwrap();
        }
        drop(payload);
        block_on(cache.write(WriteRequest::new(object("a"), 0, &[9; 4096]))).unwrap();
        let b = block_on(cache.read(ReadRequest::new(object("b"), 0, 64 << 10))).unwrap().data.to_vec();
        assert!(b == data);
        block_on(cache.flush(FlushRequest::new(Scope::All))).unwrap();
        cache.validate().unwrap();
        assert_eq!(cache.counters().landing_bytes, 0);
    }
}
