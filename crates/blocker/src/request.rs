//! What an operation is asked: one struct each, made by `new` and refined by methods, so that fields
//! can grow without breaking callers.
//!
//! Two groups of fields recur. [`Call`] is about the call: until when, how urgent, how the data will
//! be used. [`Change`] is about changing an object: how safe it must be before the reply, where it
//! stands in its writer's history, and under which condition it may happen.

use std::fmt;
use std::str::FromStr;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::name::{Name, Namespace, ObjectId, split_path};
use crate::order::{Durability, Epoch, OrderDomain, Stamp, Version, WriterId};
use crate::segment::Segments;

/// What the caller knows about the use of the data; a backend may ignore all of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Hints(u32);

impl Hints {
    /// Nothing is known.
    pub const NONE: Self = Self(0);
    /// Will not be needed again soon: do not let it push out other data.
    pub const NO_CACHE: Self = Self(1);
    /// Part of a sequential run.
    pub const SEQUENTIAL: Self = Self(2);
    /// At random: reading ahead is of no use.
    pub const RANDOM: Self = Self(4);

    /// Both these hints and `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is among them.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits, for the wire.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// From bits off the wire; unknown ones are kept, and ignored like any hint.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// What goes for every call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Call {
    /// When the caller stops waiting, on the common clock. None: never.
    pub deadline: Option<Timestamp>,
    /// How the data will be used.
    pub hints: Hints,
}

/// When a change (or a read) may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Condition {
    /// Always.
    #[default]
    None,
    /// Only if there is no such object; else [`crate::Error::Exists`].
    Absent,
    /// Only if there is one; else [`crate::Error::Missing`].
    Present,
    /// Only if it has this version; else [`crate::Error::ConditionFailed`], or
    /// [`crate::Error::Missing`].
    Version(Version),
}

/// What goes for every change of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Change {
    /// How safe it must be before the reply. A backend may give more, never less.
    pub durability: Durability,
    /// Its place in the writer's history. None counts as epoch 0 and leaves the object's stamp alone.
    pub stamp: Option<Stamp>,
    /// The order domain it belongs to.
    pub domain: Option<OrderDomain>,
    /// When it may happen.
    pub condition: Condition,
}

/// What a flush, a claim or an invalidation is about.
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
    /// Whether a change of `object` in `domain` falls within it.
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
            /// The caller stops waiting at `deadline`.
            #[must_use]
            pub fn deadline(mut self, deadline: Timestamp) -> Self {
                self.call.deadline = Some(deadline);
                self
            }

            /// How the data will be used.
            #[must_use]
            pub fn hints(mut self, hints: Hints) -> Self {
                self.call.hints = hints;
                self
            }
        }
    )*};
}

macro_rules! with_change {
    ($($type:ident)*) => {$(
        impl $type {
            /// How safe it must be before the reply.
            #[must_use]
            pub fn durability(mut self, durability: Durability) -> Self {
                self.change.durability = durability;
                self
            }

            /// Its place in the writer's history.
            #[must_use]
            pub fn stamp(mut self, stamp: Stamp) -> Self {
                self.change.stamp = Some(stamp);
                self
            }

            /// The order domain it belongs to.
            #[must_use]
            pub fn domain(mut self, domain: OrderDomain) -> Self {
                self.change.domain = Some(domain);
                self
            }

            /// When it may happen.
            #[must_use]
            pub fn condition(mut self, condition: Condition) -> Self {
                self.change.condition = condition;
                self
            }

            /// Only if the object has this version.
            #[must_use]
            pub fn if_version(self, version: Version) -> Self {
                self.condition(Condition::Version(version))
            }

            /// All of the change's terms at once.
            #[must_use]
            pub fn change(mut self, change: Change) -> Self {
                self.change = change;
                self
            }
        }
    )*};
}

/// Read a range of an object.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReadRequest {
    /// Which object.
    pub object: ObjectId,
    /// Where the range begins.
    pub offset: u64,
    /// How long it is; what lies past the object's end is not returned.
    pub len_bytes: u64,
    /// When to read at all: a version, or nothing.
    pub condition: Condition,
    /// What goes for every call.
    pub call: Call,
}

impl ReadRequest {
    /// Read `len_bytes` at `offset`.
    #[must_use]
    pub fn new(object: ObjectId, offset: u64, len_bytes: u64) -> Self {
        Self { object, offset, len_bytes, condition: Condition::None, call: Call::default() }
    }

    /// Only if the object has this version.
    #[must_use]
    pub fn if_version(mut self, version: Version) -> Self {
        self.condition = Condition::Version(version);
        self
    }
}

/// Write a range of an object, creating it if need be and moving its end if the range goes beyond.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WriteRequest {
    /// Which object.
    pub object: ObjectId,
    /// Where the range begins.
    pub offset: u64,
    /// What to write.
    pub data: Segments,
    /// How, and when.
    pub change: Change,
    /// What goes for every call.
    pub call: Call,
}

