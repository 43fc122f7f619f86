//! The history of memcached's security fixes as tests, one per row that concerns an implemented feature, each
//! with a silent server and with `-vv`.
//!
//! Rows that are wire scripts (they are played with `-vv`, too):
//!
//! | row | script or test |
//! |---|---|
//! | CVE-2009-1255, -1494 | `stats.wire`, [`no_line_of_stats_shows_memory_addresses`] |
//! | CVE-2009-2415 | `storage.wire` (lengths), `abuse_senders.rs` (memory) |
//! | CVE-2010-1152, e8364b58b, 8b852b61f | `lines.wire`, `abuse_senders.rs` |
//! | CVE-2011-4971, 229cf41be | `binary_broken.wire`, `abuse_senders.rs` |
//! | CVE-2013-0179, -7290, -7291 | [`keys_longer_than_the_body`], [`strange_keys_in_the_log`] |
//! | CVE-2016-8704, -8705, -8706, CVE-2017-9951 | `binary_broken.wire`, [`keys_longer_than_the_body`] |
//! | CVE-2018-1000115 | [`no_udp_by_default`], `udp.rs` (limited replies, nothing but whole requests) |
//! | CVE-2018-1000127, e3b7d33ce | `abuse_readers.rs` |
//! | CVE-2019-11596, 0240ddee0, 6ab74b585 | `admin.wire` |
//! | CVE-2019-15026 | [`stats_conns_over_a_long_unix_path`] |
//! | CVE-2020-10931 | [`extras_of_every_length`] |
//! | CVE-2020-22570 | `meta_errors.wire`, [`every_flag_of_every_meta_command`] |
//! | CVE-2023-46852 | [`blanks_before_the_key_of_a_get`] |
//! | CVE-2023-46853 | [`scripts_with_bare_line_feeds`] |
//! | 7af02b0c8 | `abuse_senders.rs` (tiny segments) |
//! | ea92c6c01 | `arithmetic.wire` (long runs of digits) |
//! | 28f4abf8e | every script, byte by byte |
//! | d4fd459d6 | `lines.wire` |
//! | aa352388a | `dumps.wire` |
//! | 32ea7d8b5, 7eeac6e9a, 76dc58c6b | `security_admin.rs` |
//! | 96e05b75f | `tls.rs` (a hundred sets in one record) |
//! | e7793811f, 3bc58f6ea, 3a66ebeb1 | `watch.rs` (watchers under load) |
//! | CVE-2011-4971, CVE-2013-7239, CVE-2016-8706 of SASL, ced9e1730, CVE-2021-37519, 9981d748f, 57934a1d0, 3791d9eda, af05c9302, e7c7a1089 | `auth.rs` |
//! | CVE-2026-47783, -47784 | digests, all compared: `memcached/src/settings/auth.rs` |
//! | CVE-2022-48571 | `udp.rs` |
//! | 93b5e10fd, 152ddb68f | [`long_opaques_leak_nothing`] |
//! | 17684bfa9, 7d8ef8fcd | [`flags_at_the_end_of_a_read`] |

use cached_tests::abuse::Memory;
use cached_tests::frame::{OPS, Request, op};
use cached_tests::script::{self, Step};
use cached_tests::server::{Address, Server, Start};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::path::PathBuf;

/// Runs a test on a server with minimal logging and on a server that logs everything.
fn with_and_without_log(test: impl Fn(&mut Server)) {
    for args in ["", "-vv"] {
        let mut server = Server::start(args);
        test(&mut server);
        server.assert_serves(args);
    }
}

#[test]
fn no_line_of_stats_shows_memory_addresses() {
    with_and_without_log(|server| {
        let mut conn = server.connect();
        conn.ask(b"set k 0 0 1\r\nx\r\n", b"STORED\r\n");
        for sub in ["", " settings", " items", " slabs", " sizes", " conns", " detail dump", " cachedump 1 0"]
        {
            conn.send(format!("stats{sub}\r\n").as_bytes());
            loop {
                let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
                assert!(!line.contains("0x"), "an address in {line}");
                assert!(!line.contains('/') || line.contains("unix:"), "a path in {line}");
                if line == "END" {
                    break;
                }
            }
        }
    });
}

