//! Listeners: which of the configured addresses other machines can reach, and whether two addresses
//! are the same; `[synapse]`, the listener for programs that use the storage contract over the
//! network.

use std::fmt;
use std::fs::Permissions;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use synapse::{Address, AddressError, PORT_DEFAULT, Secret, ServerConfig, SettingError};

use crate::config_file::{ConfigError, invalid, secret, secret_warning};
use crate::config_keys;
use crate::quantity::Size;

/// Returns the beginning of a line that states that other machines can reach an address, if they
/// can. `address` is `host:port`, or `unix:` and a path. Names are not resolved: any name except
/// localhost may lead anywhere.
#[must_use]
pub fn exposure(address: &str) -> Option<String> {
    if address.starts_with("unix:") {
        return None;
    }
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    match Host::of(host) {
        Host::Ip(ip) if ip.is_loopback() => None,
        Host::Name(_) => Some(format!("{address} is a name that may refer to other machines")),
        Host::Ip(_) | Host::All => Some(format!("{address} can be reached from other machines")),
    }
}

/// The address of a listener, and the key that names it.
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
    /// Every interface, for both address families.
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

/// Returns the address of a host in a form that only the system parses: `0`, `127.1` or
/// `0x7f000001`. The last label of a DNS name is never a number, so no name is looked up.
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
    /// Returns a TCP address. Without a host, it is the address of every interface.
    #[must_use]
    pub fn tcp(key: &'static str, host: Option<&str>, port: u16) -> Listening {
        Listening { key, place: Place::Tcp(host.map_or(Host::All, Host::of), port) }
    }

    /// Returns a UDP address. Without a host, it is the address of every interface.
    #[must_use]
    pub fn udp(key: &'static str, host: Option<&str>, port: u16) -> Listening {
        Listening { key, place: Place::Udp(host.map_or(Host::All, Host::of), port) }
    }

    /// Returns the address of a unix socket.
    #[must_use]
    pub fn unix(key: &'static str, path: &Path) -> Listening {
        Listening { key, place: Place::Unix(path.to_owned()) }
    }

    /// Returns the addresses in a table: `host:port`, or `unix:` and a path. Other strings are left
    /// out.
    pub fn of<'a>(key: &'static str, texts: &'a [String]) -> impl Iterator<Item = Listening> + 'a {
        texts.iter().filter_map(move |text| match text.strip_prefix("unix:") {
            Some(path) => Some(Listening::unix(key, Path::new(path))),
            None => {
                let (host, port) = text.rsplit_once(':')?;
                Some(Listening::tcp(key, Some(host), port.parse().ok()?))
            }
        })
    }

    /// Returns the addresses in a table whose strings are parsed as `A`, which adds the default port.
    /// Strings that are not addresses are left out.
    #[must_use]
    pub fn parsed<A: FromStr + fmt::Display>(key: &'static str, texts: &[String]) -> Vec<Listening> {
        let addresses = texts.iter().filter_map(|text| text.parse::<A>().ok());
        let texts: Vec<String> = addresses.map(|address| address.to_string()).collect();
        Listening::of(key, &texts).collect()
    }

    fn is_of(&self, other: &Listening) -> bool {
        match (&self.place, &other.place) {
            // Port 0 means any free port.
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

/// Checks that no two listeners have the same address.
///
/// # Errors
/// Returns [`ConfigError`] with the first address that occurs twice.
pub fn check_addresses(all: &[Listening]) -> Result<(), ConfigError> {
    for (at, one) in all.iter().enumerate() {
        if let Some(other) = all[..at].iter().find(|other| other.is_of(one)) {
            let why = match one.key == other.key {
                true => format!("{one} and {other} are the same address; each listener needs a separate one"),
                false => format!(
                    "{one} is also an address of {} ({other}); each listener needs a separate one",
                    other.key
                ),
            };
            return invalid(one.key, why);
        }
    }
    Ok(())
}

config_keys! {
    /// The table `[synapse]`. An empty string means none.
    pub struct SynapseTable over ServerConfig = ServerConfig::default();

    /// The addresses to listen on: `host:port`, or `unix:` and a path.
    pub listen: Vec<String> = own(vec![format!("127.0.0.1:{PORT_DEFAULT}")]);
    /// Permissions of unix sockets, in octal.
    pub unix_mode: String = own("700".into());
    /// The file with the secret that clients must present.
    pub secret_file: PathBuf = own(PathBuf::new());
    /// The file with a second secret that clients may present instead, for use during a rotation.
    pub secret_file_previous: PathBuf = own(PathBuf::new());
    /// Whether to allow addresses that other machines can reach without a secret.
    pub allow_exposed: bool = same(allow_exposed);
    /// Whether clients may set, create and remove the namespaces of the object cache.
    pub allow_namespace_changes: bool = same(allow_namespace_changes);
    /// The number of threads that serve connections.
    pub threads: usize = own(THREADS), in 1..=THREADS_MAX;
    /// The maximum number of connections.
    pub connections_max: u32 = same(connections_max);
    /// The maximum number of connections from one address; `None` means half of `connections_max`.
    pub peer_connections_max: Option<u32> = same(peer_connections_max);
    /// The maximum number of sessions, connected or not.
    pub sessions_max: u32 = same(sessions_max);
    /// The time for which a session without a connection is kept, in seconds.
    pub session_linger_secs: u64 = secs(session_linger), in 0..=24 * 60 * 60;
    /// The maximum number of outstanding requests of each session.
    pub session_requests_max: u32 = same(session_slots_max);
    /// The maximum total payload of the outstanding requests of each session.
    pub session_bytes_max: Size = size(session_bytes_max);
    /// The maximum total payload of the outstanding requests of all sessions.
    pub bytes_max: Size = size(bytes_max);
    /// The maximum payload of a single request.
    pub request_bytes_max: Size = size(request_bytes_max);
    /// The maximum number of entries in a page of a listing.
    pub list_entries_max: u32 = same(list_entries_max);
    /// The maximum size of buffers for large payloads that are kept for reuse.
    pub payload_pool_bytes_max: Size = size(payload_pool_bytes_max);
    /// The time, in milliseconds, after which a connection without any sign of life is closed.
    pub peer_timeout_ms: u64 = millis(peer_timeout), in 10..=24 * 60 * 60 * 1000;
    /// The maximum duration of a handshake, in milliseconds.
    pub handshake_timeout_ms: u64 = millis(handshake_timeout), in 1..=24 * 60 * 60 * 1000;
}

/// The default number of threads, which is that of memcached's workers.
const THREADS: usize = 4;
const THREADS_MAX: usize = 1024;

impl SynapseTable {
    /// Returns the addresses to listen on.
    ///
    /// # Errors
    /// Returns the string that is not an address.
    pub fn addresses(&self) -> Result<Vec<Address>, ConfigError> {
        let wrong = |error: AddressError| ConfigError::new("synapse.listen", error);
        self.listen.iter().map(|text| text.parse().map_err(wrong)).collect()
    }

    /// Returns the addresses for a [check](crate::check_addresses) of all listeners; invalid ones
    /// are left out.
    #[must_use]
    pub fn listening(&self) -> Vec<Listening> {
        Listening::parsed::<Address>("synapse.listen", &self.listen)
    }

    /// Sets the permissions of a unix socket on which a server listens.
    ///
    /// # Errors
    /// Returns one line if the system refuses.
    pub fn restrict(&self, address: &Address) -> Result<(), String> {
        let Address::Unix(path) = address else { return Ok(()) };
        restrict_socket("synapse.unix_mode", &self.unix_mode, path)
    }

    /// Reads the secrets from their files: first the one that clients should present, then the one
    /// that is also accepted.
    ///
    /// # Errors
    /// Returns the problem with a file.
    pub fn secrets(&self) -> Result<Vec<Secret>, ConfigError> {
        let current = secret("synapse.secret_file", &self.secret_file)?;
        let previous = secret("synapse.secret_file_previous", &self.secret_file_previous)?;
        if current.is_none() && previous.is_some() {
            return invalid("synapse.secret_file_previous", "is set without secret_file; set both");
        }
        Ok(current.into_iter().chain(previous).collect())
    }

    /// Returns warnings about the files of the secrets.
    #[must_use]
    pub fn secret_warnings(&self) -> Vec<String> {
        [&self.secret_file, &self.secret_file_previous]
            .into_iter()
            .filter_map(|path| secret_warning(path))
            .collect()
    }

    /// Returns the configuration of the server, without the secrets.
    #[must_use]
    pub fn server(&self) -> ServerConfig {
        let mut config = ServerConfig::default();
        self.apply(&mut config);
        config
    }

    /// Checks the table as far as this is possible without opening a socket.
    ///
    /// # Errors
    /// Returns the first key with an invalid value.
    pub fn check(&self) -> Result<(), ConfigError> {
        unix_mode("synapse.unix_mode", &self.unix_mode)?;
        self.check_ranges("synapse")?;
        self.server().check().map_err(|error| SynapseTable::error(&error))?;
        let secrets = self.secrets()?;
        let addresses = self.addresses()?;
        if addresses.is_empty() {
            return invalid("synapse.listen", "is empty; it must name an address to listen on");
        }
        let exposed = addresses.iter().find_map(|address| exposure(&address.to_string()));
        match exposed.filter(|_| secrets.is_empty() && !self.allow_exposed) {
            None => Ok(()),
            Some(exposed) => {
                let right = "name a secret_file, or set allow_exposed = true";
                invalid("synapse.listen", format!("{exposed}, and there is no secret: {right}"))
            }
        }
    }

    /// Converts an error of the server to the corresponding key of the table, in which the settings
    /// have other names.
    #[must_use]
    pub fn error(error: &SettingError) -> ConfigError {
        let key = match error.setting {
            "session_slots_max" => "session_requests_max".into(),
            name @ ("peer_timeout" | "handshake_timeout") => format!("{name}_ms"),
            "session_linger" => "session_linger_secs".into(),
            name => name.to_owned(),
        };
        ConfigError::new(format!("synapse.{key}"), &*error.problem)
    }
}

/// Parses the permissions of a unix socket, in octal.
///
/// # Errors
/// Fails if the text is not valid.
pub fn unix_mode(key: &str, text: &str) -> Result<u32, ConfigError> {
    match u32::from_str_radix(text, 8) {
        Ok(mode @ 0..=0o777) => Ok(mode),
        _ => invalid(key, format!("is \"{text}\"; it must be octal permissions, as in \"660\"")),
    }
}

/// Sets the permissions of a unix socket to the value `mode` of the key `key`, in octal.
///
/// # Errors
/// Returns one line if the value is not in octal, or the system refuses.
pub fn restrict_socket(key: &str, mode: &str, path: &Path) -> Result<(), String> {
    let mode = unix_mode(key, mode).map_err(|error| error.to_string())?;
    let set = std::fs::set_permissions(path, Permissions::from_mode(mode));
    set.map_err(|error| format!("{}: {error}", path.display()))
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
            (&["127.0.0.1:7"][..], "b.listen: 127.0.0.1:7 is also an address of a.listen (*:7)"),
            (&["[::1]:7"], "[::1]:7 is also an address of a.listen"),
            (&["node:7"], "node:7 is also an address of a.listen"),
            (&["unix:/run/s"], "/run/s is also an address of a.path"),
            (&["127.0.0.1:8", "localhost:8"], "b.listen: 127.0.0.1:8 and 127.0.0.1:8 are the same address"),
            (&["0:8", "10.0.0.1:8"], "10.0.0.1:8 and 0.0.0.0:8 are the same address"),
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
