//! The TLS settings of one or several listeners.

use rustls::crypto::ring;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The settings of TLS, also in the form of a table of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct TlsSettings {
    /// The certificate chain: PEM, the server's own certificate first.
    pub chain_file: PathBuf,
    /// The private key; empty if the chain's file contains it.
    pub key_file: PathBuf,
    /// The format of the private key.
    pub key_format: KeyFormat,
    /// Whether clients must show certificates.
    pub client_certificates: ClientCertificates,
    /// The certificates of the authorities that sign client certificates, in PEM; empty for none.
    pub ca_file: PathBuf,
    /// The oldest accepted version of TLS.
    pub min_version: MinVersion,
    /// The names of the offered cipher suites; empty for all of [`suite_names`].
    pub cipher_suites: Vec<String>,
    /// Whether clients may resume sessions with tickets, which skips the certificate check.
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

/// The format of a private key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyFormat {
    /// PEM: PKCS #8, PKCS #1 or SEC 1.
    Pem,
    /// The same without the base64 text.
    Der,
}

/// Whether clients must show certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// Certificates are not requested.
    None,
    /// A certificate is requested. A client without one is served; a client with an invalid one is
    /// not.
    Request,
    /// A certificate is required.
    Require,
}

/// The oldest accepted version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MinVersion {
    /// TLS 1.2 and 1.3.
    #[serde(rename = "1.2")]
    Tls12,
    /// Only TLS 1.3.
    #[serde(rename = "1.3")]
    Tls13,
}

/// Returns the names of all cipher suites.
pub fn suite_names() -> Vec<String> {
    ring::ALL_CIPHER_SUITES.iter().map(|suite| format!("{:?}", suite.suite())).collect()
}
