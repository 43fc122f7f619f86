//! A store that stalls, fails, is full, is claimed by another writer, or has few capabilities:
//! which operations continue and which wait, which errors are reported, and that no acknowledged
//! data are lost while the process lives.

use std::sync::Arc;
use std::time::Duration;

use blocker::faulty::FaultPlan;
use blocker::*;
use cached_core::object::{ObjectCache, ObjectCacheConfig};
use test_kit::sim::{Handle, Sim};
use test_kit::steered::{Op, SteeredStore, Verdict};
use test_kit::{BUCKET, KIB, cache, content, fill, id, pattern, same, small};

const SECOND: Duration = Duration::from_secs(1);

/// A cache over the faulty backend, with its background.
struct Environment {
    sim: Sim,
    memory: Arc<Memory>,
    faulty: Arc<Faulty>,
    cache: ObjectCache,
    running: Handle<()>,
}

fn faulty_environment(
    config: ObjectCacheConfig,
    change: impl FnOnce(&mut FaultPlan),
    prepare: impl FnOnce(&Memory),
) -> Environment {
    let mut sim = Sim::new(None);
    let memory = Arc::new(test_kit::memory(&sim.clock));
    prepare(&memory);
    let mut plan = FaultPlan::benign(1);
    change(&mut plan);
    let faulty = Arc::new(Faulty::new(Arc::clone(&memory) as _, plan, Arc::new(sim.clock.clone())));
    let (cache, background) = cache(Arc::clone(&faulty) as _, config, &sim.clock);
    let running = sim.spawn(background);
    Environment { sim, memory, faulty, cache, running }
}

impl Environment {
    /// Returns the response, which must arrive immediately.
    #[track_caller]
    fn at_once<T: Unpin + 'static>(&mut self, reply: Reply<T>) -> Result<T> {
        let handle = self.sim.spawn(reply);
        self.sim.run_until_idle();
        handle.take().expect("an answer at once")
    }

    #[track_caller]
    fn write(&mut self, object: &ObjectId, offset: u64, bytes: Vec<u8>) {
        let reply = self.cache.write(WriteRequest::new(object.clone(), offset, bytes));
        self.at_once(reply).unwrap();
    }

    #[track_caller]
    fn read(&mut self, object: &ObjectId, offset: u64, len: u64) -> Vec<u8> {
        let reply = self.cache.read(ReadRequest::new(object.clone(), offset, len));
        self.at_once(reply).unwrap().data.to_vec()
    }

    #[track_caller]
    fn validate(&self) {
        self.cache.validate().unwrap_or_else(|why| panic!("validate: {why}"));
    }

    #[track_caller]
    fn flush_all(&mut self) {
        let flush = self.cache.flush(FlushRequest::new(Scope::All));
        self.sim.run(flush).unwrap();
        assert_eq!(self.cache.counters().dirty_bytes, 0);
        self.validate();
    }
}

