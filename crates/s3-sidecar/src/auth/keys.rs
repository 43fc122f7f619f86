//! The clients' keys: a file of access keys with their secrets and rights. The file can be replaced
//! while it is in use.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use serde::Deserialize;

use super::credentials::{self, Stamp};
use super::rights::{Place, Rights};
use super::sign::SigningKey;

/// The minimum length of a secret in bytes. A shorter secret could be guessed from a signature.
const SECRET_BYTES_MIN: usize = 16;

/// The number of signing keys (for days and regions) kept for each access key.
const SCOPES_MAX: usize = 4;

/// The keys in a file. Clones share them.
#[derive(Clone)]
pub struct Keys {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    ring: RwLock<Arc<Ring>>,
    /// The state of the file at the last check.
    stamp: Mutex<Stamp>,
}

/// The content of the file.
#[derive(Default)]
pub(crate) struct Ring {
    keys: HashMap<String, Arc<Key>>,
    /// The rights of requests without a signature.
    pub(crate) anonymous: Rights,
}

/// One access key.
pub(crate) struct Key {
    secret: String,
    pub(crate) rights: Rights,
    /// Signing keys that have signed before, each with its scope, and the index of the next one to
    /// replace.
    known: RwLock<(Vec<(String, SigningKey)>, usize)>,
}

/// Keys that have been read but are not in force yet.
pub struct KeysRead {
    keys: Keys,
    ring: Ring,
    stamp: Stamp,
}

impl Keys {
    /// Reads the keys in the file `path`.
    ///
    /// # Errors
    /// A one-line message that states the mistake in the file and the correct form, without any
    /// secret.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Keys, String> {
        let path = path.into();
        let stamp = credentials::stamp(&path);
        let ring = RwLock::new(Arc::new(read(&path)?));
        Ok(Keys { inner: Arc::new(Inner { path, ring, stamp: Mutex::new(stamp) }) })
    }

    /// Reads the file again. Its keys are accepted once they are [put in
    /// force](KeysRead::put_in_force).
    ///
    /// # Errors
    /// The errors of [`Keys::from_file`]. In that case the current keys stay in force.
    pub fn read_again(&self) -> Result<KeysRead, String> {
        let stamp = credentials::stamp(&self.inner.path);
        let read = read(&self.inner.path);
        if read.is_err() {
            // Each state of the file is reported only once.
            *self.inner.stamp.lock() = stamp;
        }
        Ok(KeysRead { keys: self.clone(), ring: read?, stamp })
    }

    /// Reads the file again and puts its keys in force, if the file has changed since the last
    /// check. Returns whether the file has changed.
    ///
    /// # Errors
    /// The errors of [`Keys::read_again`].
    pub fn reload_if_changed(&self) -> Result<bool, String> {
        if credentials::stamp(&self.inner.path) == *self.inner.stamp.lock() {
            return Ok(false);
        }
        self.read_again()?.put_in_force();
        Ok(true)
    }

    pub(crate) fn ring(&self) -> Arc<Ring> {
        Arc::clone(&self.inner.ring.read())
    }
}

impl KeysRead {
    /// Puts these keys in force: from now on only they are accepted.
    pub fn put_in_force(self) {
        *self.keys.inner.ring.write() = Arc::new(self.ring);
        *self.keys.inner.stamp.lock() = self.stamp;
    }
}

impl Ring {
    /// Returns the key with this name.
    pub(crate) fn find(&self, access_key: &str) -> Option<&Arc<Key>> {
        self.keys.get(access_key)
    }
}

impl Key {
    fn new(secret: String, rights: Rights) -> Key {
        Key { secret, rights, known: RwLock::default() }
    }

    /// Returns the signing key of a scope, and whether a signature with this key has been verified
    /// before.
    pub(crate) fn signing_key(&self, scope: &str) -> (SigningKey, bool) {
        let known = self.known.read();
        match known.0.iter().find(|(own, _)| own == scope) {
            Some((_, key)) => (key.clone(), true),
            None => (SigningKey::derive(&self.secret, scope), false),
        }
    }

