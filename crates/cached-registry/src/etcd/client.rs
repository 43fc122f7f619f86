//! Requests to etcd: any of several endpoints, a login, and etcd's errors.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cached_http::http::header::{AUTHORIZATION, CONTENT_TYPE};
use cached_http::http::{Request, StatusCode};
use cached_http::{Client, Connector, whole_text};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::number;
use crate::error::{Error, Reason, Result};

/// The maximum length of a response, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The body of a response.
pub(super) type Body = UnsyncBoxBody<Bytes, String>;

/// The user who logs in.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub(crate) user: String,
    /// The file with the password, which is read for each login, so that a new password needs no
    /// reload.
    pub(crate) password_file: PathBuf,
}

impl Login {
    /// Reads the password.
    ///
    /// # Errors
    /// Returns the reason, in one line.
    pub(crate) fn password(&self) -> Result<String, String> {
        let path = &self.password_file;
        let text = named_file::open(path, named_file::Kinds::Regular).and_then(named_file::NamedFile::text);
        let text = text.map_err(|error| error.unread(path).to_string())?;
        match text.lines().next() {
            Some(password) if !password.is_empty() => Ok(password.to_owned()),
            _ => Err(format!("{} has no password in its first line", path.display())),
        }
    }
}

/// Whether a request may be sent twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// The request is sent to another endpoint if its response is lost.
    Repeatable,
    /// The request is never sent twice.
    Change,
}

/// A client of the members of one etcd cluster.
#[derive(Debug)]
pub(crate) struct EtcdClient {
    http: Client,
    endpoints: Vec<String>,
    /// The index of the endpoint that has responded last.
    current: AtomicUsize,
    login: Option<Login>,
    token: Mutex<Option<Arc<str>>>,
    timeout: Duration,
}

/// The reason why one request to one endpoint has failed.
enum Failure {
    /// The request was not sent.
    NotSent(String),
    /// The request may have been executed.
    Lost(String),
    /// etcd has responded with an error.
    Refused { code: u64, why: String },
}

impl EtcdClient {
    /// Returns a client of the `endpoints`, which are URLs without a path; there is at least one.
    /// Each request to an endpoint takes at most `timeout`.
    pub(crate) fn new(
        connector: Connector,
        endpoints: Vec<String>,
        login: Option<Login>,
        timeout: Duration,
    ) -> Self {
        let http = Client::new(&cached_http::builder(), connector);
        Self { http, endpoints, current: AtomicUsize::new(0), login, token: Mutex::new(None), timeout }
    }

    /// Sends a request to the endpoints in turn, until one responds.
    ///
    /// # Errors
    /// Returns [`Error::OutcomeUnknown`] only for a change.
    pub(super) async fn call(&self, method: &str, request: &Value, effect: Effect) -> Result<Value> {
        let mut attempts = self.endpoints.len();
        let mut may_log_in = self.login.is_some();
        loop {
            let endpoint = self.current.load(Ordering::Relaxed);
            let failure = match self.send_with_token(endpoint, method, request).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let (why, may_have_happened) = match failure {
                Failure::Refused { code, why } if is_login(code, &why) && may_log_in => {
                    may_log_in = false;
                    *self.token.lock() = None;
                    continue;
                }
                // The codes mean cancelled, unknown, deadline exceeded, internal, and unavailable:
                // etcd was electing a leader, perhaps while it executed the request.
                Failure::Refused { code: 1 | 2 | 4 | 13 | 14, why } => (why, true),
                Failure::Refused { code, why } => return Err(refusal(code, why)),
                Failure::NotSent(why) => (why, false),
                Failure::Lost(why) => (why, true),
            };
            self.skip(endpoint);
            if may_have_happened && effect == Effect::Change {
                return Err(Error::OutcomeUnknown(why.into()));
            }
            attempts -= 1;
            if attempts == 0 {
                return Err(Error::Unavailable(why.into()));
            }
        }
    }

    /// Opens a stream of responses at the current endpoint.
    pub(super) async fn stream(&self, method: &str, request: &Value) -> Result<Body> {
        let endpoint = self.current.load(Ordering::Relaxed);
        let opened = async {
            let token = self.token(endpoint).await?;
            self.open(endpoint, method, request, token.as_deref()).await
        };
        match opened.await {
            Ok((StatusCode::OK, body)) => Ok(body),
            Ok((status, _)) => {
                self.skip(endpoint);
                Err(Error::Unavailable(format!("{} answers {status}", self.endpoints[endpoint]).into()))
            }
            Err(Failure::Refused { code, why }) => Err(refusal(code, why)),
            Err(Failure::NotSent(why) | Failure::Lost(why)) => {
                self.skip(endpoint);
                Err(Error::Unavailable(why.into()))
            }
        }
    }

    /// Forces a new login before the next request. Returns whether a login is configured.
    pub(super) fn forget_token(&self) -> bool {
        *self.token.lock() = None;
        self.login.is_some()
    }

    /// Makes later requests go to the endpoint after the one that has failed.
    pub(super) fn skip_current(&self) {
        self.skip(self.current.load(Ordering::Relaxed));
    }

