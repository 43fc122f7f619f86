//! What one flush of one object sends: made in its turn, sent outside of it, settled in its turn again.
//!
//! ```text
//!  begin: Dirty ──> Writing, bytes pinned      send: [remove | replace | cut] [runs …] [extend]
//!  end, stored: Writing ──> Clean              end, failed: Writing ──> Dirty, all of it once more
//! ```
//! One flush of an object at a time. What changes meanwhile goes to new buckets and waits for the next.
//! A flush is idempotent: after a failure everything is sent again, with what is newer merged in.

use blocker::{Error, Result, Run, RunContent, Segment, Segments};

use super::losses::Lost;
use super::pool::{BUCKET, Reserved};
use super::slots::{SECTOR_BYTES, Slot, State};
use super::state::{Env, Flushing, Known, Object, Sent, parts, touched};
use super::waiter::FlushTicket;
use crate::sync::Arc;

const SECTORS: usize = BUCKET / SECTOR_BYTES;

/// How large requests may be, and what they may contain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunLimits {
    /// Bytes of one request, a multiple of a bucket.
    pub(crate) run_bytes_max: u64,
    /// Clean bytes between two dirty runs that become one.
    pub(crate) gap_bytes_max: u64,
    /// Runs of one request; 0 and 1: it takes one range.
    pub(crate) runs_max: usize,
}

/// One flush.
#[derive(Debug)]
pub(crate) struct FlushPlan {
    seq: u64,
    /// Whether the object is there, and how long.
    pub(crate) is_present: bool,
    pub(crate) size: u64,
    /// The object's content is replaced as a whole (or, absent, it is removed).
    pub(crate) replace: bool,
    /// It is cut there first.
    pub(crate) truncate_to: Option<u64>,
    /// The smallest end the object had since it was last stored; `u64::MAX`: none.
    pub(crate) truncate_before: u64,
    size_dirty: bool,
    /// How long the object is in the store before the runs; 0 if it is not there.
    pub(crate) store_size: u64,
    pub(crate) store_exists: bool,
    /// A flush failed before: where the store's end is now is not known.
    pub(crate) is_retry: bool,
    /// For a replacement all of the object, otherwise what is newer.
    pub(crate) runs: Vec<Run>,
    slots: Arc<[Sent]>,
    /// Room taken for what it sends and no bucket stands for.
    room: u32,
}

/// What the end of a flush leaves to do.
pub(crate) struct Ended {
    /// Who waited for what is stored now, with what to tell them.
    pub(crate) done: Vec<(Arc<FlushTicket>, Result<()>)>,
    /// How many buckets are still to be narrowed because others may have changed the object meanwhile.
    pub(crate) left: u32,
}

impl FlushPlan {
    /// The bytes it sends.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(Run::payload_bytes).sum()
    }

    /// Where the object ends beyond all runs: a run of zeros takes the store's end there in the same change.
    fn extend_with_zeros(&mut self, limits: RunLimits) {
        let end = self.end_of_runs();
        let len = self.size.saturating_sub(end);
        let is_due = self.is_present && !self.is_retry && len > 0 && len <= limits.run_bytes_max;
        if is_due && limits.runs_max > 1 && !self.runs.is_empty() {
            self.runs.push(Run::zeroes(end, len));
        }
    }

    /// The requests that its runs make, in order: as many in one change as the store takes.
    pub(crate) fn requests(&self, from: usize, limits: RunLimits) -> Vec<&[Run]> {
        let mut rest = self.runs.get(from..).unwrap_or_default();
        let mut requests = Vec::new();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |run: &&Run| {
                bytes += run.len_bytes();
                bytes <= limits.run_bytes_max
            };
            let count = rest.iter().take(limits.runs_max.max(1)).take_while(fits).count().max(1);
            let (request, later) = rest.split_at(count);
            requests.push(request);
            rest = later;
        }
        requests
    }

    /// The store's end after all runs.
    pub(crate) fn end_of_runs(&self) -> u64 {
        let from = self.truncate_to.map_or(self.store_size, |to| to.min(self.store_size));
        self.runs.iter().map(Run::end).max().unwrap_or(0).max(if self.replace { 0 } else { from })
    }
}

