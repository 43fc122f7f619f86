//! Throwing away what the store need not have any more, because others may have changed it there.
//!
//! Sectors newer than the store stay, dirty or on their way. A bucket with such sectors and others is narrowed to the
//! former: in its place where one slot alone points at it, else (a reader has pinned it, or a copy shares it) by
//! moving them to a bucket of their own.

use super::super::pool::Reserved;
use super::super::slots::{Slot, State};
use super::{Env, Object};

/// What was thrown away.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Doubted {
    /// Buckets that went.
    pub(crate) dropped: u32,
    /// Buckets that are still to be narrowed: there was none to move their newer sectors to.
    pub(crate) left: u32,
}

impl Object {
    /// Others may have changed the object below: forgets what the store is said to have, here and in answers that are
    /// under way. `reserved` is used before free buckets are.
    pub(crate) fn doubt(&mut self, env: &Env<'_>, reserved: &mut Reserved<'_>) -> Doubted {
        if let Some(activity) = &mut self.activity {
            activity.ranges.spoil_all();
        }
        if let Some(flushing) = &mut self.flushing {
            flushing.is_doubted = true;
        }
        let mut doubted = Doubted::default();
        let known: Vec<(u32, Slot)> = self.slots.known_from(0).collect();
        for (at, slot) in known {
            match slot.state() {
                State::Clean | State::ZeroClean => {
                    self.clear(env, at);
                    doubted.dropped += 1;
                }
                State::Dirty | State::Writing => {
                    doubted.left += u32::from(!self.narrow(env, at, slot, reserved));
                }
                // All of it is newer than the store.
                State::Absent | State::DirtyWhole | State::ZeroDirty | State::ZeroWriting => (),
            }
        }
        self.doubt_head(env);
        doubted
    }

    /// Forgets what the store is said to have as a whole.
    pub(crate) fn doubt_head(&mut self, env: &Env<'_>) {
        self.pending.is_doubted = self.has_pending() || self.flushing.is_some();
        if !self.pending.is_doubted {
            self.forget_head(env);
        }
        self.head.store_version = None;
    }

    /// Leaves only those sectors of a slot valid that are newer than the store; false if that takes a bucket and there
    /// is none.
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
            // `put` gives the slot's credit back: it goes on with it.
            env.gauges.take_again(1);
        }
        self.put(env, at, Slot::of(slot.state(), bucket));
        true
    }
}
