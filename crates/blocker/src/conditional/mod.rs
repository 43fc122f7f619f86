//! The core of stores whose atomic steps span only one object: a change is decided on the object's
//! observed state, and applied on the condition that the state is unchanged. This module does no
//! I/O. It has the decision (this file), the claim protocol ([`claims`]), and memories of the last
//! known states of objects ([`Known`]) and of reported claims ([`ReportedClaims`]).
//!
//! A copy is decided as the change that [`copied`] returns for it. A copy that reaches the decision
//! is therefore one of an object onto itself: a new version of the same bytes.

pub mod claims;
mod known;
mod reported;

pub use known::{Doubt, Known};
pub use reported::ReportedClaims;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::admission::{self, Head};
use crate::conditional::claims::Scopes;
use crate::{
    BUCKET_BYTES, Change, ChangeReply, ChangeTerms, Condition, Durability, Epoch, Error, ObjectId, Result,
    Segments, Stamp, Version,
};

/// The observed state of an object, which decides whether a change may be applied.
#[derive(Clone, Copy, Default, Debug)]
pub struct Seen {
    /// The version of the object; `None` if there is no object.
    pub version: Option<Version>,
    /// The stamp of the object's last stamped change.
    pub stamp: Option<Stamp>,
    /// The epoch below which no change is applied; `None` if not yet known.
    pub fence: Option<u64>,
    /// The fence of the change's order domain; `None` if not yet known.
    pub domain_fence: Option<u64>,
}

/// Checks that a change compares at most the supported number of bytes, and does not make the
/// object too large.
///
/// # Errors
/// Returns `TooLarge`.
pub fn check(change: &Change, object_bytes_max: u64) -> Result<()> {
    match change {
        Change::CompareAndWrite { expected, .. } if expected.len_bytes() as u64 > BUCKET_BYTES => {
            Err(Error::TooLarge { limit_bytes: BUCKET_BYTES })
        }
        _ => change.check_end(object_bytes_max),
    }
}

/// Checks whether a change may be applied to the observed state. An unknown fence is taken from
/// `scopes`.
///
/// # Errors
/// Returns the errors of [`admission::admit`]; `Missing` if there is no object and the change does
/// not create one.
pub fn admit(change: &Change, terms: &ChangeTerms, seen: Seen, scopes: Scopes) -> Result<()> {
    let domain = terms.domain.map_or(0, |_| seen.domain_fence.unwrap_or(scopes.domain));
    let claimed = seen.fence.unwrap_or(scopes.whole).max(domain);
    admission::admit(Head { version: seen.version, stamp: seen.stamp }, Epoch(claimed), terms)?;
    if seen.version.is_none() && !change.creates() { Err(Error::Missing) } else { Ok(()) }
}

/// Returns whether a change's condition allows it to create a missing object.
#[must_use]
pub fn may_create(change: &Change, terms: &ChangeTerms) -> bool {
    change.creates() && !matches!(terms.condition, Condition::Present | Condition::Version(_))
}

/// Returns the reply to a change that has been stored and has given the object this version and
/// size.
#[must_use]
pub fn stored(change: &Change, version: Version, size_bytes: u64) -> ChangeReply {
    match change {
        Change::Delete => ChangeReply::removed(Durability::Stored),
        _ => ChangeReply::new(version, size_bytes, Durability::Stored),
    }
}

/// Returns the change of `to`, and its terms, that copies through the client. `read` reads at most
/// the given number of bytes of the source under the given condition, and returns the bytes with
/// the source's size and version, as one consistent snapshot. A copy of an object onto itself is
/// returned unchanged.
///
/// # Errors
/// Returns the errors of `read`; `TooLarge`.
pub async fn copied<F>(
    (from, from_condition): (&ObjectId, Condition),
    (to, mut terms): (&ObjectId, ChangeTerms),
    object_bytes_max: u64,
    read: impl FnOnce(u64) -> F,
) -> Result<(Change, ChangeTerms)>
where
    F: Future<Output = Result<(Segments, u64, Version)>>,
{
    if from == to {
        let (_, _, version) = read(0).await?;
        if from_condition != Condition::None && terms.condition == Condition::None {
            terms.condition = Condition::Version(version);
        }
        return Ok((Change::Copy { from: from.clone(), from_condition: Condition::None }, terms));
    }
    let (data, size_bytes, _) = read(object_bytes_max).await?;
    if size_bytes > object_bytes_max {
        return Err(Error::TooLarge { limit_bytes: object_bytes_max });
    }
    Ok((Change::WriteFull { data }, terms))
}

/// The progress of a call, for code that may stop waiting for the call. Clones share the progress.
#[derive(Clone, Default, Debug)]
pub struct Progress(Arc<Shared>);

#[derive(Default, Debug)]
struct Shared {
    has_begun: AtomicBool,
    steps: AtomicU64,
}

impl Progress {
    /// Returns whether a request that was sent may have made the change, or may still make it.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.0.has_begun.load(Ordering::Acquire)
    }

    /// Records whether a request that was sent may have made the change, or may still make it.
    pub fn set_begun(&self, has_begun: bool) {
        self.0.has_begun.store(has_begun, Ordering::Release);
    }

    /// Counts one more of the call's objects as done.
    pub fn step(&self) {
        self.0.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of objects done.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.0.steps.load(Ordering::Relaxed)
    }
}
