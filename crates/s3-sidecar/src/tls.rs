//! TLS on both sides: the certificates of the endpoint, and handshakes of clients.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cached_tls::ServerTls;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The time that a client has for its handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// How often the files of the certificates are looked at.
const INTERVAL: Duration = Duration::from_secs(60);

/// Returns how the endpoint's certificate is verified: by the authorities in a file, or by the system's.
///
/// # Errors
/// One line: what is wrong with them.
pub(crate) fn client(ca_file: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let wrong = |cause: &dyn std::fmt::Display| format!("{}: {cause}", path.display());
            let all = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
            for certificate in all {
                let certificate = certificate.map_err(|error| wrong(&error))?;
                roots.add(certificate).map_err(|error| wrong(&error))?;
            }
            if roots.is_empty() {
                return Err(wrong(&"has no certificate"));
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err("the system has no certificates of authorities; name a file of them".into());
            }
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Returns a configuration that trusts no authority, for an endpoint without TLS.
pub(crate) fn none() -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(rustls::ALL_VERSIONS);
    let builder = builder.expect("the library's own versions fit its own suites");
    builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
}

/// Does the handshake of a client's connection.
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

/// Replaces the listener's certificates whenever their files change, until it is dropped.
pub(crate) async fn renew(tls: Arc<ServerTls>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let tls = Arc::clone(&tls);
        // Reading files may block.
        match tokio::task::spawn_blocking(move || tls.reload_if_changed()).await {
            Ok(Ok(true)) => tracing::info!("the files of s3.tls have changed: they are in use"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => {
                tracing::error!(cause = %error, "s3.tls cannot be replaced: the old certificates stay in use");
            }
            Err(_) => tracing::error!("reading the certificates of s3.tls has panicked"),
        }
    }
}
