//! The map of a ring: its nodes, and which of them owns each slot.

use crate::{SLOTS, Slot};

/// The maximum number of nodes of a ring.
pub const NODES_MAX: usize = 1024;

/// The position of a node within [`Map::nodes`]. Another map may have another node there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u16);

/// One node of a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The name, unique within the ring: 1 to 64 bytes of `A-Z a-z 0-9 . _ -`.
    pub name: String,
    /// The address at which other nodes reach it, `host:port`.
    pub ring: String,
    /// The address at which clients reach it, `host:port`.
    pub address: String,
    /// The node's share of the slots, relative to the others'.
    pub weight: u32,
}

/// The map of a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    pub(crate) ring: String,
    pub(crate) version: u64,
    /// Ordered by name.
    pub(crate) nodes: Vec<Node>,
    pub(crate) owners: Box<[NodeIndex; SLOTS]>,
}

impl Map {
    /// Returns the name of the ring.
    #[must_use]
    pub fn ring(&self) -> &str {
        &self.ring
    }

    /// Returns the version: a map replaces those with lower versions.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the nodes, ordered by name.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the owner of a slot.
    #[inline]
    #[must_use]
    pub fn owner(&self, slot: Slot) -> NodeIndex {
        self.owners[usize::from(slot.number())]
    }

    /// Returns the position of the node with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeIndex> {
        let found = self.nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok()?;
        Some(NodeIndex(u16::try_from(found).ok()?))
    }
}
