//! Quotas of namespaces: growth beyond them is refused before it is acknowledged, in every write mode.

use std::sync::Arc;
use std::time::Duration;

use blocker::*;
use cached_core::object::{NamespaceConfig, NamespaceCounters, ObjectCache, ObjectCacheConfig};
use test_kit::sim::{Handle, Sim};
use test_kit::steered::{Op, SteeredStore};
use test_kit::{BUCKET, cache, fill, namespace, small};

const QUOTA: u64 = 10 * BUCKET;
/// The content of the store at the start: five buckets in two objects.
const BEFORE: u64 = 5 * BUCKET;

struct Environment {
    sim: Sim,
    store: Arc<SteeredStore>,
    cache: ObjectCache,
    config: ObjectCacheConfig,
    _running: Handle<()>,
}

fn object(name: &str) -> ObjectId {
    ObjectId::new(namespace("vm"), Name::copy_from(name.as_bytes()).unwrap())
}

fn own(write: WriteMode, quota: Option<u64>) -> NamespaceConfig {
    NamespaceConfig::new(namespace("vm"), write).with(NamespaceKey::QuotaBytesMax, quota)
}

fn environment(write: WriteMode) -> Environment {
    let mut sim = Sim::new(None);
    let store = SteeredStore::new();
    fill(store.memory(), &object("a"), vec![1; 3 * BUCKET as usize]);
    fill(store.memory(), &object("b"), vec![1; 2 * BUCKET as usize]);
    let config = ObjectCacheConfig { namespaces: vec![own(write, Some(QUOTA))], ..small(write) };
    let (cache, background) = cache(Arc::clone(&store) as _, config.clone(), &sim.clock);
    let running = sim.spawn(background);
    sim.run_until_idle();
    Environment { sim, store, cache, config, _running: running }
}

impl Environment {
    fn write(&mut self, name: &str, bucket: u64, buckets: u64) -> Result<ChangeReply> {
        let data = vec![7; (buckets * BUCKET) as usize];
        let answer = self.sim.run(self.cache.write(WriteRequest::new(object(name), bucket * BUCKET, data)));
        self.cache.validate().unwrap();
        answer
    }

    fn counters(&self) -> NamespaceCounters {
        let all = self.cache.namespaces();
        all.into_iter().find(|of| of.namespace == Some(namespace("vm"))).expect("it is configured")
    }

    /// Returns the usage, in buckets.
    #[track_caller]
    fn used(&self) -> u64 {
        let quota = self.counters().quota.expect("it has a quota");
        assert!(quota.is_counted);
        quota.used_bytes / BUCKET
    }

    fn change(&mut self, quota: Option<u64>) {
        let write = self.config.write;
        let after = ObjectCacheConfig { namespaces: vec![own(write, quota)], ..self.config.clone() };
        self.cache.live_settings().change(&after).unwrap();
        self.config = after;
        self.sim.run_until_idle();
    }

