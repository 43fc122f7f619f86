//! Late responses: a response of the store never restores content that has been overwritten,
//! truncated, replaced or removed since the request.

use blocker::*;
use cached_core::object::{ObjectCacheConfig, Writer};
use test_kit::cache_environment::CacheEnvironment;
use test_kit::sim::Handle;
use test_kit::steered::Op;
use test_kit::{BUCKET, id, pattern, same, small};

fn back() -> ObjectCacheConfig {
    // The policy is LRU, so that a test knows which buckets are evicted.
    ObjectCacheConfig { eviction_policy: "lru".into(), ..small(WriteMode::Back) }
}

/// Returns `base` overlaid with `over`.
fn put(base: &mut Vec<u8>, offset: usize, over: &[u8]) {
    base.resize(base.len().max(offset + over.len()), 0);
    base[offset..offset + over.len()].copy_from_slice(over);
}

/// The event that makes the cache forget, during a load, the newer bytes that would have replaced
/// those of the response.
#[derive(Clone, Copy, Debug)]
enum Forget {
    Evict,
    Invalidate,
}

/// During a load, a sector is written and stored, and its bucket is forgotten, all before the
/// response arrives. This happens during the first load, or during a later one if there is one.
fn forgotten_during_a_load(forget: Forget, is_writer: bool) {
    let mut counted = Vec::new();
    for later in [0, 1] {
        let mut env = CacheEnvironment::new(ObjectCacheConfig { writer: Writer::Cache, ..back() });
        let object = id("volume");
        let mut wanted = pattern(1, 0, 3 * 4096);
        env.others_write(&object, wanted.clone());
        env.written(&object, 0, pattern(2, 0, 512));
        put(&mut wanted, 0, &pattern(2, 0, 512));
        env.hold(Op::Read, &object);
        // The range begins inside the bucket with the new sector and ends in the next bucket.
        let (writing, reading): (Option<Handle<_>>, Option<Handle<_>>) = match is_writer {
            true => (Some(env.write(&object, 1000, pattern(3, 1000, 3500))), None),
            false => (None, Some(env.read(&object, 0, 2 * BUCKET))),
        };
        env.sim.run_until_idle();
        for _ in 0..later {
            assert!(env.store.answer_first());
            env.sim.run_until_idle();
        }
        // The store has read the content from before the flush.
        let is_loading = env.perform_held().len() == 1;
        assert!(is_loading || later > 0);
        env.flushed(&object);
        match forget {
            Forget::Evict => env.evict_all(),
            Forget::Invalidate => env.invalidated(&object),
        }
        env.store.open();
        if let Some(read) = reading {
            same(&env.at_once(read).unwrap().data.to_vec(), &wanted[..2 * 4096], "what the reader gets");
        }
        if let Some(write) = writing {
            env.at_once(write).unwrap();
            put(&mut wanted, 1000, &pattern(3, 1000, 3500));
        }
        let loads = env.calls(Op::Read, &object);
        same(&env.bytes(&object, 0, 3 * BUCKET), &wanted, "in the cache");
        // A second flush in the next sectors must not restore the old content either.
        env.written(&object, 2 * BUCKET, pattern(4, 2 * BUCKET, 512));
        put(&mut wanted, 2 * 4096, &pattern(4, 2 * BUCKET, 512));
        env.agrees(&object);
        same(&env.stored(&object).unwrap(), &wanted, "in the store");
        counted.push(loads);
    }
    let most = if matches!(forget, Forget::Invalidate) { 2 } else { 1 };
    assert_eq!(
        counted,
        [most, 1],
        "what is being loaded is not evicted, and what is void is asked for once more"
    );
}

#[test]
fn a_bucket_flushed_and_evicted_while_a_write_loads_is_not_undone() {
    forgotten_during_a_load(Forget::Evict, true);
}

