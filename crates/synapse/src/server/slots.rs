//! The slots of a session: the last request in each, and its outcome.
//!
//! A client reuses a slot only when it has the answer (sessions as in NFSv4.1, RFC 8881, 2.10.6).
//! So a server remembers one outcome per slot, with which it answers a resent request without
//! executing it again. The window is exactly the number of granted slots: a request is either in it
//! or finished.
//!
//! ```text
//!            begin, new sequence              complete
//!   idle ───────────────────────► executing ───────────► answered ──┐
//!     ▲                             │  begin, same: wait            │ begin, same: replay
//!     │                             │  cancel: abort                │ cancel: answer, unless it was
//!     └── never again               └───────────────────────────────┴─► begin, new: executing
//! ```
//!
//! The answer *Cancelled* is given only for a request that has changed nothing and never will: a
//! request that never arrived, or a query. The outcome of a change whose task was aborted is
//! unknown, since the backend may have begun it.

use tokio::task::AbortHandle;

use blocker::Error;

use crate::codec::{Kind, Op, Outcome, RequestId};

/// The memory use of a slot, in bytes.
pub(super) const SLOT_BYTES: u64 = size_of::<Slot>() as u64;
const _: () = assert!(SLOT_BYTES <= 192);

/// The handling of a request that has arrived.
#[derive(Debug)]
pub(super) enum Begin {
    /// The request is new, or may be executed again: the caller must execute it, then call
    /// [`Slots::complete`].
    Execute,
    /// The request was executed before: the caller must answer with this outcome.
    Replay(Outcome),
    /// The request is being executed.
    Wait,
    /// The client breaks the protocol.
    Refuse(&'static str),
}

/// The handling of a cancellation.
#[derive(Debug)]
pub(super) enum Cancel {
    /// The caller must abort the task; the answer follows from [`Slots::complete`].
    Abort(AbortHandle),
    /// The request never began, or its answer was lost: the caller must answer with this outcome of
    /// this operation.
    Answer(Op, Outcome),
    /// The answer to the request is being sent.
    Ignore,
    /// The client breaks the protocol.
    Refuse(&'static str),
}

#[derive(Debug, Default)]
struct Slot {
    sequence: u32,
    /// Whether the client waits for the answer on this connection, or has received it there.
    is_awaited: bool,
    state: State,
    cost_bytes: u64,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Executing {
        op: Op,
        abort: Option<AbortHandle>,
        is_cancelled: bool,
    },
    /// The request has been answered; the outcome is `None` if it is not kept.
    Answered {
        op: Op,
        outcome: Option<Outcome>,
    },
}

/// All slots of a session. The connection that serves the session owns them.
#[derive(Debug)]
pub(super) struct Slots {
    /// The slots used so far. Most clients never use all granted ones.
    slots: Vec<Slot>,
    count_max: u32,
    /// The total cost of the outstanding requests, in bytes.
    cost_bytes: u64,
    executing_count: u32,
    remembers: bool,
}

const NO_SLOT: &str = "the slot is beyond what was granted";

impl Slots {
    pub(super) fn new(count: u32, remembers: bool) -> Self {
        Self { slots: Vec::new(), count_max: count, cost_bytes: 0, executing_count: 0, remembers }
    }

    pub(super) fn count(&self) -> u32 {
        self.count_max
    }

    /// Returns the slot with this number, if the client has been granted it.
    fn slot(&mut self, number: u32) -> Option<&mut Slot> {
        let index = number as usize;
        if number < self.count_max && index >= self.slots.len() {
            self.slots.resize_with(index + 1, Slot::default);
        }
        self.slots.get_mut(index)
    }

    /// Returns the number of requests that are being executed.
    pub(super) fn executing_count(&self) -> u32 {
        self.executing_count
    }

    /// Returns the total cost of the outstanding requests, in bytes.
    pub(super) fn cost_bytes(&self) -> u64 {
        self.cost_bytes
    }

