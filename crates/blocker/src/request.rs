//! Requests: one struct for each operation, created by `new` and refined by methods, so that fields
//! can be added without breaking callers.
//!
//! Two groups of fields recur. [`Call`] describes the call: its deadline, and how the data will be
//! used. [`Change`] describes the change of an object: the required durability, its position in its
//! writer's history, and its condition.

use std::fmt;
use std::str::FromStr;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::name::{Name, Namespace, ObjectId, split_path};
use crate::order::{Durability, Epoch, OrderDomain, Stamp, Version, WriterId};
use crate::segment::Segments;
use crate::trace::TraceContext;

/// The caller's hints about its use of the data. A backend may ignore them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Hints(u32);

impl Hints {
    /// Nothing is known.
    pub const NONE: Self = Self(0);
    /// The data will not be needed again soon: caches should not evict other data for it.
    pub const NO_CACHE: Self = Self(1);
    /// The request is part of a sequential run.
    pub const SEQUENTIAL: Self = Self(2);
    /// The requests are random: reading ahead is of no use.
    pub const RANDOM: Self = Self(4);

    /// Returns these hints together with `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether all of `other` is among these hints.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the hints as bits, for a wire format.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the hints with these bits. Unknown bits are kept, and ignored like any hint.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// The urgency of a call beside others of the same namespace. A backend may ignore it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Priority {
    /// No caller waits for it now: read-ahead, copies, checks.
    Low,
    /// A caller waits for it.
    #[default]
    Normal,
    /// Other calls wait for it.
    Urgent,
}

/// The terms of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Call {
    /// When the caller stops waiting, on the clock that caller and blocker share. `None`: never.
    pub deadline: Option<Timestamp>,
    /// Hints about the use of the data.
    pub hints: Hints,
    /// The urgency.
    pub priority: Priority,
    /// The trace that the call belongs to, if it is traced.
    pub trace: Option<TraceContext>,
}

/// The condition under which a change, or a read, may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Condition {
    /// Always.
    #[default]
    None,
    /// Only if the object does not exist; otherwise [`crate::Error::Exists`].
    Absent,
    /// Only if the object exists; otherwise [`crate::Error::Missing`].
    Present,
    /// Only if the object has this version; otherwise [`crate::Error::ConditionFailed`], or
    /// [`crate::Error::Missing`].
    Version(Version),
}

/// The terms of a change of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Change {
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

/// The scope of a flush, a claim or an invalidation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Scope {
    /// One object.
    Object(ObjectId),
    /// One order domain of a namespace.
    Domain(Namespace, OrderDomain),
    /// A namespace.
    Namespace(Namespace),
    /// Everything.
    All,
}

impl Scope {
    /// Returns the namespace of the scope; `None` for everything.
    #[must_use]
    pub fn namespace(&self) -> Option<&Namespace> {
        match self {
            Self::Object(ObjectId { namespace, .. })
            | Self::Domain(namespace, _)
            | Self::Namespace(namespace) => Some(namespace),
            Self::All => None,
        }
    }

    /// Returns whether the scope covers a change of `object` in `domain`.
    #[must_use]
    pub fn covers(&self, object: &ObjectId, domain: Option<OrderDomain>) -> bool {
        match self {
            Self::Object(id) => id == object,
            Self::Domain(namespace, id) => *namespace == object.namespace && Some(*id) == domain,
            Self::Namespace(namespace) => *namespace == object.namespace,
            Self::All => true,
        }
    }
}

/// Writes `all`, `namespace:NAMESPACE`, `domain:NAMESPACE/DOMAIN` or `object:NAMESPACE/NAME`.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(object) => write!(f, "object:{object}"),
            Self::Domain(namespace, domain) => write!(f, "domain:{}/{domain}", namespace.in_a_path()),
            Self::Namespace(namespace) => write!(f, "namespace:{namespace}"),
            Self::All => f.write_str("all"),
        }
    }
}

/// Reads what `Display` writes.
///
/// ```
/// use blocker::Scope;
///
/// let scope: Scope = "domain:vm/7".parse()?;
/// assert_eq!(scope.to_string(), "domain:vm/7");
/// # Ok::<_, blocker::Error>(())
/// ```
impl FromStr for Scope {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("object", object)) => object.parse().map(Self::Object),
            Some(("domain", path)) => {
                let (namespace, domain) = split_path(path)?;
                Ok(Self::Domain(namespace, domain.parse()?))
            }
            Some(("namespace", namespace)) => namespace.parse().map(Self::Namespace),
            None if text == "all" => Ok(Self::All),
            _ => {
                let known = "all, namespace:NAMESPACE, domain:NAMESPACE/DOMAIN and object:NAMESPACE/NAME";
                Err(Error::Invalid(format!("{text:?} is no scope; there are {known}").into()))
            }
        }
    }
}

