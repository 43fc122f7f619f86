//! The client: a remote server's backend as a [`Blocker`](blocker::Blocker) of this process.
//!
//! ```text
//! call ──► slot of a lane ──► lane's task ⇄ connection ⇄ server
//!   ▲                              │ broken: reconnect, resend what may be resent
//!   └────────── answer ◄───────────┘
//! ```

mod addresses;
mod config;
mod connect;
mod connection;
mod doubts;
mod lane;
mod operations;
mod unflushed;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};

use blocker::executor::block_on;
use blocker::metrics::{Counter, counters};
use blocker::{Capabilities, Error, EventHub, Result};
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use crate::auth::random;
use crate::codec::{Request, SessionId, StoreId};
use ::connection::{PayloadPool, Secret};

pub use addresses::{Addresses, AddressesError};
pub use config::{ClientConfig, Connector, Opening};
use connect::Current;
use doubts::Doubts;
use lane::Lane;
use unflushed::Unflushed;

/// A remote server's backend, as a [`Blocker`](blocker::Blocker).
///
/// ```
/// # use std::sync::Arc;
/// use blocker::{Blocker, BlockerExt, Memory, Name, Namespace, ObjectId, ReadRequest, WriteRequest};
/// use synapse::{ClientConfig, Server, ServerConfig, SynapseBlocker};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let server = Server::new(Arc::new(Memory::default()), ServerConfig::default())?;
/// # let address = server.listen(&"127.0.0.1:0".parse()?).await?;
/// let store = SynapseBlocker::connect(ClientConfig::new(address)).await?;
/// let disk = ObjectId::new(Namespace::new("vm")?, Name::new("disk.0")?);
/// store.write(WriteRequest::new(disk.clone(), 0, b"hello")).await?;
/// assert_eq!(store.read(ReadRequest::new(disk, 0, 4096)).await?.data.to_vec(), b"hello");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// Beyond the contract of [`blocker::Blocker`]:
///
/// - If the connection of a request breaks, the request is resent; the server recognises it and
///   executes it at most once. If the server has restarted in the meantime, or has forgotten the
///   session, a change fails with `OutcomeUnknown`.
/// - After a restart of the server, flushes that cover earlier writes acknowledged as *cached* fail
///   with `WritesLost`, unless the acknowledging instance is known to have stored everything before
///   it ended.
/// - If the server has other limits after a restart, the client follows them;
///   [`capabilities`](blocker::Blocker::capabilities) returns the newest ones. A server that
///   guarantees less than before, or that serves another store, is refused with `Retryable`.
/// - Without a connection, requests wait for at most [`ClientConfig::reconnect_timeout`]. Then they
///   fail with `Retryable` (or, if they had been sent, as if their answer were lost).
/// - If a reply is dropped, its request is cancelled at the server; its slot is free again when the
///   server has confirmed the cancellation.
/// - After a change whose outcome its caller does not know, requests that concern the object are
///   sent only when the server can no longer begin that change.
///
/// # Several servers
///
/// If there are several [addresses](ClientConfig::addresses), all connections are to the same
/// server, until that server is lost: it refuses, does not complete the handshake within
/// [`ClientConfig::connect_timeout`], is silent for [`ClientConfig::peer_timeout`], or its name
/// does not resolve. Then the next address is tried immediately, and a pause follows only after all
/// of them have failed. The guarantees above hold across servers: a server that takes over is
/// another instance over the same store.
///
/// Calls may be made from any thread and any executor. Cloning is cheap and returns another handle
/// of the same connections, which are closed when the last handle and the last reply are dropped.
#[derive(Clone)]
pub struct SynapseBlocker {
    core: Arc<Core>,
}

/// State shared by handles and calls. The lanes end when the last reference is dropped.
pub(crate) struct Core {
    lanes: Vec<Arc<Lane>>,
    shared: Arc<Shared>,
}

/// State shared by lanes.
pub(crate) struct Shared {
    config: ClientConfig,
    /// The secret for new connections.
    secret: Mutex<Option<Secret>>,
    client: [u8; 16],
    /// The server's capabilities, from the last welcome.
    capabilities: RwLock<Capabilities>,
    /// The identity of the store that the server serves, if it is known.
    store: Mutex<Option<StoreId>>,
    pool: Arc<PayloadPool>,
    events: EventHub,
    has_events: AtomicBool,
    /// The features of the last welcome.
    features: AtomicU64,
    unflushed: Unflushed,
    doubts: Arc<Doubts>,
    /// The number of lanes with a connection.
    lanes_up: AtomicU32,
    /// Whether the loss of all connections has been logged.
    is_away: AtomicBool,
    current: Mutex<Current>,
    core: OnceLock<Weak<Core>>,
    counters: ClientCounters<Counter>,
}

counters! {
    /// The client's counters.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ClientCounters<C = u64> {
        /// Connections to the server, including the first ones.
        connects => "synapse_client_connections_total",
        /// Changes to another of the servers that the client knows.
        server_changes => "synapse_client_server_changes_total",
        /// Requests sent again on another connection.
        resends => "synapse_client_resends_total",
        /// Requests that were sent and whose answer was lost.
        unanswered => "synapse_client_answers_lost_total",
        /// Requests whose deadline passed.
        late => "synapse_client_deadlines_passed_total",
        /// Pings that were answered.
        pings_answered => "synapse_client_pings_answered_total",
    }
}

