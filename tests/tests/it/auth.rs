//! Authentication: which requests are served before a password has been checked.

use cached_tests::conn::Conn;
use cached_tests::frame::{OPS, Request, op};
use cached_tests::outside;
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Address, START_STOP_DEADLINE, Server, Start};
use std::path::PathBuf;
use std::time::Instant;

fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

/// A file of passwords.
struct Passwords(tempfile::TempDir);

impl Passwords {
    fn new(text: &[u8]) -> Passwords {
        let passwords = Passwords(tempfile::tempdir().expect("a temporary directory"));
        passwords.write(text);
        passwords
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("passwords")
    }

    fn write(&self, text: &[u8]) {
        let new = self.0.path().join("new");
        std::fs::write(&new, text).expect("a file");
        std::fs::rename(new, self.path()).expect("a file");
    }

    /// Starts a server with text authentication.
    fn text(&self, args: &str) -> Server {
        Start::new().args(&format!("-Y {} {args}", self.path().display())).start()
    }

    /// Starts a server with SASL.
    fn sasl(&self, args: &str) -> Server {
        Start::new().args(&format!("-S {args}")).variable("MEMCACHED_SASL_PWDB", &self.path()).start()
    }
}

const TWO: &[u8] = b"foo:bar\nbaaaz:quux\n";

fn login(user: &str, password: &str) -> Vec<u8> {
    format!("set x 0 0 {}\r\n{user} {password}\r\n", user.len() + 1 + password.len()).into_bytes()
}

/// Returns opcode, status and body of the next response.
fn response(conn: &mut Conn) -> (u8, u16, Vec<u8>) {
    let head = conn.read_exact(24);
    assert_eq!(head[0], 0x81, "a response");
    let body_len = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
    (head[1], u16::from_be_bytes([head[6], head[7]]), conn.read_exact(body_len as usize))
}

fn sasl(name: &str, mechanism: &[u8], data: &[u8]) -> Vec<u8> {
    Request::new(op(name).expect("an opcode")).key(mechanism).value(data).bytes()
}

fn frame(name: &str) -> Vec<u8> {
    Request::new(op(name).expect("an opcode")).bytes()
}

const FAILURE: (u16, &[u8]) = (0x20, b"Auth failure.");

/// Sends a frame and expects this status and body.
fn ask(conn: &mut Conn, request: &[u8], (status, body): (u16, &[u8])) {
    conn.send(request);
    assert_eq!(response(conn), (request[1], status, body.to_vec()));
}

fn until(what: &str, server: &Server, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + START_STOP_DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not in time; log:\n{}", server.log());
        std::thread::yield_now();
    }
}

/// This is memcached's own test, in the same order.
#[test]
fn text_authentication_as_in_memcacheds_suite() {
    let passwords = Passwords::new(TWO);
    for args in ["", "-vv", "-B ascii", "-t 1"] {
        let server = passwords.text(args);
        let mut conn = server.connect();
        conn.ask(b"set foo 0 0 2\r\nhi\r\n", b"CLIENT_ERROR bad authentication token format\r\n");
        conn.ask(b"get foo\r\n", b"CLIENT_ERROR unauthenticated\r\n");
        conn.ask(&login("foo", "bab"), b"CLIENT_ERROR authentication failure\r\n");
        conn.ask(&login("foo", "bar"), b"STORED\r\n");
        conn.ask(
            b"set toast 0 0 2\r\nhi\r\nget toast foo x\r\n",
            b"STORED\r\nVALUE toast 0 2\r\nhi\r\nEND\r\n",
        );
        let mut other = server.connect();
        other.ask(b"get toast\r\n", b"CLIENT_ERROR unauthenticated\r\n");
        other.send_fragments(&login("baaaz", "quux"), [1]);
        other.expect(b"STORED\r\n", "the second user");
        other.ask(b"mg toast v\r\n", b"VA 2\r\nhi\r\n");
        // A request in the same packet is executed if the password is right.
        let mut pipelined = server.connect();
        let all = [&b"get toast\r\n"[..], &login("foo", "bar"), b"get toast\r\n"].concat();
        pipelined.ask(&all, b"CLIENT_ERROR unauthenticated\r\nSTORED\r\nVALUE toast 0 2\r\nhi\r\nEND\r\n");
        let mut statistics = server.connect();
        statistics.ask(&login("foo", "bar"), b"STORED\r\n");
        statistics.send(b"stats\r\nstats settings\r\n");
        let mut found = Vec::new();
        for _ in 0..2 {
            while let Some(line) = statistics.try_read_line().filter(|line| line != b"END") {
                let line = String::from_utf8_lossy(&line).into_owned();
                found.extend(line.contains("auth_").then_some(line));
            }
        }
        let expected = [
            "STAT auth_cmds 5".to_owned(),
            "STAT auth_errors 1".to_owned(),
            "STAT auth_enabled_sasl no".to_owned(),
            format!("STAT auth_enabled_ascii {}", passwords.path().display()),
        ];
        assert_eq!(found, expected, "{args}");
    }
}

