//! Refusals of requests: the error for the client, and the reason by which the refusals are
//! counted.

use std::borrow::Cow;

use cached_metrics::{Collect, Counter, Families, Value};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Response, StatusCode};

use crate::http::body::{self, Body};

/// The reasons by which refusals are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The request is not signed, and anonymous clients may not make it.
    Anonymous,
    /// The client's identification, or the length of the body, cannot be parsed.
    Malformed,
    /// The way of signing is not supported.
    Unsupported,
    /// The access key is unknown.
    UnknownKey,
    /// The signature is wrong, or does not cover required parts.
    Signature,
    /// Clocks differ too much, or the signature has expired.
    Time,
    /// The key lacks the right.
    Rights,
    /// The body differs from the signed one.
    Body,
}

/// All reasons, in the order of their counters, each with its label value.
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

    /// Returns the number of requests refused for the reason with this label value.
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

    /// Returns the refusal of an unsigned request.
    pub(crate) fn anonymous() -> Self {
        let text = "the request is not signed, and no anonymous client may do this";
        Self::new(Reason::Anonymous, StatusCode::FORBIDDEN, "AccessDenied", text)
    }

    /// Returns the refusal of a request for which the key lacks the right.
    pub(crate) fn rights() -> Self {
        Self::new(Reason::Rights, StatusCode::FORBIDDEN, "AccessDenied", "this access key may not do this")
    }

    /// Returns the refusal of an unknown access key.
    pub(crate) fn unknown_key() -> Self {
        let text = "the access key is not in the keys file of cached";
        Self::new(Reason::UnknownKey, StatusCode::FORBIDDEN, "InvalidAccessKeyId", text)
    }

    /// Returns the refusal of a wrong signature.
    pub(crate) fn signature() -> Self {
        let text = "the signature is not the one that the access key makes of this request; check the secret key and the \
                    way of signing";
        Self::new(Reason::Signature, StatusCode::FORBIDDEN, "SignatureDoesNotMatch", text)
    }

    /// Returns the refusal of a header that must be signed and is not.
    pub(crate) fn unsigned_header(name: &str) -> Self {
        let text = format!("the header {name} is not signed; host and each x-amz- header must be");
        Self::new(Reason::Signature, StatusCode::FORBIDDEN, "AccessDenied", text)
    }

    /// Returns the refusal of an unknown header that an endpoint could mistake for one of S3's
    /// headers.
    pub(crate) fn unknown_header(name: &str) -> Self {
        let text = format!(
            "the header {name} is not known to cached and is not forwarded: an endpoint might treat it as another, meaningful header; leave it out"
        );
        Self::new(Reason::Malformed, StatusCode::BAD_REQUEST, "InvalidRequest", text)
    }

    /// Returns the refusal of a request to the endpoint itself.
    pub(crate) fn service() -> Self {
        let text = "of the requests to the endpoint itself only the list of buckets is forwarded";
        Self::new(Reason::Rights, StatusCode::FORBIDDEN, "AccessDenied", text)
    }

    /// Returns the refusal of a time that differs too much.
    pub(crate) fn skew() -> Self {
        let text = "the request's time and that of cached differ by more than 15 minutes";
        Self::new(Reason::Time, StatusCode::FORBIDDEN, "RequestTimeTooSkewed", text)
    }

    /// Returns the refusal of a presigned URL that has expired, or is not valid yet.
    pub(crate) fn expired(text: &'static str) -> Self {
        Self::new(Reason::Time, StatusCode::FORBIDDEN, "AccessDenied", text)
    }

    /// Returns the refusal of a request without a time.
    pub(crate) fn no_date() -> Self {
        let text = "the signed request needs one x-amz-date, as 20130524T000000Z";
        Self::new(Reason::Malformed, StatusCode::FORBIDDEN, "AccessDenied", text)
    }

    /// Returns the refusal of an invalid `Authorization` header.
    pub(crate) fn header(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::Malformed, StatusCode::BAD_REQUEST, "AuthorizationHeaderMalformed", text)
    }

    /// Returns the refusal of invalid parameters of a presigned URL.
    pub(crate) fn parameters(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::Malformed, StatusCode::BAD_REQUEST, "AuthorizationQueryParametersError", text)
    }

    /// Returns the refusal for a missing header.
    pub(crate) fn missing(text: &'static str) -> Self {
        Self::new(Reason::Malformed, StatusCode::BAD_REQUEST, "MissingSecurityHeader", text)
    }

    /// Returns the refusal of other invalid input.
    pub(crate) fn argument(text: &'static str) -> Self {
        Self::new(Reason::Malformed, StatusCode::BAD_REQUEST, "InvalidArgument", text)
    }

    /// Returns the refusal of an invalid path.
    pub(crate) fn uri(text: &'static str) -> Self {
        Self::new(Reason::Malformed, StatusCode::BAD_REQUEST, "InvalidURI", text)
    }

    /// Returns the refusal of an invalid bucket name.
    pub(crate) fn bucket() -> Self {
        let text = "the path begins with a name that no bucket can have here";
        Self::new(Reason::Malformed, StatusCode::BAD_REQUEST, "InvalidBucketName", text)
    }

    /// Returns the refusal of a request without a length.
    pub(crate) fn length(text: &'static str) -> Self {
        Self::new(Reason::Malformed, StatusCode::LENGTH_REQUIRED, "MissingContentLength", text)
    }

    /// Returns the refusal of session tokens.
    pub(crate) fn token() -> Self {
        let text = "session tokens are not known here: use an access key of the keys file of cached";
        Self::new(Reason::Unsupported, StatusCode::BAD_REQUEST, "InvalidToken", text)
    }

    /// Returns the refusal of an unsupported feature.
    pub(crate) fn unsupported(text: &'static str) -> Self {
        Self::new(Reason::Unsupported, StatusCode::NOT_IMPLEMENTED, "NotImplemented", text)
    }

    /// Returns the refusal of a method that S3 does not have.
    pub(crate) fn method() -> Self {
        let text = "the method must be GET, HEAD, PUT, POST, DELETE or OPTIONS";
        Self::new(Reason::Unsupported, StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", text)
    }

    /// Returns the refusal of a body with a wrong hash.
    pub(crate) fn hash() -> Self {
        let text = "the body's SHA-256 is not the x-amz-content-sha256 that was signed";
        Self::new(Reason::Body, StatusCode::BAD_REQUEST, "XAmzContentSHA256Mismatch", text)
    }

    /// Returns the refusal of a wrong signature of a chunk or the trailer.
    pub(crate) fn chunk() -> Self {
        let text =
            "the signature of a chunk, or of the trailer, is not the one that follows from the request's";
        Self::new(Reason::Body, StatusCode::FORBIDDEN, "SignatureDoesNotMatch", text)
    }

    /// Returns the refusal of a body of another length than announced.
    pub(crate) fn incomplete(text: &'static str) -> Self {
        Self::new(Reason::Body, StatusCode::BAD_REQUEST, "IncompleteBody", text)
    }

    /// Returns the refusal of an invalid encoding of the body.
    pub(crate) fn encoding(text: &'static str) -> Self {
        Self::new(Reason::Body, StatusCode::BAD_REQUEST, "InvalidRequest", text)
    }

    /// Returns the refusal of an invalid trailer.
    pub(crate) fn trailer(text: &'static str) -> Self {
        Self::new(Reason::Body, StatusCode::BAD_REQUEST, "MalformedTrailerError", text)
    }

    /// Returns the refusal of a wrong checksum.
    pub(crate) fn checksum() -> Self {
        let text = "the checksum in the trailer is not that of the body";
        Self::new(Reason::Body, StatusCode::BAD_REQUEST, "BadDigest", text)
    }

    /// Returns the refusal of an invalid document.
    pub(crate) fn document(text: &'static str) -> Self {
        Self::new(Reason::Body, StatusCode::BAD_REQUEST, "MalformedXML", text)
    }

    /// Returns the refusal of a client that has stopped sending.
    pub(crate) fn stalled() -> Self {
        let text = "the request's body did not come in time, or broke off";
        Self::new(Reason::Body, StatusCode::BAD_REQUEST, "RequestTimeout", text)
    }

    /// Returns the response for the client. It does not wait for the rest of the request's body.
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
