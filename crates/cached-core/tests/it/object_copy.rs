//! Copies: the content of the target when source and target share buckets, when the source changes
//! during the copy, and when few nodes are free.

use blocker::*;
use cached_core::object::ObjectCacheConfig;
use test_kit::cache_environment::CacheEnvironment;
use test_kit::steered::{Op, SteeredStore, Verdict};
use test_kit::{BUCKET, id, pattern, same, small};

#[test]
fn a_copy_that_is_written_to_stores_all_of_its_content() {
    let (from, to) = (id("from"), id("to"));
    // The state of the source's bucket when the copy begins: completely dirty, partly dirty with
    // the rest from the store, or in flight to the store.
    for (is_old, is_flushing) in [(false, false), (true, false), (true, true)] {
        // In one case, the source still shares the bucket when the copy is written to.
        for shares in [false, true] {
            let mut env = CacheEnvironment::new(small(WriteMode::Back));
            let mut wanted = pattern(1, 0, 2 * 4096);
            if is_old {
                env.others_write(&from, wanted.clone());
                env.bytes(&from, 0, 2 * BUCKET);
                env.written(&from, 512, pattern(2, 512, 512));
                wanted[512..1024].copy_from_slice(&pattern(2, 512, 512));
            } else {
                env.written(&from, 0, wanted.clone());
            }
            if is_flushing {
                env.hold(Op::Write, &from);
                let _flush = env.flush(&from);
                env.sim.run_until_idle();
            }
            let copy = env.copy(&from, &to);
            env.at_once(copy).unwrap();
            assert_eq!(env.store.count(Op::Copy), 0, "made here");
            if !shares {
                let delete = env.sim.spawn(env.cache.delete(DeleteRequest::new(from.clone())));
                env.at_once(delete).unwrap();
            }
            // One write covers a sector, the other half a sector.
            env.written(&to, 2048, pattern(3, 2048, 512));
            wanted[2048..2560].copy_from_slice(&pattern(3, 2048, 512));
            env.written(&to, BUCKET + 100, pattern(4, BUCKET + 100, 50));
            wanted[4196..4246].copy_from_slice(&pattern(4, BUCKET + 100, 50));
            env.validate();
            env.store.open();
            env.flushed(&to);
            same(&env.stored(&to).unwrap(), &wanted, "all of the copy is stored");
            env.agrees(&to);
        }
    }
}

#[test]
fn a_copy_that_several_requests_would_store_is_left_to_the_store() {
    let (from, to) = (id("from"), id("to"));
    let store = SteeredStore::new();
    store.limit(|capabilities| capabilities.request_bytes_max = 2 * BUCKET);
    let mut env = CacheEnvironment::over(store, small(WriteMode::Back));
    for at in 0..3 {
        env.written(&from, at * BUCKET, pattern(1, at * BUCKET, 4096));
    }
    env.store.open();
    let copy = env.copy(&from, &to);
    env.at_once(copy).unwrap();
    // If the cache had made the copy itself, the store would have only half of it until the last
    // request.
    assert_eq!(env.store.count(Op::Copy), 1);
    same(&env.stored(&to).unwrap(), &pattern(1, 0, 3 * 4096), "all of the copy is stored");
    same(&env.bytes(&to, BUCKET, 2 * BUCKET), &pattern(1, BUCKET, 2 * 4096), "and is read");
}

#[test]
fn a_copy_waits_for_a_change_of_its_source_that_is_on_its_way() {
    let (from, to) = (id("from"), id("to"));
    for is_native in [true, false] {
        let store = if is_native { SteeredStore::new() } else { without_copies() };
        let mut env = CacheEnvironment::over(store, small(WriteMode::Back));
        env.written(&from, 0, pattern(1, 0, 4096));
        // The write is stamped, so it goes directly to the store although the namespace is in
        // write-back mode; its outcome stays unknown.
        env.hold(Op::Write, &from);
        let request = WriteRequest::new(from.clone(), 0, pattern(2, 0, 512)).stamp(Stamp::new(1, 1));
        let write = env.sim.spawn(env.cache.write(request));
        env.sim.run_until_idle();
        // The dirty data come first, then the stamped write itself.
        env.store.answer_first();
        env.sim.run_until_idle();
        assert!(!write.is_done() && env.store.held().len() == 1);
        let copy = env.copy(&from, &to);
        env.sim.run_until_idle();
        assert!(!copy.is_done(), "what the source is cannot be said now");
        env.store.open();
        env.at_once(write).unwrap();
        env.at_once(copy).unwrap();
        let mut wanted = pattern(1, 0, 4096);
        wanted[..512].copy_from_slice(&pattern(2, 0, 512));
        same(&env.bytes(&to, 0, 8192), &wanted, "the copy");
        env.agrees(&to);
    }
}

/// Returns a store without native copies.
fn without_copies() -> std::sync::Arc<SteeredStore> {
    let store = SteeredStore::new();
    store.limit(|capabilities| capabilities.copy_native = false);
    store
}

