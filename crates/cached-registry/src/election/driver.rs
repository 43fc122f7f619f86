//! The driver of an election: it executes what a machine asks for, and publishes this host's role.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use blocker::{Clock, Epoch, Timestamp};
use tokio::sync::{mpsc, oneshot};

use super::candidates::Candidates;
use super::elector::{Cause, Elector, Leadership, Lease, Part, Shared, StepDown};
use super::machine::{Blocks, Boxed, Documents, Machine};
use super::{
    Action, BlockElection, Candidate, Claimed, DocumentElection, LEASE_MIN, LeaderDocument, Release, Role,
    check_epoch_time,
};
use crate::clock::BootClock;
use crate::error::{Error, Result};
use crate::registry::Registry;

/// The outcome of a claim in progress.
pub type Claiming = Pin<Box<dyn Future<Output = Claimed> + Send>>;

/// The maximum number of requests to step down that wait for the driver.
const REQUESTS_MAX: usize = 8;

/// Lets this host take part in the election of a leader, through the documents of a registry or the
/// blocks of its disk. The future is the election: the host takes part while the future is polled,
/// within a tokio runtime. It ends when all handles are dropped, or with an error if the host can
/// no longer take part. If it is dropped, the host's lease ends immediately, and other hosts wait
/// for the rest of the lease.
///
/// `lease` must be the same on all hosts. `claim` claims an epoch in the store for this host, and should
/// end within its own deadline; the lease is renewed during that time. If the registry is on a disk,
/// this function measures the time that a block takes, which blocks the thread for some milliseconds.
///
/// # Errors
/// Returns [`Error::Denied`] if the registry does not support elections; [`Error::Invalid`] if the
/// lease is too short for the registry, or the name of `me` has invalid characters.
pub fn elect(
    registry: &Registry,
    me: Candidate,
    lease: Duration,
    claim: impl Fn(Epoch) -> Claiming + Send + 'static,
) -> Result<(Elector, impl Future<Output = Result<()>> + Send + 'static)> {
    elect_by(Arc::new(BootClock), registry, me, lease, Box::new(claim))
}

type Running = Pin<Box<dyn Future<Output = Result<()>> + Send>>;
type Claim = Box<dyn Fn(Epoch) -> Claiming + Send>;

/// Like [`elect`], with another clock.
pub(super) fn elect_by(
    clock: Arc<dyn Clock>,
    registry: &Registry,
    me: Candidate,
    lease: Duration,
    claim: Claim,
) -> Result<(Elector, Running)> {
    if !registry.is_changeable() {
        return Err(Error::Denied("the registry is a file, which cannot elect a leader".into()));
    }
    if lease < LEASE_MIN {
        return Err(Error::Invalid(
            format!("a lease of {lease:?}; it must last {LEASE_MIN:?} or longer").into(),
        ));
    }
    let (requests, received) = mpsc::channel(REQUESTS_MAX);
    let number = registry.disk().map(|(_, node)| node);
    let candidates = Arc::new(Candidates::new(registry.clone(), me.clone(), number)?);
    let shared = Arc::new(Shared::new());
    let elector = Elector { shared: Arc::clone(&shared), candidates: Arc::clone(&candidates), requests };
    let parts = Parts { clock, shared, requests: received, claim, me: me.clone() };
    let running: Running = match registry.disk() {
        None => {
            let machine = Documents::new(DocumentElection::new(me, lease), registry.clone());
            Box::pin(run(machine, parts, candidates, lease))
        }
        Some((disk, node)) => {
            let time = lease / 3;
            check_epoch_time(time, disk.nodes(), disk.block_time(node)?)
                .map_err(|why| Error::Invalid(format!("a third of the lease, in ms, {why}").into()))?;
            let machine =
                Blocks::new(BlockElection::new(node, time), Arc::clone(disk), Arc::clone(&candidates));
            Box::pin(run(machine, parts, candidates, lease))
        }
    };
    Ok((elector, running))
}

