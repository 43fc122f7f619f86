//! What a hit costs beyond its bytes, from 128 thousand to a million objects of one bucket: warm (the same few
//! again) and cold (any of them).

use std::hint::black_box;

use blocker::executor::block_on;
use blocker::{Blocker, ReadRequest, WritePolicy, WriteRequest};
use bytes::Bytes;

use crate::setup::{BLOCK, Places, ample, cache, median, memory_store, objects, ratio, timed};

const CALLS: u64 = 200_000;
const WARM: u64 = 1000;

pub(crate) fn index(rounds: u32) -> anyhow::Result<()> {
    // The first and the last are compared.
    let counts = [128 << 10, 256 << 10, 512 << 10, 1 << 20];
    let mut overheads: Vec<[Vec<f64>; 2]> = Vec::new();
    for count in counts {
        let ids = objects(count);
        let mut config = ample(count * 16, count as u32 * 5 / 4, WritePolicy::Back);
        // A sector each: what is measured is the index, and a million objects fit in memory.
        config.memory_bytes_max = count * BLOCK + (64 << 20);
        config.dirty_bytes_max = config.memory_bytes_max / 4 * 3;
        config.write = WritePolicy::Through;
        let cache = cache(memory_store(), config)?;
        let data = Bytes::from(vec![1u8; BLOCK as usize]);
        for id in &ids {
            block_on(cache.write(WriteRequest::new(id.clone(), 0, data.clone())))?;
        }
        let memory = vec![1u8; (count * BLOCK) as usize];
        let mut target = vec![0u8; BLOCK as usize];
        let mut found = [Vec::new(), Vec::new()];
        for round in 0..u64::from(rounds) {
            for (kind, span) in [WARM, count].into_iter().enumerate() {
                let mut at = Places::new(round + 7);
                let bare = timed(CALLS, || {
                    let from = (at.below(span) * BLOCK) as usize;
                    target.copy_from_slice(black_box(&memory[from..from + BLOCK as usize]));
                    black_box(&target);
                });
                let mut at = Places::new(round + 7);
                let hit = timed(CALLS, || {
                    let id = ids[at.below(span) as usize].clone();
                    let reply = block_on(cache.read(ReadRequest::new(id, 0, BLOCK))).expect("a hit");
                    reply.data.copy_to(&mut target);
                    black_box(&target);
                });
                found[kind].push(hit - bare);
            }
        }
        println!(
            "{count} objects: a hit costs beyond its memcpy {:.0} ns warm, {:.0} ns cold",
            median(&mut found[0].clone()),
            median(&mut found[1].clone())
        );
        overheads.push(found);
    }
    let (first, last) = (&overheads[0], &overheads[overheads.len() - 1]);
    println!("from 128 k to 1 M objects: warm x {} (bar 1.3)", ratio(&last[0], &first[0]));
    println!("from 128 k to 1 M objects: cold x {} (bar 1.3)", ratio(&last[1], &first[1]));
    Ok(())
}
