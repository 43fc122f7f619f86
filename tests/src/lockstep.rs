//! Two servers in lockstep: both get the same random commands, and their replies must be the same.
//!
//! Varying parts of replies are normalized first ([`generate`]): CAS values, times, and the
//! differences in `DIFFERENCES.md`. At the same time, other clients may use both servers, with
//! their own keys.

use crate::bytes::show;
use crate::configurations::Configuration;
use crate::conn::Conn;
use crate::ending::SetOnDrop;
use crate::frame::{Request, op};
use crate::generate::{self, BINARY_FENCE, CasValues, Dialect, Generated, TEXT_FENCE};
use crate::password;
use crate::program::Program;
use crate::server::{Server, Start};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The kinds of requests in a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Requests of the classic text protocol.
    Text,
    /// Meta requests.
    Meta,
    /// Both.
    Mixed,
    /// Binary requests.
    Binary,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Text, Kind::Meta, Kind::Mixed, Kind::Binary];
}

/// One comparison.
#[derive(Clone, Debug)]
pub struct Play<'a> {
    /// The server under test.
    pub program: &'a Program,
    /// The reference memcached.
    pub reference: &'a Program,
    /// The configuration of both servers, and of the load during the comparison.
    pub configuration: &'a Configuration,
    /// The number of connections to each server; they are used in turn.
    pub connections: usize,
    /// The number of batches of requests.
    pub batches: usize,
    /// Whether clients of the tested server must authenticate first. This is only for
    /// configurations without further load.
    pub password: bool,
}

/// A server, its connections, and the CAS values that it has returned.
struct Side<'a> {
    name: &'static str,
    server: &'a Server,
    conns: Vec<Conn>,
    returned: CasValues,
}

impl<'a> Side<'a> {
    fn new(name: &'static str, server: &'a Server, connections: usize) -> Self {
        let conns = (0..connections).map(|_| server.connect()).collect();
        Self { name, conns, server, returned: CasValues::new() }
    }

    /// Sends a batch in random fragments, and returns the normalized replies.
    fn ask(
        &mut self,
        conn: usize,
        batch: &[Generated],
        kind: Kind,
        random: &mut SmallRng,
    ) -> (Vec<u8>, Vec<u8>) {
        let mut sent: Vec<u8> = batch.iter().flat_map(|request| request.bytes(&self.returned)).collect();
        let is_binary = matches!(kind, Kind::Binary);
        let fence = Request { opaque: Some(BINARY_FENCE), ..Request::new(op("NOOP").expect("NOOP")) }.bytes();
        sent.extend(if is_binary { &fence } else { TEXT_FENCE });
        // Only short batches are split into single bytes, and most batches are sent as a whole:
        // each piece lets other processes run, which takes time on a busy machine.
        let least = 1 + sent.len() / 40;
        let largest = [1, 10, 100, 2_000, 1_000_000][random.random_range(0..5)].max(least);
        let pieces = if random.random_bool(0.25) { sent.len() / least } else { 0 };
        let sizes: Vec<usize> = (0..pieces).map(|_| random.random_range(least..=largest)).collect();
        self.conns[conn].send_fragments(&sent, sizes);
        let reply = if is_binary {
            self.read_frames(conn, &sent)
        } else {
            // The fence's reply is the last `MN`.
            self.read_to_fence(conn, sent.windows(4).filter(|four| four == b"mn\r\n").count())
        };
        let even = if is_binary {
            generate::normalize_frames(&reply, &keys_by_opaque(&sent), &mut self.returned)
        } else {
            generate::normalize_text(&reply, &mut self.returned)
        };
        (even, reply)
    }

    fn read_to_fence(&mut self, conn: usize, fences: usize) -> Vec<u8> {
        let mut reply = Vec::new();
        let mut seen = 0;
        while seen < fences {
            let line = self.conns[conn].read_line();
            seen += usize::from(line == b"MN");
            reply.extend(line);
            reply.extend(b"\r\n");
        }
        reply
    }

    fn read_frames(&mut self, conn: usize, sent: &[u8]) -> Vec<u8> {
        let mut reply = Vec::new();
        loop {
            let head = self.conns[conn].read_exact(24);
            assert_eq!(head[0], 0x81, "{}: no frame: {}\n  sent: {}", self.name, show(&head), show(sent));
            let body_len = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
            let body = self.conns[conn].read_exact(body_len);
            let is_fence = head[12..16] == BINARY_FENCE.to_be_bytes();
            reply.extend(head);
            reply.extend(body);
            if is_fence {
                return reply;
            }
        }
    }
}

/// Returns the keys of a binary batch, by opaque.
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

/// Plays one sequence; returns the number of its requests.
///
/// # Errors
/// Returns the first batch whose replies differ.
pub fn play(play: &Play<'_>, kind: Kind, seed: u64) -> Result<u64, String> {
    let mut random = SmallRng::seed_from_u64(seed);
    let start = |program: &Program| Start::program(program.clone()).args(play.configuration.compared_args);
    let is_binary = matches!(kind, Kind::Binary);
    let tested = match play.password {
        true => password::require(start(play.program), play.program.flavour, is_binary),
        false => start(play.program),
    };
    // The reference runs without its background threads, because `flush_all` keeps an item that one
    // of them holds.
    let reference = start(play.reference).args("-o no_lru_maintainer,no_lru_crawler");
    let servers = [tested.start(), reference.start()];
    let mut ours = Side::new("under test", &servers[0], play.connections);
    let mut theirs = Side::new("reference", &servers[1], play.connections);
    if play.password {
        let (request, reply) = password::login(is_binary);
        ours.conns.iter_mut().for_each(|conn| conn.ask(&request, &reply));
    }
    let mut asker = theirs.server.connect();
    asker.send(b"version\r\n");
    let dialect = if asker.read_line() == b"VERSION 1.6.18" { Dialect::Debian } else { Dialect::Full };
    let beside = Beside::new(play.configuration, &servers);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        let _end = SetOnDrop(over);
        for client in beside {
            scope.spawn(move || client.run(over));
        }
        let played = compare(play, kind, dialect, &mut random, &mut ours, &mut theirs);
        played.map_err(|problem| format!("{kind:?}, seed {seed}, {problem}"))
    })
}

