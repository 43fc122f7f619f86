//! Bodies on their way to the client: those of the endpoint's responses; and those of remembered
//! objects, from memory as far as possible, then from other readers' streams, then from the
//! endpoint.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use blocker::{BUCKET_BYTES, Segments};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::{once, unfold};
use http_body_util::{BodyExt, BodyStream};
use hyper::Response;
use hyper::StatusCode;
use hyper::body::{Body as _, Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE};
use hyper::http::{request, response};
use tokio::time::timeout;

use crate::Shared;
use crate::endpoint::lane::Lane;
use crate::endpoint::upload::Upload;
use crate::endpoint::{Failure, Upstream};
use crate::http::body::{Body, BodyError, Data, cached, full, streamed};
use crate::http::framing;
use crate::http::read::{Read, parse_content_range};
use crate::memory::filling::{Coming, Filling};
use crate::memory::generation::Head;
use crate::memory::pieces::Pieces;
use crate::memory::tables::BODY_BYTES_MAX;
use crate::memory::writes::{Change, Root};
use crate::reads::conditions::ask_for_rest;

/// A body that the endpoint is sending.
struct Arriving {
    shared: Arc<Shared>,
    body: Incoming,
    /// The rate limiter of the object's bucket.
    lane: Option<Arc<Lane>>,
    /// Puts the bytes into the cache.
    filling: Option<Filling>,
}

impl Arriving {
    /// Returns the head of a response without connection headers, and its body.
    fn of(
        shared: &Arc<Shared>,
        answer: Response<Incoming>,
        filling: Option<Filling>,
    ) -> (response::Parts, Self) {
        let (mut head, body) = answer.into_parts();
        let lane = head.extensions.remove::<Arc<Lane>>();
        framing::remove(&mut head.headers);
        (head, Self { shared: Arc::clone(shared), body, lane, filling })
    }

    /// Returns the next frame, or `None` at the end.
    async fn next(&mut self) -> Result<Option<Frame<Bytes>>, BodyError> {
        let frame = timeout(self.shared.config.stall_max, self.body.frame()).await;
        let frame = frame.map_err(|_| "the endpoint has stopped sending")?.transpose()?;
        if let Some(bytes) = frame.as_ref().and_then(Frame::data_ref) {
            self.shared.counts.bytes_from_upstream.add(bytes.len() as u64);
            if let Some(lane) = &self.lane {
                lane.pace(bytes.len()).await;
            }
            if let Some(filling) = &mut self.filling {
                filling.push(bytes).await;
            }
        }
        Ok(frame)
    }
}

/// Returns a response of the endpoint for the client; its bytes go to `filling` as well.
pub(crate) fn pass(
    shared: &Arc<Shared>,
    answer: Response<Incoming>,
    filling: Option<Filling>,
) -> Response<Body> {
    pass_with(shared, answer, filling, None)
}

/// Returns the endpoint's response to a change. The change ends with the body, where S3 states
/// whether it has succeeded.
pub(crate) fn pass_change(
    shared: &Arc<Shared>,
    answer: Response<Incoming>,
    change: Change,
) -> Response<Body> {
    // A failing endpoint may still make the change later.
    let change = Some(change).filter(|_| !answer.status().is_server_error());
    let is_success = answer.status().is_success();
    let watched = change.map(|change| Watched { change, is_success, root: Root::default() });
    pass_with(shared, answer, None, watched)
}

/// A change whose response is being sent.
struct Watched {
    change: Change,
    is_success: bool,
    /// The beginning of the response: after status 200 it may still be an error.
    root: Root,
}

impl Watched {
    fn settle(self) {
        if self.is_success && self.root.is_error() {
            // As after an error status, the endpoint may make the change later.
            return;
        }
        self.change.settle();
    }
}

