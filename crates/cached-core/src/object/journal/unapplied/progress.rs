//! How far each object is, and the tasks that wait for it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use blocker::{Error, Namespace, Result};
use cached_journal::RecordPlace;

use super::Recovery;
use super::found::{Found, Standing};
use crate::sync::{Ordering, lock};

/// What is to be applied, and which tasks wait.
#[derive(Default)]
pub(crate) struct State {
    /// Whether the namespaces have been claimed: until then every operation waits.
    pub(crate) has_begun: bool,
    pub(crate) found: Found,
    /// The tasks that wait for an object to be recovered, or for its turn.
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

    /// Returns the tasks that wait for an object, and for anything wider if there is news for them.
    fn take_wakers_of(&mut self, object: u32) -> Vec<Waker> {
        let mut wakers = self.waiters.remove(&object).unwrap_or_default();
        if self.found.take_news() {
            wakers.append(&mut self.wide_waiters);
        }
        wakers
    }
}

impl Recovery {
    /// Whether the object with this hash can be shown to a caller.
    pub(crate) fn is_recovered(&self, hash: u64) -> bool {
        let state = lock(&self.state);
        let standing = |object| state.found.standing(object) == Standing::Recovered;
        state.has_begun && state.found.object(hash).is_none_or(standing)
    }

    /// Returns an object in addition if the caller must see to it that it is recovered.
    pub(crate) fn poll_object(&self, hash: u64, waker: &Waker) -> (Poll<Result<()>>, Option<u32>) {
        let mut state = lock(&self.state);
        if !state.has_begun {
            push(&mut state.wide_waiters, waker);
            return (Poll::Pending, None);
        }
        let Some(object) = state.found.object(hash) else { return (Poll::Ready(Ok(())), None) };
        match state.found.standing(object) {
            Standing::Recovered => (Poll::Ready(Ok(())), None),
            Standing::Failed(why) => (Poll::Ready(Err(why)), None),
            Standing::Busy | Standing::Waiting => {
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

    /// Lets the operations proceed that wait for the claims.
    pub(crate) fn set_begun(&self, found: Found) {
        let wakers = {
            let mut state = lock(&self.state);
            (state.has_begun, state.found) = (true, found);
            state.take_wakers()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Makes a waiting object busy: the caller alone applies its records. Returns how it stood before.
    pub(crate) fn begin_object(&self, object: u32) -> Standing {
        let mut state = lock(&self.state);
        let standing = state.found.standing(object);
        if standing == Standing::Waiting {
            state.found.begin(object);
        }
        standing
    }

    /// Returns the number of the object with this hash.
    pub(crate) fn object_of(&self, hash: u64) -> Option<u32> {
        lock(&self.state).found.object(hash)
    }

    /// Whether the record at a place is applied, or never will be.
    pub(crate) fn is_over(&self, object: u32, place: RecordPlace) -> bool {
        lock(&self.state).found.is_over(object, place)
    }

    pub(crate) fn has_failed(&self, object: u32) -> bool {
        lock(&self.state).found.has_failed(object)
    }

    /// Returns the places of an object's record `last` and of up to `count - 1` before it.
    pub(crate) fn places_up_to(&self, object: u32, last: u32, count: u32) -> Vec<RecordPlace> {
        lock(&self.state).found.places_up_to(object, last, count)
    }

    /// Notes that no task is to recover the object out of turn any more.
    pub(crate) fn end_request(&self, object: u32) {
        lock(&self.state).found.end_request(object);
    }

    /// Notes that nothing more can be read: every object fails that is not recovered.
    pub(crate) fn fail_rest(&self, why: &Error) {
        let failed = lock(&self.state).found.fail_rest(why);
        self.failed.fetch_add(failed, Ordering::Relaxed);
    }

    /// Waits until no task applies records of an object, or it is recovered.
    pub(crate) async fn free(&self, object: u32) {
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            if state.found.standing(object) != Standing::Busy {
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

    /// Counts records as applied that change no object: those of epochs, and those that the journal's owner has voided.
    pub(crate) fn count_applied(&self, records: u64) {
        self.applied.fetch_add(records, Ordering::Relaxed);
    }

    /// Notes that the next record of a busy object is applied.
    pub(crate) fn applied(&self, object: u32) {
        self.count_applied(1);
        lock(&self.state).found.applied(object);
    }

    /// Notes that a busy object cannot be recovered.
    pub(crate) fn fail(&self, object: u32, why: Error) {
        lock(&self.state).found.fail(object, why);
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets a busy object wait again, unless it is recovered, and wakes the tasks that wait for it.
    pub(crate) fn end_object(&self, object: u32) {
        let wakers = {
            let mut state = lock(&self.state);
            state.found.end(object);
            state.take_wakers_of(object)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether the namespaces have been claimed; if not, `waker` is woken when they are.
    pub(crate) fn poll_begun(&self, waker: &Waker) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.has_begun || !self.is_active() {
            return Poll::Ready(());
        }
        push(&mut state.wide_waiters, waker);
        Poll::Pending
    }
}
