//! The sidecar's own credentials at the endpoint.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::secret_file::{self, Stamp};
use super::signing_key::SigningKey;

/// Credentials with which the sidecar signs. Copies share them.
#[derive(Clone)]
pub struct Credentials {
    inner: Arc<Inner>,
}

struct Inner {
    access_key: String,
    session_token: Option<String>,
    file: Option<PathBuf>,
    stamp: Mutex<Stamp>,
    secret: RwLock<Secret>,
}

struct Secret {
    text: String,
    /// The signing key that was used last, and its scope.
    last: Option<(String, SigningKey)>,
}

/// A secret that has been read and is not in force yet.
pub struct CredentialsRead {
    credentials: Credentials,
    secret: String,
    stamp: Stamp,
}

impl Credentials {
    /// Returns credentials that do not change.
    #[must_use]
    pub fn new(access_key: String, secret_key: String, session_token: Option<String>) -> Credentials {
        Self::with(access_key, secret_key, session_token, None, None)
    }

    /// Reads the secret key from a file, in which it is alone, on one line.
    ///
    /// # Errors
    /// One line: what is wrong with the file, and what would be right.
    pub fn from_file(access_key: String, path: impl Into<PathBuf>) -> Result<Credentials, String> {
        let path = path.into();
        let stamp = secret_file::stamp(&path);
        let secret = read(&path)?;
        Ok(Self::with(access_key, secret, None, Some(path), stamp))
    }

    fn with(
        access_key: String,
        secret: String,
        session_token: Option<String>,
        file: Option<PathBuf>,
        stamp: Stamp,
    ) -> Credentials {
        let secret = RwLock::new(Secret { text: secret, last: None });
        let inner = Inner { access_key, session_token, file, stamp: Mutex::new(stamp), secret };
        Credentials { inner: Arc::new(inner) }
    }

    /// Reads the file again, if there is one. Its secret is used once it is [put in force](CredentialsRead::put_in_force).
    ///
    /// # Errors
    /// As of [`Credentials::from_file`]; what is in force stays.
    pub fn read_again(&self) -> Result<Option<CredentialsRead>, String> {
        let Some(path) = &self.inner.file else { return Ok(None) };
        let stamp = secret_file::stamp(path);
        let secret = read(path).inspect_err(|_| *self.inner.stamp.lock() = stamp)?;
        Ok(Some(CredentialsRead { credentials: self.clone(), secret, stamp }))
    }

    /// Reads the file again and puts its secret in force, if it is another than when it was last looked at. Returns whether it was.
    ///
    /// # Errors
    /// As of [`Credentials::read_again`].
    pub fn reload_if_changed(&self) -> Result<bool, String> {
        let Some(path) = &self.inner.file else { return Ok(false) };
        if secret_file::stamp(path) == *self.inner.stamp.lock() {
            return Ok(false);
        }
        Ok(self.read_again()?.map(CredentialsRead::put_in_force).is_some())
    }

    /// Returns whether access key and token can be in headers.
    pub(crate) fn can_be_sent(&self) -> bool {
        let is_right = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
        !self.inner.access_key.is_empty()
            && is_right(&self.inner.access_key)
            && self.session_token().is_none_or(is_right)
    }

    pub(crate) fn access_key(&self) -> &str {
        &self.inner.access_key
    }

    pub(crate) fn session_token(&self) -> Option<&str> {
        self.inner.session_token.as_deref()
    }

    /// Returns the signature of a text with the key of a scope.
    pub(crate) fn sign(&self, scope: &str, text: &[u8]) -> [u8; 32] {
        {
            let secret = self.inner.secret.read();
            if let Some((_, key)) = secret.last.as_ref().filter(|(own, _)| own == scope) {
                return key.sign(text);
            }
        }
        let mut secret = self.inner.secret.write();
        let key = SigningKey::derive(&secret.text, scope);
        let signature = key.sign(text);
        secret.last = Some((scope.to_owned(), key));
        signature
    }
}

impl CredentialsRead {
    /// Signs with this secret from now on.
    pub fn put_in_force(self) {
        *self.credentials.inner.secret.write() = Secret { text: self.secret, last: None };
        *self.credentials.inner.stamp.lock() = self.stamp;
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.inner.access_key).finish_non_exhaustive()
    }
}

impl fmt::Debug for CredentialsRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialsRead").field("credentials", &self.credentials).finish_non_exhaustive()
    }
}

fn read(path: &std::path::Path) -> Result<String, String> {
    let text = secret_file::read(path)?;
    let secret = text.trim();
    if secret.is_empty() || secret.contains(char::is_whitespace) {
        return Err(format!("{} must have the secret key alone, on one line", path.display()));
    }
    Ok(secret.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let scope = "20240101/r/s3/aws4_request";
        let of = |secret: &str| SigningKey::derive(secret, scope).sign(b"text");
        assert_eq!(credentials.sign(scope, b"text"), of("first-secret"));
        assert_eq!(credentials.sign(scope, b"text"), of("first-secret"));
        write("two words");
        assert!(credentials.reload_if_changed().is_err());
        assert_eq!(credentials.reload_if_changed(), Ok(false));
        assert_eq!(credentials.sign(scope, b"text"), of("first-secret"));
        write("the-second-secret");
        assert_eq!(credentials.reload_if_changed(), Ok(true));
        assert_eq!(credentials.sign(scope, b"text"), of("the-second-secret"));
        assert!(!format!("{credentials:?}").contains("secret\""), "{credentials:?}");
    }
}
