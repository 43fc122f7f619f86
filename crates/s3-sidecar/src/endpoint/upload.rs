//! Client bodies in transit to the endpoint. A body is forwarded as it arrives, but not before the
//! endpoint wants it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use cached_http::framing::expects_continue;
use cached_http::{DRAIN_TIME_MAX, drain};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{HeaderMap, Request};
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep};

use crate::auth::{Check, Verdict};
use crate::endpoint::lane::Lane;
use crate::http::body::BodyError;
use crate::memory::writes::Passing;

/// The time for which the connection of a body that is not sent stays open after the response.
const UNSENT_TIME_MAX: Duration = Duration::from_secs(1);

/// The maximum number of bytes of a refused body that are read.
const DRAIN_BYTES_MAX: usize = 1 << 20;

/// The progress of a body, for the task that waits for the response.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The time of the body's last progress.
    pub(crate) last: Mutex<Instant>,
    /// Whether the client has stopped sending.
    pub(crate) is_stalled: AtomicBool,
}

/// The body of a request to the endpoint.
pub(crate) struct Upload {
    source: Source,
    /// Verifies bytes before they are forwarded.
    pub(crate) check: Option<Check>,
    /// The number of bytes of an incorrect body that are still to be read before the body is
    /// aborted.
    refused: Option<usize>,
    /// The progress, once a task waits for the response.
    progress: Option<Arc<Progress>>,
    stall_max: Duration,
    stall: Option<Pin<Box<Sleep>>>,
    gate: Option<Gate>,
    /// Closes the connection of an unsent body once the response has arrived.
    unwanted: Option<Pin<Box<Sleep>>>,
    /// An observer of the forwarded bytes.
    pub(crate) passing: Option<Passing>,
    /// The rate limiter of the request's bucket.
    lane: Option<Arc<Lane>>,
    /// Delays the next bytes as the limiter requires.
    pace: Option<Pin<Box<Sleep>>>,
}

/// The source of a body.
enum Source {
    /// There is no body.
    None,
    /// The client is sending the body.
    Client(Client),
    /// The body has been read already.
    Whole(Option<Bytes>),
}

/// A body that a client is sending. If the response arrives before the end of the body, the rest is
/// read, within limits: a client that is still sending could miss the response if its connection is
/// closed.
struct Client {
    body: Option<Incoming>,
    /// Whether the client sends without being asked, or was asked to send.
    is_sending: bool,
}

impl Drop for Client {
    fn drop(&mut self) {
        let body = self.body.take().filter(|body| self.is_sending && !body.is_end_stream());
        if let (Some(body), Ok(runtime)) = (body, Handle::try_current()) {
            drop(runtime.spawn(drain(body, DRAIN_BYTES_MAX, DRAIN_TIME_MAX)));
        }
    }
}

/// Withholds the body until the endpoint has asked for it.
///
/// If an endpoint responds without having asked for the body, it may take the following bytes
/// either for the next request, as radosgw does, or for the body. The sidecar cannot know which, so
/// the connection is not reused.
struct Gate {
    asked: oneshot::Receiver<()>,
    patience: Pin<Box<Sleep>>,
    connection: CaptureConnection,
}

impl Gate {
    /// Waits until the endpoint asks for the body, has responded, or has been silent for too long.
    /// Returns whether to send the body; if not, the endpoint has already responded.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let is_wanted = match Pin::new(&mut self.asked).poll(cx) {
            Poll::Ready(Ok(())) => return Poll::Ready(true),
            // The final response drops the sender.
            Poll::Ready(Err(_)) => false,
            Poll::Pending => {
                ready!(self.patience.as_mut().poll(cx));
                true
            }
        };
        if let Some(connection) = self.connection.connection_metadata().as_ref() {
            connection.poison();
        }
        Poll::Ready(is_wanted)
    }
}

impl Upload {
    fn new(source: Source, stall_max: Duration) -> Self {
        Self {
            source,
            check: None,
            refused: None,
            progress: None,
            stall_max,
            stall: None,
            gate: None,
            unwanted: None,
            passing: None,
            lane: None,
            pace: None,
        }
    }

