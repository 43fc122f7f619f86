//! The serial executor: the operations of an object run one at a time, in order, and no thread
//! spins.
//!
//! ```text
//!  head:  0            free, nothing waits          ── try_run ──> locked
//!         LOCKED       a thread is inside
//!         job | LOCKED a thread is inside, and will run these jobs (last come first)
//!         job          no thread is inside, yet jobs wait: handed off, see below
//! ```
//! A thread that finds the object free runs its job at once, on its own core. Otherwise the thread
//! queues the job and leaves; the thread inside runs the job before it leaves. A job never waits
//! for I/O: it reads, changes, and ends. An operation that must wait does so elsewhere and returns
//! with another job.
//!
//! Draining has a budget. When it is used up, the remaining jobs stay on the stack, the lock is
//! released, and the first task that still waits for one of them, the *successor*, is woken to
//! continue; a new task continues as well. So no caller works for others endlessly, and no job
//! depends on a single task: a task that gives up first continues the queue or, if it finds the
//! lock taken, is not woken and leaves that to the thread that hands off.
//!
//! The stack of waiting jobs is a Treiber stack that is always taken as a whole, so the ABA problem
//! does not arise.

// Boxes taken off the stack as pointers are put back as pointers.
#![allow(clippy::vec_box)]

#[cfg(all(test, shuttle))]
mod shuttle_tests;
#[cfg(all(test, not(shuttle)))]
pub(crate) mod tests;

use std::any::Any;
use std::cell::UnsafeCell;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::{Arc, AtomicPtr, Mutex, Ordering, lock};

/// The maximum number of other tasks' jobs that a caller runs before it hands off. It is low under
/// shuttle, so that the tested interleavings include hand-offs.
const DRAIN_JOBS_MAX: usize = if cfg!(shuttle) { 2 } else { 64 };
const LOCKED: usize = 1;

/// A value that only one job at a time may access.
#[repr(C)]
pub(crate) struct Serial<T> {
    head: AtomicPtr<Job<T>>,
    value: UnsafeCell<T>,
}

/// A job that waits for the exclusive section. Aligned so that the lowest bit of a pointer to it is free.
#[repr(align(8))]
struct Job<T> {
    next: *mut Job<T>,
    run: Box<dyn FnOnce(&mut T) + Send>,
    /// The task that should continue the queue when the thread inside has used up its budget.
    successor: Option<Arc<Ticket>>,
}

// SAFETY: the value is accessed only by the thread that holds the lock bit of `head`, with acquire
// on taking it and release on releasing it; jobs are `Send`. So sharing requires only `T: Send`.
unsafe impl<T: Send> Sync for Serial<T> {}
// SAFETY: the executor owns only the value and the jobs, which are `Send`.
unsafe impl<T: Send> Send for Serial<T> {}

/// Counts a job. Only for tests that limit the number of jobs.
#[inline]
fn count_job() {
    #[cfg(all(test, not(shuttle)))]
    tests::count_job();
}

fn is_locked<T>(head: *mut Job<T>) -> bool {
    head.addr() & LOCKED != 0
}
fn locked<T>(head: *mut Job<T>) -> *mut Job<T> {
    head.map_addr(|addr| addr | LOCKED)
}
fn unlocked<T>(head: *mut Job<T>) -> *mut Job<T> {
    head.map_addr(|addr| addr & !LOCKED)
}

