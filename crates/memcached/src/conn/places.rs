//! The replies of a connection of a ring that have not been sent, in the order of its requests.
//!
//! ```text
//!  requests   get a (own)   get b (node b)   get c (own)   get d (node c)
//!             ▼             ▼                ▼             ▼
//!  ready ◄────┘   places: [ Peer: awaited │ Own: "END␍␊" │ Peer: "VALUE d …" ]
//!                             ▲ first         └ waits for its turn
//! ```
//! A place is a position in this order. A reply that comes before its turn waits in its place; once
//! the first place has its reply, this reply and all complete ones after it become ready.

use super::Phase;
use super::again::Again;
use super::answer::{Answered, Peer};
use super::every::Every;
use super::merge::{Merge, Walked};
use super::values::Sending;
use super::way::{NoRoom, Passed, Way};
use crate::exec::Executor;
use crate::ring::{LaneId, Lanes, Route};
use crate::stream::{FULL_BYTES, Output};
use cached_ring::{Flags, Slot, Waiter, slot_of};
use std::collections::VecDeque;

/// The maximum number of places.
const PLACES_MAX: usize = 1024;
/// The maximum number of places whose replies are merged from those of several nodes.
pub(super) const MERGES_MAX: u32 = 8;
/// The maximum number of bytes of all awaited replies together, by their usual length.
const AWAITED_BYTES_MAX: usize = 192 << 10;
/// A buffer up to this capacity is kept between replies.
const KEPT_BYTES: usize = 1 << 10;

/// The state of a connection of a ring, besides that of any connection.
pub(super) struct Routed {
    /// The position of the connection within its input, as for other connections: never `Gate`,
    /// `Get`, `Watch` or `Routed`.
    pub(super) phase: Phase,
    /// Distinguishes this connection from earlier ones in its slot of the worker.
    pub(super) tag: u32,
    /// Replies whose turn has come.
    pub(super) ready: Output,
    pub(super) places: VecDeque<Place>,
    /// The number of the first place.
    pub(super) first: u32,
    /// The bytes of replies that wait in places.
    pub(super) waiting_bytes: usize,
    /// The bytes that have arrived before their turn since the connection's memory was last counted.
    pub(super) uncounted_bytes: usize,
    /// The number of awaited replies.
    pub(super) awaited: usize,
    /// The usual number of bytes of a peer's reply that wait here; `None` before the first reply, besides
    /// which no other one is awaited.
    pub(super) reply_bytes: Option<usize>,
    /// The number of incomplete retrievals that are read in steps. Until these are complete, the
    /// connection changes nothing, or they would read what is written after them.
    pub(super) reading: u32,
    /// Whether one of these changes what it reads (`gat`): until all of them are complete, the
    /// connection reads nothing else.
    pub(super) touches: bool,
    /// The number of `Merge` places.
    pub(super) merges: u32,
    /// The slot of the key whose value arrives in `phase`.
    pub(super) body_slot: Slot,
    /// Whether that value is for this node.
    pub(super) body_is_own: bool,
    /// A request with a large value of which the lane has not taken all parts.
    pub(super) sending: Option<Sending>,
    /// Whether a request waits to be sent again, or every node executes one: no request begins, which
    /// could overtake it.
    pub(super) is_held: bool,
    /// Whether such a request is to be executed once other connections have been served.
    pub(super) is_deferred: bool,
    /// Whether the input begins with a request that waits: for replies, or for space in a lane.
    pub(super) is_blocked: bool,
    /// Whether the next request has waited for the replies to all earlier requests.
    pub(super) has_waited: bool,
    /// Whether the client has ended its stream: the connection ends after the last place.
    pub(super) is_ending: bool,
    /// Whether the connection has given a lane something since the worker last asked.
    pub(super) has_queued: bool,
}

/// The position of one reply.
pub(super) enum Place {
    /// Replies of this node to requests that follow each other.
    Own(Output),
    Peer(Peer),
    /// The request was not executed, and is sent again.
    Again(Box<Again>),
    Merge(Box<Merge>),
    Every(Box<Every>),
    /// A reply of which the rest is lost. The connection must be closed after these bytes.
    Cut(Vec<u8>),
}

impl Routed {
    pub(super) fn new(phase: Phase, tag: u32) -> Routed {
        Routed {
            phase,
            tag,
            ready: Output::default(),
            places: VecDeque::new(),
            first: 0,
            waiting_bytes: 0,
            uncounted_bytes: 0,
            awaited: 0,
            reply_bytes: None,
            reading: 0,
            touches: false,
            merges: 0,
            body_slot: slot_of(b""),
            body_is_own: true,
            sending: None,
            is_held: false,
            is_deferred: false,
            is_blocked: false,
            has_waited: false,
            is_ending: false,
            has_queued: false,
        }
    }

    /// Returns whether no request waits for a reply, and no reply to be sent.
    pub(super) fn is_idle(&self) -> bool {
        self.places.is_empty() && self.ready.is_empty() && self.sending.is_none()
    }

    /// Returns whether input can be read before the connection is driven.
    pub(super) fn waits_for_request(&self) -> bool {
        self.has_answered_all() && self.ready.is_empty()
    }

