//! Upgrades of a server with an object cache.

use super::{Items, connect, injects_faults, is_memcached};
use crate::object_http::{Client, pattern};
use cached_tests::conn::Conn;
use cached_tests::daemon::wait_for;
use cached_tests::ending::SetOnDrop;
use cached_tests::server::own_address;
use cached_tests::upgrade::Upgradable;
use cached_tests::upgrade::objects::{Objects, Running, configuration};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use test_kit::memory_directory;

/// Acknowledged objects are present after each upgrade, even those with the lowest durability.
/// Clients notice a pause, and connections are not refused.
#[test]
fn objects_are_served_through_upgrades_and_none_is_lost() {
    if is_memcached() {
        return;
    }
    for has_journal in [true, false] {
        let memory = memory_directory();
        let args = format!("-m 64 -t 2 -e {}", memory.path().join("memory").display());
        let mut server = Upgradable::start(&args, &configuration(has_journal));
        let mut conn = connect(&server);
        let items = Items::store(&mut conn);
        let mut objects = Objects::new(3, 1);
        let seen = objects.under_load(&mut server, |server, load| {
            for round in 0..3 {
                load.more(150);
                load.longest();
                server.upgrade();
                load.more(20);
                println!("journal {has_journal}, upgrade {round}: longest wait {:?}", load.longest());
            }
        });
        println!("{} changes, {} connections", seen.changes, seen.connections);
        assert_eq!(seen.lines, [""; 0], "journal {has_journal}");
        assert_eq!(objects.check(&server, true), [""; 0], "journal {has_journal}");
        items.check(&mut conn, "items beside objects");
        if has_journal {
            // The last process works like the first: its acknowledged data survive kill -9.
            let seen = objects.under_load(&mut server, |_, load| load.more(150));
            assert_eq!(seen.lines, [""; 0]);
            server.signal(libc::SIGKILL);
            server.wait_exit();
            server.start_again();
            assert_eq!(objects.check(&server, false), [""; 0], "after kill -9 of the last process");
        }
        let socket = server.path("objects");
        server.signal(libc::SIGTERM);
        assert_eq!(server.wait_exit(), 0);
        server.pid = 0;
        assert!(!socket.exists(), "the last process removes the file");
    }
}

/// A server with an object cache, whose upgrades fail under load.
struct Failing<'a> {
    server: &'a mut Upgradable,
    load: &'a Running<'a>,
    conn: Conn,
}

impl Failing<'_> {
    /// Makes an upgrade fail; the load continues before and after it.
    fn fail(&mut self, what: &str) {
        self.load.more(60);
        let line = self.server.upgrade_in_vain();
        self.load.more(60);
        self.conn.ask(b"mn\r\n", b"MN\r\n");
        println!("{what}: {line}; longest wait {:?}", self.load.longest());
    }

    fn fail_by(&mut self, fault: &str) {
        self.server.use_script(&format!("CACHED_FAULT={fault} exec $REAL \"$@\""));
        self.fail(fault);
    }
}

