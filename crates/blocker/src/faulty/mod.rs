//! Fault injection: a layer over any blocker that draws faults from a seed.
//!
//! Faults are delays on the given clock, errors with and without effect, stalls, a full store,
//! crashes at a chosen call, and a volatile cache whose contents a crash loses, tears and reorders.
//! The layer is for tests of everything that builds on the contract. It never damages data: every
//! byte that it returns was written.
//!
//! The faults of a call are drawn when the call is made. A delayed or stalled call keeps its
//! deadline: if the deadline passes before the call is executed, nothing was done; if it passes
//! later, the outcome is unknown.
//!
//! ```
//! use std::sync::Arc;
//! use blocker::executor::block_on;
//! use blocker::faulty::FaultPlan;
//! use blocker::{BlockerExt, Faulty, Memory, SystemClock};
//!
//! let mut plan = FaultPlan::benign(1);
//! plan.error_permille = 1000;
//! let store = Faulty::new(Arc::new(Memory::default()), plan, Arc::new(SystemClock));
//! let error = block_on(store.get(&"n/o".parse()?)).unwrap_err();
//! assert!(error.is_retryable());
//! # Ok::<_, blocker::Error>(())
//! ```

mod volatile;

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use cached_metrics::{Collect, Families};
use parking_lot::Mutex;

use crate::clock::until;
use crate::executor::block_on;
use crate::rng::Rng;
use crate::{
    Blocker, Call, Capabilities, Change, ChangeReply, ChangeRequest, ClaimReply, ClaimRequest, Clock,
    Control, Error, FlushReply, FlushRequest, Info, InfoRequest, InvalidateReply, InvalidateRequest,
    ListReply, ListRequest, ObjectId, ReadReply, ReadRequest, Reply, Result, Subscription, metrics_above,
};

use volatile::Volatile;

/// A layer that injects faults.
pub struct Faulty {
    shared: Arc<Shared>,
}

struct Shared {
    /// The blocker below, or the volatile cache over it.
    below: Arc<dyn Blocker>,
    volatile: Option<Volatile>,
    clock: Arc<dyn Clock>,
    plan: FaultPlan,
    state: Mutex<State>,
    stalled: Gate,
}

struct State {
    rng: Rng,
    step: u64,
    crashed: bool,
    sizes: HashMap<ObjectId, u64>,
}

impl Faulty {
    /// Returns a layer over `inner` with the faults of `plan`. Delays and deadlines are on `clock`.
    #[must_use]
    pub fn new(inner: Arc<dyn Blocker>, plan: FaultPlan, clock: Arc<dyn Clock>) -> Self {
        let volatile =
            plan.volatile.then(|| Volatile::new(Arc::clone(&inner), Arc::clone(&clock), plan.flush_lies));
        let below = volatile.clone().map_or(inner, |volatile| Arc::new(volatile));
        let state = State { rng: Rng::new(plan.seed), step: 0, crashed: false, sizes: HashMap::new() };
        let (state, stalled) = (Mutex::new(state), Gate::default());
        Self { shared: Arc::new(Shared { below, volatile, clock, plan, state, stalled }) }
    }

    /// Returns the number of calls made so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.shared.state.lock().step
    }

    /// Stops the progress of all calls until [`Self::resume`] or their deadline.
    pub fn stall(&self) {
        self.shared.stalled.close();
    }

    /// Ends a stall, so that calls continue.
    pub fn resume(&self) {
        self.shared.stalled.open();
    }

    /// Crashes the backend: later calls return `Retryable`, and calls in progress return
    /// `OutcomeUnknown`.
    pub fn crash(&self) {
        self.shared.state.lock().crashed = true;
    }

    /// Returns whether the backend has crashed and has not been restarted.
    #[must_use]
    pub fn is_crashed(&self) -> bool {
        self.shared.state.lock().crashed
    }

    /// Restarts the backend. With a volatile cache, unstored data are lost now. Blocks; no other
    /// call may be in progress.
    ///
    /// # Errors
    /// Returns the errors of the blocker below, while surviving changes are applied there.
    pub fn restart(&self) -> Result<()> {
        let rng = {
            let mut state = self.shared.state.lock();
            Rng::new(state.rng.next_u64())
        };
        if let Some(volatile) = &self.shared.volatile {
            block_on(Box::pin(volatile.crash(rng)))?;
        }
        self.shared.state.lock().crashed = false;
        Ok(())
    }

    /// Runs `act` with the faults drawn for the call.
    fn run<T: Send + Unpin + 'static>(
        &self,
        kind: Kind,
        call: Call,
        act: impl FnOnce(&Arc<Shared>) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let shared = &self.shared;
        let fate = {
            let mut state = shared.state.lock();
            if state.crashed {
                return Reply::err(crashed());
            }
            state.step += 1;
            let step = state.step;
            shared.plan.draw(&mut state.rng, step, kind)
        };
        if fate == Fate::default() && !shared.stalled.is_closed() {
            return act(shared);
        }
        let shared = Arc::clone(shared);
        Reply::pending(async move { shared.run_with_faults(fate, kind, call, act).await })
    }
}

