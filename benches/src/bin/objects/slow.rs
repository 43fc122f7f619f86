//! A store with a fixed time per operation and a fixed number of concurrent ones.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use blocker::*;

pub(crate) struct Slow {
    below: Arc<dyn Blocker>,
    delay: Duration,
    gate: Arc<Gate>,
}

struct Gate {
    left: Mutex<(usize, VecDeque<Waker>)>,
    now: AtomicUsize,
    most: AtomicUsize,
}

struct Inside(Arc<Gate>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
        let mut left = self.0.left.lock().expect("no thread panics inside");
        left.0 += 1;
        left.1.drain(..).for_each(Waker::wake);
    }
}

impl Slow {
    pub(crate) fn new(below: Arc<dyn Blocker>, delay: Duration, at_once: usize) -> Self {
        let left = Mutex::new((at_once, VecDeque::new()));
        let gate = Gate { left, now: AtomicUsize::new(0), most: AtomicUsize::new(0) };
        Self { below, delay, gate: Arc::new(gate) }
    }

    /// Returns the largest number of concurrent operations so far.
    pub(crate) fn most_at_once(&self) -> usize {
        self.gate.most.load(Ordering::Relaxed)
    }

    fn run<T: Send + Unpin + 'static>(
        &self,
        act: impl FnOnce(&dyn Blocker) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let (below, gate, delay) = (Arc::clone(&self.below), Arc::clone(&self.gate), self.delay);
        Reply::pending(async move {
            poll_fn(|cx| {
                let mut left = gate.left.lock().expect("no thread panics inside");
                if left.0 == 0 {
                    left.1.push_back(cx.waker().clone());
                    return Poll::Pending;
                }
                left.0 -= 1;
                Poll::Ready(())
            })
            .await;
            let now = gate.now.fetch_add(1, Ordering::Relaxed) + 1;
            gate.most.fetch_max(now, Ordering::Relaxed);
            let _inside = Inside(gate);
            SystemClock.sleep(delay).await;
            act(&*below).await
        })
    }
}

macro_rules! delayed {
    ($($operation:ident: $request:ident => $reply:ty,)*) => {$(
        fn $operation(&self, request: $request) -> Reply<$reply> {
            self.run(move |below| below.$operation(request))
        }
    )*};
}

impl Blocker for Slow {
    fn capabilities(&self) -> Capabilities {
        self.below.capabilities()
    }
    delayed! {
        read: ReadRequest => ReadReply,
        change: ChangeRequest => ChangeReply,
        info: InfoRequest => Info,
        list: ListRequest => ListReply,
        flush: FlushRequest => FlushReply,
        claim: ClaimRequest => ClaimReply,
        invalidate: InvalidateRequest => InvalidateReply,
    }
    fn subscribe(&self) -> Subscription {
        self.below.subscribe()
    }
}
