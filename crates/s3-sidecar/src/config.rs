//! The configuration and its checks.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use cached_core::object::ConfigError;
use cached_tls::ServerTls;
use hyper::Uri;
use named_file::FileError;
use rustls::ClientConfig;

use crate::access_log::LogTarget;
use crate::auth::Secrets;
use crate::http::target::Names;
use crate::memory::pieces::cache_config;
use crate::policy::{self, BucketTerms, CachePolicy, Fresh, Policies, Rule};

pub use crate::auth::Auth;

/// The address of the endpoint behind the proxy: `http://HOST[:PORT]` or `https://HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether the connection uses TLS.
    pub has_tls: bool,
    /// Host and port.
    pub authority: String,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what| format!("{text:?} {what}; expected http://HOST[:PORT] or https://HOST[:PORT]");
        let uri: Uri = text.parse().map_err(|_| wrong("is not a URL"))?;
        let has_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("has an unknown scheme")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("names a user"));
        }
        if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
            return Err(wrong("has a path"));
        }
        Ok(Self { has_tls, authority: authority.as_str().to_owned() })
    }
}

/// The configuration of a sidecar.
#[derive(Clone, Debug)]
pub struct SidecarConfig {
    /// The addresses to listen on, each `HOST:PORT`. Port 0 selects any free port.
    pub listen: Vec<String>,
    /// Certificates of the listener; `None` without TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// The endpoint in front of which the sidecar runs.
    pub upstream: Endpoint,
    /// The PEM file with the authorities that sign the endpoint's certificate, or `None` for the
    /// system's authorities.
    pub upstream_ca_file: Option<PathBuf>,
    /// The names by which clients address the endpoint: `NAME/BUCKET/KEY` and `BUCKET.NAME/KEY`. IP
    /// addresses and `localhost` need not be listed. Objects under other names are not cached.
    pub domains: Vec<String>,
    /// The party that decides whether a client may do what it requests.
    pub auth: Auth,
    /// The policy of objects without a rule.
    pub policy: CachePolicy,
    /// The rules with policies for other objects.
    pub rules: Vec<Rule>,
    /// The terms of individual buckets.
    pub terms: Vec<BucketTerms>,
    /// The maximum number of objects that are remembered as missing.
    pub absent_max: usize,
    /// The keys that the endpoint treats as equal, in addition to those with empty or dot segments.
    pub names: Names,
    /// The destination of the access log, or `None` for no log.
    pub access_log: Option<LogTarget>,
    /// The clients' keys, only for [`Auth::Listener`], and the sidecar's own credentials at the
    /// endpoint, for all modes except [`Auth::Gateway`]. Without credentials the sidecar is
    /// anonymous at the endpoint.
    pub secrets: Secrets,
    /// The region for which clients must sign in the mode [`Auth::Listener`]. If empty, clients may
    /// sign for any region.
    pub region: String,
    /// The region for which the sidecar signs.
    pub upstream_region: String,
    /// The memory for bodies in bytes.
    pub memory_bytes: u64,
    /// The maximum number of objects whose headers are remembered.
    pub heads_max: usize,
    /// The maximum memory for these headers, in bytes.
    pub heads_bytes_max: usize,
    /// The number of threads.
    pub threads: usize,
    /// The maximum number of client connections. Further connections get a 503.
    pub connections_max: usize,
    /// The maximum size of the head of a request or response, in bytes. Also the buffer size of
    /// each direction of a connection.
    pub head_bytes_max: usize,
    /// The maximum number of headers. S3's limit of user metadata, 2 KiB of names and values
    /// together, permits up to about 1050 entries.
    pub headers_max: usize,
    /// The maximum time for receiving the head of a request, and between two requests.
    pub client_idle_max: Duration,
    /// The maximum time without progress, for a client that sends or receives a body, and for the
    /// endpoint's body.
    pub stall_max: Duration,
    /// The maximum time for connecting to the endpoint.
    pub connect_timeout: Duration,
    /// The maximum time from the end of a request to the head of the endpoint's response.
    pub response_timeout: Duration,
    /// The maximum time that a body waits for an endpoint that ignores `Expect: 100-continue`.
    pub continue_wait_max: Duration,
    /// The maximum time that a reader waits for bytes that another reader's request fetches, before
    /// the reader requests them itself.
    pub share_wait_max: Duration,
    /// The maximum time that connections may continue after shutdown was requested.
    pub drain_timeout: Duration,
}

