//! The settings of a server in plain types, validated; the files of users and passwords (`auth`);
//! and memcached's size classes (`size_classes`). Reading the command line and the configuration
//! file belongs to the program.

mod auth;
mod ring;
pub(crate) mod size_classes;

pub use auth::{Auth, Credentials, Form, PasswordsRead};
pub use cached_tls::{ClientCertificates, KeyFormat, MinVersion, ServerTls, TlsSettings};
pub use ring::{RingSecrets, RingSettings};
pub use size_classes::PAGE_BYTES;

use cached_config::{ConfigError, DrainTimes, InsightTable, load_tls, with_defaults};
use cached_core::arbiter::SharedMemory;
use cached_process::log::LogTable;
use cached_proto::Protocol;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// The version that `version`, `stats` and `-V` report. It is a version of memcached, because
/// clients parse it to learn what a server can do.
pub const MEMCACHED_VERSION: &str = "1.6.45";

/// The maximum of [`Settings::io_uring_sockets_min`]. A worker serves at most this number of
/// connections together, so with a larger minimum it would never do so.
pub const IO_URING_SOCKETS_MAX: usize = 32;

/// The bytes that memcached counts for an item in addition to key, flags, value and CAS value.
pub(crate) const ITEM_HEADER_BYTES: usize = 48;
/// The bytes that memcached counts after the key and after the value.
pub(crate) const ITEM_ENDS_BYTES: usize = 1 + 2;

