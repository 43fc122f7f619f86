//! Connections that are ready together, whose replies one system call sends: every reply arrives,
//! in order and once, whatever the others do. With memcached as the server, and where the system
//! does not allow io_uring, the same is tested without bundles.

use cached_tests::conn::Conn;
use cached_tests::daemon::wait_for;
use cached_tests::program::Flavour;
use cached_tests::server::{Address, Server, Start};

/// Starts a server on a unix socket, with one worker and bundles of any size.
fn start() -> Server {
    let start = Start::new().unix().args("-t 1");
    match cached_tests::program::Program::under_test().flavour {
        Flavour::Cached => start.args("-o io_uring_sockets_min=1").start(),
        Flavour::Memcached => start.start(),
    }
}

fn value(key: &str, len: usize) -> String {
    key.bytes().cycle().take(len).map(char::from).collect()
}

/// Stores a value of this length, and returns the reply to its `get`.
fn store(server: &Server, key: &str, len: usize) -> Vec<u8> {
    let value = value(key, len);
    server.connect().ask(format!("set {key} 0 0 {len}\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
    format!("VALUE {key} 0 {len}\r\n{value}\r\nEND\r\n").into_bytes()
}

#[test]
fn replies_of_connections_that_are_ready_together_keep_their_order() {
    let server = start();
    let replies =
        [("s", 60), ("m", 3000), ("l", 20_000), ("x", 200_000)].map(|(key, len)| store(&server, key, len));
    let [small, medium, large, huge] = &replies;
    let misses = 600;
    let mut conns: Vec<Conn> = (0..20).map(|_| server.connect()).collect();
    // More than one read, whose first reply is small; then replies beyond the socket's buffer; then the end, in
    // one read with a small reply.
    let requests = [
        &b"get no\r\n".repeat(misses)[..],
        b"get s\r\nget m\r\nget l\r\nget s\r\nget x\r\nget s\r\nget x\r\n",
    ]
    .concat();
    for conn in &mut conns {
        conn.send(&requests);
    }
    let replies = [&b"END\r\n".repeat(misses)[..], small, medium, large, small, huge, small, huge].concat();
    for (at, conn) in conns.iter_mut().enumerate() {
        conn.expect(&replies, &format!("connection {at}"));
    }
    for conn in &mut conns {
        conn.send(b"get s\r\nquit\r\n");
    }
    for conn in &mut conns {
        conn.expect(small, "the reply before the end");
        conn.expect_closed("after quit");
    }
}

/// Clients that do not read while small replies fill their sockets: no reply is lost, sent twice or
/// counted twice, and other clients are served.
#[test]
fn replies_that_do_not_fit_their_socket_wait_for_the_client() {
    let server = start();
    let reply = store(&server, "key", 1500);
    let mut conns: Vec<Conn> = (0..3).map(|_| server.connect()).collect();
    let mut witness = server.connect();
    let mut ask_stats = || {
        witness.send(b"stats\r\n");
        let mut lines = Vec::new();
        loop {
            lines.push(witness.read_line());
            if lines.last().is_some_and(|line| line.starts_with(b"END")) {
                break lines;
            }
        }
    };
    let written = |lines: &[Vec<u8>]| -> u64 {
        let count = lines.iter().find_map(|line| {
            let text = String::from_utf8_lossy(line);
            text.trim().strip_prefix("STAT bytes_written ").map(str::to_owned)
        });
        count.expect("the statistic").parse().expect("a number")
    };
    let before = ask_stats();
    let rounds = 150;
    let mut other = server.connect();
    for _ in 0..rounds {
        conns.iter_mut().for_each(|conn| conn.send(b"get key\r\n"));
        // The server has one worker, so it has seen most of the requests above when this is answered.
        other.ask(b"mn\r\n", b"MN\r\n");
    }
    for conn in &mut conns {
        conn.expect(&reply.repeat(rounds), "every reply once");
        conn.ask(b"mn\r\n", b"MN\r\n");
    }
    let after = ask_stats();
    let own: usize = before.iter().map(|line| line.len() + b"\r\n".len()).sum();
    let expected = own + 3 * rounds * reply.len() + (rounds + 3) * b"MN\r\n".len();
    if server.flavour == Flavour::Cached {
        assert_eq!(written(&after) - written(&before), expected as u64);
    }
}

/// Clients that disappear with replies in the queue harm no other client, whose socket may have the
/// same number next.
#[test]
fn clients_that_vanish_harm_no_other() {
    let mut server = start();
    let reply = store(&server, "key", 1500);
    let mut witness = server.connect();
    for _ in 0..50 {
        let mut conns: Vec<Conn> = (0..20).map(|_| server.connect()).collect();
        for (at, conn) in conns.iter_mut().enumerate() {
            conn.send(if at % 3 == 0 { b"get key\r\nquit\r\n" } else { b"get key\r\nget key\r\n" });
        }
        let mut rest = conns.split_off(10);
        drop(conns);
        witness.ask(b"get key\r\n", &reply);
        for (at, conn) in (10..).zip(&mut rest) {
            conn.expect(&reply, "a reply beside clients that vanish");
            if at % 3 != 0 {
                conn.expect(&reply, "the second reply");
            }
        }
    }
    drop(witness);
    server.assert_serves("clients that vanish");
}

/// The log states once whether io_uring is used.
#[test]
fn the_log_states_whether_io_uring_is_used() {
    let server = Server::start("-t 2");
    if server.flavour != Flavour::Cached {
        return;
    }
    let lines = |server: &Server| server.log().lines().filter(|line| line.contains("io_uring")).count();
    assert!(matches!(server.address, Address::Tcp(_)));
    // The first worker logs it, possibly after the start.
    wait_for("the line", || (lines(&server) > 0).then_some(()));
    assert_eq!(lines(&server), 1, "{}", server.log());
    assert_eq!(lines(&Server::start("-t 2 -o io_uring_sockets_min=0")), 0);
}