#[test]
fn a_bucket_flushed_and_evicted_while_a_reader_loads_is_not_undone() {
    forgotten_during_a_load(Forget::Evict, false);
}

#[test]
fn a_bucket_flushed_and_invalidated_while_a_write_loads_is_not_undone() {
    forgotten_during_a_load(Forget::Invalidate, true);
}

#[test]
fn a_bucket_flushed_and_invalidated_while_a_reader_loads_is_not_undone() {
    forgotten_during_a_load(Forget::Invalidate, false);
}

/// The fate of the old content while a load of it is in flight.
#[derive(Clone, Copy, Debug)]
enum End {
    Cut,
    Replaced,
    Removed,
}

/// A load of bytes competes with a truncation of the same bytes, in any order, with and without a
/// flush before the response.
#[test]
fn bytes_that_were_cut_off_do_not_come_back_with_a_late_load() {
    let object = id("volume");
    for end in [End::Cut, End::Replaced, End::Removed] {
        for is_asked_first in [false, true] {
            for is_flushed in [false, true] {
                for is_extended in [false, true] {
                    let label = format!("{end:?}, asked first {is_asked_first}, flushed {is_flushed}");
                    let mut env = CacheEnvironment::new(back());
                    let old = pattern(1, 0, 2 * 4096);
                    env.others_write(&object, old.clone());
                    // This makes the object known.
                    env.bytes(&object, BUCKET, 10);
                    env.hold(Op::Read, &object);
                    let mut reads = Vec::new();
                    if is_asked_first {
                        reads.push(env.read(&object, 0, BUCKET));
                        env.sim.run_until_idle();
                        env.perform_held();
                    }
                    let mut wanted = match end {
                        End::Cut => {
                            let cut = env.truncate(&object, 100);
                            env.at_once(cut).unwrap();
                            old[..100].to_vec()
                        }
                        End::Replaced => {
                            let request = WriteFullRequest::new(object.clone(), pattern(2, 0, 100));
                            let replace = env.sim.spawn(env.cache.write_full(request));
                            env.at_once(replace).unwrap();
                            pattern(2, 0, 100)
                        }
                        End::Removed => {
                            let request = DeleteRequest::new(object.clone());
                            let delete = env.sim.spawn(env.cache.delete(request));
                            env.at_once(delete).unwrap();
                            Vec::new()
                        }
                    };
                    if is_extended || matches!(end, End::Removed) {
                        env.written(&object, 2 * BUCKET, pattern(3, 2 * BUCKET, 512));
                        put(&mut wanted, 2 * 4096, &pattern(3, 2 * BUCKET, 512));
                    }
                    if !is_asked_first {
                        reads.push(env.read(&object, 0, BUCKET));
                        env.sim.run_until_idle();
                        env.perform_held();
                    }
                    if is_flushed {
                        env.flushed(&object);
                    }
                    env.store.open();
                    for read in reads {
                        let reply = env.at_once(read).unwrap();
                        same(&reply.data.to_vec(), &wanted[..wanted.len().min(4096)], &label);
                    }
                    same(&env.bytes(&object, 0, 4 * BUCKET), &wanted, &label);
                    env.agrees(&object);
                    same(&env.stored(&object).unwrap(), &wanted, &label);
                }
            }
        }
    }
}

#[test]
fn bytes_behind_a_cut_are_not_the_base_of_a_write() {
    let object = id("volume");
    for is_flushed in [false, true] {
        let mut env = CacheEnvironment::new(back());
        env.others_write(&object, pattern(1, 0, 2 * 4096));
        let cut = env.truncate(&object, 100);
        env.at_once(cut).unwrap();
        let mut wanted = pattern(1, 0, 100);
        env.hold(Op::Read, &object);
        // The bucket's first bytes come from the store; the bytes after the cut do not.
        let write = env.write(&object, 50, pattern(2, 50, 10));
        env.sim.run_until_idle();
        assert_eq!(env.perform_held().len(), 1);
        if is_flushed {
            env.flushed(&object);
        }
        env.store.open();
        env.at_once(write).unwrap();
        put(&mut wanted, 50, &pattern(2, 50, 10));
        env.written(&object, 4096 - 10, pattern(3, 4086, 10));
        put(&mut wanted, 4086, &pattern(3, 4086, 10));
        same(&env.bytes(&object, 0, 4 * BUCKET), &wanted, "in the cache");
        env.agrees(&object);
        same(&env.stored(&object).unwrap(), &wanted, "in the store");
    }
}

