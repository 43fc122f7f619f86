//! `[s3]`: the sidecar, a caching proxy in front of an S3 endpoint; `[[s3.buckets]]`: settings for
//! the objects of a bucket. Without `[s3]`, the sidecar is off.

use cached_config::{ConfigError, Size, check_tls, config_keys, invalid, require};
use cached_tls::{ServerTls, TlsSettings};
use s3_sidecar::{
    Auth, BucketTerms, CachePolicy, Credentials, Endpoint, Fresh, Keys, LogTarget, Names, Rule, Secrets,
    SidecarConfig,
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

config_keys! {
    /// The table `[s3]`. An empty string means none.
    #[derive(Eq)]
    pub struct S3Table over SidecarConfig = SidecarConfig::new(Endpoint { has_tls: false, authority: String::new() });

    /// The addresses to listen on: `host:port`.
    pub listen: Vec<String> = same(listen);
    /// The endpoint behind the proxy, as a URL.
    pub upstream: String = own(String::new());
    /// The certificates of the authorities that sign the endpoint's certificate; if empty, the
    /// system's.
    pub upstream_ca_file: PathBuf = optional(upstream_ca_file);
    /// The names by which clients address the endpoint.
    pub domains: Vec<String> = same(domains);
    /// The party that authorizes the requests of clients.
    pub auth: Auth = same(auth);
    /// The file of the clients' keys and their rights, for `auth = "listener"`.
    pub keys_file: PathBuf = own(PathBuf::new());
    /// The region for which clients must sign with `auth = "listener"`; if empty, any region.
    pub region: String = same(region);
    /// Whether the sidecar signs requests to the endpoint that do not keep the clients' signatures.
    pub upstream_auth: UpstreamAuthName = own(UpstreamAuthName::Signed);
    /// The sidecar's own access key at the endpoint; if empty, the one in the environment.
    pub upstream_access_key: String = own(String::new());
    /// The file with the secret key that belongs to `upstream_access_key`.
    pub upstream_secret_file: PathBuf = own(PathBuf::new());
    /// The region for which the sidecar signs.
    pub upstream_region: String = same(upstream_region);
    /// The time for which the sidecar serves reads from the known state of an object: seconds, or
    /// `"immutable"`.
    pub fresh_secs: FreshSecs = own(FreshSecs::Secs(0));
    /// The additional time, in seconds, for which the sidecar serves reads from the known state
    /// while the endpoint is unavailable.
    pub stale_if_error_secs: u64 = own(0);
    /// The time for which the absence of an object is remembered, in seconds.
    pub negative_secs: u64 = own(0);
    /// The maximum number of absent objects that are remembered.
    pub negative_max: usize = same(absent_max);
    /// The names that the endpoint treats as the same.
    pub names: Names = same(names);
    /// The destination of the access log: a file, or `-` for standard output; if empty, nothing is
    /// logged.
    pub access_log: PathBuf = own(PathBuf::new());
    /// The memory for bodies.
    pub memory_bytes_max: Size = size(memory_bytes);
    /// The maximum number of objects whose headers are known.
    pub heads_max: usize = same(heads_max);
    /// The maximum memory for the known headers of objects.
    pub heads_bytes_max: Size = size(heads_bytes_max);
    /// The number of threads.
    pub threads: usize = same(threads);
    /// The maximum number of client connections.
    pub connections_max: usize = same(connections_max);
    /// The maximum size of the head of a request or response, and the size of the buffer for each
    /// direction of a connection.
    pub head_bytes_max: Size = size(head_bytes_max);
    /// The maximum number of headers.
    pub headers_max: usize = same(headers_max);
    /// The maximum time for a client to send the head of a request, and the maximum idle time
    /// between two requests, in seconds.
    pub client_idle_secs: u64 = secs(client_idle_max);
    /// The maximum time for which the transfer of a body may make no progress, in seconds, whether
    /// the sender or a receiving client stalls.
    pub stall_secs: u64 = secs(stall_max);
    /// The maximum time for connecting to the endpoint, in seconds.
    pub connect_timeout_secs: u64 = secs(connect_timeout);
    /// The maximum time for the endpoint to respond, in seconds.
    pub response_timeout_secs: u64 = secs(response_timeout);
    /// The maximum time for which a reader waits for bytes that another reader is fetching, in
    /// milliseconds.
    pub share_wait_ms: u64 = millis(share_wait_max), in 1..=SHARE_WAIT_MS_MAX;
    /// Rules for the objects of buckets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<BucketTable> = own(Vec::new());
    /// TLS; none without this table.
    pub tls: Option<TlsSettings> = own(None);
}

/// Whether the sidecar signs its requests to the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamAuthName {
    /// With the sidecar's own credentials.
    #[default]
    Signed,
    /// Never.
    Anonymous,
}

