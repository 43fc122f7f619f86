//! The clients' keys and the rights of each key: reads and writes in namespaces, or under prefixes
//! of names.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use blocker::{NAME_BYTES_MAX, Namespace};
use cached_http::values::{percent_decoded, values_of};
use cached_http::{KeyEntry, parse_keys};
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use named_file::{FileError, PutInForce, Reread, SecretFile, equal_digests};
use sha2::{Digest, Sha256};

/// The keys in a file. Clones share them.
#[derive(Clone, Debug)]
pub struct Keys(Arc<SecretFile<Ring>>);

/// The content of the file.
struct Ring {
    keys: HashMap<String, Key>,
    /// The rights of requests without a key.
    anonymous: Arc<Rights>,
}

struct Key {
    /// A digest of the secret, so that a comparison reveals nothing about the secret, not even its
    /// length.
    digest: [u8; 32],
    rights: Arc<Rights>,
}

/// The scopes of a key's rights.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    read: Vec<Scope>,
    write: Vec<Scope>,
}

/// The scope of a right.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    Everywhere,
    /// The client may access the names of a namespace that have this prefix.
    In {
        namespace: Namespace,
        prefix: Vec<u8>,
    },
}

/// The client of a request.
#[derive(Debug)]
pub(crate) struct Client {
    rights: Arc<Rights>,
    /// Whether the client has presented a valid key.
    pub(crate) has_key: bool,
}

impl Keys {
    /// Reads the keys in the file `path`.
    ///
    /// # Errors
    /// Returns a one-line message that states the mistake in the file and the correct form, without
    /// any secret.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Keys, FileError> {
        Ok(Keys(Arc::new(SecretFile::open(path.into(), parse)?)))
    }

    /// Reads the file again. Its keys are in force once the returned function is called.
    ///
    /// # Errors
    /// Returns the errors of [`Self::from_file`]. In that case the present keys stay in force.
    pub fn read_again(&self) -> Result<PutInForce, FileError> {
        Arc::clone(&self.0).read_again()
    }

    /// Returns the file, which can be read again when it changes.
    #[must_use]
    pub fn file(&self) -> Arc<dyn Reread> {
        Arc::clone(&self.0) as _
    }

    /// Identifies the client of a request, by HTTP's Basic authentication.
    ///
    /// # Errors
    /// Returns the mistake in the credentials.
    pub(crate) fn identify(&self, headers: &HeaderMap) -> Result<Client, &'static str> {
        let ring = self.0.current();
        let mut given = values_of(headers, &AUTHORIZATION);
        let value = match (given.next(), given.next()) {
            (None, _) => return Ok(Client { rights: Arc::clone(&ring.anonymous), has_key: false }),
            (Some(value), None) => value.as_bytes(),
            _ => return Err("the request has several Authorization headers"),
        };
        let Some((name, secret)) = basic(value) else {
            return Err("the credentials must have the form Authorization: Basic BASE64(NAME:SECRET)");
        };
        let digest: [u8; 32] = Sha256::digest(&secret).into();
        let key = ring.keys.get(&name);
        // The comparison takes as long for an unknown name as for a known one.
        let known = key.map_or([0; 32], |key| key.digest);
        let is_right = equal_digests(&known, &digest);
        match key {
            Some(key) if is_right => Ok(Client { rights: Arc::clone(&key.rights), has_key: true }),
            _ => Err("the name or the secret is not valid"),
        }
    }
}

