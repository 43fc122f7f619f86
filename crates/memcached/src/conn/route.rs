//! Requests of a connection of a ring: each is executed by the node that owns its key, this one or
//! another.
//!
//! A connection of a ring is in [`Phase::Routed`], so the test by which other connections recognise
//! an unfinished request leads here, and a server without a ring pays nothing.
//!
//! A request is decoded here. Its own bytes are passed to the owner, which decodes them again, and
//! the reply comes back byte for byte. Requests without a key are executed here; those whose reply
//! depends on earlier ones wait until these are answered.

use super::drive::Budget;
use super::every::Every;
use super::merge::{LINE_BYTES_MAX, Merge};
use super::places::Routed;
use super::way::{NoRoom, Way};
use super::{Connection, Phase, StopReason};
use crate::exec::{self, Executor, Next, Target};
use crate::ring::{LaneId, Lanes, Outcome, Route};
use crate::shared::Shared;
use cached_proto::binary::sasl::is_sasl;
use cached_proto::meta::KeyBuffer;
use cached_proto::text::{Get, Request};
use cached_proto::{Decoded, Limits, Protocol, binary, text};
use cached_ring::{Flags, Slot, Waiter, slot_of};
use std::os::fd::BorrowedFd;

/// What became of the request at the front of the input.
pub(super) enum Step {
    /// It was executed or passed on; it has this many bytes.
    Done(usize),
    /// It continues in the connection's phase, after this many bytes.
    Phase(usize),
    /// It waits for replies, or for space in a lane.
    Blocked,
    /// Execution stops after this many bytes.
    Stop(usize, StopReason),
    /// The connection is no longer routed: its client must authenticate, or has become a watcher.
    Leave(usize),
}

/// A connection of a ring while its requests are executed.
pub(super) struct Turn<'a, 'e> {
    pub(super) routed: &'a mut Routed,
    pub(super) way: Way<'a>,
    pub(super) executor: &'a mut Executor<'e>,
    client: BorrowedFd<'a>,
}

impl Turn<'_, '_> {
    /// Returns the node that executes requests for `slot`.
    pub(super) fn route(&self, slot: Slot) -> Route {
        self.way.lanes.route(slot)
    }

