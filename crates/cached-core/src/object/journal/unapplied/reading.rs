//! Reading the journal beside the tasks of the background: on a thread of its own, because a disk takes its time.

use std::future::poll_fn;
use std::sync::mpsc::{Sender, channel};
use std::task::{Poll, Waker};

use crate::object::lock_ranks;
use crate::sync::{Arc, Mutex, lock};

type Job = Box<dyn FnOnce() + Send>;

/// Where jobs that read are done.
#[derive(Default)]
pub(crate) enum Reading {
    /// In the task that asks: a test steps the journal.
    #[default]
    Here,
    /// On a thread, which ends when this is dropped.
    Apart(Sender<Job>),
}

/// The result of a job.
enum Slot<T> {
    Waiting(Option<Waker>),
    Done(T),
    /// The thread has ended without doing it.
    Abandoned,
}

/// The side of the thread: abandons the slot unless it has been filled.
struct Promise<T>(Arc<Mutex<Slot<T>>>);

impl<T> Promise<T> {
    fn set(&self, to: Slot<T>) {
        let before = {
            let mut slot = lock(&self.0);
            if matches!(*slot, Slot::Done(_)) {
                return;
            }
            std::mem::replace(&mut *slot, to)
        };
        if let Slot::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.set(Slot::Abandoned);
    }
}

impl Reading {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (sender, jobs) = channel::<Job>();
        let thread = std::thread::Builder::new().name("journal-read".into());
        thread.spawn(move || jobs.into_iter().for_each(|job| job()))?;
        Ok(Self::Apart(sender))
    }

    /// Begins a job; the future completes with its result, or with nothing if the thread has ended.
    pub(crate) fn read<T, J>(&self, job: J) -> impl Future<Output = Option<T>> + Send + use<T, J>
    where
        T: Send + 'static,
        J: FnOnce() -> T + Send + 'static,
    {
        let slot = Arc::new(Mutex::ranked(Slot::Waiting(None), &lock_ranks::RECOVERY));
        let promise = Promise(Arc::clone(&slot));
        let job = move || promise.set(Slot::Done(job()));
        match self {
            Self::Here => job(),
            // A job that is not taken is dropped, and abandons its slot.
            Self::Apart(sender) => drop(sender.send(Box::new(job))),
        }
        poll_fn(move |cx| {
            let mut slot = lock(&slot);
            match std::mem::replace(&mut *slot, Slot::Waiting(Some(cx.waker().clone()))) {
                Slot::Waiting(_) => Poll::Pending,
                Slot::Done(result) => Poll::Ready(Some(result)),
                Slot::Abandoned => Poll::Ready(None),
            }
        })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use blocker::executor::block_on;

    use super::*;

    #[test]
    fn a_job_is_done_on_another_thread_and_a_lost_one_is_not_waited_for() {
        let own = std::thread::current().id();
        let apart = Reading::start().unwrap();
        assert_ne!(block_on(apart.read(move || std::thread::current().id())), Some(own));
        assert_eq!(block_on(Reading::Here.read(move || std::thread::current().id())), Some(own));
        // The thread ends with the panic.
        assert_eq!(block_on(apart.read(|| panic!("of the test"))), None::<()>);
        assert_eq!(block_on(apart.read(|| ())), None);
    }
}
