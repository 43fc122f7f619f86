//! TLS towards the endpoint: by which authorities its certificate is verified.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

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
