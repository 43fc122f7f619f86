//! Authentication: which protocols require a password, and the files of users and passwords.
//!
//! ```text
//!  -Y, memcached.auth_file ──► text ─┐
//!                                    ├─► gate of a connection (`conn/gate.rs`) ─► requests
//!  -S, memcached.sasl_file ──► SASL ─┘                    │
//!                                              wrong ones ▼
//!                                              by address (`attempts`)
//! ```
//! If either file is configured, every connection begins behind a gate, and a protocol without
//! passwords of its own is not served.

use cached_config::{ConfigError, secret_warning};
use named_file::{FileError, equal_digests};
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The passwords of each protocol.
#[derive(Debug, Clone, Default)]
pub struct Auth {
    /// The passwords of the text and meta protocols.
    pub text: Option<Credentials>,
    /// The passwords of the binary protocol.
    pub sasl: Option<Credentials>,
}

/// Passwords that were read again from the files of an [`Auth`].
#[must_use = "without `put_in_force` the passwords are the same as before"]
pub struct PasswordsRead(Vec<Vec<[u8; 32]>>);

impl std::fmt::Debug for PasswordsRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PasswordsRead").finish_non_exhaustive()
    }
}

impl Auth {
    /// Returns whether clients must authenticate.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.text.is_some() || self.sasl.is_some()
    }

    /// Reads the files. Until then, no password is accepted. This must be called while the process
    /// still has permission to read the files.
    ///
    /// # Errors
    /// Returns the key of a file, the mistake in the file, and the remedy.
    pub fn load(&self) -> Result<(), ConfigError> {
        let read = self.read_again()?;
        self.put_in_force(read);
        Ok(())
    }

    /// Reads the files unless they have been read.
    ///
    /// # Errors
    /// Returns the errors of [`load`](Self::load).
    pub(crate) fn load_missing(&self) -> Result<(), ConfigError> {
        if self.given().all(|(one, _)| one.is_loaded()) { Ok(()) } else { self.load() }
    }

    /// Reads the files again. The passwords in force stay the same until the new ones are [put in
    /// force](Self::put_in_force).
    ///
    /// # Errors
    /// Returns the errors of [`load`](Self::load).
    pub fn read_again(&self) -> Result<PasswordsRead, ConfigError> {
        let read =
            |(one, key): (&Credentials, &str)| one.read().map_err(|error| ConfigError::of_file(key, error));
        self.given().map(read).collect::<Result<_, _>>().map(PasswordsRead)
    }

    /// Accepts only the passwords in `read` from now on. Returns the configuration keys of the
    /// files that have changed.
    pub fn put_in_force(&self, read: PasswordsRead) -> Vec<&'static str> {
        let changed =
            self.given().zip(read.0).filter_map(|((one, key), read)| one.put_in_force(read).then_some(key));
        changed.collect()
    }

    fn given(&self) -> impl Iterator<Item = (&Credentials, &'static str)> {
        let all = [(&self.text, "memcached.auth_file"), (&self.sasl, "memcached.sasl_file")];
        all.into_iter().filter_map(|(one, key)| one.as_ref().map(|one| (one, key)))
    }

    /// Returns warnings about files that other users can read.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.given().filter_map(|(one, _)| secret_warning(one.path())).collect()
    }
}

// A file of users and passwords in memcached's format: one line `user:password` for each user. Only
// digests of user and password are kept, and each attempt is compared with all of them, so that the
// response time reveals neither which users exist nor how much of a password was correct.

/// The maximum size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The maximum length of a line, in bytes. memcached truncates longer lines.
const LINE_BYTES_MAX: usize = 255;
/// The maximum number of users, limited because each attempt is compared with every user.
const USERS_MAX: usize = 1024;

/// The format of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The format of `-Y`: the password is the rest of the line.
    Text,
    /// The format of `-S`: the password ends at a second colon, and lines may be empty.
    Sasl,
}

/// Users and their passwords. It is cheap to clone; all clones share the same state.
#[derive(Clone)]
pub struct Credentials {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    form: Form,
    /// The digests of the passwords; empty until the file is read, so that no password is accepted.
    digests: RwLock<Vec<[u8; 32]>>,
}

