//! Clients of registers. Each reads, writes, and compares-and-writes at random, with deadlines,
//! sometimes drops a call before its answer, and records the outcomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use blocker::{
    Blocker, BlockerExt, ChangeReply, Clock, CompareAndWriteRequest, Error, Name, Namespace, ObjectId,
    ReadRequest, Timestamp, WriteFullRequest, WriteRequest,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::support::environment::clock::TokioClock;
use crate::support::history::check::OPERATIONS_MAX;
use crate::support::history::operation::{Action, Operation, REGISTER_BYTES, Value};
use crate::support::history::recorder::Recorder;

/// The time after which a call without a deadline counts as hanging, far longer than every pause
/// and backoff.
const HANG: Duration = Duration::from_secs(3600);

/// The clients' operations.
#[derive(Clone, Debug)]
pub struct Workload {
    pub seed: u64,
    pub registers: usize,
    /// The number of operations on each register, by all its clients together.
    pub operations: usize,
    /// The range of time limits of calls with a deadline.
    pub deadline: std::ops::Range<Duration>,
    /// The maximum delay of a reply after its deadline; small if time is simulated.
    pub lateness_max: Duration,
    /// How many calls in a thousand have no deadline.
    pub unlimited_permille: u32,
    /// How many calls in a thousand are dropped before their reply.
    pub cancelled_permille: u32,
    /// The longest pause of a client between calls.
    pub rest: Duration,
}

impl Workload {
    /// Returns a workload of two registers, with as many operations as can be checked, and both
    /// short and long deadlines.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            registers: 2,
            operations: OPERATIONS_MAX,
            deadline: Duration::from_millis(50)..Duration::from_secs(30),
            lateness_max: Duration::from_millis(5),
            unlimited_permille: 100,
            cancelled_permille: 20,
            rest: Duration::from_millis(20),
        }
    }
}

/// Returns the object of register number `register`.
pub fn register(register: usize) -> ObjectId {
    let namespace = Namespace::copy_from(b"registers").expect("a short name");
    ObjectId::new(namespace, Name::new(format!("register-{register}").into_bytes()).expect("a short name"))
}

/// The outcomes: a history for each register, and the errors of calls.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    pub histories: Vec<Vec<Operation>>,
    pub failures: Vec<Error>,
}

/// Creates the registers in `store`, before any other call.
pub async fn prepare(store: &dyn Blocker, workload: &Workload) {
    for number in 0..workload.registers {
        let zeros = Value::INITIAL.to_bytes();
        store.write_full(WriteFullRequest::new(register(number), zeros)).await.expect("a first write");
    }
}

/// Runs one client for each of `backends` on every register, all concurrently, and waits for them.
///
/// # Panics
/// Panics if a call hangs, gets a late reply, or gets an impossible reply.
pub async fn run(backends: &[Arc<dyn Blocker>], workload: &Workload, clock: TokioClock) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let mut clients = tokio::task::JoinSet::new();
    let recorders: Vec<_> = (0..workload.registers).map(|_| Arc::new(Recorder::new())).collect();
    for (number, recorder) in recorders.iter().enumerate() {
        let (left, values) =
            (Arc::new(AtomicU32::new(workload.operations as u32)), Arc::new(AtomicU32::new(1)));
        for (client, backend) in backends.iter().enumerate() {
            let place = (number * backends.len() + client) as u64;
            let client = Client {
                number: client,
                backend: Arc::clone(backend),
                register: register(number),
                recorder: Arc::clone(recorder),
                left: Arc::clone(&left),
                values: Arc::clone(&values),
                workload: workload.clone(),
                clock,
                rng: SmallRng::seed_from_u64(workload.seed.wrapping_mul(1_000_003) ^ place),
                seen: Value::INITIAL,
                is_outdated: false,
                failures: Vec::new(),
            };
            clients.spawn(client.work());
        }
    }
    while let Some(failures) = clients.join_next().await {
        outcomes.failures.extend(failures.expect("a client ends in order"));
    }
    outcomes.histories = recorders.iter().map(|recorder| recorder.history()).collect();
    outcomes
}

struct Client {
    number: usize,
    backend: Arc<dyn Blocker>,
    register: ObjectId,
    recorder: Arc<Recorder>,
    /// The number of operations left for this register's clients.
    left: Arc<AtomicU32>,
    /// The next value that has not been written yet.
    values: Arc<AtomicU32>,
    workload: Workload,
    clock: TokioClock,
    rng: SmallRng,
    /// The last value that this client has read.
    seen: Value,
    is_outdated: bool,
    failures: Vec<Error>,
}

/// The end of a call.
enum Ended<T> {
    Answered(Result<T, Error>),
    /// The client has dropped the call.
    Dropped,
}

