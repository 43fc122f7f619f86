//! Merging: an object with an overlay gets a copy that has both, and the volume has the copy.
//!
//! The copy, and most of what was written over it, is made while writes go on; only the last bytes are added alone.

use std::future::poll_fn;
use std::task::Poll;

use blocker::{Condition, CopyRequest, Durability, Run as RunOfChange, WriteRequest, WriteZeroesRequest};

use super::{Source, runs};
use crate::entry::{Entry, Kind};
use crate::error::{Error, Result};
use crate::format::OverlayLog;
use crate::volume::write::Attempt;
use crate::volume::{Inner, Recorder};

/// Runs that are added in a row: with a cache below none of them waits, and others have the thread as well.
const RUNS_AT_ONCE: u32 = 16;

/// Lets other tasks of the thread go on.
async fn give_way() {
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

impl Inner {
    /// Waits until an object is to be merged.
    ///
    /// # Errors
    /// The volume cannot be used any more.
    pub(in crate::volume) async fn wait_for_overlays(&self) -> Result<()> {
        poll_fn(|context| {
            let mut state = self.state.lock();
            if let Err(error) = state.check() {
                return Poll::Ready(Err(error));
            }
            if state.overlays.indices().next().is_some() {
                return Poll::Ready(Ok(()));
            }
            state.overlays.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Merges all objects with an overlay, one after the other, while writes go on.
    pub(in crate::volume) async fn merge_overlays(&self) -> Result<()> {
        self.ensure_births().await?;
        self.merge_all().await?;
        let is_long = self.state.lock().overlays.is_long();
        if is_long {
            let mut recorder = self.recorder().await?;
            self.without_overlays(&mut recorder).await?;
        } else if self.promises.records_at_once && self.state.lock().has_unrecorded() {
            // Until then what is written to them is written to the log as well.
            let mut recorder = self.recorder().await?;
            self.record(&mut recorder).await?;
        }
        Ok(())
    }

    /// Merges all objects, and lets none have an overlay until what is returned is dropped. The caller has no turn.
    pub(in crate::volume) async fn merged(&self, recorder: &mut Recorder) -> Result<WithoutOverlays<'_>> {
        let births_left = {
            let state = self.state.lock();
            state.check()?;
            state.birth_limit.saturating_sub(state.birth)
        };
        if births_left < crate::volume::write::BIRTHS_MIN {
            self.reserve_births(recorder).await?;
        }
        // Most of them while others come.
        self.merge_all().await?;
        if self.state.lock().overlays.has_merged() {
            self.record(recorder).await?;
        }
        let without = WithoutOverlays::new(self);
        // Whatever was about to begin one has done so after this.
        drop(self.turn.write().await);
        self.merge_all().await?;
        // By an attempt to close the volume, or by a head that was not seen to be stored. Everything was recorded before.
        let is_ended = self.can_log() && self.state.lock().overlays.log_birth().is_none();
        if is_ended {
            let parts = self.state.lock().overlays.parts_used();
            self.begin_log(recorder, parts).await?;
        }
        Ok(without)
    }

    /// As [`Self::merged`]; records them as well, and begins a new log: no record of before counts any more.
    pub(in crate::volume) async fn without_overlays(
        &self,
        recorder: &mut Recorder,
    ) -> Result<WithoutOverlays<'_>> {
        let without = self.merged(recorder).await?;
        if self.state.lock().overlays.is_used() {
            self.record(recorder).await?;
            let parts = self.state.lock().overlays.parts_used();
            self.begin_log(recorder, parts).await?;
        }
        Ok(without)
    }

    /// Begins a new log, and removes the first `parts` of the one before. No object has an overlay, and all that were
    /// merged are recorded.
    pub(super) async fn begin_log(&self, recorder: &mut Recorder, parts: u32) -> Result<()> {
        let before = recorder.head.overlays;
        let birth = {
            let mut state = self.state.lock();
            debug_assert!(state.overlays.indices().next().is_none());
            // Of no object, either: see `State::live_with_overlays`.
            state.birth += 1;
            let birth = state.current_birth()?;
            state.birth += 1;
            birth
        };
        self.end_log();
        let id = self.can_log().then_some(OverlayLog { birth, key: self.writer });
        let mut head = recorder.head.clone();
        head.overlays = id;
        self.commit(recorder, head).await?;
        let mut state = self.state.lock();
        state.overlays.begin(id, &self.space.pool.capabilities);
        if let Some(before) = before {
            state.drops.extend((0..parts).map(|part| Kind::Overlay(before.birth, part)));
        }
        Ok(())
    }

    /// Ends the log: nothing is appended any more.
    pub(in crate::volume) fn end_log(&self) {
        self.state.lock().overlays.log = None;
    }

    /// Returns whether the volume has a log. Stamped changes of one object come one after the other, and the log takes
    /// those of all objects.
    fn can_log(&self) -> bool {
        !self.space.is_stamped() && super::part_bytes(&self.space.pool.capabilities).is_some()
    }

    async fn merge_all(&self) -> Result<()> {
        loop {
            let next = self.state.lock().overlays.indices().next();
            let Some(index) = next else { return Ok(()) };
            self.merge(index).await?;
        }
    }

    async fn merge(&self, index: u32) -> Result<()> {
        let _one = self.merging.lock().await;
        let Some(mut merging) = self.begin_merge(index).await? else { return Ok(()) };
        self.add_runs(&mut merging).await?;
        let _turn = self.turn.read().await;
        let _alone = self.lock_of(index).write().await;
        self.add_runs(&mut merging).await?;
        self.end_merge(merging)
    }

    /// As [`Self::merge`]; the caller shares the turn and has the object alone.
    pub(in crate::volume) async fn merge_alone(&self, index: u32) -> Result<()> {
        let Some(mut merging) = self.begin_merge(index).await? else { return Ok(()) };
        self.add_runs(&mut merging).await?;
        self.end_merge(merging)
    }

    /// Copies what was written over. Returns `None` if the object has no overlay any more.
    async fn begin_merge(&self, index: u32) -> Result<Option<Merging<'_>>> {
        let base = {
            let mut state = self.state.lock();
            state.check()?;
            let Some(overlay) = state.overlays.objects.get_mut(&index) else { return Ok(None) };
            if overlay.is_merged {
                return Ok(None);
            }
            let base = overlay.base;
            // A copy that is being made has that name.
            if std::mem::replace(&mut overlay.is_merging, true) {
                state.birth += 1;
            }
            base
        };
        let from = self.object_of(base, index);
        let made = self.make(index, |birth| {
            let to = self.space.object(Kind::Data(birth, index));
            let change = self.space.change(Durability::Cached, Condition::Absent);
            self.space.store().copy(CopyRequest::new(from.clone(), to).change(change))
        });
        match made.await {
            Ok((_, attempt)) => Ok(Some(Merging { attempt, base, serial: 0 })),
            // Another one has merged it, and what was written over is gone.
            Err(Error::Io(blocker::Error::Missing)) if !self.state.lock().overlays.is_over(index) => Ok(None),
            Err(Error::Io(blocker::Error::Missing)) => {
                Err(Error::Damaged(format!("object {from} of the volume is missing")))
            }
            Err(error) => Err(error),
        }
    }

    /// Adds to the copy what was written over the object since the last time.
    async fn add_runs(&self, merging: &mut Merging<'_>) -> Result<()> {
        let (index, birth) = (merging.attempt.index, merging.attempt.birth);
        let (runs, serial, log) = {
            let state = self.state.lock();
            state.check()?;
            let overlays = &state.overlays;
            let Some(overlay) = overlays.objects.get(&index).filter(|overlay| !overlay.is_merged) else {
                return Ok(());
            };
            let Some(log) = overlays.log_birth() else { return Ok(()) };
            (overlay.runs.after(merging.serial), overlays.inserted, log)
        };
        merging.serial = serial;
        self.write_runs(index, birth, log, &runs).await
    }

    async fn write_runs(&self, index: u32, birth: u64, log: u64, runs: &[(u64, runs::Run)]) -> Result<()> {
        for (number, (at, run)) in (1..).zip(runs) {
            if number % RUNS_AT_ONCE == 0 {
                give_way().await;
            }
            let content = match run.source() {
                Source::Log(place) => RunOfChange::data(*at, self.read_log(log, place, run.length).await?),
                _ => RunOfChange::zeroes(*at, run.length),
            };
            self.put_run(index, birth, content).await?;
        }
        Ok(())
    }

    /// Writes a run to an object that is the volume's own, or will be.
    pub(super) async fn put_run(&self, index: u32, birth: u64, run: RunOfChange) -> Result<()> {
        let send = || {
            let object = self.space.object(Kind::Data(birth, index));
            let change = self.space.change(Durability::Cached, Condition::None);
            match &run.content {
                blocker::RunContent::Data(data) => {
                    let request = WriteRequest::new(object, run.offset, data.clone());
                    self.space.store().write(request.change(change))
                }
                blocker::RunContent::Zeroes(length) => {
                    let request = WriteZeroesRequest::new(object, run.offset, *length);
                    self.space.store().write_zeroes(request.change(change))
                }
            }
        };
        self.change_in_place(index, birth, send(), send).await.map(drop)
    }

    /// Gives the volume the copy, unless its place has another content by now.
    fn end_merge(&self, mut merging: Merging<'_>) -> Result<()> {
        let (index, base) = (merging.attempt.index, merging.base);
        let mut state = self.state.lock();
        state.check()?;
        let is_over = state.overlays.is_over(index) && state.live.get(index) == base;
        if !is_over {
            drop(state);
            // The attempt leaves a copy that nothing names.
            return Ok(());
        }
        if state.owns(index, base) {
            // A snapshot that was to share it was not made.
            state.drops.push(Kind::Data(base.birth(), index));
        }
        merging.attempt.end_born(&mut state);
        let is_logged_on = self.promises.records_at_once;
        match state.overlays.objects.get_mut(&index) {
            Some(overlay) if is_logged_on => overlay.end(),
            _ => state.overlays.forget(index),
        }
        Ok(())
    }
}

impl super::Overlay {
    /// The volume has the object, and its entry is to be stored.
    fn end(&mut self) {
        self.runs = super::Runs::default();
        (self.is_merging, self.is_merged) = (false, true);
    }
}

/// A copy that is being made.
struct Merging<'a> {
    attempt: Attempt<'a>,
    base: Entry,
    /// What was inserted up to this is in the copy.
    serial: u64,
}

/// As long as it lives, no object gets an overlay.
pub(in crate::volume) struct WithoutOverlays<'a>(&'a Inner);

impl<'a> WithoutOverlays<'a> {
    pub(in crate::volume) fn new(inner: &'a Inner) -> Self {
        inner.state.lock().overlays.kept_out += 1;
        Self(inner)
    }
}

impl Drop for WithoutOverlays<'_> {
    fn drop(&mut self) {
        self.0.state.lock().overlays.kept_out -= 1;
    }
}