macro_rules! with_call {
    ($($type:ident)*) => {$(
        impl $type {
            /// Sets when the caller stops waiting.
            #[must_use]
            pub fn deadline(mut self, deadline: Timestamp) -> Self {
                self.call.deadline = Some(deadline);
                self
            }

            /// Sets hints about the use of the data.
            #[must_use]
            pub fn hints(mut self, hints: Hints) -> Self {
                self.call.hints = hints;
                self
            }

            /// Sets how urgent the call is.
            #[must_use]
            pub fn priority(mut self, priority: Priority) -> Self {
                self.call.priority = priority;
                self
            }
        }
    )*};
}

macro_rules! with_change {
    ($($type:ident)*) => {$(
        impl $type {
            /// Sets the least durability that the reply must give.
            #[must_use]
            pub fn durability(mut self, durability: Durability) -> Self {
                self.change.durability = durability;
                self
            }

            /// Sets the change's position in its writer's history.
            #[must_use]
            pub fn stamp(mut self, stamp: Stamp) -> Self {
                self.change.stamp = Some(stamp);
                self
            }

            /// Sets the order domain that the change belongs to.
            #[must_use]
            pub fn domain(mut self, domain: OrderDomain) -> Self {
                self.change.domain = Some(domain);
                self
            }

            /// Sets the condition under which the change may happen.
            #[must_use]
            pub fn condition(mut self, condition: Condition) -> Self {
                self.change.condition = condition;
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
                self.change.settles = settles;
                self
            }

            /// Sets all terms of the change.
            #[must_use]
            pub fn change(mut self, change: Change) -> Self {
                self.change = change;
                self
            }
        }
    )*};
}

/// A request to read a range of an object.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReadRequest {
    /// The object.
    pub object: ObjectId,
    /// Where the range begins, in bytes.
    pub offset: u64,
    /// The length of the range in bytes. The answer ends at the object's end.
    pub len_bytes: u64,
    /// The condition under which to read: a version, or none.
    pub condition: Condition,
    /// The terms of the call.
    pub call: Call,
}

impl ReadRequest {
    /// Returns a request to read `len_bytes` at `offset`.
    #[must_use]
    pub fn new(object: ObjectId, offset: u64, len_bytes: u64) -> Self {
        Self { object, offset, len_bytes, condition: Condition::None, call: Call::default() }
    }

    /// Makes the read conditional on the object's version.
    #[must_use]
    pub fn if_version(mut self, version: Version) -> Self {
        self.condition = Condition::Version(version);
        self
    }
}

/// A request to write a range of an object. Creates the object if it is missing, and moves its end if the
/// range reaches beyond it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WriteRequest {
    /// The object.
    pub object: ObjectId,
    /// Where the range begins, in bytes.
    pub offset: u64,
    /// The bytes to write.
    pub data: Segments,
    /// The terms of the change.
    pub change: Change,
    /// The terms of the call.
    pub call: Call,
}

impl WriteRequest {
    /// Returns a request to write `data` at `offset`.
    #[must_use]
    pub fn new(object: ObjectId, offset: u64, data: impl Into<Segments>) -> Self {
        let (change, call) = Default::default();
        Self { object, offset, data: data.into(), change, call }
    }
}

/// A request to write zeros: as a write of zero bytes, without sending them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WriteZeroesRequest {
    /// The object.
    pub object: ObjectId,
    /// Where the range begins, in bytes.
    pub offset: u64,
    /// The length of the range in bytes.
    pub len_bytes: u64,
    /// The terms of the change.
    pub change: Change,
    /// The terms of the call.
    pub call: Call,
}

impl WriteZeroesRequest {
    /// Returns a request to write `len_bytes` zeros at `offset`.
    #[must_use]
    pub fn new(object: ObjectId, offset: u64, len_bytes: u64) -> Self {
        let (change, call) = Default::default();
        Self { object, offset, len_bytes, change, call }
    }
}

/// One range of a [`WriteRunsRequest`]: where it begins, and its new content.
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

