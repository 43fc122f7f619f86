//! The contract's conformance suite over the object cache: in every write mode, with little and
//! ample memory, over each store; and with power cuts, which lose the cache and all data that the
//! store below had not stored durably.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blocker::conformance::{Harness, Options, run};
use blocker::executor::block_on;
use blocker::faulty::FaultPlan;
use blocker::{Blocker, Faulty, FileStore, Memory, SystemClock, WriteMode};
use cached_core::object::{ObjectCache, ObjectCacheConfig, Writer};
use test_kit::{KIB, small};

const POLICIES: [WriteMode; 3] = [WriteMode::Back, WriteMode::Through, WriteMode::Around];

/// Much less memory than the suite's objects need, and fewer objects than the suite uses.
fn tiny(write: WriteMode) -> ObjectCacheConfig {
    let mut config = small(write);
    config.objects_count_max = 4;
    config.dirty_bytes_max = 128 * KIB;
    config.dirty_age_max = Duration::from_millis(2);
    // Versions must be new after each power cut.
    config.hash_seed = None;
    config
}

fn ample(write: WriteMode) -> ObjectCacheConfig {
    ObjectCacheConfig {
        memory_bytes_max: 64 << 20,
        dirty_bytes_max: 32 << 20,
        objects_count_max: 1000,
        hash_seed: None,
        ..small(write)
    }
}

/// A cache whose power can be cut, with its background task on a thread.
struct Powered {
    store: Arc<dyn Blocker>,
    /// The store, whose own volatile cache is lost in a power cut as well.
    faulty: Option<Arc<Faulty>>,
    config: ObjectCacheConfig,
    /// Whether the cache is detached immediately after its start.
    is_detached: bool,
    running: RefCell<Option<Running>>,
}

struct Running {
    cache: ObjectCache,
    background: JoinHandle<()>,
}

impl Powered {
    fn new(store: Arc<dyn Blocker>, config: ObjectCacheConfig) -> Self {
        Self { store, faulty: None, config, is_detached: false, running: RefCell::new(None) }
    }

    fn volatile(faulty: Arc<Faulty>, config: ObjectCacheConfig) -> Self {
        Self { faulty: Some(Arc::clone(&faulty)), ..Self::new(faulty, config) }
    }

    /// Ends the cache without a flush, as the loss of its host would.
    fn cut(&self) {
        if let Some(Running { cache, background }) = self.running.take() {
            drop(cache);
            background.join().expect("the background's work ends with the last handle");
        }
    }

    #[track_caller]
    fn passes(self, options: &Options) {
        let report = run(&self, options);
        if let Some(running) = &*self.running.borrow() {
            validate(&running.cache);
        }
        report.cases.iter().for_each(|case| println!("{case}"));
        report.assert_passed();
        // Most of the suite's cases apply.
        let (passed, skipped, _) = report.counts();
        let is_part = !options.filter.is_empty();
        assert!(is_part || passed > 3 * skipped, "{passed} passed, {skipped} skipped");
        self.cut();
    }
}

/// Checks the invariants once the background thread is idle.
fn validate(cache: &ObjectCache) {
    let give_up = Instant::now() + Duration::from_secs(60);
    while let Err(why) = cache.validate() {
        assert!(Instant::now() < give_up, "validate: {why}");
        std::thread::yield_now();
    }
}

impl Harness for Powered {
    fn backend(&self) -> Arc<dyn Blocker> {
        let mut running = self.running.borrow_mut();
        let running = running.get_or_insert_with(|| {
            let clock = Arc::new(SystemClock);
            let (cache, work) =
                ObjectCache::new(Arc::clone(&self.store), self.config.clone(), clock).unwrap();
            let background = std::thread::spawn(move || block_on(work));
            if self.is_detached {
                block_on(cache.detach_cache(None)).unwrap();
            }
            Running { cache, background }
        });
        Arc::new(running.cache.clone())
    }

    fn power_cycle(&self) -> Option<Arc<dyn Blocker>> {
        self.cut();
        if let Some(faulty) = &self.faulty {
            faulty.crash();
            faulty.restart().unwrap();
        }
        Some(self.backend())
    }
}

