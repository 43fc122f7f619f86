//! The plan of faults, and the seeded draw of the faults of each call.

use std::ops::Range;
use std::time::Duration;

use crate::rng::Rng;

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
    /// A flush answers *stored* without storing, like a broken disk that crash tests must detect.
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
}

/// The kind of a call, which decides its possible faults and the meaning of a late reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Change,
    Flush,
}

/// The faults of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Fate {
    pub(super) delay_before: Option<Duration>,
    pub(super) delay_after: Option<Duration>,
    pub(super) failure: Option<Failure>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    Retryable,
    NotStored,
    Unknown { done: bool },
    Crash { done: bool },
}

impl FaultPlan {
    pub(super) fn draw(&self, rng: &mut Rng, step: u64, kind: Kind) -> Fate {
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
