//! Connections driven turn by turn, as a worker drives them, over a socket that says when bytes come.

use super::info::Ends;
use super::*;
use crate::clock::ServerClock;
use crate::logging::Logging;
use crate::watch::Watch;
use crate::worker::Mailbox;
use cached_core::kv::{Kv, KvConfig, StoreOptions};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;

/// Gives one piece with each read, and takes all that is written.
#[derive(Default)]
struct Fake {
    pieces: VecDeque<Vec<u8>>,
    written: Vec<u8>,
}

impl Transport for Fake {
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let Some(piece) = self.pieces.pop_front() else { return Poll::Pending };
        let count = piece.len().min(into.len());
        into[..count].copy_from_slice(&piece[..count]);
        if count < piece.len() {
            self.pieces.push_front(piece[count..].to_vec());
        }
        Poll::Ready(Ok(count))
    }

    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.written.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let before = self.written.len();
        pieces.iter().for_each(|piece| self.written.extend_from_slice(piece));
        Poll::Ready(Ok(self.written.len() - before))
    }
}

/// A worker with one connection.
struct Bench {
    shared: Shared,
    connection: Connection,
    input: Vec<u8>,
    output: Output,
    client: File,
    io: Fake,
}

impl Bench {
    fn new(change: impl FnOnce(&mut Settings)) -> Bench {
        let mut settings = Settings { threads: 1, memory_bytes: 16 << 20, ..Settings::default() };
        change(&mut settings);
        let clock = ServerClock::new();
        let config = KvConfig {
            arena_bytes: settings.memory_bytes,
            lanes: 1,
            clock: clock.ticks(),
            ..KvConfig::default()
        };
        let kv = Kv::new(config).expect("a store");
        let watch = Arc::new(Watch::new(1 << 16, 1 << 16).expect("a descriptor"));
        let mailbox = Arc::new(Mailbox::new().expect("a descriptor"));
        let info = ConnInfo::new(9, Ends::Unix { path: "/x".into() }, None, mailbox, 2);
        Bench {
            shared: Shared::new(kv, clock, settings, Logging::embedded(0), watch),
            connection: Connection::new(Arc::new(info)),
            input: vec![0; INPUT_BYTES],
            output: Output::default(),
            client: File::open("/dev/null").expect("a descriptor"),
            io: Fake::default(),
        }
    }

    /// A turn in a group of connections: it is read ahead of, and then driven.
    fn turn(&mut self) -> Turn {
        let mut ahead = [0; 4096];
        let received = self.connection.receive_ahead(&mut ahead, &mut self.io);
        let mut desk = Desk {
            shared: &self.shared,
            counters: self.shared.counters(0),
            input: &mut self.input,
            received: received.map(|count| &ahead[..count]),
            output: &mut self.output,
            client: self.client.as_fd(),
        };
        let turn = self.connection.drive(&mut desk, &mut self.io);
        self.connection.settle(&self.shared);
        turn
    }

    /// Turns until it waits for its socket; how many.
    fn turns(&mut self) -> usize {
        let mut turns = 1;
        while self.turn() == Turn::Again {
            turns += 1;
        }
        turns
    }
}

/// A turn may end with nothing left of the input and the next request in the socket already: nothing of it is lost.
#[test]
fn what_is_read_ahead_of_a_turn_is_carried_out() {
    for batches in [1, 2, 20] {
        let mut bench = Bench::new(|settings| settings.batches_per_wake = batches);
        let value = vec![b'v'; FULL_VALUE];
        let kv = &bench.shared.kv;
        kv.store(b"k", kv.hash(b"k"), &value, &StoreOptions::default());
        bench.io.pieces.extend((0..50).map(|_| b"get k\r\n".to_vec()));
        bench.turns();
        let reply = [&b"VALUE k 0 60000\r\n"[..], &value, b"\r\nEND\r\n"].concat();
        assert_eq!(bench.io.written.len(), 50 * reply.len(), "{batches} batches a turn");
        assert!(bench.io.written == reply.repeat(50));
    }
}

/// Fills the output buffer by itself.
const FULL_VALUE: usize = 60_000;

/// `-R`: so many requests a turn, whatever they are and however they came.
#[test]
fn a_turn_ends_after_as_many_requests_as_are_allowed() {
    for (requests, yields) in [(1, 6), (2, 3), (4, 1), (100, 0)] {
        let mut bench = Bench::new(|settings| settings.requests_per_wake = Some(requests));
        let all = b"get a\r\nset a 0 0 1\r\nx\r\nget a b\r\nmn\r\ndelete a\r\ngets a\r\n";
        bench.io.pieces.push_back(all.to_vec());
        assert_eq!(bench.turns() - 1, yields, "{requests} requests a turn");
        let replies = b"END\r\nSTORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nMN\r\nDELETED\r\nEND\r\n";
        assert_eq!(bench.io.written, replies);
        assert_eq!(bench.shared.totals().conn_yields, yields as u64);
    }
    let mut bench = Bench::new(|_| {});
    bench.io.pieces.push_back(b"get a\r\n".repeat(400));
    assert_eq!(bench.turns(), 1, "without -R a pipeline is not cut into pieces");
}
