//! What is under way: each change of volumes is a job, which runs to its end whether or not its client waits for it.
//!
//! A client waits for 20 seconds, and is then given the job's number, under which it finds the outcome.

use super::failure::Failure;
use cached_admin::Response;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// How long a client waits: less than the time after which the admin listener drops a response.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// The most jobs under way.
const RUNNING_MAX: usize = 32;
/// The most outcomes that are kept for clients which do not wait any more; the oldest goes first.
const OUTCOMES_MAX: usize = 64;

pub(super) type Outcome = Result<Value, Failure>;

type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// What a client is answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Outcome(Outcome),
    /// The job of this number takes longer.
    UnderWay(u64),
}

impl Answer {
    pub(super) fn response(&self) -> Response {
        match self {
            Answer::Outcome(Ok(value)) => Response::json(value),
            Answer::Outcome(Err(failure)) => failure.response(),
            Answer::UnderWay(number) => Response::json(&json!({ "job": number })).status(202),
        }
    }
}

/// How far a job is.
#[derive(Debug, Default)]
pub(super) struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Records that `done` of `total` steps are done.
    pub(super) fn set(&self, done: u64, total: u64) {
        self.total.store(total, Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
    }
}

/// The jobs. All clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Jobs {
    shared: Arc<Shared>,
    runtime: Handle,
}

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    running: BTreeMap<u64, Running>,
    /// Of those whose clients may ask for them.
    outcomes: BTreeMap<u64, Outcome>,
    is_closed: bool,
}

#[derive(Debug)]
struct Running {
    progress: Arc<Progress>,
    /// `None` for a moment, until it is there.
    task: Option<AbortHandle>,
}

impl Jobs {
    /// Returns jobs that run in this runtime.
    pub(super) fn new(runtime: Handle) -> Jobs {
        Jobs { shared: Arc::default(), runtime }
    }

