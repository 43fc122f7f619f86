//! TLS on the client's side: the trusted authorities.

use std::path::Path;
use std::sync::Arc;

use named_file::FileError;
use rustls::{ClientConfig, RootCertStore};

use crate::settings::{certificates_of, roots};

/// Returns a configuration that trusts the authorities in a PEM file or, without a file, those of
/// the system.
///
/// # Errors
/// Returns a one-line message: the file and its problem, or that the system has no authorities.
pub fn with_authorities(ca_file: Option<&Path>) -> Result<ClientConfig, FileError> {
    match ca_file {
        Some(path) => Ok(of(of_file(path)?)),
        None => Ok(of(of_system()?)),
    }
}

/// Returns a configuration that trusts the system's authorities and those in a PEM file.
///
/// # Errors
/// Returns the errors of [`with_authorities`], except that with a file, a system without
/// authorities is not an error.
pub fn with_further_authorities(ca_file: Option<&Path>) -> Result<ClientConfig, FileError> {
    let Some(path) = ca_file else { return with_authorities(None) };
    let mut roots = of_file(path)?;
    if let Ok(system) = of_system() {
        roots.extend(system.roots);
    }
    Ok(of(roots))
}

/// Returns a configuration that trusts nobody, for servers without TLS.
#[must_use]
pub fn no_authorities() -> ClientConfig {
    of(RootCertStore::empty())
}

fn of(roots: RootCertStore) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(crate::provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.expect("the provider's suites are those of TLS 1.2 and 1.3");
    builder.with_root_certificates(roots).with_no_client_auth()
}

fn of_file(path: &Path) -> Result<RootCertStore, FileError> {
    let roots = certificates_of(path).and_then(roots);
    roots.map_err(|error| error.reworded(|why| format!("{}: {why}", path.display())))
}

fn of_system() -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match roots.is_empty() {
        true => Err(FileError::mistake("the system has no CA certificates; name a file with them")),
        false => Ok(roots),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_must_have_certificates_of_authorities() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            with_authorities(Some(file.path())).unwrap_err().to_string()
        };
        let path = file.path().display();
        let none = format!("{path}: the file contains no certificate; it must be PEM");
        assert_eq!(error(""), none);
        assert_eq!(error("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), none);
        let damaged = error("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        assert!(damaged.starts_with(&format!("{path}: ")), "{damaged}");
        let missing = with_authorities(Some(Path::new("/nonexistent/ca.pem"))).unwrap_err();
        assert!(missing.is_mistake());
        assert_eq!(missing.to_string(), "/nonexistent/ca.pem: No such file or directory");
    }
}