#[test]
fn a_reader_that_keeps_nothing_gets_no_byte_behind_a_cut() {
    let object = id("volume");
    for has_newer in [false, true] {
        let mut env = CacheEnvironment::new(back());
        env.others_write(&object, pattern(1, 0, 2 * 4096));
        let cut = env.truncate(&object, 100);
        env.at_once(cut).unwrap();
        let mut wanted = pattern(1, 0, 100);
        if has_newer {
            // The cache has the newer part of the bucket, and the store has the bytes before the
            // cut.
            env.written(&object, 1024, pattern(2, 1024, 512));
            put(&mut wanted, 1024, &pattern(2, 1024, 512));
        }
        let out = env.truncate(&object, 3000);
        env.at_once(out).unwrap();
        wanted.resize(3000, 0);
        let read = ReadRequest::new(object.clone(), 0, BUCKET).hints(Hints::NO_CACHE);
        let read = env.sim.spawn(env.cache.read(read));
        same(&env.at_once(read).unwrap().data.to_vec(), &wanted, "read, and not kept");
        env.agrees(&object);
        same(&env.stored(&object).unwrap(), &wanted, "in the store");
    }
}

/// Returns a payload of one bucket, received into a bucket.
fn landed(env: &CacheEnvironment, object: &ObjectId, bytes: &[u8]) -> Segments {
    let mut buffer = env.cache.receive_buffer(object, 0, bytes.len()).unwrap();
    let mut from = bytes;
    buffer.fill(&mut |places| std::io::Read::read_vectored(&mut from, places)).unwrap();
    assert!(from.is_empty());
    buffer.finish()
}

/// A bucket that two objects share is clean in only one of them. The other object forgets the
/// bucket once its flush is stored. A load whose response preceded the flush is older than the
/// forgotten bytes.
#[test]
fn a_shared_bucket_that_is_forgotten_once_it_is_stored_is_not_undone_by_a_late_load() {
    let (first, second) = (id("first"), id("second"));
    for is_wide in [true, false] {
        let mut env = CacheEnvironment::new(back());
        let mut wanted = pattern(1, 0, 2 * 4096);
        env.others_write(&second, wanted.clone());
        // This makes the object known.
        env.bytes(&second, BUCKET, 10);
        let newer = pattern(2, 0, 4096);
        let payload = landed(&env, &first, &newer);
        let write = env.sim.spawn(env.cache.write(WriteRequest::new(first.clone(), 0, payload.clone())));
        env.at_once(write).unwrap();
        env.flushed(&first);
        env.hold(Op::Read, &second);
        // The load covers the bucket alone, or more.
        let read = env.read(&second, 0, if is_wide { 2 * BUCKET } else { BUCKET });
        env.sim.run_until_idle();
        // The store has read the content from before the flush.
        assert_eq!(env.perform_held().len(), 1);
        let write = env.sim.spawn(env.cache.write(WriteRequest::new(second.clone(), 0, payload)));
        env.at_once(write).unwrap();
        put(&mut wanted, 0, &newer);
        env.flushed(&second);
        env.store.open();
        env.at_once(read).unwrap();
        same(&env.bytes(&second, 0, 2 * BUCKET), &wanted, "in the cache");
        same(&env.bytes(&first, 0, BUCKET), &newer, "the other object");
        env.agrees(&second);
        same(&env.stored(&second).unwrap(), &wanted, "in the store");
    }
}

