//! The memcached-compatible server: sockets, connections, commands, statistics.
//!
//! The way of one `get`: `listen/acceptor.rs` accepts the connection and assigns it to a worker;
//! `worker/mod.rs` waits for its socket; `conn/drive.rs` reads; `conn/requests.rs` decodes with
//! `cached-proto`; `exec/get.rs` reads the store; `stream/output.rs` sends the reply.
//!
//! Modules use only those below them; `cargo test -p cached-tests module_circles` checks that no two
//! use each other:
//!
//! ```text
//!  server                               opens, runs and ends the whole
//!  upgrade, hand_over                   a new process takes over from this one
//!  admin                                what the admin listener shows of a server
//!  worker, listen, insight_thread       threads: event loops; the acceptor; what samples are made of
//!  sweep_thread                         the thread that removes what flushes of prefixes have ended
//!  arbiter_thread                       the thread that moves memory between items and objects
//!  conn                                 one connection: bytes in, replies out
//!  exec                                 one request: store, counters, reply
//!  stats, insight_report                reports
//!  certificates                         their replacement
//!  shared                               what all threads share
//!  watch, prefixes, insight             event lines; counts by key prefix; hot keys and slow requests
//!  connections, stream, counters        the table of connections; buffers of one; counters of a worker
//!  live                                 settings that can change
//!  command_latency                      how long requests take, measured on a sample
//!  heartbeat, size_classes, clock, locks, settings
//!  auth                                 users and passwords
//! ```
//! `cli` and `config` produce [`Settings`] and [`Config`], `reload` reads them again; `objects` is the object cache with its synapse
//! listener, `s3` the sidecar before an S3 endpoint, `s3_commands` what operators ask of it, `s3_secrets` its keys and credentials.
//!
//! ```no_run
//! use cached_server::{Logging, Server, Settings};
//!
//! let server = Server::open(Settings::default(), Logging::embedded(0))?;
//! println!("{:?}", server.addresses());
//! server.run(std::future::pending())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod auth;
pub mod cli;
pub mod clock;
pub mod config;
pub mod limits;
pub mod objects;
pub mod pid_file;
pub mod process;
pub mod reload;
mod restart;
pub mod s3;
#[cfg(feature = "sidecar")]
mod s3_commands;
pub mod s3_secrets;
pub mod settings;
pub mod systemd;

mod admin;
mod arbiter_thread;
mod certificates;
mod command_latency;
mod conn;
mod connections;
mod counters;
mod discovery;
mod exec;
mod faults;
mod hand_over;
mod heartbeat;
mod insight;
mod insight_report;
mod insight_thread;
mod listen;
mod live;
mod locks;
mod logging;
mod memory_file_start;
mod prefixes;
mod server;
mod shared;
mod size_classes;
mod socket_file;
mod stats;
mod stream;
mod sweep_thread;
mod take_over;
mod upgrade;
mod upgrader;
mod watch;
mod work;
mod worker;

/// What the fuzz targets call.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::stream::tls::harness::transport;

    /// Reads a message of a process that hands over; what is one must be the same when it is written again.
    ///
    /// # Panics
    /// If it is not.
    pub fn hand_over(packet: &[u8]) {
        use crate::hand_over::message::Message;
        if let Ok(message) = Message::decode(packet) {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }
}

pub use config::Config;
pub use hand_over::{Program, TakeOver, TakeOverError};
pub use insight::hot::{HotKey, HotPrefix, HotReport};
pub use insight::slow::{SlowLog, SlowReport, SlowRequest};
pub use insight_report::{Curve, HotDocument, MissRatioReport, Misses, Reports};
pub use logging::Logging;
pub use memory_file_start::MemoryFileStart;
pub use restart::{OnTakingOver, TakingOver};
pub use server::{ServeError, Server, StartError, Stopper};
pub use settings::Settings;
pub use take_over::PreparedServer;
pub use upgrader::Upgrader;
