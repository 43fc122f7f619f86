//! The memcached-compatible server: sockets, connections, commands, statistics.
//!
//! Chapters use only those below them; `cargo test -p cached-tests module_circles` checks it:
//!
//! ```text
//!  start         the life of a server: open, take over, run, read the configuration again, end
//!  upgrade       a new process takes over from this one
//!  listen        sockets, and the acceptor that assigns connections to workers
//!  worker        threads: the event loops, and those beside them
//!  conn          one connection: bytes in, replies out
//!  exec          one request: store, counters, reply
//!  stats         reports: `stats`, metrics, documents of the admin listener
//!  stream        buffers and TLS of one connection
//!  shared        the state that all threads share
//!  objects       the object cache with its synapse listener, and its volumes
//!  telemetry     counters, heartbeats, hot keys, event lines
//!  connections   the table of connections, and commands to the workers that serve them
//!  cli, config   command line and configuration file become [`Settings`] and [`Config`]
//!  process, locks
//! ```
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
pub mod config;
pub mod objects;
pub mod process;

mod conn;
mod connections;
mod exec;
mod listen;
mod locks;
mod shared;
mod start;
mod stats;
mod stream;
mod telemetry;
mod upgrade;
mod worker;

/// The functions that the fuzz targets call.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::stream::tls::harness::transport;

    /// Decodes a message of a process that hands over. A valid message must be the same when it is
    /// encoded again.
    ///
    /// # Panics
    /// If the message is not the same.
    pub fn hand_over(packet: &[u8]) {
        use crate::upgrade::message::Message;
        if let Ok(message) = Message::decode(packet) {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }
}

pub use crate::listen::ListenError;
pub use crate::process::Logging;
pub use crate::shared::Upgrader;
pub use config::settings::Settings;
pub use config::{Config, settings};
pub use start::{
    Limits, MemoryFileStart, OnTakingOver, PreparedServer, ServeError, Server, StartError, Stopper,
    TakingOver, reload, sidecar,
};
pub use upgrade::{Program, TakeOver, TakeOverError};
