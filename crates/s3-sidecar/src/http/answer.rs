//! The proxy's own error answers, in the form that S3 clients read.

use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

use crate::http::body::{Body, full};

/// Returns an answer with an error: `code` as S3 names it, and a sentence without characters that XML gives a meaning.
pub(crate) fn failure(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let text = escaped(message);
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{text}</Message></Error>\n"
    );
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// Returns the answer to a request that is not understood; nothing after it on its connection can be trusted.
pub(crate) fn refused(status: StatusCode, message: &str) -> Response<Body> {
    let code = match status {
        StatusCode::NOT_IMPLEMENTED => "NotImplemented",
        StatusCode::LENGTH_REQUIRED => "MissingContentLength",
        _ => "InvalidRequest",
    };
    let mut response = failure(status, code, message);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
