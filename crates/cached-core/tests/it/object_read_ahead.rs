//! Sequential reads are read ahead: with fewer requests to the store, never beyond the end of the
//! object, and never with outdated bytes.

use std::time::Duration;

use blocker::*;
use cached_core::object::{NamespaceConfig, ObjectCacheConfig};
use test_kit::cache_environment::CacheEnvironment;
use test_kit::steered::{Op, Verdict};
use test_kit::{BUCKET, KIB, id, namespace, pattern, same, small};

/// Returns the configuration of a cache of 8 MiB that reads ahead regardless of the store's speed.
fn config(write: WriteMode) -> ObjectCacheConfig {
    ObjectCacheConfig { memory_bytes_max: 8 << 20, read_ahead_latency_min: Duration::ZERO, ..small(write) }
}

/// Creates an environment whose store has this object, with `buckets` buckets.
fn with_object(config: ObjectCacheConfig, object: &ObjectId, buckets: u64) -> CacheEnvironment {
    let env = CacheEnvironment::new(config);
    env.others_write(object, pattern(1, 0, (buckets * BUCKET) as usize));
    env
}

/// Reads one bucket, and lets the background do the resulting work.
#[track_caller]
fn read_bucket(env: &mut CacheEnvironment, object: &ObjectId, at: u64) {
    let found = env.bytes(object, at * BUCKET, BUCKET);
    same(&found, &pattern(1, at * BUCKET, BUCKET as usize), &format!("bucket {at} of {object}"));
    env.sim.run_until_idle();
}

/// Returns the number of buckets that were read ahead, used, and wasted.
fn ahead(env: &CacheEnvironment) -> (u64, u64, u64) {
    let counters = env.cache.counters();
    let buckets = |bytes: u64| bytes / BUCKET;
    (
        buckets(counters.read_ahead_bytes),
        buckets(counters.read_ahead_used_bytes),
        buckets(counters.read_ahead_wasted_bytes),
    )
}

/// Returns the ranges of an object that were requested from the store, in buckets.
fn asked(env: &CacheEnvironment, object: &ObjectId) -> Vec<(u64, u64)> {
    let log = env.store.log();
    let reads = log.iter().filter(|call| call.op == Op::Read && call.object.as_ref() == Some(object));
    reads.map(|call| (call.offset / BUCKET, call.end() / BUCKET)).collect()
}

/// Holds every store read that begins at bucket 2 or later.
fn hold_ahead(env: &CacheEnvironment) {
    env.store.rule(|call| match call.op == Op::Read && call.offset >= 2 * BUCKET {
        true => Verdict::Hold,
        false => Verdict::Pass,
    });
}

#[test]
fn reads_in_order_need_few_requests_and_use_all_that_was_read_ahead() {
    let object = id("volume");
    let mut env = with_object(config(WriteMode::Through), &object, 64);
    (0..64).for_each(|at| read_bucket(&mut env, &object, at));
    assert_eq!(asked(&env, &object), [(0, 1), (1, 2), (2, 6), (6, 14), (14, 30), (30, 62), (62, 64)]);
    assert_eq!(ahead(&env), (62, 62, 0));
    let counters = env.cache.counters();
    assert_eq!((counters.read_hits, counters.read_misses), (62, 2));
    let of = env.cache.namespaces();
    let own = of.iter().find(|of| of.namespace == Some(namespace("ns"))).expect("it was read");
    assert_eq!((own.read_ahead_bytes, own.read_ahead_used_bytes), (62 * BUCKET, 62 * BUCKET));
    env.validate();
}

#[test]
fn reads_in_no_order_are_not_read_ahead() {
    let object = id("volume");
    let mut env = with_object(config(WriteMode::Through), &object, 1024);
    (0..200).for_each(|nth| read_bucket(&mut env, &object, nth * 389 % 1024));
    assert_eq!((ahead(&env), asked(&env, &object).len()), ((0, 0, 0), 200));
}

#[test]
fn equal_steps_are_read_ahead_one_by_one() {
    let object = id("volume");
    let mut env = with_object(config(WriteMode::Through), &object, 1024);
    (0..64).for_each(|nth| read_bucket(&mut env, &object, nth * 16));
    let (read, used, wasted) = ahead(&env);
    assert_eq!((read, used, wasted), (60, 60, 0), "all but the four that showed the step");
    assert_eq!(asked(&env, &object).len(), 64, "and no request more");
}