impl Credentials {
    /// Returns the credentials of a file, without reading the file.
    #[must_use]
    pub fn new(path: PathBuf, form: Form) -> Credentials {
        // A daemon changes its directory, and reads the file again later.
        let path = std::path::absolute(&path).unwrap_or(path);
        Credentials { inner: Arc::new(Inner { path, form, digests: RwLock::default() }) }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Returns whether the password is the user's. The time depends only on the total length of
    /// user and password.
    #[must_use]
    pub fn accept(&self, user: &[u8], password: &[u8]) -> bool {
        let digest = digest(user, password);
        // The attempt is compared with all digests, so that the time does not depend on the
        // password.
        self.inner.digests.read().iter().filter(|known| equal_digests(known, &digest)).count() > 0
    }

    /// Returns whether the file has been read.
    fn is_loaded(&self) -> bool {
        !self.inner.digests.read().is_empty()
    }

    /// Reads and validates the file.
    fn read(&self) -> Result<Vec<[u8; 32]>, FileError> {
        let Inner { path, form, .. } = &*self.inner;
        let shown = path.display();
        let bytes = named_file::read(path)
            .map_err(|error| error.reworded(|why| format!("cannot read the passwords in {shown}: {why}")))?;
        parse(&bytes, *form).map_err(|why| FileError::mistake(format!("{shown}: {why}")))
    }

    /// Accepts only these digests from now on. Returns whether they differ from the previous ones.
    fn put_in_force(&self, digests: Vec<[u8; 32]>) -> bool {
        let mut accepted = self.inner.digests.write();
        let are_new = *accepted != digests;
        *accepted = digests;
        are_new
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

/// Returns a digest of user and password that depends on the boundary between them.
fn digest(user: &[u8], password: &[u8]) -> [u8; 32] {
    let user = Sha256::digest(user);
    Sha256::new_with_prefix(user).chain_update(password).finalize().into()
}

/// Returns the digests of a file's users. An error names the line.
fn parse(text: &[u8], form: Form) -> Result<Vec<[u8; 32]>, String> {
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("larger than {FILE_BYTES_MAX} bytes"));
    }
    let mut digests = Vec::new();
    for (number, line) in (1..).zip(text.strip_suffix(b"\n").unwrap_or(text).split(|byte| *byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() && form == Form::Sasl {
            continue;
        }
        let wrong = |why: &str| Err(format!("line {number} {why}; expected user:password"));
        if line.len() > LINE_BYTES_MAX {
            return wrong("is longer than 255 bytes");
        }
        if line.iter().any(|byte| matches!(byte, 0 | b'\r')) {
            return wrong("contains a NUL or a carriage return");
        }
        let Some(at) = line.iter().position(|byte| *byte == b':') else { return wrong("has no colon") };
        let (user, rest) = (&line[..at], &line[at + 1..]);
        let password = match form {
            Form::Text => rest,
            Form::Sasl => rest.split(|byte| *byte == b':').next().unwrap_or_default(),
        };
        if user.is_empty() {
            return wrong("has no user");
        }
        if password.is_empty() {
            return wrong("has no password");
        }
        if form == Form::Text && user.contains(&b' ') {
            return wrong("contains a space in the user name, which no client can send");
        }
        digests.push(digest(user, password));
    }
    match digests.len() {
        0 => Err("contains no users; expected a line user:password for each".into()),
        count if count > USERS_MAX => Err(format!("contains {count} users; the maximum is {USERS_MAX}")),
        _ => Ok(digests),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(text: &[u8], form: Form, user: &str, password: &str) -> bool {
        let credentials = Credentials::new("x".into(), form);
        credentials.put_in_force(parse(text, form).expect("a right file"));
        credentials.accept(user.as_bytes(), password.as_bytes())
    }

    #[test]
    fn users_and_passwords_as_memcached_reads_them() {
        for end in ["", "\n", "\r\n"] {
            let text = format!("foo:bar\nbaaaz:quux:1\r\nlast:pass word{end}");
            let text = text.as_bytes();
            assert!(accepts(text, Form::Text, "foo", "bar"));
            assert!(accepts(text, Form::Text, "baaaz", "quux:1"));
            assert!(accepts(text, Form::Sasl, "baaaz", "quux"));
            assert!(!accepts(text, Form::Sasl, "baaaz", "quux:1"));
            assert!(accepts(text, Form::Text, "last", "pass word"), "{end:?}");
            for (user, password) in [
                ("foo", "ba"),
                ("foo", "barr"),
                ("fo", "obar"),
                ("foob", "ar"),
                ("", ""),
                ("foo", ""),
                ("foo", "quux"),
                ("FOO", "bar"),
                ("", "foo:bar"),
            ] {
                assert!(!accepts(text, Form::Text, user, password), "{user} {password}");
                assert!(!accepts(text, Form::Sasl, user, password), "{user} {password}");
            }
        }
        let many: String = (0..USERS_MAX).map(|user| format!("user{user}:password{user}\n")).collect();
        for user in [0, 7, 8, 9, USERS_MAX - 1] {
            assert!(accepts(many.as_bytes(), Form::Text, &format!("user{user}"), &format!("password{user}")));
        }
        assert!(accepts(b"\n\na:b\n\n", Form::Sasl, "a", "b"));
    }

    #[test]
    fn wrong_files_are_refused_with_their_line() {
        let (long, many) = ([b'x'; 256], "u:p\n".repeat(USERS_MAX + 1));
        for (text, words) in [
            (&b""[..], "line 1 has no colon"),
            (b"user", "line 1 has no colon"),
            (b"a:b\nuser\n", "line 2 has no colon"),
            (b"a:b\n\nc:d\n", "line 2 has no colon"),
            (b"\xff\xfe\n", "line 1 has no colon"),
            (b":password", "line 1 has no user"),
            (b"user:\n", "line 1 has no password"),
            (b"a:b\0c\n", "line 1 contains a NUL"),
            (b"a:b\rc:d\n", "line 1 contains a NUL or a carriage return"),
            (b"a b:c\n", "line 1 contains a space in the user name"),
            (&long, "line 1 is longer than 255 bytes"),
            (many.as_bytes(), "contains 1025 users"),
            (&vec![b'\n'; (1 << 20) + 1], "larger than 1048576 bytes"),
        ] {
            let error = parse(text, Form::Text).expect_err("a wrong file");
            assert!(error.contains(words) && error.lines().count() == 1, "{error} instead of {words}");
        }
        assert!(parse(b"\n\n", Form::Sasl).is_err_and(|error| error.contains("no users")));
        assert!(parse(b"user::x\n", Form::Sasl).is_err_and(|error| error.contains("no password")));
    }

    #[test]
    fn only_a_file_is_read_and_none_is_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let missing = dir.path().join("missing");
        for path in [dir.path(), missing.as_path(), "/dev/null".as_ref()] {
            let credentials = Credentials::new(path.to_owned(), Form::Text);
            assert!(credentials.read().is_err(), "{}", path.display());
            assert!(!credentials.accept(b"", b""));
        }
    }
}