#[test]
fn no_text_or_meta_command_is_executed_before_a_password() {
    let passwords = Passwords::new(TWO);
    let server = passwords.text("-A");
    for line in [
        "get k",
        "gets k",
        "gat 0 k",
        "delete k",
        "incr k 1",
        "touch k 0",
        "flush_all",
        "flush_all noreply",
        "version",
        "verbosity 2",
        "stats",
        "stats settings",
        "stats conns",
        "watch",
        "mg k v",
        "md k",
        "ma k N0",
        "mn",
        "me k",
        "shutdown",
        "quit",
        "lru_crawler metadump all",
        "cache_memlimit 64",
        "add k 0 0 1",
        "ms k 1",
        "  set x 0 0 7",
        "SET x 0 0 7",
        "set x 0 0",
        "set x 0 0 -7",
        "set x 0 0 seven",
        "refresh_certs",
        "flush_prefix k",
        "flush_prefix k noreply",
        "config get cluster",
    ] {
        let mut conn = server.connect();
        conn.ask(format!("{line}\r\n").as_bytes(), b"CLIENT_ERROR unauthenticated\r\n");
        conn.ask(&login("foo", "bar"), b"STORED\r\n");
        conn.ask(b"get k x\r\nmn\r\n", b"END\r\nMN\r\n");
    }
    // The binary protocol has no passwords here: its frames are treated as bad lines, or ignored.
    let mut binary = server.connect();
    binary.send(&[frame("NOOP"), b"\n".to_vec()].concat());
    assert!(!binary.read_until_quiet(std::time::Duration::from_millis(300)).starts_with(&[0x81]));
}

/// 9981d748f, af05c9302: the server trusts no announced length, and a line without words ends the
/// connection.
#[test]
fn what_is_not_a_password_is_not_collected() {
    if !is_cached() {
        return;
    }
    let passwords = Passwords::new(TWO);
    let mut server = Start::new().args(&format!("-Y {} -vv", passwords.path().display())).start();
    for len in ["16385", "1048576", "2147483645", "2147483646", "2147483647", "4294967295"] {
        let mut conn = server.connect();
        conn.ask(format!("set x 0 0 {len}\r\n").as_bytes(), b"CLIENT_ERROR auth token too long\r\n");
        conn.send(&[b'v'; 4096]);
        conn.expect_closed(len);
    }
    for input in ["\r\n".repeat(10), "\n".repeat(10), "   \r\n".into(), " ".repeat(3000), "x".repeat(3000)] {
        let mut conn = server.connect();
        conn.send(input.as_bytes());
        conn.expect_closed(&input[..2]);
    }
    let mut conn = server.connect();
    conn.ask(b"set x 0 0 7\r\nfoo barx\n", b"CLIENT_ERROR bad command line termination\r\n");
    let longest = "p".repeat(16_384 - 4);
    conn.ask(&login("foo", &longest), b"CLIENT_ERROR authentication failure\r\n");
    conn.ask(&login("foo", "bar"), b"STORED\r\n");
    // Clients that send incomplete passwords together stay within the limit of all buffers.
    let before = server.rss_kib();
    let mut waiting: Vec<Conn> = (0..600).map(|_| server.connect()).collect();
    for conn in &mut waiting {
        conn.send(b"set x 0 0 16384\r\n");
        conn.send(&[b'a'; 16_000]);
    }
    until("all of them are read", &server, || {
        let mut conn = server.connect();
        conn.send(&[&login("foo", "bar")[..], b"stats\r\n"].concat());
        conn.skip_until_seen(b"STAT curr_connections ", 1);
        conn.read_line();
        conn.skip_until_seen(b"STAT bytes_read ", 1);
        let read: u64 = String::from_utf8_lossy(&conn.read_line()).parse().expect("a number");
        read > 600 * 16_000
    });
    let more = server.rss_kib().saturating_sub(before);
    assert!(more < 64 << 10, "{more} KiB more");
    drop(waiting);
    assert!(server.log().contains("wrong user or password"), "{}", server.log());
    let mut conn = server.connect();
    conn.ask(&[login("foo", "bar"), b"mn\r\n".to_vec()].concat(), b"STORED\r\nMN\r\n");
    server.signal(libc::SIGTERM);
    assert!(server.wait_exit().success());
}

