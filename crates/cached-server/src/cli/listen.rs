//! The addresses of `-l` and `-U`, the protocol of each listener, and the protocols that `-S` and
//! `-Y` still allow.
//!
//! `[notls:|tls:|btls:|mtls:][proto[ascii|binary|negotiating]:][tag[name]:]host[:port]`, separated
//! by commas. Tags are for memcached's proxy; they are checked and ignored.

use super::overlay::{PORT, move_to, shown_port};
use super::{Cli, wrong};
use crate::config::{ConfigError, File};
use cached_memcached::settings::{Credentials, Form, ListenAddress, ListenTls, Settings};
use cached_process::{Exit, Failure};
use cached_proto::Protocol;

/// Returns the addresses of all listeners. Without `-l`, they are those of every interface or,
/// without any argument, those of the loopback interface.
pub(super) fn addresses(
    arguments: &[String],
    port: i32,
    protocol: Option<Protocol>,
    has_tls: bool,
    bare: bool,
) -> Result<Vec<ListenAddress>, Failure> {
    if port == 0 {
        return Ok(Vec::new());
    }
    let port = u16::try_from(port).unwrap_or(0);
    if arguments.is_empty() {
        let host = bare.then(|| "127.0.0.1".into());
        return Ok(vec![ListenAddress { host, port, protocol, tls: ListenTls::AsSet }]);
    }
    let mut addresses: Vec<ListenAddress> = Vec::new();
    for part in arguments.iter().flat_map(|list| list.split([',', ';'])) {
        let part = part.trim();
        if part.is_empty() {
            continue;
        }
        let address = address(part, port, protocol, has_tls)?;
        // An address that is given twice yields one listener.
        if !addresses.contains(&address) || address.port == 0 {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return wrong(
            Exit::Usage,
            "-l: names no address; an address must be a host, host:port, [IPv6] or [IPv6]:port",
        );
    }
    Ok(addresses)
}

/// Reads the address of one listener.
fn address(
    text: &str,
    port: u16,
    protocol: Option<Protocol>,
    has_tls: bool,
) -> Result<ListenAddress, Failure> {
    let (text, tls) = tls(text, has_tls)?;
    let (text, protocol) = match text.strip_prefix("proto[") {
        None => (text, protocol),
        Some(rest) => {
            let Some((name, rest)) = rest.split_once(']') else {
                return wrong(Exit::Usage, format!("Invalid protocol spec: \"{text}\""));
            };
            let protocol = match name {
                "ascii" => Some(Protocol::Text),
                "binary" => Some(Protocol::Binary),
                "negotiating" => None,
                "proxy" => return wrong(Exit::Usage, format!("Server not built with proxy: \"{text}\"")),
                _ => return wrong(Exit::Usage, format!("Invalid protocol spec: \"{text}\"")),
            };
            (rest.strip_prefix(':').unwrap_or(rest), protocol)
        }
    };
    let text = untagged(text)?;
    let (host, given) = host_and_port(text)?;
    let port = match given.map(str::parse::<u16>) {
        None => port,
        Some(Ok(port)) => port,
        Some(Err(_)) => {
            return wrong(Exit::FlagValue, format!("Invalid port number: \"{}\"", given.unwrap_or_default()));
        }
    };
    Ok(ListenAddress { host: (host != "*").then(|| host.to_owned()), port, protocol, tls })
}

/// Returns the text after `notls:` and the like.
fn tls(text: &str, has_tls: bool) -> Result<(&str, ListenTls), Failure> {
    // memcached has no `tls`: it is the opposite of `notls`.
    let names = [
        ("notls", ListenTls::Off),
        ("tls", ListenTls::AsSet),
        ("btls", ListenTls::WithoutCertificates),
        ("mtls", ListenTls::WithCertificates),
    ];
    for (name, tls) in names {
        if let Some(rest) = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(':')) {
            if !has_tls {
                return wrong(Exit::Usage, format!("'{name}' option is valid only when SSL is enabled"));
            }
            return Ok((rest, tls));
        }
    }
    Ok((text, ListenTls::AsSet))
}

/// Returns the text after `tag[name]:` or `tag_name_:`.
fn untagged(text: &str) -> Result<&str, Failure> {
    let rest = match text.strip_prefix("tag") {
        Some(rest) if rest.starts_with(['[', '_']) => &rest[1..],
        _ => return Ok(text),
    };
    let Some((name, rest)) = rest.split_once([']', '_']) else {
        return wrong(Exit::Usage, format!("Invalid tag in socket config: \"{text}\""));
    };
    if !(1..=8).contains(&name.len()) {
        return wrong(Exit::Usage, format!("Listener tags must be between 1 and 8 characters: \"{name}\""));
    }
    Ok(rest.strip_prefix(':').unwrap_or(rest))
}

