//! Changes of an object: the operation, its terms, and the request that carries both.

use std::marker::PhantomData;

use crate::admission::{range_end, runs_end};
use crate::{
    Call, Capabilities, Condition, Durability, ObjectId, OrderDomain, Result, Segments, Stamp, Version,
};

/// An operation that changes an object.
///
/// `Write`, `WriteZeroes`, `WriteRuns`, `WriteFull` and `Copy` create their object if it is
/// missing; the others fail with [`Error::Missing`](crate::Error::Missing).
#[derive(Clone, Debug)]
pub enum Change {
    /// Writes a range, and extends the object if the range ends beyond its end. An empty write is
    /// checked, creates a missing object, and gives the object a new version, but never extends it.
    Write {
        /// The offset of the range, in bytes.
        offset: u64,
        /// The bytes to write.
        data: Segments,
    },
    /// Writes zeros over a range, exactly as a write of zero bytes does, without sending the zeros.
    WriteZeroes {
        /// The offset of the range, in bytes.
        offset: u64,
        /// The length of the range in bytes.
        len_bytes: u64,
    },
    /// Writes several ranges; the bytes between the ranges stay unchanged. Fails with `Unsupported`
    /// if the backend's [`runs_max`](crate::Capabilities::runs_max) is 0; with `Invalid` if there
    /// is no run or more than `runs_max`, or if a run is empty or overlaps the previous one; with
    /// `TooLarge` if the total length of the runs, including zeros, exceeds `request_bytes_max`.
    WriteRuns {
        /// The runs: at least one, none empty, in ascending order without overlap.
        runs: Vec<Run>,
    },
    /// Zeroes the part of a range that lies within the object, and frees its space where possible.
    /// The size stays.
    Discard {
        /// The offset of the range, in bytes.
        offset: u64,
        /// The length of the range in bytes; bytes beyond the object's end are ignored.
        len_bytes: u64,
    },
    /// Compares the bytes at `offset` with `expected`, and writes `data` there if they are equal,
    /// in one step. Fails with `Mismatch` if a byte differs or lies beyond the object's end, and
    /// with `Unsupported` if [`compare_bytes_max`](crate::Capabilities::compare_bytes_max) is 0.
    CompareAndWrite {
        /// The offset of both ranges, in bytes.
        offset: u64,
        /// The expected bytes. A byte beyond the object's end differs from any expected byte.
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
    /// Replaces the whole content with the content of another object, which may be in another
    /// namespace and stays unchanged. Copying an object onto itself is a change that leaves the
    /// bytes unchanged. The stamp is not copied. Fails with `Missing` or `ConditionFailed` for the
    /// source as well.
    Copy {
        /// The object to copy from.
        from: ObjectId,
        /// The condition on the source: a required version, or no condition.
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

    /// Returns the name of the operation, as shown in metrics and traces.
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

    /// Returns the number of payload bytes that are sent with the change. Zeros are not sent.
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

    /// Returns whether the change creates a missing object. A copy does so only if its source is
    /// another object.
    #[must_use]
    pub fn creates(&self) -> bool {
        matches!(
            self,
            Self::Write { .. } | Self::WriteZeroes { .. } | Self::WriteRuns { .. } | Self::WriteFull { .. }
        )
    }

    /// Returns whether the change leaves nothing of the object's previous content.
    #[must_use]
    pub fn replaces_content(&self) -> bool {
        matches!(self, Self::WriteFull { .. } | Self::Delete)
    }

    /// Returns the end of the written bytes, up to which the change may extend the object; 0 if it
    /// writes no bytes. The ranges must end within 2^64, which [`Self::check_end`] checks.
    #[must_use]
    pub fn end(&self) -> u64 {
        match self {
            Self::WriteRuns { runs } => runs.last().map_or(0, Run::end),
            _ => self.range().filter(|(_, len)| *len > 0).map_or(0, |(offset, len)| offset + len),
        }
    }

    /// Returns the offset and the length of the range that the change writes, if it writes a single
    /// range.
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

    /// Returns the size after the change of an object with `size` bytes (0 for a missing object). A
    /// copy counts as a copy of the object onto itself.
    #[must_use]
    pub fn size_after(&self, size: u64) -> u64 {
        match self {
            Self::WriteFull { data } => data.len_bytes() as u64,
            Self::Truncate { size_bytes } => *size_bytes,
            Self::Delete => 0,
            _ => size.max(self.end()),
        }
    }

    /// Checks the runs of a [`Change::WriteRuns`] against a backend's capabilities, which are not
    /// evaluated for any other change.
    ///
    /// # Errors
    /// Returns the errors of [`runs_end`].
    pub fn check_runs(&self, can: impl FnOnce() -> Capabilities) -> Result<()> {
        match self {
            Self::WriteRuns { runs } => runs_end(runs, &can()).map(drop),
            _ => Ok(()),
        }
    }

    /// Checks that the written range ends within the largest object. [`Self::check_runs`] checks
    /// runs; a copy is checked when the size of its source is known.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`](crate::Error::TooLarge).
    pub fn check_end(&self, object_bytes_max: u64) -> Result<()> {
        let range = match self {
            Self::WriteFull { .. } | Self::Truncate { .. } => Some((0, self.size_after(0))),
            _ => self.range(),
        };
        range.map_or(Ok(()), |(offset, len)| range_end(offset, len, object_bytes_max).map(drop))
    }
}

/// One range of a [`Change::WriteRuns`], with its new content.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run {
    /// The offset of the range, in bytes.
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

    /// Returns the offset of the end of the run.
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
    /// The minimum durability of the change when the reply is sent. A backend may provide a
    /// stronger one, never a weaker one.
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
/// A request for a single operation has a type of its own, for example [`WriteRequest`] for
/// [`BlockerExt::write`](crate::BlockerExt::write), in which `K` stands for the operation.
/// [`Blocker::change`](crate::Blocker::change) takes requests for any operation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChangeRequest<K = operation::Any> {
    /// The object to change; the target of a copy.
    pub object: ObjectId,
    /// The operation.
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

    /// Sets the minimum durability of the change when the reply is sent.
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
}

macro_rules! requests {
    ($($(#[$doc:meta])* $request:ident = $operation:ident;)*) => {
        /// Marker types for the operations of requests.
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
    /// A request to write a range if it has the expected bytes: [`Change::CompareAndWrite`].
    CompareAndWriteRequest = CompareAndWrite;
    /// A request to replace the content of an object: [`Change::WriteFull`].
    WriteFullRequest = WriteFull;
    /// A request to set an object's size: [`Change::Truncate`].
    TruncateRequest = Truncate;
    /// A request to remove an object: [`Change::Delete`].
    DeleteRequest = Delete;
    /// A request to replace the content of an object with the content of another object:
    /// [`Change::Copy`].
    CopyRequest = Copy;
}

impl WriteRequest {
    /// Returns a request to write `data` at `offset`.
    #[must_use]
    #[inline]
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
    /// Returns a request to write `data` at `offset` if the object has the bytes `expected` there.
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
    /// Returns a request to set the size of `object`.
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

    /// Makes the copy conditional on the source's version.
    #[must_use]
    pub fn if_from_version(mut self, version: Version) -> Self {
        if let Change::Copy { from_condition, .. } = &mut self.change {
            *from_condition = Condition::Version(version);
        }
        self
    }
}
