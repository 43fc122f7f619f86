//! The requests of a flush of an object: they are planned in its exclusive section, sent outside of
//! it, and completed inside again.
//!
//! ```text
//!  begin: Dirty ──> Writing, bytes pinned      send: [remove | replace | cut] [runs …] [extend]
//!  end, stored: Writing ──> Clean              end, failed: Writing ──> Dirty, everything is sent again
//! ```
//! An object has at most one flush in flight. Changes made in the meantime go to new buckets and
//! wait for the next flush. A flush is idempotent: after a failure everything is sent again, merged
//! with newer changes.

use blocker::{Run, RunContent, Segment, Segments};

use super::head::{Head, Known, Pending};
use crate::object::memory::SECTORS;
use crate::object::memory::slots::{SECTOR_BYTES, State};
use crate::sync::Arc;

/// The part of a slot that a flush sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) at: u32,
    /// The sectors to send.
    pub(crate) mask: u8,
    /// The state of the slot before the flush.
    pub(crate) was: State,
}

impl Sent {
    /// Returns the room for dirty data that the slot took.
    pub(super) fn credits(&self) -> u32 {
        u32::from(self.was != State::ZeroDirty)
    }
}

/// The limits of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunLimits {
    /// The maximum size of a request in bytes, a multiple of a bucket.
    pub(crate) run_bytes_max: u64,
    /// The maximum number of clean bytes between two dirty runs that are joined.
    pub(crate) gap_bytes_max: u64,
    /// The maximum number of runs in a request; with 0 or 1 a request has a single range.
    pub(crate) runs_max: usize,
}

/// The plan of a flush.
#[derive(Debug)]
pub(crate) struct FlushPlan {
    /// The object's head when the flush began.
    pub(crate) head: Head,
    /// The changes of the object as a whole, all of which the flush sends.
    pub(crate) pending: Pending,
    /// For a replacement the runs cover the whole object, otherwise all content that is newer than
    /// the store.
    pub(crate) runs: Vec<Run>,
    pub(super) slots: Arc<[Sent]>,
}

impl FlushPlan {
    /// Returns whether the object exists.
    pub(crate) fn is_present(&self) -> bool {
        self.head.known == Known::Present
    }

    /// Returns whether an earlier flush failed: then the object's size in the store is not known.
    pub(crate) fn is_retry(&self) -> bool {
        self.pending.failures > 0
    }

    /// Returns the size to which the store's object is truncated before the runs are written.
    pub(crate) fn truncate_to(&self) -> Option<u64> {
        let is_cut = self.pending.truncate_to < self.head.store_size;
        let is_due = is_cut && !self.pending.replace && self.head.store_exists;
        is_due.then_some(self.pending.truncate_to)
    }

    /// Returns the number of payload bytes in the plan.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(Run::payload_bytes).sum()
    }

    /// If the object extends beyond all runs, adds a run of zeros that extends the store's object
    /// in the same change.
    pub(super) fn extend_with_zeros(&mut self, limits: RunLimits) {
        let end = self.end_of_runs();
        let len = self.head.size.saturating_sub(end);
        let is_due = self.is_present() && !self.is_retry() && len > 0 && len <= limits.run_bytes_max;
        if is_due && limits.runs_max > 1 && !self.runs.is_empty() {
            self.runs.push(Run::zeroes(end, len));
        }
    }

    /// Splits the runs from index `from` into requests, in order, each with as many runs as the
    /// store accepts.
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

    /// Returns the object's size in the store after all runs.
    pub(crate) fn end_of_runs(&self) -> u64 {
        let is_kept = self.head.store_exists && !self.pending.replace;
        let kept = if is_kept { self.head.store_size.min(self.pending.truncate_to) } else { 0 };
        self.runs.iter().map(Run::end).max().unwrap_or(0).max(kept)
    }
}

/// Returns the runs of set bits as byte ranges.
pub(super) fn spans(mask: u8) -> impl Iterator<Item = (usize, usize)> {
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

/// Appends bytes, extending the last run if they continue it. `None` stands for zeros.
pub(super) fn push(runs: &mut Vec<Run>, offset: u64, len: u64, data: Option<Segment>, run_max: u64) {
    let continued = runs.last_mut().filter(|last| last.end() == offset && last.len_bytes() + len <= run_max);
    match (continued.map(|last| &mut last.content), data) {
        (Some(RunContent::Data(all)), Some(more)) => all.push(more),
        (Some(RunContent::Zeroes(all)), None) => *all += len,
        (_, Some(data)) => runs.push(Run::data(offset, data)),
        (_, None) => runs.push(Run::zeroes(offset, len)),
    }
}

/// Makes the runs cover the whole object, with zeros in the gaps, in as few runs as possible.
pub(super) fn fill_gaps(runs: &mut Vec<Run>, size: u64, run_max: u64) {
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
        let head =
            Head { known: Known::Present, size: 200, store_size: 50, store_exists: true, ..Head::default() };
        let mut plan = FlushPlan {
            head,
            pending: Pending { size_dirty: true, ..Pending::default() },
            runs: vec![run(0, 10), run(20, 10), run(40, 10), run(60, 25), run(90, 10)],
            slots: Arc::from([]),
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
