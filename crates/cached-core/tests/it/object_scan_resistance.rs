//! A scan passes through the cache without evicting data that are read repeatedly: the default
//! policy is the policy of the byte-keyed store, applied to buckets.

use std::sync::Arc;

use blocker::{Blocker, ReadRequest, WriteMode};
use cached_core::object::ObjectCacheConfig;
use test_kit::sim::Sim;
use test_kit::{BUCKET, SMALL_BUCKETS, cache, fill, id, memory, pattern, small};

/// Reads a quarter of the cache repeatedly, while a scan reads twenty times the cache's capacity.
/// Returns the hit ratio of these reads in the second half.
fn hits_beside_a_scan(policy: &str) -> f64 {
    let mut sim = Sim::new(None);
    let store = memory(&sim.clock);
    let (hot, scanned) = (SMALL_BUCKETS / 4, SMALL_BUCKETS * 20);
    fill(&store, &id("hot"), pattern(1, 0, (hot * BUCKET) as usize));
    let objects = scanned / 256;
    for object in 0..objects {
        fill(&store, &id(&format!("scan {object}")), pattern(2, 0, 256 * BUCKET as usize));
    }
    let config = ObjectCacheConfig {
        eviction_policy: policy.into(),
        objects_count_max: 2 * objects as u32,
        ..small(WriteMode::Through)
    };
    let (cache, _background) = cache(Arc::new(store), config, &sim.clock);
    for _ in 0..3 {
        for at in 0..hot {
            sim.run(cache.read(ReadRequest::new(id("hot"), at * BUCKET, BUCKET))).unwrap();
        }
    }
    let mut next_hot = 0;
    let (mut asked, mut hit) = (0u32, 0u32);
    for at in 0..scanned {
        let object = id(&format!("scan {}", at / 256));
        sim.run(cache.read(ReadRequest::new(object, at % 256 * BUCKET, BUCKET))).unwrap();
        // One in five requests reads a hot bucket: between two of these reads the scan loads more
        // than the cache can hold, so LRU keeps no hot bucket.
        if at % 5 == 0 {
            let before = cache.counters().read_misses;
            sim.run(cache.read(ReadRequest::new(id("hot"), next_hot * BUCKET, BUCKET))).unwrap();
            next_hot = (next_hot + 1) % hot;
            if at > scanned / 2 {
                asked += 1;
                hit += u32::from(cache.counters().read_misses == before);
            }
        }
    }
    cache.validate().unwrap();
    f64::from(hit) / f64::from(asked)
}

#[test]
fn the_default_policy_resists_a_scan() {
    let default = ObjectCacheConfig::default().eviction_policy;
    let (kept, by_lru) = (hits_beside_a_scan(&default), hits_beside_a_scan("lru"));
    println!("{default}: {kept:.3}, lru: {by_lru:.3}");
    assert!(kept > 0.9, "{default} answered {kept:.3} of the reads that come again");
}
