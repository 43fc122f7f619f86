//! The same random commands to the server under test and to a memcached: the replies are the same.
//!
//! The reference is `CACHED_REFERENCE_MEMCACHED` or the installed memcached (1.6.18 in Debian 12, whose known
//! differences are not generated). Seeds are fixed, so that a run can be repeated; with
//! `CACHED_DIFFERENTIAL_SECONDS=60` random ones are tried for a minute. `CACHED_DIFFERENTIAL_SEED` plays one.

use cached_tests::bytes::show;
use cached_tests::conn::Conn;
use cached_tests::frame::{Request, op};
use cached_tests::generate::{self, BINARY_FENCE, Dialect, Generated, TEXT_FENCE, Told};
use cached_tests::outside;
use cached_tests::program::Program;
use cached_tests::server::{Server, Start};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const SEEDS: std::ops::Range<u64> = 1..5;
const BATCHES: usize = 80;

/// Which requests a sequence is made of.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Text,
    Meta,
    Mixed,
    Binary,
}

#[test]
fn text() {
    compare("text", Kind::Text);
}

#[test]
fn meta() {
    compare("meta", Kind::Meta);
}

#[test]
fn text_and_meta() {
    compare("text_and_meta", Kind::Mixed);
}

#[test]
fn binary() {
    compare("binary", Kind::Binary);
}

fn reference() -> Option<Program> {
    match std::env::var_os("CACHED_REFERENCE_MEMCACHED") {
        Some(path) => Some(Program::at(PathBuf::from(path))),
        None => outside::find_program("memcached").map(Program::at),
    }
}

fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn compare(test: &str, kind: Kind) {
    let Some(reference) = reference() else {
        return outside::skip(test, "memcached is not installed");
    };
    if let Some(seed) = number_from_environment("CACHED_DIFFERENTIAL_SEED") {
        return play(&reference, kind, seed);
    }
    for seed in SEEDS {
        play(&reference, kind, seed);
    }
    if let Some(seconds) = number_from_environment("CACHED_DIFFERENTIAL_SECONDS") {
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            play(&reference, kind, rand::random());
        }
    }
}

/// One server with a connection and the CAS values it has told.
struct Side {
    name: &'static str,
    server: Server,
    conn: Conn,
    told: Told,
}

impl Side {
    fn new(name: &'static str, start: Start) -> Self {
        let server = start.start();
        Self { name, conn: server.connect(), server, told: Told::new() }
    }

    /// Sends a batch in random fragments and returns the replies to it, made even.
    fn ask(&mut self, batch: &[Generated], kind: Kind, random: &mut SmallRng) -> (Vec<u8>, Vec<u8>) {
        let mut sent: Vec<u8> = batch.iter().flat_map(|request| request.bytes(&self.told)).collect();
        let is_binary = matches!(kind, Kind::Binary);
        let fence = Request { opaque: Some(BINARY_FENCE), ..Request::new(op("NOOP").unwrap()) }.bytes();
        sent.extend(if is_binary { &fence } else { TEXT_FENCE });
        let largest = [1, 10, 100, 2_000, 1_000_000][random.random_range(0..5)];
        let sizes: Vec<usize> = (0..sent.len()).map(|_| random.random_range(1..=largest)).collect();
        self.conn.send_fragments(&sent, sizes);
        let reply = if is_binary {
            self.read_frames(&sent)
        } else {
            // The last of as many `MN` as were asked for is the fence's.
            self.read_to_fence(sent.windows(4).filter(|four| four == b"mn\r\n").count())
        };
        let even = if is_binary {
            generate::even_frames(&reply, &keys_by_opaque(&sent), &mut self.told)
        } else {
            generate::even_text(&reply, &mut self.told)
        };
        (even, reply)
    }

    fn read_to_fence(&mut self, fences: usize) -> Vec<u8> {
        let mut reply = Vec::new();
        let mut seen = 0;
        while seen < fences {
            let line = self.conn.read_line();
            seen += usize::from(line == b"MN");
            reply.extend(line);
            reply.extend(b"\r\n");
        }
        reply
    }

    fn read_frames(&mut self, sent: &[u8]) -> Vec<u8> {
        let mut reply = Vec::new();
        loop {
            let head = self.conn.read_exact(24);
            assert_eq!(head[0], 0x81, "{}: no frame: {}\n  sent: {}", self.name, show(&head), show(sent));
            let body_len = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
            let body = self.conn.read_exact(body_len);
            let is_fence = head[12..16] == BINARY_FENCE.to_be_bytes();
            reply.extend(head);
            reply.extend(body);
            if is_fence {
                return reply;
            }
        }
    }
}

/// The key of every request in a binary batch.
fn keys_by_opaque(sent: &[u8]) -> HashMap<u32, String> {
    let mut keys = HashMap::new();
    let mut rest = sent;
    while let Some(head) = rest.first_chunk::<24>() {
        let key_len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let key_at = 24 + usize::from(head[4]);
        let body_len = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let opaque = u32::from_be_bytes([head[12], head[13], head[14], head[15]]);
        keys.insert(opaque, String::from_utf8_lossy(&rest[key_at..key_at + key_len]).into_owned());
        rest = &rest[24 + body_len..];
    }
    keys
}

fn play(reference: &Program, kind: Kind, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut ours = Side::new("under test", Start::new());
    let mut theirs = Side::new("reference", Start::program(reference.clone()));
    theirs.conn.send(b"version\r\n");
    let dialect = if theirs.conn.read_line() == b"VERSION 1.6.18" { Dialect::Debian } else { Dialect::Full };
    // The first byte of a connection fixes its protocol.
    theirs.conn = theirs.server.connect();
    for batch_number in 0..BATCHES {
        let count = random.random_range(1..20);
        let batch: Vec<Generated> = (0..count)
            .map(|number| match kind {
                Kind::Text => generate::text(&mut random, dialect),
                Kind::Meta => generate::meta(&mut random, dialect),
                Kind::Mixed if random.random_bool(0.5) => generate::text(&mut random, dialect),
                Kind::Mixed => generate::meta(&mut random, dialect),
                Kind::Binary => generate::binary(&mut random, number),
            })
            .collect();
        let (our_even, our_reply) = ours.ask(&batch, kind, &mut random);
        let (their_even, their_reply) = theirs.ask(&batch, kind, &mut random);
        if our_even != their_even {
            let at = our_even.iter().zip(&their_even).take_while(|(ours, theirs)| ours == theirs).count();
            let sent: Vec<u8> = batch.iter().flat_map(|request| request.bytes(&theirs.told)).collect();
            panic!(
                "{kind:?}, seed {seed}, batch {batch_number}: replies differ at byte {at} (made even)\n  \
                 sent (CAS values as the reference knows them):\n    {}\n  expected:\n    {}\n  got:\n    {}",
                lines(&sent),
                lines(&their_reply),
                lines(&our_reply)
            );
        }
    }
}

fn lines(bytes: &[u8]) -> String {
    show(bytes).replace("\\r\\n", "\\r\\n\n    ")
}
