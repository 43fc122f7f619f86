//! Requests to the server: limited in time and number, and retried only where that is harmless.
//!
//! A request that has been sent runs to its end even if its caller has stopped waiting ([`Spawn`]),
//! so a caller's deadline never leaves a connection in the middle of a request. Reads, listings,
//! removals and puts of blobs are repeated after an error, with a delay that doubles and half of
//! which is random. A conditional put is retried only after responses that say that nothing was
//! done and that the put may succeed later; otherwise the caller has to find out whether it was
//! applied (`object/swap.rs`).
//!
//! Blobs that no head names any more are removed in the background. No call waits for that, and it
//! may use only half of the concurrent requests: a sweep removes the rest. Closing a store waits
//! for removals that have begun.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use blocker::clock::{Sleep, until};
use blocker::metrics::{Counter, counters};
use blocker::{Clock, Error, Result};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::select;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion,
};
use parking_lot::Mutex;

use super::limits::Concurrency;
use super::refusal::{Refusal, one_line};
use super::{Pages, listed};
use crate::random;

/// The first delay before a retry.
const DELAY: Duration = Duration::from_millis(50);
/// The first delay after the server has requested a lower rate.
const SLOW_DOWN_DELAY: Duration = Duration::from_millis(400);
/// The maximum delay.
const DELAY_MAX: Duration = Duration::from_secs(5);

/// The client's error text for a response with the whole object instead of a range
/// (`tests/it/network.rs` detects a change).
const NO_RANGE: &str = "non-partial response";
/// The client's error text for a response without an ETag (the same test detects a change).
const NO_ETAG: &str = "ETag Header missing";
/// This program's error text for a response that is too long.
const TOO_MANY: &str = "the server sends more bytes than were requested";

type Work<T> = Pin<Box<dyn Future<Output = object_store::Result<T>> + Send>>;

/// A request that keeps its own response, so that the code that sends requests is compiled once for
/// all kinds of responses.
type AnyRequest<'a> = dyn FnMut(Arc<dyn ObjectStore>) -> Work<()> + Send + 'a;

/// The executor of requests.
#[derive(Clone, Debug)]
pub(crate) enum Spawn {
    /// A runtime of the store, which HTTP needs.
    On(tokio::runtime::Handle),
    /// The caller's poll, for stores that need no runtime.
    Inline,
}

counters! {
    /// The counters of requests.
    #[derive(Debug, Default)]
    pub(crate) struct Stats {
        /// Reads sent to the server, of heads and of bytes.
        pub(crate) gets: Counter => "s3_gets_total",
        /// Puts sent to the server, of heads and of bytes.
        pub(crate) puts: Counter => "s3_puts_total",
        /// Listings requested from the server.
        pub(crate) lists: Counter => "s3_lists_total",
        /// Removals sent to the server.
        pub(crate) deletes: Counter => "s3_deletes_total",
        /// Bytes of bodies sent to the server.
        pub(crate) bytes_sent: Counter => "s3_sent_bytes_total",
        /// Bytes of bodies received from the server.
        pub(crate) bytes_received: Counter => "s3_received_bytes_total",
        /// Requests that failed or were not answered in time.
        pub(crate) failed: Counter => "s3_requests_failed_total",
        /// Requests sent again after a failure.
        pub(crate) repeated: Counter => "s3_requests_repeated_total",
        /// Responses in which the server requested a lower rate.
        pub(crate) slow_downs: Counter => "s3_slow_downs_total",
        /// Puts refused because the object had changed in the meantime.
        pub(crate) conflicts: Counter => "s3_conflicts_total",
        /// Objects that had no head and were given one.
        pub(crate) introduced: Counter => "s3_objects_introduced_total",
        /// Objects compacted because they were fragmented.
        pub(crate) compacted: Counter => "s3_objects_compacted_total",
        /// Unreferenced blobs whose removal was left to a sweep.
        pub(crate) left_behind: Counter => "s3_blobs_left_total",
        /// Sweeps that this program has made.
        pub(crate) sweeps: Counter => "s3_sweeps_total",
        /// Sweeps that have failed before their end.
        pub(crate) sweeps_failed: Counter => "s3_sweeps_failed_total",
        /// Blobs that sweeps have removed.
        pub(crate) swept: Counter => "s3_blobs_swept_total",
        /// Heads of deleted objects that sweeps have removed.
        pub(crate) forgotten: Counter => "s3_heads_forgotten_total",
        /// Calls given up because they took longer than call_timeout_secs, or their deadline passed.
        pub(crate) given_up: Counter => "s3_calls_given_up_total",
    }
}

