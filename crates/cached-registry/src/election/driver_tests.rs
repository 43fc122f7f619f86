//! The driver over a store in memory, with a clock that only the test moves. Every host has a
//! connection to the store of its own, which can be cut, and is polled only while it is not stopped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use blocker::faulty::FaultPlan;
use blocker::{Clock, Epoch, Faulty, ManualClock, Memory, WriterId};
use parking_lot::Mutex;

use super::driver::elect_by;
use super::*;
use crate::document::Key;
use crate::error::Result;
use crate::registry::Registry;

const LEASE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(100);

struct World {
    clock: ManualClock,
    store: Arc<Memory>,
    hosts: Vec<Host>,
}

struct Host {
    elector: Elector,
    running: Option<std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send>>>,
    connection: Arc<Faulty>,
    registry: Registry,
    claims: Arc<Mutex<Claims>>,
    is_stopped: bool,
    /// The lease of the last leadership.
    lease: Option<Arc<Lease>>,
}

/// The store's responses to the claims of one host.
#[derive(Default)]
struct Claims {
    asked: Vec<Epoch>,
    /// The next responses; after these, claims are granted.
    answers: VecDeque<Claimed>,
    are_delayed: bool,
}

impl World {
    fn new() -> Self {
        Self { clock: ManualClock::new(), store: Arc::new(Memory::default()), hosts: Vec::new() }
    }

    /// Adds a host and returns its index.
    fn add(&mut self, node: &str, plan: FaultPlan) -> usize {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let connection = Arc::new(Faulty::new(self.store.clone(), plan, Arc::clone(&clock)));
        let registry = Registry::in_store(connection.clone(), Arc::clone(&clock));
        let claims = Arc::new(Mutex::new(Claims::default()));
        let shared = Arc::clone(&claims);
        let claim = move |epoch| -> Claiming {
            shared.lock().asked.push(epoch);
            let shared = Arc::clone(&shared);
            Box::pin(std::future::poll_fn(move |_| {
                let mut claims = shared.lock();
                if claims.are_delayed {
                    return Poll::Pending;
                }
                Poll::Ready(claims.answers.pop_front().unwrap_or(Claimed::Granted))
            }))
        };
        let writer = WriterId(self.hosts.len() as u128 + 1);
        let me = Candidate { node: node.into(), address: format!("{node}:1"), writer };
        let (elector, running) = elect_by(clock, &registry, me, LEASE, Box::new(claim)).unwrap();
        let running = Some(running);
        self.hosts.push(Host {
            elector,
            running,
            connection,
            registry,
            claims,
            is_stopped: false,
            lease: None,
        });
        self.hosts.len() - 1
    }

    fn host(&self, host: usize) -> &Host {
        &self.hosts[host]
    }

    /// Lets the hosts do as much as they can without a change of the time.
    fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..20 {
            for host in self.hosts.iter_mut().filter(|host| !host.is_stopped) {
                if let Some(running) = &mut host.running
                    && running.as_mut().poll(&mut context).is_ready()
                {
                    host.running = None;
                }
                if let Some(lease) = host.elector.lease() {
                    host.lease = Some(lease);
                }
            }
            self.check();
        }
    }

    /// Checks that at most one host serves.
    fn check(&self) {
        let serves = |host: &&Host| host.lease.as_ref().is_some_and(|lease| lease.holds());
        assert!(self.hosts.iter().filter(serves).count() <= 1, "two hosts serve");
    }

    fn advance(&mut self, time: Duration) {
        self.poll();
        let until = self.clock.now() + time;
        while self.clock.now() < until {
            self.clock.advance(STEP);
            self.check();
            self.poll();
        }
    }

    /// Advances the time until the host has a role.
    fn until(&mut self, host: usize, most: Duration, wanted: impl Fn(&Leadership) -> bool) -> Leadership {
        let end = self.clock.now() + most;
        loop {
            self.poll();
            let leadership = self.host(host).elector.watch().borrow().clone();
            if wanted(&leadership) {
                return leadership;
            }
            assert!(self.clock.now() < end, "{leadership:?}");
            self.advance(STEP);
        }
    }

    fn until_leading(&mut self, host: usize, most: Duration) -> Epoch {
        match self.until(host, most, |leadership| leadership.part.is_leading()).part {
            Part::Leading { epoch, .. } => epoch,
            other => panic!("{other:?}"),
        }
    }

    /// Polls a request of the host's operator until it completes.
    fn step_down(&mut self, host: usize, to: Release) -> Result<()> {
        let elector = self.host(host).elector.clone();
        let mut request = Box::pin(async move { elector.step_down(to).await });
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(done) = request.as_mut().poll(&mut context) {
                return done;
            }
            self.advance(STEP);
        }
    }

    fn cause(&self, host: usize) -> Cause {
        self.host(host).elector.status().leadership.cause
    }
}

