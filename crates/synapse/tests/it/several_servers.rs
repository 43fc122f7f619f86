//! A client that knows several servers of one store, of which one serves at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use blocker::faulty::FaultPlan;
use blocker::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use synapse::{Addresses, ClientConfig, NodeRecord, SynapseBlocker};
use tokio::time::Instant;

use crate::support::environment::clock::TokioClock;
use crate::support::environment::ledger::{Ledger, assert_applied};
use crate::support::environment::sim_server::{
    SimServer, client_config, client_config_of, server_config, simulate,
};
use crate::support::environment::workload::{Workload, prepare, register, run};
use crate::support::history::check::assert_linearizable;
use crate::support::host::{Host, object};
use crate::support::layers::Caching;
use crate::support::net::plan::{Direction, Fault, Kind, Plan, Profile};

const TIMEOUT: Duration = Duration::from_secs(5);

/// Two hosts over one store; neither serves yet.
struct Pair {
    hosts: [Arc<SimServer>; 2],
    clock: TokioClock,
}

impl Pair {
    /// Returns a pair with the faults of `plans`, by the numbers of host and connection.
    fn with_plans(
        store: Arc<dyn Blocker>,
        clock: TokioClock,
        plans: impl Fn(usize, u64) -> Plan + Clone + Send + Sync + 'static,
    ) -> Self {
        let host = |number| {
            let plans = plans.clone();
            let plans = move |connection| plans(number, connection);
            let host = SimServer::open(Arc::clone(&store), plans, clock, server_config(clock));
            host.kill();
            host
        };
        Self { hosts: [host(0), host(1)], clock }
    }

    fn new(store: Arc<dyn Blocker>, clock: TokioClock) -> Self {
        Self::with_plans(store, clock, |_, _| Plan::default())
    }

    fn config(&self) -> ClientConfig {
        client_config_of(&[&self.hosts[0], &self.hosts[1]])
    }

    async fn client(&self) -> SynapseBlocker {
        self.hosts[0].client_with(self.config()).await
    }

    /// Makes the other host serve after `from` was killed.
    fn take_over(&self, from: usize) {
        self.hosts[from].kill();
        self.hosts[1 - from].start();
    }

    fn connections(&self, host: usize) -> u64 {
        self.hosts[host].sim.hits().connections.load(Ordering::Relaxed)
    }

    fn open_connections(&self, host: usize) -> u64 {
        self.hosts[host].metric("synapse_connections_open")
    }
}

fn write(name: &str) -> WriteRequest {
    WriteRequest::new(object(name), 0, b"content")
}

fn read(name: &str) -> ReadRequest {
    ReadRequest::new(object(name), 0, 4096)
}

#[test]
fn a_client_finds_the_host_that_serves_and_all_its_connections_stay_there() {
    for serving in 0..2 {
        simulate(async {
            let clock = TokioClock::new();
            let pair = Pair::new(Arc::new(clock.memory()), clock);
            pair.hosts[serving].start();
            let mut config = pair.config();
            config.connections = 3;
            let client = pair.hosts[0].client_with(config).await;
            client.write(write("o")).await.unwrap();
            tokio::time::sleep(TIMEOUT).await;
            let other = 1 - serving;
            assert_eq!([pair.open_connections(serving), pair.connections(other)], [3, 0]);
            // The client moves to the host that takes over, and does not return to the first one.
            pair.take_over(serving);
            assert_eq!(client.read(read("o")).await.unwrap().data.to_vec(), b"content");
            tokio::time::sleep(TIMEOUT).await;
            let before = pair.connections(serving);
            pair.hosts[serving].start();
            tokio::time::sleep(Duration::from_secs(60)).await;
            client.read(read("o")).await.unwrap();
            assert_eq!([pair.open_connections(other), pair.connections(serving)], [3, before]);
            assert_eq!(client.counters().server_changes, 1);
        });
    }
}

#[test]
fn a_host_that_accepts_connections_and_does_not_answer_counts_as_failed() {
    simulate(async {
        let clock = TokioClock::new();
        let pair = Pair::new(Arc::new(clock.memory()), clock);
        let stopped = |stream: tokio::io::DuplexStream| {
            tokio::spawn(async move {
                let _stream = stream;
                std::future::pending::<()>().await;
            })
            .abort_handle()
        };
        pair.hosts[0].sim.listen(Arc::new(stopped));
        pair.hosts[1].start();
        let start = Instant::now();
        let client = pair.client().await;
        let connect_timeout = pair.config().connect_timeout;
        assert!(start.elapsed() < connect_timeout * 2, "{:?}", start.elapsed());
        client.write(write("o")).await.unwrap();
        // The serving host stops, and the other one answers again: the client leaves the silent
        // host without another attempt to reach it.
        pair.hosts[0].start();
        let before = pair.connections(1);
        pair.hosts[1].sim.kill_server();
        pair.hosts[1].sim.listen(Arc::new(stopped));
        client.read(read("o")).await.unwrap();
        assert_eq!(pair.open_connections(0), 1);
        assert!(pair.connections(1) <= before + 1);
    });
}

