//! `[admin]`: the admin listener in a configuration file. Without this table there is none.

use std::path::PathBuf;
use std::sync::Arc;

use cached_config::{ConfigError, TlsTable, exposure, invalid, within};
use cached_tls::{ServerTls, TlsError};
use serde::{Deserialize, Serialize};

use crate::config::{ADDRESS_DEFAULT, AdminConfig};
use crate::tokens::Tokens;

/// The table, with the same keys in `cached` and `synapsed`. An empty string means none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct AdminTable {
    /// The addresses to listen on: `host:port` each.
    pub listen: Vec<String>,
    /// A file with one token, or two during a rotation.
    pub token_file: PathBuf,
    /// The largest number of connections.
    pub connections_max: u32,
    /// TLS for the addresses that other machines can reach; none without this table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsTable>,
}

impl Default for AdminTable {
    fn default() -> Self {
        let config = AdminConfig::default();
        AdminTable {
            listen: vec![ADDRESS_DEFAULT.into()],
            token_file: PathBuf::new(),
            connections_max: u32::try_from(config.connections_max).unwrap_or(u32::MAX),
            tls: None,
        }
    }
}

impl AdminTable {
    /// Checks the values, and the file of the tokens if there is one.
    ///
    /// # Errors
    /// The first key whose value cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        within("admin.connections_max", self.connections_max, 2..=4096)?;
        if self.listen.is_empty() {
            return invalid("admin.listen", "is empty; it must name an address to listen on");
        }
        for address in &self.listen {
            let port = address.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
            if !matches!(port, Some(Ok(_))) {
                return invalid(
                    "admin.listen",
                    format!("has \"{address}\"; an address is HOST:PORT, as in \"{ADDRESS_DEFAULT}\""),
                );
            }
            let exposed = exposure(address).filter(|_| self.token_file.as_os_str().is_empty());
            if let Some(exposed) = exposed {
                let right = "name a token_file, or listen on 127.0.0.1";
                return invalid("admin.listen", format!("{exposed}, and there is no token: {right}"));
            }
        }
        // Their files are read when the listener opens.
        if let Some(tls) = &self.tls {
            tls.settings("admin.tls")?;
        }
        self.tokens().map(drop)
    }

    /// Reads the tokens; `None` if no file is named.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn tokens(&self) -> Result<Option<Tokens>, ConfigError> {
        if self.token_file.as_os_str().is_empty() {
            return Ok(None);
        }
        let wrong = |why| ConfigError { key: "admin.token_file".into(), why };
        Tokens::from_file(&self.token_file).map(Some).map_err(wrong)
    }

    /// Reads the certificates; `None` without TLS.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn load_tls(&self) -> Result<Option<Arc<ServerTls>>, ConfigError> {
        let Some(table) = &self.tls else { return Ok(None) };
        let wrong = |error: TlsError| ConfigError { key: "admin.tls".into(), why: error.to_string() };
        ServerTls::load(table.settings("admin.tls")?, &[]).map(Arc::new).map(Some).map_err(wrong)
    }

    /// Returns the configuration of the listener with these tokens, which [`Self::tokens`] has read, and these
    /// certificates, which [`Self::load_tls`] has read.
    #[must_use]
    pub fn config(&self, tokens: Option<Tokens>, tls: Option<Arc<ServerTls>>) -> AdminConfig {
        let mut config = AdminConfig::default();
        config.listen.clone_from(&self.listen);
        config.tokens = tokens;
        config.tls = tls;
        config.connections_max = self.connections_max as usize;
        config
    }

    /// Returns the number of file descriptors that the listener may need.
    #[must_use]
    pub fn descriptors_max(&self) -> u64 {
        u64::from(self.connections_max) + self.listen.len() as u64 + 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(change: impl FnOnce(&mut AdminTable)) -> String {
        let mut table = AdminTable::default();
        change(&mut table);
        table.check().expect_err("it is wrong").to_string()
    }

    #[test]
    fn mistakes_are_one_line_with_what_would_be_right() {
        AdminTable::default().check().expect("the default works");
        assert!(error(|table| table.listen = vec![]).starts_with("admin.listen: is empty;"));
        for address in ["9150", "localhost", "host:", "host:99999", ":x"] {
            let error = error(|table| table.listen = vec![address.into()]);
            assert!(error.contains("an address is HOST:PORT"), "{error}");
        }
        let exposed = error(|table| table.listen = vec!["0.0.0.0:9150".into()]);
        assert!(exposed.contains("no token: name a token_file"), "{exposed}");
        let exposed = error(|table| table.listen = vec!["[::]:9150".into()]);
        assert!(exposed.contains("no token"), "{exposed}");
        let missing = error(|table| table.token_file = "/nowhere/token".into());
        assert!(missing.starts_with("admin.token_file: cannot read /nowhere/token: "), "{missing}");
        assert!(error(|table| table.connections_max = 1).starts_with("admin.connections_max: is 1;"));
    }
}
