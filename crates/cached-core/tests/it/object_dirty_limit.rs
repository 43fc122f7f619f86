//! The dirty limit covers all changes that a crash can undo: zeros, truncations and removals as
//! well as bytes.

use std::sync::Arc;
use std::time::Duration;

use blocker::*;
use cached_core::object::{ObjectCache, ObjectCacheConfig};
use test_kit::sim::{Handle, Sim};
use test_kit::steered::{Op, SteeredStore};
use test_kit::{BUCKET, KIB, cache, content, fill, id, pattern, same, small};

const LIMIT: u64 = 64 * KIB;

struct Environment {
    sim: Sim,
    store: Arc<SteeredStore>,
    cache: ObjectCache,
    _running: Handle<()>,
}

/// Creates an environment with forty objects that the cache knows and the store has.
fn environment() -> Environment {
    let mut sim = Sim::new(None);
    let store = SteeredStore::new();
    (0..40).for_each(|n| fill(store.memory(), &object(n), pattern(n, 0, 40_000)));
    let config = ObjectCacheConfig {
        dirty_bytes_max: LIMIT,
        objects_count_max: 64,
        dirty_age_max: Duration::from_secs(3600),
        ..small(WriteMode::Back)
    };
    let (cache, background) = cache(Arc::clone(&store) as _, config, &sim.clock);
    let running = sim.spawn(background);
    for n in 0..40 {
        sim.run(cache.info(InfoRequest::new(object(n)))).unwrap();
    }
    store.hold_changes();
    Environment { sim, store, cache, _running: running }
}

fn object(n: u64) -> ObjectId {
    id(&format!("object-{n}"))
}

impl Environment {
    /// Returns how many of forty changes are acknowledged while the store does not respond. Then
    /// the store responds, and all changes must be acknowledged.
    #[track_caller]
    fn acknowledged<T: Unpin + 'static>(&mut self, change: impl Fn(&ObjectCache, u64) -> Reply<T>) -> u64 {
        let changes: Vec<_> = (0..40).map(|n| self.sim.spawn(change(&self.cache, n))).collect();
        self.sim.run_until_idle();
        let acknowledged = changes.iter().filter(|change| change.is_done()).count() as u64;
        assert!(self.cache.counters().dirty_bytes <= LIMIT, "{:?}", self.cache.counters());
        self.cache.validate().unwrap();
        self.store.open();
        for change in changes {
            self.sim.wait(change).unwrap_or_else(|error| panic!("{error}"));
        }
        let flush = self.cache.flush(FlushRequest::new(Scope::All));
        self.sim.run(flush).unwrap();
        assert_eq!(self.cache.counters().dirty_bytes, 0);
        self.cache.validate().unwrap();
        acknowledged
    }
}

#[test]
fn zeros_count_as_what_they_cover() {
    let mut env = environment();
    let write =
        |cache: &ObjectCache, n| cache.write_zeroes(WriteZeroesRequest::new(object(n), 0, 8 * BUCKET));
    assert_eq!(env.acknowledged(write), 2);
    let mut wanted = pattern(7, 0, 40_000);
    wanted[..32_768].fill(0);
    same(&content(env.store.memory(), &object(7)).unwrap(), &wanted, "stored");
}

#[test]
fn zeros_of_new_objects_count_as_well() {
    let mut env = environment();
    let new = |n| id(&format!("new-{}", n % 20));
    env.store.pass();
    (0..20).for_each(|n| {
        let asked = env.cache.info(InfoRequest::new(new(n)));
        assert!(matches!(env.sim.run(asked), Err(Error::Missing)));
    });
    env.store.hold_changes();
    let at = |n: u64| n / 20 * 8 * BUCKET;
    let write =
        |cache: &ObjectCache, n| cache.write_zeroes(WriteZeroesRequest::new(new(n), at(n), 8 * BUCKET));
    assert_eq!(env.acknowledged(write), 2);
    assert_eq!(content(env.store.memory(), &new(3)).unwrap().len() as u64, 16 * BUCKET);
}

#[test]
fn discards_count_as_what_they_cover() {
    let mut env = environment();
    let discard = |cache: &ObjectCache, n| cache.discard(DiscardRequest::new(object(n), 0, 8 * BUCKET));
    assert_eq!(env.acknowledged(discard), 2);
}

#[test]
fn zeros_among_runs_count() {
    let mut env = environment();
    let write = |cache: &ObjectCache, n| {
        let runs = vec![Run::data(0, vec![1; 4096]), Run::zeroes(BUCKET, 7 * BUCKET)];
        cache.write_runs(WriteRunsRequest::new(object(n), runs))
    };
    assert_eq!(env.acknowledged(write), 2);
}

#[test]
fn removals_cuts_and_empty_objects_count_as_one_bucket_each() {
    let most = LIMIT / BUCKET;
    let mut env = environment();
    assert_eq!(env.acknowledged(|cache, n| cache.truncate(TruncateRequest::new(object(n), 8192))), most);
    env.store.hold_changes();
    assert_eq!(env.acknowledged(|cache, n| cache.delete(DeleteRequest::new(object(n)))), most);
    assert_eq!(content(env.store.memory(), &object(39)), None);
    env.store.hold_changes();
    assert_eq!(env.acknowledged(|cache, n| cache.write(WriteRequest::new(object(n), 0, Vec::new()))), most);
    env.store.hold_changes();
    let empty = |cache: &ObjectCache, n| cache.write_full(WriteFullRequest::new(object(n), Vec::new()));
    assert_eq!(env.acknowledged(empty), most);
}

#[test]
fn more_zeros_than_the_limit_go_to_the_store_at_once() {
    let mut env = environment();
    env.store.pass();
    let zeros = WriteZeroesRequest::new(object(0), 0, 100 * BUCKET);
    let reply = env.sim.run(env.cache.write_zeroes(zeros)).unwrap();
    assert!(reply.size_bytes == 100 * BUCKET && env.store.count(Op::WriteZeroes) == 1);
    assert_eq!(env.cache.counters().dirty_bytes, 0);
    same(&content(env.store.memory(), &object(0)).unwrap(), &vec![0; 100 * BUCKET as usize], "stored");
}

#[test]
fn changes_that_leave_nothing_to_store_take_no_room() {
    let mut env = environment();
    for n in 0..100 {
        let new = id(&format!("brief-{}", n % 5));
        let zeros = env.cache.write_zeroes(WriteZeroesRequest::new(new.clone(), 0, 3 * BUCKET));
        env.sim.run(zeros).unwrap();
        env.sim.run(env.cache.delete(DeleteRequest::new(new))).unwrap();
        assert_eq!(env.cache.counters().dirty_bytes, 0, "the store was asked for nothing");
    }
    // A copy in memory needs dirty space for its zeros too.
    let (from, to) = (id("from"), id("to"));
    let zeros = env.cache.write_zeroes(WriteZeroesRequest::new(from.clone(), 0, 5 * BUCKET));
    env.sim.run(zeros).unwrap();
    let before = env.cache.counters().dirty_bytes;
    env.sim.run(env.cache.copy(CopyRequest::new(from, to))).unwrap();
    assert!(env.cache.counters().dirty_bytes >= before + 5 * BUCKET);
    env.cache.validate().unwrap();
    env.store.open();
    let flush = env.cache.flush(FlushRequest::new(Scope::All));
    env.sim.run(flush).unwrap();
    assert_eq!(env.cache.counters().dirty_bytes, 0);
}
