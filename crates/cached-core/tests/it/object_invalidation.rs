//! Other clients change the store without the cache: once the cache learns of a change, or may have
//! missed one, it drops data that may be old, keeps newer data, and never overwrites the clients'
//! bytes with old ones.

use std::sync::Arc;

use blocker::executor::block_on;
use blocker::*;
use cached_core::object::{ObjectCache, ObjectCacheConfig, Writer};
use test_kit::cache_environment::CacheEnvironment;
use test_kit::steered::{Op, SteeredStore};
use test_kit::{BUCKET, id, namespace, pattern, same, small};

fn put(base: &mut [u8], offset: usize, over: &[u8]) {
    base[offset..offset + over.len()].copy_from_slice(over);
}

/// The holder of a second reference to a bucket, which prevents a change in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SharedWith {
    Nothing,
    Reader,
    Copy,
}

#[test]
fn an_invalidated_bucket_keeps_only_what_is_newer() {
    let object = id("volume");
    for shared in [SharedWith::Nothing, SharedWith::Reader, SharedWith::Copy] {
        let label = format!("{shared:?}");
        let mut env = CacheEnvironment::new(small(WriteMode::Back));
        env.others_write(&object, pattern(1, 0, 4096));
        env.bytes(&object, 0, BUCKET);
        env.written(&object, 1024, pattern(2, 1024, 512));
        let mut before = pattern(1, 0, 4096);
        put(&mut before, 1024, &pattern(2, 1024, 512));
        let read = env.read(&object, 0, BUCKET);
        let pinned = env.at_once(read).unwrap();
        let pinned = Some(pinned).filter(|_| shared == SharedWith::Reader);
        if shared == SharedWith::Copy {
            let copy = env.copy(&object, &id("copy"));
            env.at_once(copy).unwrap();
        }
        env.others_write(&object, pattern(3, 0, 4096));
        env.invalidated(&object);
        env.validate();
        let mut wanted = pattern(3, 0, 4096);
        put(&mut wanted, 1024, &pattern(2, 1024, 512));
        same(&env.bytes(&object, 0, BUCKET), &wanted, &label);
        if let Some(pinned) = pinned {
            same(&pinned.data.to_vec(), &before, "what a reader holds stays as it was");
        }
        env.agrees(&object);
        same(&env.stored(&object).unwrap(), &wanted, &label);
        if shared == SharedWith::Copy {
            env.agrees(&id("copy"));
            same(&env.stored(&id("copy")).unwrap(), &before, "the copy has all of it");
        }
        assert_eq!(env.cache.counters().dirty_bytes, 0);
    }
}

#[test]
fn an_invalidation_during_a_flush_drops_what_the_flush_does_not_write() {
    let object = id("volume");
    for is_rewritten in [false, true] {
        let mut env = CacheEnvironment::new(small(WriteMode::Back));
        env.others_write(&object, pattern(1, 0, 4096));
        env.bytes(&object, 0, BUCKET);
        env.written(&object, 1024, pattern(2, 1024, 512));
        env.store.hold_changes();
        let flush = env.flush(&object);
        env.sim.run_until_idle();
        let mut wanted = pattern(3, 0, 4096);
        put(&mut wanted, 1024, &pattern(2, 1024, 512));
        if is_rewritten {
            // The change went to a new bucket, which also has the sector that is in flight to the
            // store; this sector must not be forgotten.
            env.written(&object, 2048, pattern(4, 2048, 512));
            put(&mut wanted, 2048, &pattern(4, 2048, 512));
        }
        env.others_write(&object, pattern(3, 0, 4096));
        env.invalidated(&object);
        env.validate();
        same(&env.bytes(&object, 0, BUCKET), &wanted, "before the flush is answered");
        env.store.open();
        env.at_once(flush).unwrap();
        same(&env.bytes(&object, 0, BUCKET), &wanted, "after it");
        env.agrees(&object);
        same(&env.stored(&object).unwrap(), &wanted, "in the store");
    }
}

