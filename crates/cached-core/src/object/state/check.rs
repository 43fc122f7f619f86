//! Every invariant that one object can tell by itself; and leaving a range.

use std::task::Waker;

use super::super::slots::{STATES, State};
use super::parts::BUCKET_U64;
use super::{Env, Known, Object};

impl Object {
    /// Every invariant that one object can tell by itself.
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
                // None may be dirty: those that were can have been cut off.
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
        if self.has_pending() && self.pending.registered == 0 {
            return Err("something waits to be stored and nobody knows".into());
        }
        Ok(counts)
    }

    /// Who may go on after an entry is removed, and whether an evictor was sent away meanwhile.
    pub(crate) fn leave_range(&mut self, ticket: super::super::ranges::Ticket) -> (Vec<Waker>, bool) {
        let Some(activity) = &mut self.activity else { return (Vec::new(), false) };
        let woken = activity.ranges.leave(ticket);
        let kept_buckets = std::mem::take(&mut activity.kept_buckets);
        self.tidy();
        (woken, kept_buckets)
    }

    /// An evictor could not have a bucket: perhaps it can when what is under way has ended.
    pub(crate) fn note_kept(&mut self) {
        if let Some(activity) = &mut self.activity {
            activity.kept_buckets = true;
        }
    }
}
