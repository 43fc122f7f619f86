//! Rate limits of namespaces at the store: which requests wait, which do not, and which work a wait
//! delays.

use std::sync::Arc;
use std::time::Duration;

use blocker::*;
use cached_core::object::{
    ConfigError, NamespaceConfig, NamespaceCounters, ObjectCache, ObjectCacheConfig, StoreTerms,
};
use test_kit::sim::{Handle, Sim};
use test_kit::steered::{Op, SteeredStore};
use test_kit::{BUCKET, cache, fill, namespace, small};

const SECOND: Duration = Duration::from_secs(1);

struct Environment {
    sim: Sim,
    store: Arc<SteeredStore>,
    cache: ObjectCache,
    config: ObjectCacheConfig,
    _running: Handle<()>,
}

fn rate(per_second: u64) -> StoreTerms {
    let without = StoreTerms::default();
    StoreTerms { requests_per_second_max: Some(per_second), burst: Duration::ZERO, ..without }
}

fn own(name: &str, write: WriteMode, store: StoreTerms) -> NamespaceConfig {
    NamespaceConfig::new(namespace(name), write).with_store_terms(store)
}

fn object(name: &str, number: u64) -> ObjectId {
    ObjectId::new(namespace(name), Name::copy_from(format!("object-{number}").as_bytes()).unwrap())
}

fn config(namespaces: Vec<NamespaceConfig>) -> ObjectCacheConfig {
    ObjectCacheConfig { objects_count_max: 128, namespaces, ..small(WriteMode::Back) }
}

/// Creates a cache with these namespaces over a store that has twenty objects each in "slow" and in
/// "fast".
fn environment(config: ObjectCacheConfig) -> Environment {
    let mut sim = Sim::new(None);
    let store = SteeredStore::new();
    for number in 0..20 {
        fill(store.memory(), &object("slow", number), vec![1; 2 * BUCKET as usize]);
        fill(store.memory(), &object("fast", number), vec![2; 2 * BUCKET as usize]);
    }
    let (cache, background) = cache(Arc::clone(&store) as _, config.clone(), &sim.clock);
    let running = sim.spawn(background);
    Environment { sim, store, cache, config, _running: running }
}

impl Environment {
    fn read(&mut self, name: &str, number: u64) -> Handle<Result<ReadReply>> {
        let read = self.sim.spawn(self.cache.read(ReadRequest::new(object(name, number), 0, BUCKET)));
        self.sim.run_until_idle();
        self.cache.validate().unwrap();
        read
    }

    fn write(&mut self, name: &str, number: u64) -> Handle<Result<ChangeReply>> {
        let write = WriteRequest::new(object(name, number), 0, vec![9; BUCKET as usize]);
        let write = self.sim.spawn(self.cache.write(write));
        self.sim.run_until_idle();
        self.cache.validate().unwrap();
        write
    }

    fn change(&mut self, namespaces: Vec<NamespaceConfig>) -> Result<(), ConfigError> {
        let after = ObjectCacheConfig { namespaces, ..self.config.clone() };
        self.cache.live_settings().change(&after)?;
        self.config = after;
        self.sim.run_until_idle();
        self.cache.validate().unwrap();
        Ok(())
    }

    fn counters(&self, name: &str) -> NamespaceCounters {
        let all = self.cache.namespaces();
        all.into_iter()
            .find(|of| of.namespace == Some(namespace(name)))
            .unwrap_or_else(|| panic!("no {name}"))
    }
}

fn done<T>(handles: &[Handle<T>]) -> usize {
    handles.iter().filter(|handle| handle.is_done()).count()
}

