//! Objects over HTTP/1.1: a server for the objects of any [`Blocker`](blocker::Blocker), so that
//! every language can use them without a library of its own. `docs/http.md` describes the interface.
//!
//! ```text
//! serve_all ──► Place ──► cached_http::serve ──► request: the head, as an operation
//!                             │                      │
//!                             │                  keys: may this client do it?
//!                             │                      │
//!                             └── memory ◄────── execute ──► Blocker
//!                                 a part of the budget: the bodies of all connections
//! ```
//!
//! | module | content |
//! |---|---|
//! | `config` | the settings of a server, and its memory |
//! | `request` | the head of a request as an operation, without I/O |
//! | `keys` | clients' keys and their rights |
//! | `execute` | operations on a blocker |
//! | `response` | responses, and the statuses of errors |
//! | `memory` | the bodies that a connection holds |
//! | `server` | sockets, connections, counters |
//! | `socket` | the socket of a connection, which counts its bytes |
//!
//! A client names objects by `/NAMESPACE/NAME`, percent-encoded. The body of a response is one version
//! of an object; a PUT is one change.
#![warn(missing_debug_implementations)]

mod config;
mod execute;
mod keys;
mod memory;
mod request;
mod response;
mod server;
mod socket;

pub use config::{Address, ListenError, PORT_DEFAULT, ServerConfig};
pub use connection::{AddressError, SettingError};
pub use keys::Keys;
pub use server::Server;