fn options(seed: u64) -> Options {
    let mut options = Options::default();
    options.seed = seed;
    options
}

fn faulty(below: Arc<dyn Blocker>, change: impl FnOnce(&mut FaultPlan)) -> Arc<Faulty> {
    let mut plan = FaultPlan::benign(7);
    change(&mut plan);
    Arc::new(Faulty::new(below, plan, Arc::new(SystemClock)))
}

#[test]
fn passes_over_memory() {
    for policy in POLICIES {
        for config in [tiny(policy), ample(policy)] {
            Powered::new(Arc::new(Memory::default()), config).passes(&options(1));
        }
    }
}

#[test]
fn passes_while_the_cache_is_detached() {
    for writer in [Writer::Callers, Writer::Cache] {
        let config = ObjectCacheConfig { writer, ..tiny(WriteMode::Back) };
        let detached = Powered { is_detached: true, ..Powered::new(Arc::new(Memory::default()), config) };
        detached.passes(&options(9));
    }
}

#[test]
fn passes_over_files() {
    for policy in POLICIES {
        for config in [tiny(policy), ample(policy)] {
            let dir = tempfile::tempdir().unwrap();
            let store = Arc::new(FileStore::open_or_create(dir.path()).unwrap());
            Powered::new(store, config).passes(&options(2));
        }
    }
}

#[test]
fn passes_over_a_slow_store() {
    for policy in POLICIES {
        let slow = faulty(Arc::new(Memory::default()), |plan| {
            plan.delay_permille = 200;
            plan.delay = Duration::from_micros(10)..Duration::from_micros(300);
        });
        Powered::new(slow, tiny(policy)).passes(&options(3));
    }
}

#[test]
fn passes_over_a_store_that_returns_retryable_errors() {
    for policy in POLICIES {
        // The suite retries, except where it drops incomplete responses.
        for filter in ["content", "random", "fencing", "conditions", "listing"] {
            let noisy = faulty(Arc::new(Memory::default()), |plan| plan.error_permille = 20);
            let mut options = options(4);
            options.filter = filter.into();
            Powered::new(noisy, tiny(policy)).passes(&options);
        }
    }
}

#[test]
fn passes_over_a_volatile_store_whose_power_is_cut() {
    for policy in POLICIES {
        for config in [tiny(policy), ample(policy)] {
            let store = faulty(Arc::new(Memory::default()), |plan| plan.volatile = true);
            Powered::volatile(store, config.clone()).passes(&options(5));
            for seed in 6..12 {
                let store =
                    faulty(Arc::new(Memory::default()), |plan| (plan.volatile, plan.seed) = (true, seed));
                let mut options = options(seed);
                options.filter = "crash".into();
                options.effort = 3;
                Powered::volatile(store, config.clone()).passes(&options);
            }
        }
    }
}

#[test]
fn passes_as_the_writer_of_its_namespaces() {
    for policy in POLICIES {
        let mut config = tiny(policy);
        config.writer = Writer::Cache;
        Powered::new(Arc::new(Memory::default()), config.clone()).passes(&options(13));
        let store = faulty(Arc::new(Memory::default()), |plan| plan.volatile = true);
        Powered::volatile(store, config).passes(&options(14));
    }
}

#[test]
fn passes_over_a_store_with_few_capabilities() {
    for policy in POLICIES {
        let store = test_kit::steered::SteeredStore::new();
        store.limit(|capabilities| {
            capabilities.copy_native = false;
            capabilities.holes_native = false;
            capabilities.list_entries_max = 7;
        });
        Powered::new(store, tiny(policy)).passes(&options(15));
    }
}

#[test]
fn passes_over_another_cache() {
    for policy in POLICIES {
        let clock = Arc::new(SystemClock);
        let (below, work) = ObjectCache::new(Arc::new(Memory::default()), tiny(policy), clock).unwrap();
        let background = std::thread::spawn(move || block_on(work));
        Powered::new(Arc::new(below), tiny(WriteMode::Back)).passes(&options(16));
        background.join().unwrap();
    }
}
