//! TLS in a configuration file: the same keys wherever a listener has it.

use crate::error::{ConfigError, invalid};
use cached_tls::{ClientCertificates, KeyFormat, MinVersion, TlsSettings, suite_names};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

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
mod tests {
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
