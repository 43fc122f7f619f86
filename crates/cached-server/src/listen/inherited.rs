//! Listening sockets that a service manager has opened.

use super::{At, Listener};
use cached_proto::Protocol;
use socket2::{Domain, Socket, Type};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Makes a listener of a socket that is bound already.
pub(crate) fn adopt(descriptor: OwnedFd, protocol: Option<Protocol>, backlog: u32) -> io::Result<Listener> {
    let socket = Socket::from(descriptor);
    let address = socket.local_addr()?;
    let is_unix = address.domain() == Domain::UNIX;
    if socket.r#type()? != Type::STREAM || !(is_unix || address.is_ipv4() || address.is_ipv6()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket handed over is no stream socket"));
    }
    socket.set_nonblocking(true)?;
    // It may be bound only, as with `Accept=no` of some managers; listening twice does no harm.
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    let at = match address.as_socket() {
        Some(address) => {
            socket.set_tcp_nodelay(true)?;
            socket.set_keepalive(true)?;
            At::Tcp(address)
        }
        None => At::Unix(address.as_pathname().map_or_else(PathBuf::new, PathBuf::from)),
    };
    Ok(Listener { socket, at, protocol })
}