impl SidecarConfig {
    /// Returns the configuration of a sidecar in front of `upstream` with default values.
    #[must_use]
    pub fn new(upstream: Endpoint) -> Self {
        Self {
            listen: vec!["127.0.0.1:9000".into()],
            tls: None,
            upstream,
            upstream_ca_file: None,
            domains: Vec::new(),
            auth: Auth::Gateway,
            policy: CachePolicy::default(),
            rules: Vec::new(),
            terms: Vec::new(),
            absent_max: 16_384,
            names: Names::Exact,
            access_log: None,
            secrets: Secrets::default(),
            region: String::new(),
            upstream_region: "us-east-1".into(),
            memory_bytes: 256 << 20,
            heads_max: 65_536,
            heads_bytes_max: 64 << 20,
            threads: 2,
            connections_max: 1024,
            head_bytes_max: 64 << 10,
            headers_max: cached_http::HEADERS_MAX,
            client_idle_max: Duration::from_secs(75),
            stall_max: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(120),
            continue_wait_max: Duration::from_secs(1),
            share_wait_max: Duration::from_secs(2),
            drain_timeout: Duration::from_secs(10),
        }
    }

    /// Returns the limits of a message's head, for a message about a head that is too large.
    pub(crate) fn head_limits(&self) -> String {
        let (headers, bytes) = (self.headers_max, self.head_bytes_max);
        format!("{headers} headers (s3.headers_max of cached) or {bytes} bytes (s3.head_bytes_max)")
    }

    /// Checks all values.
    ///
    /// # Errors
    /// The first key with a wrong value, and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let within = |key, value: u64, range: std::ops::RangeInclusive<u64>| {
            let (least, most) = (*range.start(), *range.end());
            let why = || (key, format!("is {value}; it must be between {least} and {most}"));
            if range.contains(&value) { Ok(()) } else { Err(why()) }
        };
        if self.listen.is_empty() {
            return Err(("listen", "is empty; it must name an address to listen on".into()));
        }
        self.check_auth()?;
        within("memory_bytes", self.memory_bytes, MEMORY_BYTES_MIN..=1 << 50)?;
        within("absent_max", self.absent_max as u64, 1..=1 << 28)?;
        self.policies()?;
        if self.names != Names::Exact && !self.auth.is_here() {
            let why = "is \"folded\"; it needs auth = \"listener\" or \"none\", because otherwise each read asks the endpoint";
            return Err(("names", why.into()));
        }
        within("heads_max", self.heads_max as u64, 1..=1 << 28)?;
        self.check_terms()?;
        within("heads_bytes_max", self.heads_bytes_max as u64, 1 << 16..=1 << 40)?;
        within("threads", self.threads as u64, 1..=1024)?;
        within("connections_max", self.connections_max as u64, 1..=1 << 20)?;
        within("head_bytes_max", self.head_bytes_max as u64, 8 << 10..=1 << 20)?;
        within("headers_max", self.headers_max as u64, 16..=4096)?;
        for (key, time) in [
            ("client_idle_secs", self.client_idle_max),
            ("stall_secs", self.stall_max),
            ("connect_timeout_secs", self.connect_timeout),
            ("response_timeout_secs", self.response_timeout),
        ] {
            within(key, time.as_secs(), 1..=86_400)?;
        }
        for domain in &self.domains {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            if domain.is_empty() || domain.starts_with('.') || !domain.bytes().all(is_name) {
                return Err((
                    "domains",
                    format!("{domain:?} is not a host name; expected a name such as s3.example.com"),
                ));
            }
        }
        Ok(())
    }

    /// Checks the files that the configuration names and that are read only at the start.
    ///
    /// # Errors
    /// The key of the first unusable file, and the reason.
    pub fn check_files(&self) -> Result<(), (&'static str, FileError)> {
        if let Some(LogTarget::File(path)) = &self.access_log {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            if path.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
                let why = "is not a file and cannot be created; it must be a file in an existing directory";
                return Err(("access_log", FileError::mistake(format!("{}: {why}", path.display()))));
            }
        }
        self.upstream_tls().map(drop)
    }

    /// Returns how the endpoint's certificate is verified.
    ///
    /// # Errors
    /// The key, and the reason why the authorities cannot be used.
    pub(crate) fn upstream_tls(&self) -> Result<ClientConfig, (&'static str, FileError)> {
        match cached_tls::client::with_authorities(self.upstream_ca_file.as_deref()) {
            // Without TLS to the endpoint, nothing is verified.
            Err(_) if !self.upstream.has_tls && self.upstream_ca_file.is_none() => {
                Ok(cached_tls::client::no_authorities())
            }
            client => client.map_err(|why| ("upstream_ca_file", why)),
        }
    }

    /// Checks the policies, and returns them.
    ///
    /// # Errors
    /// The first key with a wrong value, and the reason.
    pub(crate) fn policies(&self) -> Result<Policies, (&'static str, String)> {
        check_policies(self.auth, &self.policy, &self.rules)?;
        Policies::new(self.policy, &self.rules).map_err(|why| ("buckets", why))
    }

    /// Checks the terms of buckets.
    ///
    /// # Errors
    /// The key, and the reason.
    pub(crate) fn check_terms(&self) -> Result<(), (&'static str, String)> {
        policy::check_terms(&self.terms).map_err(|why| ("buckets", why))?;
        match cache_config(self.memory_bytes, self.heads_max, &self.terms) {
            Ok(_) => Ok(()),
            Err(ConfigError { key: "namespaces", why }) => {
                Err(("buckets", format!("{why} (memory_bytes_max of [s3])")))
            }
            Err(ConfigError { key, why }) => Err(("memory_bytes", format!("{key}: {why}"))),
        }
    }

    fn check_auth(&self) -> Result<(), (&'static str, String)> {
        let Secrets { keys, credentials } = &self.secrets;
        let wrong = |key, why: &str| Err((key, why.to_owned()));
        match self.auth {
            Auth::Listener if keys.is_none() => {
                wrong("keys_file", "is missing; with auth = \"listener\" it must name a file of keys")
            }
            Auth::Gateway | Auth::None if keys.is_some() => {
                wrong("keys_file", "is set; it needs auth = \"listener\"")
            }
            Auth::Gateway if credentials.is_some() => {
                wrong("upstream_access_key", "is set; it needs auth = \"listener\" or \"none\"")
            }
            _ if credentials.as_ref().is_some_and(|own| !own.can_be_sent()) => wrong(
                "upstream_access_key",
                "or the session token in the environment has characters that are not allowed in headers",
            ),
            _ => {
                let is_region = |text: &str| {
                    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
                };
                if !is_region(&self.region) {
                    return wrong("region", "is not a region name; expected a name such as us-east-1");
                }
                if self.upstream_region.is_empty() || !is_region(&self.upstream_region) {
                    return wrong(
                        "upstream_region",
                        "is not a region name; expected a name such as us-east-1",
                    );
                }
                Ok(())
            }
        }
    }
}