#[test]
fn a_host_that_ends_every_connection_before_an_answer_is_left() {
    let [_, welcome] = simulate(async {
        let clock = TokioClock::new();
        let pair = Pair::new(Arc::new(clock.memory()), clock);
        pair.hosts[0].start();
        let client = pair.hosts[0].client_with(client_config(&pair.hosts[0])).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        let hits = pair.hosts[0].sim.hits();
        drop(client);
        [&hits.up_bytes, &hits.down_bytes].map(|bytes| bytes.load(Ordering::Relaxed))
    });
    simulate(async {
        let clock = TokioClock::new();
        let down = Direction::one(welcome + 1, Fault::Cut);
        let plans = move |host, _| match host {
            0 => Plan { down: down.clone(), ..Plan::default() },
            _ => Plan::default(),
        };
        let pair = Pair::with_plans(Arc::new(clock.memory()), clock, plans);
        pair.hosts.iter().for_each(|host| host.start());
        let client = pair.client().await;
        let deadline = clock.now() + Duration::from_secs(20);
        let info = client.info(InfoRequest::new(object("o")).deadline(deadline)).await;
        assert_eq!(info.map(drop), Err(Error::Missing));
        assert_eq!(pair.connections(0), 1);
    });
}

#[test]
fn names_that_do_not_resolve_and_closed_ports_are_passed_over() {
    let host = Host::memory();
    // A port that no test gets from the system.
    let closed = "127.0.0.1:1";
    let config = |list: String| {
        let mut config = host.client_config();
        config.addresses = list.parse::<Addresses>().unwrap();
        config
    };
    let client = host.client_with(config(format!("no..name:1,{closed},{}", host.address)));
    host.runtime.block_on(client.write(write("o")).into_future()).unwrap();
    // If no host can be reached, the error names each of them.
    let connecting = SynapseBlocker::connect(config(format!("no..name:1,{closed}")));
    let error = host.runtime.block_on(connecting).map(drop).unwrap_err();
    let Error::Retryable(text) = &error else { panic!("{error}") };
    let (first, second) = text.split_once("; ").expect("two causes");
    assert!(first.starts_with("no..name:1: ") && second.starts_with(&format!("{closed}: ")), "{text}");
}

#[test]
fn when_a_host_dies_queries_go_to_the_next_one_and_the_outcome_of_sent_changes_is_unknown() {
    simulate(async {
        let clock = TokioClock::new();
        let memory = Arc::new(clock.memory());
        let slow = Arc::new(Faulty::new(Arc::clone(&memory) as _, FaultPlan::benign(1), Arc::new(clock)));
        let pair = Pair::new(Arc::clone(&slow) as _, clock);
        pair.hosts[0].start();
        let client = pair.client().await;
        client.write(write("o")).await.unwrap();
        slow.stall();
        let reads = tokio::spawn(client.read(read("o")).into_future());
        let writes = tokio::spawn(client.write(write("new")).into_future());
        let flushes = tokio::spawn(client.flush(FlushRequest::new(Scope::All)).into_future());
        tokio::time::sleep(TIMEOUT).await;
        pair.hosts[0].kill();
        tokio::time::sleep(TIMEOUT).await;
        // This request begins while no host serves.
        let later = tokio::spawn(client.write(write("later")).into_future());
        tokio::time::sleep(TIMEOUT).await;
        slow.resume();
        pair.hosts[1].start();
        assert_eq!(reads.await.unwrap().unwrap().data.to_vec(), b"content");
        flushes.await.unwrap().unwrap();
        later.await.unwrap().unwrap();
        let outcome = writes.await.unwrap().map(drop);
        assert!(matches!(outcome, Err(Error::OutcomeUnknown(_))), "{outcome:?}");
        assert_eq!(memory.info(InfoRequest::new(object("new"))).await.map(drop), Err(Error::Missing));
    });
}

#[test]
fn without_a_host_a_call_fails_at_its_deadline_and_not_before() {
    simulate(async {
        let clock = TokioClock::new();
        let pair = Pair::new(Arc::new(clock.memory()), clock);
        pair.hosts[0].start();
        let client = pair.client().await;
        client.write(write("o")).await.unwrap();
        pair.hosts[0].kill();
        tokio::time::sleep(TIMEOUT).await;
        let start = Instant::now();
        let limit = Duration::from_secs(20);
        let outcome = client.read(read("o").deadline(clock.now() + limit)).await.map(drop);
        assert_eq!(outcome, Err(Error::DeadlinePassed));
        let took = start.elapsed();
        assert!(took >= limit && took < limit + Duration::from_millis(5), "{took:?}");
        // In the meantime, the client tried both hosts repeatedly.
        let refused = |host: usize| pair.hosts[host].sim.hits().refused.load(Ordering::Relaxed);
        assert!(refused(0) > 5 && refused(1) > 5, "{} {}", refused(0), refused(1));
    });
}

