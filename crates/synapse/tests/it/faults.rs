//! One fault at a time, at every position where it makes a difference: the outcome for the caller,
//! and the changes that were made.

use std::sync::Arc;
use std::time::Duration;

use blocker::faulty::FaultPlan;
use blocker::{
    Blocker, BlockerExt, Clock, CompareAndWriteRequest, Error, Faulty, ReadRequest, Reply, WriteRequest,
};
use synapse::ServerConfig;
use tokio::time::Instant;

use crate::support::environment::clock::TokioClock;
use crate::support::environment::ledger::Ledger;
use crate::support::environment::sim_server::{SimServer, client_config, server_config, simulate};
use crate::support::environment::workload::{Workload, prepare, register};
use crate::support::history::operation::Value;
use crate::support::net::plan::{Direction, Fault, Kind, Plan};

const A: Value = Value(1);
const B: Value = Value(2);

/// An environment with one register, created before the clients connect.
struct Environment {
    server: Arc<SimServer>,
    ledger: Arc<Ledger>,
    slow: Arc<Faulty>,
    clock: TokioClock,
}

impl Environment {
    /// Returns an environment in which the faults of `plan` happen on the first connection.
    async fn new(plan: Plan) -> Self {
        Self::with(plan, |_| {}).await
    }

    async fn with(plan: Plan, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let first = move |connection| if connection == 0 { plan.clone() } else { Plan::default() };
        Self::with_plans(first, change).await
    }

    /// Faults for each connection, by its number.
    async fn with_plans(
        plans: impl Fn(u64) -> Plan + Send + Sync + 'static,
        change: impl FnOnce(&mut ServerConfig),
    ) -> Self {
        let clock = TokioClock::new();
        let ledger = Ledger::new(clock);
        prepare(&*ledger, &Workload { registers: 1, ..Workload::new(0) }).await;
        let mut delays = FaultPlan::benign(1);
        (delays.delay_permille, delays.delay) = (1000, Duration::from_micros(100)..Duration::from_millis(2));
        let slow = Arc::new(Faulty::new(Arc::clone(&ledger) as _, delays, Arc::new(clock)));
        let mut config = server_config(clock);
        change(&mut config);
        let server = SimServer::open(Arc::clone(&slow) as _, plans, clock, config);
        Self { server, ledger, slow, clock }
    }

    /// Returns what clients have written, in order.
    fn applied(&self) -> Vec<Value> {
        self.ledger.applied(&register(0))[1..].to_vec()
    }
}

fn write(value: Value) -> WriteRequest {
    WriteRequest::new(register(0), 0, value.to_bytes())
}

/// Repeats a call as long as it fails with `Retryable`.
async fn settled<T: Unpin>(call: impl Fn() -> Reply<T>) -> Result<T, Error> {
    for _ in 0..20 {
        match call().await {
            Err(Error::Retryable(_)) => {}
            answer => return answer,
        }
    }
    panic!("twenty times Retryable");
}

async fn read_value(client: &dyn Blocker) -> Value {
    let read = settled(|| client.read(ReadRequest::new(register(0), 0, 4096))).await.expect("a read");
    Value::from_bytes(&read.data.to_vec()).expect("a whole value")
}

/// Returns the positions of faults: every byte of the handshake and of both ends, and many
/// positions in the payloads between.
fn positions(total: u64) -> impl Iterator<Item = u64> {
    (0..=total).filter(move |at| *at < 700 || at + 300 > total || at % 61 == 0)
}

/// Returns plans for both directions, each with one fault.
fn plans(total: [u64; 2], fault: Fault) -> impl Iterator<Item = Plan> {
    let up = positions(total[0]).map(move |at| Plan { up: Direction::one(at, fault), ..Plan::default() });
    let down = positions(total[1]).map(move |at| Plan { down: Direction::one(at, fault), ..Plan::default() });
    up.chain(down)
}