#[test]
fn a_window_goes_on_over_what_is_in_the_cache() {
    let object = id("volume");
    let mut env = with_object(config(WriteMode::Through), &object, 64);
    read_bucket(&mut env, &object, 20);
    env.bytes(&object, 36 * BUCKET, 6 * BUCKET);
    (0..64).for_each(|at| read_bucket(&mut env, &object, at));
    // A gap of one bucket is read again with its neighbours; a gap of six buckets is not.
    let windows = [(2, 6), (6, 14), (14, 30), (30, 36), (42, 62), (62, 64)];
    assert_eq!(asked(&env, &object), [&[(20, 21), (36, 42), (0, 1), (1, 2)][..], &windows].concat());
    assert_eq!((ahead(&env), env.cache.counters().read_misses), ((55, 55, 0), 4));
    env.validate();
}

#[test]
fn a_window_that_ends_in_the_cache_leads_to_the_next_one() {
    let object = id("volume");
    let mut env = with_object(config(WriteMode::Through), &object, 128);
    // These reads cover the second half of the fourth window, and its trigger.
    env.bytes(&object, 22 * BUCKET, 8 * BUCKET);
    (0..128).for_each(|at| read_bucket(&mut env, &object, at));
    let windows = [(2, 6), (6, 14), (14, 22), (30, 62), (62, 126), (126, 128)];
    assert_eq!(asked(&env, &object), [&[(22, 30), (0, 1), (1, 2)][..], &windows].concat());
    assert_eq!(env.cache.counters().read_misses, 3);
    env.validate();
}

#[test]
fn what_lies_between_equal_steps_is_read_with_them_and_not_kept() {
    let object = id("volume");
    let mut env = with_object(config(WriteMode::Through), &object, 1024);
    for nth in 0..256 {
        let found = env.bytes(&object, nth * 4 * BUCKET, 3 * BUCKET);
        same(&found, &pattern(1, nth * 4 * BUCKET, 3 * BUCKET as usize), &format!("step {nth}"));
        env.sim.run_until_idle();
    }
    let (read, used, wasted) = ahead(&env);
    // The count includes all steps except the first four, and one bucket between every two steps of
    // a window.
    assert_eq!(used, 252 * 3);
    assert_eq!(read, used + wasted);
    assert!((100..252).contains(&wasted), "{wasted}");
    let requests = asked(&env, &object).len();
    assert!(requests < 256 / 4, "{requests}");
    read_bucket(&mut env, &object, 403);
    assert_eq!(asked(&env, &object).last(), Some(&(403, 404)), "it was not kept");
    env.validate();
}

#[test]
fn a_window_leaves_room_for_the_next_one() {
    let object = id("volume");
    let mut env = with_object(config(WriteMode::Through), &object, 1024);
    // An eighth of the memory equals the longest window.
    (0..1024).for_each(|at| read_bucket(&mut env, &object, at));
    assert_eq!((ahead(&env), env.cache.counters().read_misses), ((1022, 1022, 0), 2));
    env.validate();
}

#[test]
fn of_many_readers_each_has_a_window_that_stays_until_it_is_read() {
    let config =
        ObjectCacheConfig { memory_bytes_max: 1 << 20, objects_count_max: 64, ..config(WriteMode::Through) };
    let mut env = CacheEnvironment::new(config);
    let objects: Vec<_> = (0..8).map(|nth| id(&format!("volume {nth}x"))).collect();
    objects.iter().for_each(|object| env.others_write(object, pattern(1, 0, 200 * BUCKET as usize)));
    for at in 0..200 {
        objects.iter().for_each(|object| read_bucket(&mut env, object, at));
    }
    let (read, used, wasted) = ahead(&env);
    let misses = env.cache.counters().read_misses;
    assert!(wasted * 100 <= read && misses * 5 <= used, "{read} {used} {wasted} {misses}");
    env.validate();
}

#[test]
fn hints_decide_where_there_are_some() {
    let object = id("volume");
    for (hints, buckets) in [(Hints::SEQUENTIAL, 4), (Hints::RANDOM, 0), (Hints::NO_CACHE, 0)] {
        let mut env = with_object(config(WriteMode::Through), &object, 64);
        for at in 0..2 {
            let read = ReadRequest::new(object.clone(), at * BUCKET, BUCKET).hints(hints);
            let read = env.sim.spawn(env.cache.read(read));
            env.at_once(read).unwrap();
            assert_eq!(ahead(&env).0, buckets, "{hints:?}");
        }
    }
}

