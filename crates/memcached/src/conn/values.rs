//! Values in a ring that have not arrived completely. A value for another node is collected, and
//! passed on once it is complete, so that a client that stalls holds nothing of the owner's.

use super::again::{Again, execute};
use super::answer::Peer;
use super::places::Routed;
use super::requests::BUFFERED_BODY_BYTES_MAX;
use super::route::{Step, Turn};
use super::way::{NoRoom, Passed};
use super::{Connection, Phase, StopReason};
use crate::exec::{self, Executor};
use crate::ring::{LaneId, Route};
use crate::stream::{Body, OutOfMemory};
use cached_proto::Protocol;
use cached_proto::limits::LINE_LEN_MAX;
use cached_proto::text::TERMINATOR_LEN;
use cached_ring::wire::MESSAGE_BYTES_MAX;
use cached_ring::{Flags, Slot};

/// A request with a large value that is being passed to its lane in parts.
pub(super) struct Sending {
    pub(super) slot: Slot,
    pub(super) is_binary: bool,
    /// The whole request.
    pub(super) bytes: Vec<u8>,
    /// The request in its lane, and the number of bytes that the lane has taken.
    pub(super) sent: Option<(LaneId, usize)>,
}

impl Sending {
    /// Returns whether nothing was sent, and the request is too long for one message.
    pub(super) fn begins_in_parts(&self) -> bool {
        self.sent.is_none() && self.bytes.len() > MESSAGE_BYTES_MAX
    }
}

impl Connection {
    /// Begins to receive a value, of which `body_len` bytes with its terminator follow the head.
    pub(super) fn route_body(
        &mut self,
        turn: &mut Turn<'_, '_>,
        (protocol, head, body_len): (Protocol, &[u8], usize),
        slot: Slot,
        begin: impl FnOnce(&mut Executor<'_>) -> exec::Begun,
    ) -> Step {
        if body_len <= BUFFERED_BODY_BYTES_MAX {
            self.within_value = true;
            return Step::Stop(0, StopReason::Input);
        }
        if turn.routed.reading > 0 {
            return Step::Blocked;
        }
        match turn.route(slot) {
            Route::Own => {
                (turn.routed.body_slot, turn.routed.body_is_own) = (slot, true);
                let begun = turn.own(begin);
                self.phase = Phase::of_body(begun, protocol, head, body_len);
            }
            // If a request in parts fails, its reply is made from the head, which the lane keeps:
            // so the head has a maximum length.
            Route::Peer(_) | Route::Wait
                if !turn.way.is_datagram
                    && head.len() <= LINE_LEN_MAX
                    && exec::may_be_collected(turn.executor, protocol, head) =>
            {
                (turn.routed.body_slot, turn.routed.body_is_own) = (slot, false);
                let terminator_bytes = if protocol == Protocol::Text { TERMINATOR_LEN } else { 0 };
                let value_bytes = body_len - terminator_bytes;
                self.phase = Phase::Body(Box::new(Body::collected(protocol, head, value_bytes)));
            }
            // The owner refuses the value as this node would.
            route => {
                if turn.forward_head((route, slot), protocol, head).is_err() {
                    return Step::Blocked;
                }
                self.swallow(body_len);
            }
        }
        Step::Done(head.len())
    }

    /// Takes the bytes of a value from the front of `rest`.
    pub(super) fn receive_body(&mut self, turn: &mut Turn<'_, '_>, rest: &[u8]) -> Step {
        let Phase::Body(body) = &mut self.phase else { return Step::Phase(0) };
        let (used, mut result) = body.feed(rest);
        let is_complete = body.missing() == 0;
        // Memory for the next bytes is asked for before they are read.
        if rest.is_empty() && body.value_missing() > 0 && body.spare().is_none() {
            result = Err(OutOfMemory);
        }
        // The slot may have become another node's while the value arrived.
        let is_own = turn.routed.body_is_own && turn.route(turn.routed.body_slot) == Route::Own;
        match (result, is_own) {
            (Err(OutOfMemory), false) => {
                return self.refuse_foreign_body(turn, used);
            }
            (Err(OutOfMemory), true) => turn.own(|executor| self.refuse_body(executor)),
            (Ok(()), _) if !is_complete => return Step::Stop(used, StopReason::Input),
            // The value is in the store's memory, and the connection may not hold so much.
            (Ok(()), false)
                if turn.routed.body_is_own
                    && !exec::may_be_collected(turn.executor, body.protocol, &body.head) =>
            {
                return self.refuse_foreign_body(turn, used);
            }
            (Ok(()), false) => self.pass_body(turn.routed),
            (Ok(()), true) => turn.own(|executor| self.finish_body(executor)),
        }
        Step::Phase(used)
    }

    /// Refuses a value for another node for which there is no memory.
    #[cold]
    fn refuse_foreign_body(&mut self, turn: &mut Turn<'_, '_>, used: usize) -> Step {
        let Phase::Body(body) = &self.phase else { return Step::Phase(used) };
        // The refusal removes the item, so it comes after earlier requests for the key.
        if turn.routed.is_held {
            turn.routed.is_blocked = true;
            return Step::Stop(used, StopReason::Input);
        }
        let route = turn.route(turn.routed.body_slot);
        if route == Route::Own {
            turn.own(|executor| self.refuse_body(executor));
            return Step::Phase(used);
        }
        let (protocol, head, missing) = (body.protocol, body.head.clone(), body.missing());
        let to = (route, turn.routed.body_slot);
        if turn.forward_head(to, protocol, &head).is_err() {
            turn.routed.is_blocked = true;
            return Step::Stop(used, StopReason::Input);
        }
        self.phase = Phase::Swallow(missing);
        Step::Phase(used)
    }

    /// Prepares to pass a complete value to the owner of its key.
    fn pass_body(&mut self, routed: &mut Routed) {
        let Phase::Body(body) = std::mem::replace(&mut self.phase, Phase::Command) else { return };
        let is_binary = body.protocol == Protocol::Binary;
        let slot = routed.body_slot;
        routed.sending = Some(Sending { slot, is_binary, bytes: body.into_request(), sent: None });
    }
}

impl Turn<'_, '_> {
    /// Passes on the head of a request whose value is not passed on.
    fn forward_head(&mut self, to: (Route, Slot), protocol: Protocol, head: &[u8]) -> Result<(), NoRoom> {
        let flags = match protocol {
            Protocol::Text => Flags::HEAD,
            Protocol::Binary => Flags::HEAD.with(Flags::BINARY),
        };
        self.routed.forward(self.executor, &mut self.way, to, flags, head, false)
    }