/// The maximum wait for another reader's bytes: one minute.
const SHARE_WAIT_MS_MAX: u64 = 60_000;
/// The memory for an object whose absence is remembered.
const NEGATIVE_BYTES_EACH: u64 = 1 << 10;
/// The maximum memory for requests that delete many objects.
const CHANGES_BYTES: u64 = 32 << 20;
/// The maximum size of access log lines that are waiting to be written.
const LOG_BYTES: u64 = 16 << 20;
/// The memory use of a connection besides four buffers of `head_bytes_max`.
const CONNECTION_BYTES: u64 = 16 << 10;

impl S3Table {
    /// Returns the configuration of the sidecar, with certificates and secrets that were read
    /// before.
    ///
    /// # Errors
    /// Fails if the endpoint is missing or invalid.
    pub fn sidecar(
        &self,
        tls: Option<Arc<ServerTls>>,
        secrets: Secrets,
        drain_timeout: Duration,
    ) -> Result<SidecarConfig, ConfigError> {
        if self.upstream.is_empty() {
            return invalid("s3.upstream", "is missing; it must be the URL of the S3 endpoint");
        }
        let upstream = self.upstream.parse();
        let upstream = upstream.map_err(|why: String| ConfigError::new("s3.upstream", why))?;
        let mut config = SidecarConfig::new(upstream);
        self.apply(&mut config);
        config.tls = tls;
        config.secrets = secrets;
        (config.policy, config.rules) = self.policies();
        config.terms = self.terms();
        config.access_log = match self.access_log.as_os_str() {
            path if path.is_empty() => None,
            path if path == "-" => Some(LogTarget::Stdout),
            _ => Some(LogTarget::File(self.access_log.clone())),
        };
        config.drain_timeout = drain_timeout;
        Ok(config)
    }

    /// Returns the default policy, and the rules.
    pub(crate) fn policies(&self) -> (CachePolicy, Vec<Rule>) {
        let default = CachePolicy {
            fresh: self.fresh_secs.into(),
            stale_if_error: Duration::from_secs(self.stale_if_error_secs),
            negative: Duration::from_secs(self.negative_secs),
            caches: true,
        };
        (default, self.buckets.iter().map(|bucket| bucket.rule(&default)).collect())
    }

    /// Returns the terms of all buckets.
    pub(crate) fn terms(&self) -> Vec<BucketTerms> {
        self.buckets.iter().filter_map(BucketTable::terms).collect()
    }

    /// Reads the clients' keys and the sidecar's own credentials.
    ///
    /// # Errors
    /// Returns the reason why the keys or the credentials cannot be used.
    pub(crate) fn load_secrets(&self) -> Result<Secrets, ConfigError> {
        let keys = match self.auth {
            Auth::Listener => {
                let keys = Keys::from_file(&self.keys_file);
                Some(keys.map_err(|error| ConfigError::of_file("s3.keys_file", error))?)
            }
            Auth::Gateway | Auth::None => None,
        };
        Ok(Secrets { keys, credentials: self.load_credentials()? })
    }

    fn load_credentials(&self) -> Result<Option<Credentials>, ConfigError> {
        if self.auth == Auth::Gateway || self.upstream_auth == UpstreamAuthName::Anonymous {
            return Ok(None);
        }
        if !self.upstream_access_key.is_empty() {
            let read = Credentials::from_file(self.upstream_access_key.clone(), &self.upstream_secret_file);
            return read.map(Some).map_err(|error| ConfigError::of_file("s3.upstream_secret_file", error));
        }
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        match (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"), self.auth) {
            (Some(access_key), Some(secret_key), _) => {
                let token = variable("AWS_SESSION_TOKEN");
                Ok(Some(Credentials::new(access_key, secret_key, token)))
            }
            (None, None, Auth::None) => Ok(None),
            _ => invalid(
                "s3.upstream_access_key",
                "is missing, and so is AWS_ACCESS_KEY_ID or AWS_SECRET_ACCESS_KEY of the environment; \
                 upstream_auth = \"anonymous\" sends requests without a signature",
            ),
        }
    }

