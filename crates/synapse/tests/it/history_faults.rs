//! Histories over synapse with every fault of a network and a server. Each has an order that
//! explains it and agrees with the changes that the store made. Switching off a safety rule is
//! detected.
//!
//! A seed repeats its faults, its delays and the clients' calls. Values that synapse draws itself
//! (session names, pauses between connection attempts) differ from run to run, so each run covers a
//! little more.

use std::sync::Arc;
use std::time::Duration;

use blocker::faulty::FaultPlan;
use blocker::{Blocker, Faulty};
use synapse::{ClientConfig, ServerConfig};

use crate::support::environment::clock::TokioClock;
use crate::support::environment::ledger::{Ledger, assert_applied, compare};
use crate::support::environment::sim_server::{SimServer, client_config, server_config, simulate};
use crate::support::environment::workload::{Outcomes, Workload, prepare, register, run};
use crate::support::history::check::{CLIENTS_MAX, Refusal, assert_linearizable, linearize};
use crate::support::history::operation::{Action, Operation};
use crate::support::net::plan::{Kind, Profile};

/// The safety rule that is switched off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    None,
    /// The server forgets outcomes, and executes repeated requests again.
    Outcomes,
    /// The client repeats requests that another instance may have executed.
    Instances,
}

/// The results of one run.
struct Run {
    outcomes: Outcomes,
    ledger: Arc<Ledger>,
    hits: Vec<(Kind, u64)>,
    replays: u64,
}

/// Runs clients over an unreliable network to a store with delayed replies. Two clients share a
/// connection, or two have two connections.
fn play(seed: u64, kinds: &[Kind], off: Rule) -> Run {
    simulate(async {
        let (workload, clock) = (Workload::new(seed), TokioClock::new());
        let ledger = Ledger::new(clock);
        prepare(&*ledger, &workload).await;
        let mut plan = FaultPlan::benign(seed);
        (plan.delay_permille, plan.delay) = (500, Duration::from_micros(1)..Duration::from_millis(30));
        let slow = Faulty::new(Arc::clone(&ledger) as _, plan, Arc::new(clock));
        let profile = Profile::rough(seed, kinds);
        let config = sabotaged_server(server_config(clock), off);
        let server =
            SimServer::open(Arc::new(slow), move |connection| profile.draw(connection), clock, config);
        let mut backends: Vec<Arc<dyn Blocker>> = Vec::new();
        for number in 0..CLIENTS_MAX / 2 {
            let mut config = sabotaged_client(client_config(&server), off);
            config.connections = 1 + (number % 2) as u16;
            let client = server.client_with(config).await;
            backends.extend([Arc::new(client.clone()) as _, Arc::new(client) as _]);
        }
        let outcomes = run(&backends, &workload, clock).await;
        let replays = server.metric("synapse_replays_total");
        // Operations whose calls were dropped may still be applied.
        drop(backends);
        tokio::time::sleep(Duration::from_secs(120)).await;
        let hits = kinds.iter().map(|&kind| (kind, server.sim.hits().of(kind))).collect();
        Run { outcomes, ledger, hits, replays }
    })
}

fn sabotaged_server(mut config: ServerConfig, off: Rule) -> ServerConfig {
    config.forgets_outcomes = off == Rule::Outcomes;
    config
}

fn sabotaged_client(mut config: ClientConfig, off: Rule) -> ClientConfig {
    config.guesses_outcomes = off == Rule::Instances;
    config
}

/// Returns the values that clients wrote to register `number`, without the first write, which
/// created it.
fn applied(run: &Run, number: usize) -> Vec<crate::support::history::operation::Value> {
    run.ledger.applied(&register(number))[1..].to_vec()
}

fn assert_safe(seed: u64, kinds: &[Kind], run: &Run) {
    for (number, history) in run.outcomes.histories.iter().enumerate() {
        let context = format!("seed {seed}, {kinds:?}, register {number}");
        assert_applied(&applied(run, number), history, &context);
        assert_linearizable(&with_final_read(run, number, history), &context);
        assert!(history.len() > 60, "{context}: only {} operations came through", history.len());
    }
}

