//! Accepting connections and dealing them to the workers in turn.

use super::{At, Listener};
use crate::conn::info::ConnInfo;
use crate::conn::info::Ends;
use crate::shared::Shared;
use crate::worker::{Mail, Mailbox, Newcomer};
use cached_proto::Protocol;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Connections accepted before others on the acceptor's thread get their turn.
const BATCH: usize = 64;

/// How long accepting pauses when there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(10);

/// Whose turn it is, over all listeners.
pub(crate) type Turn = Rc<Cell<usize>>;

/// Accepts from one listener until it is dropped.
pub(crate) async fn accept(listener: Listener, shared: Arc<Shared>, workers: Rc<[Arc<Mailbox>]>, turn: Turn) {
    let (at, protocol) = (listener.at, listener.protocol);
    // SAFETY: the descriptor is owned by the `AsyncFd`, an `OwnedFd` always gives the same number, and it is
    // closed with the `AsyncFd` only.
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
            if shared.is_full() && !shared.settings.connections_max_fast {
                wait_for_room(&shared).await;
            }
            match rustix::net::acceptfrom_with(socket.get_ref(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
            {
                Ok((fd, peer)) => {
                    let peer = peer.and_then(|peer| std::net::SocketAddr::try_from(peer).ok());
                    admit(fd, peer, (&at, protocol), &shared, &workers, &turn);
                }
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    break;
                }
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    pause(&shared).await;
                    break;
                }
                // The client has given up already, or the network has.
                Err(error) => tracing::debug!(cause = %error, "accept failed"),
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Lets clients wait until there are descriptors again.
async fn pause(shared: &Shared) {
    let start = Instant::now();
    if shared.accepting.swap(false, Ordering::Relaxed) {
        tracing::info!("too many open files: new connections wait");
    }
    shared.listen_disabled.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(PAUSE).await;
    let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    shared.listen_disabled_micros.fetch_add(micros, Ordering::Relaxed);
    shared.accepting.store(true, Ordering::Relaxed);
}

/// Lets clients wait until there is a seat again.
async fn wait_for_room(shared: &Shared) {
    let start = Instant::now();
    if shared.accepting.swap(false, Ordering::Relaxed) {
        tracing::info!("too many open connections: new ones wait");
    }
    shared.listen_disabled.fetch_add(1, Ordering::Relaxed);
    while shared.is_full() {
        tokio::time::sleep(PAUSE).await;
    }
    let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    shared.listen_disabled_micros.fetch_add(micros, Ordering::Relaxed);
    shared.accepting.store(true, Ordering::Relaxed);
}

fn admit(
    fd: OwnedFd,
    peer: Option<std::net::SocketAddr>,
    (at, protocol): (&At, Option<Protocol>),
    shared: &Shared,
    workers: &[Arc<Mailbox>],
    turn: &Turn,
) {
    if shared.is_full() {
        shared.connections.rejected.fetch_add(1, Ordering::Relaxed);
        tracing::info!("too many open connections: one is turned away");
        // If the client does not take it, that is its loss.
        let _ = rustix::io::write(&fd, b"ERROR Too many open connections\r\n");
        return;
    }
    let ends = match (at, peer) {
        (At::Tcp(listening), peer) => Ends::Tcp {
            peer: peer.unwrap_or(*listening),
            local: rustix::net::getsockname(fd.as_fd())
                .ok()
                .and_then(|local| std::net::SocketAddr::try_from(local).ok()),
        },
        (At::Unix(path), _) => Ends::Unix { path: path.clone() },
    };
    let worker = turn.get() % workers.len();
    turn.set(worker + 1);
    let mailbox = &workers[worker];
    let info = ConnInfo::new(fd.as_raw_fd(), ends, protocol, mailbox.clone(), shared.clock.now_secs());
    let info = Arc::new(info);
    shared.connections.add(info.clone());
    shared.watch.connection_opened(&info);
    mailbox.send(Mail::Connection(Newcomer { fd, info }));
}
