//! What the server was told to do: the command line, judged and in plain types.

use std::path::PathBuf;

/// The version that `version`, `stats` and `-V` report: memcached's, because clients parse it to learn what a server can do.
pub const MEMCACHED_VERSION: &str = "1.6.45";

/// How the server is to run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where to listen for TCP; empty with `unix_path`, or when TCP is off.
    pub listen: Vec<ListenAddress>,
    /// What `-l` said, for `stats settings`.
    pub interface: Option<String>,
    /// The TCP port as given: 0 is off, -1 any free one.
    pub port: i32,
    /// A unix socket, instead of TCP.
    pub unix_path: Option<PathBuf>,
    /// The unix socket's permissions.
    pub unix_mask: u32,
    /// Memory for items.
    pub memory_bytes: usize,
    /// Connections at the same time.
    pub connections_max: usize,
    /// Worker threads.
    pub threads: usize,
    /// The largest item, key and header included.
    pub item_bytes_max: usize,
    /// Make room by evicting; otherwise refuse to store.
    pub evict: bool,
    /// Keep CAS values.
    pub cas: bool,
    /// How much to log: 0 to 3.
    pub verbosity: u8,
    /// Whether `flush_all` works.
    pub flush_enabled: bool,
    /// Whether keys may be dumped, and counted by prefix.
    pub dump_enabled: bool,
    /// Whether `watch` may be asked for.
    pub watch_enabled: bool,
    /// Whether `shutdown` works.
    pub shutdown_command: bool,
    /// Batches (one read, or one full output buffer) that a connection may take before others get their turn.
    pub batches_per_wake: u32,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// The user to become, when started as root.
    pub user: Option<String>,
    /// Bytes that all connections together may hold for unfinished input and unread output.
    pub connection_bytes_max: usize,
}

/// One `-l` address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress {
    /// A host name or address; `None` for every interface.
    pub host: Option<String>,
    /// The port; 0 for any free one.
    pub port: u16,
}

impl Settings {
    /// Buffers of all connections together, unless set: 64 KiB each, within 16 and 256 MiB.
    pub fn connection_bytes_for(connections_max: usize) -> usize {
        connections_max.saturating_mul(64 << 10).clamp(16 << 20, 256 << 20)
    }
}

impl Default for Settings {
    /// memcached's defaults, on the loopback interface.
    fn default() -> Self {
        Settings {
            listen: vec![ListenAddress { host: Some("127.0.0.1".into()), port: 11211 }],
            interface: Some("127.0.0.1".into()),
            port: 11211,
            unix_path: None,
            unix_mask: 0o700,
            memory_bytes: 64 << 20,
            connections_max: 1024,
            threads: 4,
            item_bytes_max: 1 << 20,
            evict: true,
            cas: true,
            verbosity: 0,
            flush_enabled: true,
            dump_enabled: true,
            watch_enabled: true,
            shutdown_command: false,
            batches_per_wake: 20,
            backlog: 1024,
            user: None,
            connection_bytes_max: Settings::connection_bytes_for(1024),
        }
    }
}
