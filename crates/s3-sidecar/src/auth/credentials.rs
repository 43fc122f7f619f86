//! The sidecar's own credentials at the endpoint, and the requests that they sign; and all secrets of
//! a sidecar, whose files can be replaced while they are in use.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use named_file::{FileError, PutInForce, Reread, SecretFile};

use super::keys::Keys;
use super::signature::{EMPTY_SHA256, SecretKey, canonical_request, format_time, push_hex, string_to_sign};
use crate::http::headers::is_of_s3;

/// The sidecar's signing credentials. Clones share them.
#[derive(Clone)]
pub struct Credentials {
    access_key: String,
    session_token: Option<String>,
    secret: Secret,
}

#[derive(Clone)]
enum Secret {
    Fixed(Arc<SecretKey>),
    File(Arc<SecretFile<SecretKey>>),
}

impl Credentials {
    /// Returns fixed credentials.
    #[must_use]
    pub fn new(access_key: String, secret_key: String, session_token: Option<String>) -> Credentials {
        let secret = Secret::Fixed(Arc::new(SecretKey::new(secret_key)));
        Credentials { access_key, session_token, secret }
    }

    /// Reads the secret key from a file, which contains only the secret, on one line.
    ///
    /// # Errors
    /// A one-line message that states the mistake in the file and the correct form.
    pub fn from_file(access_key: String, path: impl Into<PathBuf>) -> Result<Credentials, FileError> {
        let secret = Secret::File(Arc::new(SecretFile::open(path.into(), parse)?));
        Ok(Credentials { access_key, session_token: None, secret })
    }

    /// Returns whether access key and token are valid header values.
    pub(crate) fn can_be_sent(&self) -> bool {
        let is_valid = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
        !self.access_key.is_empty()
            && is_valid(&self.access_key)
            && self.session_token.as_deref().is_none_or(is_valid)
    }

