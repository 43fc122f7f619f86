//! A ring of nodes: every node answers every key, whichever node owns it.

use crate::clients_wide;
use cached_tests::conn::Conn;
use cached_tests::frame::{Request, op, store};
use cached_tests::program::{Flavour, Program};
use cached_tests::ring::{Entry, Fleet, PATIENT, keys_in};
use cached_tests::server::Start;
use std::fmt::Write;

/// The names of three nodes, and the slots of each.
const NODES: [&str; 3] = ["a", "b", "c"];
const THIRDS: [(&str, &str); 3] = [("0-5460", "a"), ("5461-10922", "b"), ("10923-16383", "c")];

fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

/// Returns keys of each of the three owners, in turn.
fn keys_of_all(name: &str, count: usize) -> Vec<String> {
    let all = [
        keys_in(0..=5460, name, count),
        keys_in(5461..=10922, name, count),
        keys_in(10923..=16383, name, count),
    ];
    (0..count).flat_map(|number| all.iter().map(move |keys| keys[number].clone())).collect()
}

fn get(conn: &mut Conn, key: &str, value: Option<&str>) {
    let reply = match value {
        Some(value) => format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len()),
        None => "END\r\n".to_owned(),
    };
    conn.ask(format!("get {key}\r\n").as_bytes(), reply.as_bytes());
}

fn set(conn: &mut Conn, key: &str, value: &str, line: &str) {
    conn.ask(format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()).as_bytes(), line.as_bytes());
}

/// Stores at one node, reads at the others: in each protocol, alone, pipelined and in one line.
#[test]
fn every_node_answers_every_key() {
    if !is_cached() {
        return;
    }
    let fleet = Fleet::start(&NODES, &THIRDS, PATIENT);
    let mut conns: Vec<Conn> = (0..3).map(|node| fleet.connect(node)).collect();
    let keys = keys_of_all("text", 20);
    for (number, key) in keys.iter().enumerate() {
        set(&mut conns[number % 3], key, key, "STORED\r\n");
    }
    let line = format!("get {} none {}\r\n", keys.join(" "), keys[0]);
    let mut all = String::new();
    for key in keys.iter().chain(&keys[..1]) {
        write!(all, "VALUE {key} 0 {}\r\n{key}\r\n", key.len()).expect("text");
    }
    all.push_str("END\r\n");
    for conn in &mut conns {
        keys.iter().for_each(|key| get(conn, key, Some(key)));
        conn.ask(line.as_bytes(), all.as_bytes());
    }
    // Pipelined, with replies of several owners and none between them.
    let mut requests = Vec::new();
    let mut replies = Vec::new();
    for (number, key) in keys.iter().enumerate() {
        requests.extend(
            format!("set {key} 5 0 2 noreply\r\nhi\r\nms {key} 3 T0\r\nyes\r\nmg {key} v f\r\n").bytes(),
        );
        replies.extend(b"HD\r\nVA 3 f0\r\nyes\r\n");
        if number % 7 == 0 {
            requests.extend(b"mn\r\nwhat\r\n");
            replies.extend(b"MN\r\nERROR\r\n");
        }
        requests.extend(format!("md {key} q\r\nmg {key} v q\r\ntouch {key} 0\r\n").bytes());
        replies.extend(b"NOT_FOUND\r\n");
    }
    conns.iter_mut().for_each(|conn| conn.ask(&requests, &replies));
    // The binary protocol: quiet requests and their no-op, keys of all owners.
    let binary = |node| {
        let mut conn = fleet.connect(node);
        let mut bytes = Vec::new();
        let code = |name| op(name).expect("an operation");
        keys.iter().for_each(|key| bytes.extend(store(code("SETQ"), key.as_bytes(), b"value")));
        keys.iter().for_each(|key| bytes.extend(Request::new(code("GETKQ")).key(key.as_bytes()).bytes()));
        bytes.extend(Request::new(code("NOOP")).bytes());
        conn.send(&bytes);
        for key in &keys {
            let reply = conn.read_exact(24 + 4 + key.len() + 5);
            assert_eq!(
                (&reply[28..28 + key.len()], &reply[28 + key.len()..]),
                (key.as_bytes(), &b"value"[..])
            );
        }
        assert_eq!(conn.read_exact(24)[..2], [0x81, code("NOOP")]);
    };
    (0..3).for_each(binary);
    // A flush at one node empties all.
    conns[1].ask(b"flush_all\r\n", b"OK\r\n");
    conns.iter_mut().for_each(|conn| keys.iter().for_each(|key| get(conn, key, None)));
    // The clients' last words are answered before the end.
    let mut last = fleet.connect(0);
    let sets: String = keys.iter().map(|key| format!("set {key} 0 0 1\r\nx\r\n")).collect();
    last.send(format!("{sets}quit\r\n").as_bytes());
    assert_eq!(last.read_to_end(), b"STORED\r\n".repeat(keys.len()));
    fleet.nodes.into_iter().for_each(cached_tests::upgrade::Upgradable::end);
}

#[test]
fn a_client_that_knows_nothing_of_the_ring() {
    if !is_cached() {
        return;
    }
    let fleet = Fleet::start(&NODES, &THIRDS, PATIENT);
    fleet.nodes.iter().for_each(|node| clients_wide::everyday_memcache(node.port));
}

