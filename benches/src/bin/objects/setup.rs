//! A cache over a store with its background on a thread, and the code shared by the parts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use blocker::executor::block_on;
use blocker::{
    Blocker, BlockerExt, Memory, Name, Namespace, ObjectId, ReadRequest, Segments, SystemClock, WriteMode,
    WriteRequest,
};
use bytes::Bytes;
use cached_benches::process::CpuClock;
use cached_core::object::{ObjectCache, ObjectCacheConfig};

pub(crate) const OBJECT: u64 = 4 << 20;
pub(crate) const BLOCK: u64 = 4096;

/// Whether caches request huge pages. Plain copies are made from the same memory, so they use huge
/// pages too.
pub(crate) static HUGE_PAGES: AtomicBool = AtomicBool::new(false);

pub(crate) fn cache(below: Arc<dyn Blocker>, config: ObjectCacheConfig) -> anyhow::Result<ObjectCache> {
    let (cache, work) = ObjectCache::new(below, config, Arc::new(SystemClock))?;
    std::thread::Builder::new().name("background".into()).spawn(move || block_on(work))?;
    Ok(cache)
}

/// Returns a configuration with space for `bytes` of data, all of which may be dirty. Nothing is
/// flushed in the background: dirty data do not reach the maximum age, and fill less than half of
/// `dirty_bytes_max`.
pub(crate) fn ample(bytes: u64, objects: u32, write: WriteMode) -> ObjectCacheConfig {
    ObjectCacheConfig {
        memory_bytes_max: bytes * 4,
        dirty_bytes_max: bytes * 5 / 2,
        objects_count_max: objects,
        dirty_age_max: Duration::from_secs(86_400),
        write,
        huge_pages: HUGE_PAGES.load(Ordering::Relaxed),
        ..ObjectCacheConfig::default()
    }
}

pub(crate) fn object(number: u64) -> ObjectId {
    let namespace = Namespace::new("bench").expect("a name");
    ObjectId::new(namespace, Name::new(format!("volume.{number:08}")).expect("a name"))
}

/// Returns names created in advance, because creating one costs more than a hit.
pub(crate) fn objects(count: u64) -> Vec<ObjectId> {
    (0..count).map(object).collect()
}

/// Writes objects of 4 MiB.
pub(crate) fn fill(store: &dyn Blocker, ids: &[ObjectId]) -> anyhow::Result<()> {
    let data = Bytes::from(vec![7u8; OBJECT as usize]);
    for id in ids {
        block_on(store.write(WriteRequest::new(id.clone(), 0, data.clone())))?;
    }
    Ok(())
}

pub(crate) fn memory_store() -> Arc<dyn Blocker> {
    Arc::new(Memory::default())
}

/// A cheap, sufficiently random source of positions.
pub(crate) struct Places(u64);

impl Places {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(count)) >> 64) as u64
    }
}

/// The numbers below a power of two, each once, in an order that no prefetcher can predict.
pub(crate) struct BlockOnce {
    next: u64,
    count: u64,
}

impl BlockOnce {
    pub(crate) fn new(count: u64) -> Self {
        assert!(count.is_power_of_two(), "only then an odd factor is invertible");
        Self { next: 0, count }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.count
    }
}

/// The number of calls that [`timed_over`] prepares at a time: few enough to stay in the nearest
/// CPU cache.
const BATCH: u64 = 64;

/// Returns the CPU time per call, in nanoseconds. The arguments are prepared in advance, so that
/// neither side of a comparison includes the time to choose them, and so that they are in the CPU
/// cache, like a name that a server has just received.
pub(crate) fn timed_over<T>(calls: u64, mut ready: impl FnMut() -> T, mut call: impl FnMut(T)) -> f64 {
    let clock = CpuClock::of_this_thread();
    let now = || clock.now_ns().expect("the clock of this thread");
    let mut batch = Vec::with_capacity(BATCH as usize);
    let (mut spent, mut made) = (0, 0);
    while made < calls {
        batch.extend((0..BATCH).map(|_| ready()));
        let start = now();
        batch.drain(..).for_each(&mut call);
        spent += now() - start;
        made += BATCH;
    }
    spent as f64 / made as f64
}

/// Returns the cache's contents of these blocks in place, as the source of plain copies.
pub(crate) fn held(cache: &ObjectCache, ids: &[ObjectId], blocks_each: u64) -> anyhow::Result<Vec<Segments>> {
    let blocks = ids.iter().flat_map(|id| (0..blocks_each).map(move |block| (id, block * BLOCK)));
    let read =
        |(id, at): (&ObjectId, u64)| Ok(block_on(cache.read(ReadRequest::new(id.clone(), at, BLOCK)))?.data);
    blocks.map(read).collect()
}

/// The destination of copied blocks. It is always at the same position within a page, half a page
/// away from where blocks start, so that no load waits for an unrelated store with a similar
/// address.
pub(crate) struct Target {
    memory: Vec<u8>,
    from: usize,
}

impl Target {
    pub(crate) fn new() -> Self {
        const PAGE: usize = 4096;
        let memory = vec![0u8; BLOCK as usize + 2 * PAGE];
        let from = memory.as_ptr().align_offset(PAGE) + PAGE / 2;
        Self { memory, from }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.from..][..BLOCK as usize]
    }
}

/// Returns the bytes of a block that is [`held`].
pub(crate) fn bytes_of(block: &Segments) -> &[u8] {
    block.as_slice()[0].as_slice()
}

/// Returns the time per call.
pub(crate) fn timed(calls: u64, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        call();
    }
    start.elapsed().as_nanos() as f64 / calls as f64
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the median and spread of `a ÷ b` per round.
pub(crate) fn ratio(a: &[f64], b: &[f64]) -> String {
    let mut ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
    let median = median(&mut ratios);
    format!("{median:.2} ({:.2}-{:.2})", ratios[0], ratios[ratios.len() - 1])
}
