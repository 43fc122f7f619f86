//! A whole server in this process, and clients that strain its connections: fragments, tiny buffers, slow
//! readers, large values, more connections than allowed.

use cached_memcached::settings::{ListenAddress, ListenTls};
use cached_memcached::{Logging, Server, Settings, Stopper};
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time limit for a reply or a condition. It is generous, because the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(60);

/// A server that runs until it is dropped.
struct Running {
    address: SocketAddr,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(change: impl FnOnce(&mut Settings)) -> Running {
        let mut settings = Settings {
            listen: vec![ListenAddress {
                host: Some("127.0.0.1".into()),
                port: 0,
                protocol: None,
                tls: ListenTls::AsSet,
            }],
            threads: 2,
            ..Settings::default()
        };
        // Clients that read their last replies may be delayed.
        settings.drain.timeout_secs = DEADLINE.as_secs();
        change(&mut settings);
        let server = Server::open(settings, Logging::embedded(0)).expect("a server");
        let address = server.addresses().first().copied().unwrap_or_else(|| ([0, 0, 0, 0], 0).into());
        let stopper = server.stopper();
        let thread = thread::spawn(move || server.run(std::future::pending()).expect("threads"));
        Running { address, stopper, thread: Some(thread) }
    }

    fn connect(&self) -> Client<TcpStream> {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_nodelay(true).expect("a socket option");
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket option");
        Client { stream }
    }

    /// Connects with the smallest possible receive buffer.
    fn connect_narrow(&self) -> Client<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(1).expect("a socket option");
        socket.connect(&self.address.into()).expect("a connection");
        let stream: TcpStream = socket.into();
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket option");
        Client { stream }
    }

    fn stop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server ends in order");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.stop();
        }
    }
}

struct Client<S> {
    stream: S,
}

impl<S: Read + Write> Client<S> {
    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server reads");
    }

    fn expect(&mut self, reply: impl AsRef<[u8]>) {
        let reply = reply.as_ref();
        let mut got = vec![0; reply.len()];
        self.stream.read_exact(&mut got).expect("as many bytes as expected");
        if got != reply {
            let at = got.iter().zip(reply).position(|(got, wanted)| got != wanted).unwrap_or(0);
            let shown = |bytes: &[u8]| bytes[at..bytes.len().min(at + 60)].escape_ascii().to_string();
            panic!("differs at {at} of {}: got {}, expected {}", reply.len(), shown(&got), shown(reply));
        }
    }

    fn ask(&mut self, request: impl AsRef<[u8]>, reply: impl AsRef<[u8]>) {
        self.send(request);
        self.expect(reply);
    }

    fn expect_end(&mut self) {
        let mut rest = Vec::new();
        // A reset of the connection also counts as its end.
        let _ = self.stream.read_to_end(&mut rest);
        assert_eq!(rest.escape_ascii().to_string(), "");
    }
}

/// Reads once. If the process was suspended, the system does not restart a read with a timeout.
fn read(stream: &mut TcpStream, into: &mut [u8]) -> usize {
    loop {
        match stream.read(into) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done.expect("more"),
        }
    }
}

impl Client<TcpStream> {
    /// Returns one number of plain `stats`.
    fn stat(&mut self, name: &str) -> u64 {
        self.send("stats\r\n");
        let mut report = Vec::new();
        let mut piece = [0; 4096];
        while !report.ends_with(b"END\r\n") {
            let count = read(&mut self.stream, &mut piece);
            assert!(count > 0, "the end came early");
            report.extend_from_slice(&piece[..count]);
        }
        let report = String::from_utf8_lossy(&report).into_owned();
        let line = report.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {report}"))
    }

