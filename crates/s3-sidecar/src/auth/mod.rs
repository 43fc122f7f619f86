//! Authentication and rights, in the modes where the sidecar decides: "listener" and "none". The
//! endpoint then sees the sidecar's own requests.
//!
//! ```text
//! request ─► claim ─► verify ─► operation ─► rights ─► payload (the body) ─► sign ─► endpoint
//!                        │
//!                      keys ─► sign
//! ```
//!
//! | module | content |
//! |---|---|
//! | `access` | which party decides; from a client's request to one of the sidecar's own |
//! | `claim`, `verify`, `canonical`, `time` | signatures of version 4, and the canonical form of a request that they cover |
//! | [`keys`] | the clients' keys |
//! | `operation`, `rights`, `delete_many` | what a request does, and whether its key may |
//! | `payload`, `chunked`, `checksum` | bodies: verified as they stream by |
//! | [`credentials`], `sign` | files with secrets, and the sidecar's own requests |
//! | `denial` | refusals |

mod access;
mod canonical;
mod checksum;
mod chunked;
mod claim;
pub mod credentials;
pub(crate) mod delete_many;
pub(crate) mod denial;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod keys;
mod operation;
pub(crate) mod payload;
mod rights;
mod sign;
#[cfg(test)]
mod tests;
pub(crate) mod time;
mod verify;

pub(crate) use access::Access;
pub use access::Auth;
pub use credentials::Credentials;
pub(crate) use credentials::renew;
pub use credentials::{Secrets, SecretsRead};
pub use denial::Refusals;
pub use keys::Keys;
pub(crate) use payload::{Check, Verdict};
pub(crate) use sign::Signer;
