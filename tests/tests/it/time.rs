//! Events that need seconds to pass: items that expire, a delayed flush. The tests neither sleep
//! for nor time these events: they repeat a request until the event has happened, with a deadline,
//! and compare with the server's own clock. That clock advances once a second; it may be late on a
//! busy machine, and is never early.

use cached_tests::conn::{Conn, DEADLINE};
use cached_tests::server::Server;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Returns the Unix time by the server's clock.
fn time(conn: &mut Conn) -> u64 {
    conn.send(b"stats\r\n");
    let mut found = None;
    loop {
        let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
        if line == "END" {
            break;
        }
        found = line.strip_prefix("STAT time ").and_then(|number| number.parse().ok()).or(found);
    }
    let time = found.expect("a time");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs();
    // The difference is less than a second, because memcached rounds.
    assert!(time <= now + 1, "the server's clock is ahead: it shows {time}, now it is {now}");
    time
}

/// Performs an action, and returns the times that the server's clock shows before and after it.
fn timed(conn: &mut Conn, act: impl FnOnce(&mut Conn)) -> [u64; 2] {
    let before = time(conn);
    act(conn);
    [before, time(conn)]
}

/// Repeats a request until the key is absent. The absence must begin in a second between these two.
fn expect_gone(conn: &mut Conn, key: &str, from: u64, to: u64) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let mut is_gone = false;
        let [before, after] = timed(conn, |conn| {
            conn.send(format!("get {key}\r\n").as_bytes());
            is_gone = conn.read_line() == b"END";
            if !is_gone {
                conn.read_line();
                conn.read_line();
            }
        });
        if is_gone {
            assert!(after >= from, "{key} is gone at {after}, not from {from} on");
            return;
        }
        assert!(before < to, "{key} is still there at {before}");
        assert!(Instant::now() < deadline, "the clock stands still");
        // The sleep only prevents a busy loop.
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn items_expire() {
    let server = Server::start("");
    let mut conn = server.connect();
    let [before, after] = timed(&mut conn, |conn| {
        conn.ask(
            b"set two 0 2 1\r\nx\r\nset long 0 1000 1\r\ny\r\nset never 0 0 1\r\nz\r\n",
            b"STORED\r\nSTORED\r\nSTORED\r\n",
        );
        conn.ask(b"ms meta 1 T2\r\nm\r\n", b"HD\r\n");
    });
    expect_gone(&mut conn, "two", before + 2, after + 2);
    expect_gone(&mut conn, "meta", before + 2, after + 2);
    conn.ask(b"get long\r\n", b"VALUE long 0 1\r\ny\r\nEND\r\n");
    conn.ask(b"get never\r\n", b"VALUE never 0 1\r\nz\r\nEND\r\n");
    conn.ask(b"add two 0 0 1\r\nn\r\nget two\r\n", b"STORED\r\nVALUE two 0 1\r\nn\r\nEND\r\n");
}

#[test]
fn an_absolute_time_counts() {
    let server = Server::start("");
    let mut conn = server.connect();
    let now = time(&mut conn);
    conn.ask(format!("set k 0 {} 1\r\nx\r\n", now + 3).as_bytes(), b"STORED\r\n");
    conn.ask(format!("set far 0 {} 1\r\nx\r\n", now + 3000).as_bytes(), b"STORED\r\n");
    expect_gone(&mut conn, "k", now + 3, now + 3);
    conn.ask(b"get far\r\n", b"VALUE far 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn a_touch_prolongs() {
    let server = Server::start("");
    let mut conn = server.connect();
    let [before, after] = timed(&mut conn, |conn| {
        // Both commands are in one write, so that the touch is not late even on a busy machine.
        conn.ask(
            b"set k 0 3 1\r\nx\r\ntouch k 1000\r\nset other 0 3 1\r\nx\r\n",
            b"STORED\r\nTOUCHED\r\nSTORED\r\n",
        );
    });
    expect_gone(&mut conn, "other", before + 3, after + 3);
    conn.ask(b"get k\r\n", b"VALUE k 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn a_delayed_flush_comes_later() {
    let server = Server::start("");
    let mut conn = server.connect();
    conn.ask(b"set k 0 0 1\r\nx\r\n", b"STORED\r\n");
    let [before, after] = timed(&mut conn, |conn| conn.ask(b"flush_all 3\r\n", b"OK\r\n"));
    // As in memcached, the expiry is within the last second.
    expect_gone(&mut conn, "k", before + 2, after + 3);
    // Items stored within the second of the flush may be flushed; after that second they stay.
    let deadline = Instant::now() + DEADLINE;
    loop {
        conn.ask(b"set k 0 0 1\r\ny\r\n", b"STORED\r\n");
        conn.send(b"mg k v\r\n");
        if conn.read_line() != b"EN" {
            break;
        }
        assert!(Instant::now() < deadline, "nothing can be stored after the flush");
        std::thread::sleep(Duration::from_millis(20));
    }
}
