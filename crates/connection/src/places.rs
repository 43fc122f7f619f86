//! A server's connections: the limits on their number, in total and per address, and waiting for
//! their end.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle};

/// The limits on the number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In all.
    pub connections_max: u32,
    /// Per address.
    pub peer_connections_max: u32,
}

impl Limits {
    /// Returns the limits that a configuration sets: without a limit per address, one address may
    /// have half of all connections.
    #[must_use]
    pub fn new(connections_max: u32, peer_connections_max: Option<u32>) -> Self {
        let peer_connections_max = peer_connections_max.unwrap_or(connections_max.div_ceil(2));
        Self { connections_max, peer_connections_max }
    }
}

/// The reason why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// `connections_max` connections are open.
    #[error("{0} connections are open, which is connections_max")]
    Full(u32),
    /// `peer_connections_max` connections of this address are open.
    #[error("{0} connections of its address are open, which is peer_connections_max")]
    PeerFull(u32),
}

impl Refusal {
    /// Returns the name of the limit that is reached.
    #[must_use]
    pub fn limit(&self) -> &'static str {
        match self {
            Self::Full(_) => "connections_max",
            Self::PeerFull(_) => "peer_connections_max",
        }
    }
}

/// A server's connections.
#[derive(Debug, Default)]
pub struct Connections {
    open: Mutex<Open>,
    /// Notified when a connection has ended.
    ended: Notify,
    tasks: Mutex<Tasks>,
    /// The tasks that accept connections.
    listeners: Mutex<Vec<JoinHandle<()>>>,
}

/// The tasks that serve connections.
#[derive(Debug, Default)]
struct Tasks {
    running: Vec<AbortHandle>,
    /// Whether the server has ended: a task that is added now began while it ended.
    are_ended: bool,
}

#[derive(Debug, Default)]
struct Open {
    count: u32,
    /// The number of connections per address, for addresses that have any.
    of_network: HashMap<IpAddr, u32>,
}

/// A connection's place among the server's connections. Dropping it frees the place.
#[derive(Debug)]
pub struct Place {
    connections: Arc<Connections>,
    network: Option<IpAddr>,
}

impl Connections {
    /// Takes a place for a connection of `peer`.
    ///
    /// # Errors
    /// Returns the limit that is reached.
    pub fn take(self: &Arc<Self>, peer: &Peer, limits: Limits) -> Result<Place, Refusal> {
        let network = peer.network();
        let mut open = self.open.lock();
        if open.count >= limits.connections_max {
            return Err(Refusal::Full(open.count));
        }
        if let Some(network) = network {
            let count = open.of_network.entry(network).or_default();
            if *count >= limits.peer_connections_max {
                return Err(Refusal::PeerFull(*count));
            }
            *count += 1;
        }
        open.count += 1;
        Ok(Place { connections: Arc::clone(self), network })
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.open.lock().count
    }

    /// Adds the task that serves a connection.
    pub(crate) fn add_task(&self, task: AbortHandle) {
        let mut tasks = self.tasks.lock();
        if tasks.are_ended {
            return task.abort();
        }
        tasks.running.retain(|task| !task.is_finished());
        tasks.running.push(task);
    }

    /// Waits until no connections are open.
    pub async fn wait_for_end(&self) {
        loop {
            let ended = self.ended.notified();
            if self.count() == 0 {
                break;
            }
            ended.await;
        }
    }

    /// Aborts all connections, as a crash would.
    pub fn abort(&self) {
        self.tasks.lock().running.drain(..).for_each(|task| task.abort());
    }

    /// Adds a task that accepts connections.
    pub(crate) fn add_listener(&self, listener: JoinHandle<()>) {
        self.listeners.lock().push(listener);
    }

    /// Stops accepting connections, even if the returned future is never polled. Once it is ready,
    /// the server's addresses are free.
    pub fn stop_listening(&self) -> impl Future<Output = ()> + use<> {
        let listeners = std::mem::take(&mut *self.listeners.lock());
        listeners.iter().for_each(JoinHandle::abort);
        async move {
            for listener in listeners {
                // The only possible error is the abort.
                let _ = listener.await;
            }
        }
    }

