//! A working set of twice the cache, over a store that takes 1 ms per operation and executes 16 at
//! a time: never slower than the store alone, and faster if the access is skewed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, ReadRequest, WriteMode, WriteRequest};
use bytes::Bytes;
use cached_core::object::ObjectCacheConfig;

use crate::setup::{BLOCK, OBJECT, Places, cache, fill, memory_store, objects, ratio};
use crate::slow::Slow;

const CACHE_BYTES: u64 = 32 << 20;
const CLIENTS: u64 = 16;
const SPAN: Duration = Duration::from_millis(700);

/// Returns the operations per second of several clients, each of which waits for its reply before
/// the next request.
fn rate(store: &Arc<dyn Blocker>, is_write: bool, skewed: bool, seed: u64) -> f64 {
    let ids = objects(2 * CACHE_BYTES / OBJECT);
    let data = Bytes::from(vec![5u8; BLOCK as usize]);
    let start = Instant::now();
    let count: u64 = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (ids, data) = (&ids, &data);
                scope.spawn(move || {
                    let mut places = Places::new(seed * 1000 + client);
                    let blocks = 2 * CACHE_BYTES / BLOCK;
                    let mut done = 0;
                    while start.elapsed() < SPAN {
                        // In a skewed load, nine of ten requests go to a tenth of the data.
                        let near = skewed && places.below(10) > 0;
                        let at = places.below(if near { blocks / 10 } else { blocks }) * BLOCK;
                        let id = ids[(at / OBJECT) as usize].clone();
                        if is_write {
                            let request = WriteRequest::new(id, at % OBJECT, data.clone());
                            block_on(store.write(request)).expect("a write");
                        } else {
                            block_on(store.read(ReadRequest::new(id, at % OBJECT, BLOCK))).expect("a read");
                        }
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    count as f64 / start.elapsed().as_secs_f64()
}

pub(crate) fn twice(rounds: u32) -> anyhow::Result<()> {
    let memory = memory_store();
    fill(&*memory, &objects(2 * CACHE_BYTES / OBJECT))?;
    let slow: Arc<dyn Blocker> = Arc::new(Slow::new(memory, Duration::from_millis(1), CLIENTS as usize));
    for (name, write) in
        [("through", WriteMode::Through), ("around", WriteMode::Around), ("back", WriteMode::Back)]
    {
        for is_write in [false, true] {
            for skewed in [false, true] {
                let config = ObjectCacheConfig {
                    memory_bytes_max: CACHE_BYTES,
                    dirty_bytes_max: CACHE_BYTES / 2,
                    write,
                    ..ObjectCacheConfig::default()
                };
                let cached: Arc<dyn Blocker> = Arc::new(cache(Arc::clone(&slow), config)?);
                // Three rounds fill the cache.
                for seed in 0..3 {
                    rate(&cached, is_write, skewed, 100 + seed);
                }
                let (mut with, mut without) = (Vec::new(), Vec::new());
                for round in 0..u64::from(rounds) {
                    without.push(rate(&slow, is_write, skewed, round));
                    with.push(rate(&cached, is_write, skewed, round));
                }
                println!(
                    "working set twice the cache, write-{name}, {}{}: rate ÷ bare store {} (bar 0.98)",
                    if is_write { "writes" } else { "reads" },
                    if skewed { ", skewed" } else { "" },
                    ratio(&with, &without)
                );
            }
        }
    }
    Ok(())
}
