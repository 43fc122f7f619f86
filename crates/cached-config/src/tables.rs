//! Small tables that both programs have: the times of a shutdown, the sampling of requests, TLS of
//! a listener.

use std::sync::Arc;
use std::time::Duration;

use cached_core::insight::{self, Sampling};
use cached_process::Exit;
use cached_tls::{ClientCertificates, ServerTls, TlsError, TlsSettings, suite_names};
use serde::{Deserialize, Serialize};

use crate::config_file::{ConfigError, invalid, require, within};
use crate::with_defaults;

with_defaults! {
    /// The times of an orderly shutdown, before dirty data are stored; also the table `[process]`
    /// of `synapsed`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields, expecting = "a table")]
    pub struct DrainTimes {
        /// The time, in seconds, for which the process reports that it is not ready, but still
        /// serves everything, before its listeners close. Load balancers need this time to notice.
        #[serde(rename = "drain_delay_secs")]
        pub delay_secs: u64 = 0,
        /// The maximum time, in seconds, for clients to read their replies once the listeners are
        /// closed.
        #[serde(rename = "drain_timeout_secs")]
        pub timeout_secs: u64 = 5,
    }
}

/// One hour.
const SECS_MAX: u64 = 60 * 60;

impl DrainTimes {
    /// Checks the keys of `[process]` that set the times.
    ///
    /// # Errors
    /// Returns the key that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        within("process.drain_delay_secs", self.delay_secs, 0..=SECS_MAX)?;
        within("process.drain_timeout_secs", self.timeout_secs, 1..=SECS_MAX).map(drop)
    }
}

/// A day: a larger value is probably a typing error.
const SLOW_MS_MAX: u32 = 24 * 60 * 60 * 1000;

/// The number of sample queues of an object cache.
const SAMPLE_QUEUES: usize = 8;

with_defaults! {
    /// The table `[insight]`.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields, expecting = "a table")]
    pub struct InsightTable {
        /// Whether to sample requests: for predicted miss ratios, reasons for misses, hot keys and
        /// hot objects.
        pub enabled: bool = true,
        /// The share of names that are sampled; 0 to adapt it automatically.
        pub sampled_share: f64 = 0.0,
        /// The duration in milliseconds from which a request is recorded as slow; 0 records no
        /// requests.
        pub slow_request_ms: u32 = 100,
    }
}

impl InsightTable {
    /// Checks the table.
    ///
    /// # Errors
    /// Returns the key with an invalid value.
    pub fn check(&self) -> Result<(), ConfigError> {
        require((0.0..=1.0).contains(&self.sampled_share), "insight.sampled_share", || {
            format!("is {}; it must be between 0 and 1, where 0 is adaptive", self.sampled_share)
        })?;
        within("insight.slow_request_ms", self.slow_request_ms, 0..=SLOW_MS_MAX)?;
        Ok(())
    }

    /// Returns which requests are sampled.
    #[must_use]
    pub fn sampling(&self) -> Sampling {
        match self.sampled_share {
            _ if !self.enabled => Sampling::Off,
            share if share > 0.0 => Sampling::Share(share),
            _ => Sampling::Adaptive,
        }
    }

    /// Returns the maximum memory for sampling the requests of an object cache, in bytes.
    #[must_use]
    pub fn objects_bytes_max(&self) -> u64 {
        match self.enabled {
            true => (insight::bytes_max(SAMPLE_QUEUES) + insight::hot_objects_bytes_max()) as u64,
            false => 0,
        }
    }

    /// Returns the duration from which a request counts as slow; zero if no requests count as slow.
    #[must_use]
    pub fn slow_threshold(&self) -> Duration {
        Duration::from_millis(self.slow_request_ms.into())
    }
}

