//! The table by which a hit changes an item's state.

use crate::kv::item::state;
use crate::policy::{self, Policy};
use crate::sync::{AtomicU64, Ordering};
// Not from `crate::sync`: a hint that orders nothing between threads, and many of them.
use std::sync::atomic::AtomicU8;

/// The state of an item after a hit, for each state before it. A hit reads one byte of it instead of calling
/// the policy.
pub(in crate::kv) struct HitTable {
    states: [AtomicU8; state::COUNT],
    /// The policy's results for its eight bit patterns, one byte each, from which the states were made.
    bits: AtomicU64,
}

impl HitTable {
    pub(super) fn new(policy: &dyn Policy) -> HitTable {
        let table = HitTable {
            states: std::array::from_fn(|_| AtomicU8::new(0)),
            // No policy returns this: bits are below 8.
            bits: AtomicU64::new(u64::MAX),
        };
        table.refresh(policy);
        table
    }

    /// Asks the policy again. One thread at a time.
    pub(super) fn refresh(&self, policy: &dyn Policy) {
        let bits = policy::hits(policy);
        let word = u64::from_le_bytes(bits);
        if self.bits.load(Ordering::Relaxed) == word {
            return;
        }
        self.bits.store(word, Ordering::Relaxed);
        for (before, after) in self.states.iter().enumerate() {
            let before = before as u8;
            let bits = bits[usize::from((before & state::POLICY) >> state::POLICY_SHIFT)];
            let marks = before & !state::POLICY | state::FETCHED;
            after.store(marks | bits << state::POLICY_SHIFT, Ordering::Relaxed);
        }
    }

    /// The state after a hit.
    #[inline]
    pub(in crate::kv) fn after(&self, state: u8) -> u8 {
        self.states[usize::from(state)].load(Ordering::Relaxed)
    }
}
