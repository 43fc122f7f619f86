//! `-o ssl_…`: TLS, with memcached's names and messages.

use super::wrong;
use crate::config::settings::{ClientCertificates, InertSettings, KeyFormat, MinVersion, TlsSettings};
use cached_process::{Exit, Failure};

/// Reads one option. Returns false for a name that memcached does not know either.
pub(super) fn read(
    tls: &mut TlsSettings,
    inert: &mut InertSettings,
    name: &str,
    value: Option<&str>,
) -> Result<bool, Failure> {
    let given = || match value {
        Some(text) => Ok(text),
        None => wrong(Exit::FlagValue, format!("Missing {name} argument")),
    };
    let number = || -> Result<i64, Failure> {
        given()?
            .trim()
            .parse()
            .or_else(|_| wrong(Exit::FlagValue, format!("could not parse argument to {name}")))
    };
    let invalid = || wrong(Exit::FlagValue, format!("Invalid {name}. Use help to see valid options."));
    match name {
        "ssl_chain_cert" => tls.chain_file = given()?.into(),
        "ssl_key" => tls.key_file = given()?.into(),
        "ssl_ca_cert" => tls.ca_file = given()?.into(),
        "ssl_keyformat" => {
            tls.key_format = match given()?.trim() {
                "1" | "PEM" => KeyFormat::Pem,
                "2" | "DER" => KeyFormat::Der,
                _ => return wrong(Exit::FlagValue, format!("could not parse argument to {name}")),
            };
        }
        "ssl_verify_mode" => {
            tls.client_certificates = match number()? {
                0 => ClientCertificates::None,
                1 => ClientCertificates::Request,
                // 3 asks once for each session, which is all that TLS does without renegotiation.
                2 | 3 => ClientCertificates::Require,
                _ => return invalid(),
            };
        }
        "ssl_min_version" => {
            tls.min_version = match number()? {
                0 | 1 => {
                    let line = format!(
                        "{name}: TLS 1.0 and 1.1 are not safe and not available; use 2 (TLS 1.2) or 3 (TLS 1.3)"
                    );
                    return wrong(Exit::FlagValue, line);
                }
                2 => MinVersion::Tls12,
                3 => MinVersion::Tls13,
                _ => return invalid(),
            };
        }
        "ssl_session_cache" => tls.session_tickets = true,
        "ssl_wbuf_size" => match u32::try_from(number()?) {
            Ok(kibibytes) => inert.ssl_wbuf_size = (kibibytes as usize).saturating_mul(1 << 10),
            Err(_) => return wrong(Exit::FlagValue, format!("could not parse argument to {name}")),
        },
        "ssl_kernel_tls" => {}
        "ssl_ciphers" => {
            given()?;
            let line = format!(
                "{name}: lists of ciphers in OpenSSL's language are not read; the safe ones are chosen without it, and \
                 cipher_suites in [memcached.tls] of a configuration file names some of them"
            );
            return wrong(Exit::FlagValue, line);
        }
        _ => return Ok(false),
    }
    Ok(true)
}
