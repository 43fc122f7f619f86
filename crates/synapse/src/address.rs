//! Addresses as text, and how a client reaches them.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;

pub use connection::Duplex;
use connection::Stream;
use tokio::net::{TcpStream, UnixStream};

/// The TCP port of synapse unless another one is given.
pub const PORT_DEFAULT: u16 = 11311;

/// The address of a server.
///
/// ```
/// use synapse::Address;
///
/// assert_eq!("node-1".parse(), Ok(Address::Tcp("node-1:11311".into())));
/// assert_eq!("[::1]:7000".parse(), Ok(Address::Tcp("[::1]:7000".into())));
/// assert_eq!("unix:/run/s.sock".parse(), Ok(Address::Unix("/run/s.sock".into())));
/// assert_eq!(Address::Unix("/run/s.sock".into()).to_string(), "unix:/run/s.sock");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// `HOST:PORT`. The host is resolved at each connection.
    Tcp(String),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// Why a text is not an [`Address`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// There is nothing after `unix:`.
    #[error("unix: needs a path")]
    NoPath,
    /// There is no host.
    #[error("{text:?} names no host; write HOST:PORT or unix:PATH")]
    NoHost {
        /// The text.
        text: String,
    },
    /// The port is not a number up to 65535.
    #[error("{text:?}: the port is a number up to 65535")]
    Port {
        /// The text.
        text: String,
    },
}

impl FromStr for Address {
    type Err = AddressError;

    /// `unix:PATH`, `HOST:PORT`, `[V6]:PORT`, or `HOST` for [`PORT_DEFAULT`].
    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let is_there = !path.is_empty();
            return is_there.then(|| Self::Unix(path.into())).ok_or(AddressError::NoPath);
        }
        let (host, port) = match text.rsplit_once(':') {
            // A bare IPv6 address contains colons.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        if host.is_empty() {
            return Err(AddressError::NoHost { text: text.into() });
        }
        match port.map(str::parse::<u16>) {
            None if host.contains(':') && !host.starts_with('[') => {
                Ok(Self::Tcp(format!("[{host}]:{PORT_DEFAULT}")))
            }
            None => Ok(Self::Tcp(format!("{host}:{PORT_DEFAULT}"))),
            Some(Ok(port)) => Ok(Self::Tcp(format!("{host}:{port}"))),
            Some(Err(_)) => Err(AddressError::Port { text: text.into() }),
        }
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

/// A stream that is being opened.
pub type Opening = Pin<Box<dyn Future<Output = io::Result<Box<dyn Duplex>>> + Send>>;

/// Opens streams to a server that has no [`Address`].
pub type Connector = Arc<dyn Fn() -> Opening + Send + Sync>;

/// Connects to `address`.
pub(crate) async fn connect(address: &Address) -> io::Result<Stream> {
    match address {
        Address::Tcp(address) => Stream::tcp(TcpStream::connect(address.as_str()).await?),
        Address::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_with_ports_or_paths() {
        let tcp = |text: &str| Ok(Address::Tcp(text.into()));
        assert_eq!("node1:7000".parse(), tcp("node1:7000"));
        assert_eq!("node1".parse(), tcp("node1:11311"));
        assert_eq!("[::1]:7".parse(), tcp("[::1]:7"));
        assert_eq!("::1".parse(), tcp("[::1]:11311"));
        assert_eq!("[::1]".parse(), tcp("[::1]:11311"));
        assert_eq!("unix:/run/x".parse(), Ok(Address::Unix("/run/x".into())));
        for wrong in ["", ":7", "unix:", "a:b", "a:70000"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}
