//! Small tables and values that both programs have: sizes, the times of an end, what is learned of requests, TLS of a listener.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use cached_core::insight::{self, Sampling};
use cached_tls::{ClientCertificates, KeyFormat, MinVersion, TlsSettings, suite_names};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{ConfigError, invalid, require, within};

/// How long the steps of the end may take before dirty data are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainTimes {
    /// How long the process is not ready, and still serves everything, before its listeners close: the time
    /// that load balancers need to see it. In seconds.
    pub delay_secs: u64,
    /// How long clients have to take their replies once the listeners are closed, in seconds.
    pub timeout_secs: u64,
}

impl Default for DrainTimes {
    fn default() -> Self {
        DrainTimes { delay_secs: 0, timeout_secs: 5 }
    }
}

/// One hour.
const SECS_MAX: u64 = 60 * 60;

impl DrainTimes {
    /// Returns the times that the keys of `[process]` set.
    ///
    /// # Errors
    /// The key that is out of range.
    pub fn new(delay_secs: u64, timeout_secs: u64) -> Result<DrainTimes, ConfigError> {
        within("process.drain_delay_secs", delay_secs, 0..=SECS_MAX)?;
        within("process.drain_timeout_secs", timeout_secs, 1..=SECS_MAX)?;
        Ok(DrainTimes { delay_secs, timeout_secs })
    }

    /// Returns how long the process is not ready before its listeners close.
    #[must_use]
    pub fn delay(&self) -> Duration {
        Duration::from_secs(self.delay_secs)
    }

    /// Returns how long clients have to take their replies.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_secs)
    }
}

/// A day: beyond, a typing error is more likely.
const SLOW_MS_MAX: u32 = 24 * 60 * 60 * 1000;

/// The queues of samples of an object cache.
const SAMPLE_QUEUES: usize = 8;

/// The table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct InsightTable {
    /// Sample requests: for predicted miss ratios, reasons of misses, hot keys and hot objects.
    pub enabled: bool,
    /// The share of the names that are sampled; 0 if it adapts.
    pub sampled_share: f64,
    /// From how many milliseconds on a request is recorded as slow; 0 for none.
    pub slow_request_ms: u32,
}

impl Default for InsightTable {
    fn default() -> Self {
        InsightTable { enabled: true, sampled_share: 0.0, slow_request_ms: 100 }
    }
}

impl InsightTable {
    /// Checks the table.
    ///
    /// # Errors
    /// The key whose value cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        require((0.0..=1.0).contains(&self.sampled_share), "insight.sampled_share", || {
            format!("is {}; it must be between 0 and 1, 0 being adaptive", self.sampled_share)
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

    /// Returns the most memory that insight into an object cache takes, in bytes.
    #[must_use]
    pub fn objects_bytes_max(&self) -> u64 {
        match self.enabled {
            true => (insight::bytes_max(SAMPLE_QUEUES) + insight::hot_objects_bytes_max()) as u64,
            false => 0,
        }
    }

    /// Returns from how long on a request is slow; zero for none.
    #[must_use]
    pub fn slow_threshold(&self) -> Duration {
        Duration::from_millis(self.slow_request_ms.into())
    }
}

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Size(pub u64);

/// The units, the largest first.
const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

const EXPECTED: &str =
    "a size: a whole number of bytes, or of B, KiB, MiB, GiB or TiB in quotes, as in \"256 MiB\"";

impl Size {
    /// Parses a size with its unit.
    fn parse(text: &str) -> Option<Size> {
        let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim_start();
        let (_, shift) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let bytes = number.parse::<u64>().ok()?.checked_mul(1 << shift)?;
        Some(Size(bytes))
    }

    /// Returns the number of bytes as a `usize`, saturating.
    pub fn to_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl From<usize> for Size {
    fn from(bytes: usize) -> Size {
        Size(bytes as u64)
    }
}

/// Writes the size in the largest unit that it is a whole number of; below a KiB, the number of bytes alone.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole =
            UNITS.iter().find(|(_, shift)| *shift > 0 && self.0 > 0 && self.0.is_multiple_of(1 << shift));
        match whole {
            Some((name, shift)) => write!(f, "{} {name}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Debug for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.to_string();
        if text.ends_with('B') { serializer.serialize_str(&text) } else { serializer.serialize_u64(self.0) }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
        Ok(Size(bytes))
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
        u64::try_from(bytes).map(Size).map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        Size::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

/// The table. An empty string means none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct TlsTable {
    /// The certificate chain: PEM, the server's own certificate first.
    pub chain_file: PathBuf,
    /// The private key, if it is not in `chain_file`.
    pub key_file: PathBuf,
    /// The form of the private key.
    pub key_format: KeyFormatName,
    /// Which certificates clients must show.
    pub client_certificates: ClientCertificatesName,
    /// The certificates of the authorities that sign those of clients.
    pub ca_file: PathBuf,
    /// The oldest version of TLS that is accepted.
    pub min_version: MinVersionName,
    /// The cipher suites; empty for all.
    pub cipher_suites: Vec<String>,
    /// Whether clients may resume sessions.
    pub session_tickets: bool,
}

/// The form of a private key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyFormatName {
    /// PEM.
    Pem,
    /// DER.
    Der,
}

/// Which certificates clients must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificatesName {
    /// None is requested.
    None,
    /// One is requested, and verified if there is one.
    Request,
    /// One is required.
    Require,
}

