//! A server and its clients in one process.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;
use std::time::Duration;

use blocker::{Blocker, Control, Memory};
use synapse::{Address, ClientConfig, Server, ServerConfig, SynapseBlocker};
use tokio::runtime::Runtime;

/// A server on a runtime of its own; ends with it.
pub(crate) struct Host {
    pub(crate) server: Arc<Server>,
    pub(crate) address: Address,
    pub(crate) runtime: Runtime,
    _dir: Option<tempfile::TempDir>,
}

/// Where a test server listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Tcp,
    Unix,
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

impl Host {
    pub(crate) fn new(kind: Kind, backend: Arc<dyn Blocker>, config: ServerConfig) -> Self {
        Self::with_control(kind, backend, None, config)
    }

    pub(crate) fn with_control(
        kind: Kind,
        backend: Arc<dyn Blocker>,
        control: Option<Arc<dyn Control>>,
        config: ServerConfig,
    ) -> Self {
        let dir = (kind == Kind::Unix).then(|| tempfile::tempdir().unwrap());
        let address = match &dir {
            Some(dir) => Address::Unix(dir.path().join("synapse.sock")),
            None => Address::Tcp("127.0.0.1:0".into()),
        };
        let runtime = runtime();
        let server = Arc::new(Server::new(backend, control, config).unwrap());
        let address = runtime.block_on(server.listen(&address)).unwrap();
        Self { server, address, runtime, _dir: dir }
    }

    /// Memory behind TCP.
    pub(crate) fn memory() -> Self {
        Self::new(Kind::Tcp, Arc::new(Memory::default()), ServerConfig::default())
    }

    pub(crate) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new(self.address.clone());
        config.patience = Duration::from_secs(20);
        config
    }

    /// A client on the host's runtime.
    pub(crate) fn client(&self) -> SynapseBlocker {
        self.client_with(self.client_config())
    }

    pub(crate) fn client_with(&self, config: ClientConfig) -> SynapseBlocker {
        self.runtime.block_on(SynapseBlocker::connect(config)).unwrap()
    }
}