    /// Waits until a number in plain `stats` has the expected value.
    fn wait_for_stat(&mut self, name: &str, is_wanted: impl Fn(u64) -> bool) {
        let end = Instant::now() + DEADLINE;
        loop {
            let found = self.stat(name);
            if is_wanted(found) {
                return;
            }
            assert!(Instant::now() < end, "{name} is {found}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn value(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| b'a' + ((at * 7 + at / 1000 + seed) % 26) as u8).collect()
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

fn hit(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("VALUE {key} 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

#[test]
fn requests_in_single_bytes() {
    let server = Running::start(|_| {});
    let mut client = server.connect();
    for byte in b"set k 5 0 4\r\nhihi\r\nget k none\r\nms m 2 c\r\n" {
        client.send([*byte]);
    }
    client.expect("STORED\r\nVALUE k 5 4\r\nhihi\r\nEND\r\n");
    for byte in b"ab\r\nmg m v\r\nbogus\r\nquit\r\n" {
        client.send([*byte]);
    }
    let mut rest = Vec::new();
    client.stream.read_to_end(&mut rest).expect("the end");
    let rest = String::from_utf8(rest).expect("text");
    assert!(rest.starts_with("HD c") && rest.ends_with("\r\nVA 2\r\nab\r\nERROR\r\n"), "{rest:?}");
}

#[test]
fn values_of_all_sizes_whole_and_in_pieces() {
    let server = Running::start(|_| {});
    let mut client = server.connect();
    let sizes = [0, 1, 100, 4095, 4096, 4097, 8191, 8192, 16_000, 16_384, 40_000, 65_536, 300_000, 1_000_000];
    for (seed, size) in sizes.into_iter().enumerate() {
        let value = value(size, seed);
        let request = [set("k", &value), b"get k\r\n".to_vec()].concat();
        let reply = [b"STORED\r\n".to_vec(), hit("k", &value), b"END\r\n".to_vec()].concat();
        client.ask(&request, &reply);
        for piece in [777, 5000, 16_383, 70_000] {
            for chunk in request.chunks(piece) {
                client.send(chunk);
                if size < 70_000 {
                    thread::sleep(Duration::from_micros(200));
                }
            }
            client.expect(&reply);
        }
    }
}

/// One worker processes requests of every kind in the same drives: whole, incomplete, refused and
/// interrupted ones.
#[test]
fn connections_that_are_ready_together_do_not_affect_each_other() {
    let server = Running::start(|settings| settings.threads = 1);
    let mut clients: Vec<_> = (0..24).map(|_| server.connect()).collect();
    for round in 0..30 {
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        for number in 0..clients.len() {
            let key = format!("key-{number}");
            let value = value([5, 100, 3000, 5000, 20_000, 70_000][(number + round) % 6], round);
            let store = set(&key, &value);
            let found = hit(&key, &value);
            let (request, reply) = match (number * 7 + round) % 5 {
                0 => (store, b"STORED\r\n".to_vec()),
                1 => {
                    let gets = format!("get {key}\r\nget {key} none {key}\r\n");
                    let both = [&found[..], b"END\r\n", &found, &found, b"END\r\n"].concat();
                    ([store, gets.into_bytes()].concat(), [&b"STORED\r\n"[..], &both].concat())
                }
                2 => (b"get none\r\nset k 0 0 1\r\n".to_vec(), b"END\r\n".to_vec()),
                3 => (b"bogus\r\nget none".to_vec(), b"ERROR\r\n".to_vec()),
                _ => (b"mn\r\ngets none\r\n".to_vec(), b"MN\r\nEND\r\n".to_vec()),
            };
            requests.push(request);
            replies.push(reply);
        }
        for (client, request) in clients.iter_mut().zip(&requests) {
            client.send(request);
        }
        for (number, client) in clients.iter_mut().enumerate() {
            client.expect(&replies[number]);
        }
        for (number, client) in clients.iter_mut().enumerate() {
            // An incomplete request is completed, or the client closes and another one connects.
            match (number * 7 + round) % 5 {
                2 if round % 2 == 0 => client.ask("x\r\n", "STORED\r\n"),
                3 if round % 2 == 0 => client.ask("\r\n", "END\r\n"),
                2 | 3 => *client = server.connect(),
                _ => {}
            }
        }
    }
}

#[test]
fn large_values_are_joined_and_conditions_hold() {
    let server = Running::start(|_| {});
    let mut client = server.connect();
    let (first, second) = (value(200_000, 1), value(300_000, 2));
    client.ask(set("k", &first), "STORED\r\n");
    let append = [b"append k 0 0 300000\r\n", &second[..], b"\r\nget k\r\n"].concat();
    let both = [first.clone(), second.clone()].concat();
    client.ask(append, [b"STORED\r\n".to_vec(), hit("k", &both), b"END\r\n".to_vec()].concat());
    client.ask([b"add k 0 0 300000\r\n", &second[..], b"\r\n"].concat(), "NOT_STORED\r\n");
    client.ask([b"cas k 0 0 300000 1\r\n", &second[..], b"\r\n"].concat(), "EXISTS\r\n");
    client.ask([b"ms k 300000 Oabc s\r\n", &second[..], b"\r\n"].concat(), "HD Oabc s300000\r\n");
    client.ask([b"ms k 300000 q\r\n", &second[..], b"\r\nmn\r\n"].concat(), "MN\r\n");
    // Combined, the two requests would be too large.
    client.ask(set("k", &value(900_000, 3)), "STORED\r\n");
    client.ask([b"append k 0 0 300000\r\n", &second[..], b"\r\n"].concat(), "NOT_STORED\r\n");
}

#[test]
fn refused_values_are_discarded() {
    let server = Running::start(|_| {});
    let mut client = server.connect();
    client.ask("set k 0 0 1\r\nx\r\nset l 0 0 1\r\nx\r\n", "STORED\r\nSTORED\r\n");
    let large = value(3_000_000, 0);
    client.ask(set("k", &large), "SERVER_ERROR object too large for cache\r\n");
    client.ask("get k\r\n", "END\r\n");
    let add = [b"add l 0 0 3000000\r\n", &large[..], b"\r\n"].concat();
    client.ask(add, "SERVER_ERROR object too large for cache\r\n");
    client.ask("get l\r\n", "VALUE l 0 1\r\nx\r\nEND\r\n");
    // The body has no terminator, and is too long for the input buffer.
    let bad = [b"set l 0 0 100000\r\n", &value(100_000, 0)[..], b"xx"].concat();
    client.ask(bad, "CLIENT_ERROR bad data chunk\r\n");
    client.ask("get l\r\n", "VALUE l 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn replies_wait_for_a_slow_reader() {
    let server = Running::start(|_| {});
    let mut client = server.connect();
    let values: Vec<Vec<u8>> = (0..20).map(|seed| value(1 + seed * 4_000, seed)).collect();
    let mut line = String::from("get");
    let mut reply = Vec::new();
    for (index, value) in values.iter().enumerate() {
        client.ask(set(&format!("key{index}"), value), "STORED\r\n");
    }
    for round in 0..400 {
        let index = round * 7 % values.len();
        line += &format!(" key{index} nokey{round}");
        reply.extend_from_slice(&hit(&format!("key{index}"), &values[index]));
    }
    reply.extend_from_slice(b"END\r\n");
    let mut narrow = server.connect_narrow();
    // The client sends the long request twice, with a short request after each, and for a while
    // reads no reply.
    narrow.send([line.as_bytes(), b"\r\nversion\r\n", line.as_bytes(), b"\r\nget key0\r\n"].concat());
    thread::sleep(Duration::from_millis(300));
    client.ask("get nobody\r\n", "END\r\n");
    narrow.expect(&reply);
    narrow.expect("VERSION 1.6.45\r\n");
    narrow.expect(&reply);
    narrow.expect([hit("key0", &values[0]), b"END\r\n".to_vec()].concat());
}

#[test]
fn a_large_value_for_a_slow_reader_does_not_change() {
    let server = Running::start(|_| {});
    let mut client = server.connect();
    let before = value(1_000_000, 1);
    client.ask(set("k", &before), "STORED\r\n");
    let mut narrow = server.connect_narrow();
    narrow.send("get k\r\nget k\r\n");
    client.wait_for_stat("get_hits", |hits| hits > 0);
    // The item is replaced, and all memory rewritten, while half of the value has been sent.
    client.ask(set("k", b"other"), "STORED\r\n");
    for round in 0..150 {
        client.ask(set(&format!("churn{round}"), &value(900_000, round)), "STORED\r\n");
    }
    narrow.expect([hit("k", &before), b"END\r\n".to_vec()].concat());
}

#[test]
fn connections_that_hold_too_much_for_too_long_are_closed() {
    // At most a quarter of the memory may be pinned for slow readers, which is enough for two of
    // the four.
    let server = Running::start(|settings| settings.memory_bytes = 64 << 20);
    let mut client = server.connect();
    client.ask(set("k", &value(900_000, 1)), "STORED\r\n");
    let mut slow: Vec<_> = (0..4).map(|_| server.connect_narrow()).collect();
    slow.iter_mut().for_each(|slow| slow.ask("mn\r\n", "MN\r\n"));
    for slow in &mut slow {
        slow.send("get k k k k k k k k\r\n");
    }
    client.wait_for_stat("curr_connections", |open| open < 5);
    let closed = |slow: &mut Client<TcpStream>| {
        let mut whole = vec![0; 8 * hit("k", &value(900_000, 1)).len() + b"END\r\n".len()];
        // The stream ends early, either in an orderly way or by a reset.
        slow.stream.read_exact(&mut whole).is_err()
    };
    let count = slow.iter_mut().map(closed).filter(|closed| *closed).count();
    assert!((1..4).contains(&count), "{count} of four were closed");
    client.ask("get nobody\r\n", "END\r\n");
}

#[test]
fn a_full_table_refuses_clients() {
    let server = Running::start(|settings| settings.connections_max = 2);
    let mut first = server.connect();
    let mut second = server.connect();
    first.ask("mn\r\n", "MN\r\n");
    second.ask("mn\r\n", "MN\r\n");
    let mut third = server.connect();
    third.expect("ERROR Too many open connections\r\n");
    third.expect_end();
    drop(second);
    first.wait_for_stat("curr_connections", |open| open == 1);
    server.connect().ask("mn\r\n", "MN\r\n");
}

#[test]
fn received_requests_are_answered_at_shutdown() {
    let mut server = Running::start(|_| {});
    let mut client = server.connect();
    client.ask("mn\r\n", "MN\r\n");
    let large = value(500_000, 5);
    client.send([set("k", &large), b"get k\r\nget k".to_vec()].concat());
    server.connect().wait_for_stat("get_hits", |hits| hits == 1);
    let reader = thread::spawn(move || {
        client.expect([b"STORED\r\n".to_vec(), hit("k", &large), b"END\r\n".to_vec()].concat());
        client.expect_end();
    });
    server.stop();
    reader.join().expect("all replies, and then the end");
}

#[test]
fn a_unix_socket_is_created_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let mut server = Running::start(|settings| {
        settings.listen.clear();
        settings.unix_path = Some(path.clone());
        settings.unix_mask = 0o700;
    });
    let mut client = Client { stream: UnixStream::connect(&path).expect("a connection") };
    let large = value(700_000, 9);
    client.ask(set("k", &large), "STORED\r\n");
    client.ask("get k\r\n", [hit("k", &large), b"END\r\n".to_vec()].concat());
    drop(client);
    server.stop();
    assert!(!path.exists());
}

#[test]
fn a_dump_continues_for_a_slow_reader() {
    let server = Running::start(|_| {});
    let mut client = server.connect();
    const COUNT: usize = 20_000;
    let sets: Vec<u8> =
        (0..COUNT).flat_map(|n| format!("set key:{n} 0 0 1 noreply\r\nx\r\n").into_bytes()).collect();
    client.ask([sets, b"mn\r\n".to_vec()].concat(), "MN\r\n");
    let mut narrow = server.connect_narrow();
    narrow.send("lru_crawler mgdump all\r\nmn\r\n");
    thread::sleep(Duration::from_millis(200));
    let mut all = Vec::new();
    while !all.ends_with(b"EN\r\nMN\r\n") {
        let mut piece = [0; 8192];
        let count = read(&mut narrow.stream, &mut piece);
        assert!(count > 0, "the end came early");
        all.extend_from_slice(&piece[..count]);
    }
    let keys: std::collections::BTreeSet<&[u8]> =
        all.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"mg key:")).collect();
    assert_eq!(keys.len(), COUNT);
}
