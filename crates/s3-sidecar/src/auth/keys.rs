//! The clients' keys: a file of access keys with their secrets and rights. The file can be replaced
//! while it is in use.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use cached_http::{KeyEntry, parse_keys};
use named_file::{FileError, SecretFile};

use super::rights::{Place, Rights};
use super::signature::SecretKey;

/// The keys in a file. Clones share them.
#[derive(Clone, Debug)]
pub struct Keys(pub(crate) Arc<SecretFile<Ring>>);

/// The content of the file.
#[derive(Default)]
pub(crate) struct Ring {
    /// The keys by name.
    pub(crate) keys: HashMap<String, Arc<Key>>,
    /// The rights of requests without a signature.
    pub(crate) anonymous: Rights,
}

/// One access key.
pub(crate) struct Key {
    pub(crate) secret: SecretKey,
    pub(crate) rights: Rights,
}

impl Keys {
    /// Reads the keys in the file `path`.
    ///
    /// # Errors
    /// A one-line message that states the mistake in the file and the correct form, without any
    /// secret.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Keys, FileError> {
        Ok(Keys(Arc::new(SecretFile::open(path.into(), parse)?)))
    }

    pub(crate) fn ring(&self) -> Arc<Ring> {
        self.0.current()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("rights", &self.rights).finish_non_exhaustive()
    }
}

pub(crate) fn parse(text: &str) -> Result<Ring, String> {
    let table = parse_keys(text, "BUCKET/PREFIX", Place::parse)?;
    let mut ring = Ring::default();
    ring.anonymous.read = table.anonymous_read;
    for KeyEntry { name, secret, read, write } in table.keys {
        let key = Key { secret: SecretKey::new(secret), rights: Rights { read, write } };
        ring.keys.insert(name, Arc::new(key));
    }
    Ok(ring)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Secrets;
    use named_file::Reread;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

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
            (&RIGHT.replace("read", "#"), "has no rights"),
            (&RIGHT.replace("[\"bucket\"]", "\"0123456789abcdef\""), "line 4: is malformed"),
            (&RIGHT.replace("\"0123456789abcdef\"", "0123456789"), "line 3: is malformed"),
            (&RIGHT.replace("\"0123456789abcdef\"", "\"0123456789abcdef"), "line 3: is malformed"),
            (&RIGHT.replace("0123456789abcdef", "0123456789"), "at least 16 bytes"),
            (&RIGHT.replace("\"a\"", "\"a b\""), "the access_key of entry 1"),
            (&RIGHT.replace("bucket", "bucket/*"), "a: \"bucket/*\" has a *"),
            (&RIGHT.repeat(2), "a occurs twice"),
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
        let error = Keys::from_file(directory.path()).unwrap_err().to_string();
        assert!(error.ends_with("it is a directory, not a regular file"), "{error}");
    }

    #[test]
    fn a_wrong_file_replaces_nothing_and_is_complained_about_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.toml");
        write(&path, RIGHT, 0o600);
        let keys = Keys::from_file(&path).unwrap();
        let reload = || Arc::clone(&keys.0).reload_if_changed();
        let has = |name: &str| keys.ring().keys.contains_key(name);
        assert_eq!(reload(), Ok(false));
        write(&path, "[[keys]]", 0o600);
        assert!(reload().is_err());
        assert_eq!(reload(), Ok(false));
        assert!(has("a"));
        write(&path, &RIGHT.replace("\"a\"", "\"another\""), 0o600);
        assert_eq!(reload(), Ok(true));
        assert!(!has("a") && has("another"));
        let read = Secrets { keys: Some(keys.clone()), credentials: None }.read_again().unwrap();
        assert!(!format!("{read:?}").contains("0123456789"));
    }
}