impl<T> Serial<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { head: AtomicPtr::new(std::ptr::null_mut()), value: UnsafeCell::new(value) }
    }

    /// Runs `job` now if no thread is inside and nothing waits; otherwise returns the job.
    #[inline]
    pub(crate) fn try_run<R, F: FnOnce(&mut T) -> R>(&self, job: F) -> Result<R, F> {
        match self.try_enter() {
            Some(mut section) => Ok(job(section.value())),
            None => Err(job),
        }
    }

    /// Begins an exclusive section if no thread is inside and nothing waits. The section must be
    /// short, because other callers wait for its end.
    #[inline]
    pub(crate) fn try_enter(&self) -> Option<ExclusiveSection<'_, T>> {
        let free = std::ptr::null_mut();
        let taken = self.head.compare_exchange(free, locked(free), Ordering::SeqCst, Ordering::SeqCst);
        taken.is_ok().then(|| {
            count_job();
            ExclusiveSection(Release(self))
        })
    }

    /// Runs `job` now, or queues it for the thread that is inside.
    pub(crate) fn post(&self, job: impl FnOnce(&mut T) + Send + 'static) {
        if let Err(job) = self.try_run(job) {
            self.enqueue(Box::new(Job { next: std::ptr::null_mut(), run: Box::new(job), successor: None }));
        }
    }

    /// Queues a job; runs the queue if no thread is inside.
    fn enqueue(&self, mut job: Box<Job<T>>) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            job.next = unlocked(head);
            let raw = Box::into_raw(job);
            match self.head.compare_exchange_weak(head, locked(raw), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => {
                    head = now;
                    // SAFETY: the exchange failed, so no other thread has seen the pointer that `into_raw`
                    // returned just above.
                    job = unsafe { Box::from_raw(raw) };
                }
            }
        }
        if !is_locked(head) {
            self.drain();
        }
    }

    /// Continues with jobs that were handed off, unless another thread already does.
    fn resume(&self) {
        let head = self.head.load(Ordering::Acquire);
        let waits = !head.is_null() && !is_locked(head);
        if waits
            && self.head.compare_exchange(head, locked(head), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.drain();
        }
    }

    /// Runs the waiting jobs, then releases the lock bit, which the caller holds.
    fn drain(&self) {
        let mut budget = DRAIN_JOBS_MAX;
        let release = Release(self);
        let mut waiting = Vec::new();
        loop {
            self.take_all(&mut waiting);
            if waiting.is_empty() {
                // The drop of `release` checks once more, and drains again if another job has been
                // queued.
                return drop(release);
            }
            let count = waiting.len().min(budget);
            for job in waiting.drain(..count) {
                count_job();
                // SAFETY: we hold the lock bit.
                (job.run)(unsafe { &mut *self.value.get() });
            }
            budget -= count;
            if budget == 0 && !waiting.is_empty() {
                std::mem::forget(release);
                return self.hand_off(waiting);
            }
        }
    }

    /// Appends all waiting jobs to `to`, in the order of their arrival.
    fn take_all(&self, to: &mut Vec<Box<Job<T>>>) {
        let empty = locked(std::ptr::null_mut());
        let mut at = unlocked(self.head.swap(empty, Ordering::AcqRel));
        let from = to.len();
        while !at.is_null() {
            // SAFETY: every pointer on the stack came from `Box::into_raw` in `enqueue` or
            // `hand_off`, and the swap made the whole stack exclusively ours.
            let job = unsafe { Box::from_raw(at) };
            at = job.next;
            to.push(job);
        }
        to[from..].reverse();
    }

    /// Puts the jobs back, releases the lock, and wakes the first task that waits for one of them.
    fn hand_off(&self, mut waiting: Vec<Box<Job<T>>>) {
        loop {
            self.take_all(&mut waiting);
            let successors = waiting.iter().filter_map(|job| job.successor.as_ref());
            let successor = successors.into_iter().find(|successor| successor.is_waiting()).cloned();
            let mut top = std::ptr::null_mut();
            for mut job in waiting.drain(..) {
                job.next = top;
                top = Box::into_raw(job);
            }
            let empty = locked(std::ptr::null_mut());
            // Without a task to wake, only this thread can continue.
            let next = if successor.is_some() { top } else { locked(top) };
            if self.head.compare_exchange(empty, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                match successor {
                    // The task has given up in the meantime, perhaps while the lock was still held:
                    // then it has left the queue to us.
                    Some(successor) if !successor.wake() => self.resume(),
                    Some(_) => (),
                    None => self.drain(),
                }
                return;
            }
            // Jobs have arrived in between: they are appended.
            while !top.is_null() {
                // SAFETY: the exchange failed, so the pointers that `into_raw` returned above are
                // still ours.
                let job = unsafe { Box::from_raw(top) };
                top = job.next;
                waiting.push(job);
            }
            waiting.reverse();
        }
    }
}

