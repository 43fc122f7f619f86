//! The configuration of a store on S3: the bucket, the server, and the limits.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use blocker::{Error, OBJECT_BYTES_MAX_DEFAULT, Result};

use crate::format::content::SIZE_BYTES_MAX;
use crate::format::layout::check_prefix;

/// The minimum age of objects that a sweep removes. No writer waits longer than this between
/// putting a blob and putting its head.
const SWEEP_AGE_MIN: Duration = Duration::from_secs(15 * 60);
/// The maximum duration of a call. This limit lets the requests of a call end before a sweep looks:
/// together with the longest attempt it is [`SWEEP_AGE_MIN`].
const CALL_TIMEOUT_MAX: Duration = Duration::from_secs(10 * 60);
const SWEEP_AGE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const SWEEP_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// The number of objects compacted concurrently.
pub(crate) const COMPACTIONS_MAX: usize = 4;

/// The location and the limits of a store on S3. Written as text (`FromStr`) it is
/// `BUCKET[,key=value]...`, with the keys that [`S3Config::KEYS`] names.
///
/// Credentials come from [`Self::credentials_file`], if set, otherwise from the environment, as for
/// AWS's own tools: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, a web
/// identity token, a container's credentials, or the instance's metadata. There are no keys for
/// them, so that no configuration file contains them.
#[derive(Clone, Debug)]
pub struct S3Config {
    /// The bucket.
    pub bucket: String,
    /// The server's URL, or `None` for AWS.
    pub endpoint: Option<String>,
    /// The region, or `None` for `AWS_REGION`, or else `us-east-1`.
    pub region: Option<String>,
    /// The prefix of all keys, or an empty string for no prefix.
    pub prefix: String,
    /// Whether the bucket is part of the host name instead of the path.
    pub virtual_host: bool,
    /// Whether connections to the endpoint may be made without TLS.
    pub allow_http: bool,
    /// Whether requests are sent without a signature, for a bucket that anyone may change.
    pub anonymous: bool,
    /// The file with the credentials, in the format of `~/.aws/credentials`, or `None` to use the
    /// environment. The file is read again when it has changed.
    pub credentials_file: Option<PathBuf>,
    /// The profile in the credentials file.
    pub profile: String,
    /// A PEM file with additional authorities for the server's certificate, besides the system's
    /// authorities.
    pub ca_file: Option<PathBuf>,
    /// The maximum size of an object.
    pub object_bytes_max: u64,
    /// The maximum time to wait for a connection.
    pub connect_timeout: Duration,
    /// The time without a response after which an attempt fails.
    pub request_timeout: Duration,
    /// The maximum number of retries of an idempotent request.
    pub retries: u32,
    /// The maximum time of a call, including all its requests, their retries, and waits in queues.
    /// For a claim and a sweep, whose work grows with the number of objects, this is the maximum
    /// time from one object to the next. At least [`Self::request_timeout`], at most ten minutes.
    pub call_timeout: Duration,
    /// The maximum number of concurrent requests; further requests are queued.
    pub requests_in_flight_max: u32,
    /// The maximum number of payload bytes of concurrent operations; further operations are queued.
    /// An operation with a larger payload runs alone.
    pub bytes_in_flight_max: u64,
    /// The time between two sweeps, which remove what unfinished changes have left; zero disables
    /// sweeps. If several programs use a bucket, only one of them sweeps at a time.
    pub sweep_interval: Duration,
    /// The minimum age of leftover objects before a sweep removes them.
    pub sweep_age: Duration,
    /// The memory for heads that are remembered between changes. Each head takes a few hundred
    /// bytes, or up to 40 KiB if a small object is stored in it.
    pub heads_bytes_max: u64,
}

impl Default for S3Config {
    fn default() -> Self {
        Self {
            bucket: String::new(),
            endpoint: None,
            region: None,
            prefix: String::new(),
            virtual_host: false,
            allow_http: false,
            anonymous: false,
            credentials_file: None,
            profile: "default".into(),
            ca_file: None,
            object_bytes_max: OBJECT_BYTES_MAX_DEFAULT,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            retries: 3,
            call_timeout: Duration::from_secs(120),
            requests_in_flight_max: 128,
            bytes_in_flight_max: 256 << 20,
            sweep_interval: Duration::from_secs(24 * 60 * 60),
            sweep_age: Duration::from_secs(60 * 60),
            heads_bytes_max: 32 << 20,
        }
    }
}

