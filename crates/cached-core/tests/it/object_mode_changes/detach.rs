//! Detaching and reattaching the whole cache while it is used.

use cached_core::object::{AttachState, Writer};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn detach(env: &mut CacheEnvironment, wait: Option<Duration>) -> Handle<Result<()>> {
    let deadline = wait.map(|wait| env.sim.clock.now() + wait);
    let detached = env.sim.spawn(env.cache.detach_cache(deadline));
    env.sim.run_until_idle();
    env.validate();
    detached
}

#[track_caller]
fn detached(env: &mut CacheEnvironment) {
    let detached = detach(env, None);
    env.at_once(detached).unwrap();
    assert_eq!(state(env), AttachState::Detached);
}

#[track_caller]
fn attached(env: &mut CacheEnvironment) {
    let attached = env.sim.spawn(env.cache.attach_cache(None));
    env.at_once(attached).unwrap();
    assert_eq!(state(env), AttachState::Attached);
    env.validate();
}

fn state(env: &CacheEnvironment) -> AttachState {
    env.cache.attach_status().state
}

/// Makes every change fail, as an unreachable store does.
fn take_store_away(env: &CacheEnvironment) {
    env.store.rule(|call| match call.op.is_change() {
        true => Verdict::Fail(Error::Retryable("the store is away".into())),
        false => Verdict::Pass,
    });
}

#[test]
fn a_detached_cache_has_nothing_and_requests_go_to_the_store() {
    let mut env = CacheEnvironment::new(small(WriteMode::Back));
    let (object, other) = (id("object"), id("other"));
    env.written(&object, 0, bytes(1));
    env.others_write(&other, bytes(2));
    env.bytes(&other, 0, BUCKET);
    detached(&mut env);
    let held = env.cache.counters();
    assert_eq!(
        (held.dirty_bytes, held.clean_bytes, held.zero_bytes, held.free_bytes),
        (0, 0, 0, held.memory_bytes)
    );
    same(&env.stored(&object).unwrap(), &bytes(1), "stored");
    // Each read asks the store, even for data that the cache has just read or written.
    env.store.silence();
    for tag in 3..6 {
        env.others_write(&other, bytes(tag));
        same(&env.bytes(&other, 0, BUCKET), &bytes(tag), "what another client has written");
    }
    env.store.clear_log();
    assert_eq!(env.written(&object, 0, bytes(7)).durability, Durability::Stored);
    same(&env.stored(&object).unwrap(), &bytes(7), "in the store at once");
    same(&env.bytes(&object, 0, BUCKET), &bytes(7), "read again");
    assert_eq!((env.calls(Op::Write, &object), env.calls(Op::Read, &object)), (1, 1));
    env.others_delete(&other);
    let missing = env.sim.run(env.cache.info(InfoRequest::new(other.clone())));
    assert!(matches!(missing, Err(Error::Missing)), "{missing:?}");
    let held = env.cache.counters();
    assert_eq!((held.clean_bytes, held.free_bytes), (0, held.memory_bytes), "nothing is kept");
    assert!(counters(&env).store.requests > 0 && counters(&env).write_mode == WriteMode::Back);
    attached(&mut env);
    env.others_write(&other, bytes(8));
    same(&env.bytes(&other, 0, BUCKET), &bytes(8), "nothing from before is known");
    assert_eq!(env.written(&object, 0, bytes(9)).durability, Durability::Cached, "written back again");
    env.store.clear_log();
    same(&env.bytes(&object, 0, BUCKET), &bytes(9), "a hit");
    assert_eq!(env.calls(Op::Read, &object), 0);
    env.agrees(&object);
}

#[test]
fn a_command_that_has_been_done_changes_nothing() {
    let mut env = CacheEnvironment::new(small(WriteMode::Back));
    attached(&mut env);
    detached(&mut env);
    env.store.clear_log();
    detached(&mut env);
    assert_eq!(env.store.log().len(), 0);
    attached(&mut env);
    attached(&mut env);
    let object = id("object");
    env.written(&object, 0, bytes(1));
    env.store.hold_changes();
    let both = [detach(&mut env, None), detach(&mut env, None)];
    assert!(both.iter().all(|each| !each.is_done()));
    env.store.open();
    env.sim.run_until_idle();
    both.into_iter().for_each(|each| each.get().unwrap());
    assert_eq!(state(&env), AttachState::Detached);
}