/// Returns name and secret in the value of an `Authorization` header.
fn basic(value: &[u8]) -> Option<(String, Vec<u8>)> {
    let (scheme, encoded) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let decoded = BASE64_STANDARD.decode(encoded.trim_ascii()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let name = String::from_utf8(decoded[..colon].to_vec()).ok()?;
    Some((name, decoded[colon + 1..].to_vec()))
}

fn parse(text: &str) -> Result<Ring, String> {
    let table = parse_keys(text, "NAMESPACE/PREFIX", Scope::parse)?;
    let mut keys = HashMap::new();
    for KeyEntry { name, secret, read, write } in table.keys {
        if name.contains(':') {
            return Err(format!("the access_key {name} has a colon, which ends the name in an HTTP request"));
        }
        let key = Key { digest: Sha256::digest(secret).into(), rights: Arc::new(Rights { read, write }) };
        keys.insert(name, key);
    }
    let anonymous = Arc::new(Rights { read: table.anonymous_read, write: Vec::new() });
    Ok(Ring { keys, anonymous })
}

impl Client {
    /// Returns a client that may do everything.
    pub(crate) fn unlimited() -> Client {
        let rights = Rights { read: vec![Scope::Everywhere], write: vec![Scope::Everywhere] };
        Client { rights: Arc::new(rights), has_key: true }
    }

    /// Returns whether the client may read a name, or every name with this prefix.
    pub(crate) fn may_read(&self, namespace: &Namespace, name: &[u8]) -> bool {
        self.rights.read.iter().any(|scope| scope.has(namespace, name))
    }

    /// Returns whether the client may write a name.
    pub(crate) fn may_write(&self, namespace: &Namespace, name: &[u8]) -> bool {
        self.rights.write.iter().any(|scope| scope.has(namespace, name))
    }
}

impl Scope {
    /// Parses a scope: `*`, `NAMESPACE` or `NAMESPACE/PREFIX`, percent-encoded as in a path.
    fn parse(text: &str) -> Result<Scope, String> {
        if text == "*" {
            return Ok(Scope::Everywhere);
        }
        let (namespace, prefix) = text.split_once('/').unwrap_or((text, ""));
        if text.contains('*') {
            return Err(format!(
                "{text:?} has a *, which is not a wildcard here; a prefix needs none, and a * in a name is written %2A"
            ));
        }
        let namespace = percent_decoded(namespace).and_then(|bytes| Namespace::copy_from(&bytes).ok());
        let prefix = percent_decoded(prefix).filter(|prefix| prefix.len() <= NAME_BYTES_MAX);
        match namespace.filter(|namespace| !namespace.is_reserved()).zip(prefix) {
            Some((namespace, prefix)) => Ok(Scope::In { namespace, prefix: prefix.into() }),
            None => Err(format!(
                "{text:?} is not a scope; expected \"NAMESPACE\", \"NAMESPACE/PREFIX\" or \"*\", percent-encoded as in a URL"
            )),
        }
    }

    fn has(&self, namespace: &Namespace, name: &[u8]) -> bool {
        match self {
            Scope::Everywhere => true,
            Scope::In { namespace: own, prefix } => namespace == own && name.starts_with(prefix),
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("names", &self.keys.keys()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const FILE: &str = r#"
        [[keys]]
        access_key = "reports"
        secret_key = "0123456789abcdef"
        read = ["data", "a%2Fb/%00x"]
        write = ["data/in/"]
        [anonymous]
        read = ["public/www/"]
    "#;

    fn keys(text: &str) -> Result<Keys, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.toml");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        Keys::from_file(path).map_err(|error| error.to_string())
    }

    fn identified(keys: &Keys, values: &[&str]) -> Result<Client, &'static str> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        keys.identify(&headers)
    }

    fn with(text: &str) -> String {
        format!("Basic {}", BASE64_STANDARD.encode(text))
    }

    #[test]
    fn a_client_has_the_rights_of_its_key_and_no_others() {
        let keys = keys(FILE).unwrap();
        let client = identified(&keys, &[&with("reports:0123456789abcdef")]).unwrap();
        let namespace = |name: &'static str| Namespace::new(name).unwrap();
        assert!(client.may_read(&namespace("data"), b"x") && client.may_read(&namespace("data"), b""));
        assert!(client.may_read(&namespace("a/b"), b"\0xy") && !client.may_read(&namespace("a/b"), b""));
        assert!(
            client.may_write(&namespace("data"), b"in/x") && !client.may_write(&namespace("data"), b"in")
        );
        assert!(!client.may_read(&namespace("public"), b"www/x"), "not those of [anonymous]");
        let anonymous = identified(&keys, &[]).unwrap();
        assert!(anonymous.may_read(&namespace("public"), b"www/x") && !anonymous.has_key);
        assert!(!anonymous.may_read(&namespace("data"), b"x"));
        assert!(!anonymous.may_write(&namespace("public"), b"www/x"));
    }

    #[test]
    fn credentials_that_are_not_exactly_right_are_refused() {
        let keys = keys(FILE).unwrap();
        let right = with("reports:0123456789abcdef");
        assert!(identified(&keys, &[&right.replace("Basic", "bASIC")]).unwrap().has_key);
        for wrong in [
            with("reports:0123456789abcdeF"),
            with("reports:0123456789abcdef "),
            with("reports:"),
            with("report:0123456789abcdef"),
            with(":0123456789abcdef"),
            with("reports"),
            right.replace("Basic", "Bearer"),
            "Basic".into(),
            "Basic %".into(),
            String::new(),
        ] {
            assert!(identified(&keys, &[&wrong]).is_err(), "{wrong}");
        }
        assert!(identified(&keys, &[&right, &right]).is_err());
    }

    #[test]
    fn mistakes_in_the_file_are_named_and_secrets_are_not() {
        for (from, to, problem) in [
            ("\"data\"", "\".journal\"", "\".journal\" is not a scope"),
            ("\"data\"", "\"data/*\"", "has a *"),
            ("\"data\"", "\"a%2\"", "is not a scope"),
            ("\"data\"", "\"/x\"", "is not a scope"),
            ("\"reports\"", "\"re:ports\"", "has a colon"),
            ("0123456789abcdef", "0123456789", "at least 16 bytes"),
            ("read = [\"data\", \"a%2Fb/%00x\"]", "list = []", "line 5: unknown field `list`"),
        ] {
            let error = keys(&FILE.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(problem) && !error.contains("0123456789"), "{error}");
        }
    }
}