    /// Handles the arrival of a request.
    pub(super) fn begin(&mut self, id: RequestId, op: Op, cost_bytes: u64) -> Begin {
        let remembers = self.remembers;
        let Some(slot) = self.slot(id.slot) else { return Begin::Refuse(NO_SLOT) };
        let step = id.sequence.wrapping_sub(slot.sequence);
        let is_fresh = matches!(slot.state, State::Idle);
        if step == 0 && !is_fresh {
            match &slot.state {
                State::Executing { op: under_way, .. } if *under_way == op => {
                    slot.is_awaited = true;
                    return Begin::Wait;
                }
                State::Answered { op: done, .. } if !matches!(done, Op::Cancel) && *done != op => {
                    return Begin::Refuse("the slot was used for something else");
                }
                State::Answered { outcome: Some(outcome), .. } if remembers => {
                    slot.is_awaited = true;
                    return Begin::Replay(outcome.clone());
                }
                // A request whose outcome is not kept may be executed again.
                State::Answered { .. } | State::Idle => {}
                State::Executing { .. } => return Begin::Refuse("the slot is in use by another operation"),
            }
        } else if step > u32::MAX / 2 && !is_fresh {
            return Begin::Refuse("the slot has been used since");
        } else if matches!(slot.state, State::Executing { .. }) {
            return Begin::Refuse("the slot is in use");
        }
        slot.sequence = id.sequence;
        slot.is_awaited = true;
        slot.cost_bytes = cost_bytes;
        slot.state = State::Executing { op, abort: None, is_cancelled: false };
        self.cost_bytes += cost_bytes;
        self.executing_count += 1;
        Begin::Execute
    }

    /// Records the task that executes a request, so that it can be aborted.
    pub(super) fn set_abort(&mut self, id: RequestId, handle: AbortHandle) {
        if let Some(Slot { sequence, state: State::Executing { abort, .. }, .. }) =
            self.slots.get_mut(id.slot as usize)
            && *sequence == id.sequence
        {
            *abort = Some(handle);
        }
    }

    /// Records that a request is done, with `None` if its task has ended without an outcome.
    /// Returns the answer, if the client waits for it on this connection.
    pub(super) fn complete(&mut self, id: RequestId, outcome: Option<Outcome>) -> Option<(Op, Outcome)> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        let State::Executing { op, is_cancelled, .. } = slot.state else { return None };
        if slot.sequence != id.sequence {
            return None;
        }
        self.executing_count -= 1;
        self.cost_bytes -= std::mem::take(&mut slot.cost_bytes);
        let outcome = match outcome {
            Some(outcome) => outcome,
            None if is_cancelled => aborted(op),
            None => Outcome::Failed(Error::OutcomeUnknown("the server's backend has failed".into())),
        };
        let is_kept = op.keeps_outcome() && self.remembers;
        if slot.is_awaited {
            slot.state = State::Answered { op, outcome: is_kept.then(|| outcome.clone()) };
            Some((op, outcome))
        } else {
            slot.state = State::Answered { op, outcome: is_kept.then_some(outcome) };
            None
        }
    }

    /// Handles that the client cancels a request.
    pub(super) fn cancel(&mut self, id: RequestId) -> Cancel {
        let Some(slot) = self.slot(id.slot) else { return Cancel::Refuse(NO_SLOT) };
        let step = id.sequence.wrapping_sub(slot.sequence);
        match &mut slot.state {
            State::Executing { abort, is_cancelled, .. } if step == 0 => {
                slot.is_awaited = true;
                *is_cancelled = true;
                abort.take().map_or(Cancel::Ignore, Cancel::Abort)
            }
            State::Answered { .. } if step == 0 && std::mem::replace(&mut slot.is_awaited, true) => {
                Cancel::Ignore
            }
            // The answer was lost with a connection. A query has changed nothing.
            State::Answered { op, outcome } if step == 0 => match outcome {
                Some(outcome) => Cancel::Answer(*op, outcome.clone()),
                None => Cancel::Answer(Op::Cancel, aborted(*op)),
            },
            State::Executing { .. } => Cancel::Refuse("a cancellation for a slot in use"),
            State::Answered { .. } if step > u32::MAX / 2 => Cancel::Ignore,
            // The request has not arrived yet, and will not be executed if it does.
            _ => {
                (slot.sequence, slot.is_awaited) = (id.sequence, true);
                slot.state = State::Answered { op: Op::Cancel, outcome: Some(Outcome::Cancelled) };
                Cancel::Answer(Op::Cancel, Outcome::Cancelled)
            }
        }
    }

