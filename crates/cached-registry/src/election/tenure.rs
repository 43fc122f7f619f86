//! One leadership: its epoch, the time until which it serves, and its claim in the store.

use blocker::{Epoch, Timestamp};

use super::{Claimed, Role};

/// A leadership of this host.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Tenure {
    pub(super) epoch: Epoch,
    /// The time until which the host serves, unless it renews the lease.
    pub(super) until: Timestamp,
    pub(super) claim: Claim,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Claim {
    /// To be claimed, at this time or later.
    Wanted(Timestamp),
    Asked,
    Granted,
    /// The store has this epoch in force: a higher one is needed.
    Fenced(Epoch),
}

impl Tenure {
    /// Returns a leadership that has not claimed its epoch yet. The store is known to have used the
    /// epochs up to `used`.
    pub(super) fn new(epoch: u64, until: Timestamp, used: u64) -> Self {
        let claim = if epoch > used { Claim::Wanted(Timestamp(0)) } else { Claim::Fenced(Epoch(used)) };
        Self { epoch: Epoch(epoch), until, claim }
    }

    /// Returns the epoch to claim now, and marks it as asked for.
    pub(super) fn begin_claim(&mut self, now: Timestamp) -> Option<Epoch> {
        let is_due = matches!(self.claim, Claim::Wanted(at) if now >= at);
        is_due.then(|| {
            self.claim = Claim::Asked;
            self.epoch
        })
    }

    /// Takes the outcome of the claim of this epoch; a failed claim is due again at `retry`.
    pub(super) fn claimed(&mut self, outcome: Claimed, retry: Timestamp) {
        if self.claim == Claim::Asked {
            self.claim = match outcome {
                Claimed::Granted => Claim::Granted,
                Claimed::Fenced(epoch) => Claim::Fenced(epoch),
                Claimed::Failed => Claim::Wanted(retry),
            };
        }
    }

    pub(super) fn role(&self, now: Timestamp, claims_first: bool) -> Role {
        match self.claim {
            _ if now >= self.until => Role::Standby,
            Claim::Granted => Role::Leader(self.epoch, self.until),
            _ if !claims_first => Role::Leader(self.epoch, self.until),
            _ => Role::Taking(self.epoch),
        }
    }
}
