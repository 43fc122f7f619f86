//! Requests to the endpoint, and the things that may delay them: a rate limit, a circuit breaker,
//! the response to another reader, a client's body. Knowledge about objects does not belong here.

pub(crate) mod asking;
pub(crate) mod lane;
pub(crate) mod upload;

use std::error::Error;
use std::iter::successors;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cached_http::{Client, Route, whole_text};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::time::sleep_until;

use crate::access_log;
use crate::auth::{self, Signer};
use crate::config::SidecarConfig;
use crate::endpoint::lane::Lanes;
use crate::endpoint::upload::{Upload, keep_expectation};
use crate::http::body::{self, Body};
use crate::http::framing;
use crate::metrics::Outcome;

/// The reason why the endpoint did not respond. The `Display` output is the message for the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cached cannot reach the S3 endpoint: {0}")]
    Unreachable(String),
    /// The connection broke, or the response is not HTTP.
    #[error("the S3 endpoint failed: {0}")]
    Broken(String),
    #[error("the S3 endpoint did not respond in time")]
    Late,
    /// The client stopped sending its request.
    #[error("the request's body did not arrive in time")]
    Stalled,
    /// The bucket's rate limit refuses the request.
    #[error("the bucket's rate limit for requests to the S3 endpoint is exceeded")]
    Busy,
}

impl Failure {
    /// Returns the response for the client.
    pub(crate) fn answer(&self) -> Response<Body> {
        let (status, code) = match self {
            Failure::Unreachable(_) | Failure::Broken(_) => (StatusCode::BAD_GATEWAY, "BadGateway"),
            Failure::Late => (StatusCode::GATEWAY_TIMEOUT, "GatewayTimeout"),
            Failure::Busy => (StatusCode::SERVICE_UNAVAILABLE, "SlowDown"),
            Failure::Stalled => (StatusCode::BAD_REQUEST, "RequestTimeout"),
        };
        body::failure(status, code, &self.to_string())
    }

    /// Returns the outcome of a request with this failure.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Failure::Busy => Outcome::Refused,
            _ => Outcome::Failed,
        }
    }
}

/// The buffer for the endpoint's responses is longer by this number of bytes than
/// [`SidecarConfig::head_bytes_max`], so that with the default a body of 64 KiB and its head arrive,
/// and are forwarded, in one piece.
const HEAD_BYTES: usize = 4 << 10;

/// One thread's connections to the endpoint.
#[derive(Debug)]
pub(crate) struct Upstream {
    client: Client,
    scheme: &'static str,
    authority: String,
    /// The signer, or `None` if requests keep the clients' signatures.
    signer: Option<Signer>,
    response_timeout: Duration,
    continue_wait_max: Duration,
    /// The limits of a response's head, for a message.
    head_limits: String,
    breaker: Arc<Breaker>,
    lanes: Arc<Lanes>,
}

impl Upstream {
    pub(crate) fn new(
        config: &SidecarConfig,
        tls: ClientConfig,
        breaker: &Arc<Breaker>,
        lanes: &Arc<Lanes>,
    ) -> Arc<Self> {
        let connector = Route::new(config.connect_timeout).with_tls(tls, true);
        let mut settings = cached_http::builder();
        settings
            .pool_max_idle_per_host(config.connections_max.div_ceil(config.threads))
            // As in the clients' requests. Headers from memory are in lower case anyway.
            .http1_preserve_header_case(!config.auth.is_here())
            .http1_max_buf_size(config.head_bytes_max + HEAD_BYTES);
        if config.headers_max != cached_http::HEADERS_MAX {
            settings.http1_max_headers(config.headers_max);
        }
        let client = Client::new(&settings, connector);
        let scheme = if config.upstream.has_tls { "https" } else { "http" };
        let authority = config.upstream.authority.clone();
        let signer = config.auth.is_here().then(|| {
            let host = HeaderValue::from_str(&authority).unwrap_or(HeaderValue::from_static(""));
            Signer {
                credentials: config.secrets.credentials.clone(),
                region: config.upstream_region.clone(),
                host,
            }
        });
        Arc::new(Self {
            client,
            scheme,
            authority,
            signer,
            response_timeout: config.response_timeout,
            continue_wait_max: config.continue_wait_max,
            head_limits: config.head_limits(),
            breaker: Arc::clone(breaker),
            lanes: Arc::clone(lanes),
        })
    }

    /// Sends a request for this bucket, and returns the head of the response and its streaming body.
    ///
    /// # Errors
    /// [`Failure`]. After [`Failure::Unreachable`] and [`Failure::Busy`] the endpoint has certainly
    /// received nothing of the request.
    pub(crate) async fn send(
        &self,
        bucket: Option<&str>,
        head: Parts,
        mut body: Upload,
    ) -> Result<Response<Incoming>, Failure> {
        let lane = bucket.and_then(|name| self.lanes.of(name));
        if let Some(lane) = &lane {
            if !lane.enter().await {
                return Err(Failure::Busy);
            }
            body = body.in_lane(lane);
        }
        if !self.breaker.admits(Instant::now()) {
            return Err(Failure::Unreachable("it is unreachable, and is retried once a second".into()));
        }
        let began = tokio::time::Instant::now();
        let mut outcome = self.try_send(head, body).await;
        access_log::add_wait(began.elapsed());
        match &mut outcome {
            Err(Failure::Unreachable(cause)) => {
                if self.breaker.failed(Instant::now()) {
                    tracing::warn!(%cause, endpoint = self.authority, "the S3 endpoint cannot be reached");
                }
            }
            Err(_) => self.breaker.succeeded(),
            Ok(answer) => {
                self.breaker.succeeded();
                if let Some(lane) = lane {
                    answer.extensions_mut().insert(lane);
                }
            }
        }
        outcome
    }

