//! How tasks wait and take turns: wait queues, the serial executor behind an object's exclusive
//! section, deadlines, and work that operations leave to the background. Nothing here knows of
//! objects.

pub(crate) mod deadline;
pub(crate) mod serial;
pub(crate) mod wait_queue;

use std::future::Future;
use std::pin::Pin;
use std::task::Waker;

use blocker::{Error, Result};

use crate::object::lock_ranks;
use crate::sync::{Mutex, lock};

/// A task that runs to completion even if its caller has given up.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The queue of work that operations hand over to the background of their cache, and its wake-up.
pub(crate) struct BackgroundQueue {
    state: Mutex<State>,
}

impl Default for BackgroundQueue {
    fn default() -> Self {
        Self { state: Mutex::ranked(State::default(), &lock_ranks::BACKGROUND) }
    }
}

#[derive(Default)]
struct State {
    tasks: Vec<Task>,
    waker: Option<Waker>,
    /// Whether the background has been polled.
    has_started: bool,
    /// Whether the log has a warning that a caller waits for a background that has not started.
    has_warned: bool,
    /// Whether the last handle of the cache has been dropped.
    is_closed: bool,
    /// Whether the background has ended or was dropped.
    has_ended: bool,
}

impl BackgroundQueue {
    /// Wakes the background, because of a change that concerns it.
    pub(crate) fn wake(&self) {
        let waker = lock(&self.state).waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Wakes the background, because a caller waits for work that only the background can do.
    ///
    /// # Errors
    /// `Unsupported` if the background has ended.
    pub(crate) fn wake_for_waiter(&self) -> Result<()> {
        let (waker, warns) = {
            let mut state = lock(&self.state);
            if state.has_ended {
                return Err(has_ended());
            }
            let warns = !state.has_started && !std::mem::replace(&mut state.has_warned, true);
            (state.waker.take(), warns)
        };
        if warns {
            tracing::warn!(
                "an operation waits for the background of the object cache, which has not been started"
            );
        }
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Hands over a task. If the background has ended, the task is dropped.
    pub(crate) fn add(&self, task: Task) {
        let (waker, _dropped) = {
            let mut state = lock(&self.state);
            if state.has_ended {
                (None, Some(task))
            } else {
                state.tasks.push(task);
                (state.waker.take(), None)
            }
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// Returns the tasks handed over since the last call, and whether the last handle of the cache
    /// has been dropped. `waker` is woken at the next change.
    pub(crate) fn take(&self, waker: &Waker) -> (Vec<Task>, bool) {
        let mut state = lock(&self.state);
        state.has_started = true;
        state.waker = Some(waker.clone());
        (std::mem::take(&mut state.tasks), state.is_closed)
    }

    /// Lets the background end, because the last handle of the cache has been dropped.
    pub(crate) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.wake();
    }

    /// Records that the background has ended, and drops all tasks that were handed over.
    pub(crate) fn end(&self) {
        let tasks = {
            let mut state = lock(&self.state);
            state.has_ended = true;
            std::mem::take(&mut state.tasks)
        };
        drop(tasks);
    }
}

/// Returns the error of an operation that waits for a background which has ended.
pub(crate) fn has_ended() -> Error {
    Error::Unsupported(
        "the background of this object cache was dropped: it must run as long as the cache is used".into(),
    )
}
