//! Defects inside the server, made on request (`debugtime` in a debug build): it never goes on with half of its threads, and what it has
//! acknowledged is stored before it ends.

use blocker::executor::block_on;
use blocker::{Blocker, Durability, Name, Namespace, ObjectId, ReadRequest, WriteRequest};
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{START_STOP_DEADLINE, Server, Start};
use std::path::Path;
use std::time::Instant;
use synapse::{Address, ClientConfig, SynapseBlocker};

/// `EX_SOFTWARE`.
const DEFECT: i32 = 70;

/// memcached has no such command, nor has a release build.
fn can_be_asked() -> bool {
    if Program::under_test().flavour != Flavour::Cached {
        return false;
    }
    let server = Server::start("--debug-clock");
    let mut conn = server.connect();
    conn.send(b"debugtime go-on\r\n");
    conn.read_line() == b"OK"
}

fn object() -> ObjectId {
    ObjectId::new(Namespace::new("vm").expect("a namespace"), Name::new("object").expect("a name"))
}

fn connect(socket: &Path) -> SynapseBlocker {
    SynapseBlocker::connect_on_thread(ClientConfig::new(Address::Unix(socket.into()))).expect("a connection")
}

/// Whichever thread it is: the process says which, stores what is dirty, and ends with a status of its own.
#[test]
fn a_thread_that_panics_ends_the_process_and_loses_nothing() {
    if !can_be_asked() {
        return;
    }
    for (ask, thread) in [("panic-worker", "cached-"), ("panic-acceptor", "main")] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (store, socket) = (dir.path().join("store"), dir.path().join("socket"));
        let text = format!(
            "[process]\nverbosity = 1\n[objects]\nwrite = \"back\"\ndirty_age_ms_max = 86400000\n[objects.backend]\n\
             kind = \"file\"\npath = \"{}\"\n[synapse]\nlisten = [\"unix:{}\"]\n",
            store.display(),
            socket.display()
        );
        let file = dir.path().join("cached.toml");
        std::fs::write(&file, text).expect("a configuration");
        let args = format!("--config={} --debug-clock -t 2", file.display());
        let mut server = Server::start(&args);
        let client = connect(&socket);
        let reply = block_on(client.write(WriteRequest::new(object(), 0, b"acknowledged"))).expect("a write");
        assert_eq!(reply.durability, Durability::Cached, "stored already: this would prove nothing");
        let mut other = server.connect();
        other.ask(b"mn\r\n", b"MN\r\n");
        let mut conn = server.connect();
        conn.send(format!("debugtime {ask}\r\n").as_bytes());
        let status = server.wait_exit();
        let log = server.log();
        assert_eq!(status.code(), Some(DEFECT), "{ask}: {status}\n{log}");
        let line = log.lines().last().unwrap_or_default();
        assert!(line.starts_with("a defect of cached has ended it: thread "), "{log}");
        assert!(line.contains(thread) && line.contains("asked to by a client"), "{log}");
        other.read_to_end();
        drop(client);

        let _server = Server::start(&args);
        let read = block_on(connect(&socket).read(ReadRequest::new(object(), 0, 100))).expect("the object");
        assert_eq!(read.data.to_vec(), b"acknowledged", "{ask}");
    }
}

fn wait_for_line(server: &Server, words: &str) {
    let deadline = Instant::now() + START_STOP_DEADLINE;
    while !server.log().contains(words) {
        assert!(Instant::now() < deadline, "no line with {words:?} in\n{}", server.log());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// The watchdog names a worker that stands still, and says when it goes on.
#[test]
fn a_worker_that_stands_still_is_named() {
    if !can_be_asked() {
        return;
    }
    let server = Start::new().args("-t 2 --debug-clock").start();
    // Dealt out in turn: the first to the first worker, the second to the second.
    let (mut first, mut second) = (server.connect(), server.connect());
    first.ask(b"mn\r\n", b"MN\r\n");
    second.ask(b"mn\r\n", b"MN\r\n");
    first.send(b"debugtime stand-still\r\n");
    wait_for_line(&server, "worker 0 stands still");
    assert!(server.log().contains("within a command for operators"), "{}", server.log());
    assert!(!server.log().contains("worker 1"), "{}", server.log());
    second.ask(b"debugtime go-on\r\n", b"OK\r\n");
    first.expect(b"OK\r\n", "it goes on");
    wait_for_line(&server, "worker 0 goes on");
}

/// A worker that cannot end does not keep the process from it.
#[test]
fn a_worker_that_does_not_end_is_not_waited_for_for_ever() {
    if !can_be_asked() {
        return;
    }
    let mut server = Start::new().args("-t 2 --debug-clock").start();
    let (mut first, mut second) = (server.connect(), server.connect());
    second.ask(b"mn\r\n", b"MN\r\n");
    first.send(b"debugtime stand-still\r\n");
    wait_for_line(&server, "worker 0 stands still");
    server.signal(libc::SIGTERM);
    let status = server.wait_exit();
    assert_eq!(status.code(), Some(DEFECT), "{status}\n{}", server.log());
    assert!(server.log().contains("worker 0 does not end"), "{}", server.log());
}
