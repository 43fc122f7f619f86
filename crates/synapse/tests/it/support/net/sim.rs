//! A network in memory. On a single-threaded runtime with tokio's clock paused, a run takes no real
//! time and depends only on its seed, as far as the tested code does.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use parking_lot::Mutex;
use tokio::io::DuplexStream;
use tokio::task::{AbortHandle, JoinSet};

use super::plan::{Hits, Plan, Profile};
use super::relay::relay;

/// How many bytes one side may send before the other side has read. The number is small, so that
/// frames arrive in pieces.
const WINDOW_BYTES: usize = 8 * 1024;

/// Accepts a connection on the server's side. The task that it starts is aborted together with the
/// server.
pub type Accept = Arc<dyn Fn(DuplexStream) -> AbortHandle + Send + Sync>;

/// Returns the faults of the connection with a number.
type Plans = Box<dyn Fn(u64) -> Plan + Send + Sync>;

/// The network between clients and one server.
#[derive(Clone)]
pub struct Sim {
    shared: Arc<Shared>,
}

struct Shared {
    plans: Plans,
    hits: Arc<Hits>,
    server: Mutex<Server>,
}

/// The server's side from the network's view.
#[derive(Default)]
struct Server {
    /// The function that accepts connections; `None` while no server listens.
    accept: Option<Accept>,
    /// The tasks of accepted connections.
    connections: Vec<AbortHandle>,
    relays: JoinSet<()>,
}

impl Sim {
    /// Returns a network with these faults, without a server.
    pub fn new(profile: Profile) -> Self {
        Self::with(move |connection| profile.draw(connection))
    }

    /// Returns a network with the faults that `plans` returns for each connection, by its number.
    pub fn with(plans: impl Fn(u64) -> Plan + Send + Sync + 'static) -> Self {
        let plans = Box::new(plans);
        Self { shared: Arc::new(Shared { plans, hits: Arc::default(), server: Mutex::default() }) }
    }

    /// Makes `accept` accept connections from now on.
    pub fn listen(&self, accept: Accept) {
        self.shared.server.lock().accept = Some(accept);
    }

    /// Ends the server as a kill would: its tasks stop where they are, its connections end, and new
    /// ones are refused until a server listens again.
    pub fn kill_server(&self) {
        let mut server = self.shared.server.lock();
        server.accept = None;
        server.connections.drain(..).for_each(|connection| connection.abort());
        server.relays.abort_all();
    }

    /// Returns the faults that have happened so far.
    pub fn hits(&self) -> &Hits {
        &self.shared.hits
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// Returns `ConnectionRefused` if no server listens.
    pub async fn dial(&self) -> io::Result<DuplexStream> {
        // As with sockets, a response never arrives within the poll that sends the request.
        yield_once().await;
        let mut server = self.shared.server.lock();
        let hits = &self.shared.hits;
        let Some(accept) = server.accept.clone() else {
            hits.refused.fetch_add(1, Ordering::Relaxed);
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let plan = (self.shared.plans)(hits.connections.fetch_add(1, Ordering::Relaxed));
        let (client, client_far) = tokio::io::duplex(WINDOW_BYTES);
        let (server_far, served) = tokio::io::duplex(WINDOW_BYTES);
        let hits = Arc::clone(hits);
        server.relays.spawn(async move { relay(client_far, server_far, plan, &hits).await });
        server.connections.push(accept(served));
        Ok(client)
    }
}

async fn yield_once() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
