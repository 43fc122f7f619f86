//! The transitions of a flush: begun, stored, failed, or refused permanently.

use blocker::{Error, Result, Run, RunContent, Segment, Segments, Timestamp};

use super::flush_plan::{FlushPlan, RunLimits, Sent, fill_gaps, push, spans};
use super::losses::Lost;
use super::{Env, Known, Object};
use crate::object::memory::geometry::{parts, touched};
use crate::object::memory::pool::{BUCKET, Reserved};
use crate::object::memory::slots::{Slot, State};
use crate::object::tasks::deadline::FlushTicket;
use crate::sync::Arc;

/// The part of a flush in flight that reads and changes must know.
#[derive(Clone, Debug)]
pub(crate) struct Flushing {
    pub(crate) replace: bool,
    pub(crate) truncate_to: u64,
    /// The time of the first change that the flush does not include.
    pub(crate) newer_since: Option<Timestamp>,
    /// Whether the dirty queue holds the log from the first record that the flush does not include.
    pub(crate) newer_is_held: bool,
    /// The part of each slot that the flush sends, in the order of the slots.
    pub(crate) sent: Arc<[Sent]>,
    /// Whether other clients may have changed the object since the flush began: then the store's
    /// content after the flush may differ from what the flush sent.
    pub(crate) is_invalidated: bool,
}

impl Flushing {
    /// Returns the sectors of a slot that are in flight to the store.
    pub(crate) fn mask_of(&self, at: u32) -> u8 {
        self.sent.binary_search_by_key(&at, |sent| sent.at).map_or(0, |found| self.sent[found].mask)
    }
}

/// The remaining work after a flush has ended.
pub(crate) struct Ended {
    /// The tickets whose changes are stored, each with its result.
    pub(crate) done: Vec<(Arc<FlushTicket>, Result<()>)>,
    /// The number of buckets that must still be narrowed because other clients may have changed the
    /// object in the meantime.
    pub(crate) left: u32,
}

impl Object {
    /// Begins a flush; returns `None` if another flush is in flight, or nothing is pending.
    pub(crate) fn begin_flush(&mut self, env: &Env<'_>, limits: RunLimits) -> Option<FlushPlan> {
        let run_max = limits.run_bytes_max;
        if self.flushing.is_some() || !self.has_pending() {
            return None;
        }
        let (head, pending) = (self.head, self.pending);
        let truncate_to = (pending.truncate_to < head.store_size && !pending.replace && head.store_exists)
            .then_some(pending.truncate_to);
        let mut plan = FlushPlan {
            seq: pending.change_seq,
            is_present: head.known == Known::Present,
            size: head.size,
            replace: pending.replace,
            truncate_to,
            truncate_before: pending.truncate_to,
            size_dirty: pending.size_dirty,
            store_size: if head.store_exists { head.store_size } else { 0 },
            store_exists: head.store_exists,
            is_retry: pending.failures > 0,
            runs: Vec::new(),
            slots: Arc::from([]),
            bucketless: std::mem::take(&mut self.pending.bucketless),
        };
        let mut sent = Vec::new();
        let known: Vec<(u32, Slot)> = self.slots.known_from(0).collect();
        for (at, slot) in known {
            sent.extend(self.plan_slot(env, &mut plan, at, slot, run_max));
        }
        plan.slots = sent.into();
        if plan.replace {
            fill_gaps(&mut plan.runs, plan.size, run_max);
        } else {
            self.bridge_gaps(env, &mut plan.runs, limits);
            plan.extend_with_zeros(limits);
        }
        self.flushing = Some(Box::new(Flushing {
            replace: pending.replace,
            truncate_to: pending.truncate_to,
            newer_since: None,
            newer_is_held: false,
            sent: Arc::clone(&plan.slots),
            is_invalidated: false,
        }));
        (self.pending.replace, self.pending.truncate_to, self.pending.size_dirty) = (false, u64::MAX, false);
        self.head.store_steps += 1;
        self.head.store_changes += 1;
        Some(plan)
    }

    /// Joins runs of data that are separated by a small gap, if the gap is cached completely.
    fn bridge_gaps(&self, env: &Env<'_>, runs: &mut Vec<Run>, limits: RunLimits) {
        let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
        for run in runs.drain(..) {
            if let Some((from, end)) = joined.last().map(|last| (last.offset, last.end()))
                && run.offset - end <= limits.gap_bytes_max
                && run.end() - from <= limits.run_bytes_max
                && let (Some(Run { content: RunContent::Data(before), .. }), RunContent::Data(data)) =
                    (joined.last_mut(), &run.content)
                && let Some(between) = self.clean_bytes(env, end, run.offset)
            {
                before.append(between);
                before.append(data.clone());
            } else {
                joined.push(run);
            }
        }
        *runs = joined;
    }

