//! The core of stores whose atomic steps span only one object: a change is decided on the object's
//! observed state, and applied on the condition that the state is unchanged. This module does no
//! I/O; it has the changes and their effect on an object's size (this file), and the claim protocol
//! ([`claims`]).

pub mod claims;

use crate::admission::{Head, admit, range_end};
use crate::conditional::claims::Scopes;
use crate::{
    BUCKET_BYTES, Change, Condition, CopyRequest, Epoch, Error, Result, Run, RunContent, Segments, Stamp,
    Version,
};

/// A change of one object.
#[derive(Debug)]
pub enum Act {
    /// Writes bytes.
    Write {
        /// Where the bytes go.
        offset: u64,
        /// The bytes.
        data: Segments,
    },
    /// Writes zeros.
    Zeroes {
        /// Where they begin.
        offset: u64,
        /// Their number.
        len_bytes: u64,
    },
    /// Writes several ranges, already checked: in order, none empty, within all limits.
    Runs(Vec<Run>),
    /// Discards a range.
    Discard {
        /// Where it begins.
        offset: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// Writes bytes if the expected ones are there.
    CompareAndWrite {
        /// Where both begin.
        offset: u64,
        /// The bytes that must be there.
        expected: Segments,
        /// The bytes to write.
        data: Segments,
    },
    /// Replaces all bytes.
    Full {
        /// The new bytes.
        data: Segments,
    },
    /// Moves the end.
    Truncate {
        /// The new size.
        size_bytes: u64,
    },
    /// Deletes the object.
    Delete,
    /// Makes a new version of the same bytes.
    Touch,
}

/// The observed state of an object, which decides whether a change may be applied.
#[derive(Clone, Copy, Default, Debug)]
pub struct Seen {
    /// Its version; `None` if there is no object.
    pub version: Option<Version>,
    /// The stamp of its last stamped change.
    pub stamp: Option<Stamp>,
    /// The epoch below which no change is applied; `None` if not yet known.
    pub fence: Option<u64>,
    /// The same for the change's order domain.
    pub domain_fence: Option<u64>,
}

impl Act {
    /// Checks that the change does not make the object too large.
    ///
    /// # Errors
    /// `TooLarge`.
    pub fn check(&self, object_bytes_max: u64) -> Result<()> {
        let fits = |offset, len| range_end(offset, len, object_bytes_max).map(drop);
        match self {
            Self::Write { offset, data } => fits(*offset, data.len_bytes() as u64),
            Self::Zeroes { offset, len_bytes } => fits(*offset, *len_bytes),
            Self::CompareAndWrite { expected, .. } if expected.len_bytes() as u64 > BUCKET_BYTES => {
                Err(Error::TooLarge { limit_bytes: BUCKET_BYTES })
            }
            Self::CompareAndWrite { offset, data, .. } => fits(*offset, data.len_bytes() as u64),
            Self::Full { data } => fits(0, data.len_bytes() as u64),
            Self::Truncate { size_bytes } => fits(0, *size_bytes),
            Self::Runs(_) | Self::Discard { .. } | Self::Delete | Self::Touch => Ok(()),
        }
    }

    /// Checks whether the change may be applied to the observed state. An unknown fence is taken
    /// from `scopes`.
    ///
    /// # Errors
    /// Those of [`admit`]; `Missing` if there is no object and the change does not create one.
    pub fn admit(&self, change: &Change, seen: Seen, scopes: Scopes) -> Result<()> {
        let domain = change.domain.map_or(0, |_| seen.domain_fence.unwrap_or(scopes.domain));
        let claimed = seen.fence.unwrap_or(scopes.whole).max(domain);
        admit(Head { version: seen.version, stamp: seen.stamp }, Epoch(claimed), change)?;
        if seen.version.is_none() && !self.creates() { Err(Error::Missing) } else { Ok(()) }
    }

    /// Returns the largest number of bytes that the change sends.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        match self {
            Self::Write { data, .. } | Self::Full { data } => data.len_bytes() as u64,
            Self::CompareAndWrite { expected, data, .. } => (expected.len_bytes() + data.len_bytes()) as u64,
            Self::Runs(runs) => {
                let data = runs.iter().filter(|run| matches!(run.content, RunContent::Data(_)));
                data.map(Run::len_bytes).sum()
            }
            Self::Zeroes { .. }
            | Self::Discard { .. }
            | Self::Truncate { .. }
            | Self::Delete
            | Self::Touch => 0,
        }
    }

    /// Returns whether the change creates a missing object.
    #[must_use]
    pub fn creates(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Zeroes { .. } | Self::Runs(_) | Self::Full { .. })
    }

    /// Returns whether the change's condition allows it to create a missing object.
    #[must_use]
    pub fn may_create(&self, change: &Change) -> bool {
        self.creates() && !matches!(change.condition, Condition::Present | Condition::Version(_))
    }

    /// Returns the object's size after the change, given its size before.
    #[must_use]
    pub fn new_size(&self, size: u64) -> u64 {
        match self {
            Self::Write { offset, data } | Self::CompareAndWrite { offset, data, .. } => {
                let len = data.len_bytes() as u64;
                if len == 0 { size } else { size.max(offset + len) }
            }
            Self::Zeroes { offset, len_bytes } if *len_bytes > 0 => size.max(offset + len_bytes),
            Self::Runs(runs) => size.max(runs.last().map_or(0, Run::end)),
            Self::Zeroes { .. } | Self::Discard { .. } | Self::Touch => size,
            Self::Full { data } => data.len_bytes() as u64,
            Self::Truncate { size_bytes } => *size_bytes,
            Self::Delete => 0,
        }
    }
}

/// Returns the change of the target for a copy through the client. `read` reads the given number of
/// bytes of the source, and returns them with the source's size and version, as one consistent
/// snapshot.
///
/// # Errors
/// Those of `read`; `TooLarge`.
pub async fn copied<F>(
    request: &CopyRequest,
    object_bytes_max: u64,
    read: impl FnOnce(u64) -> F,
) -> Result<(Act, Change)>
where
    F: Future<Output = Result<(Segments, u64, Version)>>,
{
    let mut change = request.change;
    if request.from == request.to {
        let (_, _, version) = read(0).await?;
        if request.from_condition != Condition::None && change.condition == Condition::None {
            change.condition = Condition::Version(version);
        }
        return Ok((Act::Touch, change));
    }
    let (data, size_bytes, _) = read(object_bytes_max).await?;
    if size_bytes > object_bytes_max {
        return Err(Error::TooLarge { limit_bytes: object_bytes_max });
    }
    Ok((Act::Full { data }, change))
}
