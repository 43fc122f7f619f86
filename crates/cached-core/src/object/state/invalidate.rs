//! Dropping what the store may no longer have, because other clients may have changed it there.
//!
//! Sectors newer than the store stay, dirty or on their way. A bucket with such sectors and others is
//! narrowed to the former: in place where one slot alone refers to it, else (a reader has pinned it, or a
//! copy shares it) by moving them to a bucket of their own.

use super::{Env, Object};
use crate::object::memory::pool::Reserved;
use crate::object::memory::slots::{Slot, State};

/// What was dropped.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Invalidated {
    /// The number of buckets that were dropped.
    pub(crate) dropped: u32,
    /// The number of buckets that are still to be narrowed: no bucket was free to move their newer sectors
    /// to.
    pub(crate) left: u32,
}

impl Object {
    /// Forgets what the store is known to have, here and in answers that are under way: other clients may
    /// have changed the object there. `reserved` is used before free buckets are.
    pub(crate) fn invalidate(&mut self, env: &Env<'_>, reserved: &mut Reserved<'_>) -> Invalidated {
        if let Some(activity) = &mut self.activity {
            activity.ranges.invalidate_all();
        }
        if let Some(flushing) = &mut self.flushing {
            flushing.is_invalidated = true;
        }
        let mut invalidated = Invalidated::default();
        let known: Vec<(u32, Slot)> = self.slots.known_from(0).collect();
        for (at, slot) in known {
            match slot.state() {
                State::Clean | State::ZeroClean => {
                    self.clear(env, at);
                    invalidated.dropped += 1;
                }
                State::Dirty | State::Writing => {
                    invalidated.left += u32::from(!self.narrow(env, at, slot, reserved));
                }
                // All of it is newer than the store.
                State::Absent | State::DirtyWhole | State::ZeroDirty | State::ZeroWriting => (),
            }
        }
        self.invalidate_head(env);
        invalidated
    }

    /// Forgets what the store is known to have as a whole.
    pub(crate) fn invalidate_head(&mut self, env: &Env<'_>) {
        self.pending.is_invalidated = self.has_pending() || self.flushing.is_some();
        if !self.pending.is_invalidated {
            self.forget_head(env);
        }
        self.head.store_version = None;
    }

    /// Leaves only those sectors of a slot valid that are newer than the store; returns false if that takes a
    /// bucket and none is free.
    fn narrow(&mut self, env: &Env<'_>, at: u32, slot: Slot, reserved: &mut Reserved<'_>) -> bool {
        let meta = env.meta(slot.bucket());
        let sent = self.flushing.as_ref().map_or(0, |flushing| flushing.mask_of(at));
        let is_dirty = slot.state() == State::Dirty;
        let newer = sent | if is_dirty { meta.dirty() } else { 0 };
        let (valid, dirty) = (meta.valid(), meta.dirty());
        if valid & !newer == 0 {
            return true;
        }
        if Self::is_exclusive(env, slot) {
            meta.set_valid(valid & newer);
            return true;
        }
        let old = env.pool.bytes(slot.bucket());
        let moved = reserved.take(|bytes| bytes.copy_from_slice(old));
        let moved = moved.or_else(|| env.pool.reserve_up_to(1).take(|bytes| bytes.copy_from_slice(old)));
        let Some(bucket) = moved else { return false };
        let meta = env.meta(bucket);
        meta.set_valid(valid & newer);
        meta.set_dirty(dirty);
        meta.set_owner(Some((env.node, at)));
        if is_dirty {
            // `put` returns the slot's credit: the slot keeps it.
            env.metrics.dirty_room.retake(env.namespace, 1);
        }
        self.put(env, at, Slot::of(slot.state(), bucket));
        true
    }
}
