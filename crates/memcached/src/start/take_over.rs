//! A server that takes over from a running process: it prepares itself before that process stops,
//! and then takes over its state.

use super::StartError;
use super::memory::OnTakingOver;
use super::server::{Server, open_store};
use crate::connections::{AcceptedConnection, Command, ConnInfo, Endpoints, HandedConnection};
use crate::listen::{Listeners, SocketKind};
use crate::process::Logging;
use crate::settings::{RingSettings, Settings};
use crate::shared::clock::ServerClock;
use crate::shared::{Shared, faults};
use crate::upgrade::{TakeOver, Taken, Taking};
use cached_ring::Map;
use cached_tls::ServerTls;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// A server that is prepared to take over from a running process, which serves until then. The
/// running process continues if this value, or the server created from it, is dropped before it
/// serves.
#[derive(Debug)]
pub struct PreparedServer {
    settings: Settings,
    logging: Logging,
    tls: Option<Arc<ServerTls>>,
    listeners: Listeners,
    taking: Taking,
}

impl PreparedServer {
    /// Takes over the sockets of a running process that the settings name, and opens the others.
    ///
    /// # Errors
    /// Returns [`StartError`]. The running process continues.
    pub fn new(
        settings: Settings,
        logging: Logging,
        mut take_over: TakeOver,
        tls: Option<Arc<ServerTls>>,
    ) -> Result<PreparedServer, StartError> {
        settings.auth.load_missing()?;
        let mut handed = take_over.take_sockets();
        let inherited = handed.take(SocketKind::Inherited, "");
        let listeners = Listeners::open(&settings, inherited, &mut handed)?;
        if !handed.sockets.is_empty() {
            tracing::warn!(
                sockets = handed.sockets.len(),
                "sockets that the configuration no longer names are closed"
            );
        }
        let taking = take_over.prepared(settings.memory_file.as_deref())?;
        Ok(PreparedServer { settings, logging, tls, listeners, taking })
    }

    /// Waits until the running process has no object store open. This process can then open its own
    /// store, but must not serve objects before the server serves.
    ///
    /// # Errors
    /// Returns [`StartError`]. The running process continues.
    pub fn wait_for_store(&self) -> Result<(), StartError> {
        Ok(self.taking.wait_for_store()?)
    }

    /// Replaces the map of the ring by a newer one, if the server belongs to a ring.
    pub fn set_ring_map(&mut self, map: Arc<Map>) {
        if let Some(ring) = &self.settings.ring {
            self.settings.ring = Some(Arc::new(RingSettings { map, ..RingSettings::clone(ring) }));
        }
    }

    /// Takes over the memory file and the connections of the running process, which has stopped
    /// when this returns. The object store, if there is one, must be open by then.
    ///
    /// # Errors
    /// Returns [`StartError`]. The running process continues.
    pub fn take_over(self, on_taking_over: &OnTakingOver<'_>) -> Result<Server, StartError> {
        let PreparedServer { settings, logging, tls, listeners, taking } = self;
        let Taken { state, file, connections } = taking.take(settings.memory_file.as_deref())?;
        let clock = match &file {
            Some(file) if file.resume_secs() != state.clock_secs => {
                ServerClock::starting_at(file.resume_secs())
            }
            _ => ServerClock::continuing(state.clock_secs, state.clock_nanos, state.monotonic_nanos),
        };
        let store = open_store(&settings, &clock, file, on_taking_over)?;
        faults::at_step("rebuilt");
        logging.set(state.verbosity.max(settings.verbosity));
        let incarnation = Some(state.incarnation).filter(|number| *number != 0);
        let mut server = Server::assemble(settings, logging, tls, clock, store, listeners, incarnation)?;
        server.taken = connections.len() as u32;
        for (number, (handed, socket)) in connections.into_iter().enumerate() {
            admit(&server.shared, number, handed, socket);
        }
        server.taking = Some(taking);
        Ok(server)
    }
}

/// Adds a connection that another process has handed over to the table, and assigns it to a worker.
fn admit(shared: &Shared, number: usize, handed: HandedConnection, socket: OwnedFd) {
    let local = rustix::net::getsockname(socket.as_fd()).ok();
    let peer = rustix::net::getpeername(socket.as_fd()).ok().flatten();
    let local_address = local.clone().and_then(|local| SocketAddr::try_from(local).ok());
    let endpoints = match local_address {
        Some(local) => {
            // If there is no peer address, the client has already gone, which the first read will
            // detect.
            let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok()).unwrap_or(local);
            Endpoints::Tcp { peer, local: Some(local) }
        }
        None => {
            let path = local.and_then(|local| rustix::net::SocketAddrUnix::try_from(local).ok());
            let path = path.and_then(|path| Some(path.path()?.to_string_lossy().into_owned()));
            Endpoints::Unix { path: path.unwrap_or_default().into() }
        }
    };
    let counts = shared.counts_for(&endpoints);
    let worker = number % shared.connections.queues().len();
    let now = shared.clock.now_secs();
    let info = ConnInfo::new(socket.as_raw_fd(), endpoints, handed.protocol, worker, now);
    let info = shared.connections.add(info.of_listener(counts, false));
    let handed = Some(Box::new(handed));
    shared.connections.queue(worker).send(Command::Serve(AcceptedConnection {
        socket,
        info,
        tls: None,
        handed,
    }));
}
