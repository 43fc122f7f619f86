//! Requests that every node of a ring executes, and the reply that they give together.
//!
//! While slots move, two nodes that execute a flush at different times could leave an item that was
//! copied in between. So each node executes such a request only with the same map in force as the node
//! that was asked, and not while it hands slots over. A request that one node has not executed is
//! executed by all of them again, which has the same effect twice.
//!
//! Statistics of all nodes are asked for in the same way, without these conditions: they change nothing,
//! and what a node does not report is missing in the sums.

use super::answer::{is_refusal, put};
use super::way::{Passed, Way};
use crate::exec::{self, Executor, Next};
use crate::ring::{LaneId, Lanes, Outcome, Route, Why};
use crate::stats::Sums;
use cached_proto::{Decoded, Limits, binary, text};
use cached_ring::{Flags, NodeIndex, Waiter};
use std::time::Instant;

/// The request for one node's statistics, whichever protocol the client speaks.
const REPORT: &[u8] = b"stats cluster\r\n";

/// A request that every node executes.
pub(super) struct Every {
    /// The request.
    own: Box<[u8]>,
    flags: Flags,
    /// The reply of this node, or the first one that differs; `None` until all nodes are asked. Sums
    /// are the reply once all nodes have reported.
    reply: Option<Vec<u8>>,
    /// The nodes' statistics, if the request is for their sums.
    sums: Option<Sums>,
    is_different: bool,
    missing: Vec<LaneId>,
    refused: Option<Refusal>,
    since: Instant,
}

/// A node has refused the request.
struct Refusal {
    node: String,
    why: Why,
    /// The request is sent again after this epoch of the lanes, once that is known.
    epoch: Option<u64>,
}

impl Every {
    pub(super) fn new(own: &[u8], flags: Flags) -> Every {
        Every {
            own: own.into(),
            flags,
            reply: None,
            sums: None,
            is_different: false,
            missing: Vec::new(),
            refused: None,
            since: Instant::now(),
        }
    }

    /// Returns a request for the sums of all nodes' statistics.
    pub(super) fn sums(own: &[u8], flags: Flags) -> Every {
        Every { sums: Some(Sums::default()), ..Every::new(own, flags) }
    }

    pub(super) fn held_bytes(&self) -> usize {
        let sums = self.sums.as_ref().map_or(0, Sums::held_bytes);
        self.own.len() + sums + self.reply.as_ref().map_or(0, Vec::capacity)
    }

    /// Executes the request here, and sends it to all other nodes, unless that has been done. Returns
    /// whether it must be executed once other connections have been served.
    pub(super) fn advance(&mut self, executor: &mut Executor<'_>, way: &mut Way<'_>, to: Waiter) -> Next {
        if !self.missing.is_empty() {
            return Next::Continue;
        }
        let (version, epoch) = (way.lanes.map().version(), way.lanes.epoch());
        let Some(ring) = &executor.shared.ring else { return Next::Continue };
        let is_early =
            self.refused.as_mut().is_some_and(|refusal| *refusal.epoch.get_or_insert(epoch) == epoch);
        let (asked, flags) = match self.sums {
            Some(_) => (REPORT, Flags::NONE),
            None => (&*self.own, self.flags),
        };
        if self.sums.is_none() && (is_early || !ring.may_flush(version)) {
            if way.is_datagram || way.lanes.is_over(self.since) {
                self.give_up(&ring.own);
            } else {
                way.lanes.wait(way.slot);
            }
            return Next::Continue;
        }
        // Nothing is executed before all lanes have room for it.
        if !way.has_room_everywhere(asked.len()) {
            return Next::Continue;
        }
        let Some(reply) = execute(executor, flags, asked) else { return Next::Defer };
        match &mut self.sums {
            Some(sums) => sums.add(&reply),
            None => (self.reply, self.refused, self.is_different) = (Some(reply), None, false),
        }
        let (asked, flags) = (asked.to_vec(), flags.with(Flags::EVERY));
        let peers: Vec<NodeIndex> = way.lanes.peers().collect();
        for node in peers {
            match (way.request(Route::Peer(node), to, None, flags, &asked), &mut self.sums) {
                (Passed::Sent(id), _) => self.missing.push(id),
                (_, Some(sums)) => sums.add_away(),
                (Passed::Failed(reply), None) => self.take(&reply),
                (Passed::NoRoom | Passed::Wait, None) => {
                    let node = way.lanes.map().node(node).name.clone();
                    self.refused = Some(Refusal { node, why: Why::Away, epoch: None });
                }
            }
        }
        self.add_up();
        Next::Continue
    }

