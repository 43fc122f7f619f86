//! Replays the recorded replies of memcached 1.6.45: 157 raw inputs, each on a fresh connection, in order, on
//! one server, as they were recorded (later inputs find the items that earlier ones left).
//!
//! `vectors/README.md` describes the file.

use cached_tests::bytes::{from_base64, from_hex, show};
use cached_tests::conn::Conn;
use cached_tests::pattern::{Captures, Pattern, Piece};
use cached_tests::program::{Flavour, repository};
use cached_tests::server::Server;
use serde::Deserialize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// The time for which a connection must stay silent after a complete reply. The test waits once,
/// for all connections together.
const QUIET: Duration = Duration::from_millis(300);

/// Inputs with an intended difference, its name in `DIFFERENCES.md`, and the reply of `cached`.
const DIFFERENT: &[(&str, &str, &[u8])] =
    &[("T get 251b key", "stray-crlf", b"CLIENT_ERROR bad command line format\r\n")];

/// Items that must exist before an input, because the recording server had them from earlier,
/// unrecorded requests.
const BEFORE: &[(&str, &[u8])] = &[("M ms append miss", b"set av 0 0 1\r\nx\r\n")];

/// The command that continues to send after its reply.
const WATCH: &str = "T watch";

#[derive(Deserialize)]
struct Vector {
    name: String,
    send_b64: String,
    recv: Option<String>,
    recv_hex: Option<String>,
    closed: bool,
}

impl Vector {
    fn sent(&self) -> Vec<u8> {
        from_base64(&self.send_b64).expect("base64")
    }

    fn pattern(&self, flavour: Flavour) -> Pattern {
        let different = DIFFERENT.iter().find(|(name, ..)| *name == self.name);
        if let (Flavour::Cached, Some((_, difference, ours))) = (flavour, different) {
            cached_tests::differences::known(difference);
            return Pattern::literal(ours);
        }
        match (&self.recv, &self.recv_hex) {
            (Some(text), _) => text_pattern(text.as_bytes(), &self.sent()),
            (None, Some(hex)) => frames_pattern(&from_hex(hex).expect("hex")),
            (None, None) => Pattern::default(),
        }
    }
}

#[test]
fn recorded_replies() {
    let file = repository().join("tests/vectors/memcached-1.6.45.json");
    let text = std::fs::read_to_string(&file).expect("the recorded vectors");
    let vectors: Vec<Vector> = serde_json::from_str(&text).expect("the vectors");
    let mut server = Server::start("");
    let mut failed = Vec::new();
    let mut played: Vec<(&Vector, Conn)> = Vec::new();
    for vector in &vectors {
        if let Some((_, request)) = BEFORE.iter().find(|(name, _)| *name == vector.name) {
            server.connect().ask(request, b"STORED\r\n");
        }
        let mut conn = server.connect();
        let pattern = vector.pattern(server.flavour);
        let answered = catch_unwind(AssertUnwindSafe(|| {
            conn.send(&vector.sent());
            conn.expect_pattern(&pattern, &mut Captures::default(), &vector.name);
            if vector.closed {
                conn.expect_closed(&vector.name);
            }
        }));
        match answered {
            Ok(()) if vector.name == WATCH => {}
            Ok(()) => played.push((vector, conn)),
            Err(_) => failed.push(vector.name.clone()),
        }
    }
    // One silent period serves all connections: no reply may be followed by more bytes, and exactly
    // the recorded connections are closed.
    let mut quiet = QUIET;
    for (vector, conn) in &mut played {
        let rest = conn.read_until_quiet(quiet);
        if !rest.is_empty() || conn.is_ended() != vector.closed {
            println!("{}: after the reply came {}, closed {}", vector.name, show(&rest), conn.is_ended());
            failed.push(vector.name.clone());
        }
        quiet = Duration::from_millis(1);
    }
    println!("{} of {} inputs answered as recorded", vectors.len() - failed.len(), vectors.len());
    assert!(failed.is_empty(), "answered otherwise: {failed:#?}");
    drop(played);
    server.assert_serves("the recorded inputs");
}

