//! Sharing an object's buckets with the target of a copy.

use super::{Env, Known, Object};
use crate::object::copied_content::CopiedContent;
use crate::object::memory::geometry::BUCKET_U64;
use crate::object::memory::slots::{Slot, State};

impl Object {
    /// Whether every byte of the object is known here.
    pub(crate) fn is_whole(&self, env: &Env<'_>) -> bool {
        let buckets = self.head.size.div_ceil(BUCKET_U64) as u32;
        (0..buckets).all(|at| self.valid(env, at) | self.beyond(at) == u8::MAX)
    }

    /// Returns how many of its slots have a bucket.
    pub(crate) fn buckets_held(&self) -> u32 {
        self.slots.held_count()
    }

    /// Returns how many of its buckets are zeros that take no memory; every byte of the object must be known.
    pub(crate) fn zeros_known(&self) -> u32 {
        (self.head.size.div_ceil(BUCKET_U64) as u32).saturating_sub(self.slots.held_count())
    }

    /// Returns all known slots, with one more count of each bucket, for a copy to take over.
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

    /// Takes over the content of another object; does nothing the second time.
    pub(crate) fn become_copy(&mut self, env: &Env<'_>, content: &CopiedContent) {
        let Some(content) = content.take() else { return };
        self.replace(env, Known::Present);
        self.head.size = content.size;
        env.metrics.hold_bucketless(env.namespace, content.bucketless);
        self.pending.bucketless += content.bucketless;
        self.adopt(env, content.into_slots());
    }

    /// Takes over what [`Self::share`] returned, with a credit for each bucket.
    fn adopt(&mut self, env: &Env<'_>, shared: Vec<(u32, Slot)>) {
        shared.into_iter().for_each(|(at, slot)| self.put(env, at, slot));
    }
}
