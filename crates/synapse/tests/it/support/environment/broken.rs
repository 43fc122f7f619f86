//! Layers that each break one promise, to prove that the checks detect it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blocker::{Blocker, Change, ChangeReply, ChangeRequest, Durability, Error, Reply, Version};

/// The promise that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// A write is applied again some time after it was acknowledged.
    Once,
    /// A write is acknowledged but not made.
    Acknowledged,
    /// A write is refused permanently, but made nevertheless.
    Refused,
    /// A write is acknowledged before it is made.
    Order,
    /// A write with unknown outcome is reported as failed.
    Unknown,
}

impl Promise {
    pub const ALL: [Self; 5] = [Self::Once, Self::Acknowledged, Self::Refused, Self::Order, Self::Unknown];
}

/// Forwards every call, but breaks `promise` for one write in `every`.
pub struct Broken {
    inner: Arc<dyn Blocker>,
    promise: Promise,
    every: u64,
    writes: AtomicU64,
}

impl Broken {
    pub fn new(inner: Arc<dyn Blocker>, promise: Promise, every: u64) -> Arc<Self> {
        Arc::new(Self { inner, promise, every, writes: AtomicU64::new(0) })
    }

    /// Makes the write after `delay`, without a caller, even if its deadline has passed.
    fn later(&self, mut request: ChangeRequest, delay: Duration) {
        request.call.deadline = None;
        let inner = Arc::clone(&self.inner);
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            inner.change(request).await.expect("a late write");
        });
    }
}

impl Blocker for Broken {
    blocker::delegate!(|this| this.inner, except change);

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        if !matches!(request.change, Change::Write { .. }) {
            return self.inner.change(request);
        }
        if self.writes.fetch_add(1, Ordering::Relaxed) % self.every != self.every - 1 {
            return self.inner.change(request);
        }
        let acknowledged = Reply::ok(ChangeReply::new(Version(0), 4096, Durability::Cached));
        match self.promise {
            Promise::Once => {
                self.later(request.clone(), Duration::from_millis(40));
                self.inner.change(request)
            }
            Promise::Acknowledged => acknowledged,
            Promise::Refused => self.inner.change(request).then(|_| Err(Error::Retryable("refused".into()))),
            Promise::Order => {
                self.later(request, Duration::from_millis(40));
                acknowledged
            }
            Promise::Unknown => {
                self.later(request, Duration::from_millis(40));
                Reply::err(Error::DeadlinePassed)
            }
        }
    }
}
