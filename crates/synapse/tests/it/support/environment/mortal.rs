//! A process around a backend. When it is killed, its clients' calls stop where they are, and the
//! store below survives.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use blocker::{
    Blocker, Capabilities, ChangeReply, ChangeRequest, ClaimReply, ClaimRequest, Control, FlushReply,
    FlushRequest, Info, InfoRequest, InvalidateReply, InvalidateRequest, ListReply, ListRequest, ReadReply,
    ReadRequest, Reply, Subscription,
};

/// Forwards every call until it is killed. After that, no call starts, and none in progress
/// continues.
pub struct Mortal {
    inner: Arc<dyn Blocker>,
    is_dead: Arc<AtomicBool>,
}

impl Mortal {
    pub fn new(inner: Arc<dyn Blocker>) -> Arc<Self> {
        Arc::new(Self { inner, is_dead: Arc::default() })
    }

    pub fn die(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
    }

    fn live<T: Send + Unpin + 'static>(&self, call: impl FnOnce(&dyn Blocker) -> Reply<T>) -> Reply<T> {
        let is_dead = Arc::clone(&self.is_dead);
        if is_dead.load(Ordering::SeqCst) {
            return Reply::pending(std::future::pending());
        }
        let mut future = match call(&*self.inner) {
            Reply::Pending(future) => future,
            ready => return ready,
        };
        Reply::pending(std::future::poll_fn(move |cx| {
            if is_dead.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
            Pin::new(&mut future).poll(cx)
        }))
    }
}

impl Blocker for Mortal {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn control(&self) -> &dyn Control {
        self.inner.control()
    }
    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        self.live(|inner| inner.read(request))
    }
    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        self.live(|inner| inner.change(request))
    }
    fn info(&self, request: InfoRequest) -> Reply<Info> {
        self.live(|inner| inner.info(request))
    }
    fn list(&self, request: ListRequest) -> Reply<ListReply> {
        self.live(|inner| inner.list(request))
    }
    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        self.live(|inner| inner.flush(request))
    }
    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        self.live(|inner| inner.claim(request))
    }
    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        self.live(|inner| inner.invalidate(request))
    }
    fn subscribe(&self) -> Subscription {
        self.inner.subscribe()
    }
}
