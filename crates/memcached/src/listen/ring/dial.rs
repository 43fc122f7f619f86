//! Opens the lanes of this node's workers, and opens each again when it has ended; opens copy sessions.

use super::{Failure, Handshake, Task, greeting, pass_panic_on, random, unix_time_ms};
use crate::connections::{AtAddress, Command, NoLane, OpenLane};
use crate::copy::Line;
use crate::ring::{MapInForce, Peer, Ring};
use crate::settings::RingSettings;
use crate::shared::Shared;
use crate::stream::Link;
use cached_ring::hello::{
    COPY_SESSION, DIAL_LABEL, FEATURE_COPY, Frame, Greeting, Hello, Refused, RefusedCode, SERVE_LABEL,
    VERSION_MAX, VERSION_MIN, Welcome,
};
use connection::Secret;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The shortest and the longest pause between two attempts to open a lane.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The difference of two nodes' clocks above which a warning is logged. The owner of an item decides
/// when it expires, so no reply is wrong for it.
const CLOCKS_APART_MAX_MS: u64 = 2_000;

/// The maximum number of threads that resolve the names of hosts. A thread whose lane no longer waits
/// for it counts until it has ended.
const LOOKUPS_MAX: usize = 4;

/// The state that the lanes' tasks share.
struct Lanes {
    /// The nodes and workers for which there are tasks.
    tasks: RefCell<HashSet<(String, usize)>>,
    /// For each node, the line that was logged last, so that many lanes and attempts log one line.
    lines: RefCell<HashMap<String, String>>,
    /// The differences in the settings of peers that were logged.
    differences: RefCell<HashSet<String>>,
    lookups: Arc<Semaphore>,
}

/// Keeps a lane open from each worker to each other node of the map in force.
///
/// Cancel safe: once this is dropped, no lane is opened any more.
pub(crate) async fn dial(shared: Arc<Shared>) {
    let Some(ring) = &shared.ring else { return };
    let lanes = Rc::new(Lanes {
        tasks: RefCell::default(),
        lines: RefCell::default(),
        differences: RefCell::default(),
        lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)),
    });
    let mut tasks = JoinSet::new();
    loop {
        for node in ring.map().nodes().iter().filter(|node| node.name != ring.own) {
            for worker in 0..shared.settings.threads {
                if lanes.tasks.borrow_mut().insert((node.name.clone(), worker)) {
                    let keeping = keep_lane(shared.clone(), lanes.clone(), worker, node.name.clone());
                    tasks.spawn_local(Box::pin(keeping) as Task);
                }
            }
        }
        tokio::select! {
            () = ring.changed.notified() => {}
            Some(ended) = tasks.join_next() => pass_panic_on(ended),
        }
    }
}

