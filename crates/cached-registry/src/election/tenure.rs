//! What both elections have in common: a leadership with its epoch, the time until which it serves
//! and its claim in the store; and a host's leaderships, one after the other.

use std::time::Duration;

use blocker::{Epoch, Timestamp};

use super::{Claimed, LeaseRule, NEVER, Role, retry_delay};
use crate::document::relied_on;

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
    /// The epoch has to be claimed, at this time or later.
    Wanted(Timestamp),
    Asked,
    Granted,
    /// The store has this epoch in force, so a higher one is necessary.
    Fenced(Epoch),
}

impl Tenure {
    /// Returns a leadership that has not claimed its epoch yet. The store is known to have used the
    /// epochs up to `used`.
    pub(super) fn new(epoch: u64, until: Timestamp, used: u64) -> Self {
        let claim = if epoch > used { Claim::Wanted(Timestamp(0)) } else { Claim::Fenced(Epoch(used)) };
        Self { epoch: Epoch(epoch), until, claim }
    }

    /// Returns the epoch to claim now, and marks the claim as in progress.
    pub(super) fn begin_claim(&mut self, now: Timestamp) -> Option<Epoch> {
        let is_due = matches!(self.claim, Claim::Wanted(at) if now >= at);
        is_due.then(|| {
            self.claim = Claim::Asked;
            self.epoch
        })
    }

    /// Handles the outcome of the claim of this epoch. A failed claim is due again at `retry`.
    pub(super) fn claimed(&mut self, outcome: Claimed, retry: Timestamp) {
        if self.claim == Claim::Asked {
            self.claim = match outcome {
                Claimed::Granted => Claim::Granted,
                Claimed::Fenced(epoch) => Claim::Fenced(epoch),
                Claimed::Failed | Claimed::Unable => Claim::Wanted(retry),
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

/// The number of failed claims after which a host leaves the lease to other hosts, which may reach
/// the store. It corresponds to the claims of two leases.
const CLAIMS_FAILED_MAX: u32 = 40;

/// The leaderships of one host, one after the other. `R` names the successor of a leader that steps
/// down.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Leaderships<R> {
    pub(super) lease: Duration,
    /// The present leadership.
    pub(super) tenure: Option<Tenure>,
    /// The epoch that is being claimed.
    asked: Option<Epoch>,
    /// The number of consecutive failed claims.
    claims_failed: u32,
    /// The highest epoch that the store is known to have used.
    pub(super) used: u64,
    /// The requested release, until it is written.
    pub(super) release: Option<R>,
    /// The time until which this host leaves the lease to other hosts.
    pub(super) resting_until: Timestamp,
    #[cfg(test)]
    pub(super) broken: Option<LeaseRule>,
}

impl<R> Leaderships<R> {
    pub(super) fn new(lease: Duration) -> Self {
        Self {
            lease,
            tenure: None,
            asked: None,
            claims_failed: 0,
            used: 0,
            release: None,
            resting_until: Timestamp(0),
            #[cfg(test)]
            broken: None,
        }
    }

    /// Returns this host's role at `now`.
    pub(super) fn role(&self, now: Timestamp) -> Role {
        let tenure = self.tenure.as_ref().filter(|_| self.release.is_none());
        tenure.map_or(Role::Standby, |tenure| tenure.role(now, self.keeps(LeaseRule::ClaimFirst)))
    }

    /// Returns whether there is a leadership whose time has ended.
    pub(super) fn has_lapsed(&self, now: Timestamp) -> bool {
        self.tenure.as_ref().is_some_and(|tenure| now >= tenure.until)
    }

    /// Returns whether this host does not lead, and leaves the lease to other hosts.
    pub(super) fn is_resting(&self, now: Timestamp) -> bool {
        self.tenure.is_none() && now < self.resting_until
    }

    /// Returns the time until which this host serves if it began to renew the lease at `began`.
    pub(super) fn serves_until(&self, began: Timestamp, now: Timestamp) -> Timestamp {
        let counted_from = if self.keeps(LeaseRule::CountFromBefore) { began } else { now };
        counted_from + relied_on(self.lease)
    }

    /// Continues the present leadership if it was renewed, or begins another one with this epoch.
    pub(super) fn lead(&mut self, epoch: u64, until: Timestamp, is_renewed: impl Fn(&Tenure) -> bool) {
        match &mut self.tenure {
            Some(tenure) if is_renewed(tenure) => tenure.until = until,
            other => *other = Some(Tenure::new(epoch, until, self.used)),
        }
    }

    /// Requests a release, if this host leads.
    pub(super) fn step_down(&mut self, release: R) {
        if self.tenure.is_some() {
            self.release = Some(release);
        }
    }

    /// Returns the epoch to claim now, if there is one, and marks the claim as in progress.
    pub(super) fn begin_claim(&mut self, now: Timestamp) -> Option<Epoch> {
        if self.asked.is_none() {
            self.asked = self.tenure.as_mut().and_then(|tenure| tenure.begin_claim(now));
            return self.asked;
        }
        None
    }

    /// Takes the outcome of the claim. If this host cannot lead, or after too many failures, the
    /// lease is released, for `anyone`.
    pub(super) fn claimed(&mut self, now: Timestamp, outcome: Claimed, anyone: R) {
        let asked = self.asked.take();
        if let Claimed::Fenced(epoch) = outcome {
            self.used = self.used.max(epoch.0);
        }
        if let Some(tenure) = self.tenure.as_mut().filter(|tenure| Some(tenure.epoch) == asked) {
            tenure.claimed(outcome, now + retry_delay(self.lease));
            self.claims_failed = if outcome == Claimed::Failed { self.claims_failed + 1 } else { 0 };
            if self.claims_failed == CLAIMS_FAILED_MAX || outcome == Claimed::Unable {
                (self.claims_failed, self.release) = (0, Some(anyone));
            }
        }
    }

    /// Returns the time at which the leadership lapses or a failed claim is due again, whichever
    /// comes first.
    pub(super) fn wake_at(&self) -> Timestamp {
        let Some(tenure) = &self.tenure else { return NEVER };
        match tenure.claim {
            Claim::Wanted(at) if self.asked.is_none() => tenure.until.min(at),
            _ => tenure.until,
        }
    }

    /// Records that the store has `epoch` in force. Returns whether the store refuses the present
    /// leadership.
    pub(super) fn is_fenced(&mut self, epoch: Epoch) -> bool {
        self.used = self.used.max(epoch.0);
        self.tenure.as_ref().is_some_and(|tenure| tenure.epoch <= epoch)
    }

    /// Leaves the lease to other hosts at least until this time.
    pub(super) fn rest(&mut self, until: Timestamp) {
        self.resting_until = self.resting_until.max(until);
    }

    /// Ends the leadership. A renewal in progress may still take effect, so its epoch counts as
    /// used: the host leads again only with a higher one, which fences off the changes that it has
    /// sent before.
    pub(super) fn end(&mut self, now: Timestamp) {
        self.used = self.used.max(self.tenure.take().map_or(0, |tenure| tenure.epoch.0));
        if self.release.take().is_some() {
            self.resting_until = now + self.lease;
        }
    }

    #[cfg(test)]
    pub(super) fn keeps(&self, rule: LeaseRule) -> bool {
        self.broken != Some(rule)
    }

    #[cfg(not(test))]
    pub(super) fn keeps(&self, _: LeaseRule) -> bool {
        true
    }
}
