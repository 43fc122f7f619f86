//! UDP sockets. Workers read from them themselves: there is nothing to accept.

use crate::config::settings::ListenAddress;
use crate::connections::UdpSocket;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;

/// The room requested for datagrams that wait to be read, in bytes; the system may grant less.
const RECEIVE_BYTES: usize = 4 << 20;

/// Opens the sockets of an address; a name or the wildcard may stand for several. Room for a reply of
/// `reply_bytes_max` is requested from the system.
///
/// # Errors
/// If none can be opened, or a port is in use.
pub(super) fn bind(address: &ListenAddress, reply_bytes_max: usize) -> io::Result<Vec<UdpSocket>> {
    let candidates: Vec<SocketAddr> = match &address.host {
        Some(host) => (host.as_str(), address.port).to_socket_addrs()?.collect(),
        None => {
            vec![(Ipv4Addr::UNSPECIFIED, address.port).into(), (Ipv6Addr::UNSPECIFIED, address.port).into()]
        }
    };
    let mut sockets: Vec<UdpSocket> = Vec::new();
    let mut failure = None;
    for mut candidate in candidates {
        // If any free port is requested, IPv6 takes the one that IPv4 has received.
        if candidate.port() == 0
            && let Some(first) = sockets.first()
        {
            candidate.set_port(first.address.port());
        }
        match open(candidate, reply_bytes_max) {
            Ok(socket) => sockets.push(socket),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if sockets.is_empty() => Err(error),
        // A host may lack IPv6, but a port that is in use is always an error.
        Some(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
        _ => Ok(sockets),
    }
}

fn open(address: SocketAddr, reply_bytes_max: usize) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    // A request, not a requirement: what does not fit is lost on the way, as datagrams may be.
    let _ = socket.set_send_buffer_size(reply_bytes_max);
    let _ = socket.set_recv_buffer_size(RECEIVE_BYTES);
    socket.bind(&address.into())?;
    let address = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok(UdpSocket { socket: socket.into(), address })
}

/// Takes a socket that another process has opened.
///
/// # Errors
/// If it is not one of datagrams.
pub(super) fn adopt(descriptor: OwnedFd) -> io::Result<UdpSocket> {
    let socket = Socket::from(descriptor);
    match socket.local_addr()?.as_socket() {
        Some(address) if socket.r#type()? == Type::DGRAM => {
            socket.set_nonblocking(true)?;
            Ok(UdpSocket { socket: socket.into(), address })
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a UDP socket")),
    }
}
