//! Silent peers, deadlines and timeouts, on a clock that only the tests advance.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::host::{Gated, Host, Kind, object, until};
use crate::support::raw::{Raw, hello, id};
use blocker::*;
use synapse::codec::*;
use synapse::{Address, ClientConfig, ServerConfig, SynapseBlocker};

fn clocked(backend: Arc<dyn Blocker>) -> (Host, ManualClock) {
    let clock = ManualClock::new();
    let mut config = ServerConfig::default();
    config.clock = Arc::new(clock.clone());
    (Host::new(Kind::Tcp, backend, config), clock)
}

/// Advances the clock in steps until `is` holds. Other threads may see many steps as one, so this
/// is suitable only for results that do not depend on the time at which they are noticed.
#[track_caller]
fn step_until(clock: &ManualClock, step: Duration, what: &str, is: impl Fn() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < give_up, "timed out: {what}");
        clock.advance(step);
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_silent_client_is_closed_and_one_that_pings_is_not() {
    let (host, clock) = clocked(Arc::new(Memory::default()));
    let (mut silent, welcome) = Raw::welcomed(&host.address, &hello(0));
    assert_eq!(welcome.peer_timeout_ms, 30_000);
    let (mut alive, _) = Raw::welcomed(&host.address, &hello(1));
    for _ in 0..5 {
        clock.advance(Duration::from_secs(20));
        alive.send(|out| encode_ping(out, false));
        let pong = alive.frame();
        assert_eq!((pong.head().header.op, pong.head().header.flags), (Op::Ping, Flags(Flags::REPLY)));
    }
    assert!(silent.try_frame().is_none());
    until("it is counted", || host.server.metric("synapse_connections_silent_total") == 1);
    until("the other one is left", || host.server.metric("synapse_connections_open") == 1);
    alive.send(|out| encode_ping(out, false));
    alive.frame();
}

#[test]
fn a_client_that_receives_nothing_is_closed_and_costs_no_more_than_its_grant() {
    let clock = ManualClock::new();
    let mut config = ServerConfig::default();
    config.clock = Arc::new(clock.clone());
    let memory = Arc::new(Memory::default());
    let host = Host::new(Kind::Tcp, Arc::clone(&memory) as _, config);
    host.runtime
        .block_on(memory.write(WriteRequest::new(object("o"), 0, vec![1; 4 << 20])).into_future())
        .unwrap();
    let (mut raw, _) = Raw::welcomed(&host.address, &hello(0));
    let read = Request::Read(ReadRequest::new(object("o"), 0, 4 << 20));
    // Responses that exceed the sockets' buffers wait, and the server stops reading.
    for slot in 0..4 {
        raw.request(id(slot, 1), &read);
    }
    until("the server has begun", || host.server.metric("synapse_requests_total") >= 1);
    let mut first = [0; 1];
    raw.stream.read_exact(&mut first).unwrap();
    step_until(&clock, Duration::from_secs(1), "the client is closed", || {
        host.server.metric("synapse_connections_silent_total") == 1
    });
}

#[test]
fn a_client_detects_that_its_server_is_silent_and_connects_again() {
    // This server sends nothing after its welcome.
    let listener = Arc::new(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let address = Address::Tcp(listener.local_addr().unwrap().to_string());
    let welcomes = |is_resumed| {
        let listener = Arc::clone(&listener);
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let (mut hello, mut byte) = (Vec::<u8>::new(), [0]);
            while decode(&hello, 0).unwrap().is_none() {
                stream.read_exact(&mut byte).unwrap();
                hello.extend(byte);
            }
            let credits = Credits { slots: 1, bytes: 1 << 24 };
            let mut welcome = Welcome::new([1; 16], 1, credits, Capabilities::full(4096));
            welcome.is_resumed = is_resumed;
            let mut out = Vec::new();
            welcome.encode(&mut out);
            std::io::Write::write_all(&mut stream, &out).unwrap();
            stream
        })
    };
    let first = welcomes(false);
    let clock = ManualClock::new();
    let mut config = ClientConfig::new(address);
    (config.connections, config.clock) = (1, Arc::new(clock.clone()));
    // The clock advances while the second connection performs its handshake.
    config.connect_timeout = Duration::from_secs(1 << 30);
    let keep_alive = config.keep_alive;
    let runtime = crate::support::host::runtime();
    let client = runtime.block_on(SynapseBlocker::connect(config)).unwrap();
    until("it has connected", || client.counters().connects == 1);
    // The client sends a ping before any more time passes.
    clock.advance(keep_alive);
    let mut first = first.join().unwrap();
    let (mut received, mut byte) = (Vec::<u8>::new(), [0]);
    while !received.windows(6).any(|bytes| bytes == [b'S', b'Y', b'N', b'A', VERSION, Op::Ping.code()]) {
        first.read_exact(&mut byte).expect("it sends a ping");
        received.extend(byte);
    }
    let second = welcomes(true);
    step_until(&clock, Duration::from_millis(500), "it has connected again", || {
        client.counters().connects == 2
    });
    second.join().unwrap();
}

#[test]
fn an_idle_connection_is_kept_alive() {
    let (host, clock) = clocked(Arc::new(Memory::default()));
    let mut config = host.client_config();
    config.clock = Arc::new(clock.clone());
    let client = host.client_with(config);
    crate::support::host::until("both have connected", || client.counters().connects == 2);
    // After five seconds of silence, each of them sends a ping, which is answered.
    for asked in (1..=100).map(|round| 2 * round) {
        clock.advance(Duration::from_secs(5));
        let answered = || client.counters().pings_answered == asked;
        crate::support::host::until("both have been answered", answered);
    }
    host.runtime.block_on(client.write(WriteRequest::new(object("o"), 0, b"x")).into_future()).unwrap();
    assert_eq!(client.counters().connects, 2);
}

