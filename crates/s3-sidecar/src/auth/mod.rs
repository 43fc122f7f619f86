//! Who may do what, where the sidecar decides that itself: the modes "listener" and "none". The endpoint then sees requests of the
//! sidecar's own.
//!
//! ```text
//! request ─► claim ─► verify ─► operation ─► rights ─► check (the body) ─► sign ─► endpoint
//!                        │
//!                      keys ─► signing_key
//! ```
//!
//! | module | content |
//! |---|---|
//! | `access`, `mode` | which party decides; from a client's request to one of the sidecar's own |
//! | `claim`, `verify`, `canonical`, `time` | signatures of version 4, and the one form of a request that they cover |
//! | [`keys`], `signing_key`, `secret_file` | the clients' keys |
//! | `operation`, `rights`, `delete_many` | what a request does, and whether its key may |
//! | `payload`, `check`, `chunked`, `chain`, `checksum`, `encoder` | bodies: verified as they stream by |
//! | [`credentials`], `sign` | the sidecar's own requests |
//! | `denial`, `reload` | refusals; files that have changed |

mod access;
mod canonical;
mod chain;
mod check;
mod checksum;
mod chunked;
mod claim;
pub mod credentials;
pub(crate) mod delete_many;
pub(crate) mod denial;
mod encoder;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod keys;
mod mode;
mod operation;
pub(crate) mod payload;
mod reload;
mod rights;
mod secret_file;
mod sign;
mod signing_key;
#[cfg(test)]
mod tests;
pub(crate) mod time;
mod verify;

pub(crate) use access::Access;
pub(crate) use check::{Check, Verdict};
pub use credentials::Credentials;
pub use denial::Refusals;
pub use keys::Keys;
pub use mode::Auth;
pub(crate) use reload::renew;
pub use reload::{Secrets, SecretsRead};
pub(crate) use sign::Signer;
