//! The stores below volumes: every backend, and caches over them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use blocker::executor::block_on;
use blocker::{Blocker, FileStore, Memory, SystemClock, WriteMode};
use blocker_rados::{RadosConfig, RadosStore};
use blocker_s3::object_store::memory::InMemory;
use blocker_s3::{S3Config, S3Store};
use cached_core::object::{ObjectCache, ObjectCacheConfig, Writer};
use cached_tests::ceph::Cluster;
use synapse::{Address, ClientConfig, Server, ServerConfig, SynapseBlocker};

/// How long a synapse client waits for its server, since the machine may be busy.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// A stack of stores, and the resources that must live as long.
pub(crate) struct Stack {
    pub(crate) store: Arc<dyn Blocker>,
    /// The fields are declared in the order in which they are dropped.
    _kept: (Option<Host>, Option<tempfile::TempDir>),
}

/// A synapse server, and the thread on which it runs.
struct Host {
    _server: Arc<Server>,
    _runtime: tokio::runtime::Runtime,
}

impl Stack {
    fn of(store: Arc<dyn Blocker>) -> Self {
        Self { store, _kept: (None, None) }
    }

    pub(crate) fn memory() -> Self {
        Self::of(Arc::new(Memory::default()))
    }

    pub(crate) fn files() -> Self {
        let made = tempfile::tempdir().unwrap();
        let store = Arc::new(FileStore::open_or_create(made.path()).unwrap());
        Self { store, _kept: (None, Some(made)) }
    }

    /// S3, through the in-memory server of the crate `object_store`.
    pub(crate) fn s3() -> Self {
        let server = Arc::new(InMemory::new());
        let config = S3Config::new("volumes");
        Self::of(Arc::new(S3Store::open_over(&config, server, Arc::new(SystemClock)).unwrap()))
    }

    /// Returns a stack over RADOS, with a separate root in the pool of a cluster.
    pub(crate) fn rados(cluster: &Cluster, root: &str) -> Self {
        let mut config = RadosConfig::new("cached");
        (config.conf_file, config.root) = (Some(cluster.conf()), root.to_owned());
        Self::of(Arc::new(RadosStore::open(config).unwrap()))
    }

    /// Adds a synapse server in front of this stack, and a client of it.
    pub(crate) fn over_synapse(self) -> Self {
        let (None, directory) = self._kept else { panic!("one server is enough") };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let place = directory.unwrap_or_else(|| tempfile::tempdir().unwrap());
        let server = Arc::new(Server::new(self.store, ServerConfig::default()).unwrap());
        let socket = Address::Unix(place.path().join("synapse.sock"));
        let address = runtime.block_on(server.listen(&socket)).unwrap();
        let mut config = ClientConfig::new(address);
        (config.connect_timeout, config.reconnect_timeout) = (CONNECT_TIMEOUT, CONNECT_TIMEOUT);
        config.peer_timeout = CONNECT_TIMEOUT;
        let store = Arc::new(SynapseBlocker::connect_on_thread(config).unwrap());
        Self { store, _kept: (Some(Host { _server: server, _runtime: runtime }), Some(place)) }
    }

    /// Adds a small cache in front of this stack.
    pub(crate) fn cached(self, write: WriteMode, writer: Writer) -> Self {
        let store = cache(self.store, write, writer);
        Self { store, _kept: self._kept }
    }
}

/// Returns a small cache over a store, which flushes data that are 5 ms old and runs on its own
/// thread.
pub(crate) fn cache(below: Arc<dyn Blocker>, write: WriteMode, writer: Writer) -> Arc<dyn Blocker> {
    let config = ObjectCacheConfig {
        objects_count_max: 64,
        dirty_age_max: Duration::from_millis(5),
        writer,
        ..test_kit::small(write)
    };
    let (cache, background) = ObjectCache::new(below, config, Arc::new(SystemClock)).unwrap();
    std::thread::spawn(move || block_on(background));
    Arc::new(cache)
}

/// Returns a cluster shared by all RADOS tests here; `None`, with a message, if Ceph is not
/// installed.
pub(crate) fn cluster(test: &str) -> Option<Cluster> {
    Cluster::in_memory(test, Path::new(env!("CARGO_TARGET_TMPDIR")))
}

/// Waits until another thread, or trying again, produces a value.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let give_up = std::time::Instant::now() + CONNECT_TIMEOUT;
    loop {
        if let Some(found) = get() {
            return found;
        }
        assert!(std::time::Instant::now() < give_up, "timed out: {what}");
        std::thread::yield_now();
    }
}

/// Waits until another thread makes `is` true.
#[track_caller]
pub(crate) fn until(what: &str, is: impl Fn() -> bool) {
    eventually(what, || is().then_some(()));
}
