//! What the cache keeps beside the data: per object of one bucket, per bucket of full objects.

use blocker::executor::block_on;
use blocker::{Blocker, WritePolicy, WriteRequest};
use bytes::Bytes;

use crate::setup::{BLOCK, OBJECT, ample, cache, memory_store, objects};

/// Resident bytes of this process.
fn resident() -> anyhow::Result<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split_whitespace().nth(1).unwrap_or_default().parse()?;
    Ok(pages * 4096.0)
}

pub(crate) fn memory(_rounds: u32) -> anyhow::Result<()> {
    let count = 200_000;
    let ids = objects(count);
    // Kept dirty, so that the store below has none of it.
    let mut config = ample(count * BLOCK, count as u32, WritePolicy::Back);
    config.objects_count_max = count as u32 * 5 / 4;
    let small = cache(memory_store(), config)?;
    let data = Bytes::from(vec![1u8; BLOCK as usize]);
    let before = resident()?;
    for id in &ids {
        block_on(small.write(WriteRequest::new(id.clone(), 0, data.clone())))?;
    }
    let name = ids[0].name.as_bytes().len() as f64;
    let each = (resident()? - before) / count as f64 - BLOCK as f64;
    println!(
        "an object of one bucket: {each:.0} bytes beyond its data, {name:.0} of them its name (bar 700)"
    );
    drop(small);

    let ids = objects(128);
    let full = cache(memory_store(), ample(128 * OBJECT, 1000, WritePolicy::Back))?;
    let before = resident()?;
    for id in &ids {
        for at in 0..OBJECT / BLOCK {
            block_on(full.write(WriteRequest::new(id.clone(), at * BLOCK, data.clone())))?;
        }
    }
    let buckets = (128 * OBJECT / BLOCK) as f64;
    let each = (resident()? - before) / buckets - BLOCK as f64;
    println!(
        "a bucket of a full object: {each:.1} bytes beyond its data, its share of the object included (bar 24)"
    );
    Ok(())
}
