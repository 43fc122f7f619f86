//! The routes of volumes, and the jobs that they start: each change runs to completion, whether or
//! not its client waits. A job that only reads ends if its client goes away.
//!
//! | route | |
//! |---|---|
//! | `GET /volumes?limit=` | all volumes, or as many, those with connections first; their usage if they have connections |
//! | `GET /volumes/show?name=` | one volume, with its snapshots and its usage |
//! | `GET /volumes/diff?name=&from=&to=&offset=` | the differences between two snapshots; without `to`, between a snapshot and the stored volume |
//! | `GET /volumes/job?id=` | the state or the outcome of a request that took long |
//! | `POST /volumes/create`, `clone`, `resize`, `set`, `delete`, `flush`, `detach`, `hand-over`, `take-over`, `flatten` | |
//! | `POST /volumes/snapshot`, `delete-snapshot`, `rollback` | |
//! | `POST /volumes/check` | checks the volumes |
//!
//! The bodies are JSON, as [`CHANGES`] shows, and so are the responses. An error is
//! `{"error": "one line"}`. A request that takes longer than 20 seconds is answered with status 202
//! and `{"job": NUMBER}`, and continues.

use super::Managed;
use super::requests::{CHANGES, VolumeRequest, diff, list, show};
use cached_admin::{Access, Request, Response, Routes, WAIT_MAX};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinError, JoinHandle};
use volumes::Error;
use volumes::exports::Refused;

/// Adds the routes, which keep nothing open.
pub(super) fn add(routes: &Routes, managed: &Arc<Managed>) {
    get(routes, "/volumes", managed, |managed, request| {
        Box::pin(async move {
            let limit = given(&request, "limit").map(|text| number(&text, "limit")).transpose()?;
            list(managed, limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)))
                .await
        })
    });
    get(routes, "/volumes/show", managed, |managed, request| {
        Box::pin(async move { show(managed, needed(&request, "name")?).await })
    });
    get(routes, "/volumes/diff", managed, |managed, request| {
        Box::pin(async move {
            let [from, to, offset] = ["from", "to", "offset"].map(|name| given(&request, name));
            let offset = offset.map_or(Ok(0), |text| number(&text, "offset"))?;
            diff(managed, needed(&request, "name")?, from, to, offset).await
        })
    });
    let jobs = Arc::downgrade(managed);
    routes.get_now("/volumes/job", Access::Read, move |request| job(&jobs, &request));
    for (name, form) in CHANGES {
        post(routes, name, form, managed);
    }
}

/// Adds a route that shows something.
fn get(routes: &Routes, path: &str, managed: &Arc<Managed>, shown: fn(Arc<Managed>, Request) -> Work) {
    let managed = Arc::downgrade(managed);
    routes.get(path, Access::Read, move |request| {
        let managed = managed.upgrade();
        async move {
            let Some(managed) = managed else { return Failure::ended().response() };
            let jobs = managed.jobs.clone();
            // Released before the response is ready, because the cache may end in the meantime.
            let work = shown(managed, request);
            jobs.run_for(WAIT_MAX, Arc::default(), work, true).await.response()
        }
    });
}

/// Adds a route that changes something; `form` is an example of the body. Each request is logged
/// with the client's address.
fn post(routes: &Routes, name: &'static str, form: &'static str, managed: &Arc<Managed>) {
    let managed = Arc::downgrade(managed);
    let path = format!("/volumes/{name}");
    routes.post(&path.clone(), move |request| {
        let (managed, path) = (managed.upgrade(), path.clone());
        async move {
            let Some(managed) = managed else { return Failure::ended().response() };
            let change = match VolumeRequest::parse(name, &request.body) {
                Ok(change) => change,
                Err(error) => return Failure::new(400, format!("give {form}: {error}")).response(),
            };
            tracing::info!(peer = %request.peer, path, request = ?change, "the admin listener changes volumes");
            let jobs = managed.jobs.clone();
            jobs.run(|progress| async move {
                let outcome = change.run(managed, progress).await;
                match &outcome {
                    Ok(_) => tracing::info!(path, "a change of volumes is complete"),
                    Err(failure) => tracing::info!(path, cause = failure.line, "a change of volumes is refused"),
                }
                outcome
            })
            .await
            .response()
        }
    });
}

