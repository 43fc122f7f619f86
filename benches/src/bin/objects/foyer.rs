//! foyer's memory cache for clean reads of the same 4 KiB blocks, keyed by object and block.

use std::hint::black_box;

use blocker::executor::block_on;
use blocker::{Blocker, ReadRequest, WriteMode};
use bytes::Bytes;

use crate::setup::{BLOCK, OBJECT, Places, ample, cache, fill, median, memory_store, objects, ratio, timed};

const BYTES: u64 = 256 << 20;
const CALLS: u64 = 100_000;

pub(crate) fn foyer(rounds: u32) -> anyhow::Result<()> {
    let ids = objects(BYTES / OBJECT);
    let store = memory_store();
    fill(&*store, &ids)?;
    let ours = cache(store, ample(BYTES, 1024, WriteMode::Through))?;
    for id in &ids {
        block_on(ours.read(ReadRequest::new(id.clone(), 0, OBJECT)))?;
    }
    let blocks = (BYTES / BLOCK) as usize;
    let theirs: foyer_memory::Cache<(u64, u64), Bytes> = foyer_memory::CacheBuilder::new(blocks * 2).build();
    for object in 0..BYTES / OBJECT {
        for block in 0..OBJECT / BLOCK {
            theirs.insert((object, block), Bytes::from(vec![7u8; BLOCK as usize]));
        }
    }
    let mut target = vec![0u8; BLOCK as usize];
    let (mut mine, mut other) = (Vec::new(), Vec::new());
    for round in 0..u64::from(rounds) {
        let mut at = Places::new(round + 3);
        other.push(timed(CALLS, || {
            let at = at.below(BYTES / BLOCK);
            let found = theirs.get(&(at / (OBJECT / BLOCK), at % (OBJECT / BLOCK))).expect("it is there");
            target.copy_from_slice(found.value());
            black_box(&target);
        }));
        let mut at = Places::new(round + 3);
        mine.push(timed(CALLS, || {
            let at = at.below(BYTES / BLOCK) * BLOCK;
            let id = ids[(at / OBJECT) as usize].clone();
            let reply = block_on(ours.read(ReadRequest::new(id, at % OBJECT, BLOCK))).expect("a hit");
            reply.data.copy_to(&mut target);
            black_box(&target);
        }));
    }
    println!(
        "clean 4 KiB reads: {:.0} ns, foyer {:.0} ns, time ÷ foyer's {}",
        median(&mut mine.clone()),
        median(&mut other.clone()),
        ratio(&mine, &other)
    );
    Ok(())
}
