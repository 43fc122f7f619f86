//! A bounded pool of threads for blocking jobs, and the futures of the jobs' results.
//!
//! A job *waits*, *has begun*, is *done* or *cancelled*. Only a job that waits can be cancelled, by
//! dropping its future or by its deadline. So an operation either never begins or runs to
//! completion.
//!
//! The operation itself tells when it begins. A change begins once it has its locks, so that a read
//! after an *outcome unknown* waits for the change, and shows the outcome.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::clock::Sleep;
use crate::{Clock, Error, Reply, Result, Timestamp};

type Job = Box<dyn FnOnce() + Send>;

pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    jobs_max: usize,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    closed: bool,
}

/// The result of an operation that has begun and runs past its deadline.
pub(super) type Late = fn() -> Error;

/// Begins the operation, which then has to run to completion. Returns an error if nobody waits for
/// it any more: it must not begin.
pub(super) type Begin<'a> = &'a dyn Fn() -> Result<()>;

impl Pool {
    /// # Errors
    /// Fails if a thread cannot be started.
    pub(super) fn new(threads: usize, jobs_max: usize) -> std::io::Result<Self> {
        let mut pool = Self { shared: Arc::default(), threads: Vec::new(), jobs_max };
        for index in 0..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("blocker-file-{index}"));
            pool.threads.push(builder.spawn(move || shared.work())?);
        }
        Ok(pool)
    }

    /// Runs `act` on a thread of the pool. `act` tells when its operation begins.
    pub(super) fn submit<T: Send + 'static>(
        &self,
        deadline: Option<(Timestamp, &dyn Clock)>,
        late: Late,
        act: impl FnOnce(Begin<'_>) -> Result<T> + Send + 'static,
    ) -> Reply<T> {
        let ticket = Arc::new(Mutex::new(Ticket { phase: Phase::Waiting, waker: None }));
        let job: Job = {
            let ticket = Arc::clone(&ticket);
            Box::new(move || run(&ticket, act))
        };
        {
            let mut queue = self.shared.queue.lock();
            if queue.jobs.len() >= self.jobs_max {
                return Reply::err(Error::Retryable("the file backend's queue is full".into()));
            }
            queue.jobs.push_back(job);
            if queue.idle > 0 {
                self.shared.changed.notify_one();
            }
        }
        let timer = deadline.map(|(deadline, clock)| clock.sleep_until(deadline));
        Reply::Pending(Box::pin(JobFuture { ticket, timer, late }))
    }
}

/// Lets the threads finish the queued jobs, then ends them.
impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_all();
        let me = std::thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != me) {
            // A thread catches the panics of its jobs, so the thread itself does not panic.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                parking_lot::MutexGuard::unlocked(&mut queue, job);
            } else if queue.closed {
                return;
            } else {
                queue.idle += 1;
                self.changed.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }
}

struct Ticket<T> {
    phase: Phase<T>,
    waker: Option<Waker>,
}

enum Phase<T> {
    Waiting,
    Begun,
    Done(Result<T>),
    /// The job was cancelled, or its result has been taken.
    Over,
}

fn run<T>(ticket: &Mutex<Ticket<T>>, act: impl FnOnce(Begin<'_>) -> Result<T>) {
    if matches!(ticket.lock().phase, Phase::Over) {
        return;
    }
    let begin = || {
        let mut ticket = ticket.lock();
        match ticket.phase {
            Phase::Waiting => {
                ticket.phase = Phase::Begun;
                Ok(())
            }
            _ => Err(Error::DeadlinePassed),
        }
    };
    let bug = |_| Err(Error::OutcomeUnknown("the file backend panicked: a bug".into()));
    let answer = catch_unwind(AssertUnwindSafe(|| act(&begin))).unwrap_or_else(bug);
    let waker = {
        let mut ticket = ticket.lock();
        if !matches!(ticket.phase, Phase::Over) {
            ticket.phase = Phase::Done(answer);
        }
        ticket.waker.take()
    };
    waker.into_iter().for_each(Waker::wake);
}

struct JobFuture<T> {
    ticket: Arc<Mutex<Ticket<T>>>,
    timer: Option<Sleep>,
    late: Late,
}

impl<T> Future for JobFuture<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let is_late = self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready());
        let late = self.late;
        let mut ticket = self.ticket.lock();
        match std::mem::replace(&mut ticket.phase, Phase::Over) {
            Phase::Done(answer) => Poll::Ready(answer),
            Phase::Waiting if is_late => Poll::Ready(Err(Error::DeadlinePassed)),
            Phase::Begun if is_late => Poll::Ready(Err(late())),
            Phase::Over => panic!("polled after completion"),
            waiting => {
                ticket.phase = waiting;
                ticket.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for JobFuture<T> {
    fn drop(&mut self) {
        // An operation that has begun continues to its end, but its result is dropped.
        self.ticket.lock().phase = Phase::Over;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;
    use crate::executor::block_on;

    /// Returns a pool of one thread that is busy until it is released.
    fn busy_pool(jobs_max: usize) -> (Pool, Reply<()>, mpsc::Sender<()>) {
        let pool = Pool::new(1, jobs_max).unwrap();
        let (release, wait) = mpsc::channel::<()>();
        let (started, has_started) = mpsc::channel::<()>();
        let busy = pool.submit(
            None,
            || Error::DeadlinePassed,
            move |begin| {
                begin()?;
                started.send(()).unwrap();
                wait.recv().unwrap();
                Ok(())
            },
        );
        has_started.recv().unwrap();
        (pool, busy, release)
    }

    #[test]
    fn a_dropped_job_that_had_not_begun_never_begins() {
        let (pool, busy, release) = busy_pool(8);
        let ran = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ran);
        drop(pool.submit(
            None,
            || Error::DeadlinePassed,
            move |begin| {
                begin()?;
                flag.store(true, Ordering::SeqCst);
                Ok(())
            },
        ));
        release.send(()).unwrap();
        block_on(busy).unwrap();
        drop(pool);
        assert!(!ran.load(Ordering::SeqCst));
    }

    #[test]
    fn a_full_queue_says_try_again() {
        let (pool, busy, release) = busy_pool(1);
        let second = pool.submit(None, || Error::DeadlinePassed, |_| Ok(2));
        let third = block_on(pool.submit(None, || Error::DeadlinePassed, |_| Ok(3)));
        assert_eq!(third.unwrap_err().kind(), "retryable");
        release.send(()).unwrap();
        assert_eq!(block_on(second), Ok(2));
        block_on(busy).unwrap();
    }

    #[test]
    fn a_deadline_tells_a_queued_job_from_a_running_one() {
        let clock = ManualClock::new();
        let pool = Pool::new(1, 8).unwrap();
        let at = clock.now() + Duration::from_secs(1);
        let (release, wait) = mpsc::channel::<()>();
        let (started, has_started) = mpsc::channel::<()>();
        let late: Late = || Error::OutcomeUnknown("late".into());
        let running = pool.submit(Some((at, &clock)), late, move |begin| {
            begin()?;
            started.send(()).unwrap();
            wait.recv().unwrap();
            Ok(())
        });
        has_started.recv().unwrap();
        let queued = pool.submit(Some((at, &clock)), late, |_| Ok(()));
        clock.advance(Duration::from_secs(1));
        assert_eq!(block_on(queued), Err(Error::DeadlinePassed));
        assert_eq!(block_on(running).unwrap_err().kind(), "outcome_unknown");
        release.send(()).unwrap();
    }
}
