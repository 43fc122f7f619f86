//! Completing a change of a namespace's write mode: the response arrives when nothing of the
//! previous mode is left, in any state of the store. Also, detaching the whole cache (`detach`).

mod detach;

use std::time::Duration;

use blocker::*;
use cached_core::object::{DirtyData, NamespaceCounters, ObjectCacheConfig};
use test_kit::cache_environment::CacheEnvironment;
use test_kit::sim::Handle;
use test_kit::steered::{Op, Verdict};
use test_kit::{BUCKET, KIB, id, namespace, pattern, same, small};

fn change(env: &mut CacheEnvironment, mode: WriteMode, wait: Option<Duration>) -> Handle<Result<()>> {
    let deadline = wait.map(|wait| env.sim.clock.now() + wait);
    let changed = env.cache.change_namespace(&namespace("ns"), &mode.into(), deadline);
    let changed = env.sim.spawn(changed);
    env.sim.run_until_idle();
    env.validate();
    changed
}

fn counters(env: &CacheEnvironment) -> NamespaceCounters {
    let all = env.cache.namespaces();
    let found = all.into_iter().find(|of| of.namespace == Some(namespace("ns")));
    found.expect("the namespace has been used")
}

fn bytes(tag: u64) -> Vec<u8> {
    pattern(tag, 0, BUCKET as usize)
}

#[test]
fn away_from_write_back_the_answer_comes_when_all_is_stored() {
    for mode in [WriteMode::Through, WriteMode::Around, WriteMode::ReadOnly] {
        let mut env = CacheEnvironment::new(small(WriteMode::Back));
        let objects = [id("a"), id("b"), id("c")];
        for object in &objects {
            assert_eq!(env.written(object, 0, bytes(1)).durability, Durability::Cached);
        }
        env.store.hold_changes();
        let changed = change(&mut env, mode, None);
        assert!(!changed.is_done() && counters(&env).is_mode_changing, "{mode}");
        assert_eq!((counters(&env).write_mode, env.stored(&objects[0])), (mode, None));
        env.store.open();
        env.at_once(changed).unwrap();
        assert_eq!((counters(&env).dirty_bytes, counters(&env).is_mode_changing), (0, false));
        for object in &objects {
            same(&env.stored(object).unwrap(), &bytes(1), "written back, and stored");
            env.agrees(object);
        }
        env.validate();
    }
}

#[test]
fn a_change_of_mode_waits_for_what_the_store_holds_back_and_orders_what_comes_after() {
    let mut env = CacheEnvironment::new(small(WriteMode::Through));
    let object = id("object");
    env.hold(Op::Write, &object);
    let forwarded = env.write(&object, 0, bytes(1));
    env.sim.run_until_idle();
    let changed = change(&mut env, WriteMode::Back, None);
    assert!(!changed.is_done() && counters(&env).is_mode_changing, "a change is on its way to the store");
    let other = env.written(&id("other"), 0, bytes(3));
    assert_eq!(other.durability, Durability::Cached, "the new mode is in force");
    let after = env.write(&object, 0, bytes(2));
    env.sim.run_until_idle();
    assert!(!after.is_done(), "it may not overtake the one before it");
    env.store.open();
    env.at_once(forwarded).unwrap();
    env.at_once(changed).unwrap();
    assert_eq!(env.at_once(after).unwrap().durability, Durability::Cached);
    assert!(!counters(&env).is_mode_changing);
    same(&env.bytes(&object, 0, BUCKET), &bytes(2), "the later one");
    let back = change(&mut env, WriteMode::Around, None);
    env.at_once(back).unwrap();
    same(&env.stored(&object).unwrap(), &bytes(2), "the later one, stored");
}

#[test]
fn a_caller_that_gives_up_leaves_its_change_counted_until_the_store_has_answered() {
    let mut env = CacheEnvironment::new(small(WriteMode::Through));
    let object = id("object");
    env.hold(Op::Write, &object);
    let forwarded = env.write(&object, 0, bytes(1));
    env.sim.run_until_idle();
    assert!(env.sim.cancel(forwarded).is_none());
    let changed = change(&mut env, WriteMode::Around, None);
    assert!(!changed.is_done(), "the change goes on without its caller");
    env.store.open();
    env.at_once(changed).unwrap();
    assert_eq!(env.store.held().len(), 0);
    env.agrees(&object);
}

