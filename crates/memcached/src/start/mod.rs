//! The life cycle of a server: sockets and store are opened, or taken over from a running process;
//! threads are started; settings change; and everything ends in order. Guarantees of the server as
//! a whole, such as the sum of its memory, are here; the handling of requests is not.

mod live;
pub(crate) mod memory;
pub(crate) mod server;
mod take_over;

pub use live::LiveServer;
pub use memory::{Limits, MemoryFileStart, OnTakingOver, TakingOver};
pub use server::{Server, Stopper};
pub use take_over::PreparedServer;

use crate::listen::ListenError;
use crate::upgrade::TakeOverError;
use cached_config::ConfigError;
use cached_core::arena::ArenaFileError;
use cached_core::kv::KvConfigError;
use cached_process::{Exit, Failure};
use std::io;

/// The reason why the server cannot start, as a single line.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The memory settings cannot work.
    #[error("cannot set up the store: {0}")]
    Store(#[from] KvConfigError),
    /// The memory file cannot be used.
    #[error(transparent)]
    MemoryFile(#[from] ArenaFileError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The passwords or the certificates cannot be used.
    #[error("{}", .0.why)]
    Config(#[from] ConfigError),
    /// A thread, its runtime or a descriptor for it cannot be created.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
    /// The running process cannot be taken over from.
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
}

impl StartError {
    /// Returns the exit status for this error.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            StartError::Store(KvConfigError::File(error)) | StartError::MemoryFile(error) => {
                exit_of_memory_file(error)
            }
            StartError::Store(KvConfigError::Arena(_) | KvConfigError::Index(_)) => Exit::Refused,
            StartError::Config(error) => error.exit,
            StartError::Store(_) => Exit::Configuration,
            StartError::Listen(_) | StartError::TakeOver(_) => Exit::Refused,
            StartError::Thread(_) => Exit::Trouble,
        }
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Failure {
        Failure::new(error.exit(), error)
    }
}

/// Returns the exit status of a program that cannot use its memory file.
#[must_use]
pub fn exit_of_memory_file(error: &ArenaFileError) -> Exit {
    match error {
        ArenaFileError::Io { cause, .. } if !named_file::is_mistake(cause) => Exit::Trouble,
        ArenaFileError::InUse(_) | ArenaFileError::NotHandedOver { .. } => Exit::Refused,
        ArenaFileError::Io { .. }
        | ArenaFileError::NotAFile(_)
        | ArenaFileError::NotOwned { .. }
        | ArenaFileError::Foreign(_) => Exit::Configuration,
    }
}

/// The reason why the server cannot run, or did not end in order, as a single line.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A thread, its runtime or a descriptor for it cannot be created.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
    /// A thread has panicked, or cannot continue its work. The server has ended, because it does
    /// not continue without the thread.
    #[error("{0}")]
    Defect(String),
    /// These workers did not end in time.
    #[error("these workers do not end: {0}")]
    Stuck(String),
    /// The running process continued by itself.
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
}
