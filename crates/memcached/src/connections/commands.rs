//! Commands that other threads send to a worker.

use super::info::{ConnInfo, HandedConnection};
use crate::locks::{COMMANDS, Lock};
use crate::stream::Link;
use cached_ring::Map;
use cached_tls::ClientCertificates;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// One command to a worker.
pub(crate) enum Command {
    /// Serve this connection.
    Serve(AcceptedConnection),
    /// Check whether the connection in this slot must be closed; its socket raises no event for
    /// that.
    Check(usize),
    /// Send the lines that are queued for the watcher in this slot; its socket raises no event for
    /// that.
    Relay(usize),
    /// Pause between two requests, and wait for a verdict.
    Pause(Pause),
    /// Answer the received requests, then end.
    Drain,
    /// End without answering the received requests.
    Abort,
    /// Use this connection as the lane to a node of the ring.
    OpenLane(OpenLane),
    /// No connection to a node of the ring can be opened at present.
    NoLane(NoLane),
    /// Serve this lane of another node of the ring.
    ServeLane(ServeLane),
    /// Close the lane with this number, if the worker serves it. The sender is dropped once nothing
    /// that was received on the lane will be executed any more.
    EndLane(u64, oneshot::Sender<()>),
    /// Route requests by this map of the ring.
    Map(Arc<Map>),
    /// Reply between two requests: a request that was being executed when the command was sent is
    /// complete then.
    Pass(oneshot::Sender<()>),
    /// Look for lanes on which nothing comes.
    Tick,
    /// Try requests again that wait until their owner executes them.
    Retry,
    /// Ask the other nodes of the ring for a report.
    Ping,
}

/// A connection to another node of the ring, on which both have said hello.
pub(crate) struct OpenLane {
    /// The name of the node.
    pub(crate) node: String,
    /// The address at which it was reached.
    pub(crate) address: String,
    pub(crate) link: Link,
    /// Dropped when the lane has ended, so that another one may be opened.
    pub(crate) ended: oneshot::Sender<()>,
}

/// The reason why there is no lane to a node.
pub(crate) struct NoLane {
    /// The name of the node.
    pub(crate) node: String,
    /// What was found at the node's address.
    pub(crate) found: AtAddress,
    /// The reason.
    pub(crate) why: String,
}

/// What an attempt to open a lane has found at the node's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtAddress {
    /// Nothing that accepts connections: the node does not run, as far as this node can tell.
    Nothing,
    /// A process that does not accept the lane.
    Refusal,
    /// A process that does not answer, as while another one takes over from it: requests that the
    /// node has not executed may wait.
    Silence,
}

/// A connection from another node of the ring, on which both have said hello.
pub(crate) struct ServeLane {
    /// A number that no other lane of this process has.
    pub(crate) number: u64,
    /// The name of the node.
    pub(crate) node: String,
    pub(crate) link: Link,
    /// Dropped when the lane has ended.
    pub(crate) ended: oneshot::Sender<()>,
}

/// A connection that has been accepted and entered in the table.
pub(crate) struct AcceptedConnection {
    pub(crate) socket: OwnedFd,
    pub(crate) info: Arc<ConnInfo>,
    /// With TLS: which certificates the client must present.
    pub(crate) tls: Option<ClientCertificates>,
    /// The state of the connection, if another process has handed it over.
    pub(crate) handed: Option<Box<HandedConnection>>,
}

/// The request to pause between two requests.
pub(crate) struct Pause {
    /// The maximum time for completing requests in flight.
    pub(crate) finish_within: Duration,
    /// Receives the worker's connections once the worker has paused.
    pub(crate) report: oneshot::Sender<Paused>,
    /// The verdict. If a message comes, another process serves the connections: the worker closes its
    /// descriptors, and ends. If the sender is dropped, the worker serves its connections again.
    pub(crate) end: oneshot::Receiver<()>,
}

/// A paused worker. Until it has a verdict, it keeps the sockets open and touches nothing.
pub(crate) struct Paused {
    /// The connections that another process can take over.
    pub(crate) connections: Vec<PausedConnection>,
    /// The number of the worker's other connections.
    pub(crate) others: usize,
}

/// A connection of a paused worker.
pub(crate) struct PausedConnection {
    /// The connection's socket, which the worker keeps open.
    pub(crate) fd: RawFd,
    pub(crate) connection: HandedConnection,
}

/// The commands for one worker, and the descriptor that wakes it.
pub(crate) struct CommandQueue {
    commands: Lock<Vec<Command>>,
    waker: OwnedFd,
}

impl CommandQueue {
    /// Returns an empty queue.
    ///
    /// # Errors
    /// If the system has no descriptor for the waker.
    pub(crate) fn new() -> io::Result<CommandQueue> {
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(CommandQueue { commands: Lock::ranked(Vec::new(), &COMMANDS), waker })
    }

    /// Appends a command and wakes the worker.
    pub(crate) fn send(&self, command: Command) {
        self.commands.lock().push(command);
        // Fails only if the counter is full, in which case the waker is readable anyway.
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    /// Removes and returns all commands, oldest first.
    pub(crate) fn take(&self) -> Vec<Command> {
        // Fails if the waker has not been written to since the last call; the commands are taken
        // regardless.
        let _ = rustix::io::read(&self.waker, &mut [0; 8]);
        std::mem::take(&mut *self.commands.lock())
    }

    /// Removes the requests to check a connection, and returns their slots; other commands stay in
    /// the queue.
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
