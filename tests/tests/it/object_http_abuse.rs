//! Clients of the HTTP listener for objects that do not read, do not send, or send without end: the
//! listener stays within the memory that the start has printed, and serves other clients.

use crate::object_http::{Client, Node, pattern};
use cached_tests::abuse::Memory;
use cached_tests::daemon::wait_for;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::Instant;

/// The limits of the listener: they cover the shares of its connections, and two requests of the
/// maximum size.
const LIMITS: &str = "connections_max = 64\npeer_connections_max = 64\nbytes_max = \"8 MiB\"";

/// The memory of `bytes_max`, and 80 KiB and four heads of 16 KiB for each of `connections_max`.
const LISTENER_MIB: u64 = 8 + 64 * (80 + 4 * 16) / 1024;

/// The memory that the allocator keeps in addition.
const BEYOND_MIB: u64 = 8;

/// The size of the largest object, in bytes.
const OBJECT_BYTES_MAX: usize = 1 << 20;

/// The number of abusive clients. The remaining connections are the witness's, and those that are
/// not closed yet.
const ABUSERS: usize = 56;

/// The bytes that an abusive client sends.
struct Abuse {
    what: &'static str,
    first: Vec<u8>,
    /// The bytes that are sent repeatedly after `first`.
    then: &'static [u8],
    /// The maximum number of bytes of `then` in each round.
    round_bytes: usize,
}

impl Abuse {
    fn new(what: &'static str, first: impl Into<Vec<u8>>, then: &'static str) -> Abuse {
        Abuse { what, first: first.into(), then: then.as_bytes(), round_bytes: 128 << 10 }
    }

    fn all() -> Vec<Abuse> {
        let request =
            |line: &str, headers: &str| format!("{line} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        let put = request("PUT /abuse/x", &format!("Content-Length: {OBJECT_BYTES_MAX}\r\n")).into_bytes();
        let chunked = request("PUT /abuse/x", "Transfer-Encoding: chunked\r\n");
        let ranges: Vec<String> = (0..1500).map(|at| format!("{at}-{at}")).collect();
        let ranges = request("GET /big/0", &format!("Range: bytes={}\r\n", ranges.join(",")));
        let head = "GET /big/0 HTTP/1.1\r\nHost: localhost\r\n";
        vec![
            Abuse::new("objects that are not read", request("GET /big/0", "").repeat(8), ""),
            Abuse::new("many ranges that are not read", ranges.repeat(8), ""),
            Abuse::new("listings that are not read", "", "GET /many/ HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            Abuse::new("bodies without their end", [&put[..], &pattern(OBJECT_BYTES_MAX - 1)].concat(), ""),
            Abuse { round_bytes: 1, ..Abuse::new("a byte at a time", put, "x") },
            Abuse { round_bytes: 8 << 10, ..Abuse::new("chunks of a byte", chunked.clone(), "1\r\nx\r\n") },
            Abuse::new("a chunk with an endless extension", format!("{chunked}1;x="), "xxxxxxxx"),
            Abuse::new("an endless trailer", format!("{chunked}1\r\nx\r\n0\r\n"), "X-Trailer: x\r\n"),
            Abuse::new("an endless line of the head", format!("{head}X: "), "xxxxxxxx"),
            Abuse::new("endless lines of the head", head, "X: x\r\n"),
            Abuse::new("an endless request line", "GET /", "xxxxxxxx"),
        ]
    }
}

/// An abusive client, which connects again whenever the server has closed its connection.
struct Abuser<'a> {
    abuse: &'a Abuse,
    stream: Option<TcpStream>,
    /// The number of bytes sent on this connection.
    sent: usize,
    connections: usize,
}

impl Abuser<'_> {
    /// Sends as much as the socket accepts, within the limit of a round.
    fn go_on(&mut self, address: &str) {
        let Abuse { first, then, round_bytes, .. } = self.abuse;
        if self.stream.is_none() {
            let stream = TcpStream::connect(address).expect("a connection");
            stream.set_nonblocking(true).expect("a socket");
            (self.stream, self.sent) = (Some(stream), 0);
            self.connections += 1;
        }
        let repeated = then.repeat(round_bytes.div_ceil(then.len().max(1)) + 1);
        let stream = self.stream.as_mut().expect("a connection");
        let is_open = loop {
            let is_first = self.sent < first.len();
            let bytes = match is_first {
                true => &first[self.sent..],
                // This piece begins after the bytes that were sent in earlier rounds.
                false if then.is_empty() => break true,
                false => &repeated[(self.sent - first.len()) % then.len()..][..*round_bytes],
            };
            match stream.write(bytes) {
                Ok(count) => self.sent += count,
                Err(error) => break error.kind() == ErrorKind::WouldBlock,
            }
            if !is_first {
                break true;
            }
        };
        if !is_open {
            self.stream = None;
        }
    }
}

