//! The state that survives a connection: outstanding requests and their outcomes, and how a
//! restarted server treats them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::host::{Gated, Host, Kind, object, until};
use crate::support::raw::{Raw, hello, id};
use blocker::executor::poll_times;
use blocker::*;
use synapse::codec::*;
use synapse::{Address, ClientConfig, ListeningSocket, Server, ServerConfig, SynapseBlocker};

fn write(byte: u8) -> Request {
    Request::Change(WriteRequest::new(object("o"), 0, vec![byte; 16]).into())
}

#[test]
fn a_repeated_change_is_executed_once() {
    let backend = Gated::new();
    backend.open();
    let host = Host::new(Kind::Tcp, Arc::clone(&backend) as _, ServerConfig::default());
    let (mut raw, welcome) = Raw::welcomed(&host.address, &hello(0));
    assert!(!welcome.is_resumed);
    raw.request(id(0, 1), &write(1));
    let Outcome::Answered(Answer::Change(first)) = raw.frame().outcome() else { panic!("not changed") };
    drop(raw);
    for _ in 0..2 {
        let (mut raw, welcome) = Raw::welcomed(&host.address, &hello(0));
        assert!(welcome.is_resumed);
        raw.request(id(0, 1), &write(1));
        let Outcome::Answered(Answer::Change(again)) = raw.frame().outcome() else { panic!("not replayed") };
        assert_eq!(again.version, first.version);
    }
    assert_eq!(backend.writes.load(Ordering::SeqCst), 1);
    assert_eq!(host.server.metric("synapse_replays_total"), 2);
    // Slots of different sessions are independent.
    let (mut other, welcome) = Raw::welcomed(&host.address, &hello(1));
    assert!(!welcome.is_resumed);
    other.request(id(0, 1), &write(1));
    other.frame();
    assert_eq!(backend.writes.load(Ordering::SeqCst), 2);
}

#[test]
fn a_change_outstanding_when_its_connection_breaks_is_executed_once_and_answered_on_the_next() {
    let backend = Gated::new();
    let host = Host::new(Kind::Tcp, Arc::clone(&backend) as _, ServerConfig::default());
    let client = host.client();
    let writing = {
        let client = client.clone();
        host.runtime.spawn(client.write(WriteRequest::new(object("o"), 0, b"once")).into_future())
    };
    until("the write is under way", || backend.begun.load(Ordering::SeqCst) == 1);
    for _ in 0..3 {
        until("both lanes are up", || host.server.metric("synapse_connections_open") == 2);
        let before = client.counters().connects;
        host.server.abort_connections();
        until("the client has come again", || client.counters().connects >= before + 2);
    }
    backend.open();
    host.runtime.block_on(writing).unwrap().unwrap();
    assert_eq!(backend.writes.load(Ordering::SeqCst), 1);
    assert_eq!(backend.dropped.load(Ordering::SeqCst), 0, "a call that had begun was dropped");
    assert!(client.counters().resends >= 1);
    assert_eq!(client.counters().unanswered, 0);
}

/// Stops a server and starts another one at the same address.
fn restart(host: &mut Host, backend: Arc<dyn Blocker>) {
    let (place, config) = (host.address.clone(), ServerConfig::default());
    let server = Arc::new(Server::new(backend, config).unwrap());
    let old = std::mem::replace(&mut host.server, Arc::clone(&server));
    drop(old);
    let listening = async {
        // The old listener ends with its task, a moment later.
        while server.listen(&place).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    host.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), listening).await.unwrap() });
}

#[test]
fn after_a_restart_the_outcome_of_outstanding_changes_is_unknown_and_other_calls_succeed() {
    let backend = Gated::new();
    let mut host = Host::new(Kind::Unix, Arc::clone(&backend) as _, ServerConfig::default());
    let client = host.client();
    let writing =
        host.runtime.spawn(client.write(WriteRequest::new(object("o"), 0, b"perhaps")).into_future());
    let reading = host.runtime.spawn(client.read(ReadRequest::new(object("o"), 0, 7)).into_future());
    until("both are under way", || backend.begun.load(Ordering::SeqCst) == 2);
    restart(&mut host, Arc::clone(&backend) as _);
    let error = host.runtime.block_on(writing).unwrap().unwrap_err();
    assert!(error.is_ambiguous(), "{error}");
    backend.open();
    // A read may be executed again.
    host.runtime
        .block_on(reading)
        .unwrap()
        .map(drop)
        .or_else(|e| if e == Error::Missing { Ok(()) } else { Err(e) })
        .unwrap();
    assert_eq!(backend.writes.load(Ordering::SeqCst), 1, "a change was sent again to another instance");
    host.runtime.block_on(client.write(WriteRequest::new(object("o"), 0, b"next")).into_future()).unwrap();
}

