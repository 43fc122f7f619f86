//! `-m` bounds the items under any mix, `-M` refuses instead of evicting, `-I` sets the largest value;
//! resident memory stays below the sum that the start prints plus 32 MiB, whatever clients of any listener do.

use blocker::executor::block_on;
use blocker::{Blocker, Name, Namespace, ObjectId, ReadRequest, Timestamp, WriteRequest};
use cached_tests::conn::Conn;
use cached_tests::daemon::{Daemon, wait_for};
use cached_tests::frame::{Request, Response, op, store};
use cached_tests::nbd::Disk;
use cached_tests::object_client;
use cached_tests::pattern::Captures;
use cached_tests::program::Flavour;
use cached_tests::server::Server;
use cached_tests::tls::Certificates;
use serde_json::json;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use synapse::codec::{Credits, Features, Hello, Request as ObjectRequest, RequestId, SessionId};
use synapse::{Address, SynapseBlocker};

/// The memory that a server may take beyond the sum of its limits.
const BEYOND_KIB: u64 = 32 << 10;

/// Returns the sum of all limits that the start prints, in KiB; for memcached, which prints none, an estimate
/// above `-m`.
fn limit_kib(server: &Server, items_mib: u64) -> u64 {
    if server.flavour == Flavour::Memcached {
        return (items_mib + 64) << 10;
    }
    printed_kib(&server.log())
}

/// Returns the sum that is printed in a log, in KiB.
fn printed_kib(log: &str) -> u64 {
    let mib = log
        .lines()
        .find_map(|line| line.strip_prefix("memory: ")?.split(" MiB").next()?.parse::<u64>().ok())
        .unwrap_or_else(|| panic!("the start prints no sum of its limits:\n{log}"));
    mib << 10
}

fn assert_below_limit(server: &Server, items_mib: u64, after: &str) {
    let (rss, limit) = (server.rss_peak_kib(), limit_kib(server, items_mib));
    println!("{after}: resident memory at most {rss} KiB, limits add up to {limit} KiB");
    assert!(rss <= limit + BEYOND_KIB, "{after}: {rss} KiB, more than {limit} KiB and 32 MiB");
}

/// Stores values of one size, pipelined; each has the expected reply.
fn fill(conn: &mut Conn, name: &str, count: usize, len: usize) {
    let value = "v".repeat(len);
    for batch in 0..count.div_ceil(100) {
        let size = 100.min(count - batch * 100);
        let mut sets = Vec::new();
        for index in 0..size {
            sets.extend(format!("set {name}{} 0 0 {len}\r\n{value}\r\n", batch * 100 + index).bytes());
        }
        conn.send(&sets);
        conn.expect(&b"STORED\r\n".repeat(size), name);
    }
}

fn holds(conn: &mut Conn, key: &str, len: usize) -> bool {
    conn.send(format!("mg {key} s\r\n").as_bytes());
    conn.read_line() == format!("HD s{len}").as_bytes()
}

/// Values of one size after another, each several times the memory: every set succeeds, the newest values are
/// present, and the memory moves to the new sizes.
#[test]
fn sizes_shift() {
    const ITEMS_MIB: u64 = 64;
    let mut server = Server::start(&format!("-m {ITEMS_MIB}"));
    let mut conn = server.connect();
    for (name, count, len) in [
        ("tiny", 1_000_000, 10),
        ("small", 400_000, 200),
        ("page", 40_000, 4_000),
        ("large", 400, 500_000),
        ("again", 800_000, 100),
    ] {
        fill(&mut conn, name, count, len);
        // At least half of the memory holds them by now.
        let fit = (ITEMS_MIB << 20) as usize / 2 / (len + 100);
        let recent = fit.min(count);
        let sampled = 50.min(recent);
        let held = (0..sampled).filter(|index| {
            holds(&mut conn, &format!("{name}{}", count - 1 - index * (recent / sampled)), len)
        });
        let held = held.count();
        println!("{name}: {held} of {sampled} samples of the last {recent} are there");
        if server.flavour == Flavour::Cached {
            assert!(held * 10 >= sampled * 9, "{name}: {held} of {sampled} of the last {recent} values");
        }
        assert_below_limit(&server, ITEMS_MIB, name);
    }
    assert!(server.stat("evictions") > 0);
    assert!(server.stat("bytes") <= ITEMS_MIB << 20);
    server.assert_serves("sizes that shift");
}