fn crashed() -> Error {
    Error::Retryable("the backend has crashed".into())
}

impl Shared {
    async fn run_with_faults<T: Unpin>(
        self: &Arc<Self>,
        fate: Fate,
        kind: Kind,
        call: Call,
        act: impl FnOnce(&Arc<Self>) -> Reply<T>,
    ) -> Result<T> {
        self.delay(call, fate.delay_before).await.ok_or(Error::DeadlinePassed)?;
        if self.state.lock().crashed {
            return Err(crashed());
        }
        match fate.failure {
            Some(Failure::Retryable) => return Err(Error::Retryable("by plan".into())),
            Some(Failure::NotStored) => return Err(Error::NotStored("by plan".into())),
            Some(Failure::Crash { done: false }) => {
                self.state.lock().crashed = true;
                return Err(self.unknown(kind));
            }
            Some(Failure::Unknown { done: false }) => return Err(self.unknown(kind)),
            _ => {}
        }
        let answer = act(self).await;
        if let Some(Failure::Crash { .. }) = fate.failure {
            self.state.lock().crashed = true;
        }
        if fate.failure.is_some() {
            return answer.and_then(|_| Err(self.unknown(kind)));
        }
        if self.delay(call, fate.delay_after).await.is_none() || self.state.lock().crashed {
            return answer.and_then(|_| Err(self.unknown(kind)));
        }
        answer
    }

    /// Returns the error of a call whose reply is lost.
    fn unknown(&self, kind: Kind) -> Error {
        match kind {
            Kind::Read => Error::Retryable("the answer was lost".into()),
            Kind::Change => Error::OutcomeUnknown("the answer was lost".into()),
            Kind::Flush => Error::NotStored("the answer was lost".into()),
        }
    }

    /// Waits for `delay` and the end of a stall, at most until the call's deadline. Returns `None`
    /// at the deadline.
    async fn delay(&self, call: Call, delay: Option<Duration>) -> Option<()> {
        let wait = async {
            if let Some(delay) = delay {
                self.clock.sleep(delay).await;
            }
            self.stalled.pass().await;
        };
        until(&*self.clock, call.deadline, wait).await
    }

    /// Checks that the capacity allows an object to grow to `end`.
    fn check_space(&self, object: &ObjectId, end: u64) -> Result<()> {
        let Some(limit) = self.plan.space_bytes_max else { return Ok(()) };
        let state = self.state.lock();
        let old = state.sizes.get(object).copied().unwrap_or(0);
        let used: u64 = state.sizes.values().sum();
        if end > old && used - old + end > limit {
            return Err(Error::OutOfSpace("by plan".into()));
        }
        Ok(())
    }

    /// Records the object's size after a change.
    fn sized(
        self: &Arc<Self>,
        object: ObjectId,
        is_delete: bool,
        reply: Reply<ChangeReply>,
    ) -> Reply<ChangeReply> {
        if self.plan.space_bytes_max.is_none() {
            return reply;
        }
        let shared = Arc::clone(self);
        reply.then(move |answer| {
            answer.inspect(|reply| {
                let mut state = shared.state.lock();
                match is_delete {
                    true => state.sizes.remove(&object),
                    false => state.sizes.insert(object, reply.size_bytes),
                };
            })
        })
    }
}

/// Returns the size to which a change extends a smaller object, for the check of the capacity. An
/// empty write counts with its offset; copies count as 0.
fn end_needed(change: &Change) -> u64 {
    match change {
        Change::WriteRuns { .. } => change.end(),
        Change::WriteFull { .. } | Change::Truncate { .. } => change.size_after(0),
        _ => change.range().map_or(0, |(offset, len)| offset.saturating_add(len)),
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("plan", &self.shared.plan).finish_non_exhaustive()
    }
}

impl Blocker for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.shared.below.capabilities()
    }

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        self.run(Kind::Read, request.call, move |shared| shared.below.read(request))
    }

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        if let Err(error) = request.change.check_runs(|| self.capabilities()) {
            return Reply::err(error);
        }
        self.run(Kind::Change, request.call, move |shared| {
            if let Err(error) = shared.check_space(&request.object, end_needed(&request.change)) {
                return Reply::err(error);
            }
            let (object, is_delete) = (request.object.clone(), matches!(request.change, Change::Delete));
            let reply = shared.below.change(request);
            shared.sized(object, is_delete, reply)
        })
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        self.run(Kind::Read, request.call, move |shared| shared.below.info(request))
    }

    fn list(&self, request: ListRequest) -> Reply<ListReply> {
        self.run(Kind::Read, request.call, move |shared| shared.below.list(request))
    }

    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        self.run(Kind::Flush, request.call, move |shared| shared.below.flush(request))
    }

    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        self.run(Kind::Change, request.call, move |shared| shared.below.claim(request))
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        self.run(Kind::Read, request.call, move |shared| shared.below.invalidate(request))
    }

    fn subscribe(&self) -> Subscription {
        self.shared.below.subscribe()
    }

    fn control(&self) -> &dyn Control {
        self
    }
}