/// Checks the TLS table called `table`. The files that it names are not read.
///
/// # Errors
/// Returns the first key with an invalid value.
pub fn check_tls(table: &str, settings: &TlsSettings) -> Result<(), ConfigError> {
    let key = |name: &str| format!("{table}.{name}");
    require(!settings.chain_file.as_os_str().is_empty(), &key("chain_file"), || {
        "is missing; it must name the file of the certificate chain".into()
    })?;
    let needs_authorities = settings.client_certificates != ClientCertificates::None;
    require(!needs_authorities || !settings.ca_file.as_os_str().is_empty(), &key("ca_file"), || {
        "is missing; it must name the certificates of the authorities that sign client certificates".into()
    })?;
    let known = suite_names();
    match settings.cipher_suites.iter().find(|name| !known.contains(name)) {
        Some(name) => {
            let why = format!("contains \"{name}\"; expected some of {}", known.join(", "));
            invalid(key("cipher_suites"), why)
        }
        None => Ok(()),
    }
}

/// Reads the certificates that the TLS table called `table` names; `None` without the table.
/// `policies` are those of listeners with a policy of their own.
///
/// # Errors
/// Returns the problem with the settings, or with a file.
pub fn load_tls(
    table: &str,
    settings: Option<&TlsSettings>,
    policies: &[ClientCertificates],
) -> Result<Option<Arc<ServerTls>>, ConfigError> {
    let Some(settings) = settings else { return Ok(None) };
    let loaded = ServerTls::load(settings.clone(), policies);
    loaded.map(Arc::new).map(Some).map_err(|error| tls_error(table, error))
}

/// Checks the settings of the TLS table called `table`, which are those
/// [of peers](TlsSettings::of_peers), and reads the certificates.
///
/// # Errors
/// Returns the first key with an invalid value, or the problem with a file.
pub fn load_peer_tls(table: &str, settings: TlsSettings) -> Result<Arc<ServerTls>, ConfigError> {
    check_tls(table, &settings)?;
    ServerTls::load_for_peers(settings).map(Arc::new).map_err(|error| tls_error(table, error))
}

/// Returns the error for a problem with the TLS table called `table`.
fn tls_error(table: &str, error: TlsError) -> ConfigError {
    let key = match &error {
        TlsError::File { file, .. } => format!("{table}.{}", file.key()),
        TlsError::Mismatch(_) | TlsError::Settings(_) => table.to_owned(),
    };
    let exit = if error.is_mistake() { Exit::Configuration } else { Exit::Trouble };
    ConfigError { exit, ..ConfigError::new(key, error) }
}

#[cfg(test)]
mod tls_table_tests {
    use super::*;

    #[test]
    fn settings_survive_the_way_through_the_file() {
        let settings = TlsSettings {
            chain_file: "/c".into(),
            key_file: "/k".into(),
            key_format: cached_tls::KeyFormat::Der,
            client_certificates: ClientCertificates::Request,
            ca_file: "/a".into(),
            min_version: cached_tls::MinVersion::Tls13,
            cipher_suites: vec!["TLS13_AES_128_GCM_SHA256".into()],
            session_tickets: false,
        };
        let text = toml::to_string(&settings).expect("a table");
        assert!(text.contains("min_version = \"1.3\""), "{text}");
        let table: TlsSettings = toml::from_str(&text).expect("the same table");
        check_tls("x", &table).expect("it works");
        assert_eq!(table, settings);
    }

    #[test]
    fn mistakes_are_one_line() {
        let error = |text: &str| {
            let table: TlsSettings = toml::from_str(text).expect("a table");
            check_tls("t", &table).expect_err("it is wrong").to_string()
        };
        assert!(error("").starts_with("t.chain_file: is missing;"));
        assert!(
            error("chain_file = \"c\"\nclient_certificates = \"request\"")
                .starts_with("t.ca_file: is missing;")
        );
        let suite = error("chain_file = \"c\"\ncipher_suites = [\"HIGH\"]");
        assert!(suite.starts_with("t.cipher_suites: contains \"HIGH\"; expected some of TLS13_"), "{suite}");
    }
}
