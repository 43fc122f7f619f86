//! The server's statistics beyond counters: predicted miss ratios, reasons of misses, hot keys,
//! shapes of items, slow requests.

use cached_tests::conn::Conn;
use cached_tests::server::Server;
use std::collections::BTreeMap;

/// Returns the values of a report by name.
fn report(conn: &mut Conn, name: &str) -> BTreeMap<String, String> {
    conn.send(format!("stats {name}\r\n").as_bytes());
    let mut values = BTreeMap::new();
    loop {
        let line = String::from_utf8(conn.read_line()).unwrap();
        let line = line.trim_end();
        if line == "END" {
            return values;
        }
        let mut words = line.splitn(3, ' ');
        assert_eq!(words.next(), Some("STAT"), "{line}");
        values.insert(words.next().unwrap().to_owned(), words.next().unwrap_or_default().to_owned());
    }
}

fn number(values: &BTreeMap<String, String>, name: &str) -> f64 {
    values.get(name).unwrap_or_else(|| panic!("no {name} in {values:?}")).parse().unwrap()
}

fn set(conn: &mut Conn, key: &str, exptime: u32, bytes: usize) {
    let value = "x".repeat(bytes);
    conn.ask(format!("set {key} 0 {exptime} {bytes}\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
}

fn miss(conn: &mut Conn, key: &str) {
    conn.ask(format!("get {key}\r\n").as_bytes(), b"END\r\n");
}

/// Starts a server with these flags that samples all keys.
fn start(flags: &str) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cached.toml");
    std::fs::write(&path, "[insight]\nsampled_share = 1.0\n").unwrap();
    // The server reads the file before it listens.
    Server::start(&format!("--config {} {flags}", path.display()))
}

#[test]
fn misses_are_told_apart_by_their_reason() {
    let server = start("--debug-clock");
    let mut conn = server.connect();
    for key in ["deleted", "flushed", "never:1"] {
        if key != "never:1" {
            set(&mut conn, key, 0, 3);
        }
    }
    set(&mut conn, "expired", 10, 3);
    conn.ask(b"delete deleted\r\n", b"DELETED\r\n");
    conn.ask(b"debugtime 20\r\n", b"OK\r\n");
    miss(&mut conn, "expired");
    miss(&mut conn, "deleted");
    miss(&mut conn, "never:1");
    miss(&mut conn, "never:2");
    // The report knows of the item before the flush, which the server may remove before it is missed.
    report(&mut conn, "misses");
    conn.ask(b"flush_all\r\n", b"OK\r\n");
    miss(&mut conn, "flushed");
    let misses = report(&mut conn, "misses");
    let all: Vec<f64> = ["never_seen", "expired", "evicted", "flushed", "deleted"]
        .iter()
        .map(|reason| number(&misses, reason))
        .collect();
    assert_eq!(all, [2.0, 1.0, 0.0, 1.0, 1.0], "{misses:?}");
}

#[test]
fn evicted_keys_are_counted_and_more_memory_is_predicted_to_keep_them() {
    let server = start("-m 8");
    let mut conn = server.connect();
    // The load passes twice over 12 MiB of items in 8 MiB of memory. It stores missed items, as a
    // client does; the others stay.
    let value = "x".repeat(1000);
    for batch in (0..24_000).collect::<Vec<_>>().chunks(200) {
        let mut requests = Vec::new();
        for n in batch {
            let key = format!("page:{}", n % 12_000);
            let pair = format!("get {key}\r\nadd {key} 0 0 1000 noreply\r\n{value}\r\n");
            requests.extend_from_slice(pair.as_bytes());
        }
        conn.send(&requests);
        conn.skip_until_seen(b"END\r\n", batch.len());
        // This prevents full sample queues, however slow the server's own thread is.
        report(&mut conn, "misses");
    }
    let misses = report(&mut conn, "misses");
    assert!(number(&misses, "evicted") > 3000.0, "{misses:?}");
    assert!(number(&misses, "never_seen") >= 11_000.0, "{misses:?}");
    let curve = report(&mut conn, "mrc");
    // A sample is dropped if the server's own thread is reading the queue at that moment.
    let dropped = number(&curve, "items:dropped_samples");
    assert!(dropped <= 50.0 && number(&curve, "items:requests") >= 24_000.0 - dropped, "{curve:?}");
    let of = |factor: &str| number(&curve, &format!("items:miss_ratio_at_{factor}"));
    assert!(of("0.5") > 0.75 && of("2") < 0.55, "{curve:?}");
    assert!((of("1") - number(&curve, "items:counted_miss_ratio")).abs() < 0.05, "{curve:?}");
    assert!(number(&curve, "items:page:entry_bytes") > 6e6, "{curve:?}");
    let shape = report(&mut conn, "shape");
    assert!(number(&shape, "sampled") > 5000.0 && number(&shape, "size_bytes:2048") > 5000.0, "{shape:?}");
    assert_eq!(number(&shape, "without_expiry"), number(&shape, "sampled"));
}

#[test]
fn hot_keys_and_prefixes_are_found_in_all_protocols_that_get() {
    let server = Server::start("");
    let mut conn = server.connect();
    set(&mut conn, "user:1", 0, 1);
    let mut expected = Vec::new();
    let mut requests = Vec::new();
    for n in 0..24_000 {
        if n % 2 == 0 {
            requests.extend_from_slice(b"get user:1\r\n");
            expected.extend_from_slice(b"VALUE user:1 0 1\r\nx\r\nEND\r\n");
        } else {
            requests.extend_from_slice(format!("get cold:{n}\r\n").as_bytes());
            expected.extend_from_slice(b"END\r\n");
        }
        if n % 100 == 99 {
            conn.ask(&requests, &expected);
            requests.clear();
            expected.clear();
        }
    }
    let hot = report(&mut conn, "hot");
    assert!(number(&hot, "sampled") > 60.0, "{hot:?}");
    assert_eq!(hot["key:1:name"], "user:1");
    assert!((0.3..0.7).contains(&number(&hot, "key:1:share")), "{hot:?}");
    let prefixes = [&hot["prefix:1:name"], &hot["prefix:2:name"]];
    assert!(prefixes.contains(&&"user".to_owned()) && prefixes.contains(&&"cold".to_owned()), "{hot:?}");
    assert!(number(&hot, "key:1:per_sec") > 0.0);
}

#[test]
fn without_dump_commands_no_keys_are_shown_and_without_insight_nothing_is_sampled() {
    let server = Server::start("-X");
    let mut conn = server.connect();
    conn.ask(b"stats hot\r\n", b"ERROR\r\n");
    conn.ask(b"stats slow\r\n", b"ERROR\r\n");
    assert!(!report(&mut conn, "mrc").is_empty());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cached.toml");
    std::fs::write(&path, "[insight]\nenabled = false\n").unwrap();
    let server = Server::start(&format!("--config {}", path.display()));
    let mut conn = server.connect();
    miss(&mut conn, "k");
    assert!(report(&mut conn, "mrc").is_empty() && report(&mut conn, "misses").is_empty());
    assert_eq!(number(&report(&mut conn, "hot"), "sampled"), 0.0);
}
