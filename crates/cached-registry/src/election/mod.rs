//! The election of the one writer: state machines without I/O and without a clock.
//!
//! Several hosts share a store, and one of them, the *leader*, writes to it. Two independent means
//! keep them apart:
//!
//! - **Time gives liveness.** The leader renews a lease. A standby that has seen no renewal for the
//!   duration of the lease, on its *own* clock, takes over. The leader stops serving after two
//!   thirds of that time, on *its* own clock, counted from the moment before it sent the renewal.
//!   No clock is ever compared with another host's; clocks may run at rates that differ by up to a
//!   third before two hosts serve reads at the same time.
//! - **A claim gives safety.** Each leadership has an epoch of its own. Before the leader serves,
//!   it claims the epoch in the store, which then refuses all changes of earlier epochs, and all
//!   claims of the same epoch by others ([`blocker::Blocker::claim`]). So whatever clocks, networks
//!   or paused processes do, no change of an earlier leader takes effect after a claim.
//!
//! | module | content |
//! |---|---|
//! | `tenure` | what both have in common: one leadership with its epoch, its time, its claim; a host's leaderships |
//! | `document` | `DocumentElection`: the lease is a document, renewed by compare-and-set |
//! | `blocks` | `BlockElection`: the lease is an epoch of the agreement on plain blocks |
//!
//! A driver calls `next`, executes the `Action`, and reports the outcome by the method that the
//! action names; then it calls `next` again. At most one operation of the registry is in progress
//! at a time, and at most one claim at the same time. All times are those of `CLOCK_BOOTTIME`, read
//! by the driver.

mod blocks;
mod candidates;
mod document;
mod driver;
#[cfg(test)]
mod driver_tests;
mod elector;
mod machine;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod subject_tests;
mod tenure;

use std::time::Duration;

use blocker::{Epoch, Timestamp};

use blocks::{BlockElection, BlockOp, check_epoch_time};
use document::{DocumentElection, DocumentOp, Written};

pub use candidates::candidate_key;
pub use document::{Candidate, LeaderDocument, Release};
pub use driver::{Claiming, elect};
pub use elector::{Cause, Elector, Leadership, Lease, Part, Status};

/// The next action of an election's driver.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Action<Op> {
    /// Execute an operation of the registry or the disk, and report its outcome.
    Do(Op),
    /// Claim this epoch in the store, for the writer of this election, and call `claimed`. The
    /// claim may take long; operations and renewals continue during it.
    Claim(Epoch),
    /// Wait until this time, or until an operation or a claim in progress has ended.
    Wait(Timestamp),
}

/// The outcome of a claim in the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Claimed {
    /// The epoch is in force.
    Granted,
    /// This epoch is in force, or another writer has claimed it: the machine chooses a higher one.
    Fenced(Epoch),
    /// The store was unreachable, or the outcome is unknown: the claim is repeated.
    Failed,
    /// This host cannot lead for now: the lease is released for others.
    Unable,
}

/// The part of this host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Role {
    /// Another host leads, or no host does.
    Standby,
    /// This host has the lease, but its claim is not granted yet: it must not serve.
    Taking(Epoch),
    /// This host leads: it serves with this epoch until this time.
    Leader(Epoch, Timestamp),
}

/// The shortest lease.
pub const LEASE_MIN: Duration = Duration::from_secs(1);

/// The end of time.
const NEVER: Timestamp = Timestamp(u64::MAX);

/// Returns the delay before a failed operation is repeated.
fn retry_delay(lease: Duration) -> Duration {
    lease / 20
}

/// The rules of an election's clock and claim, each of which a test can break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum LeaseRule {
    /// A standby waits until it has noticed no renewal for the duration of the lease.
    Patience,
    /// The leader counts its lease from before the renewal was sent.
    CountFromBefore,
    /// No host serves before its claim was granted.
    ClaimFirst,
    /// On blocks: an attempt is abandoned if another node's block has changed in the meantime.
    GiveUp,
}
