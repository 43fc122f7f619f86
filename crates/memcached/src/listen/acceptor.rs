//! Accepts connections and assigns them to the workers, round robin.

use super::{Listener, ListenerAddress};
use crate::connections::{AcceptedConnection, Command, ConnInfo, Endpoints, ListenerCounts};
use crate::shared::Shared;
use cached_proto::Protocol;
use cached_tls::ClientCertificates;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The maximum number of connections accepted before other tasks of the acceptor's thread run.
const BATCH: usize = 64;

/// The pause in accepting when no descriptors are left or the connection limit is reached.
const PAUSE: Duration = Duration::from_millis(10);

/// The index of the worker for the next connection, shared by all listeners.
pub(crate) type RoundRobin = Rc<Cell<usize>>;

/// Accepts connections from one listener until the listener is dropped.
pub(crate) async fn accept(listener: Listener, shared: Arc<Shared>, next_worker: RoundRobin) {
    let counts = shared.listener_counts(listener.socket.as_raw_fd());
    let origin = Origin { address: listener.address, protocol: listener.protocol, tls: listener.tls, counts };
    // SAFETY: the `AsyncFd` owns the descriptor, an `OwnedFd` always returns the same number, and
    // the descriptor is closed only with the `AsyncFd`.
    let registered =
        unsafe { AsyncFd::register_with_interest(OwnedFd::from(listener.socket), Interest::READABLE) };
    let socket = match registered {
        Ok(socket) => socket,
        Err(error) => return shared.fail(format!("cannot wait for connections: {error}")),
    };
    loop {
        let mut ready = match socket.readable().await {
            Ok(ready) => ready,
            Err(error) => return shared.fail(format!("cannot wait for connections: {error}")),
        };
        for _ in 0..BATCH {
            if shared.is_full() && !shared.live.refuses_excess() {
                pause(&shared, "too many open connections", || shared.is_full()).await;
            }
            match rustix::net::acceptfrom_with(socket.get_ref(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
            {
                Ok((fd, peer)) => {
                    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                    admit(fd, peer, &origin, &shared, &next_worker);
                }
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    break;
                }
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    pause(&shared, "too many open files", || false).await;
                    break;
                }
                // The client has already closed the connection, or the network has failed.
                Err(error) => tracing::debug!(cause = %error, "accept failed"),
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Pauses accepting for [`PAUSE`], and then as long as `must_wait` returns true. Counts the pause.
async fn pause(shared: &Shared, reason: &str, must_wait: impl Fn() -> bool) {
    let start = Instant::now();
    if shared.accepting.swap(false, Ordering::Relaxed) {
        tracing::warn!("{reason}: new connections wait");
    }
    shared.listen_disabled.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(PAUSE).await;
    while must_wait() {
        tokio::time::sleep(PAUSE).await;
    }
    let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    shared.listen_disabled_micros.fetch_add(micros, Ordering::Relaxed);
    shared.accepting.store(true, Ordering::Relaxed);
}

/// The common attributes of a listener's connections.
struct Origin {
    address: ListenerAddress,
    protocol: Option<Protocol>,
    tls: Option<ClientCertificates>,
    counts: Arc<ListenerCounts>,
}

/// Adds an accepted connection to the table and sends it to a worker, or refuses it if the table is
/// full.
fn admit(
    socket: OwnedFd,
    peer: Option<SocketAddr>,
    origin: &Origin,
    shared: &Shared,
    next_worker: &RoundRobin,
) {
    let peer_connections_max = shared.settings.peer_connections_max;
    let is_peer_full = || {
        peer.is_some_and(|peer| {
            peer_connections_max > 0 && shared.connections.count_of(peer) >= peer_connections_max
        })
    };
    if shared.is_full() || is_peer_full() {
        shared.connections.rejected.fetch_add(1, Ordering::Relaxed);
        let peer = peer.map_or_else(|| "unix".to_owned(), |peer| peer.to_string());
        if shared.is_full() {
            let connections_max = shared.live.connections_max();
            tracing::warn!(peer, connections_max, "connection refused: too many open connections");
        } else {
            tracing::warn!(
                peer,
                peer_connections_max,
                "connection refused: too many open connections from this address"
            );
        }
        origin.counts.refused.fetch_add(1, Ordering::Relaxed);
        let words = match origin.tls {
            None => &b"ERROR Too many open connections\r\n"[..],
            // On a full server, a handshake would cost as much as serving the client.
            Some(_) => cached_tls::BUSY,
        };
        // This fails if the client has already gone.
        let _ = rustix::io::write(&socket, words);
        return;
    }
    let endpoints = match (&origin.address, peer) {
        (ListenerAddress::Tcp(listening), peer) => Endpoints::Tcp {
            peer: peer.unwrap_or(*listening),
            local: rustix::net::getsockname(socket.as_fd())
                .ok()
                .and_then(|local| SocketAddr::try_from(local).ok()),
        },
        (ListenerAddress::Unix(path), _) => Endpoints::Unix { path: path.clone() },
    };
    let worker = next_worker.get() % shared.connections.queues().len();
    next_worker.set(worker + 1);
    let now = shared.clock.now_secs();
    let info = ConnInfo::new(socket.as_raw_fd(), endpoints, origin.protocol, worker, now);
    let info = shared.connections.add(info.of_listener(origin.counts.clone(), origin.tls.is_some()));
    shared.watch.connection_opened(&info);
    shared.connections.queue(worker).send(Command::Serve(AcceptedConnection {
        socket,
        info,
        tls: origin.tls,
        handed: None,
    }));
}
