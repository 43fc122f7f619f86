//! The shared part of `cached`'s TLS listeners: settings, certificates that are replaced while
//! clients are served, and session tickets. Also the authorities that its clients trust.
//!
//! ```text
//!  TlsSettings ── ServerTls::load ──► files read, key and chain verified together ──► one ServerConfig for each
//!                      ▲                                                               client-certificate policy
//!                      └─ reload, reload_if_changed: repeats all of this; after an error, the old ones stay
//! ```
//! The library is rustls with ring: TLS 1.2 and 1.3, no early data, no renegotiation, no
//! compression.
//!
//! | module | content |
//! |---|---|
//! | `settings` | [`TlsSettings`] and its parts; reads the files that they name; [`TlsError`] |
//! | [`client`] | the client's side: the trusted authorities |
//! | `server` | [`ServerTls`] |
//! | `tokio_listener` | handshakes and replacement for listeners on tokio; feature `tokio` |

pub mod client;
mod server;
mod settings;
#[cfg(test)]
mod tests;
#[cfg(feature = "tokio")]
mod tokio_listener;

pub use server::{ServerTls, expiry_of};
pub use settings::{ClientCertificates, KeyFormat, MinVersion, TlsError, TlsFile, TlsSettings, suite_names};
#[cfg(feature = "tokio")]
pub use tokio_listener::{BUSY, TlsStream, accept, renew, renew_files};

/// Returns the cryptography of all TLS. This is the only place that names its library.
#[must_use]
pub fn provider() -> rustls::crypto::CryptoProvider {
    rustls::crypto::ring::default_provider()
}