#[test]
fn a_foreign_write_after_a_flush_is_seen_though_the_answer_of_the_flush_is_late() {
    let object = id("volume");
    let mut env = CacheEnvironment::new(small(WriteMode::Back));
    env.others_write(&object, pattern(1, 0, 8192));
    env.bytes(&object, 0, 8192);
    env.written(&object, 1024, pattern(2, 1024, 512));
    env.written(&object, 4096, pattern(2, 4096, 4096));
    env.store.hold_changes();
    let flush = env.flush(&object);
    env.sim.run_until_idle();
    env.perform_held();
    env.others_write(&object, pattern(3, 0, 8192));
    env.invalidated(&object);
    env.store.open();
    env.at_once(flush).unwrap();
    same(&env.bytes(&object, 4096, 4096), &pattern(3, 4096, 4096), "theirs is the newest");
    same(&env.bytes(&object, 0, 8192), &pattern(3, 0, 8192), "and so is the rest");
    env.agrees(&object);
}

#[test]
fn an_invalidation_that_needs_memory_waits_for_it() {
    let object = id("volume");
    let mut env = CacheEnvironment::new(small(WriteMode::Back));
    env.others_write(&object, pattern(1, 0, 4096));
    env.bytes(&object, 0, BUCKET);
    env.written(&object, 1024, pattern(2, 1024, 512));
    let read = env.read(&object, 0, BUCKET);
    let pinned = env.at_once(read).unwrap();
    // Readers have pinned all other memory.
    env.others_write(&id("other"), pattern(9, 0, 256 * 4096));
    let all = env.read(&id("other"), 0, 256 * BUCKET);
    let all = env.at_once(all).unwrap();
    assert_eq!(env.cache.counters().free_bytes, 0);
    env.others_write(&object, pattern(3, 0, 4096));
    let invalidate = env.invalidate(&object);
    env.sim.run_until_idle();
    assert!(!invalidate.is_done(), "not answered before it is done");
    env.validate();
    drop(all);
    env.at_once(invalidate).unwrap();
    let mut wanted = pattern(3, 0, 4096);
    put(&mut wanted, 1024, &pattern(2, 1024, 512));
    same(&env.bytes(&object, 0, BUCKET), &wanted, "narrowed");
    drop(pinned);
    env.agrees(&object);
}

#[test]
fn an_invalidation_between_a_write_and_its_answer_counts() {
    let object = id("volume");
    for writer in [Writer::Callers, Writer::Cache] {
        for performed_before in [false, true] {
            let config = ObjectCacheConfig { writer, ..small(WriteMode::Through) };
            let mut env = CacheEnvironment::new(config);
            // The namespace is known, and claimed if the cache is the writer.
            env.written(&object, 0, pattern(1, 0, 8192));
            env.hold(Op::Write, &object);
            let write = env.write(&object, 0, pattern(2, 0, 4096));
            env.sim.run_until_idle();
            if performed_before {
                env.perform_held();
            }
            let mut theirs = WriteRequest::new(object.clone(), 0, pattern(3, 0, 6000));
            if writer == Writer::Cache {
                theirs = theirs.stamp(Stamp::new(1 << 20, 1));
            }
            executor::block_on(env.store.memory().write(theirs)).unwrap();
            env.invalidated(&object);
            env.store.open();
            let answer = env.at_once(write);
            // A change after a higher stamp is refused.
            assert_eq!(answer.is_ok(), performed_before || writer == Writer::Callers, "{answer:?}");
            let stored = env.stored(&object).unwrap();
            let label = format!("{writer:?} {performed_before}");
            same(&env.bytes(&object, 0, 4096), &stored[..4096], &label);
            same(&env.bytes(&object, 0, 8192), &stored, &label);
            let info = env.sim.spawn(env.cache.info(InfoRequest::new(object.clone())));
            assert_eq!(env.at_once(info).unwrap().size_bytes, 8192);
        }
    }
}

#[test]
fn an_invalidation_between_a_copy_and_its_answer_counts() {
    let mut env = CacheEnvironment::new(small(WriteMode::Through));
    let (from, to) = (id("from"), id("to"));
    env.others_write(&from, pattern(1, 0, 4096));
    env.hold(Op::Copy, &to);
    let copy = env.copy(&from, &to);
    env.sim.run_until_idle();
    env.perform_held();
    env.others_write(&to, pattern(2, 0, 6000));
    env.invalidated(&to);
    env.store.open();
    env.at_once(copy).unwrap();
    same(&env.bytes(&to, 5000, 100), &pattern(2, 5000, 100), "behind the end of the copy");
    same(&env.bytes(&to, 0, 8192), &pattern(2, 0, 6000), "theirs");
}

