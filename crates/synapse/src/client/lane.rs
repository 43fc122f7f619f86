//! A lane: one connection to the server at a time, and the requests that belong to it.
//!
//! A request takes a slot, and with it an ID. It keeps both when it is resent on the next
//! connection, so that the server recognises it. A slot is free again only when the server has
//! answered, or has forgotten the session.
//!
//! ```text
//!         submit            sent              answered            collected
//!   free ───────► queued ─────────► sent ─────────────► done ───────────────► free
//!                   ▲  │              │ │                ▲  │ not answered yet
//!                   │  │ dropped      │ │ deadline       │  ▼
//!                   │  └──► free      │ └────────────────┘ abandoned ── answered ──► free
//!                   └─ new connection ┘ dropped ───────────────▲
//! ```

mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use blocker::{Capabilities, Error, Timestamp};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::config::ClientConfig;
use super::doubts::Doubts;
use crate::codec::{self, Credits, Features, Kind, Op, Outcome, Request, RequestId, Welcome};
use connection::Output;

use state::{Slot, SlotState, State, Waiter};

/// The number of bytes to send above which some are sent before more requests are encoded, so that
/// the server works on the first requests while this side encodes the next ones.
const SEND_BYTES: usize = 32 * 1024;

pub(super) struct Lane {
    pub(super) index: u16,
    config: ClientConfig,
    /// The changes in doubt of all lanes.
    doubts: Arc<Doubts>,
    /// The number of requests, including those that wait for a slot. It decides which lane a call
    /// uses.
    load: AtomicU32,
    is_up: AtomicBool,
    ended: Notify,
    state: Mutex<State>,
}

/// The result of [`Lane::submit`].
pub(super) enum Submitted {
    /// A slot.
    Queued(RequestId),
    /// The call waits in the queue for slots; the number is its ticket.
    Waits(u64),
    /// An error: the request is not sent.
    Failed(Error),
}

/// The number of requests that were resent or lost after a connection broke.
#[derive(Clone, Copy, Default)]
pub(super) struct Resent {
    /// The number of requests that are resent.
    pub(super) count: u64,
    /// The number of requests that must not be resent and will not be answered.
    pub(super) lost_count: u64,
}

/// The remaining time is divided by this number to get the time reserved for the transit of the
/// answer, which is at most [`ANSWER_TIME_MAX`].
const ANSWER_SHARE: u32 = 8;
const ANSWER_TIME_MAX: Duration = Duration::from_millis(250);

/// Returns the deadline for the server, also for a call with only the client's time limit. It is
/// earlier than the caller's, so that the server's last answer (such as why data are not stored)
/// still reaches the caller in time.
fn server_deadline(now: Timestamp, deadline: Timestamp) -> Option<Timestamp> {
    let left = deadline.since(now);
    (deadline != NEVER).then(|| now + (left - (left / ANSWER_SHARE).min(ANSWER_TIME_MAX)))
}

/// The deadline of a call without a deadline.
pub(super) const NEVER: Timestamp = Timestamp(u64::MAX);

impl Lane {
    pub(super) fn new(
        index: u16,
        config: &ClientConfig,
        doubts: Arc<Doubts>,
        limits: Capabilities,
        features: Features,
        now: Timestamp,
    ) -> Self {
        // The client is opened over the first lane's connection, which the lane's task may take over late.
        let is_first = index == 0;
        let state = State {
            slots: (0..config.slots).map(|_| Slot::default()).collect(),
            free: Vec::new(),
            queue: VecDeque::new(),
            cancels: Vec::new(),
            waiting: BTreeMap::new(),
            next_ticket: 0,
            generation: None,
            credits: Credits::default(),
            can_request_credit: false,
            requested_bytes: 0,
            sent_bytes: 0,
            task: None,
            is_signalled: false,
            is_closed: false,
            due: NEVER,
            down: (!is_first).then(|| (now, Error::Retryable("not connected yet".into()))),
            limits,
            features,
        };
        let (load, is_up) = (AtomicU32::new(0), AtomicBool::new(is_first));
        let (config, ended, state) = (config.clone(), Notify::new(), Mutex::new(state));
        Self { index, config, doubts, load, is_up, ended, state }
    }

    pub(super) fn load(&self) -> u32 {
        self.load.load(Ordering::Relaxed)
    }

    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    // ---- callers

