//! Attacks on memory by clients of every listener. Whatever they do, resident memory stays below
//! the printed sum plus 32 MiB, every request of a well-behaved client is served, and the memory is
//! freed after the attackers have left.

use crate::memory::{BEYOND_KIB, printed_kib};
use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, Name, Namespace, ObjectId, ReadRequest, Timestamp, WriteRequest};
use cached_tests::daemon::{Daemon, wait_for};
use cached_tests::http;
use cached_tests::nbd::Disk;
use cached_tests::object_client;
use cached_tests::tls::Certificates;
use serde_json::json;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};
use synapse::codec::{Credits, Features, Hello, Request as ObjectRequest, RequestId, SessionId};
use synapse::{Address, SynapseBlocker};

/// The time limit for a reply to a well-behaved client. A busy machine stays below it; a server
/// that blocks until other clients time out, after ten minutes or never, does not.
const ANSWER: Duration = Duration::from_secs(60);
/// The time limit for freeing the attackers' memory: 5 s, and an allowance for a busy machine.
const GIVEN_BACK: Duration = Duration::from_secs(60);
/// The memory that may stay resident after an attack: the allocator's free memory, and pools.
const KEPT_KIB: u64 = 16 << 10;
/// The number of requests of each well-behaved client during an attack.
const ROUND: usize = 40;
const MIB: usize = 1 << 20;

/// Sends one request of a well-behaved client, on a persistent connection.
type Ask<'a> = Box<dyn FnMut() -> io::Result<()> + 'a>;

/// A program under attack.
struct Besieged<'a> {
    daemon: &'a Daemon,
    well_behaved: Vec<(&'static str, Ask<'a>)>,
    limit_kib: u64,
    before_kib: u64,
    sockets_before: usize,
}

