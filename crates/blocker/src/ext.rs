//! Convenience methods for callers: one for each kind of change, and shorter ones for whole
//! objects, ranges and listings.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;

use crate::admission::{EPOCH_STEP_MAX, check_epoch_step};
use crate::{
    Blocker, Call, ChangeReply, ClaimReply, ClaimRequest, CompareAndWriteRequest, CopyRequest, DeleteRequest,
    DiscardRequest, Durability, Epoch, Error, InfoRequest, ListEntry, ListReply, ListRequest, Namespace,
    ObjectId, ReadReply, ReadRequest, Reply, ReplyFuture, Result, Scope, Segments, TruncateRequest, Version,
    WriteFullRequest, WriteRequest, WriteRunsRequest, WriteZeroesRequest,
};

/// The maximum number of restarts of [`BlockerExt::read_range`] because the object changed during
/// the read.
const TRIES: u32 = 8;

macro_rules! changes {
    ($($(#[$doc:meta])* $method:ident($request:ty);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// Returns the errors of [`Blocker::change`].
            #[inline]
            fn $method(&self, request: $request) -> Reply<ChangeReply> {
                self.change(request.into())
            }
        )*
    };
}

/// The operations of [`Blocker::change`] by name, whole objects, ranges and listings of any
/// blocker. Every [`Blocker`] implements this trait.
///
/// Shorter forms have names of their own (`remove` for [`Self::delete`], `entries` for
/// [`Blocker::list`]).
///
/// ```
/// use blocker::executor::block_on;
/// use blocker::{BlockerExt, Memory, ObjectId};
///
/// let store = Memory::default();
/// let id: ObjectId = "vm/disk.0".parse()?;
/// block_on(async {
///     store.put(&id, b"hello").await?;
///     assert!(store.exists(&id).await?);
///     assert_eq!(store.get(&id).await?, b"hello"[..]);
///     assert_eq!(store.read_range(&id, 1..3).await?, b"el"[..]);
///     assert!(store.remove(&id).await?);
///     assert_eq!(store.get(&id).await, Err(blocker::Error::Missing));
///     Ok::<_, blocker::Error>(())
/// })?;
/// # Ok::<_, blocker::Error>(())
/// ```
pub trait BlockerExt: Blocker {
    changes! {
        /// Writes a range: [`Change::Write`](crate::Change::Write).
        write(WriteRequest);
        /// Writes zeros over a range: [`Change::WriteZeroes`](crate::Change::WriteZeroes).
        write_zeroes(WriteZeroesRequest);
        /// Writes several ranges in one change: [`Change::WriteRuns`](crate::Change::WriteRuns).
        write_runs(WriteRunsRequest);
        /// Discards a range: [`Change::Discard`](crate::Change::Discard).
        discard(DiscardRequest);
        /// Writes a range if it has the expected bytes:
        /// [`Change::CompareAndWrite`](crate::Change::CompareAndWrite).
        compare_and_write(CompareAndWriteRequest);
        /// Replaces the whole content: [`Change::WriteFull`](crate::Change::WriteFull).
        write_full(WriteFullRequest);
        /// Sets the size of an object: [`Change::Truncate`](crate::Change::Truncate).
        truncate(TruncateRequest);
        /// Removes an object: [`Change::Delete`](crate::Change::Delete).
        delete(DeleteRequest);
        /// Replaces the whole content with the content of another object:
        /// [`Change::Copy`](crate::Change::Copy).
        copy(CopyRequest);
    }

    /// Returns the epoch in force in a scope; 0 if the scope was never claimed. Changes nothing.
    ///
    /// # Errors
    /// Returns the errors of [`Blocker::claim`], except `Fenced`.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    fn epoch_in_force(&self, scope: Scope, call: Call) -> impl Future<Output = Result<Epoch>> + Send {
        let asked = self.claim(ClaimRequest { call, ..ClaimRequest::ask(scope) });
        async move {
            match asked.await {
                Ok(reply) => Ok(reply.epoch),
                Err(Error::Fenced { epoch }) => Ok(epoch),
                Err(error) => Err(error),
            }
        }
    }

    /// Claims a scope like [`Blocker::claim`], even if the epoch is more than [`EPOCH_STEP_MAX`] above
    /// the one in force: if necessary, first claims epochs in between.
    ///
    /// # Errors
    /// Returns the errors of [`Blocker::claim`]; an epoch in between may then be in force.
    fn claim_in_steps(&self, request: ClaimRequest) -> impl Future<Output = Result<ClaimReply>> + Send {
        async move {
            let mut step = Epoch(0);
            loop {
                let refused = match self.claim(request.clone()).await {
                    Err(error @ Error::Invalid(_)) => error,
                    claimed => return claimed,
                };
                let in_force = self.epoch_in_force(request.scope.clone(), request.call).await?;
                // A store that grants a step, but does not put it in force, would be asked forever.
                if in_force < step || check_epoch_step(in_force, request.epoch).is_ok() {
                    return Err(refused);
                }
                step = Epoch(in_force.0 + EPOCH_STEP_MAX);
                self.claim(ClaimRequest { epoch: step, ..request.clone() }).await?;
            }
        }
    }

    /// Returns the whole content of an object.
    ///
    /// # Errors
    /// Returns `Missing`, and the errors of [`Self::read_range`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    fn get(&self, object: &ObjectId) -> impl Future<Output = Result<Bytes>> + Send {
        let read = read_all(self, object.clone(), 0..u64::MAX);
        async move { Ok(read.await?.to_bytes()) }
    }

    /// Returns the bytes of an object within `range`, up to its end. All bytes are of one version,
    /// even if the read takes several requests.
    ///
    /// # Errors
    /// Returns `Missing`; `Retryable` if the object changed too often during the read; the errors
    /// of [`Blocker::read`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    fn read_range(&self, object: &ObjectId, range: Range<u64>) -> impl Future<Output = Result<Bytes>> + Send {
        let read = read_all(self, object.clone(), range);
        async move { Ok(read.await?.to_bytes()) }
    }

    /// Makes `data` the whole content of an object, with the strongest durability that one request
    /// can ask for. Usually the content is *stored* when this returns.
    ///
    /// # Errors
    /// Returns `TooLarge` if `data` is longer than one request can carry; the errors of
    /// [`Blocker::change`].
    ///
    /// # Cancel safety
    /// The same as for [`Blocker::change`].
    fn put(
        &self,
        object: &ObjectId,
        data: impl Into<Segments>,
    ) -> impl Future<Output = Result<ChangeReply>> + Send {
        let request = WriteFullRequest::new(object.clone(), data).durability(self.strongest());
        self.write_full(request).into_future()
    }

    /// Removes an object, with the strongest durability that one request can ask for. Returns
    /// whether the object existed.
    ///
    /// # Errors
    /// Returns the errors of [`Blocker::change`], except `Missing`.
    ///
    /// # Cancel safety
    /// The same as for [`Blocker::change`].
    fn remove(&self, object: &ObjectId) -> impl Future<Output = Result<bool>> + Send {
        let removed = self.delete(DeleteRequest::new(object.clone()).durability(self.strongest()));
        async move { is_found(removed.await) }
    }

    /// Returns whether the object exists.
    ///
    /// # Errors
    /// Returns the errors of [`Blocker::info`], except `Missing`.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    fn exists(&self, object: &ObjectId) -> impl Future<Output = Result<bool>> + Send {
        let info = self.info(InfoRequest::new(object.clone()));
        async move { is_found(info.await) }
    }

    /// Returns a stream of the namespace's objects whose names begin with `prefix` (all objects for
    /// an empty prefix), in bytewise order. The stream ends after the first error.
    ///
    /// ```
    /// use blocker::executor::block_on;
    /// use blocker::{BlockerExt, Memory, Namespace};
    /// use futures_util::TryStreamExt;
    ///
    /// let store = Memory::default();
    /// block_on(async {
    ///     for name in ["vm/a", "vm/b", "other/c"] {
    ///         store.put(&name.parse()?, b"").await?;
    ///     }
    ///     let entries: Vec<_> = store.entries(Namespace::new("vm")?, "").try_collect().await?;
    ///     assert_eq!(entries.len(), 2);
    ///     Ok::<_, blocker::Error>(())
    /// })?;
    /// # Ok::<_, blocker::Error>(())
    /// ```
    fn entries(&self, namespace: Namespace, prefix: impl Into<Bytes>) -> Entries<'_, Self> {
        let entries_max = self.capabilities().list_entries_max;
        let next = ListRequest::new(namespace).prefix(prefix).entries_max(entries_max);
        Entries { blocker: self, next: Some(next), page: VecDeque::new(), fetching: None }
    }

    /// Returns the strongest durability that one request can ask for.
    #[doc(hidden)]
    fn strongest(&self) -> Durability {
        self.capabilities().durability_max
    }
}