#[test]
fn mode_changed_while_a_flush_fails() {
    let config = ObjectCacheConfig { retry_delay_max: Duration::from_millis(20), ..small(WriteMode::Back) };
    let mut env = CacheEnvironment::new(config);
    let object = id("object");
    env.written(&object, 0, bytes(1));
    env.store.rule(|call| match call.op.is_change() {
        true => Verdict::Fail(Error::Retryable("no".into())),
        false => Verdict::Pass,
    });
    let changed = change(&mut env, WriteMode::Through, Some(Duration::from_secs(5)));
    assert!(!changed.is_done());
    env.sim.advance(Duration::from_secs(6));
    let error = changed.get().unwrap_err();
    assert!(
        matches!(&error, Error::NotStored(why) if why.contains("through") && why.contains("flushes are failing")),
        "{error}"
    );
    let left = counters(&env);
    assert_eq!((left.write_mode, left.is_mode_changing), (WriteMode::Through, true));
    assert!(left.dirty_bytes > 0 && env.stored(&object).is_none(), "nothing is lost, and nothing is stored");
    same(&env.bytes(&object, 0, BUCKET), &bytes(1), "it is read from the cache");
    // The previous mode is restored: the dirty data belong to the effective mode.
    let back = change(&mut env, WriteMode::Back, None);
    env.at_once(back).unwrap();
    assert!(!counters(&env).is_mode_changing && counters(&env).dirty_bytes > 0);
    let again = change(&mut env, WriteMode::Through, None);
    assert!(!again.is_done());
    env.store.open();
    env.sim.advance(Duration::from_secs(6));
    again.get().unwrap();
    same(&env.stored(&object).unwrap(), &bytes(1), "tried again until it was stored");
    assert_eq!((counters(&env).dirty_bytes, counters(&env).is_mode_changing), (0, false));
    env.validate();
}

#[test]
fn what_is_left_is_stored_though_the_command_is_not_waited_for() {
    let mut env = CacheEnvironment::new(small(WriteMode::Back));
    let object = id("object");
    env.written(&object, 0, bytes(1));
    env.store.hold_changes();
    env.cache.set_namespace(&namespace("ns"), &WriteMode::Through.into()).unwrap();
    env.sim.run_until_idle();
    assert!(counters(&env).is_mode_changing);
    env.store.open();
    env.sim.run_until_idle();
    assert_eq!((counters(&env).dirty_bytes, counters(&env).is_mode_changing), (0, false));
    same(&env.stored(&object).unwrap(), &bytes(1), "long before its age");
}

/// Data that the store temporarily refuses, for example because of a damaged file, are stored
/// later. Then the mode change ends.
#[test]
fn a_change_of_mode_ends_although_the_store_has_refused_a_flush() {
    let mut env = CacheEnvironment::new(small(WriteMode::Back));
    let object = id("object");
    env.written(&object, 0, bytes(1));
    env.store.rule(|call| match call.op.is_change() {
        true => Verdict::Fail(Error::Corrupt("damaged".into())),
        false => Verdict::Pass,
    });
    env.cache.set_namespace(&namespace("ns"), &WriteMode::Through.into()).unwrap();
    env.sim.advance(Duration::from_secs(5));
    assert!(counters(&env).is_mode_changing && counters(&env).dirty_bytes > 0);
    env.store.open();
    env.sim.advance(Duration::from_secs(5));
    same(&env.stored(&object).unwrap(), &bytes(1), "tried again");
    assert_eq!((counters(&env).dirty_bytes, counters(&env).is_mode_changing), (0, false));
    env.validate();
}