#[test]
fn the_source_does_not_change_while_the_store_copies_it() {
    let (from, to) = (id("from"), id("to"));
    for policy in [WriteMode::Through, WriteMode::Back] {
        let mut env = CacheEnvironment::new(small(policy));
        env.others_write(&from, pattern(1, 0, 3 * 4096));
        env.bytes(&from, 0, 3 * BUCKET);
        env.hold(Op::Copy, &to);
        let copy = env.copy(&from, &to);
        env.sim.run_until_idle();
        assert_eq!(env.store.held().len(), 1);
        // There are two consecutive writes. The copy must not have the second without the first,
        // regardless of the order of their flushes.
        let writes = [2 * BUCKET, 0].map(|at| env.write(&from, at, pattern(2, at, 4096)));
        env.sim.run_until_idle();
        assert!(writes.iter().all(|write| !write.is_done()), "{policy:?}");
        env.store.open();
        env.at_once(copy).unwrap();
        for write in writes {
            env.at_once(write).unwrap();
        }
        same(&env.stored(&to).unwrap(), &pattern(1, 0, 3 * 4096), "as it was");
        env.agrees(&from);
        env.agrees(&to);
    }
}

/// The buckets of a received payload become part of an object without a copy. Each of them is
/// completely newer than the store, and other slots may refer to it.
#[test]
fn a_received_bucket_that_is_written_to_stores_all_of_its_content() {
    let object = id("volume");
    for (is_pinned, fails_once) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut env = CacheEnvironment::new(small(WriteMode::Back));
        env.others_write(&object, pattern(1, 0, 64 << 10));
        env.bytes(&object, 0, 64 << 10);
        let mut buffer = env.cache.receive_buffer(&object, 0, 64 << 10).unwrap();
        let mut wanted = pattern(2, 0, 64 << 10);
        let mut done = 0;
        while done < wanted.len() {
            let mut read = |places: &mut [std::io::IoSliceMut<'_>]| {
                let before = done;
                for place in places {
                    let len = place.len().min(wanted.len() - done);
                    place[..len].copy_from_slice(&wanted[done..done + len]);
                    done += len;
                }
                Ok(done - before)
            };
            buffer.fill(&mut read).unwrap();
        }
        let payload = buffer.finish();
        let kept = payload.clone();
        let write = env.sim.spawn(env.cache.write(WriteRequest::new(object.clone(), 0, payload)));
        env.at_once(write).unwrap();
        let kept = Some(kept).filter(|_| is_pinned);
        if fails_once {
            env.store.rule(|call| match call.op.is_change() {
                true => Verdict::Fail(Error::Retryable("by test".into())),
                false => Verdict::Pass,
            });
            let flush = env.flush(&object);
            env.sim.run_until_idle();
            assert!(!flush.is_done());
            env.store.pass();
        }
        env.written(&object, 2048, pattern(3, 2048, 512));
        wanted[2048..2560].copy_from_slice(&pattern(3, 2048, 512));
        env.validate();
        drop(kept);
        env.agrees(&object);
        same(&env.stored(&object).unwrap(), &wanted, "all of it is stored");
    }
}

#[test]
fn a_copy_of_a_version_fails_if_another_client_has_changed_the_source() {
    let (from, to) = (id("from"), id("to"));
    for policy in [WriteMode::Through, WriteMode::Back] {
        let mut env = CacheEnvironment::new(small(policy));
        env.others_write(&from, pattern(1, 0, 4096));
        let read = env.read(&from, 0, BUCKET);
        let version = env.at_once(read).unwrap().version;
        env.others_write(&from, pattern(2, 0, 4096));
        let request = CopyRequest::new(from.clone(), to.clone()).if_from_version(version);
        let copy = env.sim.spawn(env.cache.copy(request));
        let answer = env.at_once(copy);
        assert!(matches!(answer, Err(Error::ConditionFailed { .. })), "{policy:?}: {answer:?}");
        assert_eq!(env.stored(&to), None);
    }
}

#[test]
fn copies_do_not_wait_for_each_others_nodes() {
    // There are only two nodes. Reads of two objects hold both while copies queue up; each copy
    // needs two nodes.
    let mut env =
        CacheEnvironment::new(ObjectCacheConfig { objects_count_max: 2, ..small(WriteMode::Through) });
    let holders = [id("holder-0"), id("holder-1")];
    holders.iter().for_each(|holder| env.others_write(holder, pattern(9, 0, 100)));
    for n in 0..4 {
        env.others_write(&id(&format!("from-{n}")), pattern(n, 0, 5000));
    }
    env.store.hold(&[Op::Read]);
    let reads = [0, 1].map(|n| env.read(&holders[n], 0, 100));
    env.sim.run_until_idle();
    let copies: Vec<_> =
        (0..4).map(|n| env.copy(&id(&format!("from-{n}")), &id(&format!("to-{n}")))).collect();
    env.sim.run_until_idle();
    assert_eq!(env.store.held().len(), 2);
    // The nodes become free one after the other.
    for read in reads {
        env.store.answer_first();
        env.sim.run_until_idle();
        env.at_once(read).unwrap();
    }
    env.store.pass();
    for copy in copies {
        env.at_once(copy).unwrap();
    }
    for n in 0..4 {
        same(&env.stored(&id(&format!("to-{n}"))).unwrap(), &pattern(n, 0, 5000), "copied");
    }
    env.validate();
}

#[test]
fn one_node_is_too_few_for_a_copy_and_is_refused_at_the_start() {
    let config = ObjectCacheConfig { objects_count_max: 1, ..small(WriteMode::Back) };
    let error = config.check(&Memory::default().capabilities()).unwrap_err();
    assert_eq!(error.key, "objects_count_max");
}
