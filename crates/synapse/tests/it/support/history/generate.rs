//! Histories that are known to be linearizable because they were derived from an order; small
//! arbitrary ones; and ways to make a linearizable one certainly invalid.

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, IteratorRandom};

use super::check::{CLIENTS_MAX, OPERATIONS_MAX, UNKNOWN_MAX};
use super::operation::{Action, Operation, Value};

/// The time between two steps of the order from which a history is derived.
const STEP: u64 = 1_000;

/// Returns a linearizable history of `count` operations. It is a sequential run in which the time
/// span of each operation is then randomly extended around its position, as far as its client's
/// other operations allow.
pub fn linearizable(rng: &mut SmallRng, count: usize) -> Vec<Operation> {
    assert!(count <= OPERATIONS_MAX, "at most {OPERATIONS_MAX} operations");
    let clients = rng.random_range(1..=CLIENTS_MAX);
    let reach = STEP * rng.random_range(1..=2 * clients as u64);
    let mut free_from = vec![1; clients];
    let mut held = Value::INITIAL;
    let mut next_value = 0;
    let mut unknown_left = UNKNOWN_MAX;
    let mut history = Vec::with_capacity(count);
    for step in 1..=count as u64 {
        let at = step * STEP;
        let Some(client) = (0..clients).filter(|&client| free_from[client] < at).choose(rng) else {
            continue;
        };
        let mut action = any_action(rng, held, &mut next_value);
        if unknown_left > 0 && rng.random_bool(0.1) {
            action = forget_outcome(action);
            unknown_left -= usize::from(action.is_unknown());
        }
        let called = at - rng.random_range(0..reach.min(at - free_from[client]).max(1));
        let ended = at + rng.random_range(1..=reach);
        free_from[client] = ended + 1;
        // An operation with unknown outcome may happen here, or not at all.
        if !action.is_unknown() || rng.random_bool(0.5) {
            held = action.apply(held).unwrap_or(held);
        }
        let answered = if action.is_unknown() { u64::MAX } else { ended };
        history.push(Operation { client, action, called, answered });
    }
    untie(&mut history);
    history
}

/// Returns an action that may happen while the register has the value `held`. A write always writes
/// a new value.
fn any_action(rng: &mut SmallRng, held: Value, next_value: &mut u32) -> Action {
    let mut value = || {
        *next_value += 1;
        Value(*next_value)
    };
    match rng.random_range(0..10) {
        0..4 => Action::Read(held),
        4..7 => Action::Write(value()),
        7..9 => Action::Swap { expected: held, value: value() },
        _ => Action::Mismatch { expected: value() },
    }
}

fn forget_outcome(action: Action) -> Action {
    match action {
        Action::Write(value) => Action::WriteUnknown(value),
        Action::Swap { expected, value } => Action::SwapUnknown { expected, value },
        other => other,
    }
}

/// Returns an arbitrary history of up to six operations and three values, linearizable or not.
pub fn any_small(rng: &mut SmallRng) -> Vec<Operation> {
    let count = rng.random_range(1..=6);
    let mut times: Vec<u64> = (1..=4 * count).collect();
    let mut history = Vec::new();
    for client in 0..count as usize {
        let mut time = || times.swap_remove(rng.random_range(0..times.len()));
        let (a, b) = (time(), time());
        let mut value = || Value(rng.random_range(0..3));
        let (expected, value) = (value(), value());
        let action = match rng.random_range(0..6) {
            0 | 1 => Action::Read(value),
            2 => Action::Write(value),
            3 => Action::Swap { expected, value },
            4 => Action::Mismatch { expected },
            _ if rng.random_bool(0.5) => Action::WriteUnknown(value),
            _ => Action::SwapUnknown { expected, value },
        };
        let answered = if action.is_unknown() { u64::MAX } else { a.max(b) };
        history.push(Operation { client, action, called: a.min(b), answered });
    }
    history
}

