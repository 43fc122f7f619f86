//! Connections: idle ones, too many of them, and their cost.

use cached_tests::conn::Conn;
use cached_tests::daemon::{Daemon, wait_for};
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Server, Start};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(120);

fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

/// `idle_timeout`: an idle TCP connection is closed and counted, a watcher is not. The clock is
/// advanced, so the test does not wait.
#[test]
fn idle_connections_are_closed() {
    if !is_cached() {
        return;
    }
    let mut server = Server::start("-o idle_timeout=3600 --debug-clock");
    let mut idle = server.connect();
    idle.ask(b"mn\r\n", b"MN\r\n");
    let mut watcher = server.connect();
    watcher.ask(b"watch connevents\r\n", b"OK\r\n");
    let mut mover = server.connect();
    // The clock also advances by itself, but not by that much.
    mover.ask(b"debugtime 3000\r\n", b"OK\r\n");
    idle.ask(b"mn\r\n", b"MN\r\n");
    mover.ask(b"debugtime 5000\r\n", b"OK\r\n");
    idle.expect_closed("being idle");
    // The count is complete once all idle connections have been found.
    let deadline = Instant::now() + DEADLINE;
    while server.stat("idle_kicks") == 0 {
        assert!(Instant::now() < deadline, "it is not counted");
    }
    let line = String::from_utf8_lossy(&watcher.read_line()).into_owned();
    assert!(line.contains("type=conn_close") || line.contains("type=conn_new"), "{line}");
    server.assert_serves("closing idle connections");
}

#[test]
fn without_the_flag_the_clock_cannot_be_moved() {
    let server = Server::start("");
    server.connect().ask(b"debugtime 5\r\n", b"ERROR\r\n");
}

#[test]
fn items_expire_when_the_clock_is_moved() {
    if !is_cached() {
        return;
    }
    let server = Server::start("--debug-clock");
    let mut conn = server.connect();
    conn.ask(b"set a 0 100 1\r\nx\r\n", b"STORED\r\n");
    conn.ask(b"debugtime 90\r\nmg a\r\n", b"OK\r\nHD\r\n");
    conn.ask(b"debugtime p\r\ndebugtime r\r\ndebugtime 20\r\nmg a\r\n", b"OK\r\nOK\r\nOK\r\nEN\r\n");
}

/// If all connections are in use, new clients are refused with an immediate reply, connected
/// clients continue, and a freed slot is reused.
#[test]
fn a_full_table_refuses_new_clients() {
    // memcached subtracts its own descriptors.
    if !is_cached() {
        return;
    }
    let server = Server::start("-c 64");
    let mut inside: Vec<Conn> = (0..64)
        .map(|_| {
            let mut conn = server.connect();
            conn.ask(b"mn\r\n", b"MN\r\n");
            conn
        })
        .collect();
    let mut outside = server.connect();
    outside.expect(b"ERROR Too many open connections\r\n", "a full table");
    outside.expect_closed("being turned away");
    inside[0].ask(b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
    inside.pop();
    let deadline = Instant::now() + DEADLINE;
    let mut rejected = 0;
    while rejected == 0 {
        let mut conn = server.connect();
        conn.send(b"get a\r\n");
        if conn.read_line() == b"VALUE a 0 1" {
            rejected = server_stat(&mut inside[0], "rejected_connections");
        }
        assert!(Instant::now() < deadline, "no seat becomes free");
    }
    println!("a full table of 64: {rejected} turned away, the others served");
}

/// Connects to a listener of this host from one of its addresses.
fn connect_to(port: u16, from: &str) -> std::net::TcpStream {
    let address = |host: &str, port| std::net::SocketAddr::new(host.parse().expect("an address"), port);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&address(from, 0).into()).expect("an address of this host");
    socket.connect(&address("127.0.0.1", port).into()).expect("a connection");
    let stream = std::net::TcpStream::from(socket);
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream
}

/// Connects to the server from an address of this host, and sends a request; returns whether the
/// server replies.
fn connect_from(host: &str, server: &Server) -> (std::net::TcpStream, bool) {
    let mut stream = connect_to(server.port(), host);
    // A refused client may be unable to send.
    let _ = stream.write_all(b"mn\r\n");
    let mut reply = [0; 4];
    let is_served = stream.read_exact(&mut reply).is_ok() && reply == *b"MN\r\n";
    (stream, is_served)
}