impl Client {
    async fn work(mut self) -> Vec<Error> {
        let take = |left: u32| left.checked_sub(1);
        while self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            match self.rng.random_range(0..10) {
                // After a mismatch the client reads again; otherwise no later comparison would
                // match.
                _ if std::mem::take(&mut self.is_outdated) => self.read().await,
                0..4 => self.read().await,
                4..7 => self.write().await,
                _ => self.compare_and_write().await,
            }
            let rest = self.rng.random_range(Duration::ZERO..=self.workload.rest);
            tokio::time::sleep(rest).await;
        }
        self.failures
    }

    async fn read(&mut self) {
        let called = self.recorder.reads(self.number);
        let (deadline, drop_after) = self.limits();
        let mut request = ReadRequest::new(self.register.clone(), 0, REGISTER_BYTES as u64);
        request.call.deadline = deadline;
        let ended = self.call(self.backend.read(request), deadline, drop_after).await;
        let action = match ended {
            Ended::Answered(Ok(reply)) => {
                let bytes = reply.data.to_vec();
                let value = Value::from_bytes(&bytes);
                let value = value.unwrap_or_else(|| panic!("a torn or damaged read: {:?}…", &bytes[..8]));
                self.seen = value;
                Some(Action::Read(value))
            }
            Ended::Answered(Err(error)) => {
                assert_is_fair(&error, false);
                self.failures.push(error);
                None
            }
            Ended::Dropped => None,
        };
        self.recorder.answered(called, action);
    }

    async fn write(&mut self) {
        let Some(called) = self.recorder.changes(self.number) else { return self.read().await };
        let value = self.new_value();
        let (deadline, drop_after) = self.limits();
        let mut request = WriteRequest::new(self.register.clone(), 0, value.to_bytes());
        request.call.deadline = deadline;
        let ended = self.call(self.backend.write(request), deadline, drop_after).await;
        let action = self.action(ended, Action::Write(value), Action::WriteUnknown(value), None);
        self.recorder.answered(called, action);
    }

    async fn compare_and_write(&mut self) {
        let Some(called) = self.recorder.changes(self.number) else { return self.read().await };
        let (expected, value) = (self.seen, self.new_value());
        let (deadline, drop_after) = self.limits();
        let (old, new) = (expected.to_bytes(), value.to_bytes());
        let mut request = CompareAndWriteRequest::new(self.register.clone(), 0, old, new);
        request.call.deadline = deadline;
        let ended = self.call(self.backend.compare_and_write(request), deadline, drop_after).await;
        let unknown = Action::SwapUnknown { expected, value };
        let mismatch = Some(Action::Mismatch { expected });
        let action = self.action(ended, Action::Swap { expected, value }, unknown, mismatch);
        self.is_outdated = action == mismatch;
        self.recorder.answered(called, action);
    }

    /// Returns the action for the end of a change.
    fn action(
        &mut self,
        ended: Ended<ChangeReply>,
        done: Action,
        unknown: Action,
        mismatch: Option<Action>,
    ) -> Option<Action> {
        match ended {
            Ended::Answered(Ok(_)) => {
                self.seen = done.apply(self.seen).unwrap_or(self.seen);
                Some(done)
            }
            Ended::Dropped => Some(unknown),
            Ended::Answered(Err(Error::Mismatch { .. })) if mismatch.is_some() => mismatch,
            Ended::Answered(Err(error)) => {
                assert_is_fair(&error, true);
                let is_unknown = matches!(error, Error::OutcomeUnknown(_));
                self.failures.push(error);
                is_unknown.then_some(unknown)
            }
        }
    }

    fn new_value(&self) -> Value {
        Value(self.values.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the deadline to request, and the time that this client actually waits if that is
    /// shorter.
    fn limits(&mut self) -> (Option<Timestamp>, Option<Duration>) {
        let given = self.rng.random_range(self.workload.deadline.clone());
        let is_patient = self.rng.random_range(0..1000) < self.workload.unlimited_permille;
        let deadline = (!is_patient).then(|| self.clock.now() + given);
        let is_dropped = self.rng.random_range(0..1000) < self.workload.cancelled_permille;
        let drop_after = is_dropped.then(|| self.rng.random_range(Duration::ZERO..given));
        (deadline, drop_after)
    }

    async fn call<T: Unpin>(
        &self,
        reply: blocker::Reply<T>,
        deadline: Option<Timestamp>,
        drop_after: Option<Duration>,
    ) -> Ended<T> {
        let limit = match deadline {
            Some(deadline) => deadline.since(self.clock.now()) + self.workload.lateness_max,
            None => HANG,
        };
        let wait = drop_after.unwrap_or(limit);
        match tokio::time::timeout(wait, reply.into_future()).await {
            Ok(answer) => Ended::Answered(answer),
            Err(_) if drop_after.is_some() => Ended::Dropped,
            Err(_) => panic!("client {}: no answer by its deadline, {limit:?} after the call", self.number),
        }
    }
}

/// Returns whether network problems can cause this error.
#[track_caller]
fn assert_is_fair(error: &Error, is_change: bool) {
    let is_fair = match error {
        Error::DeadlinePassed | Error::Retryable(_) => true,
        Error::OutcomeUnknown(_) => is_change,
        _ => false,
    };
    assert!(is_fair, "no fault explains this answer: {error:?}");
}