with_defaults! {
    /// The settings of a server. The defaults are memcached's, on the loopback interface.
    #[derive(Debug, Clone)]
    pub struct Settings {
        /// The TCP addresses to listen on; empty with `unix_path`, or if TCP is off.
        pub listen: Vec<ListenAddress> =
            vec![ListenAddress { host: Some("127.0.0.1".into()), port: 11211, protocol: None, tls: ListenTls::AsSet }],
        /// The addresses at which datagrams are received. Each has its own port; 0 means any free
        /// port.
        pub udp_listen: Vec<ListenAddress> = Vec::new(),
        /// The UDP port as configured: 0 means off, -1 any free port.
        pub udp_port: i32 = 0,
        /// The maximum length of a reply to a datagram; larger values must be requested over TCP.
        pub udp_reply_bytes_max: usize = 2 << 20,
        /// The value of `-l`, for `stats settings`.
        pub interface: Option<String> = Some("127.0.0.1".into()),
        /// The TCP port as configured: 0 means off, -1 any free port.
        pub port: i32 = 11211,
        /// The protocol of clients; `None` if the first byte decides. A listener may have its own
        /// protocol.
        pub protocol: Option<Protocol> = None,
        /// The passwords that clients need.
        pub auth: Auth = Auth::default(),
        /// TLS for TCP listeners; `None` without it.
        pub tls: Option<TlsSettings> = None,
        /// The path of a unix socket.
        pub unix_path: Option<PathBuf> = None,
        /// The unix socket's permissions.
        pub unix_mask: u32 = 0o700,
        /// The memory for items, in bytes.
        pub memory_bytes: usize = 64 << 20,
        /// The way in which items and objects share their memory, if they do.
        pub shared_memory: Option<SharedMemory> = None,
        /// The file that holds the items' memory, which the next process takes over.
        pub memory_file: Option<PathBuf> = None,
        /// Whether to use huge pages if the system has them.
        pub huge_pages: bool = false,
        /// Whether to keep the process's memory from being paged out.
        pub lock_memory: bool = false,
        /// The maximum number of simultaneous connections.
        pub connections_max: usize = 1024,
        /// Whether to refuse clients beyond `connections_max`; otherwise they wait.
        pub connections_max_fast: bool = true,
        /// The idle time, in seconds, after which a TCP connection is closed; 0 for never.
        pub idle_timeout_secs: u32 = 0,
        /// The number of worker threads.
        pub threads: usize = 4,
        /// The maximum size of an item with key and header, in bytes.
        pub item_bytes_max: usize = 1 << 20,
        /// Whether to evict items when memory is full; otherwise stores are refused.
        pub evict: bool = true,
        /// The eviction policy, one of [`cached_core::kv::policy::NAMES`].
        pub eviction_policy: &'static str = cached_core::kv::policy::NAMES[0],
        /// Whether to keep CAS values.
        pub cas: bool = true,
        /// memcached's verbosity, 0 to 3: the number of `-v`.
        pub verbosity: u8 = 0,
        /// The log.
        pub log: LogTable = LogTable::default(),
        /// The times of an orderly shutdown.
        pub drain: DrainTimes = DrainTimes::default(),
        /// The maximum time for a new process to start, and again for it to take over, in seconds.
        pub upgrade_timeout_secs: u64 = 30,
        /// Whether `flush_all` is enabled.
        pub flush_enabled: bool = true,
        /// Whether key dumps and counts by prefix are enabled.
        pub dump_enabled: bool = true,
        /// Whether `watch` is enabled.
        pub watch_enabled: bool = true,
        /// Whether `shutdown` is enabled.
        pub shutdown_command: bool = false,
        /// The reply to `config get cluster`.
        pub cluster_discovery: Discovery = Discovery::Off,
        /// Whether `debugtime` is enabled, for tests.
        pub debug_clock: bool = false,
        /// The maximum number of batches (one read, or one full output buffer) of a connection
        /// before others are served.
        pub batches_per_wake: u32 = 20,
        /// The maximum number of requests of a connection before others are served; `None` means as
        /// many as the batches contain.
        pub requests_per_wake: Option<u32> = None,
        /// The minimum number of ready connections that a worker serves as a bundle, through
        /// io_uring where the system allows it; 0 for never, and at most
        /// [`IO_URING_SOCKETS_MAX`].
        pub io_uring_sockets_min: usize = 4,
        /// Whether to pin each worker thread to one of the cores on which the process may run.
        pub pin_workers: bool = false,
        /// The number of connections that may wait to be accepted.
        pub backlog: u32 = 1024,
        /// The user to become when started as root.
        pub user: Option<String> = None,
        /// Whether to detach from the terminal.
        pub daemon: bool = false,
        /// Whether to allow core files of any size.
        pub core_dumps: bool = false,
        /// The file for the process ID.
        pub pid_file: Option<PathBuf> = None,
        /// The delimiter after a key's prefix in `stats detail`. If this is set, `stats detail` is
        /// on from startup.
        pub prefix_delimiter: Option<u8> = None,
        /// The size classes of reports.
        pub classes: SlabClasses = SlabClasses::default(),
        /// Whether `stats sizes` is enabled.
        pub track_sizes: bool = false,
        /// The size of the buffer of log lines for each watcher, in bytes.
        pub watcher_buffer_bytes: usize = 256 << 10,
        /// The size of the queue of log lines for all watchers, in bytes for each worker.
        pub worker_buffer_bytes: usize = 64 << 10,
        /// Settings without effect.
        pub inert: InertSettings = InertSettings::default(),
        /// Lines to log once at startup.
        pub notes: Vec<String> = Vec::new(),
        /// The table `[insight]`.
        pub insight: InsightTable = InsightTable::default(),
        /// The maximum number of bytes that all connections together may hold for unfinished input
        /// and unsent output.
        pub connection_bytes_max: usize = Settings::connection_bytes_for(1024, 1 << 20),
        /// The maximum number of connections from one address; 0 means no limit.
        pub peer_connections_max: usize = 0,
        /// The ring to which the server belongs; `None` without one.
        pub ring: Option<Arc<RingSettings>> = None,
    }
}

/// One `-l` address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress {
    /// A host name or address; `None` for every interface.
    pub host: Option<String>,
    /// The port; 0 means any free port.
    pub port: u16,
    /// The protocol of the listener's clients; `None` if the first byte decides.
    pub protocol: Option<Protocol>,
    /// Whether the listener's clients use TLS.
    pub tls: ListenTls,
}

/// Whether the clients of a listener use TLS.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum ListenTls {
    /// Clients use TLS if it is configured, and must present the client certificates that the TLS
    /// settings require.
    #[default]
    AsSet,
    /// Clients do not use TLS (`notls:`).
    Off,
    /// Clients use TLS, and present no certificates (`btls:`).
    WithoutCertificates,
    /// Clients use TLS, and must present a certificate (`mtls:`).
    WithCertificates,
}