/// Values of the largest size pass through a node that does not own them, in both directions, while
/// other clients are served.
#[test]
fn large_values_pass_both_ways() {
    if !is_cached() {
        return;
    }
    let ring = Entry::start(Start::new().args("-t 2 -m 128"), Start::new().args("-t 2 -m 128"));
    let mut conn = ring.server.connect();
    let value = |number: usize, bytes: usize| -> String {
        (0..bytes).map(|at| char::from(b'a' + ((at / 61 + number) % 26) as u8)).collect()
    };
    let sizes = [4 << 10, (4 << 10) + 1, 60_000, 64 << 10, (64 << 10) + 1, 300_000, 1_000_000];
    for (number, bytes) in sizes.into_iter().enumerate() {
        let value = value(number, bytes);
        set(&mut conn, &format!("large-{number}"), &value, "STORED\r\n");
        get(&mut conn, &format!("large-{number}"), Some(&value));
    }
    // Sent in one piece and read in another order than they arrive in: large and small, pipelined.
    let (mut requests, mut replies) = (String::new(), String::new());
    for number in 0..4 {
        let large = value(number, 700_000);
        write!(
            requests,
            "set many-{number} 0 0 {}\r\n{large}\r\nset small 0 0 1\r\n{number}\r\n",
            large.len()
        )
        .expect("text");
        write!(requests, "get many-{number} small large-0\r\n").expect("text");
        write!(replies, "STORED\r\nSTORED\r\nVALUE many-{number} 0 {}\r\n{large}\r\n", large.len())
            .expect("text");
        write!(
            replies,
            "VALUE small 0 1\r\n{number}\r\nVALUE large-0 0 4096\r\n{}\r\nEND\r\n",
            value(0, 4096)
        )
        .expect("text");
    }
    conn.ask(requests.as_bytes(), replies.as_bytes());
    // Too large for the owner: the refusal comes, the old value goes, the connection goes on.
    // differs ring-limits-of-the-owner
    conn.ask(b"set large-0 0 0 2097152\r\n", b"SERVER_ERROR object too large for cache\r\n");
    conn.send(value(0, 2 << 20).as_bytes());
    conn.ask(b"\r\nget large-0 small\r\n", b"VALUE small 0 1\r\n3\r\nEND\r\n");
    // A client that goes in the middle of a value, and one that goes in the middle of a reply.
    let mut early = ring.server.connect();
    early.send(format!("set large-1 0 0 1000000\r\n{}", value(1, 500_000)).as_bytes());
    early.reset();
    let mut early = ring.server.connect();
    early.send(b"get large-6 large-5 many-1\r\n");
    early.read_exact(100_000);
    early.reset();
    get(&mut conn, "large-6", Some(&value(6, 1_000_000)));
}

/// Reports are of the node that is asked, and datagrams reach its own keys only.
#[test]
fn a_node_answers_some_requests_by_itself() {
    if !is_cached() {
        return;
    }
    let ring = Entry::start(Start::new().args("-t 2 -U -1"), Start::new().args("-t 2"));
    let mut conn = ring.server.connect();
    set(&mut conn, "key", "value", "STORED\r\n");
    // differs ring-own-node
    assert_eq!((ring.server.stat("curr_items"), ring.owner.stat("curr_items")), (0, 1));
    assert_eq!((ring.server.stat("cmd_set"), ring.owner.stat("cmd_set")), (0, 1));
    // differs ring-datagrams
    let mut datagrams = Conn::datagrams(ring.server.udp_address()).expect("a socket");
    datagrams.ask(b"get key\r\n", b"END\r\n");
    set(&mut datagrams, "key", "other", "SERVER_ERROR node owner is away\r\n");
    get(&mut conn, "key", Some("value"));
}

/// Clients that request much and read nothing hold limited memory at the entry and at the owner,
/// and others are served.
#[test]
fn clients_that_do_not_read_hold_limited_memory() {
    if !is_cached() {
        return;
    }
    const CLIENTS: usize = 200;
    let args = "-t 2 -m 64 -c 400";
    let ring = Entry::start(Start::new().args(args), Start::new().args(args));
    let mut conn = ring.server.connect();
    set(&mut conn, "large", &"x".repeat(900_000), "STORED\r\n");
    set(&mut conn, "middle", &"y".repeat(30_000), "STORED\r\n");
    let before = (ring.server.rss_kib(), ring.owner.rss_kib());
    let requests = "get large\r\nget middle\r\n".repeat(200);
    let stuck: Vec<Conn> = (0..CLIENTS)
        .map(|_| {
            let mut conn = ring.server.connect();
            conn.send(requests.as_bytes());
            conn
        })
        .collect();
    // Another client is served all the time.
    for number in 0..200 {
        let value = number.to_string();
        set(&mut conn, "other", &value, "STORED\r\n");
        get(&mut conn, "other", Some(&value));
    }
    // The defaults allow 64 KiB for each connection.
    let allowed = (400 * 64 + (64 << 10)) as u64;
    for (name, before, server) in [("entry", before.0, &ring.server), ("owner", before.1, &ring.owner)] {
        let grown = server.rss_kib().saturating_sub(before);
        println!("{name}: grown by {grown} KiB of {allowed} with {CLIENTS} clients that do not read");
        assert!(grown <= allowed, "the {name} has grown by {grown} KiB, more than {allowed}");
    }
    drop(stuck);
    get(&mut conn, "other", Some("199"));
}
