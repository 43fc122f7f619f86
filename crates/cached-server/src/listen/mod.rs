//! Sockets that clients connect to, and dealing the connections to the workers.

pub(crate) mod acceptor;
mod inherited;
mod port_file;
mod tcp;
mod unix;

pub(crate) use inherited::adopt;
pub(crate) use port_file::write as write_port_file;
pub(crate) use tcp::bind as bind_tcp;
pub(crate) use unix::{Bound as BoundUnix, bind as bind_unix};

use cached_proto::Protocol;
use socket2::Socket;
use std::net::SocketAddr;
use std::path::PathBuf;

/// An open listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: Socket,
    pub(crate) at: At,
    /// What clients speak; `None` to tell by their first byte.
    pub(crate) protocol: Option<Protocol>,
}

/// Where a listening socket listens.
#[derive(Debug, Clone)]
pub(crate) enum At {
    Tcp(SocketAddr),
    Unix(PathBuf),
}