    /// Keeps the signing key of a scope once it has signed, so that only clients that know the
    /// secret can fill the table.
    pub(crate) fn keep(&self, scope: &str, key: SigningKey) {
        let (known, next) = &mut *self.known.write();
        if known.iter().any(|(own, _)| own == scope) {
            return;
        }
        let entry = (scope.to_owned(), key);
        if known.len() < SCOPES_MAX {
            known.push(entry);
        } else {
            known[*next] = entry;
            *next = (*next + 1) % SCOPES_MAX;
        }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

impl fmt::Debug for KeysRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeysRead").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("rights", &self.rights).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTable {
    #[serde(default)]
    keys: Vec<KeyTable>,
    #[serde(default)]
    anonymous: AnonymousTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyTable {
    access_key: String,
    secret_key: String,
    #[serde(default)]
    read: Vec<String>,
    #[serde(default)]
    write: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct AnonymousTable {
    #[serde(default)]
    read: Vec<String>,
}

fn read(path: &Path) -> Result<Ring, String> {
    parse(&credentials::read_secret_file(path)?).map_err(|why| format!("{}: {why}", path.display()))
}

pub(crate) fn parse(text: &str) -> Result<Ring, String> {
    let table: FileTable = toml::from_str(text).map_err(|error| without_values(text, &error))?;
    let places = |of: &dyn fmt::Display, texts: Vec<String>| {
        let each = texts.into_iter().map(|text| Place::parse(&text).map_err(|why| format!("{of}: {why}")));
        each.collect::<Result<Vec<_>, _>>()
    };
    let mut ring = Ring::default();
    ring.anonymous.read = places(&"anonymous", table.anonymous.read)?;
    for (number, key) in (1..).zip(table.keys) {
        let is_right = |byte: u8| byte.is_ascii_graphic() && !b",;\"'".contains(&byte);
        let name = key.access_key;
        if name.is_empty() || name.len() > 128 || !name.bytes().all(is_right) {
            return Err(format!(
                "the access_key of entry {number} must have 1 to 128 visible ASCII characters"
            ));
        }
        if key.secret_key.len() < SECRET_BYTES_MIN {
            return Err(format!("the secret_key of {name} must have at least {SECRET_BYTES_MIN} bytes"));
        }
        let rights = Rights { read: places(&name, key.read)?, write: places(&name, key.write)? };
        if rights == Rights::default() {
            return Err(format!("{name} may do nothing; name buckets in read or write, or remove it"));
        }
        if ring.keys.insert(name.clone(), Arc::new(Key::new(key.secret_key, rights))).is_some() {
            return Err(format!("{name} comes twice"));
        }
    }
    if ring.keys.is_empty() && ring.anonymous.read.is_empty() {
        return Err("has no key; [[keys]] with access_key, secret_key, read and write is right".into());
    }
    Ok(ring)
}

/// Returns an error message without values from the file, which could be secrets.
fn without_values(text: &str, error: &toml::de::Error) -> String {
    let line =
        error.span().and_then(|span| text.get(..span.start)).map_or(1, |before| before.split('\n').count());
    let names_a_key = ["unknown field", "missing field", "duplicate key"];
    let message = error.message();
    let what = match names_a_key.iter().any(|start| message.starts_with(start)) {
        true => message.lines().next().unwrap_or_default(),
        false => {
            "is not as it must be; [[keys]] with access_key, secret_key, read = [\"BUCKET/PREFIX\"] and write is right"
        }
    };
    format!("line {line}: {what}")
}

#[cfg(test)]
impl Key {
    /// Returns a key for tests.
    pub(crate) fn of(secret: &str, rights: Rights) -> Key {
        Key::new(secret.into(), rights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const RIGHT: &str =
        "[[keys]]\naccess_key = \"a\"\nsecret_key = \"0123456789abcdef\"\nread = [\"bucket\"]\n";

    fn write(path: &Path, text: &str, mode: u32) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        assert!(parse(RIGHT).is_ok());
        for (text, problem) in [
            ("", "has no key"),
            (&RIGHT.replace("secret_key", "secret"), "line 3: unknown field `secret`"),
            (&RIGHT.replace("read", "#"), "may do nothing"),
            (&RIGHT.replace("[\"bucket\"]", "\"0123456789abcdef\""), "line 4: is not as it must be"),
            (&RIGHT.replace("\"0123456789abcdef\"", "0123456789"), "line 3: is not as it must be"),
            (&RIGHT.replace("\"0123456789abcdef\"", "\"0123456789abcdef"), "line 3: is not as it must be"),
            (&RIGHT.replace("0123456789abcdef", "0123456789"), "at least 16 bytes"),
            (&RIGHT.replace("\"a\"", "\"a b\""), "the access_key of entry 1"),
            (&RIGHT.replace("bucket", "bucket/*"), "a: \"bucket/*\" has a *"),
            (&RIGHT.repeat(2), "a comes twice"),
        ] {
            let why = parse(text).map(|_| ()).unwrap_err();
            assert!(why.contains(problem), "{why}");
            assert!(!why.contains("0123456789"), "{why}");
            assert!(!why.contains('\n'), "{why}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.toml");
        for (mode, is_right) in [
            (0o600, true),
            (0o400, true),
            (0o640, true),
            (0o644, false),
            (0o660, false),
            (0o604, false),
            (0o602, false),
        ] {
            write(&path, RIGHT, mode);
            let keys = Keys::from_file(&path);
            assert_eq!(keys.is_ok(), is_right, "{mode:o}");
            assert!(!format!("{keys:?}").contains("0123456789"), "{keys:?}");
        }
        assert!(Keys::from_file(directory.path()).unwrap_err().contains("is no file"));
    }

    #[test]
    fn a_wrong_file_replaces_nothing_and_is_complained_about_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.toml");
        write(&path, RIGHT, 0o600);
        let keys = Keys::from_file(&path).unwrap();
        assert_eq!(keys.reload_if_changed(), Ok(false));
        write(&path, "[[keys]]", 0o600);
        assert!(keys.reload_if_changed().is_err());
        assert_eq!(keys.reload_if_changed(), Ok(false));
        assert!(keys.ring().find("a").is_some());
        write(&path, &RIGHT.replace("\"a\"", "\"another\""), 0o600);
        assert_eq!(keys.reload_if_changed(), Ok(true));
        assert!(keys.ring().find("a").is_none() && keys.ring().find("another").is_some());
        let read = keys.read_again().unwrap();
        assert!(!format!("{read:?}").contains("0123456789"));
    }

    #[test]
    fn the_table_of_signing_keys_is_bounded() {
        let key = Key::of("0123456789abcdef", Rights::all());
        for day in 0..100 {
            let scope = format!("{day:08}/r/s3/aws4_request");
            let (signing, is_known) = key.signing_key(&scope);
            assert!(!is_known);
            key.keep(&scope, signing.clone());
            key.keep(&scope, signing);
            assert!(key.signing_key(&scope).1);
            assert!(key.known.read().0.len() <= SCOPES_MAX);
        }
    }
}
