//! How many bytes may be under way in all, dealt out to connections when they greet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blocker::Error;

pub(super) struct Budget {
    left_bytes: AtomicU64,
    /// What a connection must have to be of any use: one request of the largest kind.
    least_bytes: u64,
    /// What one connection gets at most.
    most_bytes: u64,
}

/// What a connection was given; goes back when it is dropped.
pub(super) struct Grant {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(all_bytes: u64, least_bytes: u64, most_bytes: u64) -> Arc<Self> {
        Arc::new(Self { left_bytes: AtomicU64::new(all_bytes), least_bytes, most_bytes })
    }

    /// As much of `wanted_bytes` as there is.
    ///
    /// # Errors
    /// `Retryable` if there is too little for even one request.
    pub(super) fn take(self: &Arc<Self>, wanted_bytes: u64) -> Result<Grant, Error> {
        let wanted = wanted_bytes.clamp(self.least_bytes, self.most_bytes.max(self.least_bytes));
        let mut bytes = 0;
        let taken = self.left_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
            bytes = wanted.min(left);
            (bytes >= self.least_bytes).then(|| left - bytes)
        });
        match taken {
            Ok(_) => Ok(Grant { budget: Arc::clone(self), bytes }),
            Err(_) => Err(Error::Retryable("the server has no bytes left to grant; raise bytes_max".into())),
        }
    }
}

impl Grant {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.budget.left_bytes.fetch_add(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_granted_never_exceeds_the_whole_and_comes_back() {
        let budget = Budget::new(100, 30, 60);
        let first = budget.take(1000).unwrap();
        assert_eq!(first.bytes(), 60);
        let second = budget.take(50).unwrap();
        assert_eq!(second.bytes(), 40);
        assert!(budget.take(1).is_err());
        drop(first);
        assert_eq!(budget.take(1).unwrap().bytes(), 30);
    }
}
