//! Merges objects: an object with an overlay is copied, the overlay is written to the copy, and the
//! map names the copy.
//!
//! The copy and most of the overlay are written while client writes continue; only the last writes
//! are added while the object is locked exclusively. If a client write cannot wait for the merge
//! because the overlay has no space, the write makes a copy of its own. The first copy to be
//! completed is used, and the other one is removed.

use std::future::poll_fn;
use std::task::Poll;

use blocker::{BlockerExt, Condition, CopyRequest, Durability, WriteRequest, WriteZeroesRequest};
use futures_util::StreamExt;

use super::runs::{Run, Source};
use super::state::{ALLOCATIONS_MIN, NewId, State};
use super::write::Attempt;
use super::{Inner, LOCKS, Recorder, Volume};
use crate::error::{Error, Result};
use crate::format::OverlayLog;
use crate::format::entry::{Entry, Kind};

/// The number of objects merged concurrently.
const MERGES_MAX: usize = 4;
/// The number of objects merged between two checks of the remaining allocation IDs.
const BATCH: usize = 64;
/// The number of runs added before yielding. With a cache below, adding a run never waits, and
/// other tasks need the thread as well.
const RUNS_PER_YIELD: u32 = 16;
/// The number of passes in which runs are added while client writes continue, before the rest is
/// added with client writes excluded.
const PASSES: u32 = 3;

// A merge needs two allocation IDs.
const _: () = assert!(3 * BATCH as u64 <= ALLOCATIONS_MIN);

