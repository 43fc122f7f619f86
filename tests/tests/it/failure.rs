//! Defects inside the server, injected on request (`debugtime` in a debug build): the server never
//! continues without one of its threads, and stores acknowledged data before it ends.

use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, Durability, Name, Namespace, ObjectId, ReadRequest, WriteRequest};
use cached_tests::daemon::wait_for;
use cached_tests::object_client;
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Server, Start};
use std::path::Path;
use synapse::{Address, SynapseBlocker};

/// `EX_SOFTWARE`.
const DEFECT: i32 = 70;

/// Returns whether the server can inject faults: memcached and release builds cannot.
fn injects_faults() -> bool {
    if Program::under_test().flavour != Flavour::Cached {
        return false;
    }
    let server = Server::start("--debug-clock");
    let mut conn = server.connect();
    conn.send(b"debugtime stall-off\r\n");
    conn.read_line() == b"OK"
}

fn object() -> ObjectId {
    ObjectId::new(Namespace::new("vm").expect("a namespace"), Name::new("object").expect("a name"))
}

fn connect(socket: &Path) -> SynapseBlocker {
    SynapseBlocker::connect_on_thread(object_client::config(Address::Unix(socket.into())))
        .expect("a connection")
}

/// The process names the thread, stores dirty data, and exits with a specific status, whichever
/// thread has panicked.
#[test]
fn a_thread_that_panics_ends_the_process_and_loses_nothing() {
    if !injects_faults() {
        return;
    }
    for (fault, thread) in [("panic-worker", "cached-"), ("panic-acceptor", "main")] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (store, socket) = (dir.path().join("store"), dir.path().join("socket"));
        let text = format!(
            "[objects]\nwrite = \"back\"\ndirty_age_ms_max = 86400000\n[objects.backend]\n\
             kind = \"file\"\ncreate = true\npath = \"{}\"\n[synapse]\nlisten = [\"unix:{}\"]\n",
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
        conn.send(format!("debugtime {fault}\r\n").as_bytes());
        let status = server.wait_exit();
        let log = server.log();
        assert_eq!(status.code(), Some(DEFECT), "{fault}: {status}\n{log}");
        let line = log.lines().last().unwrap_or_default();
        assert!(line.starts_with("cached has ended because of a defect: thread "), "{log}");
        assert!(line.contains(thread) && line.contains("requested by a client"), "{log}");
        other.read_to_end();
        drop(client);

        let _server = Server::start(&args);
        let read = block_on(connect(&socket).read(ReadRequest::new(object(), 0, 100))).expect("the object");
        assert_eq!(read.data.to_vec(), b"acknowledged", "{fault}");
    }
}

/// The watchdog logs a worker without progress, and the end of that state.
#[test]
fn a_stalled_worker_is_logged() {
    if !injects_faults() {
        return;
    }
    let server = Start::new().args("-t 2 --debug-clock").start();
    // Connections are assigned round robin: the first one to the first worker, the second one to
    // the second.
    let (mut first, mut second) = (server.connect(), server.connect());
    first.ask(b"mn\r\n", b"MN\r\n");
    second.ask(b"mn\r\n", b"MN\r\n");
    first.send(b"debugtime stall-on\r\n");
    // On a busy machine either may also be late with something else.
    let is_said = |worker: &str| {
        let is_about_it = |line: &str| line.contains(worker) && line.contains("in an administrative command");
        server.log().lines().any(is_about_it)
    };
    wait_for("a line about the command", || is_said("worker 0 makes no progress").then_some(()));
    assert!(!is_said("worker 1"), "{}", server.log());
    second.ask(b"debugtime stall-off\r\n", b"OK\r\n");
    first.expect(b"OK\r\n", "the stall has ended");
    server.wait_until_logged("worker 0 makes progress again");
}

/// A worker that cannot end does not prevent the end of the process.
#[test]
fn a_worker_that_does_not_end_is_waited_for_for_a_bounded_time() {
    if !injects_faults() {
        return;
    }
    let mut server = Start::new().args("-t 2 --debug-clock").start();
    let (mut first, mut second) = (server.connect(), server.connect());
    second.ask(b"mn\r\n", b"MN\r\n");
    first.send(b"debugtime stall-on\r\n");
    server.wait_until_logged("worker 0 makes no progress");
    server.signal(libc::SIGTERM);
    let status = server.wait_exit();
    assert_eq!(status.code(), Some(DEFECT), "{status}\n{}", server.log());
    assert!(server.log().contains("worker 0 does not end"), "{}", server.log());
}