impl S3Config {
    /// The keys of the text form, separated by commas.
    pub const KEYS: &str = "endpoint, region, prefix, virtual_host, allow_http, anonymous, credentials_file, \
        profile, ca_file, object_bytes_max, connect_timeout_secs, request_timeout_secs, \
        retries, call_timeout_secs, requests_in_flight_max, bytes_in_flight_max, \
        sweep_interval_secs, sweep_age_secs, heads_bytes_max";

    /// Returns a configuration for `bucket` with default values.
    #[must_use]
    pub fn new(bucket: impl Into<String>) -> Self {
        Self { bucket: bucket.into(), ..Self::default() }
    }

    /// Checks everything that can be checked without a file or the server.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`], with the mistake and the valid values.
    pub fn check(&self) -> Result<()> {
        let is_bucket = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let (second, bucket) = (Duration::from_secs(1), &self.bucket);
        require(
            (3..=255).contains(&bucket.len()) && bucket.bytes().all(is_bucket),
            "bucket must be a name of 3 to 255 characters of A-Z a-z 0-9 . - _",
        )?;
        check_prefix(&self.prefix)?;
        if let Some(url) = &self.endpoint {
            let (is_tls, is_plain) = (url.starts_with("https://"), url.starts_with("http://"));
            require(is_tls || is_plain, "endpoint must be a URL: https://HOST[:PORT]")?;
            require(
                is_tls || self.allow_http,
                "endpoint does not use TLS; set allow_http = true to allow this",
            )?;
        }
        require(
            !self.anonymous || self.credentials_file.is_none(),
            "anonymous requests need no credentials; remove credentials_file",
        )?;
        require(
            (4096..=SIZE_BYTES_MAX).contains(&self.object_bytes_max),
            "object_bytes_max must be from 4096 bytes to 1 GiB",
        )?;
        require(
            (1..=4096).contains(&self.requests_in_flight_max),
            "requests_in_flight_max must be from 1 to 4096",
        )?;
        require(
            self.request_timeout >= second && self.connect_timeout >= second,
            "connect_timeout_secs and request_timeout_secs must be at least 1",
        )?;
        require(
            self.request_timeout <= Duration::from_secs(300),
            "request_timeout_secs must be at most 300",
        )?;
        require(
            (self.request_timeout..=CALL_TIMEOUT_MAX).contains(&self.call_timeout),
            "call_timeout_secs must be from request_timeout_secs to 600",
        )?;
        require(self.retries <= 20, "retries must be at most 20")?;
        require(
            (1 << 20..=1 << 40).contains(&self.bytes_in_flight_max),
            "bytes_in_flight_max must be from 1 MiB to 1 TiB",
        )?;
        require(
            (SWEEP_AGE_MIN..=SWEEP_AGE_MAX).contains(&self.sweep_age),
            "sweep_age_secs must be from 900 to 31536000",
        )?;
        // A writer that has lost a response queries the outcome of its change. Until then, no trace
        // of the change may be removed.
        let longest = (self.request_timeout + Duration::from_secs(5)) * (self.retries + 5) * 2;
        require(
            self.sweep_age >= longest,
            &format!(
                "sweep_age_secs must be at least {} with the configured request_timeout_secs and retries",
                longest.as_secs()
            ),
        )?;
        require(
            self.sweep_interval.is_zero()
                || (SWEEP_INTERVAL_MIN..=SWEEP_AGE_MAX).contains(&self.sweep_interval),
            "sweep_interval_secs must be 0, or from 60 to 31536000",
        )?;
        require(
            (1 << 20..=1 << 40).contains(&self.heads_bytes_max),
            "heads_bytes_max must be from 1 MiB to 1 TiB",
        )
    }
}