/// With `-M`, values that do not fit are refused, stored ones stay, and a deletion makes room.
#[test]
fn a_full_cache_without_eviction() {
    const ITEMS_MIB: u64 = 16;
    const LEN: usize = 100_000;
    let server = Server::start(&format!("-m {ITEMS_MIB} -M"));
    let mut conn = server.connect();
    let value = "v".repeat(LEN);
    let full: &[u8] = b"SERVER_ERROR out of memory storing object";
    let mut stored = 0;
    loop {
        conn.send(format!("set key{stored} 0 0 {LEN}\r\n{value}\r\n").as_bytes());
        let line = conn.read_line();
        if line == full {
            break;
        }
        assert_eq!(line, b"STORED");
        stored += 1;
        assert!(stored < 1000, "{stored} values of {LEN} bytes in {ITEMS_MIB} MiB");
    }
    println!("{stored} values of {LEN} bytes fit into {ITEMS_MIB} MiB");
    assert!(stored * LEN * 2 > (ITEMS_MIB << 20) as usize, "less than half is used");
    for index in 0..stored {
        assert!(holds(&mut conn, &format!("key{index}"), LEN), "key{index} is gone");
    }
    let mut expected = full.to_vec();
    expected.extend(b"\r\n");
    conn.ask(format!("add more 0 0 {LEN}\r\n{value}\r\n").as_bytes(), &expected);
    conn.ask(format!("ms more {LEN}\r\n{value}\r\n").as_bytes(), &expected);
    // The value of a refused set was discarded: the connection is in step, also in binary.
    conn.ask(b"mn\r\n", b"MN\r\n");
    let mut binary = server.connect();
    binary.send(&store(op("SET").unwrap(), b"more", value.as_bytes()));
    let text = b"Out of memory allocating item".to_vec();
    let refused = Response { value: text, ..Response::error(op("SET").unwrap(), 0x82) };
    binary.expect_pattern(&refused.pattern(), &mut Captures::default(), "a binary SET into a full cache");
    binary.send(&Request::new(op("NOOP").unwrap()).bytes());
    binary.expect_pattern(&Response::new(op("NOOP").unwrap()).pattern(), &mut Captures::default(), "NOOP");
    assert_eq!(server.stat("evictions"), 0);
    assert!(server.stat("store_no_memory") >= 2);
    for index in 0..stored / 2 {
        conn.ask(format!("delete key{index}\r\n").as_bytes(), b"DELETED\r\n");
    }
    conn.ask(format!("set more 0 0 {LEN}\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
    assert_below_limit(&server, ITEMS_MIB, "a full cache without eviction");
}

/// Values far above a megabyte are returned as stored, also after others took their place.
#[test]
fn values_of_many_megabytes() {
    const LEN: usize = 100 << 20;
    let mut server = Server::start("-m 512 -I 128m");
    let mut conn = server.connect();
    // Not all alike, so that a misplaced piece shows.
    let mut value: Vec<u8> = (0..LEN).map(|at| (at / 4096 + at) as u8).collect();
    for round in 0..6u8 {
        value[0] = round;
        let mut set = format!("set huge{} 0 0 {LEN}\r\n", round % 2).into_bytes();
        set.extend(&value);
        set.extend(b"\r\n");
        conn.ask(&set, b"STORED\r\n");
        conn.send(format!("get huge{}\r\n", round % 2).as_bytes());
        assert_eq!(conn.read_line(), format!("VALUE huge{} 0 {LEN}", round % 2).into_bytes());
        let got = conn.read_exact(LEN);
        assert!(got == value, "round {round}: the value came back changed");
        conn.expect(b"\r\nEND\r\n", "the end");
    }
    assert_below_limit(&server, 512, "values of 100 MiB");
    server.assert_serves("huge values");
}

/// How long an answer to the well-behaved client may take to count: a stop of the server for as long as its timeouts is
/// longer, and a busy machine is not.
const ANSWER: Duration = Duration::from_secs(15);
/// The operations of each kind in a round.
const ROUND: usize = 40;
const MIB: usize = 1 << 20;

/// A client of each listener that does what a client should.
struct WellBehaved<'a> {
    daemon: &'a Daemon,
    memcached: Option<UnixStream>,
    disk: Option<Disk>,
    objects: SynapseBlocker,
}

impl WellBehaved<'_> {
    fn ask_memcached(&mut self) -> std::io::Result<()> {
        let mut socket = match self.memcached.take() {
            Some(socket) => socket,
            None => UnixStream::connect(self.daemon.path("memcached"))?,
        };
        socket.set_read_timeout(Some(ANSWER))?;
        socket.write_all(b"set witness 0 0 4\r\nhere\r\nget witness\r\n")?;
        let expected = b"STORED\r\nVALUE witness 0 4\r\nhere\r\nEND\r\n";
        let mut reply = [0; 38];
        socket.read_exact(&mut reply[..expected.len()])?;
        if reply[..expected.len()] != *expected {
            return Err(std::io::Error::other("another reply"));
        }
        self.memcached = Some(socket);
        Ok(())
    }

    fn ask_disk(&mut self) -> std::io::Result<()> {
        let mut disk = match self.disk.take() {
            Some(disk) => disk,
            None => Disk::connect(&self.daemon.path("nbd"), "disk")?,
        };
        disk.set_deadline(ANSWER)?;
        disk.write(4096, &[7; 4096])?;
        let read = disk.read(4096, 4096)?;
        self.disk = Some(disk);
        if read == [7; 4096] { Ok(()) } else { Err(std::io::Error::other("other bytes")) }
    }

    fn ask_objects(&self) -> Result<(), blocker::Error> {
        let object =
            || ObjectId::new(Namespace::new("own").expect("a name"), Name::new("o").expect("a name"));
        block_on(self.objects.write(WriteRequest::new(object(), 0, b"here")))?;
        block_on(self.objects.read(ReadRequest::new(object(), 0, 4))).map(drop)
    }

    /// Returns how many operations of each kind were completed.
    fn round(&mut self) -> [usize; 3] {
        let mut completed = [0; 3];
        for _ in 0..ROUND {
            completed[0] += usize::from(self.ask_memcached().is_ok());
            completed[1] += usize::from(self.ask_disk().is_ok());
            completed[2] += usize::from(self.ask_objects().is_ok());
        }
        completed
    }
}

