//! The body of a remembered object: from memory as far as possible, then from other readers'
//! streams, then from the endpoint.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use blocker::{BUCKET_BYTES, Segments};
use futures_util::stream::unfold;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use tokio::time::timeout;

use crate::endpoint::lane::Lane;
use crate::endpoint::upload::Upload;
use crate::endpoint::upstream::Upstream;
use crate::http::body::{Body, BodyError, Data, streamed};
use crate::http::read::{Read, parse_content_range};
use crate::memory::filling::{Coming, Filling};
use crate::memory::generation::Head;
use crate::memory::pieces::Pieces;
use crate::reads::conditions::ask_for_rest;
use crate::shared::Shared;

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
    request: Parts,
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
        request: Parts,
        read: Arc<Read>,
        head: Arc<Head>,
        bytes: Range<u64>,
        ready: Option<Segments>,
    ) -> Self {
        let (shared, upstream) = (Arc::clone(shared), Arc::clone(upstream));
        let done = ready.as_ref().map_or(0, Segments::len_bytes) as u64;
        let left = bytes.start + done..bytes.end;
        let is_short = bytes.end - bytes.start <= WHOLE_BYTES_MAX;
        let ready = ready.map(Data::from).into_iter().collect();
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
                tracing::debug!(cause = %error, "a body from memory is broken off");
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
                let bytes = rest.next(&self.shared).await?;
                self.left.start += bytes.len() as u64;
                return Ok(Some(Data::Bytes(bytes)));
            }
            let at = self.left.start;
            let here = at..self.left.end.min(at.saturating_add(len_max));
            match here_or_coming(&self.shared, &self.head, here).await {
                Whereabouts::Here(segments) => {
                    self.left.start += segments.len_bytes() as u64;
                    self.shared.counts.bytes_from_memory.add(segments.len_bytes() as u64);
                    self.shared.pieces.lend(&segments);
                    return Ok(Some(Data::from(segments)));
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
        let answer = self.upstream.send(request, Upload::none()).await;
        let answer =
            answer.map_err(|failure| format!("the rest of the object cannot be had: {failure:?}"))?;
        let bytes = self.bytes_of(&answer).ok_or_else(|| {
            self.shared.knowledge.forget(&self.read, &self.head);
            format!("the object has changed while it was read: the endpoint answers {}", answer.status())
        })?;
        let skipped = self.left.start - bytes.start;
        let filling = Filling::begin(&self.shared.pieces, &self.shared.fills, &self.head, bytes);
        let left = self.left.end - self.left.start;
        let (mut head, body) = answer.into_parts();
        let lane = head.extensions.remove::<Arc<Lane>>();
        Ok(Rest { body, filling, lane, skipped, left })
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
    // Some of it is missing, perhaps only at the end.
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
    if let Some(coming) = shared.fills.find(&head.generation, bytes.start) {
        return Whereabouts::Coming(coming);
    }
    // A stream may have brought them and ended in between.
    from_cache(&shared.pieces, head, bytes).await.map_or(Whereabouts::Missing, Whereabouts::Here)
}

/// The endpoint's stream of a remembered object.
struct Rest {
    body: Incoming,
    filling: Filling,
    lane: Option<Arc<Lane>>,
    /// The number of bytes to skip, because the client already has them.
    skipped: u64,
    /// The number of bytes that the client still needs.
    left: u64,
}

impl Rest {
    /// Returns the next bytes for the client.
    async fn next(&mut self, shared: &Shared) -> Result<bytes::Bytes, BodyError> {
        loop {
            let frame = timeout(shared.config.stall_max, self.body.frame()).await;
            let frame = frame.map_err(|_| "the endpoint has stopped sending")?;
            let frame = frame.ok_or("the endpoint has ended its answer early")??;
            let Ok(mut bytes) = frame.into_data() else { continue };
            shared.counts.bytes_from_upstream.add(bytes.len() as u64);
            if let Some(lane) = &self.lane {
                lane.pace(bytes.len()).await;
            }
            self.filling.push(&bytes).await;
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
