//! The order of requests whose owner has refused some of their slot.
//!
//! ```text
//!  set k 1 ──► refused ─────────────► waits for the next occasion ─► sent with AGAIN ──► executed
//!  set k 2 ──► refused, even if the owner executes the slot by now ─► waits for this ─┘└─► sent
//! ```
//! Until the owner has executed one request of such a slot, one at a time tries: connections that wait
//! for the same slot do not all ask in vain.

use super::lanes::{LaneId, Lanes, Route};
use cached_proto::text::Request;
use cached_proto::{Decoded, Limits, text};
use cached_ring::{Flags, Outbound, Slot, slot_of};
use std::collections::HashMap;
use std::time::Instant;

/// The slots of a lane of which the owner has refused requests with one key. A retrieval of several
/// keys needs no order: nothing is changed before it is complete.
#[derive(Default)]
pub(super) struct Pauses(HashMap<Slot, Pause>);

enum Pause {
    /// A request was refused in this epoch, and none was sent since.
    Refused(u64),
    /// One request was sent since.
    Tried,
}

/// The time at which a request may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Now,
    /// After the answers to other requests of its slot.
    AfterAnswers,
    /// In the next epoch.
    Later,
}

impl Pauses {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes that the owner has refused the request `own`.
    #[cold]
    pub(super) fn refused(&mut self, slot: Option<Slot>, flags: Flags, own: &[u8], epoch: u64) {
        if let Some(slot) = slot
            && others(flags, own).is_empty()
        {
            self.0.insert(slot, Pause::Refused(epoch));
        }
    }

    /// Returns whether the request `own`, whose first key has this slot, may be sent in this epoch on
    /// a lane with room for it. If so, it is sent. A retrieval of several keys, one of which waits,
    /// is never sent as one.
    #[cold]
    pub(super) fn admit(
        &mut self,
        slot: Slot,
        flags: Flags,
        own: &[u8],
        epoch: u64,
        lane: &Outbound,
    ) -> Admission {
        let epoch_of = |slot: &Slot| match self.0.get(slot) {
            Some(Pause::Refused(epoch)) => Some(*epoch),
            Some(Pause::Tried) | None => None,
        };
        let others = others(flags, own);
        if !others.is_empty() {
            // With AGAIN it would end the refusals of all slots, while requests of some are in flight.
            let waits = |slot: &Slot| {
                lane.is_refused(*slot) || self.0.contains_key(slot) && lane.has_in_flight(*slot)
            };
            let is_one = waits(&slot) || others.iter().any(waits);
            return if is_one { Admission::Later } else { Admission::Now };
        }
        if epoch_of(&slot) == Some(epoch) {
            return Admission::Later;
        }
        let is_paused = lane.is_refused(slot) || self.0.contains_key(&slot);
        if is_paused && lane.has_in_flight(slot) {
            return Admission::AfterAnswers;
        }
        match self.0.get_mut(&slot) {
            Some(pause @ Pause::Refused(_)) => *pause = Pause::Tried,
            // The answer has come, and was no refusal.
            Some(Pause::Tried) => drop(self.0.remove(&slot)),
            None => {}
        }
        Admission::Now
    }
}

/// The waits of connections.
impl Lanes {
    /// Returns whether requests of the slot are unanswered at its previous owner.
    #[cold]
    pub(super) fn holds(&self, slot: Slot) -> bool {
        self.held.get(&slot).is_some_and(|lane| self.lanes[usize::from(*lane)].outbound.has_in_flight(slot))
    }

    /// Lets the connection in `slot` wait for the next occasion at which refused requests may be sent
    /// again.
    pub(crate) fn wait(&mut self, slot: u32) {
        self.again.insert(slot);
    }

    /// Lets the connection in `slot` wait until `held` can be routed.
    pub(crate) fn wait_for(&mut self, slot: u32, held: Slot) {
        match self.held.get(&held) {
            Some(lane) => self.lanes[usize::from(*lane)].ordered.insert(slot),
            None => self.again.insert(slot),
        };
    }

    /// Returns the number of occasions so far at which refused requests may be sent again.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns whether a request that began to wait at `since` waits no longer.
    pub(crate) fn is_over(&self, since: Instant) -> bool {
        self.gives_up || since.elapsed() >= self.limits.resume_within
    }

    /// Returns whether requests go to the peer to which another one was sent.
    pub(crate) fn leads_to(&self, route: Route, id: LaneId) -> bool {
        let Route::Peer(node) = route else { return false };
        self.of_node.get(node.index()).copied().flatten() == Some(id.lane)
    }

    /// Holds the slots back whose owner has changed while requests for them are unanswered.
    pub(super) fn hold_slots(&mut self) {
        for (at, lane) in (0..).zip(&mut self.lanes) {
            let owner = |slot: &Slot| self.of_node[self.map.owner(*slot).index()];
            lane.pauses.0.retain(|slot, _| owner(slot) == Some(at));
        }
        for (at, lane) in (0..).zip(&self.lanes) {
            for slot in lane.outbound.slots_in_flight() {
                let owner = self.of_node[self.map.owner(slot).index()];
                if owner != Some(at) {
                    self.held.entry(slot).or_insert(at);
                }
            }
        }
    }

    /// Lets refused requests be sent again, and wakes the connections that have some.
    pub(crate) fn retry(&mut self) {
        self.epoch += 1;
        for lane in self.lanes.iter_mut().filter(|lane| !lane.pauses.is_empty()) {
            lane.pauses.0.retain(|slot, pause| {
                matches!(pause, Pause::Refused(_)) || lane.outbound.has_in_flight(*slot)
            });
        }
        self.woken.extend(std::mem::take(&mut self.again));
        for lane in &mut self.lanes {
            self.woken.extend(std::mem::take(&mut lane.ordered));
        }
        if !self.held.is_empty() {
            let mut held = std::mem::take(&mut self.held);
            held.retain(|slot, lane| self.lanes[usize::from(*lane)].outbound.has_in_flight(*slot));
            self.held = held;
        }
    }

    /// Returns whether connections wait for [`retry`](Self::retry).
    pub(crate) fn is_waiting(&self) -> bool {
        !self.again.is_empty()
    }

    /// Lets requests that no owner executes fail at once, or no longer.
    pub(crate) fn set_gives_up(&mut self, gives_up: bool) {
        self.gives_up = gives_up;
        self.retry();
    }
}

/// Returns the slots of the keys after the first one.
fn others(flags: Flags, own: &[u8]) -> Vec<Slot> {
    if flags.has(Flags::BINARY) {
        return Vec::new();
    }
    match text::decode(own, 0, &Limits::DEFAULT) {
        Decoded::Request { request: Request::Get(mut get), .. } => {
            std::iter::from_fn(|| get.next_key()).skip(1).map(slot_of).collect()
        }
        _ => Vec::new(),
    }
}
