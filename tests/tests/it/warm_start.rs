//! Memory files with various settings (TLS, passwords, limits, threads), and the behaviour towards
//! clients, probes and the service manager during a takeover.

use cached_tests::conn::{Conn, DEADLINE};
use cached_tests::frame::{Request, op};
use cached_tests::http;
use cached_tests::password;
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Server, Start, own_address};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Instant;

fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

fn with_file(args: &str, file: &Path) -> Start {
    Start::new().args(&format!("-e {} {args}", file.display()))
}

fn end(mut server: Server, signal: i32) {
    server.signal(signal);
    server.wait_exit();
}

/// Starts a server, ends it by each of the signals, and starts it again. `each` gets the number of
/// the start, and a server that has not replied yet.
fn restarts(start: impl Fn() -> Start, each: impl Fn(usize, &Server)) {
    for (n, signal) in [libc::SIGTERM, libc::SIGKILL, libc::SIGKILL].into_iter().enumerate() {
        let server = start().start();
        each(n, &server);
        end(server, signal);
    }
}

/// Stores and reads in the protocol in which the client has authenticated.
fn use_store(conn: &mut Conn, binary: bool, n: usize) {
    if !binary {
        if n == 0 {
            conn.ask(b"set secret 7 0 5\r\nvalue\r\n", b"STORED\r\n");
        }
        conn.ask(b"get secret\r\n", b"VALUE secret 7 5\r\nvalue\r\nEND\r\n");
        return;
    }
    let mut response = |request: Request| {
        conn.send(&request.bytes());
        let head = conn.read_exact(24);
        let body = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
        (u16::from_be_bytes([head[6], head[7]]), conn.read_exact(body as usize))
    };
    if n == 0 {
        let set =
            Request::new(op("SET").unwrap()).extras(&[0, 0, 0, 7, 0, 0, 0, 0]).key(b"secret").value(b"value");
        assert_eq!(response(set).0, 0);
    }
    let get = Request::new(op("GET").unwrap()).key(b"secret");
    assert_eq!(response(get), (0, b"\0\0\0\x07value".to_vec()));
}

#[test]
fn tls_and_passwords() {
    if !is_cached() {
        return;
    }
    for (tls, password, binary) in [
        (true, false, false),
        (false, true, false),
        (false, true, true),
        (true, true, false),
        (true, true, true),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("memory");
        let start = || {
            let start = with_file("-m 8", &file);
            let start = if tls { start.tls() } else { start };
            if password { password::require(start, Flavour::Cached, binary) } else { start }
        };
        restarts(start, |n, server| {
            let mut conn = server.connect();
            if password {
                let (request, reply) = password::login(binary);
                conn.ask(&request, &reply);
            }
            use_store(&mut conn, binary, n);
            if password {
                // Items that were taken over also require the password.
                server.connect().ask(b"get secret\r\n", b"CLIENT_ERROR unauthenticated\r\n");
            }
        });
    }
}

/// Some arguments determine which items are stored, and how. A restart with the same ones keeps all
/// items, whatever the number of threads.
#[test]
fn other_arguments() {
    if !is_cached() {
        return;
    }
    for args in [
        "-m 64 -M",
        "-m 64 -C",
        "-m 64 -M -C -I 8m",
        "-m 64 -I 8m -L",
        "-m 64 -I 4k -R 3 -f 2 -n 96",
        "-m 64 -B ascii -o modern,temporary_ttl=60",
        "-m 64 -o no_lru_crawler,no_lru_maintainer,hashpower=18",
        "-m 64 -F -D .",
        "-m 64 -v -k",
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("memory");
        let large = vec![b'l'; if args.contains("8m") { 5 << 20 } else { 3_000 }];
        let threads = std::cell::Cell::new(1);
        let start = || {
            threads.set(threads.get() + 2);
            with_file(&format!("{args} -t {}", threads.get()), &file)
        };
        let get_large =
            [format!("VALUE large 9 {}\r\n", large.len()).as_bytes(), &large[..], b"\r\nEND\r\n"].concat();
        restarts(start, |n, server| {
            let mut conn = server.connect();
            if n == 0 {
                let set = format!("set large 9 5000 {}\r\n", large.len());
                conn.ask(&[set.as_bytes(), &large[..], b"\r\n"].concat(), b"STORED\r\n");
                conn.ask(b"set a:n 0 0 2\r\n41\r\nset a:gone 0 0 1\r\nx\r\n", b"STORED\r\nSTORED\r\n");
                conn.ask(b"delete a:gone\r\n", b"DELETED\r\n");
            }
            conn.ask(b"get large\r\n", &get_large);
            conn.ask(b"incr a:n 1\r\n", format!("{}\r\n", 42 + n).as_bytes());
            conn.ask(b"get a:gone\r\n", b"END\r\n");
        });
    }
}