/// A request to write several ranges of one object in one change. Creates the object if it is
/// missing, and moves its end if the last range reaches beyond it. Bytes between the ranges stay as
/// they are.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WriteRunsRequest {
    /// The object.
    pub object: ObjectId,
    /// The runs: at least one, none empty, in ascending order without overlap.
    pub runs: Vec<Run>,
    /// The terms of the change, for all runs together.
    pub change: Change,
    /// The terms of the call.
    pub call: Call,
}

impl WriteRunsRequest {
    /// Returns a request to write `runs`.
    #[must_use]
    pub fn new(object: ObjectId, runs: Vec<Run>) -> Self {
        let (change, call) = Default::default();
        Self { object, runs, change, call }
    }
}

/// A request to discard a range: afterwards it reads as zeros and should take no space. Never moves
/// the end.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DiscardRequest {
    /// The object.
    pub object: ObjectId,
    /// Where the range begins, in bytes.
    pub offset: u64,
    /// The length of the range in bytes; bytes beyond the object's end are ignored.
    pub len_bytes: u64,
    /// The terms of the change.
    pub change: Change,
    /// The terms of the call.
    pub call: Call,
}

impl DiscardRequest {
    /// Returns a request to discard `len_bytes` at `offset`.
    #[must_use]
    pub fn new(object: ObjectId, offset: u64, len_bytes: u64) -> Self {
        let (change, call) = Default::default();
        Self { object, offset, len_bytes, change, call }
    }
}

/// A request to write `data` at `offset` if the bytes at `offset` are `expected`, in one atomic step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompareAndWriteRequest {
    /// The object.
    pub object: ObjectId,
    /// Where both ranges begin, in bytes.
    pub offset: u64,
    /// The expected bytes. A byte beyond the object's end differs from any.
    pub expected: Segments,
    /// The bytes to write.
    pub data: Segments,
    /// The terms of the change.
    pub change: Change,
    /// The terms of the call.
    pub call: Call,
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
        let (change, call) = Default::default();
        Self { object, offset, expected: expected.into(), data: data.into(), change, call }
    }
}

/// A request to replace the whole content of an object. Creates the object if it is missing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WriteFullRequest {
    /// The object.
    pub object: ObjectId,
    /// The new content.
    pub data: Segments,
    /// The terms of the change.
    pub change: Change,
    /// The terms of the call.
    pub call: Call,
}

impl WriteFullRequest {
    /// Returns a request to make `data` the content of `object`.
    #[must_use]
    pub fn new(object: ObjectId, data: impl Into<Segments>) -> Self {
        let (change, call) = Default::default();
        Self { object, data: data.into(), change, call }
    }
}

/// A request to set an object's size. New bytes read as zeros.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TruncateRequest {
    /// The object.
    pub object: ObjectId,
    /// The new size in bytes.
    pub size_bytes: u64,
    /// The terms of the change.
    pub change: Change,
    /// The terms of the call.
    pub call: Call,
}

impl TruncateRequest {
    /// Returns a request to make `object` this long.
    #[must_use]
    pub fn new(object: ObjectId, size_bytes: u64) -> Self {
        let (change, call) = Default::default();
        Self { object, size_bytes, change, call }
    }
}

/// A request to remove an object.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeleteRequest {
    /// The object.
    pub object: ObjectId,
    /// The terms of the change.
    pub change: Change,
    /// The terms of the call.
    pub call: Call,
}

impl DeleteRequest {
    /// Returns a request to remove `object`.
    #[must_use]
    pub fn new(object: ObjectId) -> Self {
        let (change, call) = Default::default();
        Self { object, change, call }
    }
}

/// A request to replace the content of `to` by that of `from`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CopyRequest {
    /// The object to copy from.
    pub from: ObjectId,
    /// The condition on the source: a version that it must have, or none.
    pub from_condition: Condition,
    /// The object to copy to, in the same namespace or another.
    pub to: ObjectId,
    /// The terms of the change of `to`.
    pub change: Change,
    /// The terms of the call.
    pub call: Call,
}

impl CopyRequest {
    /// Returns a request to copy `from` to `to`.
    #[must_use]
    pub fn new(from: ObjectId, to: ObjectId) -> Self {
        let (change, call) = Default::default();
        Self { from, from_condition: Condition::None, to, change, call }
    }

    /// Makes the copy conditional on the source having this version.
    #[must_use]
    pub fn if_from_version(mut self, version: Version) -> Self {
        self.from_condition = Condition::Version(version);
        self
    }
}

/// A request for an object's size, version and stamp.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InfoRequest {
    /// The object.
    pub object: ObjectId,
    /// The terms of the call.
    pub call: Call,
}

