//! The secrets of a server, which can change while it serves: during a change, clients may have either of two.

use std::sync::atomic::Ordering;

use parking_lot::RwLock;

use super::config::ServerConfig;
use super::{Server, Shared};
use crate::auth::Secret;
use connection::SettingError;

/// The secrets that are in force.
pub(super) struct Secrets {
    /// For clients that name no key: the secret, and the one before it.
    unnamed: RwLock<Vec<Secret>>,
    named: Vec<(String, Secret)>,
}

impl Secrets {
    pub(super) fn new(config: &ServerConfig) -> Self {
        let unnamed = config.secret.iter().chain(&config.secret_previous).cloned().collect();
        Self { unnamed: RwLock::new(unnamed), named: config.keys.clone() }
    }

    /// Returns the secrets of which a client that names `key` must prove to know one; none if every client is
    /// accepted.
    pub(super) fn of(&self, key: &[u8]) -> Vec<Secret> {
        let named = self.named.iter().find(|(name, _)| !key.is_empty() && name.as_bytes() == key);
        match named {
            Some((_, secret)) => vec![secret.clone()],
            None => self.unnamed.read().clone(),
        }
    }

    /// Returns whether clients that name no key need a secret.
    pub(super) fn are_required(&self) -> bool {
        !self.unnamed.read().is_empty()
    }
}

impl Server {
    /// Replaces [`ServerConfig::secret`] and [`ServerConfig::secret_previous`] for the handshakes that begin
    /// from now on. Connections that are open stay open.
    ///
    /// # Errors
    /// If there would be no secret, and other machines can reach an address that the server listens on, unless
    /// [`ServerConfig::allow_exposed`] is set; or if there would be only a previous one.
    pub fn set_secrets(&self, secret: Option<Secret>, previous: Option<Secret>) -> Result<(), SettingError> {
        let Shared { config, secrets, is_exposed, .. } = &*self.shared;
        let check = SettingError::check;
        let is_exposed = is_exposed.load(Ordering::SeqCst) && !config.allow_exposed;
        check(is_exposed && secret.is_none(), "secret", "is needed: other machines can reach the server")?;
        check(secret.is_none() && previous.is_some(), "secret_previous", "needs a secret beside it")?;
        *secrets.unnamed.write() = secret.into_iter().chain(previous).collect();
        Ok(())
    }
}
