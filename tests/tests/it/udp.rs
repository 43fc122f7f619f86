//! Datagrams: memcached's frame, requests and replies, and datagrams that are dropped.

use cached_tests::frame::{Request, op};
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{START_STOP_DEADLINE, Server};
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::Duration;

fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

/// A client of a server's UDP socket.
struct Client {
    socket: UdpSocket,
    /// The ID of the last request.
    id: u16,
}

/// Starts a server with UDP; returns it with a client.
fn start(args: &str) -> (Server, Client) {
    let server = Server::start(&format!("-U -1 {args}"));
    let client = Client::of(&server);
    (server, client)
}

fn udp_address(server: &Server) -> String {
    let mut conn = server.connect();
    conn.send(b"stats conns\r\n");
    conn.skip_until_seen(b":addr udp:", 1);
    String::from_utf8_lossy(&conn.read_line()).into_owned()
}

impl Client {
    fn of(server: &Server) -> Client {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(udp_address(server)).expect("the address");
        socket.set_read_timeout(Some(START_STOP_DEADLINE)).expect("a limit");
        Client { socket, id: 0x1234 }
    }

    fn send_raw(&self, datagram: &[u8]) {
        self.socket.send(datagram).expect("a datagram is sent");
    }

    fn send(&mut self, request: &[u8]) {
        self.id = self.id.wrapping_add(0x0101);
        let [a, b] = self.id.to_be_bytes();
        self.send_raw(&[&[a, b, 0, 0, 0, 1, 0, 0], request].concat());
    }

    /// Returns the payload of the reply to the last request, from any number of datagrams.
    fn receive(&self) -> Vec<u8> {
        let mut parts = BTreeMap::new();
        let mut datagram = [0; 2000];
        loop {
            let bytes = self.socket.recv(&mut datagram).expect("a datagram of the reply");
            assert!((9..=1400).contains(&bytes), "{bytes} bytes");
            let [id, number, count, reserved] =
                [0, 2, 4, 6].map(|at| u16::from_be_bytes([datagram[at], datagram[at + 1]]));
            assert_eq!((id, reserved), (self.id, 0));
            assert!(number < count);
            assert!(parts.insert(number, datagram[8..bytes].to_vec()).is_none(), "datagram {number} twice");
            if parts.len() == usize::from(count) {
                return parts.into_values().flatten().collect();
            }
        }
    }

    fn ask(&mut self, request: &[u8], expected: &[u8]) {
        self.send(request);
        let found = self.receive();
        let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
        assert!(found == expected, "{}: {} instead of {}", shown(request), shown(&found), shown(expected));
    }

    /// Asserts that the server does not reply to the sent datagrams: the next reply belongs to a
    /// further request.
    fn expect_nothing(&mut self, about: &str) {
        self.send(b"mn\r\n");
        assert_eq!(self.receive(), b"MN\r\n", "{about}");
    }
}

