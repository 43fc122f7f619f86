//! Listening sockets that a service manager has opened.

use super::{Listener, ListenerAddress};
use cached_proto::Protocol;
use socket2::{Domain, Socket, Type};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Returns a listener for a socket that is bound already.
///
/// # Errors
/// If it is not a stream socket, or the system refuses.
pub(super) fn adopt(descriptor: OwnedFd, protocol: Option<Protocol>, backlog: u32) -> io::Result<Listener> {
    let socket = Socket::from(descriptor);
    let address = socket.local_addr()?;
    let is_unix = address.domain() == Domain::UNIX;
    if socket.r#type()? != Type::STREAM || !(is_unix || address.is_ipv4() || address.is_ipv6()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "an inherited socket must be a stream socket",
        ));
    }
    socket.set_nonblocking(true)?;
    // Some service managers only bind it; listening twice does no harm.
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    let address = match address.as_socket() {
        Some(address) => {
            socket.set_tcp_nodelay(true)?;
            socket.set_keepalive(true)?;
            ListenerAddress::Tcp(address)
        }
        None => ListenerAddress::Unix(address.as_pathname().map_or_else(PathBuf::new, PathBuf::from)),
    };
    Ok(Listener { socket, address, protocol, tls: None })
}
