//! Commands that other threads send to a worker.

use super::info::{ConnInfo, HandedConnection};
use crate::locks::{COMMANDS, Lock};
use cached_tls::ClientCertificates;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// One command to a worker.
pub(crate) enum Command {
    /// Serve this connection.
    Serve(AcceptedConnection),
    /// Check whether the connection in this slot is to be closed; its socket raises no event for
    /// that.
    Check(usize),
    /// Send the lines that wait for the watcher in this slot; its socket raises no event for that.
    Relay(usize),
    /// Stop between two requests, and wait for a verdict.
    Pause(Pause),
    /// Answer the received requests, then end.
    Drain,
    /// End without answering.
    Abort,
}

/// A connection that has been accepted and entered in the table.
pub(crate) struct AcceptedConnection {
    pub(crate) socket: OwnedFd,
    pub(crate) info: Arc<ConnInfo>,
    /// With TLS: the certificates that the client must show.
    pub(crate) tls: Option<ClientCertificates>,
    /// Its state, if another process has handed it over.
    pub(crate) handed: Option<Box<HandedConnection>>,
}

/// The request to stop between two requests.
pub(crate) struct Pause {
    /// How long requests that have begun may take to end.
    pub(crate) finish_within: Duration,
    /// Receives the worker's connections when it has stopped.
    pub(crate) report: mpsc::Sender<Paused>,
    /// Gives the verdict; if the other half is dropped, the worker continues.
    pub(crate) verdict: mpsc::Receiver<Verdict>,
}

/// A worker that has stopped. Until it has a verdict it keeps the sockets open and touches nothing.
pub(crate) struct Paused {
    /// Its index.
    pub(crate) worker: usize,
    /// Its connections that another process can continue.
    pub(crate) connections: Vec<PausedConnection>,
    /// The number of its other connections.
    pub(crate) others: usize,
}

/// A connection of a worker that has stopped.
pub(crate) struct PausedConnection {
    /// Its socket, which the worker keeps open.
    pub(crate) fd: RawFd,
    pub(crate) connection: HandedConnection,
}

/// How a worker that has stopped continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It serves its connections.
    Resume,
    /// Another process serves: it closes its own descriptors, and ends.
    End,
}

/// The commands for one worker, and the descriptor that wakes it.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    commands: Lock<Vec<Command>>,
    waker: OwnedFd,
}

impl CommandQueue {
    /// Returns an empty queue.
    ///
    /// # Errors
    /// When the system has no descriptor for the waker.
    pub(crate) fn new() -> io::Result<CommandQueue> {
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(CommandQueue { commands: Lock::new(&COMMANDS, Vec::new()), waker })
    }

    /// Appends a command and wakes the worker.
    pub(crate) fn send(&self, command: Command) {
        self.commands.lock().push(command);
        // Fails only when the counter is full, and then the waker is readable anyway.
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    /// Removes and returns all commands, oldest first.
    pub(crate) fn take(&self) -> Vec<Command> {
        // Fails if the waker has not been written to since the last call; the commands are taken
        // all the same.
        let _ = rustix::io::read(&self.waker, &mut [0; 8]);
        std::mem::take(&mut *self.commands.lock())
    }

    /// Removes the requests to check a connection, and returns the slots; other commands stay.
    pub(crate) fn take_checks(&self) -> Vec<usize> {
        let mut commands = self.commands.lock();
        let checks = commands.extract_if(.., |command| matches!(command, Command::Check(_)));
        checks
            .filter_map(|command| if let Command::Check(slot) = command { Some(slot) } else { None })
            .collect()
    }

    /// Returns the descriptor that is readable while there may be commands.
    pub(crate) fn waker(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Command::Serve(accepted) => write!(f, "Serve({})", accepted.info.fd),
            Command::Check(slot) => write!(f, "Check({slot})"),
            Command::Relay(slot) => write!(f, "Relay({slot})"),
            Command::Pause(_) => f.write_str("Pause"),
            Command::Drain => f.write_str("Drain"),
            Command::Abort => f.write_str("Abort"),
        }
    }
}
