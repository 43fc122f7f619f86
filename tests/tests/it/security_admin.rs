//! Rows of the security history about administration: dumps, watchers, prefix statistics.

use cached_tests::abuse::{Memory, Witness};
use cached_tests::frame::{CasField, Request, Response, op, store};
use cached_tests::pattern::Captures;
use cached_tests::server::Server;
use std::time::Duration;

/// 7eeac6e9a: a client requests a dump and does not read it. The memory is limited, and other
/// clients are served.
#[test]
fn an_unread_dump() {
    const TEST: &str = "an_unread_dump";
    const ITEMS: usize = 200_000;
    let mut server = Server::start("-m 128");
    let mut conn = server.connect();
    let mut sets = Vec::new();
    for index in 0..ITEMS {
        sets.extend(format!("set a_key_of_some_length_{index} 0 0 1 noreply\r\nx\r\n").bytes());
    }
    sets.extend(b"mn\r\n");
    conn.ask(&sets, b"MN\r\n");
    let mut witness = Witness::new(&server);
    let memory = Memory::of(&server);
    let mut readers = Vec::new();
    for what in ["metadump all", "mgdump hash", "metadump hash"] {
        let mut reader = server.connect();
        reader.send(format!("lru_crawler {what}\r\n").as_bytes());
        readers.push(reader);
        for _ in 0..20 {
            witness.check_store(TEST);
        }
    }
    memory.assert_grew_at_most(&server, 48, TEST);
    witness.report(TEST);
    drop(readers);
    server.assert_serves(TEST);
}

/// A dump that is read lists every key once.
#[test]
fn a_dump_tells_every_key() {
    const ITEMS: usize = 5_000;
    let server = Server::start("");
    let mut conn = server.connect();
    let mut sets = Vec::new();
    for index in 0..ITEMS {
        sets.extend(format!("set key{index} 0 0 1 noreply\r\nx\r\n").bytes());
    }
    sets.extend(b"mn\r\n");
    conn.ask(&sets, b"MN\r\n");
    let mut keys = std::collections::BTreeSet::new();
    let mut dump = server.connect();
    dump.send(b"lru_crawler metadump all\r\n");
    loop {
        let line = String::from_utf8_lossy(&dump.read_line()).into_owned();
        match line.split(' ').next() {
            Some("END") => break,
            Some("OK") => {}
            Some(word) => assert!(keys.insert(word.to_owned()), "{word} twice"),
            None => panic!("an empty line"),
        }
    }
    assert_eq!(keys.len(), ITEMS);
}

/// 32ea7d8b5: a client watches mutations while a binary SET fails because it is too large.
#[test]
fn a_watcher_and_a_failing_set() {
    let mut server = Server::start("");
    let mut watcher = server.connect();
    watcher.ask(b"watch mutations fetchers evictions\r\n", b"OK\r\n");
    let mut conn = server.connect();
    conn.send(&store(op("SET").unwrap(), b"k", &vec![b'x'; 2_000_000]));
    let too_large = Response::error(op("SET").unwrap(), 0x03).pattern();
    conn.expect_pattern(&too_large, &mut Captures::default(), "a SET that is too large");
    conn.send(&store(op("SET").unwrap(), b"k", b"small"));
    let stored = Response { cas: CasField::Some(None), ..Response::new(op("SET").unwrap()) }.pattern();
    conn.expect_pattern(&stored, &mut Captures::default(), "a SET after it");
    conn.send(&Request::new(op("GET").unwrap()).key(b"none").bytes());
    server.assert_serves("a failing SET beside a watcher");
    println!("the watcher saw {} bytes", watcher.read_until_quiet(Duration::from_millis(300)).len());
}

/// e7793811f and others: watchers connect and disconnect under load.
#[test]
fn watchers_under_load() {
    let mut server = Server::start("");
    let mut conn = server.connect();
    for round in 0..100 {
        let mut watcher = server.connect();
        watcher.ask(b"watch fetchers mutations\r\n", b"OK\r\n");
        conn.ask(&b"get a b c\r\n".repeat(100), &b"END\r\n".repeat(100));
        if round % 2 == 0 {
            watcher.reset();
        }
    }
    server.assert_serves("watchers");
}

/// 76dc58c6b: prefix statistics are limited even if every prefix is new.
#[test]
fn ever_new_prefixes() {
    const TEST: &str = "ever_new_prefixes";
    const PREFIXES: usize = 200_000;
    let mut server = Server::start("");
    let mut conn = server.connect();
    conn.ask(b"stats detail on\r\n", b"OK\r\n");
    let memory = Memory::of(&server);
    let mut gets = Vec::new();
    for index in 0..PREFIXES {
        gets.extend(format!("delete prefix{index}:k noreply\r\n").bytes());
    }
    gets.extend(b"mn\r\n");
    conn.ask(&gets, b"MN\r\n");
    memory.assert_grew_at_most(&server, 32, TEST);
    server.assert_serves(TEST);
}
