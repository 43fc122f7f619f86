//! Two small things to wait at, for any executor: a gate that stops everyone, and a lock held across
//! awaits.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;

/// Open, or closed with those who wait.
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

    /// Completes when the gate is open.
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

/// A lock whose guard may live across awaits. Not fair; everyone who waits is woken and tries again.
#[derive(Default)]
pub(super) struct AsyncLock {
    held: Gate,
}

impl AsyncLock {
    pub(super) async fn lock(self: &Arc<Self>) -> Guard {
        loop {
            self.held.pass().await;
            let mut state = self.held.state.lock();
            if !state.0 {
                state.0 = true;
                return Guard(Arc::clone(self));
            }
        }
    }
}

pub(super) struct Guard(Arc<AsyncLock>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.held.open();
    }
}
