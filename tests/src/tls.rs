//! TLS for tests: certificates from the process's own authority, and the client side of a
//! connection.

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// An authority and the certificates that it has signed, in a directory.
#[derive(Debug)]
pub struct Certificates {
    dir: tempfile::TempDir,
    authority: Issuer<'static, KeyPair>,
}

/// The end of a certificate's validity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// The certificate expires in the far future.
    Valid,
    /// The certificate has expired.
    Expired,
}

impl Certificates {
    /// Returns an authority (`ca.pem`) and a server certificate (`server.pem`, `server.key`).
    ///
    /// # Panics
    /// Panics if the files cannot be written.
    pub fn new() -> Certificates {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let own = params.self_signed(&key).expect("a certificate");
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::write(dir.path().join("ca.pem"), own.pem()).expect("a file");
        let certificates = Certificates { dir, authority: Issuer::new(params, key) };
        certificates.issue("server", Validity::Valid);
        certificates
    }

    /// Returns the certificates that all servers of this process share.
    pub fn shared() -> &'static Certificates {
        static SHARED: OnceLock<Certificates> = OnceLock::new();
        SHARED.get_or_init(Certificates::new)
    }

    /// Signs a certificate for `localhost` and 127.0.0.1 with a new key: `NAME.pem` and `NAME.key`.
    /// An earlier certificate with that name is replaced.
    ///
    /// # Panics
    /// Panics if the files cannot be written.
    pub fn issue(&self, name: &str, validity: Validity) {
        self.issue_for(name, &["localhost", "127.0.0.1"], validity);
    }

    /// Signs a certificate for these hosts, as [`issue`](Self::issue) does.
    ///
    /// # Panics
    /// Panics if the files cannot be written.
    pub fn issue_for(&self, name: &str, hosts: &[&str], validity: Validity) {
        let key = KeyPair::generate().expect("a key");
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(hosts).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if validity == Validity::Expired {
            params.not_before = rcgen::date_time_ymd(2001, 1, 1);
            params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        }
        let signed = params.signed_by(&key, &self.authority).expect("a certificate");
        for (ending, text) in [("pem", signed.pem()), ("key", key.serialize_pem())] {
            let draft = self.dir.path().join("draft");
            fs::write(&draft, text).expect("a file");
            fs::rename(&draft, self.path(&format!("{name}.{ending}"))).expect("a file");
        }
    }

    /// Returns the path of one of the files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the arguments of a server with TLS and these certificates.
    pub fn server_args(&self) -> String {
        let path = |name| self.path(name).display().to_string();
        format!("-Z -o ssl_chain_cert={},ssl_key={}", path("server.pem"), path("server.key"))
    }

    /// Returns a client that trusts the authority, presents the certificate `own` if it is given,
    /// and accepts these versions.
    ///
    /// # Panics
    /// Panics if the certificate does not exist.
    pub fn client(
        &self,
        own: Option<&str>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate("ca")).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
        let builder = builder.expect("versions").with_root_certificates(roots);
        Arc::new(match own {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).expect("a key");
                builder.with_client_auth_cert(vec![self.certificate(name)], key).expect("a certificate")
            }
        })
    }

    fn certificate(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).expect("a certificate")
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Certificates::new()
    }
}

/// TLS 1.2 and 1.3.
pub const BOTH: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12, &rustls::version::TLS13];
/// Only TLS 1.2.
pub const ONLY_12: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];
/// Only TLS 1.3.
pub const ONLY_13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// The client side of a connection.
#[derive(Debug)]
pub struct TlsClient {
    tcp: TcpStream,
    tls: ClientConnection,
}

impl TlsClient {
    /// Connects. The handshake takes place with the first bytes.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<TlsClient> {
        let tcp = TcpStream::connect(address)?;
        tcp.set_nodelay(true)?;
        tcp.set_nonblocking(true)?;
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        let mut tls = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(256 << 10));
        Ok(TlsClient { tcp, tls })
    }

    /// Returns the TLS state.
    pub fn tls(&self) -> &ClientConnection {
        &self.tls
    }

    /// Completes the handshake.
    ///
    /// # Errors
    /// Returns the reason of the failure.
    pub fn handshake(&mut self, deadline: Duration) -> io::Result<()> {
        let until = Instant::now() + deadline;
        while self.tls.is_handshaking() {
            self.exchange(until)?;
        }
        self.flush()
    }

    /// Writes some bytes without waiting.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the server accepts no bytes; otherwise the reason why the connection
    /// has ended.
    pub fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.tls.is_handshaking() {
            self.handshake(super::conn::DEADLINE)?;
        }
        self.flush()?;
        let count = match self.tls.wants_write() {
            true => 0,
            false => self.tls.writer().write(bytes)?,
        };
        self.flush()?;
        if count == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    /// Reads some bytes; returns 0 after an orderly end.
    ///
    /// # Errors
    /// Returns `TimedOut` after `limit`, `UnexpectedEof` if the stream was truncated, otherwise the
    /// reason why the connection has ended.
    pub fn read_some(&mut self, into: &mut [u8], limit: Duration) -> io::Result<usize> {
        let until = Instant::now() + limit;
        loop {
            match self.tls.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.exchange(until)?,
                result => return result,
            }
        }
    }

    /// Ends the sending side in an orderly way.
    pub fn finish_sending(&mut self) {
        self.tls.send_close_notify();
        let _ = self.flush();
        let _ = self.tcp.shutdown(std::net::Shutdown::Write);
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> RawFd {
        self.tcp.as_raw_fd()
    }

    /// Returns the socket below TLS.
    pub fn socket(&mut self) -> &mut TcpStream {
        &mut self.tcp
    }

    /// Sends and receives records, after waiting for the socket.
    fn exchange(&mut self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.flush()?;
        let events = libc::POLLIN | if self.tls.wants_write() { libc::POLLOUT } else { 0 };
        let mut poll = libc::pollfd { fd: self.fd(), events, revents: 0 };
        let millis = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1);
        // SAFETY: one live pollfd.
        unsafe { libc::poll(&raw mut poll, 1, millis) };
        match self.tls.read_tls(&mut self.tcp) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            result => result?,
        };
        let processed = self.tls.process_new_packets();
        // The alert concerns received data.
        let _ = self.flush();
        processed.map(drop).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.tcp) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                result => result?,
            };
        }
        Ok(())
    }
}
