//! `[s3]`: the sidecar, a caching proxy before an S3 endpoint. Without this table there is none.

use super::error::{ConfigError, invalid, within};
use super::s3_policies::{BucketTable, FreshSecs, policy};
use cached_config::{Size, TlsTable};
use cached_tls::{ServerTls, TlsError};
use s3_sidecar::{
    Auth, BucketTerms, CachePolicy, Credentials, Endpoint, Keys, LogTarget, Names, Rule, Secrets,
    SidecarConfig,
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The table. An empty string means none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct S3Table {
    /// The addresses to listen on: `host:port`.
    pub listen: Vec<String>,
    /// The endpoint behind the proxy, as a URL.
    pub upstream: String,
    /// The certificates of the authorities that sign the endpoint's; the system's without.
    pub upstream_ca_file: PathBuf,
    /// The names by which clients address the endpoint.
    pub domains: Vec<String>,
    /// Which party decides whether a client may do what it asks for.
    pub auth: AuthName,
    /// The clients' keys and their rights; with `auth = "listener"`.
    pub keys_file: PathBuf,
    /// The region for which clients must sign with `auth = "listener"`; any without.
    pub region: String,
    /// Whether requests to the endpoint are signed, where they do not keep the clients' signatures.
    pub upstream_auth: UpstreamAuthName,
    /// The sidecar's own access key at the endpoint; that of the environment without.
    pub upstream_access_key: String,
    /// The file with its secret key.
    pub upstream_secret_file: PathBuf,
    /// The region for which the sidecar signs.
    pub upstream_region: String,
    /// For how long what is known of an object answers reads: seconds, or `"immutable"`.
    pub fresh_secs: FreshSecs,
    /// For how long beyond that it answers while the endpoint is away, in seconds.
    pub stale_if_error_secs: u64,
    /// For how long it is remembered that an object is not there, in seconds.
    pub negative_secs: u64,
    /// The largest number of objects that are remembered not to be there.
    pub negative_max: usize,
    /// Which keys the endpoint takes for one.
    pub names: NamesName,
    /// Where requests are logged: a file, `-` for standard output; nowhere without.
    pub access_log: PathBuf,
    /// The memory for bodies.
    pub memory_bytes_max: Size,
    /// The largest number of objects whose headers are known.
    pub heads_max: usize,
    /// The most memory for their headers.
    pub heads_bytes_max: Size,
    /// The number of threads.
    pub threads: usize,
    /// The largest number of connections of clients.
    pub connections_max: usize,
    /// The largest head of a request or an answer, and the buffer for each direction of a connection.
    pub head_bytes_max: Size,
    /// The largest number of headers.
    pub headers_max: usize,
    /// How long a client may take for the head of a request, and be idle between two, in seconds.
    pub client_idle_secs: u64,
    /// How long the sending side of a body, or a client that takes one, may make no progress, in seconds.
    pub stall_secs: u64,
    /// How long connecting to the endpoint may take, in seconds.
    pub connect_timeout_secs: u64,
    /// How long the endpoint may take to answer, in seconds.
    pub response_timeout_secs: u64,
    /// How long a reader waits for another reader's bytes that do not come, in milliseconds.
    pub share_wait_ms: u64,
    /// What holds for the objects of buckets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<BucketTable>,
    /// TLS; none without this table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsTable>,
}

/// Which party decides whether a client may do what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthName {
    /// The endpoint, with each request.
    #[default]
    Gateway,
    /// The listener, which has the clients' keys.
    Listener,
    /// None.
    None,
}

/// Which keys the endpoint takes for one, beside those with empty segments or dots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NamesName {
    /// None.
    #[default]
    Exact,
    /// Those that differ in letter case or in the form of Unicode.
    Folded,
}

/// Whether the sidecar signs its requests to the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamAuthName {
    /// With its own credentials.
    #[default]
    Signed,
    /// Never.
    Anonymous,
}

