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
                    signed), malformed (the client or the target cannot be parsed), unsupported (unsupported way of \
                    signing), unknown_key, signature (wrong, or does not cover everything that it must), time (clocks \
                    differ, or the signature has expired), rights (the key lacks the right), body (differs from the \
                    signed one).";
        for ((_, name), count) in REASONS.iter().zip(&self.0) {
            let labels = vec![("reason", *name).into()];
            into.sample("cached_s3_sidecar_auth_refused_total", help, labels, Value::Counter(count.get()));
        }
    }
}

/// A refusal. Its `Display` output is the message for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denial {
    /// An unsigned request.
    #[error("the request is not signed, and anonymous clients may not make it")]
    Anonymous,
    /// A request for which the key lacks the right.
    #[error("this access key does not have the right to make this request")]
    Rights,
    #[error("the access key is not in the keys file of cached")]
    UnknownKey,
    #[error(
        "the signature does not match the request; check the secret key and the way in which the request is signed"
    )]
    Signature,
    /// A header that must be signed and is not.
    #[error("the header {0} is not signed; host and all x-amz- headers must be signed")]
    UnsignedHeader(String),
    /// An unknown header that an endpoint could mistake for one of S3's headers.
    #[error(
        "the header {0} is not known to cached and is not forwarded, because an endpoint might treat it as another, \
         meaningful header; leave it out"
    )]
    UnknownHeader(String),
    /// A request to the endpoint itself.
    #[error("of the requests to the endpoint itself, only the list of buckets is forwarded")]
    Service,
    #[error("the request's time and cached's clock differ by more than 15 minutes")]
    Skew,
    /// A presigned URL that has expired, or is not valid yet.
    #[error("{0}")]
    Expired(&'static str),
    #[error("the signed request needs exactly one x-amz-date, such as 20130524T000000Z")]
    NoDate,
    /// An invalid `Authorization` header.
    #[error("{0}")]
    Header(Cow<'static, str>),
    /// Invalid parameters of a presigned URL.
    #[error("{0}")]
    Parameters(Cow<'static, str>),
    #[error("the signed request needs x-amz-content-sha256")]
    NoPayloadHash,
    /// Other invalid input.
    #[error("{0}")]
    Argument(&'static str),
    /// An invalid path.
    #[error("{0}")]
    Uri(&'static str),
    #[error("the path begins with a name that is not allowed for buckets")]
    Bucket,
    #[error("an aws-chunked body needs its length in x-amz-decoded-content-length")]
    NoLength,
    #[error("session tokens are not supported: use an access key in the keys file of cached")]
    Token,
    /// An unsupported feature.
    #[error("{0}")]
    Unsupported(&'static str),
    /// A method that S3 does not have.
    #[error("the method must be GET, HEAD, PUT, POST, DELETE or OPTIONS")]
    Method,
    #[error("the body's SHA-256 does not match the signed x-amz-content-sha256")]
    Hash,
    #[error("the signature of a chunk or of the trailer does not follow from the request's signature")]
    Chunk,
    /// A body of another length than announced.
    #[error("{0}")]
    Incomplete(&'static str),
    /// An invalid encoding of the body.
    #[error("{0}")]
    Encoding(&'static str),
    /// An invalid trailer.
    #[error("{0}")]
    Trailer(&'static str),
    #[error("the checksum in the trailer does not match the body")]
    Checksum,
    /// An invalid document.
    #[error("{0}")]
    Document(&'static str),
    /// A client that has stopped sending.
    #[error("the request's body did not arrive in time, or ended early")]
    Stalled,
}

impl Denial {
    /// Returns the reason by which the refusal is counted, the status of the response, and S3's
    /// code for the error.
    fn kind(&self) -> (Reason, StatusCode, &'static str) {
        const BAD: StatusCode = StatusCode::BAD_REQUEST;
        const FORBIDDEN: StatusCode = StatusCode::FORBIDDEN;
        match self {
            Denial::Anonymous => (Reason::Anonymous, FORBIDDEN, "AccessDenied"),
            Denial::Rights | Denial::Service => (Reason::Rights, FORBIDDEN, "AccessDenied"),
            Denial::UnknownKey => (Reason::UnknownKey, FORBIDDEN, "InvalidAccessKeyId"),
            Denial::Signature => (Reason::Signature, FORBIDDEN, "SignatureDoesNotMatch"),
            Denial::UnsignedHeader(_) => (Reason::Signature, FORBIDDEN, "AccessDenied"),
            Denial::UnknownHeader(_) => (Reason::Malformed, BAD, "InvalidRequest"),
            Denial::Skew => (Reason::Time, FORBIDDEN, "RequestTimeTooSkewed"),
            Denial::Expired(_) => (Reason::Time, FORBIDDEN, "AccessDenied"),
            Denial::NoDate => (Reason::Malformed, FORBIDDEN, "AccessDenied"),
            Denial::Header(_) => (Reason::Malformed, BAD, "AuthorizationHeaderMalformed"),
            Denial::Parameters(_) => (Reason::Malformed, BAD, "AuthorizationQueryParametersError"),
            Denial::NoPayloadHash => (Reason::Malformed, BAD, "MissingSecurityHeader"),
            Denial::Argument(_) => (Reason::Malformed, BAD, "InvalidArgument"),
            Denial::Uri(_) => (Reason::Malformed, BAD, "InvalidURI"),
            Denial::Bucket => (Reason::Malformed, BAD, "InvalidBucketName"),
            Denial::NoLength => (Reason::Malformed, StatusCode::LENGTH_REQUIRED, "MissingContentLength"),
            Denial::Token => (Reason::Unsupported, BAD, "InvalidToken"),
            Denial::Unsupported(_) => (Reason::Unsupported, StatusCode::NOT_IMPLEMENTED, "NotImplemented"),
            Denial::Method => (Reason::Unsupported, StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
            Denial::Hash => (Reason::Body, BAD, "XAmzContentSHA256Mismatch"),
            Denial::Chunk => (Reason::Body, FORBIDDEN, "SignatureDoesNotMatch"),
            Denial::Incomplete(_) => (Reason::Body, BAD, "IncompleteBody"),
            Denial::Encoding(_) => (Reason::Body, BAD, "InvalidRequest"),
            Denial::Trailer(_) => (Reason::Body, BAD, "MalformedTrailerError"),
            Denial::Checksum => (Reason::Body, BAD, "BadDigest"),
            Denial::Document(_) => (Reason::Body, BAD, "MalformedXML"),
            Denial::Stalled => (Reason::Body, BAD, "RequestTimeout"),
        }
    }

    pub(crate) fn reason(&self) -> Reason {
        self.kind().0
    }

    /// Returns S3's code for the error.
    pub(crate) fn code(&self) -> &'static str {
        self.kind().2
    }

    /// Returns the response for the client. It does not wait for the rest of the request's body.
    pub(crate) fn answer(&self, has_body: bool) -> Response<Body> {
        let (_, status, code) = self.kind();
        let mut response = body::failure(status, code, &self.to_string());
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
