//! The settings of TLS on one listener or on several.

use rustls::crypto::ring;
use std::path::PathBuf;

/// The settings of TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// The certificate chain: PEM, the server's own certificate first.
    pub chain_file: PathBuf,
    /// The private key; empty if it is in the file of the chain.
    pub key_file: PathBuf,
    /// The form of the private key.
    pub key_format: KeyFormat,
    /// Which certificates clients must show.
    pub client_certificates: ClientCertificates,
    /// The certificates of the authorities that sign those of clients: PEM; empty for none.
    pub ca_file: PathBuf,
    /// The oldest version of TLS that is accepted.
    pub min_version: MinVersion,
    /// The names of the cipher suites that are offered; empty for all of [`suite_names`].
    pub cipher_suites: Vec<String>,
    /// Whether clients may resume sessions with tickets, which skips the certificates.
    pub session_tickets: bool,
}

impl Default for TlsSettings {
    fn default() -> Self {
        TlsSettings {
            chain_file: PathBuf::new(),
            key_file: PathBuf::new(),
            key_format: KeyFormat::Pem,
            client_certificates: ClientCertificates::None,
            ca_file: PathBuf::new(),
            min_version: MinVersion::Tls12,
            cipher_suites: Vec::new(),
            session_tickets: true,
        }
    }
}

/// The form of a private key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFormat {
    /// PEM: PKCS #8, PKCS #1 or SEC 1.
    Pem,
    /// The same without the base64 text.
    Der,
}

/// Which certificates clients must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientCertificates {
    /// None is requested.
    None,
    /// One is requested; a client without one is served, a client with a wrong one is not.
    Request,
    /// One is required.
    Require,
}

/// The oldest version of TLS that is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinVersion {
    /// TLS 1.2 and 1.3.
    Tls12,
    /// TLS 1.3 alone.
    Tls13,
}

/// Returns the names of all cipher suites.
pub fn suite_names() -> Vec<String> {
    ring::ALL_CIPHER_SUITES.iter().map(|suite| format!("{:?}", suite.suite())).collect()
}
