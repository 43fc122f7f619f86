//! The requests of a flush: as few as the store accepts, each of them a single change, sent when
//! the age of the data requires it.

use std::sync::Arc;
use std::time::Duration;

use blocker::*;
use cached_core::object::{ObjectCache, ObjectCacheConfig, Writer};
use test_kit::sim::{Handle, Sim};
use test_kit::steered::{CallInfo, Op, SteeredStore};
use test_kit::{BUCKET, KIB, cache, content, fill, id, pattern, same, small};

const SECOND: Duration = Duration::from_secs(1);

struct Environment {
    sim: Sim,
    store: Arc<SteeredStore>,
    cache: ObjectCache,
    running: Handle<()>,
}

fn environment(config: ObjectCacheConfig, limit: fn(&mut Capabilities)) -> Environment {
    let mut sim = Sim::new(None);
    let store = SteeredStore::new();
    store.limit(limit);
    let (cache, background) = cache(Arc::clone(&store) as _, config, &sim.clock);
    let running = sim.spawn(background);
    Environment { sim, store, cache, running }
}

impl Environment {
    fn write(&mut self, object: &ObjectId, offset: u64, bytes: Vec<u8>) {
        let reply = self.cache.write(WriteRequest::new(object.clone(), offset, bytes));
        self.sim.run(reply).unwrap();
    }

    fn flush(&mut self) {
        let flush = self.cache.flush(FlushRequest::new(Scope::All));
        self.sim.run(flush).unwrap();
        assert_eq!(self.cache.counters().dirty_bytes, 0);
        self.cache.validate().unwrap();
    }

    fn changes(&self) -> Vec<CallInfo> {
        self.store.log().into_iter().filter(|call| call.op.is_change()).collect()
    }

    fn end(self) {
        let Self { mut sim, cache, running, .. } = self;
        drop(cache);
        sim.run_until_idle();
        assert!(running.take().is_some(), "the background ends with the cache");
    }
}

fn back() -> ObjectCacheConfig {
    ObjectCacheConfig { writer: Writer::Cache, ..small(WriteMode::Back) }
}

/// Writes every other bucket of an object that the store already has.
fn scatter(env: &mut Environment, object: &ObjectId, count: u64) -> Vec<u8> {
    let mut wanted = pattern(1, 0, (2 * count * BUCKET) as usize);
    fill(env.store.memory(), object, wanted.clone());
    for n in 0..count {
        let at = 2 * n * BUCKET;
        let bytes = pattern(100 + n, at, BUCKET as usize);
        wanted[at as usize..][..BUCKET as usize].copy_from_slice(&bytes);
        env.write(object, at, bytes);
    }
    wanted
}

#[test]
fn scattered_buckets_go_in_one_change() {
    let mut env = environment(back(), |_| ());
    let object = id("scattered");
    let wanted = scatter(&mut env, &object, 20);
    let before = env.changes().len();
    env.flush();
    let sent = env.changes().split_off(before);
    assert_eq!(sent.iter().map(|call| call.op).collect::<Vec<_>>(), [Op::WriteRuns]);
    assert_eq!((sent[0].offset, sent[0].end()), (0, 39 * BUCKET));
    assert!(sent[0].stamp.is_some() && sent[0].durability == Some(Durability::Stored));
    same(&content(env.store.memory(), &object).unwrap(), &wanted, "flushed");
    assert_eq!(env.cache.counters().flush_requests, 1);
    env.end();
}

/// A flush also sends whole objects and removals, not only parts of objects.
#[test]
fn every_change_that_a_flush_sends_is_counted() {
    let mut env = environment(back(), |_| ());
    let object = id("whole");
    env.write(&object, 0, pattern(1, 0, 3 * BUCKET as usize));
    env.flush();
    assert_eq!((env.changes().len(), env.cache.counters().flush_requests), (1, 1));
    let removed = env.cache.delete(DeleteRequest::new(object.clone()));
    env.sim.run(removed).unwrap();
    env.flush();
    assert_eq!((env.changes().len(), env.cache.counters().flush_requests), (2, 2));
    assert!(content(env.store.memory(), &object).is_none());
    env.end();
}

