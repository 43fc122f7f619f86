//! Accepts lanes of other nodes, and assigns them to workers.

use super::{Failure, Handshake, Task, greeting, pass_panic_on};
use crate::connections::{Command, ServeLane};
use crate::listen::Listener;
use crate::ring::{Ring, STRANGERS_MAX};
use crate::settings::RingSettings;
use crate::shared::Shared;
use crate::stream::Link;
use cached_ring::NODES_MAX;
use cached_ring::hello::{
    COPY_SESSION, DIAL_LABEL, Frame, Hello, Refused, RefusedCode, SERVE_LABEL, Welcome,
};
use connection::{Connections, Limits, Place};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The maximum number of handshakes at a time; further peers wait to be accepted.
const HANDSHAKES_MAX: u32 = 256;

/// The maximum number of handshakes with peers of one network at a time: further connections are
/// closed, so that a host that says nothing does not keep nodes of other hosts out.
const NETWORK_HANDSHAKES_MAX: u32 = 64;

/// Both limits.
const LIMITS: Limits =
    Limits { connections_max: HANDSHAKES_MAX, peer_connections_max: NETWORK_HANDSHAKES_MAX };

/// The pause in accepting when no descriptors are left.
const PAUSE: Duration = Duration::from_millis(10);

/// The lanes of other nodes, of all listeners of this node.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// By the name of the node. While a lane is being accepted or ends, its node is locked.
    pub(super) nodes: RefCell<HashMap<String, Rc<Mutex<Peer>>>>,
    /// The number of the next lane.
    next: Cell<u64>,
    /// One permit for each handshake that may begin.
    permits: Arc<Semaphore>,
    /// The handshakes, counted by network.
    handshakes: Arc<Connections>,
}

/// A handshake is counted until this is dropped.
type Counted = (Place, OwnedSemaphorePermit);

/// Another node that opens lanes to this node.
#[derive(Debug, Default)]
pub(super) struct Peer {
    incarnation: u64,
    /// The open lanes, by the peer's workers.
    lanes: HashMap<u16, u64>,
}

impl Default for Accepted {
    fn default() -> Accepted {
        Accepted {
            nodes: RefCell::default(),
            next: Cell::new(0),
            permits: Arc::new(Semaphore::new(HANDSHAKES_MAX as usize)),
            handshakes: Arc::default(),
        }
    }
}