with_defaults! {
    /// memcached's size classes, for reports.
    #[derive(Debug, Clone, PartialEq)]
    pub struct SlabClasses {
        /// The growth factor from one class to the next.
        pub factor: f64 = 1.25,
        /// The space of the smallest chunk for key, value and flags, in bytes.
        pub chunk_bytes_min: usize = 48,
        /// The largest chunk, in bytes.
        pub chunk_bytes_max: usize = 512 << 10,
        /// The individual classes, in bytes; if empty, they are derived from the other fields.
        pub sizes: Vec<usize> = Vec::new(),
    }
}

with_defaults! {
    /// Settings of features that this engine does not have, for `stats settings`.
    #[derive(Debug, Clone, PartialEq)]
    #[expect(missing_docs, reason = "each is memcached's option of that name")]
    pub struct InertSettings {
        pub hashpower_init: i32 = 0,
        pub slab_reassign: bool = true,
        pub slab_automove: i32 = 1,
        pub slab_automove_ratio: f64 = 0.8,
        pub slab_automove_window: i32 = 10,
        pub slab_automove_freeratio: f64 = 0.01,
        pub tail_repair_time: i32 = 0,
        pub lru_crawler: bool = true,
        pub lru_crawler_sleep: u32 = 100,
        pub lru_crawler_tocrawl: u32 = 0,
        pub lru_maintainer: bool = true,
        pub lru_segmented: bool = true,
        pub hot_lru_pct: u32 = 20,
        pub warm_lru_pct: u32 = 40,
        pub hot_max_factor: f64 = 0.2,
        pub warm_max_factor: f64 = 2.0,
        pub temp_lru: bool = false,
        pub temporary_ttl: u32 = 61,
        pub idle_timeout: i32 = 0,
        pub read_buf_mem_limit: usize = 0,
        pub ssl_wbuf_size: usize = 16 << 10,
    }
}

impl Settings {
    /// Reads the certificates that the settings name; `None` without TLS. This must be called while
    /// the process still has permission to read the files.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if the certificates cannot be used.
    pub fn load_tls(&self) -> Result<Option<Arc<ServerTls>>, ConfigError> {
        load_tls("memcached.tls", self.tls.as_ref(), &self.certificate_policies())
    }

    /// Returns which certificates the clients of a TCP listener must present; `None` if they do not
    /// use TLS.
    pub fn client_certificates(&self, listen: ListenTls) -> Option<ClientCertificates> {
        let tls = self.tls.as_ref()?;
        match listen {
            ListenTls::AsSet => Some(tls.client_certificates),
            ListenTls::Off => None,
            ListenTls::WithoutCertificates => Some(ClientCertificates::None),
            ListenTls::WithCertificates => Some(ClientCertificates::Require),
        }
    }

    /// Returns whether there is a listener that can serve no client.
    pub fn refuses_all_clients(&self, tls: &ServerTls) -> bool {
        self.certificate_policies().into_iter().any(|policy| tls.refuses_all(policy))
    }

    /// Returns the policies that listeners need.
    fn certificate_policies(&self) -> Vec<ClientCertificates> {
        self.listen.iter().filter_map(|address| self.client_certificates(address.tls)).collect()
    }

    /// Returns the maximum sum of key and value, by memcached's calculation of an item's size. The
    /// store enforces it, because only the store knows the length of a value after an append.
    pub(crate) fn joined_bytes_max(&self) -> usize {
        let cas_bytes = if self.cas { 8 } else { 0 };
        self.item_bytes_max.saturating_sub(ITEM_HEADER_BYTES + ITEM_ENDS_BYTES + cas_bytes)
    }

    /// Returns the default of [`connection_bytes_max`](Settings::connection_bytes_max): 64 KiB for
    /// each connection, between 16 and 256 MiB in total, but enough for the largest value, which is
    /// collected in a single buffer for an append.
    pub fn connection_bytes_for(connections_max: usize, item_bytes_max: usize) -> usize {
        let by_count = connections_max.saturating_mul(64 << 10).clamp(16 << 20, 256 << 20);
        by_count.max(item_bytes_max.saturating_add(64 << 10))
    }

