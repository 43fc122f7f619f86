//! The recovery progress of each object, and the tasks that wait for it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use blocker::{Error, Namespace, Result};
use cached_journal::RecordPlace;

use super::Recovery;
use super::found::{Found, Stage};
use crate::sync::{Ordering, lock};

/// The records to be applied, and the waiting tasks.
#[derive(Default)]
pub(crate) struct State {
    /// Whether the namespaces have been claimed; until then every operation waits.
    pub(crate) has_begun: bool,
    pub(crate) found: Found,
    /// The tasks that wait for an object to be recovered, or for their turn to recover it. They are woken in
    /// an order that a simulation repeats.
    waiters: BTreeMap<u32, Vec<Waker>>,
    /// The tasks that wait for more than one object.
    wide_waiters: Vec<Waker>,
}

fn push(waiters: &mut Vec<Waker>, waker: &Waker) {
    if !waiters.iter().any(|each| each.will_wake(waker)) {
        waiters.push(waker.clone());
    }
}

impl State {
    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        let mut all = std::mem::take(&mut self.wide_waiters);
        all.extend(std::mem::take(&mut self.waiters).into_values().flatten());
        all
    }

    /// Removes and returns the tasks that wait for an object, and those that wait for more than one
    /// object if there is news for them.
    fn take_wakers_of(&mut self, object: u32) -> Vec<Waker> {
        let mut wakers = self.waiters.remove(&object).unwrap_or_default();
        if std::mem::take(&mut self.found.has_news) {
            wakers.append(&mut self.wide_waiters);
        }
        wakers
    }
}

impl Recovery {
    /// Returns whether the object with this hash can be shown to a caller.
    pub(crate) fn is_recovered(&self, hash: u64) -> bool {
        let state = lock(&self.state);
        let is_recovered = |object| state.found.stage(object) == Stage::Recovered;
        state.has_begun && state.found.object(hash).is_none_or(is_recovered)
    }

    /// Polls for the recovery of the object with this hash. Also returns the object if the caller
    /// must start its recovery.
    pub(crate) fn poll_object(&self, hash: u64, waker: &Waker) -> (Poll<Result<()>>, Option<u32>) {
        let mut state = lock(&self.state);
        if !state.has_begun {
            push(&mut state.wide_waiters, waker);
            return (Poll::Pending, None);
        }
        let Some(object) = state.found.object(hash) else { return (Poll::Ready(Ok(())), None) };
        match state.found.stage(object) {
            Stage::Recovered => (Poll::Ready(Ok(())), None),
            Stage::Failed => (Poll::Ready(Err(state.found.failure(object))), None),
            Stage::Busy | Stage::Waiting => {
                push(state.waiters.entry(object).or_default(), waker);
                let is_new = state.found.request(object);
                (Poll::Pending, is_new.then_some(object))
            }
        }
    }

    pub(crate) fn poll_wide(&self, namespace: Option<&Namespace>, waker: &Waker) -> Poll<Result<()>> {
        let mut state = lock(&self.state);
        if state.has_begun {
            match state.found.is_recovered(namespace) {
                Ok(true) => return Poll::Ready(Ok(())),
                Ok(false) => (),
                Err(why) => return Poll::Ready(Err(why)),
            }
        }
        push(&mut state.wide_waiters, waker);
        Poll::Pending
    }

    /// Lets operations proceed that wait for the claims.
    pub(crate) fn set_begun(&self, found: Found) {
        let wakers = {
            let mut state = lock(&self.state);
            (state.has_begun, state.found) = (true, found);
            state.take_wakers()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Marks a waiting object as busy, so that only the caller applies its records. Returns the
    /// object's previous stage.
    pub(crate) fn begin_object(&self, object: u32) -> Stage {
        lock(&self.state).found.begin(object)
    }

    /// Returns the number of the object with this hash.
    pub(crate) fn object_of(&self, hash: u64) -> Option<u32> {
        lock(&self.state).found.object(hash)
    }

    /// Returns whether the record at a place has been applied, or never will be.
    pub(crate) fn is_over(&self, object: u32, place: RecordPlace) -> bool {
        lock(&self.state).found.is_over(object, place)
    }

    pub(crate) fn has_failed(&self, object: u32) -> bool {
        lock(&self.state).found.has_failed(object)
    }

    /// Returns the places of an object's record `last` and of up to `count - 1` records before it.
    pub(crate) fn places_up_to(&self, object: u32, last: u32, count: u32) -> Vec<RecordPlace> {
        lock(&self.state).found.places_up_to(object, last, count)
    }

    /// Records that no task will recover the object out of turn any more.
    pub(crate) fn end_request(&self, object: u32) {
        lock(&self.state).found.end_request(object);
    }

    /// Records that no further record can be read: every object that is not yet recovered fails.
    pub(crate) fn fail_rest(&self, why: &Error) {
        let failed = lock(&self.state).found.fail_rest(why);
        self.failed.fetch_add(failed, Ordering::Relaxed);
    }

    /// Waits until the object is recovered, or no task is applying its records.
    pub(crate) async fn free(&self, object: u32) {
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            if state.found.stage(object) != Stage::Busy {
                return Poll::Ready(());
            }
            push(state.waiters.entry(object).or_default(), cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Returns the next record of an object that the caller has made busy.
    pub(crate) fn next_of(&self, object: u32) -> Option<(u32, RecordPlace)> {
        lock(&self.state).found.next(object)
    }

    /// Counts records that change no object as applied: those of epochs, and those that the
    /// journal's owner has voided.
    pub(crate) fn count_applied(&self, records: u64) {
        self.applied.fetch_add(records, Ordering::Relaxed);
    }

    /// Records that the next record of a busy object has been applied.
    pub(crate) fn applied(&self, object: u32) {
        self.count_applied(1);
        lock(&self.state).found.applied(object);
    }

    /// Records that a busy object cannot be recovered.
    pub(crate) fn fail(&self, object: u32, why: Error) {
        lock(&self.state).found.fail(object, why);
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Marks a busy object as waiting again, unless it is recovered, and wakes the tasks that wait
    /// for it.
    pub(crate) fn end_object(&self, object: u32) {
        let wakers = {
            let mut state = lock(&self.state);
            state.found.end(object);
            state.take_wakers_of(object)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Completes when the namespaces have been claimed; until then, `waker` is registered.
    pub(crate) fn poll_begun(&self, waker: &Waker) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.has_begun || !self.is_active() {
            return Poll::Ready(());
        }
        push(&mut state.wide_waiters, waker);
        Poll::Pending
    }
}