impl InfoRequest {
    /// Returns a request for information about `object`.
    #[must_use]
    pub fn new(object: ObjectId) -> Self {
        Self { object, call: Call::default() }
    }
}

/// A request for one page of a namespace's objects, in bytewise order of their names.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListRequest {
    /// The namespace.
    pub namespace: Namespace,
    /// Only names that begin with this; empty for all.
    pub prefix: bytes::Bytes,
    /// Only names after this one: the last name of the previous page.
    pub after: Option<Name>,
    /// The largest number of entries, at most what the capabilities allow; 0 counts as 1.
    pub entries_max: u32,
    /// The terms of the call.
    pub call: Call,
}

impl ListRequest {
    /// Returns a request for the first page, of at most 1 000 entries.
    #[must_use]
    pub fn new(namespace: Namespace) -> Self {
        Self { namespace, prefix: bytes::Bytes::new(), after: None, entries_max: 1000, call: Call::default() }
    }

    /// Limits the listing to names that begin with `prefix`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<bytes::Bytes>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Limits the listing to names after `name`.
    #[must_use]
    pub fn after(mut self, name: Name) -> Self {
        self.after = Some(name);
        self
    }

    /// Sets the largest number of entries.
    #[must_use]
    pub fn entries_max(mut self, entries_max: u32) -> Self {
        self.entries_max = entries_max;
        self
    }
}

/// A request to make everything acknowledged so far within a scope *stored*, or as durable as
/// requested.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FlushRequest {
    /// What to flush. A blocker may flush more.
    pub scope: Scope,
    /// The least durability that the reply must give. A blocker may give more: one without a log stores.
    pub durability: Durability,
    /// The terms of the call.
    pub call: Call,
}

impl FlushRequest {
    /// Returns a request to make `scope` *stored*.
    #[must_use]
    pub fn new(scope: Scope) -> Self {
        Self { scope, durability: Durability::Stored, call: Call::default() }
    }

    /// Sets the least durability that the reply must give: *journaled* is enough for a guest's flush.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }
}

/// A request to take over a scope: once it is answered, changes with older epochs are refused there.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// What to take over.
    pub scope: Scope,
    /// The new epoch, above the one in force; its holder may claim that one again. 0 only queries.
    pub epoch: Epoch,
    /// The writer that takes the scope over. Ignored where `epoch` is 0.
    pub writer: WriterId,
    /// The terms of the call.
    pub call: Call,
}

impl ClaimRequest {
    /// Returns a request to take over `scope` with `epoch`, for `writer`.
    #[must_use]
    pub fn new(scope: Scope, epoch: Epoch, writer: WriterId) -> Self {
        Self { scope, epoch, writer, call: Call::default() }
    }

    /// Returns a request that queries the epoch in force in `scope` and changes nothing. The answer
    /// is epoch 0 if there is none, otherwise [`Error::Fenced`] with the epoch.
    #[must_use]
    pub fn ask(scope: Scope) -> Self {
        Self::new(scope, Epoch(0), WriterId(0))
    }
}

/// A notification that a scope may have been changed without this blocker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InvalidateRequest {
    /// What may have changed.
    pub scope: Scope,
    /// The terms of the call.
    pub call: Call,
}

impl InvalidateRequest {
    /// Returns a notification that `scope` may have changed.
    #[must_use]
    pub fn new(scope: Scope) -> Self {
        Self { scope, call: Call::default() }
    }
}

with_call! {
    ReadRequest WriteRequest WriteZeroesRequest WriteRunsRequest DiscardRequest CompareAndWriteRequest WriteFullRequest
    TruncateRequest DeleteRequest CopyRequest InfoRequest ListRequest FlushRequest ClaimRequest
    InvalidateRequest
}

with_change! {
    WriteRequest WriteZeroesRequest WriteRunsRequest DiscardRequest CompareAndWriteRequest WriteFullRequest
    TruncateRequest DeleteRequest CopyRequest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let namespace = Namespace::new("a/b:c").unwrap();
        let scopes = [
            Scope::All,
            Scope::Namespace(namespace.clone()),
            Scope::Domain(namespace.clone(), OrderDomain(7)),
            Scope::Object(ObjectId::new(namespace, Name::new("d/e").unwrap())),
        ];
        for scope in scopes {
            assert_eq!(scope.to_string().parse(), Ok(scope));
        }
        for wrong in ["", "ALL", "namespace:", "domain:a", "domain:a/b", "object:a", "volume:a"] {
            assert!(wrong.parse::<Scope>().is_err(), "{wrong}");
        }
    }
}
