//! Authentication and rights, in the modes where the sidecar decides: "listener" and "none". The
//! endpoint then sees the sidecar's own requests.
//!
//! ```text
//! request ─► verify ─► operation ─► rights ─► payload (the body) ─► credentials ─► endpoint
//!               │
//!             keys
//! ```
//!
//! | module | content |
//! |---|---|
//! | `access` | which party decides; from a client's request to one of the sidecar's own |
//! | `verify`, `signature` | signatures of version 4: the claims of a request and their verification; the computation |
//! | [`keys`] | the clients' keys |
//! | `operation`, `rights` | what a request does, and whether its key may |
//! | `payload`, `chunked` | bodies: verified as they stream by |
//! | [`credentials`] | files with secrets, and the sidecar's own requests |
//! | `denial` | refusals |

mod access;
mod chunked;
pub mod credentials;
pub(crate) mod denial;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod keys;
mod operation;
pub(crate) mod payload;
mod rights;
pub(crate) mod signature;
#[cfg(test)]
mod tests;
mod verify;

pub use access::Auth;
pub(crate) use access::{Access, Decision};
pub use credentials::{Credentials, Secrets, SecretsRead};
pub(crate) use credentials::{Signer, renew};
pub use denial::Refusals;
pub use keys::Keys;
pub(crate) use payload::{Check, Verdict};