/// The oldest version of TLS that is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MinVersionName {
    /// TLS 1.2 and 1.3.
    #[serde(rename = "1.2")]
    Tls12,
    /// TLS 1.3 alone.
    #[serde(rename = "1.3")]
    Tls13,
}

impl Default for TlsTable {
    fn default() -> Self {
        TlsTable::from(&TlsSettings::default())
    }
}

impl From<&TlsSettings> for TlsTable {
    fn from(settings: &TlsSettings) -> Self {
        TlsTable {
            chain_file: settings.chain_file.clone(),
            key_file: settings.key_file.clone(),
            key_format: match settings.key_format {
                KeyFormat::Pem => KeyFormatName::Pem,
                KeyFormat::Der => KeyFormatName::Der,
            },
            client_certificates: match settings.client_certificates {
                ClientCertificates::None => ClientCertificatesName::None,
                ClientCertificates::Request => ClientCertificatesName::Request,
                ClientCertificates::Require => ClientCertificatesName::Require,
            },
            ca_file: settings.ca_file.clone(),
            min_version: match settings.min_version {
                MinVersion::Tls12 => MinVersionName::Tls12,
                MinVersion::Tls13 => MinVersionName::Tls13,
            },
            cipher_suites: settings.cipher_suites.clone(),
            session_tickets: settings.session_tickets,
        }
    }
}

impl TlsTable {
    /// Returns the settings of the table with this name. The files are not read.
    ///
    /// # Errors
    /// The first key whose value cannot work.
    pub fn settings(&self, table: &str) -> Result<TlsSettings, ConfigError> {
        let key = |name: &str| format!("{table}.{name}");
        if self.chain_file.as_os_str().is_empty() {
            return invalid(key("chain_file"), "is missing; it must name the file of the certificate chain");
        }
        if self.client_certificates != ClientCertificatesName::None && self.ca_file.as_os_str().is_empty() {
            let why =
                "is missing; it must name the certificates of the authorities that sign those of clients";
            return invalid(key("ca_file"), why);
        }
        let known = suite_names();
        if let Some(name) = self.cipher_suites.iter().find(|name| !known.contains(name)) {
            let why = format!("has \"{name}\"; there are {}", known.join(", "));
            return invalid(key("cipher_suites"), why);
        }
        Ok(TlsSettings {
            chain_file: self.chain_file.clone(),
            key_file: self.key_file.clone(),
            key_format: match self.key_format {
                KeyFormatName::Pem => KeyFormat::Pem,
                KeyFormatName::Der => KeyFormat::Der,
            },
            client_certificates: match self.client_certificates {
                ClientCertificatesName::None => ClientCertificates::None,
                ClientCertificatesName::Request => ClientCertificates::Request,
                ClientCertificatesName::Require => ClientCertificates::Require,
            },
            ca_file: self.ca_file.clone(),
            min_version: match self.min_version {
                MinVersionName::Tls12 => MinVersion::Tls12,
                MinVersionName::Tls13 => MinVersion::Tls13,
            },
            cipher_suites: self.cipher_suites.clone(),
            session_tickets: self.session_tickets,
        })
    }
}

#[cfg(test)]
mod size_tests {
    use super::*;

    #[test]
    fn sizes_are_exact_or_refused() {
        let parsed = |text| Size::parse(text).map(|size| size.0);
        assert_eq!(parsed("256 MiB"), Some(256 << 20));
        assert_eq!(parsed("1GiB"), Some(1 << 30));
        assert_eq!(parsed("512 B"), Some(512));
        assert_eq!(parsed("0 KiB"), Some(0));
        let wrong = [
            "1m",
            "1 MB",
            "1.5 GiB",
            "-1 KiB",
            "KiB",
            "",
            "12",
            "1 KiB x",
            "1 kib",
            "16777216 TiB",
            " 1 KiB",
        ];
        for text in wrong {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for bytes in [1 << 10, 1 << 20, 3 << 30, 1 << 40, (1 << 40) + (1 << 10), 5 << 50] {
            let text = Size(bytes).to_string();
            assert_eq!(Size::parse(&text), Some(Size(bytes)), "{text}");
        }
        assert_eq!((Size(0).to_string(), Size(1000).to_string()), ("0".into(), "1000".into()));
    }
}

#[cfg(test)]
mod tls_table_tests {
    use super::*;

    #[test]
    fn settings_survive_the_way_through_the_file() {
        let settings = TlsSettings {
            chain_file: "/c".into(),
            key_file: "/k".into(),
            key_format: KeyFormat::Der,
            client_certificates: ClientCertificates::Request,
            ca_file: "/a".into(),
            min_version: MinVersion::Tls13,
            cipher_suites: vec!["TLS13_AES_128_GCM_SHA256".into()],
            session_tickets: false,
        };
        let text = toml::to_string(&TlsTable::from(&settings)).expect("a table");
        let table: TlsTable = toml::from_str(&text).expect("the same table");
        assert_eq!(table.settings("x").expect("it works"), settings);
    }

    #[test]
    fn mistakes_are_one_line() {
        let error = |text: &str| {
            let table: TlsTable = toml::from_str(text).expect("a table");
            table.settings("t").expect_err("it is wrong").to_string()
        };
        assert!(error("").starts_with("t.chain_file: is missing;"));
        assert!(
            error("chain_file = \"c\"\nclient_certificates = \"request\"")
                .starts_with("t.ca_file: is missing;")
        );
        let suite = error("chain_file = \"c\"\ncipher_suites = [\"HIGH\"]");
        assert!(suite.starts_with("t.cipher_suites: has \"HIGH\"; there are TLS13_"), "{suite}");
    }
}
