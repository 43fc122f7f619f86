//! Which claims a store has reported to its subscribers.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::{Epoch, Scope};

/// The maximum number of scopes whose claims are remembered.
const SCOPES_MAX: usize = 1024;

/// The claims that a store has reported to its subscribers.
///
/// A claim that has raised its epoch may fail before it has reached every object, or its caller may
/// stop waiting. Its repetition completes it, and raises nothing. So a store reports each claim that
/// it has completed, unless it has reported the claim before.
#[derive(Debug, Default)]
pub struct ReportedClaims(Mutex<HashMap<Scope, Epoch>>);

impl ReportedClaims {
    /// Records that the completed claim of `scope` is reported. Returns whether this is the first
    /// time. A claim of epoch 0 only asks, and is never reported.
    #[must_use]
    pub fn is_first(&self, scope: &Scope, epoch: Epoch) -> bool {
        let mut reported = self.0.lock();
        let last = reported.get(scope).copied();
        if epoch <= last.unwrap_or_default() {
            return false;
        }
        if last.is_none() && reported.len() >= SCOPES_MAX {
            // To report a claim twice is harmless.
            reported.clear();
        }
        reported.insert(scope.clone(), epoch);
        true
    }

    /// Forgets all claims, because they were those of another store.
    pub fn forget_all(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OrderDomain;

    #[test]
    fn each_claim_is_reported_once_and_few_are_remembered() {
        let reported = ReportedClaims::default();
        assert!(!reported.is_first(&Scope::All, Epoch(0)));
        for (epoch, is_first) in [(2, true), (2, false), (1, false), (3, true)] {
            assert_eq!(reported.is_first(&Scope::All, Epoch(epoch)), is_first, "{epoch}");
        }
        for number in 0..3 * SCOPES_MAX as u64 {
            let scope = Scope::Domain("vm".parse().unwrap(), OrderDomain(number));
            assert!(reported.is_first(&scope, Epoch(1)) && !reported.is_first(&scope, Epoch(1)));
            assert!(reported.0.lock().len() <= SCOPES_MAX);
        }
        reported.forget_all();
        assert!(reported.is_first(&Scope::All, Epoch(3)));
    }
}
