//! A few threads for the calls of librados that have no asynchronous form: listings, and looking for a pool.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use blocker::{Error, Result};
use parking_lot::Mutex;

const THREADS: usize = 2;
/// The largest number of jobs that wait; more are refused with `Retryable`.
const QUEUE_JOBS_MAX: usize = 64;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The threads' queue. They end when it is dropped, each after its job.
pub(crate) struct Worker {
    jobs: SyncSender<Job>,
}

impl Worker {
    pub(crate) fn start() -> Result<Self> {
        let (jobs, queue) = sync_channel(QUEUE_JOBS_MAX);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..THREADS {
            let queue = Arc::clone(&queue);
            let spawned = std::thread::Builder::new().name("rados-list".into()).spawn(move || work(&queue));
            spawned.map_err(|error| Error::Retryable(format!("no thread for listings: {error}").into()))?;
        }
        Ok(Self { jobs })
    }

    /// Has a thread run `job`.
    ///
    /// # Errors
    /// `Retryable` if too many wait already.
    pub(crate) fn run(&self, job: Job) -> Result<()> {
        self.jobs.try_send(job).map_err(|_| Error::Retryable("too many listings at once".into()))
    }
}

fn work(queue: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is let go before the job runs.
        let job = queue.lock().recv();
        match job {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}