    /// Handles the end of the connection: no answer is sent until the client resends the request on
    /// another one.
    pub(super) fn disconnect(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.is_awaited = false);
    }
}

/// Returns the outcome of a request whose task was aborted by a cancellation.
fn aborted(op: Op) -> Outcome {
    const WHY: &str = "cancelled while it was being executed";
    match op.kind() {
        Kind::Query | Kind::Connection => Outcome::Cancelled,
        Kind::Flush => Outcome::Failed(Error::NotStored(WHY.into())),
        Kind::Change | Kind::Repeatable => Outcome::Failed(Error::OutcomeUnknown(WHY.into())),
    }
}

#[cfg(test)]
mod tests {
    use blocker::{ChangeReply, Durability, Version};

    use super::*;
    use crate::codec::Answer;

    fn id(sequence: u32) -> RequestId {
        RequestId { slot: 0, sequence }
    }

    fn changed(version: u64) -> Outcome {
        Outcome::Answered(Answer::Change(ChangeReply::new(Version(version), 0, Durability::Stored)))
    }

    fn version(outcome: &Outcome) -> u64 {
        match outcome {
            Outcome::Answered(Answer::Change(reply)) => reply.version.0,
            other => panic!("not a change: {other:?}"),
        }
    }

    #[test]
    fn a_repeated_request_is_answered_again_and_not_executed_again() {
        let mut slots = Slots::new(1, true);
        assert!(matches!(slots.begin(id(1), Op::Write, 10), Begin::Execute));
        assert_eq!((slots.cost_bytes(), slots.executing_count()), (10, 1));
        // The connection breaks during the execution: no response is sent, then the request is
        // resent.
        slots.disconnect();
        assert!(slots.complete(id(1), Some(changed(7))).is_none());
        assert_eq!((slots.cost_bytes(), slots.executing_count()), (0, 0));
        for _ in 0..2 {
            let Begin::Replay(outcome) = slots.begin(id(1), Op::Write, 10) else { panic!("not replayed") };
            assert_eq!(version(&outcome), 7);
        }
        assert!(matches!(slots.begin(id(2), Op::Write, 10), Begin::Execute));
        assert!(matches!(slots.begin(id(1), Op::Write, 10), Begin::Refuse(_)));
    }

    #[test]
    fn a_request_repeated_while_it_is_executed_is_answered_once() {
        let mut slots = Slots::new(1, true);
        assert!(matches!(slots.begin(id(1), Op::Write, 0), Begin::Execute));
        slots.disconnect();
        assert!(matches!(slots.begin(id(1), Op::Write, 0), Begin::Wait));
        assert!(matches!(slots.begin(id(2), Op::Write, 0), Begin::Refuse(_)));
        assert!(matches!(slots.begin(id(1), Op::Delete, 0), Begin::Refuse(_)));
        assert!(slots.complete(id(1), Some(changed(1))).is_some());
        assert!(slots.complete(id(1), Some(changed(1))).is_none());
    }

    #[test]
    fn queries_are_executed_again_and_their_outcomes_not_kept() {
        let mut slots = Slots::new(1, true);
        assert!(matches!(slots.begin(id(1), Op::Info, 0), Begin::Execute));
        assert!(slots.complete(id(1), Some(changed(1))).is_some());
        assert!(matches!(slots.slots[0].state, State::Answered { outcome: None, .. }));
        slots.disconnect();
        assert!(matches!(slots.begin(id(1), Op::Info, 0), Begin::Execute));
    }

