//! TCP listeners, with the socket options that memcached sets; accepted connections inherit them.

use super::{Listener, ListenerAddress};
use crate::config::settings::ListenAddress;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Opens listening sockets for an address; a name or the wildcard may stand for several addresses.
///
/// # Errors
/// If none can be opened, or a port is in use.
pub(super) fn bind(address: &ListenAddress, backlog: u32) -> io::Result<Vec<Listener>> {
    let candidates: Vec<SocketAddr> = match &address.host {
        Some(host) => (host.as_str(), address.port).to_socket_addrs()?.collect(),
        None => {
            vec![(Ipv4Addr::UNSPECIFIED, address.port).into(), (Ipv6Addr::UNSPECIFIED, address.port).into()]
        }
    };
    let mut listeners: Vec<Listener> = Vec::new();
    let mut failure = None;
    for mut candidate in candidates {
        // If any free port is requested, IPv6 takes the one that IPv4 has received.
        if candidate.port() == 0
            && let Some(ListenerAddress::Tcp(first)) = listeners.first().map(|listener| &listener.address)
        {
            candidate.set_port(first.port());
        }
        match open(candidate, address.protocol, backlog) {
            Ok(listener) => listeners.push(listener),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if listeners.is_empty() => Err(error),
        // A host may lack IPv6, but a port that is in use is always an error.
        Some(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
        _ => Ok(listeners),
    }
}

fn open(address: SocketAddr, protocol: Option<cached_proto::Protocol>, backlog: u32) -> io::Result<Listener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_keepalive(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    let at = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok(Listener { socket, address: ListenerAddress::Tcp(at), protocol, tls: None })
}