/// Stores and reads a small object, which never waits for memory.
fn serve_witness(witness: &mut Client, round: usize, during: &str) {
    let body = round.to_string().into_bytes();
    let put = witness.ask("PUT /witness/x", "", &body).unwrap_or_else(|| panic!("{during}: no response"));
    assert!([201, 204].contains(&put.status), "{during}: {put:?}");
    let get = witness.ask("GET /witness/x", "", b"").unwrap_or_else(|| panic!("{during}: no response"));
    assert_eq!((get.status, get.body), (200, body), "{during}");
}

/// Reads a large object.
fn read_large(witness: &mut Client, after: &str) {
    let get = witness.ask("GET /big/1", "", b"").unwrap_or_else(|| panic!("{after}: no response"));
    assert!(get.status == 200 && get.body == pattern(OBJECT_BYTES_MAX), "{after}: {}", get.status);
}

#[test]
fn abusive_clients_hold_limited_memory_and_others_are_served() {
    let node = Node::start("cached", "write = \"back\"", |_| LIMITS.into(), "");
    // The data exceed the cache's memory, so that all of it is resident.
    for number in 0..20 {
        let put = node.connect().ask(&format!("PUT /big/{number}"), "", &pattern(OBJECT_BYTES_MAX));
        assert_eq!(put.expect("a response").status, 201);
    }
    let mut witness = node.connect();
    for number in 0..200 {
        let name = format!("{number:0>200}");
        assert_eq!(witness.ask(&format!("PUT /many/{name}"), "", b"x").expect("a response").status, 201);
    }
    serve_witness(&mut witness, 0, "before");
    read_large(&mut witness, "before");
    let memory = Memory::of(&node.daemon);
    let metric = |name: &str| node.daemon.metric(&format!("cached_object_http_{name}")).expect("a metric");
    for abuse in Abuse::all() {
        let begun = Instant::now();
        let abuser = |_| Abuser { abuse: &abuse, stream: None, sent: 0, connections: 0 };
        let mut abusers: Vec<Abuser<'_>> = (0..ABUSERS).map(abuser).collect();
        for round in 0..10 {
            abusers.iter_mut().for_each(|abuser| abuser.go_on(&node.http));
            serve_witness(&mut witness, round, abuse.what);
        }
        let connections: usize = abusers.iter().map(|abuser| abuser.connections).sum();
        drop(abusers);
        // Requests for large objects wait in turn for memory, even behind requests whose clients
        // have gone.
        wait_for("the end of the abusers", || (metric("connections_open") <= 1.0).then_some(()));
        read_large(&mut witness, abuse.what);
        println!("{connections} connections in {:?} with {}", begun.elapsed(), abuse.what);
        memory.assert_grew_at_most(&node.daemon, LISTENER_MIB + BEYOND_MIB, abuse.what);
    }

    // The number of connections exceeds the limit: the server closes the surplus immediately.
    let refused = metric("connections_refused_total");
    let idle: Vec<Client> = (0..200).map(|_| node.connect()).collect();
    // The witness holds one of the 64 connections.
    wait_for("the refusals", || (metric("connections_refused_total") >= refused + 137.0).then_some(()));
    assert!(metric("connections_open") <= 64.0);
    serve_witness(&mut witness, 0, "too many connections");
    memory.assert_grew_at_most(&node.daemon, LISTENER_MIB + BEYOND_MIB, "too many connections");
    drop(idle);
    wait_for("the end of the others", || (metric("connections_open") <= 1.0).then_some(()));
    serve_witness(&mut node.connect(), 0, "a new connection");
    // No incomplete body has become an object.
    assert_eq!(witness.ask("GET /abuse/x", "", b"").expect("a response").status, 404);
}
