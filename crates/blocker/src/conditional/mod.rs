//! The core of stores whose atomic steps span one object: a change is decided on what was seen of the object, and applied
//! on the condition that the object is still so. What such stores have in common lies here, and no I/O: a change and its
//! effect on the size of an object (this file), and the protocol of claims ([`claims`]).

pub mod claims;

use crate::admission::{Head, admit, range_end};
use crate::conditional::claims::Scopes;
use crate::{
    BUCKET_BYTES, Change, Condition, CopyRequest, Epoch, Error, Result, Run, RunContent, Segments, Stamp,
    Version,
};

/// What a change does to an object.
#[derive(Debug)]
pub enum Act {
    /// Writes bytes.
    Write {
        /// Where they begin.
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
    /// Writes several ranges. Checked already: in order, none empty, within all limits.
    Runs(Vec<Run>),
    /// Gives a range back.
    Discard {
        /// Where it begins.
        offset: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// Writes bytes if others are there.
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

/// What was seen of an object that decides whether a change may be applied.
#[derive(Clone, Copy, Default, Debug)]
pub struct Seen {
    /// Its version; `None` if there is no object.
    pub version: Option<Version>,
    /// The stamp of its last stamped change.
    pub stamp: Option<Stamp>,
    /// The epoch below which no change is applied; `None`: not known yet.
    pub fence: Option<u64>,
    /// The same for the change's order domain.
    pub domain_fence: Option<u64>,
}

impl Act {
    /// Checks that the object is not larger afterwards than one may be.
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

    /// Checks whether the change may be applied to what was seen. A fence that is not known yet is that of `scopes`.
    ///
    /// # Errors
    /// Those of [`admit`]; `Missing` if there is no object and the change creates none.
    pub fn admit(&self, change: &Change, seen: Seen, scopes: Scopes) -> Result<()> {
        let domain = change.domain.map_or(0, |_| seen.domain_fence.unwrap_or(scopes.domain));
        let claimed = seen.fence.unwrap_or(scopes.whole).max(domain);
        admit(Head { version: seen.version, stamp: seen.stamp }, Epoch(claimed), change)?;
        if seen.version.is_none() && !self.creates() { Err(Error::Missing) } else { Ok(()) }
    }

    /// Returns the bytes that are sent for it, at most.
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

    /// Returns whether the change creates an object that is not there.
    #[must_use]
    pub fn creates(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Zeroes { .. } | Self::Runs(_) | Self::Full { .. })
    }

    /// Returns whether the change may create an object that is not there, on its condition.
    #[must_use]
    pub fn may_create(&self, change: &Change) -> bool {
        self.creates() && !matches!(change.condition, Condition::Present | Condition::Version(_))
    }

    /// Returns the object's size afterwards, where it has `size` bytes before.
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

/// Returns the change of the target by which a copy is made through the client. `read` reads so many bytes of the source,
/// and returns them with the source's size and version, all of one moment.
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
