//! Reads the files of certificates and keys.

use crate::settings::{KeyFormat, TlsSettings};
use named_file::{FileError, Stamp};
use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};

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
    /// The certificates of the authorities; empty without such a file.
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
