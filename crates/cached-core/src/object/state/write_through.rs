//! Updates the cache with changes that the store has already made, and drops content that the store
//! may no longer have.

use blocker::{Change, ChangeReply, ChangeTerms, Error, Segments, WriteMode};

use super::ranges::Ticket;
use super::{Env, Known, Object, Resources};
use crate::object::memory::pool::{BUCKET, Reserved};
use crate::object::memory::slots::{Slot, State};
use crate::object::memory::{BUCKET_U64, Buckets, Cursor, WHOLE, edges, parts, touched};
use crate::object::mutation::{Mutation, Piece};

/// A change that has been sent to the store, to detect changes that overlap this one.
pub(crate) struct Started {
    steps: u32,
    was_alone: bool,
}

impl Object {
    /// Records the start of a change, before it is sent to the store under the entry `ticket`.
    pub(crate) fn begin_change(&mut self, ticket: Ticket) -> Started {
        self.activity().ranges.ask_change(ticket);
        let head = &mut self.head;
        let was_alone = head.store_changes == 0;
        head.store_changes += 1;
        head.store_steps += 1;
        Started { steps: head.store_steps, was_alone }
    }

    /// Records the store's response; returns whether no other change of the object overlapped this
    /// one.
    pub(crate) fn end_change(&mut self, started: &Started) -> bool {
        let head = &mut self.head;
        let is_exact = started.was_alone && head.store_steps == started.steps;
        head.store_changes -= 1;
        head.store_steps += 1;
        is_exact
    }

    /// Updates the slots with a change that the store has made.
    pub(crate) fn take_over_change(
        &mut self,
        env: &Env<'_>,
        mutation: Mutation<'_>,
        policy: WriteMode,
        resources: &mut Resources<'_>,
    ) {
        if policy == WriteMode::Around && !matches!(mutation.change, Change::Truncate { .. } | Change::Delete)
        {
            if !matches!(mutation.change, Change::Copy { .. }) {
                self.forget(env, mutation.buckets());
            }
            return;
        }
        match mutation.change {
            // Without the object's size it is not known which bytes have become zeros.
            Change::Discard { .. } if self.head.known != Known::Present => {
                return self.forget(env, mutation.buckets());
            }
            Change::Truncate { size_bytes } => self.forget(env, (size_bytes / BUCKET_U64) as u32..u32::MAX),
            Change::WriteFull { .. } | Change::Delete => self.forget(env, WHOLE),
            _ => (),
        }
        for piece in mutation.pieces(self.head.size) {
            match piece {
                Piece::Data(offset, data) => self.write_through(env, offset, data, resources),
                Piece::Zeroes(offset, len) => self.zero_through(env, offset, len, resources),
            }
        }
    }

    /// Applies stored bytes to the slots. Never waits: a slot for which no bucket is free is
    /// forgotten.
    fn write_through(&mut self, env: &Env<'_>, offset: u64, data: &Segments, resources: &mut Resources<'_>) {
        let mut from = Cursor::new(data);
        for (at, lo, hi) in parts(offset, data.len_bytes() as u64) {
            match self.to_adopt(env, at, lo, hi, &from) {
                Some(bucket) if self.adopt_clean(env, at, bucket) => from.skip(BUCKET),
                _ => self.take_over(env, at, lo, hi, resources, |bytes| from.copy_to(bytes)),
            }
        }
    }

    /// Applies stored zeros to the slots.
    fn zero_through(&mut self, env: &Env<'_>, offset: u64, len: u64, resources: &mut Resources<'_>) {
        for (at, lo, hi) in parts(offset, len) {
            let slot = self.slots.get(at);
            if hi - lo == BUCKET {
                self.put(env, at, Slot::bare(State::ZeroClean));
            } else if slot.state().has_bucket() {
                self.take_over(env, at, lo, hi, resources, |bytes| bytes.fill(0));
            }
        }
    }

