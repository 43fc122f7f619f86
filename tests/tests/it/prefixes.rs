//! Features that memcached does not have: prefix flushes, counts by prefix and hot keys from a
//! sample, and the reply to clients with auto-discovery.

use cached_tests::conn::Conn;
use cached_tests::daemon::{Daemon, TOKEN, wait_for};
use cached_tests::http;
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Server, Start};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

/// Returns the values of a report by name.
fn report(conn: &mut Conn, name: &str) -> BTreeMap<String, String> {
    conn.send(format!("stats {name}\r\n").as_bytes());
    let mut values = BTreeMap::new();
    loop {
        let line = String::from_utf8(conn.read_line()).expect("text");
        match line.trim_end().splitn(3, ' ').collect::<Vec<_>>()[..] {
            ["END"] => return values,
            ["STAT", name, value] => drop(values.insert(name.to_owned(), value.to_owned())),
            _ => panic!("{line}"),
        }
    }
}

fn number(values: &BTreeMap<String, String>, name: &str) -> f64 {
    values.get(name).unwrap_or_else(|| panic!("no {name} in {values:?}")).parse().expect("a number")
}

/// Stores `items` items of 100 bytes.
fn fill(conn: &mut Conn, prefix: &str, items: usize) {
    let value = "v".repeat(100);
    for first in (0..items).step_by(500) {
        let keys = first..(first + 500).min(items);
        let batch: String =
            keys.map(|number| format!("set {prefix}{number} 0 0 100 noreply\r\n{value}\r\n")).collect();
        conn.ask(format!("{batch}mn\r\n").as_bytes(), b"MN\r\n");
    }
}

/// Waits until all flushed items have been removed; returns the report.
fn swept(conn: &mut Conn) -> BTreeMap<String, String> {
    wait_for("the sweep", || {
        let values = report(conn, "flush_prefix");
        (number(&values, "pending") == 0.0).then_some(values)
    })
}

#[test]
fn the_memory_of_a_prefix_comes_back() {
    if !is_cached() {
        return;
    }
    // Without eviction, the space can only come from the flushed items.
    let server = Server::start("-M -m 16");
    let mut conn = server.connect();
    let value = "v".repeat(50_000);
    let set = |conn: &mut Conn, key: &str| {
        conn.send(format!("set {key} 0 0 50000\r\n{value}\r\n").as_bytes());
        conn.read_line() == b"STORED"
    };
    fill(&mut conn, "small:", 10_000);
    let first = (0..).take_while(|number| set(&mut conn, &format!("a:{number}"))).count();
    assert!(first > 200, "{first} of 50 kB in 16 MiB");
    assert!(!set(&mut conn, "b:0"));
    conn.ask(b"flush_prefix a:\r\nget a:1\r\nget a:100\r\n", b"OK\r\nEND\r\nEND\r\n");
    let values = swept(&mut conn);
    assert_eq!((number(&values, "flushes"), number(&values, "sweeps")), (1.0, 1.0));
    assert!(number(&values, "bytes_removed") > first as f64 * 50_000.0, "{values:?}");
    // Whether a miss counts as flushed depends on whether the sweep has already removed the item.
    assert_eq!((server.stat("curr_items"), server.stat("get_misses")), (10_000, 2));
    assert!(server.stat("get_flushed") <= 2);
    let again = (0..first - 20).filter(|number| set(&mut conn, &format!("b:{number}"))).count();
    assert_eq!(again, first - 20);
    conn.send(b"get small:77\r\n");
    assert_eq!(conn.read_line(), b"VALUE small:77 0 100");
}

