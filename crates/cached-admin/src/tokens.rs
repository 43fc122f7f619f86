//! Bearer tokens: read from a file, compared in constant time.
//!
//! The file has one token or, while one is being replaced, two, each in a line of its own. Reading it again
//! replaces the tokens; connections that are open are not affected, because every request is checked.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use sha2::{Digest, Sha256};

/// The shortest token, in bytes.
const TOKEN_BYTES_MIN: usize = 16;
/// The largest file of tokens, in bytes.
const FILE_BYTES_MAX: u64 = 4096;
/// The number of tokens that are accepted at a time.
const TOKENS_MAX: usize = 2;

/// The tokens that are accepted at present. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Tokens {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    /// Digests, so that a comparison reveals nothing of a token, not even its length.
    digests: RwLock<Vec<[u8; 32]>>,
}

impl Tokens {
    /// Reads the tokens in the file `path`.
    ///
    /// # Errors
    /// One line: what is wrong with the file, and what would be right.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Tokens, String> {
        let path = path.into();
        let digests = RwLock::new(read(&path)?);
        Ok(Tokens { inner: Arc::new(Inner { path, digests }) })
    }

    /// Reads the file again. Its tokens are accepted once they are [put in force](TokensRead::put_in_force).
    ///
    /// # Errors
    /// One line: what is wrong with the file, and what would be right.
    pub fn read_again(&self) -> Result<TokensRead, String> {
        Ok(TokensRead { tokens: self.clone(), digests: read(&self.inner.path)? })
    }

    /// Returns the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Returns whether `token` is accepted. Takes the same time for every token of the same length.
    #[must_use]
    pub fn accept(&self, token: &[u8]) -> bool {
        let digest = digest(token);
        let differs = |known: &[u8; 32]| known.iter().zip(&digest).fold(0, |all, (a, b)| all | (a ^ b)) != 0;
        // Compares with all of them.
        self.inner.digests.read().iter().filter(|known| !differs(known)).count() > 0
    }
}

/// What a file of tokens has when it is read again.
#[must_use = "without `put_in_force` the tokens are the same as before"]
pub struct TokensRead {
    tokens: Tokens,
    digests: Vec<[u8; 32]>,
}

impl TokensRead {
    /// Accepts these tokens from now on, and no others. Returns whether they are others than before.
    pub fn put_in_force(self) -> bool {
        let mut accepted = self.tokens.inner.digests.write();
        let are_new = *accepted != self.digests;
        *accepted = self.digests;
        are_new
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

impl fmt::Debug for TokensRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokensRead").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn read(path: &Path) -> Result<Vec<[u8; 32]>, String> {
    let shown = path.display();
    let mut text = Vec::new();
    let failed = |error| format!("cannot read {shown}: {error}");
    // A pipe without a writer must not block the process.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(format!("{shown} is not a file; it must have a line for each token"));
    }
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!(
            "{shown} is larger than {FILE_BYTES_MAX} bytes; a line for each token is enough"
        ));
    }
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let tokens: Vec<&[u8]> = lines.collect();
    if tokens.is_empty() || tokens.len() > TOKENS_MAX {
        let count = tokens.len();
        return Err(format!("{shown} has {count} lines; it must have one token, or two during a rotation"));
    }
    for token in &tokens {
        // What an Authorization header can carry.
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err(format!("{shown} has a token with other characters than letters, digits and signs"));
        }
        if token.len() < TOKEN_BYTES_MIN {
            let bytes = token.len();
            return Err(format!(
                "{shown} has a token of {bytes} bytes; it must have at least {TOKEN_BYTES_MIN}, for example the \
                 output of: openssl rand -hex 32"
            ));
        }
    }
    Ok(tokens.into_iter().map(digest).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "0123456789abcdef";
    const SECOND: &str = "fedcba9876543210";

    #[test]
    fn both_tokens_of_the_file_are_accepted_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, format!("{FIRST}\n")).unwrap();
        let tokens = Tokens::from_file(&path).unwrap();
        assert!(tokens.accept(FIRST.as_bytes()) && !tokens.accept(SECOND.as_bytes()));
        assert!(!tokens.accept(b"") && !tokens.accept(&FIRST.as_bytes()[..15]));
        std::fs::write(&path, format!("{SECOND}\r\n\n {FIRST}")).unwrap();
        assert!(tokens.read_again().unwrap().put_in_force());
        assert!(tokens.accept(FIRST.as_bytes()) && tokens.accept(SECOND.as_bytes()));
        assert!(!tokens.read_again().unwrap().put_in_force(), "the same as before");
        std::fs::write(&path, SECOND).unwrap();
        assert!(tokens.read_again().unwrap().put_in_force());
        assert!(!tokens.accept(FIRST.as_bytes()) && tokens.accept(SECOND.as_bytes()));
    }

    #[test]
    fn a_wrong_file_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, FIRST).unwrap();
        let tokens = Tokens::from_file(&path).unwrap();
        for (text, problem) in [
            (String::new(), "has 0 lines"),
            (format!("{FIRST}\n{SECOND}\n{FIRST}x"), "has 3 lines"),
            ("short".into(), "of 5 bytes"),
            ("0123456789abcdef g".into(), "other characters"),
            ("a".repeat(5000), "larger than"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = tokens.read_again().map(drop).unwrap_err();
            assert!(error.contains(problem), "{error}");
            assert!(tokens.accept(FIRST.as_bytes()));
        }
        std::fs::remove_file(&path).unwrap();
        assert!(tokens.read_again().map(drop).unwrap_err().contains("cannot read"));
        assert!(tokens.accept(FIRST.as_bytes()));
    }
}
