//! The relay between loopback sockets, which adds a kernel's effects: resets, segments, and its own
//! buffers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::plan::{Hits, Profile};
use super::relay::relay;

/// A relay that listens on its own port. Dropping it ends every connection through it.
pub struct TcpRelay {
    address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    hits: Arc<Hits>,
    accepting: JoinHandle<()>,
}

impl TcpRelay {
    /// Starts a relay to `target` with these faults.
    ///
    /// # Errors
    /// Returns the system's error if the relay cannot listen.
    pub async fn start(target: SocketAddr, profile: Profile) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (target, hits) = (Arc::new(Mutex::new(target)), Arc::new(Hits::default()));
        let accepting = tokio::spawn(accept(listener, Arc::clone(&target), profile, Arc::clone(&hits)));
        Ok(Self { address, target, hits, accepting })
    }

    /// Returns the address to which clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects later connections to `target`.
    pub fn retarget(&self, target: SocketAddr) {
        *self.target.lock() = target;
    }

    /// Returns the faults that have happened so far.
    pub fn hits(&self) -> &Hits {
        &self.hits
    }
}

impl Drop for TcpRelay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, target: Arc<Mutex<SocketAddr>>, profile: Profile, hits: Arc<Hits>) {
    let mut relays = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let number = hits.connections.fetch_add(1, Ordering::Relaxed);
        let target = *target.lock();
        let Ok(server) = TcpStream::connect(target).await else {
            hits.refused.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let plan = profile.draw(number);
        for socket in [&client, &server] {
            // On a best-effort basis: without it, the relay is only slower.
            let _ = socket.set_nodelay(true);
            // Every other connection ends with a reset instead of a proper end, even if bytes are
            // still in transit.
            if number % 2 == 1 {
                let _ = socket.set_zero_linger();
            }
        }
        let hits = Arc::clone(&hits);
        relays.spawn(async move { relay(client, server, plan, &hits).await });
        while relays.try_join_next().is_some() {}
    }
}