impl<B: Blocker + ?Sized> BlockerExt for B {}

fn is_found<T>(answer: Result<T>) -> Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(Error::Missing) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads `range` with as few requests as possible.
async fn read_all<B: Blocker + ?Sized>(blocker: &B, object: ObjectId, range: Range<u64>) -> Result<Segments> {
    let can = blocker.capabilities();
    for _ in 0..TRIES {
        let (mut all, mut at) = (Segments::new(), range.start);
        let mut version: Option<Version> = None;
        loop {
            let len_bytes = range.end.saturating_sub(at).min(can.request_bytes_max);
            let mut request = ReadRequest::new(object.clone(), at, len_bytes);
            if let Some(version) = version.filter(|_| can.conditions) {
                request = request.if_version(version);
            }
            let ReadReply { data, size_bytes, version: found, .. } = match blocker.read(request).await {
                Ok(reply) => reply,
                // The object was replaced or removed in between; the next attempt reads the new
                // state.
                Err(Error::ConditionFailed { .. } | Error::Missing) if version.is_some() => break,
                Err(error) => return Err(error),
            };
            if version.is_some_and(|version| version != found) {
                break;
            }
            version = Some(found);
            at += data.len_bytes() as u64;
            let is_short = data.is_empty();
            all.append(data);
            if at >= range.end.min(size_bytes) || is_short {
                return Ok(all);
            }
        }
    }
    Err(Error::Retryable("the object changes faster than it can be read".into()))
}

