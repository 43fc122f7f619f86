//! The state under a lane's lock: its slots, the queue for the connection, and calls that wait for
//! a slot.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use blocker::{Capabilities, Error, ObjectId, Timestamp};

use super::super::config::ClientConfig;
use super::{NEVER, Resent, unanswered_error, unreachable_error};
use crate::codec::{Credits, Features, Kind, Op, Outcome, Request, RequestId};

pub(super) struct State {
    pub(super) slots: Vec<Slot>,
    pub(super) free: Vec<u32>,
    /// Requests to send, in order. Entries that are no longer queued are skipped.
    pub(super) queue: VecDeque<RequestId>,
    pub(super) cancels: Vec<RequestId>,
    pub(super) waiting: BTreeMap<u64, Waiter>,
    pub(super) next_ticket: u64,
    /// The session generation of the last welcome.
    pub(super) generation: Option<u64>,
    /// The server's grant.
    pub(super) credits: Credits,
    /// Whether a larger grant may be requested.
    pub(super) can_request_credit: bool,
    /// The credit that was requested for the next request, which exceeds the grant; 0 if none was
    /// requested.
    pub(super) requested_bytes: u64,
    /// The cost of unanswered requests.
    pub(super) sent_bytes: u64,
    /// The waker of the lane's task.
    pub(super) task: Option<Waker>,
    pub(super) is_signalled: bool,
    pub(super) is_closed: bool,
    /// The next deadline, or an earlier time.
    pub(super) due: Timestamp,
    /// The time at which the connection was lost, and the cause; `None` while connected.
    pub(super) down: Option<(Timestamp, Error)>,
    /// The server's limits, from the last welcome.
    pub(super) limits: Capabilities,
    pub(super) features: Features,
}

pub(super) struct Waiter {
    pub(super) waker: Option<Waker>,
    pub(super) deadline: Timestamp,
}

#[derive(Default)]
pub(super) struct Slot {
    pub(super) sequence: u32,
    pub(super) state: SlotState,
    pub(super) request: Option<Request>,
    /// The result for the caller, once the request is done.
    pub(super) outcome: Option<Result<Outcome, Error>>,
    pub(super) waker: Option<Waker>,
    pub(super) deadline: Timestamp,
    pub(super) cost_bytes: u64,
    /// Whether the server has still to answer the request.
    pub(super) is_owed: bool,
    /// Whether the request was ever sent. If so, it may have been executed, even if it is queued
    /// again.
    pub(super) was_sent: bool,
    /// Whether an earlier connection has sent the request.
    pub(super) was_sent_before: bool,
    /// The object that the request changes, while the change is in doubt.
    pub(super) doubt: Option<ObjectId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum SlotState {
    #[default]
    Free,
    Queued,
    Sent,
    Done,
    Abandoned,
}

impl State {
    pub(super) fn may_submit(&self, config: &ClientConfig, deadline: Timestamp) -> Result<(), Error> {
        let clock = &config.clock;
        if deadline != NEVER && clock.now() >= deadline {
            return Err(Error::DeadlinePassed);
        }
        if self.is_closed {
            return Err(Error::Retryable("the client is closed".into()));
        }
        match &self.down {
            Some((_, why @ Error::Denied(_))) => Err(why.clone()),
            Some((since, why)) if clock.now().since(*since) >= config.reconnect_timeout => {
                Err(unreachable_error(why))
            }
            _ => Ok(()),
        }
    }

    /// Returns the waker of the lane's task, unless the task has been signalled already.
    pub(super) fn signal(&mut self) -> Option<Waker> {
        if std::mem::replace(&mut self.is_signalled, true) { None } else { self.task.clone() }
    }

    pub(super) fn note_deadline(&mut self, deadline: Timestamp) -> Option<Waker> {
        if deadline >= self.due {
            return None;
        }
        self.due = deadline;
        self.signal()
    }

    pub(super) fn remove_waiter(&mut self, ticket: u64) {
        self.waiting.remove(&ticket);
    }

    /// Returns the waker of the first call that waits for a slot, if a slot is free.
    pub(super) fn next_waiter(&mut self) -> Option<Waker> {
        if self.free.is_empty() || self.waiting.is_empty() {
            return None;
        }
        self.waiting.values_mut().next().and_then(|waiter| waiter.waker.take())
    }

    /// Frees a slot. Returns the waker of the call that may take it.
    pub(super) fn free_slot(&mut self, slot: u32) -> Option<Waker> {
        if slot < self.credits.slots {
            self.free.push(slot);
        }
        self.next_waiter()
    }

