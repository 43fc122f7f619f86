//! The transitions of a flush: begun, stored, failed, or refused permanently.

use blocker::{Error, Result, Run, RunContent, Segment, Segments, Timestamp};

use super::flush_plan::{FlushPlan, RunLimits, Sent, fill_gaps, push, spans};
use super::head::Pending;
use super::losses::Lost;
use super::{Env, Known, Object};
use crate::object::memory::pool::Reserved;
use crate::object::memory::slots::{Slot, State};
use crate::object::memory::{BUCKET_U64, WHOLE, parts, touched};
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

impl Object {
    /// Begins a flush; returns `None` if another flush is in flight, or nothing is pending.
    pub(crate) fn begin_flush(&mut self, env: &Env<'_>, limits: RunLimits) -> Option<FlushPlan> {
        let run_max = limits.run_bytes_max;
        if self.flushing.is_some() || !self.has_pending() {
            return None;
        }
        let (head, pending) = (self.head, self.pending);
        let mut plan = FlushPlan { head, pending, runs: Vec::new(), slots: Arc::from([]) };
        let known: Vec<(u32, Slot)> = self.slots.known_from(0).collect();
        let sent =
            known.into_iter().filter_map(|(at, slot)| self.plan_slot(env, &mut plan, at, slot, run_max));
        plan.slots = sent.collect();
        if pending.replace {
            fill_gaps(&mut plan.runs, head.size, run_max);
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
        self.pending.forget_whole();
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

    /// Appends a slot's pending bytes to `runs`; `run_max` is the maximum length of a run.
    pub(super) fn push_pending(
        &self,
        env: &Env<'_>,
        runs: &mut Vec<Run>,
        (at, slot): (u32, Slot),
        run_max: u64,
    ) {
        let start = u64::from(at) * BUCKET_U64;
        let reach = self.head.size.saturating_sub(start).min(BUCKET_U64) as usize;
        let mask = match slot.state() {
            State::Dirty if !self.pending.replace => env.meta(slot.bucket()).dirty(),
            // A replacement includes all bytes: sectors that are not valid here are zeros.
            State::Dirty | State::DirtyWhole => env.meta(slot.bucket()).valid(),
            State::Clean if self.pending.replace => env.meta(slot.bucket()).valid(),
            State::ZeroDirty if reach > 0 => return push(runs, start, reach as u64, None, run_max),
            _ => return,
        };
        for (lo, hi) in spans(mask) {
            let hi = hi.min(reach);
            if lo < hi {
                let bytes = pinned(env, slot.bucket(), lo..hi);
                push(runs, start + lo as u64, (hi - lo) as u64, Some(bytes), run_max);
            }
        }
    }

    /// Adds a slot to a plan, which takes over the slot's room for dirty data.
    fn plan_slot(
        &mut self,
        env: &Env<'_>,
        plan: &mut FlushPlan,
        at: u32,
        slot: Slot,
        run_max: u64,
    ) -> Option<Sent> {
        self.push_pending(env, &mut plan.runs, (at, slot), run_max);
        let mask = Self::dirty(env, slot);
        let writing = match slot.state() {
            State::Dirty | State::DirtyWhole => Slot::of(State::Writing, slot.bucket()),
            State::ZeroDirty => Slot::bare(State::ZeroWriting),
            _ => return None,
        };
        self.set_state(env, at, writing);
        Some(Sent { at, mask, was: slot.state() })
    }

    /// Returns the result of a flush. If another client has removed the object since the flush
    /// began, the store may lack bytes that the flush did not send because the store had them: the
    /// flush counts as failed.
    pub(crate) fn outcome(&self, plan: &FlushPlan, result: Result<Option<u64>>) -> Result<Option<u64>> {
        let had_it = plan.head.store_exists && plan.is_present() && !plan.pending.replace;
        let is_gone = had_it && !self.head.store_exists;
        result.and_then(|version| match is_gone {
            true => Err(Error::Retryable("another client has removed the object from the store".into())),
            false => Ok(version),
        })
    }

    /// Ends a flush that the store has not refused permanently. Returns the number of buckets that
    /// must still be narrowed because other clients may have changed the object in the meantime.
    pub(crate) fn end_flush(&mut self, env: &Env<'_>, plan: &FlushPlan, result: &Result<Option<u64>>) -> u32 {
        let mut left = 0;
        let flushing = self.flushing.take();
        let newer_since = flushing.as_ref().and_then(|flushing| flushing.newer_since);
        self.head.store_steps += 1;
        self.head.store_changes -= 1;
        match result {
            Ok(version) => {
                plan.slots.iter().for_each(|sent| self.stored(env, sent));
                env.metrics.return_bucketless(env.namespace, plan.pending.bucketless);
                // The store has truncated or replaced its content from here on. While the flush was
                // in flight, such bytes were clipped; from now on only newly requested bytes are
                // free of them.
                let cut_at = if plan.pending.replace { 0 } else { plan.pending.truncate_to };
                if cut_at != u64::MAX {
                    self.invalidate_bytes((cut_at / BUCKET_U64) as u32..u32::MAX);
                }
                self.head.store_exists = plan.is_present();
                self.head.store_size = if plan.is_present() { plan.head.size } else { 0 };
                self.head.store_version = *version;
                self.pending.stored_seq = self.pending.stored_seq.max(plan.pending.change_seq);
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
                self.head.store_size = self.head.store_size.max(plan.end_of_runs()).max(plan.head.size);
                self.pending.failures = self.pending.failures.saturating_add(1);
                self.restore(&plan.pending);
            }
        }
        left
    }

    /// Restores the planned changes of the object as a whole, unless a later change has superseded
    /// them.
    fn restore(&mut self, planned: &Pending) {
        let pending = &mut self.pending;
        pending.bucketless += planned.bucketless;
        if !pending.replace {
            pending.replace = planned.replace;
            pending.truncate_to = pending.truncate_to.min(planned.truncate_to);
            pending.size_dirty |= planned.size_dirty;
        }
    }

    /// Completes a slot whose flush is stored.
    fn stored(&mut self, env: &Env<'_>, sent: &Sent) {
        env.metrics.dirty_room.give_back(env.namespace, sent.credits());
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
                    self.clear(env, sent.at);
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
                env.metrics.dirty_room.give_back(env.namespace, sent.credits());
            }
        }
    }