#[test]
fn loads_wait_for_the_limit_of_their_namespace_and_hits_are_free() {
    let mut env = environment(config(vec![own("slow", WriteMode::Back, rate(10))]));
    let slow: Vec<_> = (0..5).map(|number| env.read("slow", number)).collect();
    let fast: Vec<_> = (0..20).map(|number| env.read("fast", number)).collect();
    assert_eq!((done(&slow), done(&fast)), (1, 20), "no time has passed");
    let hits: Vec<_> = (0..50).map(|_| env.read("slow", 0)).collect();
    assert_eq!(done(&hits), 50);
    env.sim.advance(Duration::from_millis(100));
    assert_eq!(done(&slow), 2);
    env.sim.advance(Duration::from_millis(299));
    assert_eq!(done(&slow), 4);
    env.sim.advance(Duration::from_millis(1));
    assert_eq!(done(&slow), 5);
    let counters = env.counters("slow");
    assert_eq!((counters.store.requests, counters.store.bytes, counters.store.waits), (5, 5 * BUCKET, 4));
    assert_eq!(counters.store.waited, Duration::from_millis(100 + 200 + 300 + 400));
    assert_eq!(counters.read_hits, 50);
    let fast = env.counters("fast");
    assert_eq!((fast.store.requests, fast.store.waits), (20, 0));
}

#[test]
fn what_a_read_asks_for_beyond_the_end_of_its_object_is_not_charged() {
    let store = StoreTerms { bytes_per_second_max: Some(BUCKET * 10), ..rate(1000) };
    let mut env = environment(config(vec![own("slow", WriteMode::Back, store)]));
    fill(env.store.memory(), &object("slow", 50), vec![1; 100]);
    let reads: Vec<_> = (0..2)
        .map(|_| env.sim.spawn(env.cache.read(ReadRequest::new(object("slow", 50), 0, 100 * BUCKET))))
        .collect();
    env.sim.run_until_idle();
    let next = env.read("slow", 1);
    assert!(done(&reads) == 2 && !next.is_done());
    env.sim.advance(Duration::from_millis(10));
    assert!(next.is_done(), "100 bytes take 2.5 ms, 100 buckets would take ten seconds");
}

#[test]
fn forwarded_changes_wait_and_a_deadline_ends_the_wait_before_the_store_is_asked() {
    let mut env = environment(config(vec![own("slow", WriteMode::Through, rate(1))]));
    let first = env.write("slow", 0);
    assert!(first.is_done());
    let late = WriteRequest::new(object("slow", 1), 0, vec![9; 100]);
    let late = late.deadline(env.sim.clock.now() + SECOND / 2);
    let late = env.sim.spawn(env.cache.write(late));
    let given_up = env.write("slow", 2);
    let last = env.write("slow", 3);
    assert!(!late.is_done() && !last.is_done());
    assert!(env.sim.cancel(given_up).is_none());
    env.sim.advance(SECOND / 2);
    assert_eq!(late.get().unwrap_err(), Error::DeadlinePassed);
    env.sim.advance(SECOND / 2);
    assert!(last.is_done(), "those that have given up have used up nothing");
    assert_eq!(env.store.count(Op::Write), 2);
    env.cache.validate().unwrap();
}

#[test]
fn flushes_that_wait_for_a_limit_hold_up_no_other_namespace() {
    let flushes = ObjectCacheConfig {
        flush_requests_max: 1,
        dirty_age_max: SECOND,
        ..config(vec![own("slow", WriteMode::Back, rate(1))])
    };
    let mut env = environment(flushes);
    for name in ["slow", "fast"] {
        for number in 0..12 {
            // The cache knows the object, so the write sends no request to the store.
            let whole = WriteFullRequest::new(object(name, number), vec![3; BUCKET as usize]);
            let written = env.sim.spawn(env.cache.write_full(whole));
            env.sim.run_until_idle();
            sim_forget(written);
        }
    }
    env.sim.advance(Duration::from_secs(30));
    assert_eq!(env.counters("fast").dirty_bytes, 0);
    env.sim.advance(Duration::from_secs(60));
    assert_eq!(env.counters("slow").dirty_bytes, 0, "and the slow one is not forgotten");
    env.cache.validate().unwrap();
}

