//! The invariants of one object.

use super::{Env, Known, Object};
use crate::object::memory::geometry::BUCKET_U64;
use crate::object::memory::slots::{STATES, State};

impl Object {
    /// Checks every invariant that needs nothing but the object; returns the number of slots in each state.
    pub(crate) fn validate(&self, env: &Env<'_>) -> Result<[u64; STATES], String> {
        let mut counts = [0; STATES];
        let end = self.head.size.div_ceil(BUCKET_U64);
        for (at, slot) in self.slots.known_from(0) {
            counts[slot.state() as usize] += 1;
            if self.head.known == Known::Present && u64::from(at) >= end {
                return Err(format!("slot {at} is {:?} beyond the end {}", slot.state(), self.head.size));
            }
            if slot.state().has_bucket() {
                let meta = env.meta(slot.bucket());
                if meta.refs() == 0 {
                    return Err(format!("slot {at} points at a free bucket"));
                }
                let is_own = meta.owner() == Some((env.node, at));
                if slot.state() == State::Clean && !is_own {
                    return Err(format!("clean slot {at} does not own its bucket"));
                }
                // No sector need be dirty: those that were can have been cut off.
                if slot.state() == State::Dirty && (!is_own || meta.dirty() & !meta.valid() != 0) {
                    return Err(format!(
                        "dirty slot {at}: dirty {:08b} valid {:08b}",
                        meta.dirty(),
                        meta.valid()
                    ));
                }
            }
        }
        type Kind = fn(State) -> bool;
        for (what, kind, counted) in [
            ("dirty", State::is_dirty as Kind, self.slots.dirty_count()),
            ("held", State::has_bucket as Kind, self.slots.held_count()),
        ] {
            let found = State::ALL.into_iter().filter(|state| kind(*state));
            let found: u64 = found.map(|state| counts[state as usize]).sum();
            if found != u64::from(counted) {
                return Err(format!("{found} slots are {what}, counted {counted}"));
            }
        }
        if self.has_pending() != (self.pending.change_seq > self.pending.stored_seq)
            && self.flushing.is_none()
        {
            return Err(format!("pending {:?} with {} dirty slots", self.pending, self.slots.dirty_count()));
        }
        if self.has_pending() && self.pending.queue_number == 0 {
            return Err("something is pending and not in the dirty queue".into());
        }
        Ok(counts)
    }
}
