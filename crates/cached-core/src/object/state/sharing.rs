//! Sharing dirty buckets with the target of a copy.

use super::super::slots::{Slot, State};
use super::{Env, Object};

impl Object {
    /// The dirty slots, and one more count of each bucket among them: what a copy takes over.
    pub(crate) fn share(&self, env: &Env<'_>, all: bool) -> Vec<(u32, Slot)> {
        let is_shared = |slot: &Slot| match slot.state() {
            State::Absent => false,
            State::ZeroClean | State::Clean => all,
            _ => true,
        };
        let shared: Vec<_> = self.slots.known_from(0).filter(|(_, slot)| is_shared(slot)).collect();
        let buckets = shared.iter().filter(|(_, slot)| slot.state().has_bucket());
        buckets.for_each(|(_, slot)| env.pool.retain(slot.bucket()));
        let taken = shared.into_iter().map(|(at, slot)| {
            let has_bucket = slot.state().has_bucket();
            let slot = if has_bucket {
                Slot::of(State::DirtyWhole, slot.bucket())
            } else {
                Slot::bare(State::ZeroDirty)
            };
            (at, slot)
        });
        taken.collect()
    }

    /// Takes over what [`Self::share`] gave, with a credit for each bucket.
    pub(crate) fn adopt(&mut self, env: &Env<'_>, shared: Vec<(u32, Slot)>) {
        shared.into_iter().for_each(|(at, slot)| self.put(env, at, slot));
    }
}