/// If a key is longer than the body, every known operation code gets the status 0x81, and the
/// connection is closed.
#[test]
fn keys_longer_than_the_body() {
    with_and_without_log(|server| {
        for code in 0..=255 {
            for (keylen, bodylen) in [(250, 0), (250, 249), (1, 0)] {
                let mut conn = server.connect();
                let request = Request {
                    keylen: Some(keylen),
                    bodylen: Some(bodylen),
                    ..Request::new(code).key(&[b'k'; 250])
                };
                conn.send(&request.bytes());
                let reply = conn.read_to_end();
                assert_eq!(
                    (reply.get(..2), reply.get(6..8)),
                    (Some(&[0x81, code][..]), Some(&[0, 0x81][..])),
                    "operation {code:#x}, keylen {keylen}, bodylen {bodylen}"
                );
            }
        }
    });
}

/// Extras of every length with every known operation get the status 0x04, and the connection is
/// closed, unless the length is valid.
#[test]
fn extras_of_every_length() {
    with_and_without_log(|server| {
        for &(name, code) in OPS {
            let right: &[usize] = match name {
                "SET" | "SETQ" | "ADD" | "ADDQ" | "REPLACE" | "REPLACEQ" => &[8],
                "INCR" | "INCRQ" | "DECR" | "DECRQ" => &[20],
                "TOUCH" | "GAT" | "GATQ" | "GATK" | "GATKQ" => &[4],
                // The request has a key, so no length is valid.
                "FLUSH" | "FLUSHQ" | "NOOP" | "VERSION" | "QUIT" | "QUITQ" | "SASL_LIST" => &[],
                _ => &[0],
            };
            for len in [0, 1, 3, 4, 5, 7, 8, 9, 16, 19, 20, 21, 24, 25, 32, 64, 127, 128, 254, 255] {
                if right.contains(&len) {
                    continue;
                }
                let mut conn = server.connect();
                conn.send(&Request::new(code).key(b"key").extras(&vec![0xff; len]).bytes());
                let reply = conn.read_to_end();
                assert_eq!(
                    (reply.get(..1), reply.get(6..8)),
                    (Some(&[0x81][..]), Some(&[0, 4][..])),
                    "{name} with {len} bytes of extras"
                );
            }
        }
    });
}

/// Keys of every length that are not text pass through the code that logs them.
#[test]
fn strange_keys_in_the_log() {
    with_and_without_log(|server| {
        let mut conn = server.connect();
        for len in [1, 2, 127, 249, 250] {
            for fill in [0u8, 0x01, b'%', b'\\', 0x7f, 0xff] {
                let key = vec![fill; len];
                let mut text = b"set ".to_vec();
                text.extend(&key);
                text.extend(b" 0 0 1\r\nx\r\n");
                conn.ask(&text, b"STORED\r\n");
                let mut get = b"get ".to_vec();
                get.extend(&key);
                get.extend(b"\r\n");
                let mut expected = b"VALUE ".to_vec();
                expected.extend(&key);
                expected.extend(b" 0 1\r\nx\r\nEND\r\n");
                conn.ask(&get, &expected);
            }
        }
        let mut binary = server.connect();
        for name in ["GET", "GETK", "DELETE", "APPEND", "STAT", "TOUCH", "INCR"] {
            let extras = match name {
                "TOUCH" => vec![0; 4],
                "INCR" => vec![0; 20],
                _ => Vec::new(),
            };
            binary.send(&Request::new(op(name).unwrap()).extras(&extras).key(&[0; 250]).bytes());
        }
        binary.send(&Request { opaque: Some(7), ..Request::new(op("NOOP").unwrap()) }.bytes());
        binary.skip_until_seen(&[0x81, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7], 1);
    });
}

#[test]
fn no_udp_by_default() {
    let server = Server::start("");
    let port = format!(":{:04X} ", server.port());
    for table in ["/proc/net/udp", "/proc/net/udp6"] {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        assert!(!text.contains(&port), "a UDP socket on port {}:\n{text}", server.port());
    }
}

/// `stats conns` shows a peer that has no name, over a path of the maximum length.
#[test]
fn stats_conns_over_a_long_unix_path() {
    const PATH_LEN: usize = 107;
    for args in ["", "-vv"] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let room =
            PATH_LEN.checked_sub(dir.path().as_os_str().len() + 1).expect("a short temporary directory");
        let path = dir.path().join("s".repeat(room));
        let mut server = Start::new().args(args).unix_at(&path).start();
        let mut conn = server.connect();
        conn.send(b"stats conns\r\n");
        let mut lines = Vec::new();
        loop {
            let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
            if line == "END" {
                break;
            }
            lines.push(line);
        }
        assert!(lines.iter().any(|line| line.contains("unix:")), "{lines:#?}");
        server.assert_serves("stats conns");
        assert!(matches!(server.address, Address::Unix(_)));
    }
}