#[test]
fn a_flush_after_a_restart_reports_writes_that_were_only_cached() {
    let backend = Gated::new();
    backend.open();
    let mut host = Host::new(Kind::Unix, Arc::clone(&backend) as _, ServerConfig::default());
    let client = host.client();
    let run = |host: &Host, reply: Reply<FlushReply>| host.runtime.block_on(reply.into_future());
    let full = |name| WriteFullRequest::new(object(name), b"cached");
    for name in ["flushed", "lost"] {
        let reply = host.runtime.block_on(client.write_full(full(name)).into_future()).unwrap();
        assert_eq!(reply.durability, Durability::Cached);
        if name == "flushed" {
            run(&host, client.flush(FlushRequest::new(Scope::All))).unwrap();
        }
    }
    until("both lanes are up", || client.counters().connects == 2);
    let before = client.counters().connects;
    restart(&mut host, Arc::clone(&backend) as _);
    until("the client has come again", || client.counters().connects >= before + 2);
    let lost = |reply| matches!(reply, Err(Error::WritesLost(_)));
    assert!(lost(run(&host, client.flush(FlushRequest::new(Scope::All)))));
    assert!(lost(run(&host, client.flush(FlushRequest::new(Scope::Object(object("lost")))))));
    run(&host, client.flush(FlushRequest::new(Scope::Object(object("flushed"))))).unwrap();
    // After the data have been rewritten, the flush succeeds.
    host.runtime.block_on(client.write_full(full("lost")).into_future()).unwrap();
    run(&host, client.flush(FlushRequest::new(Scope::All))).unwrap();
}

#[test]
fn a_second_connection_of_a_session_ends_the_first_which_executes_nothing_more() {
    let backend = Gated::new();
    let host = Host::new(Kind::Tcp, Arc::clone(&backend) as _, ServerConfig::default());
    let (mut first, _) = Raw::welcomed(&host.address, &hello(0));
    first.request(id(0, 1), &write(1));
    until("the write is under way", || backend.writes.load(Ordering::SeqCst) == 1);
    let (mut second, welcome) = Raw::welcomed(&host.address, &hello(0));
    assert!(welcome.is_resumed);
    assert!(first.frame().goodbye().to_string().contains("taken the session"));
    second.request(id(0, 1), &write(1));
    backend.open();
    assert!(matches!(second.frame().outcome(), Outcome::Answered(_)));
    assert_eq!(backend.writes.load(Ordering::SeqCst), 1);
}

#[test]
fn a_cancelled_request_is_dropped_at_the_backend_and_its_slot_used_again() {
    let backend = Gated::new();
    let host = Host::new(Kind::Tcp, Arc::clone(&backend) as _, ServerConfig::default());
    let mut config = host.client_config();
    (config.connections, config.slots) = (1, 1);
    let client = host.client_with(config);
    for round in 1..=3 {
        let reply = client.read(ReadRequest::new(object("o"), 0, 4));
        let reading = host.runtime.spawn(reply.into_future());
        until("the read is under way", || backend.begun.load(Ordering::SeqCst) == round);
        reading.abort();
        until("the backend has let go", || backend.dropped.load(Ordering::SeqCst) == round);
    }
    // Each one is counted once its connection has processed it.
    until("the cancels are counted", || host.server.metric("synapse_cancels_total") == 3);
    backend.open();
    let reply = host.runtime.block_on(client.write(WriteRequest::new(object("o"), 0, b"x")).into_future());
    reply.unwrap();
}

#[test]
fn cancelled_means_that_nothing_was_changed() {
    let backend = Gated::new();
    let host = Host::new(Kind::Tcp, Arc::clone(&backend) as _, ServerConfig::default());
    let (mut raw, _) = Raw::welcomed(&host.address, &hello(0));
    // The backend has started the request, and may have executed it.
    raw.request(id(0, 1), &write(1));
    until("the write is under way", || backend.begun.load(Ordering::SeqCst) == 1);
    raw.send(|out| encode_cancel(out, id(0, 1)));
    let outcome = raw.frame().outcome();
    assert!(matches!(outcome, Outcome::Failed(Error::OutcomeUnknown(_))), "{outcome:?}");
    // A query.
    raw.request(id(0, 2), &Request::Read(ReadRequest::new(object("o"), 0, 4)));
    until("the read is under way", || backend.begun.load(Ordering::SeqCst) == 2);
    raw.send(|out| encode_cancel(out, id(0, 2)));
    assert!(matches!(raw.frame().outcome(), Outcome::Cancelled));
    // The cancellation of this request arrives before the request itself.
    raw.send(|out| encode_cancel(out, id(1, 1)));
    assert!(matches!(raw.frame().outcome(), Outcome::Cancelled));
    raw.request(id(1, 1), &write(2));
    assert!(matches!(raw.frame().outcome(), Outcome::Cancelled));
    assert_eq!(backend.writes.load(Ordering::SeqCst), 1);
}

