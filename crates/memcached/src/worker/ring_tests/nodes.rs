//! A node of a ring in a test: a worker without a thread. Each of its sockets is one end of a pair.

use super::super::Worker;
use super::super::maps::{MapThread, Step};
use crate::Server;
use crate::connections::{
    AcceptedConnection, AtAddress, Command, ConnInfo, Endpoints, NoLane, OpenLane, ServeLane,
};
use crate::process::Logging;
use crate::ring::{PeerReport, Ring};
use crate::settings::{RingSecrets, RingSettings, Settings};
use crate::shared::Shared;
use crate::stream::Link;
use cached_ring::{Map, Node as MapNode, NodeIndex, SLOTS};
use rustix::event::Timespec;
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// Returns a map of the nodes a and b, in which `owner` names the owner of each slot.
pub(in crate::worker) fn map_of(version: u64, owner: impl Fn(u16) -> u16) -> Arc<Map> {
    let node = |name: &str, port: u16| {
        MapNode::new(name, format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", port + 1))
    };
    let owners: Vec<NodeIndex> = (0..SLOTS as u16).map(|slot| NodeIndex(owner(slot))).collect();
    let owners = owners.try_into().expect("an owner for each slot");
    Arc::new(Map::new("main", version, vec![node("a", 1), node("b", 3)], owners).expect("a map"))
}

/// Returns a map of the nodes a and b, in which `owner` owns all slots.
pub(in crate::worker) fn map(version: u64, owner: u16) -> Arc<Map> {
    map_of(version, |_| owner)
}

/// Returns the settings of a node that does not give another one up, although threads may stand still.
pub(in crate::worker) fn settings(name: &str, map: Arc<Map>) -> Settings {
    settings_with(name, map, Duration::from_secs(60))
}

fn settings_with(name: &str, map: Arc<Map>, peer_timeout: Duration) -> Settings {
    let ring = RingSettings {
        node: name.into(),
        listen: Vec::new(),
        map,
        secrets: RingSecrets::default(),
        peer_timeout,
        connect_timeout: Duration::from_secs(1),
        tls: None,
        peer_lanes_max: 16,
        has_leases: false,
    };
    Settings {
        listen: Vec::new(),
        threads: 1,
        memory_bytes: 64 << 20,
        ring: Some(Arc::new(ring)),
        ..Settings::default()
    }
}

pub(in crate::worker) fn shared(settings: Settings) -> Arc<Shared> {
    Server::open(settings, Logging::embedded(0)).expect("a server").shared
}

/// Does what is due for the maps of a node, as its thread for maps does. The worker must take turns
/// at the same time.
pub(in crate::worker) fn follow_maps(shared: &Shared) {
    let ring = shared.ring.as_ref().expect("a ring");
    let mut thread = MapThread::new(shared, ring, Duration::ZERO);
    while thread.step(&|| false) == Step::Done {}
    assert!(ring.next_map().is_none() && !ring.is_purging());
}

/// A node.
pub(in crate::worker) struct Node {
    pub(in crate::worker) worker: Worker,
    lanes: u64,
}

impl Node {
    pub(in crate::worker) fn new(name: &str, map: Arc<Map>) -> Node {
        Node::with(settings(name, map))
    }

    /// Returns a node that gives another one up after a few ticks without a byte.
    pub(in crate::worker) fn impatient(name: &str, map: Arc<Map>) -> Node {
        Node::with(settings_with(name, map, Duration::from_secs(1)))
    }

    /// Returns the node b, which owns all slots.
    pub(in crate::worker) fn owner() -> Node {
        Node::new("b", map(1, 1))
    }

    pub(in crate::worker) fn with(settings: Settings) -> Node {
        Node { worker: Worker::new(0, shared(settings)).expect("descriptors"), lanes: 0 }
    }

    pub(in crate::worker) fn ring(&self) -> &Ring {
        self.worker.shared.ring.as_ref().expect("a ring")
    }

    /// Runs an iteration of the worker's loop, without waiting. Returns whether there was anything to
    /// do.
    pub(in crate::worker) fn turn(&mut self) -> bool {
        let mut events = Vec::with_capacity(64);
        self.worker.wait(&mut events, Some(Timespec::default()));
        self.worker.work.renew();
        let has_yielded = !self.worker.yielded.is_empty();
        if has_yielded {
            self.worker.serve_yielded();
        }
        has_yielded || !events.is_empty()
    }

    /// Takes `count` turns.
    pub(in crate::worker) fn turns(&mut self, count: usize) {
        (0..count).for_each(|_| _ = self.turn());
    }

    /// Takes turns until there is nothing to do.
    pub(in crate::worker) fn settle(&mut self) {
        while self.turn() {}
    }

    /// Takes turns until another thread has made `call`.
    pub(in crate::worker) fn turn_during(&mut self, call: impl FnOnce() + Send) {
        thread::scope(|scope| {
            let call = scope.spawn(call);
            while !call.is_finished() {
                self.turn();
            }
        });
    }

    /// Returns the far end of the connection of a new client.
    pub(in crate::worker) fn connect(&mut self) -> UnixStream {
        let (near, far) = pair();
        let info = ConnInfo::new(near.as_raw_fd(), Endpoints::Unix { path: "/x".into() }, None, 0, 2);
        let info = self.worker.shared.connections.add(info);
        self.worker.open_slot(AcceptedConnection { socket: near.into(), info, tls: None, handed: None });
        far
    }

    /// Takes one end of a lane to the node `to`.
    pub(in crate::worker) fn dial(&mut self, to: &str, socket: UnixStream) {
        let (ended, _) = oneshot::channel();
        let map = self.ring().lanes(0).map().clone();
        let address = map.find(to).map_or_else(String::new, |at| map.node(at).ring.clone());
        let lane = OpenLane { node: to.into(), address, link: Link::new(socket.into(), None), ended };
        self.worker.run_lane_command(Command::OpenLane(lane));
    }

    /// Takes one end of a lane from the node `from`. The returned receiver is closed after the lane.
    pub(in crate::worker) fn accept(&mut self, from: &str, socket: UnixStream) -> oneshot::Receiver<()> {
        let (ended, has_ended) = oneshot::channel();
        self.lanes += 1;
        let lane =
            ServeLane { number: self.lanes, node: from.into(), link: Link::new(socket.into(), None), ended };
        self.worker.run_lane_command(Command::ServeLane(lane));
        has_ended
    }

    pub(in crate::worker) fn cannot_reach(&mut self, peer: &str) {
        let why = NoLane { node: peer.into(), found: AtAddress::Nothing, why: "refused".into() };
        self.worker.run_lane_command(Command::NoLane(why));
    }

    /// Puts a map in force.
    pub(in crate::worker) fn put_in_force(&mut self, map: &Map) {
        let shared = self.worker.shared.clone();
        self.ring().set_map(map.clone()).unwrap();
        self.turn_during(|| follow_maps(&shared));
    }

    /// Returns what the node reports of the other one.
    pub(in crate::worker) fn peer(&self) -> PeerReport {
        self.ring().report().peers.remove(0)
    }

    pub(in crate::worker) fn has(&self, key: &[u8]) -> bool {
        self.worker.shared.kv.get(key).is_some()
    }
}

/// Returns two sockets of which no call blocks.
pub(in crate::worker) fn pair() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().expect("sockets");
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    (near, far)
}

/// Reads what has come. Returns false at the end of the stream.
pub(in crate::worker) fn read_all(from: &mut UnixStream, into: &mut Vec<u8>) -> bool {
    let mut bytes = [0; 1 << 16];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return false,
            Ok(count) => into.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(_) => return false,
        }
    }
}
