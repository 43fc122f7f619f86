//! Listeners: the sockets that clients connect to.
//!
//! ```text
//!  tcp, unix, inherited ──► Listener ──► acceptor ── Command::Serve ──► workers, round robin
//! ```
//! | module | content |
//! |---|---|
//! | `tcp`, `unix` | open a listening socket of that kind |
//! | `inherited` | takes over sockets that a service manager has opened |
//! | `acceptor` | accepts connections and assigns them to workers |
//! | `port_file` | the file that `MEMCACHED_PORT_FILENAME` names |
//!
//! To add a kind of listener: write a module that returns a [`Listener`], give [`ListenerAddress`] a variant, and call the module in
//! [`Listeners::open`]. Everything behind the acceptor sees connected stream sockets and needs no change. Each listener has a
//! `protocol`; a new protocol is added in `conn/requests.rs`.
//!
//! The object cache's clients do not come this way: `objects/` runs a synapse server with sockets and threads of its own.

pub(crate) mod acceptor;
mod inherited;
mod port_file;
mod tcp;
mod unix;

use crate::connections::Endpoints;
use crate::settings::Settings;
use crate::shared::ListenerInfo;
use cached_proto::Protocol;
use socket2::Socket;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: Socket,
    pub(crate) address: ListenerAddress,
    /// The protocol of its clients; `None` if the first byte of a connection decides.
    pub(crate) protocol: Option<Protocol>,
}

/// The address of a listening socket.
#[derive(Debug, Clone)]
pub(crate) enum ListenerAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Listener {
    /// Returns what `stats conns` shows of the listener.
    fn info(&self) -> ListenerInfo {
        let endpoints = match &self.address {
            ListenerAddress::Tcp(address) => Endpoints::Tcp { peer: *address, local: None },
            ListenerAddress::Unix(path) => Endpoints::Unix { path: path.clone() },
        };
        ListenerInfo { fd: self.socket.as_raw_fd(), endpoints }
    }
}

/// An address on which the server cannot listen.
pub(crate) struct ListenError {
    pub(crate) address: String,
    pub(crate) cause: io::Error,
}

/// All listening sockets of a server.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) sockets: Vec<Listener>,
    /// Removes the unix socket's file when it is dropped.
    pub(crate) unix_file: Option<unix::SocketFile>,
}

impl Listeners {
    /// Opens the sockets that the settings name, or takes over the `inherited` ones instead if there are any.
    ///
    /// # Errors
    /// For the first address that fails.
    pub(crate) fn open(settings: &Settings, inherited: Vec<OwnedFd>) -> Result<Listeners, ListenError> {
        let mut listeners = Listeners { sockets: Vec::new(), unix_file: None };
        if !inherited.is_empty() {
            for socket in inherited {
                let adopted = inherited::adopt(socket, settings.protocol, settings.backlog);
                let failed = |cause| ListenError { address: "a socket of LISTEN_FDS".into(), cause };
                listeners.sockets.push(adopted.map_err(failed)?);
            }
            return Ok(listeners);
        }
        for address in &settings.listen {
            let opened = tcp::bind(address, settings.backlog).map_err(|cause| {
                let host = address.host.as_deref().unwrap_or("all interfaces");
                ListenError { address: format!("{host}, port {}", address.port), cause }
            })?;
            listeners.sockets.extend(opened);
        }
        if let Some(path) = &settings.unix_path {
            let bound = unix::bind(path, settings.unix_mask, settings.protocol, settings.backlog);
            let failed = |cause| ListenError { address: path.display().to_string(), cause };
            let (listener, file) = bound.map_err(failed)?;
            listeners.sockets.push(listener);
            listeners.unix_file = Some(file);
        } else if let Err(error) = port_file::write(&listeners.tcp_addresses()) {
            tracing::warn!(cause = %error, "cannot write the file that MEMCACHED_PORT_FILENAME names");
        }
        Ok(listeners)
    }

    /// Returns what `stats conns` shows of the listeners.
    pub(crate) fn infos(&self) -> Vec<ListenerInfo> {
        self.sockets.iter().map(Listener::info).collect()
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