/// Changes the secret of a client. The handle does not keep the client open.
#[derive(Clone)]
pub struct SecretHandle(Weak<Shared>);

impl SecretHandle {
    /// Changes the secret of a client. The handle does not keep the client open.
    pub fn set(&self, secret: Option<Secret>) {
        if let Some(shared) = self.0.upgrade() {
            *shared.secret.lock() = secret;
        }
    }
}

impl std::fmt::Debug for SecretHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretHandle")
    }
}

impl SynapseBlocker {
    /// Connects to a server. The connections run on the current tokio runtime.
    ///
    /// # Errors
    /// Returns `Denied` if the secret is wrong, or the server does not prove that it knows it;
    /// `Invalid` if the settings cannot work; and `Retryable` if the server cannot be reached.
    ///
    /// # Panics
    /// Panics if it is called outside of a tokio runtime.
    pub async fn connect(config: ClientConfig) -> Result<Self> {
        config.check().map_err(|error| Error::Invalid(error.to_string().into()))?;
        let client = config.seed.map_or_else(random, |seed| u128::from(seed).to_le_bytes());
        let pool = PayloadPool::new(config.payload_pool_bytes_max);
        let session = SessionId { client, lane: 0 };
        let first = connect::connect_in_turn(&config, 0, session, &pool, Ok).await?;
        let (capabilities, features) = (first.welcome.capabilities, first.welcome.features);
        let shared = Arc::new(Shared {
            secret: Mutex::new(config.secret.clone()),
            config: config.clone(),
            client,
            capabilities: RwLock::new(capabilities),
            store: Mutex::new(None),
            pool,
            events: EventHub::new(),
            has_events: AtomicBool::new(false),
            lanes_up: AtomicU32::new(0),
            is_away: AtomicBool::new(false),
            features: AtomicU64::new(features.0),
            unflushed: Unflushed::default(),
            doubts: Arc::default(),
            current: Mutex::new(Current { server: first.server, connected: None }),
            core: OnceLock::new(),
            counters: ClientCounters::default(),
        });
        let now = config.clock.now();
        let lanes: Vec<_> = (0..config.connections)
            .map(|index| {
                let doubts = Arc::clone(&shared.doubts);
                Arc::new(Lane::new(index, &config, doubts, capabilities, features, now))
            })
            .collect();
        let core = Arc::new(Core { lanes, shared: Arc::clone(&shared) });
        // `core` is set only here, so this cannot fail.
        let _ = shared.core.set(Arc::downgrade(&core));
        let mut first = Some(first);
        for lane in &core.lanes {
            ::connection::spawn(connection::run(Arc::clone(lane), Arc::clone(&shared), first.take()));
        }
        Ok(Self { core })
    }

    /// Returns a handle to change the secret.
    #[must_use]
    pub fn secret(&self) -> SecretHandle {
        SecretHandle(Arc::downgrade(&self.core.shared))
    }

    /// Returns this client's counters. As metrics, they are part of
    /// [`Control::metrics`](blocker::Control::metrics).
    #[must_use]
    pub fn counters(&self) -> ClientCounters {
        self.core.shared.counters.map(Counter::get)
    }

    /// Returns the identity of the store that the server serves, if it has one.
    #[must_use]
    pub fn store(&self) -> Option<StoreId> {
        *self.core.shared.store.lock()
    }

    /// Connects, in a program without a tokio runtime. The connections run on a separate thread,
    /// which ends with them. Blocks until connected.
    ///
    /// # Errors
    /// Returns the errors of [`Self::connect`], and `Retryable` if the thread cannot be started.
    pub fn connect_on_thread(config: ClientConfig) -> Result<Self> {
        let (connected, wait) = oneshot::channel();
        let failed = |error: std::io::Error| {
            Error::Retryable(format!("cannot start a thread for synapse: {error}").into())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let serve = move || {
            runtime.block_on(async move {
                let client = Self::connect(config).await;
                let core = client.as_ref().ok().map(|client| Arc::downgrade(&client.core));
                // If the caller has gone, dropping the message drops the client.
                let _ = connected.send(client);
                if let Some(core) = core {
                    all_ended(&core).await;
                }
            });
        };
        std::thread::Builder::new().name("synapse".into()).spawn(serve).map_err(failed)?;
        block_on(wait).unwrap_or_else(|_| Err(Error::Retryable("the thread for synapse has panicked".into())))
    }
}

/// Waits until all lanes have ended. They end when the core is dropped.
async fn all_ended(core: &Weak<Core>) {
    let lanes = core.upgrade().map(|core| core.lanes.clone()).unwrap_or_default();
    for lane in lanes {
        lane.ended().await;
    }
}

impl Core {
    /// Returns the lane with the fewest requests, preferring connected ones. A request that must
    /// not overtake a change in doubt uses the lane of that change.
    fn choose_lane(&self, request: Option<&Request>) -> usize {
        if let Some(lane) = request.and_then(|request| self.shared.doubts.lane_of(request)) {
            return lane.into();
        }
        let load = |lane: &Lane| (!lane.is_up(), lane.load());
        let least = self.lanes.iter().enumerate().min_by_key(|(_, lane)| load(lane));
        least.map_or(0, |(index, _)| index)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.lanes.iter().for_each(|lane| lane.close());
    }
}

impl Shared {
    fn session(&self, lane: u16) -> SessionId {
        SessionId { client: self.client, lane }
    }
}
