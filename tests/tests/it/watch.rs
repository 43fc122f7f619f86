//! `watch`: event lines in memcached's format; no client waits for a watcher that does not read.

use cached_tests::conn::{Conn, DEADLINE};
use cached_tests::frame::{Request, op};
use cached_tests::server::Server;
use std::time::Instant;

/// Reads one line and removes its time.
fn event(watcher: &mut Conn) -> String {
    let line = String::from_utf8_lossy(&watcher.read_line()).into_owned();
    let (head, rest) = line.split_once(" type=").unwrap_or_else(|| panic!("no event: {line}"));
    let (time, gid) = head.split_once(" gid=").unwrap_or_else(|| panic!("no gid: {line}"));
    assert!(time.strip_prefix("ts=").is_some_and(|time| time.parse::<f64>().is_ok()), "{line}");
    assert!(gid.parse::<u64>().is_ok(), "{line}");
    // Descriptors and ports differ from run to run.
    let words = rest.split(' ').filter(|word| !word.starts_with("cfd=") && !word.starts_with("rport="));
    words.collect::<Vec<_>>().join(" ")
}

/// Returns a watcher of these kinds.
fn watch(server: &Server, kinds: &str) -> Conn {
    let mut watcher = server.connect();
    watcher.ask(format!("watch {kinds}\r\n").as_bytes(), b"OK\r\n");
    watcher
}

#[test]
fn mutations_and_deletions() {
    let server = Server::start("");
    let mut watcher = watch(&server, "mutations deletions");
    let mut conn = server.connect();
    conn.ask(b"set a%b 5 0 3\r\nabc\r\n", b"STORED\r\n");
    conn.ask(b"add a%b 0 0 1\r\nx\r\n", b"NOT_STORED\r\n");
    conn.ask(b"append a%b 0 0 1\r\nd\r\n", b"STORED\r\n");
    conn.ask(b"cas a%b 0 0 1 999999\r\nx\r\n", b"EXISTS\r\n");
    conn.ask(b"delete a%b\r\n", b"DELETED\r\n");
    conn.ask(b"ms m 2 T100\r\nhi\r\n", b"HD\r\n");
    conn.ask(b"md m\r\n", b"HD\r\n");
    for expected in [
        "item_store key=a%25b status=stored cmd=set ttl=0 clsid=1 size=3",
        "item_store key=a%25b status=not_stored cmd=add ttl=0 clsid=1 size=1",
        "item_store key=a%25b status=stored cmd=append ttl=0 clsid=1 size=4",
        "item_store key=a%25b status=exists cmd=cas ttl=0 clsid=1 size=1",
        "deleted key=a%25b cmd=delete clsid=1 size=4",
        "item_store key=m status=stored cmd=set ttl=100 clsid=1 size=2",
        "deleted key=m cmd=md clsid=1 size=2",
    ] {
        // A second may begin between a store and its event.
        assert_eq!(event(&mut watcher).replace(" ttl=99 ", " ttl=100 "), expected);
    }
    let mut large = b"set large 0 0 2000000\r\n".to_vec();
    large.resize(large.len() + 2_000_000, b'x');
    large.extend_from_slice(b"\r\n");
    conn.ask(&large, b"SERVER_ERROR object too large for cache\r\n");
    assert!(event(&mut watcher).starts_with("item_store key=large status=too_large cmd=set"));
}

#[test]
fn fetchers_are_the_default() {
    let server = Server::start("");
    let mut watcher = server.connect();
    watcher.ask(b"watch\r\n", b"OK\r\n");
    let mut conn = server.connect();
    conn.ask(b"get none\r\n", b"END\r\n");
    assert_eq!(event(&mut watcher), "item_get key=none status=not_found clsid=0 size=0");
    conn.ask(b"mg none\r\n", b"EN\r\n");
    assert_eq!(event(&mut watcher), "item_get key=none status=not_found clsid=0 size=0");
}

#[test]
fn connection_events() {
    let server = Server::start("");
    let mut watcher = watch(&server, "connevents");
    let mut conn = server.connect();
    conn.ask(b"mn\r\n", b"MN\r\n");
    assert_eq!(event(&mut watcher), "conn_new rip=127.0.0.1 transport=tcp");
    conn.send(b"quit\r\n");
    conn.expect_closed("quit");
    assert_eq!(event(&mut watcher), "conn_close rip=127.0.0.1 transport=tcp reason=normal");
    // Any input from the client ends the connection.
    let get = Request::new(op("GET").expect("GET")).key(b"a key");
    let broken = Request { bodylen: Some(3), ..get }.bytes();
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], &[b'x'; 3000], &broken] {
        let mut conn = server.connect();
        conn.send(bytes);
        conn.read_to_end();
        assert_eq!(event(&mut watcher), "conn_new rip=127.0.0.1 transport=tcp");
        assert_eq!(event(&mut watcher), "conn_close rip=127.0.0.1 transport=tcp reason=error");
    }
}