/// Sends as much as the server takes.
fn send_all_it_takes(mut socket: UnixStream, bytes: &[u8]) -> UnixStream {
    socket.set_write_timeout(Some(Duration::from_millis(5))).expect("a timeout");
    // The server may close the connection, or take no more: both are its right.
    let _ = socket.write_all(bytes);
    socket
}

fn memcached_clients(daemon: &Daemon, count: usize, bytes: &[u8]) -> Vec<UnixStream> {
    let connect = |_| UnixStream::connect(daemon.path("memcached")).expect("a connection");
    (0..count).map(connect).map(|socket| send_all_it_takes(socket, bytes)).collect()
}

/// Clients that have selected the disk, or begun TLS, and then send these bytes.
fn disk_clients(daemon: &Daemon, count: usize, bytes: &[u8]) -> Vec<UnixStream> {
    let connect = |_| Disk::connect(&daemon.path("nbd"), "disk").expect("a connection").into_socket();
    (0..count).map(connect).map(|socket| send_all_it_takes(socket, bytes)).collect()
}

fn disk_request(kind: u16, len_bytes: usize) -> Vec<u8> {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend_from_slice(&[0, 0]);
    request.extend_from_slice(&kind.to_be_bytes());
    request.extend_from_slice(&[0; 16]);
    request.extend_from_slice(&u32::try_from(len_bytes).expect("a length").to_be_bytes());
    request
}