fn compare(
    play: &Play<'_>,
    kind: Kind,
    dialect: Dialect,
    random: &mut SmallRng,
    ours: &mut Side<'_>,
    theirs: &mut Side<'_>,
) -> Result<u64, String> {
    let mut requests = 0;
    for batch_number in 0..play.batches {
        if !play.configuration.lossless && play.configuration.floods == 0 {
            [ours.server, theirs.server].into_iter().for_each(|server| make_room(server, batch_number));
        }
        if play.configuration.flushes && batch_number + 1 == play.batches / 2 {
            flush_later([ours.server, theirs.server]);
        }
        let count = random.random_range(1..20);
        let batch: Vec<Generated> = (0..count)
            .map(|number| match kind {
                Kind::Text => generate::text(random, dialect),
                Kind::Meta => generate::meta(random, dialect),
                Kind::Mixed if random.random_bool(0.5) => generate::text(random, dialect),
                Kind::Mixed => generate::meta(random, dialect),
                Kind::Binary => generate::binary(random, number),
            })
            .collect();
        let conn = random.random_range(0..play.connections);
        let (our_even, our_reply) = ours.ask(conn, &batch, kind, random);
        let (their_even, their_reply) = theirs.ask(conn, &batch, kind, random);
        if our_even != their_even {
            let at = our_even.iter().zip(&their_even).take_while(|(ours, theirs)| ours == theirs).count();
            let sent: Vec<u8> = batch.iter().flat_map(|request| request.bytes(&theirs.returned)).collect();
            return Err(format!(
                "batch {batch_number}: replies differ at byte {at} (made even)\n  \
                 there expected: {}\n  there got: {}\n  \
                 sent (CAS values as the reference knows them):\n    {}\n  expected:\n    {}\n  got:\n    {}",
                around(&their_even, at),
                around(&our_even, at),
                lines(&sent),
                lines(&their_reply),
                lines(&our_reply)
            ));
        }
        requests += u64::from(count);
    }
    Ok(requests)
}

/// If items are evicted, each batch begins with new items, so that earlier evictions do not affect
/// the comparison.
fn make_room(server: &Server, batch_number: usize) {
    let mut conn = server.connect();
    let value = "r".repeat(3000);
    let mut requests = String::new();
    for number in 0..100 {
        requests += &format!("set room-{batch_number}-{number} 0 0 3000 noreply\r\n{value}\r\n");
    }
    for key in generate::all_keys() {
        requests += &format!("delete {key} noreply\r\n");
    }
    conn.ask(format!("{requests}mn\r\n").as_bytes(), b"MN\r\n");
}

/// Schedules a flush of everything a second later, and waits until both servers have executed it.
fn flush_later(servers: [&Server; 2]) {
    let mut uptimes = [0; 2];
    for (server, uptime) in servers.into_iter().zip(&mut uptimes) {
        server.connect().ask(b"flush_all 1\r\n", b"OK\r\n");
        *uptime = server.stat("uptime");
    }
    for (server, uptime) in servers.into_iter().zip(uptimes) {
        while server.stat("uptime") < uptime + 3 {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A client that runs during the comparison.
struct Beside<'a> {
    server: &'a Server,
    half_sent: bool,
    number: usize,
}

impl<'a> Beside<'a> {
    fn new(configuration: &Configuration, servers: &'a [Server; 2]) -> Vec<Beside<'a>> {
        let mut all = Vec::new();
        for server in servers {
            let half = (0..configuration.half_sent).map(|number| Beside { server, half_sent: true, number });
            let flood = (0..configuration.floods).map(|number| Beside { server, half_sent: false, number });
            // One thread of each kind is enough, because a few clients show as much as many.
            all.extend(half.take(4).chain(flood.take(2)));
        }
        all
    }

    fn run(&self, over: &AtomicBool) {
        let number = self.number;
        let value = "b".repeat(1000);
        let mut conn = self.server.connect();
        let mut waiting = Vec::new();
        while !over.load(Ordering::Relaxed) {
            if self.half_sent {
                let mut half = self.server.connect();
                half.send(format!("set half-{number} 0 0 200000\r\n{value}").as_bytes());
                waiting.push(half);
                if waiting.len() > 20 {
                    waiting.remove(0);
                }
                std::thread::sleep(Duration::from_millis(2));
            } else {
                let set = |key| format!("set flood-{number}-{key} 0 0 1000 noreply\r\n{value}\r\n");
                let sets: String = (0..100).map(set).collect();
                conn.ask(format!("{sets}mn\r\n").as_bytes(), b"MN\r\n");
                // Each round is a flood. Without a pause they take the processors from what is compared.
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Returns the text around a position; long values may be cut.
fn around(bytes: &[u8], at: usize) -> String {
    show(&bytes[at.saturating_sub(60)..bytes.len().min(at + 120)])
}

fn lines(bytes: &[u8]) -> String {
    show(bytes).replace("\\r\\n", "\\r\\n\n    ")
}
