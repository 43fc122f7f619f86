//! The other end of a connection, as log lines name it.

use std::fmt;
use std::net::SocketAddr;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    Tcp(SocketAddr),
    /// A process of this host, as far as the system knows it.
    Unix {
        pid: Option<i32>,
        uid: Option<u32>,
    },
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix { pid: Some(pid), uid: Some(uid) } => write!(f, "unix, pid {pid}, uid {uid}"),
            Self::Unix { uid: Some(uid), .. } => write!(f, "unix, uid {uid}"),
            Self::Unix { .. } => f.write_str("unix"),
        }
    }
}
