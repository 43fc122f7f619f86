//! A server and its clients in one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blocker::*;
use synapse::{Address, ClientConfig, Server, ServerConfig, SynapseBlocker};
use tokio::runtime::Runtime;

/// A server on its own runtime, which ends with this value.
pub(crate) struct Host {
    pub(crate) server: Arc<Server>,
    pub(crate) address: Address,
    pub(crate) runtime: Runtime,
    _dir: Option<tempfile::TempDir>,
}

/// The kind of socket that a test server listens on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Tcp,
    Unix,
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

impl Host {
    pub(crate) fn new(kind: Kind, backend: Arc<dyn Blocker>, mut config: ServerConfig) -> Self {
        // A client may be delayed between its connection and its hello.
        config.handshake_timeout = Duration::from_secs(60);
        let dir = (kind == Kind::Unix).then(|| tempfile::tempdir().unwrap());
        let address = match &dir {
            Some(dir) => Address::Unix(dir.path().join("synapse.sock")),
            None => Address::Tcp("127.0.0.1:0".into()),
        };
        let runtime = runtime();
        let server = Arc::new(Server::new(backend, config).unwrap());
        let address = runtime.block_on(server.listen(&address)).unwrap();
        Self { server, address, runtime, _dir: dir }
    }

    /// Returns a server of a memory backend over TCP.
    pub(crate) fn memory() -> Self {
        Self::new(Kind::Tcp, Arc::new(Memory::default()), ServerConfig::default())
    }

    pub(crate) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new(self.address.clone());
        let minute = Duration::from_secs(60);
        (config.connect_timeout, config.reconnect_timeout) = (minute, minute);
        config.peer_timeout = minute;
        config
    }

    /// Returns a client on the host's runtime.
    pub(crate) fn client(&self) -> SynapseBlocker {
        self.client_with(self.client_config())
    }

    pub(crate) fn client_with(&self, config: ClientConfig) -> SynapseBlocker {
        self.runtime.block_on(SynapseBlocker::connect(config)).unwrap()
    }
}

/// Returns the object called `name`.
pub(crate) fn object(name: &str) -> ObjectId {
    ObjectId::new(Namespace::new("test").unwrap(), Name::copy_from(name.as_bytes()).unwrap())
}

/// A backend whose reads and writes wait until it is opened. It counts calls.
pub(crate) struct Gated {
    inner: Memory,
    pub(crate) writes: AtomicU64,
    pub(crate) begun: AtomicU64,
    pub(crate) dropped: Arc<AtomicU64>,
    gate: tokio::sync::watch::Sender<bool>,
}

impl Gated {
    pub(crate) fn new() -> Arc<Self> {
        let (gate, _) = tokio::sync::watch::channel(false);
        let (inner, writes, begun, dropped) = Default::default();
        Arc::new(Self { inner, writes, begun, dropped, gate })
    }

    pub(crate) fn open(&self) {
        self.gate.send_replace(true);
    }
}

/// Counts futures that are dropped before they complete.
struct Dropped(Arc<AtomicU64>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Reads and writes wait at the gate; other calls are forwarded.
impl Blocker for Gated {
    blocker::delegate!(|this| this.inner, except read change);

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let mut gate = self.gate.subscribe();
        let answer = self.inner.read(request);
        let dropped = Dropped(Arc::clone(&self.dropped));
        Reply::pending(async move {
            let _ = gate.wait_for(|open| *open).await;
            std::mem::forget(dropped);
            answer.await
        })
    }

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        match request.change {
            Change::Write { .. } => {}
            // This change is acknowledged as *cached*.
            Change::WriteFull { .. } => {
                return self.inner.change(request).then(|answer| {
                    answer.map(|mut reply| {
                        reply.durability = Durability::Cached;
                        reply
                    })
                });
            }
            _ => return self.inner.change(request),
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.writes.fetch_add(1, Ordering::SeqCst);
        let mut gate = self.gate.subscribe();
        let answer = self.inner.change(request);
        let dropped = Dropped(Arc::clone(&self.dropped));
        Reply::pending(async move {
            let _ = gate.wait_for(|open| *open).await;
            std::mem::forget(dropped);
            answer.await
        })
    }
}

/// Waits until another thread makes `is` return true.
#[track_caller]
pub(crate) fn until(what: &str, is: impl Fn() -> bool) {
    let give_up = std::time::Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(std::time::Instant::now() < give_up, "timed out: {what}");
        std::thread::yield_now();
    }
}