    fn take_over(
        &mut self,
        env: &Env<'_>,
        at: u32,
        lo: usize,
        hi: usize,
        resources: &mut Resources<'_>,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let slot = self.slots.get(at);
        let is_whole = hi - lo == BUCKET;
        debug_assert!(!slot.state().is_dirty(), "the object was flushed before");
        let skipped = &mut [0; BUCKET][..hi - lo];
        let keeps = touched(lo, hi) & (!edges(lo, hi) | self.beyond(at));
        if slot == Slot::ABSENT && keeps == 0 {
            // No whole sector could be kept. But bytes beyond the content must be kept, or another
            // run of the same change would find zeros there.
            return fill(skipped);
        }
        let bucket = if Self::is_exclusive(env, slot) {
            slot.bucket()
        } else {
            match self.copy_up(env, at, resources, !is_whole) {
                Some(bucket) => bucket,
                None => {
                    fill(skipped);
                    return self.clear(env, at);
                }
            }
        };
        let meta = env.meta(bucket);
        // A sector that is covered only partially stays as valid as it was.
        let valid = meta.valid() | touched(lo, hi) & !edges(lo, hi);
        fill(&mut env.bytes_mut(bucket)[lo..hi]);
        meta.set_valid(valid);
        meta.set_dirty(0);
        if slot == Slot::of(State::Clean, bucket) {
            if env.queues.hit(meta, env.bucket_name(at)) {
                Self::drop_flags(env, bucket);
            }
        } else {
            let is_new = slot.state() != State::Clean;
            self.put(env, at, Slot::of(State::Clean, bucket));
            env.queues.link(env.pool, bucket, env.bucket_name(at), is_new, env.namespace);
        }
    }

    /// Updates the head with a change that the store has made.
    pub(crate) fn changed_below(
        &mut self,
        change: &Change,
        terms: &ChangeTerms,
        reply: &ChangeReply,
        is_exact: bool,
        next_version: impl FnOnce() -> u64,
    ) {
        let head = &mut self.head;
        let was_known = head.known == Known::Present;
        let is_delete = matches!(change, Change::Delete);
        let size = if was_known || is_delete { change.size_after(head.size) } else { reply.size_bytes };
        head.known = match (is_delete, was_known || is_exact) {
            (true, _) => Known::Absent,
            (false, true) => Known::Present,
            // Other changes overlapped this one, so the size may be from before theirs.
            (false, false) => Known::Unknown,
        };
        (head.size, head.store_size, head.store_exists) = (size, size, !is_delete);
        head.store_version = (is_exact && !is_delete).then_some(reply.version.0);
        head.version = head.store_version.unwrap_or_else(next_version);
        if terms.stamp.is_some() {
            head.stamp = terms.stamp;
        }
    }

    /// Forgets everything that an error of a change of these buckets puts in doubt: the object may
    /// have been changed in the store, or its known state has turned out to be wrong.
    pub(crate) fn perhaps_changed(&mut self, env: &Env<'_>, buckets: Buckets, error: &Error) {
        match error {
            Error::OutcomeUnknown(_) | Error::NotStored(_) => self.forget(env, buckets),
            Error::Missing
            | Error::Exists
            | Error::ConditionFailed { .. }
            | Error::Fenced { .. }
            | Error::Superseded { .. }
            | Error::WritesLost(_) => _ = self.invalidate(env, &mut Reserved::none(env.pool)),
            _ => return,
        }
        if !self.has_pending() {
            self.head.store_version = None;
            self.forget_head(env);
        }
    }
}

// Dropping content that the store may no longer have, because other clients may have changed the
// object there.
//
// Sectors that are newer than the store stay, whether dirty or in flight. A bucket that contains
// both such sectors and others is narrowed to the newer ones: in place if only one slot refers to
// it; otherwise (a reader has pinned it, or a copy shares it) by moving the newer sectors to a
// bucket of their own.

/// The result of an invalidation.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Invalidated {
    /// The number of buckets that were dropped.
    pub(crate) dropped: u32,
    /// The number of buckets that must still be narrowed, because no bucket was free for their
    /// newer sectors.
    pub(crate) left: u32,
}

impl Object {
    /// Forgets the known content of the store, in the cache and in pending responses, because other
    /// clients may have changed the object. `reserved` is used before free buckets are.
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
                // The whole slot is newer than the store.
                State::Absent | State::DirtyWhole | State::ZeroDirty | State::ZeroWriting => (),
            }
        }
        self.invalidate_head(env);
        invalidated
    }

    /// Forgets the known state of the object as a whole in the store.
    pub(crate) fn invalidate_head(&mut self, env: &Env<'_>) {
        self.pending.is_invalidated = self.has_pending() || self.flushing.is_some();
        if !self.pending.is_invalidated {
            self.forget_head(env);
        }
        self.head.store_version = None;
    }

    /// Keeps only those sectors of a slot valid that are newer than the store; returns false if
    /// this requires a bucket and none is free.
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
            // `put` returns the slot's credit, but the slot must keep it.
            env.metrics.dirty_room.retake(env.namespace, 1);
        }
        self.put(env, at, Slot::of(slot.state(), bucket));
        true
    }
}