/// Causes `trouble` for some seconds, until `end`. The trouble must not delay hits, and no data may
/// be lost.
fn continues_during(seconds: u64, trouble: fn(&Faulty), end: fn(&Faulty), is_volatile: bool) {
    let mut config = small(WriteMode::Back);
    config.dirty_age_max = SECOND;
    config.dirty_bytes_max = 256 * KIB;
    let mut env = faulty_environment(
        config,
        |plan| plan.volatile = is_volatile,
        |memory| {
            for n in 0..3 {
                fill(memory, &id(&format!("clean-{n}")), pattern(n, 0, 65_536));
            }
            fill(memory, &id("absent"), pattern(9, 0, 65_536));
        },
    );
    let mut subscription = env.cache.subscribe();
    for n in 0..3 {
        env.read(&id(&format!("clean-{n}")), 0, 65_536);
    }
    let dirty = |n: u64| id(&format!("dirty-{n}"));
    for n in 0..4 {
        env.write(&dirty(n), 0, pattern(100 + n, 0, 8192));
    }
    trouble(&env.faulty);
    let failures_before = env.cache.counters().flush_failures;
    let calls_before = env.faulty.steps();
    let miss = env.sim.spawn(env.cache.read(ReadRequest::new(id("absent"), 0, 4096)));
    let mut wanted: Vec<Vec<u8>> = (0..4).map(|n| pattern(100 + n, 0, 8192)).collect();
    for second in 0..seconds {
        // Hits on clean and dirty data complete immediately in any state of the store, and so do
        // writes.
        for n in 0..3 {
            same(&env.read(&id(&format!("clean-{n}")), 0, 65_536), &pattern(n, 0, 65_536), "a clean hit");
        }
        for n in 0..4 {
            same(&env.read(&dirty(n), 0, 1 << 20), &wanted[n as usize], "a dirty hit");
        }
        let (n, offset) = (second % 4, second * 100 % 8000);
        let bytes = pattern(1000 + second, offset, 150);
        wanted[n as usize][offset as usize..][..150].copy_from_slice(&bytes);
        env.write(&dirty(n), offset, bytes);
        // A request with a deadline completes by the deadline.
        let deadline = env.sim.clock.now() + SECOND / 2;
        let late = env.cache.read(ReadRequest::new(id("absent"), 8192, 10).deadline(deadline));
        let late = env.sim.spawn(late);
        let flush = env.cache.flush(FlushRequest::new(Scope::Object(dirty(n))).deadline(deadline));
        let flush = env.sim.spawn(flush);
        env.sim.advance(SECOND);
        assert!(matches!(
            late.take().expect("an answer by its deadline"),
            Err(Error::DeadlinePassed | Error::Retryable(_))
        ));
        let reported = flush.take().expect("an answer by its deadline").unwrap_err();
        assert!(matches!(reported, Error::NotStored(_)), "{reported}");
        env.validate();
    }
    // Flushes are retried with increasing delays, so the store is not overloaded.
    let calls = env.faulty.steps() - calls_before;
    assert!(calls < 12 * seconds + 100, "{calls} calls in {seconds} s");
    end(&env.faulty);
    env.sim.advance(10 * SECOND);
    if let Some(answer) = miss.take() {
        match answer {
            Ok(reply) => same(&reply.data.to_vec(), &pattern(9, 0, 4096), "the miss"),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    } else {
        panic!("the miss waits for ever");
    }
    // Everything is stored without a flush request.
    env.sim.advance(10 * SECOND);
    assert_eq!(env.cache.counters().dirty_bytes, 0, "stored after the recovery");
    if is_volatile {
        env.faulty.crash();
        env.faulty.restart().unwrap();
    }
    for n in 0..4 {
        same(&content(&*env.memory, &dirty(n)).unwrap(), &wanted[n as usize], "stored");
    }
    let events: Vec<Event> = std::iter::from_fn(|| subscription.try_next()).collect();
    let has_failed = env.cache.counters().flush_failures > failures_before;
    if has_failed {
        assert!(events.iter().any(|event| matches!(event, Event::Degraded(_))), "{events:?}");
        assert!(events.contains(&Event::Recovered), "{events:?}");
    }
    env.validate();
    drop(env.cache);
    env.sim.run_until_idle();
    assert!(env.running.is_done());
}

#[test]
fn a_stall_of_30_seconds_delays_no_hit_and_loses_nothing() {
    for is_volatile in [false, true] {
        continues_during(30, Faulty::stall, Faulty::resume, is_volatile);
    }
}

#[test]
fn a_minute_of_errors_delays_no_hit_and_loses_nothing() {
    continues_during(60, Faulty::crash, |faulty| faulty.restart().unwrap(), false);
}

#[test]
fn a_crash_of_the_store_delays_no_hit_and_loses_nothing() {
    continues_during(60, Faulty::crash, |faulty| faulty.restart().unwrap(), true);
}

#[test]
fn a_stall_of_one_object_does_not_delay_others() {
    let (mut sim, store) = (Sim::new(None), SteeredStore::new());
    let (slow, fast) = (id("slow"), id("fast"));
    fill(store.memory(), &slow, pattern(1, 0, 65_536));
    fill(store.memory(), &fast, pattern(2, 0, 65_536));
    let mut config = small(WriteMode::Back);
    config.dirty_age_max = SECOND;
    let (cache, background) = cache(Arc::clone(&store) as _, config, &sim.clock);
    let _running = sim.spawn(background);
    let stalled = slow.clone();
    sim.run(cache.write(WriteRequest::new(slow.clone(), 0, pattern(3, 0, 4096)))).unwrap();
    store.rule(move |call| match call.object.as_ref() == Some(&stalled) {
        true => Verdict::Hold,
        false => Verdict::Pass,
    });
    let read = sim.spawn(cache.read(ReadRequest::new(slow.clone(), 8192, 4096)));
    let flush = sim.spawn(cache.flush(FlushRequest::new(Scope::Object(slow.clone()))));
    let copy = sim.spawn(cache.copy(CopyRequest::new(slow.clone(), id("copy"))));
    for second in 0..30_u64 {
        // Misses, writes and flushes of other objects are served as before.
        let at = second % 16 * BUCKET;
        let reply = sim.run(cache.read(ReadRequest::new(fast.clone(), at, BUCKET))).unwrap();
        assert_eq!(reply.data.len_bytes(), 4096);
        sim.run(cache.write(WriteRequest::new(fast.clone(), at, pattern(second, at, 4096)))).unwrap();
        let stored = WriteRequest::new(id(&format!("new-{second}")), 0, vec![1; 10]);
        let reply = sim.run(cache.write(stored.durability(Durability::Stored))).unwrap();
        assert_eq!(reply.durability, Durability::Stored);
        sim.run(cache.flush(FlushRequest::new(Scope::Object(fast.clone())))).unwrap();
        same(
            &content(store.memory(), &fast).unwrap()[at as usize..][..4096],
            &pattern(second, at, 4096),
            "flushed",
        );
        // Hits of the slow object itself are served as before, too.
        let hit = sim.run(cache.read(ReadRequest::new(slow.clone(), 100, 200))).unwrap();
        same(&hit.data.to_vec(), &pattern(3, 100, 200), "a hit of the slow one");
        sim.advance(SECOND);
        assert!(!read.is_done() && !flush.is_done());
        cache.validate().unwrap_or_else(|why| panic!("validate: {why}"));
    }
    assert!(store.held().len() <= 8, "the stalled store is not flooded: {:?}", store.held());
    store.open();
    same(&sim.wait(read).unwrap().data.to_vec(), &pattern(1, 8192, 4096), "the slow read");
    sim.wait(flush).unwrap();
    sim.wait(copy).unwrap();
}

#[test]
fn at_the_dirty_limit_writers_wait_and_are_served_in_order() {
    let mut config = small(WriteMode::Back);
    config.dirty_bytes_max = 64 * KIB;
    let mut env = faulty_environment(config, |_| (), |_| ());
    env.faulty.stall();
    let object = |n: u64| id(&format!("w-{}", n % 4));
    // Before the stall, the cache learns from the store that the objects are missing.
    env.faulty.resume();
    for n in 0..4 {
        env.write(&object(n), 0, vec![1; 10]);
    }
    env.flush_all();
    env.faulty.stall();
    let writes: Vec<_> = (0..64_u64)
        .map(|n| {
            let request = WriteRequest::new(object(n), n / 4 * BUCKET, pattern(n, n / 4 * BUCKET, 4096));
            env.sim.spawn(env.cache.write(request))
        })
        .collect();
    let impatient: Vec<_> = (0..8_u64)
        .map(|n| {
            let deadline = env.sim.clock.now() + (n as u32 + 1) * SECOND;
            let request = WriteRequest::new(object(n), 1 << 20, vec![1; 4096]).deadline(deadline);
            env.sim.spawn(env.cache.write(request))
        })
        .collect();
    env.sim.advance(20 * SECOND);
    let done = writes.iter().take_while(|write| write.is_done()).count();
    assert!((4..=16).contains(&done), "{done} fit");
    assert!(writes[done..].iter().all(|write| !write.is_done()), "first come, first served; none is failed");
    for write in impatient {
        let reported = write.take().expect("an answer at its deadline").unwrap_err();
        assert!(matches!(reported, Error::DeadlinePassed | Error::Retryable(_)), "{reported}");
    }
    assert!(env.cache.counters().dirty_bytes <= 64 * KIB);
    assert!(env.cache.counters().writes_throttled > 0);
    env.validate();
    env.faulty.resume();
    for write in writes {
        env.sim.wait(write).unwrap();
    }
    env.flush_all();
    for n in 0..64_u64 {
        let stored = content(&*env.memory, &object(n)).unwrap();
        assert!(stored.len() <= 1 << 20, "what had been refused was not done later");
        same(&stored[(n / 4 * BUCKET) as usize..][..4096], &pattern(n, n / 4 * BUCKET, 4096), "stored");
    }
}

#[test]
fn a_full_store_keeps_data_dirty_until_there_is_room() {
    let mut env =
        faulty_environment(small(WriteMode::Back), |plan| plan.space_bytes_max = Some(100_000), |_| ());
    let mut subscription = env.cache.subscribe();
    for n in 0..10_u64 {
        env.write(&id(&format!("o-{n}")), 0, pattern(n, 0, 20_000));
    }
    let deadline = env.sim.clock.now() + 20 * SECOND;
    let flush = env.cache.flush(FlushRequest::new(Scope::All).deadline(deadline));
    let reported = env.sim.run(flush).unwrap_err();
    assert!(matches!(reported, Error::NotStored(_)), "{reported}");
    let stored = (0..10).filter(|n| content(&*env.memory, &id(&format!("o-{n}"))).is_some()).count();
    assert!((3..=5).contains(&stored), "{stored} fit");
    for n in 0..10_u64 {
        same(&env.read(&id(&format!("o-{n}")), 0, 1 << 20), &pattern(n, 0, 20_000), "readable");
    }
    env.validate();
    let events: Vec<Event> = std::iter::from_fn(|| subscription.try_next()).collect();
    assert!(events.contains(&Event::Full), "{events:?}");
    // Another client frees space.
    for n in 0..8 {
        let delete = env.cache.delete(DeleteRequest::new(id(&format!("o-{n}"))));
        env.sim.run(delete).unwrap();
    }
    env.flush_all();
    for n in 8..10_u64 {
        same(&content(&*env.memory, &id(&format!("o-{n}"))).unwrap(), &pattern(n, 0, 20_000), "stored");
    }
    for n in 0..8 {
        assert_eq!(content(&*env.memory, &id(&format!("o-{n}"))), None);
    }
}

#[test]
fn a_deposed_cache_reports_the_loss_of_its_dirty_data() {
    let mut env = faulty_environment(small(WriteMode::Back), |_| (), |_| ());
    let (taken, kept) = (id("taken"), id("kept"));
    env.write(&taken, 0, pattern(1, 0, 8192));
    env.write(&kept, 0, pattern(2, 0, 8192));
    // Another writer claims one object without this cache, and writes it.
    let claim = ClaimRequest::new(Scope::Object(taken.clone()), Epoch(5), blocker::WriterId(1));
    blocker::executor::block_on(env.memory.claim(claim)).unwrap();
    let theirs = WriteFullRequest::new(taken.clone(), pattern(3, 0, 100)).stamp(Stamp::new(5, 1));
    blocker::executor::block_on(env.memory.write_full(theirs)).unwrap();
    let flush = env.cache.flush(FlushRequest::new(Scope::Object(taken.clone())));
    let reported = env.sim.run(flush).unwrap_err();
    assert!(matches!(reported, Error::WritesLost(_) | Error::Fenced { .. }), "{reported}");
    same(&content(&*env.memory, &taken).unwrap(), &pattern(3, 0, 100), "theirs is untouched");
    // The loss is reported until it is repaired.
    let flush = env.cache.flush(FlushRequest::new(Scope::Object(taken.clone())));
    let reported = env.sim.run(flush).unwrap_err();
    assert!(matches!(reported, Error::WritesLost(_)), "{reported}");
    let flush = env.cache.flush(FlushRequest::new(Scope::Object(kept.clone())));
    env.sim.run(flush).unwrap();
    same(&content(&*env.memory, &kept).unwrap(), &pattern(2, 0, 8192), "others are stored");
    assert!(env.cache.counters().lost_bytes > 0);
    env.validate();
    let invalidate = env.cache.invalidate(InvalidateRequest::new(Scope::Object(taken.clone())));
    env.sim.run(invalidate).unwrap();
    env.flush_all();
    same(&env.read(&taken, 0, 1 << 20), &pattern(3, 0, 100), "what the other has written");
}

#[test]
fn an_invalid_epoch_fences_nobody_although_its_claim_failed_otherwise_before() {
    let (mut sim, store) = (Sim::new(None), SteeredStore::new());
    let (cache, background) = cache(Arc::clone(&store) as _, small(WriteMode::Back), &sim.clock);
    let _running = sim.spawn(background);
    let object = id("claimed");
    let claim =
        |epoch| cache.claim(ClaimRequest::new(Scope::Object(object.clone()), Epoch(epoch), WriterId(1)));
    sim.run(claim(7)).unwrap();
    let too_far = 7 + admission::EPOCH_STEP_MAX + 1;
    store.rule(|call| match call.op {
        Op::Claim => Verdict::Fail(Error::Retryable("away".into())),
        _ => Verdict::Pass,
    });
    assert!(matches!(sim.run(claim(too_far)), Err(Error::Retryable(_))));
    store.pass();
    assert!(matches!(sim.run(claim(too_far)), Err(Error::Invalid(_))));
    let write = |epoch| {
        let write = WriteRequest::new(object.clone(), 0, pattern(1, 0, 100));
        cache.write(write.stamp(Stamp::new(epoch, 1)))
    };
    let earlier = sim.run(write(6));
    assert!(matches!(earlier, Err(Error::Fenced { epoch: Epoch(7) })), "{earlier:?}");
    sim.run(write(7)).unwrap();
    sim.run(claim(8)).unwrap();
}

#[test]
fn an_epoch_in_force_stays_although_its_claim_has_run_out_of_space() {
    let (mut sim, store) = (Sim::new(None), SteeredStore::new());
    store.silence();
    let (cache, background) = cache(Arc::clone(&store) as _, small(WriteMode::Back), &sim.clock);
    let _running = sim.spawn(background);
    let object = id("claimed");
    let write = |sequence| {
        let write = WriteRequest::new(object.clone(), 0, pattern(1, 0, 100));
        cache.write(write.stamp(Stamp::new(6, sequence)))
    };
    sim.run(write(1)).unwrap();
    let mut is_first = true;
    store.rule(move |call| match call.op == Op::Claim && std::mem::take(&mut is_first) {
        true => Verdict::DoAndFail(Error::OutOfSpace("full".into())),
        false => Verdict::Pass,
    });
    let claim = ClaimRequest::new(Scope::Object(object.clone()), Epoch(7), WriterId(1));
    assert!(matches!(sim.run(cache.claim(claim)), Err(Error::OutOfSpace(_))));
    let earlier = sim.run(write(2));
    assert!(matches!(earlier, Err(Error::Fenced { epoch: Epoch(7) })), "{earlier:?}");
}

/// The second claim finds the epoch raised by the first one, which still stores older changes.
#[test]
fn of_two_claims_of_an_epoch_neither_is_made_before_older_changes_are_stored() {
    let (mut sim, store) = (Sim::new(None), SteeredStore::new());
    store.silence();
    let (cache, background) = cache(Arc::clone(&store) as _, small(WriteMode::Back), &sim.clock);
    let _running = sim.spawn(background);
    let [first, second] = [id("first"), id("second")];
    // A stamped change would not be written back.
    let write = |object: &ObjectId| cache.write(WriteRequest::new(object.clone(), 0, pattern(1, 0, 100)));
    sim.run(write(&first)).unwrap();
    store.hold_changes();
    let namespace = Scope::Namespace(first.namespace.clone());
    let claim = || cache.claim(ClaimRequest::new(namespace.clone(), Epoch(7), WriterId(1)));
    let claims = [sim.spawn(claim()), sim.spawn(claim())];
    sim.run_until_idle();
    sim.run(write(&second)).unwrap();
    // The writes have asked for the epoch in force.
    store.clear_log();
    assert!(store.answer_first());
    sim.run_until_idle();
    let held: Vec<_> = store.held().into_iter().map(|call| call.object).collect();
    assert_eq!((held, store.count(Op::Claim)), (vec![Some(second.clone())], 0));
    store.open();
    for claim in claims {
        sim.wait(claim).unwrap();
    }
    same(&content(store.memory(), &second).unwrap(), &pattern(1, 0, 100), "it was acknowledged");
}

#[test]
fn a_store_of_small_requests_gets_small_requests() {
    let (mut sim, store) = (Sim::new(None), SteeredStore::new());
    store.limit(|capabilities| capabilities.request_bytes_max = 16 * KIB);
    fill(store.memory(), &id("old"), pattern(1, 0, 200 << 10));
    let (cache, background) = cache(Arc::clone(&store) as _, small(WriteMode::Back), &sim.clock);
    let _running = sim.spawn(background);
    let most = cache.capabilities().request_bytes_max;
    for at in (0..200 * KIB).step_by(most.min(200 * KIB) as usize) {
        let len = most.min(200 * KIB - at);
        let write = WriteRequest::new(id("new"), at, pattern(2, at, len as usize));
        sim.run(cache.write(write)).unwrap();
        let read = sim.run(cache.read(ReadRequest::new(id("old"), at, len))).unwrap();
        same(&read.data.to_vec(), &pattern(1, at, len as usize), "loaded");
    }
    sim.run(cache.flush(FlushRequest::new(Scope::All))).unwrap();
    same(&content(store.memory(), &id("new")).unwrap(), &pattern(2, 0, 200 << 10), "flushed");
    let large: Vec<_> = store.log().into_iter().filter(|call| call.len > 16 * KIB).collect();
    assert!(large.is_empty(), "{large:?}");
    let writes = store.count(Op::Write) + store.count(Op::WriteFull);
    assert!(writes <= 13 + 2, "and no smaller than need be: {writes}");
}

#[test]
fn a_flush_merges_what_lies_together() {
    let (mut sim, store) = (Sim::new(None), SteeredStore::new());
    let (cache, background) = cache(Arc::clone(&store) as _, small(WriteMode::Back), &sim.clock);
    let _running = sim.spawn(background);
    // There are 512 writes of one sector each, in random order, and a second run far away.
    for n in 0..512_u64 {
        let at = n * 37 % 512 * 512;
        sim.run(cache.write(WriteRequest::new(id("log"), at, pattern(1, at, 512)))).unwrap();
    }
    let far = WriteRequest::new(id("log"), 1 << 20, pattern(1, 1 << 20, 700));
    sim.run(cache.write(far)).unwrap();
    sim.run(cache.flush(FlushRequest::new(Scope::All))).unwrap();
    let mut wanted = pattern(1, 0, 512 * 512);
    wanted.resize(1 << 20, 0);
    wanted.extend(pattern(1, 1 << 20, 700));
    same(&content(store.memory(), &id("log")).unwrap(), &wanted, "merged");
    let changes = store.log().iter().filter(|call| call.op.is_change()).count();
    assert!(changes <= 3, "{changes} requests for two runs");
    assert_eq!(store.count(Op::Read), 0, "aligned sectors need no read");
}

#[test]
fn parallel_misses_on_one_object_reach_the_store_together() {
    let (mut sim, store) = (Sim::new(None), SteeredStore::new());
    fill(store.memory(), &id("object"), pattern(1, 0, 256 << 10));
    let (cache, background) = cache(Arc::clone(&store) as _, small(WriteMode::Back), &sim.clock);
    let _running = sim.spawn(background);
    store.hold(&[Op::Read]);
    let reads: Vec<_> = (0..16)
        .map(|n| sim.spawn(cache.read(ReadRequest::new(id("object"), n * 3 * BUCKET, BUCKET))))
        .collect();
    sim.run_until_idle();
    assert_eq!(store.held().len(), 16, "sixteen deep");
    // The responses arrive in any order.
    while let Some(last) = store.held().last() {
        store.answer(last.number);
        sim.run_until_idle();
    }
    for (n, read) in (0..).zip(reads) {
        same(&read.get().unwrap().data.to_vec(), &pattern(1, n * 3 * BUCKET, 4096), "a miss");
    }
    assert_eq!(store.count(Op::Read), 16);
}

#[test]
fn an_event_from_below_drops_clean_data_and_keeps_dirty_data() {
    let mut env = faulty_environment(
        small(WriteMode::Back),
        |_| (),
        |memory| {
            fill(memory, &id("object"), pattern(1, 0, 16_384));
        },
    );
    env.read(&id("object"), 0, 16_384);
    env.write(&id("object"), 4096, pattern(2, 4096, 4096));
    // Another client writes the whole object, and the store reports the change.
    fill(&env.memory, &id("object"), pattern(3, 0, 16_384));
    let invalidate = InvalidateRequest::new(Scope::Object(id("object")));
    blocker::executor::block_on(env.memory.invalidate(invalidate)).unwrap();
    env.sim.run_until_idle();
    let mut wanted = pattern(3, 0, 16_384);
    wanted[4096..8192].copy_from_slice(&pattern(2, 4096, 4096));
    same(&env.read(&id("object"), 0, 16_384), &wanted, "the new bytes and the cache's dirty ones");
    env.flush_all();
    same(&content(&*env.memory, &id("object")).unwrap(), &wanted, "stored");
}