/// Every printable byte is sent as a flag of every meta command, alone, twice, and with a token:
/// each has one reply, and requests and replies stay in step.
#[test]
fn every_flag_of_every_meta_command() {
    with_and_without_log(|server| {
        let mut conn = server.connect();
        conn.ask(b"set k 0 0 1\r\n5\r\n", b"STORED\r\n");
        for command in ["mg k", "md none", "ma k", "ms k 1"] {
            for flag in (0x21u8..=0xff).map(char::from).filter(|&flag| flag != '\u{7f}') {
                for flags in
                    [format!("{flag}"), format!("{flag} {flag}"), format!("{flag}5"), format!("{flag}abc")]
                {
                    let mut request: Vec<u8> = format!("{command} ").into_bytes();
                    request.extend(flags.chars().map(|char| char as u32 as u8));
                    request.extend(b"\r\n");
                    if command.starts_with("ms") {
                        request.extend(b"5\r\n");
                    }
                    conn.send(&request);
                    // The reply to `me` repeats the word after it. The earlier reply, of any kind,
                    // is complete.
                    conn.send(b"mn\r\n");
                    let mut replies = 0;
                    while conn.read_line() != b"MN" {
                        replies += 1;
                        assert!(replies <= 2, "{command} {flags}: too many lines");
                    }
                    assert!(replies >= 1 || flags.contains('q'), "{command} {flags}: no reply");
                }
            }
        }
    });
}

#[test]
fn blanks_before_the_key_of_a_get() {
    with_and_without_log(|server| {
        let mut conn = server.connect();
        for count in (0..=4096).step_by(61) {
            conn.ask(format!("get {}key\r\n", " ".repeat(count)).as_bytes(), b"END\r\n");
            conn.ask(format!("gets key{}\n", " ".repeat(count)).as_bytes(), b"END\r\n");
        }
    });
}

/// Returns all bytes that the scripts send, case by case.
fn all_scripts() -> Vec<Vec<u8>> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("wire");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).expect("the folder of scripts") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a script");
        for case in script::parse("", &text).expect("a script that parses") {
            let captures = Default::default();
            let mut sent = Vec::new();
            for step in &case.steps {
                match step {
                    Step::Send(template) if template.is_ready(&captures) => {
                        sent.extend(template.bytes(&captures));
                    }
                    Step::SendFrame(fields) if fields.is_ready(&captures) => {
                        sent.extend(fields.request(&captures));
                    }
                    _ => {}
                }
            }
            // The largest cases test sizes; their mutations would only take time.
            if !sent.is_empty() && sent.len() < 20_000 {
                all.push(sent);
            }
        }
    }
    all
}

/// Every script is sent with LF, and with CR, instead of CRLF. The test does not check the replies,
/// but the server must survive.
#[test]
fn scripts_with_bare_line_feeds() {
    with_and_without_log(|server| {
        for sent in all_scripts() {
            for end in [&b"\n"[..], b"\r", b"\n\r", b"\r\r\n", b"\0"] {
                let changed = replace(&sent, b"\r\n", end);
                let mut conn = server.connect();
                conn.send(&changed);
                conn.finish_sending();
                conn.read_to_end();
            }
        }
    });
}

/// Every script is sent with random changes, truncated at a random position; the test prints the
/// seed.
#[test]
fn mutated_scripts() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let scripts = all_scripts();
    for args in ["", "-vv"] {
        let mut server = Server::start(args);
        let memory = Memory::of(&server);
        for sent in scripts.iter().cycle().take(1_500) {
            let mut changed = sent.clone();
            for _ in 0..random.random_range(1..8) {
                mutate(&mut changed, &mut random);
            }
            let mut conn = server.connect();
            let size = [1, 3, 100, 5_000][random.random_range(0..4)];
            // Only some bytes are sent in fragments, because each is a system call on both sides.
            let begin = random.random_range(0..=changed.len());
            conn.send_fragments(&changed, std::iter::once(begin).chain(std::iter::repeat_n(size, 60)));
            conn.finish_sending();
            conn.read_to_end();
        }
        memory.assert_grew_at_most(&server, 80, "mutated_scripts");
        server.assert_serves("mutated scripts");
    }
}

