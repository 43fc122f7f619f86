//! TLS for the servers and the load: one certificate for each run of a bench, and the client side
//! of a connection.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// Longest wait for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The number of bytes read from a socket in one call. It is less than any reader's buffer, so that
/// no plaintext is left behind.
const READ_BYTES: usize = 32 << 10;
/// The number of plaintext bytes that are encrypted before they are sent.
const WRITE_BYTES: usize = 64 << 10;

/// A certificate, issued by an authority of its own, in files for servers.
struct Certificate {
    dir: tempfile::TempDir,
    client: Arc<ClientConfig>,
}

fn certificate() -> Result<&'static Certificate> {
    static CERTIFICATE: OnceLock<Result<Certificate, String>> = OnceLock::new();
    let made = CERTIFICATE.get_or_init(|| make().map_err(|error| format!("{error:#}")));
    made.as_ref().map_err(|error| anyhow::anyhow!("no certificate: {error}"))
}

fn make() -> Result<Certificate> {
    // P-256 is rcgen's default, and common on servers.
    let key = rcgen::KeyPair::generate()?;
    let own = rcgen::CertificateParams::new(vec!["localhost".to_owned()])?.self_signed(&key)?;
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("chain.pem"), own.pem())?;
    fs::write(dir.path().join("key.pem"), key.serialize_pem())?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(own))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut client = builder.with_root_certificates(roots).with_no_client_auth();
    // Without resumption, every handshake is a full one.
    client.resumption = Resumption::disabled();
    Ok(Certificate { dir, client: Arc::new(client) })
}

/// Returns the flags of a server with TLS.
///
/// # Errors
/// Fails if the certificate cannot be created.
pub fn server_flags() -> Result<Vec<String>> {
    let dir = certificate()?.dir.path().to_owned();
    let path = |name: &str| -> PathBuf { dir.join(name) };
    let files =
        format!("ssl_chain_cert={},ssl_key={}", path("chain.pem").display(), path("key.pem").display());
    Ok(vec!["-Z".into(), "-o".into(), files])
}

/// A connection with TLS 1.3.
#[derive(Debug)]
pub struct TlsStream {
    tcp: TcpStream,
    tls: ClientConnection,
    raw: Box<[u8]>,
    /// The part of `raw` that has not been decrypted.
    unread: std::ops::Range<usize>,
    /// The number of plaintext bytes that are encrypted but not reported as written.
    owed: usize,
}

impl TlsStream {
    /// Connects in blocking mode, and completes the handshake.
    ///
    /// # Errors
    /// Returns the connection error, or the reason why the handshake failed.
    pub fn connect(address: &SocketAddr) -> io::Result<Self> {
        let config = certificate().map_err(io::Error::other)?.client.clone();
        let mut tcp = TcpStream::connect_timeout(address, CONNECT_LIMIT)?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        let mut tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp)?;
        }
        let raw = vec![0; READ_BYTES].into();
        Ok(Self { tcp, tls, raw, unread: 0..0, owed: 0 })
    }

    /// Returns the underlying socket.
    pub fn socket(&self) -> &TcpStream {
        &self.tcp
    }

    fn send(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.tcp)?;
        }
        Ok(())
    }
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        loop {
            loop {
                match self.tls.reader().read(&mut buffer[filled..]) {
                    Ok(0) => return Ok(filled),
                    Ok(bytes) => filled += bytes,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return if filled > 0 { Ok(filled) } else { Err(error) },
                }
            }
            if !self.unread.is_empty() {
                let taken = self.tls.read_tls(&mut &self.raw[self.unread.clone()])?;
                self.unread.start += taken;
                self.tls.process_new_packets().map_err(io::Error::other)?;
                continue;
            }
            if filled > 0 {
                return Ok(filled);
            }
            self.unread = 0..self.tcp.read(&mut self.raw)?;
            if self.unread.is_empty() {
                return Ok(0);
            }
        }
    }
}

impl Write for TlsStream {
    /// After `WouldBlock`, the next call must pass the same bytes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.owed == 0 {
            self.owed = self.tls.writer().write(&bytes[..bytes.len().min(WRITE_BYTES)])?;
        }
        self.send()?;
        Ok(std::mem::take(&mut self.owed))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for TlsStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

/// Opens this many connections, one after the other, and requests the version through each of them.
///
/// # Errors
/// Returns an error if one of the connections fails.
pub fn connect_many(address: &SocketAddr, count: usize) -> Result<Vec<TlsStream>> {
    let connect = |_| -> Result<TlsStream> {
        let mut stream = TlsStream::connect(address).context("a handshake")?;
        stream.write_all(b"version\r\n")?;
        let mut reply = [0; 64];
        let bytes = stream.read(&mut reply)?;
        anyhow::ensure!(reply[..bytes].starts_with(b"VERSION "), "no version");
        Ok(stream)
    };
    (0..count).map(connect).collect()
}