#[test]
fn every_refused_line_is_answered() {
    // differs refusals-before-a-password
    if !is_cached() {
        return;
    }
    let passwords = Passwords::new(TWO);
    let server = passwords.text("");
    let refused = b"CLIENT_ERROR unauthenticated\r\n".repeat(3);
    server.connect().ask(b"get k\r\nstats\r\nmn\r\n", &refused);
}

#[test]
fn the_tenth_wrong_password_ends_the_connection() {
    if !is_cached() {
        return;
    }
    let passwords = Passwords::new(TWO);
    let server = passwords.text("");
    let mut conn = server.connect();
    for _ in 0..10 {
        conn.ask(&login("foo", "wrong"), b"CLIENT_ERROR authentication failure\r\n");
    }
    conn.expect_closed("ten wrong passwords");
    let log = server.log();
    assert!(log.contains("wrong user or password") && log.contains("127.0.0.1:"), "{log}");
    assert!(!log.contains("wrong\"") && !log.contains("foo"), "no user and no password is logged: {log}");
    let server = passwords.sasl("");
    let mut conn = server.connect();
    for _ in 0..10 {
        ask(&mut conn, &sasl("SASL_AUTH", b"PLAIN", b"\0foo\0wrong"), FAILURE);
    }
    conn.expect_closed("ten wrong passwords");
}

/// After a hundred wrong passwords from one address, each further wrong password ends its
/// connection. Correct passwords from that address are still accepted.
#[test]
fn many_wrong_passwords_of_an_address_cost_a_connection_each() {
    if !is_cached() {
        return;
    }
    let passwords = Passwords::new(TWO);
    let server = passwords.text("--debug-clock");
    let failure = b"CLIENT_ERROR authentication failure\r\n";
    let mut user = server.connect();
    user.ask(&login("foo", "bar"), b"STORED\r\n");
    // An address may send one more wrong password each second.
    user.ask(b"debugtime p\r\n", b"OK\r\n");
    for _ in 0..10 {
        let mut conn = server.connect();
        (0..10).for_each(|_| conn.ask(&login("foo", "wrong"), failure));
        conn.expect_closed("ten wrong passwords");
    }
    for _ in 0..5 {
        let mut conn = server.connect();
        conn.ask(&login("foo", "wrong"), failure);
        conn.expect_closed("one of too many");
        server.connect().ask(&login("foo", "bar"), b"STORED\r\n");
    }
    let log = server.log();
    assert!(log.contains("too many wrong passwords come from this address"), "{log}");
    user.ask(b"debugtime r\r\ndebugtime 100\r\n", b"OK\r\nOK\r\n");
    let mut conn = server.connect();
    conn.ask(&login("foo", "wrong"), failure);
    conn.ask(&login("foo", "bar"), b"STORED\r\n");
}