async fn run<M: Machine>(
    machine: M,
    parts: Parts,
    candidates: Arc<Candidates>,
    lease: Duration,
) -> Result<()> {
    let (clock, leadership) = (Arc::clone(&parts.clock), parts.shared.leadership.subscribe());
    let ended = tokio::select! {
        ended = Driver::new(machine, parts).run() => ended,
        () = candidates.run(&*clock, lease, leadership) => Ok(()),
    };
    candidates.finish().await;
    ended
}

/// The values that [`elect_by`] passes to the driver.
struct Parts {
    clock: Arc<dyn Clock>,
    shared: Arc<Shared>,
    requests: mpsc::Receiver<StepDown>,
    claim: Claim,
    me: Candidate,
}

struct Driver<M: Machine> {
    machine: M,
    parts: Parts,
    /// The reason why a standby may take the lease.
    vacancy: Cause,
    /// The reason why this host ends its leadership, if it ends it by itself.
    ending: Option<Cause>,
    /// The callers that wait until the release is written.
    stepping_down: Vec<oneshot::Sender<Result<()>>>,
}

impl<M: Machine> Driver<M> {
    fn new(machine: M, parts: Parts) -> Self {
        Self { machine, parts, vacancy: Cause::Vacant, ending: None, stepping_down: Vec::new() }
    }

    async fn run(mut self) -> Result<()> {
        let (mut operation, mut claim) = (None, None);
        let mut hint = self.machine.hint();
        loop {
            let now = self.parts.clock.now();
            let action = self.machine.next(now);
            self.publish(now);
            let until = match action {
                Action::Do(op) => {
                    operation = Some(self.machine.execute(op));
                    continue;
                }
                Action::Claim(epoch) => {
                    claim = Some((self.parts.claim)(epoch));
                    continue;
                }
                Action::Wait(until) => until,
            };
            let shared = Arc::clone(&self.parts.shared);
            tokio::select! {
                biased;
                () = shared.was_fenced.notified() => self.fenced(Epoch(shared.fenced.load(Ordering::Acquire))),
                request = self.parts.requests.recv() => match request {
                    Some(request) => self.step_down(request),
                    None => return self.leave(operation).await,
                },
                reply = output(&mut operation) => {
                    operation = None;
                    let outcome = self.machine.reply(self.parts.clock.now(), reply);
                    let fault = outcome.err();
                    let ends = fault.as_ref().is_some_and(|fault| fault.ends);
                    let error = fault.map(|fault| fault.error);
                    self.parts.shared.error.lock().clone_from(&error);
                    if let Some(error) = error.filter(|_| ends) {
                        return Err(error);
                    }
                }
                outcome = output(&mut claim) => {
                    claim = None;
                    self.machine.claimed(self.parts.clock.now(), outcome);
                }
                () = output(&mut hint) => {
                    hint = self.machine.hint();
                    self.machine.look(self.parts.clock.now());
                }
                () = self.parts.clock.sleep_until(until) => {}
            }
        }
    }

    /// Ends after the operation in progress, so that it cannot interfere with the next process of
    /// this host. If this host has taken the lease, but does not lead yet, it releases the lease: the
    /// others need not wait until it lapses.
    async fn leave(mut self, mut operation: Option<Boxed<M::Reply>>) -> Result<()> {
        loop {
            if operation.is_some() {
                let reply = output(&mut operation).await;
                operation = None;
                if self.machine.reply(self.parts.clock.now(), reply).is_err_and(|fault| fault.ends) {
                    return Ok(());
                }
            }
            let now = self.parts.clock.now();
            if matches!(self.machine.role(now), Role::Taking(_)) {
                self.machine.step_down(Release::Anyone, None);
            }
            if !self.machine.is_releasing() {
                return Ok(());
            }
            match self.machine.next(now) {
                Action::Do(op) => operation = Some(self.machine.execute(op)),
                // No claim is made any more.
                Action::Claim(_) => {}
                Action::Wait(until) => self.parts.clock.sleep_until(until).await,
            }
        }
    }

    fn fenced(&mut self, epoch: Epoch) {
        let now = self.parts.clock.now();
        if self.machine.fenced(now, epoch) {
            self.ending = Some(Cause::Fenced);
        }
    }

