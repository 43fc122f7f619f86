//! *Ready or pending*: what an operation answers.
//!
//! A hit must not box a future on its way up through the layers, so an operation returns a plain value
//! that says whether the answer is there already. Only an answer that is not there yet costs an
//! allocation. A pending future owns all it needs (`'static`), so that a server can spawn it.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::error::{Error, Result};

/// An answer that is still to come. Dropping it is cancelling: see [`crate::Blocker`].
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// The answer to an operation: there already, or to come. `.await` works on it directly.
#[must_use = "an operation whose reply is dropped is cancelled"]
pub enum Reply<T> {
    /// The answer.
    Ready(Result<T>),
    /// The answer is to come.
    Pending(Pending<T>),
}

impl<T> Reply<T> {
    /// It worked, and this is the answer.
    pub fn ok(value: T) -> Self {
        Self::Ready(Ok(value))
    }

    /// It failed.
    pub fn err(error: Error) -> Self {
        Self::Ready(Err(error))
    }

    /// The answer will be what `future` gives.
    pub fn pending(future: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        Self::Pending(Box::pin(future))
    }

    /// Whether the answer is there.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready(_))
    }

    /// Passes the answer through `change`, at once where it is there.
    pub fn then<U>(self, change: impl FnOnce(Result<T>) -> Result<U> + Send + 'static) -> Reply<U>
    where
        T: 'static,
    {
        match self {
            Self::Ready(answer) => Reply::Ready(change(answer)),
            Self::Pending(future) => Reply::pending(async move { change(future.await) }),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(answer) => f.debug_tuple("Ready").field(answer).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

impl<T> From<Result<T>> for Reply<T> {
    fn from(answer: Result<T>) -> Self {
        Self::Ready(answer)
    }
}

impl<T: Unpin> IntoFuture for Reply<T> {
    type Output = Result<T>;
    type IntoFuture = ReplyFuture<T>;
    #[inline]
    fn into_future(self) -> ReplyFuture<T> {
        ReplyFuture(Some(self))
    }
}

/// The future behind `reply.await`.
pub struct ReplyFuture<T>(Option<Reply<T>>);

impl<T: fmt::Debug> fmt::Debug for ReplyFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReplyFuture").field(&self.0).finish()
    }
}

impl<T: Unpin> Future for ReplyFuture<T> {
    type Output = Result<T>;

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

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_ready_reply_needs_one_poll_and_a_pending_one_keeps_its_future() {
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