/// A lower item size limit drops larger items. Items with CAS values do not mix with items without,
/// and memory with eviction does not mix with memory without.
#[test]
fn arguments_that_change() {
    if !is_cached() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("memory");
    let server = with_file("-m 64 -I 4m", &file).start();
    let large = vec![b'l'; 2 << 20];
    let set = format!("set large 0 0 {}\r\n", large.len());
    server.connect().ask(&[set.as_bytes(), &large[..], b"\r\n"].concat(), b"STORED\r\n");
    server.connect().ask(b"set small 0 0 1\r\nx\r\n", b"STORED\r\n");
    end(server, libc::SIGTERM);
    let server = with_file("-m 64", &file).start();
    server.connect().ask(b"get large small\r\n", b"VALUE small 0 1\r\nx\r\nEND\r\n");
    end(server, libc::SIGTERM);
    let server = with_file("-m 64 -C", &file).start();
    server.connect().ask(b"get small\r\n", b"END\r\n");
    assert!(server.log().contains("its items are with CAS values, not without"), "{}", server.log());
    end(server, libc::SIGTERM);
    let server = with_file("-m 64 -C -M", &file).start();
    server.connect().ask(b"get small\r\n", b"END\r\n");
    assert!(server.log().contains("its eviction policy is balanced, not none"), "{}", server.log());
}

/// Returns the socket of a service manager that does not read, so that a start blocks when it
/// notifies the service manager.
fn busy_manager(path: &Path) -> UnixDatagram {
    let manager = UnixDatagram::bind(path).expect("a socket");
    manager.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    // Each sender has a limit of its own. The receiver's limit is reached when even a new sender
    // cannot send.
    loop {
        let sender = UnixDatagram::unbound().expect("a socket");
        sender.set_nonblocking(true).expect("a mode");
        if sender.send_to(b"filler", path).is_err() {
            return manager;
        }
        while sender.send_to(b"filler", path).is_ok() {}
    }
}

