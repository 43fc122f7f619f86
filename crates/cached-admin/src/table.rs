//! The table `[admin]`, the configuration of the listener that results from it and the errors in it,
//! and the tokens in its file.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use cached_config::{ConfigError, check_tls, config_keys, exposure, invalid, load_tls, with_defaults};
use cached_process::{Exit, Failure};
use cached_tls::{ServerTls, TlsSettings};
use named_file::{FileError, equal_digests};
use parking_lot::RwLock;
use sha2::{Digest, Sha256};

use crate::listener::{HEAD_BYTES_MAX, RESPONSES_BYTES_MAX, SMALL_RESPONSE_BYTES};

config_keys! {
    /// The table, which has the same keys in `cached` and `synapsed`. An empty string means none.
    #[derive(Eq)]
    pub struct AdminTable over AdminConfig = AdminConfig::default();

    /// The addresses to listen on: `host:port` each.
    pub listen: Vec<String> = same(listen);
    /// A file with one token, or two during a rotation.
    pub token_file: PathBuf = own(PathBuf::new());
    /// The maximum number of connections.
    pub connections_max: u32 = count(connections_max), in 2..=4096;
    /// TLS for the addresses that other machines can reach; without this table, there is no TLS.
    pub tls: Option<TlsSettings> = own(None);
}

impl AdminTable {
    /// Checks the values, and the token file if there is one.
    ///
    /// # Errors
    /// Returns the first key with an invalid value.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_ranges("admin")?;
        if self.listen.is_empty() {
            return invalid("admin.listen", "is empty; it must name an address to listen on");
        }
        for address in &self.listen {
            let port = address.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
            if !matches!(port, Some(Ok(_))) {
                return invalid(
                    "admin.listen",
                    format!(
                        "has \"{address}\"; an address must have the form HOST:PORT, such as \"{ADDRESS_DEFAULT}\""
                    ),
                );
            }
            let exposed = exposure(address).filter(|_| self.token_file.as_os_str().is_empty());
            if let Some(exposed) = exposed {
                let right = "name a token_file, or listen on 127.0.0.1";
                return invalid("admin.listen", format!("{exposed}, and there is no token: {right}"));
            }
        }
        // The files of the TLS table are read when the listener opens.
        if let Some(tls) = &self.tls {
            check_tls("admin.tls", tls)?;
        }
        self.tokens().map(drop)
    }

    /// Reads the tokens; `None` if no file is named.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or has an invalid format.
    pub fn tokens(&self) -> Result<Option<Tokens>, ConfigError> {
        if self.token_file.as_os_str().is_empty() {
            return Ok(None);
        }
        let tokens = Tokens::from_file(&self.token_file);
        tokens.map(Some).map_err(|error| ConfigError::of_file("admin.token_file", error))
    }

    /// Reads the certificates; `None` without TLS.
    ///
    /// # Errors
    /// Fails if the certificates cannot be used.
    pub fn load_tls(&self) -> Result<Option<Arc<ServerTls>>, ConfigError> {
        load_tls("admin.tls", self.tls.as_ref(), &[])
    }

    /// Returns the configuration of the listener with these tokens, which [`Self::tokens`] has
    /// read, and these certificates, which [`Self::load_tls`] has read.
    #[must_use]
    pub fn config(&self, tokens: Option<Tokens>, tls: Option<Arc<ServerTls>>) -> AdminConfig {
        let mut config = AdminConfig::default();
        self.apply(&mut config);
        config.tokens = tokens;
        config.tls = tls;
        config
    }

    /// Returns the number of file descriptors that the listener may need.
    #[must_use]
    pub fn descriptors_max(&self) -> u64 {
        u64::from(self.connections_max) + self.listen.len() as u64 + 8
    }
}