    /// Makes the reply of the sums if all nodes have reported.
    fn add_up(&mut self) {
        if let (Some(sums), true) = (&self.sums, self.missing.is_empty()) {
            let head = match binary::decode(&self.own) {
                Decoded::Request { request, .. } if self.flags.has(Flags::BINARY) => Some(request.head),
                _ => None,
            };
            self.reply = Some(sums.reply(head.as_ref()));
        }
    }

    /// Replies that a node has not executed the request.
    fn give_up(&mut self, own: &str) {
        let (node, why) = match self.refused.take() {
            Some(Refusal { node, why, .. }) => (node, why),
            None => (own.to_owned(), Why::Unready),
        };
        let mut reply = Vec::new();
        exec::away(&mut reply, self.flags.has(Flags::BINARY), &self.own, &node, why);
        self.reply = Some(reply);
    }

    fn take(&mut self, reply: &[u8]) {
        if !self.is_different && self.reply.as_deref() != Some(reply) {
            self.reply = Some(reply.to_vec());
            self.is_different = true;
        }
    }

    /// Returns the number of awaited replies.
    pub(super) fn awaited(&self) -> usize {
        self.missing.len()
    }

    /// Returns the reply if all nodes have executed the request.
    pub(super) fn reply(&self) -> Option<&[u8]> {
        self.reply.as_deref().filter(|_| self.missing.is_empty() && self.refused.is_none())
    }

    /// Returns the request unless replies are awaited, or all have come.
    pub(super) fn untouched(&self) -> Option<&[u8]> {
        (self.missing.is_empty() && self.reply().is_none()).then_some(&self.own)
    }

    /// Takes the answer of a node. Returns whether it was awaited.
    pub(super) fn answer(&mut self, id: LaneId, outcome: Outcome<'_>) -> bool {
        let Some(at) = self.missing.iter().position(|missing| *missing == id) else { return false };
        self.missing.swap_remove(at);
        match (outcome, &mut self.sums) {
            (Outcome::Bytes { bytes, .. }, Some(sums)) => sums.add(bytes),
            (Outcome::Failed { .. }, Some(sums)) => sums.add_away(),
            (Outcome::Failed { node, why, .. }, None) if is_refusal(outcome) => {
                self.refused = Some(Refusal { node: node.to_owned(), why, epoch: None });
            }
            (_, None) => {
                let mut reply = Vec::new();
                // Such a reply has only one part.
                put(&mut reply, outcome);
                self.take(&reply);
            }
        }
        self.add_up();
        true
    }

    pub(super) fn abandon(&self, lanes: &mut Lanes) {
        self.missing.iter().for_each(|id| lanes.forget(*id));
    }
}

/// Executes a request at this node. Returns the reply; `None` if the request is deferred.
fn execute(executor: &mut Executor<'_>, flags: Flags, request: &[u8]) -> Option<Vec<u8>> {
    let mark = executor.out.mark();
    let next = match flags.has(Flags::BINARY) {
        true => match binary::decode(request) {
            Decoded::Request { request, .. } => exec::binary_other(executor, &request),
            _ => Next::Continue,
        },
        false => match text::decode(request, 0, &Limits::DEFAULT) {
            Decoded::Request { request, .. } => exec::text(executor, &request),
            _ => Next::Continue,
        },
    };
    // The reply has no value.
    (next != Next::Defer).then(|| executor.out.split_off(mark).bytes)
}
