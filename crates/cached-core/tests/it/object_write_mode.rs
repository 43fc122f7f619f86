//! Changes of a namespace's write mode while operations are in flight: each operation ends in the
//! mode in which it began.

use blocker::*;
use test_kit::cache_environment::CacheEnvironment;
use test_kit::steered::{Op, Verdict};
use test_kit::{BUCKET, id, namespace, pattern, same, small};

fn set(env: &CacheEnvironment, mode: WriteMode) {
    env.cache.set_namespace(&namespace("ns"), &mode.into()).unwrap();
}

/// A forwarded write keeps its data in the cache and asks the store for the durability of the mode
/// in which the write began, even if the mode changes while the store performs the write.
#[test]
fn a_forwarded_write_ends_in_the_mode_in_which_it_began() {
    for (from, to) in [
        (WriteMode::Through, WriteMode::Around),
        (WriteMode::Through, WriteMode::Back),
        (WriteMode::Around, WriteMode::Through),
    ] {
        let mut env = CacheEnvironment::new(small(from));
        let object = id("object");
        env.hold(Op::Write, &object);
        let bytes = pattern(1, 0, BUCKET as usize);
        let write = env.write(&object, 0, bytes.clone());
        env.sim.run_until_idle();
        assert_eq!(env.store.held().len(), 1, "{from}: the store is asked");
        set(&env, to);
        env.store.open();
        let reply = env.at_once(write).unwrap();
        assert_eq!(reply.durability, Durability::Stored, "{from} to {to}");
        let reads = env.calls(Op::Read, &object);
        same(&env.bytes(&object, 0, BUCKET), &bytes, "what was written");
        let is_kept = env.calls(Op::Read, &object) == reads;
        assert_eq!(is_kept, from == WriteMode::Through, "{from} to {to}");
        env.agrees(&object);
    }
}

/// A write-back change is not applied while a change of another range is in flight to the store. A
/// flush of the former would set the object's end without regard to the latter.
#[test]
fn a_write_back_change_waits_for_changes_that_were_forwarded_before_the_mode_changed() {
    let mut env = CacheEnvironment::new(small(WriteMode::Through));
    let object = id("object");
    let (first, second) = (pattern(1, 0, BUCKET as usize), pattern(2, 0, BUCKET as usize));
    env.written(&object, 0, first.clone());
    env.hold(Op::Write, &object);
    // The write moves the object's end in the store.
    let forwarded = env.write(&object, 4 * BUCKET, first.clone());
    env.sim.run_until_idle();
    assert_eq!(env.perform_held().len(), 1);
    set(&env, WriteMode::Back);
    let written_back = env.write(&object, 2 * BUCKET, second.clone());
    env.sim.run_until_idle();
    assert!(!written_back.is_done(), "acknowledged beside a change that is on its way");
    env.store.open();
    assert_eq!(env.at_once(forwarded).unwrap().durability, Durability::Stored);
    assert_eq!(env.at_once(written_back).unwrap().durability, Durability::Cached);
    assert_eq!(env.stored(&object).unwrap().len() as u64, 5 * BUCKET);
    env.agrees(&object);
    let bytes = env.bytes(&object, 0, 5 * BUCKET);
    same(&bytes[(2 * BUCKET) as usize..(3 * BUCKET) as usize], &second, "written back");
    same(&bytes[(4 * BUCKET) as usize..], &first, "forwarded");
}

/// Before a change in another mode, the written-back data are stored. A copy keeps the durability
/// of its own mode.
#[test]
fn what_was_written_back_is_stored_before_a_forwarded_change() {
    let mut env = CacheEnvironment::new(small(WriteMode::Back));
    let object = id("object");
    let reply = env.written(&object, 0, pattern(1, 0, 2 * BUCKET as usize));
    assert_eq!((reply.durability, env.stored(&object)), (Durability::Cached, None));
    set(&env, WriteMode::Through);
    let second = pattern(2, 0, BUCKET as usize);
    assert_eq!(env.written(&object, BUCKET, second.clone()).durability, Durability::Stored);
    assert_eq!(env.cache.counters().dirty_bytes, 0);
    same(&env.stored(&object).unwrap()[BUCKET as usize..], &second, "stored");
    env.agrees(&object);
    // While the store makes a copy for a write-back namespace, the mode changes to one that would
    // require less durability.
    set(&env, WriteMode::Back);
    let target = id("target");
    let (own, durability) = (target.clone(), std::sync::Arc::new(std::sync::Mutex::new(None)));
    let asked = std::sync::Arc::clone(&durability);
    env.store.rule(move |call| {
        if call.op == Op::Copy && call.object.as_ref() == Some(&own) {
            *asked.lock().unwrap() = call.durability;
            return Verdict::Hold;
        }
        Verdict::Pass
    });
    let copy = env.copy(&object, &target);
    env.sim.run_until_idle();
    set(&env, WriteMode::Through);
    env.store.open();
    env.at_once(copy).unwrap();
    assert_eq!(*durability.lock().unwrap(), Some(Durability::Stored));
    env.agrees(&target);
}

#[test]
fn a_dropped_background_fails_the_operations_that_need_it() {
    let mut env = CacheEnvironment::new(small(WriteMode::Back));
    let object = id("object");
    env.written(&object, 0, pattern(1, 0, BUCKET as usize));
    env.store.hold_changes();
    let waiting = env.flush(&object);
    env.sim.run_until_idle();
    assert!(!waiting.is_done());
    let CacheEnvironment { mut sim, cache, running, .. } = env;
    assert!(sim.cancel(running).is_none());
    sim.run_until_idle();
    for flush in [waiting, sim.spawn(cache.flush(FlushRequest::new(Scope::All)))] {
        sim.run_until_idle();
        assert!(matches!(flush.get(), Err(Error::Unsupported(_))));
    }
    let found = sim.run(cache.read(ReadRequest::new(object, 0, BUCKET))).unwrap();
    same(&found.data.to_vec(), &pattern(1, 0, BUCKET as usize), "dirty data stay readable");
}
