//! Why a request is refused: as S3's clients know it, and as it is counted.

use std::borrow::Cow;

use cached_metrics::{Collect, Counter, Families, Value};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Response, StatusCode};

use crate::http::body::{self, Body};

/// What refusals are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It is not signed, and nobody unknown may do it.
    Anonymous,
    /// What identifies the client, or how long its body is, cannot be read.
    Malformed,
    /// A way of signing that is not built.
    Unsupported,
    /// No such access key.
    UnknownKey,
    /// The signature is not what the key makes of the request, or leaves out what it must cover.
    Signature,
    /// Clocks differ too much, or the signature has expired.
    Time,
    /// The key may not do it.
    Rights,
    /// The body is not what was signed.
    Body,
}

/// All reasons, in the order of their counters, with the values of the label.
const REASONS: [(Reason, &str); 8] = [
    (Reason::Anonymous, "anonymous"),
    (Reason::Malformed, "malformed"),
    (Reason::Unsupported, "unsupported"),
    (Reason::UnknownKey, "unknown_key"),
    (Reason::Signature, "signature"),
    (Reason::Time, "time"),
    (Reason::Rights, "rights"),
    (Reason::Body, "body"),
];

/// The number of requests that were refused, by reason.
#[derive(Debug, Default)]
pub struct Refusals([Counter; REASONS.len()]);

impl Refusals {
    pub(crate) fn count(&self, reason: Reason) {
        self.0[reason as usize].increment();
    }

    /// Returns the number of refused requests with this value of the label.
    #[must_use]
    pub fn of(&self, label: &str) -> u64 {
        let all = REASONS.iter().zip(&self.0);
        all.filter(|((_, name), _)| *name == label).map(|(_, counter)| counter.get()).sum()
    }
}

impl Collect for Refusals {
    fn collect(&self, into: &mut Families) {
        let help = "Requests of S3 clients that the listener refused, with auth = \"listener\" or \"none\": anonymous (not \
                    signed), malformed (what identifies the client, or the target, cannot be read), unsupported (a way \
                    of signing that is not known), unknown_key, signature (wrong, or not over all that it must cover), \
                    time (clocks differ, or expired), rights (the key may not), body (not what was signed).";
        for ((_, name), count) in REASONS.iter().zip(&self.0) {
            let labels = vec![("reason", *name).into()];
            into.sample("cached_s3_sidecar_auth_refused_total", help, labels, Value::Counter(count.get()));
        }
    }
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    pub(crate) reason: Reason,
    pub(crate) code: &'static str,
    status: StatusCode,
    message: Cow<'static, str>,
}

impl Denial {
    fn new(
        reason: Reason,
        status: StatusCode,
        code: &'static str,
        text: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { reason, code, status, message: text.into() }
    }

    /// It is not signed.
    pub(crate) fn anonymous() -> Self {
        let text = "the request is not signed, and no anonymous client may do this";
        Self::new(Reason::Anonymous, StatusCode::FORBIDDEN, "AccessDenied", text)
    }

    /// The key may not do it.
    pub(crate) fn rights() -> Self {
        Self::new(Reason::Rights, StatusCode::FORBIDDEN, "AccessDenied", "this access key may not do this")
    }

    /// No such access key.
    pub(crate) fn unknown_key() -> Self {
        let text = "the access key is not in the keys file of cached";
        Self::new(Reason::UnknownKey, StatusCode::FORBIDDEN, "InvalidAccessKeyId", text)
    }

    /// The signature is wrong.
    pub(crate) fn signature() -> Self {
        let text = "the signature is not the one that the access key makes of this request; check the secret key and the \
                    way of signing";
        Self::new(Reason::Signature, StatusCode::FORBIDDEN, "SignatureDoesNotMatch", text)
    }

    /// A header must be signed and is not.
    pub(crate) fn unsigned_header(name: &str) -> Self {
        let text = format!("the header {name} is not signed; host and each x-amz- header must be");
        Self::new(Reason::Signature, StatusCode::FORBIDDEN, "AccessDenied", text)
    }

    /// A header is not known, and an endpoint could take it for one of S3's.
    pub(crate) fn unknown_header(name: &str) -> Self {
        let text = format!(
            "the header {name} is not known to cached and is not forwarded: an endpoint could take it for one that means more; leave it out"
        );
        Self::new(Reason::Malformed, StatusCode::BAD_REQUEST, "InvalidRequest", text)
    }

    /// It is a request to the endpoint itself.
    pub(crate) fn service() -> Self {
        let text = "of the requests to the endpoint itself only the list of buckets is forwarded";
        Self::new(Reason::Rights, StatusCode::FORBIDDEN, "AccessDenied", text)
    }

    /// The clocks differ.
    pub(crate) fn skew() -> Self {
        let text = "the request's time and that of cached differ by more than 15 minutes";
        Self::new(Reason::Time, StatusCode::FORBIDDEN, "RequestTimeTooSkewed", text)
    }

