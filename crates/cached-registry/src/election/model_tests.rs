//! Model checking: all orders of events of a few hosts, within bounds. The machines are the
//! product's own; each of their rules is broken in turn, and the checker must notice it.

use std::collections::BTreeSet;
use std::time::Duration;

use blocker::{Epoch, Timestamp, WriterId};
use stateright::{Checker, HasDiscoveries, Model, Property};

use super::subject_tests::{ByDocument, Store, Subject, Value};
use super::*;
use crate::agreement::{Agreement, Block, Rule, Step};

const ONE_VALUE: &str = "an epoch decides one value";
const ALONE: &str = "a node that runs alone decides";

/// The agreement on a disk. Every read of a block, and every write, is a separate step.
#[derive(Clone)]
struct Disk {
    nodes: usize,
    epochs: u64,
    ballots: u64,
    crashes: u8,
    broken: Option<Rule>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct DiskState {
    disk: Vec<Block>,
    nodes: Vec<Node>,
    decided: BTreeSet<(u64, u64)>,
    crashes: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Node {
    /// The state of the process; `None` while it does not run.
    agreement: Option<Agreement>,
    io: Io,
    /// The latest epoch that the node has heard of.
    latest: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Io {
    None,
    Write(Block),
    Read(Vec<Option<Block>>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DiskAction {
    Enter(usize, u64),
    EnterNext(usize),
    Land(usize),
    Sample(usize, usize),
    Crash(usize),
    Return(usize),
}

impl Disk {
    fn follow(&self, state: &mut DiskState, node: usize, step: Step) {
        let part = &mut state.nodes[node];
        part.io = match step {
            Step::Write(block) => Io::Write(block),
            Step::Read => {
                let mut blocks = vec![None; self.nodes];
                // Only this node writes its own block.
                blocks[node] = Some(state.disk[node]);
                Io::Read(blocks)
            }
            Step::Decided(value) => {
                let counter = part.agreement.as_ref().unwrap().block().counter;
                state.decided.insert((counter, value));
                part.latest = part.latest.max(counter);
                Io::None
            }
            Step::Suspended { counter } => {
                part.latest = part.latest.max(counter);
                Io::None
            }
        };
    }

    fn start(&self, state: &mut DiskState, node: usize) {
        let mut agreement = Agreement::new(node, state.disk[node]);
        agreement.broken = self.broken;
        let latest = state.disk[node].counter;
        state.nodes[node] = Node { agreement: Some(agreement), io: Io::None, latest };
    }

    fn apply(&self, state: &mut DiskState, action: DiskAction) {
        let step = match action {
            DiskAction::Enter(node, counter) => {
                let step = state.nodes[node].agreement.as_mut().unwrap().enter(counter, node as u64);
                Some((node, step))
            }
            DiskAction::EnterNext(node) => {
                let step = state.nodes[node].agreement.as_mut().unwrap().enter_next(node as u64);
                step.map(|step| (node, step))
            }
            DiskAction::Land(node) => {
                let Io::Write(block) = state.nodes[node].io else { return };
                state.disk[node] = block;
                Some((node, state.nodes[node].agreement.as_mut().unwrap().written()))
            }
            DiskAction::Sample(node, other) => {
                let Io::Read(blocks) = &mut state.nodes[node].io else { return };
                blocks[other] = Some(state.disk[other]);
                let blocks: Option<Vec<Block>> = blocks.iter().copied().collect();
                blocks.map(|blocks| {
                    let agreement = state.nodes[node].agreement.as_mut().unwrap();
                    (node, agreement.read(&blocks).expect("a block has one writer"))
                })
            }
            DiskAction::Crash(node) => {
                state.crashes -= 1;
                let latest = state.nodes[node].latest;
                state.nodes[node] = Node { agreement: None, io: Io::None, latest };
                None
            }
            DiskAction::Return(node) => {
                self.start(state, node);
                None
            }
        };
        if let Some((node, step)) = step {
            self.follow(state, node, step);
        }
    }

    /// Returns whether `node` decides an epoch if no other node does anything.
    fn decides_alone(&self, state: &DiskState, node: usize) -> bool {
        let mut state = state.clone();
        if state.nodes[node].agreement.is_none() {
            self.start(&mut state, node);
        }
        state.decided.clear();
        for _ in 0..200 {
            if !state.decided.is_empty() {
                return true;
            }
            let part = &state.nodes[node];
            let action = match &part.io {
                Io::None => {
                    let own = part.agreement.as_ref().unwrap().block().counter;
                    DiskAction::Enter(node, own.max(part.latest) + 1)
                }
                Io::Write(_) => DiskAction::Land(node),
                Io::Read(blocks) => {
                    DiskAction::Sample(node, blocks.iter().position(Option::is_none).unwrap_or(node))
                }
            };
            self.apply(&mut state, action);
        }
        false
    }
}

impl Model for Disk {
    type State = DiskState;
    type Action = DiskAction;

    fn init_states(&self) -> Vec<DiskState> {
        let idle = Node { agreement: None, io: Io::None, latest: 0 };
        let mut state = DiskState {
            disk: vec![Block::default(); self.nodes],
            nodes: vec![idle; self.nodes],
            decided: BTreeSet::new(),
            crashes: self.crashes,
        };
        (0..self.nodes).for_each(|node| self.start(&mut state, node));
        vec![state]
    }

    fn actions(&self, state: &DiskState, actions: &mut Vec<DiskAction>) {
        for (node, part) in state.nodes.iter().enumerate() {
            let Some(agreement) = &part.agreement else {
                actions.push(DiskAction::Return(node));
                continue;
            };
            match &part.io {
                Io::None => {
                    let least = agreement.block().counter.max(part.latest).max(1);
                    actions.extend(
                        (least..=self.epochs.min(least + 1)).map(|counter| DiskAction::Enter(node, counter)),
                    );
                    if agreement.clone().enter_next(0).is_some() && agreement.block().counter < self.epochs {
                        actions.push(DiskAction::EnterNext(node));
                    }
                }
                Io::Write(_) => actions.push(DiskAction::Land(node)),
                Io::Read(blocks) => {
                    let missing = blocks.iter().enumerate().filter(|(_, block)| block.is_none());
                    actions.extend(missing.map(|(other, _)| DiskAction::Sample(node, other)));
                }
            }
            if state.crashes > 0 {
                actions.push(DiskAction::Crash(node));
            }
        }
    }

    fn next_state(&self, last: &DiskState, action: DiskAction) -> Option<DiskState> {
        let mut state = last.clone();
        self.apply(&mut state, action);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_VALUE, |_, state: &DiskState| {
                let epochs: BTreeSet<u64> = state.decided.iter().map(|(counter, _)| *counter).collect();
                epochs.len() == state.decided.len()
            }),
            Property::always(ALONE, |model: &Self, state: &DiskState| {
                model.broken.is_some() || (0..model.nodes).all(|node| model.decides_alone(state, node))
            }),
            Property::sometimes("the last epoch is decided", |model: &Self, state: &DiskState| {
                state.decided.iter().any(|(counter, _)| *counter == model.epochs)
            }),
        ]
    }

    fn within_boundary(&self, state: &DiskState) -> bool {
        state.disk.iter().all(|block| block.promised <= self.ballots)
    }
}

/// Checks that all properties of a model hold.
fn holds<M: Model + Send + Sync + 'static>(name: &str, model: M)
where
    M::State: std::hash::Hash + Send + Sync + Clone + std::fmt::Debug + PartialEq,
    M::Action: std::fmt::Debug + Send + Sync + Clone + PartialEq,
{
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{name}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Checks that the checker notices a broken rule.
fn is_caught<M: Model + Send + Sync + 'static>(name: &str, property: &'static str, model: M)
where
    M::State: std::hash::Hash + Send + Sync + Clone + std::fmt::Debug + PartialEq,
    M::Action: std::fmt::Debug + Send + Sync + Clone + PartialEq,
{
    let wanted = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().threads(2).finish_when(wanted).spawn_bfs().join();
    assert!(
        checker.discovery(property).is_some(),
        "{name} is not caught in {} states",
        checker.unique_state_count()
    );
}

#[test]
fn nodes_on_a_disk_agree() {
    holds("2 nodes, 2 epochs", Disk { nodes: 2, epochs: 2, ballots: 3, crashes: 0, broken: None });
}

#[test]
#[ignore = "long: models, because millions of states take minutes"]
fn more_nodes_on_a_disk_agree() {
    holds("2 nodes, 2 epochs, a crash", Disk { nodes: 2, epochs: 2, ballots: 3, crashes: 1, broken: None });
    holds("2 nodes, 3 epochs, a crash", Disk { nodes: 2, epochs: 3, ballots: 4, crashes: 1, broken: None });
    holds("3 nodes, 1 epoch", Disk { nodes: 3, epochs: 1, ballots: 2, crashes: 0, broken: None });
}

#[test]
fn each_broken_rule_of_the_agreement_is_caught() {
    let rules = [
        Rule::ReadAfterPromise,
        Rule::ReadAfterVote,
        Rule::Adopt,
        Rule::AdoptHighest,
        Rule::HighestBallot,
        Rule::EarlierEpochs,
        Rule::ShortPath,
    ];
    for rule in rules {
        let model = Disk { nodes: 2, epochs: 2, ballots: 4, crashes: 0, broken: Some(rule) };
        is_caught(&format!("{rule:?}"), ONE_VALUE, model);
    }
}

const ONE_LEADER: &str = "an epoch has one leader";
const ONE_SERVES: &str = "one host serves at a time";
const IN_FORCE: &str = "a change that lands has the epoch in force";

/// The lease of the modelled elections, in ticks of [`TICK`].
const LEASE: Duration = Duration::from_nanos(30);
const TICK: u64 = 10;

/// Hosts that elect a leader, each with its own clock. Operations, claims and changes have
/// arbitrary delays; replies are lost, hosts crash and return, and a write whose reply was lost may
/// take effect later. A read of several blocks is one step: of two hosts, each reads only one block
/// that the other one writes.
struct Hosts<S> {
    /// The times that the hosts' clocks show when the model begins; there is one for each host.
    clocks: Vec<u64>,
    ticks: u64,
    losses: u8,
    crashes: u8,
    step_downs: u8,
    /// How often the registry forgets everything, as one does that was created anew.
    forgets: u8,
    /// Breaks a rule.
    break_rule: fn(&mut S),
    shares_epochs: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct HostsState<S: Subject> {
    ticks: u64,
    place: S::Place,
    store: Store,
    hosts: Vec<Host<S>>,
    /// Writes that may take effect later: the host, the operation, and the time on its clock.
    strays: Vec<(usize, S::Op, Timestamp)>,
    led: BTreeSet<(Epoch, u128)>,
    losses: u8,
    crashes: u8,
    step_downs: u8,
    forgets: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Host<S: Subject> {
    machine: Option<S>,
    starts: u8,
    flight: Option<Flight<S>>,
    claim: Option<Epoch>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Flight<S: Subject> {
    op: S::Op,
    has_landed: bool,
    began: Timestamp,
    reply: Option<S::Reply>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HostsAction {
    Tick,
    Act(usize),
    Step(usize),
    Reply(usize),
    Lose(usize),
    Stray(usize),
    Claim(usize),
    LoseClaim(usize),
    Crash(usize),
    Return(usize),
    StepDown(usize),
    Forget,
}

impl<S: Subject> Host<S> {
    fn writer(&self, node: usize) -> WriterId {
        WriterId(node as u128 * 100 + u128::from(self.starts))
    }
}

/// Performs the actions that a host's machine requests at `now`, until the machine waits.
fn act<S: Subject>(host: &mut Host<S>, now: Timestamp) {
    let Some(machine) = &mut host.machine else { return };
    loop {
        match machine.next(now) {
            Action::Do(op) => host.flight = Some(Flight { op, has_landed: false, began: now, reply: None }),
            Action::Claim(epoch) => host.claim = Some(epoch),
            Action::Wait(_) => return,
        }
    }
}

impl<S: Subject> Hosts<S> {
    fn now(&self, state: &HostsState<S>, node: usize) -> Timestamp {
        Timestamp(self.clocks[node] + state.ticks * TICK)
    }

    fn start(&self, host: &mut Host<S>, node: usize) {
        host.starts += 1;
        let mut machine = S::start(node, host.writer(node), LEASE);
        (self.break_rule)(&mut machine);
        host.machine = Some(machine);
    }

    fn role(&self, state: &HostsState<S>, node: usize) -> Role {
        let machine = state.hosts[node].machine.as_ref();
        machine.map_or(Role::Standby, |machine| machine.role(self.now(state, node)))
    }

    /// Drops the operation in progress. If it is a write that has not taken effect, it may do so
    /// later.
    fn drop_flight(state: &mut HostsState<S>, node: usize) -> Option<S::Op> {
        let Flight { op, has_landed, began, .. } = state.hosts[node].flight.take()?;
        if S::STRAYS && S::is_write(&op) && !has_landed {
            state.strays.push((node, op.clone(), began));
        }
        Some(op)
    }
}

impl<S: Subject> Model for Hosts<S> {
    type State = HostsState<S>;
    type Action = HostsAction;

    fn init_states(&self) -> Vec<HostsState<S>> {
        let nodes = self.clocks.len();
        let mut hosts = vec![Host { machine: None, starts: 0, flight: None, claim: None }; nodes];
        hosts.iter_mut().enumerate().for_each(|(node, host)| self.start(host, node));
        let mut store = Store::new();
        store.shares_epochs = self.shares_epochs;
        vec![HostsState {
            ticks: 0,
            place: S::place(nodes),
            store,
            hosts,
            strays: Vec::new(),
            led: BTreeSet::new(),
            losses: self.losses,
            crashes: self.crashes,
            step_downs: self.step_downs,
            forgets: self.forgets,
        }]
    }

    fn actions(&self, state: &HostsState<S>, actions: &mut Vec<HostsAction>) {
        if state.ticks < self.ticks {
            actions.push(HostsAction::Tick);
        }
        if state.forgets > 0 {
            actions.push(HostsAction::Forget);
        }
        actions.extend((0..state.strays.len()).map(HostsAction::Stray));
        for (node, host) in state.hosts.iter().enumerate() {
            if host.machine.is_none() {
                actions.push(HostsAction::Return(node));
                continue;
            }
            let is_leader = matches!(self.role(state, node), Role::Leader(..));
            actions.push(HostsAction::Act(node));
            if let Some(flight) = &host.flight {
                actions.push(if flight.has_landed {
                    HostsAction::Reply(node)
                } else {
                    HostsAction::Step(node)
                });
                if state.losses > 0 && S::is_write(&flight.op) {
                    actions.push(HostsAction::Lose(node));
                }
            }
            if host.claim.is_some() {
                actions.push(HostsAction::Claim(node));
                if state.losses > 0 {
                    actions.push(HostsAction::LoseClaim(node));
                }
            }
            if state.crashes > 0 {
                actions.push(HostsAction::Crash(node));
            }
            if is_leader && state.step_downs > 0 {
                actions.push(HostsAction::StepDown(node));
            }
        }
    }

    fn next_state(&self, last: &HostsState<S>, action: HostsAction) -> Option<HostsState<S>> {
        let mut state = last.clone();
        let nodes = self.clocks.len();
        let now = |node: usize| self.now(last, node);
        match action {
            HostsAction::Tick => state.ticks += 1,
            HostsAction::Act(node) => {
                act(&mut state.hosts[node], now(node));
                if state == *last {
                    return None;
                }
            }
            HostsAction::Step(node) => {
                let flight = state.hosts[node].flight.as_mut()?;
                for step in 0..S::steps(&flight.op, nodes) {
                    let reply = flight.reply.take();
                    flight.reply =
                        Some(S::apply(&mut state.place, node, &flight.op, step, flight.began, reply));
                }
                flight.has_landed = true;
            }
            HostsAction::Reply(node) => {
                let host = &mut state.hosts[node];
                let Flight { op, reply, .. } = host.flight.take()?;
                host.machine.as_mut()?.reply(now(node), &op, reply);
                act(host, now(node));
            }
            HostsAction::Lose(node) => {
                state.losses -= 1;
                let op = Self::drop_flight(&mut state, node)?;
                let host = &mut state.hosts[node];
                host.machine.as_mut()?.reply(now(node), &op, None);
                act(host, now(node));
            }
            HostsAction::Stray(stray) => {
                let (node, op, began) = state.strays.remove(stray);
                S::apply(&mut state.place, node, &op, 0, began, None);
            }
            HostsAction::Claim(node) | HostsAction::LoseClaim(node) => {
                let host = &mut state.hosts[node];
                let mut outcome = state.store.claim(host.claim.take()?, host.writer(node));
                if action == HostsAction::LoseClaim(node) {
                    state.losses -= 1;
                    outcome = Claimed::Failed;
                }
                host.machine.as_mut()?.claimed(now(node), outcome);
                act(host, now(node));
            }
            HostsAction::Crash(node) => {
                state.crashes -= 1;
                Self::drop_flight(&mut state, node);
                let host = &mut state.hosts[node];
                (host.machine, host.flight, host.claim) = (None, None, None);
            }
            HostsAction::Return(node) => self.start(&mut state.hosts[node], node),
            HostsAction::StepDown(node) => {
                state.step_downs -= 1;
                state.hosts[node].machine.as_mut()?.step_down(Some((node + 1) % nodes));
            }
            HostsAction::Forget => {
                state.forgets -= 1;
                state.place = S::place(nodes);
            }
        }
        for node in 0..nodes {
            if let Role::Leader(epoch, _) = self.role(&state, node) {
                state.led.insert((epoch, state.hosts[node].writer(node).0));
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_LEADER, |_, state: &HostsState<S>| {
                let epochs: BTreeSet<Epoch> = state.led.iter().map(|(epoch, _)| *epoch).collect();
                epochs.len() == state.led.len()
            }),
            Property::always(ONE_SERVES, |model: &Self, state: &HostsState<S>| {
                let leads = |node: &usize| matches!(model.role(state, *node), Role::Leader(..));
                // Without the leases only the claims keep the hosts apart.
                model.forgets > 0 || (0..model.clocks.len()).filter(leads).count() <= 1
            }),
            // A change of any leader may be delayed until now.
            Property::always(IN_FORCE, |_, state: &HostsState<S>| {
                let in_force = state.store.epoch();
                state.led.iter().all(|(epoch, _)| epoch.0 == in_force || !state.store.change(*epoch))
            }),
            Property::sometimes("two hosts lead, one after the other", |_, state: &HostsState<S>| {
                state.led.len() > 1
            }),
        ]
    }
}

fn hosts<S: Value>(clocks: &[u64], ticks: u64) -> Hosts<S> {
    Hosts {
        clocks: clocks.to_vec(),
        ticks,
        losses: 0,
        crashes: 0,
        step_downs: 0,
        forgets: 0,
        break_rule: |_| {},
        shares_epochs: false,
    }
}

#[test]
fn an_election_by_a_document_has_one_leader() {
    holds("2 hosts, a new registry", Hosts::<ByDocument> { forgets: 1, ..hosts(&[1000, 1], 1) });
}

#[test]
#[ignore = "long: models, because millions of states take minutes"]
fn elections_with_more_faults_have_one_leader() {
    holds("documents, 2 hosts", hosts::<ByDocument>(&[1000, 1], 3));
    holds("documents, 2 hosts, a crash", Hosts::<ByDocument> { crashes: 1, ..hosts(&[1000, 1], 4) });
    holds("documents, 2 hosts, a loss", Hosts::<ByDocument> { losses: 1, ..hosts(&[1000, 1], 3) });
    holds("documents, 2 hosts, a step down", Hosts::<ByDocument> { step_downs: 1, ..hosts(&[1000, 1], 3) });
    holds("documents, 3 hosts", hosts::<ByDocument>(&[1000, 1, 500], 3));
    holds("blocks, 2 hosts", hosts::<BlockElection>(&[1000, 1], 3));
    holds("blocks, 2 hosts, a step down", Hosts::<BlockElection> { step_downs: 1, ..hosts(&[1000, 1], 1) });
}

#[test]
fn each_broken_rule_of_the_lease_is_caught() {
    let breaks = |name, property, break_rule: fn(&mut ByDocument)| {
        is_caught(name, property, Hosts { break_rule, ..hosts::<ByDocument>(&[1, 1000], 3) });
    };
    breaks("no patience", ONE_SERVES, |host| host.machine.own.broken = Some(LeaseRule::Patience));
    breaks("counted from the reply", ONE_SERVES, |host| {
        host.machine.own.broken = Some(LeaseRule::CountFromBefore);
    });
    breaks("no claim", IN_FORCE, |host| host.machine.own.broken = Some(LeaseRule::ClaimFirst));
    breaks("by the other's clock", ONE_SERVES, |host| host.counts_by_others_clock = true);
    let shared = Hosts::<ByDocument> { forgets: 1, shares_epochs: true, ..hosts(&[1, 1000], 2) };
    is_caught("an epoch of two writers", ONE_LEADER, shared);
}