with_defaults! {
    /// The addresses of the listener and its limits.
    #[derive(Clone, Debug)]
    #[non_exhaustive]
    pub struct AdminConfig {
        /// The addresses to listen on, each `HOST:PORT`; port 0 means any free one.
        pub listen: Vec<String> = vec![ADDRESS_DEFAULT.into()],
        /// The tokens, which are required for an address that other machines can reach.
        pub tokens: Option<Tokens> = None,
        /// TLS for the addresses that other machines can reach; `None` without it.
        pub tls: Option<Arc<ServerTls>> = None,
        /// The maximum number of simultaneous connections; further ones receive a 503 and are
        /// closed.
        pub connections_max: usize = 64,
        /// The maximum size of a request body, in bytes.
        pub body_bytes_max: usize = 64 << 10,
        /// The maximum time for a client to send a request, and for a handler to respond.
        pub request_timeout: Duration = Duration::from_secs(30),
        /// The age after which a connection ends with its next response.
        pub connection_time_max: Duration = Duration::from_secs(600),
        /// Sockets that another process has opened, each with its address in `listen`. They are
        /// used instead of new sockets.
        pub inherited: Vec<(String, Arc<TcpListener>)> = Vec::new(),
        /// Whether to accept connections only once
        /// [`AdminServer::accept`](crate::AdminServer::accept) is called.
        pub is_held: bool = false,
    }
}

impl AdminConfig {
    /// Returns the maximum memory use of a listener with these settings, in bytes.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        let connection_bytes = CONNECTION_BYTES + self.body_bytes_max as u64 + SMALL_RESPONSE_BYTES as u64;
        self.connections_max as u64 * connection_bytes + RESPONSES_BYTES_MAX as u64
    }
}

/// The memory use of a connection in addition to bodies, in bytes: buffers for the heads of
/// requests and responses, and TLS.
const CONNECTION_BYTES: u64 = 2 * HEAD_BYTES_MAX as u64 + 64 * 1024;

/// The default address to listen on: the port that memcached's exporter uses, so that scrape
/// configurations need not change.
pub const ADDRESS_DEFAULT: &str = "127.0.0.1:9150";

/// The reason why the listener cannot be opened, as a single line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// An address cannot be listened on.
    #[error("admin.listen: cannot listen on {address}: {cause}")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        #[source]
        cause: io::Error,
    },
    /// An address can be reached from other machines, but there is no token.
    #[error(
        "admin.listen: {address} can be reached from other machines, and there is no token: name a \
         token_file, or listen on 127.0.0.1"
    )]
    Exposed {
        /// The address.
        address: SocketAddr,
    },
    /// A thread or its runtime cannot be created.
    #[error("cannot start the thread of the admin listener: {0}")]
    Thread(#[source] io::Error),
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Failure {
        let exit = match &error {
            AdminError::Listen { .. } => Exit::Refused,
            AdminError::Exposed { .. } => Exit::Configuration,
            AdminError::Thread(_) => Exit::Trouble,
        };
        Failure::new(exit, error)
    }
}

/// The minimum length of a token, in bytes.
const TOKEN_BYTES_MIN: usize = 16;
/// The maximum size of the token file, in bytes.
const FILE_BYTES_MAX: usize = 4096;
/// The maximum number of tokens that are accepted simultaneously.
const TOKENS_MAX: usize = 2;

/// The tokens that are currently accepted. It is cheap to clone; all clones share the same state.
#[derive(Clone)]
pub struct Tokens {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    /// Digests, so that a comparison reveals nothing about a token, not even its length.
    digests: RwLock<Vec<[u8; 32]>>,
}

impl Tokens {
    /// Reads the tokens in the file `path`.
    ///
    /// # Errors
    /// Returns one line: the problem with the file, and the remedy.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Tokens, FileError> {
        let path = path.into();
        let digests = RwLock::new(read(&path)?);
        Ok(Tokens { inner: Arc::new(Inner { path, digests }) })
    }

    /// Reads the file again. Its tokens are accepted once they are [put in
    /// force](TokensRead::put_in_force).
    ///
    /// # Errors
    /// Returns one line: the problem with the file, and the remedy.
    pub fn read_again(&self) -> Result<TokensRead, FileError> {
        Ok(TokensRead { tokens: self.clone(), digests: read(&self.inner.path)? })
    }

    /// Returns whether `token` is accepted. Takes the same time for all tokens of the same length.
    #[must_use]
    pub fn accept(&self, token: &[u8]) -> bool {
        let digest = digest(token);
        // The token is compared with all digests, so that the time does not depend on the token.
        self.inner.digests.read().iter().filter(|known| equal_digests(known, &digest)).count() > 0
    }
}