    /// Passes on what is left of a request with a large value. Returns what must happen first, if
    /// something is left.
    pub(super) fn finish_sending(&mut self) -> Option<Step> {
        let sending = self.routed.sending.as_ref()?;
        if sending.sent.is_none() && self.routed.is_held {
            // It waits in its place, so that an earlier one can be sent again in parts.
            let Sending { slot, is_binary, bytes, .. } = self.routed.sending.take()?;
            let flags = if is_binary { Flags::BINARY } else { Flags::NONE };
            self.routed.wait(Again::new(bytes, slot, flags, false));
            return Some(Step::Phase(0));
        }
        // The owner keeps memory for a request in parts until the last part has come. So such a
        // request begins only once its client has taken all earlier replies, after which the parts
        // can follow without a pause.
        if sending.begins_in_parts() {
            if self.routed.has_places() {
                return Some(Step::Blocked);
            }
            if !self.executor.out.is_empty() {
                return Some(Step::Stop(0, StopReason::Output));
            }
        }
        let mut sending = self.routed.sending.take()?;
        if self.send(&mut sending) {
            return None;
        }
        self.routed.sending = Some(sending);
        Some(Step::Blocked)
    }

    /// Passes on as much of `sending` as its lane takes. Returns whether nothing is left.
    fn send(&mut self, sending: &mut Sending) -> bool {
        let Sending { slot, is_binary, ref mut bytes, sent } = *sending;
        // Later parts go to the node to which the first one was passed.
        let (id, mut taken) = match sent {
            Some(sent) => sent,
            None => {
                let route = self.route(slot);
                let flags = if is_binary { Flags::BINARY } else { Flags::NONE };
                if route == Route::Own {
                    let output = execute(self.executor, flags, bytes);
                    self.own(|executor| executor.out.append(&mut { output }));
                    return true;
                }
                if bytes.len() <= MESSAGE_BYTES_MAX {
                    return self
                        .routed
                        .forward(self.executor, &mut self.way, (route, slot), flags, bytes, false)
                        .is_ok();
                }
                let first = &bytes[..MESSAGE_BYTES_MAX];
                let to = self.routed.waiter(&self.way);
                match self.way.request(route, to, Some(slot), flags.with(Flags::PARTS), first) {
                    Passed::Sent(id) => {
                        self.routed.awaits(Peer::new(id, slot, false));
                        (id, first.len())
                    }
                    Passed::Failed(reply) => {
                        self.routed.reply(self.executor, &reply);
                        return true;
                    }
                    Passed::NoRoom => return false,
                    Passed::Wait => {
                        self.routed.wait(Again::new(std::mem::take(bytes), slot, flags, false));
                        return true;
                    }
                }
            }
        };
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            let part = &rest[..rest.len().min(MESSAGE_BYTES_MAX)];
            sending.sent = Some((id, taken));
            if self.way.lanes.part(self.way.slot, id, part, part.len() == rest.len()).is_err() {
                return false;
            }
            taken += part.len();
            self.routed.has_queued = true;
        }
        // They are sent again if the owner does not execute the request.
        self.routed.keep(id, std::mem::take(bytes));
        true
    }
}