/// `peer_connections_max`: one address cannot use all connections, and can connect again after it
/// has disconnected.
#[test]
fn one_address_leaves_places_for_others() {
    if !is_cached() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("cached.toml");
    let text = "[memcached]\nconnections_max = 16\npeer_connections_max = 3\n";
    std::fs::write(&file, text).expect("a configuration");
    let server = Server::start(&format!("--config={}", file.display()));
    let mut inside: Vec<_> = (0..3).map(|_| connect_from("127.0.0.2", &server)).collect();
    assert!(inside.iter().all(|(_, is_served)| *is_served), "as many as allowed");
    assert!(!connect_from("127.0.0.2", &server).1, "one more than allowed");
    assert!(connect_from("127.0.0.3", &server).1, "another address");
    assert_eq!(server.stat("rejected_connections"), 1);
    inside.pop();
    wait_for("the place of the one that left", || {
        let (stream, is_served) = connect_from("127.0.0.2", &server);
        is_served.then_some(stream)
    });
}

/// The listeners of objects and volumes have the same limit: an address gets half of
/// `connections_max`, unless `peer_connections_max` sets another number.
#[test]
fn one_address_leaves_places_for_others_with_objects_and_volumes() {
    if !is_cached() {
        return;
    }
    for (own, count) in [("", 3), ("peer_connections_max = 2\n", 2)] {
        let limits = format!("listen = [\"127.0.0.1:0\"]\nconnections_max = 6\n{own}");
        // The clients send nothing, and are to stay.
        let daemon = Daemon::start("cached", |_| {
            let backend = "[objects]\n[objects.backend]\nkind = \"memory\"\n";
            format!(
                "{backend}[objects.http]\n{limits}stall_timeout_ms = 600000\n[volumes]\n\
                 [nbd]\n{limits}negotiation_timeout_ms = 600000\nstall_timeout_ms = 600000\n\
                 [synapse]\n{limits}"
            )
        });
        for (line, listener) in [
            ("volumes on 127.0.0.1:", "nbd"),
            ("objects on 127.0.0.1:", "synapse"),
            ("objects over HTTP on http://127.0.0.1:", "object_http"),
        ] {
            let port = daemon.announced(line).parse().expect("a port");
            let metric = |name| daemon.metric(&format!("cached_{listener}_connections_{name}"));
            let are = |open: u32, refused: u32| {
                wait_for(&format!("{listener}: {open} connections, {refused} refused; {own:?}"), || {
                    let wanted = (Some(open.into()), Some(refused.into()));
                    ((metric("open"), metric("refused_total")) == wanted).then_some(())
                });
            };
            let mut inside: Vec<_> = (0..count).map(|_| connect_to(port, "127.0.0.2")).collect();
            are(count, 0);
            let _outside = connect_to(port, "127.0.0.2");
            are(count, 1);
            let _another = connect_to(port, "127.0.0.3");
            are(count + 1, 1);
            inside.pop();
            are(count, 1);
            let _again = connect_to(port, "127.0.0.2");
            are(count + 1, 1);
        }
    }
}

/// `no_maxconns_fast`: new clients wait until another client disconnects.
#[test]
fn a_full_table_that_lets_clients_wait() {
    if !is_cached() {
        return;
    }
    let server = Server::start("-c 4 -o no_maxconns_fast");
    let mut inside: Vec<Conn> = (0..4)
        .map(|_| {
            let mut conn = server.connect();
            conn.ask(b"mn\r\n", b"MN\r\n");
            conn
        })
        .collect();
    let mut waiting = server.connect();
    waiting.send(b"mn\r\n");
    let deadline = Instant::now() + DEADLINE;
    while server_stat(&mut inside[0], "listen_disabled_num") == 0 {
        assert!(Instant::now() < deadline, "accepting does not pause");
    }
    assert_eq!(server_stat(&mut inside[0], "accepting_conns"), 0);
    inside.pop();
    waiting.expect(b"MN\r\n", "a connection has left");
    assert_eq!(server_stat(&mut inside[0], "rejected_connections"), 0);
}

/// Ten thousand clients send nothing: the memory of each is limited, and other clients are served
/// immediately.
#[test]
fn ten_thousand_idle_connections() {
    const WANTED: usize = 10_000;
    let count = descriptors().saturating_sub(200).min(WANTED);
    if count < WANTED {
        cached_tests::outside::skip(
            "ten_thousand_idle_connections",
            &format!("only {count} descriptors are to be had"),
        );
        return;
    }
    let mut server = Start::new().unix().args("-c 11000").start();
    server.assert_serves("its start");
    let before_kib = server.rss_kib();
    let start = Instant::now();
    let mut idle: Vec<Conn> = (0..count).map(|_| server.connect()).collect();
    let accepted = start.elapsed();
    // The server has accepted all connections: every hundredth one has sent a request, and
    // continues to wait.
    idle.iter_mut().step_by(100).for_each(|conn| conn.ask(b"mn\r\n", b"MN\r\n"));
    let mut conn = server.connect();
    let deadline = Instant::now() + DEADLINE;
    while server_stat(&mut conn, "curr_connections") < count as u64 {
        assert!(Instant::now() < deadline, "not all are accepted");
    }
    let start = Instant::now();
    for _ in 0..1000 {
        conn.ask(b"get none\r\n", b"END\r\n");
    }
    let request_micros = start.elapsed().as_micros() / 1000;
    let taken_kib = server.rss_kib().saturating_sub(before_kib);
    println!(
        "{count} idle connections: {taken_kib} KiB resident more, {} bytes each; accepted in {accepted:?}; \
         a request beside them takes {request_micros} us",
        taken_kib * 1024 / count as u64
    );
    assert!(taken_kib < 30 << 10, "{taken_kib} KiB for {count} idle connections");
    server.assert_serves("ten thousand idle connections");
}