#[test]
fn evictions() {
    let server = Server::start("-m 8 -I 512k");
    let mut watcher = watch(&server, "evictions");
    let mut conn = server.connect();
    let mut batch = Vec::new();
    for number in 0..400 {
        batch.extend_from_slice(format!("set key:{number} 0 0 50000 noreply\r\n").as_bytes());
        batch.resize(batch.len() + 50_000, b'x');
        batch.extend_from_slice(b"\r\n");
    }
    conn.send(&batch);
    let line = event(&mut watcher);
    assert!(line.starts_with("eviction key=key%3A") && line.contains("fetch=no ttl=-1 la="), "{line}");
    assert!(line.ends_with("size=50000"), "{line}");
}

/// A watcher that does not read does not affect other clients. Skipped lines are counted, and the
/// watcher receives their number.
#[test]
fn a_watcher_that_does_not_read() {
    let mut server = Server::start("-o watcher_logbuf_size=8,worker_logbuf_size=8");
    let mut watcher = watch(&server, "fetchers");
    let mut conn = server.connect();
    let line = format!("get {}\r\n", "k".repeat(200));
    let batch = line.repeat(500);
    let deadline = Instant::now() + DEADLINE;
    while server.stat("log_watcher_skipped") == 0 {
        conn.send(batch.as_bytes());
        conn.send(b"mn\r\n");
        conn.skip_until_seen(b"MN\r\n", 1);
        assert!(Instant::now() < deadline, "nothing was ever skipped");
    }
    server.assert_serves("a watcher that does not read");
    assert_eq!(server.stat("log_watchers"), 1);
    assert!(server.stat("log_worker_written") > 0);
    // When the client reads, there is space again, and the number of skipped lines precedes the
    // next line.
    let asker = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            loop {
                let line = String::from_utf8_lossy(&watcher.read_line()).into_owned();
                if let Some(skipped) = line.strip_prefix("skipped=") {
                    return skipped.parse::<u64>().expect("a number");
                }
            }
        });
        while !reader.is_finished() {
            conn.ask(b"get more\r\n", b"END\r\n");
            assert!(Instant::now() < deadline, "no word about skipped lines");
        }
        reader.join().expect("the reader")
    });
    assert!(asker > 0);
}

#[test]
fn invalid_watch_commands_are_refused() {
    let server = Server::start("");
    server.connect().ask(b"watch bogus\r\n", b"ERROR\r\n");
    let refused = b"END\r\nERROR cannot pipeline other commands before watch\r\n";
    server.connect().ask(b"get none\r\nwatch\r\n", refused);
    let watchers: Vec<Conn> = (0..20).map(|_| watch(&server, "sysevents rawcmds proxyreqs")).collect();
    server.connect().ask(b"watch\r\n", b"WATCHER_TOO_MANY log watcher limit reached\r\n");
    drop(watchers);
    let deadline = Instant::now() + DEADLINE;
    while server.stat("log_watchers") > 0 {
        assert!(Instant::now() < deadline, "watchers that have left still count");
    }
    watch(&server, "fetchers");
    let forbidden = Server::start("-W");
    forbidden.connect().ask(b"watch\r\n", b"CLIENT_ERROR watch commands not allowed\r\n");
}

/// Watchers connect and disconnect while the server sends lines.
#[test]
fn watchers_under_load() {
    let mut server = Server::start("-t 2");
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut conn = server.connect();
            for _ in 0..300 {
                conn.send("get a b c d\r\n".repeat(50).as_bytes());
                conn.send(b"mn\r\n");
                conn.skip_until_seen(b"MN\r\n", 1);
            }
        });
        while !load.is_finished() {
            let mut watcher = watch(&server, "fetchers mutations");
            // The load may be over by now.
            server.connect().ask(b"get a\r\n", b"END\r\n");
            watcher.read_line();
            watcher.reset();
        }
        load.join().expect("the load");
    });
    server.assert_serves("watchers that came and went");
}
