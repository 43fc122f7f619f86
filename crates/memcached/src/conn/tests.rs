//! Connections driven as a worker drives them, over a socket that delivers its input in given
//! pieces.

mod late;

use super::*;
use crate::Server;
use crate::connections::{Endpoints, HandedConnection, HandedPhase};
use crate::process::Logging;
use crate::settings::Settings;
use crate::stats::Work;
use crate::stream::{INPUT_BYTES, Transport};
use cached_core::kv::StoreOptions;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::task::Poll;

/// A transport that returns one piece per read, and accepts what is written as long as there is
/// room.
struct Fake {
    pieces: VecDeque<Vec<u8>>,
    /// Whether the stream ends after the pieces.
    is_ended: bool,
    written: Vec<u8>,
    /// The number of bytes that are still accepted.
    room: usize,
    /// Whether a write was refused for lack of room.
    is_full: bool,
}

impl Default for Fake {
    fn default() -> Fake {
        Fake {
            pieces: VecDeque::new(),
            is_ended: false,
            written: Vec::new(),
            room: usize::MAX,
            is_full: false,
        }
    }
}

impl Transport for Fake {
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let Some(piece) = self.pieces.pop_front() else {
            return if self.is_ended { Poll::Ready(Ok(0)) } else { Poll::Pending };
        };
        let count = piece.len().min(into.len());
        into[..count].copy_from_slice(&piece[..count]);
        if count < piece.len() {
            self.pieces.push_front(piece[count..].to_vec());
        }
        Poll::Ready(Ok(count))
    }

    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let before = self.written.len();
        self.is_full = self.room == 0;
        if self.is_full {
            return Poll::Pending;
        }
        for piece in pieces {
            let count = piece.len().min(self.room);
            self.written.extend_from_slice(&piece[..count]);
            self.room -= if self.room == usize::MAX { 0 } else { count };
        }
        Poll::Ready(Ok(self.written.len() - before))
    }
}

impl Transport for &mut Fake {
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        (**self).read(into)
    }

    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        (**self).write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        (**self).write_vectored(pieces)
    }
}

/// Returns the state of a server with one worker and without listeners.
fn shared(change: impl FnOnce(&mut Settings)) -> Arc<Shared> {
    let mut settings =
        Settings { listen: Vec::new(), threads: 1, memory_bytes: 16 << 20, ..Settings::default() };
    change(&mut settings);
    Server::open(settings, Logging::embedded(0)).expect("a server").shared
}

fn info() -> ConnInfo {
    ConnInfo::new(9, Endpoints::Unix { path: "/x".into() }, None, 0, 2)
}

/// A worker with one connection.
struct Bench {
    shared: Arc<Shared>,
    connection: Connection,
    input: Vec<u8>,
    output: Output,
    work: Work,
    client: File,
    io: Fake,
}

impl Bench {
    fn new(change: impl FnOnce(&mut Settings)) -> Bench {
        Bench {
            shared: shared(change),
            connection: Connection::new(Arc::new(info())),
            input: vec![0; INPUT_BYTES],
            output: Output::default(),
            work: Work::new(),
            client: File::open("/dev/null").expect("a descriptor"),
            io: Fake::default(),
        }
    }

    /// Calls `receive_ahead`, then `drive`, as a worker does for a group of ready connections.
    fn drive(&mut self) -> DriveResult {
        let mut ahead = [0; 4096];
        let received = self.connection.receive_ahead(&mut ahead, &mut self.io);
        let mut context = WorkerContext {
            shared: &self.shared,
            counters: self.shared.counters(0),
            input: &mut self.input,
            received: received.map(|count| &ahead[..count]),
            output: &mut self.output,
            work: &mut self.work,
            client: self.client.as_fd(),
        };
        let result = self.connection.drive(&mut context, &mut self.io);
        self.connection.update_info(&self.shared, 0);
        result
    }

