//! The HTTP admin listener of `cached` and `synapsed`.
//!
//! ```text
//! client ──► listener ──► access (token, Host) ──► routes ──► handler ──► Response
//!                                                    ▲
//!         /metrics ── the one registry               │ other parts add routes: Routes::add
//!         /livez /readyz /startupz ── Health ────────┤
//!         /status.json ── Status ────────────────────┘
//! ```
//! An [`AdminServer`] has its own thread with a tokio runtime. It therefore responds while the
//! startup waits for a store, while the acceptor is busy, and even when the acceptor hangs; and a
//! long report delays no client.
//!
//! | module | content |
//! |---|---|
//! | [`routes`] | requests, responses, and the table of routes |
//! | [`Tokens`] | the bearer tokens and their file |
//! | [`health`] | the conditions for liveness, readiness and a complete start |
//! | [`status`] | the document `/status.json`, with an hour of history |
//! | [`sources`] | metrics and status of an object cache, a store and a synapse server |
//! | [`insight`] | reports about requests beyond counters: predictions, hot names, reasons for misses, slow requests |
//! | [`control`] | probes, metrics, the console; reload, drain, the configuration in force, the log's last lines |
//! | [`process`] | the system's counts for this process |
//!
//! A part adds a route:
//!
//! ```
//! use cached_admin::{Access, Response, Routes};
//!
//! let routes = Routes::new();
//! routes.get("/hello", Access::Read, |request| async move {
//!     Response::text(format!("hello {}\n", request.query("name").unwrap_or_default()))
//! });
//! ```
#![warn(missing_debug_implementations)]

mod cache_routes;
pub mod control;
pub mod health;
pub mod insight;
mod listener;
pub mod process;
pub mod routes;
pub mod sources;
pub mod status;
mod table;

pub use health::Health;
pub use listener::AdminServer;
pub use routes::{Access, Request, Response, Routes, WAIT_MAX, blocking};
pub use status::Status;
pub use table::{ADDRESS_DEFAULT, AdminConfig, AdminError, AdminTable, Tokens, TokensRead};
