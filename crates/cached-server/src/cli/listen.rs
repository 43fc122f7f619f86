//! `-l`: the addresses to listen on, and the protocol of each.
//!
//! `[notls:|tls:|btls:|mtls:][proto[ascii|binary|negotiating]:][tag[name]:]host[:port]`, separated by commas. Tags are for memcached's
//! proxy; they are checked and ignored.

use super::wrong;
use crate::config::settings::{ListenAddress, ListenTls};
use cached_process::{Exit, Failure};
use cached_proto::Protocol;

/// Returns the addresses of all listeners. Without `-l`: every interface, or the loopback one with no
/// argument at all.
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
        // An address that is given twice is one listener.
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
    // `tls` is not memcached's: the contrary of `notls`.
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
        // An IPv6 address without brackets.
        Some((_, rest)) if rest.contains(':') => Ok((text, None)),
        Some((host, given)) if !host.is_empty() => Ok((host, Some(given))),
        Some(_) => Err(bad()),
        None if text.is_empty() => Err(bad()),
        None => Ok((text, None)),
    }
}