    /// Returns whether nothing is left to do for earlier requests but to send the replies that are ready.
    pub(super) fn has_answered_all(&self) -> bool {
        let has_request = self.has_places() || self.sending.is_some() || self.is_blocked;
        matches!(self.phase, Phase::Command) && !has_request && !self.is_ending
    }

    /// Keeps the buffer of ready replies, which is empty again, unless it is large.
    pub(super) fn keep_buffer(&mut self, ready: Output) {
        if ready.capacity() <= KEPT_BYTES {
            self.ready = ready;
        }
    }

    /// Returns whether there are replies to wait for.
    pub(super) fn has_places(&self) -> bool {
        !self.places.is_empty()
    }

    /// Returns whether no request may be executed before a reply has come.
    pub(super) fn is_full(&self) -> bool {
        !self.places.is_empty()
            && (self.places.len() >= PLACES_MAX
                || self.waiting_bytes >= FULL_BYTES
                || self.awaited * self.reply_bytes.unwrap_or(AWAITED_BYTES_MAX) >= AWAITED_BYTES_MAX
                || self.merges >= MERGES_MAX)
    }

    /// Returns whether the connection has given a lane something since the last call. The caller
    /// counts the connection's memory.
    pub(super) fn take_queued(&mut self) -> bool {
        self.uncounted_bytes = 0;
        std::mem::take(&mut self.has_queued)
    }

    /// Returns the bytes of the buffers, and the bytes of pinned values.
    pub(super) fn held_bytes(&self) -> (usize, usize) {
        let mut held = (self.ready.capacity(), self.ready.pinned_bytes());
        for place in &self.places {
            match place {
                Place::Own(output) => {
                    held.0 += output.capacity();
                    held.1 += output.pinned_bytes();
                }
                Place::Peer(Peer { got, kept, .. }) => held.0 += got.capacity() + kept.capacity(),
                Place::Cut(got) => held.0 += got.capacity(),
                Place::Again(again) => held.0 += again.held_bytes(),
                Place::Merge(merge) => held.0 += merge.held_bytes(),
                Place::Every(every) => held.0 += every.held_bytes(),
            }
        }
        held.0 += self.sending.as_ref().map_or(0, |sending| sending.bytes.capacity());
        held.0 += self.places.capacity() * size_of::<Place>();
        held
    }

    /// Returns who waits for the reply to the next request.
    pub(super) fn waiter(&self, way: &Way<'_>) -> Waiter {
        self.waiter_at(self.first.wrapping_add(self.places.len() as u32), way)
    }

    pub(super) fn waiter_at(&self, place: u32, way: &Way<'_>) -> Waiter {
        Waiter { slot: way.slot, tag: self.tag, place, part: 0 }
    }

