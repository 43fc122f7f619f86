//! The new process: takes over sockets, memory and connections from the old one, step by step.

use super::VARIABLE;
use super::message::{MemoryState, Message, Offer, VERSION, VERSION_ALONE};
use super::{Channel, ChannelError};
use crate::connections::HandedConnection;
use crate::listen::{Handed, HandedSocket, SocketKind};
use crate::shared::faults;
use cached_core::arena::{ArenaFile, ArenaFileError};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The maximum time that the new process waits for each step of the old one. The old process itself
/// has shorter limits.
const STEP_MAX: Duration = Duration::from_secs(2 * 60 * 60);
/// The maximum number of connections that are taken over.
const CONNECTIONS_MAX: u32 = 1 << 22;

/// The reason why a process cannot take over, as a single line.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// The environment names a socket to take over from, but the socket does not exist.
    #[error("{VARIABLE} is set, but standard input is not the socket of a process that hands over: {0}")]
    NoSocket(io::Error),
    /// The other process runs as another user.
    #[error(
        "the process that hands over belongs to another user; it must belong to the same user or to root"
    )]
    Stranger,
    /// The other process is not the parent of this one.
    #[error("the running process is not the parent of this one; a script must start the program with exec")]
    NoChild,
    /// The other process has another version of the messages.
    #[error(
        "the running process uses version {0} of the hand-over, this program version {VERSION}; restart instead"
    )]
    Version(u16),
    /// The other process has continued by itself, or has ended.
    #[error("the running process does not hand over: {0}")]
    Broken(String),
    /// The configuration names another memory file.
    #[error("the running process uses a different memory file than memcached.memory_file; restart instead")]
    OtherFile,
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] ArenaFileError),
}

impl From<ChannelError> for TakeOverError {
    fn from(error: ChannelError) -> TakeOverError {
        TakeOverError::Broken(error.to_string())
    }
}

/// The offer of a running process to this one.
#[derive(Debug)]
pub struct TakeOver {
    channel: Channel,
    offer: Offer,
    handed: Handed,
}

/// A takeover from a running process, which knows that this one is prepared.
#[derive(Debug)]
pub(crate) struct Taking {
    channel: Channel,
}

/// The state of the old process when it stopped.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) state: MemoryState,
    pub(crate) file: Option<ArenaFile>,
    pub(crate) connections: Vec<(HandedConnection, OwnedFd)>,
}

impl TakeOver {
    /// Returns the offer of a running process, if that process has started this one for a takeover.
    /// Must be called only once, before standard input is used.
    ///
    /// # Errors
    /// Returns [`TakeOverError`].
    pub fn from_environment() -> Result<Option<TakeOver>, TakeOverError> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let socket = take_input().map_err(TakeOverError::NoSocket)?;
        TakeOver::over(socket).map(Some)
    }

    fn over(socket: OwnedFd) -> Result<TakeOver, TakeOverError> {
        let channel = Channel::over(socket).map_err(TakeOverError::NoSocket)?;
        let peer = channel.peer().map_err(TakeOverError::NoSocket)?;
        if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
            return Err(TakeOverError::Stranger);
        }
        // The other process kills its child before it continues to use the memory, and it can kill
        // only its child. Therefore the peer must be the parent.
        if rustix::process::getppid() != Some(peer.pid) {
            return Err(TakeOverError::NoChild);
        }
        let deadline = Instant::now() + STEP_MAX;
        let Message::Offer(offer) = channel.receive(deadline)?.0 else {
            return Err(ChannelError::Unexpected.into());
        };
        if !(VERSION_ALONE..=VERSION).contains(&offer.version) {
            return Err(TakeOverError::Version(offer.version));
        }
        faults::at_step("offer");
        let mut handed = Handed { sockets: Vec::new(), is_of_process: true };
        for _ in 0..offer.sockets {
            let (Message::Socket { kind, name }, mut sockets) = channel.receive(deadline)? else {
                return Err(ChannelError::Unexpected.into());
            };
            let (Some(socket), true) = (sockets.pop(), sockets.is_empty()) else {
                return Err(ChannelError::Unexpected.into());
            };
            handed.sockets.push(HandedSocket { kind, name, socket });
        }
        Ok(TakeOver { channel, offer, handed })
    }

    /// Returns the sockets of the admin listener, each with its configured address.
    pub fn take_admin_sockets(&mut self) -> Vec<(String, OwnedFd)> {
        self.handed.take_all(SocketKind::Admin)
    }

    /// Returns the sockets of the object cache, each with its configured address.
    pub fn take_object_sockets(&mut self) -> Vec<(String, OwnedFd)> {
        self.handed.take_all(SocketKind::Objects)
    }

    /// Returns the listening sockets.
    pub(crate) fn take_sockets(&mut self) -> Handed {
        std::mem::take(&mut self.handed)
    }

    /// Reports that the configuration is valid and the sockets are open. `memory_file` is the path
    /// in the configuration.
    pub(crate) fn prepared(self, memory_file: Option<&Path>) -> Result<Taking, TakeOverError> {
        let TakeOver { channel, offer, .. } = self;
        let id = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let own = memory_file.and_then(|path| path.metadata().ok()).map(id);
        if offer.memory_file.is_some() && offer.memory_file != own {
            return Err(TakeOverError::OtherFile);
        }
        faults::at_step("listening");
        tracing::info!(version = offer.program, "prepared to take over from the running process");
        channel.send(&Message::Prepared, &[], Instant::now() + STEP_MAX)?;
        Ok(Taking { channel })
    }
}