/// Returns a store that accepts one range per request, so that a flush bridges the gaps between
/// runs where possible.
fn one_range_each() -> std::sync::Arc<SteeredStore> {
    let store = SteeredStore::new();
    store.limit(|capabilities| capabilities.runs_max = 0);
    store
}

#[test]
fn a_foreign_write_between_two_dirty_runs_stays() {
    let object = id("volume");
    let mut env = CacheEnvironment::over(one_range_each(), small(WriteMode::Back));
    env.others_write(&object, pattern(1, 0, 3 * 4096));
    env.bytes(&object, 0, 3 * BUCKET);
    let mut wanted = pattern(3, 0, 3 * 4096);
    for at in [0, 2 * 4096] {
        env.written(&object, at, pattern(2, at, 4096));
        put(&mut wanted, at as usize, &pattern(2, at, 4096));
    }
    // The cache is not notified.
    env.others_write(&object, pattern(3, 0, 3 * 4096));
    env.flushed(&object);
    same(&env.stored(&object).unwrap(), &wanted, "in the store");
    assert_eq!(env.calls(Op::Write, &object), 2);
}

#[test]
fn the_writer_of_the_namespace_stores_two_runs_as_one() {
    let object = id("volume");
    let config = ObjectCacheConfig { writer: Writer::Cache, ..small(WriteMode::Back) };
    let mut env = CacheEnvironment::over(one_range_each(), config);
    env.others_write(&object, pattern(1, 0, 3 * 4096));
    env.bytes(&object, 0, 3 * BUCKET);
    // Other clients may write before the claim.
    env.others_write(&object, pattern(3, 0, 3 * 4096));
    let mut wanted = pattern(3, 0, 3 * 4096);
    for tag in [4, 5, 6] {
        for at in [0, 2 * 4096] {
            env.written(&object, at, pattern(tag, at, 4096));
            put(&mut wanted, at as usize, &pattern(tag, at, 4096));
        }
        env.flushed(&object);
        same(&env.stored(&object).unwrap(), &wanted, "nothing of before the claim is written");
        if tag == 5 {
            // This was read after the claim.
            same(&env.bytes(&object, 0, 3 * BUCKET), &wanted, "read");
            env.store.clear_log();
        }
    }
    assert_eq!(env.calls(Op::Write, &object), 1, "bridged");
    let theirs = WriteFullRequest::new(object.clone(), pattern(7, 0, 100));
    let theirs = executor::block_on(env.store.memory().write_full(theirs));
    assert!(matches!(theirs, Err(Error::Fenced { .. })), "no other client can write: {theirs:?}");
}

/// If an object is stored and forgotten while a listing examines the dirty queue, the listing
/// contains it nevertheless. This happens when another owner takes over objects whose changes are
/// still in flight.
#[test]
fn what_is_flushed_and_forgotten_while_it_is_listed_is_listed() {
    const COUNT: usize = 400;
    let store = Arc::new(Memory::default());
    let cache = ObjectCache::builder(store).memory_bytes(64 << 20).write_mode(WriteMode::Back);
    let cache = cache.start().expect("a cache");
    let object = |number: usize| id(&format!("object-{number:03}"));
    for _ in 0..5 {
        for number in 0..COUNT {
            block_on(cache.write(WriteRequest::new(object(number), 0, vec![1; 512]))).unwrap();
        }
        block_on(cache.invalidate(InvalidateRequest::new(Scope::Namespace(namespace("ns"))))).unwrap();
        let flush = std::thread::spawn({
            let cache = cache.clone();
            move || block_on(cache.flush(FlushRequest::new(Scope::All))).map(drop)
        });
        loop {
            let is_last = flush.is_finished();
            let page = block_on(cache.list(ListRequest::new(namespace("ns")).entries_max(1000))).unwrap();
            assert_eq!((page.entries.len(), page.has_more), (COUNT, false));
            if is_last {
                break;
            }
        }
        flush.join().unwrap().unwrap();
    }
}