/// The longest wait for another reader's bytes: a minute.
const SHARE_WAIT_MS_MAX: u64 = 60_000;
/// What an object that is remembered not to be there takes.
const NEGATIVE_BYTES_EACH: u64 = 1 << 10;
/// What is held of requests that delete many objects, at most.
const CHANGES_BYTES: u64 = 32 << 20;
/// Lines of the access log that are to be written, at most.
const LOG_BYTES: u64 = 16 << 20;
/// What a connection needs beside its buffers.
const CONNECTION_BYTES: u64 = 16 << 10;

impl Default for S3Table {
    fn default() -> Self {
        let config = SidecarConfig::new(Endpoint { has_tls: false, authority: String::new() });
        S3Table {
            listen: config.listen,
            upstream: String::new(),
            upstream_ca_file: PathBuf::new(),
            domains: config.domains,
            auth: AuthName::Gateway,
            keys_file: PathBuf::new(),
            region: config.region,
            upstream_auth: UpstreamAuthName::Signed,
            upstream_access_key: String::new(),
            upstream_secret_file: PathBuf::new(),
            upstream_region: config.upstream_region,
            fresh_secs: FreshSecs::Secs(0),
            stale_if_error_secs: 0,
            negative_secs: 0,
            negative_max: config.absent_max,
            names: NamesName::Exact,
            access_log: PathBuf::new(),
            memory_bytes_max: Size(config.memory_bytes),
            heads_max: config.heads_max,
            heads_bytes_max: config.heads_bytes_max.into(),
            threads: config.threads,
            connections_max: config.connections_max,
            head_bytes_max: config.head_bytes_max.into(),
            headers_max: config.headers_max,
            client_idle_secs: config.client_idle_max.as_secs(),
            stall_secs: config.stall_max.as_secs(),
            connect_timeout_secs: config.connect_timeout.as_secs(),
            response_timeout_secs: config.response_timeout.as_secs(),
            share_wait_ms: u64::try_from(config.share_wait_max.as_millis()).unwrap_or(SHARE_WAIT_MS_MAX),
            buckets: Vec::new(),
            tls: None,
        }
    }
}

impl S3Table {
    /// Returns the configuration of the sidecar, with certificates and secrets that were read before.
    ///
    /// # Errors
    /// The endpoint that is none.
    pub fn sidecar(
        &self,
        tls: Option<Arc<ServerTls>>,
        secrets: Secrets,
        drain_timeout: Duration,
    ) -> Result<SidecarConfig, ConfigError> {
        if self.upstream.is_empty() {
            return invalid("s3.upstream", "is missing; it must be the URL of the S3 endpoint");
        }
        let wrong = |why| ConfigError { key: "s3.upstream".into(), why };
        let mut config = SidecarConfig::new(self.upstream.parse().map_err(wrong)?);
        config.listen.clone_from(&self.listen);
        config.tls = tls;
        config.auth = match self.auth {
            AuthName::Gateway => Auth::Gateway,
            AuthName::Listener => Auth::Listener,
            AuthName::None => Auth::None,
        };
        config.secrets = secrets;
        config.region.clone_from(&self.region);
        config.upstream_region.clone_from(&self.upstream_region);
        config.upstream_ca_file =
            Some(self.upstream_ca_file.clone()).filter(|path| !path.as_os_str().is_empty());
        config.domains.clone_from(&self.domains);
        (config.policy, config.rules) = self.policies();
        config.terms = self.terms();
        config.absent_max = self.negative_max;
        config.names = match self.names {
            NamesName::Exact => Names::Exact,
            NamesName::Folded => Names::Folded,
        };
        config.access_log = match self.access_log.as_os_str() {
            path if path.is_empty() => None,
            path if path == "-" => Some(LogTarget::Stdout),
            _ => Some(LogTarget::File(self.access_log.clone())),
        };
        config.memory_bytes = self.memory_bytes_max.0;
        config.heads_max = self.heads_max;
        config.heads_bytes_max = self.heads_bytes_max.to_usize();
        config.threads = self.threads;
        config.connections_max = self.connections_max;
        config.head_bytes_max = self.head_bytes_max.to_usize();
        config.headers_max = self.headers_max;
        config.client_idle_max = Duration::from_secs(self.client_idle_secs);
        config.stall_max = Duration::from_secs(self.stall_secs);
        config.connect_timeout = Duration::from_secs(self.connect_timeout_secs);
        config.response_timeout = Duration::from_secs(self.response_timeout_secs);
        config.share_wait_max = Duration::from_millis(self.share_wait_ms);
        config.drain_timeout = drain_timeout;
        Ok(config)
    }

