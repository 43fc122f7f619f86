//! The server: any backend, served to any number of clients.
//!
//! ```text
//! listen ──► connection ──► slots: seen before? ──► backend ──► reply: answered in the same write
//!                 ▲                                    └──────► pending: a task, then the session's mail
//!                 └── session: outlives the connection
//! ```

mod budget;
mod config;
mod connection;
mod counters;
mod execute;
mod handshake;
mod listen;
mod record;
mod session;
mod slots;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use blocker::metrics::{Collect, Families};
use blocker::{Blocker, Capabilities, Control, Reply, metrics_above};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::auth::random;
use crate::codec::{
    CONTROL_BYTES_MAX, HEAD_BYTES_MAX, Head, InstanceId, LIST_ENTRY_BYTES_MAX, Names, Op, RUN_BYTES, RUNS_MAX,
};
use crate::receive::{PayloadPool, ReceiveBuffer};

use budget::Budget;
pub use config::{ServerConfig, host_name};
use counters::{Counters, Counts};
pub use record::NodeRecord;
use session::Sessions;

/// Serves a backend.
///
/// Listening and connections run on the runtime that [`Self::listen`] is called in, or on those of
/// [`ServerConfig::workers`]. Dropping the server stops listening and breaks its connections off;
/// [`Self::shutdown`] ends them in order.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Mutex<Vec<AbortHandle>>,
}

