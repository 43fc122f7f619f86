//! Addresses of listeners, as text.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The TCP port of NBD.
pub const PORT_DEFAULT: u16 = 10809;

/// The address of a listener.
///
/// ```
/// use nbd::Address;
///
/// assert_eq!("127.0.0.1".parse(), Ok(Address::Tcp("127.0.0.1:10809".into())));
/// assert_eq!("[::1]:7000".parse(), Ok(Address::Tcp("[::1]:7000".into())));
/// assert_eq!("unix:/run/nbd.sock".parse(), Ok(Address::Unix("/run/nbd.sock".into())));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// `HOST:PORT`.
    Tcp(String),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// Why a text is not an [`Address`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not an address; write HOST, HOST:PORT, [V6]:PORT or unix:PATH")]
pub struct AddressError {
    text: String,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError { text: text.into() };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Self::Unix(path.into())) };
        }
        let (host, port) = match text.rsplit_once(':') {
            // A bare address of IPv6 has colons of its own.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        if host.is_empty() {
            return Err(wrong());
        }
        let port = port.map_or(Ok(PORT_DEFAULT), |port| port.parse().map_err(|_| wrong()))?;
        let is_bare = host.contains(':') && !host.starts_with('[');
        Ok(Self::Tcp(if is_bare { format!("[{host}]:{port}") } else { format!("{host}:{port}") }))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_with_ports_or_paths() {
        let tcp = |text: &str| Ok(Address::Tcp(text.into()));
        assert_eq!("node1:7000".parse(), tcp("node1:7000"));
        assert_eq!("::1".parse(), tcp("[::1]:10809"));
        assert_eq!("[::1]".parse(), tcp("[::1]:10809"));
        for wrong in ["", ":7", "unix:", "a:b", "a:70000"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}
