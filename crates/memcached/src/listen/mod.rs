//! Listeners: the sockets to which clients connect. Everything behind the acceptor sees only
//! connected stream sockets.
//!
//! ```text
//!  tcp, unix, inherited ──► Listener ──► acceptor ── Command::Serve ──► workers, round robin
//! ```
//! `sockets` opens or adopts sockets of each kind, `acceptor` accepts connections and assigns them
//! to workers. `ring` connects the nodes of a ring.
//!
//! To add a kind of listener: write a function in `sockets` that returns a [`Listener`], give
//! [`ListenerAddress`] a variant, and call the function in [`Listeners::open`]. Each listener has a
//! `protocol`; a new protocol is added in `conn/requests.rs`.
//!
//! Clients of the object cache do not connect here: the program runs a synapse server with its own
//! sockets and threads.

pub(crate) mod acceptor;
pub(crate) mod ring;
mod sockets;

use crate::connections::{Endpoints, UdpSocket};
use crate::process::write_port_file;
use crate::settings::{ListenAddress, ListenTls, Settings};
use crate::shared::ListenerInfo;
use cached_process::files::SocketFile;
use cached_proto::Protocol;
use cached_tls::ClientCertificates;
use socket2::Socket;
use sockets::{adopt, adopt_udp, bind_tcp, bind_udp, bind_unix};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: Socket,
    pub(crate) address: ListenerAddress,
    /// The protocol of the listener's clients; `None` if the first byte of a connection decides.
    pub(crate) protocol: Option<Protocol>,
    /// The certificates that clients must present, if the listener uses TLS.
    pub(crate) tls: Option<ClientCertificates>,
}

/// The address of a listening socket.
#[derive(Debug, Clone)]
pub(crate) enum ListenerAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Listener {
    /// Returns the information about the listener that `stats conns` and metrics show.
    fn info(&self) -> ListenerInfo {
        let endpoints = match &self.address {
            ListenerAddress::Tcp(address) => Endpoints::Tcp { peer: *address, local: None },
            ListenerAddress::Unix(path) => Endpoints::Unix { path: path.clone() },
        };
        ListenerInfo { fd: self.socket.as_raw_fd(), endpoints, counts: Arc::default() }
    }
}

/// An address on which the server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {cause}")]
pub struct ListenError {
    /// The address.
    pub address: String,
    /// The error of the system.
    pub cause: io::Error,
}

/// The kind of a socket that one process hands over to another. The other process recognises the
/// socket by its kind and its name in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketKind {
    /// A TCP listener, named by host and port.
    Tcp,
    /// A UDP socket, named like a TCP listener.
    Udp,
    /// The unix listener, named by its path.
    Unix,
    /// A listener that the service manager has opened; it has no name.
    Inherited,
    /// A listener of the admin server, named by its address.
    Admin,
    /// A listener of the object cache, named by its address.
    Objects,
    /// A listener for the other nodes of a ring, named by host and port.
    Ring,
}

/// A socket that one process hands over to another.
#[derive(Debug)]
pub(crate) struct HandedSocket {
    pub(crate) kind: SocketKind,
    pub(crate) name: String,
    pub(crate) socket: OwnedFd,
}

/// Sockets that another process has handed over.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    pub(crate) sockets: Vec<HandedSocket>,
    /// Whether the sockets come from another process, which may continue.
    pub(crate) is_of_process: bool,
}

impl Handed {
    /// Removes and returns the sockets of a kind that have this name. Names are compared like
    /// paths, because the configuration may spell the path of the unix socket differently now.
    pub(crate) fn take(&mut self, kind: SocketKind, name: &str) -> Vec<OwnedFd> {
        let name = Path::new(name);
        let taken = self.sockets.extract_if(.., |own| own.kind == kind && Path::new(&own.name) == name);
        taken.map(|own| own.socket).collect()
    }