/// This is memcached's own test: sets, gets, numbers and deletions in both protocols.
#[test]
fn requests_as_in_memcacheds_suite() {
    for args in ["", "-t 1", "-vv"] {
        let (server, mut client) = start(args);
        server.connect().ask(b"set foo 0 0 6\r\nfooval\r\n", b"STORED\r\n");
        for _ in 0..3 {
            client.ask(b"get foo\r\n", b"VALUE foo 0 6\r\nfooval\r\nEND\r\n");
        }
        client.ask(b"set a 0 0 1\r\n1\r\n", b"STORED\r\n");
        let long = "abcd".repeat(1024);
        client.ask(format!("set b 0 0 4096\r\n{long}\r\n").as_bytes(), b"STORED\r\n");
        client.ask(b"get a\r\n", b"VALUE a 0 1\r\n1\r\nEND\r\n");
        client.ask(b"get none\r\n", b"END\r\n");
        client.ask(b"get b\r\n", format!("VALUE b 0 4096\r\n{long}\r\nEND\r\n").as_bytes());
        client.ask(b"incr a 1\r\n", b"2\r\n");
        client.ask(b"decr a 1\r\n", b"1\r\n");
        client.ask(b"delete a\r\n", b"DELETED\r\n");
        client.ask(b"bogus\r\n", b"ERROR\r\n");
        let store = Request::new(op("SET").unwrap()).key(b"a").extras(&[0; 8]).value(b"1").bytes();
        client.send(&store);
        assert_eq!(client.receive()[..8], [0x81, 1, 0, 0, 0, 0, 0, 0]);
        let get = Request::new(op("GET").unwrap()).key(b"a").bytes();
        client.send(&get);
        let reply = client.receive();
        assert_eq!((&reply[..8], &reply[24..]), (&[0x81, 0, 0, 0, 4, 0, 0, 0][..], &b"\0\0\0\x001"[..]));
        client.send(&Request::new(op("GET").unwrap()).key(b"none").bytes());
        assert_eq!(client.receive()[6..8], [0, 1]);
        client.send(b"stats\r\n");
        assert!(client.receive().ends_with(b"END\r\n"));
        server.connect().ask(b"get a\r\n", b"VALUE a 0 1\r\n1\r\nEND\r\n");
    }
}

/// CVE-2022-48571 and similar: the server drops a datagram with anything other than one complete
/// request, and continues.
#[test]
fn datagrams_that_are_dropped() {
    let (mut server, mut client) = start("-vv");
    for datagram in [
        &b""[..],
        b"x",
        b"get k\r\n",
        b"\0\x07\0\0\0\x01\0",
        b"\0\x07\0\0\0\x01\0\0",
        b"\0\x07\0\0\0\0\0\0get k\r\n",
        b"\0\x07\0\0\0\x02\0\0set k 0 0 2\r\n",
        b"\0\x07\0\x01\0\x02\0\0hi\r\n",
        b"\0\x07\0\0\0\xff\0\0get k\r\n",
        b"\0\x07\0\0\x01\0\0\0get k\r\n",
        b"\0\x07\0\0\xff\xff\0\0get k\r\n",
        b"\0\x07\0\0\0\x01\0\0get k",
        b"\0\x07\0\0\0\x01\0\0\x80",
        b"\0\x07\0\0\0\x01\0\0set k 0 0 1 noreply\r\n1\r\n",
    ] {
        client.send_raw(datagram);
        client.expect_nothing(&datagram.escape_ascii().to_string());
    }
    // differs udp-parts
    if is_cached() {
        for datagram in [
            &b"\0\x07\0\x01\0\x01\0\0get k\r\n"[..],
            b"\0\x07\0\0\0\x01\0\0set k 0 0 100\r\nhalf of it",
            b"\0\x07\0\0\0\x01\0\0quit\r\n",
        ] {
            client.send_raw(datagram);
            client.expect_nothing(&datagram.escape_ascii().to_string());
        }
        assert!(server.log().contains("DEBUG"));
    }
    let mut random: u64 = 0x9e37_79b9_7f4a_7c15;
    for round in 0..2000usize {
        let datagram: Vec<u8> = (0..round % 97)
            .map(|at| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if at < 8 && round % 2 == 0 { [0, 7, 0, 0, 0, 1, 0, 0][at] } else { (random >> 33) as u8 }
            })
            .collect();
        client.send_raw(&datagram);
    }
    server.assert_serves("noise");
}