/// The limits of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) timeout: Duration,
    pub(crate) retries: u32,
    pub(crate) in_flight: usize,
}

/// The server, behind limits.
pub(crate) struct Requests {
    store: Arc<dyn ObjectStore>,
    pages: Pages,
    pub(crate) spawn: Spawn,
    clock: Arc<dyn Clock>,
    limits: Limits,
    pub(crate) concurrency: Arc<Concurrency>,
    /// Whether ETags are sent without their quotes.
    pub(crate) bare_etags: AtomicBool,
    pub(crate) stats: Arc<Stats>,
    pub(crate) removals: Removals,
}

/// Background removals.
#[derive(Default)]
pub(crate) struct Removals {
    pub(crate) under_way: AtomicUsize,
    pub(crate) ended: tokio::sync::Notify,
}

/// A listing, which is requested page by page.
pub(crate) struct Listing<'a> {
    requests: &'a Requests,
    under: Path,
    after: Option<Path>,
    is_done: bool,
}

/// The number of keys in one page.
const PAGE_KEYS: usize = 1000;

impl Listing<'_> {
    /// Returns the next page (the last one may be empty), or `None` at the end.
    ///
    /// # Errors
    /// Returns an error if the listing fails: see [`Requests::error`].
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<ObjectMeta>>> {
        if self.is_done {
            return Ok(None);
        }
        let page = self.requests.list(&self.under, self.after.as_ref(), PAGE_KEYS).await?;
        self.after = page.last().map(|last| last.location.clone());
        self.is_done = page.len() < PAGE_KEYS;
        Ok(Some(page))
    }
}

/// The result of a conditional put.
pub(crate) enum Put {
    /// The put was applied. Contains the new ETag, if the server states it.
    Done(Option<String>),
    /// The condition did not hold.
    Lost,
    /// The put was refused for a reason other than the condition, and was not applied.
    Refused(Error),
    /// There was no response, or one that leaves the outcome open.
    Unknown(Error),
}

impl Put {
    /// Returns the put if its outcome is known: [`Put::Done`] or [`Put::Lost`].
    ///
    /// # Errors
    /// Returns the error of [`Put::Refused`] or [`Put::Unknown`].
    pub(crate) fn known(self) -> Result<Self> {
        match self {
            Self::Done(_) | Self::Lost => Ok(self),
            Self::Refused(error) | Self::Unknown(error) => Err(error),
        }
    }
}

/// The result of a get.
pub(crate) enum Got {
    Found(Bytes, Option<String>),
    /// The object has the ETag that the caller named.
    Same,
    Missing,
}

/// The reason why an attempt failed.
enum Failure {
    Answer(object_store::Error),
    /// A refusal, which a retry would also get. Nothing was changed.
    Refusal(Refusal),
    Timeout,
}

impl From<object_store::Error> for Failure {
    fn from(error: object_store::Error) -> Self {
        match Refusal::of(&error) {
            Some(refusal) => Self::Refusal(refusal),
            None => Self::Answer(error),
        }
    }
}

