//! Long sequential reads and writes bypass the cache: they evict nothing, and are never older or
//! newer than the cached data.

use std::time::Duration;

use blocker::*;
use cached_core::object::{NamespaceConfig, ObjectCacheConfig};
use test_kit::cache_environment::CacheEnvironment;
use test_kit::steered::Op;
use test_kit::{BUCKET, KIB, id, namespace, pattern, same, small};

const CUT_OFF: u64 = 16 * BUCKET;

fn reads(read_ahead_bytes_max: u64) -> ObjectCacheConfig {
    ObjectCacheConfig {
        bypass_read_bytes_min: CUT_OFF,
        read_ahead_bytes_max,
        read_ahead_latency_min: Duration::ZERO,
        ..small(WriteMode::Back)
    }
}

fn writes(write: WriteMode) -> ObjectCacheConfig {
    ObjectCacheConfig { bypass_write_bytes_min: CUT_OFF, ..small(write) }
}

fn with_object(config: ObjectCacheConfig, object: &ObjectId, buckets: u64) -> CacheEnvironment {
    let env = CacheEnvironment::new(config);
    env.others_write(object, pattern(1, 0, (buckets * BUCKET) as usize));
    env
}

#[track_caller]
fn read(env: &mut CacheEnvironment, object: &ObjectId, offset: u64, len: u64) {
    let found = env.bytes(object, offset, len);
    same(&found, &pattern(1, offset, len as usize), &format!("{len} bytes at {offset}"));
    env.sim.run_until_idle();
}

#[test]
fn reads_beyond_the_cut_off_are_served_and_not_kept() {
    let object = id("volume");
    let mut env = with_object(reads(0), &object, 64);
    (0..64).for_each(|at| read(&mut env, &object, at * BUCKET, BUCKET));
    let counters = env.cache.counters();
    assert_eq!(counters.clean_bytes, 15 * BUCKET, "what came before the cut-off");
    assert_eq!(counters.bypassed_read_bytes, 49 * BUCKET);
    env.store.clear_log();
    (0..15).for_each(|at| read(&mut env, &object, at * BUCKET, BUCKET));
    assert_eq!(env.store.count(Op::Read), 0, "what is cached is used");
    // A single read is as long as the cut-off.
    read(&mut env, &object, 20 * BUCKET, CUT_OFF);
    assert_eq!(env.cache.counters().clean_bytes, 15 * BUCKET);
    // This read is not sequential, so its data are cached.
    read(&mut env, &object, 50 * BUCKET, BUCKET);
    assert_eq!(env.cache.counters().clean_bytes, 16 * BUCKET);
    env.agrees(&object);
}

#[test]
fn small_reads_in_order_ask_for_each_bucket_once() {
    let object = id("volume");
    for ahead in [0, 64 * KIB] {
        let mut env = with_object(reads(ahead), &object, 64);
        (0..64 * 8).for_each(|at| read(&mut env, &object, at * 512, 512));
        let asked: u64 = env.store.log().iter().filter(|call| call.op == Op::Read).map(|call| call.len).sum();
        assert_eq!(asked, 64 * BUCKET);
        env.validate();
    }
}

#[test]
fn what_is_newer_than_the_store_is_read_where_it_bypasses() {
    let object = id("volume");
    let mut env = with_object(reads(0), &object, 64);
    env.written(&object, 40 * BUCKET + 512, pattern(2, 0, 1000));
    env.written(&object, 50 * BUCKET, pattern(3, 0, 4096));
    let mut wanted = pattern(1, 0, 64 * BUCKET as usize);
    wanted[40 * 4096 + 512..][..1000].copy_from_slice(&pattern(2, 0, 1000));
    wanted[50 * 4096..][..4096].copy_from_slice(&pattern(3, 0, 4096));
    for at in (0..64).step_by(4) {
        let found = env.bytes(&object, at * BUCKET, 4 * BUCKET);
        same(&found, &wanted[(at * BUCKET) as usize..][..16384], &format!("bucket {at}"));
    }
    assert!(env.cache.counters().bypassed_read_bytes > 0 && env.cache.counters().dirty_bytes > 0);
    env.agrees(&object);
    same(&env.stored(&object).unwrap(), &wanted, "in the store");
}