    /// Executes something at this node whose reply takes the next place.
    #[inline]
    pub(super) fn own<R>(&mut self, execute: impl FnOnce(&mut Executor<'_>) -> R) -> R {
        self.routed.own(self.executor, execute)
    }

    /// Passes the request `own` to another node.
    fn forward(&mut self, to: (Route, Slot), flags: Flags, own: &[u8], in_steps: bool) -> Step {
        match self.routed.forward(self.executor, &mut self.way, to, flags, own, in_steps) {
            Ok(()) => Step::Done(own.len()),
            Err(NoRoom) => Step::Blocked,
        }
    }

    /// Executes the request `own` here with `execute`, or if it `is_allowed`, at all nodes. Earlier
    /// requests, which may have to be sent again, are answered first.
    fn every(
        &mut self,
        flags: Flags,
        own: &[u8],
        is_allowed: bool,
        execute: impl FnOnce(&mut Executor<'_>) -> Next,
    ) -> Step {
        if self.routed.has_places() {
            return Step::Blocked;
        }
        if is_allowed {
            self.routed.every(Every::new(own, flags));
        } else if self.own(execute) == Next::Defer {
            return Step::Stop(0, StopReason::Budget);
        }
        Step::Done(own.len())
    }

    /// Asks all nodes for their statistics, of which the reply to the request `own` is made.
    fn sums(&mut self, flags: Flags, own: &[u8]) -> Step {
        if self.routed.has_places() {
            return Step::Blocked;
        }
        self.routed.every(Every::sums(own, flags));
        Step::Done(own.len())
    }

    /// Begins the retrieval `get` of the request `own`, whose keys may have several owners.
    fn merge(&mut self, get: &Get<'_>, own: &[u8]) -> Step {
        let to = self.routed.waiter(&self.way);
        self.routed.merge(Merge::begin(get, own, &mut self.way, to));
        Step::Done(own.len())
    }
}

impl Connection {
    /// Makes this connection one of a ring. `tag` distinguishes it from earlier connections in its
    /// slot of the worker.
    pub(crate) fn join_ring(&mut self, tag: u32) {
        if !matches!(self.phase, Phase::Gate(_)) {
            let phase = std::mem::replace(&mut self.phase, Phase::Command);
            self.phase = Phase::Routed(Box::new(Routed::new(phase, tag)));
        }
    }

    /// Returns the phase of a connection whose client has just authenticated.
    pub(super) fn idle_phase(&self, shared: &Shared) -> Phase {
        match shared.ring.as_ref() {
            None => Phase::Command,
            Some(ring) => {
                let tag = ring.lanes(self.info.worker).next_tag();
                Phase::Routed(Box::new(Routed::new(Phase::Command, tag)))
            }
        }
    }

    /// Takes the answer of another node, for the place that `to` names. Returns whether the
    /// connection must be driven: it can make progress, or its memory must be counted.
    pub(crate) fn answer(&mut self, to: Waiter, id: LaneId, outcome: Outcome<'_>) -> bool {
        let Phase::Routed(routed) = &mut self.phase else { return false };
        let wakes = routed.answer(to, id, outcome);
        self.runnable |= wakes;
        wakes
    }

    /// Lets the next drive continue, because a lane has space again.
    pub(crate) fn wake(&mut self) {
        self.runnable |= matches!(self.phase, Phase::Routed(_));
    }

    /// Tells the lanes that the connection ends.
    pub(crate) fn abandon(&self, lanes: &mut Lanes) {
        if let Phase::Routed(routed) = &self.phase {
            routed.abandon(lanes);
        }
    }

    /// Executes or passes on the requests in `input`. Returns the number of bytes consumed, and the
    /// reason why execution stopped; `None` if the connection is no longer routed.
    #[inline(never)]
    pub(super) fn route(
        &mut self,
        executor: &mut Executor<'_>,
        client: BorrowedFd<'_>,
        input: &[u8],
        budget: &mut Budget,
    ) -> (usize, Option<StopReason>) {
        let Phase::Routed(mut routed) = std::mem::replace(&mut self.phase, Phase::Command) else {
            return (0, None);
        };
        self.phase = std::mem::replace(&mut routed.phase, Phase::Command);
        let mut result = (0, None);
        if let Some(ring) = executor.shared.ring.as_ref() {
            let mut lanes = ring.lanes(self.info.worker);
            lanes.look();
            let way =
                Way { lanes: &mut lanes, slot: self.info.slot() as u32, is_datagram: self.is_datagram() };
            let mut turn = Turn { routed: &mut routed, way, executor, client };
            result = self.route_all(&mut turn, input, budget);
        }
        if !matches!(self.phase, Phase::Gate(_) | Phase::Watch(_)) {
            routed.phase = std::mem::replace(&mut self.phase, Phase::Command);
            self.phase = Phase::Routed(routed);
        }
        result
    }

    fn route_all(
        &mut self,
        turn: &mut Turn<'_, '_>,
        input: &[u8],
        budget: &mut Budget,
    ) -> (usize, Option<StopReason>) {
        let mut used = 0;
        let mut scanned = std::mem::take(&mut self.scanned);
        turn.routed.is_blocked = false;
        loop {
            if turn.routed.settle(turn.executor, &mut turn.way) {
                turn.routed.abandon(turn.way.lanes);
                return (used, Some(StopReason::Close));
            }
            if turn.routed.is_deferred {
                return (used, Some(StopReason::Budget));
            }
            if turn.executor.out.is_full() {
                return (used, Some(StopReason::Output));
            }
            let rest = &input[used..];
            let step = if let Some(step) = turn.finish_sending() {
                step
            } else if turn.routed.is_ending {
                let stop = if turn.routed.has_places() { StopReason::Input } else { StopReason::Close };
                Step::Stop(0, stop)
            } else if !matches!(self.phase, Phase::Command) {
                self.continue_phase(turn, rest)
            } else if let Some(&first) = rest.first() {
                if budget.has_no_request() {
                    return (used, Some(StopReason::Budget));
                }
                match *self.protocol.get_or_insert_with(|| Protocol::detect(first)) {
                    _ if turn.routed.is_full() || turn.routed.is_held => Step::Blocked,
                    Protocol::Text => self.route_text(turn, rest, scanned),
                    Protocol::Binary => self.route_binary(turn, rest),
                }
            } else {
                Step::Stop(0, StopReason::Input)
            };
            scanned = 0;
            match step {
                Step::Done(consumed) => {
                    used += consumed;
                    budget.take_request();
                }
                Step::Phase(consumed) => used += consumed,
                Step::Blocked => {
                    turn.routed.is_blocked = true;
                    return (used, Some(StopReason::Input));
                }
                Step::Stop(consumed, stop) => return (used + consumed, Some(stop)),
                Step::Leave(consumed) => return (used + consumed, None),
            }
        }
    }

    /// Continues in a phase other than `Command`.
    fn continue_phase(&mut self, turn: &mut Turn<'_, '_>, rest: &[u8]) -> Step {
        match &self.phase {
            Phase::Body(_) => self.receive_body(turn, rest),
            Phase::Swallow(_) if rest.is_empty() => Step::Stop(0, StopReason::Input),
            _ => match self.resume(turn.executor, rest) {
                Ok(used) => Step::Phase(used),
                Err(stop) => Step::Stop(0, stop),
            },
        }
    }

    /// Executes or passes on the text or meta request at the front of `rest`. The first `scanned`
    /// bytes of `rest` are known to contain no line feed.
    fn route_text(&mut self, turn: &mut Turn<'_, '_>, rest: &[u8], scanned: usize) -> Step {
        if let Some((key, consumed)) = text::plain_get(rest) {
            let slot = slot_of(key);
            let route = turn.route(slot);
            if route != Route::Own && !turn.routed.touches {
                return turn.forward((route, slot), Flags::NONE, &rest[..consumed], false);
            }
        }
        match text::decode(rest, scanned, &Limits::DEFAULT) {
            Decoded::Request { request, consumed } => {
                let own = &rest[..consumed];
                let mut buffer = KeyBuffer::new();
                let target = exec::text_target(&request, &mut buffer);
                let is_read = matches!(target, Target::Keys(get) if get.exptime.is_none());
                if turn.routed.reading > 0 && (!is_read || turn.routed.touches) {
                    return Step::Blocked;
                }
                match target {
                    Target::Key(key) => {
                        let slot = slot_of(key);
                        match turn.route(slot) {
                            Route::Own => self.execute_text(turn, &request, own),
                            route => turn.forward((route, slot), Flags::NONE, own, false),
                        }
                    }
                    Target::Keys(get) => self.route_keys(turn, &get, own),
                    Target::Every => {
                        let shared = turn.executor.shared;
                        let is_allowed = match request {
                            Request::FlushAll(flush) => shared.live.flush_command() && flush.delay.is_some(),
                            Request::FlushPrefix(_) => shared.live.flush_command(),
                            _ => shared.settings.debug_clock,
                        };
                        let execute = |executor: &mut Executor<'_>| exec::text(executor, &request);
                        turn.every(Flags::NONE, own, is_allowed, execute)
                    }
                    Target::Sums => turn.sums(Flags::NONE, own),
                    Target::Here => {
                        turn.own(|executor| exec::text(executor, &request));
                        Step::Done(consumed)
                    }
                    Target::Alone => self.execute_alone(turn, rest),
                }
            }
            Decoded::Body { header, consumed, body_len } => {
                let mut buffer = KeyBuffer::new();
                let slot = slot_of(exec::body_key(&header, &mut buffer));
                let begin = |executor: &mut Executor<'_>| exec::begin_text(executor, &header);
                let head = (Protocol::Text, &rest[..consumed], body_len);
                self.route_body(turn, head, slot, begin)
            }
            Decoded::Refused(refused) if !refused.close => {
                turn.routed.reply(turn.executor, refused.reply);
                self.swallow(refused.swallow);
                Step::Done(refused.consumed)
            }
            Decoded::Refused(_) | Decoded::Close => self.execute_alone(turn, rest),
            Decoded::Incomplete => {
                self.scanned = rest.len();
                Step::Stop(0, StopReason::Input)
            }
        }
    }

    /// Executes or passes on the binary request at the front of `rest`.
    fn route_binary(&mut self, turn: &mut Turn<'_, '_>, rest: &[u8]) -> Step {
        match binary::decode(rest) {
            Decoded::Request { request, consumed } => {
                let own = &rest[..consumed];
                let execute = |executor: &mut Executor<'_>| exec::binary_other(executor, &request);
                match exec::binary_target(&request) {
                    Target::Key(key) => {
                        let slot = slot_of(key);
                        let route = turn.route(slot);
                        if route != Route::Own {
                            return turn.forward((route, slot), Flags::BINARY, own, false);
                        }
                        turn.own(execute);
                        Step::Done(consumed)
                    }
                    Target::Every => {
                        let is_allowed = turn.executor.shared.live.flush_command();
                        turn.every(Flags::BINARY, own, is_allowed, execute)
                    }
                    Target::Sums => turn.sums(Flags::BINARY, own),
                    Target::Here => {
                        turn.own(execute);
                        Step::Done(consumed)
                    }
                    // There is no binary retrieval of several keys.
                    Target::Alone | Target::Keys(_) => self.execute_alone(turn, rest),
                }
            }
            Decoded::Body { header, consumed, body_len } => {
                let begin = |executor: &mut Executor<'_>| exec::begin_binary(executor, &header);
                let head = (Protocol::Binary, &rest[..consumed], body_len);
                self.route_body(turn, head, slot_of(header.key), begin)
            }
            Decoded::Refused(refused)
                if refused.close
                    || is_sasl(refused.reply.head.opcode)
                        && turn.executor.shared.settings.auth.sasl.is_some() =>
            {
                self.execute_alone(turn, rest)
            }
            Decoded::Refused(refused) => {
                turn.own(|executor| refused.reply.encode(&mut executor.out.bytes));
                self.swallow(refused.swallow);
                Step::Done(refused.consumed)
            }
            Decoded::Close => self.execute_alone(turn, rest),
            Decoded::Incomplete => Step::Stop(0, StopReason::Input),
        }
    }

    /// Executes the text request `own`, whose keys belong to this node.
    fn execute_text(&mut self, turn: &mut Turn<'_, '_>, request: &Request<'_>, own: &[u8]) -> Step {
        match turn.own(|executor| exec::text(executor, request)) {
            // Until the rest is read, keys may become another node's.
            Next::Suspend(cursor) => {
                let to = turn.routed.waiter(&turn.way);
                let merge = Merge::begin(&cursor.resume(own), own, &mut turn.way, to);
                turn.routed.merge(merge.continued());
                Step::Done(own.len())
            }
            Next::Defer => Step::Stop(0, StopReason::Budget),
            _ => Step::Done(own.len()),
        }
    }

    /// Executes the retrieval `get`, whose bytes are `own`: here, at another node, or at several.
    fn route_keys(&mut self, turn: &mut Turn<'_, '_>, get: &Get<'_>, own: &[u8]) -> Step {
        let mut keys = *get;
        let Some(first) = keys.next_key() else { return Step::Done(own.len()) };
        let slot = slot_of(first);
        let route = turn.route(slot);
        turn.routed.touches = get.exptime.is_some();
        let (mut count, mut is_of_one) = (1, true);
        while is_of_one && let Some(key) = keys.next_key() {
            is_of_one = turn.route(slot_of(key)) == route;
            count += 1;
        }
        match route {
            Route::Own if is_of_one => self.execute_text(turn, &Request::Get(*get), own),
            Route::Peer(_) if is_of_one && own.len() <= LINE_BYTES_MAX => {
                turn.forward((route, slot), Flags::NONE, own, count > 1)
            }
            _ => turn.merge(get, own),
        }
    }

    /// Executes the request at the front of `rest` once nothing waits for a reply.
    #[cold]
    fn execute_alone(&mut self, turn: &mut Turn<'_, '_>, rest: &[u8]) -> Step {
        if !turn.routed.is_idle() {
            turn.routed.has_waited = true;
            return Step::Blocked;
        }
        turn.executor.out.follows = std::mem::take(&mut turn.routed.has_waited);
        let executed = match self.protocol {
            Some(Protocol::Binary) => self.binary_request(turn.executor, rest),
            _ => self.text_request(turn.executor, rest, 0),
        };
        turn.executor.out.follows = false;
        let (consumed, next) = match executed {
            Ok(executed) => executed,
            Err(stop) => return Step::Stop(0, stop),
        };
        match next {
            Next::Dump(dump) if self.is_datagram() && dump.is_of_all() => turn.executor.refuse_dump(),
            Next::Dump(dump) => {
                self.phase = Phase::Dump(dump);
                return Step::Phase(consumed);
            }
            Next::Watch(events) => match self.subscribe(turn.executor.shared, turn.client, events) {
                Ok(subscription) => {
                    self.phase = Phase::Watch(subscription);
                    return Step::Leave(consumed);
                }
                Err(refused) => turn.executor.refuse_watcher(refused),
            },
            Next::Close => return Step::Stop(consumed, StopReason::Close),
            Next::Continue | Next::Suspend(_) | Next::Defer => {}
        }
        if matches!(self.phase, Phase::Gate(_)) { Step::Leave(consumed) } else { Step::Done(consumed) }
    }
}
