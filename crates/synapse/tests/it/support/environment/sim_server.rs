//! Synapse in a simulation: a server that can be killed, its clients, and the network between them.

use std::sync::Arc;
use std::time::Duration;

use blocker::Blocker;
use parking_lot::Mutex;
use synapse::{Address, Addresses, ClientConfig, Duplex, Server, ServerConfig, SynapseBlocker};

use crate::support::environment::clock::TokioClock;
use crate::support::environment::mortal::Mortal;
use crate::support::net::plan::Plan;
use crate::support::net::sim::Sim;

/// The time between the death of the server and its restart.
const DOWNTIME: Duration = Duration::from_millis(300);

/// A server, the network in front of it, and the store below it, which outlives the server.
pub struct SimServer {
    pub sim: Sim,
    pub clock: TokioClock,
    store: Mutex<Arc<dyn Blocker>>,
    config: Mutex<ServerConfig>,
    instance: Mutex<Option<Instance>>,
}

/// One instance of the server.
struct Instance {
    server: Arc<Server>,
    backend: Arc<Mortal>,
}

/// Runs a simulation on one thread. Tokio's clock is paused, so the simulation takes no real time.
pub fn simulate<T>(run: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(run)
}

/// Settings with time limits short enough for many failures in one run.
pub fn server_config(clock: TokioClock) -> ServerConfig {
    let mut config = ServerConfig::default();
    config.clock = Arc::new(clock);
    config.peer_timeout = Duration::from_secs(9);
    config
}

/// Settings of a client that detects a dead server within seconds. Payloads carry CRCs, because the
/// network damages bytes.
pub fn client_config(server: &SimServer) -> ClientConfig {
    client_config_of(&[server])
}

/// The settings of such a client that knows several servers, in this order.
pub fn client_config_of(servers: &[&SimServer]) -> ClientConfig {
    let names: Vec<_> = (0..servers.len()).map(|number| format!("simulated-{number}:1")).collect();
    let mut config = ClientConfig::new(names.join(",").parse::<Addresses>().expect("names of hosts"));
    let sims: Vec<_> = servers.iter().map(|server| server.sim.clone()).collect();
    config.connector = Some(Arc::new(move |address: &Address| {
        let number = names.iter().position(|name| *name == address.to_string());
        let sim = sims[number.expect("one of the names")].clone();
        Box::pin(async move { sim.dial().await.map(|stream| Box::new(stream) as Box<dyn Duplex>) })
    }));
    let server = servers[0];
    config.clock = Arc::new(server.clock);
    config.connections = 1;
    config.payload_crc = true;
    config.connect_timeout = Duration::from_secs(2);
    config.keep_alive = Duration::from_secs(1);
    config.peer_timeout = Duration::from_secs(3);
    config.reconnect_timeout = Duration::from_secs(60);
    config
}

impl SimServer {
    /// Starts a listening server for `store`, behind a network with the faults of `plans`. When a
    /// fault kills it, it restarts as another instance after [`DOWNTIME`].
    pub fn open(
        store: Arc<dyn Blocker>,
        plans: impl Fn(u64) -> Plan + Send + Sync + 'static,
        clock: TokioClock,
        config: ServerConfig,
    ) -> Arc<Self> {
        let sim = Sim::with(plans);
        let server = Arc::new(Self {
            sim,
            clock,
            store: Mutex::new(store),
            config: Mutex::new(config),
            instance: Mutex::new(None),
        });
        server.start();
        let weak = Arc::downgrade(&server);
        tokio::spawn(async move {
            while let Some(server) = weak.upgrade() {
                server.sim.hits().kill.notified().await;
                server.restart().await;
            }
        });
        server
    }

    /// Kills the server, and starts another instance.
    pub async fn restart(&self) {
        self.kill();
        tokio::time::sleep(DOWNTIME).await;
        self.start();
    }

    /// Kills the server, whatever it is doing.
    pub fn kill(&self) {
        if let Some(instance) = self.instance.lock().take() {
            instance.backend.die();
        }
        self.sim.kill_server();
    }

    /// Starts another instance.
    pub fn start(&self) {
        let backend = Mortal::new(Arc::clone(&*self.store.lock()));
        let server = Server::new(Arc::clone(&backend) as _, self.config.lock().clone());
        let server = Arc::new(server.expect("settings that make sense"));
        let serving = Arc::clone(&server);
        self.sim.listen(Arc::new(move |stream| {
            tokio::spawn(serving.serve_stream(Box::new(stream))).abort_handle()
        }));
        *self.instance.lock() = Some(Instance { server, backend });
    }

    /// Changes the settings of the next instance.
    pub fn reconfigure(&self, change: impl FnOnce(&mut ServerConfig)) {
        change(&mut self.config.lock());
    }

    /// Replaces the store of the next instance.
    pub fn replace_store(&self, store: Arc<dyn Blocker>) {
        *self.store.lock() = store;
    }

    /// Returns the id of the running instance.
    ///
    /// # Panics
    /// Panics if no instance is running.
    pub fn instance(&self) -> [u8; 16] {
        self.instance.lock().as_ref().expect("a server").server.instance()
    }

    /// Returns a metric of the running instance.
    pub fn metric(&self, name: &str) -> u64 {
        self.instance.lock().as_ref().map_or(0, |instance| instance.server.metric(name))
    }

    /// Returns a client with the usual settings, connected after as many attempts as necessary.
    pub async fn client(&self) -> SynapseBlocker {
        self.client_with(client_config(self)).await
    }

    /// Returns a connected client with these settings.
    pub async fn client_with(&self, config: ClientConfig) -> SynapseBlocker {
        for _ in 0..1_000 {
            if let Ok(client) = SynapseBlocker::connect(config.clone()).await {
                return client;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the server could not be reached in a thousand attempts");
    }
}
