//! Changes of an object: what is done, on which terms, and the request for it.

use std::marker::PhantomData;

use crate::admission::{range_end, runs_end};
use crate::{
    Call, Capabilities, Condition, Durability, ObjectId, OrderDomain, Result, Segments, Stamp, Version,
};

/// What is done to an object.
///
/// `Write`, `WriteZeroes`, `WriteRuns`, `WriteFull` and `Copy` create their object if it is
/// missing; the others fail with [`Error::Missing`](crate::Error::Missing).
#[derive(Clone, Debug)]
pub enum Change {
    /// Writes a range, moving the object's end as needed. A write of no bytes is checked, creates
    /// the object and gives it a new version, but never moves its end.
    Write {
        /// Where the range begins, in bytes.
        offset: u64,
        /// The bytes to write.
        data: Segments,
    },
    /// Writes zeros over a range, exactly as a write of zero-valued bytes, without sending them.
    WriteZeroes {
        /// Where the range begins, in bytes.
        offset: u64,
        /// The length of the range in bytes.
        len_bytes: u64,
    },
    /// Writes several ranges; bytes between them stay as they are. Fails with `Unsupported` where
    /// [`runs_max`](crate::Capabilities::runs_max) is 0, for backends without it; with `Invalid` if
    /// there is no run, if there are more than `runs_max`, or if a run is empty or overlaps the
    /// previous one; with `TooLarge` if together, including zeros, they have more than
    /// `request_bytes_max` bytes.
    WriteRuns {
        /// The runs: at least one, none empty, in ascending order without overlap.
        runs: Vec<Run>,
    },
    /// Zeroes the part of a range that lies within the object, and frees its space where possible.
    /// The size stays.
    Discard {
        /// Where the range begins, in bytes.
        offset: u64,
        /// The length of the range in bytes; bytes beyond the object's end are ignored.
        len_bytes: u64,
    },
    /// Writes `data` at `offset` if the bytes there are `expected`, in one step. Fails with
    /// `Mismatch` if they differ or end too early, and with `Unsupported` where
    /// [`compare_bytes_max`](crate::Capabilities::compare_bytes_max) is 0.
    CompareAndWrite {
        /// Where both ranges begin, in bytes.
        offset: u64,
        /// The expected bytes. A byte beyond the object's end differs from any.
        expected: Segments,
        /// The bytes to write.
        data: Segments,
    },
    /// Replaces the whole content.
    WriteFull {
        /// The new content.
        data: Segments,
    },
    /// Shortens or extends the object. New bytes read as zeros.
    Truncate {
        /// The new size in bytes.
        size_bytes: u64,
    },
    /// Removes the object.
    Delete,
    /// Replaces the whole content by that of another object, in the same namespace or another,
    /// which stays. Copying an object onto itself is a change that leaves the bytes as they are.
    /// The stamp is not copied. Fails with `Missing` or `ConditionFailed` for the source as well.
    Copy {
        /// The object to copy from.
        from: ObjectId,
        /// The condition on the source: a version that it must have, or none.
        from_condition: Condition,
    },
}

impl Change {
    /// Returns the request for this change of `object`.
    #[must_use]
    #[inline]
    pub fn request(self, object: ObjectId) -> ChangeRequest {
        ChangeRequest::of(object, self)
    }

