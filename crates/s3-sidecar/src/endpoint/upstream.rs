//! Requests to the endpoint, over reused connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cached_http::{Client, Route, whole_text};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use rustls::ClientConfig;
use tokio::time::sleep_until;

use crate::access_log;
use crate::auth::{self, Signer};
use crate::config::SidecarConfig;
use crate::endpoint::lane::Lane;
use crate::endpoint::upload::{Upload, keep_expectation};
use crate::http::body::{self, Body};
use crate::http::framing;
use crate::metrics::Outcome;

/// The reason why the endpoint did not respond.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The endpoint is unreachable.
    Unreachable(String),
    /// The connection broke, or the response is not HTTP.
    Broken(String),
    /// The endpoint did not respond in time.
    Late,
    /// The client stopped sending its request.
    Stalled,
    /// The bucket's rate limit refuses the request.
    Busy,
}

impl Failure {
    /// Returns the response for the client.
    pub(crate) fn answer(&self) -> Response<Body> {
        let (status, code, message) = match self {
            Failure::Unreachable(cause) => (
                StatusCode::BAD_GATEWAY,
                "BadGateway",
                format!("cached cannot reach the S3 endpoint: {cause}"),
            ),
            Failure::Broken(cause) => {
                (StatusCode::BAD_GATEWAY, "BadGateway", format!("the S3 endpoint broke off: {cause}"))
            }
            Failure::Late => (
                StatusCode::GATEWAY_TIMEOUT,
                "GatewayTimeout",
                "the S3 endpoint did not answer in time".into(),
            ),
            Failure::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "SlowDown",
                "more was asked of the bucket than it may ask of the S3 endpoint a second".into(),
            ),
            Failure::Stalled => {
                (StatusCode::BAD_REQUEST, "RequestTimeout", "the request's body did not come in time".into())
            }
        };
        body::failure(status, code, &message)
    }
}

impl Failure {
    /// Returns the outcome of a request with this failure.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Failure::Busy => Outcome::Refused,
            _ => Outcome::Failed,
        }
    }
}

/// One thread's connections to the endpoint.
#[derive(Debug)]
pub(crate) struct Upstream {
    client: Client,
    scheme: &'static str,
    authority: String,
    /// The signer, or `None` if requests keep the clients' signatures.
    signer: Option<Signer>,
    response_timeout: Duration,
    breaker: Arc<Breaker>,
}

impl Upstream {
    pub(crate) fn new(config: &SidecarConfig, tls: ClientConfig, breaker: &Arc<Breaker>) -> Arc<Self> {
        let connector = Route::new(config.connect_timeout).with_tls(tls, true);
        let mut settings = cached_http::builder();
        settings
            .http1_max_headers(config.headers_max)
            .pool_max_idle_per_host(config.connections_max.div_ceil(config.threads))
            .http1_preserve_header_case(true)
            .http1_max_buf_size(config.head_bytes_max);
        let client = Client::new(&settings, connector);
        let scheme = if config.upstream.has_tls { "https" } else { "http" };
        let authority = config.upstream.authority.clone();
        let signer = config.auth.is_here().then(|| {
            let host = HeaderValue::from_str(&authority).unwrap_or(HeaderValue::from_static(""));
            Signer::new(config.secrets.credentials.clone(), config.upstream_region.clone(), host)
        });
        let (response_timeout, breaker) = (config.response_timeout, Arc::clone(breaker));
        Arc::new(Self { client, scheme, authority, signer, response_timeout, breaker })
    }

    /// Sends a request, and returns the head of the response and its streaming body.
    ///
    /// # Errors
    /// [`Failure`]. After [`Failure::Unreachable`] and [`Failure::Busy`] the endpoint has certainly
    /// received nothing of the request.
    pub(crate) async fn send(
        &self,
        mut head: Parts,
        mut body: Upload,
    ) -> Result<Response<Incoming>, Failure> {
        let lane = head.extensions.remove::<Arc<Lane>>();
        if let Some(lane) = &lane {
            if !lane.enter().await {
                return Err(Failure::Busy);
            }
            body = body.in_lane(lane);
        }
        let mut outcome = self.send_on(head, body).await;
        if let (Ok(answer), Some(lane)) = (&mut outcome, lane) {
            answer.extensions_mut().insert(lane);
        }
        outcome
    }

