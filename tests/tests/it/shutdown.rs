//! Shutdown: every accepted request gets its complete reply, and no client can prevent the end.

use cached_tests::daemon::{Daemon, wait_for};
use cached_tests::ending::SetOnDrop;
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Address, START_STOP_DEADLINE, Server, Start};
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

const VALUE_LEN: usize = 10_000;

/// Returns whether the server finishes requests in progress before it exits: `cached` does,
/// memcached drops them.
fn finishes_what_it_accepted(server: &Server) -> bool {
    server.flavour == Flavour::Cached
}

#[test]
fn a_signal_ends_an_idle_server() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut server = Server::start("");
        server.connect().ask(b"mn\r\n", b"MN\r\n");
        let start = Instant::now();
        server.signal(signal);
        let status = server.wait_exit();
        println!("signal {signal}: {status} after {:?}", start.elapsed());
        assert!(status.success(), "signal {signal}: {status}");
    }
}

/// A client that reads its replies after the signal receives only whole replies, and then the end
/// of the stream.
#[test]
fn accepted_requests_are_answered() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut server = Server::start("");
        let mut conn = server.connect();
        conn.ask(format!("set k 0 0 {VALUE_LEN}\r\n{}\r\n", "v".repeat(VALUE_LEN)).as_bytes(), b"STORED\r\n");
        conn.send(&b"get k\r\n".repeat(100));
        // One reply has been read, so the batch has been accepted.
        let mut reply = format!("VALUE k 0 {VALUE_LEN}\r\n").into_bytes();
        reply.extend(std::iter::repeat_n(b'v', VALUE_LEN));
        reply.extend(b"\r\nEND\r\n");
        conn.expect(&reply, "the first reply");
        server.signal(signal);
        let rest = conn.read_to_end();
        println!("signal {signal}: {} of 99 more replies came", rest.len() / reply.len());
        if finishes_what_it_accepted(&server) {
            assert!(rest.len().is_multiple_of(reply.len()), "a reply was cut off after {} bytes", rest.len());
            assert!(rest.chunks(reply.len()).all(|one| one == reply));
        }
        let status = server.wait_exit();
        assert!(status.success(), "signal {signal}: {status}");
    }
}

/// A client that never reads does not keep the server alive.
#[test]
fn a_client_that_never_reads_does_not_delay_the_end() {
    let mut server = Server::start("");
    let mut conn = server.connect();
    conn.ask(format!("set k 0 0 {VALUE_LEN}\r\n{}\r\n", "v".repeat(VALUE_LEN)).as_bytes(), b"STORED\r\n");
    conn.send_until_stuck(&b"get k\r\n".repeat(20_000), std::time::Duration::from_millis(200));
    let mut half = server.connect();
    half.send(b"set half 0 0 100\r\nabc");
    let start = Instant::now();
    server.signal(libc::SIGTERM);
    let status = server.wait_exit();
    println!("{status} after {:?}", start.elapsed());
    assert!(status.success(), "{status}");
}

/// If there are no data to store, an unavailable store neither delays the end of a cache nor makes
/// it fail.
#[test]
fn an_end_without_the_store_is_in_order_if_nothing_is_to_be_stored() {
    if Program::under_test().flavour != Flavour::Cached {
        return;
    }
    for program in ["cached", "synapsed"] {
        let store = Daemon::start("synapsed", |dir| {
            format!("backend = \"memory:\"\n[synapse]\nlisten = [\"unix:{dir}/socket\"]\nthreads = 1")
        });
        let socket = store.path("socket").display().to_string();
        let front = Daemon::start(program, |dir| match program {
            "cached" => format!(
                "[objects.backend]\nkind = \"synapse\"\naddress = \"unix:{socket}\"\n\
                 [synapse]\nlisten = [\"unix:{dir}/front\"]\nthreads = 1"
            ),
            _ => format!(
                "backend = \"synapse:unix:{socket}\"\n[objects]\n\
                 [synapse]\nlisten = [\"unix:{dir}/front\"]\nthreads = 1"
            ),
        });
        drop(store);
        let (status, log) = front.end();
        assert!(status.success() && !log.contains("writes not stored"), "{program}: {status}\n{log}");
    }
}

