//! What the access log states of a request: one object of JSON, written when its answer has been sent or broken off.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use bytes::Buf;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;
use hyper::{Method, Response};
use serde::Serialize;

use crate::access_log::AccessLog;
use crate::http::body::{Body, BodyError, Data};
use crate::http::read::parameters;
use crate::outcome::Outcome;

/// What is known of a request when it begins.
pub(crate) struct Entry {
    began: Instant,
    time: SystemTime,
    peer: SocketAddr,
    method: Method,
    target: String,
    host: String,
    key_id: Option<String>,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    peer: SocketAddr,
    method: &'a str,
    host: &'a str,
    path: &'a str,
    status: u16,
    bytes: u64,
    outcome: &'static str,
    upstream_ms: f64,
    total_ms: f64,
    key_id: Option<&'a str>,
}

/// The longest path, host or key that is logged, in bytes.
const TEXT_BYTES_MAX: usize = 1024;

impl Entry {
    /// Returns what is logged of a request. Of its parameters nothing is: they may be a presigned request's.
    pub(crate) fn of(request: &Parts, host: &str, peer: SocketAddr) -> Entry {
        Entry {
            began: Instant::now(),
            time: SystemTime::now(),
            peer,
            method: request.method.clone(),
            target: cut(request.uri.path()),
            host: cut(host),
            key_id: key_id(request).map(cut),
        }
    }

    /// Returns the response with a body that logs the request at its end.
    pub(crate) fn follow(
        self,
        log: &Arc<AccessLog>,
        response: Response<Body>,
        outcome: Outcome,
        waited: Duration,
    ) -> Response<Body> {
        let status = response.status().as_u16();
        let log = Arc::clone(log);
        response
            .map(|body| Followed { body, bytes: 0, log, entry: self, status, outcome, waited }.boxed_unsync())
    }
}

fn cut(text: &str) -> String {
    let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|at| text.is_char_boundary(*at));
    text[..end.unwrap_or(0)].to_owned()
}

/// Returns the access key that a request names.
fn key_id(request: &Parts) -> Option<&str> {
    if let Some(value) = request.headers.get(AUTHORIZATION) {
        let value = value.to_str().ok()?;
        if let Some(rest) = value.strip_prefix("AWS ") {
            return rest.split(':').next();
        }
        return value.split([' ', ',']).find_map(|part| part.strip_prefix("Credential="))?.split('/').next();
    }
    let is_key =
        |name: &str| ["x-amz-credential", "awsaccesskeyid"].iter().any(|key| name.eq_ignore_ascii_case(key));
    let (_, value) = parameters(&request.uri).find(|(name, _)| is_key(name))?;
    value.split(['/', '%']).next()
}

/// A body that counts what is taken of it.
struct Followed {
    body: Body,
    bytes: u64,
    log: Arc<AccessLog>,
    entry: Entry,
    status: u16,
    outcome: Outcome,
    waited: Duration,
}

impl HttpBody for Followed {
    type Data = Data;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Data>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            self.bytes += data.remaining() as u64;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let Entry { began, time, peer, method, target, host, key_id } = &self.entry;
        let millis = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let line = Line {
            time: humantime::format_rfc3339_millis(*time).to_string(),
            peer: *peer,
            method: method.as_str(),
            host,
            path: target,
            status: self.status,
            bytes: self.bytes,
            outcome: self.outcome.name(),
            upstream_ms: millis(self.waited),
            total_ms: millis(began.elapsed()),
            key_id: key_id.as_deref(),
        };
        if let Ok(mut text) = serde_json::to_string(&line) {
            text.push('\n');
            self.log.line(text);
        }
    }
}
