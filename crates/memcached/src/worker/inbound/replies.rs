//! Replies to other nodes: sent whole, or in parts of which the rest waits for MORE.

use super::{Fault, InboundLane, Leaving, SUSPENDED_BYTES_MAX, Share, suspended_pins_max};
use crate::exec::{self, Executor, Next};
use crate::ring::add;
use crate::stream::{Mark, Output};
use crate::worker::Worker;
use cached_proto::text::GetCursor;
use cached_ring::slot_of;
use cached_ring::wire::{self, HEAD_BYTES, Kind, MESSAGE_BYTES_MAX, SUSPENDED_MAX};
use std::os::fd::AsRawFd;
use std::task::Poll;

/// The rest of a reply.
#[derive(Default)]
pub(super) struct Suspended {
    /// What has been executed.
    rest: Output,
    /// The line of a retrieval, and its next key.
    further: Option<(Box<[u8]>, GetCursor)>,
    /// The share for the values that stay pinned.
    pins: Option<Share>,
}

impl Suspended {
    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty() && self.further.is_none()
    }

    pub(super) fn bytes(&self) -> usize {
        self.rest.capacity() + self.further.as_ref().map_or(0, |(line, _)| line.len())
    }
}

impl Worker {
    /// Sends replies. Returns whether the socket has taken all.
    pub(super) fn send_inbound(&mut self, lane: &mut InboundLane) -> Result<bool, Fault> {
        let Some(own) = &mut self.lanes else { return Ok(false) };
        let mut sent = 0;
        let mut io = lane.link.io(&mut own.tls);
        let mut all = true;
        if let Some(held) = &mut lane.held {
            debug_assert!(self.output.is_empty());
            match held.send(&mut io, &mut sent) {
                Poll::Ready(result) => {
                    result?;
                    lane.held = None;
                }
                Poll::Pending => all = false,
            }
        } else if !self.output.is_empty() {
            match self.output.send(&mut io, &mut sent) {
                Poll::Ready(result) => result?,
                Poll::Pending => {
                    lane.held = Some(Box::new(self.output.take_unsent()));
                    all = false;
                }
            }
        }
        if sent > 0 {
            // While replies are sent, nothing is read: the other node is there, because it takes them.
            lane.silent_ticks = 0;
        }
        add(&lane.peer.counts(self.index).inbound_sent_bytes, sent);
        Ok(all)
    }

    /// Continues the replies that do not wait for MORE. Returns whether the socket has taken all.
    pub(super) fn send_unwaited(&mut self, lane: &mut InboundLane) -> Result<bool, Fault> {
        while let Some((id, suspended)) = lane.unwaited.pop_front() {
            if !self.send_inbound(lane)? {
                lane.unwaited.push_front((id, suspended));
                return Ok(false);
            }
            let rest = self.continue_reply(lane, id, suspended);
            if !rest.rest.is_empty() {
                lane.unwaited.push_front((id, rest));
            } else if rest.further.is_some() {
                // Nothing is pinned any more: keys that have not been read wait for MORE.
                self.suspend(lane, id, rest);
            }
        }
        self.send_inbound(lane)
    }

    /// Begins a reply: its head is written once its length is known.
    pub(super) fn begin_reply(&mut self) -> (Mark, usize) {
        let mark = self.output.mark();
        (mark, wire::begin(&mut self.output.bytes))
    }

    /// Ends the reply to a request that was executed.
    pub(super) fn end_reply(
        &mut self,
        lane: &mut InboundLane,
        id: u32,
        (mark, at): (Mark, usize),
        further: Option<(Box<[u8]>, GetCursor)>,
    ) {
        let bytes = self.output.bytes_since(mark) - HEAD_BYTES;
        if bytes <= MESSAGE_BYTES_MAX && further.is_none() {
            return wire::patch(&mut self.output.bytes, at, Kind::Done, id, bytes);
        }
        let mut rest = self.output.split_off(mark);
        rest.take_front(HEAD_BYTES, &mut Vec::new());
        let rest = self.continue_reply(lane, id, Suspended { rest, further, pins: None });
        if !rest.is_empty() {
            self.suspend(lane, id, rest);
        }
    }

