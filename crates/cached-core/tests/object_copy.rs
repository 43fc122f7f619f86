//! Copying: what the target gets when source and target share buckets, when the source changes meanwhile, and when
//! places are few.

mod object_support;

use blocker::*;
use cached_core::object::ObjectCacheConfig;
use object_support::steered::{Op, Steered, Verdict};
use object_support::world::World;
use object_support::{BUCKET, id, pattern, same, small};

#[test]
fn a_copy_that_is_written_to_stores_all_of_what_it_has() {
    let (from, to) = (id("from"), id("to"));
    // The source's bucket as the copy finds it: wholly dirty, partly dirty with the rest from the store, or on its way.
    for (is_old, is_flushing) in [(false, false), (true, false), (true, true)] {
        // Whether the source still shares the bucket when the copy is written to.
        for shares in [false, true] {
            let mut world = World::new(small(WriteMode::Back));
            let mut wanted = pattern(1, 0, 2 * 4096);
            if is_old {
                world.others_write(&from, wanted.clone());
                world.bytes(&from, 0, 2 * BUCKET);
                world.written(&from, 512, pattern(2, 512, 512));
                wanted[512..1024].copy_from_slice(&pattern(2, 512, 512));
            } else {
                world.written(&from, 0, wanted.clone());
            }
            if is_flushing {
                world.hold(Op::Write, &from);
                let _flush = world.flush(&from);
                world.sim.settle();
            }
            let copy = world.copy(&from, &to);
            world.at_once(copy).unwrap();
            assert_eq!(world.store.count(Op::Copy), 0, "made here");
            if !shares {
                let delete = world.sim.spawn(world.cache.delete(DeleteRequest::new(from.clone())));
                world.at_once(delete).unwrap();
            }
            // A sector, and half a sector.
            world.written(&to, 2048, pattern(3, 2048, 512));
            wanted[2048..2560].copy_from_slice(&pattern(3, 2048, 512));
            world.written(&to, BUCKET + 100, pattern(4, BUCKET + 100, 50));
            wanted[4196..4246].copy_from_slice(&pattern(4, BUCKET + 100, 50));
            world.validate();
            world.store.open();
            world.flushed(&to);
            same(&world.stored(&to).unwrap(), &wanted, "all of the copy is stored");
            world.agrees(&to);
        }
    }
}

#[test]
fn a_copy_that_several_requests_would_store_is_left_to_the_store() {
    let (from, to) = (id("from"), id("to"));
    let store = Steered::new();
    store.limit(|capabilities| capabilities.request_bytes_max = 2 * BUCKET);
    let mut world = World::over(store, small(WriteMode::Back));
    for at in 0..3 {
        world.written(&from, at * BUCKET, pattern(1, at * BUCKET, 4096));
    }
    world.store.open();
    let copy = world.copy(&from, &to);
    world.at_once(copy).unwrap();
    // Made here it would be in the store half done, over what was stored there, until its last request.
    assert_eq!(world.store.count(Op::Copy), 1);
    same(&world.stored(&to).unwrap(), &pattern(1, 0, 3 * 4096), "all of the copy is stored");
    same(&world.bytes(&to, BUCKET, 2 * BUCKET), &pattern(1, BUCKET, 2 * 4096), "and is read");
}

#[test]
fn a_copy_waits_for_a_change_of_its_source_that_is_on_its_way() {
    let (from, to) = (id("from"), id("to"));
    for is_native in [true, false] {
        let store = if is_native { Steered::new() } else { without_copies() };
        let mut world = World::over(store, small(WriteMode::Back));
        world.written(&from, 0, pattern(1, 0, 4096));
        // Stamped, so it goes to the store at once, though the namespace is written back; its outcome stays open.
        world.hold(Op::Write, &from);
        let request = WriteRequest::new(from.clone(), 0, pattern(2, 0, 512)).stamp(Stamp::new(1, 1));
        let write = world.sim.spawn(world.cache.write(request));
        world.sim.settle();
        // First what was dirty, then the stamped write itself.
        world.store.answer_first();
        world.sim.settle();
        assert!(!write.is_done() && world.store.held().len() == 1);
        let copy = world.copy(&from, &to);
        world.sim.settle();
        assert!(!copy.is_done(), "what the source is cannot be said now");
        world.store.open();
        world.at_once(write).unwrap();
        world.at_once(copy).unwrap();
        let mut wanted = pattern(1, 0, 4096);
        wanted[..512].copy_from_slice(&pattern(2, 0, 512));
        same(&world.bytes(&to, 0, 8192), &wanted, "the copy");
        world.agrees(&to);
    }
}

/// A store that cannot copy by itself.
fn without_copies() -> std::sync::Arc<Steered> {
    let store = Steered::new();
    store.limit(|capabilities| capabilities.copy_native = false);
    store
}