/// Clients of objects that have asked for what their shares allow and take no answer, or that announce as much and send a
/// part of it.
fn object_clients(daemon: &Daemon, count: usize, is_reading: bool) -> Vec<UnixStream> {
    const BYTES: usize = MIB / 8;
    let object =
        || ObjectId::new(Namespace::new("own").expect("a name"), Name::new("large").expect("a name"));
    let connect = |number: usize| {
        let mut socket = UnixStream::connect(daemon.path("synapse")).expect("a connection");
        let session = SessionId { client: [u8::try_from(number).expect("few") + 1; 16], lane: 1 };
        let credits = Credits { slots: 64, bytes: 64 << 20 };
        let mut bytes = Vec::new();
        Hello::new(session, Features(Features::CREDIT), [7; 32], credits).encode(&mut bytes);
        for slot in 0..2 {
            let id = RequestId { slot, sequence: 1 };
            let request = match is_reading {
                true => ObjectRequest::Read(ReadRequest::new(object(), 0, BYTES as u64)),
                false => ObjectRequest::Write(WriteRequest::new(object(), 0, vec![7; BYTES])),
            };
            let payload = request.encode(id, Timestamp(0), false, &mut bytes).to_vec();
            bytes.extend_from_slice(&payload[..payload.len() / 2]);
        }
        socket.set_write_timeout(Some(Duration::from_millis(5))).expect("a timeout");
        let _ = socket.write_all(&bytes);
        socket
    };
    (0..count).map(connect).collect()
}

/// What an attack does: it opens connections, and returns those that are to stay open.
type Attack = fn(&Daemon) -> Vec<UnixStream>;

const ATTACKS: [(&str, Attack); 12] = [
    ("half-sent values", |daemon| {
        let bytes = [&b"set half 0 0 1000000\r\n"[..], &vec![b'x'; 660_000]].concat();
        memcached_clients(daemon, 900, &bytes)
    }),
    ("half-sent values again", |daemon| {
        let bytes = [&b"set half 0 0 1000000\r\n"[..], &vec![b'x'; 400_000]].concat();
        memcached_clients(daemon, 900, &bytes)
    }),
    ("half-sent appends", |daemon| {
        let bytes = [&b"append witness 0 0 900000\r\n"[..], &vec![b'x'; 500_000]].concat();
        memcached_clients(daemon, 500, &bytes)
    }),
    ("unread values", |daemon| memcached_clients(daemon, 300, &b"get large\r\n".repeat(50))),
    ("endless lines", |daemon| {
        memcached_clients(daemon, 900, &[&b"get"[..], &b" key".repeat(40_000)].concat())
    }),
    ("binary heads of large values", |daemon| {
        let head = [&[0x80, 0x01, 0, 1, 8, 0, 0, 0, 0, 15, 0, 0][..], &[0; 12], &[0; 8], b"k"].concat();
        memcached_clients(daemon, 900, &[&head[..], &vec![b'x'; 200_000]].concat())
    }),
    ("heads of writes without payload", |daemon| disk_clients(daemon, 40, &disk_request(1, 32 * MIB))),
    ("unread reads", |daemon| disk_clients(daemon, 40, &disk_request(0, 8 * MIB).repeat(10))),
    ("half-sent writes", |daemon| {
        disk_clients(daemon, 40, &[disk_request(1, 32 * MIB), vec![7; 4 * MIB]].concat())
    }),
    ("TLS garbage", |daemon| {
        let start_tls = [&3_u32.to_be_bytes()[..], b"IHAVEOPT", &5_u32.to_be_bytes(), &[0; 4]].concat();
        let record = [&[22, 3, 1, 64, 0][..], &vec![7; 16_000]].concat();
        let connect = |_| UnixStream::connect(daemon.path("nbd")).expect("a connection");
        let begin = |socket| send_all_it_takes(socket, &[&start_tls[..], &record].concat());
        (0..40).map(connect).map(begin).collect()
    }),
    ("unread objects", |daemon| object_clients(daemon, 24, true)),
    ("half-sent objects", |daemon| object_clients(daemon, 24, false)),
];