#[test]
fn a_store_that_takes_few_runs_gets_as_many_changes_as_it_needs() {
    type Limit = fn(&mut Capabilities);
    let few: [(Limit, usize, Op); 3] = [
        (|can| can.runs_max = 0, 20, Op::Write),
        (|can| can.runs_max = 6, 4, Op::WriteRuns),
        (|can| can.request_bytes_max = 5 * BUCKET, 4, Op::WriteRuns),
    ];
    for (limit, count, op) in few {
        let mut env = environment(back(), limit);
        let object = id("scattered");
        let wanted = scatter(&mut env, &object, 20);
        env.flush();
        let sent = env.changes();
        assert_eq!(sent.iter().map(|call| call.op).collect::<Vec<_>>(), vec![op; count]);
        let stamps: Vec<_> = sent.iter().map(|call| call.stamp.unwrap()).collect();
        assert!(stamps.is_sorted(), "stamps reach the store in their order: {stamps:?}");
        same(&content(env.store.memory(), &object).unwrap(), &wanted, "flushed");
        env.end();
    }
}

/// The change that stores the bytes also moves the object's end.
#[test]
fn a_moved_end_is_sent_with_the_bytes() {
    let mut env = environment(back(), |_| ());
    let object = id("longer");
    env.write(&object, 0, pattern(1, 0, 100));
    let longer = env.cache.truncate(TruncateRequest::new(object.clone(), 50_000));
    env.sim.run(longer).unwrap();
    env.flush();
    assert_eq!(env.changes().iter().map(|call| call.op).collect::<Vec<_>>(), [Op::WriteRuns]);
    let mut wanted = pattern(1, 0, 100);
    wanted.resize(50_000, 0);
    same(&content(env.store.memory(), &object).unwrap(), &wanted, "flushed");
    env.end();
}

/// The age of a change that is acknowledged during a long flush of the same object counts from the
/// change, not from the end of that flush: its own flush begins when it reaches the maximum age.
#[test]
fn changes_during_a_long_flush_keep_their_age() {
    let mut config = back();
    config.dirty_age_max = 10 * SECOND;
    let mut env = environment(config, |_| ());
    let object = id("busy");
    env.write(&object, 0, pattern(1, 0, 4096));
    env.store.hold(&[Op::Write, Op::WriteRuns]);
    env.sim.advance(10 * SECOND);
    assert_eq!(env.store.held().len(), 1, "the first flush is under way");
    env.sim.advance(SECOND);
    env.write(&object, 0, pattern(2, 0, 4096));
    env.sim.advance(8 * SECOND);
    env.store.open();
    env.sim.run_until_idle();
    assert!(env.cache.counters().dirty_bytes > 0, "the second write is nine seconds old at most");
    env.sim.advance(2 * SECOND);
    assert_eq!(env.cache.counters().dirty_bytes, 0, "and now it has been stored");
    same(&content(env.store.memory(), &object).unwrap(), &pattern(2, 0, 4096), "flushed");
    env.end();
}

/// Under pressure, the object that has waited longest is flushed, not the one that was flushed most
/// recently.
#[test]
fn under_pressure_the_object_that_has_waited_longest_is_flushed_first() {
    let mut config = back();
    config.dirty_bytes_max = 64 * KIB;
    config.flush_requests_max = 1;
    let mut env = environment(config, |_| ());
    let objects: Vec<_> = (0..4).map(|n| id(&format!("object-{n}"))).collect();
    // The first object is written repeatedly; the others have the same amount of dirty data.
    for round in 0..40 {
        for (n, object) in objects.iter().enumerate() {
            env.sim.advance(Duration::from_millis(1));
            if n == 0 || round % 4 == 0 {
                env.write(object, round % 8 * BUCKET, pattern(round, 0, 4096));
            }
        }
    }
    let flushed =
        |object: &ObjectId| env.changes().iter().filter(|call| call.object.as_ref() == Some(object)).count();
    for object in &objects {
        assert!(flushed(object) > 1, "{object} was flushed {} times", flushed(object));
    }
    env.end();
}