impl WriteRequest {
    /// Write `data` at `offset`.
    #[must_use]
    pub fn new(object: ObjectId, offset: u64, data: impl Into<Segments>) -> Self {
        let (change, call) = Default::default();
        Self { object, offset, data: data.into(), change, call }
    }
}

/// Write zeros: as a write of that many zero bytes, without sending them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WriteZeroesRequest {
    /// Which object.
    pub object: ObjectId,
    /// Where the range begins.
    pub offset: u64,
    /// How long it is.
    pub len_bytes: u64,
    /// How, and when.
    pub change: Change,
    /// What goes for every call.
    pub call: Call,
}

impl WriteZeroesRequest {
    /// Zero `len_bytes` at `offset`.
    #[must_use]
    pub fn new(object: ObjectId, offset: u64, len_bytes: u64) -> Self {
        let (change, call) = Default::default();
        Self { object, offset, len_bytes, change, call }
    }
}

/// One range of a [`WriteRunsRequest`]: where it begins, and what it shall be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run {
    /// Where the range begins.
    pub offset: u64,
    /// What it shall be; at least one byte.
    pub content: RunContent,
}

/// What a range shall be.
#[derive(Clone, Debug)]
pub enum RunContent {
    /// These bytes.
    Data(Segments),
    /// So many zeros, which are not sent.
    Zeroes(u64),
}

impl Run {
    /// `data` at `offset`.
    #[must_use]
    pub fn data(offset: u64, data: impl Into<Segments>) -> Self {
        Self { offset, content: RunContent::Data(data.into()) }
    }

    /// `len_bytes` zeros at `offset`.
    #[must_use]
    pub fn zeroes(offset: u64, len_bytes: u64) -> Self {
        Self { offset, content: RunContent::Zeroes(len_bytes) }
    }

    /// How long it is.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        match &self.content {
            RunContent::Data(data) => data.len_bytes() as u64,
            RunContent::Zeroes(len_bytes) => *len_bytes,
        }
    }

    /// Where it ends.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len_bytes())
    }

    /// How many bytes are sent for it.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        match &self.content {
            RunContent::Data(data) => data.len_bytes() as u64,
            RunContent::Zeroes(_) => 0,
        }
    }
}

/// Write several ranges of one object in one change, creating it if need be and moving its end if the last
/// range goes beyond. What lies between them stays as it is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WriteRunsRequest {
    /// Which object.
    pub object: ObjectId,
    /// What to write where: at least one, none empty, each beginning where the one before ends or later.
    pub runs: Vec<Run>,
    /// How, and when: for all of them together.
    pub change: Change,
    /// What goes for every call.
    pub call: Call,
}

impl WriteRunsRequest {
    /// Write `runs`.
    #[must_use]
    pub fn new(object: ObjectId, runs: Vec<Run>) -> Self {
        let (change, call) = Default::default();
        Self { object, runs, change, call }
    }
}

/// Give up a range: it reads as zeros afterwards and should cost no space. Never moves the end.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DiscardRequest {
    /// Which object.
    pub object: ObjectId,
    /// Where the range begins.
    pub offset: u64,
    /// How long it is; what lies past the end is left out.
    pub len_bytes: u64,
    /// How, and when.
    pub change: Change,
    /// What goes for every call.
    pub call: Call,
}

impl DiscardRequest {
    /// Discard `len_bytes` at `offset`.
    #[must_use]
    pub fn new(object: ObjectId, offset: u64, len_bytes: u64) -> Self {
        let (change, call) = Default::default();
        Self { object, offset, len_bytes, change, call }
    }
}

/// Write `data` at `offset` if the bytes at `offset` are `expected`, in one atomic step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompareAndWriteRequest {
    /// Which object.
    pub object: ObjectId,
    /// Where both ranges begin.
    pub offset: u64,
    /// What must be there; a byte past the object's end is not there.
    pub expected: Segments,
    /// What to write.
    pub data: Segments,
    /// How, and when.
    pub change: Change,
    /// What goes for every call.
    pub call: Call,
}

impl CompareAndWriteRequest {
    /// Write `data` at `offset` if `expected` is there.
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

/// Make `data` the whole content of an object, whatever it was before.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WriteFullRequest {
    /// Which object.
    pub object: ObjectId,
    /// Its new content.
    pub data: Segments,
    /// How, and when.
    pub change: Change,
    /// What goes for every call.
    pub call: Call,
}

impl WriteFullRequest {
    /// Make `data` the content of `object`.
    #[must_use]
    pub fn new(object: ObjectId, data: impl Into<Segments>) -> Self {
        let (change, call) = Default::default();
        Self { object, data: data.into(), change, call }
    }
}