#[test]
fn a_long_read_displaces_nothing_with_and_without_reading_ahead() {
    let (hot, scanned) = (id("hot"), id("volume"));
    for (cut_off, ahead) in [(CUT_OFF, 0), (CUT_OFF, 64 * KIB)] {
        let config = ObjectCacheConfig {
            bypass_read_bytes_min: cut_off,
            eviction_policy: "lru".into(),
            ..reads(ahead)
        };
        let mut env = with_object(config, &scanned, 1024);
        env.others_write(&hot, pattern(1, 0, 128 * BUCKET as usize));
        // The reads are scattered: none begins where one of the last 64 ended, so they form no
        // sequential run.
        let hot_reads = |env: &mut CacheEnvironment| {
            (0..128).for_each(|nth| read(env, &hot, nth * 75 % 128 * BUCKET, BUCKET));
        };
        (0..2).for_each(|_| hot_reads(&mut env));
        (0..1024).for_each(|at| read(&mut env, &scanned, at * BUCKET, BUCKET));
        let before = env.calls(Op::Read, &hot);
        hot_reads(&mut env);
        let lost = env.calls(Op::Read, &hot) - before;
        // With LRU, an unread window evicts the oldest data.
        assert!(lost as u64 <= ahead / BUCKET, "{lost} of 128 are gone, read ahead: {ahead}");
        env.validate();
    }
}

#[test]
fn writes_beyond_the_cut_off_go_around_the_cache() {
    let object = id("volume");
    for mode in [WriteMode::Back, WriteMode::Through] {
        let mut env = CacheEnvironment::new(writes(mode));
        for at in 0..32 {
            let reply = env.written(&object, at * BUCKET, pattern(5, at * BUCKET, 4096));
            let goes_around = at >= 15;
            let is_stored = mode == WriteMode::Through || goes_around;
            assert_eq!(reply.durability == Durability::Stored, is_stored, "{mode:?}, write {at}");
            let counters = env.cache.counters();
            assert_eq!(counters.bypassed_write_bytes, if goes_around { (at - 14) * BUCKET } else { 0 });
            assert_eq!(counters.dirty_bytes > 0, !is_stored, "what came before is stored first");
        }
        assert_eq!(env.cache.counters().clean_bytes, 15 * BUCKET);
        same(&env.stored(&object).unwrap(), &pattern(5, 0, 32 * 4096), "in the store");
        // Scattered writes are cached as usual.
        let reply = env.written(&object, 3 * BUCKET, pattern(6, 0, 4096));
        assert_eq!(reply.durability == Durability::Stored, mode == WriteMode::Through);
        env.agrees(&object);
    }
}

#[test]
fn a_write_around_the_cache_leaves_nothing_older_in_it() {
    let object = id("volume");
    let mut env = with_object(writes(WriteMode::Back), &object, 64);
    // The buckets are clean, dirty, and partly dirty.
    env.bytes(&object, 20 * BUCKET, 4 * BUCKET);
    env.written(&object, 24 * BUCKET, pattern(2, 0, 4096));
    env.written(&object, 30 * BUCKET + 100, pattern(2, 0, 700));
    env.store.hold_changes();
    let write = env.write(&object, 18 * BUCKET, pattern(7, 0, CUT_OFF as usize));
    env.sim.run_until_idle();
    let late = env.write(&object, 22 * BUCKET, pattern(8, 0, 4096));
    env.sim.run_until_idle();
    assert!(!write.is_done());
    env.store.open();
    env.at_once(write).unwrap();
    env.at_once(late).unwrap();
    let mut wanted = pattern(1, 0, 64 * 4096);
    wanted[18 * 4096..][..CUT_OFF as usize].copy_from_slice(&pattern(7, 0, CUT_OFF as usize));
    wanted[22 * 4096..][..4096].copy_from_slice(&pattern(8, 0, 4096));
    same(&env.bytes(&object, 0, 64 * BUCKET), &wanted, "the later write wins");
    env.agrees(&object);
    same(&env.stored(&object).unwrap(), &wanted, "in the store");
}

#[test]
fn a_namespace_has_cut_offs_of_its_own_and_they_change_while_it_runs() {
    let (object, other) = (id("volume"), ObjectId::new(namespace("other"), id("volume").name));
    let before = small(WriteMode::Back);
    let mut env = CacheEnvironment::new(before.clone());
    let around = |env: &mut CacheEnvironment, object: &ObjectId| {
        let so_far = env.cache.counters().bypassed_write_bytes;
        env.written(object, 0, pattern(1, 0, CUT_OFF as usize));
        env.cache.counters().bypassed_write_bytes - so_far
    };
    assert_eq!(around(&mut env, &object), 0, "off by default");
    let own = |bypass: u64| {
        let own = NamespaceConfig::new(namespace("ns"), WriteMode::Back);
        own.with(NamespaceKey::BypassWriteBytesMin, bypass)
    };
    let one = ObjectCacheConfig { namespaces: vec![own(CUT_OFF)], ..before.clone() };
    env.cache.live_settings().change(&one).unwrap();
    assert_eq!((around(&mut env, &object), around(&mut env, &other)), (CUT_OFF, 0));
    let rest = ObjectCacheConfig { namespaces: vec![own(0)], bypass_write_bytes_min: CUT_OFF, ..before };
    env.cache.live_settings().change(&rest).unwrap();
    assert_eq!((around(&mut env, &object), around(&mut env, &other)), (0, CUT_OFF));
    env.agrees(&object);
    env.agrees(&other);
}
