//! `config get cluster`: a client that looks for the nodes of a cluster finds this server as the only one.

use super::Executor;
use crate::config::discovery::{Discovery, encode};
use crate::connections::Endpoints;
use cached_proto::reply;
use cached_proto::text::Tokens;
use std::net::SocketAddr;

const NO_ADDRESS: &[u8] =
    b"SERVER_ERROR no address is known to the client: set cluster_discovery to HOST:PORT\r\n";

/// Returns the reply, or the words of an error.
pub(super) fn reply(executor: &Executor<'_>, tokens: &Tokens<'_>) -> Result<Vec<u8>, &'static [u8]> {
    let is_known = tokens.len() == 3 && tokens.get(1) == Some(b"get") && tokens.get(2) == Some(b"cluster");
    let discovery = &executor.shared.settings.cluster_discovery;
    if !is_known || *discovery == Discovery::Off {
        // As from memcached.
        return Err(reply::ERROR);
    }
    let reached = reached(executor).or_else(|| listener(executor));
    let (host, ip, port) = match discovery {
        Discovery::Address { host, port } => {
            let ip = match host.parse() {
                Ok(ip) => Some(ip),
                Err(_) => reached.map(|address| address.ip()),
            };
            (host.clone(), ip, *port)
        }
        _ => {
            let address = reached.ok_or(NO_ADDRESS)?;
            (address.ip().to_string(), Some(address.ip()), address.port())
        }
    };
    // The version rises with every start, so that clients read a list that may be another.
    Ok(encode(executor.shared.clock.started_unix_secs(), &host, ip, port))
}

/// Returns the address of this server to which the client is connected.
fn reached(executor: &Executor<'_>) -> Option<SocketAddr> {
    let all = executor.shared.connections.snapshot();
    match &all.iter().find(|info| info.fd == executor.client)?.endpoints {
        Endpoints::Tcp { local, .. } => local.map(canonical),
        Endpoints::Unix { .. } | Endpoints::Udp { .. } => None,
    }
}

/// Returns the address of a TCP listener, if one has an address of its own: for clients of the unix socket and for
/// datagrams.
fn listener(executor: &Executor<'_>) -> Option<SocketAddr> {
    executor.shared.listeners.get()?.iter().find_map(|listener| match listener.endpoints {
        Endpoints::Tcp { peer, .. } if !peer.ip().is_unspecified() => Some(canonical(peer)),
        _ => None,
    })
}

/// An IPv4 address of a listener for both is shown as one.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