/// Keeps the lane of one worker to one node open, as long as the map has the node.
async fn keep_lane(shared: Arc<Shared>, lanes: Rc<Lanes>, worker: usize, node: String) {
    let (Some(ring), Some(settings)) = (&shared.ring, &shared.settings.ring) else { return };
    let peer = ring.peer_or_new(&node);
    let queue = shared.connections.queue(worker);
    let mut pause = PAUSE_MIN;
    // During a rotation the peer may know only one of two secrets.
    let mut secret = 0;
    loop {
        let map = ring.map();
        let Some(index) = map.find(&node) else {
            // A map that has the node again starts another task.
            lanes.tasks.borrow_mut().remove(&(node, worker));
            return;
        };
        let address = &map.node(index).ring;
        let begun = Instant::now();
        let connecting = timeout(settings.connect_timeout, connect(&lanes.lookups, address));
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
        let opened = match connecting.await.map_err(late).flatten() {
            Ok(stream) => {
                let to = Wanted { worker: worker as u16, node: &node, address };
                open(&shared, ring, settings, to, stream, secret).await
            }
            Err(error) => Err(Failure::Unreachable(error)),
        };
        match opened {
            Ok((link, welcome)) => {
                lanes.opened(&shared, &peer, address, &welcome);
                peer.set_open(worker, true);
                let (ended, has_ended) = oneshot::channel();
                let (node, address) = (node.clone(), address.clone());
                queue.send(Command::OpenLane(OpenLane { node, address, link, ended }));
                // The worker only drops the sender.
                let _ = has_ended.await;
            }
            Err(failure) => {
                secret += usize::from(failure.is_about_the_secret());
                lanes.failed(&node, &failure);
                // A process from which another one is taking over accepts connections, but does not
                // answer for a moment.
                let found = match failure {
                    Failure::Unreachable(_) => AtAddress::Nothing,
                    Failure::Late => AtAddress::Silence,
                    _ => AtAddress::Refusal,
                };
                queue.send(Command::NoLane(NoLane { node: node.clone(), found, why: failure.to_string() }));
            }
        }
        // The first attempt after a lane has ended is immediate, unless lanes end as soon as they open.
        if begun.elapsed() > PAUSE_MAX {
            pause = PAUSE_MIN;
            continue;
        }
        tokio::time::sleep(with_jitter(pause)).await;
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

/// The interval at which the opening of a copy session looks whether it must end.
const LOOK: Duration = Duration::from_millis(20);

/// Opens a copy session to a node, for a thread that has no runtime.
///
/// # Errors
/// Returns the reason why there is none, as a part of a line.
pub(crate) fn dial_copy(shared: &Shared, node: &str, ends: &dyn Fn() -> bool) -> Result<Line, String> {
    let (Some(ring), Some(settings)) = (&shared.ring, &shared.settings.ring) else {
        return Err("there is no ring".into());
    };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let lookups = Arc::new(Semaphore::new(1));
    let attempt = async {
        let map = ring.map();
        let index = map.find(node).ok_or("the map does not have it")?;
        let address = &map.node(index).ring;
        let mut secret = 0;
        loop {
            let connecting = timeout(settings.connect_timeout, connect(&lookups, address));
            let stream = connecting.await.map_err(|_| "no connection in time")?.map_err(|e| e.to_string())?;
            let to = Wanted { worker: COPY_SESSION, node, address };
            match open(shared, ring, settings, to, stream, secret).await {
                Ok((link, _)) => return Ok(Line::new(link)),
                // During a rotation the peer may know only one of two secrets.
                Err(failure) if failure.is_about_the_secret() && secret == 0 => secret += 1,
                Err(failure) => return Err(failure.to_string()),
            }
        }
    };
    let opened = runtime.block_on(async {
        let ended = async {
            while !ends() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            opened = attempt => opened,
            () = ended => Err("the session is not wanted any more".to_owned()),
        }
    });
    // A thread may still be resolving a name.
    runtime.shutdown_background();
    opened
}

/// What is known of another process of the name of a node, at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twin {
    /// There is none: nothing accepts connections there, or another node does.
    None,
    /// It runs.
    Runs,
    /// Nothing answers in time: it may stand still, or its host may be cut off.
    Silent,
}

/// Returns whether another process of the name of this node, `own`, runs at an address: it refuses a
/// second one.
///
/// # Errors
/// Returns the reason why this cannot be told, as a part of a line: something answers, but the two
/// cannot speak TLS with each other.
pub async fn find_twin(
    settings: &RingSettings,
    ring: &str,
    own: &str,
    address: &str,
) -> Result<Twin, String> {
    let asked = async {
        let stream = connect(&Arc::new(Semaphore::new(1)), address).await.map_err(Failure::Unreachable)?;
        let mut handshake = Handshake::dial(stream, address, settings).await?;
        let greeting = Greeting {
            features: 0,
            nonce: random(),
            incarnation: u64::from_le_bytes(random()),
            map_version: 0,
            map_digest: 0,
            unix_time_ms: 0,
            ring: ring.to_owned(),
            node: own.to_owned(),
        };
        let (versions, wanted_node) = ((VERSION_MIN, VERSION_MAX), own.to_owned());
        handshake
            .send(&Frame::Hello(Hello { versions, worker: 0, workers: 1, greeting, wanted_node }))
            .await?;
        handshake.receive().await
    };
    match timeout(settings.connect_timeout, asked).await {
        Ok(Err(Failure::ByPeer(refused))) if refused.code == RefusedCode::SecondProcess => Ok(Twin::Runs),
        Ok(Err(Failure::Tls(why))) => Err(why),
        Ok(Ok(_) | Err(Failure::ByPeer(_) | Failure::ByUs(_))) => Ok(Twin::None),
        Ok(Err(Failure::Unreachable(error))) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Ok(Twin::None)
        }
        Ok(Err(_)) | Err(_) => Ok(Twin::Silent),
    }
}

/// Connects to an address, whose host may be a name.
async fn connect(lookups: &Arc<Semaphore>, address: &str) -> io::Result<TcpStream> {
    if let Ok(address) = address.parse::<SocketAddr>() {
        return TcpStream::connect(address).await;
    }
    let permit = lookups.clone().acquire_owned().await.map_err(io::Error::other)?;
    let address = address.to_owned();
    let resolve = move || {
        let found = address.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        drop(permit);
        found
    };
    TcpStream::connect(&tokio::task::spawn_blocking(resolve).await??[..]).await
}

/// The peer for which a connection is opened.
struct Wanted<'a> {
    /// The worker of this node, or [`COPY_SESSION`].
    worker: u16,
    node: &'a str,
    address: &'a str,
}