    /// Drives the connection until it waits for its socket, once per iteration of a worker's loop.
    /// Returns the number of drives.
    fn drive_until_it_waits(&mut self) -> usize {
        for count in 1.. {
            self.work.renew();
            if self.drive() != DriveResult::Yield {
                return count;
            }
        }
        unreachable!("the connection always has more to do");
    }

    /// Stores items that fill more hash buckets than one iteration may walk.
    fn fill_index(&self) -> usize {
        let kv = &self.shared.kv;
        let count = 12 * Work::UNITS_MAX as usize;
        for number in 0..count {
            let key = number.to_string();
            kv.store(key.as_bytes(), kv.hash(key.as_bytes()), b"v", &StoreOptions::default());
        }
        count
    }
}

/// A drive may end with all input consumed while the next request is already in the socket.
#[test]
fn bytes_that_were_read_ahead_are_executed() {
    for batches in [1, 2, 20] {
        let mut bench = Bench::new(|settings| settings.batches_per_wake = batches);
        let value = vec![b'v'; FULL_VALUE];
        let kv = &bench.shared.kv;
        kv.store(b"k", kv.hash(b"k"), &value, &StoreOptions::default());
        bench.io.pieces.extend((0..50).map(|_| b"get k\r\n".to_vec()));
        bench.drive_until_it_waits();
        let reply = [&b"VALUE k 0 60000\r\n"[..], &value, b"\r\nEND\r\n"].concat();
        assert_eq!(bench.io.written.len(), 50 * reply.len(), "{batches} batches in a drive");
        assert!(bench.io.written == reply.repeat(50));
    }
}

/// The size of a value that fills the output buffer by itself.
const FULL_VALUE: usize = 60_000;

/// `-R` limits the number of requests in a drive, whatever the requests are and however they
/// arrive.
#[test]
fn a_drive_ends_after_the_allowed_number_of_requests() {
    for (requests, yields) in [(1, 6), (2, 3), (4, 1), (100, 0)] {
        let mut bench = Bench::new(|settings| settings.requests_per_wake = Some(requests));
        let all = b"get a\r\nset a 0 0 1\r\nx\r\nget a b\r\nmn\r\ndelete a\r\ngets a\r\n";
        bench.io.pieces.push_back(all.to_vec());
        assert_eq!(bench.drive_until_it_waits() - 1, yields, "{requests} requests in a drive");
        let replies = b"END\r\nSTORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nMN\r\nDELETED\r\nEND\r\n";
        assert_eq!(bench.io.written, replies);
        assert_eq!(bench.shared.totals().conn_yields, yields as u64);
    }
    let mut bench = Bench::new(|_| {});
    bench.io.pieces.push_back(b"get a\r\n".repeat(400));
    assert_eq!(bench.drive_until_it_waits(), 1, "without -R a pipeline is not cut into pieces");
}

/// Returns a binary request without a body.
fn binary(opcode: u8, key: &[u8]) -> Vec<u8> {
    let mut request = vec![0; 24];
    (request[0], request[1], request[3], request[11]) = (0x80, opcode, key.len() as u8, key.len() as u8);
    request.extend_from_slice(key);
    request
}

/// However many reports one read contains, other connections are served after each report that
/// walks over items.
#[test]
fn a_report_that_walks_over_items_ends_the_drive() {
    const REPORTS: usize = 20;
    for report in ["stats items", "stats slabs", "stats sizes", "stats cachedump 39 0", "stats shape"] {
        let mut bench = Bench::new(|settings| settings.track_sizes = true);
        bench.fill_index();
        bench.io.pieces.push_back(format!("{report}\r\n").repeat(REPORTS).into_bytes());
        assert!(bench.drive_until_it_waits() >= REPORTS, "{report}");
        let replies = String::from_utf8(bench.io.written).expect("text");
        assert_eq!(replies.matches("END\r\n").count(), REPORTS, "{report}");
    }
    let mut bench = Bench::new(|_| {});
    bench.fill_index();
    bench.io.pieces.push_back(binary(0x10, b"items").repeat(REPORTS));
    assert!(bench.drive_until_it_waits() >= REPORTS);
    // Cheap reports share an iteration.
    let mut bench = Bench::new(|_| {});
    bench.io.pieces.push_back(b"stats\r\n".repeat(REPORTS));
    assert!((2..REPORTS / 2).contains(&bench.drive_until_it_waits()));
}

