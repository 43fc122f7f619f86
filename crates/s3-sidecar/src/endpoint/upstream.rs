//! Requests to the endpoint, over connections that are kept.

use std::sync::Arc;
use std::time::Duration;

use cached_http::{Client, Route, whole_text};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use rustls::ClientConfig;
use tokio::time::{Instant, sleep_until};

use crate::access_log;
use crate::auth::{self, Signer};
use crate::config::SidecarConfig;
use crate::endpoint::breaker::Breaker;
use crate::endpoint::lane::Lane;
use crate::endpoint::upload::{Upload, keep_expectation};
use crate::http::answer;
use crate::http::body::Body;
use crate::http::framing;
use crate::outcome::Outcome;

/// Why the endpoint gave no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It cannot be reached.
    Unreachable(String),
    /// The connection broke, or what came is no HTTP.
    Broken(String),
    /// It did not answer in time.
    Late,
    /// The client stopped sending its request.
    Stalled,
    /// The bucket's rates let it not pass.
    Busy,
}

impl Failure {
    /// Returns the answer for the client.
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
        answer::failure(status, code, &message)
    }
}

impl Failure {
    /// Returns how a request that has failed so ends.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Failure::Busy => Outcome::Refused,
            _ => Outcome::Failed,
        }
    }
}

/// The endpoint, as one thread speaks to it.
#[derive(Debug)]
pub(crate) struct Upstream {
    client: Client<Upload>,
    scheme: &'static str,
    authority: String,
    /// `None` where requests keep the clients' signatures.
    signer: Option<Signer>,
    response_timeout: Duration,
    breaker: Arc<Breaker>,
}

impl Upstream {
    pub(crate) fn new(config: &SidecarConfig, tls: ClientConfig, breaker: &Arc<Breaker>) -> Arc<Self> {
        let connector = Route::new(config.connect_timeout).with_tls(tls, true);
        let client = cached_http::builder()
            .http1_max_headers(config.headers_max)
            .pool_max_idle_per_host(config.connections_max.div_ceil(config.threads))
            .http1_preserve_header_case(true)
            .http1_max_buf_size(config.head_bytes_max)
            .build(connector);
        let scheme = if config.upstream.has_tls { "https" } else { "http" };
        let authority = config.upstream.authority.clone();
        let signer = config.auth.is_here().then(|| {
            let host = HeaderValue::from_str(&authority).unwrap_or(HeaderValue::from_static(""));
            Signer::new(config.secrets.credentials.clone(), config.upstream_region.clone(), host)
        });
        let (response_timeout, breaker) = (config.response_timeout, Arc::clone(breaker));
        Arc::new(Self { client, scheme, authority, signer, response_timeout, breaker })
    }

    /// Sends a request, and returns the head of the answer with the rest to come.
    ///
    /// # Errors
    /// [`Failure`]. After [`Failure::Unreachable`] and [`Failure::Busy`] the endpoint certainly has nothing of the request.
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
        if !self.breaker.admits(std::time::Instant::now()) {
            return Err(Failure::Unreachable("it is tried once a second since it cannot be reached".into()));
        }
        let began = Instant::now();
        let outcome = self.try_send(head, body).await;
        access_log::add_wait(began.elapsed());
        match &outcome {
            Err(Failure::Unreachable(cause)) => {
                if self.breaker.failed(std::time::Instant::now()) {
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
            // The endpoint has closed a kept connection just when it was used again.
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
        let began = Instant::now();
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
                    // A body that still moves is not late.
                    if progress.last().max(began) + self.response_timeout <= Instant::now() {
                        return Err(Failure::Late);
                    }
                }
            }
        }
    }
}
