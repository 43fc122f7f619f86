//! The memcached-compatible server: sockets, connections, commands, statistics.
//!
//! The way of one `get`: `listen/acceptor.rs` accepts the connection and assigns it to a worker;
//! `worker/mod.rs` waits for its socket; `conn/drive.rs` reads; `conn/requests.rs` decodes with
//! `cached-proto`; `exec/get.rs` reads the store; `stream/output.rs` sends the reply.
//!
//! Modules use only those below them; `cargo test -p cached-tests --test module_circles` checks that no two
//! use each other:
//!
//! ```text
//!  server                               opens, runs and ends the whole
//!  worker, listen                       threads: event loops; the acceptor
//!  conn                                 one connection: bytes in, replies out
//!  exec                                 one request: store, counters, reply
//!  stats                                reports
//!  shared                               what all threads share
//!  watch, prefixes                      event lines; counts by key prefix
//!  connections, stream, counters        the table of connections; buffers of one; counters of a worker
//!  heartbeat, size_classes, clock, locks, settings
//! ```
//! `cli` and `config` produce [`Settings`] and [`Config`]; `objects` is the object cache with its synapse
//! listener.
//!
//! ```no_run
//! use cached_server::{Logging, Server, Settings};
//!
//! let server = Server::open(Settings::default(), Logging::embedded(0))?;
//! println!("{:?}", server.addresses());
//! server.run(std::future::pending())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod cli;
pub mod clock;
pub mod config;
pub mod limits;
pub mod objects;
pub mod panics;
pub mod pid_file;
pub mod process;
pub mod settings;
pub mod signals;
pub mod systemd;

mod conn;
mod connections;
mod counters;
mod exec;
mod faults;
mod heartbeat;
mod listen;
mod locks;
mod logging;
mod prefixes;
mod server;
mod shared;
mod size_classes;
mod stats;
mod stream;
mod watch;
mod worker;

pub use config::Config;
pub use logging::Logging;
pub use server::{ServeError, Server, StartError, Stopper};
pub use settings::Settings;