    /// Executes something at this node whose reply takes the next place.
    #[inline]
    pub(super) fn own<R>(
        &mut self,
        executor: &mut Executor<'_>,
        execute: impl FnOnce(&mut Executor<'_>) -> R,
    ) -> R {
        if self.places.is_empty() {
            return execute(executor);
        }
        let mut output = match self.places.back_mut() {
            Some(Place::Own(output)) => std::mem::take(output),
            _ => {
                self.places.push_back(Place::Own(Output::default()));
                Output::default()
            }
        };
        let before = output.unsent_bytes();
        std::mem::swap(executor.out, &mut output);
        let result = execute(executor);
        std::mem::swap(executor.out, &mut output);
        self.waiting_bytes += output.unsent_bytes() - before;
        if let Some(Place::Own(tail)) = self.places.back_mut() {
            *tail = output;
        }
        result
    }

    /// Replies to the next request with `bytes`.
    pub(super) fn reply(&mut self, executor: &mut Executor<'_>, bytes: &[u8]) {
        self.own(executor, |executor| executor.out.bytes.extend_from_slice(bytes));
    }

    /// Passes a request to another node; its reply takes the next place.
    pub(super) fn forward(
        &mut self,
        executor: &mut Executor<'_>,
        way: &mut Way<'_>,
        to: (Route, Slot),
        flags: Flags,
        own: &[u8],
        in_steps: bool,
    ) -> Result<(), NoRoom> {
        match way.request(to.0, self.waiter(way), Some(to.1), flags, own) {
            Passed::Sent(id) => {
                self.awaits(Peer::new(id, to.1, in_steps));
                self.reading += u32::from(in_steps);
                Ok(())
            }
            Passed::Failed(reply) => {
                self.reply(executor, &reply);
                Ok(())
            }
            Passed::NoRoom => Err(NoRoom),
            Passed::Wait => {
                self.wait(Again::new(own.to_vec(), to.1, flags, in_steps));
                self.reading += u32::from(in_steps);
                Ok(())
            }
        }
    }

    /// Takes the next place for the reply to a request that was passed on.
    pub(super) fn awaits(&mut self, peer: Peer) {
        self.places.push_back(Place::Peer(peer));
        self.has_queued = true;
        self.awaited += 1;
    }

    /// Keeps the bytes of a request that was passed on in parts until it is answered.
    pub(super) fn keep(&mut self, id: LaneId, bytes: Vec<u8>) {
        for place in &mut self.places {
            match place {
                Place::Peer(peer) if peer.id == id => return peer.kept = bytes,
                _ => {}
            }
        }
    }

    /// Takes the next place for a request that waits.
    pub(super) fn wait(&mut self, again: Again) {
        self.places.push_back(Place::Again(Box::new(again)));
        (self.is_held, self.has_queued) = (true, true);
    }

    /// Takes the next place for a retrieval of keys of several nodes.
    pub(super) fn merge(&mut self, merge: Merge) {
        self.awaited += merge.awaited();
        self.reading += 1;
        self.merges += 1;
        self.has_queued = true;
        self.is_held |= merge.is_waiting();
        self.places.push_back(Place::Merge(Box::new(merge)));
    }

    /// Takes the next place for a request that every node executes.
    pub(super) fn every(&mut self, every: Every) {
        self.is_held = true;
        self.places.push_back(Place::Every(Box::new(every)));
    }

    /// Moves the replies whose turn has come to the output, and asks for what is missing of the
    /// first one. Returns whether the connection must be closed, because a reply is cut off.
    pub(super) fn settle(&mut self, executor: &mut Executor<'_>, way: &mut Way<'_>) -> bool {
        let mut retried = None;
        loop {
            // What waits may have been at the wrong place, or one retrieval too many.
            if self.is_held && retried != Some(self.first) {
                retried = Some(self.first);
                self.retry(executor, way);
            }
            self.cascade();
            if self.is_held && retried != Some(self.first) {
                continue;
            }
            if !self.ready.is_empty() {
                let mut ready = std::mem::take(&mut self.ready);
                executor.out.append(&mut ready);
                self.keep_buffer(ready);
            }
            if executor.out.is_full() {
                return false;
            }
            let first = self.waiter_at(self.first, way);
            match self.places.front_mut() {
                Some(Place::Peer(peer)) if peer.state == Answered::Part => {
                    way.lanes.more(peer.id);
                    peer.state = Answered::Awaited;
                    self.has_queued = true;
                    return false;
                }
                Some(Place::Merge(merge)) => {
                    let before = merge.awaited();
                    let walked = merge.walk(executor, way, first);
                    self.awaited = self.awaited + merge.awaited() - before;
                    self.has_queued = true;
                    self.is_held |= merge.is_waiting();
                    match walked {
                        Walked::Waits => return false,
                        Walked::Done => {
                            merge.abandon(way.lanes);
                            self.awaited -= merge.awaited();
                            self.reading -= 1;
                            self.merges -= 1;
                            self.pop();
                        }
                        Walked::Cut => return true,
                    }
                }
                Some(Place::Cut(bytes)) => {
                    executor.out.bytes.append(bytes);
                    return true;
                }
                _ => return false,
            }
        }
    }

    fn pop(&mut self) {
        self.first = self.first.wrapping_add(1);
        self.places.pop_front();
        if self.places.is_empty() && self.places.capacity() > PLACES_MAX / 16 {
            self.places = VecDeque::new();
        }
    }

    /// Moves the complete replies at the front, and the part that the first incomplete one has, to
    /// the ready ones.
    pub(super) fn cascade(&mut self) {
        while let Some(place) = self.places.front_mut() {
            match place {
                Place::Own(output) => {
                    self.waiting_bytes -= output.unsent_bytes();
                    self.ready.append(output);
                }
                Place::Peer(peer) => {
                    self.waiting_bytes -= peer.got.len();
                    self.ready.bytes.append(&mut peer.got);
                    if peer.state != Answered::Whole {
                        return;
                    }
                }
                Place::Every(every) => match every.reply() {
                    Some(reply) => self.ready.bytes.extend_from_slice(reply),
                    None => return,
                },
                Place::Again(_) | Place::Merge(_) | Place::Cut(_) => return,
            }
            self.pop();
        }
    }

    /// Tells the lanes that nobody waits for the replies.
    pub(super) fn abandon(&self, lanes: &mut Lanes) {
        for place in &self.places {
            match place {
                Place::Peer(peer) if peer.state != Answered::Whole => lanes.forget(peer.id),
                Place::Merge(merge) => merge.abandon(lanes),
                Place::Every(every) => every.abandon(lanes),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
impl std::fmt::Debug for Routed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = |place: &Place| match place {
            Place::Own(_) => "own",
            Place::Peer(_) => "peer",
            Place::Again(_) => "again",
            Place::Merge(_) => "merge",
            Place::Every(_) => "every",
            Place::Cut(_) => "cut",
        };
        let places: Vec<&str> = self.places.iter().map(kind).collect();
        let is_sending = self.sending.is_some();
        f.debug_struct("Routed")
            .field("places", &places)
            .field("reading", &self.reading)
            .field("is_sending", &is_sending)
            .field("is_held", &self.is_held)
            .field("is_deferred", &self.is_deferred)
            .field("is_blocked", &self.is_blocked)
            .field("ready", &self.ready.is_empty())
            .finish_non_exhaustive()
    }
}