    /// Checks the keys that concern authorization.
    fn check_auth(&self) -> Result<(), ConfigError> {
        let is_named = |path: &PathBuf| !path.as_os_str().is_empty();
        let (has_keys, has_secret) = (is_named(&self.keys_file), is_named(&self.upstream_secret_file));
        let has_access_key = !self.upstream_access_key.is_empty();
        let is_listener = self.auth == Auth::Listener;
        let (signs, is_own) = (self.auth != Auth::Gateway, self.upstream_auth == UpstreamAuthName::Signed);
        let (by_listener, by_others) = ("auth = \"listener\"", "auth = \"listener\" or \"none\"");
        let by_own = "upstream_auth = \"signed\"";
        for (key, is_set, is_possible, needed) in [
            ("s3.region", !self.region.is_empty(), is_listener, by_listener),
            ("s3.keys_file", has_keys, is_listener, by_listener),
            ("s3.upstream_access_key", has_access_key, signs, by_others),
            ("s3.upstream_secret_file", has_secret, signs, by_others),
            ("s3.upstream_access_key", has_access_key, is_own, by_own),
            ("s3.upstream_secret_file", has_secret, is_own, by_own),
        ] {
            require(!is_set || is_possible, key, || format!("is set; it needs {needed}"))?;
        }
        require(has_keys || !is_listener, "s3.keys_file", || {
            "is missing; with auth = \"listener\" it must name a file of keys".into()
        })?;
        require(has_access_key || !has_secret, "s3.upstream_access_key", || {
            "is missing; upstream_secret_file has its secret key".into()
        })?;
        require(has_secret || !has_access_key, "s3.upstream_secret_file", || {
            "is missing; it must name a file with the secret key".into()
        })
    }

    /// Returns the number of file descriptors that the sidecar may need: each client connection may
    /// need a connection to the endpoint.
    pub(crate) fn descriptors_max(&self) -> usize {
        let threads = self.threads * (3 + s3_sidecar::PIPE_DESCRIPTORS_MAX);
        2 * self.connections_max + self.listen.len() * (1 + self.threads) + threads + 9
    }

    /// Returns the maximum memory use of the sidecar, in bytes: bodies, headers, and the buffers of
    /// connections on both sides.
    pub fn bytes_max(&self) -> u64 {
        let connection = 4 * self.head_bytes_max.0 + CONNECTION_BYTES;
        let connections = connection.saturating_mul(self.connections_max as u64);
        let more = match self.auth {
            Auth::Gateway => 0,
            Auth::Listener | Auth::None => {
                CHANGES_BYTES.saturating_add((self.negative_max as u64).saturating_mul(NEGATIVE_BYTES_EACH))
            }
        };
        let log = if self.access_log.as_os_str().is_empty() { 0 } else { LOG_BYTES };
        let tables = self.memory_bytes_max.0.saturating_add(self.heads_bytes_max.0);
        tables.saturating_add(connections).saturating_add(more).saturating_add(log)
    }

    /// Checks the table as far as this is possible without opening a socket or a file.
    ///
    /// # Errors
    /// Returns the first key with an invalid value.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.check_ranges("s3")?;
        if let Some(table) = &self.tls {
            check_tls("s3.tls", table)?;
        }
        self.check_auth()?;
        let misplaced = |table: &BucketTable| Some((table.misplaced()?, table.name.clone()));
        if let Some((key, bucket)) = self.buckets.iter().find_map(misplaced) {
            return invalid(
                "s3.buckets",
                format!(
                    "sets {key} of bucket {bucket:?} in a table with a prefix; it applies to a whole bucket, in a table without a prefix"
                ),
            );
        }
        let mut config = self.sidecar(None, Secrets::default(), Duration::ZERO)?;
        // The files are read, and their content is checked, later.
        if config.auth == Auth::Listener {
            config.auth = Auth::None;
        }
        config.check().map_err(S3Table::wrong)
    }

    /// Checks the table with keys and credentials that [`load_secrets`](Self::load_secrets) has
    /// read, and the other files that the table names.
    ///
    /// # Errors
    /// Returns the first key with an invalid value.
    pub(crate) fn check_loaded(&self, secrets: Secrets) -> Result<(), ConfigError> {
        let config = self.sidecar(None, secrets, Duration::ZERO)?;
        config.check().map_err(S3Table::wrong)?;
        config.check_files().map_err(|(key, error)| ConfigError::of_file(format!("s3.{key}"), error))
    }

    /// Converts an error of the sidecar to the corresponding key of the table, in which some
    /// settings have other names.
    pub(crate) fn wrong((key, why): (&str, String)) -> ConfigError {
        let key = match key {
            "memory_bytes" => "memory_bytes_max",
            "absent_max" => "negative_max",
            key => key,
        };
        ConfigError::new(format!("s3.{key}"), why)
    }
}

