//! A store of items and a cache of objects, whose memory is divided by a fixed split or by an
//! arbiter, and the load on both.

use std::sync::Arc;

use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, Memory, Name, Namespace, ObjectId, ReadRequest, WriteFullRequest};
use cached_benches::zipf::Zipf;
use cached_core::arbiter::{Arbiter, Half, SharedMemory};
use cached_core::kv::{Kv, KvConfig};
use cached_core::object::{ObjectCache, ObjectCacheConfig};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const BUCKET: u64 = blocker::BUCKET_BYTES;
const OBJECT_BUCKETS: u64 = 1024;
const VALUE_BYTES: u64 = 1000;
/// The size of each half's data, as a multiple of the memory.
const UNIVERSE: u64 = 3;
/// The number of requests between two decisions of the arbiter.
const LOOK_REQUESTS: u64 = 1000;
/// The minimum of each half, as a divisor of the memory.
const LEAST_DIVISOR: u64 = 8;

/// The source of item and bucket requests.
pub(crate) struct Load {
    random: SmallRng,
    items: Zipf,
    buckets: Zipf,
    bucket_count: u64,
}

/// One request.
enum Request {
    Item(u64),
    Bucket(u64),
}

impl Load {
    pub(crate) fn new(memory_bytes: u64, exponent: f64) -> Load {
        let bucket_count = UNIVERSE * memory_bytes / BUCKET;
        Load {
            random: SmallRng::seed_from_u64(1),
            items: Zipf::new(UNIVERSE * memory_bytes / VALUE_BYTES, exponent),
            buckets: Zipf::new(bucket_count, exponent),
            bucket_count,
        }
    }

    fn next(&mut self, items_of_100: u64) -> Request {
        if self.random.random_range(0..100) < items_of_100 {
            return Request::Item(self.items.sample(&mut self.random));
        }
        // Frequently requested buckets are not adjacent: 7919 does not divide any of the counts of
        // buckets.
        Request::Bucket(self.buckets.sample(&mut self.random) * 7919 % self.bucket_count)
    }
}

/// Both halves.
pub(crate) struct Halves {
    memory_bytes: u64,
    kv: Kv,
    cache: ObjectCache,
    arbiter: Option<Arbiter>,
    value: Vec<u8>,
    requests: u64,
    /// Bytes stored after misses.
    stored_bytes: u64,
}

fn object(number: u64) -> anyhow::Result<ObjectId> {
    Ok(ObjectId::new(Namespace::new("volume")?, Name::new(format!("object.{number:06}"))?))
}

/// Returns a store with all objects, filled with zeroes.
fn store(memory_bytes: u64) -> anyhow::Result<Arc<Memory>> {
    let store = Arc::new(Memory::default());
    let zeroes = bytes::Bytes::from(vec![0; (OBJECT_BUCKETS * BUCKET) as usize]);
    for number in 0..(UNIVERSE * memory_bytes / BUCKET).div_ceil(OBJECT_BUCKETS) {
        block_on(store.write_full(WriteFullRequest::new(object(number)?, zeroes.clone())))?;
    }
    Ok(store)
}

impl Halves {
    /// Returns halves that never change.
    pub(crate) fn fixed(memory_bytes: u64, items_bytes: u64) -> anyhow::Result<Halves> {
        Halves::new(memory_bytes, items_bytes, None)
    }

    /// Returns halves with an arbiter, initially of equal size.
    pub(crate) fn shared(memory_bytes: u64) -> anyhow::Result<Halves> {
        let least = memory_bytes / LEAST_DIVISOR;
        let memory = SharedMemory {
            items_bytes: memory_bytes / 2,
            objects_bytes: memory_bytes - memory_bytes / 2,
            items_bytes_min: least,
            objects_bytes_min: least,
            item_miss: None,
        };
        Halves::new(memory_bytes, memory.items_bytes, Some(memory))
    }

