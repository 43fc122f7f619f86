//! `stats conns`: every listener and every connection, by file descriptor.

use super::Sink;
use crate::connections::Endpoints;
use crate::shared::Shared;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// `tcp:127.0.0.1:11211`, `tcp6:[::1]:11211`.
struct Address<'a>(&'a SocketAddr);

impl fmt::Display for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.0.is_ipv6() { "tcp6" } else { "tcp" };
        write!(f, "{family}:{}", self.0)
    }
}

/// Writes the report for the connection `client`, the only one that is known to be within a request.
pub(super) fn write(shared: &Shared, sink: &mut Sink<'_>, client: RawFd) {
    let now = shared.clock.now_secs();
    for listener in shared.listeners.get().into_iter().flatten() {
        let fd = listener.fd;
        match &listener.endpoints {
            Endpoints::Tcp { peer, .. } => sink.put(&format!("{fd}:addr"), Address(peer)),
            Endpoints::Unix { path } => {
                sink.put(&format!("{fd}:addr"), format_args!("unix:{}", path.display()));
            }
            Endpoints::Udp { local } => {
                sink.put(&format!("{fd}:UDP"), "UDP");
                let family = if local.is_ipv6() { "udp6" } else { "udp" };
                sink.put(&format!("{fd}:addr"), format_args!("{family}:{local}"));
                sink.put(&format!("{fd}:state"), "conn_read");
                sink.put(&format!("{fd}:secs_since_last_cmd"), shared.clock.uptime_secs());
                continue;
            }
        }
        sink.put(&format!("{fd}:state"), "conn_listening");
        sink.put(&format!("{fd}:secs_since_last_cmd"), shared.clock.uptime_secs());
    }
    for conn in shared.connections.snapshot() {
        let fd = conn.fd;
        match &conn.endpoints {
            Endpoints::Tcp { peer, local } => {
                sink.put(&format!("{fd}:addr"), Address(peer));
                if let Some(local) = local {
                    sink.put(&format!("{fd}:listen_addr"), Address(local));
                }
            }
            Endpoints::Unix { path } => {
                sink.put(&format!("{fd}:addr"), "unix:");
                sink.put(&format!("{fd}:listen_addr"), format_args!("unix:{}", path.display()));
            }
            // Clients that send datagrams are in no table.
            Endpoints::Udp { .. } => {}
        }
        let state = if fd == client { "conn_parse_cmd" } else { conn.state_text() };
        sink.put(&format!("{fd}:state"), state);
        sink.put(&format!("{fd}:secs_since_last_cmd"), now.saturating_sub(conn.last_active()));
    }
}