/// Returns the history, followed by a read of the store's final content.
fn with_final_read(run: &Run, number: usize, history: &[Operation]) -> Vec<Operation> {
    let mut history = history.to_vec();
    let end = history.iter().map(|o| o.called.max(if o.answered == u64::MAX { 0 } else { o.answered })).max();
    let end = end.unwrap_or(0);
    let action = Action::Read(run.ledger.value(&register(number)));
    // If the history already has its maximum length, its last read serves as the final read.
    if history.len() < crate::support::history::check::OPERATIONS_MAX {
        history.push(Operation { client: 0, action, called: end + 1, answered: end + 2 });
    }
    history
}

fn safe_under(kinds: &[Kind], seeds: std::ops::Range<u64>) {
    let mut hits = vec![0; kinds.len()];
    let (mut unknown, mut replays) = (0, 0);
    for seed in seeds {
        let run = play(seed, kinds, Rule::None);
        assert_safe(seed, kinds, &run);
        run.hits.iter().zip(&mut hits).for_each(|((_, count), sum)| *sum += count);
        let all = run.outcomes.histories.iter().flatten();
        unknown += all.filter(|operation| operation.action.is_unknown()).count();
        replays += run.replays;
    }
    println!("{kinds:?} happened {hits:?} times; {unknown} outcomes stayed unknown, {replays} were repeated");
    assert!(hits.iter().all(|&count| count > 0), "a quiet network proves nothing: {kinds:?} {hits:?}");
}

#[test]
fn cuts_in_the_middle_of_frames() {
    safe_under(&[Kind::Cut], 0..12);
}

#[test]
fn a_server_that_dies_and_comes_back_as_another() {
    safe_under(&[Kind::Kill], 100..112);
}

#[test]
fn connections_that_are_open_on_one_side_only() {
    safe_under(&[Kind::HalfOpen], 200..212);
}

#[test]
fn peers_that_pause_beyond_the_deadline() {
    safe_under(&[Kind::Pause, Kind::Delay], 300..312);
}

#[test]
fn damaged_bytes() {
    safe_under(&[Kind::Corrupt], 400..412);
}

#[test]
fn everything_at_once() {
    safe_under(&Kind::ALL, 500..530);
}

/// Returns how many runs without the rule `off` are necessary until one is refused because of the
/// order of its history, and one because of the ledger. Not every run has a fault at a byte where
/// the rule matters.
fn runs_until_noticed(off: Rule, kinds: &[Kind], seeds: std::ops::Range<u64>) -> Option<(usize, usize)> {
    let (mut by_order, mut by_ledger) = (None, None);
    for (count, seed) in seeds.enumerate() {
        let run = play(seed, kinds, off);
        let histories = || run.outcomes.histories.iter().enumerate();
        let is_disordered = |(number, history): (usize, &Vec<Operation>)| {
            let history = with_final_read(&run, number, history);
            matches!(linearize(&history), Err(Refusal::NotLinearizable { .. }))
        };
        let is_contradicted =
            |(number, history): (usize, &Vec<Operation>)| compare(&applied(&run, number), history).is_err();
        by_order = by_order.or_else(|| histories().any(is_disordered).then_some(count + 1));
        by_ledger = by_ledger.or_else(|| histories().any(is_contradicted).then_some(count + 1));
        if let (Some(by_order), Some(by_ledger)) = (by_order, by_ledger) {
            println!("without {off:?}: noticed by order in run {by_order}, by the ledger in run {by_ledger}");
            return Some((by_order, by_ledger));
        }
    }
    None
}

#[test]
fn a_server_that_forgets_outcomes_is_detected() {
    assert!(runs_until_noticed(Rule::Outcomes, &[Kind::Cut], 0..300).is_some());
}

#[test]
fn a_client_that_guesses_across_instances_is_detected() {
    assert!(runs_until_noticed(Rule::Instances, &[Kind::Kill], 1_000..1_300).is_some());
}
