//! A lane: one connection to the server, whichever it is at the moment, and the requests that belong to it.
//!
//! A request takes a slot, and with it an id; it keeps both when the connection breaks and it is sent again
//! on the next one, which is how the server knows it. A slot is free again only when the server has
//! answered, or has forgotten the session.
//!
//! ```text
//!         submit            sent              answered            collected
//!   free ───────► queued ─────────► sent ─────────────► done ───────────────► free
//!                   ▲  │              │ │                ▲  │ not answered yet
//!                   │  │ dropped      │ │ late           │  ▼
//!                   │  └──► free      │ └────────────────┘ abandoned ── answered ──► free
//!                   └─ new connection ┘ dropped ───────────────▲
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use blocker::{Capabilities, Error, Segments, Timestamp};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::config::ClientConfig;
use crate::codec::{self, Credits, Features, Kind, Op, Outcome, Request, RequestId, Welcome};
use crate::output::Output;

/// With so much to send, some is sent before more requests are put into frames: the server works on the
/// first while we encode the next.
const SEND_BYTES: usize = 32 * 1024;

pub(super) struct Lane {
    pub(super) index: u16,
    config: ClientConfig,
    /// For choosing a lane: how many requests it has, those that wait for a slot included.
    load: AtomicU32,
    is_up: AtomicBool,
    ended: Notify,
    state: Mutex<State>,
}

struct State {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Requests to be sent, in order. Those that are not queued any more are passed over.
    queue: VecDeque<RequestId>,
    cancels: Vec<RequestId>,
    waiting: BTreeMap<u64, Waiter>,
    next_ticket: u64,
    /// Of the session that this lane was welcomed to last.
    generation: Option<u64>,
    /// What is granted.
    credits: Credits,
    /// Whether more may be asked for.
    can_ask: bool,
    /// What the server was asked for, since nothing larger can be sent.
    asked_bytes: u64,
    /// What is sent and not answered.
    sent_bytes: u64,
    /// Of the lane's task.
    task: Option<Waker>,
    is_signalled: bool,
    is_closed: bool,
    /// The next deadline, or an earlier time.
    due: Timestamp,
    /// Since when there is no connection, and why.
    down: Option<(Timestamp, Error)>,
    /// The server's, as of the last greeting.
    limits: Capabilities,
}

struct Waiter {
    waker: Option<Waker>,
    deadline: Timestamp,
}

#[derive(Default)]
struct Slot {
    sequence: u32,
    state: SlotState,
    request: Option<Request>,
    /// What the request's caller gets, once it is done.
    outcome: Option<Result<Outcome, Error>>,
    waker: Option<Waker>,
    deadline: Timestamp,
    cost_bytes: u64,
    /// Whether the server still owes an answer.
    is_owed: bool,
    /// Whether it was ever sent: it may have been done, then, even if it is queued once more.
    was_sent: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum SlotState {
    #[default]
    Free,
    Queued,
    Sent,
    Done,
    Abandoned,
}

/// What a request got that wants a slot.
pub(super) enum Submitted {
    /// A slot.
    Queued(RequestId),
    /// A place in the queue for slots.
    Waits(u64),
    /// An error.
    Failed(Error),
}

/// What became of requests that were under way when a connection broke.
#[derive(Clone, Copy, Default)]
pub(super) struct Again {
    /// Sent again.
    pub(super) resends: u64,
    /// Not to be sent again, and never answered.
    pub(super) unanswered: u64,
}

/// No deadline.
pub(super) const NEVER: Timestamp = Timestamp(u64::MAX);

impl Lane {
    pub(super) fn new(index: u16, config: &ClientConfig, limits: Capabilities, now: Timestamp) -> Self {
        let state = State {
            slots: (0..config.slots).map(|_| Slot::default()).collect(),
            free: Vec::new(),
            queue: VecDeque::new(),
            cancels: Vec::new(),
            waiting: BTreeMap::new(),
            next_ticket: 0,
            generation: None,
            credits: Credits::default(),
            can_ask: false,
            asked_bytes: 0,
            sent_bytes: 0,
            task: None,
            is_signalled: false,
            is_closed: false,
            due: NEVER,
            down: Some((now, Error::Retryable("not connected yet".into()))),
            limits,
        };
        let (load, is_up) = (AtomicU32::new(0), AtomicBool::new(false));
        Self { index, config: config.clone(), load, is_up, ended: Notify::new(), state: Mutex::new(state) }
    }