impl<'a> Besieged<'a> {
    /// Begins the attack once the well-behaved clients have used all of the memory that they need.
    fn new(daemon: &'a Daemon, well_behaved: Vec<(&'static str, Ask<'a>)>) -> Besieged<'a> {
        let limit_kib = printed_kib(&daemon.log()) + BEYOND_KIB;
        let mut besieged = Besieged { daemon, well_behaved, limit_kib, before_kib: 0, sockets_before: 0 };
        besieged.round("no attack");
        besieged.before_kib = status_kib(daemon, "VmRSS:");
        besieged.sockets_before = sockets(daemon);
        println!("{} KiB resident before the attacks, limit {limit_kib} KiB", besieged.before_kib);
        besieged
    }

    /// Lets every well-behaved client send a request and receive the reply.
    fn round(&mut self, attack: &str) {
        for _ in 0..ROUND {
            for (what, ask) in &mut self.well_behaved {
                ask().unwrap_or_else(|error| panic!("{attack}: {what} is not answered: {error}"));
            }
        }
    }

    /// Checks that the attack through these connections costs other clients neither memory nor
    /// replies. Then closes all of the connections simultaneously.
    fn withstand(&mut self, attack: &str, attackers: Vec<OwnedFd>) {
        self.round(attack);
        self.daemon.signal(libc::SIGSTOP);
        drop(attackers);
        self.daemon.signal(libc::SIGCONT);
        let peak_kib = status_kib(self.daemon, "VmHWM:");
        println!("{attack}: at most {peak_kib} KiB resident");
        let limit_kib = self.limit_kib;
        assert!(peak_kib <= limit_kib, "{attack}: {peak_kib} KiB, more than {limit_kib} KiB");
        // The next attack needs free connections.
        wait_for("the end of the attackers' connections", || {
            (sockets(self.daemon) <= self.sockets_before + 8).then_some(())
        });
    }

    /// Waits until the attackers' memory has been freed.
    fn expect_memory_back(&self) {
        let left_at = Instant::now();
        loop {
            let (now_kib, before_kib) = (status_kib(self.daemon, "VmRSS:"), self.before_kib);
            if now_kib <= before_kib + KEPT_KIB {
                println!("{now_kib} KiB resident {:?} after the last attack", left_at.elapsed());
                return;
            }
            assert!(
                left_at.elapsed() < GIVEN_BACK,
                "{now_kib} KiB resident after the attacks, {before_kib} KiB before them"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn status_kib(daemon: &Daemon, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("a number")
}

/// Returns the number of the program's open sockets.
fn sockets(daemon: &Daemon) -> usize {
    let all = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("a process").flatten();
    let targets = all.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

fn connections(daemon: &Daemon, listener: &str, count: usize) -> Vec<UnixStream> {
    (0..count).map(|_| UnixStream::connect(daemon.path(listener)).expect("a connection")).collect()
}

/// Sends as much as the system accepts on each connection while the program is stopped, so that the
/// program receives all of it simultaneously.
fn send_together(daemon: &Daemon, sockets: Vec<UnixStream>, bytes: &[u8]) -> Vec<OwnedFd> {
    daemon.signal(libc::SIGSTOP);
    for mut socket in &sockets {
        hold_in_system(socket, bytes.len());
        socket.set_nonblocking(true).expect("a socket");
        // The system may accept only a part of the bytes.
        let _ = socket.write(bytes);
    }
    daemon.signal(libc::SIGCONT);
    sockets.into_iter().map(OwnedFd::from).collect()
}

/// Lets the system accept this many bytes from the sender, if this process has the necessary
/// privilege.
fn hold_in_system(socket: &UnixStream, bytes: usize) {
    // The system also counts its own overhead for each packet.
    let wanted = libc::c_int::try_from(2 * bytes).expect("a size");
    for option in [libc::SO_SNDBUF, libc::SO_SNDBUFFORCE] {
        // SAFETY: the descriptor is open while the socket is borrowed, and the option is one int.
        unsafe {
            let value = (&raw const wanted).cast();
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                value,
                size_of_val(&wanted) as libc::socklen_t,
            );
        }
    }
}

/// Sends on all connections concurrently until the program accepts no more.
fn send_all_it_takes(sockets: Vec<UnixStream>, bytes: &[u8]) -> Vec<OwnedFd> {
    thread::scope(|scope| {
        for mut socket in &sockets {
            scope.spawn(move || {
                socket.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
                // The program may close the connection, or may accept no more bytes.
                let _ = socket.write_all(bytes);
            });
        }
    });
    sockets.into_iter().map(OwnedFd::from).collect()
}

/// Returns a request of a memcached client on a persistent connection.
fn ask_memcached(daemon: &Daemon) -> Ask<'_> {
    let mut socket = UnixStream::connect(daemon.path("memcached")).expect("a connection");
    socket.set_read_timeout(Some(ANSWER)).expect("a timeout");
    Box::new(move || {
        socket.write_all(b"set witness 0 0 4\r\nhere\r\nget witness\r\n")?;
        let mut reply = [0; 38];
        let expected = b"STORED\r\nVALUE witness 0 4\r\nhere\r\nEND\r\n";
        socket.read_exact(&mut reply[..expected.len()])?;
        if reply[..expected.len()] == *expected { Ok(()) } else { Err(io::Error::other("another reply")) }
    })
}

fn object(name: &'static str) -> ObjectId {
    ObjectId::new(Namespace::new("own").expect("a name"), Name::new(name).expect("a name"))
}

/// Returns a request of an object client that has written an object of 1 MiB.
fn ask_objects(daemon: &Daemon) -> Ask<'_> {
    let mut config = object_client::config(Address::Unix(daemon.path("synapse")));
    config.call_timeout = Some(ANSWER);
    let objects = SynapseBlocker::connect_on_thread(config).expect("a connection");
    block_on(objects.write(WriteRequest::new(object("large"), 0, vec![7; MIB]))).expect("it is written");
    Box::new(move || {
        let done = block_on(objects.write(WriteRequest::new(object("o"), 0, b"here")))
            .and_then(|_| block_on(objects.read(ReadRequest::new(object("o"), 0, 4))));
        done.map(drop).map_err(io::Error::other)
    })
}

fn ask_admin(daemon: &Daemon) -> Ask<'_> {
    Box::new(move || match http::get(&daemon.admin, "/livez").0 {
        200 => Ok(()),
        status => Err(io::Error::other(format!("status {status}"))),
    })
}

/// Creates object clients that send this many requests together, whatever the server grants: reads
/// whose responses they do not receive, or writes of which they send only half.
fn object_clients(daemon: &Daemon, count: u8, is_reading: bool) -> Vec<OwnedFd> {
    const REQUESTS: u32 = 3;
    let mut all = Vec::new();
    for (number, mut socket) in (1..=count).zip(connections(daemon, "synapse", count.into())) {
        let credits = Credits { slots: 64, bytes: 64 << 20 };
        let session = SessionId { client: [number; 16], lane: 1 };
        let mut bytes = Vec::new();
        Hello::new(session, Features(Features::CREDIT), [7; 32], credits).encode(&mut bytes);
        for slot in 0..REQUESTS {
            let id = RequestId { slot, sequence: 1 };
            let bytes_of_one = (MIB - 4096) as u64;
            let request = match is_reading {
                true => ObjectRequest::Read(ReadRequest::new(object("large"), 0, bytes_of_one)),
                false => {
                    ObjectRequest::Change(WriteRequest::new(object("large"), 0, vec![7; MIB - 4096]).into())
                }
            };
            let payload = request.encode(id, Timestamp(0), false, &mut bytes).to_vec();
            bytes.extend_from_slice(&payload);
        }
        if !is_reading {
            bytes.truncate(bytes.len() - MIB / 2);
        }
        hold_in_system(&socket, bytes.len());
        socket.set_nonblocking(true).expect("a socket");
        // The program may accept only a part of the bytes, or close the connection.
        let _ = socket.write(&bytes);
        all.push(socket.into());
    }
    all
}

/// Creates clients of the admin listener that request documents without receiving them, or send
/// half of a body.
fn admin_clients(daemon: &Daemon) -> Vec<OwnedFd> {
    let token = std::fs::read_to_string(daemon.path("token")).expect("a token");
    let head = |line: &str| {
        format!("{line} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n", daemon.admin, token.trim())
    };
    let unread = (head("GET /metrics") + "\r\n").repeat(200).into_bytes();
    let half = (head("POST /reload") + "Content-Length: 65536\r\n\r\n" + &"x".repeat(60_000)).into_bytes();
    let connect = |number: usize| {
        let mut socket = TcpStream::connect(&daemon.admin).expect("a connection");
        socket.set_nonblocking(true).expect("a socket");
        // The program may accept only a part of the bytes.
        let _ = socket.write(if number.is_multiple_of(2) { &unread } else { &half });
        socket.into()
    };
    (0..40).map(connect).collect()
}

/// With 1024 connections, `connection_bytes_max` has 4 KiB for each of them; 900 are used.
#[test]
fn no_client_of_memcached_or_objects_takes_the_memory_of_others() {
    let daemon = Daemon::start("cached", |place| {
        format!(
            "[memcached]\nmemory_bytes_max = \"8 MiB\"\nthreads = 2\nconnection_bytes_max = \"8 MiB\"\n\
             [insight]\nenabled = false\n\
             [objects]\nwrite = \"back\"\nwriter = \"cache\"\nmemory_bytes_max = \"8 MiB\"\ndirty_bytes_max = \"2 MiB\"\n\
             object_bytes_max = \"1 MiB\"\nobjects_count_max = 1000\n\
             [objects.backend]\nkind = \"file\"\npath = \"{place}/store\"\ncreate = true\n\
             [synapse]\nlisten = [\"unix:{place}/synapse\"]\nthreads = 1\nconnections_max = 44\nsessions_max = 64\n\
             peer_timeout_ms = 600000\n\
             bytes_max = \"8 MiB\"\nsession_bytes_max = \"3 MiB\"\nrequest_bytes_max = \"1 MiB\"\n\
             session_requests_max = 16\npayload_pool_bytes_max = \"1 MiB\"\n"
        )
    });
    let mut filling = UnixStream::connect(daemon.path("memcached")).expect("a connection");
    let mut fill = |key: &str| {
        let set = format!("set {key} 0 0 1000000\r\n{}\r\n", "v".repeat(1_000_000));
        filling.write_all(set.as_bytes()).expect("it is taken");
        filling.read_exact(&mut [0; 8]).expect("an answer");
    };
    (0..12).for_each(|at| fill(&format!("fill{at}")));
    let well_behaved = vec![
        ("memcached", ask_memcached(&daemon)),
        ("an object", ask_objects(&daemon)),
        ("the admin listener", ask_admin(&daemon)),
    ];
    let mut besieged = Besieged::new(&daemon, well_behaved);
    let memcached =
        |count: usize, bytes: &[u8]| send_together(&daemon, connections(&daemon, "memcached", count), bytes);
    let half_sent = [&b"set half 0 0 1000000\r\n"[..], &vec![b'x'; 660_000]].concat();
    for round in 1..=3 {
        besieged.withstand(&format!("half-sent values, round {round}"), memcached(900, &half_sent));
    }
    let appends = [&b"append witness 0 0 900000\r\n"[..], &vec![b'x'; 500_000]].concat();
    besieged.withstand("half-sent appends", memcached(500, &appends));
    // The memory reserved for the attackers has caused evictions, so the large value is stored only
    // now.
    fill("large");
    besieged.withstand("unread values", memcached(300, &b"get large\r\n".repeat(50)));
    let endless = [&b"get"[..], &b" key".repeat(100_000)].concat();
    besieged.withstand("endless lines", memcached(900, &endless));
    let head = [&[0x80, 0x01, 0, 1, 8, 0, 0, 0, 0, 15, 0, 0][..], &[0; 12], &[0; 8], b"k"].concat();
    let binary = [&head[..], &vec![b'x'; 400_000]].concat();
    besieged.withstand("binary heads of large values", memcached(500, &binary));
    besieged.withstand("unread objects", object_clients(&daemon, 40, true));
    besieged.withstand("half-sent objects", object_clients(&daemon, 40, false));
    besieged.withstand("unread documents and half-sent bodies", admin_clients(&daemon));
    besieged.expect_memory_back();
}

/// Creates clients that have selected the disk as their export.
fn disk_clients(daemon: &Daemon, count: usize) -> Vec<UnixStream> {
    (0..count)
        .map(|_| Disk::connect(&daemon.path("nbd"), "disk").expect("a connection").into_socket())
        .collect()
}

fn disk_request(kind: u16, len_bytes: usize) -> Vec<u8> {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend_from_slice(&[0, 0]);
    request.extend_from_slice(&kind.to_be_bytes());
    request.extend_from_slice(&[0; 16]);
    request.extend_from_slice(&u32::try_from(len_bytes).expect("a length").to_be_bytes());
    request
}

/// Returns a request that writes and reads this many bytes as a client of the disk.
fn ask_disk(daemon: &Daemon, bytes: usize) -> Ask<'_> {
    let mut disk = Disk::connect(&daemon.path("nbd"), "disk").expect("a connection");
    disk.set_deadline(ANSWER).expect("a timeout");
    Box::new(move || {
        disk.write(4096, &vec![7; bytes])?;
        let read = disk.read(4096, bytes)?;
        if read == vec![7; bytes] { Ok(()) } else { Err(io::Error::other("other bytes")) }
    })
}

#[test]
fn no_client_of_a_disk_takes_the_memory_of_others() {
    let certificates = Certificates::shared();
    let daemon = Daemon::start("cached", |place| {
        format!(
            "[memcached]\nmemory_bytes_max = \"2 MiB\"\nthreads = 1\nconnections_max = 16\n\
             [insight]\nenabled = false\n\
             [objects]\nwrite = \"back\"\nwriter = \"cache\"\nmemory_bytes_max = \"8 MiB\"\ndirty_bytes_max = \"2 MiB\"\n\
             object_bytes_max = \"1 MiB\"\nobjects_count_max = 1000\n\
             [objects.backend]\nkind = \"file\"\npath = \"{place}/store\"\ncreate = true\n\
             [volumes]\n[nbd]\nlisten = [\"unix:{place}/nbd\"]\nthreads = 1\nconnections_max = 48\n\
             negotiation_timeout_ms = 600000\nstall_timeout_ms = 600000\n\
             connection_requests_max = 16\nconnection_bytes_max = \"32 MiB\"\nbytes_max = \"70 MiB\"\n\
             payload_pool_bytes_max = \"1 MiB\"\n\
             [nbd.tls]\nchain_file = {:?}\nkey_file = {:?}\n",
            certificates.path("server.pem"),
            certificates.path("server.key"),
        )
    });
    let made = json!({ "name": "disk", "size_bytes": 64 * MIB });
    assert_eq!(daemon.post("/volumes/create", &made).0, 200);
    let mut disk = Disk::connect(&daemon.path("nbd"), "disk").expect("a connection");
    for at in 0..8 {
        disk.write(8 * at * MIB as u64, &vec![1; 8 * MIB]).expect("it is written");
        disk.read(8 * at * MIB as u64, 8 * MIB).expect("it is read");
    }
    drop(disk);
    let mut besieged = Besieged::new(&daemon, vec![("the disk", ask_disk(&daemon, 4096))]);
    let heads = send_all_it_takes(disk_clients(&daemon, 40), &disk_request(1, 32 * MIB));
    // No payload has arrived, so there is memory for a request above a connection's guaranteed
    // minimum, and no attacker must be disconnected for it.
    let mut ask_much = ask_disk(&daemon, 2 * MIB);
    let before = sockets(&daemon);
    ask_much().expect("a large request is answered beside heads without payload");
    assert_eq!(sockets(&daemon), before, "attackers are disconnected for memory that none of them has");
    drop(ask_much);
    besieged.withstand("heads of writes without payload", heads);
    let half_sent = [disk_request(1, 32 * MIB), vec![7; 16 * MIB]].concat();
    let attackers = send_all_it_takes(disk_clients(&daemon, 40), &half_sent);
    besieged.withstand("half-sent writes", attackers);
    let reads = disk_request(0, 8 * MIB).repeat(10);
    let attackers = send_all_it_takes(disk_clients(&daemon, 40), &reads);
    besieged.withstand("unread reads", attackers);
    let start_tls = [&3_u32.to_be_bytes()[..], b"IHAVEOPT", &5_u32.to_be_bytes(), &[0; 4]].concat();
    let record = [&[22, 3, 1, 64, 0][..], &vec![7; 16_000]].concat();
    let garbage = [&start_tls[..], &record].concat();
    let attackers = send_together(&daemon, connections(&daemon, "nbd", 40), &garbage);
    besieged.withstand("TLS garbage", attackers);
    besieged.expect_memory_back();
}