impl Requests {
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        pages: Pages,
        spawn: Spawn,
        clock: Arc<dyn Clock>,
        limits: Limits,
    ) -> Self {
        let concurrency = Concurrency::new(limits.in_flight);
        let (bare_etags, stats, removals) = Default::default();
        Self { store, pages, spawn, clock, limits, concurrency, bare_etags, stats, removals }
    }

    /// Makes attempts until one gets a response, or until the limit is reached.
    async fn repeat<T: Send + 'static>(
        &self,
        request: impl FnMut(Arc<dyn ObjectStore>) -> Work<T> + Send,
    ) -> Result<T, Failure> {
        self.send(self.limits.retries, request).await
    }

    /// Makes an attempt, and up to `retries` more, until one gets a response.
    async fn send<T: Send + 'static>(
        &self,
        retries: u32,
        mut request: impl FnMut(Arc<dyn ObjectStore>) -> Work<T> + Send,
    ) -> Result<T, Failure> {
        let answer = Arc::new(Mutex::new(None));
        let place = Arc::clone(&answer);
        let mut request = move |store: Arc<dyn ObjectStore>| -> Work<()> {
            let (work, place) = (request(store), Arc::clone(&place));
            Box::pin(async move {
                *place.lock() = Some(work.await?);
                Ok(())
            })
        };
        self.send_any(retries, &mut request).await?;
        let answer = answer.lock().take();
        answer.ok_or(Failure::Timeout)
    }

    async fn send_any(&self, retries: u32, request: &mut AnyRequest<'_>) -> Result<(), Failure> {
        for retry in 0.. {
            let answer = self.attempt(request).await;
            let delay = match &answer {
                Err(Failure::Answer(error)) if Refusal::is_slow_down(error) => SLOW_DOWN_DELAY,
                Err(Failure::Timeout | Failure::Answer(object_store::Error::Generic { .. })) => DELAY,
                Err(Failure::Refusal(refusal)) if refusal.is_no_place() => DELAY,
                _ => return answer,
            };
            if retry >= retries {
                return answer;
            }
            self.stats.repeated.increment();
            self.delay_from(delay, retry).await;
        }
        Err(Failure::Timeout)
    }

    async fn attempt(&self, request: &mut AnyRequest<'_>) -> Result<(), Failure> {
        let permit = self.concurrency.permit().await;
        let work = request(Arc::clone(&self.store));
        let answer = match &self.spawn {
            Spawn::On(handle) => {
                let timeout = self.limits.timeout;
                // The timer is that of the runtime, which can be cancelled.
                let task = handle.spawn(async move {
                    let _permit = permit;
                    tokio::time::timeout(timeout, work).await
                });
                match task.await {
                    Ok(Ok(answer)) => answer.map_err(Failure::from),
                    // The runtime has ended together with the store.
                    Ok(Err(_)) | Err(_) => Err(Failure::Timeout),
                }
            }
            Spawn::Inline => {
                let _permit = permit;
                let deadline = self.clock.now() + self.limits.timeout;
                match until(&*self.clock, Some(deadline), work).await {
                    Some(answer) => answer.map_err(Failure::from),
                    None => Err(Failure::Timeout),
                }
            }
        };
        use object_store::Error::Generic;
        match &answer {
            Err(Failure::Answer(error)) if Refusal::is_slow_down(error) => {
                self.stats.slow_downs.increment();
                self.concurrency.slow_down(self.clock.now());
            }
            Err(Failure::Timeout) => {}
            _ => self.concurrency.answered(),
        }
        if let Err(Failure::Timeout | Failure::Refusal(_) | Failure::Answer(Generic { .. })) = &answer {
            self.stats.failed.increment();
        }
        answer
    }

    /// Returns a timer that is cancelled when it is dropped, unlike those of the system clock.
    pub(crate) fn timer(&self, after: Duration) -> Sleep {
        match &self.spawn {
            Spawn::On(handle) => {
                let mut task = tokio::task::JoinSet::new();
                // The runtime's timers are created within it.
                task.spawn_on(async move { tokio::time::sleep(after).await }, handle);
                // The runtime ends with the store, and its timers with it.
                Box::pin(async move { drop(task.join_next().await) })
            }
            Spawn::Inline => self.clock.sleep(after),
        }
    }

    /// Waits before a retry, and longer if the server has requested a lower rate recently.
    pub(crate) async fn delay(&self, retry: u32) {
        let is_asked = self.concurrency.is_asked_for_fewer(self.clock.now());
        self.delay_from(if is_asked { SLOW_DOWN_DELAY } else { DELAY }, retry).await;
    }

    async fn delay_from(&self, first: Duration, retry: u32) {
        let longest = first.saturating_mul(1 << retry.min(10)).min(DELAY_MAX);
        self.clock.sleep(longest.mul_f64(random::part())).await;
    }

    /// Returns a small object, unless its ETag is `known`.
    ///
    /// # Errors
    /// Returns an error if the request fails (see [`Self::error`]), and `Corrupt` if the object is
    /// larger than `bytes_max`.
    pub(crate) async fn get(&self, path: &Path, known: Option<&str>, bytes_max: u64) -> Result<Got> {
        let request = |store: Arc<dyn ObjectStore>| -> Work<Got> {
            self.stats.gets.increment();
            let (path, stats) = (path.clone(), Arc::clone(&self.stats));
            let options = GetOptions::new().with_if_none_match(known);
            Box::pin(async move {
                let got = store.get_opts(&path, options).await?;
                if got.meta.size > bytes_max {
                    return Err(object_store::Error::NotSupported { source: "too large".into() });
                }
                let etag = got.meta.e_tag.clone();
                let bytes = collect(got.into_stream(), bytes_max).await?;
                stats.bytes_received.add(bytes.len() as u64);
                Ok(Got::Found(bytes, etag))
            })
        };
        match self.repeat(request).await {
            Ok(got) => Ok(got),
            Err(Failure::Answer(object_store::Error::NotModified { .. })) => Ok(Got::Same),
            Err(Failure::Answer(object_store::Error::NotFound { .. })) => Ok(Got::Missing),
            Err(Failure::Answer(object_store::Error::NotSupported { .. })) => {
                Err(Error::Corrupt(format!("{path} is not an object that this program writes").into()))
            }
            Err(failure) => Err(self.error(path, failure)),
        }
    }

    /// Returns a range of a blob, or `None` if the blob is missing.
    ///
    /// # Errors
    /// Returns an error if the request fails (see [`Self::error`]), and `Corrupt` if the blob is
    /// too short.
    pub(crate) async fn get_range(&self, path: &Path, range: std::ops::Range<u64>) -> Result<Option<Bytes>> {
        let len = range.end - range.start;
        let request = |store: Arc<dyn ObjectStore>| -> Work<Bytes> {
            self.stats.gets.increment();
            let (path, range) = (path.clone(), range.clone());
            Box::pin(async move {
                let options = GetOptions::new().with_range(Some(GetRange::Bounded(range)));
                collect(store.get_opts(&path, options).await?.into_stream(), len).await
            })
        };
        match self.repeat(request).await {
            Ok(bytes) if bytes.len() as u64 == len => {
                self.stats.bytes_received.add(len);
                Ok(Some(bytes))
            }
            Ok(_) => Err(too_short(path)),
            Err(Failure::Refusal(refusal)) if refusal.is_range_beyond_end() => Err(too_short(path)),
            Err(Failure::Answer(object_store::Error::NotFound { .. })) => Ok(None),
            Err(failure) => Err(self.error(path, failure)),
        }
    }

    /// Puts a blob with a new key.
    ///
    /// # Errors
    /// Returns an error if the request fails: see [`Self::error`]. The change that needs the blob
    /// has not begun.
    pub(crate) async fn put_blob(&self, path: &Path, body: Bytes) -> Result<()> {
        let put = self.repeat(|store| self.put(store, path, &body, PutMode::Overwrite)).await;
        put.map(drop).map_err(|failure| self.error(path, failure))
    }

    /// Puts a small object if none exists.
    pub(crate) async fn create(&self, path: &Path, body: &Bytes) -> Put {
        let put = self.put_once(path, body, PutMode::Create).await;
        self.put_answer(path, put)
    }

    /// Puts a small object if the existing one has this ETag.
    pub(crate) async fn replace(&self, path: &Path, body: &Bytes, etag: &str) -> Put {
        let bare = self.bare_etags.load(Ordering::Relaxed);
        let etag = if bare { etag.trim_matches('"') } else { etag };
        let update = UpdateVersion { e_tag: Some(etag.to_owned()), version: None };
        let put = self.put_once(path, body, PutMode::Update(update)).await;
        match put {
            // There is no object to replace. (A missing bucket is a refusal.)
            Err(Failure::Answer(object_store::Error::NotFound { .. })) => {
                self.stats.conflicts.increment();
                Put::Lost
            }
            put => self.put_answer(path, put),
        }
    }

    /// Makes one attempt at a conditional put. Further attempts follow only if the response states
    /// that nothing was done and that the put may succeed later.
    async fn put_once(&self, path: &Path, body: &Bytes, mode: PutMode) -> Result<Option<String>, Failure> {
        let mut put_to = |store: Arc<dyn ObjectStore>| self.put(store, path, body, mode.clone());
        for retry in 0..self.limits.retries {
            let put = self.send(0, &mut put_to).await;
            match &put {
                Err(Failure::Refusal(refusal)) if refusal.is_no_place() => {}
                _ => return put,
            }
            self.stats.repeated.increment();
            self.delay(retry).await;
        }
        self.send(0, &mut put_to).await
    }

    fn put(
        &self,
        store: Arc<dyn ObjectStore>,
        path: &Path,
        body: &Bytes,
        mode: PutMode,
    ) -> Work<Option<String>> {
        self.stats.puts.increment();
        self.stats.bytes_sent.add(body.len() as u64);
        let (path, body) = (path.clone(), body.clone());
        Box::pin(async move {
            let options = PutOptions { mode, ..PutOptions::default() };
            store.put_opts(&path, body.into(), options).await.map(|put| put.e_tag)
        })
    }

    fn put_answer(&self, path: &Path, answer: Result<Option<String>, Failure>) -> Put {
        use object_store::Error as E;
        match answer {
            Ok(etag) => Put::Done(etag),
            Err(Failure::Answer(
                E::AlreadyExists { .. } | E::Precondition { .. } | E::NotModified { .. },
            )) => {
                self.stats.conflicts.increment();
                Put::Lost
            }
            // The put was applied, although its response has no ETag.
            Err(Failure::Answer(answer @ E::Generic { .. })) if answer.to_string().contains(NO_ETAG) => {
                Put::Done(None)
            }
            Err(failure @ (Failure::Timeout | Failure::Answer(E::Generic { .. }))) => {
                Put::Unknown(self.error(path, failure))
            }
            Err(failure) => Put::Refused(self.error(path, failure)),
        }
    }

    /// Removes an object. A missing object is not an error.
    ///
    /// # Errors
    /// Returns an error if the request fails: see [`Self::error`].
    pub(crate) async fn delete(&self, path: &Path) -> Result<()> {
        let request = |store: Arc<dyn ObjectStore>| -> Work<()> {
            self.stats.deletes.increment();
            let path = path.clone();
            Box::pin(async move { store.delete(&path).await })
        };
        match self.repeat(request).await {
            Ok(()) | Err(Failure::Answer(object_store::Error::NotFound { .. })) => Ok(()),
            Err(failure) => Err(self.error(path, failure)),
        }
    }

    /// Returns at most `count` objects below `under`, in order, after the key `after`.
    ///
    /// # Errors
    /// Returns an error if the request fails: see [`Self::error`].
    pub(crate) async fn list(
        &self,
        under: &Path,
        after: Option<&Path>,
        count: usize,
    ) -> Result<Vec<ObjectMeta>> {
        let request = |store: Arc<dyn ObjectStore>| -> Work<Vec<ObjectMeta>> {
            self.stats.lists.increment();
            let (under, after, pages) = (under.clone(), after.cloned(), self.pages.clone());
            Box::pin(async move {
                if let Some(pages) = pages {
                    return listed(&*pages, &under, after.as_ref(), count).await;
                }
                let listed = match &after {
                    Some(after) => store.list_with_offset(Some(&under), after),
                    None => store.list(Some(&under)),
                };
                let listed = listed.take(count).collect::<Vec<_>>().await;
                listed.into_iter().collect()
            })
        };
        match self.repeat(request).await {
            Ok(listed) => Ok(listed),
            Err(Failure::Answer(object_store::Error::NotFound { .. })) => Ok(Vec::new()),
            Err(failure) => Err(self.error(under, failure)),
        }
    }

    /// Returns a listing of everything below `under`, in order.
    pub(crate) fn pages(&self, under: Path) -> Listing<'_> {
        Listing { requests: self, under, after: None, is_done: false }
    }

    /// Returns the directories directly below `under`.
    ///
    /// # Errors
    /// Returns an error if the request fails: see [`Self::error`].
    pub(crate) async fn directories(&self, under: &Path) -> Result<Vec<Path>> {
        let request = |store: Arc<dyn ObjectStore>| -> Work<Vec<Path>> {
            self.stats.lists.increment();
            let under = under.clone();
            Box::pin(async move { Ok(store.list_with_delimiter(Some(&under)).await?.common_prefixes) })
        };
        self.repeat(request).await.map_err(|failure| self.error(under, failure))
    }

    /// Returns an object's metadata.
    ///
    /// # Errors
    /// Returns an error if the request fails: see [`Self::error`].
    pub(crate) async fn meta(&self, path: &Path) -> Result<ObjectMeta> {
        self.head(path).await.map_err(|failure| self.error(path, failure))
    }

    /// Returns an object's metadata, or `None` if the object does not exist.
    ///
    /// # Errors
    /// Returns an error if the request fails: see [`Self::error`].
    pub(crate) async fn meta_if_there(&self, path: &Path) -> Result<Option<ObjectMeta>> {
        match self.head(path).await {
            Ok(meta) => Ok(Some(meta)),
            Err(Failure::Answer(object_store::Error::NotFound { .. })) => Ok(None),
            Err(failure) => Err(self.error(path, failure)),
        }
    }

    async fn head(&self, path: &Path) -> Result<ObjectMeta, Failure> {
        let request = |store: Arc<dyn ObjectStore>| -> Work<ObjectMeta> {
            self.stats.gets.increment();
            let path = path.clone();
            Box::pin(async move { store.head(&path).await })
        };
        self.repeat(request).await
    }

    /// Returns the error of a request that has changed nothing, or nothing that matters.
    fn error(&self, path: &Path, failure: Failure) -> Error {
        use object_store::Error as E;
        let answer = match failure {
            Failure::Timeout => {
                let text = format!("the server has not answered within {:?}", self.limits.timeout);
                return Error::Retryable(text.into());
            }
            Failure::Refusal(refusal) => return refusal.error(path),
            Failure::Answer(answer) => answer,
        };
        let (full, text) = (answer.to_string(), one_line(&answer));
        match answer {
            E::NotFound { .. } => Error::Denied(format!("there is no bucket or no {path}: {text}").into()),
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => Error::Denied(text.into()),
            E::NotSupported { .. } | E::NotImplemented { .. } => Error::Unsupported(text.into()),
            E::Generic { .. } if full.contains("status code: 507 ") => Error::OutOfSpace(text.into()),
            E::Generic { .. } if [NO_RANGE, TOO_MANY, NO_ETAG].iter().any(|what| full.contains(what)) => {
                Error::Unsupported(text.into())
            }
            _ => Error::Retryable(text.into()),
        }
    }
}

