//! What `config get cluster` answers: ElastiCache's protocol, by which its clients find the nodes of a cluster.

use std::net::IpAddr;
use std::str::FromStr;

/// The address that is answered, if any is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Discovery {
    /// None: the command is unknown, as in memcached.
    #[default]
    Off,
    /// The one to which the client is connected.
    Reached,
    /// This one, for clients behind a translation of addresses.
    Address {
        /// A name or an IP address.
        host: String,
        /// The TCP port.
        port: u16,
    },
}

/// The longest host: a name of the DNS.
const HOST_BYTES_MAX: usize = 253;

impl FromStr for Discovery {
    type Err = String;

    fn from_str(text: &str) -> Result<Discovery, String> {
        let wrong =
            || format!("is \"{text}\"; it must be off, reached, or an address of this server: HOST:PORT");
        match text {
            "" | "off" => return Ok(Discovery::Off),
            "reached" => return Ok(Discovery::Reached),
            _ => {}
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(ip) if ip.parse::<std::net::Ipv6Addr>().is_ok() => ip,
            _ => host,
        };
        let is_name =
            host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
        let is_host =
            (1..=HOST_BYTES_MAX).contains(&host.len()) && (is_name || host.parse::<IpAddr>().is_ok());
        if is_host { Ok(Discovery::Address { host: host.into(), port }) } else { Err(wrong()) }
    }
}

impl std::fmt::Display for Discovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Discovery::Off => f.write_str("off"),
            Discovery::Reached => f.write_str("reached"),
            Discovery::Address { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Discovery::Address { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// Returns the reply that names one node. Without `ip` a client has to resolve the host.
pub(crate) fn encode(version: u64, host: &str, ip: Option<IpAddr>, port: u16) -> Vec<u8> {
    let ip = ip.map(|ip| ip.to_string()).unwrap_or_default();
    let nodes = format!("{version}\n{host}|{ip}|{port}\n");
    format!("CONFIG cluster 0 {}\r\n{nodes}\r\nEND\r\n", nodes.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_shown() {
        for text in ["off", "reached", "cache-1.example:11211", "10.0.0.1:1", "[::1]:11211"] {
            assert_eq!(text.parse::<Discovery>().map(|setting| setting.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("".parse(), Ok(Discovery::Off));
        for text in
            ["on", "host", "host:0", "host:65536", ":11211", "a b:1", "a|b:1", "::1:11211x", "[x]:1", "h\n:1"]
        {
            assert!(text.parse::<Discovery>().is_err(), "{text}");
        }
        assert!(format!("{}:1", "h".repeat(254)).parse::<Discovery>().is_err());
    }

    #[test]
    fn the_length_counts_the_lines_of_version_and_nodes() {
        let reply = encode(12, "cache.example", Some(IpAddr::from([10, 0, 0, 1])), 11211);
        assert_eq!(reply, b"CONFIG cluster 0 32\r\n12\ncache.example|10.0.0.1|11211\n\r\nEND\r\n");
        assert_eq!(encode(1, "h", None, 2), b"CONFIG cluster 0 7\r\n1\nh||2\n\r\nEND\r\n");
    }
}