#[test]
fn clients_wait_until_the_file_is_taken_over() {
    if !is_cached() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (file, notify) = (directory.path().join("memory"), directory.path().join("notify"));
    let server = with_file("-m 64", &file).start();
    server.connect().ask(b"set k 0 0 1\r\nv\r\n", b"STORED\r\n");
    end(server, libc::SIGKILL);

    let manager = busy_manager(&notify);
    let admin = own_address().to_string();
    let config = directory.path().join("cached.toml");
    std::fs::write(&config, format!("[admin]\nlisten = [\"{admin}\"]\n")).expect("a configuration");
    let args = format!("-m 64 --config={}", config.display());
    let mut server = with_file(&args, &file).unix().variable("NOTIFY_SOCKET", &notify).early().start();
    // The start blocks in its first notification to the service manager. Clients are not refused.
    let mut conn = server.connect();
    conn.send(b"get k\r\n");
    let deadline = Instant::now() + DEADLINE;
    let reason = loop {
        let (status, body) = http::get(&admin, "/readyz");
        assert_eq!(status, 503, "{body}");
        if body.contains("the memory file") {
            break body;
        }
        assert!(Instant::now() < deadline, "{body}");
    };
    assert!(reason.starts_with("opening the memory file") || reason.contains(" regions, "), "{reason}");
    assert_eq!(http::get(&admin, "/startupz").0, 503);
    assert_eq!(http::get(&admin, "/livez").0, 200);
    let (_, metrics) = http::get(&admin, "/metrics");
    assert!(metrics.contains("cached_restart_regions_max "), "{metrics}");
    assert!(!server.log().contains("the memory file is taken over"), "{}", server.log());

    let hear = || {
        let mut bytes = [0; 1024];
        let count = manager.recv(&mut bytes).expect("a note");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let notes: Vec<String> =
        std::iter::repeat_with(hear).take_while(|note| !note.starts_with("READY=1\n")).collect();
    let first = notes.iter().find(|note| *note != "filler").expect("a note about the start");
    assert!(first.starts_with("STATUS=Starting: ") && first.contains("memory file"), "{first}");
    conn.expect(b"VALUE k 0 1\r\nv\r\nEND\r\n", "after the start");
    let (_, metrics) = http::get(&admin, "/metrics");
    assert!(metrics.contains("cached_restart_items 1\n"), "{metrics}");
    // The shutdown gets the time that writing the file may take on a slow disk.
    server.signal(libc::SIGTERM);
    assert_eq!(hear(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=6000000\nSTATUS=Ending");
    server.wait_exit();
}

/// A shutdown requested before the file has been taken over does not wait until then, and loses
/// nothing.
#[test]
fn a_start_can_be_ended() {
    if !is_cached() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (file, notify) = (directory.path().join("memory"), directory.path().join("notify"));
    let server = with_file("-m 8", &file).start();
    server.connect().ask(b"set k 0 0 1\r\nv\r\n", b"STORED\r\n");
    end(server, libc::SIGTERM);
    let manager = busy_manager(&notify);
    let mut server = with_file("-m 8", &file).unix().variable("NOTIFY_SOCKET", &notify).early().start();
    server.signal(libc::SIGTERM);
    // After the notification to the service manager has been delivered, the server notices the
    // request.
    let mut bytes = [0; 1024];
    while manager.recv(&mut bytes).expect("a note") == b"filler".len() {}
    assert!(server.wait_exit().success(), "{}", server.log());
    assert!(server.log().contains("shut down before the memory file was taken over"), "{}", server.log());
    let server = with_file("-m 8", &file).start();
    server.connect().ask(b"get k\r\n", b"VALUE k 0 1\r\nv\r\nEND\r\n");
}

/// However the shutdown is requested, and whatever clients are doing, the next start finds valid
/// checksums.
#[test]
fn every_orderly_end_is_clean() {
    if !is_cached() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("memory");
    let config = directory.path().join("cached.toml");
    let admin = own_address().to_string();
    let text = format!(
        "[admin]\nlisten = [\"{admin}\"]\n[objects]\nmemory_bytes_max = \"16 MiB\"\nwrite = \"back\"\n\
         [objects.backend]\nkind = \"memory\"\n"
    );
    std::fs::write(&config, text).expect("a configuration");
    let configured = format!("--config={}", config.display());
    let start = |args: &str| with_file(&format!("-m 8 -A {args}"), &file).start();
    /// The name, further arguments of the server, and the way in which the shutdown is requested.
    type End<'a> = (&'a str, &'a str, fn(&Server));
    let ends: [End<'_>; 4] = [
        ("a signal", "", |server| server.signal(libc::SIGTERM)),
        ("with an admin listener and objects", &configured, |server| server.signal(libc::SIGTERM)),
        ("a client", "", |server| server.connect().send(b"shutdown\r\n")),
        ("a client, gracefully", "", |server| server.connect().send(b"shutdown graceful\r\n")),
    ];
    for (n, (name, args, request)) in ends.into_iter().enumerate() {
        let mut server = start(args);
        let mut conn = server.connect();
        conn.ask(b"incr k 1\r\n", if n == 0 { b"NOT_FOUND\r\n" } else { b"2\r\n" });
        conn.ask(b"set k 0 0 1\r\n1\r\n", b"STORED\r\n");
        // One client uses `watch`, one has sent half a value, and one does not read its replies.
        let mut others = [server.connect(), server.connect(), server.connect()];
        others[0].ask(b"watch mutations\r\n", b"OK\r\n");
        others[1].send(b"set half 0 0 100000\r\nnot all of it");
        others[2].send(b"get k\r\n");
        request(&server);
        server.wait_exit();
        let mut again = start("");
        again.connect().ask(b"get k half\r\n", b"VALUE k 0 1\r\n1\r\nEND\r\n");
        assert!(again.log().contains("was_clean=true"), "{name}: {}", again.log());
        again.signal(libc::SIGTERM);
        again.wait_exit();
    }
}
