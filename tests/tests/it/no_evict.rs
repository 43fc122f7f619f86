//! Full memory with `-M`: deletions and expiry free space, and changes without a new value need no
//! space.

use cached_tests::conn::Conn;
use cached_tests::daemon::wait_for;
use cached_tests::ending::SetOnDrop;
use cached_tests::server::Server;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object";
const BATCH: usize = 100;

fn start() -> Server {
    Server::start("-m 32 -M --debug-clock")
}

/// Stores values of `len` bytes under increasing numbers until one is refused; returns the first
/// unused number.
fn fill(conn: &mut Conn, first: usize, exptime: u32, len: usize) -> usize {
    let value = "v".repeat(len);
    for batch in 0.. {
        let numbers = first + batch * BATCH..first + (batch + 1) * BATCH;
        let mut sets = Vec::new();
        for number in numbers.clone() {
            sets.extend(format!("set key{number} 0 {exptime} {len}\r\n{value}\r\n").bytes());
        }
        conn.send(&sets);
        let mut refused = None;
        for number in numbers {
            match &conn.read_line()[..] {
                b"STORED" => {}
                OUT_OF_MEMORY => refused = refused.or(Some(number)),
                line => panic!("key{number}: {:?}", String::from_utf8_lossy(line)),
            }
        }
        if let Some(refused) = refused {
            // The test does not rely on values stored after the first refusal.
            (refused..first + (batch + 1) * BATCH).for_each(|number| {
                delete(conn, number);
            });
            return refused;
        }
        assert!(batch < 10_000, "memory is never full");
    }
    unreachable!("the batches do not end")
}

fn delete(conn: &mut Conn, number: usize) -> bool {
    conn.send(format!("delete key{number}\r\n").as_bytes());
    conn.read_line() == b"DELETED"
}

/// After random deletions of one, five and ten per cent, as many items fit as were deleted, except
/// for the content of two regions.
#[test]
fn deletions_make_room() {
    const REGION_BYTES: usize = 128 << 10;
    for len in [100, 3_000] {
        let server = start();
        let mut conn = server.connect();
        let mut next = fill(&mut conn, 0, 0, len);
        let mut keys: Vec<usize> = (0..next).collect();
        let mut random = SmallRng::seed_from_u64(7);
        for percent in [1, 5, 10] {
            let count = keys.len() * percent / 100;
            for _ in 0..count {
                let key = keys.swap_remove(random.random_range(0..keys.len()));
                assert!(delete(&mut conn, key));
            }
            let end = fill(&mut conn, next, 0, len);
            println!("{len} bytes: {count} deleted, {} stored", end - next);
            assert!((end - next) + 2 * REGION_BYTES / len >= count, "{} of {count} fit again", end - next);
            keys.extend(next..end);
            next = end + BATCH;
        }
        assert_eq!(server.stat("evictions"), 0);
    }
}

/// Expiry frees the space in the same second, whatever the time to live and the size, and whether a
/// store or a touch has set it.
#[test]
fn expired_items_make_room() {
    for (exptime, len) in [(3_000, 100), (9_000, 100), (9_000, 200_000), (90_000, 1_000)] {
        let server = start();
        let mut conn = server.connect();
        let count = fill(&mut conn, 0, exptime, len);
        let value = "v".repeat(len);
        let refused = [OUT_OF_MEMORY, b"\r\n"].concat();
        // The server's clock advances by itself, but not by that much.
        conn.ask(format!("debugtime {}\r\n", exptime - 2_000).as_bytes(), b"OK\r\n");
        conn.ask(format!("add new 0 0 {len}\r\n{value}\r\n").as_bytes(), &refused);
        conn.ask(b"debugtime 2000\r\n", b"OK\r\n");
        let again = fill(&mut conn, 1_000_000, 0, len) - 1_000_000;
        println!("{exptime} s, {len} bytes: {count} fitted, then {again}");
        assert!(again * 100 >= count * 95, "{again} of {count}");
    }
    let server = start();
    let mut conn = server.connect();
    let count = fill(&mut conn, 0, 0, 1_000);
    for number in 0..count / 2 {
        conn.ask(format!("touch key{number} 5000\r\n").as_bytes(), b"TOUCHED\r\n");
    }
    conn.ask(b"debugtime 5000\r\n", b"OK\r\n");
    let again = fill(&mut conn, 1_000_000, 0, 1_000) - 1_000_000;
    assert!(again * 100 >= count / 2 * 95, "{again} of {}", count / 2);
    assert_eq!(server.stat("evictions"), 0);
}

/// With full memory, `touch`, `gat`, `mg` with T and `md` with I and T work on items without
/// expiry.
#[test]
fn a_touch_needs_no_memory() {
    let server = start();
    let mut conn = server.connect();
    for (first, len) in [(0, 200_000), (1_000, 3_000), (100_000, 10)] {
        let end = fill(&mut conn, first, 0, len);
        assert!(end > first, "nothing of {len} bytes fitted");
        for number in first..end.min(first + 400) {
            let value = "v".repeat(len);
            let (request, reply) = match number % 4 {
                0 => (format!("touch key{number} 1000\r\n"), "TOUCHED\r\n".to_owned()),
                1 => (
                    format!("gat 1000 key{number}\r\n"),
                    format!("VALUE key{number} 0 {len}\r\n{value}\r\nEND\r\n"),
                ),
                2 => (format!("mg key{number} s T1000\r\n"), format!("HD s{len}\r\n")),
                _ => (format!("md key{number} I T1000\r\n"), "HD\r\n".to_owned()),
            };
            conn.ask(request.as_bytes(), reply.as_bytes());
        }
        for number in first..end.min(first + 400) {
            conn.send(format!("mg key{number} t\r\n").as_bytes());
            let line = conn.read_line();
            assert!(line.starts_with(b"HD t") && line != b"HD t-1", "{:?}", String::from_utf8_lossy(&line));
        }
    }
}

/// A delayed flush takes effect while other clients' values evict older ones: the server continues,
/// whichever thread notices the flush first.
#[test]
fn a_flush_falls_due_under_evictions() {
    const ROUNDS: u64 = 20;
    let mut server = Server::start("-m 16 --debug-clock");
    let mut watcher = server.connect();
    watcher.ask(b"watch evictions\r\n", b"OK\r\n");
    let mut other = server.connect();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut flood = server.connect();
        let is_done = &is_done;
        let done = SetOnDrop(is_done);
        scope.spawn(move || {
            let (value, large) = ("v".repeat(4_000), "v".repeat(500_000));
            for round in 0.. {
                if is_done.load(Ordering::Relaxed) {
                    return;
                }
                let mut sets = format!("set large{round} 0 0 500000\r\n{large}\r\n").into_bytes();
                for number in 0..500 {
                    sets.extend(format!("set {round}.{number} 0 0 4000\r\n{value}\r\n").bytes());
                }
                flood.send(&sets);
                flood.expect(&b"STORED\r\n".repeat(501), "values under a flush that falls due");
            }
        });
        for _ in 0..ROUNDS {
            // Each flush empties the memory: the next one is requested when the memory is full
            // again and items are evicted.
            let before = server.stat("evictions");
            wait_for("an eviction", || (server.stat("evictions") != before).then_some(()));
            other.ask(b"flush_all 5\r\n", b"OK\r\n");
            other.ask(b"debugtime 10\r\n", b"OK\r\n");
            watcher.read_until_quiet(Duration::from_millis(1));
        }
        drop(done);
    });
    server.assert_serves("flushes that fell due under evictions");
}