fn pass_with(
    shared: &Arc<Shared>,
    answer: Response<Incoming>,
    filling: Option<Filling>,
    watched: Option<Watched>,
) -> Response<Body> {
    let (head, arriving) = Arriving::of(shared, answer, filling);
    if arriving.body.is_end_stream() {
        watched.into_iter().for_each(Watched::settle);
        return Response::from_parts(head, full(""));
    }
    let frames = unfold(Some((arriving, watched)), |state| async move {
        let (mut arriving, mut watched) = state?;
        match arriving.next().await {
            Ok(None) => {
                watched.into_iter().for_each(Watched::settle);
                None
            }
            Ok(Some(frame)) => {
                if let (Some(watched), Some(bytes)) = (&mut watched, frame.data_ref()) {
                    watched.root.see(bytes);
                }
                if arriving.body.is_end_stream() {
                    // The body may never be polled again.
                    watched.take().into_iter().for_each(Watched::settle);
                }
                Some((Ok(frame.map_data(|bytes| Box::new(bytes) as Data)), Some((arriving, watched))))
            }
            Err(error) => {
                tracing::debug!(cause = %error, "the endpoint has aborted the body of a response");
                Some((Err(error), None))
            }
        }
    });
    Response::from_parts(head, streamed(frames))
}

/// Returns a response of the endpoint for the client, and its body if that is short and complete.
pub(crate) async fn collect(
    shared: &Arc<Shared>,
    answer: Response<Incoming>,
    is_head: bool,
) -> (Response<Body>, Option<Bytes>) {
    let is_long = answer.body().size_hint().lower() > BODY_BYTES_MAX as u64;
    if is_head || is_long {
        let body = is_head.then(Bytes::new);
        return (pass(shared, answer, None), body);
    }
    let (mut head, mut body) = answer.into_parts();
    match timeout(shared.config.stall_max, begin(&mut body)).await {
        Ok(Ok((bytes, true))) => {
            framing::remove(&mut head.headers);
            shared.counts.bytes_from_upstream.add(bytes.len() as u64);
            (Response::from_parts(head, full(bytes.clone())), Some(bytes))
        }
        // The length was not stated.
        Ok(Ok((bytes, false))) => {
            shared.counts.bytes_from_upstream.add(bytes.len() as u64);
            let rest = pass(shared, Response::from_parts(head, body), None);
            (rest.map(|rest| after(bytes, rest)), None)
        }
        Ok(Err(error)) => (Failure::Broken(error.to_string()).answer(), None),
        Err(_) => (Failure::Broken("it has stopped sending".into()).answer(), None),
    }
}

/// Reads the beginning of a body, up to slightly more than the maximum that is kept. Returns
/// whether this is the whole body.
async fn begin(body: &mut Incoming) -> Result<(Bytes, bool), hyper::Error> {
    let mut bytes = BytesMut::new();
    while bytes.len() <= BODY_BYTES_MAX {
        match body.frame().await.transpose()? {
            Some(frame) => frame.data_ref().into_iter().for_each(|data| bytes.extend_from_slice(data)),
            None => return Ok((bytes.freeze(), true)),
        }
    }
    Ok((bytes.freeze(), false))
}

/// Returns a body with these bytes in front of it.
fn after(first: Bytes, rest: Body) -> Body {
    let first = std::future::ready(Ok(Frame::data(Box::new(first) as Data)));
    streamed(once(first).chain(BodyStream::new(rest)))
}

/// The maximum number of bytes read from the cache at a time. They stay in the cache until the
/// client has received them.
const STEP_BYTES: u64 = 256 << 10;

/// The length in bytes up to which a read is answered from memory only if all of it is available.
/// The object may change before the endpoint is asked for the rest, and a response that has begun
/// could then only be aborted.
pub(crate) const WHOLE_BYTES_MAX: u64 = 128 << 10;