#[test]
fn detached_while_the_store_is_away() {
    let config = ObjectCacheConfig { retry_delay_max: Duration::from_millis(20), ..small(WriteMode::Back) };
    let mut env = CacheEnvironment::new(config);
    let (object, other) = (id("object"), id("other"));
    env.written(&object, 0, bytes(1));
    take_store_away(&env);
    let late = detach(&mut env, Some(5 * SECOND));
    env.sim.advance(6 * SECOND);
    let error = late.get().unwrap_err().to_string();
    for part in ["bytes are not stored", "flushes are failing", "still attached", "in the background"] {
        assert!(error.contains(part), "{error}");
    }
    // No request fails for this reason: the cache continues to respond for the unreachable store.
    assert_eq!(state(&env), AttachState::Storing);
    assert_eq!(env.written(&other, 0, bytes(2)).durability, Durability::Cached);
    same(&env.bytes(&object, 0, BUCKET), &bytes(1), "from the cache");
    // Reattaching undoes the detach.
    let waiting = detach(&mut env, None);
    attached(&mut env);
    let undone = env.at_once(waiting);
    assert!(matches!(&undone, Err(Error::Retryable(why)) if why.contains("was reattached")), "{undone:?}");
    env.store.open();
    env.sim.advance(60 * SECOND);
    assert_eq!(state(&env), AttachState::Attached, "nothing goes on");
    // The detach has no waiting caller, and completes when the store is reachable again.
    env.written(&object, 0, bytes(3));
    take_store_away(&env);
    let given_up = detach(&mut env, None);
    assert!(env.sim.cancel(given_up).is_none());
    env.sim.advance(60 * SECOND);
    assert_eq!(state(&env), AttachState::Storing);
    env.store.open();
    env.sim.advance(60 * SECOND);
    assert_eq!((state(&env), env.cache.counters().dirty_bytes), (AttachState::Detached, 0));
    same(&env.stored(&object).unwrap(), &bytes(3), "the last of it");
    same(&env.stored(&other).unwrap(), &bytes(2), "the last of it");
    env.validate();
}

#[test]
fn a_store_that_fails_in_transit_leaves_reads_to_the_cache_until_it_is_attached() {
    let mut env = CacheEnvironment::new(small(WriteMode::Back));
    let (object, held) = (id("object"), id("held"));
    // Data written during the first round of storing are stored in the second one.
    env.written(&object, 0, bytes(3));
    env.store.hold_changes();
    let detaching = detach(&mut env, None);
    env.written(&held, 0, bytes(4));
    env.store.answer_all();
    env.sim.run_until_idle();
    assert_eq!(state(&env), AttachState::Transit);
    take_store_away(&env);
    let away = || Error::Retryable("the store is away".into());
    env.store.held().iter().for_each(|call| env.store.fail(call.number, away()));
    env.sim.advance(SECOND);
    assert_eq!(state(&env), AttachState::Transit);
    same(&env.bytes(&held, 0, BUCKET), &bytes(4), "from the cache");
    attached(&mut env);
    assert!(env.at_once(detaching).is_err());
    assert_eq!(env.written(&object, 0, bytes(5)).durability, Durability::Cached, "as it was");
    env.store.open();
    let again = detach(&mut env, None);
    env.sim.wait(again).unwrap();
    same(&env.stored(&held).unwrap(), &bytes(4), "nothing is lost");
    same(&env.stored(&object).unwrap(), &bytes(5), "nothing is lost");
}

#[test]
fn what_is_on_its_way_into_the_cache_is_not_kept() {
    let mut env = CacheEnvironment::new(small(WriteMode::Through));
    let object = id("object");
    env.others_write(&object, bytes(1));
    env.hold(Op::Read, &object);
    let read = env.read(&object, 0, BUCKET);
    env.sim.run_until_idle();
    detached(&mut env);
    env.store.open();
    same(&env.at_once(read).unwrap().data.to_vec(), &bytes(1), "it is answered");
    assert_eq!(env.cache.counters().clean_bytes, 0, "and not kept");
    // A read that began while the cache was detached leaves nothing behind that a later read could
    // return.
    env.hold(Op::Read, &object);
    let read = env.read(&object, 0, BUCKET);
    env.sim.run_until_idle();
    attached(&mut env);
    env.written(&object, 0, bytes(2));
    env.store.open();
    env.at_once(read).unwrap();
    same(&env.bytes(&object, 0, BUCKET), &bytes(2), "the later change");
    env.agrees(&object);
}

#[test]
fn the_cache_stays_the_writer_and_two_changes_of_one_object_do_not_overtake_each_other() {
    let mut env =
        CacheEnvironment::new(ObjectCacheConfig { writer: Writer::Cache, ..small(WriteMode::Back) });
    let object = id("object");
    env.written(&object, 0, bytes(1));
    detached(&mut env);
    env.hold(Op::Write, &object);
    let first = env.write(&object, 0, bytes(2));
    let second = env.write(&object, BUCKET, bytes(3));
    env.sim.run_until_idle();
    env.store.open();
    env.at_once(first).unwrap();
    env.at_once(second).unwrap();
    let stamp = executor::block_on(env.store.memory().info(InfoRequest::new(object.clone()))).unwrap().stamp;
    assert!(stamp.is_some_and(|stamp| stamp.epoch.0 > 0), "stamped with the cache's epoch: {stamp:?}");
    let shown = env.sim.run(env.cache.info(InfoRequest::new(object.clone()))).unwrap();
    assert_eq!((shown.stamp, shown.size_bytes), (None, 2 * BUCKET), "not shown to callers");
    attached(&mut env);
    env.written(&object, 0, bytes(4));
    env.agrees(&object);
}