/// Clients that send as long as the server reads do not delay its shutdown.
#[test]
fn clients_that_flood_do_not_delay_the_end() {
    let mut server = Start::new().args("-t 1").start();
    let Address::Tcp(address) = server.address else { panic!("it listens on a port") };
    let flood = b"set k 0 0 100 noreply\r\n".iter().copied().chain([b'v'; 100]).chain(*b"\r\n");
    let flood: Vec<u8> = flood.collect::<Vec<u8>>().repeat(1000);
    let sent = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // All are connected before the first one sends, because the requests of one can trigger the
        // signal.
        let streams = [(); 2].map(|()| TcpStream::connect(address).expect("a connection"));
        for mut stream in streams {
            stream.set_write_timeout(Some(START_STOP_DEADLINE)).expect("a limit");
            let (flood, sent) = (&flood, &sent);
            scope.spawn(move || {
                // The loop runs until the server has ended.
                while stream.write_all(flood).is_ok() {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        wait_for("floods", || (sent.load(Ordering::Relaxed) >= 20).then_some(()));
        server.signal(libc::SIGTERM);
        let status = server.wait_exit();
        println!("{status} after {} floods of 126 KB", sent.load(Ordering::Relaxed));
        assert!(status.success(), "{status}");
    });
}

/// Many clients are working when the signal arrives: every reply is whole, and the server ends.
#[test]
fn replies_are_whole_when_the_server_ends_under_load() {
    let mut server = Server::start("");
    let (stopping, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (answered, running) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let status = std::thread::scope(|scope| {
        let _end = SetOnDrop(&is_over);
        for client in 0..8 {
            let mut conn = server.connect();
            let (stopping, is_over) = (&stopping, &is_over);
            let (answered, running) = (&answered, &running);
            scope.spawn(move || {
                let mut counted = false;
                for number in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    conn.send(format!("ms key{client} 5 Onumber{number}\r\n01234\r\n").as_bytes());
                    match conn.try_read_line() {
                        Some(line) => assert_eq!(line, format!("HD Onumber{number}").as_bytes()),
                        None => {
                            assert!(stopping.load(Ordering::Acquire), "closed before the signal");
                            return;
                        }
                    }
                    answered.fetch_add(1, Ordering::Relaxed);
                    if !counted {
                        counted = true;
                        running.fetch_add(1, Ordering::Release);
                    }
                }
            });
        }
        wait_for("replies to all", || (running.load(Ordering::Acquire) == 8).then_some(()));
        stopping.store(true, Ordering::Release);
        server.signal(libc::SIGTERM);
        server.wait_exit()
    });
    println!("{} requests answered, {status}", answered.load(Ordering::Relaxed));
    assert!(status.success(), "{status}");
}

/// The unix socket is removed after the end, and a new server can use the path.
#[test]
fn a_unix_socket_can_be_taken_over() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("cached.sock");
    for _ in 0..2 {
        let mut server = Start::new().unix_at(&path).start();
        server.connect().ask(b"mn\r\n", b"MN\r\n");
        server.signal(libc::SIGTERM);
        assert!(server.wait_exit().success());
    }
    // A killed server leaves its socket file; the next one can start nevertheless.
    for _ in 0..2 {
        let server = Start::new().unix_at(&path).start();
        server.connect().ask(b"mn\r\n", b"MN\r\n");
    }
}

/// A new server takes over the path while the old one runs. When the old server exits, it does not
/// remove the new server's socket file.
#[test]
fn the_socket_of_a_new_server_stays() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("cached.sock");
    let mut old = Start::new().unix_at(&path).start();
    old.connect().ask(b"set who 0 0 3\r\nold\r\n", b"STORED\r\n");
    let inode = || std::fs::metadata(&path).map(|found| std::os::unix::fs::MetadataExt::ino(&found)).ok();
    let before = inode();
    // The old server listens on the path, so only a new file shows that the new server does.
    let mut new = Start::new().unix_at(&path).start();
    let deadline = Instant::now() + START_STOP_DEADLINE;
    while inode() == before || inode().is_none() {
        assert!(Instant::now() < deadline, "the new server does not listen");
    }
    old.signal(libc::SIGTERM);
    assert!(old.wait_exit().success());
    if finishes_what_it_accepted(&new) {
        new.connect().ask(b"get who\r\n", b"END\r\n");
        new.signal(libc::SIGTERM);
        assert!(new.wait_exit().success());
        assert!(!path.exists(), "the last one takes its file along");
    }
}