    /// Runs a job, and returns its outcome, or its number if it takes long.
    pub(super) async fn run<F>(&self, job: impl FnOnce(Arc<Progress>) -> F) -> Answer
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let progress = Arc::new(Progress::default());
        self.run_for(WAIT_MAX, Arc::clone(&progress), Box::pin(job(progress))).await
    }

    /// Boxed, so that what follows is compiled once and not for each kind of request.
    async fn run_for(&self, wait_max: Duration, progress: Arc<Progress>, work: Work) -> Answer {
        let number = match self.shared.begin(&progress) {
            Ok(number) => number,
            Err(failure) => return Answer::Outcome(Err(failure)),
        };
        let shared = Arc::clone(&self.shared);
        // Also when it is aborted.
        let end = End { shared, number, outcome: Some(Err(Failure::ended())) };
        let task = self.runtime.spawn(async move { end.with(work.await) });
        self.shared.started(number, task.abort_handle());
        match tokio::time::timeout(wait_max, task).await {
            Ok(_) => Answer::Outcome(self.shared.take(number).unwrap_or_else(|| Err(Failure::ended()))),
            Err(_) => Answer::UnderWay(number),
        }
    }

    /// Returns what is known of a job.
    pub(super) fn state(&self, number: u64) -> Option<Value> {
        let table = self.shared.table.lock();
        if let Some(running) = table.running.get(&number) {
            let (done, total) = (
                running.progress.done.load(Ordering::Relaxed),
                running.progress.total.load(Ordering::Relaxed),
            );
            return Some(json!({ "state": "running", "done": done, "total": total }));
        }
        Some(match table.outcomes.get(&number)? {
            Ok(value) => json!({ "state": "done", "result": value }),
            Err(failure) => json!({ "state": "failed", "error": failure.line, "status": failure.status }),
        })
    }

    /// Returns the number of jobs under way.
    pub(super) fn running(&self) -> usize {
        self.shared.table.lock().running.len()
    }

    /// Lets no further job begin, and waits until all have ended, at most for `timeout`; aborts the others. Returns how
    /// many those were.
    pub(super) async fn close(&self, timeout: Duration) -> usize {
        self.shared.table.lock().is_closed = true;
        let all_ended = self.all_ended();
        if tokio::time::timeout(timeout, all_ended).await.is_ok() {
            return 0;
        }
        let left: Vec<_> = {
            let table = self.shared.table.lock();
            table.running.values().filter_map(|running| running.task.clone()).collect()
        };
        left.iter().for_each(AbortHandle::abort);
        // An abort takes effect when the task awaits next.
        self.all_ended().await;
        left.len()
    }

    async fn all_ended(&self) {
        loop {
            let ended = self.shared.ended.notified();
            if self.running() == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl Shared {
    fn begin(&self, progress: &Arc<Progress>) -> Result<u64, Failure> {
        let mut table = self.table.lock();
        if table.is_closed {
            return Err(Failure::ended());
        }
        if table.running.len() >= RUNNING_MAX {
            let line = format!(
                "{RUNNING_MAX} changes of volumes are under way, the most there can be; try again later"
            );
            return Err(Failure::new(503, line));
        }
        table.last += 1;
        let number = table.last;
        table.running.insert(number, Running { progress: Arc::clone(progress), task: None });
        Ok(number)
    }

    fn started(&self, number: u64, task: AbortHandle) {
        if let Some(running) = self.table.lock().running.get_mut(&number) {
            running.task = Some(task);
        }
    }

    fn end(&self, number: u64, outcome: Outcome) {
        let mut table = self.table.lock();
        table.running.remove(&number);
        table.outcomes.insert(number, outcome);
        while table.outcomes.len() > OUTCOMES_MAX {
            table.outcomes.pop_first();
        }
        drop(table);
        self.ended.notify_waiters();
    }

    fn take(&self, number: u64) -> Option<Outcome> {
        self.table.lock().outcomes.remove(&number)
    }
}

/// Records the outcome of a job when it is dropped.
struct End {
    shared: Arc<Shared>,
    number: u64,
    outcome: Option<Outcome>,
}

impl End {
    /// Ends the job with this outcome.
    fn with(mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome.take() {
            self.shared.end(self.number, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_job_that_takes_long_has_a_number_and_its_outcome_is_kept() {
        let jobs = Jobs::new(Handle::current());
        let quick = jobs.run(|_| async { Ok(json!({ "a": 1 })) }).await;
        assert_eq!(quick, Answer::Outcome(Ok(json!({ "a": 1 }))));
        let (finish, finished) = oneshot::channel::<()>();
        let progress = Arc::new(Progress::default());
        progress.set(3, 7);
        let work = async move {
            let _ = finished.await;
            Err(Failure::new(409, "no"))
        };
        let slow = jobs.run_for(Duration::ZERO, progress, Box::pin(work));
        assert_eq!(slow.await, Answer::UnderWay(2));
        tokio::task::yield_now().await;
        assert_eq!(jobs.state(2), Some(json!({ "state": "running", "done": 3, "total": 7 })));
        assert_eq!(jobs.state(1), None, "its client has had the outcome");
        finish.send(()).expect("it waits");
        assert_eq!(jobs.close(Duration::from_secs(30)).await, 0);
        assert_eq!(jobs.state(2), Some(json!({ "state": "failed", "error": "no", "status": 409 })));
        let late = jobs.run(|_| async { Ok(json!({})) }).await;
        assert_eq!(late, Answer::Outcome(Err(Failure::ended())));
    }

    #[tokio::test]
    async fn what_does_not_end_is_aborted() {
        let jobs = Jobs::new(Handle::current());
        let stuck = jobs.run_for(Duration::ZERO, Arc::default(), Box::pin(std::future::pending()));
        assert_eq!(stuck.await, Answer::UnderWay(1));
        assert_eq!((jobs.close(Duration::ZERO).await, jobs.running()), (1, 0));
        assert_eq!(jobs.state(1).expect("known")["state"], "failed");
    }
}