/// SIGHUP reloads the passwords; an invalid file changes nothing. Open connections stay.
#[test]
fn passwords_are_read_again() {
    let passwords = Passwords::new(TWO);
    let server = passwords.text("");
    let mut open = server.connect();
    open.ask(&login("foo", "bar"), b"STORED\r\n");
    let accepts = |user: &str, password: &str| {
        let mut conn = server.connect();
        conn.send(&login(user, password));
        conn.read_line() == b"STORED"
    };
    passwords.write(b"foo:other\n");
    server.signal(libc::SIGHUP);
    until("the new password", &server, || accepts("foo", "other"));
    assert!(!accepts("foo", "bar") && !accepts("baaaz", "quux"));
    open.ask(b"mn\r\n", b"MN\r\n");
    if is_cached() {
        passwords.write(b"foo\n");
        server.signal(libc::SIGHUP);
        until("the error", &server, || server.log().contains("line 1 has no colon"));
        assert!(accepts("foo", "other"));
    }
    // 57934a1d0: the file is replaced while clients authenticate.
    passwords.write(b"last:one\n");
    server.signal(libc::SIGHUP);
    until("the last user", &server, || accepts("last", "one"));
    for round in 0..200 {
        passwords.write(if round % 2 == 0 { b"foo:bar\nlast:one\n" } else { b"last:one\nfoo:bar\n" });
        server.signal(libc::SIGHUP);
        assert!(accepts("last", "one"), "round {round}");
    }
}

/// CVE-2013-7239, ced9e1730, CVE-2016-8706: which requests are executed before SASL has succeeded.
#[test]
fn sasl_before_anything_else() {
    if !is_cached() {
        return;
    }
    let passwords = Passwords::new(b"testuser@realm:testpass:more\n\nother:secret\n");
    for args in ["", "-vv", "-B binary"] {
        let server = passwords.sasl(args);
        for opcode in (0..=u8::MAX).filter(|opcode| !matches!(opcode, 0x0b | 0x20..=0x22)) {
            let mut conn = server.connect();
            ask(&mut conn, &Request::new(opcode).key(b"k").extras(&[0; 8]).bytes(), FAILURE);
            conn.expect_closed("a command without a password");
        }
        let mut conn = server.connect();
        conn.send(&frame("VERSION"));
        assert_eq!(response(&mut conn), (0x0b, 0, b"1.6.45".to_vec()));
        ask(&mut conn, &frame("SASL_LIST"), (0, b"PLAIN"));
        ask(&mut conn, &sasl("SASL_STEP", b"PLAIN", b"\0other\0secret"), FAILURE);
        ask(&mut conn, &sasl("SASL_AUTH", &[b'X'; 40], b"\0other\0secret"), (4, b"Invalid arguments"));
        ask(&mut conn, &sasl("SASL_AUTH", b"CRAM-MD5", b""), FAILURE);
        ask(&mut conn, &sasl("SASL_AUTH", b"PLAIN", b"\0testuser@realm\0wrong"), FAILURE);
        ask(&mut conn, &sasl("SASL_AUTH", b"PLAIN", b"\0testuser@realm\0testpass:more"), FAILURE);
        ask(&mut conn, &sasl("SASL_AUTH", b"PLAIN", b"root\0other\0secret"), FAILURE);
        ask(&mut conn, &sasl("SASL_AUTH", b"PLAIN", b"\0testuser@realm\0testpass"), (0, b"Authenticated"));
        ask(&mut conn, &frame("NOOP"), (0, b""));
        // A wrong password revokes an earlier successful authentication.
        ask(&mut conn, &sasl("SASL_AUTH", b"PLAIN", b"\0other\0wrong"), FAILURE);
        ask(&mut conn, &Request::new(op("GET").unwrap()).key(b"k").bytes(), FAILURE);
        conn.expect_closed("a command without a password");
        // The exchange has two steps, sent byte by byte, with a request in the same packet.
        let mut conn = server.connect();
        ask(&mut conn, &sasl("SASL_AUTH", b"plain", b""), (0x21, b""));
        let step = [sasl("SASL_STEP", b"PLAIN", b"other\0other\0secret"), frame("NOOP")].concat();
        conn.send_fragments(&step, [1]);
        assert_eq!(response(&mut conn), (0x22, 0, b"Authenticated".to_vec()));
        assert_eq!(response(&mut conn), (0x0a, 0, Vec::new()));
        let mut conn = server.connect();
        conn.send(b"get k\r\n");
        conn.expect_closed("text without -Y");
        let mut conn = server.connect();
        conn.send(&Request { bodylen: Some(0), ..Request::new(0x21).key(&[b'k'; 250]) }.bytes());
        assert_eq!(response(&mut conn).1, 0x81);
        conn.expect_closed("a key longer than the body");
        let mut conn = server.connect();
        conn.send(&Request { bodylen: Some(1 << 20), ..Request::new(0x21).key(b"PLAIN") }.bytes());
        assert_eq!(response(&mut conn).1, 0x82);
        conn.send(&vec![0x80; (1 << 20) - 5]);
        ask(&mut conn, &sasl("SASL_AUTH", b"PLAIN", b"\0other\0secret"), (0, b"Authenticated"));
    }
    assert!(OPS.len() > 30);
}