/// An exclusive section, until this is dropped.
pub(crate) struct ExclusiveSection<'a, T>(Release<'a, T>);

impl<T> ExclusiveSection<'_, T> {
    #[inline]
    pub(crate) fn value(&mut self) -> &mut T {
        // SAFETY: a section is created by the thread that took the lock bit, and releases it on
        // drop.
        unsafe { &mut *self.0.0.value.get() }
    }
}

/// Releases the lock bit, after running all jobs that have been queued in the meantime.
struct Release<'a, T>(&'a Serial<T>);

impl<T> Drop for Release<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let free = std::ptr::null_mut();
        let head = &self.0.head;
        // Sequentially consistent, like entering: if a thread found the bit taken and waits for
        // something else, the thread that releases the bit and then looks for waiters sees it.
        if head.compare_exchange(locked(free), free, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            self.0.drain();
        }
    }
}

impl<T> Drop for Serial<T> {
    fn drop(&mut self) {
        let mut left = Vec::new();
        self.take_all(&mut left);
    }
}

impl<T> Serial<T> {
    /// Returns a future that completes when `job` has run: before this returns, if no thread is inside. `handle`
    /// leads to this executor.
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
                        own.complete(Box::new(job(value)));
                    }
                });
                let successor = Some(Arc::clone(&ticket));
                handle.enqueue(Box::new(Job { next: std::ptr::null_mut(), run, successor }));
                Run { handle, ticket: Some(ticket), done: None, _value: std::marker::PhantomData }
            }
        }
    }
}

/// What a job shares with the task that waits for it. It does not depend on the type of the result, so that it
/// is compiled once.
struct Ticket {
    slot: Mutex<Slot>,
}

enum Slot {
    Waiting(Option<Waker>),
    Done(Box<dyn Any + Send>),
    Gone,
}

impl Ticket {
    fn is_wanted(&self) -> bool {
        !matches!(*lock(&self.slot), Slot::Gone)
    }

    fn complete(&self, done: Box<dyn Any + Send>) {
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

    /// Takes the result of the job; `None` if it has not run: then `waker` is registered.
    fn take(&self, waker: &Waker) -> Option<Box<dyn Any + Send>> {
        let mut slot = lock(&self.slot);
        if let Slot::Waiting(waiting) = &mut *slot {
            *waiting = Some(waker.clone());
            return None;
        }
        let Slot::Done(done) = std::mem::replace(&mut *slot, Slot::Gone) else {
            unreachable!("only a drop makes it gone")
        };
        Some(done)
    }

    fn give_up(&self) {
        // The result is dropped outside of the lock, because its drop may call back.
        let given = std::mem::replace(&mut *lock(&self.slot), Slot::Gone);
        drop(given);
    }

    /// Returns whether the task still waits for its job.
    fn is_waiting(&self) -> bool {
        matches!(*lock(&self.slot), Slot::Waiting(_))
    }

    /// Wakes the task, to continue the queue; returns false if it no longer waits.
    fn wake(&self) -> bool {
        let waker = match &mut *lock(&self.slot) {
            // Without a waker the task has not been polled since it was last woken, and continues
            // when it is.
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
    ticket: Option<Arc<Ticket>>,
    done: Option<R>,
    _value: std::marker::PhantomData<fn(T)>,
}

impl<H: Deref<Target = Serial<T>> + Unpin, T, R: Unpin + 'static> Future for Run<H, T, R> {
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        if let Some(done) = self.done.take() {
            return Poll::Ready(done);
        }
        for last in [false, true] {
            let ticket = self.ticket.as_ref().expect("polled after completion");
            if let Some(done) = ticket.take(cx.waker()) {
                self.ticket = None;
                return Poll::Ready(*done.downcast().expect("the result of the job"));
            }
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
            ticket.give_up();
            // This task may be the one that was woken to continue the queue.
            self.handle.resume();
        }
    }
}
