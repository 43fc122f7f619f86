//! A store that counts its requests, and a background that runs on request.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use blocker::*;
use bytes::Bytes;

use crate::loads::{OBJECT_BYTES, object};

/// A volume whose objects are full of the same byte. It is only read.
pub(crate) struct Counted {
    empty: Memory,
    content: Bytes,
    first_missing: ObjectId,
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Counted {
    pub(crate) fn new(end_bytes: u64) -> Self {
        Self {
            empty: Memory::default(),
            content: Bytes::from(vec![7; OBJECT_BYTES as usize]),
            first_missing: object(end_bytes.div_ceil(OBJECT_BYTES)),
            requests: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Returns the number of requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes requested.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

macro_rules! unused {
    ($($operation:ident: $request:ident => $reply:ty,)*) => {$(
        fn $operation(&self, request: $request) -> Reply<$reply> {
            self.empty.$operation(request)
        }
    )*};
}

impl Blocker for Counted {
    fn capabilities(&self) -> Capabilities {
        self.empty.capabilities()
    }

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(request.len_bytes, Ordering::Relaxed);
        // All numbers have the same width, so the names sort in numeric order.
        if request.object.name >= self.first_missing.name {
            return Reply::err(Error::Missing);
        }
        let end = (request.offset + request.len_bytes).min(OBJECT_BYTES) as usize;
        let start = (request.offset as usize).min(end);
        Reply::Ready(Ok(ReadReply::new(self.content.slice(start..end).into(), OBJECT_BYTES, Version(1))))
    }

    unused! {
        change: ChangeRequest => ChangeReply,
        info: InfoRequest => Info,
        list: ListRequest => ListReply,
        flush: FlushRequest => FlushReply,
        claim: ClaimRequest => ClaimReply,
        invalidate: InvalidateRequest => InvalidateReply,
    }

    fn subscribe(&self) -> Subscription {
        self.empty.subscribe()
    }
}

/// A waker that records whether it was called.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A background that runs on the caller's thread.
pub(crate) struct Stepped<F> {
    background: Pin<Box<F>>,
    woken: Arc<Woken>,
}

impl<F: Future<Output = ()>> Stepped<F> {
    pub(crate) fn new(background: F) -> Self {
        let mut own =
            Self { background: Box::pin(background), woken: Arc::new(Woken(AtomicBool::new(true))) };
        own.run();
        own
    }

    /// Runs the background until it waits.
    pub(crate) fn run(&mut self) {
        let waker = Waker::from(Arc::clone(&self.woken));
        while self.woken.0.swap(false, Ordering::Relaxed) {
            let _ = self.background.as_mut().poll(&mut Context::from_waker(&waker));
        }
    }

    /// Runs `work` to completion, and the background whenever `work` waits.
    pub(crate) fn finish<T>(&mut self, work: impl IntoFuture<Output = Result<T>>) -> Result<T> {
        let mut work = pin!(work.into_future());
        loop {
            if let Poll::Ready(answer) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return answer;
            }
            self.run();
        }
    }
}
