//! Merging: an object with an overlay gets a copy that has both, and the volume has the copy.
//!
//! The copy, and most of what was written over the object, is made while writes go on; only what has come last is added
//! with the object alone. A write that cannot wait for that, because there is no room for it, makes a copy of its own: the
//! one that comes first counts, and the other one is removed.

use std::future::poll_fn;
use std::task::Poll;

use blocker::{Condition, CopyRequest, Durability, WriteRequest, WriteZeroesRequest};
use futures_util::StreamExt;

use super::runs::{Run, Source};
use super::state::{ALLOCATIONS_MIN, NewId, State};
use super::write::Attempt;
use super::{Inner, Recorder};
use crate::error::{Error, Result};
use crate::format::OverlayLog;
use crate::format::entry::{Entry, Kind};

/// Objects that are merged concurrently.
const MERGES_MAX: usize = 4;
/// Objects that are merged between two checks of the remaining allocation ids.
const BATCH: usize = 64;
/// Runs that are added in a row: with a cache below none of them waits, and other tasks need the thread as well.
const RUNS_PER_YIELD: u32 = 16;
/// How often runs are added beside the writes before the rest is added without them.
const PASSES: u32 = 3;

// A merge takes two allocation ids.
const _: () = assert!(3 * BATCH as u64 <= ALLOCATIONS_MIN);

impl Inner {
    /// Waits until an object is to be merged.
    ///
    /// # Errors
    /// The volume cannot be used any more.
    pub(super) async fn wait_for_overlays(&self) -> Result<()> {
        poll_fn(|context| {
            let mut state = self.state.lock();
            if let Err(error) = state.check() {
                return Poll::Ready(Err(error));
            }
            // Without a log after an error, another one is due, unless there is no name for it.
            let is_log_due =
                self.has_log() && state.overlays.logs.is_due() && !state.has_used_up_allocations();
            if is_log_due || !state.overlays.is_empty() {
                return Poll::Ready(Ok(()));
            }
            state.overlays.wait(context);
            Poll::Pending
        })
        .await
    }

    /// Merges all objects that have an overlay now, while writes go on. The caller has no lock.
    pub(super) async fn merge_overlays(&self) -> Result<()> {
        self.merge_as(None).await?;
        self.look_ahead_at_quota().await;
        Ok(())
    }

    /// As [`Self::merge_overlays`]; records the copies, if changes are logged until that is done.
    pub(super) async fn merge_and_record(&self) -> Result<()> {
        self.merge_overlays().await?;
        if !self.has_log() && !self.state.lock().overlays.logs.is_any() {
            return Ok(());
        }
        let mut recorder = self.recorder().await?;
        if self.state.lock().has_unrecorded() {
            self.record(&mut recorder).await?;
        }
        self.renew_logs(&mut recorder).await
    }

    /// Begins another log if the one that there is has got long, and removes those that are needed no more.
    pub(super) async fn renew_logs(&self, recorder: &mut Recorder) -> Result<()> {
        self.renew_logs_once(recorder).await?;
        // A log that was full has to go before the next one has room.
        if self.has_log() && !self.state.lock().overlays.logs.has_room() {
            self.renew_logs_once(recorder).await?;
        }
        Ok(())
    }

    async fn renew_logs_once(&self, recorder: &mut Recorder) -> Result<()> {
        if self.has_log() && !self.state.lock().has_used_up_allocations() {
            self.ensure_allocations_as(recorder).await?;
        }
        let renewal = {
            let mut state = self.state.lock();
            let new = self.new_log(&mut state)?;
            state.overlays.renewal(new)
        };
        let Some(renewal) = renewal else { return Ok(()) };
        let mut head = recorder.head.clone();
        head.logs.clone_from(&renewal.logs);
        self.commit(recorder, head).await?;
        let mut state = self.state.lock();
        state.overlays.logs.renewed(&renewal, &self.space.pool.capabilities);
        state.drop_logs(renewal.gone);
        Ok(())
    }

    /// Returns a log that was not begun yet, if the volume has one.
    pub(super) fn new_log(&self, state: &mut State) -> Result<Option<OverlayLog>> {
        if !self.has_log() || state.has_used_up_allocations() {
            return Ok(None);
        }
        Ok(Some(OverlayLog { allocation: state.next_allocation(NewId::Apart)?, key: self.writer }))
    }