/// The time for which the sidecar serves reads from the known state of an object: seconds, or
/// `"immutable"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "it must be a number of seconds or \"immutable\"")]
pub enum FreshSecs {
    /// This many seconds; 0 means that each read queries the endpoint.
    Secs(u64),
    /// Forever.
    Word(FreshWord),
}

/// A word instead of a number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FreshWord {
    /// The state is valid until a change passes through the sidecar or is announced to it.
    Immutable,
}

/// A table of `[[s3.buckets]]`. For absent keys, the values of `[s3]` apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct BucketTable {
    /// The name of the bucket.
    pub name: String,
    /// The prefix of the keys to which the table applies; the longest matching prefix decides.
    #[serde(default)]
    pub prefix: String,
    /// The time for which the sidecar serves reads from the known state.
    pub fresh_secs: Option<FreshSecs>,
    /// The additional time, in seconds, for which the sidecar serves reads from the known state
    /// while the endpoint is unavailable.
    pub stale_if_error_secs: Option<u64>,
    /// The time for which the absence of an object is remembered, in seconds.
    pub negative_secs: Option<u64>,
    /// Whether anything is cached.
    #[serde(default = "yes")]
    pub caches: bool,
    /// Memory for the bucket's bodies that other buckets cannot take.
    pub memory_bytes_min: Option<Size>,
    /// The maximum memory for the bucket's bodies.
    pub memory_bytes_max: Option<Size>,
    /// The weight of the bucket's misses relative to those of other buckets.
    pub memory_weight: Option<u32>,
    /// The maximum number of requests to the endpoint per second.
    pub upstream_requests_per_second_max: Option<u64>,
    /// The maximum number of bytes to and from the endpoint per second.
    pub upstream_bytes_per_second_max: Option<Size>,
}

fn yes() -> bool {
    true
}

impl From<FreshSecs> for Fresh {
    fn from(secs: FreshSecs) -> Fresh {
        match secs {
            FreshSecs::Secs(secs) => Fresh::For(Duration::from_secs(secs)),
            FreshSecs::Word(FreshWord::Immutable) => Fresh::Immutable,
        }
    }
}

impl BucketTable {
    /// Returns the rule of the table; for absent keys, `defaults` apply.
    pub(super) fn rule(&self, defaults: &CachePolicy) -> Rule {
        let secs = |secs: Option<u64>, other: Duration| secs.map_or(other, Duration::from_secs);
        let policy = CachePolicy {
            fresh: self.fresh_secs.map_or(defaults.fresh, Fresh::from),
            stale_if_error: secs(self.stale_if_error_secs, defaults.stale_if_error),
            negative: secs(self.negative_secs, defaults.negative),
            caches: self.caches,
        };
        Rule { bucket: self.name.clone(), prefix: self.prefix.clone(), policy }
    }

    /// Returns the terms of the bucket; `None` for a table with a prefix.
    pub(super) fn terms(&self) -> Option<BucketTerms> {
        self.prefix.is_empty().then(|| BucketTerms {
            bucket: self.name.clone(),
            memory_bytes_min: self.memory_bytes_min.map(|size| size.0),
            memory_bytes_max: self.memory_bytes_max.map(|size| size.0),
            memory_weight: self.memory_weight,
            requests_per_second_max: self.upstream_requests_per_second_max,
            bytes_per_second_max: self.upstream_bytes_per_second_max.map(|size| size.0),
        })
    }