    /// Removes and returns the sockets of a kind, each with its name.
    pub(crate) fn take_all(&mut self, kind: SocketKind) -> Vec<(String, OwnedFd)> {
        self.sockets.extract_if(.., |own| own.kind == kind).map(|own| (own.name, own.socket)).collect()
    }
}

/// All listening sockets of a server.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) sockets: Vec<Listener>,
    pub(crate) udp: Vec<UdpSocket>,
    /// The listeners for the other nodes of a ring.
    pub(crate) ring: Vec<Listener>,
    /// The unix socket's file, which is removed when this is dropped.
    pub(crate) unix_file: Option<SocketFile>,
    /// The kind and name of each of `sockets`, then of each of `udp`, and then of each of `ring`.
    pub(crate) names: Vec<(SocketKind, String)>,
}

/// Returns the host and port of an address as configured.
fn configured(address: &ListenAddress) -> String {
    format!("{}:{}", address.host.as_deref().unwrap_or("*"), address.port)
}

impl Listeners {
    /// Opens the sockets that the settings name, or uses the `inherited` ones instead if there are
    /// any. A socket that the settings name is taken from `handed` if `handed` contains it.
    ///
    /// # Errors
    /// Returns the failure of the first address that cannot be opened.
    pub(crate) fn open(
        settings: &Settings,
        inherited: Vec<OwnedFd>,
        handed: &mut Handed,
    ) -> Result<Listeners, ListenError> {
        let mut listeners = Listeners {
            sockets: Vec::new(),
            udp: Vec::new(),
            ring: Vec::new(),
            unix_file: None,
            names: Vec::new(),
        };
        if !inherited.is_empty() {
            for socket in inherited {
                let adopted = adopt(socket, settings.protocol, settings.backlog);
                let failed = |cause| ListenError { address: "a socket of LISTEN_FDS".into(), cause };
                let mut listener = adopted.map_err(failed)?;
                if matches!(listener.address, ListenerAddress::Tcp(_)) {
                    listener.tls = settings.client_certificates(ListenTls::AsSet);
                }
                listeners.sockets.push(listener);
            }
            listeners.names = vec![(SocketKind::Inherited, String::new()); listeners.sockets.len()];
            listeners.open_ring(settings, handed)?;
            return Ok(listeners);
        }
        for address in &settings.listen {
            let failed = |cause| {
                let host = address.host.as_deref().unwrap_or("all interfaces");
                ListenError { address: format!("{host}, port {}", address.port), cause }
            };
            let name = configured(address);
            let opened: Vec<Listener> = match handed.take(SocketKind::Tcp, &name) {
                taken if taken.is_empty() => bind_tcp(address, settings.backlog).map_err(failed)?,
                taken => {
                    let adopt = |socket| adopt(socket, address.protocol, settings.backlog);
                    taken.into_iter().map(adopt).collect::<Result<_, _>>().map_err(failed)?
                }
            };
            let tls = settings.client_certificates(address.tls);
            listeners.names.extend(opened.iter().map(|_| (SocketKind::Tcp, name.clone())));
            listeners.sockets.extend(opened.into_iter().map(|listener| Listener { tls, ..listener }));
        }
        let mut udp_names = Vec::new();
        for address in &settings.udp_listen {
            let failed = |cause| {
                let host = address.host.as_deref().unwrap_or("all interfaces");
                ListenError { address: format!("{host}, UDP port {}", address.port), cause }
            };
            let name = configured(address);
            let opened = match handed.take(SocketKind::Udp, &name) {
                taken if taken.is_empty() => {
                    bind_udp(address, settings.udp_reply_bytes_max).map_err(failed)?
                }
                taken => taken.into_iter().map(adopt_udp).collect::<Result<_, _>>().map_err(failed)?,
            };
            udp_names.extend(opened.iter().map(|_| (SocketKind::Udp, name.clone())));
            listeners.udp.extend(opened);
        }
        if let Some(path) = &settings.unix_path {
            let name = path.display().to_string();
            let failed = |cause| ListenError { address: name.clone(), cause };
            let bound = match handed.take(SocketKind::Unix, &name).pop() {
                Some(socket) => adopt(socket, settings.protocol, settings.backlog)
                    .map(|listener| (listener, SocketFile::of_another(path))),
                // The other process may continue to use its socket.
                None if handed.is_of_process && path.exists() => Err(io::ErrorKind::AddrInUse.into()),
                None => bind_unix(path, settings.unix_mask, settings.protocol, settings.backlog),
            };
            let (listener, file) = bound.map_err(failed)?;
            listeners.sockets.push(listener);
            listeners.names.push((SocketKind::Unix, name));
            listeners.unix_file = Some(file);
        } else if let Err(error) = write_port_file(&listeners.tcp_addresses(), &listeners.udp_addresses()) {
            tracing::warn!(cause = %error, "cannot write the file that MEMCACHED_PORT_FILENAME names");
        }
        listeners.names.extend(udp_names);
        listeners.open_ring(settings, handed)?;
        Ok(listeners)
    }