    fn step_down(&mut self, StepDown { to, node, done }: StepDown) {
        let now = self.parts.clock.now();
        if self.stepping_down.is_empty() && !matches!(self.machine.role(now), Role::Leader(..)) {
            let text = match self.machine.leader(now) {
                Some(leader) => format!("this host does not lead, but {} does", leader.node),
                None => "this host does not lead".into(),
            };
            // This fails if the caller no longer waits for the reply.
            let _ = done.send(Err(Error::Denied(text.into())));
            return;
        }
        self.machine.step_down(to, node);
        self.ending = Some(Cause::SteppedDown);
        self.stepping_down.push(done);
    }

    /// Publishes this host's role at `now`.
    fn publish(&mut self, now: Timestamp) {
        let role = self.machine.role(now);
        if role == Role::Standby
            && let Some(vacancy) = self.machine.vacancy()
        {
            self.vacancy = vacancy;
        }
        if !self.machine.is_releasing() {
            for done in self.stepping_down.drain(..) {
                let _ = done.send(Ok(()));
            }
        }
        let shared = Arc::clone(&self.parts.shared);
        shared.leadership.send_if_modified(|old| match self.change(now, role, old) {
            Some((part, cause)) => {
                if let Part::Leading { lease, .. } = &old.part {
                    lease.end();
                }
                if let Some(count) = Cause::ALL.iter().position(|other| *other == cause) {
                    shared.changes[count].fetch_add(1, Ordering::Relaxed);
                }
                *old = Leadership { part, since: SystemTime::now(), cause };
                true
            }
            None => false,
        });
    }

    fn other_leader(&self, now: Timestamp) -> Option<LeaderDocument> {
        self.machine.leader(now).filter(|leader| leader.writer != self.parts.me.writer)
    }

    /// Returns this host's role and the reason for it, if the role is no longer `old`.
    fn change(&mut self, now: Timestamp, role: Role, old: &Leadership) -> Option<(Part, Cause)> {
        match (role, &old.part) {
            (Role::Leader(epoch, until), Part::Leading { epoch: old, lease, .. }) if epoch == *old => {
                lease.extend(until);
                None
            }
            (Role::Leader(epoch, until), _) => {
                let lease = Arc::new(Lease::new(Arc::clone(&self.parts.clock), until));
                Some((Part::Leading { epoch, writer: self.parts.me.writer, lease }, Cause::Granted))
            }
            (Role::Taking(epoch), Part::Taking(old)) if epoch == *old => None,
            (Role::Taking(epoch), Part::Standby { .. }) => Some((Part::Taking(epoch), self.vacancy)),
            (Role::Taking(epoch), Part::Leading { .. }) => {
                Some((Part::Taking(epoch), self.ending.take().unwrap_or(Cause::Lapsed)))
            }
            (Role::Taking(epoch), Part::Taking(_)) => Some((Part::Taking(epoch), Cause::Fenced)),
            (Role::Standby, Part::Standby { leader: old }) => {
                let leader = self.other_leader(now);
                let key = |leader: &LeaderDocument| (leader.epoch, leader.writer, leader.node.clone());
                if leader.as_ref().map(key) == old.as_ref().map(key) {
                    return None;
                }
                let cause = if leader.is_some() { Cause::Followed } else { self.vacancy };
                Some((Part::Standby { leader }, cause))
            }
            (Role::Standby, Part::Taking(_) | Part::Leading { .. }) => {
                let leader = self.other_leader(now);
                let lost = if leader.is_some() { Cause::Superseded } else { Cause::Lapsed };
                let cause = self.ending.take().unwrap_or(lost);
                Some((Part::Standby { leader }, cause))
            }
        }
    }
}

/// When the host no longer takes part in the election, it stops serving.
impl<M: Machine> Drop for Driver<M> {
    fn drop(&mut self) {
        self.parts.shared.leadership.send_modify(|leadership| {
            if let Part::Leading { lease, .. } = &leadership.part {
                lease.end();
            }
            let part = Part::Standby { leader: None };
            *leadership = Leadership { part, since: SystemTime::now(), cause: Cause::Ended };
        });
    }
}

/// Waits for the output of a future, if there is one.
async fn output<T>(future: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