pub(crate) struct Shared {
    backend: Arc<dyn Blocker>,
    control: Option<Arc<dyn Control>>,
    config: ServerConfig,
    /// The backend's, as far as they go over the wire.
    capabilities: Capabilities,
    payload_bytes_max: u32,
    instance: InstanceId,
    sessions: Sessions,
    budget: Arc<Budget>,
    pool: Arc<PayloadPool>,
    counters: Counters,
    connection_count: AtomicUsize,
    connection_ended: Notify,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Server {
    /// A server for `backend`, and for `control` if it has that face. Listens to nothing yet.
    ///
    /// # Errors
    /// One line that says which setting to mend.
    pub fn new(
        backend: Arc<dyn Blocker>,
        control: Option<Arc<dyn Control>>,
        config: ServerConfig,
    ) -> Result<Self, String> {
        config.check()?;
        let mut limits = backend.capabilities();
        limits.request_bytes_max = limits.request_bytes_max.min(config.request_bytes_max);
        limits.compare_bytes_max = limits.compare_bytes_max.min(config.request_bytes_max);
        limits.list_entries_max = limits.list_entries_max.min(config.list_entries_max);
        limits.runs_max = limits.runs_max.min(RUNS_MAX);
        let capabilities = limits;
        let beside = capabilities.compare_bytes_max.max(u64::from(capabilities.runs_max) * RUN_BYTES as u64);
        let payload_bytes_max = capabilities.request_bytes_max + beside;
        let list_bytes = u64::from(capabilities.list_entries_max) * LIST_ENTRY_BYTES_MAX;
        let least_bytes =
            payload_bytes_max.max(list_bytes).max(CONTROL_BYTES_MAX) + 2 * HEAD_BYTES_MAX as u64;
        if least_bytes > config.session_bytes_max {
            return Err(format!("session_bytes_max must be at least {least_bytes} for this backend"));
        }
        let budget =
            Budget::new(config.bytes_max, least_bytes, config.session_bytes_max, config.connections_max);
        let budget = budget.map_err(|needed| {
            let connections = config.connections_max;
            format!(
                "bytes_max must be at least {needed}: two of the largest requests, and a share for each of \
                 {connections} connections"
            )
        })?;
        let shared = Shared {
            capabilities,
            // Each at most 1 GiB, by the check.
            payload_bytes_max: payload_bytes_max as u32,
            instance: random(),
            sessions: Sessions::new(config.sessions_max, config.session_linger),
            budget,
            pool: PayloadPool::new(config.payload_pool_bytes_max),
            counters: Counters::default(),
            connection_count: AtomicUsize::new(0),
            connection_ended: Notify::new(),
            tasks: Mutex::default(),
            backend,
            control,
            config,
        };
        Ok(Self { shared: Arc::new(shared), listeners: Mutex::default() })
    }

    /// Which run of a server this is. Another one knows nothing of this one's sessions.
    #[must_use]
    pub fn instance(&self) -> InstanceId {
        self.shared.instance
    }

    /// What it has counted so far: name and value.
    #[must_use]
    pub fn metrics(&self) -> Vec<(&'static str, u64)> {
        let mut figures = self.shared.counters.metrics();
        let connections = self.shared.connection_count.load(Ordering::Relaxed) as u64;
        figures.push(("synapse_connections_open", connections));
        figures.push(("synapse_sessions", self.shared.sessions.count() as u64));
        figures
    }

    /// The figure called `name`, or 0.
    #[must_use]
    pub fn metric(&self, name: &str) -> u64 {
        self.metrics().iter().find(|(each, _)| *each == name).map_or(0, |(_, value)| *value)
    }

    /// Stops listening, answers what has been received, says goodbye to every client, and waits for all
    /// of that, at most for `patience`. What takes longer is broken off. Whether all ended in order.
    pub async fn shutdown(&self, patience: Duration) -> bool {
        self.stop_listening();
        self.shared.sessions.end();
        let clock = Arc::clone(&self.shared.config.clock);
        let all_ended = async {
            loop {
                let ended = self.shared.connection_ended.notified();
                if self.shared.connection_count.load(Ordering::Acquire) == 0 {
                    break;
                }
                ended.await;
            }
        };
        let in_order = tokio::select! {
            () = all_ended => true,
            () = clock.sleep(patience) => false,
        };
        self.break_off();
        in_order
    }

    /// Breaks all connections off, as a crash would, and goes on listening. For tests.
    pub fn abort_connections(&self) {
        self.break_off();
    }

    fn stop_listening(&self) {
        self.listeners.lock().drain(..).for_each(|listener| listener.abort());
    }

    fn break_off(&self) {
        self.shared.tasks.lock().drain(..).for_each(|task| task.abort());
    }
}

impl Collect for Server {
    fn collect(&self, into: &mut Families) {
        self.shared.counters.metrics().into_iter().for_each(|(name, value)| into.counter(name, "", value));
        let connections = self.shared.connection_count.load(Ordering::Relaxed) as u64;
        into.gauge("synapse_connections_open", "", connections);
        into.gauge("synapse_sessions", "", self.shared.sessions.count() as u64);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_listening();
        self.break_off();
    }
}

impl Shared {
    /// Memory for a large payload, where the backend has something better than the pool.
    fn reserve_buffer(&self, head: &Head<'_>, names: &mut Names) -> Option<Box<dyn ReceiveBuffer>> {
        let buffers = self.config.receive_buffers.as_ref()?;
        if !matches!(head.header.op, Op::Write | Op::WriteFull) {
            return None;
        }
        let namespace = names.namespace(head.namespace).ok()?;
        let object = blocker::ObjectId::new(namespace, names.name(head.name).ok()?);
        buffers.reserve(&object, head.header.offset, head.payload_bytes)
    }

    /// Returns the metrics of the backend and of the server itself.
    fn metrics(&self) -> Reply<Families> {
        let mut own = Families::new();
        self.counters.metrics().into_iter().for_each(|(name, value)| own.counter(name, "", value));
        match &self.control {
            Some(control) => metrics_above(own, &**control),
            None => Reply::ok(own),
        }
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        let mut counts = Counts::default();
        count(&mut counts);
        self.counters.add(&mut counts);
    }
}

/// What a backend can do, with the limits of the wire.
fn narrowed(mut capabilities: Capabilities, limits: &Capabilities) -> Capabilities {
    capabilities.request_bytes_max = capabilities.request_bytes_max.min(limits.request_bytes_max);
    capabilities.compare_bytes_max = capabilities.compare_bytes_max.min(limits.compare_bytes_max);
    capabilities.list_entries_max = capabilities.list_entries_max.min(limits.list_entries_max);
    capabilities.runs_max = capabilities.runs_max.min(limits.runs_max);
    capabilities
}