    /// Returns the store's bytes between two runs; `None` if some of them are not cached.
    fn clean_bytes(&self, env: &Env<'_>, from: u64, to: u64) -> Option<Segments> {
        let mut bytes = Segments::new();
        for (at, lo, hi) in parts(from, to - from) {
            let slot = self.slots.get(at);
            match slot.state() {
                State::ZeroClean => bytes.append(Segments::zeros(hi - lo)),
                state if state.has_bucket() && touched(lo, hi) & !env.meta(slot.bucket()).valid() == 0 => {
                    bytes.push(pinned(env, slot.bucket(), lo..hi));
                }
                _ => return None,
            }
        }
        Some(bytes)
    }

    fn plan_slot(
        &mut self,
        env: &Env<'_>,
        plan: &mut FlushPlan,
        at: u32,
        slot: Slot,
        run_max: u64,
    ) -> Option<Sent> {
        let start = u64::from(at) * BUCKET as u64;
        let reach = plan.size.saturating_sub(start).min(BUCKET as u64) as usize;
        let mask = match slot.state() {
            State::Dirty => env.meta(slot.bucket()).dirty(),
            State::DirtyWhole => env.meta(slot.bucket()).valid(),
            State::ZeroDirty => u8::MAX,
            // The clean bytes also belong to the replacement.
            State::Clean if plan.replace => env.meta(slot.bucket()).valid(),
            _ => return None,
        };
        // A replacement includes all bytes: sectors that are not valid here are zeros.
        let wanted =
            if plan.replace && slot.state().has_bucket() { env.meta(slot.bucket()).valid() } else { mask };
        if slot.state().has_bucket() {
            for (lo, hi) in spans(wanted) {
                let hi = hi.min(reach);
                if lo < hi {
                    let bytes = pinned(env, slot.bucket(), lo..hi);
                    push(&mut plan.runs, start + lo as u64, (hi - lo) as u64, Some(bytes), run_max);
                }
            }
        } else if reach > 0 {
            push(&mut plan.runs, start, reach as u64, None, run_max);
        }
        if slot.state() == State::Clean {
            return None;
        }
        let writing = if slot.state().has_bucket() {
            Slot::of(State::Writing, slot.bucket())
        } else {
            Slot::bare(State::ZeroWriting)
        };
        // From now on the slot's credit belongs to the plan.
        self.slots.set(at, writing);
        env.metrics.shift(env.namespace, slot, writing);
        Some(Sent { at, mask, was: slot.state() })
    }

    /// Returns the result of a flush. If another client has removed the object since the flush
    /// began, the flush may have stored what it sent, but not what it left out because the store
    /// had it: so it counts as failed.
    pub(crate) fn outcome(&self, plan: &FlushPlan, result: Result<Option<u64>>) -> Result<Option<u64>> {
        let is_gone = plan.store_exists && !self.head.store_exists && plan.is_present && !plan.replace;
        result.and_then(|version| match is_gone {
            true => Err(Error::Retryable("the object was removed in the store meanwhile".into())),
            false => Ok(version),
        })
    }

    /// Ends a flush that the store has not refused permanently.
    pub(crate) fn end_flush(
        &mut self,
        env: &Env<'_>,
        plan: &FlushPlan,
        result: &Result<Option<u64>>,
    ) -> Ended {
        let mut left = 0;
        let flushing = self.flushing.take();
        let newer_since = flushing.as_ref().and_then(|flushing| flushing.newer_since);
        self.head.store_steps += 1;
        self.head.store_changes -= 1;
        match result {
            Ok(version) => {
                plan.slots.iter().for_each(|sent| self.stored(env, sent));
                env.metrics.return_bucketless(env.namespace, plan.bucketless);
                // The store has truncated or replaced its content from here on. While the flush was
                // in flight, such bytes were clipped; from now on only newly requested bytes are
                // free of them.
                let cut_at = if plan.replace { 0 } else { plan.truncate_before };
                if cut_at != u64::MAX {
                    self.invalidate_bytes((cut_at / BUCKET as u64) as u32..u32::MAX);
                }
                self.head.store_exists = plan.is_present;
                self.head.store_size = if plan.is_present { plan.size } else { 0 };
                self.head.store_version = *version;
                self.pending.stored_seq = self.pending.stored_seq.max(plan.seq);
                self.pending.failures = 0;
                // Changes made during this flush have waited since the first of them was made.
                if let Some(since) = newer_since {
                    self.pending.dirty_since = since;
                }
                if flushing.is_some_and(|flushing| flushing.is_invalidated) || self.pending.is_invalidated {
                    // Changes of other clients may be newer than what this flush has just stored,
                    // and the object's size in the store may be theirs.
                    left = self.invalidate(env, &mut Reserved::none(env.pool)).left;
                }
            }
            Err(_) => {
                plan.slots.iter().for_each(|sent| self.not_stored(env, sent));
                self.head.store_version = None;
                // All changes continue to wait, from the time of the oldest. Some of the flush may
                // have taken effect.
                self.head.store_exists = true;
                self.head.store_size = self.head.store_size.max(plan.end_of_runs()).max(plan.size);
                self.pending.failures = self.pending.failures.saturating_add(1);
                self.restore(plan);
            }
        }
        Ended { done: self.take_stored_waiters(), left }
    }

