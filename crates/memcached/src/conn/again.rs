//! Requests that their owner has not executed, because their slot moves or is being prepared: they
//! wait in their places, and are sent again, or executed here, once a node executes requests for the
//! slot.
//!
//! While such a request waits, the connection begins no other one, so requests for a key keep their
//! order. A request that waits too long fails as if its owner was away.

use super::answer::Peer;
use super::merge::Merge;
use super::places::{MERGES_MAX, Place, Routed};
use super::values::Sending;
use super::way::{Passed, Way};
use super::{Connection, Phase};
use crate::connections::HANDED_INPUT_BYTES_MAX;
use crate::exec::{self, Begun, Executor, Next};
use crate::ring::{Outcome, Route, Why};
use crate::stream::{Body, Output};
use cached_proto::text::{Request, TERMINATOR_LEN};
use cached_proto::{Decoded, Limits, Protocol, binary, text};
use cached_ring::wire::MESSAGE_BYTES_MAX;
use cached_ring::{Flags, Slot, Waiter};
use std::time::Instant;

/// A request that waits.
pub(super) struct Again {
    /// The client's own bytes: all, or with [`Flags::HEAD`] those before the value.
    own: Vec<u8>,
    slot: Slot,
    /// [`Flags::BINARY`] and [`Flags::HEAD`].
    flags: Flags,
    /// Whether it has several keys, and counts in `Routed::reading`.
    in_steps: bool,
    since: Instant,
    /// The node that has refused it, if one has, and why.
    refusal: Option<(String, Why)>,
}

impl Again {
    pub(super) fn new(own: Vec<u8>, slot: Slot, flags: Flags, in_steps: bool) -> Again {
        Again { own, slot, flags, in_steps, since: Instant::now(), refusal: None }
    }

    /// Returns a request that its owner has refused. `kept` has its bytes unless the lane has them.
    pub(super) fn refused(outcome: Outcome<'_>, kept: Vec<u8>, peer: &Peer) -> Again {
        let Peer { slot, in_steps, since, .. } = *peer;
        let Outcome::Failed { own, flags, node, why } = outcome else {
            return Again::new(kept, slot, Flags::NONE, in_steps);
        };
        let own = if kept.is_empty() { own.to_vec() } else { kept };
        let is_set = |flag: Flags| if flags.has(flag) { flag } else { Flags::NONE };
        let flags = is_set(Flags::BINARY).with(is_set(Flags::HEAD));
        let again = Again::new(own, slot, flags, in_steps);
        let since = since.unwrap_or(again.since);
        Again { since, refusal: Some((node.to_owned(), why)), ..again }
    }

    pub(super) fn held_bytes(&self) -> usize {
        size_of::<Again>() + self.own.capacity()
    }

    /// Returns the reply to the request if no node executes it.
    fn give_up(&self, way: &Way<'_>) -> Vec<u8> {
        let map = way.lanes.map();
        let mut reply = Vec::new();
        let (node, why) = match &self.refusal {
            Some((node, Why::NotMine(version))) if *version != map.version() => {
                (node.as_str(), Why::NotMine(*version))
            }
            _ => (map.node(map.owner(self.slot)).name.as_str(), Why::Unready),
        };
        exec::away(&mut reply, self.flags.has(Flags::BINARY), &self.own, node, why);
        reply
    }
}

impl Routed {
    /// Tries again what waits, in the order of the places.
    #[cold]
    pub(super) fn retry(&mut self, executor: &mut Executor<'_>, way: &mut Way<'_>) {
        (self.is_held, self.is_deferred, self.has_queued) = (false, false, true);
        let mut waiting: Vec<Slot> = Vec::new();
        for at in 0..self.places.len() {
            let to = self.waiter_at(self.first.wrapping_add(at as u32), way);
            match &mut self.places[at] {
                Place::Again(_) => {
                    let place = std::mem::replace(&mut self.places[at], Place::Own(Output::default()));
                    let Place::Again(mut again) = place else { continue };
                    let slot = again.slot;
                    // Later requests of the slot come later, and so do retrievals, with keys of any slot. A
                    // request in parts of which some are not sent yet is executed after its last part.
                    let in_parts = self.sending.as_ref().map(|sending| sending.slot);
                    let must_wait = waiting.contains(&slot)
                        || in_parts == Some(slot)
                        || again.in_steps && (!waiting.is_empty() || in_parts.is_some());
                    let place = match must_wait {
                        true => None,
                        false => self.try_again(&mut again, executor, way, (at, to)),
                    };
                    self.places[at] = match place {
                        Some(place) => place,
                        None if way.lanes.is_over(again.since) => {
                            self.reading -= u32::from(again.in_steps);
                            self.replied(again.give_up(way))
                        }
                        None => {
                            waiting.push(slot);
                            self.is_held = true;
                            Place::Again(again)
                        }
                    };
                }
                Place::Merge(merge) if waiting.is_empty() && self.sending.is_none() => {
                    let before = merge.awaited();
                    merge.send(way, to);
                    self.awaited = self.awaited + merge.awaited() - before;
                    self.is_held |= merge.is_waiting();
                }
                Place::Every(every) if every.reply().is_none() => {
                    let before = every.awaited();
                    self.is_deferred |= every.advance(executor, way, to) == Next::Defer;
                    self.awaited = self.awaited + every.awaited() - before;
                    self.is_held = true;
                }
                Place::Merge(merge) => self.is_held |= merge.is_waiting(),
                _ => {}
            }
        }
    }