    /// Sets [`connection_bytes_max`](Settings::connection_bytes_max); 0 selects the default.
    pub fn set_connection_bytes(&mut self, bytes: usize) {
        self.connection_bytes_max = match bytes {
            0 => Self::connection_bytes_for(self.connections_max, self.item_bytes_max),
            bytes => bytes,
        };
    }
}

// `config get cluster` implements ElastiCache's protocol, by which clients find the nodes of a
// cluster.

/// The address in the reply to `config get cluster`, if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Discovery {
    /// There is no address: the command is unknown, as in memcached.
    #[default]
    Off,
    /// The address to which the client is connected.
    Reached,
    /// This address, for clients behind NAT.
    Address {
        /// A name or an IP address.
        host: String,
        /// The TCP port.
        port: u16,
    },
}

/// The maximum length of a host name, which is that of DNS names.
const HOST_BYTES_MAX: usize = 253;

impl FromStr for Discovery {
    type Err = String;

    fn from_str(text: &str) -> Result<Discovery, String> {
        let wrong =
            || format!("is \"{text}\"; it must be off, reached, or an address of this server: HOST:PORT");
        match text {
            "" | "off" => return Ok(Discovery::Off),
            "reached" => return Ok(Discovery::Reached),
            _ => {}
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(ip) if ip.parse::<std::net::Ipv6Addr>().is_ok() => ip,
            _ => host,
        };
        let is_name =
            host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
        let is_host =
            (1..=HOST_BYTES_MAX).contains(&host.len()) && (is_name || host.parse::<IpAddr>().is_ok());
        if is_host { Ok(Discovery::Address { host: host.into(), port }) } else { Err(wrong()) }
    }
}

impl std::fmt::Display for Discovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Discovery::Off => f.write_str("off"),
            Discovery::Reached => f.write_str("reached"),
            Discovery::Address { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Discovery::Address { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// Returns the reply that names nodes, each by host, IP address and port. Without an IP address, a
/// client must resolve the host.
pub(crate) fn encode_cluster<'a>(
    version: u64,
    nodes: impl IntoIterator<Item = (&'a str, Option<IpAddr>, u16)>,
) -> Vec<u8> {
    let node = |(host, ip, port): (&str, Option<IpAddr>, u16)| {
        format!("{host}|{}|{port}", ip.map(|ip| ip.to_string()).unwrap_or_default())
    };
    let nodes: Vec<String> = nodes.into_iter().map(node).collect();
    let nodes = format!("{version}\n{}\n", nodes.join(" "));
    format!("CONFIG cluster 0 {}\r\n{nodes}\r\nEND\r\n", nodes.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_shown() {
        for text in ["off", "reached", "cache-1.example:11211", "10.0.0.1:1", "[::1]:11211"] {
            assert_eq!(text.parse::<Discovery>().map(|setting| setting.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("".parse(), Ok(Discovery::Off));
        for text in
            ["on", "host", "host:0", "host:65536", ":11211", "a b:1", "a|b:1", "::1:11211x", "[x]:1", "h\n:1"]
        {
            assert!(text.parse::<Discovery>().is_err(), "{text}");
        }
        assert!(format!("{}:1", "h".repeat(254)).parse::<Discovery>().is_err());
    }

    #[test]
    fn the_length_counts_the_lines_of_version_and_nodes() {
        let one = ("cache.example", Some(IpAddr::from([10, 0, 0, 1])), 11211);
        let reply = encode_cluster(12, [one]);
        assert_eq!(reply, b"CONFIG cluster 0 32\r\n12\ncache.example|10.0.0.1|11211\n\r\nEND\r\n");
        let two = encode_cluster(1, [("h", None, 2), ("i", None, 3)]);
        assert_eq!(two, b"CONFIG cluster 0 12\r\n1\nh||2 i||3\n\r\nEND\r\n");
    }
}
