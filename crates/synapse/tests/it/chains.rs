//! The conformance suite over chains: cache → synapse → TCP → cache → files, and shorter ones.
//!
//! Each of the two caches writes through or back. Guarantees of one layer must also hold for the
//! whole chain.

use std::sync::Arc;

use blocker::conformance::{Options, Plain, run};
use blocker::{Blocker, FileStore, Memory, SystemClock, WriteMode};
use cached_core::object::{ObjectCache, ObjectCacheConfig, Writer};
use synapse::{Address, ClientConfig, Server, ServerConfig, SynapseBlocker};
use tokio::runtime::Runtime;

/// A server, the layers below it, and a client, all in this process.
struct Chain {
    runtime: Runtime,
    // The servers end together with the chain.
    _servers: Vec<Server>,
    top: Arc<dyn Blocker>,
}

impl Chain {
    fn new(bottom: Arc<dyn Blocker>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        Self { runtime: runtime.expect("a runtime"), _servers: Vec::new(), top: bottom }
    }

    /// Adds a cache on top.
    fn cache(mut self, write: WriteMode) -> Self {
        let mut config = ObjectCacheConfig::default();
        (config.memory_bytes_max, config.dirty_bytes_max) = (32 << 20, 8 << 20);
        (config.write, config.writer) = (write, Writer::Callers);
        let (cache, background) = ObjectCache::new(self.top, config, Arc::new(SystemClock)).expect("a cache");
        self.runtime.spawn(background);
        self.top = Arc::new(cache);
        self
    }

    /// Adds a server and a client on top, connected over TCP.
    fn wire(mut self) -> Self {
        let server = Server::new(self.top, ServerConfig::default()).expect("a server");
        let address = self.runtime.block_on(server.listen(&Address::Tcp("127.0.0.1:0".into())));
        let mut config = ClientConfig::new(address.expect("a port"));
        config.payload_crc = true;
        let minute = std::time::Duration::from_secs(60);
        (config.connect_timeout, config.peer_timeout) = (minute, minute);
        let client = self.runtime.block_on(SynapseBlocker::connect(config)).expect("a connection");
        self._servers.push(server);
        self.top = Arc::new(client);
        self
    }

    #[track_caller]
    fn conforms(self) {
        let mut options = Options::default();
        options.seed = 11;
        let report = run(&Plain::new(Arc::clone(&self.top)), &options);
        report.cases.iter().for_each(|case| println!("{case}"));
        report.assert_passed();
    }
}

fn files(dir: &tempfile::TempDir) -> Arc<dyn Blocker> {
    let store = FileStore::open_or_create(dir.path());
    Arc::new(store.expect("a file store"))
}

#[test]
fn cache_over_synapse_over_cache_over_files() {
    let dir = tempfile::tempdir().expect("a directory");
    Chain::new(files(&dir)).cache(WriteMode::Through).wire().cache(WriteMode::Through).conforms();
}

#[test]
fn a_writer_back_over_synapse_over_a_cache_that_writes_through_over_files() {
    let dir = tempfile::tempdir().expect("a directory");
    Chain::new(files(&dir)).cache(WriteMode::Through).wire().cache(WriteMode::Back).conforms();
}

#[test]
fn synapse_over_a_writer_back_over_memory() {
    Chain::new(Arc::new(Memory::default())).cache(WriteMode::Back).wire().conforms();
}

#[test]
fn synapse_over_synapse_over_files() {
    let dir = tempfile::tempdir().expect("a directory");
    Chain::new(files(&dir)).wire().wire().conforms();
}
