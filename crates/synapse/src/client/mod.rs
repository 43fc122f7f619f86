//! The client: a server somewhere else, as a [`Blocker`] here.
//!
//! ```text
//! call ──► slot of a lane ──► lane's task ⇄ connection ⇄ server
//!   ▲                              │ broken: connect again, send again what may be
//!   └────────── answer ◄───────────┘
//! ```

mod blocker_face;
mod call;
mod config;
mod connect;
mod control;
mod lane;
mod task;
mod unflushed;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use blocker::{Capabilities, Error, EventHub, Result};
use parking_lot::{Mutex, RwLock};

use crate::auth::random;
use crate::codec::{InstanceId, SessionId, StoreId};
use crate::receive::PayloadPool;

pub use config::ClientConfig;
use lane::Lane;
use unflushed::Unflushed;

/// A server's backend, as a backend.
///
/// What holds beyond [`blocker::Blocker`]:
///
/// - A request that was sent when its connection broke is sent again; the server knows whether it was
///   done. If the server has started anew since, or has forgotten the session, a change answers
///   `OutcomeUnknown`.
/// - After the server has started anew, flushes that cover writes acknowledged as *cached* before answer
///   `WritesLost`, unless the instance that acknowledged them is known to have ended with everything stored.
/// - The server's limits are followed when it comes back with others: [`blocker::Blocker::capabilities`] says the newest ones.
///   A server that promises less than before, or that serves another store, is refused with `Retryable`.
/// - Without a connection requests wait, at most for [`ClientConfig::reconnect_timeout`], then are `Retryable`
///   (or, if they had been sent, as when their answer is lost).
/// - Dropping a reply sends a cancellation; its slot is free again when the server has answered that.
///
/// Calls may be made from any thread and any executor. Cloning is cheap and gives another handle of the
/// same connections, which are closed when the last handle and the last reply are gone.
#[derive(Clone)]
pub struct SynapseBlocker {
    core: Arc<Core>,
}

/// What handles and calls share; the lanes end with the last of them.
pub(crate) struct Core {
    config: ClientConfig,
    lanes: Vec<Arc<Lane>>,
    shared: Arc<Shared>,
}

/// What lanes share.
pub(crate) struct Shared {
    config: ClientConfig,
    client: [u8; 16],
    /// The server's, as of the last greeting.
    capabilities: RwLock<Capabilities>,
    /// Which store it serves, once that is known.
    store: Mutex<Option<StoreId>>,
    pool: Arc<PayloadPool>,
    events: EventHub,
    has_events: AtomicBool,
    unflushed: Unflushed,
    instance: Mutex<Option<InstanceId>>,
    core: OnceLock<Weak<Core>>,
    counters: Counters,
}

/// What a client has lived through.
#[derive(Default)]
pub(crate) struct Counters {
    connects: AtomicU64,
    resends: AtomicU64,
    unanswered: AtomicU64,
    late: AtomicU64,
    pongs: AtomicU64,
}

impl SynapseBlocker {
    /// Connects. The connections live on the current runtime.
    ///
    /// # Errors
    /// `Denied`: wrong secret. `Invalid`: the settings make no sense. `Retryable`: not reachable.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn connect(config: ClientConfig) -> Result<Self> {
        config.check().map_err(|text| Error::Invalid(text.into()))?;
        let client = config.seed.map_or_else(random, |seed| u128::from(seed).to_le_bytes());
        let pool = PayloadPool::new(config.payload_pool_bytes_max);
        let first = connect::connect(&config, SessionId { client, lane: 0 }, &pool).await?;
        let capabilities = first.welcome.capabilities;
        let shared = Arc::new(Shared {
            config: config.clone(),
            client,
            capabilities: RwLock::new(capabilities),
            store: Mutex::new(None),
            pool,
            events: EventHub::new(),
            has_events: AtomicBool::new(false),
            unflushed: Unflushed::default(),
            instance: Mutex::new(None),
            core: OnceLock::new(),
            counters: Counters::default(),
        });
        let now = config.clock.now();
        let lanes: Vec<_> = (0..config.connections)
            .map(|index| Arc::new(Lane::new(index, &config, capabilities, now)))
            .collect();
        let core = Arc::new(Core { config, lanes, shared: Arc::clone(&shared) });
        // Set once, here.
        let _ = shared.core.set(Arc::downgrade(&core));
        let mut first = Some(first);
        for lane in &core.lanes {
            tokio::spawn(task::run(Arc::clone(lane), Arc::clone(&shared), first.take()));
        }
        Ok(Self { core })
    }

    /// What this client has counted so far, on this side of the wire: name and value.
    #[must_use]
    pub fn metrics(&self) -> Vec<(&'static str, u64)> {
        let counters = &self.core.shared.counters;
        let all = [
            ("connects", &counters.connects),
            ("resends", &counters.resends),
            ("unanswered", &counters.unanswered),
            ("late", &counters.late),
            ("pings_answered", &counters.pongs),
        ];
        all.map(|(name, counter)| (name, counter.load(Ordering::Relaxed))).into()
    }

    /// Which store the server serves, if it has an identity.
    #[must_use]
    pub fn store(&self) -> Option<StoreId> {
        *self.core.shared.store.lock()
    }

    /// Connects, for programs without a runtime: the connections live on a thread of their own, which ends
    /// with them. Blocks until connected.
    ///
    /// # Errors
    /// As [`Self::connect`]; `Retryable` if there is no thread to be had.
    pub fn connect_on_thread(config: ClientConfig) -> Result<Self> {
        let (connected, wait) = std::sync::mpsc::sync_channel(1);
        let failed =
            |error: std::io::Error| Error::Retryable(format!("a thread for synapse: {error}").into());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let serve = move || {
            runtime.block_on(async move {
                let client = Self::connect(config).await;
                let core = client.as_ref().ok().map(|client| Arc::downgrade(&client.core));
                // If nobody waits any more, the client is dropped with the message.
                let _ = connected.send(client);
                if let Some(core) = core {
                    until_gone(&core).await;
                }
            });
        };
        std::thread::Builder::new().name("synapse".into()).spawn(serve).map_err(failed)?;
        wait.recv().unwrap_or_else(|_| Err(Error::Retryable("the thread for synapse has died".into())))
    }
}

/// Waits for the end of all lanes, which end with the core.
async fn until_gone(core: &Weak<Core>) {
    let lanes = core.upgrade().map(|core| core.lanes.clone()).unwrap_or_default();
    for lane in lanes {
        lane.ended().await;
    }
}

impl Core {
    /// The lane with the fewest requests, of those that are connected if there are any.
    fn choose_lane(&self) -> usize {
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
