//! The life of a server: sockets and store are opened, or taken over from a running process; threads are started;
//! the configuration is read again; everything ends in order. What the process promises as a whole is here, such as
//! the sum of its memory. What serves one request is not.

pub(crate) mod limits;
pub(crate) mod memory_file;
mod memory_file_start;
pub mod reload;
pub(crate) mod server;
pub mod sidecar;
#[cfg(feature = "sidecar")]
mod sidecar_commands;
mod take_over;

pub use limits::Limits;
pub use memory_file::{OnTakingOver, TakingOver};
pub use memory_file_start::MemoryFileStart;
pub use server::{ServeError, Server, StartError, Stopper};
pub use take_over::PreparedServer;
