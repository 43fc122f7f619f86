//! The trait of the storage contract: what implementors guarantee and what callers must do.

use std::sync::Arc;

use crate::{
    Capabilities, ChangeReply, ChangeRequest, ClaimReply, ClaimRequest, Control, FlushReply, FlushRequest,
    Info, InfoRequest, InvalidateReply, InvalidateRequest, ListReply, ListRequest, NoControl, ReadReply,
    ReadRequest, Reply, Subscription,
};

/// A store of objects, a cache in front of one, or a connection to one.
///
/// # What every implementation guarantees
///
/// **Content.** An object is a sequence of bytes from 0 to its size, at most `object_bytes_max`.
/// Ranges never written read as zeros (*holes*). A read stops at the object's end: beyond it there
/// are neither bytes nor zeros, and no error. Truncated, discarded or deleted bytes are never read
/// again; if the object grows later, zeros are read there.
///
/// **Atomicity.** Every operation of up to `atomic_bytes`, or within one aligned bucket of 4 096
/// bytes, is atomic for readers. Conditions, stamps and comparisons are checked in the same step as
/// the change that they guard. A longer operation may be seen half done by readers, or after a
/// crash.
///
/// **Order.** A request made after a change was acknowledged sees that change. Concurrent changes
/// may be applied in either order. `list` is not a snapshot: an object that exists from before the
/// first page until after the last is listed exactly once; others may or may not be.
///
/// **Durability.** A reply states the durability reached, which is at least the one requested.
/// Until a change is *stored*, a crash may undo it, wholly or in aligned units of
/// `crash_atomic_bytes`, in any order relative to other changes that are not stored. Stored data
/// stay. When `flush` has returned, everything acknowledged within its scope before it was called
/// is stored. A flush of an order domain also closes its generation: after any loss, a store that
/// has a change made after the flush returned also has every change acknowledged before it was
/// called. A change concurrent with the flush may belong to either generation.
///
/// **Fencing.** A change is refused with `Fenced` if its epoch is below the epoch claimed for its
/// object, domain, namespace or everything, or below that of the object's own stamp; a change
/// without a stamp has epoch 0. It is refused with `Superseded` if its stamp is not above the
/// object's. When `claim` has returned, older changes can no longer be applied; the claim itself
/// is stored. Epochs are exclusive: if an epoch is in force anywhere in a claim's scope, only the
/// writer that claimed it can claim it again; others get `Fenced`. (A domain may contain any object
/// of its namespace, so the two overlap.) An epoch rises by at most
/// [`EPOCH_STEP_MAX`](crate::admission::EPOCH_STEP_MAX) above the one in force, by a claim or by a
/// stamp; a larger step is `Invalid`, so that a single mistake cannot use up all epochs. If
/// `tombstones` is true, a stamped delete is remembered until a claim makes the record of it
/// unnecessary. Stamps are durable like data: never stored before the data that they belong to.
///
/// **Conditions** are checked after fencing, before anything is changed. [`Change`](crate::Change)
/// tells which changes create their object if it is missing.
///
/// **Limits.** A change whose range ends beyond `object_bytes_max`, and a request of more than
/// `request_bytes_max` bytes, is `TooLarge`, and nothing is changed. The range of a read may end
/// beyond `object_bytes_max`.
///
/// **Runs.** [`Change::WriteRuns`](crate::Change::WriteRuns) is one change, whatever the number of
/// its runs: one admission, one stamp, one new version. A reply, a crash or a lost reply concerns
/// all runs together. The change is as atomic as a single write from the start of the first run to
/// the end of the last run.
///
/// # Deadlines
///
/// A call returns at its deadline, whatever it is waiting for. `DeadlinePassed` means that the
/// operation has not begun, and will not begin. A change that has begun returns `OutcomeUnknown`:
/// it may have been applied, or may still be applied; read the object before changing it again, or
/// retry with the same stamp. A flush returns `NotStored`, and the data stay dirty and readable.
/// The store may still be working on the call after its deadline.
///
/// # Cancel safety
///
/// Dropping a reply, polled or not, cancels the wait. An operation that has not begun never begins;
/// an operation that has begun runs to completion, and its caller does not learn the outcome. No
/// resource stays locked or leaks, no data are torn, and other callers are not delayed. A cancelled
/// flush may have stored data; a cancelled claim may have taken effect.
///
/// # What callers owe
///
/// - Payload bytes do not change during the lifetime of the request, or of the segments that a read
///   returned. Callers drop segments as soon as they no longer need them: segments may pin a
///   cache's memory.
/// - A writer that uses stamps has at most one change of an object in flight, increases the
///   sequence number with each change, and reads the object after `OutcomeUnknown`.
/// - A reply is polled again only after its waker was called. Only the waker of the last poll is
///   called.
///
/// # What implementors owe
///
/// - An operation does not block the caller for I/O, unless its documentation says so. It returns
///   [`Reply::Ready`] if the result is available immediately. A layer passes on the reply of the
///   blocker below without boxing it.
/// - Futures own their data, so that they can outlive the caller's stack.
/// - The [`Capabilities`] are true, and the conformance suite (feature `conformance`) passes.
pub trait Blocker: Send + Sync {
    /// Returns the capabilities of this blocker, which are constant for the lifetime of the handle.
    fn capabilities(&self) -> Capabilities;

