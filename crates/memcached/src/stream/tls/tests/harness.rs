//! The server's side of a connection over a pair of sockets, with rustls's client at the other end:
//! for tests and for fuzzing.

use super::super::*;
use crate::stream::Readiness;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

pub(super) struct Bench {
    pub(super) ours: UnixStream,
    pub(super) theirs: UnixStream,
    pub(super) ready: Readiness,
    pub(super) stream: Box<TlsStream>,
    pub(super) buffers: Box<TlsBuffers>,
    pub(super) client: ClientConnection,
    /// The plaintext that the client has received.
    pub(super) received: Vec<u8>,
}

/// Returns the configurations of both sides, for the name `localhost`.
pub(crate) fn configs(
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let certificate = CertificateDer::from(params.self_signed(&key).expect("a certificate"));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let private = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS12, &rustls::version::TLS13])
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], private)
        .expect("a pair");
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a root");
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server), Arc::new(client))
}

pub(crate) const BOTH: &[&rustls::SupportedProtocolVersion] =
    &[&rustls::version::TLS12, &rustls::version::TLS13];

impl Bench {
    pub(super) fn new(versions: &[&'static rustls::SupportedProtocolVersion]) -> Bench {
        let (server, client) = configs(versions);
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("a flag");
        theirs.set_nonblocking(true).expect("a flag");
        let name = ServerName::try_from("localhost").expect("a name");
        let mut buffers = TlsBuffers::new();
        buffers.handshakes_left = 100_000;
        Bench {
            ours,
            theirs,
            ready: Readiness::NEW,
            stream: TlsStream::new(server, 5),
            buffers,
            client: ClientConnection::new(client, name).expect("a client"),
            received: Vec::new(),
        }
    }

    /// Returns a bench whose handshake is complete.
    pub(super) fn connected(versions: &[&'static rustls::SupportedProtocolVersion]) -> Bench {
        let mut bench = Bench::new(versions);
        while bench.client.is_handshaking() || !bench.stream.is_established {
            bench.client_sends();
            assert!(bench.read(&mut [0; 64]).is_pending(), "nothing was written");
            bench.client_receives();
        }
        bench.client_receives();
        bench
    }

    /// Performs one iteration of the loop: the sockets may have changed.
    pub(super) fn with<T>(&mut self, act: impl FnOnce(&mut TlsSocket<'_>) -> T) -> T {
        self.ready = Readiness::NEW;
        let socket = Socket { fd: self.ours.as_fd(), ready: &mut self.ready };
        let (stream, buffers) = (&mut *self.stream, &mut *self.buffers);
        act(&mut TlsSocket { socket, stream, buffers, counts: None, is_draining: false })
    }

    pub(super) fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.with(|socket| socket.read(into))
    }

    pub(super) fn client_sends(&mut self) {
        while self.client.wants_write() {
            self.client.write_tls(&mut self.theirs).expect("room in the socket");
        }
    }

    /// Takes the records that have arrived. Returns the number of bytes on the wire.
    pub(super) fn client_receives(&mut self) -> usize {
        let mut count = 0;
        while let Ok(bytes @ 1..) = self.client.read_tls(&mut self.theirs) {
            count += bytes;
            self.client.process_new_packets().expect("records of the server");
            // Ends with an error when nothing more has arrived.
            let _ = self.client.reader().read_to_end(&mut self.received);
        }
        count
    }

    pub(super) fn client_plaintext(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.received)
    }

    /// Returns the client's records for `plaintext`.
    pub(super) fn records_of(&mut self, plaintext: &[u8]) -> Vec<u8> {
        self.client.writer().write_all(plaintext).expect("no limit");
        let mut bytes = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut bytes).expect("memory");
        }
        bytes
    }

    pub(super) fn read_all(&mut self, room: usize) -> Vec<u8> {
        let (mut all, mut into) = (Vec::new(), vec![0; room]);
        while let Poll::Ready(Ok(count)) = self.read(&mut into) {
            all.extend_from_slice(&into[..count]);
        }
        all
    }
}