fn pair() -> (World, usize, usize) {
    let mut world = World::new();
    let a = world.add("a", FaultPlan::benign(1));
    assert_eq!(world.until_leading(a, LEASE), Epoch(1));
    let b = world.add("b", FaultPlan::benign(2));
    world.until(b, LEASE, |leadership| leads(leadership, "a"));
    (world, a, b)
}

fn leads(leadership: &Leadership, node: &str) -> bool {
    matches!(&leadership.part, Part::Standby { leader: Some(leader) } if leader.node == node)
}

#[test]
fn a_standby_takes_over_from_a_stopped_leader_which_no_longer_serves() {
    let (mut world, a, b) = pair();
    world.advance(10 * LEASE);
    assert_eq!((world.cause(a), world.cause(b)), (Cause::Granted, Cause::Followed));
    let lease = world.host(a).elector.lease().unwrap();
    world.hosts[a].is_stopped = true;
    // The process is stopped, so only the clock shows that its lease has ended.
    world.clock.advance(LEASE / 3 * 2);
    assert!(!lease.holds() && lease.remaining().is_zero());
    assert_eq!(world.until_leading(b, LEASE), Epoch(2));
    let changes = world.host(b).elector.status().changes;
    assert!(changes.contains(&(Cause::Expired, 1)) || changes.contains(&(Cause::Expired, 2)), "{changes:?}");
    world.hosts[a].is_stopped = false;
    world.until(a, LEASE, |leadership| leads(leadership, "b"));
    assert!(!lease.holds());
}

#[test]
fn a_leader_steps_down_for_one_host_or_any() {
    let (mut world, a, b) = pair();
    let c = world.add("c", FaultPlan::benign(3));
    world.advance(LEASE);
    let unknown = world.step_down(a, Release::To("d".into())).unwrap_err();
    assert_eq!(unknown.to_string(), "d is not a candidate; the candidates are a, b, c");
    let lease = world.host(a).elector.lease().unwrap();
    assert!(lease.holds());
    world.step_down(a, Release::To("c".into())).unwrap();
    assert!(!lease.holds());
    assert_eq!(world.cause(a), Cause::SteppedDown);
    assert_eq!(world.until_leading(c, LEASE / 5), Epoch(2));
    world.until(b, LEASE, |leadership| leads(leadership, "c"));
    let refused = world.step_down(b, Release::Anyone).unwrap_err();
    assert_eq!(refused.to_string(), "this host does not lead, but c does");
    // The host that has stepped down last is the last one to return.
    world.step_down(c, Release::Anyone).unwrap();
    world.advance(LEASE / 2);
    assert!(world.host(c).elector.lease().is_none());
    assert!(world.host(a).elector.lease().is_some() != world.host(b).elector.lease().is_some());
}

#[test]
fn the_next_process_of_the_host_takes_the_lease_back_at_once() {
    let (mut world, a, b) = pair();
    world.step_down(a, Release::To("a".into())).unwrap();
    world.hosts[a].running = None;
    let next = world.add("a", FaultPlan::benign(3));
    assert_eq!(world.until_leading(next, STEP), Epoch(2));
    world.advance(3 * LEASE);
    assert!(world.host(b).elector.lease().is_none());
}

#[test]
fn a_fenced_leader_returns_with_a_higher_epoch() {
    let (mut world, a, b) = pair();
    let lease = world.host(a).elector.lease().unwrap();
    world.host(a).elector.fenced(Epoch(0));
    world.advance(STEP);
    assert!(lease.holds());
    world.host(a).elector.fenced(Epoch(8));
    world.until(a, STEP, |leadership| leadership.cause == Cause::Fenced);
    assert!(!lease.holds());
    world.hosts[a].claims.lock().answers = [Claimed::Failed, Claimed::Fenced(Epoch(11))].into();
    assert_eq!(world.until_leading(a, LEASE), Epoch(12));
    assert_eq!(world.host(a).claims.lock().asked, [1, 9, 9, 12].map(Epoch));
    // A message that concerns the first leadership arrives late.
    world.host(a).elector.fenced(Epoch(8));
    world.advance(LEASE);
    assert!(world.host(a).elector.lease().is_some_and(|lease| lease.holds()));
    assert!(world.host(b).elector.lease().is_none());
}

