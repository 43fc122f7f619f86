//! The reply to an operation, ready or pending, and the results of successful operations.
//!
//! A hit must not box a future on its way up through the layers, so an operation returns a plain
//! value: either the result or a boxed future. Only a pending reply costs an allocation. A pending
//! future owns its data (`'static`), so that a server can spawn it as a task.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::{Durability, Epoch, Error, Name, Result, Segments, Stamp, Version};

/// The future of a pending reply. Dropping the future cancels the operation (see
/// [`crate::Blocker`]).
pub type Pending<T, E = Error> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// The reply to an operation, ready or pending. A reply can be awaited. Layers may use their own
/// error types.
///
/// ```
/// use blocker::{Reply, executor::block_on};
///
/// let reply = Reply::pending(async { Ok(2) }).then(|answer| answer.map(|number| number * 21));
/// assert_eq!(block_on(reply), Ok(42));
/// ```
#[must_use = "an operation whose reply is dropped is cancelled"]
pub enum Reply<T, E = Error> {
    /// The answer.
    Ready(Result<T, E>),
    /// The future of the result.
    Pending(Pending<T, E>),
}

impl<T> Reply<T> {
    /// Returns a ready reply for an operation that has succeeded with `value`.
    pub fn ok(value: T) -> Self {
        Self::Ready(Ok(value))
    }

    /// Returns a ready reply for an operation that has failed.
    pub fn err(error: Error) -> Self {
        Self::Ready(Err(error))
    }

    /// Returns a reply whose result is the output of `future`.
    pub fn pending(future: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        Self::Pending(Box::pin(future))
    }
}

impl<T, E> Reply<T, E> {
    /// Returns whether the result is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready(_))
    }

    /// Returns a reply whose result is converted by `change`: immediately if the result is ready,
    /// otherwise later.
    pub fn then<U>(self, change: impl FnOnce(Result<T, E>) -> Result<U, E> + Send + 'static) -> Reply<U, E>
    where
        T: 'static,
        E: 'static,
    {
        match self {
            Self::Ready(answer) => Reply::Ready(change(answer)),
            Self::Pending(future) => Reply::Pending(Box::pin(async move { change(future.await) })),
        }
    }
}

impl<T: fmt::Debug, E: fmt::Debug> fmt::Debug for Reply<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(answer) => f.debug_tuple("Ready").field(answer).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

impl<T, E> From<Result<T, E>> for Reply<T, E> {
    fn from(answer: Result<T, E>) -> Self {
        Self::Ready(answer)
    }
}

impl<T: Unpin, E: Unpin> IntoFuture for Reply<T, E> {
    type Output = Result<T, E>;
    type IntoFuture = ReplyFuture<T, E>;
    #[inline]
    fn into_future(self) -> ReplyFuture<T, E> {
        ReplyFuture(Some(self))
    }
}

/// The future that awaits a [`Reply`].
#[derive(Debug)]
pub struct ReplyFuture<T, E = Error>(Option<Reply<T, E>>);

impl<T: Unpin, E: Unpin> Future for ReplyFuture<T, E> {
    type Output = Result<T, E>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(Reply::Pending(future)) = &mut self.0 {
            let answer = std::task::ready!(future.as_mut().poll(cx));
            self.0 = None;
            return Poll::Ready(answer);
        }
        match self.0.take() {
            Some(Reply::Ready(answer)) => Poll::Ready(answer),
            _ => panic!("polled after completion"),
        }
    }
}

// ---- The replies of successful operations.

macro_rules! response {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// Returns a reply with these values, in the order of the fields.
            #[must_use]
            pub fn new($($field: $type),*) -> Self {
                Self { $($field),* }
            }
        }
    };
}

response! {
    /// The reply to a read: bytes of one version.
    ReadReply {
        /// The bytes of the range, up to the object's end. A hole reads as zeros.
        data: Segments,
        /// The object's size in bytes.
        size_bytes: u64,
        /// The version of the bytes.
        version: Version,
    }
}

response! {
    /// The reply to a change of an object.
    ChangeReply {
        /// The object's version after the change; 0 if it has been removed.
        version: Version,
        /// The object's size after the change, in bytes; 0 if it has been removed.
        size_bytes: u64,
        /// The durability reached: the requested one, or a stronger one.
        durability: Durability,
    }
}

impl ChangeReply {
    /// Returns the reply to the removal of an object.
    #[must_use]
    pub fn removed(durability: Durability) -> Self {
        Self::new(Version(0), 0, durability)
    }
}

response! {
    /// An object's size, version and stamp, including changes that exist only in a cache so far.
    Info {
        /// The object's size in bytes.
        size_bytes: u64,
        /// The object's version.
        version: Version,
        /// The stamp of the last stamped change.
        stamp: Option<Stamp>,
    }
}

response! {
    /// One object of a listing.
    ListEntry {
        /// The object's name.
        name: Name,
        /// The object's size in bytes.
        size_bytes: u64,
        /// The object's version.
        version: Version,
    }
}

response! {
    /// One page of a listing.
    ListReply {
        /// The objects, in bytewise order of their names.
        entries: Vec<ListEntry>,
        /// Whether there may be more objects after the last entry. If so, the page has at least one
        /// entry, after which the next page begins.
        has_more: bool,
    }
}

response! {
    /// The reply to a flush: everything acknowledged before the flush is stored.
    FlushReply {
        /// The durability reached.
        durability: Durability,
    }
}

response! {
    /// The reply to a claim: the scope is taken over.
    ClaimReply {
        /// The epoch in force.
        epoch: Epoch,
    }
}

response! {
    /// The reply to an invalidation: no stale copy of the scope remains.
    InvalidateReply {
        /// The size of the evicted clean copies in bytes, as far as it is known.
        dropped_bytes: u64,
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_ready_reply_completes_at_the_first_poll_and_a_pending_one_with_its_future() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut ready = Reply::ok(1).then(|n| n.map(|n| n + 1)).into_future();
        assert_eq!(Pin::new(&mut ready).poll(&mut cx), Poll::Ready(Ok(2)));

        let mut polls = 0;
        let later = std::future::poll_fn(move |_| {
            polls += 1;
            if polls == 3 { Poll::Ready(Ok(polls)) } else { Poll::Pending }
        });
        let mut pending = Reply::pending(later).then(|n| n.map(|n| n * 10)).into_future();
        assert_eq!(Pin::new(&mut pending).poll(&mut cx), Poll::Pending);
        assert_eq!(Pin::new(&mut pending).poll(&mut cx), Poll::Pending);
        assert_eq!(Pin::new(&mut pending).poll(&mut cx), Poll::Ready(Ok(30)));
    }
}
