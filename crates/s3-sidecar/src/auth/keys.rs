//! The clients' keys: a file of access keys with their secrets and rights. The file can be replaced
//! while it is in use.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use named_file::FileError;
use serde::Deserialize;

use super::credentials::SecretFile;
use super::rights::{Place, Rights};
use super::signature::SecretKey;

/// The minimum length of a secret in bytes. A shorter secret could be guessed from a signature.
const SECRET_BYTES_MIN: usize = 16;

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

pub(crate) fn parse(text: &str) -> Result<Ring, String> {
    let table: FileTable = toml::from_str(text).map_err(|error| without_values(text, &error))?;
    let places = |of: &str, texts: Vec<String>| {
        let each = texts.into_iter().map(|text| Place::parse(&text).map_err(|why| format!("{of}: {why}")));
        each.collect::<Result<Vec<_>, _>>()
    };
    let mut ring = Ring::default();
    ring.anonymous.read = places("anonymous", table.anonymous.read)?;
    for (number, key) in (1..).zip(table.keys) {
        let is_valid = |byte: u8| byte.is_ascii_graphic() && !b",;\"'".contains(&byte);
        let name = key.access_key;
        if name.is_empty() || name.len() > 128 || !name.bytes().all(is_valid) {
            return Err(format!(
                "the access_key of entry {number} must have 1 to 128 visible ASCII characters"
            ));
        }
        if key.secret_key.len() < SECRET_BYTES_MIN {
            return Err(format!("the secret_key of {name} must have at least {SECRET_BYTES_MIN} bytes"));
        }
        let rights = Rights { read: places(&name, key.read)?, write: places(&name, key.write)? };
        if rights == Rights::default() {
            return Err(format!("{name} has no rights; name buckets in read or write, or remove the key"));
        }
        let key = Key { secret: SecretKey::new(key.secret_key), rights };
        if ring.keys.insert(name.clone(), Arc::new(key)).is_some() {
            return Err(format!("{name} occurs twice"));
        }
    }
    if ring.keys.is_empty() && ring.anonymous.read.is_empty() {
        return Err("has no key; expected [[keys]] with access_key, secret_key, read and write".into());
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
            "is malformed; expected [[keys]] with access_key, secret_key, read = [\"BUCKET/PREFIX\"] and write"
        }
    };
    format!("line {line}: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Secrets;
    use crate::auth::credentials::Reread;
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
