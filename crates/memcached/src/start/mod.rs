//! The life cycle of a server: sockets and store are opened, or taken over from a running process;
//! threads are started; settings change; and everything ends in order. Guarantees of the server as
//! a whole, such as the sum of its memory, are here; the handling of requests is not.

pub(crate) mod memory;
mod ring;
pub(crate) mod server;
mod take_over;

pub use memory::{Limits, MemoryFileStart, OnTakingOver, TakingOver};
pub use server::{Server, Stopper};
pub use take_over::PreparedServer;

use crate::listen::ListenError;
use crate::process;
use crate::settings::{ServerTls, Settings};
use crate::shared::Shared;
use crate::upgrade::TakeOverError;
use cached_config::ConfigError;
use cached_core::arena::ArenaFileError;
use cached_core::kv::KvConfigError;
use cached_process::reload::LiveSecs;
use cached_process::{Exit, Failure};
use std::io;
use std::sync::{Arc, Weak};

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
    /// not continue without this thread.
    #[error("{0}")]
    Defect(String),
    /// These workers did not end in time.
    #[error("these workers do not end: {0}")]
    Stuck(String),
    /// The running process continued by itself.
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
}

/// A handle that changes the settings of a running server. It does not keep the server alive: the
/// server's cache and store can be closed while the handle exists.
#[derive(Clone, Debug)]
pub struct LiveServer {
    shared: Weak<Shared>,
    /// The time for which the server reports that it is not ready before its listeners close.
    pub drain_delay: LiveSecs,
    /// The time that clients have to read their replies at shutdown.
    pub drain_timeout: LiveSecs,
}

impl LiveServer {
    pub(crate) fn new(shared: &Arc<Shared>) -> LiveServer {
        LiveServer {
            shared: Arc::downgrade(shared),
            drain_delay: shared.live.drain_delay.clone(),
            drain_timeout: shared.live.drain_timeout.clone(),
        }
    }

    /// Applies the settings that can change. Open connections stay open: a limit that has been
    /// lowered is reached as connections close. `more_descriptors` is the number of descriptors
    /// that the object cache needs in addition to those at startup. Does nothing once the server no
    /// longer exists.
    pub fn change(&self, settings: &Settings, more_descriptors: usize) {
        let Some(shared) = self.shared.upgrade() else { return };
        let reserved = shared.reserved_descriptors();
        let wanted = settings.connections_max + reserved + more_descriptors;
        if settings.connections_max > shared.live.connections_max() || more_descriptors > 0 {
            let descriptors = process::raise_descriptor_limit(wanted, shared.settings.threads);
            if descriptors < wanted as u64 {
                tracing::warn!(descriptors, wanted, "fewer file descriptors than connections may need");
            }
        }
        shared.live.set(settings);
        shared.insight.slow.set_threshold(settings.insight.slow_threshold());
        if let Some(objects) = shared.objects.get() {
            objects.slow().set_threshold(settings.insight.slow_threshold());
        }
        shared.logging.configure(settings.log);
    }

    /// Reloads the files of passwords and certificates, and runs `others`. If `others` succeeds,
    /// puts the loaded content in force. Returns the value of `others`, and the keys of the files
    /// whose new content is in force.
    ///
    /// # Errors
    /// Returns the mistake in the files, or the error of `others`. All earlier files then stay in
    /// force.
    pub fn refresh_files(
        &self,
        others: impl FnOnce() -> Result<Vec<String>, String>,
    ) -> Result<Vec<String>, String> {
        let Some(shared) = self.shared.upgrade() else { return others() };
        let passwords = shared.settings.auth.read_again().map_err(|error| error.to_string())?;
        let between_nodes = shared.settings.ring.as_ref().and_then(|ring| ring.tls.as_deref());
        let others = || reload("ring.tls", between_nodes, others);
        let mut files = reload("memcached.tls", shared.tls.as_deref(), others)?;
        files.extend(shared.settings.auth.put_in_force(passwords).into_iter().map(String::from));
        Ok(files)
    }
}

/// Reads the files of the table called `table` again, if there is TLS, and then runs `others`, as
/// [`reload_with`](ServerTls::reload_with) does. Returns the names of what was put in force.
fn reload(
    table: &str,
    tls: Option<&ServerTls>,
    others: impl FnOnce() -> Result<Vec<String>, String>,
) -> Result<Vec<String>, String> {
    let Some(tls) = tls else { return others() };
    let outcome = tls.reload_with(others);
    let mut files = outcome.map_err(|error| format!("{error}; the old certificates stay in use"))??;
    files.push(table.into());
    Ok(files)
}