#[test]
fn an_object_removed_below_is_missing() {
    let object = id("volume");
    let mut env = CacheEnvironment::new(back());
    env.others_write(&object, pattern(1, 0, 4 * 4096));
    env.bytes(&object, 0, 4096);
    env.others_delete(&object);
    let read = env.read(&object, BUCKET, 100);
    assert_eq!(env.at_once(read).unwrap_err(), Error::Missing);
    let read = env.read(&object, 0, 100);
    assert_eq!(env.at_once(read).unwrap_err(), Error::Missing, "nothing of it is left here");
    env.agrees(&object);
}

#[test]
fn a_write_to_an_object_removed_below_creates_it_anew() {
    let object = id("volume");
    let mut env = CacheEnvironment::new(back());
    env.others_write(&object, pattern(1, 0, 4 * 4096));
    env.bytes(&object, 0, 4096);
    env.others_delete(&object);
    env.written(&object, BUCKET + 100, pattern(2, 0, 50));
    let mut wanted = Vec::new();
    put(&mut wanted, 4096 + 100, &pattern(2, 0, 50));
    same(&env.bytes(&object, 0, 4 * BUCKET), &wanted, "in the cache");
    env.agrees(&object);
    same(&env.stored(&object).unwrap(), &wanted, "in the store");
}

#[test]
fn dirty_data_of_an_object_removed_below_stay() {
    let object = id("volume");
    for is_written in [false, true] {
        for flush_begins in [false, true] {
            let mut env = CacheEnvironment::new(back());
            env.others_write(&object, pattern(1, 0, 4 * 4096));
            env.bytes(&object, 0, 4096);
            env.written(&object, 2 * BUCKET, pattern(2, 0, 512));
            env.others_delete(&object);
            let mut wanted = vec![0; 4 * 4096];
            put(&mut wanted, 2 * 4096, &pattern(2, 0, 512));
            if flush_begins {
                env.store.hold_changes();
                let flush = env.flush(&object);
                env.sim.run_until_idle();
                assert!(!flush.is_done());
            }
            if is_written {
                env.written(&object, BUCKET + 100, pattern(3, 0, 50));
                put(&mut wanted, 4096 + 100, &pattern(3, 0, 50));
            }
            same(&env.bytes(&object, BUCKET, 3 * BUCKET), &wanted[4096..], "in the cache");
            env.agrees(&object);
            same(&env.stored(&object).unwrap(), &wanted, "in the store");
        }
    }
}

#[test]
fn a_small_write_on_a_miss_asks_the_store_once() {
    let object = id("volume");
    let mut env = CacheEnvironment::new(back());
    env.others_write(&object, pattern(1, 0, 8 * 4096));
    let mut wanted = pattern(1, 0, 8 * 4096);
    env.written(&object, 10, pattern(2, 10, 20));
    put(&mut wanted, 10, &pattern(2, 10, 20));
    assert_eq!(env.calls(Op::Read, &object), 1);
    // The range crosses the border between two buckets.
    env.written(&object, 3 * BUCKET - 10, pattern(3, 0, 20));
    put(&mut wanted, 3 * 4096 - 10, &pattern(3, 0, 20));
    assert_eq!(env.calls(Op::Read, &object), 2);
    let expected = wanted[5 * 4096..5 * 4096 + 30].to_vec();
    let request = CompareAndWriteRequest::new(object.clone(), 5 * BUCKET, expected, pattern(4, 0, 30));
    let compared = env.sim.spawn(env.cache.compare_and_write(request));
    env.at_once(compared).unwrap();
    put(&mut wanted, 5 * 4096, &pattern(4, 0, 30));
    assert_eq!(env.calls(Op::Read, &object), 3);
    env.agrees(&object);
    same(&env.stored(&object).unwrap(), &wanted, "in the store");
}