#[test]
fn the_source_stands_still_while_the_store_copies_it() {
    let (from, to) = (id("from"), id("to"));
    for policy in [WriteMode::Through, WriteMode::Back] {
        let mut world = World::new(small(policy));
        world.others_write(&from, pattern(1, 0, 3 * 4096));
        world.bytes(&from, 0, 3 * BUCKET);
        world.hold(Op::Copy, &to);
        let copy = world.copy(&from, &to);
        world.sim.settle();
        assert_eq!(world.store.held().len(), 1);
        // Two writes, one after the other: the copy must not have the second without the first, in whatever order
        // they are flushed.
        let writes = [2 * BUCKET, 0].map(|at| world.write(&from, at, pattern(2, at, 4096)));
        world.sim.settle();
        assert!(writes.iter().all(|write| !write.is_done()), "{policy:?}");
        world.store.open();
        world.at_once(copy).unwrap();
        for write in writes {
            world.at_once(write).unwrap();
        }
        same(&world.stored(&to).unwrap(), &pattern(1, 0, 3 * 4096), "as it was");
        world.agrees(&from);
        world.agrees(&to);
    }
}

/// A payload that has landed in buckets becomes an object's without a copy: each bucket is newer than the store as a
/// whole, and others may point at it.
#[test]
fn a_landed_bucket_that_is_written_to_stores_all_of_what_it_has() {
    let object = id("volume");
    for (is_pinned, fails_once) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut world = World::new(small(WriteMode::Back));
        world.others_write(&object, pattern(1, 0, 64 << 10));
        world.bytes(&object, 0, 64 << 10);
        let mut landing = world.cache.land(&object, 0, 64 << 10).unwrap();
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
            landing.fill(&mut read).unwrap();
        }
        let payload = landing.finish();
        let kept = payload.clone();
        let write = world.sim.spawn(world.cache.write(WriteRequest::new(object.clone(), 0, payload)));
        world.at_once(write).unwrap();
        let kept = Some(kept).filter(|_| is_pinned);
        if fails_once {
            world.store.rule(|call| match call.op.is_change() {
                true => Verdict::Fail(Error::Retryable("by test".into())),
                false => Verdict::Pass,
            });
            let flush = world.flush(&object);
            world.sim.settle();
            assert!(!flush.is_done());
            world.store.pass();
        }
        world.written(&object, 2048, pattern(3, 2048, 512));
        wanted[2048..2560].copy_from_slice(&pattern(3, 2048, 512));
        world.validate();
        drop(kept);
        world.agrees(&object);
        same(&world.stored(&object).unwrap(), &wanted, "all of it is stored");
    }
}

#[test]
fn a_copy_of_a_version_notices_that_others_have_changed_the_source() {
    let (from, to) = (id("from"), id("to"));
    for policy in [WriteMode::Through, WriteMode::Back] {
        let mut world = World::new(small(policy));
        world.others_write(&from, pattern(1, 0, 4096));
        let read = world.read(&from, 0, BUCKET);
        let version = world.at_once(read).unwrap().version;
        world.others_write(&from, pattern(2, 0, 4096));
        let mut request = CopyRequest::new(from.clone(), to.clone());
        request.from_condition = Condition::Version(version);
        let copy = world.sim.spawn(world.cache.copy(request));
        let answer = world.at_once(copy);
        assert!(matches!(answer, Err(Error::ConditionFailed { .. })), "{policy:?}: {answer:?}");
        assert_eq!(world.stored(&to), None);
    }
}

#[test]
fn copies_do_not_wait_for_each_others_places() {
    // Two places. Reads of two objects hold both, while copies queue up; each copy needs two.
    let mut world = World::new(ObjectCacheConfig { objects_count_max: 2, ..small(WriteMode::Through) });
    let holders = [id("holder-0"), id("holder-1")];
    holders.iter().for_each(|holder| world.others_write(holder, pattern(9, 0, 100)));
    for n in 0..4 {
        world.others_write(&id(&format!("from-{n}")), pattern(n, 0, 5000));
    }
    world.store.hold(&[Op::Read]);
    let reads = [0, 1].map(|n| world.read(&holders[n], 0, 100));
    world.sim.settle();
    let copies: Vec<_> =
        (0..4).map(|n| world.copy(&id(&format!("from-{n}")), &id(&format!("to-{n}")))).collect();
    world.sim.settle();
    assert_eq!(world.store.held().len(), 2);
    // One place after the other becomes free.
    for read in reads {
        world.store.answer_first();
        world.sim.settle();
        world.at_once(read).unwrap();
    }
    world.store.pass();
    for copy in copies {
        world.at_once(copy).unwrap();
    }
    for n in 0..4 {
        same(&world.stored(&id(&format!("to-{n}"))).unwrap(), &pattern(n, 0, 5000), "copied");
    }
    world.validate();
}

#[test]
fn one_place_is_too_few_for_a_copy_and_is_refused_at_the_start() {
    let config = ObjectCacheConfig { objects_count_max: 1, ..small(WriteMode::Back) };
    let error = config.check(&Memory::default().capabilities()).unwrap_err();
    assert_eq!(error.key, "objects_count_max");
}