    /// Frees the slot of a caller that has its outcome, or has dropped the request. Returns the
    /// waker to wake.
    pub(super) fn release(&mut self, id: RequestId) -> Option<Waker> {
        let slot = &mut self.slots[id.slot as usize];
        slot.waker = None;
        if slot.is_owed {
            slot.state = SlotState::Abandoned;
            self.cancels.push(id);
            return self.signal();
        }
        slot.request = None;
        slot.state = SlotState::Free;
        self.free_slot(id.slot)
    }

    /// Decides what happens to a slot on a new connection: its request is resent, fails, or is
    /// cancelled.
    pub(super) fn reconnect(
        &mut self,
        index: u32,
        is_remembered: bool,
        is_granted: bool,
        guesses: bool,
        wakers: &mut Vec<Waker>,
        resent: &mut Resent,
    ) {
        let (limits, features) = (self.limits, self.features);
        let slot = &mut self.slots[index as usize];
        let id = RequestId { slot: index, sequence: slot.sequence };
        let is_waiting = matches!(slot.state, SlotState::Queued | SlotState::Sent) && !is_remembered;
        // A server that remembers the request has accepted it under its old limits.
        if is_waiting && let Err(error) = slot.fit(&limits, features) {
            resent.lost_count += u64::from(slot.is_owed);
            slot.is_owed = false;
            return match slot.was_sent {
                true => slot.fail_lost(wakers),
                false => slot.fail(error, wakers),
            };
        }
        match slot.state {
            SlotState::Free => {
                if is_granted {
                    self.free.push(index);
                }
            }
            // A queued request may have been sent on the connection before the last, which broke
            // before it was resent.
            SlotState::Sent | SlotState::Queued if slot.is_owed => {
                let kind = slot.request.as_ref().map_or(Kind::Query, |request| request.op().kind());
                let is_safe = is_remembered || kind != Kind::Change || guesses;
                // Only a remembered session still owes an answer to an earlier request.
                slot.is_owed = is_remembered;
                if is_safe && is_granted {
                    slot.state = SlotState::Queued;
                    self.queue.retain(|queued| *queued != id);
                    self.queue.push_back(id);
                    resent.count += 1;
                } else {
                    resent.lost_count += 1;
                    slot.fail_lost(wakers);
                }
            }
            SlotState::Queued if is_granted => {}
            SlotState::Queued | SlotState::Sent if slot.was_sent => slot.fail_lost(wakers),
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
            // The server still counts the request against the grant.
            SlotState::Done if slot.is_owed => self.sent_bytes += slot.cost_bytes,
            SlotState::Done => {}
            SlotState::Abandoned => {
                self.sent_bytes += slot.cost_bytes;
                self.cancels.push(id);
            }
        }
    }

    /// Handles that the server has shut down after answering all requests that it had begun.
    /// Unanswered requests were not executed, unless an earlier connection had sent them as well;
    /// they wait to be resent to the next server. Returns their number.
    pub(super) fn take_back_unexecuted(&mut self) -> u64 {
        let mut count = 0;
        for index in 0..self.slots.len() as u32 {
            let slot = &mut self.slots[index as usize];
            if slot.state != SlotState::Sent || slot.was_sent_before {
                continue;
            }
            (slot.state, slot.is_owed, slot.was_sent) = (SlotState::Queued, false, false);
            let id = RequestId { slot: index, sequence: slot.sequence };
            self.enqueue(id);
            count += 1;
        }
        count
    }

    /// Appends a request to the queue.
    pub(super) fn enqueue(&mut self, id: RequestId) {
        // Without a connection, only this removes requests that their callers have dropped.
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
    /// Adapts the request to the server's limits, which may have changed.
    pub(super) fn fit(&mut self, limits: &Capabilities, features: Features) -> Result<(), Error> {
        let Some(request) = &mut self.request else { return Ok(()) };
        request.fit(limits, features)?;
        self.cost_bytes = request.cost_bytes(limits);
        Ok(())
    }

    /// Makes `error` the outcome of the request.
    pub(super) fn fail(&mut self, error: Error, wakers: &mut Vec<Waker>) {
        self.state = SlotState::Done;
        self.outcome = Some(Err(error));
        wakers.extend(self.waker.take());
    }

    /// Fails a request that was sent and will not be answered.
    pub(super) fn fail_lost(&mut self, wakers: &mut Vec<Waker>) {
        let op = self.request.as_ref().map_or(Op::Ping, |request| request.op());
        self.fail(unanswered_error(op, "the server was gone before it answered"), wakers);
    }
}
