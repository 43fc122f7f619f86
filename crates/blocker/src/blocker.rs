//! The trait itself, with both sides of the bargain.

use std::sync::Arc;

use crate::capabilities::Capabilities;
use crate::control::{Control, NoControl};
use crate::error::Error;
use crate::event::Subscription;
use crate::reply::Reply;
use crate::request::{
    ClaimRequest, CompareAndWriteRequest, CopyRequest, DeleteRequest, DiscardRequest, FlushRequest,
    InfoRequest, InvalidateRequest, ListRequest, ReadRequest, TruncateRequest, WriteFullRequest,
    WriteRequest, WriteRunsRequest, WriteZeroesRequest,
};
use crate::response::{
    ChangeReply, ClaimReply, DeleteReply, FlushReply, Info, InvalidateReply, ListReply, ReadReply,
};

/// Something that keeps objects: a store, a cache before a store, a connection to one.
///
/// # What holds for every implementation
///
/// **Content.** An object is a run of bytes from 0 to its size, at most `object_bytes_max`. Ranges
/// never written read as zeros (*holes*). A read returns what lies within the object and stops at its
/// end: past the end there are no bytes, not zeros, and no error. Nothing that was cut off, discarded or
/// deleted is ever read again; when the end moves out once more, zeros are found there.
///
/// **Atomicity.** Every operation is one step for readers as far as `atomic_bytes` goes, and always
/// within one aligned bucket of 4 096 bytes: a reader finds all of it or none. Conditions, stamps and
/// comparisons are checked in the same step as the change they guard. A longer operation may be seen,
/// or left by a crash, partly done.
///
/// **Order.** When a reply has come, whoever asks afterwards sees the change. Of two changes that
/// overlap in time either may come first. `list` is no snapshot: an object that is there from before
/// the first page until after the last is in it exactly once; others may or may not be.
///
/// **Durability.** A reply names what it gives, at least what was asked for. Until a change is
/// *stored* a crash may undo it, wholly or in aligned units of `crash_atomic_bytes`, in any order
/// against other changes that are not stored. What is stored stays. After `flush` has returned, all
/// that was acknowledged within its scope before it was called is stored. A flush of an order domain
/// also closes its generation: whatever the loss, a store that has any change made after the flush
/// returned has every change acknowledged before it was called. A change that overlaps the flush in
/// time may count to either side.
///
/// **Fencing.** A change is refused with `Fenced` if its epoch is below the epoch claimed for its
/// object, domain, namespace or everything, or below the object's own stamp's; a change without a stamp
/// has epoch 0. It is refused with `Superseded` if its stamp is not above the object's. When `claim`
/// has returned, no older change is still to land; the claim itself is stored. Epochs are exclusive: one that is
/// in force anywhere in a claim's scope is refused with `Fenced` to every writer but the one that claimed it, for
/// which the claim succeeds again. (A domain may have any object of its namespace, so the two overlap.) An epoch
/// rises by at most [`EPOCH_STEP_MAX`](crate::admission::EPOCH_STEP_MAX) above the one in force, by a claim or by a
/// stamp; a larger step is `Invalid`, so that no single mistake uses up all epochs there are. A stamped delete is
/// remembered if `tombstones` says so, until a claim makes remembering it needless. Stamps take part
/// in durability like data: never stored before the data they stand for.
///
/// **Conditions.** Checked after fencing, before anything is changed. `write`, `write_zeroes`, `write_runs`,
/// `write_full` and `copy` create their object if it is missing; `discard`, `truncate`,
/// `compare_and_write` and `delete` fail with `Missing`.
///
/// **Limits.** A range that ends beyond `object_bytes_max`, a request beyond `request_bytes_max`:
/// `TooLarge`, and nothing is changed. A read may ask beyond the object's limit.
///
/// **Runs.** `write_runs` is one change, however many its runs: admitted once, one stamp, one new version, and
/// what a reply, a crash or a lost answer says of it is true of all runs together. It is as atomic as one
/// write that reaches from the first run's begin to the last one's end.
///
/// # When time runs out
///
/// At its deadline a call answers, whatever it waits for. `DeadlinePassed`: it was not begun, and
/// never will be. A change that had begun answers `OutcomeUnknown`: it may be done, or be done later;
/// read back before changing that object again, or send the same stamp again. A flush answers
/// `NotStored`, and the data stay dirty and readable. A deadline is not a promise that the store has
/// stopped working on it.
///
/// # Cancel safety
///
/// Dropping a reply, polled or not, cancels the wait. An operation that had not begun never begins;
/// one that had begun runs to its end, wholly, as if the answer had been lost: take its outcome as
/// unknown. Nothing is held, locked, leaked or torn by it, and other callers are not delayed. A
/// cancelled flush may have stored something; a cancelled claim counts as perhaps made.
///
/// # What the caller owes
///
/// - Payload bytes that do not change while the request or a read's segments live, and segments
///   dropped when they are no longer needed: they may pin a cache's memory.
/// - At most one flush-like change in flight per object and writer where stamps are used, rising
///   sequences, and a read-back after `OutcomeUnknown`.
/// - Polling only from wakers: an implementation wakes whoever was polled last.
///
/// # What the implementor owes
///
/// - Never block the caller for I/O, beyond what its documentation admits. Answer
///   [`Reply::Ready`] when the answer is at hand; a layer hands on its inner reply unboxed.
/// - Futures that own what they need, so that they outlive the caller's stack.
/// - The truth in [`Capabilities`], and the conformance suite (feature `conformance`) passed.
pub trait Blocker: Send + Sync {
    /// What this can do. Constant for the life of the handle.
    fn capabilities(&self) -> Capabilities;