#[test]
fn a_read_waits_for_what_is_being_read_ahead_and_asks_for_no_more_than_the_rest() {
    let object = id("volume");
    let mut env = with_object(config(WriteMode::Through), &object, 64);
    hold_ahead(&env);
    (0..2).for_each(|at| read_bucket(&mut env, &object, at));
    assert_eq!(asked(&env, &object), [(0, 1), (1, 2), (2, 6)]);
    let within = env.read(&object, 3 * BUCKET, 2 * BUCKET);
    let across = env.read(&object, 5 * BUCKET, 3 * BUCKET);
    let elsewhere = env.read(&object, 0, 2 * BUCKET);
    env.at_once(elsewhere).unwrap();
    assert!(!within.is_done() && !across.is_done());
    assert_eq!(asked(&env, &object).len(), 3, "no second request for the same bytes");
    env.store.open();
    let (within, across) = (env.at_once(within).unwrap(), env.at_once(across).unwrap());
    same(&within.data.to_vec(), &pattern(1, 3 * BUCKET, 8192), "within");
    same(&across.data.to_vec(), &pattern(1, 5 * BUCKET, 12288), "across");
    assert!(asked(&env, &object)[3..].iter().all(|(first, _)| *first >= 6), "{:?}", asked(&env, &object));
    env.agrees(&object);
}

#[test]
fn a_read_whose_range_is_not_given_ahead_asks_by_itself() {
    let object = id("volume");
    let mut env = with_object(config(WriteMode::Through), &object, 64);
    hold_ahead(&env);
    (0..2).for_each(|at| read_bucket(&mut env, &object, at));
    let read = env.read(&object, 3 * BUCKET, BUCKET);
    env.sim.run_until_idle();
    let held = env.store.held();
    env.store.pass();
    env.store.fail(held[0].number, Error::Retryable("busy".into()));
    same(&env.at_once(read).unwrap().data.to_vec(), &pattern(1, 3 * BUCKET, 4096), "asked again");
    // No read waits forever for a store that does not respond.
    let mut env = with_object(config(WriteMode::Through), &object, 64);
    hold_ahead(&env);
    (0..2).for_each(|at| read_bucket(&mut env, &object, at));
    let read = env.read(&object, 3 * BUCKET, BUCKET);
    env.sim.run_until_idle();
    env.store.pass();
    env.sim.advance(Duration::from_secs(6));
    same(&env.at_once(read).unwrap().data.to_vec(), &pattern(1, 3 * BUCKET, 4096), "not waited for");
    env.store.open();
    env.agrees(&object);
}

#[test]
fn nothing_is_read_ahead_beside_a_change_that_is_on_its_way() {
    let object = id("volume");
    let mut env = with_object(config(WriteMode::Through), &object, 64);
    read_bucket(&mut env, &object, 20);
    env.store.hold_changes();
    let write = env.write(&object, 3 * BUCKET, pattern(2, 0, 4096));
    (0..2).for_each(|at| read_bucket(&mut env, &object, at));
    assert_eq!(asked(&env, &object), [(20, 21), (0, 1), (1, 2)]);
    env.store.open();
    env.at_once(write).unwrap();
    env.agrees(&object);
}

/// The event while the store's response is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meanwhile {
    Write,
    WriteAndFlush,
    Truncate,
    TruncateAndGrow,
    Delete,
    WriteFull,
    Discard,
    OthersWrite,
    OthersDelete,
    Evict,
}

#[test]
fn an_answer_that_is_out_of_date_is_not_kept() {
    use Meanwhile::*;
    let object = id("volume");
    let all = [
        Write,
        WriteAndFlush,
        Truncate,
        TruncateAndGrow,
        Delete,
        WriteFull,
        Discard,
        OthersWrite,
        OthersDelete,
        Evict,
    ];
    for mode in [WriteMode::Back, WriteMode::Through, WriteMode::Around] {
        for meanwhile in all {
            for reads_before in [false, true] {
                let mut env = with_object(config(mode), &object, 64);
                hold_ahead(&env);
                (0..2).for_each(|at| read_bucket(&mut env, &object, at));
                assert_eq!(asked(&env, &object).last(), Some(&(2, 6)));
                let held = env.perform_held();
                assert_eq!(held.len(), 1);
                // From here on the store responds immediately, except to earlier requests.
                env.store.pass();
                let changes = change(&mut env, &object, meanwhile);
                let reading = reads_before.then(|| env.read(&object, 2 * BUCKET, 4 * BUCKET));
                env.sim.run_until_idle();
                env.store.open();
                env.sim.run_until_idle();
                let label = format!("{mode:?}, {meanwhile:?}");
                assert!(changes.iter().all(test_kit::sim::Handle::is_done), "{label}");
                assert!(reading.is_none_or(|reading| reading.is_done()), "{label}");
                // Compares the whole object with the store once everything is stored.
                env.agrees(&object);
            }
        }
    }
}