/// Executes a write, a compare-and-write, and a read. Returns the written values, the duration, and
/// the number of transferred bytes.
fn exchange(plan: Plan) -> (Vec<Value>, Duration, [u64; 2]) {
    simulate(async {
        let environment = Environment::new(plan.clone()).await;
        let client = environment.server.client().await;
        let start = Instant::now();
        settled(|| client.write(write(A))).await.unwrap_or_else(|error| panic!("{plan:?}: {error}"));
        let swap = || CompareAndWriteRequest::new(register(0), 0, A.to_bytes(), B.to_bytes());
        settled(|| client.compare_and_write(swap()))
            .await
            .unwrap_or_else(|error| panic!("{plan:?}: {error}"));
        assert_eq!(read_value(&client).await, B, "{plan:?}");
        let took = start.elapsed();
        drop(client);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let hits = environment.server.sim.hits();
        let carried =
            [&hits.up_bytes, &hits.down_bytes].map(|bytes| bytes.load(std::sync::atomic::Ordering::Relaxed));
        (environment.applied(), took, carried)
    })
}

/// While the server lives, no network fault changes a result or makes it unknown.
fn does_no_harm(fault: Fault) {
    let (_, _, total) = exchange(Plan::default());
    let mut count = 0;
    for plan in plans(total, fault) {
        let (applied, took, _) = exchange(plan.clone());
        assert_eq!(applied, [A, B], "{plan:?}");
        assert!(took < Duration::from_secs(30), "{plan:?} took {took:?}");
        count += 1;
    }
    assert!(count > 1_500, "only {count} places");
}

#[test]
fn a_cut_anywhere_loses_nothing_and_does_nothing_twice() {
    does_no_harm(Fault::Cut);
}

#[test]
fn a_half_open_connection_loses_nothing_and_does_nothing_twice() {
    does_no_harm(Fault::HalfOpen);
}

#[test]
fn a_damaged_byte_anywhere_is_noticed() {
    does_no_harm(Fault::Corrupt(0x10));
}

#[test]
fn a_peer_that_pauses_anywhere_loses_nothing_and_does_nothing_twice() {
    does_no_harm(Fault::Pause(Duration::from_secs(8)));
}