/// The stream that [`BlockerExt::entries`] returns.
#[must_use = "a stream does nothing unless it is polled"]
pub struct Entries<'a, B: ?Sized> {
    blocker: &'a B,
    /// The next page's request; `None` after the last page.
    next: Option<ListRequest>,
    page: VecDeque<ListEntry>,
    fetching: Option<ReplyFuture<ListReply>>,
}

impl<B: Blocker + ?Sized> Stream for Entries<'_, B> {
    type Item = Result<ListEntry>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(entry) = this.page.pop_front() {
                return Poll::Ready(Some(Ok(entry)));
            }
            let Some(request) = &this.next else { return Poll::Ready(None) };
            let fetching =
                this.fetching.get_or_insert_with(|| this.blocker.list(request.clone()).into_future());
            let answer = ready!(Pin::new(fetching).poll(cx));
            this.fetching = None;
            match answer {
                Ok(page) => {
                    let last = page.entries.last().filter(|_| page.has_more).map(|entry| entry.name.clone());
                    this.next = this.next.take().zip(last).map(|(request, last)| request.after(last));
                    this.page = page.entries.into();
                }
                Err(error) => {
                    this.next = None;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

impl<B: ?Sized> fmt::Debug for Entries<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries").field("next", &self.next).field("page", &self.page).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::capabilities::Capabilities;
    use crate::executor::block_on;
    use crate::memory::Memory;

    /// A store with small requests and pages, whose object changes before each of its first reads.
    struct Small {
        memory: Memory,
        changes_left: AtomicU32,
    }

    impl Small {
        fn new(changes: u32) -> Self {
            Self { memory: Memory::default(), changes_left: AtomicU32::new(changes) }
        }
    }

    impl Blocker for Small {
        crate::delegate!(|this| this.memory, except capabilities read);

        fn capabilities(&self) -> Capabilities {
            let mut can = self.memory.capabilities();
            (can.request_bytes_max, can.list_entries_max) = (4096, 2);
            can
        }

        fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
            let left = self.changes_left.load(Ordering::Relaxed);
            if left > 0 {
                self.changes_left.store(left - 1, Ordering::Relaxed);
                block_on(self.memory.write(WriteRequest::new(request.object.clone(), 0, b"x"))).unwrap();
            }
            self.memory.read(request)
        }
    }

    fn id(name: &'static str) -> ObjectId {
        name.parse().unwrap()
    }

    fn fill(store: &Small) -> Vec<u8> {
        let data: Vec<u8> = (0..10_000_u32).map(|index| index as u8).collect();
        block_on(store.memory.put(&id("n/o"), data.clone())).unwrap();
        data
    }

    #[test]
    fn what_takes_several_requests_is_of_one_version() {
        let store = Small::new(5);
        let mut data = fill(&store);
        data[0] = b'x';
        assert_eq!(block_on(store.get(&id("n/o"))).unwrap(), data);
        assert_eq!(block_on(store.read_range(&id("n/o"), 4000..9000)).unwrap(), data[4000..9000]);
        assert_eq!(block_on(store.read_range(&id("n/o"), 9999..20_000)).unwrap(), data[9999..]);
        assert_eq!(block_on(store.read_range(&id("n/o"), 20_000..20_001)).unwrap(), b""[..]);
    }

    #[test]
    fn an_object_that_never_rests_is_an_error() {
        let store = Small::new(u32::MAX);
        fill(&store);
        assert!(matches!(block_on(store.get(&id("n/o"))), Err(Error::Retryable(_))));
    }

    #[test]
    fn entries_span_pages_and_end_after_an_error() {
        let store = Small::new(0);
        for name in ["n/a1", "n/a2", "n/a3", "n/b", "m/a"] {
            block_on(store.put(&id(name), b"")).unwrap();
        }
        let mut entries = store.entries(Namespace::new("n").unwrap(), "a");
        let next = |entries: &mut Entries<'_, Small>| {
            block_on(std::future::poll_fn(|cx| Pin::new(&mut *entries).poll_next(cx)))
        };
        for name in ["a1", "a2", "a3"] {
            assert_eq!(next(&mut entries).unwrap().unwrap().name.as_bytes(), name.as_bytes());
        }
        assert!(next(&mut entries).is_none() && next(&mut entries).is_none());
    }

    #[test]
    fn what_is_missing_is_no_error_to_exists_and_remove() {
        let store = Memory::default();
        assert_eq!(block_on(store.exists(&id("n/o"))), Ok(false));
        assert_eq!(block_on(store.remove(&id("n/o"))), Ok(false));
        assert_eq!(block_on(store.get(&id("n/o"))), Err(Error::Missing));
    }
}