/// A body in progress.
pub(crate) struct Serving {
    shared: Arc<Shared>,
    upstream: Arc<Upstream>,
    request: request::Parts,
    read: Arc<Read>,
    head: Arc<Head>,
    left: Range<u64>,
    /// Bytes before `left` that have been read.
    ready: VecDeque<Data>,
    /// Whether the whole body must be read before the response begins.
    is_short: bool,
    rest: Option<Rest>,
}

impl Serving {
    /// Returns the body with these bytes of an object, which the endpoint has allowed. `ready` are
    /// its first ones.
    pub(crate) fn new(
        (shared, upstream): (&Arc<Shared>, &Arc<Upstream>),
        request: request::Parts,
        read: Arc<Read>,
        head: Arc<Head>,
        bytes: Range<u64>,
        ready: Option<Segments>,
    ) -> Self {
        let (shared, upstream) = (Arc::clone(shared), Arc::clone(upstream));
        let done = ready.as_ref().map_or(0, Segments::len_bytes) as u64;
        let left = bytes.start + done..bytes.end;
        let is_short = bytes.end - bytes.start <= WHOLE_BYTES_MAX;
        let ready = ready.map(cached).into_iter().collect();
        Self { shared, upstream, request, read, head, left, ready, is_short, rest: None }
    }

    /// Returns the body.
    pub(crate) fn into_body(self) -> Body {
        streamed(unfold(Some(self), |body| async move { body?.next().await }))
    }

    /// Ensures that the first bytes are available, or all bytes of a short body.
    ///
    /// # Errors
    /// If the bytes are not available, because the object has changed or the endpoint does not
    /// respond.
    pub(crate) async fn prepare(&mut self) -> Result<(), BodyError> {
        while self.ready.is_empty() || self.is_short {
            match self.step().await? {
                Some(data) => self.ready.push_back(data),
                None => break,
            }
        }
        Ok(())
    }

    /// Returns the next bytes, or `None` at the end.
    async fn next(mut self) -> Option<(Result<Frame<Data>, BodyError>, Option<Self>)> {
        let data = match self.ready.pop_front() {
            Some(ready) => Ok(Some(ready)),
            None => self.step().await,
        };
        match data {
            Ok(None) => None,
            Ok(Some(data)) => Some((Ok(Frame::data(data)), Some(self))),
            Err(error) => {
                tracing::debug!(cause = %error, "a response from memory is aborted");
                Some((Err(error), None))
            }
        }
    }

    async fn step(&mut self) -> Result<Option<Data>, BodyError> {
        let mut len_max = u64::MAX;
        let mut has_waited = false;
        loop {
            if self.left.is_empty() {
                return Ok(None);
            }
            if let Some(rest) = &mut self.rest {
                let bytes = rest.next().await?;
                self.left.start += bytes.len() as u64;
                return Ok(Some(Box::new(bytes)));
            }
            let at = self.left.start;
            let here = at..self.left.end.min(at.saturating_add(len_max));
            match here_or_coming(&self.shared, &self.head, here).await {
                Whereabouts::Here(segments) => {
                    self.left.start += segments.len_bytes() as u64;
                    self.shared.counts.bytes_from_memory.add(segments.len_bytes() as u64);
                    self.shared.pieces.lend(&segments);
                    return Ok(Some(cached(segments)));
                }
                Whereabouts::Coming(coming) if !has_waited => {
                    has_waited = true;
                    if let Some(position) = coming.wait(at, self.shared.config.share_wait_max).await {
                        self.shared.counts.shared.increment();
                        len_max = position - at;
                        continue;
                    }
                }
                Whereabouts::Coming(_) | Whereabouts::Missing => (),
            }
            self.rest = Some(self.ask().await?);
        }
    }

