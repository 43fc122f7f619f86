//! Values in a ring that have not arrived completely. A value for another node is collected, and
//! passed on once it is complete, so that a client that stalls holds nothing of the owner's.

use super::places::{NoRoom, Routed, Sending, Way};
use super::requests::BUFFERED_BODY_BYTES_MAX;
use super::route::Step;
use super::{Connection, Phase, StopReason};
use crate::exec::{self, Executor};
use crate::ring::{Route, Why};
use crate::stream::{Body, OutOfMemory};
use cached_proto::limits::LINE_LEN_MAX;
use cached_proto::text::TERMINATOR_LEN;
use cached_proto::{Decoded, Limits, Protocol, binary, text};
use cached_ring::{Flags, NodeIndex, Slot};

impl Connection {
    /// Begins to receive a value, of which `body_len` bytes with its terminator follow the head.
    pub(super) fn route_body(
        &mut self,
        routed: &mut Routed,
        way: &mut Way<'_>,
        executor: &mut Executor<'_>,
        (protocol, head, body_len): (Protocol, &[u8], usize),
        slot: Slot,
        begin: impl FnOnce(&mut Executor<'_>) -> exec::Begun,
    ) -> Step {
        if body_len <= BUFFERED_BODY_BYTES_MAX {
            self.within_value = true;
            return Step::Stop(0, StopReason::Input);
        }
        if routed.reading > 0 {
            return Step::Blocked;
        }
        match way.lanes.route(slot) {
            Route::Own => {
                (routed.body_slot, routed.body_is_own) = (slot, true);
                let begun = routed.own(executor, begin);
                self.phase = Phase::of_body(begun, protocol, head, body_len);
            }
            // If a request in parts fails, its reply is made from the head, which the lane keeps:
            // so the head has a maximum length.
            Route::Peer(_)
                if !way.is_datagram
                    && head.len() <= LINE_LEN_MAX
                    && exec::may_be_collected(executor, protocol, head) =>
            {
                (routed.body_slot, routed.body_is_own) = (slot, false);
                let terminator_bytes = if protocol == Protocol::Text { TERMINATOR_LEN } else { 0 };
                let value_bytes = body_len - terminator_bytes;
                self.phase = Phase::Body(Box::new(Body::collected(protocol, head, value_bytes)));
            }
            // The owner refuses the value as this node would.
            Route::Peer(node) => {
                if self.forward_head(routed, way, executor, (node, slot), protocol, head).is_err() {
                    return Step::Blocked;
                }
                self.swallow(body_len);
            }
        }
        Step::Done(head.len())
    }

    /// Takes the bytes of a value from the front of `rest`.
    pub(super) fn receive_body(
        &mut self,
        routed: &mut Routed,
        way: &mut Way<'_>,
        executor: &mut Executor<'_>,
        rest: &[u8],
    ) -> Step {
        let Phase::Body(body) = &mut self.phase else { return Step::Phase(0) };
        let (used, mut result) = body.feed(rest);
        let is_complete = body.missing() == 0;
        // Memory for the next bytes is asked for before they are read.
        if rest.is_empty() && body.value_missing() > 0 && body.spare().is_none() {
            result = Err(OutOfMemory);
        }
        match (result, routed.body_is_own) {
            (Err(OutOfMemory), false) => {
                return self.refuse_foreign_body(routed, way, executor, used);
            }
            (Err(OutOfMemory), true) => routed.own(executor, |executor| self.refuse_body(executor)),
            (Ok(()), _) if !is_complete => return Step::Stop(used, StopReason::Input),
            (Ok(()), false) => self.pass_body(routed),
            (Ok(()), true) if way.lanes.route(routed.body_slot) != Route::Own => {
                self.drop_body(routed, way, executor);
            }
            (Ok(()), true) => routed.own(executor, |executor| self.finish_body(executor)),
        }
        Step::Phase(used)
    }

    /// Passes the head of a request on whose value does not come.
    fn forward_head(
        &mut self,
        routed: &mut Routed,
        way: &mut Way<'_>,
        executor: &mut Executor<'_>,
        to: (NodeIndex, Slot),
        protocol: Protocol,
        head: &[u8],
    ) -> Result<(), NoRoom> {
        let flags = match protocol {
            Protocol::Text => Flags::HEAD,
            Protocol::Binary => Flags::HEAD.with(Flags::BINARY),
        };
        routed.forward(executor, way, to, flags, head, false).map(drop)
    }

    /// Refuses a value for another node for which there is no memory.
    #[cold]
    fn refuse_foreign_body(
        &mut self,
        routed: &mut Routed,
        way: &mut Way<'_>,
        executor: &mut Executor<'_>,
        used: usize,
    ) -> Step {
        let Phase::Body(body) = &self.phase else { return Step::Phase(used) };
        let Route::Peer(node) = way.lanes.route(routed.body_slot) else {
            routed.own(executor, |executor| self.refuse_body(executor));
            return Step::Phase(used);
        };
        let (protocol, head, missing) = (body.protocol, body.head.clone(), body.missing());
        let to = (node, routed.body_slot);
        if self.forward_head(routed, way, executor, to, protocol, &head).is_err() {
            routed.is_blocked = true;
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

    /// Drops a complete value whose key has become another node's while the value arrived.
    #[cold]
    fn drop_body(&mut self, routed: &mut Routed, way: &Way<'_>, executor: &mut Executor<'_>) {
        let Phase::Body(body) = std::mem::replace(&mut self.phase, Phase::Command) else { return };
        let map = way.lanes.map();
        let own = executor.shared.settings.ring.as_ref().map_or("", |ring| ring.node.as_str());
        let why = Why::NotMine(map.version());
        routed.own(executor, |executor| {
            exec::away(&mut executor.out.bytes, body.protocol == Protocol::Binary, &body.head, own, why);
        });
    }

    /// Passes on what is left of a request with a large value. Returns whether nothing is left.
    pub(super) fn send_rest_of(
        &mut self,
        routed: &mut Routed,
        way: &mut Way<'_>,
        executor: &mut Executor<'_>,
        slot: Slot,
    ) -> bool {
        let is_begun = routed.sending.as_ref().is_some_and(|sending| sending.sent.is_some());
        match way.lanes.route(slot) {
            Route::Peer(node) => routed.send(executor, way, node),
            // The lane knows the node to which the first part was passed.
            Route::Own if is_begun => routed.send(executor, way, NodeIndex(0)),
            // This node has become the owner while the value arrived.
            Route::Own => {
                let Some(Sending { is_binary, bytes, .. }) = routed.sending.take() else { return true };
                routed.own(executor, |executor| match is_binary {
                    true => {
                        if let Decoded::Request { request, .. } = binary::decode(&bytes) {
                            exec::binary_other(executor, &request);
                        }
                    }
                    false => {
                        if let Decoded::Request { request, .. } = text::decode(&bytes, 0, &Limits::DEFAULT) {
                            exec::text(executor, &request);
                        }
                    }
                });
                true
            }
        }
    }
}
