//! How a connection of a ring passes a request to another node.

use crate::exec;
use crate::ring::{LaneId, Lanes, Refused, Route, VERSION_BYTES, Why};
use cached_ring::{Flags, Slot, Waiter, slot_of};

/// The lanes of the worker, and what the connection needs to use them.
pub(super) struct Way<'a> {
    pub(super) lanes: &'a mut Lanes,
    /// The connection's slot in the worker.
    pub(super) slot: u32,
    /// Whether the connection is a datagram, which cannot wait for a reply.
    pub(super) is_datagram: bool,
}

/// A lane has no room. The connection is woken once it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoRoom;

/// What became of a request that is passed to a node.
pub(super) enum Passed {
    Sent(LaneId),
    /// The node is away, and this is the reply.
    Failed(Vec<u8>),
    /// The lane has no room. The connection is woken once it has.
    NoRoom,
    /// No node executes the request at present. The connection is woken when it may try again.
    Wait,
}

impl Way<'_> {
    /// Returns whether the lane of every node that is not away has room for a request. If not, the
    /// connection is woken when there is room.
    pub(super) fn has_room_everywhere(&mut self, bytes: usize) -> bool {
        let slot = self.slot;
        let bytes = bytes + VERSION_BYTES;
        self.is_datagram || self.lanes.peers().all(|node| self.lanes.has_room(slot, node, bytes))
    }

    /// Passes a request to the node that `route` names; `slot` is `None` for a request to every node.
    /// If that node is away, the error is the reply.
    pub(super) fn request(
        &mut self,
        route: Route,
        to: Waiter,
        slot: Option<Slot>,
        flags: Flags,
        own: &[u8],
    ) -> Passed {
        let node = match (route, slot) {
            (Route::Peer(node), _) => node,
            (Route::Wait | Route::Own, Some(slot)) if !self.is_datagram => {
                self.lanes.wait_for(self.slot, slot);
                return Passed::Wait;
            }
            (Route::Wait | Route::Own, slot) => self.lanes.map().owner(slot.unwrap_or(slot_of(b""))),
        };
        if !self.is_datagram {
            match self.lanes.request(node, to, slot, flags, own) {
                Ok(id) => return Passed::Sent(id),
                Err(Refused::NoRoom) => return Passed::NoRoom,
                Err(Refused::Wait) => return Passed::Wait,
                Err(Refused::Away) => {}
            }
        }
        let mut reply = Vec::new();
        let name = self.lanes.map().node(node).name.as_str();
        exec::away(&mut reply, flags.has(Flags::BINARY), own, name, Why::Away);
        Passed::Failed(reply)
    }
}
