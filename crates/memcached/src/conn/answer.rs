//! The answers of other nodes: replies, parts of replies, and failures. Each is added to what its place
//! has of the reply.

use super::again::Again;
use super::places::{Place, Routed};
use crate::exec;
use crate::ring::{LaneId, Outcome, Why};
use cached_ring::{Flags, Slot, Waiter};
use std::time::Instant;

/// The minimum of a connection's usual length of a reply.
const REPLY_BYTES_MIN: usize = 512;
/// The usual length that is assumed before the first reply has come.
const REPLY_BYTES_FIRST: usize = 8 << 10;
/// Once replies of this length have arrived before their turn, the connection's memory is counted.
const COUNTED_BYTES: usize = 64 << 10;

/// A reply of one other node.
pub(super) struct Peer {
    pub(super) id: LaneId,
    pub(super) slot: Slot,
    pub(super) got: Vec<u8>,
    pub(super) state: Answered,
    /// Whether it counts in `Routed::reading`.
    pub(super) in_steps: bool,
    /// The whole request if it was passed on in parts: the lane does not keep these.
    pub(super) kept: Vec<u8>,
    /// When the request began to wait, if its owner has refused it before.
    pub(super) since: Option<Instant>,
}

impl Peer {
    pub(super) fn new(id: LaneId, slot: Slot, in_steps: bool) -> Peer {
        let (got, kept) = (Vec::new(), Vec::new());
        Peer { id, slot, got, state: Answered::Awaited, in_steps, kept, since: None }
    }
}

/// How much of a reply has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answered {
    /// Nothing since the reply, or its next part, was asked for.
    Awaited,
    /// A part. The node sends the next one when it is asked to.
    Part,
    /// All of it, or all that will ever arrive.
    Whole,
}

impl Routed {
    /// Takes the answer of another node. Returns whether the connection must be driven: it can make
    /// progress, or its memory must be counted.
    pub(super) fn answer(&mut self, to: Waiter, id: LaneId, outcome: Outcome<'_>) -> bool {
        let index = to.place.wrapping_sub(self.first) as usize;
        let Some(place) = self.places.get_mut(index).filter(|_| to.tag == self.tag) else { return false };
        let is_complete = !matches!(outcome, Outcome::Bytes { last: false, .. });
        let is_refused = is_refusal(outcome);
        let usual = self.reply_bytes.get_or_insert(REPLY_BYTES_FIRST);
        let is_awaited = match place {
            Place::Peer(peer) if peer.id == id && is_refused => {
                let kept = std::mem::take(&mut peer.kept);
                let again = Again::refused(outcome, kept, peer);
                *place = Place::Again(Box::new(again));
                true
            }
            Place::Peer(peer) if peer.id == id => {
                // What comes in its turn need not be copied again.
                let is_first = index == 0;
                debug_assert!(!is_first || peer.got.is_empty());
                let got = if is_first { &mut self.ready.bytes } else { &mut peer.got };
                let before = got.len();
                peer.state = put(got, outcome);
                let got_bytes = got.len() - before;
                self.waiting_bytes += if is_first { 0 } else { got_bytes };
                // All of it, also where the node sends the parts without being asked to.
                let waiting = if is_first { got_bytes } else { got.len() };
                if is_complete {
                    self.reading -= u32::from(peer.in_steps);
                    *usual = *usual - *usual / 8 + waiting / 8;
                }
                *usual = (*usual).max(waiting).max(REPLY_BYTES_MIN);
                if is_cut(outcome) {
                    self.waiting_bytes -= peer.got.len();
                    *place = Place::Cut(std::mem::take(&mut peer.got));
                } else if is_complete {
                    peer.kept = Vec::new();
                }
                true
            }
            Place::Merge(merge) => merge.answer(to.part, id, outcome),
            Place::Every(every) => every.answer(id, outcome),
            Place::Peer(_) | Place::Own(_) | Place::Again(_) | Place::Cut(_) => false,
        };
        if !is_awaited {
            return false;
        }
        if is_complete {
            self.awaited -= 1;
        }
        if matches!(outcome, Outcome::Failed { .. })
            && self.sending.as_ref().is_some_and(|sending| sending.sent.is_some_and(|(sent, _)| sent == id))
        {
            self.sending = None;
        }
        if is_refused {
            self.is_held = true;
            return true;
        }
        if index == 0 {
            self.cascade();
            return true;
        }
        if let Outcome::Bytes { bytes, .. } = outcome {
            self.uncounted_bytes += bytes.len();
        }
        self.uncounted_bytes >= COUNTED_BYTES
    }
}

/// Adds an answer to the part of a reply that has arrived. Returns how much that is.
pub(super) fn put(got: &mut Vec<u8>, outcome: Outcome<'_>) -> Answered {
    match outcome {
        Outcome::Bytes { bytes, last } => {
            got.extend_from_slice(bytes);
            if last { Answered::Whole } else { Answered::Part }
        }
        Outcome::Failed { .. } if is_cut(outcome) => Answered::Whole,
        Outcome::Failed { own, flags, node, why } => {
            exec::away(got, flags.has(Flags::BINARY), own, node, why);
            Answered::Whole
        }
    }
}

/// Returns whether the request was not executed and is sent again.
pub(super) fn is_refusal(outcome: Outcome<'_>) -> bool {
    matches!(outcome, Outcome::Failed { why: Why::NotMine(_) | Why::Unready, .. })
}

/// Returns whether a part of the reply was delivered whose rest is lost.
fn is_cut(outcome: Outcome<'_>) -> bool {
    matches!(outcome, Outcome::Failed { own: b"", .. })
}
