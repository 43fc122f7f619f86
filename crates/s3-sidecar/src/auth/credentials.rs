//! The sidecar's own credentials at the endpoint.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::keys::{Keys, KeysRead};
use super::sign::SigningKey;

/// The sidecar's signing credentials. Clones share them.
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

/// A secret that has been read but is not in force yet.
pub struct CredentialsRead {
    credentials: Credentials,
    secret: String,
    stamp: Stamp,
}

impl Credentials {
    /// Returns fixed credentials.
    #[must_use]
    pub fn new(access_key: String, secret_key: String, session_token: Option<String>) -> Credentials {
        Self::with(access_key, secret_key, session_token, None, None)
    }

    /// Reads the secret key from a file, which contains only the secret, on one line.
    ///
    /// # Errors
    /// A one-line message that states the mistake in the file and the correct form.
    pub fn from_file(access_key: String, path: impl Into<PathBuf>) -> Result<Credentials, String> {
        let path = path.into();
        let stamp = stamp(&path);
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

    /// Reads the file again, if there is one. The secret is used once it is [put in
    /// force](CredentialsRead::put_in_force).
    ///
    /// # Errors
    /// The errors of [`Credentials::from_file`]. In that case the current secret stays in force.
    pub fn read_again(&self) -> Result<Option<CredentialsRead>, String> {
        let Some(path) = &self.inner.file else { return Ok(None) };
        let stamp = stamp(path);
        let secret = read(path).inspect_err(|_| *self.inner.stamp.lock() = stamp)?;
        Ok(Some(CredentialsRead { credentials: self.clone(), secret, stamp }))
    }

    /// Reads the file again and puts its secret in force, if the file has changed since the last
    /// check. Returns whether the file has changed.
    ///
    /// # Errors
    /// The errors of [`Credentials::read_again`].
    pub fn reload_if_changed(&self) -> Result<bool, String> {
        let Some(path) = &self.inner.file else { return Ok(false) };
        if stamp(path) == *self.inner.stamp.lock() {
            return Ok(false);
        }
        Ok(self.read_again()?.map(CredentialsRead::put_in_force).is_some())
    }

    /// Returns whether access key and token are valid header values.
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
    let text = read_secret_file(path)?;
    let secret = text.trim();
    if secret.is_empty() || secret.contains(char::is_whitespace) {
        return Err(format!("{} must have the secret key alone, on one line", path.display()));
    }
    Ok(secret.to_owned())
}

/// The maximum size of a file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The state of a file: device, inode, length, and the times of the last changes.
pub(crate) type Stamp = Option<(u64, u64, u64, i64, i64, i64, i64)>;

/// Returns the state of a file, or `None` if the file is missing.
pub(crate) fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).ok()?;
    let (modified, changed) = ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()));
    Some((found.dev(), found.ino(), found.len(), modified.0, modified.1, changed.0, changed.1))
}

/// Returns the text of a file.
///
/// # Errors
/// A one-line message that states the mistake in the file and the correct form, without any part of
/// the text.
pub(crate) fn read_secret_file(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let failed = |error: io::Error| format!("cannot read {shown}: {error}");
    let file = open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(format!("{shown} is no file"));
    }
    let mode = found.mode() & 0o777;
    if mode & 0o027 != 0 {
        return Err(format!(
            "{shown} can be read by everyone, or changed by others than its owner (mode {mode:03o}); chmod 600 {shown} mends it"
        ));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{shown} is longer than {FILE_BYTES_MAX} bytes"));
    }
    Ok(text)
}

fn open(path: &Path) -> io::Result<File> {
    // Non-blocking, because opening a pipe without a writer would block the process.
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// The interval at which the files are checked.
const INTERVAL: Duration = Duration::from_secs(60);

/// The secrets of a sidecar. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// The clients' keys.
    pub keys: Option<Keys>,
    /// The sidecar's own credentials at the endpoint. Without credentials the sidecar is anonymous
    /// there.
    pub credentials: Option<Credentials>,
}

/// Secrets that have been read but are not in force yet.
#[derive(Debug)]
pub struct SecretsRead {
    keys: Option<KeysRead>,
    credentials: Option<CredentialsRead>,
}

impl Secrets {
    /// Reads the files again. Their content applies once it is [put in
    /// force](SecretsRead::put_in_force).
    ///
    /// # Errors
    /// A one-line message that states the mistake in a file and the correct form. In that case
    /// nothing changes.
    pub fn read_again(&self) -> Result<SecretsRead, String> {
        let keys = self.keys.as_ref().map(Keys::read_again).transpose();
        let keys = keys.map_err(|why| format!("s3.keys_file: {why}"))?;
        let credentials = self.credentials.as_ref().map(Credentials::read_again).transpose();
        let credentials = credentials.map_err(|why| format!("s3.upstream_secret_file: {why}"))?.flatten();
        Ok(SecretsRead { keys, credentials })
    }
}

impl SecretsRead {
    /// Puts the secrets in force. Returns the configuration keys that name the files.
    pub fn put_in_force(self) -> Vec<&'static str> {
        let mut names = Vec::new();
        if let Some(keys) = self.keys {
            keys.put_in_force();
            names.push("s3.keys_file");
        }
        if let Some(credentials) = self.credentials {
            credentials.put_in_force();
            names.push("s3.upstream_secret_file");
        }
        names
    }
}

/// Puts the files' content in force whenever they change, until the future is dropped.
pub(crate) async fn renew(secrets: Secrets) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let secrets = secrets.clone();
        // Reading files may block.
        let looked_at = tokio::task::spawn_blocking(move || {
            let keys = secrets.keys.as_ref().map(Keys::reload_if_changed);
            log("s3.keys_file", keys);
            let credentials = secrets.credentials.as_ref().map(Credentials::reload_if_changed);
            log("s3.upstream_secret_file", credentials);
        });
        if looked_at.await.is_err() {
            tracing::error!("reading the secrets of [s3] has panicked");
        }
    }
}

fn log(key: &'static str, outcome: Option<Result<bool, String>>) {
    match outcome {
        Some(Ok(true)) => tracing::info!("the file of {key} has changed: it is in use"),
        Some(Err(cause)) => {
            tracing::error!(cause, "the file of {key} cannot be used: what it had before stays in force");
        }
        Some(Ok(false)) | None => {}
    }
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