    /// Returns the signature of a string with the key of a scope.
    fn sign(&self, scope: &str, text: &[u8]) -> [u8; 32] {
        let secret = match &self.secret {
            Secret::Fixed(secret) => Arc::clone(secret),
            Secret::File(file) => file.current(),
        };
        let (key, is_known) = secret.signing_key(scope);
        let signature = key.sign(text);
        if !is_known {
            secret.keep(scope, key);
        }
        signature
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

fn parse(text: &str) -> Result<SecretKey, String> {
    let secret = text.trim();
    if secret.is_empty() || secret.contains(char::is_whitespace) {
        return Err("must contain only the secret key, on one line".into());
    }
    Ok(SecretKey::new(secret.to_owned()))
}

/// Marks a request to be sent without a signature, whatever the sidecar's credentials are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsigned;

const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const PAYLOAD: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// Signs the sidecar's own requests to the endpoint.
#[derive(Debug)]
pub(crate) struct Signer {
    /// The credentials, or `None` if the sidecar is anonymous at the endpoint.
    pub(crate) credentials: Option<Credentials>,
    pub(crate) region: String,
    /// The endpoint's host and port.
    pub(crate) host: HeaderValue,
}

impl Signer {
    /// Signs a request as the sidecar's own. The request must not be changed afterwards.
    pub(crate) fn sign(&self, head: &mut Parts, has_body: bool, now: u64) {
        head.headers.insert(HOST, self.host.clone());
        let credentials = self.credentials.as_ref().filter(|_| head.extensions.get::<Unsigned>().is_none());
        let Some(credentials) = credentials else { return };
        let stamp = format_time(now);
        let set = |headers: &mut HeaderMap, name: HeaderName, text: &str| {
            // Access keys, tokens and regions were checked to be valid header values.
            if let Ok(mut value) = HeaderValue::from_str(text) {
                value.set_sensitive(name == TOKEN || name == AUTHORIZATION);
                headers.insert(name, value);
            }
        };
        set(&mut head.headers, DATE, &stamp);
        let unsigned = if has_body { "UNSIGNED-PAYLOAD" } else { EMPTY_SHA256 };
        let payload = head.headers.entry(PAYLOAD).or_insert(HeaderValue::from_static(unsigned)).clone();
        if let Some(token) = &credentials.session_token {
            set(&mut head.headers, TOKEN, token);
        }
        let scope = format!("{}/{}/s3/aws4_request", &stamp[..8], self.region);
        let names = signed_names(&head.headers);
        let Some(canonical) = canonical_request(head, &names, payload.as_bytes()) else { return };
        let mut value = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature=",
            credentials.access_key
        )
        .into_bytes();
        let to_sign = string_to_sign(stamp.as_bytes(), &scope, &canonical);
        push_hex(&mut value, &credentials.sign(&scope, &to_sign));
        set(&mut head.headers, AUTHORIZATION, &String::from_utf8_lossy(&value));
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

/// The secrets of a sidecar. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// The clients' keys.
    pub keys: Option<Keys>,
    /// The sidecar's own credentials at the endpoint. Without credentials the sidecar is anonymous
    /// there.
    pub credentials: Option<Credentials>,
}

/// Secrets that have been read but are not in force yet, each with the configuration key of its
/// file.
pub struct SecretsRead(Vec<(&'static str, PutInForce)>);

impl Secrets {
    /// Returns the files, each with the configuration key that names it.
    pub(crate) fn files(&self) -> Vec<(&'static str, Arc<dyn Reread>)> {
        let mut files: Vec<(_, Arc<dyn Reread>)> = Vec::new();
        if let Some(Keys(file)) = &self.keys {
            files.push(("s3.keys_file", Arc::clone(file) as _));
        }
        if let Some(Credentials { secret: Secret::File(file), .. }) = &self.credentials {
            files.push(("s3.upstream_secret_file", Arc::clone(file) as _));
        }
        files
    }

    /// Reads the files again. Their content applies once it is [put in
    /// force](SecretsRead::put_in_force).
    ///
    /// # Errors
    /// A one-line message that states the mistake in a file and the correct form. In that case
    /// nothing changes.
    pub fn read_again(&self) -> Result<SecretsRead, String> {
        let mut all = Vec::new();
        for (key, file) in self.files() {
            all.push((key, file.read_again().map_err(|why| format!("{key}: {why}"))?));
        }
        Ok(SecretsRead(all))
    }
}

impl SecretsRead {
    /// Puts the secrets in force. Returns the configuration keys that name the files.
    pub fn put_in_force(self) -> Vec<&'static str> {
        let mut keys = Vec::new();
        for (key, put_in_force) in self.0 {
            put_in_force();
            keys.push(key);
        }
        keys
    }
}

impl fmt::Debug for SecretsRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(key, _)| key)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::signature::SigningKey;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_changed_file_is_used_and_a_wrong_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let write = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        };
        write("first-secret\n");
        let credentials = Credentials::from_file("key".into(), &path).unwrap();
        let reload = |credentials: &Credentials| match &credentials.secret {
            Secret::File(file) => Arc::clone(file).reload_if_changed(),
            Secret::Fixed(_) => panic!("{credentials:?} has no file"),
        };
        let scope = "20240101/r/s3/aws4_request";
        let of = |secret: &str| SigningKey::derive(secret, scope).sign(b"text");
        assert_eq!(credentials.sign(scope, b"text"), of("first-secret"));
        assert_eq!(credentials.sign(scope, b"text"), of("first-secret"));
        write("two words");
        assert!(reload(&credentials).is_err());
        assert_eq!(reload(&credentials), Ok(false));
        assert_eq!(credentials.sign(scope, b"text"), of("first-secret"));
        write("the-second-secret");
        assert_eq!(reload(&credentials), Ok(true));
        assert_eq!(credentials.sign(scope, b"text"), of("the-second-secret"));
        assert!(!format!("{credentials:?}").contains("secret\""), "{credentials:?}");
    }
}
