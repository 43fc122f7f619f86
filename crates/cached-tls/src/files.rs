//! Reads the files of certificates and keys.

use crate::settings::{KeyFormat, TlsSettings};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A problem with the TLS files, in memcached's words, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The certificate chain cannot be used.
    #[error("Error loading the certificate chain: {} : {cause}", path.display())]
    Chain {
        /// The file.
        path: PathBuf,
        /// The problem, and the valid values.
        cause: String,
    },
    /// The private key cannot be used.
    #[error("Error loading the key: {} : {cause}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The problem, and the valid values.
        cause: String,
    },
    /// The key does not belong to the chain.
    #[error("Error validating the certificate: {0}")]
    Mismatch(String),
    /// The certificates of the authorities cannot be used.
    #[error("Error loading the CA certificate: {} : {cause}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// The problem, and the valid values.
        cause: String,
    },
    /// The settings are inconsistent.
    #[error("{0}")]
    Settings(String),
}

/// The size limit of files, in bytes. A chain has some thousand, a bundle of all public authorities
/// some hundred thousand.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The contents of the files.
pub(crate) struct Material {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    /// The certificates of the authorities; empty without such a file.
    pub(crate) authorities: Vec<CertificateDer<'static>>,
}

impl Material {
    /// Reads all files that the settings name.
    pub(crate) fn read(settings: &TlsSettings) -> Result<Material, TlsError> {
        let chain_error = |cause| TlsError::Chain { path: settings.chain_file.clone(), cause };
        let chain_text = read_file(&settings.chain_file).map_err(chain_error)?;
        let chain = certificates(&chain_text).map_err(chain_error)?;
        let key_file = match settings.key_file.as_os_str().is_empty() {
            true => &settings.chain_file,
            false => &settings.key_file,
        };
        let key_error = |cause| TlsError::Key { path: key_file.clone(), cause };
        let key_bytes = read_file(key_file).map_err(key_error)?;
        let key = match settings.key_format {
            KeyFormat::Pem => PrivateKeyDer::from_pem_slice(&key_bytes).map_err(|error| key_cause(&error)),
            KeyFormat::Der => PrivateKeyDer::try_from(key_bytes).map_err(str::to_owned),
        };
        let key = key.map_err(key_error)?;
        let mut authorities = Vec::new();
        if !settings.ca_file.as_os_str().is_empty() {
            let wrong = |cause| TlsError::Authorities { path: settings.ca_file.clone(), cause };
            authorities = certificates(&read_file(&settings.ca_file).map_err(wrong)?).map_err(wrong)?;
        }
        Ok(Material { chain, key, authorities })
    }

    /// Returns the authorities as a store for verifying certificates.
    pub(crate) fn roots(&self, settings: &TlsSettings) -> Result<RootCertStore, TlsError> {
        let wrong = |cause| TlsError::Authorities { path: settings.ca_file.clone(), cause };
        roots(self.authorities.iter().cloned()).map_err(wrong)
    }
}

/// Converts authorities to a store for verifying certificates.
pub(crate) fn roots(
    authorities: impl IntoIterator<Item = CertificateDer<'static>>,
) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(roots)
}

fn key_cause(error: &rustls::pki_types::pem::Error) -> String {
    match error {
        rustls::pki_types::pem::Error::NoItemsFound => {
            "the file contains no private key; it must be PEM without a passphrase".into()
        }
        other => other.to_string(),
    }
}

/// Reads all certificates of a PEM text, of which there must be at least one.
pub(crate) fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let all = all.map_err(|error| error.to_string())?;
    if all.is_empty() {
        return Err("the file contains no certificate; it must be PEM".into());
    }
    Ok(all)
}

pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    if path.as_os_str().is_empty() {
        return Err("no file is named".into());
    }
    let found = fs::metadata(path).map_err(|error| cause(&error))?;
    if !found.is_file() {
        return Err("it must be a file".into());
    }
    if found.len() > FILE_BYTES_MAX {
        return Err(format!("it has {} bytes; it must have at most {FILE_BYTES_MAX}", found.len()));
    }
    fs::read(path).map_err(|error| cause(&error))
}

/// Returns the system's error message without the error number.
fn cause(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Identifies the state of a file: device, inode, length, and times of the last changes.
pub(crate) type Stamp = Option<(u64, u64, u64, i64, i64, i64, i64)>;

/// Returns the states of all files that the settings name.
pub(crate) fn stamps(settings: &TlsSettings) -> Vec<Stamp> {
    let paths = [&settings.chain_file, &settings.key_file, &settings.ca_file];
    let stamp = |path: &PathBuf| {
        let found = fs::metadata(path).ok()?;
        let (modified, changed) = ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()));
        Some((found.dev(), found.ino(), found.len(), modified.0, modified.1, changed.0, changed.1))
    };
    paths.into_iter().map(stamp).collect()
}