    /// Asserts that the counted usage equals the namespace's size once everything is stored.
    #[track_caller]
    fn check(&mut self) {
        self.sim.run(self.cache.flush(FlushRequest::new(Scope::All))).unwrap();
        let list = self.sim.run(self.store.memory().list(ListRequest::new(namespace("vm")))).unwrap();
        let stored: u64 = list.entries.iter().map(|entry| entry.size_bytes).sum();
        assert_eq!(self.counters().quota.unwrap().used_bytes, stored);
    }
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(answer: Result<T>) {
    assert!(matches!(answer, Err(Error::OutOfSpace(_))), "{answer:?}");
}

const MODES: [WriteMode; 3] = [WriteMode::Back, WriteMode::Through, WriteMode::Around];

#[test]
fn growth_is_refused_at_the_write_and_what_is_cut_comes_back() {
    for mode in MODES {
        let mut env = environment(mode);
        assert_eq!(env.used(), BEFORE / BUCKET, "{mode}");
        env.write("c", 0, 4).unwrap();
        assert_eq!(env.used(), 9);
        let before = env.store.log().len();
        let error = env.write("d", 0, 2).unwrap_err();
        let wanted = "out of space: namespace \"vm\" has 36864 of its quota of 40960 bytes, and 8192 more bytes would exceed it";
        assert_eq!(error.to_string(), wanted, "{mode}");
        assert!(
            env.store.log()[before..].iter().all(|call| !call.op.is_change()),
            "{mode}: refused at the write"
        );
        env.write("a", 0, 3).unwrap();
        env.write("d", 0, 1).unwrap();
        assert_refused(env.write("a", 3, 1));
        assert_eq!(env.counters().quota_refusals, 2);
        env.sim.run(env.cache.truncate(TruncateRequest::new(object("c"), BUCKET))).unwrap();
        assert_eq!(env.used(), 7);
        env.sim.run(env.cache.delete(DeleteRequest::new(object("b")))).unwrap();
        assert_eq!(env.used(), 5);
        assert_refused(env.sim.run(env.cache.truncate(TruncateRequest::new(object("a"), 20 * BUCKET))));
        env.sim
            .run(env.cache.write_full(WriteFullRequest::new(object("a"), vec![1; BUCKET as usize])))
            .unwrap();
        assert_eq!(env.used(), 3);
        env.sim.run(env.cache.copy(CopyRequest::new(object("c"), object("e")))).unwrap();
        assert_eq!(env.used(), 4);
        let zeroes = WriteZeroesRequest::new(object("f"), 0, 6 * BUCKET);
        env.sim.run(env.cache.write_zeroes(zeroes)).unwrap();
        assert_refused(env.sim.run(env.cache.copy(CopyRequest::new(object("c"), object("g")))));
        env.check();
        assert_eq!(env.used(), 10);
    }
}

#[test]
fn a_change_that_settles_what_was_acknowledged_is_counted_and_not_refused() {
    for mode in MODES {
        let mut env = environment(mode);
        env.write("c", 0, 5).unwrap();
        assert_refused(env.write("d", 0, 2));
        let settling = WriteRequest::new(object("d"), 0, vec![7; 2 * BUCKET as usize]).settles(true);
        env.sim.run(env.cache.write(settling)).unwrap();
        assert_eq!(env.used(), 12, "{mode}");
        env.sim.run(env.cache.copy(CopyRequest::new(object("b"), object("e")).settles(true))).unwrap();
        assert_eq!(env.used(), 14, "{mode}");
        assert_refused(env.write("f", 0, 1));
        env.check();
    }
}

#[test]
fn a_change_that_the_store_refuses_takes_nothing() {
    for mode in [WriteMode::Through, WriteMode::Around] {
        let mut env = environment(mode);
        env.store.hold(&[Op::Write]);
        let write = WriteRequest::new(object("c"), 0, vec![7; 5 * BUCKET as usize]);
        let written = env.sim.spawn(env.cache.write(write));
        env.sim.run_until_idle();
        assert_eq!(env.used(), 10, "taken before the store is asked");
        let held = env.store.held()[0].number;
        env.store.fail(held, Error::Retryable("busy".into()));
        assert!(env.sim.wait(written).is_err());
        assert_eq!(env.used(), 5);
        env.store.open();
        env.check();
    }
}

#[test]
fn what_overlaps_is_counted_once() {
    for mode in MODES {
        let mut env = environment(mode);
        let write = |env: &mut Environment, at: u64, len: u64| {
            let data = vec![7; (len * BUCKET) as usize];
            env.sim.spawn(env.cache.write(WriteRequest::new(object("c"), at * BUCKET, data)))
        };
        let writes =
            [write(&mut env, 0, 3), write(&mut env, 3, 2), write(&mut env, 1, 3), write(&mut env, 0, 1)];
        for write in writes {
            env.sim.wait(write).unwrap();
        }
        assert_eq!(env.used(), 10, "{mode}");
        env.check();
    }
}

#[test]
fn a_flush_is_never_refused_and_a_lower_quota_refuses_only_growth() {
    let mut env = environment(WriteMode::Back);
    env.write("c", 0, 5).unwrap();
    env.change(Some(2 * BUCKET));
    assert_refused(env.write("c", 5, 1));
    env.check();
    env.write("c", 0, 5).unwrap();
    env.sim.run(env.cache.delete(DeleteRequest::new(object("b")))).unwrap();
    env.change(None);
    env.write("c", 5, 9).unwrap();
    assert_eq!(env.counters().quota, None);
    env.change(Some(100 * BUCKET));
    assert_eq!(env.used(), 3 + 14, "counted anew");
    let quota = env.sim.run(env.cache.control().quota(namespace("vm"))).unwrap();
    assert_eq!((quota.bytes_max, quota.used_bytes), (Some(100 * BUCKET), 17 * BUCKET));
}

#[test]
fn what_other_writers_free_is_found_after_a_refusal() {
    let mut env = environment(WriteMode::Back);
    env.write("c", 0, 5).unwrap();
    env.sim.run(env.store.memory().delete(DeleteRequest::new(object("a")))).unwrap();
    assert_refused(env.write("c", 5, 1));
    env.sim.advance(Duration::from_secs(61));
    assert_refused(env.write("c", 5, 1));
    env.sim.run_until_idle();
    assert_eq!(env.used(), 7);
    env.write("c", 5, 3).unwrap();
}

#[test]
fn a_count_waits_for_the_store_and_changes_meanwhile_are_counted_once() {
    let mut sim = Sim::new(None);
    let store = SteeredStore::new();
    for number in 0..30 {
        fill(store.memory(), &object(&format!("{number:02}")), vec![1; BUCKET as usize]);
    }
    store.limit(|can| can.list_entries_max = 4);
    store.hold(&[Op::List]);
    let config = ObjectCacheConfig {
        namespaces: vec![own(WriteMode::Back, Some(100 * BUCKET))],
        objects_count_max: 64,
        ..small(WriteMode::Back)
    };
    let (cache, background) = cache(Arc::clone(&store) as _, config.clone(), &sim.clock);
    let _running = sim.spawn(background);
    let mut changed = 0;
    for turn in 0..40_u64 {
        sim.run_until_idle();
        // The position of the count is before, at and after the changed objects, some of which are
        // new, larger, smaller or removed.
        let name = object(&format!("{:02}", turn * 7 % 31));
        match turn % 4 {
            0 => drop(sim.run(cache.delete(DeleteRequest::new(name)))),
            _ => {
                let whole = WriteFullRequest::new(name, vec![1; (turn % 4 * BUCKET) as usize]);
                sim.run(cache.write_full(whole)).unwrap();
            }
        }
        changed += 1;
        if turn % 3 == 0 {
            store.answer_first();
        }
        if turn % 5 == 0 {
            sim.run(cache.flush(FlushRequest::new(Scope::All))).unwrap();
        }
    }
    store.open();
    sim.run_until_idle();
    sim.run(cache.flush(FlushRequest::new(Scope::All))).unwrap();
    let list = sim.run(store.memory().list(ListRequest::new(namespace("vm")))).unwrap();
    let stored: u64 = list.entries.iter().map(|entry| entry.size_bytes).sum();
    let quota = cache.namespaces().iter().find_map(|of| of.quota).expect("it has one");
    assert!(changed == 40 && quota.is_counted);
    assert_eq!(quota.used_bytes, stored);
    cache.validate().unwrap();
}