impl Object {
    /// Begins a flush; `None` if one is under way, or nothing waits.
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
            room: std::mem::take(&mut self.pending.room),
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
            sent: Arc::clone(&plan.slots),
            is_doubted: false,
        }));
        (self.pending.replace, self.pending.truncate_to, self.pending.size_dirty) = (false, u64::MAX, false);
        self.head.store_steps += 1;
        self.head.store_changes += 1;
        Some(plan)
    }

    /// Joins runs of data between which little lies, if all of that is here.
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

    /// The bytes between two runs, as the store has them; `None` if not all are here.
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
            // Part of a replacement all the same.
            State::Clean if plan.replace => env.meta(slot.bucket()).valid(),
            _ => return None,
        };
        // A replacement is of all bytes: what is not valid here is zeros.
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
        // The slot's credit is the plan's from now on.
        self.slots.set(at, writing);
        env.gauges.shift(slot, writing);
        Some(Sent { at, mask, was: slot.state() })
    }

    /// What a flush has come to. One that began while the store had the object, which others have removed meanwhile,
    /// may have stored what it sent, but not what it left out because the store had it.
    pub(crate) fn outcome(&self, plan: &FlushPlan, result: Result<Option<u64>>) -> Result<Option<u64>> {
        let is_gone = plan.store_exists && !self.head.store_exists && plan.is_present && !plan.replace;
        result.and_then(|version| match is_gone {
            true => Err(Error::Retryable("the object was removed in the store meanwhile".into())),
            false => Ok(version),
        })
    }

    /// Ends a flush that the store does not refuse for good.
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
                env.gauges.give_room_back(plan.room);
                // From where on the store has cut off or replaced what it had before. While that was on its way such
                // bytes were clipped; now only what is asked for from here on is without them.
                let cut_at = if plan.replace { 0 } else { plan.truncate_before };
                if cut_at != u64::MAX {
                    self.spoil_bytes((cut_at / BUCKET as u64) as u32..u32::MAX);
                }
                self.head.store_exists = plan.is_present;
                self.head.store_size = if plan.is_present { plan.size } else { 0 };
                self.head.store_version = *version;
                self.pending.stored_seq = self.pending.stored_seq.max(plan.seq);
                self.pending.failures = 0;
                // What has come during this flush has waited since its own first change.
                if let Some(since) = newer_since {
                    self.pending.dirty_since = since;
                }
                if flushing.is_some_and(|flushing| flushing.is_doubted) || self.pending.is_doubted {
                    // What others have changed may be newer than what this flush has just stored, and where the object
                    // ends in the store may be another's doing.
                    left = self.doubt(env, &mut Reserved::none(env.pool)).left;
                }
            }
            Err(_) => {
                plan.slots.iter().for_each(|sent| self.not_stored(env, sent));
                self.head.store_version = None;
                // All of it waits on, since the oldest.
                // Perhaps some of it has come to pass.
                self.head.store_exists = true;
                self.head.store_size = self.head.store_size.max(plan.end_of_runs()).max(plan.size);
                self.pending.failures = self.pending.failures.saturating_add(1);
                self.restore(plan);
            }
        }
        Ended { done: self.settle(), left }
    }

    /// What was to be done with the whole object is still to be done, unless it has been overtaken.
    fn restore(&mut self, plan: &FlushPlan) {
        let pending = &mut self.pending;
        pending.room += plan.room;
        if !pending.replace {
            pending.replace = plan.replace;
            pending.truncate_to = pending.truncate_to.min(plan.truncate_before);
            pending.size_dirty |= plan.size_dirty;
        }
    }

    /// A slot's flush is stored.
    fn stored(&mut self, env: &Env<'_>, sent: &Sent) {
        env.gauges.give_back(if sent.was == State::ZeroDirty { 0 } else { 1 });
        let slot = self.slots.get(sent.at);
        match slot.state() {
            State::ZeroWriting => self.set_state(env, sent.at, Slot::bare(State::ZeroClean)),
            State::Writing => {
                let meta = env.meta(slot.bucket());
                if meta.owner().is_none() {
                    // It was another object's once, and is nobody's now.
                    meta.set_owner(Some((env.node, sent.at)));
                }
                if meta.owner() == Some((env.node, sent.at)) {
                    meta.set_dirty(0);
                    self.set_state(env, sent.at, Slot::of(State::Clean, slot.bucket()));
                    env.queues.link(env.pool, slot.bucket(), env.bucket_name(sent.at), false);
                } else {
                    // Clean data have one owner, who can be found when the bucket is to go.
                    self.forget(env, sent.at..sent.at + 1);
                }
            }
            // Changed meanwhile: its own flush will follow.
            _ => (),
        }
    }

    /// A slot's flush failed: what it sent is dirty still, with what is newer.
    fn not_stored(&mut self, env: &Env<'_>, sent: &Sent) {
        let slot = self.slots.get(sent.at);
        match slot.state() {
            // The credit is the slot's again.
            State::Writing => self.set_state(env, sent.at, Slot::of(sent.was, slot.bucket())),
            State::ZeroWriting => self.set_state(env, sent.at, Slot::bare(State::ZeroDirty)),
            state => {
                if state == State::Dirty {
                    let meta = env.meta(slot.bucket());
                    meta.set_dirty(meta.dirty() | sent.mask & meta.valid());
                }
                env.gauges.give_back(if sent.was == State::ZeroDirty { 0 } else { 1 });
            }
        }
    }

    fn set_state(&mut self, env: &Env<'_>, at: u32, slot: Slot) {
        let old = self.slots.set(at, slot);
        env.gauges.shift(old, slot);
    }

    /// Ends a flush that the store refuses for good: what the store does not have is dropped. Gives back what of that
    /// had been acknowledged, if anything had, and who waited for it to be stored.
    pub(crate) fn lose(&mut self, env: &Env<'_>, plan: &FlushPlan) -> (Option<Lost>, Vec<Arc<FlushTicket>>) {
        self.flushing = None;
        self.head.store_steps += 1;
        self.head.store_changes -= 1;
        let bytes = u64::from(self.slots.dirty_count()) * BUCKET as u64 + plan.bytes();
        let changes = self.pending.change_seq - self.pending.stored_seq;
        let lost = Lost { changes, bytes, domain: self.pending.domain };
        let lost = std::mem::take(&mut self.pending.is_acknowledged).then_some(lost);
        super::gauges::add(&env.gauges.lost_bytes, lost.map_or(0, |lost| lost.bytes));
        let sent = plan.slots.iter().filter(|sent| sent.was != State::ZeroDirty).count();
        self.forget(env, 0..u32::MAX);
        env.gauges.give_back(sent as u32);
        env.gauges.give_room_back(plan.room + std::mem::take(&mut self.pending.room));
        self.activity().ranges.spoil_all();
        self.head.known = Known::Unknown;
        self.head.is_full = false;
        (self.pending.replace, self.pending.truncate_to, self.pending.size_dirty) = (false, u64::MAX, false);
        self.pending.failures = 0;
        self.pending.stored_seq = self.pending.change_seq;
        let waiters = std::mem::take(&mut self.activity().flush_waiters);
        self.tidy();
        (lost, waiters.into_iter().map(|(_, ticket)| ticket).collect())
    }

    /// Whose changes are stored now.
    pub(crate) fn settle(&mut self) -> Vec<(Arc<FlushTicket>, Result<()>)> {
        if self.flushing.is_none() && !self.has_pending() {
            self.pending.stored_seq = self.pending.change_seq;
            self.pending.is_acknowledged = false;
        }
        let stored = self.pending.stored_seq;
        let Some(activity) = self.activity_mut() else { return Vec::new() };
        let (done, waiting) = std::mem::take(&mut activity.flush_waiters)
            .into_iter()
            .partition::<Vec<_>, _>(|(seq, _)| *seq <= stored);
        activity.flush_waiters = waiting;
        self.tidy();
        done.into_iter().map(|(_, ticket)| (ticket, Ok(()))).collect()
    }
}

