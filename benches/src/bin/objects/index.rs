//! The costs of a hit beyond copying its bytes, with 128 thousand objects of one bucket and with a
//! million: warm (the same few objects) and cold (any of them).

use std::hint::black_box;

use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, ObjectId, ReadRequest, Segments, WriteMode, WriteRequest};
use bytes::Bytes;
use cached_core::object::ObjectCache;

use crate::setup::{
    BLOCK, Places, Target, ample, bytes_of, cache, held, median, memory_store, objects, ratio, timed_over,
};

const CALLS: u64 = 200_000;
const WARM: u64 = 1000;
const COUNTS: [u64; 2] = [128 << 10, 1 << 20];

/// A cache full of objects, and the buckets that contain them.
struct Population {
    ids: Vec<ObjectId>,
    cache: ObjectCache,
    buckets: Vec<Segments>,
    /// The time in addition to a plain copy, with a warm and a cold CPU cache.
    beyond: [Vec<f64>; 2],
    /// The time by reference, where no byte is touched, warm and cold.
    shared: [Vec<f64>; 2],
}

impl Population {
    fn new(count: u64) -> anyhow::Result<Self> {
        let ids = objects(count);
        // All data stay dirty, so that the store below has no second copy of them.
        let config = ample(count * BLOCK, count as u32 * 5 / 4, WriteMode::Back);
        let cache = cache(memory_store(), config)?;
        let data = Bytes::from(vec![1u8; BLOCK as usize]);
        for id in &ids {
            block_on(cache.write(WriteRequest::new(id.clone(), 0, data.clone())))?;
        }
        let buckets = held(&cache, &ids, 1)?;
        Ok(Self { ids, cache, buckets, beyond: Default::default(), shared: Default::default() })
    }

    fn round(&mut self, round: u64) {
        let mut target = Target::new();
        let target = target.bytes();
        for (kind, span) in [WARM, self.ids.len() as u64].into_iter().enumerate() {
            let mut at = Places::new(round + 7);
            let bare = || bytes_of(&self.buckets[at.below(span) as usize]);
            let bare = timed_over(CALLS, bare, |from| {
                target.copy_from_slice(black_box(from));
                black_box(&*target);
            });
            let read = |id| block_on(self.cache.read(ReadRequest::new(id, 0, BLOCK))).expect("a hit");
            let mut at = Places::new(round + 7);
            let name = || {
                let id = self.ids[at.below(span) as usize].clone();
                black_box(id.name.as_bytes()[0]);
                id
            };
            let hit = timed_over(CALLS, name, |id| {
                read(id).data.copy_to(target);
                black_box(&*target);
            });
            let mut at = Places::new(round + 77);
            let name = || {
                let id = self.ids[at.below(span) as usize].clone();
                black_box(id.name.as_bytes()[0]);
                id
            };
            let shared = timed_over(CALLS, name, |id| {
                black_box(read(id));
            });
            self.beyond[kind].push(hit - bare);
            self.shared[kind].push(shared);
        }
    }
}

pub(crate) fn index(rounds: u32) -> anyhow::Result<()> {
    let mut populations = COUNTS.into_iter().map(Population::new).collect::<anyhow::Result<Vec<_>>>()?;
    for round in 0..u64::from(rounds) {
        populations.iter_mut().for_each(|population| population.round(round));
    }
    let [few, many] = &populations[..] else { unreachable!("as many as counts") };
    for each in [few, many] {
        let [warm, cold] = &each.beyond;
        println!(
            "{} objects: a hit costs beyond its memcpy {:.0} ns warm, {:.0} ns cold; by reference {:.0}, {:.0} ns",
            each.ids.len(),
            median(&mut warm.clone()),
            median(&mut cold.clone()),
            median(&mut each.shared[0].clone()),
            median(&mut each.shared[1].clone())
        );
    }
    println!("  from the one to the other: warm x {} (bar 1.3)", ratio(&many.beyond[0], &few.beyond[0]));
    println!("  from the one to the other: cold x {} (bar 1.3)", ratio(&many.beyond[1], &few.beyond[1]));
    Ok(())
}