    /// Returns the name of the operation, as in metrics and traces.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Write { .. } => "write",
            Self::WriteZeroes { .. } => "write_zeroes",
            Self::WriteRuns { .. } => "write_runs",
            Self::Discard { .. } => "discard",
            Self::CompareAndWrite { .. } => "compare_and_write",
            Self::WriteFull { .. } => "write_full",
            Self::Truncate { .. } => "truncate",
            Self::Delete => "delete",
            Self::Copy { .. } => "copy",
        }
    }

    /// Returns how many bytes are sent with it: zeros take none.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        let len = |data: &Segments| data.len_bytes() as u64;
        match self {
            Self::Write { data, .. } | Self::WriteFull { data } => len(data),
            Self::CompareAndWrite { expected, data, .. } => len(expected) + len(data),
            Self::WriteRuns { runs } => runs.iter().map(Run::payload_bytes).sum(),
            _ => 0,
        }
    }

    /// Returns whether it makes an object where there is none, whatever else there is: a copy does
    /// so only if its source is another object.
    #[must_use]
    pub fn creates(&self) -> bool {
        matches!(
            self,
            Self::Write { .. } | Self::WriteZeroes { .. } | Self::WriteRuns { .. } | Self::WriteFull { .. }
        )
    }

    /// Returns whether it leaves nothing of what the object was.
    #[must_use]
    pub fn replaces_content(&self) -> bool {
        matches!(self, Self::WriteFull { .. } | Self::Delete)
    }

    /// Returns where the bytes end by which it may move the object's end; 0 if it writes none. Its
    /// ranges end within 2^64, which [`Self::check_end`] ensures.
    #[must_use]
    pub fn end(&self) -> u64 {
        match self {
            Self::WriteRuns { runs } => runs.last().map_or(0, Run::end),
            _ => self.range().filter(|(_, len)| *len > 0).map_or(0, |(offset, len)| offset + len),
        }
    }

    /// Returns the offset and the length of the single range that it writes, if it writes one.
    #[inline]
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Write { offset, data } | Self::CompareAndWrite { offset, data, .. } => {
                Some((*offset, data.len_bytes() as u64))
            }
            Self::WriteZeroes { offset, len_bytes } => Some((*offset, *len_bytes)),
            _ => None,
        }
    }

    /// Returns the size that it gives to an object of `size` bytes; 0 where there was none. A copy
    /// counts as one of the object onto itself.
    #[must_use]
    pub fn size_after(&self, size: u64) -> u64 {
        match self {
            Self::WriteFull { data } => data.len_bytes() as u64,
            Self::Truncate { size_bytes } => *size_bytes,
            Self::Delete => 0,
            _ => size.max(self.end()),
        }
    }

    /// Checks the runs of a [`Change::WriteRuns`] against a backend's capabilities; any other change
    /// passes, without a look at them.
    ///
    /// # Errors
    /// As [`runs_end`].
    pub fn check_runs(&self, can: impl FnOnce() -> Capabilities) -> Result<()> {
        match self {
            Self::WriteRuns { runs } => runs_end(runs, &can()).map(drop),
            _ => Ok(()),
        }
    }

    /// Checks that what it writes ends within the largest object. Runs are checked by
    /// [`Self::check_runs`], and what is copied once its size is known.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::Error::TooLarge).
    pub fn check_end(&self, object_bytes_max: u64) -> Result<()> {
        let range = match self {
            Self::WriteFull { .. } | Self::Truncate { .. } => Some((0, self.size_after(0))),
            _ => self.range(),
        };
        range.map_or(Ok(()), |(offset, len)| range_end(offset, len, object_bytes_max).map(drop))
    }
}

/// One range of a [`Change::WriteRuns`]: where it begins, and its new content.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run {
    /// Where the range begins, in bytes.
    pub offset: u64,
    /// The new content; at least one byte.
    pub content: RunContent,
}

/// The new content of a range.
#[derive(Clone, Debug)]
pub enum RunContent {
    /// These bytes.
    Data(Segments),
    /// This number of zeros, which are not sent.
    Zeroes(u64),
}

impl Run {
    /// Returns a run of `data` at `offset`.
    #[must_use]
    pub fn data(offset: u64, data: impl Into<Segments>) -> Self {
        Self { offset, content: RunContent::Data(data.into()) }
    }

    /// Returns a run of `len_bytes` zeros at `offset`.
    #[must_use]
    pub fn zeroes(offset: u64, len_bytes: u64) -> Self {
        Self { offset, content: RunContent::Zeroes(len_bytes) }
    }