/// The runs of set bits, as bytes.
fn spans(mask: u8) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < SECTORS && mask & 1 << at == 0 {
            at += 1;
        }
        let from = at;
        while at < SECTORS && mask & 1 << at != 0 {
            at += 1;
        }
        (from < at).then_some((from * SECTOR_BYTES, at * SECTOR_BYTES))
    })
}

fn pinned(env: &Env<'_>, bucket: u32, range: std::ops::Range<usize>) -> Segment {
    let copied = || Segment::from(bytes::Bytes::copy_from_slice(&env.pool.bytes(bucket)[range.clone()]));
    env.pool.pin(bucket, range.clone()).unwrap_or_else(copied)
}

/// Appends bytes, to the last run if they continue it. `None`: zeros.
fn push(runs: &mut Vec<Run>, offset: u64, len: u64, data: Option<Segment>, run_max: u64) {
    let continued = runs.last_mut().filter(|last| last.end() == offset && last.len_bytes() + len <= run_max);
    match (continued.map(|last| &mut last.content), data) {
        (Some(RunContent::Data(all)), Some(more)) => all.push(more),
        (Some(RunContent::Zeroes(all)), None) => *all += len,
        (_, Some(data)) => runs.push(Run::data(offset, data)),
        (_, None) => runs.push(Run::zeroes(offset, len)),
    }
}