    /// Tries again a request in a place. Returns what takes its place unless it waits.
    fn try_again(
        &mut self,
        again: &mut Again,
        executor: &mut Executor<'_>,
        way: &mut Way<'_>,
        (at, to): (usize, Waiter),
    ) -> Option<Place> {
        let (slot, flags) = (again.slot, again.flags);
        if again.in_steps {
            return self.merge_again(again, way, to);
        }
        let route = way.lanes.route(slot);
        if route == Route::Own {
            return Some(self.executed(execute(executor, flags, &again.own)));
        }
        let has_parts = again.own.len() > MESSAGE_BYTES_MAX;
        if has_parts && (at > 0 || self.sending.is_some()) {
            return None;
        }
        // The parts follow without a pause, once the client has taken all earlier replies.
        if has_parts && !(executor.out.is_empty() && self.ready.is_empty()) {
            self.is_deferred = true;
            return None;
        }
        let sent_flags = if has_parts { flags.with(Flags::PARTS) } else { flags };
        let first = &again.own[..again.own.len().min(MESSAGE_BYTES_MAX)];
        match way.request(route, to, Some(slot), sent_flags, first) {
            Passed::Sent(id) => {
                self.awaited += 1;
                if has_parts {
                    let (is_binary, sent) = (flags.has(Flags::BINARY), Some((id, first.len())));
                    let bytes = std::mem::take(&mut again.own);
                    self.sending = Some(Sending { slot, is_binary, bytes, sent });
                }
                let mut peer = Peer::new(id, slot, false);
                peer.since = Some(again.since);
                Some(Place::Peer(peer))
            }
            Passed::Failed(reply) => Some(self.replied(reply)),
            Passed::NoRoom | Passed::Wait => None,
        }
    }

    /// Begins a retrieval of several keys anew, whose owners may differ by now.
    fn merge_again(&mut self, again: &Again, way: &mut Way<'_>, to: Waiter) -> Option<Place> {
        if self.merges >= MERGES_MAX {
            return None;
        }
        let Decoded::Request { request: Request::Get(get), .. } =
            text::decode(&again.own, 0, &Limits::DEFAULT)
        else {
            return None;
        };
        let merge = Merge::again(&get, &again.own, again.since, way, to);
        self.merges += 1;
        self.awaited += merge.awaited();
        self.is_held |= merge.is_waiting();
        Some(Place::Merge(Box::new(merge)))
    }

    fn replied(&mut self, reply: Vec<u8>) -> Place {
        let mut output = Output::default();
        output.bytes = reply;
        self.executed(output)
    }

    fn executed(&mut self, output: Output) -> Place {
        self.waiting_bytes += output.unsent_bytes();
        Place::Own(output)
    }

    /// Returns the bytes of all requests without a reply, and forgets these requests, if none of them
    /// has been executed or begun, and they have at most `bytes_max` bytes.
    fn take_back(&mut self, bytes_max: usize) -> Option<Vec<u8>> {
        let is_done = self.places.is_empty() || !self.ready.is_empty() || self.sending.is_some();
        if is_done || !matches!(self.phase, Phase::Command) {
            return None;
        }
        let mut input = Vec::new();
        for place in &self.places {
            input.extend_from_slice(match place {
                Place::Again(again) if !again.flags.has(Flags::HEAD) => &again.own,
                Place::Merge(merge) => merge.untouched()?,
                Place::Every(every) => every.untouched()?,
                _ => return None,
            });
            if input.len() > bytes_max {
                return None;
            }
        }
        self.first = self.first.wrapping_add(self.places.len() as u32);
        self.places.clear();
        (self.awaited, self.reading, self.merges) = (0, 0, 0);
        (self.is_held, self.is_deferred, self.is_blocked) = (false, false, false);
        // The end of the stream is read again after the input.
        self.is_ending = false;
        Some(input)
    }
}

impl Connection {
    /// Takes back requests that wait until an owner executes them, for the process that takes over the
    /// connection: they are input again. Returns whether there are any.
    pub(crate) fn take_back(&mut self) -> bool {
        let Phase::Routed(routed) = &mut self.phase else { return false };
        let bytes_max = HANDED_INPUT_BYTES_MAX.saturating_sub(self.input.len());
        if self.output.is_some() || self.closing {
            return false;
        }
        let Some(mut input) = routed.take_back(bytes_max) else { return false };
        input.append(&mut self.input);
        (self.input, self.scanned, self.runnable) = (input, 0, true);
        true
    }
}

/// Executes a request with one key at this node. With [`Flags::HEAD`] its value does not come, and the
/// request is refused.
pub(super) fn execute(executor: &mut Executor<'_>, flags: Flags, own: &[u8]) -> Output {
    let mut output = Output::default();
    std::mem::swap(executor.out, &mut output);
    match flags.has(Flags::BINARY) {
        true => match binary::decode(own) {
            Decoded::Request { request, .. } => _ = exec::binary_other(executor, &request),
            Decoded::Body { header, body_len, .. } => {
                let begun = exec::begin_binary(executor, &header);
                refuse(executor, begun, Body::collected(Protocol::Binary, own, body_len));
            }
            _ => {}
        },
        false => match text::decode(own, 0, &Limits::DEFAULT) {
            Decoded::Request { request, .. } => _ = exec::text(executor, &request),
            Decoded::Body { header, body_len, .. } => {
                let begun = exec::begin_text(executor, &header);
                refuse(executor, begun, Body::collected(Protocol::Text, own, body_len - TERMINATOR_LEN));
            }
            _ => {}
        },
    }
    std::mem::swap(executor.out, &mut output);
    output
}

/// Refuses a value that does not come, unless its head was refused.
fn refuse(executor: &mut Executor<'_>, begun: Begun, body: Body) {
    match begun {
        Begun::Refused => {}
        Begun::Reserved(_) | Begun::Collect(_) => exec::refuse(executor, body),
    }
}