    /// Returns no body.
    pub(crate) fn none() -> Self {
        Self::new(Source::None, Duration::MAX)
    }

    /// Returns a client's body.
    pub(crate) fn of(body: Incoming, headers: &HeaderMap, stall_max: Duration) -> Self {
        if body.is_end_stream() {
            return Self::new(Source::None, stall_max);
        }
        let client = Client { body: Some(body), is_sending: !expects_continue(headers) };
        Self::new(Source::Client(client), stall_max)
    }

    /// Returns a body that has been read already.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self::new(Source::Whole(Some(bytes)), Duration::MAX)
    }

    /// Returns the verdict of a verified body: the error for which the body was aborted, if any.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        self.check.as_ref().map(Check::verdict)
    }

    /// Reads a refused body, within limits: a client that is still sending could miss the response
    /// if its connection is closed. A client that waits before it sends gets the response
    /// immediately.
    pub(crate) async fn drain(mut self, headers: &HeaderMap) {
        if expects_continue(headers) {
            return;
        }
        if let Source::Client(client) = &mut self.source
            && let Some(body) = client.body.take()
        {
            drain(body, DRAIN_BYTES_MAX, self.stall_max).await;
        }
    }

    /// Returns the next frame from the client.
    fn poll_client(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = match &mut self.source {
            Source::None => return Poll::Ready(None),
            Source::Whole(bytes) => return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Source::Client(client) => {
                client.is_sending = true;
                client.body.as_mut()
            }
        };
        let Some(body) = body else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            self.stall = None;
            self.advanced(Duration::ZERO);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if self.stall.is_none() {
            // The endpoint is not late as long as the client is waited for.
            self.advanced(self.stall_max);
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(self.stall_max)));
        ready!(stall.as_mut().poll(cx));
        if let Some(progress) = &self.progress {
            progress.is_stalled.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Some(Err("the client has stopped sending".into())))
    }

    /// Returns the next frame for the endpoint.
    fn poll_checked(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            while let Some(left) = self.refused {
                let frame = ready!(self.poll_client(cx));
                let len = frame.and_then(Result::ok).map(|frame| frame.data_ref().map_or(0, Bytes::len));
                match len.and_then(|len| left.checked_sub(len)) {
                    Some(left) => self.refused = Some(left),
                    None => return Poll::Ready(Some(Err("the body does not match its signature".into()))),
                }
            }
            let Some(check) = &mut self.check else { return self.poll_client(cx) };
            if let Some(bytes) = check.pop() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if check.is_done() {
                return Poll::Ready(None);
            }
            let frame = ready!(self.poll_client(cx)).transpose()?;
            let Some(check) = &mut self.check else { return Poll::Ready(None) };
            let checked = match frame.map(Frame::into_data) {
                Some(Ok(bytes)) => check.push(bytes),
                // HTTP trailers, which no signature or checksum covers.
                Some(Err(_)) => Ok(()),
                None => check.finish(),
            };
            if checked.is_err() {
                self.check = None;
                self.refused = Some(DRAIN_BYTES_MAX);
            }
        }
    }

    /// Returns the body paced by its bucket's limiter.
    pub(crate) fn in_lane(self, lane: &Arc<Lane>) -> Self {
        if self.is_none() { self } else { Self { lane: Some(Arc::clone(lane)), ..self } }
    }

    /// Returns the progress from now on.
    pub(crate) fn progress(&mut self) -> Arc<Progress> {
        let progress = Progress { last: Mutex::new(Instant::now()), is_stalled: AtomicBool::new(false) };
        Arc::clone(self.progress.insert(Arc::new(progress)))
    }

    /// Records progress, after which the next may take longer by `wait`.
    fn advanced(&self, wait: Duration) {
        if let Some(progress) = &self.progress {
            *progress.last.lock() = Instant::now() + wait;
        }
    }

    /// Returns whether there is no body.
    pub(crate) fn is_none(&self) -> bool {
        matches!(self.source, Source::None)
    }
}