    /// Returns the length of the run in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        match &self.content {
            RunContent::Data(data) => data.len_bytes() as u64,
            RunContent::Zeroes(len_bytes) => *len_bytes,
        }
    }

    /// Returns where the run ends.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len_bytes())
    }

    /// Returns the number of bytes that are sent for the run.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        match &self.content {
            RunContent::Data(data) => data.len_bytes() as u64,
            RunContent::Zeroes(_) => 0,
        }
    }
}

/// The terms of a change of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ChangeTerms {
    /// The least durability that the reply must give. A backend may give more, never less.
    pub durability: Durability,
    /// The change's position in its writer's history. `None` counts as epoch 0 and keeps the
    /// object's stamp.
    pub stamp: Option<Stamp>,
    /// The order domain that the change belongs to.
    pub domain: Option<OrderDomain>,
    /// The condition under which the change may happen.
    pub condition: Condition,
    /// Whether the change stores data that were acknowledged before. A quota counts such a change
    /// but does not refuse it, since the acknowledged data could otherwise never be stored. The
    /// caller bounds such data, and a layer that does not trust its callers may ignore this flag.
    pub settles: bool,
}

/// A request to change an object.
///
/// One of a single operation is made by its own type, [`WriteRequest`] for example, and made by the
/// method of that name of [`BlockerExt`](crate::BlockerExt); `K` is that operation.
/// [`Blocker::change`](crate::Blocker::change) takes any.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChangeRequest<K = operation::Any> {
    /// The object that is changed; the target of a copy.
    pub object: ObjectId,
    /// What is done to it.
    pub change: Change,
    /// The terms of the change.
    pub terms: ChangeTerms,
    /// The terms of the call.
    pub call: Call,
    operation: PhantomData<K>,
}

impl<K> ChangeRequest<K> {
    #[inline]
    fn of(object: ObjectId, change: Change) -> Self {
        let (terms, call) = Default::default();
        Self { object, change, terms, call, operation: PhantomData }
    }

    /// Sets the least durability that the reply must give.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.terms.durability = durability;
        self
    }

    /// Sets the change's position in its writer's history.
    #[must_use]
    pub fn stamp(mut self, stamp: Stamp) -> Self {
        self.terms.stamp = Some(stamp);
        self
    }

    /// Sets the order domain that the change belongs to.
    #[must_use]
    pub fn domain(mut self, domain: OrderDomain) -> Self {
        self.terms.domain = Some(domain);
        self
    }

    /// Sets the condition under which the change may happen.
    #[must_use]
    pub fn condition(mut self, condition: Condition) -> Self {
        self.terms.condition = condition;
        self
    }

    /// Makes the change conditional on the object's version.
    #[must_use]
    pub fn if_version(self, version: Version) -> Self {
        self.condition(Condition::Version(version))
    }

    /// Sets whether the change stores data that were acknowledged before.
    #[must_use]
    pub fn settles(mut self, settles: bool) -> Self {
        self.terms.settles = settles;
        self
    }

    /// Sets all terms of the change.
    #[must_use]
    pub fn terms(mut self, terms: ChangeTerms) -> Self {
        self.terms = terms;
        self
    }

    /// Sets all terms of the call.
    #[must_use]
    pub fn call(mut self, call: Call) -> Self {
        self.call = call;
        self
    }
}

