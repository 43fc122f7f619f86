//! Tests of the workload without a network. Over a slow store, its histories have an order and
//! agree with the changes that the store made; over a store that breaks a promise, they do not.

use std::sync::Arc;
use std::time::Duration;

use blocker::faulty::FaultPlan;
use blocker::{Blocker, Faulty};

use crate::support::environment::broken::{Broken, Promise};
use crate::support::environment::clock::TokioClock;
use crate::support::environment::ledger::{Ledger, assert_applied, compare};
use crate::support::environment::workload::{Outcomes, Workload, prepare, register, run};
use crate::support::history::check::{CLIENTS_MAX, Refusal, assert_linearizable, linearize};
use crate::support::history::operation::{Action, Operation};

/// Wraps a store in a layer.
type Wrap = fn(Arc<dyn Blocker>) -> Arc<dyn Blocker>;

/// Returns the outcomes of [`CLIENTS_MAX`] clients over a slow store below the layer `wrap`.
fn play(workload: &Workload, wrap: Wrap) -> (Outcomes, Arc<Ledger>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let clock = TokioClock::new();
        let ledger = Ledger::new(clock);
        prepare(&*ledger, workload).await;
        let mut plan = FaultPlan::benign(workload.seed);
        (plan.delay_permille, plan.delay) = (700, Duration::from_micros(1)..Duration::from_millis(80));
        (plan.error_permille, plan.unknown_permille) = (20, 10);
        let slow = Faulty::new(wrap(Arc::clone(&ledger) as _), plan, Arc::new(clock));
        let backends = vec![Arc::new(slow) as Arc<dyn Blocker>; CLIENTS_MAX];
        let outcomes = run(&backends, workload, clock).await;
        // Operations whose calls were dropped may still be applied.
        tokio::time::sleep(Duration::from_secs(60)).await;
        (outcomes, ledger)
    })
}

#[test]
fn over_a_slow_store_histories_have_an_order_and_agree_with_the_store() {
    let (mut unknown, mut swaps, mut overlaps) = (0, 0, 0);
    for seed in 0..20 {
        let workload = Workload::new(seed);
        let (outcomes, ledger) = play(&workload, |inner| inner);
        for (number, history) in outcomes.histories.iter().enumerate() {
            let context = format!("seed {seed}, register {number}");
            assert!(history.len() > workload.operations / 2, "{context}: {} operations", history.len());
            assert_linearizable(history, &context);
            // The first write created the register.
            assert_applied(&ledger.applied(&register(number))[1..], history, &context);
            unknown += history.iter().filter(|operation| operation.action.is_unknown()).count();
            swaps +=
                history.iter().filter(|operation| matches!(operation.action, Action::Swap { .. })).count();
            overlaps += overlapping(history);
        }
    }
    // Makes sure that the histories cover enough.
    assert!(unknown > 20 && swaps > 200 && overlaps > 10_000, "{unknown} {swaps} {overlaps}");
}

fn overlapping(history: &[Operation]) -> usize {
    let overlap = |a: &Operation, b: &Operation| a.called < b.answered && b.called < a.answered;
    history.iter().map(|a| history.iter().filter(|b| overlap(a, b)).count() - 1).sum()
}

#[test]
fn a_seed_repeats_its_history() {
    let workload = Workload::new(5);
    assert_eq!(play(&workload, |inner| inner).0, play(&workload, |inner| inner).0);
}

#[test]
fn every_broken_promise_is_detected() {
    const WRAPS: [Wrap; 5] = [
        |inner| Broken::new(inner, Promise::Once, 20),
        |inner| Broken::new(inner, Promise::Acknowledged, 20),
        |inner| Broken::new(inner, Promise::Refused, 20),
        |inner| Broken::new(inner, Promise::Order, 20),
        |inner| Broken::new(inner, Promise::Unknown, 20),
    ];
    for (promise, wrap) in Promise::ALL.into_iter().zip(WRAPS) {
        let (mut by_order, mut by_ledger) = (0, 0);
        for seed in 0..8 {
            let (outcomes, ledger) = play(&Workload::new(seed), wrap);
            for (number, history) in outcomes.histories.iter().enumerate() {
                by_order += usize::from(matches!(linearize(history), Err(Refusal::NotLinearizable { .. })));
                let applied = ledger.applied(&register(number))[1..].to_vec();
                by_ledger += usize::from(compare(&applied, history).is_err());
            }
        }
        // Each of the two checks detects the violation in most of sixteen histories.
        assert!(by_order >= 9 && by_ledger >= 9, "{promise:?}: {by_order} by order, {by_ledger} by ledger");
    }
}