    /// Aborts all connections, and stops accepting, for good: a connection that is being accepted
    /// meanwhile is aborted as well.
    pub fn abort_all(&self) {
        self.listeners.lock().drain(..).for_each(|listener| listener.abort());
        self.tasks.lock().are_ended = true;
        self.abort();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        open.count -= 1;
        if let Some(network) = self.network
            && let Some(count) = open.of_network.get_mut(&network)
        {
            *count -= 1;
            if *count == 0 {
                open.of_network.remove(&network);
            }
        }
        drop(open);
        self.connections.ended.notify_waiters();
    }
}

/// The peer of a connection, as shown in log lines.
#[derive(Clone, Copy, Debug)]
pub enum Peer {
    /// Another host, or this one over TCP.
    Tcp(SocketAddr),
    /// A process on this host, as far as the system knows it.
    Unix {
        /// The process id.
        pid: Option<i32>,
        /// The user id.
        uid: Option<u32>,
    },
    /// The peer of a stream that did not come from a socket.
    Other,
}

impl Peer {
    /// Returns the address under which connections are counted; `None` for local processes on a
    /// unix socket. In IPv6, one host usually has a whole /64 network, so the connections of such a
    /// network count together.
    #[must_use]
    pub fn network(&self) -> Option<IpAddr> {
        let Self::Tcp(address) = self else { return None };
        Some(match address.ip().to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix { pid: Some(pid), uid: Some(uid) } => write!(f, "unix, pid {pid}, uid {uid}"),
            Self::Unix { uid: Some(uid), .. } => write!(f, "unix, uid {uid}"),
            Self::Unix { .. } => f.write_str("unix"),
            Self::Other => f.write_str("stream"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_places_for_others() {
        let connections = Arc::new(Connections::default());
        let limits = Limits { connections_max: 4, peer_connections_max: 2 };
        let take = |text: &str| connections.take(&Peer::Tcp(text.parse().unwrap()), limits);
        let first = (take("10.0.0.1:1").unwrap(), take("10.0.0.1:2").unwrap());
        assert_eq!(take("10.0.0.1:3").err(), Some(Refusal::PeerFull(2)));
        let second = take("10.0.0.2:1").unwrap();
        let own = connections.take(&Peer::Unix { pid: None, uid: None }, limits).unwrap();
        assert_eq!(take("10.0.0.3:1").err(), Some(Refusal::Full(4)));
        drop((first, own));
        assert_eq!(connections.count(), 1);
        let _first = (take("10.0.0.1:4").unwrap(), take("10.0.0.1:5").unwrap());
        drop(second);
        assert_eq!(
            connections.open.lock().of_network.len(),
            1,
            "addresses without connections are forgotten"
        );
    }

    /// The abort of a listener takes effect where it waits next, which is after it has added the task
    /// of the connection that it has just accepted.
    #[tokio::test]
    async fn a_connection_that_is_accepted_during_the_end_is_aborted() {
        let connections = Connections::default();
        let served = |connections: &Connections| {
            let task = tokio::spawn(std::future::pending::<()>());
            connections.add_task(task.abort_handle());
            task
        };
        let earlier = served(&connections);
        connections.abort_all();
        let late = served(&connections);
        tokio::task::yield_now().await;
        assert!(earlier.is_finished() && late.is_finished());
    }

    #[test]
    fn connections_of_one_host_are_of_one_network() {
        let network = |text: &str| Peer::Tcp(text.parse().unwrap()).network();
        assert_eq!(network("10.0.0.1:5"), network("10.0.0.1:6"));
        assert_eq!(network("10.0.0.1:5"), network("[::ffff:10.0.0.1]:5"));
        assert_ne!(network("10.0.0.1:5"), network("10.0.0.2:5"));
        assert_eq!(network("[2001:db8::1]:5"), network("[2001:db8::ffff:1]:5"));
        assert_ne!(network("[2001:db8::1]:5"), network("[2001:db8:0:1::1]:5"));
        assert_eq!(Peer::Other.network(), None);
    }
}