    /// Restores the planned changes of the object as a whole, unless a later change has superseded
    /// them.
    fn restore(&mut self, plan: &FlushPlan) {
        let pending = &mut self.pending;
        pending.bucketless += plan.bucketless;
        if !pending.replace {
            pending.replace = plan.replace;
            pending.truncate_to = pending.truncate_to.min(plan.truncate_before);
            pending.size_dirty |= plan.size_dirty;
        }
    }

    /// Completes a slot whose flush is stored.
    fn stored(&mut self, env: &Env<'_>, sent: &Sent) {
        env.metrics.dirty_room.give_back(env.namespace, if sent.was == State::ZeroDirty { 0 } else { 1 });
        let slot = self.slots.get(sent.at);
        match slot.state() {
            State::ZeroWriting => self.set_state(env, sent.at, Slot::bare(State::ZeroClean)),
            State::Writing => {
                let meta = env.meta(slot.bucket());
                if meta.owner().is_none() {
                    // The bucket belonged to another object, and has no owner now.
                    meta.set_owner(Some((env.node, sent.at)));
                }
                if meta.owner() == Some((env.node, sent.at)) {
                    meta.set_dirty(0);
                    self.set_state(env, sent.at, Slot::of(State::Clean, slot.bucket()));
                    env.queues.link(env.pool, slot.bucket(), env.bucket_name(sent.at), false, env.namespace);
                } else {
                    // A clean bucket has exactly one owner, which eviction can find.
                    self.forget(env, sent.at..sent.at + 1);
                }
            }
            // The slot has changed in the meantime: another flush will follow.
            _ => (),
        }
    }

    /// Makes a slot whose flush failed dirty again, together with newer changes.
    fn not_stored(&mut self, env: &Env<'_>, sent: &Sent) {
        let slot = self.slots.get(sent.at);
        match slot.state() {
            // The credit belongs to the slot again.
            State::Writing => self.set_state(env, sent.at, Slot::of(sent.was, slot.bucket())),
            State::ZeroWriting => self.set_state(env, sent.at, Slot::bare(State::ZeroDirty)),
            state => {
                if state == State::Dirty {
                    let meta = env.meta(slot.bucket());
                    meta.set_dirty(meta.dirty() | sent.mask & meta.valid());
                }
                env.metrics
                    .dirty_room
                    .give_back(env.namespace, if sent.was == State::ZeroDirty { 0 } else { 1 });
            }
        }
    }

    fn set_state(&mut self, env: &Env<'_>, at: u32, slot: Slot) {
        let old = self.slots.set(at, slot);
        env.metrics.shift(env.namespace, old, slot);
    }

    /// Ends a flush that the store refuses permanently, or that is not made: drops everything that
    /// the store does not have. Returns the acknowledged changes among it, if any, and the tickets
    /// that waited for them.
    pub(crate) fn lose(&mut self, env: &Env<'_>, plan: &FlushPlan) -> (Option<Lost>, Vec<Arc<FlushTicket>>) {
        self.flushing = None;
        self.head.store_steps += 1;
        self.head.store_changes -= 1;
        let bytes = u64::from(self.slots.dirty_count()) * BUCKET as u64 + plan.bytes();
        let changes = self.pending.change_seq - self.pending.stored_seq;
        let lost = Lost { changes, bytes, domain: self.pending.domain };
        let lost = std::mem::take(&mut self.pending.is_acknowledged).then_some(lost);
        let sent = plan.slots.iter().filter(|sent| sent.was != State::ZeroDirty).count();
        self.forget(env, 0..u32::MAX);
        env.metrics.dirty_room.give_back(env.namespace, sent as u32);
        let bucketless = plan.bucketless + std::mem::take(&mut self.pending.bucketless);
        env.metrics.return_bucketless(env.namespace, bucketless);
        self.activity().ranges.invalidate_all();
        self.head.known = Known::Unknown;
        self.head.is_full = false;
        (self.pending.replace, self.pending.truncate_to, self.pending.size_dirty) = (false, u64::MAX, false);
        self.pending.failures = 0;
        self.pending.stored_seq = self.pending.change_seq;
        let waiters = std::mem::take(&mut self.activity().flush_waiters);
        self.drop_if_idle();
        (lost, waiters.into_iter().map(|(_, ticket)| ticket).collect())
    }
}

pub(super) fn pinned(env: &Env<'_>, bucket: u32, range: std::ops::Range<usize>) -> Segment {
    let copied = || Segment::from(bytes::Bytes::copy_from_slice(&env.pool.bytes(bucket)[range.clone()]));
    env.pool.pin(bucket, range.clone()).unwrap_or_else(copied)
}