/// Several clients store, flush and read items of their own while the sweep runs.
#[test]
fn clients_that_flush_their_prefixes_leave_each_other_alone() {
    if !is_cached() {
        return;
    }
    let server = Server::start("-t 2 -m 64");
    fill(&mut server.connect(), "other:", 20_000);
    std::thread::scope(|scope| {
        for client in 0..3 {
            let server = &server;
            scope.spawn(move || {
                let mut conn = server.connect();
                for round in 0..40 {
                    let own = format!("client{client}:");
                    fill(&mut conn, &own, 300);
                    conn.ask(format!("flush_prefix {own}\r\n").as_bytes(), b"OK\r\n");
                    // Some items are stored again, before or after the sweep.
                    let anew = || (round % 7..300).step_by(7);
                    let sets: String =
                        anew().map(|number| format!("set {own}{number} 0 0 2\r\n{round:02}\r\n")).collect();
                    conn.ask(sets.as_bytes(), "STORED\r\n".repeat(anew().count()).as_bytes());
                    let (mut gets, mut expected) = (String::new(), String::new());
                    for number in 0..300 {
                        let key = format!("{own}{number}");
                        gets.push_str(&format!("get {key}\r\n"));
                        if number % 7 == round % 7 {
                            expected.push_str(&format!("VALUE {key} 0 2\r\n{round:02}\r\n"));
                        }
                        expected.push_str("END\r\n");
                    }
                    conn.ask(gets.as_bytes(), expected.as_bytes());
                }
            });
        }
    });
    let mut conn = server.connect();
    let values = swept(&mut conn);
    assert_eq!((number(&values, "flushes"), number(&values, "refused")), (120.0, 0.0));
    for first in (0..20_000).step_by(500) {
        let gets: String = (first..first + 500).map(|number| format!("mg other:{number}\r\n")).collect();
        conn.ask(gets.as_bytes(), "HD\r\n".repeat(500).as_bytes());
    }
}

#[test]
fn a_thousand_flushes_at_once_are_answered_each() {
    if !is_cached() {
        return;
    }
    let mut server = Server::start("");
    let mut conn = server.connect();
    fill(&mut conn, "p", 1_000);
    let all: String = (0..1_000).map(|number| format!("flush_prefix p{number}\r\n")).collect();
    conn.send(all.as_bytes());
    let replies: Vec<Vec<u8>> = (0..1_000).map(|_| conn.read_line()).collect();
    let (done, refused): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| **reply == b"OK");
    assert!(refused.iter().all(|reply| **reply == b"SERVER_ERROR too many flushes of prefixes are pending"));
    assert!(done.len() >= 256, "{} of 1000", done.len());
    for (number, _) in replies.iter().enumerate().filter(|(_, reply)| **reply == b"OK") {
        conn.ask(format!("get p{number}\r\n").as_bytes(), b"END\r\n");
    }
    let values = swept(&mut conn);
    assert_eq!(number(&values, "flushes") as usize, done.len());
    assert_eq!(number(&values, "refused") as usize, refused.len());
    // The same prefix, flushed repeatedly, counts once.
    conn.send("flush_prefix q\r\n".repeat(1_000).as_bytes());
    (0..1_000).for_each(|_| conn.expect(b"OK\r\n", "the same prefix"));
    server.assert_serves("a thousand flushes");
}