/// CVE-2013-7239, CVE-2016-8706, CVE-2011-4971, 229cf41be: SASL frames whose lengths contradict
/// each other or are huge, and steps after a refusal.
#[test]
fn frames_of_sasl_that_break_the_rules() {
    if !is_cached() {
        return;
    }
    let passwords = Passwords::new(b"user:password\n");
    let server = passwords.sasl("-vv");
    let right = b"\0user\0password";
    for name in ["SASL_AUTH", "SASL_STEP"] {
        let code = op(name).expect("an opcode");
        for (keylen, bodylen) in [(250, 0), (250, 249), (1, 0)] {
            let mut conn = server.connect();
            let request = Request::new(code).key(&[b'k'; 250]);
            conn.send(&Request { keylen: Some(keylen), bodylen: Some(bodylen), ..request }.bytes());
            assert_eq!(response(&mut conn).1, 0x81, "{name}: keylen {keylen}, bodylen {bodylen}");
            conn.expect_closed("a key longer than the body");
        }
        let mut conn = server.connect();
        let long = Request::new(code).key(&[b'k'; u16::MAX as usize]);
        conn.send(&Request { bodylen: Some(100), ..long }.bytes());
        // If unread input remains, the close may overtake the reply.
        let reply = conn.read_to_end();
        assert!(reply.is_empty() || reply[6..8] == [0, 0x81], "{}", reply.escape_ascii());
        for bodylen in [0x7fff_fffe, 0x7fff_ffff, 0x8000_0000, 0xffff_ffe8, 0xffff_ffff] {
            let mut conn = server.connect();
            conn.send(&Request { bodylen: Some(bodylen), ..Request::new(code).key(b"PLAIN") }.bytes());
            let (_, status, _) = response(&mut conn);
            assert!(matches!(status, 0x04 | 0x82), "{name}: bodylen {bodylen:#x}: {status:#x}");
            // The following input contains no command.
            conn.send(&frame("VERSION"));
            conn.send(&frame("NOOP"));
            assert_eq!(conn.read_until_quiet(std::time::Duration::from_millis(100)), b"", "{bodylen:#x}");
        }
        for extras in [1, 4, 8, 255] {
            let mut conn = server.connect();
            conn.send(&Request::new(code).key(b"PLAIN").extras(&vec![0; extras]).value(right).bytes());
            assert_ne!(response(&mut conn).1, 0, "{name} with {extras} bytes of extras");
        }
    }
    // After a refusal, no step can continue the exchange, whatever it contains.
    let mut conn = server.connect();
    for _ in 0..3 {
        ask(&mut conn, &sasl("SASL_AUTH", b"PLAIN", b"\0user\0wrong"), FAILURE);
        ask(&mut conn, &sasl("SASL_STEP", b"PLAIN", right), FAILURE);
    }
    ask(&mut conn, &Request::new(op("GET").unwrap()).key(b"k").bytes(), FAILURE);
    conn.expect_closed("a command without a password");
    // The second packet is longer than the first one announced.
    let mut conn = server.connect();
    ask(&mut conn, &sasl("SASL_AUTH", b"PLAIN", b""), (0x21, b""));
    let long = [&right[..], &[b'x'; 4000]].concat();
    ask(&mut conn, &sasl("SASL_STEP", b"PLAIN", &long), FAILURE);
    ask(&mut conn, &sasl("SASL_STEP", b"PLAIN", right), FAILURE);
    ask(&mut conn, &sasl("SASL_AUTH", b"PLAIN", right), (0, b"Authenticated"));
    ask(&mut conn, &frame("NOOP"), (0, b""));
}

