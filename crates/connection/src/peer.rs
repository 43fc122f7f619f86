//! The other end of a connection.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The other end of a connection, as log lines name it.
#[derive(Clone, Copy, Debug)]
pub enum Peer {
    /// A host.
    Tcp(SocketAddr),
    /// A process of this host, as far as the system knows it.
    Unix {
        /// Its id.
        pid: Option<i32>,
        /// Its user.
        uid: Option<u32>,
    },
    /// A stream that did not come from a socket.
    Other,
}

impl Peer {
    /// Returns the address by which connections are counted; `None` for those of this host's own processes. One
    /// host usually has a whole network of 64 bits in IPv6: its connections count together.
    #[must_use]
    pub fn network(&self) -> Option<IpAddr> {
        let Self::Tcp(address) = self else { return None };
        Some(match address.ip().to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix { pid: Some(pid), uid: Some(uid) } => write!(f, "unix, pid {pid}, uid {uid}"),
            Self::Unix { uid: Some(uid), .. } => write!(f, "unix, uid {uid}"),
            Self::Unix { .. } => f.write_str("unix"),
            Self::Other => f.write_str("stream"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_one_host_are_of_one_network() {
        let network = |text: &str| Peer::Tcp(text.parse().unwrap()).network();
        assert_eq!(network("10.0.0.1:5"), network("10.0.0.1:6"));
        assert_eq!(network("10.0.0.1:5"), network("[::ffff:10.0.0.1]:5"));
        assert_ne!(network("10.0.0.1:5"), network("10.0.0.2:5"));
        assert_eq!(network("[2001:db8::1]:5"), network("[2001:db8::ffff:1]:5"));
        assert_ne!(network("[2001:db8::1]:5"), network("[2001:db8:0:1::1]:5"));
        assert_eq!(Peer::Other.network(), None);
    }
}