    /// A presigned URL has expired, or is not valid yet.
    pub(crate) fn expired(text: &'static str) -> Self {
        Self::new(Reason::Time, StatusCode::FORBIDDEN, "AccessDenied", text)
    }

    /// There is no time in it.
    pub(crate) fn no_date() -> Self {
        let text = "the signed request needs one x-amz-date, as 20130524T000000Z";
        Self::new(Reason::Malformed, StatusCode::FORBIDDEN, "AccessDenied", text)
    }

    /// `Authorization` cannot be read.
    pub(crate) fn header(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::Malformed, StatusCode::BAD_REQUEST, "AuthorizationHeaderMalformed", text)
    }

    /// The parameters of a presigned URL cannot be read.
    pub(crate) fn parameters(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::Malformed, StatusCode::BAD_REQUEST, "AuthorizationQueryParametersError", text)
    }

    /// A header is missing.
    pub(crate) fn missing(text: &'static str) -> Self {
        Self::new(Reason::Malformed, StatusCode::BAD_REQUEST, "MissingSecurityHeader", text)
    }

    /// Something else cannot be read.
    pub(crate) fn argument(text: &'static str) -> Self {
        Self::new(Reason::Malformed, StatusCode::BAD_REQUEST, "InvalidArgument", text)
    }

    /// The path cannot be read.
    pub(crate) fn uri(text: &'static str) -> Self {
        Self::new(Reason::Malformed, StatusCode::BAD_REQUEST, "InvalidURI", text)
    }

    /// No bucket can have this name.
    pub(crate) fn bucket() -> Self {
        let text = "the path begins with a name that no bucket can have here";
        Self::new(Reason::Malformed, StatusCode::BAD_REQUEST, "InvalidBucketName", text)
    }

    /// There is no length.
    pub(crate) fn length(text: &'static str) -> Self {
        Self::new(Reason::Malformed, StatusCode::LENGTH_REQUIRED, "MissingContentLength", text)
    }

    /// Session tokens.
    pub(crate) fn token() -> Self {
        let text = "session tokens are not known here: use an access key of the keys file of cached";
        Self::new(Reason::Unsupported, StatusCode::BAD_REQUEST, "InvalidToken", text)
    }

    /// Something that is not built.
    pub(crate) fn unsupported(text: &'static str) -> Self {
        Self::new(Reason::Unsupported, StatusCode::NOT_IMPLEMENTED, "NotImplemented", text)
    }

    /// A method that is none of S3's.
    pub(crate) fn method() -> Self {
        let text = "the method must be GET, HEAD, PUT, POST, DELETE or OPTIONS";
        Self::new(Reason::Unsupported, StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", text)
    }

    /// The body's hash differs.
    pub(crate) fn hash() -> Self {
        let text = "the body's SHA-256 is not the x-amz-content-sha256 that was signed";
        Self::new(Reason::Body, StatusCode::BAD_REQUEST, "XAmzContentSHA256Mismatch", text)
    }

    /// A chunk's signature, or that of the trailer, is wrong.
    pub(crate) fn chunk() -> Self {
        let text =
            "the signature of a chunk, or of the trailer, is not the one that follows from the request's";
        Self::new(Reason::Body, StatusCode::FORBIDDEN, "SignatureDoesNotMatch", text)
    }

    /// The body is not as long as announced.
    pub(crate) fn incomplete(text: &'static str) -> Self {
        Self::new(Reason::Body, StatusCode::BAD_REQUEST, "IncompleteBody", text)
    }

    /// The body's encoding is wrong.
    pub(crate) fn encoding(text: &'static str) -> Self {
        Self::new(Reason::Body, StatusCode::BAD_REQUEST, "InvalidRequest", text)
    }

    /// The trailer cannot be read.
    pub(crate) fn trailer(text: &'static str) -> Self {
        Self::new(Reason::Body, StatusCode::BAD_REQUEST, "MalformedTrailerError", text)
    }

    /// The checksum differs.
    pub(crate) fn checksum() -> Self {
        let text = "the checksum in the trailer is not that of the body";
        Self::new(Reason::Body, StatusCode::BAD_REQUEST, "BadDigest", text)
    }

    /// A document cannot be read.
    pub(crate) fn document(text: &'static str) -> Self {
        Self::new(Reason::Body, StatusCode::BAD_REQUEST, "MalformedXML", text)
    }

    /// The client has stopped sending.
    pub(crate) fn stalled() -> Self {
        let text = "the request's body did not come in time, or broke off";
        Self::new(Reason::Body, StatusCode::BAD_REQUEST, "RequestTimeout", text)
    }

    /// Returns the answer for the client. What is left of the request's body is not waited for.
    pub(crate) fn answer(&self, has_body: bool) -> Response<Body> {
        let mut response = body::failure(self.status, self.code, &self.message);
        if has_body {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_counter_of_its_own() {
        let refusals = Refusals::default();
        for (at, (reason, name)) in REASONS.iter().enumerate() {
            assert_eq!(*reason as usize, at);
            (0..=at).for_each(|_| refusals.count(*reason));
            assert_eq!(refusals.of(name), at as u64 + 1);
        }
    }
}