/// Move an object's end; what is gained reads as zeros.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TruncateRequest {
    /// Which object.
    pub object: ObjectId,
    /// Its new size.
    pub size_bytes: u64,
    /// How, and when.
    pub change: Change,
    /// What goes for every call.
    pub call: Call,
}

impl TruncateRequest {
    /// Make `object` this long.
    #[must_use]
    pub fn new(object: ObjectId, size_bytes: u64) -> Self {
        let (change, call) = Default::default();
        Self { object, size_bytes, change, call }
    }
}

/// Remove an object.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeleteRequest {
    /// Which object.
    pub object: ObjectId,
    /// How, and when.
    pub change: Change,
    /// What goes for every call.
    pub call: Call,
}

impl DeleteRequest {
    /// Remove `object`.
    #[must_use]
    pub fn new(object: ObjectId) -> Self {
        let (change, call) = Default::default();
        Self { object, change, call }
    }
}

/// Make `to` have the content that `from` has now, whatever it had before.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CopyRequest {
    /// What is copied.
    pub from: ObjectId,
    /// When to copy: a version that the source must have, or nothing.
    pub from_condition: Condition,
    /// What it is copied to, in the same namespace or another.
    pub to: ObjectId,
    /// How, and when, `to` may be changed.
    pub change: Change,
    /// What goes for every call.
    pub call: Call,
}

impl CopyRequest {
    /// Copy `from` to `to`.
    #[must_use]
    pub fn new(from: ObjectId, to: ObjectId) -> Self {
        let (change, call) = Default::default();
        Self { from, from_condition: Condition::None, to, change, call }
    }

    /// Only if the source has this version.
    #[must_use]
    pub fn if_from_version(mut self, version: Version) -> Self {
        self.from_condition = Condition::Version(version);
        self
    }
}

/// Ask about an object.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InfoRequest {
    /// Which object.
    pub object: ObjectId,
    /// What goes for every call.
    pub call: Call,
}

impl InfoRequest {
    /// Ask about `object`.
    #[must_use]
    pub fn new(object: ObjectId) -> Self {
        Self { object, call: Call::default() }
    }
}

/// Ask for one page of a namespace's objects, in bytewise order of their names.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListRequest {
    /// Of which namespace.
    pub namespace: Namespace,
    /// Only names that begin with this; empty for all.
    pub prefix: bytes::Bytes,
    /// Only names after this one: the last of the page before.
    pub after: Option<Name>,
    /// At most this many entries, and at most what `capabilities` allows; 0 counts as 1.
    pub entries_max: u32,
    /// What goes for every call.
    pub call: Call,
}

impl ListRequest {
    /// The first page, of at most 1 000 entries.
    #[must_use]
    pub fn new(namespace: Namespace) -> Self {
        Self { namespace, prefix: bytes::Bytes::new(), after: None, entries_max: 1000, call: Call::default() }
    }

    /// Only names that begin with `prefix`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<bytes::Bytes>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Only names after `name`.
    #[must_use]
    pub fn after(mut self, name: Name) -> Self {
        self.after = Some(name);
        self
    }

    /// At most this many entries.
    #[must_use]
    pub fn entries_max(mut self, entries_max: u32) -> Self {
        self.entries_max = entries_max;
        self
    }
}

/// Make everything acknowledged so far within a scope *stored*.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FlushRequest {
    /// What to flush. Flushing more than asked is allowed.
    pub scope: Scope,
    /// What goes for every call.
    pub call: Call,
}

impl FlushRequest {
    /// Flush `scope`.
    #[must_use]
    pub fn new(scope: Scope) -> Self {
        Self { scope, call: Call::default() }
    }
}

/// Take over a scope: once the reply is there, changes with older epochs are refused in it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// What to take over.
    pub scope: Scope,
    /// The new epoch, above the one in force; its holder may claim the one in force again. 0 only asks.
    pub epoch: Epoch,
    /// The writer that takes the scope over. Of no meaning where `epoch` is 0.
    pub writer: WriterId,
    /// What goes for every call.
    pub call: Call,
}

impl ClaimRequest {
    /// Takes over `scope` with `epoch`, for `writer`.
    #[must_use]
    pub fn new(scope: Scope, epoch: Epoch, writer: WriterId) -> Self {
        Self { scope, epoch, writer, call: Call::default() }
    }

    /// Asks which epoch is in force in `scope`, and changes nothing: answered with epoch 0 if there is none, else
    /// with [`Error::Fenced`](crate::Error::Fenced), which names it.
    #[must_use]
    pub fn ask(scope: Scope) -> Self {
        Self::new(scope, Epoch(0), WriterId(0))
    }
}

/// Tell a backend that its scope may have been changed behind its back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InvalidateRequest {
    /// What may have changed.
    pub scope: Scope,
    /// What goes for every call.
    pub call: Call,
}

impl InvalidateRequest {
    /// `scope` may have changed.
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
