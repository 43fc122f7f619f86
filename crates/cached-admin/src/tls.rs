//! TLS of the admin listener: handshakes, and the replacement of certificates.

use std::sync::Arc;
use std::time::Duration;

use cached_tls::ServerTls;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The time that a client has for its handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// How often the files of the certificates are looked at.
const INTERVAL: Duration = Duration::from_secs(60);

/// A TLS record with the alert `internal_error`, for a client beyond the limit of connections.
pub(crate) const BUSY: &[u8] = &[21, 3, 3, 0, 2, 2, 80];

/// Does the handshake of a connection.
///
/// # Errors
/// One line: what the client did wrong.
pub(crate) async fn accept(tls: &ServerTls, socket: TcpStream) -> Result<TlsStream<TcpStream>, String> {
    let config = tls.config(tls.settings().client_certificates).ok_or("there is no certificate")?;
    match tokio::time::timeout(HANDSHAKE_TIME_MAX, TlsAcceptor::from(config).accept(socket)).await {
        Ok(accepted) => accepted.map_err(|error| error.to_string()),
        Err(_) => Err("the handshake took too long".into()),
    }
}

/// Replaces the certificates whenever their files change, until it is dropped.
pub(crate) async fn renew(tls: Arc<ServerTls>) {
    let mut times = tokio::time::interval(INTERVAL);
    // At once: they have just been read.
    times.tick().await;
    loop {
        times.tick().await;
        let tls = Arc::clone(&tls);
        // Reading files may block.
        match tokio::task::spawn_blocking(move || tls.reload_if_changed()).await {
            Ok(Ok(true)) => tracing::info!("the files of admin.tls have changed: they are in use"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => {
                tracing::error!(cause = %error, "admin.tls cannot be replaced: the old certificates stay in use");
            }
            Err(_) => tracing::error!("reading the certificates of admin.tls has panicked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr};

    use cached_tls::TlsSettings;
    use rustls::pki_types::{CertificateDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

    use super::*;
    use crate::{AdminConfig, AdminServer, Tokens};

    const REQUEST: &[u8] = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

    fn connect(port: u16) -> std::net::TcpStream {
        std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a connection")
    }

    /// Beyond loopback requests go through TLS and no other way; on loopback they go without.
    #[test]
    fn addresses_beyond_loopback_have_tls() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let own = params.self_signed(&key).expect("a certificate");
        fs::write(path("chain"), own.pem()).expect("a file");
        fs::write(path("key"), key.serialize_pem()).expect("a file");
        fs::write(path("token"), "0123456789abcdef0123456789abcdef").expect("a file");
        let settings =
            TlsSettings { chain_file: path("chain"), key_file: path("key"), ..TlsSettings::default() };
        let config = AdminConfig {
            listen: vec!["0.0.0.0:0".into(), "127.0.0.1:0".into()],
            tokens: Some(Tokens::from_file(path("token")).expect("a token")),
            tls: Some(Arc::new(ServerTls::load(settings, &[]).expect("a pair"))),
            ..AdminConfig::default()
        };
        let server = AdminServer::start(config, "test", "0").expect("an admin listener");
        let schemes: Vec<bool> = server.urls().iter().map(|url| url.starts_with("https://")).collect();
        assert_eq!(schemes, [true, false]);
        let ports: Vec<u16> = server.addresses().iter().map(SocketAddr::port).collect();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(own)).expect("a root");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").expect("a name");
        let tls = ClientConnection::new(Arc::new(client), name).expect("a client");
        let mut stream = StreamOwned::new(tls, connect(ports[0]));
        stream.write_all(REQUEST).expect("the server reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an end in order");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        for (port, is_served) in [(ports[0], false), (ports[1], true)] {
            let mut plain = connect(port);
            plain.write_all(REQUEST).expect("room in the socket");
            let mut answer = Vec::new();
            // May be reset, because what was sent is not read.
            let _ = plain.read_to_end(&mut answer);
            assert_eq!(answer.starts_with(b"HTTP/1.1 200 OK"), is_served, "port {port}");
        }
    }
}