/// Returns the outcome of a write during which the server is killed at some byte, and the written
/// values.
fn dies(plan: &Plan) -> (Result<(), Error>, Vec<Value>) {
    simulate(async {
        let environment = Environment::new(plan.clone()).await;
        let client = environment.server.client().await;
        let outcome = client.write(write(A)).await.map(drop);
        let found = read_value(&client).await;
        let applied = environment.applied();
        assert_eq!(applied.contains(&A), found == A, "{plan:?}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        (outcome, environment.applied())
    })
}

#[test]
fn after_the_server_has_died_the_outcome_is_unknown_and_never_guessed() {
    let (mut done, mut unknown_done, mut unknown_not_done) = (0, 0, 0);
    for plan in plans([4_600, 600], Fault::Kill) {
        match dies(&plan) {
            (Ok(()), applied) => {
                assert_eq!(applied, [A], "{plan:?}");
                done += 1;
            }
            (Err(Error::OutcomeUnknown(_)), applied) => match applied[..] {
                [A] => unknown_done += 1,
                [] => unknown_not_done += 1,
                _ => panic!("{plan:?}: applied {applied:?}"),
            },
            // The request was never sent, so nothing may be written.
            (Err(Error::Retryable(_)), applied) => assert_eq!(applied, [], "{plan:?}"),
            (Err(error), _) => panic!("{plan:?}: {error:?}"),
        }
    }
    println!("{done} done, {unknown_done} unknown and done, {unknown_not_done} unknown and not done");
    assert!(done > 0 && unknown_done > 10 && unknown_not_done > 10);
}

/// Returns the length of the handshake in each direction, after which requests and responses start.
fn handshake_bytes() -> [u64; 2] {
    simulate(async {
        let environment = Environment::new(Plan::default()).await;
        let client = environment.server.client().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        let hits = environment.server.sim.hits();
        drop(client);
        [&hits.up_bytes, &hits.down_bytes].map(|bytes| bytes.load(std::sync::atomic::Ordering::Relaxed))
    })
}

#[test]
fn a_lost_answer_is_repeated_by_the_same_instance() {
    let [_, down] = handshake_bytes();
    simulate(async {
        let plan = Plan { down: Direction::one(down + 50, Fault::Cut), ..Plan::default() };
        let environment = Environment::new(plan).await;
        let client = environment.server.client().await;
        client.write(write(A)).await.expect("the answer was kept");
        assert_eq!(environment.applied(), [A]);
        assert_eq!(environment.server.metric("synapse_replays_total"), 1);
    });
}

/// Limits the server to one client.
fn only_one(config: &mut ServerConfig) {
    (config.connections_max, config.sessions_max) = (1, 1);
}

/// Returns the outcome of a write whose response was lost, and whose session was then replaced by
/// another client's.
async fn forgotten(environment: &Environment) -> Result<(), Error> {
    let mut patient = client_config(&environment.server);
    (patient.backoff_min, patient.backoff_max) = (Duration::from_secs(10), Duration::from_secs(10));
    let first = environment.server.client_with(patient).await;
    let call = tokio::spawn(first.write(write(A)).into_future());
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(environment.applied(), [A]);
    // While the first client is disconnected, another one takes the only place.
    let second = environment.server.client().await;
    settled(|| second.write(write(B))).await.expect("a write");
    drop(second);
    let outcome = call.await.expect("the call's task").map(drop);
    assert_eq!(read_value(&first).await, B);
    assert_eq!(environment.applied(), [A, B]);
    outcome
}

#[test]
fn a_session_that_was_forgotten_leaves_the_outcome_unknown() {
    let [_, down] = handshake_bytes();
    simulate(async {
        let plan = Plan { down: Direction::one(down + 50, Fault::Cut), ..Plan::default() };
        let outcome = forgotten(&Environment::with(plan, only_one).await).await;
        assert!(matches!(outcome, Err(Error::OutcomeUnknown(_))), "{outcome:?}");
    });
}

/// Returns plans in which the connections with numbers in `vain` break before their welcome is
/// complete. The first connection loses its first response by the fault `lost`.
fn handshakes_in_vain(
    [_, welcome]: [u64; 2],
    lost: Fault,
    vain: std::ops::Range<u64>,
) -> impl Fn(u64) -> Plan + Send + Sync + 'static {
    let down = move |at, fault| Plan { down: Direction::one(at, fault), ..Plan::default() };
    move |connection| match connection {
        0 => down(welcome + 50, lost),
        number if vain.contains(&number) => down(welcome - 10, Fault::Cut),
        _ => Plan::default(),
    }
}

#[test]
fn another_instance_leaves_the_outcome_unknown_even_if_it_knows_the_session_id() {
    let plans = handshakes_in_vain(handshake_bytes(), Fault::Kill, 1..4);
    simulate(async {
        let environment = Environment::with_plans(plans, |_| {}).await;
        let client = environment.server.client().await;
        let outcome = client.write(write(A)).await;
        assert!(matches!(outcome, Err(Error::OutcomeUnknown(_))), "{outcome:?}");
        assert_eq!(read_value(&client).await, A);
        assert_eq!(environment.applied(), [A]);
    });
}

#[test]
fn a_forgotten_session_is_not_resumed_even_if_it_was_begun_again() {
    let plans = handshakes_in_vain(handshake_bytes(), Fault::Cut, 2..4);
    simulate(async {
        let outcome = forgotten(&Environment::with_plans(plans, only_one).await).await;
        assert!(matches!(outcome, Err(Error::OutcomeUnknown(_))), "{outcome:?}");
    });
}

