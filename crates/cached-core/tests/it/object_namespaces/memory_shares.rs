//! Memory shares: bounds hold, unused memory is lent, memory moves to the namespace in which it
//! saves most, and shares change while the cache runs.

use std::sync::Arc;

use blocker::*;
use cached_core::object::{NamespaceConfig, NamespaceCounters, ObjectCache, ObjectCacheConfig};
use test_kit::rng::Rng;
use test_kit::sim::{Handle, Sim};
use test_kit::{BUCKET, cache, fill, namespace, small};

const MEMORY: u64 = 4 << 20;
/// The number of buckets in an object.
const BUCKETS: u64 = 16;

struct Environment {
    sim: Sim,
    cache: ObjectCache,
    config: ObjectCacheConfig,
    running: Option<Handle<()>>,
}

fn own(name: &str, min: Option<u64>, max: Option<u64>, weight: Option<u32>) -> NamespaceConfig {
    let own = NamespaceConfig::new(namespace(name), WriteMode::Through);
    let own = own.with(NamespaceKey::MemoryBytesMin, min).with(NamespaceKey::MemoryBytesMax, max);
    own.with(NamespaceKey::MemoryWeight, weight.map(u64::from))
}

fn object(name: &str, number: u64) -> ObjectId {
    ObjectId::new(namespace(name), Name::copy_from(format!("object-{number}").as_bytes()).unwrap())
}

/// Creates a cache of 4 MiB with these shares, over a store with `objects` objects of 64 KiB in
/// each of the namespaces `names`.
fn environment(names: &[&str], objects: u64, namespaces: Vec<NamespaceConfig>) -> Environment {
    let mut sim = Sim::new(None);
    let store = Arc::new(test_kit::memory(&sim.clock));
    for name in names {
        for number in 0..objects {
            fill(&store, &object(name, number), vec![number as u8; (BUCKETS * BUCKET) as usize]);
        }
    }
    let config = ObjectCacheConfig {
        memory_bytes_max: MEMORY,
        objects_count_max: 4096,
        dirty_bytes_max: MEMORY / 2,
        namespaces,
        ..small(WriteMode::Through)
    };
    let (cache, background) = cache(store as _, config.clone(), &sim.clock);
    let running = Some(sim.spawn(background));
    Environment { sim, cache, config, running }
}

impl Environment {
    /// Reads one bucket; bucket `at` of a namespace is in its object `at / BUCKETS`.
    fn read(&mut self, name: &str, at: u64) {
        let read = ReadRequest::new(object(name, at / BUCKETS), at % BUCKETS * BUCKET, BUCKET);
        let reply = self.sim.run(self.cache.read(read)).unwrap();
        assert_eq!(reply.data.to_bytes()[0], (at / BUCKETS) as u8);
    }

    fn read_all(&mut self, name: &str, buckets: std::ops::Range<u64>) {
        buckets.for_each(|at| self.read(name, at));
        self.cache.validate().unwrap();
    }

    /// Returns how many of these reads are hits.
    fn hits(&mut self, name: &str, buckets: std::ops::Range<u64>) -> u64 {
        let before = self.of(name).read_hits;
        self.read_all(name, buckets);
        self.of(name).read_hits - before
    }

    fn of(&self, name: &str) -> NamespaceCounters {
        let all = self.cache.namespaces();
        all.into_iter()
            .find(|of| of.namespace == Some(namespace(name)))
            .unwrap_or_else(|| panic!("no {name}"))
    }

    fn change(&mut self, namespaces: Vec<NamespaceConfig>) {
        let after = ObjectCacheConfig { namespaces, ..self.config.clone() };
        self.cache.live_settings().change(&after).unwrap();
        self.config = after;
        self.cache.validate().unwrap();
    }

    fn end(mut self) {
        self.cache.validate().unwrap();
        drop(self.cache);
        let running = self.running.take().unwrap();
        self.sim.wait(running);
    }
}

#[test]
fn a_namespace_keeps_its_minimum_beside_one_that_reads_everything() {
    for min in [None, Some(MEMORY / 4)] {
        let mut environment = environment(&["hot", "scan"], 256, vec![own("hot", min, None, Some(1))]);
        // Each bucket is read only once, so no policy has a reason to keep it.
        environment.read_all("hot", 0..200);
        environment.read_all("scan", 0..4096);
        let kept = environment.of("hot").cached_bytes / BUCKET;
        match min {
            Some(_) => assert_eq!(kept, 200),
            None => assert!(environment.of("hot").memory_target_bytes.is_some()),
        }
        environment.end();
    }
}

#[test]
fn a_namespace_has_no_more_than_its_maximum_even_if_memory_is_free() {
    let mut environment =
        environment(&["backup", "other"], 256, vec![own("backup", None, Some(64 * BUCKET), None)]);
    environment.read_all("backup", 0..500);
    let has = environment.of("backup").cached_bytes / BUCKET;
    // At most one request of one bucket is in flight.
    assert!((32..=65).contains(&has), "{has}");
    environment.read_all("other", 0..500);
    assert_eq!(environment.of("other").cached_bytes / BUCKET, 500, "the rest is free for others");
    environment.end();
}

