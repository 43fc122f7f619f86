//! `-S` and `-Y`: whose passwords are checked, and which protocols remain.
//!
//! A protocol without passwords of its own must not lead around those of the other: with `-S` alone only the
//! binary protocol is served, with `-Y` alone only text and meta.

use super::{Cli, wrong};
use crate::config::ConfigError;
use crate::config::auth::Credentials;
use crate::config::settings::Settings;
use cached_process::{Exit, Failure};
use cached_proto::Protocol;

/// The variable that names memcached's file of SASL passwords.
const SASL_FILE_VARIABLE: &str = "MEMCACHED_SASL_PWDB";

/// What is wrong: a flag, or a key of the file.
pub(super) enum Wrong {
    Flag(Failure),
    Key(ConfigError),
}

impl Wrong {
    pub(super) fn blamed(self, blame: &impl Fn(ConfigError) -> Failure) -> Failure {
        match self {
            Wrong::Flag(error) => error,
            Wrong::Key(error) => blame(error),
        }
    }
}

fn flag(line: &str) -> Wrong {
    Wrong::Flag(Failure::new(Exit::Usage, line))
}

impl Cli {
    /// Applies `-S` and `-Y`, and the protocol that they leave.
    pub(super) fn authentication(&self, settings: &mut Settings) -> Result<(), Wrong> {
        if let Some(path) = &self.auth_file {
            settings.auth.text = Some(Credentials::text(path));
        }
        if self.sasl > 0 {
            if let Some(path) = std::env::var_os(SASL_FILE_VARIABLE).filter(|path| !path.is_empty()) {
                settings.auth.sasl = Some(Credentials::sasl(path));
            }
            if settings.auth.sasl.is_none() {
                return Err(flag(
                    "-S: there are no passwords; the environment variable MEMCACHED_SASL_PWDB, or sasl_file in \
                     the configuration, must name a file with lines of the form user:password",
                ));
            }
        }
        let Some(only) = only_protocol(settings) else { return Ok(()) };
        let line = match only {
            Protocol::Binary => "ERROR: You cannot allow the ASCII protocol while using SASL.",
            Protocol::Text => {
                "ERROR: You cannot allow the BINARY protocol while using ascii authentication tokens."
            }
        };
        if settings.protocol != Some(only) {
            if self.protocol.is_some() {
                return Err(flag(line));
            }
            if settings.protocol.is_some() {
                let (key, other) = match only {
                    Protocol::Binary => ("sasl_file", "auth_file"),
                    Protocol::Text => ("auth_file", "sasl_file"),
                };
                let why = format!(
                    "is not the protocol whose passwords are in {key}; it must be \"auto\", or {other} be set too"
                );
                return Err(Wrong::Key(ConfigError { key: "memcached.protocol".into(), why }));
            }
        }
        settings.protocol = Some(only);
        Ok(())
    }
}

/// Returns the one protocol that has passwords, if the other has none.
fn only_protocol(settings: &Settings) -> Option<Protocol> {
    match (&settings.auth.text, &settings.auth.sasl) {
        (Some(_), None) => Some(Protocol::Text),
        (None, Some(_)) => Some(Protocol::Binary),
        _ => None,
    }
}

/// Checks that no listener has a protocol without passwords.
pub(super) fn check_listeners(settings: &Settings) -> Result<(), Failure> {
    let Some(only) = only_protocol(settings) else { return Ok(()) };
    if settings.listen.iter().all(|address| address.protocol == Some(only)) {
        return Ok(());
    }
    let (known, file) = match only {
        Protocol::Text => ("ascii", "-Y"),
        Protocol::Binary => ("binary", "-S"),
    };
    wrong(
        Exit::Usage,
        format!(
            "a listener's proto[…] lets clients in without a password; with {file} alone it must be {known}"
        ),
    )
}