    fn skip(&self, failed: usize) {
        let next = (failed + 1) % self.endpoints.len();
        // If another request has already moved on, its choice stays.
        let _ = self.current.compare_exchange(failed, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn send_with_token(
        &self,
        endpoint: usize,
        method: &str,
        request: &Value,
    ) -> Result<Value, Failure> {
        let token = self.token(endpoint).await?;
        self.send(endpoint, method, request, token.as_deref()).await
    }

    /// Returns the token of the login; logs in if there is no token yet.
    async fn token(&self, endpoint: usize) -> Result<Option<Arc<str>>, Failure> {
        let Some(login) = &self.login else { return Ok(None) };
        if let Some(token) = &*self.token.lock() {
            return Ok(Some(Arc::clone(token)));
        }
        let password = login.password().map_err(Failure::NotSent)?;
        let request = json!({ "name": login.user, "password": password });
        match self.send(endpoint, "auth/authenticate", &request, None).await {
            Ok(answer) => {
                let token: Arc<str> = answer["token"].as_str().unwrap_or_default().into();
                *self.token.lock() = Some(Arc::clone(&token));
                Ok(Some(token))
            }
            // "authentication is not enabled": nobody needs to log in.
            Err(Failure::Refused { code: 9, .. }) => Ok(None),
            // A login changes nothing, so after a lost response it counts as not sent.
            Err(Failure::Lost(why)) => Err(Failure::NotSent(why)),
            Err(failure) => Err(failure),
        }
    }

    async fn send(
        &self,
        endpoint: usize,
        method: &str,
        request: &Value,
        token: Option<&str>,
    ) -> Result<Value, Failure> {
        let lost = |why: String| Failure::Lost(format!("{}: {why}", self.endpoints[endpoint]));
        let answering = async {
            let (status, body) = self.open(endpoint, method, request, token).await?;
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| lost(whole_text(&*error)))?.to_bytes();
            let answer: Option<Value> = serde_json::from_slice(&body).ok();
            match (status, answer) {
                (StatusCode::OK, Some(answer)) => Ok(answer),
                (_, Some(answer)) if answer["code"].is_u64() => {
                    let why = answer["error"].as_str().unwrap_or_default().to_owned();
                    Err(Failure::Refused { code: number(&answer["code"]), why })
                }
                (status, _) => Err(lost(format!("the response {status} is not from etcd"))),
            }
        };
        let late = || Err(lost(format!("no response within {} s", self.timeout.as_secs_f64())));
        tokio::time::timeout(self.timeout, answering).await.unwrap_or_else(|_| late())
    }

    /// Sends one request. Returns the status and the body of the response.
    async fn open(
        &self,
        endpoint: usize,
        method: &str,
        request: &Value,
        token: Option<&str>,
    ) -> Result<(StatusCode, Body), Failure> {
        let at = &self.endpoints[endpoint];
        let not_sent = |why: String| Failure::NotSent(format!("{at}: {why}"));
        let mut builder = Request::post(format!("{at}/v3/{method}")).header(CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            builder = builder.header(AUTHORIZATION, token);
        }
        let request = builder.body(Full::new(Bytes::from(request.to_string())));
        let request = request.map_err(|error| not_sent(error.to_string()))?;
        let answering = tokio::time::timeout(self.timeout, self.http.request(request));
        match answering.await {
            Ok(Ok(answer)) => {
                let (head, body) = answer.into_parts();
                Ok((head.status, body.map_err(|error| whole_text(&error)).boxed_unsync()))
            }
            Ok(Err(error)) if error.is_connect() => Err(not_sent(whole_text(&error))),
            Ok(Err(error)) => Err(Failure::Lost(format!("{at}: {}", whole_text(&error)))),
            Err(_) => {
                Err(Failure::Lost(format!("{at}: no response within {} s", self.timeout.as_secs_f64())))
            }
        }
    }
}

/// Returns whether an error of etcd means that the client must log in, for the first time or again.
pub(super) fn is_login(code: u64, why: &str) -> bool {
    code == 16 || why.contains("user name is empty") || why.contains("invalid auth token")
}

/// Converts an error of etcd that a retry does not resolve. The codes are those of gRPC.
fn refusal(code: u64, why: String) -> Error {
    let reason: Reason = why.into();
    match code {
        5 if reason.contains("lease not found") => Error::LeaseEnded,
        3 if !is_login(code, &reason) && !reason.contains("authentication failed") => Error::Invalid(reason),
        3 | 7 | 16 => Error::Denied(format!("etcd refuses the request: {reason}").into()),
        // The same code as for a database or a message without room.
        8 if !reason.contains("too many requests") => Error::TooLarge(reason),
        _ => Error::Unavailable(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_whether_another_attempt_may_succeed() {
        let of = |code, why: &str| refusal(code, why.to_owned());
        assert!(matches!(of(8, "etcdserver: too many requests"), Error::Unavailable(_)));
        assert!(matches!(of(8, "etcdserver: mvcc: database space exceeded"), Error::TooLarge(_)));
        assert!(matches!(of(3, "etcdserver: authentication failed, invalid user ID"), Error::Denied(_)));
        assert_eq!(of(5, "etcdserver: requested lease not found"), Error::LeaseEnded);
    }
}