/// The tokens of a file that was read again.
#[must_use = "without `put_in_force` the tokens are the same as before"]
pub struct TokensRead {
    tokens: Tokens,
    digests: Vec<[u8; 32]>,
}

impl TokensRead {
    /// Accepts only these tokens from now on. Returns whether they differ from the previous ones.
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

fn read(path: &Path) -> Result<Vec<[u8; 32]>, FileError> {
    let shown = path.display();
    let text = named_file::read(path).map_err(|error| error.unread(path))?;
    let wrong = |why: String| Err(FileError::mistake(format!("{shown} {why}")));
    if text.len() > FILE_BYTES_MAX {
        return wrong(format!(
            "is larger than {FILE_BYTES_MAX} bytes; it must contain only a line for each token"
        ));
    }
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let tokens: Vec<&[u8]> = lines.collect();
    if tokens.is_empty() || tokens.len() > TOKENS_MAX {
        let count = tokens.len();
        return wrong(format!("has {count} lines; it must have one token, or two during a rotation"));
    }
    for token in &tokens {
        // The token may contain only characters that an Authorization header can carry.
        if !token.iter().all(u8::is_ascii_graphic) {
            return wrong(
                "has a token with characters other than ASCII letters, digits and punctuation".into(),
            );
        }
        if token.len() < TOKEN_BYTES_MIN {
            let bytes = token.len();
            return wrong(format!(
                "has a token of {bytes} bytes; it must have at least {TOKEN_BYTES_MIN}, for example the output of: \
                 openssl rand -hex 32"
            ));
        }
    }
    Ok(tokens.into_iter().map(digest).collect())
}

#[cfg(test)]
mod table_tests {
    use super::*;

    fn error(change: impl FnOnce(&mut AdminTable)) -> String {
        let mut table = AdminTable::default();
        change(&mut table);
        table.check().expect_err("it is wrong").to_string()
    }

    #[test]
    fn mistakes_are_one_line_with_what_would_be_right() {
        AdminTable::default().check().expect("the default works");
        assert!(error(|table| table.listen = vec![]).starts_with("admin.listen: is empty;"));
        for address in ["9150", "localhost", "host:", "host:99999", ":x"] {
            let error = error(|table| table.listen = vec![address.into()]);
            assert!(error.contains("must have the form HOST:PORT"), "{error}");
        }
        let exposed = error(|table| table.listen = vec!["0.0.0.0:9150".into()]);
        assert!(exposed.contains("no token: name a token_file"), "{exposed}");
        let exposed = error(|table| table.listen = vec!["[::]:9150".into()]);
        assert!(exposed.contains("no token"), "{exposed}");
        let missing = error(|table| table.token_file = "/nowhere/token".into());
        assert!(missing.starts_with("admin.token_file: cannot read /nowhere/token: "), "{missing}");
        assert!(error(|table| table.connections_max = 1).starts_with("admin.connections_max: is 1;"));
    }
}

#[cfg(test)]
mod tokens_tests {
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
            ("0123456789abcdef g".into(), "characters other"),
            ("a".repeat(5000), "larger than"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = tokens.read_again().map(drop).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
            assert!(tokens.accept(FIRST.as_bytes()));
        }
        std::fs::remove_file(&path).unwrap();
        let missing = tokens.read_again().map(drop).unwrap_err();
        assert!(missing.to_string().contains("cannot read"), "{missing}");
        assert!(tokens.accept(FIRST.as_bytes()));
    }
}