/// A prefix flush also removes items that were stored through the binary protocol, and can be
/// combined with `flush_all`.
#[test]
fn a_prefix_ends_for_all_protocols() {
    if !is_cached() {
        return;
    }
    let server = Server::start("");
    let mut text = server.connect();
    fill(&mut text, "a:", 10);
    let get = |key: &str| {
        let length = u8::try_from(key.len()).expect("short");
        let mut frame = vec![0x80, 0, 0, length];
        frame.extend([0, 0, 0, 0, 0, 0, 0, length]);
        frame.extend([0; 12]);
        frame.extend(key.as_bytes());
        frame
    };
    let mut binary = server.connect();
    let mut status = |key: &str| {
        binary.send(&get(key));
        let header = binary.read_exact(24);
        let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        binary.read_exact(body as usize);
        u16::from_be_bytes([header[6], header[7]])
    };
    assert_eq!(status("a:1"), 0);
    text.ask(b"flush_prefix a:\r\nflush_all\r\nflush_prefix a:\r\n", b"OK\r\nOK\r\nOK\r\n");
    assert_eq!(status("a:1"), 1);
    text.ask(b"ms a:1 1\r\nx\r\n", b"HD\r\n");
    assert_eq!(status("a:1"), 0);
    swept(&mut text);
    assert_eq!((status("a:1"), status("a:2")), (0, 1));
    text.ask(b"gat 0 a:1 a:2\r\n", b"VALUE a:1 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn an_operator_flushes_a_prefix_and_the_log_names_who() {
    let daemon = Daemon::start("cached", |_| "[memcached]\nflush_command = false\n".into());
    let mut conn = UnixStream::connect(daemon.path("memcached")).expect("a connection");
    let mut ask = |request: &[u8], expected: &[u8]| {
        conn.write_all(request).expect("it is sent");
        let mut reply = vec![0; expected.len()];
        conn.read_exact(&mut reply).expect("a reply");
        assert_eq!(String::from_utf8_lossy(&reply), String::from_utf8_lossy(expected));
    };
    ask(b"set a:1 0 0 1\r\nx\r\nset b:1 0 0 1\r\nx\r\n", b"STORED\r\nSTORED\r\n");
    ask(b"flush_prefix a:\r\n", b"CLIENT_ERROR flush_prefix not allowed\r\n");
    let (code, shown) = daemon.cachectl(&["flush-prefix", "a:"]);
    assert_eq!((code, shown.contains("\"a:\"")), (0, true), "{shown}");
    ask(b"get a:1 b:1\r\n", b"VALUE b:1 0 1\r\nx\r\nEND\r\n");
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("the admin listener flushes a prefix"));
    assert!(line.is_some_and(|line| line.contains("a:") && line.contains("127.0.0.1:")), "{log}");
    assert_eq!(daemon.metric("cached_prefix_flushes_total"), Some(1.0));
    // An item is counted when it is removed, before the sweep has passed the rest of the index.
    wait_for("the sweep", || (daemon.metric("cached_prefix_flushes_pending")? == 0.0).then_some(()));
    assert_eq!(daemon.metric("cached_prefix_flush_items_removed_total"), Some(1.0));
    let (code, shown) = daemon.cachectl(&["flush-prefix", &"k".repeat(251)]);
    assert_eq!((code != 0, shown.contains("a prefix has 1 to 250 bytes")), (true, true), "{shown}");
    // The first request has no token, the second one an invalid body.
    assert_eq!(http::post(&daemon.admin, "/flush-prefix", "", "{\"prefix\": \"b:\"}").0, 401);
    let token = &format!("Authorization: Bearer {TOKEN}\r\n");
    for body in ["", "{}", "{\"prefix\": 1}", "{\"prefix\": \"b:\", \"delay\": 10}", "[]"] {
        assert_eq!(http::post(&daemon.admin, "/flush-prefix", token, body).0, 400, "{body}");
    }
    ask(b"get b:1\r\n", b"VALUE b:1 0 1\r\nx\r\nEND\r\n");
}

/// One prefix gets many requests, of which three in four miss, and another one gets a few.
#[test]
fn hot_keys_and_prefixes_are_reported_in_both_protocols() {
    if !is_cached() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cached.toml");
    std::fs::write(&path, "[insight]\nsampled_share = 1.0\n").expect("a file");
    let server = Server::start(&format!("--config {} -t 1", path.display()));
    let mut conn = server.connect();
    fill(&mut conn, "hot:", 100);
    for _ in 0..50 {
        for first in (0..400).step_by(50) {
            let gets: String = (first..first + 50).map(|number| format!("mg hot:{number}\r\n")).collect();
            let expected: String =
                (first..first + 50).map(|n| if n < 100 { "HD\r\n" } else { "EN\r\n" }).collect();
            conn.ask(gets.as_bytes(), expected.as_bytes());
        }
        conn.ask(b"mg cold:1\r\n", b"EN\r\n");
    }
    // The first samples that the server has looked at may be hits only.
    let values = wait_for("samples", || {
        let values = report(&mut conn, "hot");
        let ratio: f64 = values.get("prefix:1:hit_ratio")?.parse().expect("a number");
        ((ratio - 0.25).abs() < 0.05).then_some(values)
    });
    assert_eq!(values["prefix:1:name"], "hot");
    assert!(number(&values, "prefix:1:share") > 0.9, "{values:?}");
    // A hundred items have 100 bytes each, headers included.
    assert!((10_000.0..20_000.0).contains(&number(&values, "prefix:1:item_bytes")), "{values:?}");
    // The binary protocol returns the same report.
    let mut binary = server.connect();
    binary.send(&[&[0x80, 0x10, 0, 3, 0, 0, 0, 0, 0, 0, 0, 3][..], &[0; 12], b"hot"].concat());
    let mut names = Vec::new();
    loop {
        let header = binary.read_exact(24);
        assert_eq!(header[6..8], [0, 0]);
        let key = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        let body = binary.read_exact(body as usize);
        if key == 0 {
            break;
        }
        names.push(String::from_utf8_lossy(&body[..key]).into_owned());
    }
    for name in
        ["sampled", "key:1:name", "key:1:share", "prefix:1:name", "prefix:1:hit_ratio", "prefix:1:item_bytes"]
    {
        assert!(names.iter().any(|known| known == name), "no {name} in {names:?}");
    }
}