#[test]
fn a_namespace_keeps_its_maximum_beside_one_with_dirty_data_above_its_own() {
    let max = Some(64 * BUCKET);
    let mut dirty = own("dirty", None, max, None);
    dirty.settings.write = Some(WriteMode::Back);
    let mut environment = environment(&["backup"], 256, vec![dirty, own("backup", None, max, None)]);
    for number in 0..8 {
        let write = WriteRequest::new(object("dirty", number), 0, vec![1; (BUCKETS * BUCKET) as usize]);
        environment.sim.run(environment.cache.write(write)).unwrap();
    }
    let dirty = environment.of("dirty").dirty_bytes;
    assert!(dirty >= 128 * BUCKET, "{dirty}");
    environment.read_all("backup", 0..500);
    assert_eq!(environment.of("dirty").dirty_bytes, dirty);
    let has = environment.of("backup").cached_bytes / BUCKET;
    assert!((32..=65).contains(&has), "{has}");
    environment.end();
}

#[test]
fn memory_that_is_not_used_is_lent_and_comes_back() {
    let mut environment =
        environment(&["mine", "other"], 256, vec![own("mine", Some(MEMORY / 2), None, None)]);
    environment.read_all("other", 0..4096);
    let lent = environment.of("other").cached_bytes;
    assert!(lent > MEMORY / 10 * 8, "{lent}");
    // As the namespace loads, it takes memory back only from the others.
    environment.read_all("mine", 0..500);
    assert_eq!(environment.of("mine").cached_bytes / BUCKET, 500);
    assert_eq!(environment.hits("mine", 0..500), 500);
    environment.end();
}

#[test]
fn memory_goes_to_where_it_saves_most() {
    let shares = vec![own("gains", None, None, Some(1)), own("scans", None, None, Some(1))];
    let mut environment = environment(&["gains", "scans"], 400, shares);
    let mut rng = Rng::new(7);
    let target = |environment: &Environment, name| environment.of(name).memory_target_bytes.unwrap();
    let first = target(&environment, "gains");
    for at in 0..30_000 {
        // This namespace reads 800 buckets at random, more than its first target holds; the other
        // reads each of 6 400 buckets once.
        environment.read("gains", rng.below(800));
        environment.read("scans", at % 6400);
    }
    let (gains, scans) = (target(&environment, "gains"), target(&environment, "scans"));
    assert!(gains > first && gains > 2 * scans, "{first}: {gains} and {scans}");
    let of = environment.of("gains");
    assert!(of.cached_bytes / BUCKET > 700, "{}", of.cached_bytes / BUCKET);
    assert!(of.ghost_hit_bytes.unwrap() > 0);
    environment.end();
}

#[test]
fn shares_change_while_the_cache_runs() {
    let mut environment = environment(&["a", "b"], 256, Vec::new());
    environment.read_all("a", 0..300);
    assert_eq!(environment.of("a").memory_target_bytes, None);
    // The namespace's buckets move to its own share, from which the others cannot take them.
    environment.change(vec![own("a", Some(MEMORY / 2), None, None)]);
    environment.read_all("b", 0..4096);
    assert_eq!(environment.of("a").cached_bytes / BUCKET, 300);
    // Above its new maximum, the namespace gives memory back as it is used.
    environment.change(vec![own("a", None, Some(100 * BUCKET), None)]);
    environment.read_all("a", 300..700);
    let has = environment.of("a").cached_bytes / BUCKET;
    assert!(has <= 101, "{has}");
    // Without bounds, the namespace competes again.
    environment.change(Vec::new());
    environment.read_all("a", 0..2000);
    assert!(environment.of("a").cached_bytes / BUCKET > 200);
    environment.end();
}

#[test]
fn what_cannot_be_is_refused() {
    let environment = environment(&["a"], 1, Vec::new());
    let refused = |namespaces: Vec<NamespaceConfig>| {
        let after = ObjectCacheConfig { namespaces, ..environment.config.clone() };
        environment.cache.live_settings().change(&after).unwrap_err().to_string()
    };
    let of = |min, max, weight| refused(vec![own("a", min, max, weight)]);
    assert_eq!(
        of(Some(MEMORY), None, None),
        "namespaces: their memory_bytes_min add up to 4194304; they can have 3670016, seven eighths of \
         memory_bytes_max"
    );
    assert_eq!(
        of(Some(2 * BUCKET), Some(BUCKET), None),
        "namespaces: memory_bytes_min of \"a\" must not be above its memory_bytes_max"
    );
    assert_eq!(of(None, Some(100), None), "namespaces: memory_bytes_max of \"a\" must be at least 4096");
    for weight in [0, 1001] {
        let expected = "namespaces: memory_weight of \"a\" must be between 1 and 1000";
        assert_eq!(of(None, None, Some(weight)), expected);
    }
    let sixteen = |first: u32| {
        (first..first + 16).map(|number| own(&format!("n{number}"), None, None, Some(1))).collect::<Vec<_>>()
    };
    assert!(refused(sixteen(0)).contains("16 of them have a share of the memory"));
    let mut environment = environment;
    let fifteen = |first: u32| sixteen(first).into_iter().take(15).collect::<Vec<_>>();
    environment.change(fifteen(0));
    let after = ObjectCacheConfig { namespaces: fifteen(100), ..environment.config.clone() };
    let error = environment.cache.live_settings().change(&after).unwrap_err();
    assert!(error.to_string().contains("15 have had one since the start"), "{error}");
    environment.end();
}