    /// Returns what holds for objects without a rule, and the rules.
    pub(crate) fn policies(&self) -> (CachePolicy, Vec<Rule>) {
        let default = policy(self.fresh_secs, self.stale_if_error_secs, self.negative_secs);
        (default, self.buckets.iter().map(|bucket| bucket.rule(&default)).collect())
    }

    /// Returns what buckets have for themselves.
    pub(crate) fn terms(&self) -> Vec<BucketTerms> {
        self.buckets.iter().filter_map(BucketTable::terms).collect()
    }

    /// Reads the certificates of the listener; `None` without TLS.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn load_tls(&self) -> Result<Option<Arc<ServerTls>>, ConfigError> {
        let Some(table) = &self.tls else { return Ok(None) };
        let wrong = |error: TlsError| ConfigError { key: "s3.tls".into(), why: error.to_string() };
        ServerTls::load(table.settings("s3.tls")?, &[]).map(Arc::new).map(Some).map_err(wrong)
    }

    /// Reads the clients' keys and the sidecar's own credentials.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn load_secrets(&self) -> Result<Secrets, ConfigError> {
        let keys = match self.auth {
            AuthName::Listener => {
                let wrong = |why| ConfigError { key: "s3.keys_file".into(), why };
                Some(Keys::from_file(&self.keys_file).map_err(wrong)?)
            }
            AuthName::Gateway | AuthName::None => None,
        };
        Ok(Secrets { keys, credentials: self.load_credentials()? })
    }

    fn load_credentials(&self) -> Result<Option<Credentials>, ConfigError> {
        if self.auth == AuthName::Gateway || self.upstream_auth == UpstreamAuthName::Anonymous {
            return Ok(None);
        }
        if !self.upstream_access_key.is_empty() {
            let wrong = |why| ConfigError { key: "s3.upstream_secret_file".into(), why };
            let file = &self.upstream_secret_file;
            return Credentials::from_file(self.upstream_access_key.clone(), file).map(Some).map_err(wrong);
        }
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        match (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"), self.auth) {
            (Some(access_key), Some(secret_key), _) => {
                let token = variable("AWS_SESSION_TOKEN");
                Ok(Some(Credentials::new(access_key, secret_key, token)))
            }
            (None, None, AuthName::None) => Ok(None),
            _ => invalid(
                "s3.upstream_access_key",
                "is missing, and so is AWS_ACCESS_KEY_ID or AWS_SECRET_ACCESS_KEY of the environment; \
                 upstream_auth = \"anonymous\" sends requests without a signature",
            ),
        }
    }

    /// Checks the keys that concern who may do what.
    fn check_auth(&self) -> Result<(), ConfigError> {
        let is_named = |path: &PathBuf| !path.as_os_str().is_empty();
        let others = [("s3.region", !self.region.is_empty()), ("s3.keys_file", is_named(&self.keys_file))];
        let own = [
            ("s3.upstream_access_key", !self.upstream_access_key.is_empty()),
            ("s3.upstream_secret_file", is_named(&self.upstream_secret_file)),
        ];
        let set =
            |keys: &[(&'static str, bool)]| keys.iter().find(|(_, is_set)| *is_set).map(|(key, _)| *key);
        if self.auth == AuthName::Listener && !is_named(&self.keys_file) {
            return invalid(
                "s3.keys_file",
                "is missing; with auth = \"listener\" it must name a file of keys",
            );
        }
        if let Some(key) = set(&others).filter(|_| self.auth != AuthName::Listener) {
            return invalid(key, "is set; it needs auth = \"listener\"");
        }
        let is_anonymous = self.upstream_auth == UpstreamAuthName::Anonymous;
        match set(&own) {
            Some(key) if self.auth == AuthName::Gateway => {
                invalid(key, "is set; it needs auth = \"listener\" or \"none\"")
            }
            Some(key) if is_anonymous => invalid(key, "is set; it needs upstream_auth = \"signed\""),
            Some(_) if self.upstream_access_key.is_empty() => {
                invalid("s3.upstream_access_key", "is missing; upstream_secret_file has its secret key")
            }
            Some(_) if !is_named(&self.upstream_secret_file) => {
                invalid("s3.upstream_secret_file", "is missing; it must name a file with the secret key")
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of file descriptors that it may need: a connection may have one to the endpoint.
    pub(crate) fn descriptors_max(&self) -> usize {
        let threads = self.threads * (3 + s3_sidecar::PIPE_DESCRIPTORS_MAX);
        2 * self.connections_max + self.listen.len() * (1 + self.threads) + threads + 9
    }

    /// Returns the most memory that it takes, in bytes: bodies, headers, and the buffers of connections on both sides.
    pub fn bytes_max(&self) -> u64 {
        let connection = 4 * self.head_bytes_max.0 + CONNECTION_BYTES;
        let connections = connection.saturating_mul(self.connections_max as u64);
        let more = match self.auth {
            AuthName::Gateway => 0,
            AuthName::Listener | AuthName::None => {
                CHANGES_BYTES.saturating_add((self.negative_max as u64).saturating_mul(NEGATIVE_BYTES_EACH))
            }
        };
        let log = if self.access_log.as_os_str().is_empty() { 0 } else { LOG_BYTES };
        let tables = self.memory_bytes_max.0.saturating_add(self.heads_bytes_max.0);
        tables.saturating_add(connections).saturating_add(more).saturating_add(log)
    }

    /// Checks the table, as far as that is possible without opening a socket or a file.
    ///
    /// # Errors
    /// The first key whose value cannot work.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        within("s3.share_wait_ms", self.share_wait_ms, 1..=SHARE_WAIT_MS_MAX)?;
        if let Some(table) = &self.tls {
            table.settings("s3.tls")?;
        }
        self.check_auth()?;
        let misplaced = |table: &BucketTable| Some((table.misplaced()?, table.name.clone()));
        if let Some((key, bucket)) = self.buckets.iter().find_map(misplaced) {
            return invalid(
                "s3.buckets",
                format!(
                    "has {key} of bucket {bucket:?} in a table with a prefix; it holds for the bucket, in a table without one"
                ),
            );
        }
        let mut config = self.sidecar(None, Secrets::default(), Duration::ZERO)?;
        // Files are read later, and what they have is checked then.
        if config.auth == Auth::Listener {
            config.auth = Auth::None;
        }
        config.check().map_err(S3Table::wrong)
    }

    /// Checks the table with keys and credentials that [`load_secrets`](Self::load_secrets) has read, and what it names
    /// besides.
    ///
    /// # Errors
    /// The first key whose value cannot work.
    pub(crate) fn check_loaded(&self, secrets: Secrets) -> Result<(), ConfigError> {
        let config = self.sidecar(None, secrets, Duration::ZERO)?;
        config.check().and_then(|()| config.check_files()).map_err(S3Table::wrong)
    }

    /// Returns the error of a sidecar with the key of the table, which has other names for some settings.
    pub(crate) fn wrong((key, why): (&str, String)) -> ConfigError {
        let key = match key {
            "memory_bytes" => "memory_bytes_max",
            "absent_max" => "negative_max",
            key => key,
        };
        ConfigError { key: format!("s3.{key}"), why }
    }
}