/// A report uses as much of an iteration's work as it has lines.
#[test]
fn a_report_with_a_line_for_each_prefix_uses_up_an_iteration() {
    let mut bench = Bench::new(|_| {});
    let gets: String = (0..2 * Work::UNITS_MAX).map(|prefix| format!("get {prefix}:a\r\n")).collect();
    bench.io.pieces.push_back(format!("stats detail on\r\n{gets}").into_bytes());
    bench.drive_until_it_waits();
    bench.work.renew();
    bench.io.pieces.push_back(b"stats detail dump\r\n".to_vec());
    bench.drive();
    assert!(bench.work.is_used_up());
}

/// Dumps also pause where they find nothing to list.
#[test]
fn a_dump_of_an_index_without_items_stops_in_between() {
    for dump in
        [&b"lru_crawler metadump all\r\n"[..], b"lru_crawler mgdump all\r\n", b"stats cachedump 1 0\r\n"]
    {
        let mut bench = Bench::new(|_| {});
        let items = bench.fill_index();
        bench.io.pieces.push_back(dump.to_vec());
        let full = bench.drive_until_it_waits();
        let lines = bench.io.written.iter().filter(|byte| **byte == b'\n').count();
        assert!(lines > items, "{lines} lines of {items} items");
        bench.io.written.clear();
        bench.shared.kv.flush_all();
        bench.io.pieces.push_back(dump.to_vec());
        let empty = bench.drive_until_it_waits();
        assert!(full > 1 && empty > 1, "{full} and {empty} drives");
        assert!(bench.io.written.len() < 10);
    }
}

/// Once another connection has used up an iteration's work, costly requests wait, and only these.
#[test]
fn costly_requests_wait_for_the_next_iteration() {
    for costly in
        [&b"stats\r\n"[..], b"stats cachedump 1 0\r\n", b"lru_crawler enable\r\n", b"flush_prefix a\r\n"]
    {
        let mut bench = Bench::new(|_| {});
        bench.work.use_up();
        bench.io.pieces.push_back([b"mn\r\nget a\r\n", costly, b"mn\r\n"].concat());
        assert_eq!(bench.drive(), DriveResult::Yield);
        assert_eq!(bench.drive(), DriveResult::Yield);
        assert_eq!(bench.io.written, b"MN\r\nEND\r\n", "what comes before is answered once");
        bench.drive_until_it_waits();
        assert!(bench.io.written.len() > 14 && bench.io.written.ends_with(b"\r\nMN\r\n"));
    }
    let mut bench = Bench::new(|_| {});
    bench.work.use_up();
    bench.io.pieces.push_back([binary(0x0a, b""), binary(0x10, b""), binary(0x0a, b"")].concat());
    assert_eq!(bench.drive(), DriveResult::Yield);
    assert_eq!(bench.io.written.len(), 24);
    bench.drive_until_it_waits();
    assert!(bench.io.written.len() > 1000);
}

