//! Checks whether one order of the operations explains every answer, where no operation comes
//! before another one that was answered before it was called. That is *linearizability* for one
//! register.
//!
//! The search is Wing and Gong's (*Testing and verifying concurrent objects*, 1993): choose any
//! operation that was called before the first answer still missing, check whether the register
//! allows it, continue from there, and backtrack if stuck. Lowe's addition (*Testing for
//! linearizability*, 2017) makes it fast enough: a set of completed operations together with a
//! value of the register is tried only once. Three shortcuts do not change the verdict:
//!
//! - An observation that fits now is chosen now. It changes nothing, so an order that has it later
//!   stays valid when it is moved here.
//! - An operation with unknown outcome need not happen. So if two points have the same completed
//!   known operations and the same value, the one that has used fewer unknown operations can do
//!   everything that the other can. Only points with the fewest are kept.
//! - An unknown operation is chosen only if something that depends on it can come next. If a write
//!   follows, the order without it is just as good.
//!
//! Registers are independent: a history of several is linearizable if the history of each is, so it
//! is split by register before this check.

use std::collections::HashMap;
use std::fmt;

use super::operation::{Operation, Value};

/// The longest history, in operations.
pub const OPERATIONS_MAX: usize = 200;
/// The maximum number of clients in one history.
pub const CLIENTS_MAX: usize = 8;
/// The maximum number of operations with unknown outcome in one history.
pub const UNKNOWN_MAX: usize = 10;
/// The maximum number of points tried before the search ends without a verdict, which also counts
/// as a failure.
const POINTS_MAX: usize = 4_000_000;

/// The reason why a history is not accepted.
#[derive(Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The history exceeds a limit, or is invalid; with the reason.
    Unfit(String),
    /// No order of the operations explains the history. Contains the longest order found, and the
    /// operations that could not follow.
    NotLinearizable { order: Vec<Operation>, stuck: Vec<Operation>, held: Value },
    /// The search ended without a verdict.
    Undecided,
}

/// Returns an order that explains `history`, as indices into it, without the unknown operations
/// that need not have happened.
///
/// # Errors
/// Returns the reason why no order exists, or why the search did not run.
pub fn linearize(history: &[Operation]) -> Result<Vec<usize>, Refusal> {
    fit(history)?;
    let mut by_call: Vec<usize> = (0..history.len()).collect();
    by_call.sort_by_key(|&at| history[at].called);
    let sorted: Vec<Operation> = by_call.iter().map(|&at| history[at]).collect();
    let order = Search::new(&sorted).run()?;
    Ok(order.into_iter().map(|at| by_call[at]).collect())
}

/// Panics with the full history unless it is linearizable. `context` identifies the run.
///
/// # Panics
/// Panics if the history is not linearizable.
#[track_caller]
pub fn assert_linearizable(history: &[Operation], context: &str) {
    if let Err(refusal) = linearize(history) {
        let mut lines: Vec<_> = history.to_vec();
        lines.sort_by_key(|operation| operation.called);
        let lines: Vec<_> = lines.iter().map(Operation::to_string).collect();
        panic!("{context}: {refusal:?}\nthe history:\n{}", lines.join("\n"));
    }
}

fn fit(history: &[Operation]) -> Result<(), Refusal> {
    let unfit = |why: String| Err(Refusal::Unfit(why));
    if history.len() > OPERATIONS_MAX {
        return unfit(format!("{} operations", history.len()));
    }
    let unknown = history.iter().filter(|operation| operation.action.is_unknown()).count();
    if unknown > UNKNOWN_MAX {
        return unfit(format!("{unknown} operations of unknown outcome"));
    }
    if let Some(operation) = history.iter().find(|operation| operation.client >= CLIENTS_MAX) {
        return unfit(format!("{operation}: no such client"));
    }
    let timed = |o: &Operation| o.called < o.answered && (o.answered == u64::MAX) == o.action.is_unknown();
    if let Some(operation) = history.iter().find(|operation| !timed(operation)) {
        return unfit(format!("{operation}: not a span of time"));
    }
    Ok(())
}

/// A set of operations, with a bit for each position in the history.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Set([u64; OPERATIONS_MAX.div_ceil(64)]);

impl Set {
    fn has(&self, at: usize) -> bool {
        self.0[at / 64] & 1 << (at % 64) != 0
    }

    fn with(mut self, at: usize) -> Self {
        self.0[at / 64] |= 1 << (at % 64);
        self
    }

    fn without(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine &= !theirs);
        self
    }

    fn and(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine &= theirs);
        self
    }

    fn is_within(&self, other: &Self) -> bool {
        self.without(other) == Self::default()
    }
}

/// A point of the search: the operations that have a position so far, and the register's value
/// after them.
#[derive(Clone, Copy)]
struct Point {
    done: Set,
    held: Value,
}