    #[test]
    fn a_cancellation_is_answered_exactly_once_at_any_time() {
        let mut slots = Slots::new(1, true);
        // A request that is cancelled before it arrives never begins.
        assert!(matches!(slots.cancel(id(1)), Cancel::Answer(Op::Cancel, Outcome::Cancelled)));
        let Begin::Replay(outcome) = slots.begin(id(1), Op::Write, 0) else { panic!("it began after all") };
        assert!(matches!(outcome, Outcome::Cancelled));
        // If there is no task to cancel during the execution, the response follows anyway.
        assert!(matches!(slots.begin(id(2), Op::Write, 0), Begin::Execute));
        assert!(matches!(slots.cancel(id(2)), Cancel::Ignore));
        // The outcome is unknown: *cancelled* would mean that nothing was changed.
        let aborted = slots.complete(id(2), None);
        assert!(matches!(aborted, Some((Op::Write, Outcome::Failed(Error::OutcomeUnknown(_))))));
        // This cancellation arrives late.
        assert!(matches!(slots.cancel(id(2)), Cancel::Ignore));
        assert!(matches!(slots.cancel(id(1)), Cancel::Ignore));
        // The answer was lost with the connection.
        slots.disconnect();
        let again = slots.cancel(id(2));
        assert!(matches!(again, Cancel::Answer(Op::Write, Outcome::Failed(Error::OutcomeUnknown(_)))));
        assert!(matches!(slots.cancel(id(2)), Cancel::Ignore));
        // For a request that was already executed, the response is its outcome.
        assert!(matches!(slots.begin(id(3), Op::Write, 0), Begin::Execute));
        slots.disconnect();
        assert!(slots.complete(id(3), Some(changed(3))).is_none());
        let Cancel::Answer(Op::Write, outcome) = slots.cancel(id(3)) else { panic!("not answered") };
        assert_eq!(version(&outcome), 3);
        // An aborted query has changed nothing.
        assert!(matches!(slots.begin(id(4), Op::Read, 0), Begin::Execute));
        assert!(matches!(slots.complete_aborted(id(4)), Some((Op::Read, Outcome::Cancelled))));
        assert!(matches!(slots.cancel(RequestId { slot: 1, sequence: 1 }), Cancel::Refuse(_)));
    }

    impl Slots {
        fn complete_aborted(&mut self, id: RequestId) -> Option<(Op, Outcome)> {
            self.cancel(id);
            self.complete(id, None)
        }
    }

    #[test]
    fn slots_take_memory_only_where_they_are_used() {
        let mut slots = Slots::new(65_536, true);
        assert!(matches!(slots.begin(id(1), Op::Write, 0), Begin::Execute));
        assert_eq!((slots.slots.len(), slots.count()), (1, 65_536));
        let far = RequestId { slot: 65_535, sequence: 1 };
        assert!(matches!(slots.begin(far, Op::Write, 0), Begin::Execute));
        assert!(slots.complete(far, Some(changed(1))).is_some());
        let beyond = RequestId { slot: 65_536, sequence: 1 };
        assert!(matches!(slots.begin(beyond, Op::Write, 0), Begin::Refuse(NO_SLOT)));
    }

    #[test]
    fn a_repeated_request_of_another_operation_is_refused() {
        let mut slots = Slots::new(1, true);
        slots.begin(id(1), Op::Write, 0);
        slots.complete(id(1), Some(changed(1)));
        assert!(matches!(slots.begin(id(1), Op::Delete, 0), Begin::Refuse(_)));
    }

    #[test]
    fn sequences_wrap_around() {
        let mut slots = Slots::new(1, true);
        for sequence in [u32::MAX / 2, u32::MAX - 1, u32::MAX, 0, 1] {
            assert!(matches!(slots.begin(id(sequence), Op::Write, 0), Begin::Execute), "{sequence}");
            slots.complete(id(sequence), Some(changed(1)));
        }
    }

    #[test]
    fn a_task_without_an_outcome_leaves_an_unknown_outcome() {
        let mut slots = Slots::new(1, true);
        slots.begin(id(1), Op::Write, 0);
        let Some((_, Outcome::Failed(error))) = slots.complete(id(1), None) else { panic!("not answered") };
        assert!(error.is_ambiguous());
    }
}