/// CVE-2021-37519: unusual but valid password files.
#[test]
fn strange_files_of_passwords() {
    if !is_cached() {
        return;
    }
    // This is the longest line.
    let long_user = "u".repeat(253);
    let long = format!("{long_user}:p\n");
    for (text, user, password) in [
        (&b"foo:bar"[..], "foo", "bar"),
        (b"foo:bar\r\n", "foo", "bar"),
        (b"foo:bar\nbar:foo", "bar", "foo"),
        (long.as_bytes(), &long_user, "p"),
    ] {
        let shown = text.escape_ascii().to_string();
        let passwords = Passwords::new(text);
        let server = passwords.text("");
        let mut conn = server.connect();
        conn.send(&login(user, password));
        assert_eq!(conn.read_line(), b"STORED", "{shown}");
    }
}

#[test]
fn both_protocols_with_passwords_of_their_own() {
    if !is_cached() {
        return;
    }
    let (text, binary) = (Passwords::new(b"t:text\n"), Passwords::new(b"b:binary\n"));
    let start = |args: &str| {
        let args = format!("-Y {} -S {args}", text.path().display());
        Start::new().args(&args).variable("MEMCACHED_SASL_PWDB", &binary.path())
    };
    for server in [start("").start(), start("").unix().start()] {
        let mut conn = server.connect();
        conn.ask(&login("b", "binary"), b"CLIENT_ERROR authentication failure\r\n");
        conn.ask(&login("t", "text"), b"STORED\r\n");
        let mut conn = server.connect();
        ask(&mut conn, &sasl("SASL_AUTH", b"PLAIN", b"\0t\0text"), FAILURE);
        ask(&mut conn, &sasl("SASL_AUTH", b"PLAIN", b"\0b\0binary"), (0, b"Authenticated"));
    }
}

/// e7c7a1089, 3791d9eda, CVE-2021-37519: if authentication cannot be enforced, the start fails with
/// one line.
#[test]
fn a_start_without_protection_is_refused() {
    if !is_cached() {
        return;
    }
    let passwords = Passwords::new(TWO);
    let refused = |start: Start, words: &str, status: i32| {
        let (found, text) = start.run_to_exit();
        assert!(text.contains(words), "{words:?} expected, found\n{text}");
        assert_eq!((found.code(), text.trim().lines().count()), (Some(status), 1), "{text}");
    };
    let ascii = "You cannot allow the ASCII protocol while using SASL.";
    let listener = "a listener's proto[…] lets clients in without a password";
    for (args, words) in [
        ("-S -B auto", ascii),
        ("-S -B ascii", ascii),
        ("-S -B binary -B ascii", ascii),
        ("-S -U 11211", "Cannot enable UDP while using binary SASL authentication."),
        ("-S -l proto[ascii]:127.0.0.1", listener),
        ("-S -l 127.0.0.1,proto[negotiating]:127.0.0.2", listener),
    ] {
        refused(Start::new().args(args).variable("MEMCACHED_SASL_PWDB", &passwords.path()), words, 64);
    }
    refused(Start::new().args("-S"), "MEMCACHED_SASL_PWDB", 64);
    let missing = passwords.path().join("missing");
    refused(
        Start::new().args("-S").variable("MEMCACHED_SASL_PWDB", &missing),
        "cannot read the passwords",
        1,
    );
    let file = passwords.path().display().to_string();
    let binary = "You cannot allow the BINARY protocol while using ascii authentication tokens.";
    for (args, words, status) in [
        (format!("-Y {file} -B binary"), binary, 64),
        (format!("-Y {file} -B auto"), binary, 64),
        (format!("-Y {file} -U 11211"), "Cannot use UDP with ascii authentication enabled", 64),
        (format!("-Y {file} -l proto[negotiating]:127.0.0.1"), listener, 64),
        (format!("-Y {file} -l proto[binary]:127.0.0.1"), listener, 64),
        ("-Y /nonexistent".into(), "cannot read the passwords in /nonexistent: No such file", 1),
    ] {
        refused(Start::new().args(&args), words, status);
    }
    for text in
        [&b""[..], b"\n", b"user", b"user:password\n\n", b":password", b"user:", b"a:b\0", &[b'u'; 600]]
    {
        passwords.write(text);
        refused(Start::new().args(&format!("-Y {file}")), &file, 1);
    }
    // The same setting is in the configuration file.
    let config = passwords.0.path().join("cached.toml");
    for (keys, words) in [
        ("protocol = \"binary\"", "memcached.protocol"),
        ("udp_listen = [\"127.0.0.1\"]", "memcached.udp_listen"),
    ] {
        std::fs::write(&config, format!("[memcached]\nauth_file = \"/x\"\n{keys}\n")).expect("a file");
        refused(Start::new().args(&format!("--config={}", config.display())), words, 78);
    }
}