    /// Opens the sockets for the other nodes of a ring, or takes them from `handed`.
    fn open_ring(&mut self, settings: &Settings, handed: &mut Handed) -> Result<(), ListenError> {
        for address in settings.ring.iter().flat_map(|ring| &ring.listen) {
            let name = configured(address);
            let failed =
                |cause| ListenError { address: format!("{name} for the other nodes of the ring"), cause };
            let opened = match handed.take(SocketKind::Ring, &name) {
                taken if taken.is_empty() => bind_tcp(address, settings.backlog).map_err(failed)?,
                taken => {
                    let adopt = |socket| adopt(socket, None, settings.backlog);
                    taken.into_iter().map(adopt).collect::<Result<_, _>>().map_err(failed)?
                }
            };
            self.names.extend(opened.iter().map(|_| (SocketKind::Ring, name.clone())));
            self.ring.extend(opened);
        }
        Ok(())
    }

    /// Returns the information about the listeners that `stats conns` shows.
    pub(crate) fn infos(&self) -> Vec<ListenerInfo> {
        let udp = self.udp.iter().map(|udp| ListenerInfo {
            fd: udp.socket.as_raw_fd(),
            endpoints: Endpoints::Udp { local: udp.address },
            counts: Arc::default(),
        });
        self.sockets.iter().map(Listener::info).chain(udp).collect()
    }

    /// Returns the addresses of the UDP sockets.
    pub(crate) fn udp_addresses(&self) -> Vec<SocketAddr> {
        self.udp.iter().map(|udp| udp.address).collect()
    }

    /// Returns the addresses of the TCP listeners.
    pub(crate) fn tcp_addresses(&self) -> Vec<SocketAddr> {
        let tcp = self.sockets.iter().filter_map(|listener| match &listener.address {
            ListenerAddress::Tcp(address) => Some(*address),
            ListenerAddress::Unix(_) => None,
        });
        tcp.collect()
    }

    /// Returns the path of the unix socket, if there is one.
    pub(crate) fn unix_path(&self) -> Option<&Path> {
        self.sockets.iter().find_map(|listener| match &listener.address {
            ListenerAddress::Unix(path) => Some(path.as_path()),
            ListenerAddress::Tcp(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unix_socket_is_found_under_another_spelling_of_its_path() {
        let socket = std::fs::File::open("/dev/null").expect("a file").into();
        let socket = HandedSocket { kind: SocketKind::Unix, name: "/run//cached/./socket".into(), socket };
        let mut handed = Handed { sockets: vec![socket], is_of_process: true };
        assert!(handed.take(SocketKind::Unix, "/run/socket").is_empty());
        assert!(handed.take(SocketKind::Tcp, "/run/cached/socket").is_empty());
        assert_eq!(handed.take(SocketKind::Unix, "/run/cached/socket").len(), 1);
    }
}