#[test]
fn every_call_returns_at_its_deadline() {
    let backend = Gated::new();
    let (host, clock) = clocked(Arc::clone(&backend) as _);
    let mut config = host.client_config();
    (config.clock, config.connections, config.slots) = (Arc::new(clock.clone()), 1, 3);
    let client = host.client_with(config);
    let deadline = clock.now() + Duration::from_secs(2);
    let late =
        host.runtime.block_on(client.info(InfoRequest::new(object("o")).deadline(clock.now())).into_future());
    assert_eq!(late.unwrap_err(), Error::DeadlinePassed);
    let write = client.write(WriteRequest::new(object("o"), 0, b"x").deadline(deadline));
    let write = host.runtime.spawn(write.into_future());
    let read = client.read(ReadRequest::new(object("o"), 0, 1).deadline(deadline));
    let read = host.runtime.spawn(read.into_future());
    let other = host.runtime.spawn(client.read(ReadRequest::new(object("o"), 0, 1)).into_future());
    until("all three are under way", || backend.begun.load(Ordering::SeqCst) == 3);
    // This request finds no free slot.
    let waits = client.write(WriteRequest::new(object("o"), 0, b"y").deadline(deadline));
    let waits = host.runtime.spawn(waits.into_future());
    // The clock advances only up to the deadline, so that the connection does not time out.
    clock.advance(Duration::from_secs(2));
    until("the deadline has passed", || write.is_finished() && read.is_finished() && waits.is_finished());
    assert!(host.runtime.block_on(write).unwrap().unwrap_err().is_ambiguous());
    assert_eq!(host.runtime.block_on(read).unwrap().unwrap_err(), Error::DeadlinePassed);
    assert_eq!(host.runtime.block_on(waits).unwrap().unwrap_err(), Error::DeadlinePassed);
    assert!(!other.is_finished());
    backend.open();
    // The backend may have executed the read before or after the write.
    let other = host.runtime.block_on(other).unwrap();
    assert!(matches!(other, Ok(_) | Err(Error::Missing)), "{other:?}");
    assert_eq!(backend.writes.load(Ordering::SeqCst), 1);
}

#[test]
fn without_a_server_calls_wait_for_reconnect_timeout_and_then_fail() {
    let backend = Gated::new();
    let (host, clock) = clocked(Arc::clone(&backend) as _);
    let mut config = host.client_config();
    (config.clock, config.reconnect_timeout) = (Arc::new(clock.clone()), Duration::from_secs(10));
    let runtime = crate::support::host::runtime();
    let client = runtime.block_on(SynapseBlocker::connect(config)).unwrap();
    let sent = runtime.spawn(client.write(WriteRequest::new(object("o"), 0, b"x")).into_future());
    until("the write is under way", || backend.begun.load(Ordering::SeqCst) == 1);
    drop(host);
    let queued = runtime.spawn(client.info(InfoRequest::new(object("o"))).into_future());
    step_until(&clock, Duration::from_millis(500), "both have given up", || {
        sent.is_finished() && queued.is_finished()
    });
    assert!(runtime.block_on(sent).unwrap().unwrap_err().is_ambiguous());
    assert!(matches!(runtime.block_on(queued).unwrap().unwrap_err(), Error::Retryable(_)));
    // After that, calls fail immediately.
    let error = runtime.block_on(client.info(InfoRequest::new(object("o"))).into_future()).unwrap_err();
    assert!(matches!(error, Error::Retryable(_)), "{error}");
}

#[test]
fn dropping_the_client_ends_its_connections() {
    let host = Host::memory();
    let client = host.client();
    let reply = client.info(InfoRequest::new(object("o")));
    until("both lanes are connected", || host.server.metric("synapse_connections_open") == 2);
    drop(client);
    // A reply keeps the connections for as long as it exists.
    assert_eq!(host.runtime.block_on(reply.into_future()).unwrap_err(), Error::Missing);
    until("all are closed", || host.server.metric("synapse_connections_open") == 0);
}

/// A store without space, which reports that at the deadline of each change.
struct Full {
    memory: Memory,
    clock: ManualClock,
    begun: std::sync::atomic::AtomicU64,
}

impl Blocker for Full {
    blocker::delegate!(|this| this.memory, except change);

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        let wait = self.clock.sleep_until(request.call.deadline.expect("a deadline"));
        self.begun.fetch_add(1, Ordering::SeqCst);
        Reply::pending(async move {
            wait.await;
            Err(Error::NotStored("no space is left".into()))
        })
    }
}

#[test]
fn what_the_server_knows_at_the_deadline_of_a_call_reaches_its_caller_in_time() {
    let clock = ManualClock::new();
    let backend = Arc::new(Full { memory: Memory::default(), clock: clock.clone(), begun: 0.into() });
    let mut config = ServerConfig::default();
    config.clock = Arc::new(clock.clone());
    let host = Host::new(Kind::Tcp, Arc::clone(&backend) as _, config);
    let mut config = host.client_config();
    (config.clock, config.call_timeout) = (Arc::new(clock.clone()), Some(Duration::from_secs(2)));
    let client = host.client_with(config);
    let write = || WriteRequest::new(object("o"), 0, b"x");
    let own = write().deadline(clock.now() + Duration::from_secs(2));
    let writes = [write(), own].map(|write| host.runtime.spawn(client.write(write).into_future()));
    until("both are under way", || backend.begun.load(Ordering::SeqCst) == 2);
    // The remaining quarter of a second does not pass here, so the response is in time.
    clock.advance(Duration::from_millis(1750));
    for write in writes {
        let why = host.runtime.block_on(write).unwrap().unwrap_err();
        assert_eq!(why, Error::NotStored("no space is left".into()));
    }
}