    fn new(memory_bytes: u64, items_bytes: u64, shared: Option<SharedMemory>) -> anyhow::Result<Halves> {
        let kv = Kv::new(KvConfig {
            arena_bytes: items_bytes as usize,
            memory_range: shared.map(|memory| memory.items_range()),
            lanes: 1,
            hash_seed: Some(1),
            ..KvConfig::default()
        })?;
        let objects_bytes = memory_bytes - items_bytes;
        let config = ObjectCacheConfig {
            memory_bytes_max: objects_bytes,
            memory_range: shared.map(|memory| memory.objects_range()),
            dirty_bytes_max: 1 << 20,
            read_ahead_bytes_max: 0,
            hash_seed: Some(1),
            ..ObjectCacheConfig::default()
        };
        let cache = ObjectCache::builder(store(memory_bytes)?).config(config).start()?;
        let arbiter = shared.map(|memory| Arbiter::new(kv.clone(), &cache, memory));
        let value = vec![7; VALUE_BYTES as usize];
        Ok(Halves { memory_bytes, kv, cache, arbiter, value, requests: 0, stored_bytes: 0 })
    }

    /// Serves one request; returns whether it was a hit.
    fn serve(&mut self, request: &Request) -> anyhow::Result<bool> {
        self.requests += 1;
        if let Some(arbiter) = self.arbiter.as_mut().filter(|_| self.requests.is_multiple_of(LOOK_REQUESTS)) {
            arbiter.look();
            while arbiter.step() {}
        }
        match request {
            Request::Item(number) => {
                let key = format!("key:{number:012}");
                if self.kv.get(key.as_bytes()).is_some() {
                    return Ok(true);
                }
                self.kv.set(key.as_bytes(), &self.value)?;
                self.stored_bytes += VALUE_BYTES;
                Ok(false)
            }
            Request::Bucket(at) => {
                let misses = self.cache.counters().read_misses;
                let offset = at % OBJECT_BUCKETS * BUCKET;
                block_on(self.cache.read(ReadRequest::new(object(at / OBJECT_BUCKETS)?, offset, BUCKET)))?;
                let hit = self.cache.counters().read_misses == misses;
                self.stored_bytes += if hit { 0 } else { BUCKET };
                Ok(hit)
            }
        }
    }

    /// Serves requests until a multiple of the memory has been stored after misses.
    pub(crate) fn run_turnovers(
        &mut self,
        load: &mut Load,
        items_of_100: u64,
        turnovers: f64,
    ) -> anyhow::Result<()> {
        let end = self.stored_bytes + (self.memory_bytes as f64 * turnovers) as u64;
        while self.stored_bytes < end {
            self.serve(&load.next(items_of_100))?;
        }
        Ok(())
    }

    /// Serves this many requests; returns the share of hits.
    pub(crate) fn run(&mut self, load: &mut Load, items_of_100: u64, requests: u64) -> anyhow::Result<f64> {
        let mut hits = 0;
        for _ in 0..requests {
            hits += u64::from(self.serve(&load.next(items_of_100))?);
        }
        if let Some(arbiter) = &self.arbiter {
            arbiter.validate().map_err(anyhow::Error::msg)?;
        }
        Ok(hits as f64 / requests as f64)
    }

    /// Returns the part of the memory that a half has.
    pub(crate) fn share(&self, half: Half) -> f64 {
        let bytes = self.arbiter.as_ref().map_or(0.0, |arbiter| arbiter.metrics().of(half).bytes.get());
        bytes / self.memory_bytes as f64
    }

    /// Returns the memory that has moved since the start, in bytes.
    pub(crate) fn moved_bytes(&self) -> u64 {
        let metrics = self.arbiter.as_ref().map(Arbiter::metrics);
        metrics
            .map_or(0, |metrics| Half::BOTH.map(|half| metrics.of(half).given_bytes.get()).into_iter().sum())
    }
}