fn host_and_port(text: &str) -> Result<(&str, Option<&str>), Failure> {
    let bad = || {
        let line = format!("-l {text}: an address must be a host, host:port, [IPv6] or [IPv6]:port");
        Failure::new(Exit::Usage, line)
    };
    if let Some(rest) = text.strip_prefix('[') {
        let Some((host, rest)) = rest.split_once(']') else {
            return wrong(Exit::Usage, format!("Invalid IPV6 address: \"{text}\""));
        };
        return match rest.strip_prefix(':') {
            Some(given) => Ok((host, Some(given))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(bad()),
        };
    }
    match text.split_once(':') {
        // The text is an IPv6 address without brackets.
        Some((_, rest)) if rest.contains(':') => Ok((text, None)),
        Some((host, given)) if !host.is_empty() => Ok((host, Some(given))),
        Some(_) => Err(bad()),
        None if text.is_empty() => Err(bad()),
        None => Ok((text, None)),
    }
}

// `-U`: as in memcached, datagrams are received at the addresses of `-l`, each with its own port;
// without `-p`, TCP uses the same port.

impl Cli {
    /// Sets the UDP addresses. This must follow those of TCP, and authentication.
    pub(super) fn udp(
        &self,
        file: Option<&File>,
        settings: &mut Settings,
        port: Option<i32>,
        bare: bool,
    ) -> Result<(), Failure> {
        let has_tls = settings.tls.is_some();
        let own = file.map_or(&[][..], |file| &file.memcached.listen);
        let udp_listen = match port {
            // With a unix socket, there is no network listener.
            _ if self.unix_socket.is_some() => Ok(Vec::new()),
            Some(0) => Ok(Vec::new()),
            None => {
                let texts = file.map_or(&[][..], |file| &file.memcached.udp_listen);
                match texts.is_empty() {
                    true => Ok(Vec::new()),
                    false => addresses(texts, PORT, None, has_tls, false)
                        .map_err(|error| self.blame(ConfigError::new("memcached.udp_listen", error))),
                }
            }
            Some(port) if self.listen.is_empty() && !own.is_empty() => {
                addresses(own, port, None, has_tls, false).map(|mut addresses| {
                    move_to(&mut addresses, u16::try_from(port).unwrap_or(0));
                    addresses
                })
            }
            Some(port) => addresses(&self.listen, port, None, has_tls, bare || file.is_some()),
        }?;
        settings.udp_listen.clear();
        for address in udp_listen {
            // Protocols and TLS do not apply to datagrams.
            let address = ListenAddress { protocol: None, tls: ListenTls::AsSet, ..address };
            if !settings.udp_listen.contains(&address) {
                settings.udp_listen.push(address);
            }
        }
        settings.udp_port = shown_port(&settings.udp_listen);
        if settings.udp_listen.is_empty() || !settings.auth.is_required() {
            return Ok(());
        }
        // memcached's messages.
        let line = match settings.auth.sasl {
            Some(_) => "ERROR: Cannot enable UDP while using binary SASL authentication.",
            None => "Cannot use UDP with ascii authentication enabled (-U 0 to disable)",
        };
        Err(match port {
            Some(_) => Failure::new(Exit::Usage, line),
            None => {
                let why = "lets clients in without a password; it must be empty with auth_file or sasl_file";
                self.blame(ConfigError::new("memcached.udp_listen", why))
            }
        })
    }
}

// `-S` and `-Y`. A protocol without passwords must not bypass those of the other: with `-S` alone
// only the binary protocol is served, with `-Y` alone only text and meta.

/// The variable that names memcached's file of SASL passwords.
const SASL_FILE_VARIABLE: &str = "MEMCACHED_SASL_PWDB";

impl Cli {
    /// Applies `-S` and `-Y`, and selects the protocol that they leave.
    pub(super) fn authentication(&self, settings: &mut Settings) -> Result<(), Failure> {
        if let Some(path) = &self.auth_file {
            settings.auth.text = Some(Credentials::new(path.into(), Form::Text));
        }
        if self.enable_sasl {
            if let Some(path) = std::env::var_os(SASL_FILE_VARIABLE).filter(|path| !path.is_empty()) {
                settings.auth.sasl = Some(Credentials::new(path.into(), Form::Sasl));
            }
            if settings.auth.sasl.is_none() {
                return wrong(
                    Exit::Usage,
                    "-S: there are no passwords; the environment variable MEMCACHED_SASL_PWDB, or sasl_file in \
                     the configuration, must name a file with lines of the form user:password",
                );
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
                return wrong(Exit::Usage, line);
            }
            if settings.protocol.is_some() {
                let (key, other) = match only {
                    Protocol::Binary => ("sasl_file", "auth_file"),
                    Protocol::Text => ("auth_file", "sasl_file"),
                };
                let why = format!(
                    "is not the protocol whose passwords are in {key}; it must be \"auto\", or {other} be set too"
                );
                return Err(self.blame(ConfigError::new("memcached.protocol", why)));
            }
        }
        settings.protocol = Some(only);
        Ok(())
    }
}

/// Returns the protocol that has passwords, if the other one has no passwords.
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