#[test]
fn a_read_only_namespace_is_read_and_refuses_every_change() {
    let mut env = CacheEnvironment::new(small(WriteMode::Back));
    let (object, other) = (id("object"), id("other"));
    env.written(&object, 0, bytes(1));
    let changed = change(&mut env, WriteMode::ReadOnly, None);
    env.at_once(changed).unwrap();
    let refused = |answer: Result<ChangeReply>| match answer {
        Err(Error::Denied(why)) => assert!(why.contains("namespace ns is read-only"), "{why}"),
        answer => panic!("{answer:?}"),
    };
    let write = env.write(&object, 0, bytes(2));
    refused(env.at_once(write));
    let truncate = env.truncate(&object, 10);
    refused(env.at_once(truncate));
    let copy = env.copy(&object, &other);
    refused(env.at_once(copy));
    let delete = env.sim.run(env.cache.delete(DeleteRequest::new(object.clone())));
    assert!(matches!(delete, Err(Error::Denied(_))), "{delete:?}");
    assert!(env.cache.receive_buffer(&object, 0, 64 << 10).is_none(), "nothing is received for it");
    same(&env.bytes(&object, 0, BUCKET), &bytes(1), "read");
    let elsewhere = ObjectId::new(namespace("elsewhere"), other.name.clone());
    let copy = env.copy(&object, &elsewhere);
    env.at_once(copy).unwrap();
    let changed = change(&mut env, WriteMode::Back, None);
    env.at_once(changed).unwrap();
    env.written(&object, 0, bytes(3));
    same(&env.bytes(&object, 0, BUCKET), &bytes(3), "changed again");
    env.validate();
}

#[test]
fn the_mode_of_namespaces_without_one_of_their_own_changes_with_the_configuration() {
    let config = ObjectCacheConfig { dirty_bytes_max: 64 * KIB, ..small(WriteMode::Back) };
    let mut env = CacheEnvironment::new(config.clone());
    let object = id("object");
    env.written(&object, 0, bytes(1));
    env.store.hold_changes();
    let after = ObjectCacheConfig { write: WriteMode::Through, ..config.clone() };
    env.cache.live_settings().change(&after).unwrap();
    env.sim.run_until_idle();
    assert!(counters(&env).is_mode_changing);
    assert_eq!(counters(&env).write_mode, WriteMode::Through);
    env.store.open();
    env.sim.run_until_idle();
    assert_eq!((counters(&env).dirty_bytes, counters(&env).is_mode_changing), (0, false));
    let new = ObjectId::new(namespace("new"), object.name.clone());
    assert_eq!(env.written(&new, 0, bytes(1)).durability, Durability::Stored, "a new one has the mode, too");
    env.validate();
}

#[test]
fn namespace_removed_with_dirty_data() {
    let mut env = CacheEnvironment::new(small(WriteMode::Through));
    let object = id("object");
    let changed = change(&mut env, WriteMode::Back, None);
    env.at_once(changed).unwrap();
    env.written(&object, 0, bytes(1));
    let (ns, unknown) = (namespace("ns"), namespace("unknown"));
    assert!(matches!(
        env.sim.run(env.cache.remove_namespace(unknown, DirtyData::Store, None)),
        Err(Error::Missing)
    ));
    let refused = env.sim.run(env.cache.remove_namespace(ns.clone(), DirtyData::Refuse, None)).unwrap_err();
    assert!(matches!(&refused, Error::Denied(why) if why.contains("bytes that are not stored")), "{refused}");
    assert_eq!(counters(&env).write_mode, WriteMode::Back, "nothing has changed");
    env.store.hold_changes();
    let deadline = env.sim.clock.now() + Duration::from_secs(1);
    let late = env.sim.spawn(env.cache.remove_namespace(ns.clone(), DirtyData::Store, Some(deadline)));
    env.sim.advance(Duration::from_secs(2));
    assert!(matches!(late.get(), Err(Error::NotStored(_))));
    assert!(counters(&env).dirty_bytes > 0, "it is still here");
    env.store.open();
    let removed = env.sim.run(env.cache.remove_namespace(ns, DirtyData::Store, None)).unwrap();
    assert_eq!((removed.dropped_bytes, removed.discarded_bytes), (BUCKET, 0));
    same(&env.stored(&object).unwrap(), &bytes(1), "stored first");
    let left = counters(&env);
    assert_eq!((left.dirty_bytes, left.cached_bytes, left.write_mode), (0, 0, WriteMode::Through));
    same(&env.bytes(&object, 0, BUCKET), &bytes(1), "used again");
    env.validate();
}