/// Withholds the body of a request until the endpoint has sent a 100, for at most `wait_max`, if the
/// client asks for that. Reading the body sends a 100 to the client.
pub(crate) fn keep_expectation(request: &mut Request<Upload>, wait_max: Duration) {
    if request.body().is_none() || !expects_continue(request.headers()) {
        return;
    }
    let (sender, asked) = oneshot::channel();
    let sender = Mutex::new(Some(sender));
    hyper::ext::on_informational(request, move |answer| {
        if answer.status() == hyper::StatusCode::CONTINUE
            && let Some(sender) = sender.lock().take()
        {
            // Fails if the body no longer waits.
            let _ = sender.send(());
        }
    });
    let connection = capture_connection(request);
    request.body_mut().gate = Some(Gate { asked, patience: Box::pin(sleep(wait_max)), connection });
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
            if !ready!(gate.poll(cx)) {
                // This response also ends the client's connection, because the client may be
                // sending the body.
                (this.source, this.check) = (Source::None, None);
                this.unwanted = Some(Box::pin(sleep(UNSENT_TIME_MAX)));
            }
            this.gate = None;
        }
        if let Some(unwanted) = &mut this.unwanted {
            ready!(unwanted.as_mut().poll(cx));
            return Poll::Ready(Some(Err("the endpoint has responded before it received the body".into())));
        }
        if let Some(pace) = &mut this.pace {
            ready!(pace.as_mut().poll(cx));
            this.pace = None;
        }
        let frame = ready!(this.poll_checked(cx));
        if let (Some(lane), Some(Ok(frame))) = (&this.lane, &frame) {
            let wait = lane.pass(frame.data_ref().map_or(0, Bytes::len));
            if !wait.is_zero() {
                this.pace = Some(Box::pin(sleep(wait)));
                // Neither the client nor the endpoint causes this pause.
                this.advanced(wait);
            }
        }
        if let (Some(passing), Some(Ok(frame))) = (&this.passing, &frame)
            && let Some(bytes) = frame.data_ref()
        {
            passing.push(bytes);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match (&self.check, &self.source) {
            // Such a body never ends successfully.
            _ if self.refused.is_some() || self.unwanted.is_some() => false,
            (_, Source::None) => true,
            (Some(check), _) => check.is_done(),
            (None, Source::Client(client)) => client.body.as_ref().is_none_or(Body::is_end_stream),
            (None, Source::Whole(bytes)) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.check, &self.source) {
            (Some(check), _) => check.size_hint(),
            (None, Source::None) => SizeHint::with_exact(0),
            (None, Source::Client(client)) => {
                client.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
            }
            (None, Source::Whole(bytes)) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::poll_fn;

    use hyper::Response;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::AsyncWriteExt;
    use tokio::sync::Notify;

    use super::*;
    use crate::http::body::full;

    #[tokio::test]
    async fn the_endpoint_is_not_late_while_the_client_is_waited_for() {
        let (mut client, socket) = tokio::io::duplex(4096);
        let request = "PUT /b/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\nhalf";
        client.write_all(request.as_bytes()).await.unwrap();
        let is_checked = Arc::new(Notify::new());
        let checked = Arc::clone(&is_checked);
        let service = service_fn(move |request: Request<Incoming>| {
            let checked = Arc::clone(&checked);
            async move {
                let stall_max = Duration::from_secs(600);
                let (head, body) = request.into_parts();
                let mut upload = Upload::of(body, &head.headers, stall_max);
                let progress = upload.progress();
                let frame = poll_fn(|cx| Pin::new(&mut upload).poll_frame(cx)).await;
                assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "half");
                let now = Instant::now();
                assert!(*progress.last.lock() <= now);
                let next = poll_fn(|cx| Poll::Ready(Pin::new(&mut upload).poll_frame(cx))).await;
                assert!(next.is_pending() && *progress.last.lock() >= now + stall_max);
                checked.notify_one();
                Ok::<_, Infallible>(Response::new(full("")))
            }
        });
        tokio::select! {
            ended = http1::Builder::new().serve_connection(TokioIo::new(socket), service) => {
                panic!("the client is still sending: {ended:?}")
            }
            () = is_checked.notified() => (),
        }
    }
}