fn change(
    env: &mut CacheEnvironment,
    object: &ObjectId,
    meanwhile: Meanwhile,
) -> Vec<test_kit::sim::Handle<Result<()>>> {
    let (cache, own) = (env.cache.clone(), object.clone());
    macro_rules! spawn {
        ($request:expr) => {{
            let reply = $request;
            env.sim.spawn(async move { reply.await.map(|_| ()) })
        }};
    }
    let write = |offset: u64, len: usize| {
        cache.write(WriteRequest::new(own.clone(), offset, pattern(2, offset, len)))
    };
    let started = match meanwhile {
        Meanwhile::Write => vec![spawn!(write(3 * BUCKET + 512, 1000)), spawn!(write(5 * BUCKET, 8192))],
        Meanwhile::WriteAndFlush => {
            let written = spawn!(write(3 * BUCKET + 512, 1000));
            env.sim.run_until_idle();
            vec![written, spawn!(cache.flush(FlushRequest::new(Scope::Object(own.clone()))))]
        }
        Meanwhile::Truncate => vec![spawn!(cache.truncate(TruncateRequest::new(own, 3 * BUCKET + 100)))],
        Meanwhile::TruncateAndGrow => {
            let cut = spawn!(cache.truncate(TruncateRequest::new(own.clone(), 3 * BUCKET + 100)));
            env.sim.run_until_idle();
            vec![cut, spawn!(cache.truncate(TruncateRequest::new(own, 20 * BUCKET)))]
        }
        Meanwhile::Delete => vec![spawn!(cache.delete(DeleteRequest::new(own)))],
        Meanwhile::WriteFull => {
            vec![spawn!(cache.write_full(WriteFullRequest::new(own, pattern(3, 0, 5 * BUCKET as usize + 7))))]
        }
        Meanwhile::Discard => vec![spawn!(cache.discard(DiscardRequest::new(own, 2 * BUCKET, 2 * BUCKET)))],
        Meanwhile::OthersWrite => {
            env.others_write(object, pattern(4, 0, 64 * BUCKET as usize));
            vec![spawn!(cache.invalidate(InvalidateRequest::new(Scope::Object(own))))]
        }
        Meanwhile::OthersDelete => {
            env.others_delete(object);
            vec![spawn!(cache.invalidate(InvalidateRequest::new(Scope::Object(own))))]
        }
        Meanwhile::Evict => {
            env.evict_all();
            Vec::new()
        }
    };
    env.sim.run_until_idle();
    started
}

#[test]
fn reading_ahead_ends_with_the_object_and_with_the_last_of_its_row() {
    let (first, second, third) = (id("disk.00000009"), id("disk.00000010"), id("disk.00000011"));
    let mut env = with_object(config(WriteMode::Through), &first, 7);
    env.others_write(&second, pattern(1, 0, 5 * BUCKET as usize));
    (0..7).for_each(|at| read_bucket(&mut env, &first, at));
    assert_eq!(asked(&env, &first), [(0, 1), (1, 2), (2, 6), (6, 7)], "nothing beyond its end");
    (0..5).for_each(|at| read_bucket(&mut env, &second, at));
    assert_eq!(env.calls(Op::Read, &second), 1, "all of it in one request, before it was asked for");
    assert_eq!((ahead(&env), env.cache.counters().read_misses), ((10, 10, 0), 2));
    assert_eq!(env.calls(Op::Read, &third), 1, "there is none");
    for _ in 0..3 {
        (0..7).for_each(|at| read_bucket(&mut env, &first, at));
        (0..5).for_each(|at| read_bucket(&mut env, &second, at));
    }
    assert_eq!(env.calls(Op::Read, &third), 1, "and it is not asked for again");
    // No client has requested the object, so its absence is not remembered.
    env.others_write(&third, pattern(1, 0, 4096));
    read_bucket(&mut env, &third, 0);
    env.validate();
}

#[test]
fn no_object_leaves_the_index_for_one_that_is_read_ahead() {
    let objects = [id("disk.1"), id("disk.2"), id("other")];
    let mut env =
        with_object(ObjectCacheConfig { objects_count_max: 2, ..config(WriteMode::Through) }, &objects[0], 6);
    env.others_write(&objects[1], pattern(1, 0, 4096));
    env.others_write(&objects[2], pattern(1, 0, 4096));
    read_bucket(&mut env, &objects[2], 0);
    (0..6).for_each(|at| read_bucket(&mut env, &objects[0], at));
    assert_eq!((env.calls(Op::Read, &objects[1]), env.cache.counters().object_evictions), (0, 0));
}

