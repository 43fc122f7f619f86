//! Closed loops over any [`Blocker`]: random aligned blocks of a set of objects, with a given
//! parallelism and duration; throughput and latency.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use blocker::executor::block_on;
use blocker::{
    Blocker, BlockerExt, Error, Name, Namespace, ObjectId, ReadRequest, Reply, WriteFullRequest, WriteRequest,
};
use bytes::Bytes;
use cached_benches::zipf::Zipf;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The size of the objects: the contract's default.
pub(crate) const OBJECT_BYTES: u64 = 4 << 20;
/// The number of immediately available replies after which a loop reads the clock and yields to the
/// next loop.
const TURN_OPS: u32 = 64;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) write: bool,
    pub(crate) block_bytes: u64,
    /// The number of operations in progress, in all threads together.
    pub(crate) depth: usize,
    pub(crate) threads: usize,
    pub(crate) objects: u64,
    /// The Zipf exponent over blocks; `None` for a uniform distribution.
    pub(crate) skew: Option<f64>,
    pub(crate) duration: Duration,
    pub(crate) seed: u64,
}

/// The results.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) ops_per_s: f64,
    pub(crate) mib_per_s: f64,
    pub(crate) latency_ns: Histogram<u64>,
}

impl Outcome {
    pub(crate) fn latency_us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1e3
    }
}

pub(crate) fn object(index: u64) -> ObjectId {
    let name = Name::new(format!("volume.{index:08}")).expect("a proper name");
    ObjectId::new(Namespace::new("bench").expect("a proper name"), name)
}

/// Writes every object in full.
pub(crate) fn preload(store: &dyn Blocker, objects: u64) -> Result<()> {
    // The data are not zeros, because a store may avoid storing zeros.
    let data = Bytes::from((0..OBJECT_BYTES).map(|at| ((at * 31) >> 3) as u8 | 1).collect::<Vec<u8>>());
    block_on(async {
        let write = |index| {
            let request = WriteFullRequest::new(object(index), data.clone());
            async move { store.write_full(request).await }
        };
        let mut writes = futures_util::stream::iter((0..objects).map(write)).buffer_unordered(8);
        while let Some(done) = writes.next().await {
            done.context("preloading")?;
        }
        Ok(())
    })
}

/// Runs the load.
pub(crate) fn run(store: &Arc<dyn Blocker>, load: &Load) -> Result<Outcome> {
    let ids: Arc<Vec<ObjectId>> = Arc::new((0..load.objects).map(object).collect());
    let start = Instant::now();
    let threads: Vec<_> = (0..load.threads)
        .map(|thread| {
            let (store, load, ids) = (Arc::clone(store), *load, Arc::clone(&ids));
            std::thread::spawn(move || one_thread(&*store, &load, &ids, thread, start))
        })
        .collect();
    let mut all = histogram();
    for thread in threads {
        let part = thread.join().map_err(|_| anyhow!("a load thread panicked"))??;
        all.add(part).expect("the same bounds");
    }
    let seconds = start.elapsed().as_secs_f64();
    let ops_per_s = all.len() as f64 / seconds;
    Ok(Outcome {
        ops_per_s,
        mib_per_s: ops_per_s * load.block_bytes as f64 / f64::from(1 << 20),
        latency_ns: all,
    })
}

/// Returns a histogram of nanoseconds, up to ten minutes.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("proper bounds")
}

fn one_thread(
    store: &dyn Blocker,
    load: &Load,
    ids: &[ObjectId],
    thread: usize,
    start: Instant,
) -> Result<Histogram<u64>> {
    let blocks_each = OBJECT_BYTES / load.block_bytes;
    let blocks = blocks_each * load.objects;
    let zipf = load.skew.map(|exponent| Zipf::new(blocks, exponent));
    let payload = Bytes::from(vec![0x5a; load.block_bytes as usize]);
    let loops = (load.depth / load.threads).max(1);
    let one_loop = |index: usize| {
        let mut random = SmallRng::seed_from_u64(load.seed ^ ((thread * 1000 + index) as u64) << 20);
        let (zipf, payload) = (&zipf, &payload);
        async move {
            let mut latency = histogram();
            let mut turn = 0;
            loop {
                let block = match zipf {
                    // Popular blocks are spread over all objects: multiplication by an odd number
                    // permutes the numbers below a power of two.
                    Some(zipf) => zipf.sample(&mut random).wrapping_mul(0x9e37_79b1) % blocks,
                    None => random.random_range(0..blocks),
                };
                let id = ids[(block / blocks_each) as usize].clone();
                let offset = block % blocks_each * load.block_bytes;
                let begun = Instant::now();
                let at_once = if load.write {
                    finish(store.write(WriteRequest::new(id, offset, payload.clone()))).await?.1
                } else {
                    let (reply, at_once) =
                        finish(store.read(ReadRequest::new(id, offset, load.block_bytes))).await?;
                    anyhow::ensure!(reply.data.len_bytes() as u64 == load.block_bytes, "a short read");
                    at_once
                };
                let now = Instant::now();
                // An operation that ends now has taken at least a nanosecond.
                latency.saturating_record((now - begun).as_nanos().max(1) as u64);
                if now - start >= load.duration {
                    return anyhow::Ok(latency);
                }
                turn += 1;
                if at_once && turn % TURN_OPS == 0 {
                    futures_util::future::poll_fn(yield_once()).await;
                }
            }
        }
    };
    let mut running: FuturesUnordered<_> = (0..loops).map(one_loop).collect();
    let mut all = histogram();
    block_on(async {
        while let Some(part) = running.next().await {
            all.add(part?).expect("the same bounds");
        }
        anyhow::Ok(())
    })?;
    Ok(all)
}

/// Returns the reply, and whether it was ready immediately.
async fn finish<T: Unpin>(reply: Reply<T>) -> Result<(T, bool), Error> {
    match reply {
        Reply::Ready(answer) => Ok((answer?, true)),
        pending => Ok((pending.await?, false)),
    }
}

/// Returns a future that is pending once, so that other tasks can run.
fn yield_once() -> impl FnMut(&mut std::task::Context<'_>) -> std::task::Poll<()> {
    let mut yielded = false;
    move |cx| {
        if std::mem::replace(&mut yielded, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    }
}