/// Dirty data of a removed namespace are dropped only at the caller's explicit request, even while
/// the store is unreachable. Later writes and other namespaces keep their data.
#[test]
fn namespace_removed_and_its_dirty_data_discarded() {
    let config =
        ObjectCacheConfig { retry_delay_max: Duration::from_millis(20), ..small(WriteMode::Through) };
    let mut env = CacheEnvironment::new(config);
    let (object, removed, elsewhere) =
        (id("object"), id("removed"), ObjectId::new(namespace("keeps"), id("a").name));
    env.others_write(&object, bytes(1));
    env.others_write(&removed, bytes(2));
    for name in ["ns", "keeps"] {
        let changed =
            env.sim.spawn(env.cache.change_namespace(&namespace(name), &WriteMode::Back.into(), None));
        env.at_once(changed).unwrap();
    }
    env.written(&object, 0, bytes(3));
    env.written(&elsewhere, 0, bytes(4));
    let delete = env.sim.spawn(env.cache.delete(DeleteRequest::new(removed.clone())));
    env.at_once(delete).unwrap();
    env.store.rule(|call| match call.op.is_change() {
        true => Verdict::Fail(Error::Retryable("the store is away".into())),
        false => Verdict::Pass,
    });
    env.sim.advance(Duration::from_secs(1));
    let waiting = env.flush(&object);
    env.sim.run_until_idle();
    let discarding = env.cache.remove_namespace(namespace("ns"), DirtyData::Discard, None);
    let discarding = env.sim.spawn(discarding);
    env.sim.advance(Duration::from_secs(60));
    let answer = discarding.get().unwrap();
    assert_eq!(answer.discarded_bytes, BUCKET, "{answer:?}");
    assert!(matches!(waiting.get(), Err(Error::NotStored(_))), "a flush that waited learns of it");
    assert_eq!((counters(&env).dirty_bytes, counters(&env).write_mode), (0, WriteMode::Through));
    same(&env.bytes(&object, 0, BUCKET), &bytes(1), "as the store has it");
    same(&env.bytes(&removed, 0, BUCKET), &bytes(2), "as the store has it");
    assert!(env.cache.lost().objects.is_empty() && env.cache.counters().lost_bytes == 0, "it was asked for");
    same(&env.bytes(&elsewhere, 0, BUCKET), &bytes(4), "another namespace");
    env.store.open();
    env.agrees(&elsewhere);
    // When it is used again, the namespace behaves like any other.
    let changed = change(&mut env, WriteMode::Back, None);
    env.at_once(changed).unwrap();
    env.written(&object, 0, bytes(5));
    let refused = env.sim.run(env.cache.remove_namespace(namespace("ns"), DirtyData::Refuse, None));
    assert!(matches!(refused, Err(Error::Denied(_))), "{refused:?}");
    env.agrees(&object);
    same(&env.stored(&object).unwrap(), &bytes(5), "stored");
}

#[test]
fn a_removal_that_is_given_up_leaves_what_it_has_not_discarded_to_be_stored() {
    let mut env = CacheEnvironment::new(small(WriteMode::Through));
    let (object, held) = (id("object"), id("held"));
    env.hold(Op::Write, &held);
    let forwarded = env.write(&held, 0, bytes(1));
    env.sim.run_until_idle();
    let changed = env.sim.spawn(env.cache.change_namespace(&namespace("ns"), &WriteMode::Back.into(), None));
    env.sim.run_until_idle();
    env.written(&object, 0, bytes(2));
    let deadline = env.sim.clock.now() + Duration::from_secs(1);
    let late = env.cache.remove_namespace(namespace("ns"), DirtyData::Discard, Some(deadline));
    let late = env.sim.spawn(late);
    env.sim.run_until_idle();
    let write = env.write(&object, 0, bytes(3));
    assert!(matches!(env.at_once(write), Err(Error::Denied(_))), "read-only meanwhile");
    env.sim.advance(Duration::from_secs(2));
    assert!(matches!(late.get(), Err(Error::NotStored(_))));
    assert_eq!(counters(&env).write_mode, WriteMode::Back, "as it was");
    env.store.open();
    env.sim.run_until_idle();
    env.at_once(forwarded).unwrap();
    env.at_once(changed).unwrap();
    env.written(&object, 0, bytes(4));
    env.agrees(&object);
    same(&env.stored(&object).unwrap(), &bytes(4), "stored");
}
