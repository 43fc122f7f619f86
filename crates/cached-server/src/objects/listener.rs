//! The listener of the object cache: a synapse server with threads of its own.

use super::{ObjectsError, spawn};
use crate::config::SynapseTable;
use blocker::Blocker;
use cached_config::CacheReceiveBuffers;
use cached_core::object::ObjectCache;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;
use synapse::{Address, NodeRecord, Secret, Server, host_name};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// A synapse server whose sockets are open.
pub(super) struct ObjectListener {
    server: Arc<Server>,
    addresses: Vec<Address>,
    memory_bytes_max: u64,
    /// The threads end when these are dropped.
    _threads: Vec<oneshot::Sender<()>>,
}

impl ObjectListener {
    /// Opens the sockets, and starts the threads that serve connections. Connections are accepted on
    /// `control`.
    pub(super) fn open(
        table: &SynapseTable,
        secret: Option<Secret>,
        record: &NodeRecord,
        cache: &ObjectCache,
        control: &Runtime,
    ) -> Result<ObjectListener, ObjectsError> {
        let mut config = table.server();
        config.secret = secret;
        config.name = host_name();
        record.apply(&mut config);
        config.receive_buffers = Some(Arc::new(CacheReceiveBuffers::new(cache.clone())));
        let mut threads = Vec::new();
        for index in 0..table.threads {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            config.workers.push(runtime.handle().clone());
            let (keep, end) = oneshot::channel::<()>();
            // Ends with an error, when the other half is dropped.
            spawn(&format!("cached-synapse-{index}"), move || drop(runtime.block_on(end)))?;
            threads.push(keep);
        }
        let memory_bytes_max = config.memory_bytes_max();
        let backend: Arc<dyn Blocker> = Arc::new(cache.clone());
        let server =
            Server::new(backend, config).map_err(|error| ObjectsError::Listener(error.to_string()))?;
        let mut addresses = Vec::new();
        for address in table.addresses()? {
            let bound = control.block_on(server.listen(&address));
            let bound = bound.map_err(|error| ObjectsError::Listener(error.to_string()))?;
            if let Address::Unix(path) = &bound {
                let mode = Permissions::from_mode(table.unix_mode()?);
                fs::set_permissions(path, mode)
                    .map_err(|error| ObjectsError::Listener(format!("{}: {error}", path.display())))?;
            }
            addresses.push(bound);
        }
        Ok(ObjectListener { server: Arc::new(server), addresses, memory_bytes_max, _threads: threads })
    }

    pub(super) fn server(&self) -> Arc<Server> {
        self.server.clone()
    }

    /// Returns the addresses it listens on.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.addresses.iter().map(ToString::to_string).collect()
    }

    pub(super) fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    /// Answers what has been received, and ends. Returns whether all clients took their replies within
    /// `timeout`.
    pub(super) async fn shut_down(self, timeout: Duration) -> bool {
        self.server.shutdown(timeout).await
    }
}