fn job(managed: &Weak<Managed>, request: &Request) -> Response {
    let Some(managed) = managed.upgrade() else { return Failure::ended().response() };
    let number = match needed(request, "id").and_then(|text| number(&text, "id")) {
        Ok(number) => number,
        Err(failure) => return failure.response(),
    };
    match managed.jobs.state(number) {
        Some(state) => Response::json(&state),
        None => Failure::new(404, format!("there is no job {number}; only the latest outcomes are kept"))
            .response(),
    }
}

/// Returns a parameter, unless it is absent or empty.
fn given(request: &Request, name: &str) -> Option<String> {
    request.query(name).filter(|value| !value.is_empty())
}

/// Returns a parameter that is required.
fn needed(request: &Request, name: &str) -> Result<String, Failure> {
    given(request, name).ok_or_else(|| Failure::new(400, format!("the parameter {name} is missing")))
}

fn number(text: &str, name: &str) -> Result<u64, Failure> {
    text.parse().map_err(|_| Failure::new(400, format!("{name} is {text:?}; it must be a number")))
}

/// The maximum number of running jobs.
const RUNNING_MAX: usize = 32;
/// The maximum number of outcomes that are kept for clients that no longer wait. The oldest is
/// dropped first.
const OUTCOMES_MAX: usize = 64;

pub(super) type Outcome = Result<Value, Failure>;

type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// The response to a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Outcome(Outcome),
    /// The job with this number takes longer.
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

/// The progress of a job.
#[derive(Debug, Default)]
pub(super) struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Records that `done` of `total` steps are complete.
    pub(super) fn set(&self, done: u64, total: u64) {
        self.total.store(total, Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
    }
}

/// The jobs. All clones share the same state.
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
    /// The number of the last job.
    last: u64,
    /// The running jobs, and those whose outcomes clients may request, by number in ascending
    /// order.
    jobs: Vec<(u64, Job)>,
    is_closed: bool,
}

#[derive(Debug)]
enum Job {
    Running { progress: Arc<Progress>, task: AbortHandle },
    Ended(Outcome),
}

impl Table {
    fn running(&self) -> impl Iterator<Item = &AbortHandle> {
        self.jobs.iter().filter_map(|(_, job)| match job {
            Job::Running { task, .. } => Some(task),
            Job::Ended(_) => None,
        })
    }

    /// Returns the position of a job.
    fn position(&self, number: u64) -> Option<usize> {
        self.jobs.iter().position(|(own, _)| *own == number)
    }
}

impl Jobs {
    /// Returns a set of jobs that run in this runtime.
    pub(super) fn new(runtime: Handle) -> Jobs {
        Jobs::begun_at(SystemTime::now(), runtime)
    }

    /// Returns a set of jobs whose numbers begin with a time in milliseconds, so that a client which
    /// asks for a job of an earlier process is not told of another job. There are fewer jobs than
    /// milliseconds, so no number is used twice.
    fn begun_at(time: SystemTime, runtime: Handle) -> Jobs {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let last = u64::try_from(since.as_millis()).unwrap_or(0);
        let table = Mutex::new(Table { last, ..Table::default() });
        Jobs { shared: Arc::new(Shared { table, ended: Notify::default() }), runtime }
    }