    /// Reads a range: the bytes from `offset` up to the range's or the object's end.
    ///
    /// # Errors
    /// `Missing`, `ConditionFailed`, `TooLarge`, `Corrupt`, `DeadlinePassed`, `Retryable`.
    fn read(&self, request: ReadRequest) -> Reply<ReadReply>;

    /// Writes a range, creating the object and moving its end as needed. A write of no bytes is a write
    /// all the same: it creates, is checked, and gives a new version, but never moves the end.
    ///
    /// # Errors
    /// Those of every change: `Fenced`, `Superseded`, `Exists`, `Missing`, `ConditionFailed`,
    /// `TooLarge`, `OutOfSpace`, `OutcomeUnknown`, `DeadlinePassed`, `Retryable`, `Denied`, `Corrupt`,
    /// `WritesLost`, `Unsupported`.
    fn write(&self, request: WriteRequest) -> Reply<ChangeReply>;

    /// Writes zeros over a range, exactly as `write` of so many zero bytes.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn write_zeroes(&self, request: WriteZeroesRequest) -> Reply<ChangeReply>;

    /// Writes several ranges in one change; what lies between them stays. Not every backend has it: the one that
    /// is not written by an implementor refuses, and `runs_max` is 0 there.
    ///
    /// # Errors
    /// As [`Self::write`]; `Invalid` if there is no run, more than `runs_max`, an empty one, or one that begins
    /// before the end of the one before it; `TooLarge` if they have more than `request_bytes_max` bytes
    /// together, zeros included; `Unsupported` where `runs_max` is 0.
    fn write_runs(&self, request: WriteRunsRequest) -> Reply<ChangeReply> {
        drop(request);
        Reply::err(Error::Unsupported("no writing of several ranges in one change here".into()))
    }

    /// Zeroes the part of the range that lies within the object, giving the space back where it can.
    /// The size stays.
    ///
    /// # Errors
    /// As [`Self::write`]; `Missing` if there is no object.
    fn discard(&self, request: DiscardRequest) -> Reply<ChangeReply>;

    /// Compares, and writes if equal, in one step.
    ///
    /// # Errors
    /// As [`Self::write`]; `Mismatch` if the bytes differ or end too early, `Missing`, and
    /// `Unsupported` where `compare_bytes_max` is 0.
    fn compare_and_write(&self, request: CompareAndWriteRequest) -> Reply<ChangeReply>;

    /// Replaces the whole content.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn write_full(&self, request: WriteFullRequest) -> Reply<ChangeReply>;

    /// Moves the end, in or out.
    ///
    /// # Errors
    /// As [`Self::write`]; `Missing` if there is no object.
    fn truncate(&self, request: TruncateRequest) -> Reply<ChangeReply>;

    /// Removes an object.
    ///
    /// # Errors
    /// As [`Self::write`]; `Missing` if there is no object.
    fn delete(&self, request: DeleteRequest) -> Reply<DeleteReply>;

    /// Replaces the whole content of one object by that of another, which stays. Copying an object
    /// onto itself is a change like any other that leaves the bytes as they are. The stamp is not
    /// copied.
    ///
    /// # Errors
    /// As [`Self::write`], for the target; `Missing` or `ConditionFailed` also for the source.
    fn copy(&self, request: CopyRequest) -> Reply<ChangeReply>;

    /// Size, version and stamp.
    ///
    /// # Errors
    /// `Missing`, `Corrupt`, `DeadlinePassed`, `Retryable`.
    fn info(&self, request: InfoRequest) -> Reply<Info>;

    /// One page of a namespace. A namespace nobody has used is empty.
    ///
    /// # Errors
    /// `DeadlinePassed`, `Retryable`, `Corrupt`.
    fn list(&self, request: ListRequest) -> Reply<ListReply>;

    /// Makes everything acknowledged within the scope stored, and closes its generation.
    ///
    /// # Errors
    /// `NotStored`: still dirty and readable. `WritesLost`: see there. `DeadlinePassed`, `Retryable`.
    fn flush(&self, request: FlushRequest) -> Reply<FlushReply>;

    /// Takes over a scope with an epoch. With epoch 0 ([`ClaimRequest::ask`]) it changes nothing, and the answer
    /// names the epoch in force: 0, or that of `Fenced`.
    ///
    /// # Errors
    /// `Fenced` if a newer epoch is in force, or this one by a claim of another writer; `Invalid` if the epoch is
    /// more than [`EPOCH_STEP_MAX`](crate::admission::EPOCH_STEP_MAX) above the one in force; `OutOfSpace` if too
    /// many scopes are claimed; `OutcomeUnknown`, `DeadlinePassed`, `Retryable`, `Unsupported`. After any of the
    /// last five but `Unsupported` the same claim may be made again.
    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply>;

    /// The scope may have been changed behind this backend's back: drops clean copies, hands the news
    /// on to every layer below, and tells subscribers. Dirty data stay.
    ///
    /// # Errors
    /// `DeadlinePassed`, `Retryable`.
    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply>;

    /// Listens to news from here and below, from now on. A claim or invalidation made through this
    /// very handle is news as well.
    fn subscribe(&self) -> Subscription;

    /// Returns the control plane: policies, quotas, metrics, losses. A layer returns that of the blocker below it,
    /// or its own, which forwards there.
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
