//! Tests of the linearizability check: it accepts histories that have an order, refuses others, and
//! agrees with an exhaustive search.

use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::support::history::check::{OPERATIONS_MAX, Refusal, assert_linearizable, linearize};
use crate::support::history::generate::{Spoil, any_small, linearizable};
use crate::support::history::operation::Action::{Mismatch, Read, Swap, SwapUnknown, Write, WriteUnknown};
use crate::support::history::operation::{Action, Operation, Value};

const A: Value = Value(1);
const B: Value = Value(2);
const ZERO: Value = Value::INITIAL;

/// Returns the operation `action` of `client`, from `called` to `answered`.
fn op(client: usize, called: u64, answered: u64, action: Action) -> Operation {
    let answered = if action.is_unknown() { u64::MAX } else { answered };
    Operation { client, action, called, answered }
}

fn is_refused(history: &[Operation]) -> bool {
    match linearize(history) {
        Ok(_) => false,
        Err(Refusal::NotLinearizable { .. }) => true,
        Err(other) => panic!("no verdict: {other:?}"),
    }
}

#[test]
fn known_good_histories_are_accepted() {
    let good: &[(&str, &[Operation])] = &[
        ("nothing happened", &[]),
        ("a register starts at zero", &[op(0, 1, 2, Read(ZERO))]),
        ("one after the other", &[op(0, 1, 2, Write(A)), op(1, 3, 4, Read(A))]),
        (
            "while a write is under way, either value is found",
            &[op(0, 1, 9, Write(A)), op(1, 2, 3, Read(ZERO)), op(1, 4, 5, Read(A)), op(2, 6, 7, Read(A))],
        ),
        (
            "two writes at once, in the order that the reads say",
            &[op(0, 1, 5, Write(A)), op(1, 2, 6, Write(B)), op(2, 7, 8, Read(A)), op(2, 9, 10, Read(A))],
        ),
        (
            "an unknown write is never made",
            &[op(0, 1, 0, WriteUnknown(A)), op(1, 2, 3, Read(ZERO)), op(1, 4, 5, Read(ZERO))],
        ),
        (
            "an unknown write is made late, over an acknowledged one",
            &[
                op(0, 1, 0, WriteUnknown(A)),
                op(1, 2, 3, Write(B)),
                op(1, 4, 5, Read(B)),
                op(1, 6, 7, Read(A)),
            ],
        ),
        (
            "an unknown swap explains what is found, another's swap is built on it",
            &[
                op(0, 1, 0, SwapUnknown { expected: ZERO, value: A }),
                op(1, 2, 3, Swap { expected: A, value: B }),
                op(0, 4, 5, Read(B)),
            ],
        ),
        (
            "only an unknown write explains a mismatch",
            &[op(0, 1, 0, WriteUnknown(A)), op(1, 2, 3, Mismatch { expected: ZERO })],
        ),
        (
            "of two swaps at once the other one may be first",
            &[
                op(0, 1, 9, Swap { expected: A, value: B }),
                op(1, 2, 8, Swap { expected: ZERO, value: A }),
                op(2, 10, 11, Read(B)),
            ],
        ),
    ];
    for (what, history) in good {
        assert_linearizable(history, what);
    }
}

#[test]
fn known_bad_histories_are_refused() {
    let bad: &[(&str, &[Operation])] = &[
        ("a read of a value that was not written", &[op(0, 1, 2, Read(A))]),
        ("a lost write", &[op(0, 1, 2, Write(A)), op(1, 3, 4, Read(ZERO))]),
        ("a read before the write was called", &[op(1, 1, 2, Read(A)), op(0, 3, 4, Write(A))]),
        (
            "the old value after the new one was seen, though the write is still under way",
            &[op(0, 1, 9, Write(A)), op(1, 2, 3, Read(A)), op(2, 4, 5, Read(ZERO))],
        ),
        (
            "two readers see two writes in different orders",
            &[
                op(0, 1, 3, Write(A)),
                op(1, 2, 4, Write(B)),
                op(2, 5, 7, Read(A)),
                op(3, 6, 8, Read(B)),
                op(2, 9, 10, Read(A)),
            ],
        ),
        (
            "applied twice: replaced, and back again",
            &[op(0, 1, 2, Write(A)), op(1, 3, 4, Write(B)), op(1, 5, 6, Read(B)), op(1, 7, 8, Read(A))],
        ),
        (
            "an unknown write applied twice",
            &[
                op(0, 1, 0, WriteUnknown(A)),
                op(1, 2, 3, Read(A)),
                op(1, 4, 5, Write(B)),
                op(1, 6, 7, Read(B)),
                op(1, 8, 9, Read(A)),
            ],
        ),
        ("an unknown write made before it was called", &[op(1, 1, 2, Read(A)), op(0, 3, 0, WriteUnknown(A))]),
        (
            "two swaps of one value both win",
            &[op(0, 1, 5, Swap { expected: ZERO, value: A }), op(1, 2, 6, Swap { expected: ZERO, value: B })],
        ),
        ("a mismatch with what is there", &[op(0, 1, 2, Write(A)), op(1, 3, 4, Mismatch { expected: A })]),
        (
            "an unknown swap of a value that is not there",
            &[op(0, 1, 0, SwapUnknown { expected: B, value: A }), op(1, 2, 3, Read(A))],
        ),
    ];
    for (what, history) in bad {
        assert!(is_refused(history), "accepted: {what}");
    }
}