    pub(super) fn load(&self) -> u32 {
        self.load.load(Ordering::Relaxed)
    }

    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    // ---- callers

    /// Gives a request a slot, which takes it over, or a ticket to wait for one. Who comes with a ticket keeps
    /// his turn.
    ///
    /// # Panics
    /// If there is no request.
    pub(super) fn submit(
        &self,
        request: &mut Option<Request>,
        ticket: Option<u64>,
        cx: &Context<'_>,
    ) -> Submitted {
        let asked = request.as_mut().expect("who wants a slot has a request");
        let deadline = asked.call().deadline.unwrap_or_else(|| match self.config.call_timeout {
            Some(timeout) if ticket.is_none() => self.config.clock.now() + timeout,
            _ => NEVER,
        });
        let mut state = self.state.lock();
        // One who has waited has the time that he had then.
        let waits_until = ticket.and_then(|ticket| state.waiting.get(&ticket)).map(|waiter| waiter.deadline);
        let deadline = waits_until.unwrap_or(deadline);
        let limits = state.limits;
        if let Err(error) = state.may_submit(&self.config, deadline).and_then(|()| asked.fit(&limits)) {
            if let Some(ticket) = ticket {
                state.leave(ticket);
                self.load.fetch_sub(1, Ordering::Relaxed);
            }
            return Submitted::Failed(error);
        }
        let is_first = state.waiting.is_empty()
            || state.waiting.keys().next().is_none_or(|first| Some(*first) == ticket);
        let slot = if is_first { state.free.pop() } else { None };
        let Some(slot) = slot else {
            if ticket.is_none() && state.waiting.len() >= self.config.waiting_max {
                return Submitted::Failed(Error::Retryable("too many requests wait for the server".into()));
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
            Some(ticket) => state.leave(ticket),
            None => _ = self.load.fetch_add(1, Ordering::Relaxed),
        }
        let cost_bytes = asked.cost_bytes(&limits);
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

    /// The outcome of a request, which frees its slot; or the caller's waker is kept.
    pub(super) fn poll(&self, id: RequestId, cx: &Context<'_>) -> Poll<Result<Outcome, Error>> {
        let mut state = self.state.lock();
        let slot = &mut state.slots[id.slot as usize];
        debug_assert_eq!(slot.sequence, id.sequence, "a slot is its request's until it is collected");
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

    /// The caller of a request has gone.
    pub(super) fn abandon(&self, id: RequestId) {
        let mut state = self.state.lock();
        let request = state.slots[id.slot as usize].request.take();
        let outcome = state.slots[id.slot as usize].outcome.take();
        let task = state.release(id);
        drop(state);
        self.load.fetch_sub(1, Ordering::Relaxed);
        task.into_iter().for_each(Waker::wake);
        // Whatever they hold is let go outside of the lock.
        drop((request, outcome));
    }

    /// Whoever waited with this ticket has gone.
    pub(super) fn leave(&self, ticket: u64) {
        let next = {
            let mut state = self.state.lock();
            state.leave(ticket);
            state.next_waiter()
        };
        self.load.fetch_sub(1, Ordering::Relaxed);
        next.into_iter().for_each(Waker::wake);
    }

    /// The client is gone: finish.
    pub(super) fn close(&self) {
        let task = {
            let mut state = self.state.lock();
            state.is_closed = true;
            state.signal()
        };
        task.into_iter().for_each(Waker::wake);
    }

    /// Has the lane's task look.
    pub(super) fn nudge(&self) {
        let task = self.state.lock().signal();
        task.into_iter().for_each(Waker::wake);
    }

    // ---- the lane's task

    /// Wakes this waker from now on. Whether the client is gone.
    pub(super) fn register(&self, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        state.is_signalled = false;
        if !state.task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            state.task = Some(waker.clone());
        }
        state.is_closed
    }

    /// There is a connection. Requests that were sent on the last one are sent again where that is safe.
    pub(super) fn connected(&self, welcome: &Welcome) -> Again {
        let credits = welcome.credits;
        let mut wakers = Vec::new();
        let mut again = Again::default();
        {
            let mut state = self.state.lock();
            state.credits = credits;
            state.can_ask = welcome.features.has(Features::CREDIT);
            (state.asked_bytes, state.sent_bytes) = (0, 0);
            state.limits = welcome.capabilities;
            // The name alone says nothing: the server may have heard it in a greeting whose welcome was lost,
            // and have begun the session then.
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
                state.reconnect(index, is_remembered, is_granted, guesses, &mut wakers, &mut again);
            }
            // What was sent before keeps its place before what was not.
            state.queue.extend(older);
            // Low slots first.
            state.free.reverse();
            wakers.extend(state.next_waiter());
        }
        self.is_up.store(true, Ordering::Relaxed);
        wakers.into_iter().for_each(Waker::wake);
        again
    }

    /// There is none any more, and this is why.
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
            // Waiting would not help.
            self.fail_all(&why);
        }
    }