/// Opens a lane: performs the handshake on a new connection.
async fn open(
    shared: &Shared,
    ring: &Ring,
    settings: &RingSettings,
    to: Wanted<'_>,
    stream: TcpStream,
    secret: usize,
) -> Result<(Link, Welcome), Failure> {
    let secrets = settings.secrets.all();
    let secret = secrets.get(secret % secrets.len().max(1));
    let hello = Hello {
        versions: (VERSION_MIN, VERSION_MAX),
        worker: to.worker,
        workers: shared.settings.threads as u16,
        greeting: greeting(ring),
        wanted_node: to.node.to_owned(),
    };
    let opened = async {
        let mut handshake = Handshake::dial(stream, to.address, settings).await?;
        let welcome = greet(&mut handshake, hello, secret).await?;
        Ok((handshake.into_link()?, welcome))
    };
    timeout(settings.peer_timeout, opened).await.map_err(|_| Failure::Late)?
}

/// Performs the dialler's side of the handshake.
async fn greet(handshake: &mut Handshake, hello: Hello, secret: Option<&Secret>) -> Result<Welcome, Failure> {
    handshake.send(&Frame::Hello(hello.clone())).await?;
    let Frame::Welcome(welcome) = handshake.receive().await? else {
        return Err(handshake.refuse_frame("WELCOME").await);
    };
    match welcome.check(&hello, secret.is_some()) {
        Ok(features) if hello.worker == COPY_SESSION && features & FEATURE_COPY == 0 => {
            let text = format!(
                "node {:?} cannot give slots to another one, its program is older",
                hello.wanted_node
            );
            return Err(handshake.refuse(Refused { code: RefusedCode::Version, text }).await);
        }
        Ok(_) => {}
        Err(refused) => return Err(handshake.refuse(refused).await),
    }
    let proof = secret.map_or([0; 32], |secret| secret.prove(DIAL_LABEL, &handshake.transcript));
    handshake.send(&Frame::Prove(proof)).await?;
    let proven = handshake.transcript.clone();
    let Frame::Proved(proof) = handshake.receive().await? else {
        return Err(handshake.refuse_frame("PROVED").await);
    };
    match secret {
        Some(secret) if !secret.is_proof(&proof, SERVE_LABEL, &proven) => {
            Err(handshake.refuse(Refused::wrong_secret()).await)
        }
        _ => Ok(welcome),
    }
}

/// Returns by how many milliseconds a peer's clock is ahead of this node's.
fn ahead_ms(peer: &Greeting) -> i64 {
    i64::try_from(i128::from(peer.unix_time_ms) - i128::from(unix_time_ms())).unwrap_or(i64::MAX)
}

/// Returns a time between the half of `pause` and all of it, so that nodes that have lost the same
/// peer do not come back at once.
fn with_jitter(pause: Duration) -> Duration {
    let share = getrandom::u32().unwrap_or_default();
    pause / 2 + (pause / 2).mul_f64(f64::from(share) / f64::from(u32::MAX))
}

impl Lanes {
    /// Notes and logs what a node has said: the first time, again after a failure, and where its
    /// settings differ so that clients of the ring can notice it.
    fn opened(&self, shared: &Shared, peer: &Peer, address: &str, welcome: &Welcome) {
        let node = &peer.name;
        let ahead_ms = ahead_ms(&welcome.greeting);
        let Greeting { map_version: version, map_digest: digest, .. } = welcome.greeting;
        peer.set_hello(MapInForce { version, digest }, ahead_ms);
        let line = format!("connected to node {node} of the ring at {address}");
        if self.lines.borrow_mut().insert(node.to_owned(), line.clone()).as_ref() != Some(&line) {
            tracing::info!("{line}");
            if ahead_ms.unsigned_abs() > CLOCKS_APART_MAX_MS {
                tracing::warn!(
                    "the clock of node {node} and this one are {:.1} s apart: items expire by their owner's clock",
                    ahead_ms.unsigned_abs() as f64 / 1e3
                );
            }
        }
        let own = &shared.settings;
        let differs = [
            ("memcached.item_bytes_max", u64::from(welcome.item_bytes_max) != own.item_bytes_max as u64),
            ("memcached.cas", welcome.has_cas != own.cas),
            ("memcached.evict", welcome.evicts != own.evict),
            ("memcached.flush_enabled", welcome.may_flush != own.flush_enabled),
        ];
        for (key, _) in differs.into_iter().filter(|(_, differs)| *differs) {
            if self.differences.borrow_mut().insert(format!("{node} {key}")) {
                tracing::warn!("node {node} has another value of {key}: clients see the value of the owner");
            }
        }
    }

    /// Logs why there is no lane to a node, if this is new.
    fn failed(&self, node: &str, failure: &Failure) {
        let line = format!("no connection to node {node} of the ring: {failure}");
        if self.lines.borrow_mut().insert(node.to_owned(), line.clone()).as_ref() != Some(&line) {
            tracing::warn!("{line}");
        }
    }
}
