//! Taking over the buckets of a received payload, instead of copying it.

use blocker::Segments;

use super::{Env, Missing, Object, Resources};
use crate::object::control::metrics::add;
use crate::object::memory::geometry::{Cursor, parts};
use crate::object::memory::pool::BUCKET;
use crate::object::memory::slots::{Slot, State};

impl Object {
    /// Returns what a write of these bytes lacks; what can be taken over needs no bucket.
    pub(crate) fn missing_for_data(
        &self,
        env: &Env<'_>,
        offset: u64,
        data: &Segments,
        resources: &Resources<'_>,
    ) -> Missing {
        let len = data.len_bytes() as u64;
        let mut missing = self.missing_for_write(env, offset, len, resources);
        let mut from = Cursor::new(data);
        for (at, lo, hi) in parts(offset, len) {
            if self.to_adopt(env, at, lo, hi, &from).is_some() {
                missing.buckets -= u32::from(!Self::is_exclusive(env, self.slots.get(at)));
            }
            from.skip(hi - lo);
        }
        missing
    }

    /// Returns how many slots can take over what they get from these bytes.
    pub(crate) fn adoptable(&self, env: &Env<'_>, offset: u64, data: &Segments) -> u32 {
        let mut from = Cursor::new(data);
        let mut count = 0;
        for (at, lo, hi) in parts(offset, data.len_bytes() as u64) {
            count += u32::from(self.to_adopt(env, at, lo, hi, &from).is_some());
            from.skip(hi - lo);
        }
        count
    }

    /// Returns the bucket that a slot can take over from the payload: a whole one of this pool, and not the
    /// one it has. None of this changes while the payload refers to it.
    pub(super) fn to_adopt(
        &self,
        env: &Env<'_>,
        at: u32,
        lo: usize,
        hi: usize,
        from: &Cursor<'_>,
    ) -> Option<u32> {
        let segment = from.next_whole().filter(|_| hi - lo == BUCKET)?;
        let bucket = env.pool.whole_bucket(segment)?;
        let slot = self.slots.get(at);
        let has_it = slot.state().has_bucket() && slot.bucket() == bucket;
        (!has_it && env.meta(bucket).valid() == u8::MAX).then_some(bucket)
    }

    /// Takes a bucket over as newer than the store. Other slots may refer to it, as after a copy.
    pub(super) fn adopt_dirty(&mut self, env: &Env<'_>, at: u32, bucket: u32, resources: &mut Resources<'_>) {
        env.pool.adopt(bucket);
        add(&env.metrics.zero_copy, 1);
        self.put_dirty(env, at, Slot::of(State::DirtyWhole, bucket), resources);
    }

    /// Takes a bucket over as what the store has, if no other slot has taken it over: clean data have one
    /// owner.
    pub(super) fn adopt_clean(&mut self, env: &Env<'_>, at: u32, bucket: u32) -> bool {
        if !env.pool.adopt(bucket) {
            env.pool.release(bucket);
            return false;
        }
        add(&env.metrics.zero_copy, 1);
        let is_new = self.slots.get(at).state() != State::Clean;
        env.meta(bucket).set_owner(Some((env.node, at)));
        self.put(env, at, Slot::of(State::Clean, bucket));
        env.queues.link(env.pool, bucket, env.bucket_name(at), is_new, env.namespace);
        true
    }
}