impl Volume {
    /// Waits until there are objects to merge: see [`Self::merge`]. Only one caller may wait at a
    /// time.
    ///
    /// # Errors
    /// `Closed`, `HandedOver`, `Fenced` and `Interrupted`, even if the error arises during the
    /// wait.
    pub async fn merge_due(&self) -> Result<()> {
        poll_fn(|context| {
            let mut state = self.inner.state.lock();
            state.check()?;
            // After an error there is no current log, so another one is due, unless allocation IDs
            // are exhausted.
            let is_log_due =
                self.inner.has_log() && state.overlays.logs.is_due() && !state.has_used_up_allocations();
            if is_log_due || !state.overlays.is_empty() {
                return Poll::Ready(Ok(()));
            }
            state.overlays.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Copies objects that were written to since the last snapshot and are not copied yet. A short
    /// write to such an object is kept in memory, so that it does not wait for the copy; the write
    /// is also logged if the options require every write to survive the process. Call this method
    /// whenever [`Self::merge_due`] returns, concurrently with other operations: the memory
    /// ([`Options::overlay_bytes_max`](crate::Options::overlay_bytes_max)) and the log are limited,
    /// and when either is full, writes wait for copies again. A snapshot and [`Self::close`] also
    /// merge, as does a flush if there is no log.
    ///
    /// # Errors
    /// See [`Volume`]. An error loses nothing: the method can be called again.
    ///
    /// # Cancel safety
    /// Dropping the future leaves objects uncopied; an unfinished copy may remain until
    /// [`Volumes::check`](crate::Volumes::check) removes it.
    pub async fn merge(&self) -> Result<()> {
        let inner = &*self.inner;
        inner.merge_overlays().await?;
        if !inner.has_log() && !inner.state.lock().overlays.logs.is_any() {
            return Ok(());
        }
        let mut recorder = inner.recorder().await?;
        // If changes are logged until their copies are recorded, the copies are also recorded.
        if inner.state.lock().has_unrecorded() {
            inner.record(&mut recorder).await?;
        }
        inner.renew_logs(&mut recorder).await
    }
}

impl Inner {
    /// Merges all objects that have an overlay at the time of the call, while writes continue. The
    /// caller holds no lock.
    pub(super) async fn merge_overlays(&self) -> Result<()> {
        self.merge_as(None).await?;
        self.look_ahead_at_quota().await;
        Ok(())
    }

    /// Creates another log if the current one is long, and removes logs that are no longer needed.
    pub(super) async fn renew_logs(&self, recorder: &mut Recorder) -> Result<()> {
        self.renew_logs_once(recorder).await?;
        // A full log has to be removed before there is space for the next one.
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

    /// Returns a new log, if the volume has logs.
    pub(super) fn new_log(&self, state: &mut State) -> Result<Option<OverlayLog>> {
        if !self.has_log() || state.has_used_up_allocations() {
            return Ok(None);
        }
        Ok(Some(OverlayLog { allocation: state.next_allocation(NewId::Apart)?, key: self.writer }))
    }

    /// Merges all objects, and prevents new overlays until the returned value is dropped. The
    /// caller does not hold the barrier.
    pub(super) async fn merged(&self, recorder: &mut Recorder) -> Result<KeptOut<'_>> {
        // Most objects are merged while new overlays are still allowed.
        self.merge_as(Some(recorder)).await?;
        let kept_out = KeptOut::new(self);
        // Changes that had already been allowed to create an overlay have created it by now.
        drop(self.barrier.write().await);
        self.merge_as(Some(recorder)).await?;
        Ok(kept_out)
    }

    /// Merges as [`Self::merged`] does. If changes are logged, all copies except the last few are
    /// also recorded: otherwise writes to an unrecorded copy would have to wait until the snapshot
    /// is taken.
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
        let _one = self.merging[(index % LOCKS) as usize].lock().await;
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

    /// Merges an object whose overlay over `base` has this number.
    async fn merge_one(&self, index: u32, id: u64, base: Entry) -> Result<()> {
        let is_current = || self.state.lock().overlays.of(index) == Some((id, base));
        // The change in the overlay is acknowledged, so the quota must not refuse the copy.
        let settles = true;
        let mut attempt = match self.copy((index, base), NewId::Apart, settles).await {
            // Another merge has already replaced the object, and removed the base.
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
        // Otherwise the volume has another object by now, and this copy is removed.
        if state.overlays.of(index) == Some((id, base)) {
            attempt.end_allocated();
            state.set_copied(index, attempt.allocation);
        }
        // Dropped after the state is unlocked.
        drop(state);
        Ok(())
    }

    /// Replaces a shared object with a copy that is the volume's own. The index is not a hole, and
    /// the caller holds the object exclusively. Returns the copy's allocation ID.
    pub(super) async fn allocate_copy(&self, index: u32) -> Result<u64> {
        let (base, runs) = {
            let state = self.state.lock();
            (state.live.get(index), state.overlays.runs_after(index, &mut 0))
        };
        let copied = async {
            // The caller's change is not acknowledged yet, so the quota may refuse the copy.
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
                // Dropped after the state is unlocked.
                drop(state);
                Ok(allocation)
            }
            Err(error) => Err(error),
        }
    }

    /// Copies `base` to a new object, which no map names yet.
    async fn copy(&self, (index, base): (u32, Entry), new_id: NewId, settles: bool) -> Result<Attempt<'_>> {
        let from = self.object_of(base, index);
        let make = |allocation| {
            let to = self.space.object(Kind::Data(allocation, index));
            let terms = self.space.terms(Durability::Cached, Condition::Absent);
            let request = CopyRequest::new(from.clone(), to).terms(terms).settles(settles);
            self.space.store().copy(request)
        };
        match self.make(index, new_id, make).await {
            // Whatever its durability, the copy exists, and the next flush covers it.
            Ok((_, attempt)) => Ok(attempt),
            Err(Error::Io(blocker::Error::Missing)) => {
                Err(Error::Damaged(format!("object {from} of the volume is missing")))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes runs to an object that is, or will be, the volume's own.
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
                let mut terms = self.space.terms(Durability::Cached, Condition::None);
                terms.settles = settles;
                match &source {
                    Source::Data(data) => {
                        self.space.store().write(WriteRequest::new(object, *at, data.clone()).terms(terms))
                    }
                    _ => {
                        let request = WriteZeroesRequest::new(object, *at, run.length);
                        self.space.store().write_zeroes(request.terms(terms))
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

/// Prevents objects without an overlay from getting one, for as long as this value exists.
pub(super) struct KeptOut<'a>(&'a Inner);

impl<'a> KeptOut<'a> {
    fn new(inner: &'a Inner) -> Self {
        inner.state.lock().overlays.kept_out += 1;
        Self(inner)
    }
}

impl Drop for KeptOut<'_> {
    fn drop(&mut self) {
        self.0.state.lock().overlays.kept_out -= 1;
    }
}
