//! Several forwarded changes of one object that are in flight at the same time: their stamps and
//! versions.

use blocker::*;
use cached_core::object::{ObjectCacheConfig, Writer};
use test_kit::cache_environment::CacheEnvironment;
use test_kit::steered::Op;
use test_kit::{BUCKET, id, pattern, same, small};

#[test]
fn parallel_writes_of_one_object_reach_the_store_in_the_order_of_their_stamps() {
    let object = id("volume");
    for policy in [WriteMode::Through, WriteMode::Around] {
        let mut env = CacheEnvironment::new(ObjectCacheConfig { writer: Writer::Cache, ..small(policy) });
        env.store.hold(&[Op::Write]);
        let writes: Vec<_> =
            (0..8).map(|n| env.write(&object, n * BUCKET, pattern(n, n * BUCKET, 4096))).collect();
        let other = env.write(&id("other"), 0, pattern(9, 0, 4096));
        env.sim.run_until_idle();
        assert_eq!(env.store.held().len(), 2, "one of each object");
        // The responses to the held calls arrive in the worst order: the newest first.
        while let Some(last) = env.store.held().last() {
            env.store.answer(last.number);
            env.sim.run_until_idle();
        }
        for write in writes.into_iter().chain([other]) {
            env.at_once(write).unwrap();
        }
        for n in 0..8 {
            same(&env.bytes(&object, n * BUCKET, BUCKET), &pattern(n, n * BUCKET, 4096), "written");
        }
    }
}

#[test]
fn a_stamped_write_does_not_delay_readers_of_other_ranges() {
    let object = id("volume");
    let mut env =
        CacheEnvironment::new(ObjectCacheConfig { writer: Writer::Cache, ..small(WriteMode::Through) });
    env.written(&object, 0, pattern(1, 0, 4 * 4096));
    env.invalidated(&object);
    env.bytes(&object, 0, 10);
    env.hold(Op::Write, &object);
    let write = env.write(&object, 0, pattern(2, 0, 4096));
    env.sim.run_until_idle();
    same(&env.bytes(&object, 2 * BUCKET, 100), &pattern(1, 2 * BUCKET, 100), "a miss elsewhere");
    env.store.open();
    env.at_once(write).unwrap();
    env.agrees(&object);
}

#[test]
fn overlapping_writes_give_no_version_to_two_contents() {
    let object = id("volume");
    for newest_first in [false, true] {
        for is_known in [false, true] {
            let mut env = CacheEnvironment::new(small(WriteMode::Through));
            env.others_write(&object, pattern(1, 0, 8192));
            if is_known {
                env.bytes(&object, 0, 10);
            }
            env.hold(Op::Write, &object);
            let writes = [0, BUCKET].map(|at| env.write(&object, at, pattern(2, at, 4096)));
            env.sim.run_until_idle();
            let held = env.perform_held();
            assert_eq!(held.len(), 2, "side by side");
            let mut numbers = [held[0].number, held[1].number];
            if newest_first {
                numbers.reverse();
            }
            let mut seen = Vec::new();
            for number in numbers {
                env.store.answer(number);
                env.sim.run_until_idle();
            }
            env.store.open();
            let replies = writes.map(|write| env.at_once(write).unwrap());
            seen.extend(replies.iter().map(|reply| reply.version));
            let info = env.sim.spawn(env.cache.info(InfoRequest::new(object.clone())));
            let shown = env.at_once(info).unwrap().version;
            let [first, second] = [seen[0], seen[1]];
            assert_ne!(first, second, "two contents");
            // The reported version belongs to the present content. It is not the version of either
            // write alone, unless the response to that write was the last.
            let last = if newest_first { first } else { second };
            let stale = if newest_first { second } else { first };
            assert_ne!(shown, stale);
            if is_known {
                assert_eq!(shown, last);
            }
            let stale_change = WriteRequest::new(object.clone(), 0, pattern(3, 0, 512));
            let refused = stale_change.condition(Condition::Version(stale));
            let refused = env.sim.spawn(env.cache.write(refused));
            let refused = env.at_once(refused);
            assert!(matches!(refused, Err(Error::ConditionFailed { .. })), "{refused:?}");
            let info = env.sim.spawn(env.cache.info(InfoRequest::new(object.clone())));
            let shown = env.at_once(info).unwrap().version;
            let change = WriteRequest::new(object.clone(), 0, pattern(4, 0, 512));
            let change = env.sim.spawn(env.cache.write(change.condition(Condition::Version(shown))));
            env.at_once(change).unwrap();
            env.agrees(&object);
        }
    }
}

#[test]
fn the_result_of_overlapping_writes_is_not_taken_for_a_foreign_change() {
    let object = id("volume");
    let mut env = CacheEnvironment::new(small(WriteMode::Through));
    env.others_write(&object, pattern(1, 0, 4 * 4096));
    env.bytes(&object, 0, BUCKET);
    env.hold(Op::Write, &object);
    let writes = [BUCKET, 2 * BUCKET].map(|at| env.write(&object, at, pattern(2, at, 4096)));
    env.sim.run_until_idle();
    let held = env.perform_held();
    // The store has the version of the second write; the response to the first arrives last.
    env.store.answer(held[1].number);
    env.store.answer(held[0].number);
    for write in writes {
        env.at_once(write).unwrap();
    }
    env.store.open();
    env.store.clear_log();
    let info = env.sim.spawn(env.cache.info(InfoRequest::new(object.clone())));
    let shown = env.at_once(info).unwrap().version;
    // A load that finds the store's version must neither drop cached data nor change the reported
    // version.
    env.bytes(&object, 3 * BUCKET, 10);
    let info = env.sim.spawn(env.cache.info(InfoRequest::new(object.clone())));
    assert_eq!(env.at_once(info).unwrap().version, shown);
    let reads = env.calls(Op::Read, &object);
    same(&env.bytes(&object, 0, 2 * BUCKET)[..4096], &pattern(1, 0, 4096), "kept");
    assert_eq!(env.calls(Op::Read, &object), reads, "all of it still here");
}