#[test]
fn what_a_caller_waits_for_of_a_limited_namespace_begins_by_and_by() {
    let flushes = ObjectCacheConfig { flush_requests_max: 3, dirty_age_max: 3600 * SECOND, ..config(vec![]) };
    let mut env = environment(flushes);
    for number in 0..20 {
        let whole = WriteFullRequest::new(object("slow", number), vec![3; BUCKET as usize]);
        let written = env.sim.spawn(env.cache.write_full(whole));
        env.sim.run_until_idle();
        sim_forget(written);
    }
    assert_eq!(env.counters("slow").dirty_bytes, 20 * BUCKET);
    env.change(vec![own("slow", WriteMode::Back, rate(1))]).unwrap();
    let flush = |name: &str| FlushRequest::new(Scope::Namespace(namespace(name)));
    let slow = env.sim.spawn(env.cache.flush(flush("slow")));
    for stored in 1..20 {
        env.sim.run_until_idle();
        let counters = env.cache.counters();
        let under_way = 3.min(20 - stored) * BUCKET;
        assert_eq!(counters.writing_bytes, under_way, "{stored} are stored");
        assert_eq!(
            env.store.count(Op::WriteFull),
            2 * stored as usize - 1,
            "with those of the other namespace"
        );
        let whole = WriteFullRequest::new(object("fast", stored), vec![4; BUCKET as usize]);
        sim_forget(env.sim.spawn(env.cache.write_full(whole)));
        let fast = env.sim.spawn(env.cache.flush(flush("fast")));
        env.sim.run_until_idle();
        assert!(fast.is_done() && !slow.is_done(), "no time has passed");
        env.cache.validate().unwrap();
        env.sim.advance(SECOND);
    }
    assert!(slow.get().is_ok());
    assert_eq!(env.counters("slow").dirty_bytes, 0);
}

fn sim_forget<T>(handle: Handle<T>) {
    test_kit::sim::forget(handle);
}

#[test]
fn rates_change_while_requests_wait() {
    let mut env = environment(config(vec![own("slow", WriteMode::Back, rate(1))]));
    let reads: Vec<_> = (0..10).map(|number| env.read("slow", number)).collect();
    assert_eq!(done(&reads), 1);
    env.change(vec![own("slow", WriteMode::Back, rate(2))]).unwrap();
    assert_eq!(done(&reads), 2);
    env.sim.advance(SECOND);
    assert_eq!(done(&reads), 4);
    env.change(vec![]).unwrap();
    assert_eq!(done(&reads), 10, "without terms nothing waits");
    // A namespace gets its first rate limit while the cache runs.
    env.change(vec![own("new", WriteMode::Through, rate(1))]).unwrap();
    let writes = [env.write("new", 0), env.write("new", 1)];
    assert_eq!(done(&writes), 1);
    env.sim.advance(2 * SECOND);
    assert_eq!(done(&writes), 2);
}

#[test]
fn terms_that_cannot_work_are_refused_with_the_reason() {
    let mut env = environment(config(vec![]));
    let refused = |env: &mut Environment, store| {
        env.change(vec![own("vm", WriteMode::Back, store)]).unwrap_err().to_string()
    };
    let without = StoreTerms::default();
    let wrong = [
        (
            StoreTerms { requests_per_second_max: Some(0), ..without },
            "namespaces: \"vm\": store_requests_per_second_max must be between 1 and 10000000",
        ),
        (
            StoreTerms { bytes_per_second_max: Some(100), ..without },
            "namespaces: \"vm\": store_bytes_per_second_max must be at least 4096",
        ),
        (
            StoreTerms { requests_per_second_min: Some(9), ..rate(8) },
            "namespaces: \"vm\": store_requests_per_second_min is 9, above its limit of 8",
        ),
        (StoreTerms { weight: 0, ..without }, "namespaces: \"vm\": store_weight must be between 1 and 10000"),
        (
            StoreTerms { burst: Duration::from_secs(61), ..without },
            "namespaces: \"vm\": store_burst_ms must be at most 60000",
        ),
    ];
    for (store, why) in wrong {
        assert_eq!(refused(&mut env, store), why);
    }
    let most = StoreTerms { requests_per_second_min: Some(StoreTerms::RATE_MAX), ..without };
    let both = vec![own("a", WriteMode::Back, most), own("b", WriteMode::Back, most)];
    let why = env.change(both).unwrap_err().to_string();
    assert_eq!(
        why,
        "namespaces: their store_requests_per_second_min add up to 20000000; 10000000 can be reserved in total"
    );
}