    async fn send_on(&self, head: Parts, body: Upload) -> Result<Response<Incoming>, Failure> {
        if !self.breaker.admits(Instant::now()) {
            return Err(Failure::Unreachable("it is tried once a second since it cannot be reached".into()));
        }
        let began = tokio::time::Instant::now();
        let outcome = self.try_send(head, body).await;
        access_log::add_wait(began.elapsed());
        match &outcome {
            Err(Failure::Unreachable(cause)) => {
                if self.breaker.failed(Instant::now()) {
                    tracing::warn!(%cause, endpoint = self.authority, "the S3 endpoint cannot be reached");
                }
            }
            _ => self.breaker.succeeded(),
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

    async fn send_once(&self, mut head: Parts, body: Upload) -> Result<Response<Incoming>, Failure> {
        if let Some(signer) = &self.signer {
            signer.sign(&mut head, !body.is_none(), auth::time::now());
        }
        let path = head.uri.path_and_query().cloned();
        let uri = Uri::builder().scheme(self.scheme).authority(self.authority.as_str());
        let uri = path.into_iter().fold(uri, hyper::http::uri::Builder::path_and_query).build();
        head.uri = uri.map_err(|error| Failure::Unreachable(error.to_string()))?;
        head.version = Version::HTTP_11;
        let progress = body.progress();
        let mut request = Request::from_parts(head, body);
        keep_expectation(&mut request);
        let began = tokio::time::Instant::now();
        let mut answer = std::pin::pin!(self.client.request(request));
        loop {
            let deadline = progress.last().max(began) + self.response_timeout;
            tokio::select! {
                answer = answer.as_mut() => {
                    let mut answer = answer.map_err(|error| match () {
                        () if progress.is_stalled() => Failure::Stalled,
                        () if error.is_connect() => Failure::Unreachable(whole_text(&error)),
                        () => Failure::Broken(whole_text(&error)),
                    })?;
                    return match framing::judge(&mut answer) {
                        Ok(()) => Ok(answer),
                        Err(why) => Err(Failure::Broken(format!("its answer cannot be passed on: {why}"))),
                    };
                }
                () = sleep_until(deadline) => {
                    // A body that makes progress is not late.
                    if progress.last().max(began) + self.response_timeout <= tokio::time::Instant::now() {
                        return Err(Failure::Late);
                    }
                }
            }
        }
    }
}

/// The number of consecutive failures that opens the breaker.
const FAILURES_MAX: u32 = 3;

/// The time for which the breaker is open; after that one request tries.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// A circuit breaker. After several consecutive failures it admits one request per second, until a
/// request succeeds.
#[derive(Debug)]
pub(crate) struct Breaker {
    began: Instant,
    failures: AtomicU32,
    /// The time of the next attempt, in milliseconds since `began`.
    next_try: AtomicU64,
}

impl Breaker {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), failures: AtomicU32::new(0), next_try: AtomicU64::new(0) }
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns whether a request may try.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        if self.failures.load(Ordering::Relaxed) < FAILURES_MAX {
            return true;
        }
        let (now, next) = (self.millis(now), self.next_try.load(Ordering::Relaxed));
        let pause = u64::try_from(PAUSE.as_millis()).unwrap_or(u64::MAX);
        now >= next
            && self.next_try.compare_exchange(next, now + pause, Ordering::Relaxed, Ordering::Relaxed).is_ok()
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
        let pause = u64::try_from(PAUSE.as_millis()).unwrap_or(u64::MAX);
        self.next_try.store(self.millis(now) + pause, Ordering::Relaxed);
        before + 1 == FAILURES_MAX
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
        let breaker = Breaker::new();
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
        breaker.succeeded();
        assert!(breaker.admits(later) && breaker.admits(later) && !breaker.is_open());
    }
}
