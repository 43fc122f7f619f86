//! The files of secrets while they are in use: read again on request, and when they change.

use std::time::Duration;

use super::credentials::{Credentials, CredentialsRead};
use super::keys::{Keys, KeysRead};

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(60);

/// The secrets of a sidecar. Copies share them.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// The clients' keys.
    pub keys: Option<Keys>,
    /// The sidecar's own credentials at the endpoint; it is anonymous there without.
    pub credentials: Option<Credentials>,
}

/// Secrets that have been read and are not in force yet.
#[derive(Debug)]
pub struct SecretsRead {
    keys: Option<KeysRead>,
    credentials: Option<CredentialsRead>,
}

impl Secrets {
    /// Reads the files again. What they have counts once it is [put in force](SecretsRead::put_in_force).
    ///
    /// # Errors
    /// One line: what is wrong with a file, and what would be right. Everything stays as it is then.
    pub fn read_again(&self) -> Result<SecretsRead, String> {
        let keys = self.keys.as_ref().map(Keys::read_again).transpose();
        let keys = keys.map_err(|why| format!("s3.keys_file: {why}"))?;
        let credentials = self.credentials.as_ref().map(Credentials::read_again).transpose();
        let credentials = credentials.map_err(|why| format!("s3.upstream_secret_file: {why}"))?.flatten();
        Ok(SecretsRead { keys, credentials })
    }
}

impl SecretsRead {
    /// Puts in force what was read. Returns the keys of the configuration that name the files.
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

/// Puts in force what the files have whenever they change, until it is dropped.
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