struct Search<'a> {
    /// The operations, sorted by the time of the call.
    history: &'a [Operation],
    unknown: Set,
    known_count: usize,
    /// For each pair of known operations done and register value, the sets of unknown operations
    /// used. None of these sets contains another.
    tried: HashMap<(Set, Value), Vec<Set>>,
    tried_count: usize,
    /// The longest order found so far, and its number of known operations.
    best: (usize, Vec<usize>, Value),
}

impl<'a> Search<'a> {
    fn new(history: &'a [Operation]) -> Self {
        let unknown = (0..history.len())
            .filter(|&at| history[at].action.is_unknown())
            .fold(Set::default(), |set, at| set.with(at));
        let known_count = history.iter().filter(|operation| !operation.action.is_unknown()).count();
        let best = (0, Vec::new(), Value::INITIAL);
        Self { history, unknown, known_count, tried: HashMap::new(), tried_count: 0, best }
    }

    fn run(mut self) -> Result<Vec<usize>, Refusal> {
        // Each point is kept with the choices that are still to be tried from it, the last point
        // first; `order` leads to the last point.
        let start = Point { done: Set::default(), held: Value::INITIAL };
        let mut stack = vec![(start, self.choices(&start))];
        let mut order: Vec<usize> = Vec::new();
        while let Some((point, choices)) = stack.last_mut() {
            self.keep_best(&order, point.held);
            if self.best.0 == self.known_count {
                return Ok(self.best.1);
            }
            let Some(at) = choices.pop() else {
                stack.pop();
                order.pop();
                continue;
            };
            let held = self.history[at].action.apply(point.held).expect("a choice fits");
            let next = Point { done: point.done.with(at), held };
            if self.is_new(&next) {
                let choices = self.choices(&next);
                stack.push((next, choices));
                order.push(at);
            }
            if self.tried_count > POINTS_MAX {
                return Err(Refusal::Undecided);
            }
        }
        let all = |set: &[usize]| set.iter().map(|&at| self.history[at]).collect::<Vec<_>>();
        let (_, order, held) = &self.best;
        let stuck: Vec<usize> = (0..self.history.len())
            .filter(|at| !order.contains(at) && !self.unknown.has(*at))
            .take(CLIENTS_MAX)
            .collect();
        Err(Refusal::NotLinearizable { order: all(order), stuck: all(&stuck), held: *held })
    }

    /// Returns the operations that may come next at `point`. The most promising one is the last.
    fn choices(&self, point: &Point) -> Vec<usize> {
        let open = || (0..self.history.len()).filter(|&at| !point.done.has(at));
        let first_answer = open().map(|at| self.history[at].answered).min().unwrap_or(u64::MAX);
        let near: Vec<usize> = open().take_while(|&at| self.history[at].called < first_answer).collect();
        let mut choices = near.clone();
        choices.retain(|&at| match self.history[at].action.apply(point.held) {
            Some(held) => {
                !self.unknown.has(at) || near.iter().any(|&next| self.depends(next, point.held, held))
            }
            None => false,
        });
        if let Some(&at) = choices.iter().find(|&&at| self.history[at].action.is_observation()) {
            return vec![at];
        }
        // Choices are tried from the end: known outcomes before unknown ones, and the earliest
        // answer first.
        choices.sort_by_key(|&at| std::cmp::Reverse(self.history[at].answered));
        choices
    }

    /// Returns whether `at` becomes possible when the register changes from `before` to `held`.
    fn depends(&self, at: usize, before: Value, held: Value) -> bool {
        let action = self.history[at].action;
        action.apply(before).is_none() && action.apply(held).is_some()
    }

    fn is_new(&mut self, point: &Point) -> bool {
        let used = point.done.and(&self.unknown);
        let tried = self.tried.entry((point.done.without(&self.unknown), point.held)).or_default();
        if tried.iter().any(|earlier| earlier.is_within(&used)) {
            return false;
        }
        tried.retain(|earlier| !used.is_within(earlier));
        tried.push(used);
        self.tried_count += 1;
        true
    }

    fn keep_best(&mut self, order: &[usize], held: Value) {
        let known = order.iter().filter(|&&at| !self.unknown.has(at)).count();
        if known > self.best.0 || self.known_count == 0 {
            self.best = (known, order.to_vec(), held);
        }
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = |operations: &[Operation]| {
            operations.iter().map(|operation| format!("  {operation}\n")).collect::<String>()
        };
        match self {
            Self::Unfit(why) => write!(f, "unfit: {why}"),
            Self::Undecided => write!(f, "undecided after {POINTS_MAX} points"),
            Self::NotLinearizable { order, stuck, held } => {
                let tail = &order[order.len().saturating_sub(8)..];
                write!(
                    f,
                    "not linearizable. {} can be put in order, the last of them\n{}then the register \
                     holds {held:?}, and the next to explain are\n{}",
                    order.len(),
                    lines(tail),
                    lines(stuck)
                )
            }
        }
    }
}