    /// Reads a range: the bytes from `offset` up to the range's or the object's end.
    ///
    /// # Errors
    /// Returns `Missing`, `ConditionFailed`, `TooLarge`, `Corrupt`, `DeadlinePassed`, `Retryable`.
    fn read(&self, request: ReadRequest) -> Reply<ReadReply>;

    /// Changes an object. [`BlockerExt`](crate::BlockerExt) has a method for each operation.
    ///
    /// # Errors
    /// Returns `Fenced`, `Superseded`, `Exists`, `Missing`, `ConditionFailed`, `TooLarge`,
    /// `OutOfSpace`, `OutcomeUnknown`, `DeadlinePassed`, `Retryable`, `Denied`, `Corrupt`,
    /// `WritesLost`, `Unsupported`, and further errors that [`Change`](crate::Change) names.
    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply>;

    /// Returns an object's size, version and stamp.
    ///
    /// # Errors
    /// Returns `Missing`, `Corrupt`, `DeadlinePassed`, `Retryable`.
    fn info(&self, request: InfoRequest) -> Reply<Info>;

    /// Returns one page of a namespace. A namespace that was never used is empty.
    ///
    /// # Errors
    /// Returns `DeadlinePassed`, `Retryable`, `Corrupt`.
    fn list(&self, request: ListRequest) -> Reply<ListReply>;

    /// Stores all acknowledged changes within the scope, and closes the scope's generation. If the
    /// request asks for a weaker durability, a blocker may do less; the reply states the durability
    /// reached.
    ///
    /// # Errors
    /// Returns `NotStored`: the data are still dirty and readable.
    /// [`Error::WritesLost`](crate::Error::WritesLost), `DeadlinePassed`, `Retryable`.
    fn flush(&self, request: FlushRequest) -> Reply<FlushReply>;

    /// Takes over a scope with an epoch. With epoch 0 ([`ClaimRequest::ask`]) it changes nothing,
    /// and returns the epoch in force: 0 in the reply, or another one in `Fenced`.
    ///
    /// # Errors
    /// Returns `Fenced` if a newer epoch is in force, or another writer has claimed this one;
    /// `Invalid` if the epoch is more than [`EPOCH_STEP_MAX`](crate::admission::EPOCH_STEP_MAX)
    /// above the one in force; `OutOfSpace` if too many scopes are claimed; `OutcomeUnknown`,
    /// `DeadlinePassed`, `Retryable`, `Unsupported`. After `OutOfSpace`, `OutcomeUnknown`,
    /// `DeadlinePassed` or `Retryable` the same claim may be retried.
    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply>;

    /// Evicts, in every layer, the clean copies of a scope that other writers may have changed
    /// without this blocker, and notifies subscribers. Dirty data stay. Losses in the scope are
    /// forgotten only if the request accepts them.
    ///
    /// # Errors
    /// Returns `DeadlinePassed`, `Retryable`.
    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply>;

    /// Subscribes to the events of this blocker and of those below it, from now on. A claim or
    /// invalidation through this handle is also an event.
    fn subscribe(&self) -> Subscription;

    /// Returns the control plane: policies, quotas, metrics, losses. A layer returns either the
    /// control plane of the blocker below, or its own, which forwards to the one below.
    fn control(&self) -> &dyn Control {
        &NoControl
    }
}

impl<B: Blocker + ?Sized> Blocker for Arc<B> {
    crate::delegate!(|this| **this);
}

impl<B: Blocker + ?Sized> Blocker for Box<B> {
    crate::delegate!(|this| **this);
}

impl<B: Blocker + ?Sized> Blocker for &B {
    crate::delegate!(|this| **this);
}
