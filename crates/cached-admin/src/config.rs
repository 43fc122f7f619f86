//! Where the listener is and what it allows.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use cached_tls::ServerTls;

use crate::tokens::Tokens;

/// Where the listener is and what it allows.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AdminConfig {
    /// The addresses to listen on, each `HOST:PORT`; port 0 is any free one.
    pub listen: Vec<String>,
    /// The tokens; needed for an address that other machines can reach.
    pub tokens: Option<Tokens>,
    /// TLS for the addresses that other machines can reach; `None` without it.
    pub tls: Option<Arc<ServerTls>>,
    /// The largest number of connections at a time; others are answered 503 and closed.
    pub connections_max: usize,
    /// The largest body of a request, in bytes.
    pub body_bytes_max: usize,
    /// How long a client may take for a request, and a handler for its response.
    pub request_timeout: Duration,
    /// After how long a connection ends with the next response.
    pub connection_time_max: Duration,
    /// Sockets that another process has opened, each with its address in `listen`: they are used instead of new ones.
    pub inherited: Vec<(String, Arc<TcpListener>)>,
    /// Whether to accept connections only from [`AdminServer::accept`](crate::AdminServer::accept) on.
    pub is_held: bool,
}

impl Default for AdminConfig {
    /// `127.0.0.1:9150`, no tokens.
    fn default() -> Self {
        AdminConfig {
            listen: vec![ADDRESS_DEFAULT.into()],
            tokens: None,
            tls: None,
            connections_max: 64,
            body_bytes_max: 64 << 10,
            request_timeout: Duration::from_secs(30),
            connection_time_max: Duration::from_secs(600),
            inherited: Vec::new(),
            is_held: false,
        }
    }
}

/// The address to listen on by default: the port that memcached's exporter uses, so that scrape configurations stay.
pub const ADDRESS_DEFAULT: &str = "127.0.0.1:9150";
