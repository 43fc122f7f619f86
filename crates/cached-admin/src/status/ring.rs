//! The part of `/status.json` about the ring of nodes to which the program belongs; and, with the
//! runs of slots, the document `/ring.json`.

use serde::Serialize;

/// The ring, as this node sees it.
#[derive(Clone, Debug, Serialize)]
pub struct RingPart {
    /// The name of the ring.
    pub ring: String,
    /// The name of this node.
    pub node: String,
    /// The version of the map in force.
    pub map_version: u64,
    /// The digest of the map in force, in hexadecimal.
    pub map_digest: String,
    /// Slots whose requests this node executes.
    pub own_slots: u64,
    /// Slots that this node has been given and does not answer for yet: it removes earlier items,
    /// or waits until other nodes have the map. In the meantime, requests for these slots are
    /// treated as if their owner was away.
    pub purging_slots: u64,
    /// The time that is left of this node's lease: at 0, requests for its slots wait. `None` in a ring
    /// without leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_left_ms: Option<u64>,
    /// Whether no further move of slots begins.
    pub paused: bool,
    /// The moves of slots in progress.
    pub moves: Vec<RingMove>,
    /// The number of slots that moves have brought to this node since it has started.
    pub moved_slots: u64,
    /// The time that these moves took together.
    pub moving_secs: f64,
    /// The slots that operators wish for nodes.
    pub wishes: Vec<RingWish>,
    /// All nodes of the map, in the order of their names.
    pub nodes: Vec<RingNode>,
    /// The runs of slots in their order; only in `/ring.json`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RingRun>,
}

/// One node of the ring. Requests, bytes and lanes are those between this node and that one; they
/// are 0 for this node itself.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RingNode {
    /// The name of the node.
    pub node: String,
    /// `here` for this node; for another one `up` if every worker has a connection to it, `partly` if
    /// some have one, and `away` if none has.
    pub state: &'static str,
    /// The address at which other nodes reach the node.
    pub ring_address: String,
    /// The address at which clients reach the node.
    pub address: String,
    /// The node's share of the slots relative to other nodes'.
    pub weight: u32,
    /// The number of slots that the node owns in the map in force here.
    pub slots: u64,
    /// The node that strikes this one off when its lease has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warden: Option<String>,
    /// The number of slots that the node owns once all moves are made that the weights imply; only in
    /// `/ring.json`, and only in a ring whose map is in the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_slots: Option<u64>,
    /// The version of the map in force at the node, as the node has last reported it.
    pub map_version: Option<u64>,
    /// Whether that map is the one in force here.
    pub has_same_map: Option<bool>,
    /// Connections to the node.
    pub lanes: u64,
    /// The number of connections to the node when all workers have one.
    pub lanes_max: u64,
    /// Connections from the node.
    pub inbound_lanes: u64,
    /// Requests passed to the node that it has not answered.
    pub in_flight: u64,
    /// Requests passed to the node that it has answered.
    pub done: u64,
    /// Requests that the node has refused, because in its map another node owns the slot.
    pub not_mine: u64,
    /// Requests whose connection was lost before they were answered.
    pub lost: u64,
    /// Requests for which there was no connection.
    pub away: u64,
    /// Requests sent again after the node had ended a connection in order.
    pub resent: u64,
    /// Requests of the node that this node has executed.
    pub inbound_requests: u64,
    /// Bytes sent to the node.
    pub sent_bytes: u64,
    /// Bytes received from the node.
    pub received_bytes: u64,
    /// The time of the last ping.
    pub round_trip_us: Option<f64>,
    /// The time by which the node's clock is ahead; negative if it is behind.
    pub clock_ms: Option<i64>,
    /// The figures that the node has last reported about itself.
    #[serde(flatten)]
    pub figures: Option<RingFigures>,
}

/// A node's figures about itself.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RingFigures {
    /// Items.
    pub items: u64,
    /// The size of all items.
    pub item_bytes: u64,
    /// The maximum memory of items.
    pub memory_bytes: u64,
    /// Keys that were asked for.
    pub gets: u64,
    /// Keys that were found.
    pub hits: u64,
    /// The time since the node has started.
    pub uptime_secs: u64,
}

/// A move of slots, with their items, from their owner to another node.
#[derive(Clone, Debug, Serialize)]
pub struct RingMove {
    /// The version of the map in which the move began.
    pub id: u64,
    /// The owner, until the move is committed.
    pub from: String,
    /// The next owner.
    pub to: String,
    /// The slots, as runs: `0-63,128`.
    pub slots: String,
    /// The number of these slots.
    pub slot_count: u64,
}

/// Slots that a node is to have, whatever the weights are.
#[derive(Clone, Debug, Serialize)]
pub struct RingWish {
    /// The node.
    pub node: String,
    /// The slots, as runs: `0-63,128`.
    pub slots: String,
    /// The number of these slots.
    pub slot_count: u64,
    /// How many of them the node does not have yet.
    pub missing_slots: u64,
}

/// Successive slots of one owner.
#[derive(Clone, Debug, Serialize)]
pub struct RingRun {
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
    /// The name of the owner.
    pub owner: String,
    /// The name of the node to which the slots move, if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moves_to: Option<String>,
    /// The name of the node for which an operator wishes the slots, if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wished_for: Option<String>,
}