#[test]
fn writes_that_a_host_took_with_it_fail_flushes_at_the_next_one_unless_it_ended_in_order() {
    simulate(async {
        let clock = TokioClock::new();
        let store = Arc::new(clock.memory());
        let pair = Pair::new(Arc::new(Caching(Arc::clone(&store) as _)), clock);
        let serve = async |host: usize| {
            let record = NodeRecord::open(&*store, &pair.clock, TIMEOUT).await.unwrap();
            pair.hosts[host].reconfigure(|config| record.apply(config));
            pair.hosts[host].start();
        };
        serve(0).await;
        let client = pair.client().await;
        let full = |name: &str| client.write_full(WriteFullRequest::new(object(name), b"cached"));
        let flush = || client.flush(FlushRequest::new(Scope::All)).into_future();
        for (round, host) in [0, 1, 0, 1].into_iter().enumerate() {
            let instance = pair.hosts[host].instance();
            assert_eq!(full("o").await.unwrap().durability, Durability::Cached);
            pair.hosts[host].kill();
            let is_in_order = round % 2 == 0;
            if is_in_order {
                NodeRecord::close(&*store, instance, &clock, TIMEOUT).await.unwrap();
            }
            serve(1 - host).await;
            match flush().await {
                Ok(_) => assert!(is_in_order, "round {round}: lost writes count as stored"),
                Err(Error::WritesLost(_)) => assert!(!is_in_order, "round {round}"),
                Err(error) => panic!("round {round}: {error}"),
            }
            // Data that are written again no longer count as lost.
            full("o").await.unwrap();
            flush().await.unwrap();
        }
    });
}

/// The clients use an unreliable network, and the hosts take over from each other repeatedly.
#[test]
fn histories_across_hosts_have_an_order() {
    let (mut changes, mut unknown) = (0, 0);
    for seed in 0..12 {
        simulate(async {
            let (workload, clock) = (Workload::new(seed), TokioClock::new());
            let ledger = Ledger::new(clock);
            prepare(&*ledger, &workload).await;
            let mut plan = FaultPlan::benign(seed);
            (plan.delay_permille, plan.delay) = (500, Duration::from_micros(1)..Duration::from_millis(30));
            let slow = Arc::new(Faulty::new(Arc::clone(&ledger) as _, plan, Arc::new(clock)));
            let kinds = [Kind::Cut, Kind::HalfOpen, Kind::Pause, Kind::Delay];
            let profiles = [0, 1].map(|host| Profile::rough(2 * seed + host, &kinds));
            let pair = Pair::with_plans(slow, clock, move |host, number| profiles[host].draw(number));
            pair.hosts[0].start();
            let mut backends: Vec<Arc<dyn Blocker>> = Vec::new();
            let mut clients = Vec::new();
            for number in 0..4 {
                let mut config = pair.config();
                config.connections = 1 + number % 2;
                let client = pair.hosts[0].client_with(config).await;
                backends.extend([Arc::new(client.clone()) as _, Arc::new(client.clone()) as _]);
                clients.push(client);
            }
            let hosts = pair.hosts.clone();
            let takeovers = tokio::spawn(async move {
                let mut rng = SmallRng::seed_from_u64(seed);
                for round in 0.. {
                    let pause = |rng: &mut SmallRng| Duration::from_millis(rng.random_range(1..1500));
                    tokio::time::sleep(pause(&mut rng)).await;
                    hosts[round % 2].kill();
                    tokio::time::sleep(pause(&mut rng) / 4).await;
                    hosts[(round + 1) % 2].start();
                }
            });
            let outcomes = run(&backends, &workload, clock).await;
            takeovers.abort();
            changes += clients.iter().map(|client| client.counters().server_changes).sum::<u64>();
            drop((backends, clients));
            tokio::time::sleep(Duration::from_secs(120)).await;
            for (number, history) in outcomes.histories.iter().enumerate() {
                let context = format!("seed {seed}, register {number}");
                assert_applied(&ledger.applied(&register(number))[1..], history, &context);
                assert_linearizable(history, &context);
                unknown += history.iter().filter(|operation| operation.action.is_unknown()).count();
            }
        });
    }
    println!("{changes} changes of the server, {unknown} outcomes unknown");
    assert!(changes > 100 && unknown > 10, "{changes} {unknown}");
}
