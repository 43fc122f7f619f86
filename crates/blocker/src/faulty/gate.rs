//! Two primitives for any executor: a gate that can stop all tasks, and a lock that can be held
//! across awaits.

use std::future::{Future, poll_fn};
use std::task::{Poll, Waker};

use parking_lot::Mutex;

/// A gate, which is open, or closed with the wakers of the waiting tasks.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<(bool, Vec<Waker>)>,
}

impl Gate {
    pub(super) fn close(&self) {
        self.state.lock().0 = true;
    }

    pub(super) fn open(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.0 = false;
            std::mem::take(&mut state.1)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().0
    }

    /// Waits until the gate is open.
    pub(super) fn pass(&self) -> impl Future<Output = ()> + Send + '_ {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if !state.0 {
                return Poll::Ready(());
            }
            state.1.push(cx.waker().clone());
            Poll::Pending
        })
    }
}

/// A lock whose guard can be held across awaits. The lock is not fair: all waiting tasks are woken
/// and retry.
#[derive(Default)]
pub(super) struct AsyncLock {
    held: Gate,
}

impl AsyncLock {
    pub(super) async fn lock(&self) -> Guard<'_> {
        loop {
            self.held.pass().await;
            let mut state = self.held.state.lock();
            if !state.0 {
                state.0 = true;
                return Guard(self);
            }
        }
    }
}

pub(super) struct Guard<'a>(&'a AsyncLock);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.held.open();
    }
}
