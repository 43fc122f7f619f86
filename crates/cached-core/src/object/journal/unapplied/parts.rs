//! The parts of states whose last part is not applied: their segments must stay, whichever task has passed
//! them.

use std::collections::BTreeMap;

use cached_journal::Hold;

use crate::object::lock_ranks;
use crate::sync::{Mutex, lock};

/// What keeps the log from the first part of a state on.
struct Passed {
    /// The number of the object's record that was passed last.
    last: u32,
    /// Of the first one.
    hold: Hold,
}

/// See the module.
pub(crate) struct Parts {
    passed: Mutex<BTreeMap<u32, Passed>>,
}

impl Default for Parts {
    fn default() -> Self {
        Self { passed: Mutex::ranked(BTreeMap::new(), &lock_ranks::RECOVERY) }
    }
}

impl Parts {
    /// Keeps an object's record `number`, which is passed without being applied, and those passed just before
    /// it. `hold`: of the record.
    pub(crate) fn keep(&self, object: u32, number: u32, hold: Hold) {
        let replaced = {
            let mut passed = lock(&self.passed);
            match passed.get_mut(&object) {
                Some(before) if before.last + 1 == number => {
                    before.last = number;
                    Some(hold)
                }
                _ => passed.insert(object, Passed { last: number, hold }).map(|before| before.hold),
            }
        };
        drop(replaced);
    }

    /// Releases the parts of the objects for which `is_over` returns true, given the object and the number of
    /// its record that was passed last.
    pub(crate) fn release(&self, is_over: impl Fn(u32, u32) -> bool) {
        let all: Vec<_> = lock(&self.passed).iter().map(|(object, passed)| (*object, passed.last)).collect();
        for (object, last) in all.into_iter().filter(|(object, last)| is_over(*object, *last)) {
            let released = {
                let mut passed = lock(&self.passed);
                // More may have been passed meanwhile.
                let is_same = passed.get(&object).is_some_and(|passed| passed.last == last);
                if is_same { passed.remove(&object) } else { None }
            };
            drop(released);
        }
    }

    /// Returns what keeps all that is kept, and keeps nothing any more.
    pub(crate) fn take(&self) -> Vec<Hold> {
        std::mem::take(&mut *lock(&self.passed)).into_values().map(|passed| passed.hold).collect()
    }
}