    /// Runs a job. Returns its outcome, or its number if it takes long.
    pub(super) async fn run<F>(&self, job: impl FnOnce(Arc<Progress>) -> F) -> Answer
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let progress = Arc::new(Progress::default());
        self.run_for(WAIT_MAX, Arc::clone(&progress), Box::pin(job(progress)), false).await
    }

    /// Runs a job, and waits for it for a limited time. The job is boxed, so that the code that
    /// follows is compiled once, not for each kind of request.
    ///
    /// # Cancel safety
    /// If the future is dropped, a job that `only_reads` is aborted, and others continue.
    async fn run_for(
        &self,
        wait_max: Duration,
        progress: Arc<Progress>,
        work: Work,
        only_reads: bool,
    ) -> Answer {
        let (number, task, ended) = match self.start(progress, work) {
            Ok(started) => started,
            Err(failure) => return Answer::Outcome(Err(failure)),
        };
        let mut abandoned = Abandoned(only_reads.then_some(task));
        let waited = tokio::time::timeout(wait_max, ended).await;
        abandoned.0 = None;
        match waited {
            Ok(_) => Answer::Outcome(self.shared.take(number).unwrap_or_else(|| Err(Failure::ended()))),
            Err(_) => Answer::UnderWay(number),
        }
    }

    /// Starts a job. Returns its number, its handle, and the task that records its outcome.
    fn start(
        &self,
        progress: Arc<Progress>,
        work: Work,
    ) -> Result<(u64, AbortHandle, JoinHandle<()>), Failure> {
        let mut table = self.shared.table.lock();
        if table.is_closed {
            return Err(Failure::ended());
        }
        if table.running().count() >= RUNNING_MAX {
            let line = format!(
                "{RUNNING_MAX} changes of volumes are in progress, which is the maximum; try again later"
            );
            return Err(Failure::new(503, line));
        }
        table.last += 1;
        let number = table.last;
        let task = self.runtime.spawn(work);
        let handle = task.abort_handle();
        table.jobs.push((number, Job::Running { progress, task: handle.clone() }));
        let shared = Arc::clone(&self.shared);
        let ended = self.runtime.spawn(async move { shared.end(number, task.await) });
        Ok((number, handle, ended))
    }

    /// Returns the state of a job.
    pub(super) fn state(&self, number: u64) -> Option<Value> {
        let table = self.shared.table.lock();
        let (_, job) = table.jobs.get(table.position(number)?)?;
        Some(match job {
            Job::Running { progress, .. } => {
                let [done, total] =
                    [&progress.done, &progress.total].map(|count| count.load(Ordering::Relaxed));
                json!({ "state": "running", "done": done, "total": total })
            }
            Job::Ended(Ok(value)) => json!({ "state": "done", "result": value }),
            Job::Ended(Err(failure)) => {
                json!({ "state": "failed", "error": failure.line, "status": failure.status })
            }
        })
    }

    /// Returns the number of running jobs.
    pub(super) fn running(&self) -> usize {
        self.shared.table.lock().running().count()
    }

    /// Stops accepting jobs, waits up to `timeout` for the running ones to end, and aborts the
    /// rest. Returns the number of jobs aborted.
    pub(super) async fn close(&self, timeout: Duration) -> usize {
        self.shared.table.lock().is_closed = true;
        let all_ended = self.all_ended();
        if tokio::time::timeout(timeout, all_ended).await.is_ok() {
            return 0;
        }
        let aborted = {
            let table = self.shared.table.lock();
            table.running().for_each(AbortHandle::abort);
            table.running().count()
        };
        // An abort takes effect at the next await point of the task.
        self.all_ended().await;
        aborted
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

/// Aborts a job, if there is one, when its client goes away.
struct Abandoned(Option<AbortHandle>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl Shared {
    /// Records the outcome of a job. If there are too many outcomes, the oldest is dropped.
    fn end(&self, number: u64, outcome: Result<Outcome, JoinError>) {
        let mut table = self.table.lock();
        let is_abandoned = !table.is_closed && outcome.as_ref().is_err_and(JoinError::is_cancelled);
        match table.position(number) {
            // No client knows its number.
            Some(at) if is_abandoned => drop(table.jobs.remove(at)),
            Some(at) => table.jobs[at].1 = Job::Ended(outcome.unwrap_or_else(|_| Err(Failure::ended()))),
            None => {}
        }
        if table.jobs.len() - table.running().count() > OUTCOMES_MAX {
            let oldest = table.jobs.iter().position(|(_, job)| matches!(job, Job::Ended(_)));
            if let Some(at) = oldest {
                table.jobs.remove(at);
            }
        }
        drop(table);
        self.ended.notify_waiters();
    }

    /// Removes and returns the outcome of a job.
    fn take(&self, number: u64) -> Option<Outcome> {
        let mut table = self.table.lock();
        let at = table.position(number)?;
        match table.jobs.remove(at).1 {
            Job::Ended(outcome) => Some(outcome),
            Job::Running { .. } => None,
        }
    }
}

/// The reason why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) status: u16,
    pub(super) line: String,
}

impl Failure {
    pub(super) fn new(status: u16, line: impl Into<String>) -> Failure {
        Failure { status, line: line.into() }
    }

    /// Returns the failure of a request to a cache that no longer exists.
    pub(super) fn ended() -> Failure {
        Failure::new(503, "the object cache has ended")
    }

    pub(super) fn response(&self) -> Response {
        Response::json(&json!({ "error": self.line })).status(self.status)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match &error {
            Error::NoSuchVolume(_) | Error::NoSuchSnapshot(_) => 404,
            Error::Exists(_)
            | Error::InUse { .. }
            | Error::ReadOnly
            | Error::Fenced { .. }
            | Error::HandedOver
            | Error::Limit(_) => 409,
            Error::Invalid(_) | Error::OutOfRange { .. } | Error::Unsupported(_) => 400,
            Error::NoSpace(_) => 507,
            Error::Closed | Error::Interrupted => 503,
            Error::Io(cause) if cause.is_retryable() => 503,
            _ => 500,
        };
        Failure::new(status, error.to_string())
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Failure {
        match refused {
            Refused::Used { .. } => Failure::new(409, refused.to_string()),
            Refused::Failed(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Waker};
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_job_that_takes_long_has_a_number_and_its_outcome_is_kept() {
        let jobs = Jobs::begun_at(UNIX_EPOCH, Handle::current());
        let quick = jobs.run(|_| async { Ok(json!({ "a": 1 })) }).await;
        assert_eq!(quick, Answer::Outcome(Ok(json!({ "a": 1 }))));
        let (finish, finished) = oneshot::channel::<()>();
        let progress = Arc::new(Progress::default());
        progress.set(3, 7);
        let work = async move {
            let _ = finished.await;
            Err(Failure::new(409, "no"))
        };
        let slow = jobs.run_for(Duration::ZERO, progress, Box::pin(work), false);
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
    async fn a_client_that_goes_away_frees_the_place_of_what_it_reads() {
        let jobs = Jobs::begun_at(UNIX_EPOCH, Handle::current());
        for only_reads in [true, false] {
            let work = Box::pin(std::future::pending());
            let mut waiting = Box::pin(jobs.run_for(WAIT_MAX, Arc::default(), work, only_reads));
            assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(jobs.running(), 1);
            drop(waiting);
            if only_reads {
                jobs.all_ended().await;
                assert_eq!(jobs.state(1), None);
            }
        }
        tokio::task::yield_now().await;
        assert_eq!(jobs.state(2).expect("it continues")["state"], "running");
    }

    #[tokio::test]
    async fn what_does_not_end_is_aborted() {
        let jobs = Jobs::begun_at(UNIX_EPOCH, Handle::current());
        let stuck = jobs.run_for(Duration::ZERO, Arc::default(), Box::pin(std::future::pending()), true);
        assert_eq!(stuck.await, Answer::UnderWay(1));
        assert_eq!((jobs.close(Duration::ZERO).await, jobs.running()), (1, 0));
        assert_eq!(jobs.state(1).expect("known")["state"], "failed");
    }

    #[tokio::test]
    async fn the_number_of_a_job_of_an_earlier_process_names_no_other_job() {
        let begin = UNIX_EPOCH + Duration::from_secs(1_000);
        let [before, after] =
            [begin, begin + Duration::from_secs(1)].map(|time| Jobs::begun_at(time, Handle::current()));
        let mut numbers = Vec::new();
        for jobs in [&before, &after] {
            let stuck = jobs.run_for(Duration::ZERO, Arc::default(), Box::pin(std::future::pending()), false);
            let Answer::UnderWay(number) = stuck.await else { panic!("it does not end") };
            numbers.push(number);
        }
        assert!(before.state(numbers[0]).is_some() && after.state(numbers[1]).is_some());
        assert_eq!(after.state(numbers[0]), None);
        for jobs in [before, after] {
            assert_eq!(jobs.close(Duration::ZERO).await, 1);
        }
    }
}
