//! `-m` limits the items under any load, `-M` refuses instead of evicting, `-I` sets the largest
//! value; resident memory stays below the printed sum of all limits plus 32 MiB. `abuse_memory`
//! contains the attacks on memory.

use cached_tests::conn::Conn;
use cached_tests::frame::{Request, Response, op, store};
use cached_tests::pattern::Captures;
use cached_tests::program::Flavour;
use cached_tests::server::Server;

/// The memory that a server may use beyond the sum of its limits.
pub(crate) const BEYOND_KIB: u64 = 32 << 10;

/// Returns the sum of all limits that the start prints, in KiB. memcached prints no limits, so the
/// result is an estimate above `-m`.
fn limit_kib(server: &Server, items_mib: u64) -> u64 {
    if server.flavour == Flavour::Memcached {
        return (items_mib + 64) << 10;
    }
    printed_kib(&server.log())
}

/// Returns the sum that is printed in a log, in KiB.
pub(crate) fn printed_kib(log: &str) -> u64 {
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

/// Values of several sizes are stored one size after another, each several times the memory: every
/// set succeeds, the newest values are present, and the memory moves to the new sizes.
#[test]
fn sizes_shift() {
    const ITEMS_MIB: u64 = 32;
    let mut server = Server::start(&format!("-m {ITEMS_MIB}"));
    let mut conn = server.connect();
    for (name, count, len) in [
        ("tiny", 500_000, 10),
        ("small", 200_000, 200),
        ("page", 20_000, 4_000),
        ("large", 200, 500_000),
        ("again", 400_000, 100),
    ] {
        fill(&mut conn, name, count, len);
        // By now they occupy at least half of the memory.
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

/// With `-M`, values that do not fit are refused, stored values stay, and a deletion frees space.
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
    // The value of a refused set was discarded, so requests and replies stay in step, also in
    // binary.
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

/// Values far above a megabyte are returned as stored, also after other values have replaced them.
#[test]
fn values_of_many_megabytes() {
    const LEN: usize = 100 << 20;
    let mut server = Server::start("-m 512 -I 128m");
    let mut conn = server.connect();
    // The bytes vary, so that a misplaced piece is detected.
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