impl Taking {
    /// Waits until the old process has no object store open.
    pub(crate) fn wait_for_store(&self) -> Result<(), TakeOverError> {
        self.channel.expect(&Message::StoreFree, Instant::now() + STEP_MAX)?;
        faults::at_step("store");
        Ok(())
    }

    /// Reports that the object store is open, and takes over the state of the old process once that
    /// process has stopped. `memory_file` is the path in the configuration.
    pub(crate) fn take(&self, memory_file: Option<&Path>) -> Result<Taken, TakeOverError> {
        faults::at_step("opened");
        let channel = &self.channel;
        let deadline = Instant::now() + STEP_MAX;
        channel.send(&Message::StoreOpen, &[], deadline)?;
        let (Message::Memory(state), mut files) = channel.receive(deadline)? else {
            return Err(ChannelError::Unexpected.into());
        };
        faults::at_step("memory");
        let file = match (files.pop(), memory_file) {
            _ if !files.is_empty() || state.connections > CONNECTIONS_MAX => {
                return Err(ChannelError::Unexpected.into());
            }
            (Some(file), Some(path)) => {
                let secs = state.clock_secs;
                Some(ArenaFile::handed_over(path, File::from(file), secs)?)
            }
            (Some(_), None) => return Err(TakeOverError::OtherFile),
            // The running process has no memory file, so none is taken over.
            (None, Some(path)) => Some(ArenaFile::open(path)?),
            (None, None) => None,
        };
        let mut connections = Vec::new();
        while connections.len() < state.connections as usize {
            match channel.receive(deadline)? {
                (Message::Connections(more), sockets) if more.len() == sockets.len() && !more.is_empty() => {
                    connections.extend(more.into_iter().zip(sockets));
                }
                _ => return Err(ChannelError::Unexpected.into()),
            }
        }
        Ok(Taken { state, file, connections })
    }

    /// Reports that this process is ready to serve, and waits until the memory belongs to it.
    pub(crate) fn ready(&self, items: u64, connections: u32) -> Result<(), TakeOverError> {
        faults::at_step("ready");
        let deadline = Instant::now() + STEP_MAX;
        self.channel.send(&Message::Ready { items, connections }, &[], deadline)?;
        self.channel.expect(&Message::Go, deadline)?;
        faults::at_step("go");
        Ok(())
    }

    /// Reports that this process serves.
    pub(crate) fn serving(self) -> Result<(), TakeOverError> {
        Ok(self.channel.send(&Message::Serving, &[], Instant::now() + STEP_MAX)?)
    }
}

/// Takes the descriptor of standard input, and replaces it with an empty one.
fn take_input() -> io::Result<OwnedFd> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let null = File::open("/dev/null")?;
    // SAFETY: the arguments are plain numbers; the old descriptor is closed, and nothing else owns
    // its number.
    if unsafe { libc::dup2(null.as_raw_fd(), libc::STDIN_FILENO) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}
