//! Bodies of clients on their way to the endpoint: as they come, and no earlier than the endpoint wants them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::EXPECT;
use hyper::{HeaderMap, Request};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep};

use crate::body::BodyError;

/// How long an endpoint that ignores `Expect: 100-continue` is waited for.
const CONTINUE_WAIT_MAX: Duration = Duration::from_secs(1);

/// How far a body has got, for the task that waits for the answer.
#[derive(Debug)]
pub(crate) struct Progress {
    last: Mutex<Instant>,
    is_stalled: AtomicBool,
}

impl Progress {
    /// Returns when the body last moved.
    pub(crate) fn last(&self) -> Instant {
        *self.last.lock()
    }

    /// Returns whether the client has stopped sending.
    pub(crate) fn is_stalled(&self) -> bool {
        self.is_stalled.load(Ordering::Relaxed)
    }
}

/// The body of a request to the endpoint.
pub(crate) struct Upload {
    body: Option<Incoming>,
    progress: Arc<Progress>,
    stall_max: Duration,
    stall: Option<Pin<Box<Sleep>>>,
    gate: Option<Gate>,
}

/// Keeps the body back until the endpoint has asked for it.
struct Gate {
    asked: oneshot::Receiver<()>,
    patience: Pin<Box<Sleep>>,
}

impl Upload {
    fn new(body: Option<Incoming>, stall_max: Duration) -> Self {
        let progress = Progress { last: Mutex::new(Instant::now()), is_stalled: AtomicBool::new(false) };
        Self { body, progress: Arc::new(progress), stall_max, stall: None, gate: None }
    }

    /// Returns no body.
    pub(crate) fn none() -> Self {
        Self::new(None, Duration::MAX)
    }

    /// Returns a client's body.
    pub(crate) fn of(body: Incoming, stall_max: Duration) -> Self {
        Self::new(Some(body).filter(|body| !body.is_end_stream()), stall_max)
    }

    pub(crate) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Returns whether there is no body.
    pub(crate) fn is_none(&self) -> bool {
        self.body.is_none()
    }
}

/// Lets the body of a request wait until the endpoint has answered 100, where the client asks for that. The client is answered
/// 100 when the body is read.
pub(crate) fn keep_expectation(request: &mut Request<Upload>) {
    if request.body().is_none() || !expects_continue(request.headers()) {
        return;
    }
    let (sender, asked) = oneshot::channel();
    let sender = Mutex::new(Some(sender));
    hyper::ext::on_informational(request, move |answer| {
        if answer.status() == hyper::StatusCode::CONTINUE
            && let Some(sender) = sender.lock().take()
        {
            // Fails if the body waits no more.
            let _ = sender.send(());
        }
    });
    request.body_mut().gate = Some(Gate { asked, patience: Box::pin(sleep(CONTINUE_WAIT_MAX)) });
}

fn expects_continue(headers: &HeaderMap) -> bool {
    headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Some(gate) = &mut this.gate {
            if Pin::new(&mut gate.asked).poll(cx).is_pending() {
                ready!(gate.patience.as_mut().poll(cx));
            }
            this.gate = None;
        }
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            this.stall = None;
            *this.progress.last.lock() = Instant::now();
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let stall = this.stall.get_or_insert_with(|| Box::pin(sleep(this.stall_max)));
        ready!(stall.as_mut().poll(cx));
        this.progress.is_stalled.store(true, Ordering::Relaxed);
        Poll::Ready(Some(Err("the client has stopped sending".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