/// A connection that is handed over after any byte replies as if it had not been handed over.
#[test]
fn a_connection_can_be_handed_over_after_any_byte() {
    let text = b"set a 1 0 5\r\nvalue\r\nget a b\r\nms c 2 T0\r\nhi\r\nset big 0 0 9999999\r\nxx\r\nmn\r\nincr a 1\r\n";
    let binary = [binary(0x0c, b"k"), binary(0x0a, b""), binary(0x0c, b"other")].concat();
    for script in [&text[..], &binary] {
        let whole = |cut: Option<usize>| {
            let mut bench = Bench::new(|_| {});
            let (front, back) = script.split_at(cut.unwrap_or(script.len()));
            bench.io.pieces.push_back(front.to_vec());
            bench.drive_until_it_waits();
            if cut.is_some() {
                let handed = bench.connection.hand_over(false).expect("it is at rest");
                assert!(!handed.is_authenticated);
                let info = ConnInfo::new(9, Endpoints::Unix { path: "/x".into() }, None, 0, 2);
                bench.connection = Connection::resume_handed(Arc::new(info), handed, false);
                bench.io.pieces.push_back(back.to_vec());
                bench.drive_until_it_waits();
                // The socket's event alone does not lead to the execution of input that was handed
                // over.
                bench.drive_until_it_waits();
            }
            bench.io.written
        };
        let expected = whole(None);
        assert!(!expected.is_empty());
        for cut in 1..script.len() {
            assert_eq!(whole(Some(cut)), expected, "cut at {cut}");
        }
    }
}

/// Complete requests in the input that is handed over are executed, although no event announces
/// them.
#[test]
fn input_that_is_handed_over_is_executed() {
    let mut bench = Bench::new(|_| {});
    let handed = HandedConnection {
        protocol: Some(Protocol::Text),
        is_authenticated: false,
        phase: HandedPhase::Swallow(3),
        input: b"xyzmn\r\nmn\r\nget".to_vec(),
    };
    bench.connection = Connection::resume_handed(Arc::new(info()), handed, false);
    bench.drive_until_it_waits();
    assert_eq!(bench.io.written, b"MN\r\nMN\r\n");
    assert_eq!(bench.connection.hand_over(false).map(|handed| handed.input), Some(b"get".to_vec()));
}

#[test]
fn a_connection_within_a_value_is_brought_to_its_end_and_no_further() {
    let mut bench = Bench::new(|_| {});
    bench.io.pieces.push_back(b"set a 0 0 10000\r\nbegin".to_vec());
    bench.drive_until_it_waits();
    assert!(!bench.connection.is_at_rest() && bench.connection.hand_over(false).is_none());
    let rest = [&vec![b'x'; 9_995][..], b"\r\nget a\r\n"].concat();
    bench.io.pieces.push_back(rest);
    let mut context = WorkerContext {
        shared: &bench.shared,
        counters: bench.shared.counters(0),
        input: &mut bench.input,
        received: None,
        output: &mut bench.output,
        work: &mut bench.work,
        client: bench.client.as_fd(),
    };
    let allowed = bench.connection.missing_bytes();
    bench.connection.drive(&mut context, &mut Finishing { io: &mut bench.io, allowed });
    assert!(bench.connection.is_at_rest());
    assert_eq!(bench.io.written, b"STORED\r\n");
    let left: usize = bench.io.pieces.iter().map(Vec::len).sum();
    assert_eq!(left, b"get a\r\n".len(), "the next request stays in the socket");
}

/// After a hand-over to a process that requires authentication, only a client that has already
/// authenticated need not do so again.
#[test]
fn a_client_that_has_not_authenticated_must() {
    let handed = |is_authenticated, phase| HandedConnection {
        protocol: Some(Protocol::Text),
        is_authenticated,
        phase,
        input: Vec::new(),
    };
    let gate = HandedPhase::Gate { swallow: 0, is_started: false, failures: 3 };
    let is_gated = |handed, is_required| {
        matches!(Connection::resume_handed(Arc::new(info()), handed, is_required).phase, Phase::Gate(_))
    };
    assert!(!is_gated(handed(true, HandedPhase::Command), true));
    assert!(is_gated(handed(false, HandedPhase::Command), true));
    assert!(is_gated(handed(false, HandedPhase::Swallow(9)), true));
    assert!(is_gated(handed(false, gate), true));
    assert!(!is_gated(handed(false, gate), false));
    let again = Connection::resume_handed(Arc::new(info()), handed(false, gate), true).hand_over(true);
    assert_eq!(again.map(|again| (again.is_authenticated, again.phase)), Some((false, gate)));
}
