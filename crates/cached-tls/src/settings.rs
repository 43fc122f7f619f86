//! The TLS settings of one or several listeners, and reading the files that they name.

use named_file::{FileError, Stamp};
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

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
    /// The certificates of the authorities that sign client certificates, in PEM; empty for no
    /// authorities.
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

impl TlsSettings {
    /// Returns the settings of peers, each of which accepts connections and opens some: both sides
    /// present a certificate, they speak TLS 1.3, and resume no sessions, so that each connection is
    /// verified. `ca_file` has the authorities whose certificates they accept.
    #[must_use]
    pub fn of_peers(chain_file: PathBuf, key_file: PathBuf, ca_file: PathBuf) -> TlsSettings {
        TlsSettings {
            chain_file,
            key_file,
            ca_file,
            client_certificates: ClientCertificates::Require,
            min_version: MinVersion::Tls13,
            session_tickets: false,
            ..TlsSettings::default()
        }
    }
}

/// The format of a private key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyFormat {
    /// PEM: PKCS #8, PKCS #1 or SEC 1.
    Pem,
    /// The same formats in binary form, without base64.
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

/// A problem with the TLS files, in memcached's words, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be used.
    #[error("Error loading {}: {} : {cause}", file.name(), path.display())]
    File {
        /// The purpose of the file.
        file: TlsFile,
        /// The file.
        path: PathBuf,
        /// The problem.
        cause: FileError,
    },
    /// The key does not belong to the chain.
    #[error("Error validating the certificate: {0}")]
    Mismatch(String),
    /// The settings are inconsistent.
    #[error("{0}")]
    Settings(String),
}

impl TlsError {
    /// Returns whether the error persists until a person changes the settings or the files.
    #[must_use]
    pub fn is_mistake(&self) -> bool {
        match self {
            TlsError::File { cause, .. } => cause.is_mistake(),
            TlsError::Mismatch(_) | TlsError::Settings(_) => true,
        }
    }
}

/// The purpose of a file that [`TlsSettings`] name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFile {
    /// The certificate chain.
    Chain,
    /// The private key.
    Key,
    /// The certificates of the authorities.
    Authorities,
}

impl TlsFile {
    fn name(self) -> &'static str {
        match self {
            TlsFile::Chain => "the certificate chain",
            TlsFile::Key => "the key",
            TlsFile::Authorities => "the CA certificate",
        }
    }

    /// Returns the name of the setting that names the file.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            TlsFile::Chain => "chain_file",
            TlsFile::Key => "key_file",
            TlsFile::Authorities => "ca_file",
        }
    }

    pub(crate) fn error(self, path: &Path, cause: FileError) -> TlsError {
        TlsError::File { file: self, path: path.to_owned(), cause }
    }
}

/// The contents of the files.
pub(crate) struct Material {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    /// The certificates of the authorities; empty if there is no such file.
    pub(crate) authorities: Vec<CertificateDer<'static>>,
}

impl Material {
    /// Reads all files that the settings name.
    pub(crate) fn read(settings: &TlsSettings) -> Result<Material, TlsError> {
        let chain_file = &settings.chain_file;
        let chain = certificates_of(chain_file).map_err(|cause| TlsFile::Chain.error(chain_file, cause))?;
        let key_file = match settings.key_file.as_os_str().is_empty() {
            true => chain_file,
            false => &settings.key_file,
        };
        let key = key(key_file, settings.key_format).map_err(|cause| TlsFile::Key.error(key_file, cause))?;
        let ca_file = &settings.ca_file;
        let authorities = match ca_file.as_os_str().is_empty() {
            true => Vec::new(),
            false => certificates_of(ca_file).map_err(|cause| TlsFile::Authorities.error(ca_file, cause))?,
        };
        Ok(Material { chain, key, authorities })
    }

    /// Returns the authorities as a store for verifying certificates.
    pub(crate) fn roots(&self, settings: &TlsSettings) -> Result<RootCertStore, TlsError> {
        let roots = roots(self.authorities.iter().cloned());
        roots.map_err(|cause| TlsFile::Authorities.error(&settings.ca_file, cause))
    }
}

/// Converts authorities to a store for verifying certificates.
pub(crate) fn roots(
    authorities: impl IntoIterator<Item = CertificateDer<'static>>,
) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots.add(certificate).map_err(|error| FileError::mistake(error.to_string()))?;
    }
    Ok(roots)
}

fn key(path: &Path, format: KeyFormat) -> Result<PrivateKeyDer<'static>, FileError> {
    let bytes = read(path)?;
    let key = match format {
        KeyFormat::Pem => PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                "the file contains no private key; it must be PEM without a passphrase".to_owned()
            }
            other => other.to_string(),
        }),
        KeyFormat::Der => PrivateKeyDer::try_from(bytes).map_err(str::to_owned),
    };
    key.map_err(FileError::mistake)
}

/// Reads all certificates of a PEM file, of which there must be at least one.
pub(crate) fn certificates_of(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let text = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match all {
        Err(error) => Err(FileError::mistake(error.to_string())),
        Ok(all) if all.is_empty() => {
            Err(FileError::mistake("the file contains no certificate; it must be PEM"))
        }
        Ok(all) => Ok(all),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    if path.as_os_str().is_empty() {
        return Err(FileError::mistake("no file is named"));
    }
    named_file::read(path)
}

/// Returns the states of all files that the settings name.
pub(crate) fn stamps(settings: &TlsSettings) -> [Stamp; 3] {
    [&settings.chain_file, &settings.key_file, &settings.ca_file].map(|path| named_file::stamp(path))
}
