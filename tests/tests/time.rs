//! Events that need seconds to pass: items that expire, a flush with a delay. Nothing sleeps for them: the
//! tests repeat a request until the event has happened, with a deadline, and check that it did not happen too
//! early.

use cached_tests::conn::Conn;
use cached_tests::server::Server;
use std::time::{Duration, Instant};

/// How long an event that is due in a few seconds may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn items_expire() {
    let server = Server::start("");
    let mut conn = server.connect();
    let start = Instant::now();
    conn.ask(
        b"set two 0 2 1\r\nx\r\nset long 0 1000 1\r\ny\r\nset never 0 0 1\r\nz\r\n",
        b"STORED\r\nSTORED\r\nSTORED\r\n",
    );
    conn.ask(b"ms meta 1 T2\r\nm\r\n", b"HD\r\n");
    let gone = wait_for_miss(&mut conn, "two", start);
    println!("an item of 2 seconds was gone after {gone:?}");
    // The clock ticks once a second, so one second may be lost, never more.
    assert!(gone >= Duration::from_millis(900), "expired after {gone:?}");
    wait_for_miss(&mut conn, "meta", start);
    conn.ask(b"get long\r\n", b"VALUE long 0 1\r\ny\r\nEND\r\n");
    conn.ask(b"get never\r\n", b"VALUE never 0 1\r\nz\r\nEND\r\n");
    conn.ask(b"add two 0 0 1\r\nn\r\nget two\r\n", b"STORED\r\nVALUE two 0 1\r\nn\r\nEND\r\n");
}

#[test]
fn an_absolute_time_counts() {
    let server = Server::start("");
    let mut conn = server.connect();
    let start = Instant::now();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    conn.ask(format!("set k 0 {} 1\r\nx\r\n", now + 3).as_bytes(), b"STORED\r\n");
    conn.ask(format!("set far 0 {} 1\r\nx\r\n", now + 3000).as_bytes(), b"STORED\r\n");
    let gone = wait_for_miss(&mut conn, "k", start);
    assert!(gone >= Duration::from_millis(900), "expired after {gone:?}");
    conn.ask(b"get far\r\n", b"VALUE far 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn a_touch_prolongs() {
    let server = Server::start("");
    let mut conn = server.connect();
    let start = Instant::now();
    // In one write, so that the touch is not late, however busy the machine is.
    conn.ask(
        b"set k 0 3 1\r\nx\r\ntouch k 1000\r\nset other 0 3 1\r\nx\r\n",
        b"STORED\r\nTOUCHED\r\nSTORED\r\n",
    );
    wait_for_miss(&mut conn, "other", start);
    conn.ask(b"get k\r\n", b"VALUE k 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn a_delayed_flush_comes_later() {
    let server = Server::start("");
    let mut conn = server.connect();
    let start = Instant::now();
    conn.ask(b"set k 0 0 1\r\nx\r\n", b"STORED\r\n");
    conn.ask(b"flush_all 3\r\n", b"OK\r\n");
    let gone = wait_for_miss(&mut conn, "k", start);
    println!("flush_all 3 took effect after {gone:?}");
    assert!(gone >= Duration::from_millis(900), "flushed after {gone:?}");
    // Items stored within the second of the flush may be flushed; after that second they stay.
    loop {
        conn.ask(b"set k 0 0 1\r\ny\r\n", b"STORED\r\n");
        conn.send(b"mg k v\r\n");
        if conn.read_line() != b"EN" {
            break;
        }
        assert!(start.elapsed() < DEADLINE, "nothing can be stored {:?} after the flush", start.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Repeats a request until the key is absent; returns how long that took from `start`.
fn wait_for_miss(conn: &mut Conn, key: &str, start: Instant) -> Duration {
    loop {
        conn.send(format!("get {key}\r\n").as_bytes());
        let line = conn.read_line();
        if line == b"END" {
            return start.elapsed();
        }
        conn.read_line();
        conn.read_line();
        assert!(start.elapsed() < DEADLINE, "{key} is still there after {:?}", start.elapsed());
        // Only so as not to keep a core busy while waiting.
        std::thread::sleep(Duration::from_millis(20));
    }
}