#[test]
fn a_unix_socket_has_the_gate_too() {
    let passwords = Passwords::new(TWO);
    let server = Start::new().args(&format!("-Y {}", passwords.path().display())).unix().start();
    assert!(matches!(server.address, Address::Unix(_)));
    let mut conn = server.connect();
    conn.ask(b"get k\r\n", b"CLIENT_ERROR unauthenticated\r\n");
    conn.ask(&login("foo", "bar"), b"STORED\r\n");
}

/// `cached`, and memcached with libsasl, reply in the same way to every frame that a client may
/// send first.
#[test]
fn the_gate_of_sasl_is_memcacheds() {
    const TEST: &str = "the_gate_of_sasl_is_memcacheds";
    if !is_cached() {
        return;
    }
    let reference = match std::env::var_os("CACHED_REFERENCE_MEMCACHED") {
        Some(path) => Program::at(path),
        None => match outside::find_program("memcached") {
            Some(path) => Program::at(path),
            None => return outside::skip(TEST, "memcached is not installed"),
        },
    };
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    if !folders.into_iter().any(|folder| folder.path().join("sasl2/libplain.so").exists()) {
        return outside::skip(TEST, "libsasl2-modules is not installed");
    }
    let passwords = Passwords::new(b"user:password\n");
    std::fs::write(passwords.0.path().join("memcached.conf"), "mech_list: plain\n").expect("a file");
    let ours = passwords.sasl("");
    let theirs = Start::program(reference).args("-S").variable("SASL_CONF_PATH", passwords.0.path()).start();
    let mut cases: Vec<Vec<u8>> = (0..=u8::MAX)
        // The replies to VERSION differ.
        .filter(|opcode| *opcode != 0x0b)
        .flat_map(|opcode| {
            let request = |key: &[u8], extras: &[u8]| Request::new(opcode).key(key).extras(extras).bytes();
            [request(b"k", &[0; 8]), request(b"", b""), request(&[b'k'; 251], b"")]
        })
        .collect();
    for (name, mechanism, data) in [
        ("SASL_AUTH", &b"NOPE"[..], &b"x"[..]),
        ("SASL_AUTH", &[b'X'; 32], b"abc"),
        ("SASL_AUTH", &[b'X'; 33], b"abc"),
        ("SASL_AUTH", b"PLAIN", b""),
        ("SASL_AUTH", b"PLAIN", b"\0user\0wrong"),
        ("SASL_AUTH", b"plain", b"\0nobody\0wrong"),
        ("SASL_AUTH", b"PLAIN", b"other\0user\0wrong"),
        ("SASL_AUTH", b"PLAIN", b"xx"),
        ("SASL_AUTH", b"PLAIN", b"\0\0"),
        ("SASL_STEP", b"PLAIN", b"\0user\0wrong"),
    ] {
        cases.push(sasl(name, mechanism, data));
    }
    cases.push([sasl("SASL_AUTH", b"PLAIN", b""), sasl("SASL_STEP", b"PLAIN", b"\0user\0wrong")].concat());
    cases.push(Request { bodylen: Some(2), ..Request::new(0x21).key(b"PLAIN") }.bytes());
    // All exchanges end with a refused GET.
    let end = [frame("SASL_LIST"), Request::new(op("GET").unwrap()).key(b"k").bytes()].concat();
    for case in cases {
        let [mine, its] = [&ours, &theirs].map(|server| {
            let mut conn = server.connect();
            conn.send(&[&case[..], &end].concat());
            conn.read_to_end()
        });
        assert!(mine == its, "{}:\n{}\n{}", case.escape_ascii(), mine.escape_ascii(), its.escape_ascii());
    }
}