    /// Ends a flush that the store refuses permanently, or that is not sent: drops all changes that
    /// the store does not have. Returns the acknowledged ones, if any, and the tickets that waited
    /// for the changes.
    pub(crate) fn lose(&mut self, env: &Env<'_>, plan: &FlushPlan) -> (Option<Lost>, Vec<Arc<FlushTicket>>) {
        self.flushing = None;
        self.head.store_steps += 1;
        self.head.store_changes -= 1;
        let bytes = u64::from(self.slots.dirty_count()) * BUCKET_U64 + plan.bytes();
        let changes = self.pending.change_seq - self.pending.stored_seq;
        let lost = Lost { changes, bytes, domain: self.pending.domain };
        let lost = std::mem::take(&mut self.pending.is_acknowledged).then_some(lost);
        self.forget(env, WHOLE);
        env.metrics.dirty_room.give_back(env.namespace, plan.slots.iter().map(Sent::credits).sum());
        env.metrics.return_bucketless(env.namespace, plan.pending.bucketless + self.pending.bucketless);
        self.activity().ranges.invalidate_all();
        self.head.known = Known::Unknown;
        self.head.is_full = false;
        self.pending.forget_whole();
        self.pending.failures = 0;
        self.pending.stored_seq = self.pending.change_seq;
        let waiters = std::mem::take(&mut self.activity().flush_waiters);
        self.drop_if_idle();
        (lost, waiters.into_iter().map(|(_, ticket)| ticket).collect())
    }
}

/// Returns bytes of a bucket: pinned, or copied if the bucket has too many pins.
pub(super) fn pinned(env: &Env<'_>, bucket: u32, range: std::ops::Range<usize>) -> Segment {
    env.pool.pin(bucket, range.clone()).unwrap_or_else(|| copied(env, bucket, range))
}

/// Returns a copy of bytes of a bucket.
pub(super) fn copied(env: &Env<'_>, bucket: u32, range: std::ops::Range<usize>) -> Segment {
    bytes::Bytes::copy_from_slice(&env.pool.bytes(bucket)[range]).into()
}
