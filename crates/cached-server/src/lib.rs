//! The memcached-compatible server: sockets, connections, commands, statistics.
//!
//! To follow one `get` from socket to socket, open in this order: `listen/acceptor.rs` (a connection comes in and is
//! dealt to a worker), `worker.rs` (its task is woken), `conn/mod.rs` (bytes in, requests out), `cached-proto` (what
//! they mean), `exec/get.rs` (asking the store), `conn/output.rs` (the reply goes out).
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
mod exec;
mod listen;
mod locks;
mod logging;
mod server;
mod shared;
mod stats;
mod trials;
mod watch;
mod worker;

pub use config::Config;
pub use logging::Logging;
pub use server::{ServeError, Server, StartError, Stopper};
pub use settings::Settings;