/// Returns the cores on which a process's threads may run, by thread name.
fn cores_of_workers(server: &Server) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("its threads");
    let field = |status: &str, name: &str| {
        status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned())).expect("a field")
    };
    let mut cores = Vec::new();
    for task in tasks {
        // A thread may have ended in the meantime.
        let Ok(task) = task else { continue };
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else { continue };
        let name = field(&status, "Name:");
        if name.strip_prefix("cached-").is_some_and(|number| number.parse::<u32>().is_ok()) {
            cores.push(field(&status, "Cpus_allowed_list:"));
        }
    }
    cores
}

/// Workers are not pinned unless the configuration requests it, because two servers would share the
/// first cores.
#[test]
fn workers_run_on_the_cores_of_the_process() {
    if !is_cached() {
        return;
    }
    let allowed = std::fs::read_to_string("/proc/self/status").expect("our status");
    let allowed = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a field");
    let server = Server::start("-t 2");
    server.connect().ask(b"mn\r\n", b"MN\r\n");
    // A thread sets its own name, possibly after another one has replied.
    let cores = wait_for("two workers", || Some(cores_of_workers(&server)).filter(|cores| cores.len() == 2));
    assert_eq!(cores, [allowed.trim(); 2]);
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return;
    }
    let server = Server::start("-t 2 -o pin_workers");
    let deadline = Instant::now() + DEADLINE;
    loop {
        let mut cores = cores_of_workers(&server);
        cores.sort();
        cores.dedup();
        if cores.len() == 2 && cores.iter().all(|core| core.parse::<u32>().is_ok()) {
            break;
        }
        assert!(Instant::now() < deadline, "not tied: {cores:?}");
    }
    assert!(!server.log().contains("pin_workers"), "{}", server.log());
}

/// `-R`: after this many requests of one connection, other connections are served; the rest is
/// executed in later drives.
#[test]
fn a_pipeline_yields_to_other_connections() {
    let server = Server::start("-R 1 -t 1");
    let mut conn = server.connect();
    conn.ask(&b"set foobar 0 0 5\r\nBubba\r\n".repeat(6), &b"STORED\r\n".repeat(6));
    let yields = server.stat("conn_yields");
    assert!(yields >= 5, "{yields}");
    for args in ["-R 1 -t 1", "-R 7 -t 1", "-t 1"] {
        let server = Server::start(args);
        let large = "v".repeat(60_000);
        server.connect().ask(format!("set k 0 0 60000\r\n{large}\r\n").as_bytes(), b"STORED\r\n");
        let reply = format!("VALUE k 0 60000\r\n{large}\r\nEND\r\n");
        // The requests are sent together, so that the server reads one ahead while it processes the
        // other.
        let mut conns: Vec<Conn> = (0..4).map(|_| server.connect()).collect();
        for _ in 0..10 {
            for conn in &mut conns {
                conn.send(b"get k\r\n");
            }
            for conn in &mut conns {
                conn.send(b"get k\r\nmn\r\nset s 0 0 2\r\nab\r\nget s k\r\n");
            }
            for conn in &mut conns {
                let rest = format!("{reply}{reply}MN\r\nSTORED\r\nVALUE s 0 2\r\nab\r\n{reply}");
                conn.expect(rest.as_bytes(), args);
            }
        }
    }
}

/// Raises the limit of descriptors as far as possible, and returns it.
fn descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls are given a live struct of ours.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

fn server_stat(conn: &mut Conn, name: &str) -> u64 {
    conn.send(b"stats\r\n");
    let mut value = None;
    loop {
        let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
        if line == "END" {
            return value.unwrap_or_else(|| panic!("no {name}"));
        }
        if let Some(found) = line.strip_prefix(&format!("STAT {name} ")) {
            value = found.parse().ok();
        }
    }
}
