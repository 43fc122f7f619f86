//! The settings of a node of a ring.

use super::ListenAddress;
use cached_ring::Map;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a node of a ring.
#[derive(Debug, Clone)]
pub struct RingSettings {
    /// The name of this node in the map.
    pub node: String,
    /// The addresses at which other nodes are accepted.
    pub listen: Vec<ListenAddress>,
    /// The map at the start.
    pub map: Arc<Map>,
    /// The shared secrets of the nodes: the current one, and one that is still accepted; empty
    /// without a secret. At least 16 bytes each.
    pub secrets: Vec<Vec<u8>>,
    /// The time after which a peer that does not answer is lost.
    pub peer_timeout: Duration,
    /// The maximum time for connecting to a peer.
    pub connect_timeout: Duration,
    /// The maximum number of connections that one peer may open.
    pub peer_lanes_max: u32,
}
