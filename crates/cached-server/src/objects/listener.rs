//! The listener of the object cache: a synapse server with threads of its own.

use super::sockets::ObjectSockets;
use super::{ObjectsError, spawn};
use crate::config::SynapseTable;
use blocker::trace::Tracer;
use blocker::{Blocker, Traced};
use cached_config::CacheReceiveBuffers;
use cached_core::object::ObjectCache;
use std::sync::Arc;
use std::time::Duration;
use synapse::codec::InstanceId;
use synapse::{NodeRecord, Secret, Server, host_name};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// A synapse server over an object cache, and the threads that serve its connections.
pub(super) struct ObjectListener {
    server: Arc<Server>,
    memory_bytes_max: u64,
    /// The threads end when these are dropped.
    _threads: Vec<oneshot::Sender<()>>,
}

impl ObjectListener {
    /// Starts the threads that serve connections. None is accepted yet. `continues` is the instance of a listener
    /// that has ended before over the same cache.
    pub(super) fn new(
        table: &SynapseTable,
        secrets: Vec<Secret>,
        record: &NodeRecord,
        cache: &ObjectCache,
        tracer: Option<&Tracer>,
        continues: Option<InstanceId>,
    ) -> Result<ObjectListener, ObjectsError> {
        let mut config = table.server();
        let mut secrets = secrets.into_iter();
        (config.secret, config.secret_previous) = (secrets.next(), secrets.next());
        config.name = host_name();
        config.continues = continues;
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
        let mut backend: Arc<dyn Blocker> = Arc::new(cache.clone());
        if let Some(tracer) = tracer {
            backend = Arc::new(Traced::cache(backend, tracer.clone()));
        }
        config.tracer = tracer.cloned();
        let server =
            Server::new(backend, config).map_err(|error| ObjectsError::Listener(error.to_string()))?;
        Ok(ObjectListener { server: Arc::new(server), memory_bytes_max, _threads: threads })
    }

    /// Accepts connections, in the runtime that is entered.
    pub(super) fn listen(&self, sockets: &ObjectSockets) -> Result<(), ObjectsError> {
        sockets.listen(&self.server).map_err(ObjectsError::Listener)
    }

    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    pub(super) fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    /// Answers what it has begun, and ends. Connections whose clients do not take their replies within `timeout` are
    /// closed.
    pub(super) async fn end(self, timeout: Duration) {
        if !self.server.shutdown(timeout).await {
            tracing::warn!("connections of object clients that did not take their replies are closed");
        }
    }
}
