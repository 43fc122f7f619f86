//! Authentication: which protocols require a password, and the files of users and passwords.
//!
//! ```text
//!  -Y, memcached.auth_file ──► text ─┐
//!                                    ├─► gate of a connection (`conn/gate.rs`) ─► requests
//!  -S, memcached.sasl_file ──► SASL ─┘                    │
//!                                              wrong ones ▼
//!                                              by address (`attempts`)
//! ```
//! With either, every connection begins behind a gate; a protocol without passwords of its own is not served.

mod credentials;

pub use credentials::Credentials;

use cached_config::ConfigError;
use std::path::PathBuf;

/// The passwords of each protocol.
#[derive(Debug, Clone, Default)]
pub struct Auth {
    /// Of text and meta.
    pub text: Option<Credentials>,
    /// Of the binary protocol.
    pub sasl: Option<Credentials>,
}

/// What the files of an [`Auth`] have when they are read again.
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

    /// Reads the files. Until then no password is accepted. To be called while the process may read them.
    ///
    /// # Errors
    /// The key of a file, what is wrong with it, and what would be right.
    pub fn load(&self) -> Result<(), ConfigError> {
        let read = self.read_again()?;
        self.put_in_force(read);
        Ok(())
    }

    /// Reads the files that have not been read.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn load_missing(&self) -> Result<(), ConfigError> {
        let all = [&self.text, &self.sasl].into_iter().flatten();
        if all.clone().all(Credentials::is_loaded) { Ok(()) } else { self.load() }
    }

    /// Reads the files again. All passwords are the same as before until they are
    /// [put in force](Self::put_in_force).
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn read_again(&self) -> Result<PasswordsRead, ConfigError> {
        let read =
            |(one, key): (&Credentials, &str)| one.read().map_err(|why| ConfigError { key: key.into(), why });
        self.given().map(read).collect::<Result<_, _>>().map(PasswordsRead)
    }

    /// Accepts the passwords that have been read from now on, and no others. Returns the configuration keys of
    /// the files that differ.
    pub fn put_in_force(&self, read: PasswordsRead) -> Vec<&'static str> {
        let changed =
            self.given().zip(read.0).filter_map(|((one, key), read)| one.put_in_force(read).then_some(key));
        changed.collect()
    }

    fn given(&self) -> impl Iterator<Item = (&Credentials, &'static str)> {
        let all = [(&self.text, "memcached.auth_file"), (&self.sasl, "memcached.sasl_file")];
        all.into_iter().filter_map(|(one, key)| one.as_ref().map(|one| (one, key)))
    }

    /// Returns warnings about files that others can read.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let all = [&self.text, &self.sasl].into_iter().flatten();
        all.filter_map(|one| cached_config::secret_warning(one.path())).collect()
    }

    /// Returns the path of the file of text authentication, empty without one.
    pub(crate) fn text_path(&self) -> PathBuf {
        self.text.as_ref().map(|one| one.path().to_owned()).unwrap_or_default()
    }

    /// Returns the path of the file of SASL, empty without one.
    pub(crate) fn sasl_path(&self) -> PathBuf {
        self.sasl.as_ref().map(|one| one.path().to_owned()).unwrap_or_default()
    }
}
