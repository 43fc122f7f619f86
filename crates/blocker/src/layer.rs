//! The empty layer: hands every call on. What a layer costs at least, and what one starts from.

use std::sync::Arc;

use crate::blocker::Blocker;
use crate::capabilities::Capabilities;
use crate::event::Subscription;
use crate::reply::Reply;
use crate::request::*;
use crate::response::*;

/// Does nothing but pass each call to the backend below. A ready reply stays ready, unboxed.
#[derive(Clone)]
pub struct PassThrough<B: Blocker + ?Sized = dyn Blocker> {
    inner: Arc<B>,
}

impl<B: Blocker + ?Sized> PassThrough<B> {
    /// A layer over `inner`.
    #[must_use]
    pub fn new(inner: Arc<B>) -> Self {
        Self { inner }
    }
}

impl<B: Blocker + ?Sized> Blocker for PassThrough<B> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        self.inner.read(request)
    }

    fn write(&self, request: WriteRequest) -> Reply<ChangeReply> {
        self.inner.write(request)
    }

    fn write_zeroes(&self, request: WriteZeroesRequest) -> Reply<ChangeReply> {
        self.inner.write_zeroes(request)
    }

    fn write_runs(&self, request: WriteRunsRequest) -> Reply<ChangeReply> {
        self.inner.write_runs(request)
    }

    fn discard(&self, request: DiscardRequest) -> Reply<ChangeReply> {
        self.inner.discard(request)
    }

    fn compare_and_write(&self, request: CompareAndWriteRequest) -> Reply<ChangeReply> {
        self.inner.compare_and_write(request)
    }

    fn write_full(&self, request: WriteFullRequest) -> Reply<ChangeReply> {
        self.inner.write_full(request)
    }

    fn truncate(&self, request: TruncateRequest) -> Reply<ChangeReply> {
        self.inner.truncate(request)
    }

    fn delete(&self, request: DeleteRequest) -> Reply<DeleteReply> {
        self.inner.delete(request)
    }

    fn copy(&self, request: CopyRequest) -> Reply<ChangeReply> {
        self.inner.copy(request)
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        self.inner.info(request)
    }

    fn list(&self, request: ListRequest) -> Reply<ListReply> {
        self.inner.list(request)
    }

    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        self.inner.flush(request)
    }

    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        self.inner.claim(request)
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        self.inner.invalidate(request)
    }

    fn subscribe(&self) -> Subscription {
        self.inner.subscribe()
    }
}