    /// Returns the first key that concerns the whole bucket but is in a table with a prefix.
    fn misplaced(&self) -> Option<&'static str> {
        let of_bucket = [
            ("memory_bytes_min", self.memory_bytes_min.is_some()),
            ("memory_bytes_max", self.memory_bytes_max.is_some()),
            ("memory_weight", self.memory_weight.is_some()),
            ("upstream_requests_per_second_max", self.upstream_requests_per_second_max.is_some()),
            ("upstream_bytes_per_second_max", self.upstream_bytes_per_second_max.is_some()),
        ];
        let mut set = of_bucket.into_iter().filter(|(_, is_set)| *is_set && !self.prefix.is_empty());
        set.next().map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &str) -> Result<S3Table, String> {
        let text = format!("upstream = \"http://a\"\nauth = \"none\"\n{lines}");
        toml::from_str(&text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_table_of_a_bucket_has_what_it_lacks_from_the_whole() {
        let read = table(
            "fresh_secs = 60\nnegative_secs = 5\n[[buckets]]\nname = \"a\"\nprefix = \"x/\"\nfresh_secs = \"immutable\"\n\
             [[buckets]]\nname = \"b\"\nstale_if_error_secs = 7\ncaches = false\n",
        );
        let read = read.unwrap();
        assert!(read.check().is_ok());
        let (default, rules) = read.policies();
        let secs = Duration::from_secs;
        let whole = CachePolicy {
            fresh: Fresh::For(secs(60)),
            stale_if_error: secs(0),
            negative: secs(5),
            caches: true,
        };
        assert_eq!(default, whole);
        let first = CachePolicy { fresh: Fresh::Immutable, ..whole };
        let second = CachePolicy { stale_if_error: secs(7), caches: false, ..whole };
        let rule = |bucket: &str, prefix: &str, policy| Rule {
            bucket: bucket.into(),
            prefix: prefix.into(),
            policy,
        };
        assert_eq!(rules, [rule("a", "x/", first), rule("b", "", second)]);
        assert_eq!(read.terms().len(), 1);
        // The table is written in the form in which it is read.
        let again: S3Table = toml::from_str(&toml::to_string(&read).unwrap()).unwrap();
        assert_eq!(again, read);
    }

    #[test]
    fn a_table_states_what_a_bucket_has_for_itself() {
        let read = table(
            "[[buckets]]\nname = \"a\"\nmemory_bytes_min = \"8 MiB\"\nmemory_bytes_max = \"16 MiB\"\nmemory_weight = 3\n\
             upstream_requests_per_second_max = 5\nupstream_bytes_per_second_max = \"1 MiB\"\n\
             [[buckets]]\nname = \"a\"\nprefix = \"x\"\n",
        );
        let read = read.unwrap();
        assert!(read.check().is_ok());
        let terms = BucketTerms {
            bucket: "a".into(),
            memory_bytes_min: Some(8 << 20),
            memory_bytes_max: Some(16 << 20),
            memory_weight: Some(3),
            requests_per_second_max: Some(5),
            bytes_per_second_max: Some(1 << 20),
        };
        assert_eq!(read.terms(), [terms]);
        let again: S3Table = toml::from_str(&toml::to_string(&read).unwrap()).unwrap();
        assert_eq!(again, read);
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        for (lines, words) in [
            ("fresh_secs = \"never\"", "it must be a number of seconds or \"immutable\""),
            ("fresh_secs = -1", "it must be a number of seconds or \"immutable\""),
            ("[[buckets]]\nprefix = \"x\"", "name"),
            ("[[buckets]]\nname = \"x\"\nfresh = 1", "fresh"),
        ] {
            let error = table(lines).unwrap_err();
            assert!(error.contains(words), "{lines}: {error}");
        }
        for (lines, key) in [
            ("[[buckets]]\nname = \"\"", "s3.buckets"),
            ("[[buckets]]\nname = \"a\"\n[[buckets]]\nname = \"a\"", "s3.buckets"),
            ("[[buckets]]\nname = \"a\"\nprefix = \"x\"\nmemory_weight = 1", "s3.buckets"),
            ("[[buckets]]\nname = \"a\"\nmemory_weight = 0", "s3.buckets"),
            ("[[buckets]]\nname = \"a\"\nmemory_bytes_min = \"1 GiB\"", "s3.buckets"),
            ("[[buckets]]\nname = \"a\"\nupstream_requests_per_second_max = 0", "s3.buckets"),
            ("[[buckets]]\nname = \"a\"\nupstream_bytes_per_second_max = 1", "s3.buckets"),
            ("negative_max = 0", "s3.negative_max"),
            ("fresh_secs = 999999999999", "s3.fresh_secs"),
        ] {
            assert_eq!(table(lines).unwrap().check().unwrap_err().key, key, "{lines}");
        }
        let error = S3Table { auth: Auth::Gateway, ..table("fresh_secs = 1").unwrap() }.check().unwrap_err();
        assert_eq!(error.key, "s3.fresh_secs");
        assert!(error.why.contains("auth = \"listener\""), "{}", error.why);
    }
}