    /// Puts requests into frames, as far as the credit goes and until it is time to send some. Whether there
    /// are more.
    pub(super) fn fill(&self, output: &mut Output, now: Timestamp, has_crc: bool) -> bool {
        let mut state = self.state.lock();
        let state = &mut *state;
        for id in state.cancels.drain(..) {
            output.push(|out| {
                codec::encode_cancel(out, id);
                Segments::new()
            });
        }
        while let Some(id) = state.queue.front().copied() {
            if output.pending_bytes() >= SEND_BYTES {
                return true;
            }
            let slot = &mut state.slots[id.slot as usize];
            if slot.sequence == id.sequence
                && slot.state == SlotState::Queued
                && let Some(request) = &slot.request
            {
                let needed_bytes = slot.cost_bytes;
                if state.can_ask && needed_bytes > state.credits.bytes {
                    // Too large for the grant, whatever else is under way.
                    if state.asked_bytes < needed_bytes {
                        state.asked_bytes = needed_bytes;
                        output.push(|out| {
                            codec::encode_credit(out, needed_bytes, false);
                            Segments::new()
                        });
                    }
                    break;
                }
                if state.sent_bytes > 0 && state.sent_bytes + needed_bytes > state.credits.bytes {
                    break;
                }
                state.sent_bytes += slot.cost_bytes;
                (slot.state, slot.is_owed, slot.was_sent) = (SlotState::Sent, true, true);
                output.push(|out| request.encode(id, now, has_crc, out));
            }
            state.queue.pop_front();
        }
        false
    }

    /// The server grants so many bytes from now on.
    pub(super) fn granted(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.credits.bytes = bytes;
        // Asked again if it is not enough.
        state.asked_bytes = 0;
    }

    /// An answer has arrived. What was asked, if anybody still wants to know.
    ///
    /// # Errors
    /// What is wrong with it: close the connection.
    pub(super) fn answered(
        &self,
        id: RequestId,
        op: Op,
        decode: impl FnOnce() -> Result<Outcome, Error>,
        noted: impl FnOnce(&Request, &Outcome),
    ) -> Result<(), Error> {
        let mut state = self.state.lock();
        let guard = &mut *state;
        let Some(slot) = guard.slots.get_mut(id.slot as usize) else {
            return Err(Error::Invalid("an answer for a slot that there is not".into()));
        };
        if slot.sequence != id.sequence || !slot.is_owed {
            return Err(Error::Invalid("an answer that nobody asked for".into()));
        }
        slot.is_owed = false;
        guard.sent_bytes = guard.sent_bytes.saturating_sub(slot.cost_bytes);
        match slot.state {
            SlotState::Sent => {
                if slot.request.as_ref().is_none_or(|request| request.op() != op) {
                    slot.is_owed = true;
                    return Err(Error::Invalid("an answer to something else".into()));
                }
                let request = slot.request.take();
                let outcome = decode();
                if let (Some(request), Ok(outcome)) = (&request, &outcome) {
                    noted(request, outcome);
                }
                slot.state = SlotState::Done;
                slot.outcome = Some(outcome);
                let waker = slot.waker.take();
                drop(state);
                waker.into_iter().for_each(Waker::wake);
                // The payload is let go outside of the lock.
                drop(request);
            }
            // The caller has been told something else already.
            SlotState::Done => {}
            SlotState::Abandoned => {
                slot.state = SlotState::Free;
                let next = guard.put_back(id.slot);
                drop(state);
                next.into_iter().for_each(Waker::wake);
            }
            SlotState::Free | SlotState::Queued => {
                return Err(Error::Invalid("an answer that nobody asked for".into()));
            }
        }
        Ok(())
    }