#[test]
fn a_history_beyond_the_limits_gets_no_verdict() {
    let many: Vec<_> = (0..=OPERATIONS_MAX as u64).map(|n| op(0, 2 * n + 1, 2 * n + 2, Read(ZERO))).collect();
    let unknown: Vec<_> = (0..11).map(|n| op(0, n + 1, 0, WriteUnknown(A))).collect();
    for history in [&many[..], &unknown, &[op(8, 1, 2, Read(ZERO))], &[op(0, 2, 1, Read(ZERO))]] {
        assert!(matches!(linearize(history), Err(Refusal::Unfit(_))));
    }
}

/// Returns whether `order` has the properties that [`linearize`] promises: it contains every known
/// operation once, each operation is allowed at its position, and none precedes an operation that
/// was answered before it was called.
fn is_an_order_of(history: &[Operation], order: &[usize]) -> bool {
    let known = (0..history.len()).filter(|&at| !history[at].action.is_unknown());
    let complete = known.into_iter().all(|at| order.contains(&at));
    let once = order.iter().enumerate().all(|(n, at)| !order[..n].contains(at));
    let timely = order
        .iter()
        .enumerate()
        .all(|(n, &at)| order[n..].iter().all(|&later| history[later].answered >= history[at].called));
    let mut held = ZERO;
    let allowed = order.iter().all(|&at| match history[at].action.apply(held) {
        Some(next) => {
            held = next;
            true
        }
        None => false,
    });
    complete && once && timely && allowed
}

#[test]
fn a_history_made_from_an_order_is_accepted_with_a_valid_order() {
    for seed in 0..400 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let count = 1 + seed as usize % OPERATIONS_MAX;
        let history = linearizable(&mut rng, count);
        assert_linearizable(&history, &format!("seed {seed}"));
        let order = linearize(&history).unwrap();
        assert!(is_an_order_of(&history, &order), "seed {seed}: {order:?} of {history:?}");
    }
}

#[test]
fn a_corrupted_history_is_refused() {
    let mut refused = [0; Spoil::ALL.len()];
    for seed in 0..200 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let history = linearizable(&mut rng, 60 + seed as usize % 140);
        for (count, spoil) in refused.iter_mut().zip(Spoil::ALL) {
            if let Some(spoilt) = spoil.apply(&mut rng, &history) {
                assert!(is_refused(&spoilt), "seed {seed}, {spoil:?}: accepted {spoilt:?}");
                *count += 1;
            }
        }
    }
    // Each kind of history must be refused often enough: no kind passes only because it never
    // occurred.
    assert!(refused.iter().all(|&count| count > 100), "{refused:?}");
}

#[test]
fn the_verdict_is_that_of_trying_every_order() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..20_000 {
        let history = any_small(&mut SmallRng::seed_from_u64(seed));
        let wanted = some_order_explains(&history, &mut Vec::new());
        let found = linearize(&history);
        assert_eq!(found.is_ok(), wanted, "seed {seed}: {found:?} of {history:?}");
        if let Ok(order) = found {
            assert!(is_an_order_of(&history, &order), "seed {seed}: {order:?} of {history:?}");
        }
        *(if wanted { &mut good } else { &mut bad }) += 1;
    }
    assert!(good > 2_000 && bad > 2_000, "{good} good, {bad} bad");
}

/// Searches exhaustively: tries every arrangement of every subset of operations that includes all
/// known ones.
fn some_order_explains(history: &[Operation], order: &mut Vec<usize>) -> bool {
    if is_an_order_of(history, order) {
        return true;
    }
    (0..history.len()).any(|at| {
        if order.contains(&at) {
            return false;
        }
        order.push(at);
        let found = some_order_explains(history, order);
        order.pop();
        found
    })
}

/// The worst case within the limits: all choices are writes, ten of them have an unknown outcome,
/// and no order explains the last read.
#[test]
fn the_search_ends_within_its_limits() {
    let mut history = Vec::new();
    for n in 0..10 {
        history.push(op(n % 8, n as u64 + 1, 0, WriteUnknown(Value(1_000 + n as u32))));
    }
    for n in 0..188 {
        let start = 100 + n as u64 * 2;
        history.push(op(n % 8, start, start + 15, Write(Value(n as u32 + 1))));
    }
    history.push(op(0, 10_000, 10_001, Read(Value(1))));
    assert!(is_refused(&history));
}