    /// Sends the next part of a reply, and returns the rest.
    pub(super) fn continue_reply(&mut self, lane: &InboundLane, id: u32, suspended: Suspended) -> Suspended {
        let Suspended { mut rest, mut further, pins } = suspended;
        if rest.is_empty()
            && let Some((line, cursor)) = further.take()
        {
            let next = self.read_on(lane, &line, cursor, &mut rest);
            further = next.map(|cursor| (line, cursor));
        }
        let at = wire::begin(&mut self.output.bytes);
        let before = self.output.bytes.len();
        rest.take_front(MESSAGE_BYTES_MAX, &mut self.output.bytes);
        let bytes = self.output.bytes.len() - before;
        let rest = Suspended { rest, further, pins };
        let kind = if rest.is_empty() { Kind::Done } else { Kind::ReplyPart };
        wire::patch(&mut self.output.bytes, at, kind, id, bytes);
        rest
    }

    /// Executes the rest of each retrieval of which a key has become, or is becoming, another node's:
    /// its reply has begun here. Called before this worker says that it has completed what it was
    /// executing.
    pub(in crate::worker) fn complete_retrievals(&mut self) {
        let count = self.lanes.as_ref().map_or(0, |own| own.inbound.len());
        for at in 0..count {
            let lane = self.lanes.as_mut().and_then(|own| own.inbound[at].take());
            let Some(mut lane) = lane else { continue };
            let mut suspended = std::mem::take(&mut lane.suspended);
            let mut unwaited = std::mem::take(&mut lane.unwaited);
            suspended.values_mut().for_each(|rest| self.complete_retrieval(&lane, rest));
            unwaited.iter_mut().for_each(|(_, rest)| self.complete_retrieval(&lane, rest));
            lane.suspended_bytes = suspended.values().map(Suspended::bytes).sum();
            (lane.suspended, lane.unwaited) = (suspended, unwaited);
            if let Some(own) = &mut self.lanes {
                own.inbound[at] = Some(lane);
            }
        }
    }

    fn complete_retrieval(&mut self, lane: &InboundLane, suspended: &mut Suspended) {
        let Some((line, cursor)) = suspended.further.take() else { return };
        let mut get = cursor.resume(&line);
        let mut keys = std::iter::from_fn(|| get.next_key());
        if self.shared.ring.as_ref().is_none_or(|ring| keys.all(|key| ring.owns(slot_of(key)))) {
            suspended.further = Some((line, cursor));
            return;
        }
        let mut next = Some(cursor);
        while let Some(cursor) = next {
            self.work.renew();
            next = self.read_on(lane, &line, cursor, &mut suspended.rest);
        }
    }

    /// Appends the next part of a retrieval's reply to `rest`. Returns where to go on.
    fn read_on(
        &mut self,
        lane: &InboundLane,
        line: &[u8],
        cursor: GetCursor,
        rest: &mut Output,
    ) -> Option<GetCursor> {
        let mark = self.output.mark();
        let next = exec::get_many(&mut self.executor_for(lane), &mut cursor.resume(line));
        rest.append(&mut self.output.split_off(mark));
        match next {
            Next::Suspend(cursor) => Some(cursor),
            _ => None,
        }
    }

    /// Keeps the rest of a reply until MORE, or sends it without waiting if too much is kept.
    pub(super) fn suspend(&mut self, lane: &mut InboundLane, id: u32, mut rest: Suspended) {
        let bytes = lane.suspended_bytes + rest.bytes();
        rest.pins = None;
        if let Some(ring) = &self.shared.ring {
            let (pinned, max) = (rest.rest.pinned_bytes(), suspended_pins_max(&self.shared.settings));
            rest.pins = Share::take(&ring.suspended_pins, pinned, max);
        }
        let is_full = lane.suspended.len() >= SUSPENDED_MAX || bytes > SUSPENDED_BYTES_MAX;
        if is_full || rest.pins.is_none() || lane.leaving != Leaving::No {
            return lane.unwaited.push_back((id, rest));
        }
        lane.suspended_bytes = bytes;
        lane.suspended.insert(id, rest);
    }

    pub(super) fn executor_for(&mut self, lane: &InboundLane) -> Executor<'_> {
        Executor {
            shared: &self.shared,
            counters: &self.counters,
            out: &mut self.output,
            work: &mut self.work,
            client: lane.link.as_raw_fd(),
        }
    }
}