#[test]
fn one_reply_for_one_datagram() {
    // differs udp-one-message
    if !is_cached() {
        return;
    }
    let (server, mut client) = start("");
    let mut conn = server.connect();
    conn.ask(b"set a 0 0 1\r\n1\r\n", b"STORED\r\n");
    client.ask(b"get a b a\r\n", b"VALUE a 0 1\r\n1\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    client.ask(b"mg a v\r\nmg none v\r\nmn\r\n", b"VA 1\r\n1\r\nEN\r\nMN\r\n");
    // The client sends the longest request, and then one whose reply has as many datagrams as the
    // client's socket can hold.
    client.ask(format!("get{}\r\n", " n".repeat(32_000)).as_bytes(), b"END\r\n");
    let keys = " a".repeat(4000);
    let all = [&b"VALUE a 0 1\r\n1\r\n".repeat(4000)[..], b"END\r\n"].concat();
    client.ask(format!("get{keys}\r\n").as_bytes(), &all);
}

/// A quiet request is not answered by an empty datagram.
#[test]
fn quiet_requests_have_no_reply() {
    // differs udp-no-empty-message
    if !is_cached() {
        return;
    }
    // Several threads could execute the datagrams in another order.
    let (server, mut client) = start("-t 1");
    let setq = Request::new(op("SETQ").unwrap()).key(b"a").extras(&[0; 8]).value(b"1").bytes();
    client.send(&setq);
    client.expect_nothing("SETQ");
    client.send(&Request::new(op("GETQ").unwrap()).key(b"none").bytes());
    client.expect_nothing("GETQ of a missing key");
    client.send(b"set b 0 0 1 noreply\r\n1\r\n");
    client.expect_nothing("noreply");
    server.connect().ask(b"get a b\r\n", b"VALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n1\r\nEND\r\n");
}

/// A datagram may request at most as much work as one iteration permits.
#[test]
fn reports_in_datagrams_are_limited() {
    if !is_cached() {
        return;
    }
    let (server, mut client) = start("-t 1");
    let mut conn = server.connect();
    let sets: String = (0..40_000).map(|item| format!("set {item} 0 0 1 noreply\r\nx\r\n")).collect();
    conn.send(sets.as_bytes());
    conn.ask(b"mn\r\n", b"MN\r\n");
    for report in ["stats items\r\n", "stats slabs\r\n"] {
        client.send(report.as_bytes());
        assert!(client.receive().ends_with(b"END\r\n"), "{report}");
        client.ask(report.repeat(100).as_bytes(), b"SERVER_ERROR reply too large for UDP\r\n");
    }
    client.ask(b"stats cachedump 39 0\r\n", b"SERVER_ERROR reply too large for UDP\r\n");
    conn.ask(b"flush_all\r\n", b"OK\r\n");
}

/// The worker itself has to close the connection that holds the memory for which a datagram's value asks.
#[test]
fn a_value_without_memory_does_not_stop_the_worker() {
    if !is_cached() {
        return;
    }
    let (mut server, mut client) = start("-t 1 -o read_buf_mem_limit=1");
    let mut slow = server.connect();
    slow.send(&[&b"append k 0 0 1040000\r\n"[..], &[b'x'; 1_039_000]].concat());
    while server.stat("bytes_read") < 1_039_000 {}
    // What the server reads first ends with the command line, so that it has to ask for the value's memory.
    let line = b"append k 0 0 30000\r\n";
    let keys = " n".repeat(((32 << 10) - line.len() - 6) / 2);
    let requests = [format!("gets{keys}\r\n").as_bytes(), line].concat();
    assert_eq!(requests.len(), 32 << 10);
    client.send(&[&requests[..], &[b'x'; 30_000], b"\r\n"].concat());
    assert_eq!(client.receive(), b"END\r\n");
    client.expect_nothing("the value is dropped");
    server.assert_serves("a value without memory");
}

/// A client with a forged address can neither subscribe nor receive dumps, and replies have a
/// maximum size.
#[test]
fn replies_are_limited() {
    if !is_cached() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = dir.path().join("cached.toml");
    std::fs::write(&config, "[memcached]\nudp_reply_bytes_max = 1392\n").expect("a file");
    let (server, mut client) = start(&format!("--config={} -A", config.display()));
    client.ask(b"watch fetchers\r\n", b"CLIENT_ERROR watch commands not allowed\r\n");
    client.ask(b"lru_crawler metadump all\r\n", b"ERROR metadump not allowed\r\n");
    client.ask(b"lru_crawler mgdump all\r\n", b"ERROR metadump not allowed\r\n");
    let mut conn = server.connect();
    let (fits, over) = ("v".repeat(1392 - 24), "v".repeat(1392 - 23));
    conn.ask(format!("set kk 0 0 {}\r\n{fits}\r\n", fits.len()).as_bytes(), b"STORED\r\n");
    client.ask(b"get kk\r\n", format!("VALUE kk 0 1368\r\n{fits}\r\nEND\r\n").as_bytes());
    conn.ask(format!("set kk 0 0 {}\r\n{over}\r\n", over.len()).as_bytes(), b"STORED\r\n");
    client.ask(b"get kk\r\n", b"SERVER_ERROR reply too large for UDP\r\n");
    client.ask(b"get kk kk kk\r\n", b"SERVER_ERROR reply too large for UDP\r\n");
    client.ask(b"stats\r\n", b"SERVER_ERROR reply too large for UDP\r\n");
    client.send(&Request { opaque: Some(77), ..Request::new(op("GET").unwrap()).key(b"kk") }.bytes());
    let reply = client.receive();
    assert!(reply[1] == 0 && reply[6..8] == [0, 3] && reply[12..16] == [0, 0, 0, 77], "{reply:?}");
    conn.ask(b"get none\r\n", b"END\r\n");
    assert!(server.stat("bytes_read") > 0);
}

/// A reply to a server's own port would be answered as a request, forever.
#[test]
fn a_server_does_not_talk_to_servers() {
    if !is_cached() {
        return;
    }
    let (server, mut client) = start("");
    let address = udp_address(&server);
    let port: u16 = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let same = UdpSocket::bind(("127.0.0.2", port)).expect("the same port of another address");
    same.set_read_timeout(Some(Duration::from_millis(300))).expect("a limit");
    same.send_to(b"\0\x07\0\0\0\x01\0\0mn\r\n", &address).expect("a datagram is sent");
    client.expect_nothing("the server lives");
    assert!(same.recv(&mut [0; 100]).is_err(), "an answer to its own port");
}

#[test]
fn settings_and_ports() {
    let (server, mut client) = start("");
    client.expect_nothing("a first request");
    let mut conn = server.connect();
    conn.send(b"stats settings\r\n");
    conn.skip_until_seen(b"STAT udpport ", 1);
    assert_eq!(conn.read_line(), b"-1");
    conn.skip_until_seen(b"END\r\n", 1);
    if is_cached() {
        let mut server = Server::start("-U 0");
        server.assert_serves("-U 0");
        let mut conn = server.connect();
        conn.send(b"stats conns\r\nmn\r\n");
        let lines = conn.skip_until_seen(b"MN\r\n", 1);
        assert!(lines < 1000);
    }
}

/// `shutdown` works over UDP, as in memcached.
#[test]
fn shutdown_with_a() {
    let (mut server, mut client) = start("-A");
    client.send(b"shutdown\r\n");
    assert!(server.wait_exit().success());
}

/// A datagram can flush a prefix, with or without a reply.
#[test]
fn flushes_of_a_prefix() {
    if !is_cached() {
        return;
    }
    // Several threads could execute the datagrams in another order.
    let (server, mut client) = start("-t 1 -o cluster_discovery");
    let mut conn = server.connect();
    conn.ask(b"set a:1 0 0 1\r\nx\r\nset b:1 0 0 1\r\nx\r\n", b"STORED\r\nSTORED\r\n");
    client.ask(b"flush_prefix a:\r\n", b"OK\r\n");
    conn.ask(b"get a:1 b:1\r\n", b"VALUE b:1 0 1\r\nx\r\nEND\r\n");
    client.send(b"flush_prefix b: noreply\r\n");
    client.expect_nothing("a flush with noreply");
    conn.ask(b"get b:1\r\n", b"END\r\n");
    // Without a connection, the listener's own address is reported.
    client.send(b"config get cluster\r\n");
    let reply = String::from_utf8(client.receive()).expect("text");
    assert!(reply.contains(&format!("127.0.0.1|127.0.0.1|{}\n", server.port())), "{reply}");
}
