//! Opens the sockets of listeners, with the options that memcached sets (accepted connections
//! inherit them), and adopts sockets that are already open. UDP sockets are read by the workers,
//! because they have no connections to accept.

use super::{Listener, ListenerAddress};
use crate::connections::UdpSocket;
use crate::settings::ListenAddress;
use cached_process::files::SocketFile;
use cached_proto::Protocol as ClientProtocol;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Opens listening sockets for an address; a name or the wildcard may resolve to several addresses.
///
/// # Errors
/// Fails if no socket can be opened, or a port is in use.
pub(super) fn bind_tcp(address: &ListenAddress, backlog: u32) -> io::Result<Vec<Listener>> {
    bind_all(address, |candidate| open_tcp(candidate, address.protocol, backlog))
}

/// Opens the UDP sockets of an address; a name or the wildcard may resolve to several addresses.
/// Requests a send buffer for a reply of `reply_bytes_max` from the system.
///
/// # Errors
/// Fails if no socket can be opened, or a port is in use.
pub(super) fn bind_udp(address: &ListenAddress, reply_bytes_max: usize) -> io::Result<Vec<UdpSocket>> {
    bind_all(address, |candidate| open_udp(candidate, reply_bytes_max))
}

/// Opens a socket for each address to which `address` resolves; `open` returns the socket with its
/// local address.
fn bind_all<T>(
    address: &ListenAddress,
    open: impl Fn(SocketAddr) -> io::Result<(T, SocketAddr)>,
) -> io::Result<Vec<T>> {
    let candidates: Vec<SocketAddr> = match &address.host {
        Some(host) => (host.as_str(), address.port).to_socket_addrs()?.collect(),
        None => {
            vec![(Ipv4Addr::UNSPECIFIED, address.port).into(), (Ipv6Addr::UNSPECIFIED, address.port).into()]
        }
    };
    let mut sockets: Vec<T> = Vec::new();
    let mut first: Option<SocketAddr> = None;
    let mut failure = None;
    for mut candidate in candidates {
        // If any free port is requested, IPv6 uses the same port that IPv4 was assigned.
        if candidate.port() == 0
            && let Some(first) = first
        {
            candidate.set_port(first.port());
        }
        match open(candidate) {
            Ok((socket, local)) => {
                first.get_or_insert(local);
                sockets.push(socket);
            }
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

fn open_tcp(
    address: SocketAddr,
    protocol: Option<ClientProtocol>,
    backlog: u32,
) -> io::Result<(Listener, SocketAddr)> {
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
    let local = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok((Listener { socket, address: ListenerAddress::Tcp(local), protocol, tls: None }, local))
}

/// The size of the receive buffer requested for datagrams, in bytes; the system may grant less.
const RECEIVE_BYTES: usize = 4 << 20;

fn open_udp(address: SocketAddr, reply_bytes_max: usize) -> io::Result<(UdpSocket, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    // The sizes are requests: data that do not fit are lost in transit, as datagrams may be.
    let _ = socket.set_send_buffer_size(reply_bytes_max);
    let _ = socket.set_recv_buffer_size(RECEIVE_BYTES);
    socket.bind(&address.into())?;
    let local = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok((UdpSocket { socket: socket.into(), address: local }, local))
}

/// Adopts a socket that another process has opened.
///
/// # Errors
/// Fails if the socket is not a datagram socket.
pub(super) fn adopt_udp(descriptor: OwnedFd) -> io::Result<UdpSocket> {
    let socket = Socket::from(descriptor);
    match socket.local_addr()?.as_socket() {
        Some(address) if socket.r#type()? == Type::DGRAM => {
            socket.set_nonblocking(true)?;
            Ok(UdpSocket { socket: socket.into(), address })
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a UDP socket")),
    }
}

/// Opens a listening socket with permissions `mask`. A socket file left behind at this path is
/// replaced; any other file is not.
///
/// # Errors
/// Fails if the path leads to another file, or the system refuses.
pub(super) fn bind_unix(
    path: &Path,
    mask: u32,
    protocol: Option<ClientProtocol>,
    backlog: u32,
) -> io::Result<(Listener, SocketFile)> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile::new(path);
    // No client can connect before `listen`, so the permissions are set in time.
    fs::set_permissions(path, fs::Permissions::from_mode(mask))?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok((Listener { socket, address: ListenerAddress::Unix(path.to_owned()), protocol, tls: None }, file))
}

/// Returns a listener for a socket that is already bound.
///
/// # Errors
/// Fails if the socket is not a stream socket, or the system refuses.
pub(super) fn adopt(
    descriptor: OwnedFd,
    protocol: Option<ClientProtocol>,
    backlog: u32,
) -> io::Result<Listener> {
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
    // Some service managers only bind the socket; calling `listen` twice does no harm.
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