/// Starts a server that waits this long for each step of a new process. Lets its upgrades `fail`
/// under load, and then lets one succeed. Returns how often the server has reopened its store.
fn fail_under_load(limit_secs: u64, seed: u64, fail: impl FnOnce(&mut Failing<'_>, &str, bool)) -> usize {
    let limit = format!("upgrade_timeout_secs = {limit_secs}");
    let text = configuration(true).replace("upgrade_timeout_secs = 60", &limit);
    let mut server = Upgradable::start("-m 64 -t 2 --debug-clock", &text);
    let mut conn = connect(&server);
    let injects_faults = injects_faults(&mut conn);
    let mut objects = Objects::new(3, seed);
    let seen = objects.under_load(&mut server, |server, load| {
        let mut failing = Failing { server, load, conn };
        fail(&mut failing, &text, injects_faults);
        let Failing { server, load, .. } = failing;
        server.use_program();
        // With short time limits several attempts may be needed.
        wait_for("an upgrade that succeeds", || server.try_upgrade().then_some(()));
        load.more(60);
    });
    assert_eq!(seen.lines, [""; 0]);
    assert_eq!(objects.check(&server, true), [""; 0]);
    let log = server.log();
    let times = |line: &str| log.matches(line).count();
    let (let_go, again) = (times("has released the store"), times("the object cache serves again"));
    assert_eq!(let_go, again + 1, "{log}");
    server.end();
    again
}

/// Whatever the problem of the new process is, the old one reopens its store and serves all
/// acknowledged data.
#[test]
fn the_old_process_opens_the_store_again_if_the_new_one_fails() {
    if is_memcached() {
        return;
    }
    let again = fail_under_load(120, 7, |failing, text, injects_faults| {
        for (what, wrong) in [
            ("a wrong configuration", "[objects]\nno_such_key = 1\n".to_owned()),
            ("a store that cannot be opened", text.replace("DIR/store", "DIR/config.toml")),
            ("a journal that cannot be opened", text.replace("DIR/journal", "DIR/config.toml/x")),
        ] {
            failing.server.configure(&wrong);
            failing.fail(what);
        }
        failing.server.configure(text);
        let faults = ["kill:listening", "kill:store", "kill:opened", "kill:ready"];
        faults.iter().filter(|_| injects_faults).for_each(|fault| failing.fail_by(fault));
    });
    assert!(again >= 2, "{again}");
}

/// The new process hangs while it has the store, but before it may serve: the upgrade is abandoned,
/// and the old process reopens the store.
#[test]
fn the_old_process_opens_the_store_again_if_the_new_one_hangs() {
    if is_memcached() {
        return;
    }
    fail_under_load(4, 8, |failing, _, injects_faults| {
        if injects_faults {
            failing.fail_by("stall:ready");
        }
    });
}

/// An HTTP client that alone changes its object. It connects again whenever its connection has
/// ended, and reads each acknowledged version, also over the next connection, which may lead to
/// another process. Counts acknowledgements until the load ends.
fn write_over_http(address: &str, object: &str, acknowledged: &AtomicU64, is_over: &AtomicBool) {
    let (mut sent, mut last, mut client) = (0_u64, 0, None);
    while !is_over.load(Ordering::SeqCst) {
        // While the store passes from one process to the other, neither process listens.
        let Some(open) = client.as_mut() else {
            client = Client::open(address).ok();
            if let Some(got) = client.as_mut().and_then(|open| open.ask(&format!("GET {object}"), "", b"")) {
                let found = match got.status {
                    200 => String::from_utf8_lossy(&got.body).parse().expect("a number"),
                    404 => 0,
                    _ => panic!("{object}: {got:?}"),
                };
                assert!((last..=sent).contains(&found), "{object}: {found} after {last} of {sent}: {got:?}");
            }
            std::thread::sleep(std::time::Duration::from_millis(u64::from(client.is_none())));
            continue;
        };
        sent += 1;
        let body = sent.to_string().into_bytes();
        let put = open.ask(&format!("PUT {object}"), "", &body);
        let got = put.as_ref().and_then(|_| open.ask(&format!("GET {object}"), "", b""));
        if let Some(put) = &put {
            assert!([201, 204].contains(&put.status), "{put:?}");
        }
        match got {
            Some(got) => assert_eq!((got.status, got.body), (200, body), "{object}"),
            None => client = None,
        }
        if put.is_some() {
            last = sent;
            acknowledged.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// The listener for HTTP requests moves to the new process with the store, or stays if the new
/// process fails: a request in progress gets its response, no request fails, and no acknowledged
/// change is lost.
#[test]
fn objects_over_http_are_served_through_upgrades() {
    if is_memcached() {
        return;
    }
    let address = own_address().to_string();
    // A client that goes on with its request late must not be cut off.
    let text = configuration(true).replacen("[process]\n", "[process]\ndrain_timeout_secs = 240\n", 1)
        + &format!("[objects.http]\nlisten = [\"{address}\"]\nthreads = 2\n");
    let mut server = Upgradable::start("-m 64 -t 2 --debug-clock", &text);
    let mut conn = connect(&server);
    let injects_faults = injects_faults(&mut conn);
    let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let more = |count: u64| {
        let before = acknowledged.load(Ordering::SeqCst);
        let reached = || (acknowledged.load(Ordering::SeqCst) >= before + count).then_some(());
        wait_for("changes over HTTP", reached);
    };
    let body = pattern(60_000);
    std::thread::scope(|scope| {
        let end = SetOnDrop(&is_over);
        let (address, acknowledged, is_over) = (&address, &acknowledged, &is_over);
        let clients: Vec<_> = ["/plain/a", "/plain/b", "/journaled/c"]
            .map(|object| scope.spawn(move || write_over_http(address, object, acknowledged, is_over)))
            .into();
        for round in 0..2 {
            more(60);
            let mut slow = Client::open(address).expect("a connection");
            let head = format!(
                "PUT /plain/slow-{round} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n"
            );
            slow.send(&[head.as_bytes(), &body[..30_000]].concat());
            let rest = &body[30_000..];
            let slow = scope.spawn(move || {
                wait_for("the end of the listener", || Client::open(address).is_err().then_some(()));
                slow.send(rest);
                slow.answer(false).expect("a response of the old process").status
            });
            server.upgrade();
            assert_eq!(slow.join().expect("a status"), 201);
            more(60);
        }
        if injects_faults {
            server.use_script("CACHED_FAULT=kill:opened exec $REAL \"$@\"");
            server.upgrade_in_vain();
            let serves_again = || server.log().contains("the object cache serves again").then_some(());
            wait_for("the object cache of the old process", serves_again);
            more(60);
            server.use_program();
            server.upgrade();
            more(60);
        }
        drop(end);
        clients.into_iter().for_each(|client| client.join().expect("a client"));
    });
    for round in 0..2 {
        let mut client = Client::open(&address).expect("a connection");
        let got = client.ask(&format!("GET /plain/slow-{round}"), "", b"").expect("a response");
        assert!(got.status == 200 && got.body == body, "{}", got.status);
    }
    server.end();
}

/// An upgrade does not hand over data that would be lost, nor memory that moves between items and
/// objects.
#[test]
fn what_cannot_be_handed_over_stays_where_it_is() {
    if is_memcached() {
        return;
    }
    let shared = "[objects]\nmemory_bytes_max = \"64 MiB\"\n[objects.backend]\nkind = \"file\"\ncreate = true\npath = \"DIR/store\"\n\
                  [shared_memory]\n";
    for (text, reason) in [
        ("[objects]\n[objects.backend]\nkind = \"memory\"\n", "the object store is in memory"),
        (shared, "items and objects share memory"),
    ] {
        let server = Upgradable::start("-m 64", text);
        server.signal(libc::SIGUSR2);
        wait_for("the reason", || server.log().contains(reason).then_some(()));
        connect(&server).ask(b"mn\r\n", b"MN\r\n");
        server.end();
    }
}
