//! The memcached listener: sockets, connections, commands, statistics. The configuration file, the
//! command line and the object cache belong to the program `cached`, in `cached-server`.
//!
//! Chapters use only those below them; `cargo test -p cached-tests module_circles` checks it:
//!
//! ```text
//!  start         the life of a server: open, take over, run, change settings, end
//!  upgrade       a new process takes over from this one
//!  listen        sockets, and the acceptor that assigns connections to workers
//!  worker        threads: the event loops, and the background threads
//!  copy          items on their way from one node of a ring to another
//!  conn          one connection: bytes in, replies out
//!  exec          one request: store, counters, reply
//!  stats         reports: `stats`, metrics, documents of the admin listener
//!  shared        the state that all threads share
//!  telemetry     counters, heartbeats, hot keys, event lines
//!  ring          the ring of nodes to which the server belongs
//!  connections   the table of connections, and commands to the workers that serve them
//!  stream        buffers and TLS of one connection
//!  settings      the settings of a server: [`Settings`]
//!  objects, process, locks
//! ```
//!
//! ```no_run
//! use cached_memcached::{Logging, Server, Settings};
//!
//! let server = Server::open(Settings::default(), Logging::embedded(0))?;
//! println!("{:?}", server.addresses());
//! server.run(std::future::pending())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod settings;

mod conn;
mod connections;
mod copy;
mod exec;
mod listen;
mod locks;
mod objects;
mod process;
mod ring;
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
    pub use crate::stream::tls::tests::harness::transport;

    /// Decodes a message of a process that hands over. A valid message must be the same when it is
    /// encoded again.
    ///
    /// # Panics
    /// Panics if the two messages differ.
    pub fn hand_over(packet: &[u8]) {
        use crate::upgrade::message::Message;
        if let Ok(message) = Message::decode(packet) {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }
}

pub use copy::{Copied, CopyError};
pub use listen::ListenError;
pub use listen::ring::{Twin, find_twin};
pub use objects::ObjectHandOver;
pub use process::{Logging, raise_descriptor_limit};
pub use ring::MoveStep;
pub use ring::RingEvents;
pub use ring::RingLease;
pub use settings::Settings;
pub use shared::Upgrader;
pub use start::{
    Limits, LiveServer, MemoryFileStart, OnTakingOver, PreparedServer, ServeError, Server, StartError,
    Stopper, TakingOver, exit_of_memory_file,
};
pub use upgrade::{Program, TakeOver, TakeOverError};
