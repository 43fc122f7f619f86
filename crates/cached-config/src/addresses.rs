//! The addresses that a configuration names for its listeners: which of them other machines can reach, and whether two
//! are one.

use crate::error::{ConfigError, invalid};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::path::{Path, PathBuf};

/// Returns that other machines can reach an address, as the beginning of a line, if it is so. `address` is `host:port`,
/// or `unix:` and a path. No name is resolved: one that is not localhost may lead anywhere.
#[must_use]
pub fn exposure(address: &str) -> Option<String> {
    if address.starts_with("unix:") {
        return None;
    }
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    match Host::of(host) {
        Host::Ip(ip) if ip.is_loopback() => None,
        Host::Name(_) => Some(format!("{address} has a name that may lead to other machines")),
        Host::Ip(_) | Host::All => Some(format!("{address} can be reached from other machines")),
    }
}

/// An address of a listener, and the key that names it.
#[derive(Debug, Clone)]
pub struct Listening {
    key: &'static str,
    place: Place,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Tcp(Host, u16),
    Udp(Host, u16),
    Unix(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    /// Every interface, of both families.
    All,
    Ip(IpAddr),
    Name(String),
}

impl Host {
    fn of(text: &str) -> Host {
        let text = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        match text.parse() {
            Ok(ip) => Host::Ip(ip),
            Err(_) if text == "*" => Host::All,
            Err(_) if text.eq_ignore_ascii_case("localhost") => Host::Ip(Ipv4Addr::LOCALHOST.into()),
            Err(_) => numeric(text).map_or_else(|| Host::Name(text.to_ascii_lowercase()), Host::Ip),
        }
    }

    fn overlaps(&self, other: &Host) -> bool {
        match (self, other) {
            (Host::All, _) | (_, Host::All) => true,
            (Host::Ip(one), Host::Ip(other)) if one.is_ipv4() == other.is_ipv4() => {
                one == other || one.is_unspecified() || other.is_unspecified()
            }
            (one, other) => one == other,
        }
    }
}

/// Returns the address of a host that only the system takes for one: `0`, `127.1` or `0x7f000001`. The last part of a
/// name in the DNS is no number, so that nothing is looked up.
fn numeric(host: &str) -> Option<IpAddr> {
    let last = host.rsplit('.').next().unwrap_or_default();
    let digits = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let is_number = match digits {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()),
    };
    is_number.then(|| (host, 0).to_socket_addrs().ok()?.next().map(|address| address.ip())).flatten()
}

impl Listening {
    /// Returns an address of TCP; without a host it is that of every interface.
    #[must_use]
    pub fn tcp(key: &'static str, host: Option<&str>, port: u16) -> Listening {
        Listening { key, place: Place::Tcp(host.map_or(Host::All, Host::of), port) }
    }

    /// Returns an address of UDP; without a host it is that of every interface.
    #[must_use]
    pub fn udp(key: &'static str, host: Option<&str>, port: u16) -> Listening {
        Listening { key, place: Place::Udp(host.map_or(Host::All, Host::of), port) }
    }

    /// Returns the path of a unix socket.
    #[must_use]
    pub fn unix(key: &'static str, path: &Path) -> Listening {
        Listening { key, place: Place::Unix(path.to_owned()) }
    }

    /// Returns addresses as a table has them: `host:port`, or `unix:` and a path. What is neither is left out.
    pub fn of<'a>(key: &'static str, texts: &'a [String]) -> impl Iterator<Item = Listening> + 'a {
        texts.iter().filter_map(move |text| match text.strip_prefix("unix:") {
            Some(path) => Some(Listening::unix(key, Path::new(path))),
            None => {
                let (host, port) = text.rsplit_once(':')?;
                Some(Listening::tcp(key, Some(host), port.parse().ok()?))
            }
        })
    }

    fn is_of(&self, other: &Listening) -> bool {
        match (&self.place, &other.place) {
            // 0 is any free port.
            (Place::Tcp(one, port), Place::Tcp(other, its))
            | (Place::Udp(one, port), Place::Udp(other, its)) => {
                port == its && *port != 0 && one.overlaps(other)
            }
            (Place::Unix(one), Place::Unix(other)) => one == other,
            _ => false,
        }
    }
}

impl fmt::Display for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = match &self.place {
            Place::Unix(path) => return write!(f, "{}", path.display()),
            Place::Tcp(host, port) => (host, port),
            Place::Udp(host, port) => {
                f.write_str("udp:")?;
                (host, port)
            }
        };
        match host {
            Host::All => write!(f, "*:{port}"),
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]:{port}"),
            Host::Ip(ip) => write!(f, "{ip}:{port}"),
            Host::Name(name) => write!(f, "{name}:{port}"),
        }
    }
}

/// Checks that no two listeners have one address.
///
/// # Errors
/// [`ConfigError`] with the first address that is given twice.
pub fn check_addresses(all: &[Listening]) -> Result<(), ConfigError> {
    for (at, one) in all.iter().enumerate() {
        if let Some(other) = all[..at].iter().find(|other| other.is_of(one)) {
            let why = match one.key == other.key {
                true => format!("{one} and {other} are one address; each listener needs one of its own"),
                false => format!(
                    "{one} is an address of {} as well ({other}); each listener needs one of its own",
                    other.key
                ),
            };
            return invalid(one.key, why);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_machines_can_reach_is_known_without_asking_for_names() {
        for inside in
            ["127.0.0.1:1", "[::1]:1", "localhost:1", "LocalHost:1", "127.1:1", "0x7f000001:1", "unix:/s"]
        {
            assert_eq!(exposure(inside), None, "{inside}");
        }
        for outside in
            ["0:1", "0.0.0.0:1", "[::]:1", "*:1", "10.0.0.1:1", "0x0:1", "node1:1", "localhost.evil:1"]
        {
            let line = exposure(outside).unwrap_or_else(|| panic!("{outside}"));
            assert!(line.starts_with(outside) && line.contains("other machines"), "{line}");
        }
    }

    #[test]
    fn an_address_given_twice_is_found() {
        let listening = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
            Listening::of("b.listen", &texts).collect::<Vec<_>>()
        };
        let first =
            || vec![Listening::tcp("a.listen", None, 7), Listening::unix("a.path", Path::new("/run/s"))];
        for (texts, words) in [
            (&["127.0.0.1:7"][..], "b.listen: 127.0.0.1:7 is an address of a.listen as well (*:7)"),
            (&["[::1]:7"], "[::1]:7 is an address of a.listen"),
            (&["node:7"], "node:7 is an address of a.listen"),
            (&["unix:/run/s"], "/run/s is an address of a.path"),
            (&["127.0.0.1:8", "localhost:8"], "b.listen: 127.0.0.1:8 and 127.0.0.1:8 are one address"),
            (&["0:8", "10.0.0.1:8"], "10.0.0.1:8 and 0.0.0.0:8 are one address"),
        ] {
            let all = [first(), listening(texts)].concat();
            let error = check_addresses(&all).expect_err("it is given twice").to_string();
            assert!(error.contains(words), "{texts:?}: {error}");
        }
        let apart =
            ["127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:8", "127.0.0.2:8", "[::1]:8", "node:8", "unix:/run/t"];
        let mut all = [first(), listening(&apart)].concat();
        all.push(Listening::udp("a.udp", None, 7));
        check_addresses(&all).expect("each has its own");
    }
}