/// Returns the version and the node of the reply.
fn cluster(conn: &mut Conn) -> (u64, String) {
    conn.send(b"config get cluster\r\n");
    let head = String::from_utf8(conn.read_line()).expect("text");
    let length: usize =
        head.trim_end().strip_prefix("CONFIG cluster 0 ").expect(&head).parse().expect("a length");
    let nodes = String::from_utf8(conn.read_exact(length)).expect("text");
    conn.expect(b"\r\nEND\r\n", "the end");
    let [version, node, ""] = nodes.split('\n').collect::<Vec<_>>()[..] else { panic!("{nodes:?}") };
    (version.parse().expect("a number"), node.to_owned())
}

#[test]
fn clients_that_look_for_a_cluster_find_this_server() {
    if !is_cached() {
        return;
    }
    let server = Server::start("-o cluster_discovery");
    let mut conn = server.connect();
    let (version, node) = cluster(&mut conn);
    assert_eq!(node, format!("127.0.0.1|127.0.0.1|{}", server.port()));
    assert!(version > 1_600_000_000);
    assert_eq!(cluster(&mut server.connect()), (version, node), "the same for every client");
    conn.ask(b"config get other\r\nconfig set cluster 1\r\nconfig get\r\n", b"ERROR\r\nERROR\r\nERROR\r\n");
    // With two listeners, the reply names the one that the client reached, which is not the first.
    let server = Server::start("-l 127.0.0.2 -o cluster_discovery=reached");
    assert_eq!(cluster(&mut server.connect()).1, format!("127.0.0.1|127.0.0.1|{}", server.port()));
    let server = Server::start("-o cluster_discovery=cache.example:11299");
    assert_eq!(cluster(&mut server.connect()).1, "cache.example|127.0.0.1|11299");
    let server = Server::start("-o cluster_discovery=[fd00::1]:11299");
    assert_eq!(cluster(&mut server.connect()).1, "fd00::1|fd00::1|11299");
    // A client of the unix socket has not reached an address that is valid for other clients.
    let server = Start::new().unix().args("-o cluster_discovery").start();
    let error = b"SERVER_ERROR no address is known to the client: set cluster_discovery to HOST:PORT\r\n";
    server.connect().ask(b"config get cluster\r\n", error);
    let server = Start::new().unix().args("-o cluster_discovery=10.0.0.1:11211").start();
    assert_eq!(cluster(&mut server.connect()).1, "10.0.0.1|10.0.0.1|11211");
    for wrong in ["on", "host", "host:0"] {
        let (status, log) = Start::new().args(&format!("-o cluster_discovery={wrong}")).run_to_exit();
        assert!(!status.success());
        let line = format!(
            "cluster_discovery is \"{wrong}\"; it must be off, reached, or an address of this server: HOST:PORT"
        );
        assert!(log.contains(&line), "{log}");
    }
}