fn too_short(path: &Path) -> Error {
    Error::Corrupt(format!("{path} is shorter than its head states").into())
}

/// Returns the bytes of a stream in one buffer, without a copy if they arrive in one buffer.
///
/// # Errors
/// Returns the stream's errors, and an error if there are more than `bytes_max` bytes, because a
/// server may send more than it announces.
async fn collect(
    mut stream: futures_util::stream::BoxStream<'static, object_store::Result<Bytes>>,
    bytes_max: u64,
) -> object_store::Result<Bytes> {
    let within = |len: usize| match len as u64 <= bytes_max {
        true => Ok(()),
        false => Err(object_store::Error::Generic { store: "S3", source: TOO_MANY.into() }),
    };
    let Some(first) = stream.next().await.transpose()? else { return Ok(Bytes::new()) };
    within(first.len())?;
    let Some(second) = stream.next().await.transpose()? else { return Ok(first) };
    let mut all = BytesMut::from(first);
    let mut next = Some(second);
    while let Some(bytes) = next {
        within(all.len() + bytes.len())?;
        all.extend_from_slice(&bytes);
        next = stream.next().await.transpose()?;
    }
    Ok(all.freeze())
}

// ---- background removals

impl Requests {
    /// Removes objects that no head names, in the background. If no request is free for an object,
    /// the object is left to a sweep.
    pub(crate) async fn remove_later(self: &Arc<Self>, paths: Vec<Path>) {
        match &self.spawn {
            Spawn::Inline => {
                for path in paths {
                    self.remove_or_leave(&path).await;
                }
            }
            // Half of the requests are reserved for waiting callers.
            Spawn::On(_) if !self.concurrency.is_half_free() => {
                self.stats.left_behind.add(paths.len() as u64);
            }
            Spawn::On(handle) => {
                let this = Arc::clone(self);
                this.removals.under_way.fetch_add(1, Ordering::AcqRel);
                handle.spawn(async move {
                    for path in paths {
                        this.remove_or_leave(&path).await;
                    }
                    this.removals.under_way.fetch_sub(1, Ordering::AcqRel);
                    this.removals.ended.notify_waiters();
                });
            }
        }
    }

    /// Waits until no background removal is running, but at most for `timeout`.
    pub(crate) async fn removed(&self, timeout: Duration) {
        let all = async {
            loop {
                // The waiter is registered here, so that it misses no notification.
                let ended = self.removals.ended.notified();
                if self.removals.under_way.load(Ordering::Acquire) == 0 {
                    return;
                }
                ended.await;
            }
        };
        select(pin!(all), self.timer(timeout)).await;
    }

    async fn remove_or_leave(&self, path: &Path) {
        if self.delete(path).await.is_err() {
            self.stats.left_behind.increment();
        }
    }
}