    /// Merges all objects, and lets none have an overlay until what is returned is dropped. The caller does not have the barrier.
    pub(super) async fn merged(&self, recorder: &mut Recorder) -> Result<KeptOut<'_>> {
        // Most of them while others come.
        self.merge_as(Some(recorder)).await?;
        let kept_out = KeptOut::new(self);
        // A change that had found that it may begin an overlay has done so by then.
        drop(self.barrier.write().await);
        self.merge_as(Some(recorder)).await?;
        Ok(kept_out)
    }

    /// As [`Self::merged`]. Where changes are logged, all copies are recorded but the last few: what is written over one
    /// that is not would have to wait until the snapshot is made.
    pub(super) async fn merged_for_snapshot(&self, recorder: &mut Recorder) -> Result<KeptOut<'_>> {
        if !self.has_log() {
            return self.merged(recorder).await;
        }
        self.merge_as(Some(recorder)).await?;
        self.record(recorder).await?;
        let kept_out = self.merged(recorder).await?;
        if self.state.lock().has_unrecorded() {
            self.record(recorder).await?;
        }
        self.renew_logs(recorder).await?;
        Ok(kept_out)
    }

    async fn merge_as(&self, mut recorder: Option<&mut Recorder>) -> Result<()> {
        let mut left: Vec<u32> = self.state.lock().overlays.indices().collect();
        while !left.is_empty() {
            match &mut recorder {
                None => self.ensure_allocations().await?,
                Some(recorder) => self.ensure_allocations_as(recorder).await?,
            }
            let batch = left.split_off(left.len().saturating_sub(BATCH));
            let merges = futures_util::stream::iter(batch).map(|index| self.merge(index));
            let ended: Vec<Result<()>> = merges.buffer_unordered(MERGES_MAX).collect().await;
            ended.into_iter().collect::<Result<()>>()?;
        }
        Ok(())
    }

    async fn merge(&self, index: u32) -> Result<()> {
        let _one = self.merging_of(index).lock().await;
        let _beside = self.merges.read().await;
        let found = {
            let state = self.state.lock();
            state.check()?;
            state.overlays.of(index)
        };
        let Some((id, base)) = found else { return Ok(()) };
        let merged = self.merge_one(index, id, base).await;
        self.state.lock().overlays.is_failing = merged.is_err();
        merged
    }

    /// Merges an object that has the overlay with this number over `base`.
    async fn merge_one(&self, index: u32, id: u64, base: Entry) -> Result<()> {
        let is_current = || self.state.lock().overlays.of(index) == Some((id, base));
        // What was written over it is acknowledged: it has to have its place, whatever the quota is by now.
        let settles = true;
        let mut attempt = match self.copy((index, base), NewId::Apart, settles).await {
            // Another one has merged it, and what was written over is gone.
            Err(Error::Damaged(_)) if !is_current() => return Ok(()),
            made => made?,
        };
        let mut serial = 0;
        for _ in 0..PASSES {
            let runs = self.state.lock().overlays.runs_after(index, &mut serial);
            if runs.is_empty() {
                break;
            }
            self.write_runs((index, attempt.allocation), &runs, settles).await?;
        }
        let _barrier = self.barrier.read().await;
        let _alone = self.lock_of(index).write().await;
        let runs = self.state.lock().overlays.runs_after(index, &mut serial);
        self.write_runs((index, attempt.allocation), &runs, settles).await?;
        let mut state = self.state.lock();
        state.check()?;
        // Else the volume has another object by now, and the copy is removed.
        if state.overlays.of(index) == Some((id, base)) {
            attempt.end_allocated();
            state.set_copied(index, attempt.allocation);
        }
        // It is put away with the state free.
        drop(state);
        Ok(())
    }

    /// Gives the volume an object of its own with what it has in a place, which is no hole. The caller has the object
    /// alone. Returns the object's allocation id.
    pub(super) async fn allocate_copy(&self, index: u32) -> Result<u64> {
        let (base, runs) = {
            let state = self.state.lock();
            (state.live.get(index), state.overlays.runs_after(index, &mut 0))
        };
        let copied = async {
            // The caller can be refused still.
            let attempt = self.copy((index, base), NewId::Current, false).await?;
            self.write_runs((index, attempt.allocation), &runs, false).await?;
            Ok(attempt)
        };
        let copied = copied.await;
        let mut state = self.state.lock();
        state.overlays.is_failing = copied.is_err();
        match copied {
            Ok(mut attempt) => {
                let allocation = attempt.allocation;
                attempt.end_allocated();
                state.set_copied(index, allocation);
                // It is put away with the state free.
                drop(state);
                Ok(allocation)
            }
            Err(error) => Err(error),
        }
    }

    /// Copies `base` to a new object, which nothing names yet.
    async fn copy(&self, (index, base): (u32, Entry), new_id: NewId, settles: bool) -> Result<Attempt<'_>> {
        let from = self.object_of(base, index);
        let make = |allocation| {
            let to = self.space.object(Kind::Data(allocation, index));
            let change = self.space.change(Durability::Cached, Condition::Absent);
            let request = CopyRequest::new(from.clone(), to).change(change).settles(settles);
            self.space.store().copy(request)
        };
        match self.make(index, new_id, make).await {
            // Durable as asked or not, it is there; the next flush covers it.
            Ok((_, attempt)) => Ok(attempt),
            Err(Error::Io(blocker::Error::Missing)) => {
                Err(Error::Damaged(format!("object {from} of the volume is missing")))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes runs to an object that is the volume's own, or will be.
    async fn write_runs(
        &self,
        (index, allocation): (u32, u64),
        runs: &[(u64, Run)],
        settles: bool,
    ) -> Result<()> {
        for (number, (at, run)) in (1..).zip(runs) {
            if number % RUNS_PER_YIELD == 0 {
                yield_now().await;
            }
            let source = run.source();
            let send = || {
                let object = self.space.object(Kind::Data(allocation, index));
                let mut change = self.space.change(Durability::Cached, Condition::None);
                change.settles = settles;
                match &source {
                    Source::Data(data) => {
                        self.space.store().write(WriteRequest::new(object, *at, data.clone()).change(change))
                    }
                    _ => {
                        let request = WriteZeroesRequest::new(object, *at, run.length);
                        self.space.store().write_zeroes(request.change(change))
                    }
                }
            };
            self.change_in_place(index, allocation, send(), send).await?;
        }
        Ok(())
    }
}

/// Yields to other tasks of the thread.
async fn yield_now() {
    let mut has_given = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_given, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// As long as it lives, no object gets an overlay that has none.
pub(super) struct KeptOut<'a>(&'a Inner);

impl<'a> KeptOut<'a> {
    fn new(inner: &'a Inner) -> Self {
        inner.state.lock().overlays.keep_out();
        Self(inner)
    }
}

impl Drop for KeptOut<'_> {
    fn drop(&mut self) {
        self.0.state.lock().overlays.let_in();
    }
}