/// Whatever clients of any listener do, resident memory stays below the sum that the start prints; it is given back when
/// they have left; and meanwhile others are served.
#[test]
fn no_client_takes_the_memory_or_the_place_of_others() {
    let certificates = Certificates::shared();
    let daemon = Daemon::start("cached", |place| {
        format!(
            "[memcached]\nmemory_bytes_max = \"16 MiB\"\nthreads = 2\nconnection_bytes_max = \"16 MiB\"\n\
             [objects]\nwrite = \"back\"\nwriter = \"cache\"\nmemory_bytes_max = \"16 MiB\"\ndirty_bytes_max = \"2 MiB\"\n\
             object_bytes_max = \"1 MiB\"\n[objects.backend]\nkind = \"file\"\npath = \"{place}/store\"\ncreate = true\n\
             [synapse]\nlisten = [\"unix:{place}/synapse\"]\nthreads = 1\nconnections_max = 32\nsessions_max = 64\n\
             bytes_max = \"24 MiB\"\nsession_bytes_max = \"8 MiB\"\nrequest_bytes_max = \"1 MiB\"\n\
             payload_pool_bytes_max = \"4 MiB\"\n\
             [volumes]\n[nbd]\nlisten = [\"unix:{place}/nbd\"]\nthreads = 1\nconnections_max = 64\n\
             connection_bytes_max = \"32 MiB\"\nbytes_max = \"96 MiB\"\npayload_pool_bytes_max = \"4 MiB\"\n\
             [nbd.tls]\nchain_file = {:?}\nkey_file = {:?}\n",
            certificates.path("server.pem"),
            certificates.path("server.key"),
        )
    });
    let made = json!({ "name": "disk", "size_bytes": 64 * MIB });
    assert_eq!(daemon.post("/volumes/create", &made).0, 200);
    let mut filling = UnixStream::connect(daemon.path("memcached")).expect("a connection");
    for key in (0..20).map(|at| format!("fill{at}")).chain(["large".into()]) {
        let set = format!("set {key} 0 0 1000000\r\n{}\r\n", "v".repeat(1_000_000));
        filling.write_all(set.as_bytes()).expect("it is taken");
        filling.read_exact(&mut [0; 8]).expect("an answer");
    }
    let mut config = object_client::config(Address::Unix(daemon.path("synapse")));
    config.call_timeout = Some(ANSWER);
    let objects = SynapseBlocker::connect_on_thread(config).expect("a connection");
    let large = ObjectId::new(Namespace::new("own").expect("a name"), Name::new("large").expect("a name"));
    block_on(objects.write(WriteRequest::new(large, 0, vec![7; MIB]))).expect("it is written");
    let mut client = WellBehaved { daemon: &daemon, memcached: None, disk: None, objects };
    let undisturbed = client.round();
    assert_eq!(undisturbed, [ROUND; 3]);
    let mut disk = Disk::connect(&daemon.path("nbd"), "disk").expect("a connection");
    for at in 0..8 {
        disk.write(8 * at * MIB as u64, &vec![1; 8 * MIB]).expect("it is written");
        disk.read(8 * at * MIB as u64, 8 * MIB).expect("it is read");
    }
    let status = |field: &str| status_kib(&daemon, field);
    let limit_kib = printed_kib(&daemon.log()) + BEYOND_KIB;
    let before_kib = status("VmRSS:");
    println!("resident memory {before_kib} KiB before the attacks, limit {limit_kib} KiB");
    for (name, attack) in ATTACKS {
        let attackers = attack(&daemon);
        let completed = client.round();
        let peak_kib = status("VmHWM:");
        println!("{name}: {completed:?} of {undisturbed:?} completed, at most {peak_kib} KiB");
        let is_served = completed.iter().zip(&undisturbed).all(|(now, before)| now * 10 >= before * 9);
        assert!(is_served, "{name}: {completed:?} of {undisturbed:?} completed");
        assert!(peak_kib <= limit_kib, "{name}: {peak_kib} KiB, more than {limit_kib} KiB");
        drop(attackers);
    }
    wait_for("the memory of the attackers is given back", || {
        (status("VmRSS:") <= before_kib + BEYOND_KIB).then_some(())
    });
    println!("{} KiB after the attacks", status("VmRSS:"));
}

fn status_kib(daemon: &Daemon, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("a number")
}
