//! Synapse in a small world: a server whose process can die, clients, and a simulated network between them.

use std::sync::Arc;
use std::time::Duration;

use blocker::Blocker;
use parking_lot::Mutex;
use synapse::{Address, ClientConfig, Duplex, Server, ServerConfig, SynapseBlocker};

use crate::support::net::plan::Plan;
use crate::support::net::sim::Sim;
use crate::support::world::clock::TokioClock;
use crate::support::world::mortal::Mortal;

/// How long the server is away when it dies.
const DOWN: Duration = Duration::from_millis(300);

/// A server, the network to it, and the store below it, which outlives it.
pub struct Door {
    pub sim: Sim,
    pub clock: TokioClock,
    store: Mutex<Arc<dyn Blocker>>,
    config: Mutex<ServerConfig>,
    life: Mutex<Option<Life>>,
}

/// One run of the server.
struct Life {
    server: Arc<Server>,
    backend: Arc<Mortal>,
}

/// Runs a simulation on one thread, with tokio's clock paused: nothing waits for real.
pub fn simulate<T>(world: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(world)
}

/// Settings with times short enough for many failures in one run.
pub fn server_config(clock: TokioClock) -> ServerConfig {
    let mut config = ServerConfig::default();
    config.clock = Arc::new(clock);
    config.peer_timeout = Duration::from_secs(9);
    config
}

/// A client that notices a dead server within seconds. Payloads are protected, since bytes get damaged.
pub fn client_config(door: &Door) -> ClientConfig {
    let mut config = ClientConfig::new(Address::Tcp("simulated:1".into()));
    let sim = door.sim.clone();
    config.connector = Some(Arc::new(move || {
        let sim = sim.clone();
        Box::pin(async move { sim.dial().await.map(|stream| Box::new(stream) as Box<dyn Duplex>) })
    }));
    config.clock = Arc::new(door.clock);
    config.connections = 1;
    config.payload_crc = true;
    config.connect_timeout = Duration::from_secs(2);
    config.keep_alive = Duration::from_secs(1);
    config.peer_timeout = Duration::from_secs(3);
    config.reconnect_timeout = Duration::from_secs(60);
    config
}

impl Door {
    /// A server for `store` that listens, behind a network with the faults of `plans`. Whenever a fault
    /// kills it, it comes back as another instance a little later.
    pub fn open(
        store: Arc<dyn Blocker>,
        plans: impl Fn(u64) -> Plan + Send + Sync + 'static,
        clock: TokioClock,
        config: ServerConfig,
    ) -> Arc<Self> {
        let sim = Sim::with(plans);
        let door = Arc::new(Self {
            sim,
            clock,
            store: Mutex::new(store),
            config: Mutex::new(config),
            life: Mutex::new(None),
        });
        door.start();
        let weak = Arc::downgrade(&door);
        tokio::spawn(async move {
            while let Some(door) = weak.upgrade() {
                door.sim.hits().kill.notified().await;
                door.restart().await;
            }
        });
        door
    }

    /// The server dies, whatever it is doing, and another instance takes its place.
    pub async fn restart(&self) {
        self.kill();
        tokio::time::sleep(DOWN).await;
        self.start();
    }

    /// The server dies.
    pub fn kill(&self) {
        if let Some(life) = self.life.lock().take() {
            life.backend.die();
        }
        self.sim.kill_server();
    }

    /// Another instance starts to listen.
    pub fn start(&self) {
        let backend = Mortal::new(Arc::clone(&*self.store.lock()));
        let server = Server::new(Arc::clone(&backend) as _, self.config.lock().clone());
        let server = Arc::new(server.expect("settings that make sense"));
        let serving = Arc::clone(&server);
        self.sim.listen(Arc::new(move |stream| {
            tokio::spawn(serving.serve_stream(Box::new(stream))).abort_handle()
        }));
        *self.life.lock() = Some(Life { server, backend });
    }

    /// The next instance has other settings.
    pub fn reconfigure(&self, change: impl FnOnce(&mut ServerConfig)) {
        change(&mut self.config.lock());
    }

    /// The next instance serves another store.
    pub fn replace_store(&self, store: Arc<dyn Blocker>) {
        *self.store.lock() = store;
    }

    /// Which run of the server this is.
    ///
    /// # Panics
    /// If it does not run.
    pub fn instance(&self) -> [u8; 16] {
        self.life.lock().as_ref().expect("a server").server.instance()
    }

    /// A figure of the server that runs now.
    pub fn metric(&self, name: &str) -> u64 {
        self.life.lock().as_ref().map_or(0, |life| life.server.metric(name))
    }

    /// A client with the usual settings, connected however often that must be tried.
    pub async fn client(&self) -> SynapseBlocker {
        self.client_with(client_config(self)).await
    }

    /// A client with these settings.
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