#[test]
fn at_its_deadline_a_sent_change_has_an_unknown_outcome() {
    let [up, _] = handshake_bytes();
    simulate(async {
        // After the handshake, the server reads nothing for a long time.
        let plan = Plan { up: Direction::one(up, Fault::Pause(Duration::from_secs(40))), ..Plan::default() };
        let environment = Environment::new(plan).await;
        let client = environment.server.client().await;
        let start = Instant::now();
        let deadline = environment.clock.now() + Duration::from_secs(1);
        let outcome = client.write(write(A).deadline(deadline)).await;
        assert!(matches!(outcome, Err(Error::OutcomeUnknown(_))), "{outcome:?}");
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(1) && took < Duration::from_millis(1_005), "{took:?}");
        // Another write succeeds on a new connection and stays in effect: the bytes of the old
        // connection have no effect.
        settled(|| client.write(write(B))).await.expect("a write");
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(read_value(&client).await, B);
        assert_eq!(environment.applied(), [B]);
    });
}

#[test]
fn a_request_that_was_never_sent_is_never_executed() {
    simulate(async {
        let environment = Environment::new(Plan::default()).await;
        let client = environment.server.client().await;
        environment.server.kill();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let deadline = environment.clock.now() + Duration::from_secs(2);
        let outcome = client.write(write(A).deadline(deadline)).await;
        assert!(matches!(outcome, Err(Error::DeadlinePassed)), "{outcome:?}");
        // The caller of this request disappeared before there was a connection.
        let gone = tokio::time::timeout(Duration::from_secs(1), client.write(write(B)).into_future()).await;
        assert!(gone.is_err(), "{gone:?}");
        environment.server.start();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(read_value(&client).await, Value::INITIAL);
        assert_eq!(environment.applied(), []);
    });
}

#[test]
fn no_more_is_outstanding_than_was_granted() {
    simulate(async {
        let environment = Environment::with(Plan::default(), |config| config.session_slots_max = 8).await;
        let mut config = client_config(&environment.server);
        config.connections = 2;
        let client = environment.server.client_with(config).await;
        environment.slow.stall();
        let before = environment.slow.steps();
        let calls: Vec<_> =
            (1..=500).map(|n| tokio::spawn(client.write(write(Value(n))).into_future())).collect();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let under_way = environment.slow.steps() - before;
        assert!((8..=16).contains(&under_way), "{under_way} calls at the backend");
        environment.slow.resume();
        for call in calls {
            call.await.expect("the call's task").expect("a write");
        }
        let mut applied = environment.applied();
        applied.sort_unstable();
        assert_eq!(applied, (1..=500).map(Value).collect::<Vec<_>>());
    });
}

#[test]
fn dead_connections_do_not_stay_open_at_the_server() {
    let [up, _] = handshake_bytes();
    simulate(async {
        let plan = Plan { up: Direction::one(up, Fault::HalfOpen), ..Plan::default() };
        let environment = Environment::new(plan).await;
        let client = environment.server.client().await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(environment.server.sim.hits().of(Kind::HalfOpen), 1);
        assert_eq!(environment.server.metric("synapse_connections_open"), 1);
        client.write(write(A)).await.expect("a write");
        drop(client);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(environment.server.metric("synapse_connections_open"), 0);
    });
}

#[test]
fn a_client_that_breaks_the_protocol_does_not_affect_others() {
    let [up, _] = handshake_bytes();
    simulate(async {
        let environment =
            Environment::new(Plan { up: Direction::one(up + 5, Fault::Corrupt(0xff)), ..Plan::default() })
                .await;
        let troubled = environment.server.client().await;
        let other = environment.server.client().await;
        let connections =
            || environment.server.sim.hits().connections.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(connections(), 2);
        for n in 0..50 {
            other.write(write(Value(100 + n))).await.expect("untouched");
            if n == 20 {
                troubled.write(write(A)).await.expect("sent again");
            }
        }
        assert_eq!(environment.server.metric("synapse_connections_broken_total"), 1);
        assert_eq!(connections(), 3, "only the troubled one has connected again");
        assert_eq!(environment.applied().iter().filter(|&&value| value == A).count(), 1);
    });
}