    /// Requests all remaining bytes from the endpoint.
    async fn ask(&self) -> Result<Rest, BodyError> {
        let mut request = self.request.clone();
        ask_for_rest(&mut request, &self.read, &self.head, &self.left);
        self.shared.counts.rests.increment();
        let answer = self.upstream.send(Some(&self.read.bucket), request, Upload::none()).await;
        let answer = answer
            .map_err(|failure| format!("the endpoint does not send the rest of the object: {failure:?}"))?;
        let bytes = self.bytes_of(&answer).ok_or_else(|| {
            self.shared.knowledge.forget(&self.read, &self.head);
            format!("the object has changed while it was read: the endpoint answers {}", answer.status())
        })?;
        let skipped = self.left.start - bytes.start;
        let filling = Filling::begin(&self.shared.pieces, &self.shared.fills, &self.head, bytes);
        let left = self.left.end - self.left.start;
        let (_, arriving) = Arriving::of(&self.shared, answer, Some(filling));
        Ok(Rest { arriving, skipped, left })
    }

    /// Returns the range of the same object's bytes that a response has, if the response has the
    /// remaining bytes.
    fn bytes_of(&self, answer: &Response<Incoming>) -> Option<Range<u64>> {
        let headers = answer.headers();
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let (bytes, size) = match answer.status() {
            StatusCode::PARTIAL_CONTENT => parse_content_range(text(CONTENT_RANGE)?)?,
            StatusCode::OK => {
                let size = text(CONTENT_LENGTH)?.parse().ok()?;
                (0..size, size)
            }
            _ => return None,
        };
        let is_same = size == self.head.size && headers.contains_key("etag") && self.head.agrees(headers);
        (is_same && bytes.start <= self.left.start && self.left.end <= bytes.end).then_some(bytes)
    }
}

/// Returns the beginning of these bytes of an object, as far as it is in the cache, or `None` if
/// the cache has none of it.
pub(crate) async fn from_cache(pieces: &Pieces, head: &Head, bytes: Range<u64>) -> Option<Segments> {
    let (at, len) = (bytes.start, bytes.end.saturating_sub(bytes.start));
    let step = STEP_BYTES - at % STEP_BYTES;
    if let Some(segments) = pieces.read(head, at, len.min(step)).await {
        return Some(segments);
    }
    // A part of the range is missing, perhaps only at its end.
    let bucket = BUCKET_BYTES - at % BUCKET_BYTES;
    if len.min(step) <= bucket { None } else { pieces.read(head, at, bucket).await }
}

/// The location of the first bytes of an object.
pub(crate) enum Whereabouts {
    /// The bytes are in the cache.
    Here(Segments),
    /// A stream will soon bring the bytes.
    Coming(Coming),
    /// The bytes are neither in the cache nor in a stream.
    Missing,
}

/// Returns the location of the first of these bytes of an object.
pub(crate) async fn here_or_coming(shared: &Shared, head: &Head, bytes: Range<u64>) -> Whereabouts {
    if let Some(segments) = from_cache(&shared.pieces, head, bytes.clone()).await {
        return Whereabouts::Here(segments);
    }
    if let Some(coming) = shared.fills.coming(&head.generation, bytes.start) {
        return Whereabouts::Coming(coming);
    }
    // A stream may have cached the bytes and ended in between.
    from_cache(&shared.pieces, head, bytes).await.map_or(Whereabouts::Missing, Whereabouts::Here)
}

/// The endpoint's stream of a remembered object.
struct Rest {
    arriving: Arriving,
    /// The number of bytes to skip, because the client already has them.
    skipped: u64,
    /// The number of bytes that the client still needs.
    left: u64,
}

impl Rest {
    /// Returns the next bytes for the client.
    async fn next(&mut self) -> Result<Bytes, BodyError> {
        loop {
            let frame = self.arriving.next().await?;
            let frame = frame.ok_or("the endpoint has ended its response early")?;
            let Ok(mut bytes) = frame.into_data() else { continue };
            let skipped = self.skipped.min(bytes.len() as u64);
            self.skipped -= skipped;
            // At most the length received.
            bytes = bytes.slice(skipped as usize..);
            bytes.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= bytes.len() as u64;
            if !bytes.is_empty() {
                return Ok(bytes);
            }
        }
    }
}
