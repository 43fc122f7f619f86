//! Sixteen concurrent misses on one object: how many of them reach the store at the same time.

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::block_on;
use blocker::{Blocker, ReadRequest, WriteMode};

use crate::setup::{BLOCK, ample, cache, fill, memory_store, objects};
use crate::slow::Slow;

pub(crate) fn depth(_rounds: u32) -> anyhow::Result<()> {
    let memory = memory_store();
    let ids = objects(1);
    fill(&*memory, &ids)?;
    let slow = Arc::new(Slow::new(memory, Duration::from_millis(20), 64));
    let cache = cache(Arc::clone(&slow) as _, ample(64 << 20, 100, WriteMode::Through))?;
    std::thread::scope(|scope| {
        for client in 0..16 {
            let (cache, id) = (&cache, ids[0].clone());
            scope.spawn(move || block_on(cache.read(ReadRequest::new(id, client * 8 * BLOCK, BLOCK))));
        }
    });
    println!("16 parallel misses on one object: the store saw {} at once (bar 16)", slow.most_at_once());
    Ok(())
}