#[test]
fn a_call_dropped_before_it_was_sent_never_arrives() {
    let backend = Gated::new();
    let host = Host::new(Kind::Tcp, Arc::clone(&backend) as _, ServerConfig::default());
    let mut config = host.client_config();
    (config.connections, config.slots) = (1, 1);
    let client = host.client_with(config);
    let first = host.runtime.spawn(client.write(WriteRequest::new(object("o"), 0, b"first")).into_future());
    until("the only slot is taken", || backend.begun.load(Ordering::SeqCst) == 1);
    for polls in 0..4 {
        let reply = client.write(WriteRequest::new(object("o"), 0, b"never"));
        assert!(poll_times(reply, polls, Duration::from_millis(1)).is_none());
    }
    // The dropped calls do not delay the next one.
    let next = host.runtime.spawn(client.write(WriteRequest::new(object("o"), 0, b"next")).into_future());
    backend.open();
    host.runtime.block_on(first).unwrap().unwrap();
    host.runtime.block_on(next).unwrap().unwrap();
    assert_eq!(backend.writes.load(Ordering::SeqCst), 2);
}

#[test]
fn an_orderly_shutdown_answers_requests_that_have_begun() {
    let backend = Gated::new();
    let host = Host::new(Kind::Tcp, Arc::clone(&backend) as _, ServerConfig::default());
    let (mut raw, _) = Raw::welcomed(&host.address, &hello(0));
    raw.request(id(0, 1), &write(1));
    until("the write is under way", || backend.begun.load(Ordering::SeqCst) == 1);
    let server = Arc::clone(&host.server);
    let ending = host.runtime.spawn(async move { server.shutdown(Duration::from_secs(60)).await });
    backend.open();
    assert!(matches!(raw.frame().outcome(), Outcome::Answered(_)));
    assert!(raw.frame().goodbye().to_string().contains("ending"));
    assert!(raw.try_frame().is_none());
    assert!(host.runtime.block_on(ending).unwrap(), "not in order");
    // The server has stopped listening.
    let synapse::Address::Tcp(address) = &host.address else { panic!("TCP") };
    assert!(std::net::TcpStream::connect(address.as_str()).is_err());
}

/// The socket outlives the first server. No client is refused in the meantime. A change that the
/// first server has not started or not received is made by the second one.
#[test]
fn a_change_that_an_ending_server_has_not_begun_is_made_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    for (number, is_late) in [(0, false), (1, true)] {
        let unix = dir.path().join(number.to_string());
        for place in [Address::Tcp("127.0.0.1:0".into()), Address::Unix(unix)] {
            made_by_the_next(&place, is_late);
        }
    }
}

fn made_by_the_next(place: &Address, is_late: bool) {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // The server runs only during this call, and is paused in between.
    let drive = |runtime: tokio::runtime::Runtime, stop: tokio::sync::oneshot::Receiver<()>| {
        std::thread::spawn(move || {
            // The wait ends with an error when the other half of the channel is dropped.
            let _ = runtime.block_on(stop);
            runtime
        })
    };
    let backend = Gated::new();
    backend.open();
    let (servers, clients) = (runtime(), runtime());
    let socket = servers.block_on(ListeningSocket::bind(place)).unwrap();
    let serve = |runtime: &tokio::runtime::Runtime| {
        let _inside = runtime.enter();
        let server = Server::new(Arc::clone(&backend) as _, ServerConfig::default()).unwrap();
        server.listen_on(&socket).unwrap();
        server
    };
    let first = serve(&servers);
    let mut config = ClientConfig::new(socket.address().clone());
    config.connections = 1;
    (config.connect_timeout, config.reconnect_timeout) = (Duration::from_secs(60), Duration::from_secs(60));
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let driven = drive(servers, stopped);
    let client = clients.block_on(SynapseBlocker::connect(config)).unwrap();
    drop(stop);
    let servers = driven.join().unwrap();

    let write = || clients.spawn(client.write(WriteRequest::new(object("o"), 0, b"once")).into_future());
    let early = (!is_late).then(write);
    // The socket accepts the data immediately.
    clients.block_on(async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    });
    assert!(servers.block_on(first.shutdown(Duration::from_secs(60))), "not in order");
    drop(first);
    assert_eq!(backend.writes.load(Ordering::SeqCst), 0, "the first server has begun it");

    let writing = early.unwrap_or_else(write);
    let _second = serve(&servers);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let driven = drive(servers, stopped);
    clients.block_on(writing).unwrap().unwrap();
    drop(stop);
    driven.join().unwrap();
    assert_eq!(backend.writes.load(Ordering::SeqCst), 1, "{place}, late: {is_late}");
    assert_eq!(client.counters().unanswered, 0);
}

#[test]
fn a_backend_that_panics_leaves_an_unknown_outcome_and_the_server_alive() {
    struct Panics(PassThrough<Memory>);
    impl Blocker for Panics {
        blocker::delegate!(|this| this.0, except change);

        fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
            match request.change {
                Change::Truncate { .. } => {
                    Reply::pending(async { panic!("a bug in the backend, on purpose") })
                }
                _ => self.0.change(request),
            }
        }
    }
    let backend = Panics(PassThrough::new(Arc::new(Memory::default())));
    let host = Host::new(Kind::Tcp, Arc::new(backend), ServerConfig::default());
    let client = host.client();
    let error = host.runtime.block_on(client.truncate(TruncateRequest::new(object("o"), 1)).into_future());
    assert!(error.as_ref().is_err_and(Error::is_ambiguous), "{error:?}");
    host.runtime.block_on(client.write(WriteRequest::new(object("o"), 0, b"x")).into_future()).unwrap();
}
