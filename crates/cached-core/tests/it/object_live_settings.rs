//! The configuration of a running cache.

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::block_on;
use blocker::*;
use cached_core::object::{NamespaceConfig, ObjectCache, ObjectCacheConfig};

fn object(namespace: &'static str, name: &'static str) -> ObjectId {
    ObjectId::new(Namespace::new(namespace).unwrap(), Name::new(name).unwrap())
}

struct Running {
    cache: ObjectCache,
    config: ObjectCacheConfig,
    background: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn new(config: ObjectCacheConfig) -> Self {
        let store = Arc::new(Memory::default());
        let (cache, background) = ObjectCache::new(store, config.clone(), Arc::new(SystemClock)).unwrap();
        let background = Some(std::thread::spawn(|| block_on(background)));
        Self { cache, config, background }
    }

    fn change(&mut self, after: ObjectCacheConfig) {
        self.cache.live_settings().change(&self.config, &after).unwrap();
        self.config = after;
    }

    fn mode(&self, namespace: &'static str) -> WriteMode {
        block_on(self.cache.control().policy(Namespace::new(namespace).unwrap())).unwrap().write
    }

    fn write(&self, name: &'static str, bytes: usize) {
        block_on(self.cache.write(WriteRequest::new(object("n", name), 0, vec![7; bytes]))).unwrap();
    }

    fn end(mut self) {
        let background = self.background.take().unwrap();
        drop(self.cache);
        background.join().unwrap();
    }
}

fn config() -> ObjectCacheConfig {
    ObjectCacheConfig {
        memory_bytes_max: 8 << 20,
        dirty_bytes_max: 4 << 20,
        dirty_age_max: Duration::from_secs(86_400),
        objects_count_max: 100,
        ..ObjectCacheConfig::default()
    }
}

fn own(namespace: &'static str, write: WriteMode) -> NamespaceConfig {
    NamespaceConfig::new(Namespace::new(namespace).unwrap(), write)
}

#[test]
fn only_the_write_modes_that_differ_change() {
    let mut running = Running::new(ObjectCacheConfig {
        namespaces: vec![own("a", WriteMode::Back), own("b", WriteMode::Back), own("c", WriteMode::Back)],
        ..config()
    });
    // Set while it runs: the configuration says nothing new about it.
    let mut policy = Policy::default();
    policy.write = WriteMode::Around;
    block_on(running.cache.control().set_policy(Namespace::new("a").unwrap(), policy)).unwrap();
    running.change(ObjectCacheConfig {
        write: WriteMode::Around,
        namespaces: vec![own("a", WriteMode::Back), own("b", WriteMode::Through), own("d", WriteMode::Back)],
        ..config()
    });
    let modes = ["a", "b", "c", "d", "e"].map(|namespace| running.mode(namespace));
    use WriteMode::{Around, Back, Through};
    assert_eq!(modes, [Around, Through, Around, Back, Around]);
    running.change(config());
    assert_eq!(running.mode("b"), Through);
    running.change(ObjectCacheConfig { write: Back, ..config() });
    assert_eq!(["a", "b", "d"].map(|namespace| running.mode(namespace)), [Back; 3]);
    running.end();
}

#[test]
fn what_is_dirty_obeys_a_new_age_and_a_new_limit() {
    let back = ObjectCacheConfig { write: WriteMode::Back, ..config() };
    let mut running = Running::new(back.clone());
    let dirty = |running: &Running| running.cache.counters().dirty_bytes;
    let wait_until_clean = |running: &Running| {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while dirty(running) > 0 {
            assert!(std::time::Instant::now() < deadline, "{} bytes are dirty", dirty(running));
            std::thread::yield_now();
        }
    };
    running.write("old", 8192);
    assert!(dirty(&running) > 0);
    running.change(ObjectCacheConfig { dirty_age_max: Duration::ZERO, ..back.clone() });
    wait_until_clean(&running);
    // Above half of the limit flushing begins, whatever the age.
    running.change(back.clone());
    running.write("new", 64 << 10);
    assert!(dirty(&running) >= 64 << 10);
    running.change(ObjectCacheConfig { dirty_bytes_max: 16 << 10, ..back.clone() });
    running.write("more", 4096);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while dirty(&running) > 16 << 10 {
        assert!(std::time::Instant::now() < deadline, "{} bytes are dirty", dirty(&running));
        std::thread::yield_now();
    }
    running.end();
}

#[test]
fn what_cannot_work_changes_nothing() {
    let running = Running::new(config());
    let journaled = NamespaceConfig { durability: Durability::Journaled, ..own("n", WriteMode::Back) };
    for (wrong, key) in [
        (ObjectCacheConfig { dirty_bytes_max: 7 << 20, ..config() }, "dirty_bytes_max"),
        // Memory for it would come with a restart only.
        (
            ObjectCacheConfig { dirty_bytes_max: 7 << 20, memory_bytes_max: 64 << 20, ..config() },
            "dirty_bytes_max",
        ),
        (ObjectCacheConfig { flush_requests_max: 0, ..config() }, "flush_requests_max"),
        (ObjectCacheConfig { retry_delay_min: Duration::from_secs(60), ..config() }, "retry_delay_min"),
        (ObjectCacheConfig { namespaces: vec![journaled], ..config() }, "namespaces"),
    ] {
        let wrong = ObjectCacheConfig { write: WriteMode::Back, ..wrong };
        let error = running.cache.live_settings().change(&running.config, &wrong).unwrap_err();
        assert_eq!(error.key, key, "{error}");
        assert_eq!(running.mode("n"), WriteMode::Through, "after {error}");
    }
    let settings = running.cache.live_settings();
    running.end();
    settings.change(&config(), &config()).expect("nothing to change once it is gone");
}