fn mutate(bytes: &mut Vec<u8>, random: &mut SmallRng) {
    const INTERESTING: &[&[u8]] = &[
        b"\r\n",
        b"\n",
        b"\0",
        b" ",
        b"  ",
        b"-1",
        b"0",
        b"4294967295",
        b"18446744073709551616",
        b"noreply",
        b"\x80",
        b"\xff",
        b" q",
        b" T",
        b" C",
        b" b",
        b"2147483647",
    ];
    if bytes.is_empty() {
        return;
    }
    let at = random.random_range(0..bytes.len());
    match random.random_range(0..6) {
        0 => bytes[at] = random.random(),
        1 => bytes[at] ^= 1 << random.random_range(0..8),
        2 => {
            bytes.remove(at);
        }
        3 => {
            let word = INTERESTING[random.random_range(0..INTERESTING.len())];
            bytes.splice(at..at, word.iter().copied());
        }
        4 => {
            let end = (at + random.random_range(1..40)).min(bytes.len());
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
        _ => bytes.truncate(at),
    }
}

fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(from.len()).position(|window| window == from) {
        out.extend(&rest[..at]);
        out.extend(to);
        rest = &rest[at + from.len()..];
    }
    out.extend(rest);
    out
}

/// Requests that fail late must free their resources. Several clients send many such requests
/// simultaneously.
#[test]
fn long_opaques_leak_nothing() {
    const TIMES: usize = 50_000;
    with_and_without_log(|server| {
        let mut conn = server.connect();
        conn.ask(b"set busy 0 0 1\r\n5\r\n", b"STORED\r\n");
        let memory = Memory::of(server);
        let long = "o".repeat(33);
        let times = if server.log().is_empty() { TIMES } else { TIMES / 10 };
        let reply = b"CLIENT_ERROR opaque token too long\r\n";
        let mut conns: Vec<_> = (0..4).map(|_| server.connect()).collect();
        let requests = [
            format!("ms k 1 O{long}\r\nx\r\n"),
            format!("mg busy O{long}\r\n"),
            format!("md busy O{long}\r\n"),
            format!("ma busy O{long}\r\n"),
        ];
        // All requests are written before any reply is read completely, so that they run
        // concurrently.
        for (conn, request) in conns.iter_mut().zip(&requests) {
            conn.send(&request.as_bytes().repeat(times));
        }
        for (conn, request) in conns.iter_mut().zip(&requests) {
            conn.expect(&reply.repeat(times), request);
        }
        memory.assert_grew_at_most(server, 24, "long_opaques_leak_nothing");
        conn.ask(b"set busy 0 0 1\r\ny\r\nget busy\r\n", b"STORED\r\nVALUE busy 0 1\r\ny\r\nEND\r\n");
    });
}

/// Reads of many sizes, among them 16 KiB, end with a flag that lacks its number.
#[test]
fn flags_at_the_end_of_a_read() {
    const TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
    with_and_without_log(|server| {
        for read in [64, 2048, 16_384, 32_768, 65_536] {
            for (line, reply) in [
                ("mg k T", TOKEN),
                ("mg k N", TOKEN),
                ("mg k C", TOKEN),
                ("md k T", TOKEN),
                ("ma k D", b"CLIENT_ERROR invalid or duplicate flag\r\n"),
                ("ms k 1 F", b""),
            ] {
                for end in ["\r\n", "\n"] {
                    let last = format!("{line}{end}");
                    let fill = read - last.len();
                    // `mn` lines of four bytes, padded with blanks.
                    let mut sent = b"mn\r\n".repeat(fill / 4);
                    let rest = fill % 4;
                    sent.splice(2..2, std::iter::repeat_n(b' ', rest));
                    sent.extend(last.bytes());
                    let mut conn = server.connect();
                    conn.send(&sent);
                    conn.expect(&b"MN\r\n".repeat(fill / 4), line);
                    conn.expect(reply, line);
                    if line.starts_with("ms") {
                        conn.ask(b"x\r\n", b"CLIENT_ERROR bad command line format\r\n");
                    }
                    conn.ask(b"mn\r\n", b"MN\r\n");
                }
            }
        }
    });
}

/// No connection waits forever: after half a request and a half-close, the server closes the
/// connection.
#[test]
fn half_closed_connections_are_closed() {
    with_and_without_log(|server| {
        let requests: [&[u8]; 6] =
            [b"", b"get k", b"set k 0 0 10\r\nabc", b"ms k 10\r\nabc", b"\x80", b"\x80\x01\0\x01\x08\0"];
        for request in requests {
            let mut conn = server.connect();
            conn.send(request);
            conn.finish_sending();
            conn.expect_closed("half closed");
        }
        let deadline = std::time::Instant::now() + cached_tests::conn::DEADLINE;
        while server.stat("curr_connections") > 8 {
            assert!(std::time::Instant::now() < deadline, "connections are kept");
        }
    });
}