#[test]
fn over_a_fast_store_nothing_is_read_ahead() {
    let (object, other) = (id("volume"), id("other"));
    let config =
        ObjectCacheConfig { read_ahead_latency_min: Duration::from_millis(1), ..config(WriteMode::Through) };
    let mut env = with_object(config, &object, 64);
    env.others_write(&other, pattern(1, 0, 64 * BUCKET as usize));
    (0..32).for_each(|at| read_bucket(&mut env, &object, at));
    assert_eq!(ahead(&env), (0, 0, 0));
    for nth in 0..40 {
        env.hold(Op::Read, &other);
        let read = env.read(&other, nth * 37 % 64 * BUCKET, BUCKET);
        env.sim.run_until_idle();
        env.sim.advance(Duration::from_millis(1));
        env.store.open();
        env.at_once(read).unwrap();
    }
    (32..34).for_each(|at| read_bucket(&mut env, &object, at));
    assert!(ahead(&env).0 > 0);
}

/// Returns the number of requests that the store gets for pairs of consecutive buckets at scattered
/// positions.
fn requests_of_pairs(read_ahead_bytes_max: u64) -> (usize, (u64, u64, u64)) {
    let config =
        ObjectCacheConfig { read_ahead_bytes_max, memory_bytes_max: 1 << 20, ..config(WriteMode::Through) };
    let mut env = CacheEnvironment::new(config);
    let objects = ["a", "b", "c", "d", "e", "f", "g", "h"].map(id);
    objects.iter().for_each(|object| env.others_write(object, pattern(1, 0, 1024 * BUCKET as usize)));
    for nth in 0..6000 {
        let (object, at) = (&objects[nth as usize % 8], nth * 389 % 1021);
        read_bucket(&mut env, object, at);
        read_bucket(&mut env, object, at + 1);
    }
    env.validate();
    (env.store.count(Op::Read), ahead(&env))
}

#[test]
fn what_is_of_no_use_ends_and_costs_little() {
    let (without, none) = requests_of_pairs(0);
    let (with, (read, used, wasted)) = requests_of_pairs(1 << 20);
    assert_eq!(none, (0, 0, 0));
    println!(
        "{without} requests without, {with} with; {read} buckets read ahead, {used} used, {wasted} wasted"
    );
    assert!(wasted > used && with * 100 <= without * 103);
}

#[test]
fn unread_buckets_take_no_more_than_their_share() {
    let config =
        ObjectCacheConfig { memory_bytes_max: 1 << 20, objects_count_max: 64, ..config(WriteMode::Through) };
    let mut env = CacheEnvironment::new(config);
    for nth in 0..40 {
        let object = id(&format!("volume {nth}x"));
        env.others_write(&object, pattern(1, 0, 256 * BUCKET as usize));
        (0..8).for_each(|at| read_bucket(&mut env, &object, at));
        let (read, used, wasted) = ahead(&env);
        assert!(read - used - wasted <= 32, "an eighth of 256");
    }
    env.validate();
}

#[test]
fn the_settings_change_while_it_runs_and_for_one_namespace_alone() {
    let (object, other) = (id("volume"), ObjectId::new(namespace("other"), id("volume").name));
    let before = ObjectCacheConfig { read_ahead_bytes_max: 0, ..config(WriteMode::Through) };
    let mut env = with_object(before.clone(), &object, 64);
    env.others_write(&other, pattern(1, 0, 64 * BUCKET as usize));
    (0..8).for_each(|at| read_bucket(&mut env, &object, at));
    assert_eq!(ahead(&env), (0, 0, 0));
    let own = NamespaceConfig::new(namespace("ns"), WriteMode::Through);
    let own = own.with(NamespaceKey::ReadAheadBytesMax, 16 * KIB);
    let after = ObjectCacheConfig { namespaces: vec![own], ..before.clone() };
    env.cache.live_settings().change(&after).unwrap();
    (8..32).for_each(|at| read_bucket(&mut env, &object, at));
    (0..32).for_each(|at| read_bucket(&mut env, &other, at));
    let longest = asked(&env, &object).iter().map(|(first, end)| end - first).max();
    assert_eq!((longest, env.calls(Op::Read, &other)), (Some(4), 32));
    env.cache.live_settings().change(&before).unwrap();
    let so_far = ahead(&env).0;
    (40..60).for_each(|at| read_bucket(&mut env, &object, at));
    assert_eq!(ahead(&env).0, so_far);
}
