//! What the steward of a ring's maps does with the running node.

use super::LiveServer;
use crate::copy::{Copied, CopyError};
use crate::listen::ring::dial_copy;
use crate::ring::{MoveStep, Ring, RingEvents, RingLease};
use crate::shared::Shared;
use cached_ring::Map;
use std::sync::Arc;

impl LiveServer {
    /// Puts another map of the ring in force soon after this call. The map must have a higher
    /// version than the map before, unless both are equal.
    ///
    /// # Errors
    /// Returns the reason why the map cannot be used, as a single line. The earlier map then stays in
    /// force.
    pub fn set_map(&self, map: Map) -> Result<(), String> {
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        let ring = shared.ring.as_ref().ok_or("the server does not belong to a ring")?;
        ring.set_map(map)
    }

    /// Returns the version of the map in force; 0 without a ring.
    pub fn map_version(&self) -> u64 {
        self.ring(|ring, _| ring.map().version()).unwrap_or(0)
    }

    /// Returns what happens at this node that its steward has to act on.
    pub fn ring_events(&self) -> Arc<RingEvents> {
        self.ring(|ring, _| ring.events.clone()).unwrap_or_default()
    }

    /// Returns the node's lease; `None` without a ring, or once the server has ended.
    pub fn ring_lease(&self) -> Option<Arc<RingLease>> {
        self.ring(|ring, _| ring.lease.clone())
    }

    /// Returns whether there is a connection to a node.
    pub fn is_reachable(&self, node: &str) -> bool {
        self.ring(|ring, _| ring.is_reachable(node)).unwrap_or(false)
    }

    /// Returns the size of the items of a node to which there is a connection, as it has last reported it,
    /// in bytes; `None` if there is none, or no report yet.
    pub fn held_bytes(&self, node: &str) -> Option<u64> {
        self.ring(|ring, _| ring.held_bytes(node)).flatten()
    }

    /// Returns whether every node that this one reaches knows this one: it has a map at least as late as
    /// the first one of this process, and has opened all of its lanes to this node. Requests for slots
    /// that this node takes before would fail at the others.
    pub fn is_known_to_all(&self) -> bool {
        self.ring(|ring, _| ring.is_known_to_all()).unwrap_or(false)
    }

    /// Copies the items of a move to this node, which is the move's target, until all of them are
    /// here and the source executes no requests for their slots any more. The move must be in the map
    /// in force. Before the source stops executing requests, `confirm` says whether the move still
    /// exists, from a fresh look at the registry. One move is copied at a time.
    ///
    /// Cancel safe: once this is dropped, the session ends, and nothing has happened, or the source
    /// aborts the move.
    ///
    /// # Errors
    /// Returns [`CopyError`]; then the move must be aborted.
    pub async fn copy(&self, id: u64, confirm: impl AsyncFnOnce() -> bool) -> Result<Copied, CopyError> {
        let shared = self.shared.upgrade().ok_or(CopyError::Ends)?;
        crate::copy::copy(shared, id, dial_copy, confirm).await
    }

    /// Puts the map in force that has committed a move: when this returns, this node executes the
    /// requests for the move's slots, and the source has been told. `map` is the map of the commit,
    /// and no later one has been given to [`set_map`](Self::set_map).
    pub async fn settle(&self, copied: Copied, map: Map) {
        copied.settle(map).await;
    }

    /// Forbids moves, or permits them again: while they are forbidden, other nodes cannot copy from this
    /// one, nor this one from others, and sessions end whose slots are not sealed yet.
    pub fn hold_moves(&self, holds: bool) {
        self.ring(|ring, _| ring.hold_moves(holds));
    }

    /// Returns the number of slots for which this node executes no requests because they are on their
    /// way to another node.
    pub fn sealed_slots(&self) -> usize {
        self.ring(|ring, _| ring.sealed_slots()).unwrap_or(0)
    }

    /// Counts a step of a move to this node.
    pub fn count_move(&self, step: MoveStep) {
        self.ring(|ring, _| ring.moves.step(step));
    }

    fn ring<R>(&self, call: impl FnOnce(&Ring, &Shared) -> R) -> Option<R> {
        let shared = self.shared.upgrade()?;
        shared.ring.as_ref().map(|ring| call(ring, &shared))
    }
}