/// Sends records that are cut, flipped and duplicated as `data` says. The server receives a prefix
/// of what was sent and nothing else, or all of it if nothing was changed, and holds a bounded
/// number of bytes.
///
/// The first byte chooses the TLS version, and whether the handshake or the data after it is
/// changed. Each following pair of bytes is an action on the records: the number of bytes to pass
/// on, and the change to them.
pub fn transport(data: &[u8]) {
    let Some((first, actions)) = data.split_first() else { return };
    let versions = if first & 1 == 0 { BOTH } else { &BOTH[..1] };
    let sent: Vec<u8> = (0..40_000u32).map(|at| (at % 251) as u8).collect();
    let (mut bench, records) = match first & 2 {
        0 => {
            let mut bench = Bench::connected(versions);
            let records = bench.records_of(&sent);
            (bench, records)
        }
        _ => {
            let mut bench = Bench::new(versions);
            let hello = bench.records_of(&[]);
            (bench, hello)
        }
    };
    let (mut rest, mut received, mut is_changed) = (&records[..], Vec::new(), false);
    let mut actions = actions.chunks(2);
    while !rest.is_empty() {
        let (size, action) = match actions.next() {
            Some([size, action]) => (usize::from(*size), *action),
            _ => (rest.len(), 0),
        };
        // Small pieces, and some that are larger than a record.
        let count = (if size > 200 { size * 200 } else { size + 1 }).min(rest.len());
        let mut piece = rest[..count].to_vec();
        rest = &rest[count..];
        match action {
            1..32 => piece[usize::from(action) % count] ^= action,
            32..40 => piece.extend_from_within(..),
            40..48 => piece.clear(),
            48..56 => piece.insert(0, action),
            _ => {}
        }
        is_changed |= matches!(action, 1..56);
        // Fails once the server has closed the connection.
        let _ = bench.theirs.write_all(&piece);
        received.extend(bench.read_all(1000));
        assert!(bench.stream.held_bytes() <= PARTIAL_BYTES_MAX + 2 * READ_BYTES);
    }
    if first & 2 == 0 {
        assert!(sent.starts_with(&received), "bytes that were not sent");
        assert!(is_changed || received.len() == sent.len());
    } else {
        assert!(received.is_empty(), "plaintext before the handshake");
        assert!(is_changed || bench.stream.failure().is_none());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
    }

    #[test]
    fn both_versions_carry_bytes_both_ways() {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let mut bench = Bench::connected(&[version]);
            let records = bench.records_of(b"get k\r\n");
            bench.theirs.write_all(&records).expect("room in the socket");
            let mut into = [0; 64];
            assert!(matches!(bench.read(&mut into), Poll::Ready(Ok(7))));
            assert_eq!(&into[..7], b"get k\r\n");
            assert!(matches!(bench.with(|socket| socket.write(b"END\r\n")), Poll::Ready(Ok(5))));
            bench.client_receives();
            assert_eq!(bench.client_plaintext(), b"END\r\n");
            assert_eq!(bench.stream.held_bytes(), 0, "an idle connection has no buffers");
        }
    }

    #[test]
    fn records_may_come_in_pieces_of_any_size() {
        let sent = text(40_000);
        for step in [1, 7, 5000, 16_400, 60_000] {
            let mut bench = Bench::connected(BOTH);
            let records = bench.records_of(&sent);
            let mut received = Vec::new();
            for piece in records.chunks(step) {
                bench.theirs.write_all(piece).expect("room in the socket");
                received.extend(bench.read_all(1000));
                assert!(bench.stream.held_bytes() <= PARTIAL_BYTES_MAX + READ_BYTES);
            }
            assert!(received == sent, "in pieces of {step}");
            assert_eq!(bench.stream.held_bytes(), 0);
        }
    }

    #[test]
    fn a_handshake_may_come_byte_by_byte() {
        let mut bench = Bench::new(BOTH);
        while bench.client.is_handshaking() || !bench.stream.is_established {
            let mut flight = Vec::new();
            while bench.client.wants_write() {
                bench.client.write_tls(&mut flight).expect("memory");
            }
            for byte in flight.chunks(1) {
                bench.theirs.write_all(byte).expect("room in the socket");
                assert!(bench.read(&mut [0; 64]).is_pending());
            }
            bench.client_receives();
        }
        assert_eq!(bench.stream.held_bytes(), 0);
    }

    #[test]
    fn replies_share_records() {
        let mut bench = Bench::connected(&[&rustls::version::TLS13]);
        let reply = b"VALUE k 0 3\r\nabc\r\nEND\r\n".repeat(100);
        let pieces: Vec<IoSlice<'_>> = reply.chunks(23).map(IoSlice::new).collect();
        assert!(
            matches!(bench.with(|socket| socket.write_vectored(&pieces)), Poll::Ready(Ok(count)) if count == reply.len())
        );
        // Header, content type, tag.
        assert_eq!(bench.client_receives(), reply.len() + 5 + 1 + 16);
        assert_eq!(bench.client_plaintext(), reply);
    }

    #[test]
    fn pieces_around_a_large_value_fill_up_its_records() {
        for (head, value, tail) in [
            (20, 3 * RECORD_BYTES, 7),
            (20, RECORD_BYTES - 20, 7),
            (RECORD_BYTES, 2 * RECORD_BYTES, 1),
            (RECORD_BYTES - 1, 1, RECORD_BYTES + 1),
            (1, RECORD_BYTES, RECORD_BYTES - 1),
            (3, BATCH_BYTES, 3),
        ] {
            let mut bench = Bench::connected(&[&rustls::version::TLS13]);
            let all = text(head + value + tail);
            let pieces = [&all[..head], &all[head..head + value], &all[head + value..]].map(IoSlice::new);
            let Poll::Ready(Ok(count)) = bench.with(|socket| socket.write_vectored(&pieces)) else {
                panic!("the socket has room");
            };
            assert_eq!(count, all.len().min(BATCH_BYTES));
            let wire = bench.client_receives();
            assert_eq!(wire, count + count.div_ceil(RECORD_BYTES) * 22, "full records");
            assert!(bench.client_plaintext() == all[..count]);
        }
    }

    /// Encrypted bytes are not encrypted again, and count as written once the socket has accepted
    /// them.
    #[test]
    fn a_client_that_reads_slowly_gets_every_byte_once() {
        let mut bench = Bench::connected(BOTH);
        let all = text(3_000_000);
        let (mut sent, mut received, mut waited) = (0, Vec::new(), 0);
        while sent < all.len() {
            match bench.with(|socket| socket.write(&all[sent..])) {
                Poll::Ready(result) => sent += result.expect("a connection"),
                Poll::Pending => {
                    waited += 1;
                    assert!(bench.stream.held_bytes() <= BATCH_BYTES + (8 << 10));
                    assert!(bench.read(&mut [0; 64]).is_pending(), "nothing is read meanwhile");
                    bench.client_receives();
                    received.extend(bench.client_plaintext());
                }
            }
        }
        bench.client_receives();
        received.extend(bench.client_plaintext());
        assert!(received == all);
        assert!(waited > 10, "the socket was full {waited} times");
        assert_eq!(bench.stream.held_bytes(), 0);
    }

    #[test]
    fn an_end_in_order_is_no_failure_and_replies_still_go_out() {
        let mut bench = Bench::connected(BOTH);
        let mut records = bench.records_of(b"get k\r\n");
        bench.client.send_close_notify();
        records.extend(bench.records_of(b""));
        bench.theirs.write_all(&records).expect("room in the socket");
        bench.theirs.shutdown(std::net::Shutdown::Write).expect("half closed");
        let mut into = [0; 64];
        assert!(matches!(bench.read(&mut into), Poll::Ready(Ok(7))));
        assert!(matches!(bench.with(|socket| socket.write(b"END\r\n")), Poll::Ready(Ok(5))));
        assert!(matches!(bench.read(&mut into), Poll::Ready(Ok(0))));
        bench.with(|socket| socket.close());
        bench.client_receives();
        assert_eq!(bench.client_plaintext(), b"END\r\n");
        let state = bench.client.process_new_packets().expect("records of the server");
        assert!(state.peer_has_closed(), "close_notify has come");
        assert_eq!(bench.stream.failure(), None);
    }

    #[test]
    fn a_stream_that_is_cut_off_is_a_failure() {
        for within_a_record in [false, true] {
            let mut bench = Bench::connected(BOTH);
            let records = bench.records_of(b"set k 0 0 5\r\nhello\r\n");
            let count = if within_a_record { records.len() - 1 } else { records.len() };
            bench.theirs.write_all(&records[..count]).expect("room in the socket");
            bench.theirs.shutdown(std::net::Shutdown::Write).expect("half closed");
            let mut into = [0; 64];
            if !within_a_record {
                assert!(matches!(bench.read(&mut into), Poll::Ready(Ok(20))));
            } else {
                assert!(bench.read(&mut into).is_pending());
            }
            assert!(matches!(bench.read(&mut into), Poll::Ready(Err(_))));
            assert!(matches!(bench.read(&mut into), Poll::Ready(Err(_))), "and stays one");
            assert!(matches!(bench.with(|socket| socket.write(b"x")), Poll::Ready(Err(_))));
            assert!(bench.stream.failure().expect("a reason").contains("cut off"));
        }
    }

    #[test]
    fn a_changed_byte_ends_the_connection_with_an_alert() {
        let mut bench = Bench::connected(BOTH);
        let mut records = bench.records_of(b"set k 0 0 5\r\nhello\r\n");
        let last = records.len() - 1;
        records[last] ^= 1;
        bench.theirs.write_all(&records).expect("room in the socket");
        assert!(matches!(bench.read(&mut [0; 64]), Poll::Ready(Err(_))));
        assert!(bench.stream.failure().is_some() && bench.stream.is_established);
        bench.client.read_tls(&mut bench.theirs).expect("an alert");
        let error = bench.client.process_new_packets().expect_err("a fatal alert");
        assert!(matches!(error, rustls::Error::AlertReceived(_)), "{error}");
    }

    #[test]
    fn what_is_not_tls_is_refused() {
        for input in [&b"get k\r\n"[..], b"\x80\0\0\0\0\0\0\0", &[22, 3, 1, 255, 255, 0, 0], &[0; 100]] {
            let mut bench = Bench::new(BOTH);
            bench.theirs.write_all(input).expect("room in the socket");
            assert!(matches!(bench.read(&mut [0; 64]), Poll::Ready(Err(_))), "{input:?}");
            assert!(bench.stream.failure().is_some() && !bench.stream.is_established);
        }
        let mut probe = Bench::new(BOTH);
        probe.theirs.shutdown(std::net::Shutdown::Both).expect("closed");
        assert!(matches!(probe.read(&mut [0; 64]), Poll::Ready(Ok(0))), "no failure: nothing was begun");
        assert_eq!(probe.stream.failure(), None);
    }

    #[test]
    fn a_handshake_message_that_never_ends_is_refused() {
        let mut bench = Bench::new(BOTH);
        // A ClientHello of 16 MiB, in records of 16 KiB.
        let mut record = vec![22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff];
        record.resize(5 + (16 << 10), 0);
        for _ in 0..8 {
            if bench.theirs.write_all(&record).is_err() {
                break;
            }
            let read = bench.read(&mut [0; 64]);
            assert!(bench.stream.held_bytes() <= PARTIAL_BYTES_MAX + READ_BYTES);
            if let Poll::Ready(result) = read {
                assert!(result.is_err());
                return;
            }
            record = [&[22, 3, 1, 0x40, 0][..], &[0; 16 << 10]].concat();
        }
        panic!("it was taken");
    }

    #[test]
    fn handshakes_wait_for_their_share() {
        let mut bench = Bench::new(BOTH);
        bench.client_sends();
        bench.buffers.handshakes_left = 0;
        assert!(bench.read(&mut [0; 64]).is_pending());
        assert!(bench.stream.is_deferred && matches!(bench.stream.state, State::Waiting(_)));
        bench.buffers.handshakes_left = 1;
        assert!(bench.read(&mut [0; 64]).is_pending());
        assert_eq!(bench.buffers.handshakes_left, 0);
        assert!(bench.client_receives() > 0, "the server's part of the handshake");
        assert!(bench.stream.is_overdue(16, 10) && !bench.stream.is_overdue(15, 10));
    }

    /// Runs the recorded inputs of the fuzz target, and generated ones.
    #[test]
    fn any_changes_on_the_way_are_noticed() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/tls");
        let mut count = 0;
        for entry in std::fs::read_dir(corpus).expect("the corpus") {
            transport(&std::fs::read(entry.expect("an entry").path()).expect("a file"));
            count += 1;
        }
        assert!(count > 3);
        let mut state = 1u64;
        for length in 0..60 {
            let data: Vec<u8> = (0..length)
                .map(|_| {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 56) as u8
                })
                .collect();
            transport(&data);
        }
    }
}