/// Checks a condition on a value, which `text` states.
fn require(is_met: bool, text: &str) -> Result<()> {
    if is_met { Ok(()) } else { Err(Error::Invalid(text.to_owned().into())) }
}

impl S3Config {
    /// Returns the maximum memory use of a store for payloads and remembered heads.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        let compactions = (2 * COMPACTIONS_MAX as u64).saturating_mul(self.object_bytes_max);
        self.bytes_in_flight_max.saturating_add(self.heads_bytes_max).saturating_add(compactions)
    }
}

impl FromStr for S3Config {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut parts = text.split(',');
        let mut config = Self::new(parts.next().unwrap_or_default());
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not KEY=VALUE"))?;
            config.set(key, value)?;
        }
        config.check().map_err(|error| match error {
            Error::Invalid(reason) => reason.into_owned(),
            other => other.to_string(),
        })?;
        Ok(config)
    }
}

impl S3Config {
    fn set(&mut self, key: &str, value: &str) -> std::result::Result<(), String> {
        fn number<T: FromStr>(key: &str, value: &str) -> std::result::Result<T, String> {
            value.parse().map_err(|_| format!("{key}={value}: expected a whole number"))
        }
        let flag = || value.parse().map_err(|_| format!("{key}={value}: expected true or false"));
        let seconds = || number::<u32>(key, value).map(|n| Duration::from_secs(n.into()));
        match key {
            "endpoint" => self.endpoint = Some(value.to_owned()),
            "region" => self.region = Some(value.to_owned()),
            "prefix" => value.clone_into(&mut self.prefix),
            "virtual_host" => self.virtual_host = flag()?,
            "allow_http" => self.allow_http = flag()?,
            "anonymous" => self.anonymous = flag()?,
            "credentials_file" => self.credentials_file = Some(value.into()),
            "profile" => value.clone_into(&mut self.profile),
            "ca_file" => self.ca_file = Some(value.into()),
            "object_bytes_max" => self.object_bytes_max = number(key, value)?,
            "connect_timeout_secs" => self.connect_timeout = seconds()?,
            "request_timeout_secs" => self.request_timeout = seconds()?,
            "retries" => self.retries = number(key, value)?,
            "call_timeout_secs" => self.call_timeout = seconds()?,
            "requests_in_flight_max" => self.requests_in_flight_max = number(key, value)?,
            "bytes_in_flight_max" => self.bytes_in_flight_max = number(key, value)?,
            "sweep_interval_secs" => self.sweep_interval = seconds()?,
            "sweep_age_secs" => self.sweep_age = seconds()?,
            "heads_bytes_max" => self.heads_bytes_max = number(key, value)?,
            _ => {
                return Err(format!("{key:?} is not a key of a store on S3; expected {}", Self::KEYS));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_names_bucket_and_keys() {
        let text =
            "disks,endpoint=http://127.0.0.1:9000,allow_http=true,prefix=a/b,retries=5,virtual_host=true";
        let config: S3Config = text.parse().unwrap();
        assert_eq!((config.bucket.as_str(), config.prefix.as_str(), config.retries), ("disks", "a/b", 5));
        assert!(config.virtual_host && config.allow_http);
        for key in S3Config::KEYS.split(", ") {
            let error = format!("disks,{key}=\u{7f}").parse::<S3Config>().err().unwrap_or_default();
            assert!(!error.contains("is not a key"), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("", "bucket must be a name"),
            ("disks,colour=red", "expected endpoint, region"),
            ("disks,retries=many", "expected a whole number"),
            ("disks,endpoint=http://host", "allow_http = true"),
            ("disks,endpoint=host:9000", "https://HOST[:PORT]"),
            ("disks,prefix=/a", "prefix must have"),
            ("disks,object_bytes_max=1", "4096 bytes to 1 GiB"),
            ("disks,call_timeout_secs=29", "request_timeout_secs to 600"),
            ("disks,call_timeout_secs=601", "request_timeout_secs to 600"),
            ("disks,retries", "is not KEY=VALUE"),
        ] {
            let error = text.parse::<S3Config>().unwrap_err();
            assert!(error.contains(part) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