    /// Moves a request into a slot, or returns a ticket to wait for one. A request with a ticket
    /// keeps its position in the queue.
    ///
    /// # Panics
    /// Panics if `request` is `None`.
    pub(super) fn submit(
        &self,
        request: &mut Option<Request>,
        ticket: Option<u64>,
        cx: &Context<'_>,
    ) -> Submitted {
        let submitted = request.as_mut().expect("a request to submit");
        let deadline = submitted.call().deadline.unwrap_or_else(|| match self.config.call_timeout {
            Some(timeout) if ticket.is_none() => self.config.clock.now() + timeout,
            _ => NEVER,
        });
        let mut state = self.state.lock();
        // A request that has waited keeps its original deadline.
        let waits_until = ticket.and_then(|ticket| state.waiting.get(&ticket)).map(|waiter| waiter.deadline);
        let deadline = waits_until.unwrap_or(deadline);
        let (limits, features) = (state.limits, state.features);
        if let Err(error) =
            state.may_submit(&self.config, deadline).and_then(|()| submitted.fit(&limits, features))
        {
            if let Some(ticket) = ticket {
                state.remove_waiter(ticket);
                // This call may have been woken for a free slot, which the next one takes instead.
                let next = state.next_waiter();
                drop(state);
                self.load.fetch_sub(1, Ordering::Relaxed);
                next.into_iter().for_each(Waker::wake);
            }
            return Submitted::Failed(error);
        }
        let is_first = state.waiting.is_empty()
            || state.waiting.keys().next().is_none_or(|first| Some(*first) == ticket);
        let slot = if is_first { state.free.pop() } else { None };
        let Some(slot) = slot else {
            if ticket.is_none() && state.waiting.len() >= self.config.waiting_max {
                return Submitted::Failed(Error::Retryable(
                    "too many requests wait for a slot (waiting_max)".into(),
                ));
            }
            if ticket.is_none() {
                self.load.fetch_add(1, Ordering::Relaxed);
            }
            let ticket = ticket.unwrap_or(state.next_ticket);
            state.next_ticket = state.next_ticket.max(ticket + 1);
            state.waiting.insert(ticket, Waiter { waker: Some(cx.waker().clone()), deadline });
            let task = state.note_deadline(deadline);
            drop(state);
            task.into_iter().for_each(Waker::wake);
            return Submitted::Waits(ticket);
        };
        match ticket {
            Some(ticket) => state.remove_waiter(ticket),
            None => _ = self.load.fetch_add(1, Ordering::Relaxed),
        }
        let cost_bytes = submitted.cost_bytes(&limits);
        let place = &mut state.slots[slot as usize];
        place.sequence = place.sequence.wrapping_add(1);
        place.state = SlotState::Queued;
        place.cost_bytes = cost_bytes;
        place.request = request.take();
        place.outcome = None;
        place.was_sent = false;
        place.deadline = deadline;
        place.waker = Some(cx.waker().clone());
        let id = RequestId { slot, sequence: place.sequence };
        state.enqueue(id);
        state.due = state.due.min(deadline);
        let task = state.signal();
        let next = state.next_waiter();
        drop(state);
        task.into_iter().chain(next).for_each(Waker::wake);
        Submitted::Queued(id)
    }

    /// Returns the outcome of a request, and frees its slot. Before that, stores the caller's
    /// waker.
    pub(super) fn poll(&self, id: RequestId, cx: &Context<'_>) -> Poll<Result<Outcome, Error>> {
        let mut state = self.state.lock();
        let slot = &mut state.slots[id.slot as usize];
        debug_assert_eq!(
            slot.sequence, id.sequence,
            "a slot belongs to its request until its outcome is collected"
        );
        let Some(outcome) = slot.outcome.take() else {
            match &mut slot.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        };
        let task = state.release(id);
        drop(state);
        self.load.fetch_sub(1, Ordering::Relaxed);
        task.into_iter().for_each(Waker::wake);
        Poll::Ready(outcome)
    }

    /// Handles that a caller has dropped its request.
    pub(super) fn abandon(&self, id: RequestId) {
        let mut state = self.state.lock();
        self.begin_doubt(&mut state.slots[id.slot as usize]);
        let request = state.slots[id.slot as usize].request.take();
        let outcome = state.slots[id.slot as usize].outcome.take();
        let task = state.release(id);
        drop(state);
        self.load.fetch_sub(1, Ordering::Relaxed);
        task.into_iter().for_each(Waker::wake);
        // Request and outcome are dropped outside the lock.
        drop((request, outcome));
    }