impl Collect for Faulty {
    fn collect(&self, into: &mut Families) {
        into.counter("faulty_calls_total", "Calls that passed the fault injection.", self.steps());
    }
}

/// The plan has no faults for calls of the control plane.
impl Control for Faulty {
    fn below(&self) -> Option<&dyn Control> {
        Some(self.shared.below.control())
    }

    fn metrics(&self) -> Reply<Families> {
        metrics_above(self.families(), self.shared.below.control())
    }
}

// ---- The plan of faults, and the seeded choice of the faults of each call.

/// The kinds of faults and their frequencies. Every fault is drawn from the seed, in the order of
/// the calls, so that a run with one caller can be replayed.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FaultPlan {
    /// The seed of every draw.
    pub seed: u64,
    /// The number of calls in 1 000 that are delayed, before or after their execution.
    pub delay_permille: u32,
    /// The delay, on the clock of the layer.
    pub delay: Range<Duration>,
    /// The number of calls in 1 000 that fail with `Retryable` and without effect.
    pub error_permille: u32,
    /// The number of changes in 1 000 that fail with `OutcomeUnknown`, executed or not.
    pub unknown_permille: u32,
    /// The number of flushes in 1 000 that fail with `NotStored`.
    pub not_stored_permille: u32,
    /// Changes stay in a volatile cache until they are flushed; a crash loses, tears and reorders
    /// them.
    pub volatile: bool,
    /// A flush replies *stored* without storing, like a broken disk, which crash tests must detect.
    pub flush_lies: bool,
    /// The number of the call that crashes the backend, counted from 1.
    pub crash_at_step: Option<u64>,
    /// The store's capacity in bytes, counting data written through this layer.
    pub space_bytes_max: Option<u64>,
}

impl FaultPlan {
    /// Returns a plan without faults.
    #[must_use]
    pub fn benign(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    fn draw(&self, rng: &mut Rng, step: u64, kind: Kind) -> Fate {
        let mut fate = Fate::default();
        if rng.permille(self.delay_permille) {
            let spread = self.delay.end.saturating_sub(self.delay.start).as_nanos() as u64;
            let delay = self.delay.start + Duration::from_nanos(rng.below(spread));
            *(if rng.below(2) == 0 { &mut fate.delay_before } else { &mut fate.delay_after }) = Some(delay);
        }
        let done = rng.below(2) == 0;
        fate.failure = if self.crash_at_step == Some(step) {
            Some(Failure::Crash { done })
        } else if rng.permille(self.error_permille) {
            Some(Failure::Retryable)
        } else if kind == Kind::Change && rng.permille(self.unknown_permille) {
            Some(Failure::Unknown { done })
        } else if kind == Kind::Flush && rng.permille(self.not_stored_permille) {
            Some(Failure::NotStored)
        } else {
            None
        };
        fate
    }
}

/// The kind of a call, which decides its possible faults and the meaning of a late reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Read,
    Change,
    Flush,
}

/// The faults of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Fate {
    delay_before: Option<Duration>,
    delay_after: Option<Duration>,
    failure: Option<Failure>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    Retryable,
    NotStored,
    Unknown { done: bool },
    Crash { done: bool },
}

// ---- A gate that can stop all tasks, and a lock that can be held across awaits, for any executor.

/// A gate, which is open, or closed with the wakers of the waiting tasks.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, Vec<Waker>)>,
}

impl Gate {
    fn close(&self) {
        self.state.lock().0 = true;
    }

    fn open(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.0 = false;
            std::mem::take(&mut state.1)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    fn is_closed(&self) -> bool {
        self.state.lock().0
    }

    /// Waits until the gate is open.
    fn pass(&self) -> impl Future<Output = ()> + Send + '_ {
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

/// A lock whose guard can be held across awaits. The lock is not fair: all waiting tasks are woken
/// and retry.
#[derive(Default)]
struct AsyncLock {
    held: Gate,
}

impl AsyncLock {
    async fn lock(&self) -> Guard<'_> {
        loop {
            self.held.pass().await;
            let mut state = self.held.state.lock();
            if !state.0 {
                state.0 = true;
                return Guard(self);
            }
        }
    }
}

struct Guard<'a>(&'a AsyncLock);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.held.open();
    }
}
