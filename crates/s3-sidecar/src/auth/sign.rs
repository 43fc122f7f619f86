//! Signs requests to the endpoint with the sidecar's own credentials.

use hmac::{Hmac, KeyInit, Mac};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use sha2::Sha256;

use super::canonical::{EMPTY_SHA256, push_header, push_hex, push_path, push_query, push_string_to_sign};
use super::credentials::Credentials;
use super::time;
use crate::http::headers::is_of_s3;

/// Marks a request to be sent without a signature, whatever the sidecar's credentials are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsigned;

const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const PAYLOAD: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// Signs requests.
#[derive(Debug)]
pub(crate) struct Signer {
    /// The credentials, or `None` if the sidecar is anonymous at the endpoint.
    credentials: Option<Credentials>,
    region: String,
    /// The endpoint's host.
    host: HeaderValue,
}

impl Signer {
    /// Returns a signer for an endpoint with this host and port.
    pub(crate) fn new(credentials: Option<Credentials>, region: String, host: HeaderValue) -> Signer {
        Signer { credentials, region, host }
    }

    /// Signs a request as the sidecar's own. The request must not be changed afterwards.
    pub(crate) fn sign(&self, head: &mut Parts, has_body: bool, now: u64) {
        head.headers.insert(HOST, self.host.clone());
        let credentials = self.credentials.as_ref().filter(|_| head.extensions.get::<Unsigned>().is_none());
        let Some(credentials) = credentials else { return };
        let stamp = time::format(now);
        let set = |headers: &mut HeaderMap, name: HeaderName, bytes: &[u8]| {
            // Access keys, tokens and regions were checked to be valid header values.
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

/// Returns the names of the signed headers: the mandatory ones, and those that describe the body.
fn signed_names(headers: &HeaderMap) -> String {
    let is_signed = |name: &&HeaderName| {
        is_of_s3(name.as_str()) || matches!(name.as_str(), "host" | "content-md5" | "content-type")
    };
    let mut names: Vec<&str> = headers.keys().filter(is_signed).map(HeaderName::as_str).collect();
    names.sort_unstable();
    names.join(";")
}

type HmacSha256 = Hmac<Sha256>;

/// A key that signs requests for one day and one region. The `Debug` output does not reveal the
/// key.
#[derive(Clone)]
pub(crate) struct SigningKey(HmacSha256);

impl SigningKey {
    /// Derives the key of a scope: `DAY/REGION/s3/aws4_request`.
    pub(crate) fn derive(secret: &str, scope: &str) -> SigningKey {
        let mut first = Vec::with_capacity(4 + secret.len());
        first.extend_from_slice(b"AWS4");
        first.extend_from_slice(secret.as_bytes());
        let last = scope.split('/').fold(first, |key, part| keyed(&key, part.as_bytes()).to_vec());
        SigningKey(mac(&last))
    }

    /// Returns the signature of a text.
    pub(crate) fn sign(&self, text: &[u8]) -> [u8; 32] {
        self.0.clone().chain_update(text).finalize().into_bytes().into()
    }

    /// Verifies a signature in constant time.
    pub(crate) fn is_signature(&self, text: &[u8], signature: &[u8; 32]) -> bool {
        self.0.clone().chain_update(text).verify_slice(signature).is_ok()
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(a signing key)")
    }
}

fn mac(key: &[u8]) -> HmacSha256 {
    HmacSha256::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn keyed(key: &[u8], text: &[u8]) -> [u8; 32] {
    mac(key).chain_update(text).finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::canonical::push_hex;

    /// From "Deriving the signing key" in the documentation of AWS.
    #[test]
    fn the_documented_key_is_derived() {
        let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
        let derive = |scope: &str| {
            let mut first = b"AWS4".to_vec();
            first.extend_from_slice(secret.as_bytes());
            scope.split('/').fold(first, |key, part| keyed(&key, part.as_bytes()).to_vec())
        };
        let mut hex = Vec::new();
        push_hex(&mut hex, &derive("20150830/us-east-1/iam/aws4_request"));
        let documented = "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9";
        assert_eq!(String::from_utf8(hex).unwrap(), documented);
        assert_eq!(format!("{:?}", SigningKey::derive(secret, "a/b")), "(a signing key)");
    }

    #[test]
    fn a_signature_holds_for_its_text_and_key() {
        let key = SigningKey::derive("secret", "20150830/r/s3/aws4_request");
        let signature = key.sign(b"text");
        assert!(key.is_signature(b"text", &signature));
        assert!(!key.is_signature(b"texs", &signature));
        assert!(
            !SigningKey::derive("secret", "20150831/r/s3/aws4_request").is_signature(b"text", &signature)
        );
        for at in 0..32 {
            let mut other = signature;
            other[at] ^= 1;
            assert!(!key.is_signature(b"text", &other));
        }
    }
}
