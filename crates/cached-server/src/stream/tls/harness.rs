//! A server's side over a pair of sockets, with rustls's client at the other end: for tests and for fuzzing.

use super::*;
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
    pub(super) counters: Counters,
    pub(super) client: ClientConnection,
    /// What the client has received.
    pub(super) received: Vec<u8>,
}

fn configs(versions: &[&'static rustls::SupportedProtocolVersion]) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
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

pub(super) const BOTH: &[&rustls::SupportedProtocolVersion] =
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
            counters: Counters::default(),
            client: ClientConnection::new(client, name).expect("a client"),
            received: Vec::new(),
        }
    }

    /// Returns one after a handshake.
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

    /// A turn of the loop: the sockets may have changed.
    pub(super) fn with<T>(&mut self, act: impl FnOnce(&mut TlsSocket<'_>) -> T) -> T {
        self.ready = Readiness::NEW;
        let socket = Socket { fd: self.ours.as_fd(), ready: &mut self.ready };
        let (stream, buffers, counters) = (&mut *self.stream, &mut *self.buffers, &self.counters);
        act(&mut TlsSocket { socket, stream, buffers, counters, is_draining: false })
    }

    pub(super) fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.with(|socket| socket.read(into))
    }

    pub(super) fn client_sends(&mut self) {
        while self.client.wants_write() {
            self.client.write_tls(&mut self.theirs).expect("room in the socket");
        }
    }

    /// Takes what has arrived; returns the number of bytes on the wire.
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

/// Sends records that are cut, flipped and doubled as `data` says. The server receives the start of what was
/// sent and nothing else, all of it if nothing was changed, and holds a bounded number of bytes.
///
/// The first byte chooses the version, and whether the handshake is changed or what follows it. Each pair after
/// it is an action on the records: how many bytes are passed on, and what happens to them.
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
        // Small pieces, and some of more than a record.
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
        // Fails once the server has closed.
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
