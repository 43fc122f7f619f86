//! Requests: one struct for each operation, created by `new` and refined by methods, so that fields
//! can be added without breaking callers. Requests to change an object are in [`crate::change`].
//!
//! Every request has a [`Call`]: its deadline, urgency and trace, and hints about the use of the
//! data.

use std::fmt;
use std::str::FromStr;

use crate::name::split_path;
use crate::trace::TraceContext;
use crate::{
    ChangeRequest, Clock, Durability, Epoch, Error, Name, Namespace, ObjectId, OrderDomain, Result,
    Timestamp, Version, WriterId,
};

/// Hints about the caller's use of the data. A backend may ignore hints.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Hints(u32);

impl Hints {
    /// No hint.
    pub const NONE: Self = Self(0);
    /// The data will not be needed again soon, so caches should not evict other data for them.
    pub const NO_CACHE: Self = Self(1);
    /// The request is part of a sequential run.
    pub const SEQUENTIAL: Self = Self(2);
    /// The requests are random, so read-ahead is useless.
    pub const RANDOM: Self = Self(4);

    /// Returns these hints together with `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether these hints include all of `other`.
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

/// The urgency of a call relative to other calls in the same namespace. A backend may ignore the
/// urgency.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Priority {
    /// No caller is waiting for the call, for example read-ahead, copies and checks.
    Low,
    /// A caller is waiting for the call.
    #[default]
    Normal,
    /// Other calls are waiting for the call.
    Urgent,
}

/// The terms of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Call {
    /// The time when the caller stops waiting, on the clock that caller and blocker share, or
    /// `None` if the caller waits forever.
    pub deadline: Option<Timestamp>,
    /// Hints about the use of the data.
    pub hints: Hints,
    /// The urgency.
    pub priority: Priority,
    /// The trace that the call belongs to, if the call is traced.
    pub trace: Option<TraceContext>,
}

impl Call {
    /// Checks that the deadline has not passed.
    ///
    /// # Errors
    /// Returns [`Error::DeadlinePassed`].
    pub fn check(&self, clock: &dyn Clock) -> Result<()> {
        let is_late = self.deadline.is_some_and(|deadline| clock.now() >= deadline);
        if is_late { Err(Error::DeadlinePassed) } else { Ok(()) }
    }
}

/// The condition under which a change, or a read, may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Condition {
    /// Always.
    #[default]
    None,
    /// The object must not exist; otherwise the error is [`crate::Error::Exists`].
    Absent,
    /// The object must exist; otherwise the error is [`crate::Error::Missing`].
    Present,
    /// The object must have this version; otherwise the error is [`crate::Error::ConditionFailed`]
    /// or [`crate::Error::Missing`].
    Version(Version),
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
                Err(Error::Invalid(format!("{text:?} is not a scope; expected {known}").into()))
            }
        }
    }
}

macro_rules! with_call {
    ($($type:ident $(<$kind:ident>)?)*) => {$(
        impl $(<$kind>)? $type $(<$kind>)? {
            /// Sets the time when the caller stops waiting.
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

            /// Sets the urgency of the call.
            #[must_use]
            pub fn priority(mut self, priority: Priority) -> Self {
                self.call.priority = priority;
                self
            }

            /// Sets all terms of the call.
            #[must_use]
            pub fn call(mut self, call: Call) -> Self {
                self.call = call;
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
    /// The offset of the range, in bytes.
    pub offset: u64,
    /// The length of the range in bytes. The returned bytes end at the object's end.
    pub len_bytes: u64,
    /// The condition of the read: a required version, or no condition.
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
    /// The required prefix of the names; empty for all names.
    pub prefix: bytes::Bytes,
    /// The name after which the page begins: the last name of the previous page.
    pub after: Option<Name>,
    /// The maximum number of entries, which the capabilities may limit further; 0 counts as 1.
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

    /// Sets the maximum number of entries.
    #[must_use]
    pub fn entries_max(mut self, entries_max: u32) -> Self {
        self.entries_max = entries_max;
        self
    }
}

/// A request to make all changes that were acknowledged within a scope *stored*, or as durable as
/// requested.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FlushRequest {
    /// The scope to flush. A blocker may flush more.
    pub scope: Scope,
    /// The minimum durability after the flush. A blocker may provide a stronger one: a blocker
    /// without a log stores.
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

    /// Sets the minimum durability after the flush: *journaled* is enough for a guest's flush.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }
}

/// A request to take over a scope. After the reply, changes with older epochs are refused in the
/// scope.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// The scope to take over.
    pub scope: Scope,
    /// The new epoch, which must be above the epoch in force; only the holder of the epoch in force
    /// may claim it again. 0 only queries the epoch.
    pub epoch: Epoch,
    /// The writer that takes over the scope. Ignored if `epoch` is 0.
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

    /// Returns a request that queries the epoch in force in `scope` and changes nothing. The result
    /// is epoch 0 if the scope was never claimed, and otherwise [`Error::Fenced`] with the epoch.
    #[must_use]
    pub fn ask(scope: Scope) -> Self {
        Self::new(scope, Epoch(0), WriterId(0))
    }
}

/// A notification that a scope may have been changed without this blocker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InvalidateRequest {
    /// The scope that may have changed.
    pub scope: Scope,
    /// Whether the caller accepts the losses in the scope so far: flushes then no longer report
    /// them. A caller that only wants to read the store's current data does not.
    pub accepts_losses: bool,
    /// The terms of the call.
    pub call: Call,
}

impl InvalidateRequest {
    /// Returns a notification that `scope` may have changed, which accepts the losses in it.
    #[must_use]
    pub fn new(scope: Scope) -> Self {
        Self { scope, accepts_losses: true, call: Call::default() }
    }

    /// Sets whether the caller accepts the losses in the scope so far.
    #[must_use]
    pub fn accepts_losses(mut self, accepts_losses: bool) -> Self {
        self.accepts_losses = accepts_losses;
        self
    }
}

with_call! { ReadRequest ChangeRequest<K> InfoRequest ListRequest FlushRequest ClaimRequest InvalidateRequest }

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
