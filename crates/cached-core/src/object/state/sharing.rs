//! Sharing an object's buckets with the target of a copy.

use super::super::slots::{Slot, State};
use super::parts::BUCKET_U64;
use super::{Env, Object};

impl Object {
    /// Whether every byte of it is known here.
    pub(crate) fn is_whole(&self, env: &Env<'_>) -> bool {
        let buckets = self.head.size.div_ceil(BUCKET_U64) as u32;
        (0..buckets).all(|at| self.valid(env, at) | self.beyond(at) == u8::MAX)
    }

    /// How many of its slots have a bucket.
    pub(crate) fn buckets_held(&self) -> u32 {
        self.slots.held_count()
    }

    /// Of an object of which every byte is known, how many buckets of it are zeros that take no memory.
    pub(crate) fn zeros_known(&self) -> u32 {
        (self.head.size.div_ceil(BUCKET_U64) as u32).saturating_sub(self.slots.held_count())
    }

    /// All known slots, with one more count of each bucket: what a copy of a whole object takes over.
    pub(crate) fn share(&self, env: &Env<'_>) -> Vec<(u32, Slot)> {
        let shared = self.slots.known_from(0).map(|(at, slot)| {
            if slot.state().has_bucket() {
                env.pool.retain(slot.bucket());
                (at, Slot::of(State::DirtyWhole, slot.bucket()))
            } else {
                (at, Slot::bare(State::ZeroDirty))
            }
        });
        shared.collect()
    }

    /// Takes over what [`Self::share`] gave, with a credit for each bucket.
    pub(crate) fn adopt(&mut self, env: &Env<'_>, shared: Vec<(u32, Slot)>) {
        shared.into_iter().for_each(|(at, slot)| self.put(env, at, slot));
    }
}
