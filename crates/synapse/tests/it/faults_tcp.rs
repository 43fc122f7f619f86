//! Histories over sockets, where a kernel adds its own buffers, segments and resets. A run is less
//! repeatable than in memory: the seed determines the faults and their positions, but not the order
//! of concurrent events.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use blocker::faulty::FaultPlan;
use blocker::{Blocker, Faulty};
use parking_lot::Mutex;
use synapse::{Address, ClientConfig, Server, ServerConfig, SynapseBlocker};

use crate::support::environment::clock::TokioClock;
use crate::support::environment::ledger::{Ledger, assert_applied};
use crate::support::environment::mortal::Mortal;
use crate::support::environment::workload::{Workload, prepare, register, run};
use crate::support::history::check::{CLIENTS_MAX, assert_linearizable};
use crate::support::net::plan::{Kind, Profile};
use crate::support::net::tcp::TcpRelay;

/// An instance of the server, and the process around its backend.
struct Instance {
    backend: Arc<Mortal>,
    // The server listens as long as this value exists.
    _server: Server,
    address: SocketAddr,
}

impl Instance {
    async fn begin(store: Arc<dyn Blocker>, clock: TokioClock) -> Self {
        let mut config = ServerConfig::default();
        config.clock = Arc::new(clock);
        config.peer_timeout = Duration::from_millis(900);
        let backend = Mortal::new(store);
        let server = Server::new(Arc::clone(&backend) as _, config).expect("a server");
        let bound = server.listen(&Address::Tcp("127.0.0.1:0".into())).await.expect("a port");
        let address = bound.to_string().parse().expect("an address with a port");
        Self { backend, _server: server, address }
    }
}

async fn connect(address: SocketAddr, clock: TokioClock) -> SynapseBlocker {
    let mut config = ClientConfig::new(Address::Tcp(address.to_string()));
    config.clock = Arc::new(clock);
    config.payload_crc = true;
    config.connect_timeout = Duration::from_millis(500);
    config.keep_alive = Duration::from_millis(100);
    config.peer_timeout = Duration::from_millis(400);
    config.backoff_max = Duration::from_millis(100);
    for _ in 0..200 {
        if let Ok(client) = SynapseBlocker::connect(config.clone()).await {
            return client;
        }
    }
    panic!("the server could not be reached in two hundred attempts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_between_sockets_have_an_order_and_agree_with_the_store() {
    let mut happened = 0;
    for seed in 0..2 {
        let clock = TokioClock::new();
        let mut workload = Workload::new(seed);
        workload.deadline = Duration::from_millis(5)..Duration::from_secs(2);
        workload.rest = Duration::from_millis(2);
        // The machine may be busy; this test is only about calls that hang.
        workload.lateness_max = Duration::from_secs(60);
        let ledger = Ledger::new(clock);
        prepare(&*ledger, &workload).await;
        let mut delays = FaultPlan::benign(seed);
        (delays.delay_permille, delays.delay) = (500, Duration::from_micros(1)..Duration::from_millis(2));
        let store: Arc<dyn Blocker> =
            Arc::new(Faulty::new(Arc::clone(&ledger) as _, delays, Arc::new(clock)));

        let instance = Instance::begin(Arc::clone(&store), clock).await;
        let mut profile = Profile::rough(seed, &Kind::ALL);
        (profile.pause, profile.bytes_max) =
            (Duration::from_millis(1)..Duration::from_millis(600), 128 * 1024);
        let relay = Arc::new(TcpRelay::start(instance.address, profile).await.expect("a relay"));
        let instance = Arc::new(Mutex::new(Some(instance)));
        let reaper = tokio::spawn({
            let (relay, instance) = (Arc::clone(&relay), Arc::clone(&instance));
            let store = Arc::clone(&store);
            async move {
                loop {
                    relay.hits().kill.notified().await;
                    let old = instance.lock().take().expect("one lives at a time");
                    old.backend.die();
                    drop(old);
                    let new = Instance::begin(Arc::clone(&store), clock).await;
                    relay.retarget(new.address);
                    *instance.lock() = Some(new);
                }
            }
        });

        let mut backends: Vec<Arc<dyn Blocker>> = Vec::new();
        for _ in 0..CLIENTS_MAX / 2 {
            let client = connect(relay.address(), clock).await;
            backends.extend([Arc::new(client.clone()) as _, Arc::new(client) as _]);
        }
        let outcomes = run(&backends, &workload, clock).await;
        drop(backends);
        reaper.abort();
        // Once the last server has been killed, nothing more can be applied.
        if let Some(instance) = instance.lock().take() {
            instance.backend.die();
        }
        for (number, history) in outcomes.histories.iter().enumerate() {
            let context = format!("seed {seed}, register {number}");
            assert_applied(&ledger.applied(&register(number))[1..], history, &context);
            assert_linearizable(history, &context);
            assert!(history.len() > 60, "{context}: only {} operations came through", history.len());
        }
        happened += [Kind::Cut, Kind::Kill, Kind::HalfOpen, Kind::Pause, Kind::Corrupt]
            .map(|kind| relay.hits().of(kind))
            .iter()
            .sum::<u64>();
    }
    assert!(happened > 5, "a quiet network proves nothing: {happened} faults");
}