/// Checks that policies do not need rights that another party decides.
fn check_policies(auth: Auth, policy: &CachePolicy, rules: &[Rule]) -> Result<(), (&'static str, String)> {
    let all = [("", policy)].into_iter().chain(rules.iter().map(|rule| (rule.bucket.as_str(), &rule.policy)));
    for (bucket, policy) in all {
        let fresh = match policy.fresh {
            Fresh::For(time) => time,
            Fresh::Immutable => TIME_MAX,
        };
        for (key, time) in [
            ("fresh_secs", fresh),
            ("stale_if_error_secs", policy.stale_if_error),
            ("negative_secs", policy.negative),
        ] {
            if !time.is_zero() && !auth.is_here() {
                let place = if bucket.is_empty() { String::new() } else { format!("of bucket {bucket:?} ") };
                let why = format!(
                    "{place}needs auth = \"listener\" or \"none\", so that rights are decided here; set auth, or remove the key"
                );
                return Err((key, why));
            }
            if time > TIME_MAX {
                let why = format!("is {}; it must be at most {}", time.as_secs(), TIME_MAX.as_secs());
                return Err((key, why));
            }
        }
    }
    Ok(())
}

/// The maximum times of policies: ten years.
const TIME_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);

/// The minimum memory for bodies: eight regions.
const MEMORY_BYTES_MIN: u64 = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_scheme_and_a_host() {
        let right: Endpoint = "http://gateway:7480".parse().unwrap();
        assert_eq!((right.has_tls, right.authority.as_str()), (false, "gateway:7480"));
        assert!("https://s3.example.com/".parse::<Endpoint>().unwrap().has_tls);
        for wrong in ["", "gateway:7480", "ftp://x", "http://x/path", "http://u:p@x", "http://"] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_work_is_named() {
        let config = SidecarConfig::new("http://gateway".parse().unwrap());
        assert_eq!(config.check(), Ok(()));
        let wrong = SidecarConfig { domains: vec![".x".into()], ..config.clone() };
        assert_eq!(wrong.check().unwrap_err().0, "domains");
        let wrong = SidecarConfig { names: Names::Folded, ..config.clone() };
        assert_eq!(wrong.check().unwrap_err().0, "names");
        assert_eq!(SidecarConfig { auth: Auth::None, ..wrong }.check(), Ok(()));
        let wrong = SidecarConfig { threads: 0, ..config };
        assert_eq!(wrong.check().unwrap_err().0, "threads");
    }
}