/// Makes all times different without changing their order.
fn untie(history: &mut [Operation]) {
    let mut ends: Vec<(u64, bool, usize)> = Vec::new();
    for (at, operation) in history.iter().enumerate() {
        ends.push((operation.called, true, at));
        ends.push((operation.answered, false, at));
    }
    ends.sort_unstable();
    for (tick, (time, is_call, at)) in ends.into_iter().enumerate() {
        match (is_call, time) {
            (_, u64::MAX) => {}
            (true, _) => history[at].called = tick as u64 + 1,
            (false, _) => history[at].answered = tick as u64 + 1,
        }
    }
}

/// A change that certainly makes a history invalid.
#[derive(Clone, Copy, Debug)]
pub enum Spoil {
    /// A read finds a value that was not written.
    FromNowhere,
    /// A read returns a value that had been replaced before the read was called.
    Stale,
    /// A read returns a value that was written only after the read was answered.
    FromTheFuture,
    /// An acknowledged write whose value a later read returned is changed to write another value.
    Lost,
    /// A read returns a value that an earlier read has shown to be replaced: the value was applied
    /// twice.
    Twice,
}

impl Spoil {
    pub const ALL: [Self; 5] = [Self::FromNowhere, Self::Stale, Self::FromTheFuture, Self::Lost, Self::Twice];

    /// Makes `history` invalid if it has the necessary operations. Each of its values must have
    /// been written only once.
    pub fn apply(self, rng: &mut SmallRng, history: &[Operation]) -> Option<Vec<Operation>> {
        let mut spoilt = history.to_vec();
        let reads: Vec<usize> = of(history, |action| matches!(action, Action::Read(_)));
        let writes: Vec<usize> =
            of(history, |action| matches!(action, Action::Write(_) | Action::Swap { .. }));
        let before = |a: usize, b: usize| history[a].answered < history[b].called;
        let pairs = |wanted: &dyn Fn(usize, usize) -> bool| {
            let all = writes.iter().flat_map(|&w| reads.iter().map(move |&r| (w, r)));
            all.filter(|&(w, r)| wanted(w, r)).collect::<Vec<_>>()
        };
        match self {
            Self::FromNowhere => {
                spoilt[*reads.choose(rng)?].action = Action::Read(Value(u32::MAX));
            }
            Self::Stale => {
                let replaced = |w: usize, r: usize| writes.iter().any(|&x| before(w, x) && before(x, r));
                let (write, read) = *pairs(&replaced).choose(rng)?;
                spoilt[read].action = Action::Read(written(history[write].action)?);
            }
            Self::FromTheFuture => {
                let (write, read) = *pairs(&|w, r| before(r, w)).choose(rng)?;
                spoilt[read].action = Action::Read(written(history[write].action)?);
            }
            Self::Lost => {
                let found = |w: usize, r: usize| history[r].action == Action::Read(written_of(history, w));
                let (write, _) = *pairs(&found).choose(rng)?;
                spoilt[write].action = Action::Write(Value(u32::MAX));
            }
            Self::Twice => {
                // The history has a read of the value, then one of another value, then one of the
                // first value again.
                let found = |r: usize| read_value(history[r].action);
                let triples = reads.iter().flat_map(|&a| {
                    let reads = &reads;
                    reads.iter().flat_map(move |&b| reads.iter().map(move |&c| (a, b, c)))
                });
                let fits =
                    |&(a, b, c): &(usize, usize, usize)| before(a, b) && before(b, c) && found(a) != found(b);
                let (first, _, last) = triples.filter(fits).choose(rng)?;
                spoilt[last].action = history[first].action;
            }
        }
        Some(spoilt)
    }
}

fn of(history: &[Operation], wanted: impl Fn(Action) -> bool) -> Vec<usize> {
    (0..history.len()).filter(|&at| wanted(history[at].action)).collect()
}

fn written(action: Action) -> Option<Value> {
    match action {
        Action::Write(value) | Action::Swap { value, .. } => Some(value),
        _ => None,
    }
}

fn written_of(history: &[Operation], at: usize) -> Value {
    written(history[at].action).expect("a write")
}

fn read_value(action: Action) -> Option<Value> {
    match action {
        Action::Read(value) => Some(value),
        _ => None,
    }
}
