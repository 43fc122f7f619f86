//! The future of a job.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::{Job, Serial, Successor};
use crate::sync::{Arc, Mutex, lock};

impl<T> Serial<T> {
    /// Returns a future that completes when `job` has run: at once if no thread is inside. `handle` leads to
    /// this executor.
    ///
    /// # Cancel safety
    /// A job whose future is dropped before it has run never runs.
    pub(crate) fn run<H, R, F>(handle: H, job: F) -> Run<H, T, R>
    where
        H: Deref<Target = Self>,
        R: Send + 'static,
        F: FnOnce(&mut T) -> R + Send + 'static,
    {
        match handle.try_run(job) {
            Ok(done) => Run { handle, ticket: None, done: Some(done), _value: std::marker::PhantomData },
            Err(job) => {
                let ticket = Arc::new(Ticket { slot: Mutex::new(Slot::Waiting(None)) });
                let own = Arc::clone(&ticket);
                let run = Box::new(move |value: &mut T| {
                    if own.is_wanted() {
                        own.complete(job(value));
                    }
                });
                let successor: Arc<dyn Successor> = Arc::clone(&ticket) as _;
                handle.enqueue(Box::new(Job { next: std::ptr::null_mut(), run, successor: Some(successor) }));
                Run { handle, ticket: Some(ticket), done: None, _value: std::marker::PhantomData }
            }
        }
    }
}

struct Ticket<R> {
    slot: Mutex<Slot<R>>,
}

enum Slot<R> {
    Waiting(Option<Waker>),
    Done(R),
    Gone,
}

impl<R> Ticket<R> {
    fn is_wanted(&self) -> bool {
        !matches!(*lock(&self.slot), Slot::Gone)
    }

    fn complete(&self, done: R) {
        let before = {
            let mut slot = lock(&self.slot);
            if matches!(*slot, Slot::Gone) {
                return;
            }
            std::mem::replace(&mut *slot, Slot::Done(done))
        };
        if let Slot::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<R: Send> Successor for Ticket<R> {
    fn is_waiting(&self) -> bool {
        matches!(*lock(&self.slot), Slot::Waiting(_))
    }

    fn wake(&self) -> bool {
        let waker = match &mut *lock(&self.slot) {
            // Without a waker it has not been polled since the last time, and continues when it is.
            Slot::Waiting(waker) => waker.take(),
            _ => return false,
        };
        waker.into_iter().for_each(Waker::wake);
        true
    }
}

/// The future of a job.
pub(crate) struct Run<H, T, R>
where
    H: Deref<Target = Serial<T>>,
{
    handle: H,
    ticket: Option<Arc<Ticket<R>>>,
    done: Option<R>,
    _value: std::marker::PhantomData<fn(T)>,
}

impl<H: Deref<Target = Serial<T>> + Unpin, T, R: Unpin> Future for Run<H, T, R> {
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        if let Some(done) = self.done.take() {
            return Poll::Ready(done);
        }
        for last in [false, true] {
            let ticket = self.ticket.as_ref().expect("polled after completion");
            let mut slot = lock(&ticket.slot);
            match &mut *slot {
                Slot::Waiting(waker) => *waker = Some(cx.waker().clone()),
                _ => {
                    let Slot::Done(done) = std::mem::replace(&mut *slot, Slot::Gone) else {
                        unreachable!("only a drop makes it gone")
                    };
                    drop(slot);
                    self.ticket = None;
                    return Poll::Ready(done);
                }
            }
            drop(slot);
            if !last {
                self.handle.resume();
            }
        }
        Poll::Pending
    }
}

impl<H: Deref<Target = Serial<T>>, T, R> Drop for Run<H, T, R> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            // The result of the job is dropped outside of the lock: its drop may call back.
            let given = std::mem::replace(&mut *lock(&ticket.slot), Slot::Gone);
            drop(given);
            // It may be this task that was woken to continue the queue.
            self.handle.resume();
        }
    }
}