#[test]
fn a_leader_that_is_cut_off_ends_and_another_host_takes_over() {
    for hangs in [false, true] {
        let (mut world, a, b) = pair();
        let cut = Arc::clone(&world.host(a).connection);
        if hangs {
            cut.stall();
        } else {
            cut.crash();
        }
        let lapsed = world.until(a, LEASE, |leadership| !leadership.part.is_leading());
        assert_eq!(lapsed.cause, Cause::Lapsed);
        assert_eq!(world.until_leading(b, LEASE), Epoch(2));
        let status = world.host(a).elector.status();
        assert!(status.error.is_some_and(|error| error.contains("the registry is not available")), "{hangs}");
        if hangs {
            cut.resume();
        } else {
            cut.restart().unwrap();
        }
        world.until(a, LEASE, |leadership| leads(leadership, "b"));
        assert_eq!(world.host(a).elector.status().error, None);
    }
}

#[test]
fn without_a_registry_nobody_leads_and_afterwards_one_host() {
    let (mut world, a, b) = pair();
    world.hosts.iter().for_each(|host| host.connection.crash());
    let lost = |leadership: &Leadership| matches!(leadership.part, Part::Standby { leader: None });
    world.until(b, 2 * LEASE, lost);
    world.until(a, 2 * LEASE, lost);
    world.advance(6 * LEASE);
    assert!(world.hosts.iter().all(|host| host.elector.lease().is_none()));
    world.hosts.iter().for_each(|host| host.connection.restart().unwrap());
    world.advance(2 * LEASE);
    let leading = world.hosts.iter().filter(|host| host.elector.lease().is_some_and(|lease| lease.holds()));
    assert_eq!(leading.count(), 1);
}

#[test]
fn the_lease_is_renewed_while_a_claim_takes_long() {
    let (mut world, a, b) = pair();
    world.hosts[b].claims.lock().are_delayed = true;
    world.step_down(a, Release::To("b".into())).unwrap();
    let taking = |leadership: &Leadership| matches!(leadership.part, Part::Taking(Epoch(2)));
    world.until(b, LEASE, taking);
    world.advance(5 * LEASE);
    assert!(taking(&world.host(b).elector.watch().borrow()));
    assert!(world.host(b).elector.lease().is_none());
    world.hosts[b].claims.lock().are_delayed = false;
    assert_eq!(world.until_leading(b, STEP), Epoch(2));
    let found = blocker::executor::block_on(world.host(b).registry.get(&Key::new("leader").unwrap()));
    let document = LeaderDocument::decode(&found.unwrap().unwrap().value).unwrap();
    assert!(document.renewal > 20, "{document:?}");
}

#[test]
fn a_host_that_cannot_lead_leaves_the_lease_to_the_others_at_once() {
    let (mut world, a, b) = pair();
    let c = world.add("c", FaultPlan::benign(3));
    world.advance(LEASE);
    world.hosts[b].claims.lock().answers = [Claimed::Unable].into();
    world.step_down(a, Release::To("b".into())).unwrap();
    assert_eq!(world.until_leading(c, LEASE / 5), Epoch(3));
    assert_eq!(world.host(b).claims.lock().asked, [Epoch(2)]);
}

#[test]
fn a_process_that_ends_while_it_takes_the_lease_releases_it() {
    let (mut world, a, b) = pair();
    let c = world.add("c", FaultPlan::benign(3));
    world.advance(LEASE);
    world.hosts[b].claims.lock().are_delayed = true;
    world.step_down(a, Release::To("b".into())).unwrap();
    world.until(b, LEASE / 5, |leadership| matches!(leadership.part, Part::Taking(Epoch(2))));
    let Host { elector, running, .. } = world.hosts.remove(b);
    drop(elector);
    let mut context = Context::from_waker(Waker::noop());
    assert!(running.unwrap().as_mut().poll(&mut context).is_ready());
    assert_eq!(world.until_leading(c - 1, LEASE / 5), Epoch(3));
}

#[test]
fn lost_replies_and_errors_leave_one_leader() {
    for seed in 0..8 {
        let mut world = World::new();
        for node in ["a", "b", "c"] {
            let mut plan = FaultPlan::benign(seed * 10 + world.hosts.len() as u64);
            (plan.error_permille, plan.unknown_permille, plan.delay_permille) = (50, 200, 100);
            plan.delay = STEP..LEASE / 4;
            world.add(node, plan);
        }
        // Every step checks that at most one host serves.
        let mut steps_with_leader = 0;
        for _ in 0..500 {
            world.advance(STEP);
            steps_with_leader += usize::from(
                world.hosts.iter().any(|host| host.elector.lease().is_some_and(|lease| lease.holds())),
            );
        }
        assert!(steps_with_leader > 250, "seed {seed}: a host leads in {steps_with_leader} of 500 steps");
    }
}

#[test]
fn an_election_that_is_dropped_serves_no_longer() {
    let (mut world, a, _) = pair();
    let lease = world.host(a).elector.lease().unwrap();
    world.hosts[a].running = None;
    assert!(!lease.holds());
    assert_eq!(world.cause(a), Cause::Ended);
    assert!(world.step_down(a, Release::Anyone).is_err());
}