    async fn try_send(&self, head: Parts, body: Upload) -> Result<Response<Incoming>, Failure> {
        let is_repeatable = body.is_none() && (head.method == Method::GET || head.method == Method::HEAD);
        let again = is_repeatable.then(|| head.clone());
        match (self.send_once(head, body).await, again) {
            // The endpoint closed an idle connection just as it was reused.
            (Err(Failure::Broken(_)), Some(head)) => self.send_once(head, Upload::none()).await,
            (outcome, _) => outcome,
        }
    }

    async fn send_once(&self, mut head: Parts, mut body: Upload) -> Result<Response<Incoming>, Failure> {
        if let Some(signer) = &self.signer {
            signer.sign(&mut head, !body.is_none(), auth::signature::now());
        }
        let path = head.uri.path_and_query().cloned();
        let uri = Uri::builder().scheme(self.scheme).authority(self.authority.as_str());
        let uri = path.into_iter().fold(uri, hyper::http::uri::Builder::path_and_query).build();
        head.uri = uri.map_err(|error| Failure::Unreachable(error.to_string()))?;
        head.version = Version::HTTP_11;
        let progress = body.progress();
        let mut request = Request::from_parts(head, body);
        keep_expectation(&mut request, self.continue_wait_max);
        let began = tokio::time::Instant::now();
        let mut answer = std::pin::pin!(self.client.request(request));
        // A body that makes progress is not late.
        let deadline = || (*progress.last.lock()).max(began) + self.response_timeout;
        loop {
            tokio::select! {
                answer = answer.as_mut() => {
                    let mut answer = answer.map_err(|error| match () {
                        () if progress.is_stalled.load(Ordering::Relaxed) => Failure::Stalled,
                        () if error.is_connect() => Failure::Unreachable(whole_text(&error)),
                        () if is_too_large(&error) => {
                            Failure::Broken(format!("the head of its response is beyond {}", self.head_limits))
                        }
                        () => Failure::Broken(whole_text(&error)),
                    })?;
                    return match framing::judge(&mut answer) {
                        Ok(()) => Ok(answer),
                        Err(why) => Err(Failure::Broken(format!("its response cannot be forwarded: {why}"))),
                    };
                }
                // A body may bring the deadline forward: it is far away while the client is waited for.
                () = sleep_until(deadline().min(tokio::time::Instant::now() + self.response_timeout)) => {
                    if deadline() <= tokio::time::Instant::now() {
                        return Err(Failure::Late);
                    }
                }
            }
        }
    }
}

/// Returns whether the reason of an error is that the head of a message exceeds its limits.
fn is_too_large(error: &(dyn Error + 'static)) -> bool {
    let mut causes = successors(Some(error), |error| Error::source(*error));
    causes.any(|cause| cause.downcast_ref().is_some_and(hyper::Error::is_parse_too_large))
}

/// The number of consecutive failures that opens the breaker.
const FAILURES_MAX: u32 = 3;

/// The time for which the breaker is open; after that one request tries.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// A circuit breaker. After several consecutive failures it admits one request per second, until a
/// request succeeds.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    failures: AtomicU32,
    /// The time of the next attempt, while the breaker is open.
    next_try: Mutex<Option<Instant>>,
    /// The time when the breaker opened last.
    opened_at: Mutex<Option<Instant>>,
}

impl Breaker {
    /// Returns whether a request may try.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        if !self.is_open() {
            return true;
        }
        let mut next_try = self.next_try.lock();
        let is_due = next_try.is_none_or(|next_try| now >= next_try);
        if is_due {
            *next_try = Some(now + PAUSE);
        }
        is_due
    }

    /// Records that a request has reached the endpoint.
    pub(crate) fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Records that a request has failed. Returns whether the failure has opened the breaker.
    pub(crate) fn failed(&self, now: Instant) -> bool {
        let before = self.failures.fetch_add(1, Ordering::Relaxed);
        if before + 1 < FAILURES_MAX {
            return false;
        }
        // The count stays at the limit.
        self.failures.store(FAILURES_MAX, Ordering::Relaxed);
        *self.next_try.lock() = Some(now + PAUSE);
        let opens = before + 1 == FAILURES_MAX;
        if opens {
            *self.opened_at.lock() = Some(now);
        }
        opens
    }

    /// Returns for how long the breaker has been open, if it is.
    pub(crate) fn open_for(&self, now: Instant) -> Option<Duration> {
        let opened_at = self.opened_at.lock().filter(|_| self.is_open())?;
        Some(now.saturating_duration_since(opened_at))
    }

    /// Returns whether the breaker is open.
    pub(crate) fn is_open(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FAILURES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_that_is_away_is_tried_once_a_second() {
        let breaker = Breaker::default();
        let now = Instant::now();
        assert!(!breaker.failed(now) && !breaker.failed(now) && breaker.admits(now));
        breaker.succeeded();
        assert!(!breaker.failed(now) && !breaker.failed(now) && !breaker.is_open());
        assert!(breaker.failed(now) && breaker.is_open() && !breaker.admits(now));
        let later = now + PAUSE;
        // Only one request is admitted.
        assert!(breaker.admits(later) && !breaker.admits(later));
        assert!(
            !breaker.failed(later) && !breaker.admits(later + PAUSE / 2) && breaker.admits(later + PAUSE)
        );
        assert_eq!(breaker.open_for(later + PAUSE), Some(2 * PAUSE), "since it opened");
        breaker.succeeded();
        assert!(breaker.admits(later) && breaker.admits(later) && !breaker.is_open());
        assert_eq!(breaker.open_for(later), None);
    }
}