    /// Handles that a request that waits with this ticket was dropped.
    pub(super) fn cancel_wait(&self, ticket: u64) {
        let next = {
            let mut state = self.state.lock();
            state.remove_waiter(ticket);
            state.next_waiter()
        };
        self.load.fetch_sub(1, Ordering::Relaxed);
        next.into_iter().for_each(Waker::wake);
    }

    /// Makes the lane's task close the connection and end.
    pub(super) fn close(&self) {
        let task = {
            let mut state = self.state.lock();
            state.is_closed = true;
            state.signal()
        };
        task.into_iter().for_each(Waker::wake);
    }

    /// Wakes the lane's task.
    pub(super) fn wake(&self) {
        let task = self.state.lock().signal();
        task.into_iter().for_each(Waker::wake);
    }

    // ---- the lane's task

    /// Registers the waker to wake from now on. Returns whether the client is closed.
    pub(super) fn register(&self, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        state.is_signalled = false;
        if !state.task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            state.task = Some(waker.clone());
        }
        state.is_closed
    }

    /// Handles a new connection. Requests that were sent on the last one are resent if that is
    /// safe.
    pub(super) fn connected(&self, welcome: &Welcome) -> Resent {
        let credits = welcome.credits;
        let mut wakers = Vec::new();
        let mut resent = Resent::default();
        {
            let mut state = self.state.lock();
            state.credits = credits;
            state.can_request_credit = welcome.features.has(Features::CREDIT);
            (state.requested_bytes, state.sent_bytes) = (0, 0);
            (state.limits, state.features) = (welcome.capabilities, welcome.features);
            // The flag alone proves nothing: the server may know the session from a handshake whose
            // welcome was lost, and may have created it then.
            let is_resumed = welcome.is_resumed && state.generation == Some(welcome.generation);
            state.generation = Some(welcome.generation);
            state.down = None;
            state.cancels.clear();
            let older = std::mem::take(&mut state.queue);
            state.free.clear();
            for index in 0..state.slots.len() as u32 {
                let is_granted = index < credits.slots;
                let guesses = self.config.guesses();
                let is_remembered = is_resumed && is_granted;
                state.reconnect(index, is_remembered, is_granted, guesses, &mut wakers, &mut resent);
                wakers.extend(self.settle_doubt(&mut state.slots[index as usize]));
            }
            // Resent requests precede requests that were not sent yet.
            state.queue.extend(older);
            // Low slots are used first.
            state.free.reverse();
            wakers.extend(state.next_waiter());
        }
        self.is_up.store(true, Ordering::Relaxed);
        wakers.into_iter().for_each(Waker::wake);
        resent
    }

    /// Handles the loss of the connection, with its cause.
    pub(super) fn disconnected(&self, now: Timestamp, why: Error) {
        self.is_up.store(false, Ordering::Relaxed);
        let is_denied = matches!(why, Error::Denied(_));
        {
            let mut state = self.state.lock();
            let since = state.down.as_ref().map_or(now, |(since, _)| *since);
            state.due = state.due.min(since + self.config.reconnect_timeout);
            state.down = Some((since, why.clone()));
        }
        if is_denied {
            // Another attempt would be refused too.
            self.fail_all(&why);
        }
    }

    /// Handles that the server has announced its shutdown and sent its last answer. Returns how
    /// many requests wait to be resent because the server has not begun them.
    pub(super) fn take_back_unexecuted(&self) -> u64 {
        self.state.lock().take_back_unexecuted()
    }

    /// Encodes requests while there is credit, until there is enough to send. Returns whether more
    /// requests remain.
    pub(super) fn fill(&self, output: &mut Output, now: Timestamp, has_crc: bool) -> bool {
        let mut state = self.state.lock();
        let state = &mut *state;
        for id in state.cancels.drain(..) {
            output.push_head(|out| codec::encode_cancel(out, id));
        }
        let mut held = Vec::new();
        let mut has_more = false;
        while let Some(id) = state.queue.front().copied() {
            if output.pending_bytes() >= SEND_BYTES {
                has_more = true;
                break;
            }
            let slot = &mut state.slots[id.slot as usize];
            if slot.sequence == id.sequence
                && slot.state == SlotState::Queued
                && let Some(request) = &mut slot.request
            {
                if !slot.is_owed && self.doubts.holds(request, state.task.as_ref()) {
                    held.push(id);
                    state.queue.pop_front();
                    continue;
                }
                let needed_bytes = slot.cost_bytes;
                if state.can_request_credit && needed_bytes > state.credits.bytes {
                    // The request costs more than the whole grant, which must grow first.
                    if state.requested_bytes < needed_bytes {
                        state.requested_bytes = needed_bytes;
                        output.push_head(|out| codec::encode_credit(out, needed_bytes, false));
                    }
                    break;
                }
                if state.sent_bytes > 0 && state.sent_bytes + needed_bytes > state.credits.bytes {
                    break;
                }
                state.sent_bytes += slot.cost_bytes;
                slot.was_sent_before = std::mem::replace(&mut slot.was_sent, true);
                (slot.state, slot.is_owed) = (SlotState::Sent, true);
                if let Some(call) = request.call_mut() {
                    call.deadline = server_deadline(now, slot.deadline);
                }
                output.push(|out| request.encode(id, now, has_crc, out));
            }
            state.queue.pop_front();
        }
        held.into_iter().rev().for_each(|id| state.queue.push_front(id));
        has_more
    }

    /// Records that the caller of a request gets no outcome from the server. If the server still
    /// owes the answer to a change, the change is in doubt.
    fn begin_doubt(&self, slot: &mut Slot) {
        if slot.is_owed
            && slot.doubt.is_none()
            && let Some(Request::Change(request)) = &slot.request
        {
            slot.doubt = Some(request.object.clone());
            self.doubts.begin(request.object.clone(), self.index);
        }
    }

    /// Ends the doubt about a change unless the server still owes its answer. Returns the wakers to
    /// wake.
    fn settle_doubt(&self, slot: &mut Slot) -> Vec<Waker> {
        if slot.is_owed {
            return Vec::new();
        }
        slot.doubt.take().map_or_else(Vec::new, |object| self.doubts.settle(&object, self.index))
    }

    /// Applies a grant that the server has changed to `bytes`.
    pub(super) fn granted(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.credits.bytes = bytes;
        // If the granted bytes are too few, another request for credits follows.
        state.requested_bytes = 0;
    }

    /// Handles an answer. If the caller still waits, `decode` returns the outcome, and `record`
    /// receives it with the request.
    ///
    /// # Errors
    /// Fails if the answer is invalid: the caller must close the connection.
    pub(super) fn answered(
        &self,
        id: RequestId,
        op: Op,
        decode: impl FnOnce() -> Result<Outcome, Error>,
        record: impl FnOnce(&Request, &Outcome),
    ) -> Result<(), Error> {
        let mut state = self.state.lock();
        let guard = &mut *state;
        let Some(slot) = guard.slots.get_mut(id.slot as usize) else {
            return Err(Error::Invalid("an answer for a slot that does not exist".into()));
        };
        if slot.sequence != id.sequence || !slot.is_owed {
            return Err(Error::Invalid("an answer without a request".into()));
        }
        slot.is_owed = false;
        guard.sent_bytes = guard.sent_bytes.saturating_sub(slot.cost_bytes);
        let settled = self.settle_doubt(slot);
        match slot.state {
            SlotState::Sent => {
                if slot.request.as_ref().is_none_or(|request| request.op() != op) {
                    slot.is_owed = true;
                    return Err(Error::Invalid("an answer to another operation".into()));
                }
                let request = slot.request.take();
                let outcome = decode();
                if let (Some(request), Ok(outcome)) = (&request, &outcome) {
                    record(request, outcome);
                }
                slot.state = SlotState::Done;
                slot.outcome = Some(outcome);
                let waker = slot.waker.take();
                drop(state);
                waker.into_iter().for_each(Waker::wake);
                // The payload is dropped outside the lock.
                drop(request);
            }
            // The deadline had passed, so the caller already has an outcome.
            SlotState::Done => {
                drop(state);
                settled.into_iter().for_each(Waker::wake);
            }
            SlotState::Abandoned => {
                slot.state = SlotState::Free;
                let next = guard.free_slot(id.slot);
                drop(state);
                next.into_iter().chain(settled).for_each(Waker::wake);
            }
            SlotState::Free | SlotState::Queued => {
                return Err(Error::Invalid("an answer without a request".into()));
            }
        }
        Ok(())
    }

    /// Handles the server's confirmation of a cancellation.
    ///
    /// # Errors
    /// Returns the errors of [`Self::answered`].
    pub(super) fn cancelled(&self, id: RequestId) -> Result<(), Error> {
        let op = {
            let state = self.state.lock();
            let slot = state.slots.get(id.slot as usize);
            slot.and_then(|slot| slot.request.as_ref()).map_or(Op::Cancel, |request| request.op())
        };
        self.answered(id, op, || Ok(Outcome::Cancelled), |_, _| ())
    }

    /// Waits until the lane's task has ended.
    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Records that the lane's task has ended.
    pub(super) fn end(&self) {
        self.ended.notify_one();
    }

    /// Fails the requests whose deadline has passed. Returns the next deadline and the number of
    /// requests that failed.
    pub(super) fn expire(&self, now: Timestamp) -> (Timestamp, u64) {
        let mut wakers = Vec::new();
        let mut expired_count = 0;
        let mut lost = None;
        let due = {
            let mut state = self.state.lock();
            if now < state.due {
                return (state.due, 0);
            }
            let mut due = NEVER;
            for slot in &mut state.slots {
                if !matches!(slot.state, SlotState::Queued | SlotState::Sent) {
                    continue;
                }
                if now < slot.deadline {
                    due = due.min(slot.deadline);
                    continue;
                }
                let op = slot.request.as_ref().map_or(Op::Ping, |request| request.op());
                let error = if slot.was_sent { deadline_error(op) } else { Error::DeadlinePassed };
                expired_count += 1;
                self.begin_doubt(slot);
                slot.fail(error, &mut wakers);
            }
            for waiter in state.waiting.values_mut() {
                if now < waiter.deadline {
                    due = due.min(waiter.deadline);
                } else {
                    wakers.extend(waiter.waker.take());
                }
            }
            if let Some((since, why)) = &state.down {
                let give_up = *since + self.config.reconnect_timeout;
                if now >= give_up {
                    lost = Some(why.clone());
                } else {
                    due = due.min(give_up);
                }
            }
            state.due = due;
            due
        };
        wakers.into_iter().for_each(Waker::wake);
        if let Some(why) = lost {
            self.fail_all(&why);
        }
        (due, expired_count)
    }

    /// Fails every request that waits for a connection.
    fn fail_all(&self, why: &Error) {
        let mut wakers = Vec::new();
        {
            let mut state = self.state.lock();
            for slot in &mut state.slots {
                match slot.state {
                    SlotState::Queued | SlotState::Sent if slot.was_sent => {
                        self.begin_doubt(slot);
                        slot.fail_lost(&mut wakers);
                    }
                    SlotState::Queued => slot.fail(unreachable_error(why), &mut wakers),
                    _ => {}
                }
            }
            state.queue.clear();
            wakers.extend(state.waiting.values_mut().filter_map(|waiter| waiter.waker.take()));
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}

// ---- The results of calls that get no response.

/// Returns the error of a request that was sent and will not be answered.
fn unanswered_error(op: Op, why: &'static str) -> Error {
    match op.kind() {
        Kind::Change => Error::OutcomeUnknown(why.into()),
        Kind::Flush => Error::NotStored(why.into()),
        Kind::Repeatable if op == Op::Claim => Error::OutcomeUnknown(why.into()),
        Kind::Repeatable | Kind::Query | Kind::Connection => Error::Retryable(why.into()),
    }
}

/// Returns the error of a request whose deadline passes after it was sent.
pub(super) fn deadline_error(op: Op) -> Error {
    match op.kind() {
        Kind::Query | Kind::Connection => Error::DeadlinePassed,
        _ => unanswered_error(op, "no answer before the deadline"),
    }
}

/// Returns the error of a request that was not sent for lack of a connection.
pub(super) fn unreachable_error(why: &Error) -> Error {
    match why {
        Error::Denied(_) => why.clone(),
        Error::Retryable(text) => Error::Retryable(text.clone()),
        other => Error::Retryable(format!("not connected: {other}").into()),
    }
}

/// Returns the error of a request whose answer has a damaged payload, although its head is valid.
pub(super) fn damaged_error(op: Op) -> Error {
    match op.kind() {
        Kind::Change => Error::OutcomeUnknown("the response was damaged in transit".into()),
        _ => Error::Retryable("the response was damaged in transit".into()),
    }
}