/// Accepts lanes from one listener.
///
/// Cancel safe: once this is dropped, no lane is accepted any more. Open lanes stay open.
pub(crate) async fn accept(listener: Listener, shared: Arc<Shared>, accepted: Rc<Accepted>) {
    let listener = match TcpListener::from_std(listener.socket.into()) {
        Ok(listener) => listener,
        Err(error) => return shared.fail(format!("cannot wait for other nodes: {error}")),
    };
    let mut tasks = JoinSet::new();
    loop {
        while let Some(ended) = tasks.try_join_next() {
            pass_panic_on(ended);
        }
        // The semaphore is never closed.
        let Ok(permit) = accepted.permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, address)) => {
                if let Ok(place) = accepted.handshakes.take(&connection::Peer::Tcp(address), LIMITS) {
                    let serving = serve(shared.clone(), accepted.clone(), stream, (place, permit));
                    tasks.spawn_local(Box::pin(serving) as Task);
                }
            }
            // The peer has already gone, or no descriptors are left.
            Err(error) => {
                tracing::debug!(cause = %error, "accept of a node failed");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Accepts a lane, and waits until the lane has ended.
async fn serve(shared: Arc<Shared>, accepted: Rc<Accepted>, stream: TcpStream, counted: Counted) {
    let (Some(ring), Some(settings)) = (&shared.ring, &shared.settings.ring) else { return };
    let address = stream.peer_addr().map(|address| address.ip().to_string()).unwrap_or_default();
    let mut name = None;
    let admitted = accepted.admit(&shared, ring, settings, stream, &mut name);
    let admitted = timeout(settings.peer_timeout, admitted).await.unwrap_or(Err(Failure::Late));
    drop(counted);
    let node = name.map_or_else(|| "a node".to_owned(), |name| format!("node {name}"));
    match admitted {
        Ok(Admitted::Copy { node, link }) => crate::copy::accept(&shared, node, link),
        Ok(Admitted::Lane { peer, number, worker, has_ended }) => {
            // The worker only drops the sender.
            let _ = has_ended.await;
            let mut peer = peer.lock().await;
            if peer.lanes.get(&worker) == Some(&number) {
                peer.lanes.remove(&worker);
            }
        }
        // The peer has gone, as it does when it has waited for too long.
        Err(Failure::Broken(error)) => tracing::debug!(cause = %error, "{node} at {address} has gone"),
        Err(failure) => tracing::warn!("{node} of the ring at {address} is not served: {failure}"),
    }
}

/// A connection that was accepted.
pub(super) enum Admitted {
    /// A lane, which was given to a worker.
    Lane {
        peer: Rc<Mutex<Peer>>,
        number: u64,
        /// The peer's worker.
        worker: u16,
        has_ended: oneshot::Receiver<()>,
    },
    /// A copy session with a node.
    Copy { node: String, link: Link },
}

impl Accepted {
    /// Performs the listener's side of the handshake, and gives the lane to a worker. Sets `name`
    /// once the peer has said its name.
    pub(super) async fn admit(
        &self,
        shared: &Shared,
        ring: &Ring,
        settings: &RingSettings,
        stream: TcpStream,
        name: &mut Option<String>,
    ) -> Result<Admitted, Failure> {
        let mut handshake = Handshake::accept(stream, settings)?;
        let Frame::Hello(hello) = handshake.receive().await? else {
            return Err(handshake.refuse_frame("HELLO").await);
        };
        *name = Some(hello.greeting.node.clone());
        let own = greeting(ring);
        let version = match hello.check(&own) {
            Ok(version) => version,
            Err(refused) => return Err(handshake.refuse(refused).await),
        };
        let secrets = settings.secrets.all();
        let welcome = Welcome {
            version,
            greeting: own,
            item_bytes_max: u32::try_from(shared.settings.item_bytes_max).unwrap_or(u32::MAX),
            has_cas: shared.settings.cas,
            evicts: shared.settings.evict,
            may_flush: shared.settings.flush_enabled,
            wants_proof: !secrets.is_empty(),
        };
        handshake.send(&Frame::Welcome(welcome)).await?;
        let proven = handshake.transcript.clone();
        let Frame::Prove(proof) = handshake.receive().await? else {
            return Err(handshake.refuse_frame("PROVE").await);
        };
        let secret = secrets.iter().find(|secret| secret.is_proof(&proof, DIAL_LABEL, &proven));
        if secret.is_none() && !secrets.is_empty() {
            return Err(handshake.refuse(Refused::wrong_secret()).await);
        }
        // The dialler is a node of the ring and waits for the lane, so its earlier lane can end.
        let peer = match self.peer(ring, &hello) {
            Ok(peer) => peer,
            Err(refused) => return Err(handshake.refuse(refused).await),
        };
        let mut lanes = peer.lock().await;
        if let Err(refused) = lanes.check(&hello, settings.peer_lanes_max) {
            return Err(handshake.refuse(refused).await);
        }
        let worker = hello.worker;
        if worker == COPY_SESSION {
            let proof = secret.map_or([0; 32], |secret| secret.prove(SERVE_LABEL, &handshake.transcript));
            handshake.send(&Frame::Proved(proof)).await?;
            return Ok(Admitted::Copy { node: hello.greeting.node, link: handshake.into_link()? });
        }
        let lanes_wanted = u32::from(hello.workers).min(settings.peer_lanes_max);
        ring.peer_or_new(&hello.greeting.node).set_lanes_wanted(lanes_wanted as usize);
        let own_worker = usize::from(worker) % shared.settings.threads;
        let queue = shared.connections.queue(own_worker);
        if let Some(earlier) = lanes.lanes.remove(&worker) {
            let (done, is_done) = oneshot::channel();
            queue.send(Command::EndLane(earlier, done));
            // The worker only drops the sender.
            let _ = is_done.await;
        }
        let proof = secret.map_or([0; 32], |secret| secret.prove(SERVE_LABEL, &handshake.transcript));
        handshake.send(&Frame::Proved(proof)).await?;
        let link = handshake.into_link()?;
        let number = self.next.replace(self.next.get() + 1);
        let (ended, has_ended) = oneshot::channel();
        let node = hello.greeting.node.clone();
        lanes.incarnation = hello.greeting.incarnation;
        lanes.lanes.insert(worker, number);
        queue.send(Command::ServeLane(ServeLane { number, node, link, ended }));
        drop(lanes);
        Ok(Admitted::Lane { peer, number, worker, has_ended })
    }

    /// Returns the node that sends `hello`.
    pub(super) fn peer(&self, ring: &Ring, hello: &Hello) -> Result<Rc<Mutex<Peer>>, Refused> {
        let mut nodes = self.nodes.borrow_mut();
        let name = &hello.greeting.node;
        let is_stranger = !ring.knows(name);
        if !nodes.contains_key(name) && (is_stranger || nodes.len() >= NODES_MAX) {
            // Nodes that have gone are forgotten.
            nodes.retain(|_, peer| {
                Rc::strong_count(peer) > 1 || peer.try_lock().is_ok_and(|peer| !peer.lanes.is_empty())
            });
            let strangers = nodes.keys().filter(|name| !ring.knows(name)).count();
            let refuse = |text| Err(Refused { code: RefusedCode::TooMany, text });
            if nodes.len() >= NODES_MAX {
                return refuse(format!("{NODES_MAX} other nodes have lanes to this one"));
            }
            if is_stranger && strangers >= STRANGERS_MAX {
                return refuse(format!(
                    "the map has no node {name:?}, and {strangers} others have lanes that it has not"
                ));
            }
        }
        Ok(nodes.entry(name.clone()).or_default().clone())
    }
}

impl Peer {
    /// Checks that no other process has the name of the peer, and that the peer has not too many
    /// lanes. A process that follows a killed one is refused until the killed one's lanes have ended,
    /// and tries again.
    fn check(&self, hello: &Hello, lanes_max: u32) -> Result<(), Refused> {
        if !self.lanes.is_empty() && self.incarnation != hello.greeting.incarnation {
            return Err(Refused::second_process(&hello.greeting.node));
        }
        let is_another = hello.worker != COPY_SESSION && !self.lanes.contains_key(&hello.worker);
        if is_another && self.lanes.len() >= lanes_max as usize {
            return Err(Refused::too_many(lanes_max));
        }
        Ok(())
    }
}