/// Makes the runs all of the object, from its start to its end: zeros between them, in as few as fit.
fn fill_gaps(runs: &mut Vec<Run>, size: u64, run_max: u64) {
    let mut whole: Vec<(u64, Segments)> = Vec::new();
    let mut add = |offset: u64, data: Segments| {
        let mut done = 0;
        let len = data.len_bytes() as u64;
        while done < len {
            let Some((_, all)) = whole.last_mut().filter(|(_, all)| (all.len_bytes() as u64) < run_max)
            else {
                whole.push((offset + done, Segments::new()));
                continue;
            };
            let part = (run_max - all.len_bytes() as u64).min(len - done);
            data.slice(done as usize..(done + part) as usize).iter().for_each(|it| all.push(it.clone()));
            done += part;
        }
    };
    let mut at = 0;
    for run in runs.drain(..) {
        add(at, Segments::zeros((run.offset - at) as usize));
        at = run.end();
        let data = match run.content {
            RunContent::Data(data) => data,
            RunContent::Zeroes(len) => Segments::zeros(len as usize),
        };
        add(run.offset, data);
    }
    add(at, Segments::zeros((size - at) as usize));
    runs.extend(whole.into_iter().map(|(offset, data)| Run::data(offset, data)));
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn spans_are_runs_of_sectors() {
        assert_eq!(spans(0b1100_0110).collect::<Vec<_>>(), [(512, 1536), (3072, 4096)]);
        assert_eq!(spans(255).collect::<Vec<_>>(), [(0, 4096)]);
        assert_eq!(spans(0).count(), 0);
    }

    #[test]
    fn runs_share_a_request_as_far_as_its_limits_go() {
        let run = Run::zeroes;
        let mut plan = FlushPlan {
            seq: 0,
            is_present: true,
            size: 200,
            replace: false,
            truncate_to: None,
            truncate_before: u64::MAX,
            size_dirty: true,
            store_size: 50,
            store_exists: true,
            is_retry: false,
            runs: vec![run(0, 10), run(20, 10), run(40, 10), run(60, 25), run(90, 10)],
            slots: Arc::from([]),
            room: 0,
        };
        let shape = |plan: &FlushPlan, from, runs_max| {
            let limits = RunLimits { run_bytes_max: 35, gap_bytes_max: 0, runs_max };
            plan.requests(from, limits).iter().map(|runs| runs.len()).collect::<Vec<_>>()
        };
        assert_eq!(shape(&plan, 0, 0), [1, 1, 1, 1, 1], "not offered");
        assert_eq!(shape(&plan, 0, 2), [2, 2, 1]);
        assert_eq!(shape(&plan, 0, 9), [3, 2]);
        assert_eq!(shape(&plan, 1, 9), [2, 2]);
        assert_eq!(shape(&plan, 5, 9), [0; 0]);
        plan.extend_with_zeros(RunLimits { run_bytes_max: 35, gap_bytes_max: 0, runs_max: 9 });
        assert_eq!(plan.runs.len(), 5, "too far for one request");
        plan.extend_with_zeros(RunLimits { run_bytes_max: 100, gap_bytes_max: 0, runs_max: 9 });
        assert_eq!((plan.runs[5].offset, plan.end_of_runs()), (100, 200));
    }

    #[test]
    fn runs_are_joined_and_gaps_of_a_replacement_filled() {
        let data = |len: usize| Some(Segment::from(bytes::Bytes::from(vec![1; len])));
        let mut runs = Vec::new();
        push(&mut runs, 0, 10, data(10), 25);
        push(&mut runs, 10, 10, data(10), 25);
        push(&mut runs, 20, 10, data(10), 25);
        push(&mut runs, 40, 5, None, 25);
        push(&mut runs, 45, 5, None, 25);
        let shape = |runs: &[Run]| runs.iter().map(|run| (run.offset, run.len_bytes())).collect::<Vec<_>>();
        assert_eq!(shape(&runs), [(0, 20), (20, 10), (40, 10)]);
        fill_gaps(&mut runs, 60, 25);
        assert_eq!(shape(&runs), [(0, 25), (25, 25), (50, 10)]);
        let bytes = |run: &Run| match &run.content {
            RunContent::Data(data) => data.to_vec(),
            RunContent::Zeroes(_) => panic!("a replacement has no runs of zeros"),
        };
        let all: Vec<u8> = runs.iter().flat_map(bytes).collect();
        assert_eq!(all, [vec![1; 30], vec![0; 30]].concat());
    }
}