    /// The server has cancelled a request, because it was asked to.
    ///
    /// # Errors
    /// As [`Self::answered`].
    pub(super) fn cancelled(&self, id: RequestId) -> Result<(), Error> {
        let op = {
            let state = self.state.lock();
            let slot = state.slots.get(id.slot as usize);
            slot.and_then(|slot| slot.request.as_ref()).map_or(Op::Cancel, |request| request.op())
        };
        self.answered(id, op, || Ok(Outcome::Cancelled), |_, _| ())
    }

    /// Completes when the lane's task has ended.
    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }

    /// The lane's task has ended.
    pub(super) fn end(&self) {
        self.ended.notify_one();
    }

    /// Tells those whose time is up. When to look again, and how many were late.
    pub(super) fn sweep(&self, now: Timestamp) -> (Timestamp, u64) {
        let mut wakers = Vec::new();
        let mut late_count = 0;
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
                let error = if slot.was_sent { late(op) } else { Error::DeadlinePassed };
                late_count += 1;
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
        (due, late_count)
    }

    /// Nobody is to wait any longer for a connection.
    fn fail_all(&self, why: &Error) {
        let mut wakers = Vec::new();
        {
            let mut state = self.state.lock();
            for slot in &mut state.slots {
                match slot.state {
                    SlotState::Queued | SlotState::Sent if slot.was_sent => slot.fail_unanswered(&mut wakers),
                    SlotState::Queued => slot.fail(unreachable(why), &mut wakers),
                    _ => {}
                }
            }
            state.queue.clear();
            wakers.extend(state.waiting.values_mut().filter_map(|waiter| waiter.waker.take()));
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl State {
    fn may_submit(&self, config: &ClientConfig, deadline: Timestamp) -> Result<(), Error> {
        let clock = &config.clock;
        if deadline != NEVER && clock.now() >= deadline {
            return Err(Error::DeadlinePassed);
        }
        if self.is_closed {
            return Err(Error::Retryable("the client is closed".into()));
        }
        match &self.down {
            Some((_, why @ Error::Denied(_))) => Err(why.clone()),
            Some((since, why)) if clock.now().since(*since) >= config.reconnect_timeout => Err(unreachable(why)),
            _ => Ok(()),
        }
    }

    /// Has the task look, unless it is going to.
    fn signal(&mut self) -> Option<Waker> {
        if std::mem::replace(&mut self.is_signalled, true) { None } else { self.task.clone() }
    }

    fn note_deadline(&mut self, deadline: Timestamp) -> Option<Waker> {
        if deadline >= self.due {
            return None;
        }
        self.due = deadline;
        self.signal()
    }

    fn leave(&mut self, ticket: u64) {
        self.waiting.remove(&ticket);
    }

    /// The one who is next in turn, if there is a slot for him.
    fn next_waiter(&mut self) -> Option<Waker> {
        if self.free.is_empty() || self.waiting.is_empty() {
            return None;
        }
        self.waiting.values_mut().next().and_then(|waiter| waiter.waker.take())
    }

    /// A slot is free.
    fn put_back(&mut self, slot: u32) -> Option<Waker> {
        if slot < self.credits.slots {
            self.free.push(slot);
        }
        self.next_waiter()
    }

    /// The caller has what he wants, or does not want it any more. Whom to wake.
    fn release(&mut self, id: RequestId) -> Option<Waker> {
        let slot = &mut self.slots[id.slot as usize];
        slot.waker = None;
        if slot.is_owed {
            slot.state = SlotState::Abandoned;
            self.cancels.push(id);
            return self.signal();
        }
        slot.request = None;
        slot.state = SlotState::Free;
        self.put_back(id.slot)
    }

    /// What becomes of a slot on a new connection.
    fn reconnect(
        &mut self,
        index: u32,
        is_remembered: bool,
        is_granted: bool,
        guesses: bool,
        wakers: &mut Vec<Waker>,
        again: &mut Again,
    ) {
        let limits = self.limits;
        let slot = &mut self.slots[index as usize];
        let id = RequestId { slot: index, sequence: slot.sequence };
        let is_waiting = matches!(slot.state, SlotState::Queued | SlotState::Sent) && !is_remembered;
        // Of a server that remembers the request the limits are the same as before.
        if is_waiting && let Err(error) = slot.fit(&limits) {
            again.unanswered += u64::from(slot.is_owed);
            slot.is_owed = false;
            return match slot.was_sent {
                true => slot.fail_unanswered(wakers),
                false => slot.fail(error, wakers),
            };
        }
        match slot.state {
            SlotState::Free => {
                if is_granted {
                    self.free.push(index);
                }
            }
            // Queued again on a connection that broke before it was sent: it may have been sent before.
            SlotState::Sent | SlotState::Queued if slot.is_owed => {
                let kind = slot.request.as_ref().map_or(Kind::Query, |request| request.op().kind());
                let is_safe = is_remembered || kind != Kind::Change || guesses;
                // Only a session that is remembered still owes an answer to what was sent before.
                slot.is_owed = is_remembered;
                if is_safe && is_granted {
                    slot.state = SlotState::Queued;
                    self.queue.retain(|queued| *queued != id);
                    self.queue.push_back(id);
                    again.resends += 1;
                } else {
                    again.unanswered += 1;
                    slot.fail_unanswered(wakers);
                }
            }
            SlotState::Queued if is_granted => {}
            SlotState::Queued | SlotState::Sent if slot.was_sent => slot.fail_unanswered(wakers),
            SlotState::Queued | SlotState::Sent => {
                slot.fail(Error::Retryable("the server grants fewer requests than before".into()), wakers);
            }
            SlotState::Done | SlotState::Abandoned if !is_remembered => {
                slot.is_owed = false;
                if slot.state == SlotState::Abandoned {
                    slot.state = SlotState::Free;
                    if is_granted {
                        self.free.push(index);
                    }
                }
            }
            // What the server still does of it counts there.
            SlotState::Done if slot.is_owed => self.sent_bytes += slot.cost_bytes,
            SlotState::Done => {}
            SlotState::Abandoned => {
                self.sent_bytes += slot.cost_bytes;
                self.cancels.push(id);
            }
        }
    }

    /// Has a request sent, in its turn.
    fn enqueue(&mut self, id: RequestId) {
        // Without a connection nothing else removes those whose callers have gone.
        if self.queue.len() >= 2 * self.slots.len() {
            let slots = &self.slots;
            self.queue.retain(|queued| {
                let slot = &slots[queued.slot as usize];
                slot.sequence == queued.sequence && slot.state == SlotState::Queued
            });
        }
        self.queue.push_back(id);
    }
}

impl Slot {
    /// Makes the request fit the server's limits, which may be others than those that it was made for.
    fn fit(&mut self, limits: &Capabilities) -> Result<(), Error> {
        let Some(request) = &mut self.request else { return Ok(()) };
        request.fit(limits)?;
        self.cost_bytes = request.cost_bytes(limits);
        Ok(())
    }

    fn fail(&mut self, error: Error, wakers: &mut Vec<Waker>) {
        self.state = SlotState::Done;
        self.outcome = Some(Err(error));
        wakers.extend(self.waker.take());
    }

    /// It was sent, and there will be no answer.
    fn fail_unanswered(&mut self, wakers: &mut Vec<Waker>) {
        let op = self.request.as_ref().map_or(Op::Ping, |request| request.op());
        self.fail(unanswered(op), wakers);
    }
}

/// What a request answers whose deadline passes after it was sent.
fn late(op: Op) -> Error {
    const WHY: &str = "no answer before the deadline";
    match op.kind() {
        Kind::Change => Error::OutcomeUnknown(WHY.into()),
        Kind::Flush => Error::NotStored(WHY.into()),
        Kind::Repeatable if op == Op::Claim => Error::OutcomeUnknown(WHY.into()),
        Kind::Repeatable => Error::Retryable(WHY.into()),
        Kind::Query | Kind::Connection => Error::DeadlinePassed,
    }
}

/// What a request answers that was sent, and whose answer cannot be had any more.
fn unanswered(op: Op) -> Error {
    const WHY: &str = "the server went before it answered";
    match op.kind() {
        Kind::Change => Error::OutcomeUnknown(WHY.into()),
        Kind::Flush => Error::NotStored(WHY.into()),
        Kind::Repeatable if op == Op::Claim => Error::OutcomeUnknown(WHY.into()),
        Kind::Repeatable | Kind::Query | Kind::Connection => Error::Retryable(WHY.into()),
    }
}

/// What a request answers that was never sent because there is no connection.
fn unreachable(why: &Error) -> Error {
    match why {
        Error::Denied(_) => why.clone(),
        Error::Retryable(text) => Error::Retryable(text.clone()),
        other => Error::Retryable(format!("not connected: {other}").into()),
    }
}

#[cfg(test)]
mod tests {
    use blocker::{Name, Namespace, ObjectId, WriteRequest};

    use super::*;
    use crate::stream::Address;

    fn lane(slots: u32) -> Lane {
        let mut config = ClientConfig::new(Address::Unix("nowhere".into()));
        config.slots = slots;
        Lane::new(0, &config, Capabilities::full(4 << 20), Timestamp(0))
    }

    fn welcome(slots: u32, bytes: u64, is_resumed: bool) -> Welcome {
        let mut welcome = Welcome::new([1; 16], 1, Credits { slots, bytes }, Capabilities::full(4 << 20));
        (welcome.is_resumed, welcome.features) = (is_resumed, Features(Features::CREDIT));
        welcome
    }

    fn write(len: usize) -> Option<Request> {
        let object = ObjectId::new(Namespace::new("n").unwrap(), Name::new("o").unwrap());
        Some(Request::Write(WriteRequest::new(object, 0, vec![1; len])))
    }

    fn submit(lane: &Lane, len: usize) -> RequestId {
        match lane.submit(&mut write(len), None, &Context::from_waker(Waker::noop())) {
            Submitted::Queued(id) => id,
            _ => panic!("no slot"),
        }
    }

    #[test]
    fn calls_dropped_while_there_is_no_connection_leave_nothing_in_the_queue() {
        let lane = lane(4);
        lane.connected(&welcome(4, 1 << 20, false));
        lane.disconnected(Timestamp(0), Error::Retryable("gone".into()));
        let kept = submit(&lane, 10);
        for _ in 0..1000 {
            lane.abandon(submit(&lane, 10));
        }
        let state = lane.state.lock();
        assert!(state.queue.len() <= 8, "{}", state.queue.len());
        assert!(state.queue.contains(&kept));
    }

    #[test]
    fn what_the_server_still_does_for_callers_that_have_gone_counts_on_the_next_connection() {
        let lane = lane(4);
        lane.connected(&welcome(4, 1 << 20, false));
        let gone = submit(&lane, 100_000);
        lane.fill(&mut Output::default(), Timestamp(0), false);
        lane.abandon(gone);
        let sent_bytes = lane.state.lock().sent_bytes;
        assert!(sent_bytes > 100_000);
        lane.disconnected(Timestamp(0), Error::Retryable("gone".into()));
        lane.connected(&welcome(4, 150_000, true));
        assert_eq!(lane.state.lock().sent_bytes, sent_bytes);
        // Another of the kind has to wait for the answer to the cancellation.
        let next = submit(&lane, 100_000);
        lane.fill(&mut Output::default(), Timestamp(0), false);
        assert_eq!(lane.state.lock().slots[next.slot as usize].state, SlotState::Queued);
        lane.cancelled(gone).unwrap();
        assert_eq!(lane.state.lock().sent_bytes, 0);
        lane.fill(&mut Output::default(), Timestamp(0), false);
        assert_eq!(lane.state.lock().slots[next.slot as usize].state, SlotState::Sent);
    }

    #[test]
    fn a_request_larger_than_the_grant_is_asked_for_once_and_sent_when_it_is_granted() {
        let lane = lane(4);
        lane.connected(&welcome(4, 50_000, false));
        let id = submit(&lane, 100_000);
        let mut output = Output::default();
        for _ in 0..3 {
            lane.fill(&mut output, Timestamp(0), false);
        }
        assert_eq!(output.pending_bytes(), codec::HEADER_BYTES, "asked more than once");
        lane.granted(60_000);
        lane.fill(&mut output, Timestamp(0), false);
        assert_eq!(output.pending_bytes(), 2 * codec::HEADER_BYTES, "not asked again");
        lane.granted(1 << 20);
        lane.fill(&mut output, Timestamp(0), false);
        assert_eq!(lane.state.lock().slots[id.slot as usize].state, SlotState::Sent);
    }
}