/// Returns the pattern of a recorded text reply. The version may vary, and so may CAS values that
/// no `E` flag has set.
fn text_pattern(recorded: &[u8], sent: &[u8]) -> Pattern {
    let sets_cas = sent.windows(2).any(|pair| pair == b" E") && sent.starts_with(b"m")
        || sent.windows(3).any(|three| three == b" E5" || three == b" E3" || three == b" E7");
    let mut pieces = Vec::new();
    for line in recorded.split_inclusive(|&byte| byte == b'\n') {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        if line.starts_with(b"VERSION ") {
            pieces.push(Piece::Literal(b"VERSION 1.6.".to_vec()));
            pieces.push(Piece::Digits(None));
            pieces.push(Piece::Literal(b"\r\n".to_vec()));
        } else if line.starts_with(b"VALUE ") && words.len() == 5 {
            let cas_at = line.len() - words[4].len();
            pieces.push(Piece::Literal(line[..cas_at].to_vec()));
            pieces.push(Piece::Digits(None));
            pieces.push(Piece::Literal(b"\r\n".to_vec()));
        } else if [&b"VA "[..], b"HD "].iter().any(|start| line.starts_with(start)) && !sets_cas {
            meta_line(&mut pieces, line);
        } else {
            pieces.push(Piece::Literal(line.to_vec()));
        }
    }
    Pattern(joined(pieces))
}

/// Appends the pattern of a meta reply line: `c<digits>` may be any number, and `t<digits>` a few
/// seconds less.
fn meta_line(pieces: &mut Vec<Piece>, line: &[u8]) {
    let text = String::from_utf8_lossy(line);
    let body = text.trim_end_matches("\r\n");
    for (index, word) in body.split(' ').enumerate() {
        if index > 0 {
            pieces.push(Piece::Literal(b" ".to_vec()));
        }
        let digits =
            word.get(1..).filter(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()));
        match (word.as_bytes().first(), digits) {
            (Some(b'c'), Some(_)) => {
                pieces.push(Piece::Literal(b"c".to_vec()));
                pieces.push(Piece::Digits(None));
            }
            (Some(b't'), Some(digits)) => {
                pieces.push(Piece::Literal(b"t".to_vec()));
                pieces.push(Piece::AtMost(digits.parse().expect("a ttl")));
            }
            _ => pieces.push(Piece::Literal(word.as_bytes().to_vec())),
        }
    }
    pieces.push(Piece::Literal(b"\r\n".to_vec()));
}

/// Returns the pattern of recorded frames: the version may vary; a CAS value must be present if the
/// recorded frame has one, and must be absent otherwise.
fn frames_pattern(recorded: &[u8]) -> Pattern {
    const VERSION: u8 = 0x0b;
    let mut pieces = Vec::new();
    let mut rest = recorded;
    while let Some(head) = rest.first_chunk::<24>() {
        let body_len = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let body = &rest[24..24 + body_len];
        pieces.push(Piece::Literal(head[..16].to_vec()));
        match &head[16..] {
            [0, 0, 0, 0, 0, 0, 0, 0] => pieces.push(Piece::Literal(vec![0; 8])),
            _ => pieces.push(Piece::Cas(None)),
        }
        if head[1] == VERSION && body.starts_with(b"1.6.") {
            // The header contains the length, so the version must have two digits at its end, like
            // 1.6.45.
            pieces.push(Piece::Literal(b"1.6.".to_vec()));
            pieces.extend(std::iter::repeat_n(Piece::Digit, body.len() - 4));
        } else {
            pieces.push(Piece::Literal(body.to_vec()));
        }
        rest = &rest[24 + body_len..];
    }
    Pattern(joined(pieces))
}

fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (out.last_mut(), piece) {
            (Some(Piece::Literal(before)), Piece::Literal(more)) => before.extend(more),
            (_, piece) => out.push(piece),
        }
    }
    out
}
