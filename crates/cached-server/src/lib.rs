//! The program `cached`: the memcached listener of `cached-memcached`, the object service of
//! `cached-objects`, and the sidecar in front of an S3 endpoint, in one process.
//!
//! Chapters use only those below them; `cargo test -p cached-tests module_circles` checks it:
//!
//! ```text
//!  start         reading the configuration again; the hand-over; the sidecar
//!  ring          the steward of a ring whose map is in the registry
//!  cli, config   command line and configuration file become a [`Config`]
//!  process       user, memory, terminal, pid file, inherited sockets
//! ```

pub mod cli;
pub mod config;
pub mod process;
pub mod ring;

mod start;

pub use config::Config;
pub use start::{hand_over, reload, sidecar};
