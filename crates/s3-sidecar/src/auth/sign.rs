//! Signs requests to the endpoint with the sidecar's own credentials.

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue};
use hyper::http::request::Parts;

use super::canonical::{EMPTY_SHA256, push_header, push_hex, push_path, push_query, push_string_to_sign};
use super::credentials::Credentials;
use super::time;
use crate::http::headers::is_of_s3;

/// Marks a request that goes to the endpoint without a signature, whatever the sidecar's credentials are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsigned;

const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const PAYLOAD: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// Signs requests.
#[derive(Debug)]
pub(crate) struct Signer {
    /// `None` if the sidecar is anonymous there.
    credentials: Option<Credentials>,
    region: String,
    /// As the endpoint is addressed.
    host: HeaderValue,
}

impl Signer {
    /// Returns what signs for an endpoint with this host and port.
    pub(crate) fn new(credentials: Option<Credentials>, region: String, host: HeaderValue) -> Signer {
        Signer { credentials, region, host }
    }

    /// Makes a request one of the sidecar's own. Nothing of it may change after that.
    pub(crate) fn sign(&self, head: &mut Parts, has_body: bool, now: u64) {
        head.headers.insert(HOST, self.host.clone());
        let credentials = self.credentials.as_ref().filter(|_| head.extensions.get::<Unsigned>().is_none());
        let Some(credentials) = credentials else { return };
        let stamp = time::format(now);
        let set = |headers: &mut HeaderMap, name: HeaderName, bytes: &[u8]| {
            // Access keys, tokens and regions were checked: they can be values.
            if let Ok(mut value) = HeaderValue::from_bytes(bytes) {
                value.set_sensitive(name == TOKEN || name == AUTHORIZATION);
                headers.insert(name, value);
            }
        };
        set(&mut head.headers, DATE, &stamp);
        if !head.headers.contains_key(PAYLOAD) {
            let payload = if has_body { "UNSIGNED-PAYLOAD" } else { EMPTY_SHA256 };
            head.headers.insert(PAYLOAD, HeaderValue::from_static(payload));
        }
        if let Some(token) = credentials.session_token() {
            set(&mut head.headers, TOKEN, token.as_bytes());
        }
        let day = std::str::from_utf8(&stamp[..8]).unwrap_or_default();
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let names = signed_names(&head.headers);
        let mut canonical = Vec::with_capacity(1024);
        canonical.extend_from_slice(head.method.as_str().as_bytes());
        canonical.push(b'\n');
        push_path(&mut canonical, head.uri.path());
        canonical.push(b'\n');
        push_query(&mut canonical, head.uri.query().unwrap_or_default());
        canonical.push(b'\n');
        for name in names.split(';') {
            push_header(&mut canonical, &head.headers, name);
        }
        canonical.push(b'\n');
        canonical.extend_from_slice(names.as_bytes());
        canonical.push(b'\n');
        canonical.extend_from_slice(head.headers.get(PAYLOAD).map_or(&[][..], HeaderValue::as_bytes));
        let mut to_sign = Vec::with_capacity(192);
        push_string_to_sign(&mut to_sign, &stamp, &scope, &canonical);
        let mut signature = Vec::with_capacity(64);
        push_hex(&mut signature, &credentials.sign(&scope, &to_sign));
        let signature = String::from_utf8(signature).unwrap_or_default();
        let value = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            credentials.access_key()
        );
        set(&mut head.headers, AUTHORIZATION, value.as_bytes());
    }
}

/// Returns the names of the headers that are signed: those that must be, and those that say what the body is.
fn signed_names(headers: &HeaderMap) -> String {
    let is_signed = |name: &&HeaderName| {
        is_of_s3(name.as_str()) || matches!(name.as_str(), "host" | "content-md5" | "content-type")
    };
    let mut names: Vec<&str> = headers.keys().filter(is_signed).map(HeaderName::as_str).collect();
    names.sort_unstable();
    names.join(";")
}