macro_rules! requests {
    ($($(#[$doc:meta])* $request:ident = $operation:ident;)*) => {
        /// The operations of requests, as types.
        pub mod operation {
            /// Any operation.
            #[derive(Clone, Debug)]
            pub enum Any {}

            $(
                #[doc = concat!("[`", stringify!($operation), "`](super::Change::", stringify!($operation), ").")]
                #[derive(Clone, Debug)]
                pub enum $operation {}
            )*
        }

        $(
            $(#[$doc])*
            pub type $request = ChangeRequest<operation::$operation>;

            impl From<$request> for ChangeRequest {
                #[inline]
                fn from(request: $request) -> Self {
                    let ChangeRequest { object, change, terms, call, .. } = request;
                    Self { object, change, terms, call, operation: PhantomData }
                }
            }
        )*
    };
}

requests! {
    /// A request to write a range of an object: [`Change::Write`].
    WriteRequest = Write;
    /// A request to write zeros: [`Change::WriteZeroes`].
    WriteZeroesRequest = WriteZeroes;
    /// A request to write several ranges of an object: [`Change::WriteRuns`].
    WriteRunsRequest = WriteRuns;
    /// A request to discard a range of an object: [`Change::Discard`].
    DiscardRequest = Discard;
    /// A request to write a range if other bytes are there: [`Change::CompareAndWrite`].
    CompareAndWriteRequest = CompareAndWrite;
    /// A request to replace the content of an object: [`Change::WriteFull`].
    WriteFullRequest = WriteFull;
    /// A request to set an object's size: [`Change::Truncate`].
    TruncateRequest = Truncate;
    /// A request to remove an object: [`Change::Delete`].
    DeleteRequest = Delete;
    /// A request to replace the content of an object by that of another: [`Change::Copy`].
    CopyRequest = Copy;
}

impl WriteRequest {
    /// Returns a request to write `data` at `offset`.
    #[must_use]
    pub fn new(object: ObjectId, offset: u64, data: impl Into<Segments>) -> Self {
        Self::of(object, Change::Write { offset, data: data.into() })
    }
}

impl WriteZeroesRequest {
    /// Returns a request to write `len_bytes` zeros at `offset`.
    #[must_use]
    pub fn new(object: ObjectId, offset: u64, len_bytes: u64) -> Self {
        Self::of(object, Change::WriteZeroes { offset, len_bytes })
    }
}

impl WriteRunsRequest {
    /// Returns a request to write `runs`.
    #[must_use]
    pub fn new(object: ObjectId, runs: Vec<Run>) -> Self {
        Self::of(object, Change::WriteRuns { runs })
    }
}

impl DiscardRequest {
    /// Returns a request to discard `len_bytes` at `offset`.
    #[must_use]
    pub fn new(object: ObjectId, offset: u64, len_bytes: u64) -> Self {
        Self::of(object, Change::Discard { offset, len_bytes })
    }
}

impl CompareAndWriteRequest {
    /// Returns a request to write `data` at `offset` if the bytes there are `expected`.
    #[must_use]
    pub fn new(
        object: ObjectId,
        offset: u64,
        expected: impl Into<Segments>,
        data: impl Into<Segments>,
    ) -> Self {
        Self::of(object, Change::CompareAndWrite { offset, expected: expected.into(), data: data.into() })
    }
}

impl WriteFullRequest {
    /// Returns a request to make `data` the content of `object`.
    #[must_use]
    pub fn new(object: ObjectId, data: impl Into<Segments>) -> Self {
        Self::of(object, Change::WriteFull { data: data.into() })
    }
}

impl TruncateRequest {
    /// Returns a request to make `object` this long.
    #[must_use]
    pub fn new(object: ObjectId, size_bytes: u64) -> Self {
        Self::of(object, Change::Truncate { size_bytes })
    }
}

impl DeleteRequest {
    /// Returns a request to remove `object`.
    #[must_use]
    pub fn new(object: ObjectId) -> Self {
        Self::of(object, Change::Delete)
    }
}

impl CopyRequest {
    /// Returns a request to copy `from` to `to`.
    #[must_use]
    pub fn new(from: ObjectId, to: ObjectId) -> Self {
        Self::of(to, Change::Copy { from, from_condition: Condition::None })
    }

    /// Makes the copy conditional on the source having this version.
    #[must_use]
    pub fn if_from_version(mut self, version: Version) -> Self {
        if let Change::Copy { from_condition, .. } = &mut self.change {
            *from_condition = Condition::Version(version);
        }
        self
    }
}