#[test]
fn a_version_that_was_read_is_the_one_that_a_condition_means() {
    let mut env = CacheEnvironment::new(small(WriteMode::Back));
    let object = id("object");
    let mut version = env.written(&object, 0, bytes(1)).version;
    let write = |env: &mut CacheEnvironment, version, tag| {
        let request = WriteRequest::new(object.clone(), 0, bytes(tag)).condition(Condition::Version(version));
        let write = env.sim.spawn(env.cache.write(request));
        env.at_once(write)
    };
    let read = |env: &mut CacheEnvironment, condition| {
        let mut request = ReadRequest::new(object.clone(), 0, BUCKET);
        request.condition = condition;
        env.sim.run(env.cache.read(request)).map(|reply| reply.version)
    };
    detached(&mut env);
    assert_eq!(read(&mut env, Condition::Version(version)).unwrap(), version, "known from before");
    version = write(&mut env, version, 2).unwrap().version;
    let stale = version;
    env.store.silence();
    for tag in 3..6 {
        env.others_write(&object, bytes(tag));
        let refused = write(&mut env, version, 9).unwrap_err();
        assert!(matches!(refused, Error::ConditionFailed { .. }), "{refused}");
        version = read(&mut env, Condition::None).unwrap();
        version = write(&mut env, version, 10 + tag).unwrap().version;
    }
    assert!(matches!(read(&mut env, Condition::Version(stale)), Err(Error::ConditionFailed { .. })));
    assert!(matches!(read(&mut env, Condition::Absent), Err(Error::Exists)));
    attached(&mut env);
    version = read(&mut env, Condition::Version(version)).unwrap();
    write(&mut env, version, 20).unwrap();
    env.agrees(&object);
}

#[test]
fn modes_that_are_set_while_it_is_detached_are_in_force_afterwards() {
    let mut env = CacheEnvironment::new(small(WriteMode::Through));
    let object = id("object");
    detached(&mut env);
    let changed = change(&mut env, WriteMode::Back, None);
    env.at_once(changed).unwrap();
    assert_eq!(env.written(&object, 0, bytes(1)).durability, Durability::Stored);
    let new = ObjectId::new(namespace("new"), object.name.clone());
    assert_eq!(env.written(&new, 0, bytes(1)).durability, Durability::Stored);
    assert_eq!(env.cache.counters().clean_bytes, 0, "around the cache, a new namespace as well");
    let changed = change(&mut env, WriteMode::ReadOnly, None);
    env.at_once(changed).unwrap();
    let write = env.write(&object, 0, bytes(2));
    assert!(matches!(env.at_once(write), Err(Error::Denied(_))), "read-only is read-only");
    let changed = change(&mut env, WriteMode::Back, None);
    env.at_once(changed).unwrap();
    attached(&mut env);
    assert_eq!(env.written(&object, 0, bytes(3)).durability, Durability::Cached);
    env.written(&new, 0, bytes(3));
    assert_eq!(env.cache.counters().clean_bytes, BUCKET, "written through, and kept");
    env.agrees(&object);
}

#[test]
fn a_configuration_has_the_cache_detached_from_the_start_on_until_it_changes() {
    let out = ObjectCacheConfig { attached: false, ..small(WriteMode::Back) };
    let back = ObjectCacheConfig { attached: true, ..out.clone() };
    let mut env = CacheEnvironment::new(out.clone());
    env.sim.run_until_idle();
    assert_eq!(state(&env), AttachState::Detached);
    let object = id("object");
    assert_eq!(env.written(&object, 0, bytes(1)).durability, Durability::Stored);
    let settings = env.cache.live_settings();
    let change = |env: &mut CacheEnvironment, after: &ObjectCacheConfig| {
        settings.change(after).unwrap();
        env.sim.run_until_idle();
        env.validate();
        state(env)
    };
    assert_eq!(change(&mut env, &back), AttachState::Attached);
    assert_eq!(env.written(&object, 0, bytes(2)).durability, Durability::Cached);
    // A command stays in force until the configuration has a different value.
    detached(&mut env);
    assert_eq!(change(&mut env, &back), AttachState::Detached);
    assert_eq!(change(&mut env, &out), AttachState::Detached);
    assert_eq!(change(&mut env, &back), AttachState::Attached);
    env.written(&object, 0, bytes(3));
    assert_eq!(change(&mut env, &out), AttachState::Detached);
    same(&env.stored(&object).unwrap(), &bytes(3), "stored on the way out");
    attached(&mut env);
    assert_eq!(change(&mut env, &out), AttachState::Attached);
    // The last configuration decides, even if the background has not done what the one before requires.
    assert_eq!(change(&mut env, &back), AttachState::Attached);
    assert_eq!(change(&mut env, &out), AttachState::Detached);
    settings.change(&back).unwrap();
    assert_eq!(change(&mut env, &out), AttachState::Detached);
}
