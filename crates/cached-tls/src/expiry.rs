//! The expiry of certificates.

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};
use std::time::Duration;

/// A time by which every certificate has expired, since dates have four digits for the year.
const AFTER_ALL_SECS: u64 = 1 << 40;

/// Returns the earliest expiry of these certificates, in seconds since 1970; `None` if no date can
/// be read.
pub(crate) fn expiry(chain: &[CertificateDer<'_>], provider: &CryptoProvider) -> Option<u64> {
    chain.iter().filter_map(|certificate| not_after(certificate, provider)).min()
}

/// Determines the expiry by verifying the certificate: verification checks the date first, and
/// reports it if it has passed. rustls has no other way to read it.
fn not_after(certificate: &CertificateDer<'_>, provider: &CryptoProvider) -> Option<u64> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let late = UnixTime::since_unix_epoch(Duration::from_secs(AFTER_ALL_SECS));
    let algorithms = provider.signature_verification_algorithms.all;
    match verify_server_cert_signed_by_trust_anchor(&parsed, &RootCertStore::empty(), &[], late, algorithms) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Some(not_after.as_secs())
        }
        _ => None,
    }
}
