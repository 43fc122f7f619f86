//! The settings of a server: command line and configuration file, checked and in plain types.

pub use cached_tls::{ClientCertificates, KeyFormat, MinVersion, TlsSettings};

use super::auth::Auth;
use cached_config::{DrainTimes, InsightTable};
use cached_core::arbiter::SharedMemory;
use cached_process::log::LogTable;
use cached_proto::Protocol;
use cached_tls::{ServerTls, TlsError};
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// The version that `version`, `stats` and `-V` report: memcached's, because clients parse it to
/// learn what a server can do.
pub const MEMCACHED_VERSION: &str = "1.6.45";

/// The bytes that memcached counts for an item besides key, flags, value and CAS value.
pub(crate) const ITEM_HEADER_BYTES: usize = 48;
/// And the bytes after its key and its value.
pub(crate) const ITEM_ENDS_BYTES: usize = 1 + 2;

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The TCP addresses to listen on; empty with `unix_path`, or if TCP is off.
    pub listen: Vec<ListenAddress>,
    /// The addresses at which datagrams are read; each has a port of its own, 0 for any free one.
    pub udp_listen: Vec<ListenAddress>,
    /// The UDP port as it was set: 0 is off, -1 any free one.
    pub udp_port: i32,
    /// The longest reply to a datagram; longer ones are to be asked for over TCP.
    pub udp_reply_bytes_max: usize,
    /// The value of `-l`, for `stats settings`.
    pub interface: Option<String>,
    /// The TCP port as it was set: 0 is off, -1 any free one.
    pub port: i32,
    /// The protocol of clients; `None` if the first byte decides. A listener may have its own.
    pub protocol: Option<Protocol>,
    /// The passwords that clients need.
    pub auth: Auth,
    /// TLS for TCP listeners; `None` without it.
    pub tls: Option<TlsSettings>,
    /// The path of a unix socket.
    pub unix_path: Option<PathBuf>,
    /// The unix socket's permissions.
    pub unix_mask: u32,
    /// The memory for items, in bytes.
    pub memory_bytes: usize,
    /// How items and objects share their memory, if they do.
    pub shared_memory: Option<SharedMemory>,
    /// The file in which the items' memory is, which the next process takes over.
    pub memory_file: Option<PathBuf>,
    /// Use large pages if the system has them.
    pub huge_pages: bool,
    /// Keep the process's memory from being paged out.
    pub lock_memory: bool,
    /// The largest number of connections at the same time.
    pub connections_max: usize,
    /// Refuse clients above that number; otherwise they wait.
    pub connections_max_fast: bool,
    /// After how many idle seconds a TCP connection is closed; 0 for never.
    pub idle_timeout_secs: u32,
    /// The number of worker threads.
    pub threads: usize,
    /// The largest item with key and header, in bytes.
    pub item_bytes_max: usize,
    /// Evict when memory is full; otherwise refuse to store.
    pub evict: bool,
    /// The eviction policy, one of [`cached_core::kv::policy::NAMES`].
    pub eviction_policy: &'static str,
    /// Keep CAS values.
    pub cas: bool,
    /// memcached's verbosity, 0 to 3: the number of `-v`.
    pub verbosity: u8,
    /// The log.
    pub log: LogTable,
    /// The times of an orderly end.
    pub drain: DrainTimes,
    /// How long a new process may take to start, and again to take over, in seconds.
    pub upgrade_timeout_secs: u64,
    /// Whether `flush_all` is enabled.
    pub flush_enabled: bool,
    /// Whether key dumps and counts by prefix are enabled.
    pub dump_enabled: bool,
    /// Whether `watch` is enabled.
    pub watch_enabled: bool,
    /// Whether `shutdown` is enabled.
    pub shutdown_command: bool,
    /// What `config get cluster` answers.
    pub cluster_discovery: Discovery,
    /// Whether `debugtime` is enabled, for tests.
    pub debug_clock: bool,
    /// The number of batches (one read, or one full output buffer) of a connection before others
    /// are served.
    pub batches_per_wake: u32,
    /// The number of its requests before others are served; `None` for as many as the batches hold.
    pub requests_per_wake: Option<u32>,
    /// Tie each worker thread to one of the cores that the process may run on.
    pub pin_workers: bool,
    /// The number of connections that may wait to be accepted.
    pub backlog: u32,
    /// The user to become, when started as root.
    pub user: Option<String>,
    /// Leave the terminal.
    pub daemon: bool,
    /// Allow core files of any size.
    pub core_dumps: bool,
    /// The file for the process ID.
    pub pid_file: Option<PathBuf>,
    /// The delimiter after a key's prefix in `stats detail`, which is on from the start if this is
    /// set.
    pub prefix_delimiter: Option<u8>,
    /// The size classes of reports.
    pub classes: SlabClasses,
    /// Whether `stats sizes` is enabled.
    pub track_sizes: bool,
    /// The buffer of log lines for each watcher, in bytes.
    pub watcher_buffer_bytes: usize,
    /// The queue of log lines for all watchers, in bytes for each worker.
    pub worker_buffer_bytes: usize,
    /// Settings without effect.
    pub inert: InertSettings,
    /// Lines to log once at the start.
    pub notes: Vec<String>,
    /// The table `[insight]`.
    pub insight: InsightTable,
    /// The bytes that all connections together may hold for unfinished input and unsent output.
    pub connection_bytes_max: usize,
    /// The largest number of connections of one address; 0 is without limit.
    pub peer_connections_max: usize,
}

/// One `-l` address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress {
    /// A host name or address; `None` for every interface.
    pub host: Option<String>,
    /// The port; 0 for any free one.
    pub port: u16,
    /// The protocol of its clients; `None` if the first byte decides.
    pub protocol: Option<Protocol>,
    /// Whether its clients use TLS.
    pub tls: ListenTls,
}

/// Whether the clients of a listener use TLS.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum ListenTls {
    /// If there is TLS at all, with the certificates of clients that its settings name.
    #[default]
    AsSet,
    /// They do not (`notls:`).
    Off,
    /// They do, and show no certificates (`btls:`).
    WithoutCertificates,
    /// They do, and must show a certificate (`mtls:`).
    WithCertificates,
}

/// memcached's size classes, for reports.
#[derive(Debug, Clone, PartialEq)]
pub struct SlabClasses {
    /// The growth from one class to the next.
    pub factor: f64,
    /// The smallest chunk's space for key, value and flags, in bytes.
    pub chunk_bytes_min: usize,
    /// The largest chunk, in bytes.
    pub chunk_bytes_max: usize,
    /// The classes one by one, in bytes; if empty, they follow from the other fields.
    pub sizes: Vec<usize>,
}

impl Default for SlabClasses {
    fn default() -> Self {
        SlabClasses { factor: 1.25, chunk_bytes_min: 48, chunk_bytes_max: 512 << 10, sizes: Vec::new() }
    }
}

/// Settings of parts that this engine does not have, for `stats settings`.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each is memcached's option of that name")]
pub struct InertSettings {
    pub hashpower_init: i32,
    pub slab_reassign: bool,
    pub slab_automove: i32,
    pub slab_automove_ratio: f64,
    pub slab_automove_window: i32,
    pub slab_automove_freeratio: f64,
    pub tail_repair_time: i32,
    pub lru_crawler: bool,
    pub lru_crawler_sleep: u32,
    pub lru_crawler_tocrawl: u32,
    pub lru_maintainer: bool,
    pub lru_segmented: bool,
    pub hot_lru_pct: u32,
    pub warm_lru_pct: u32,
    pub hot_max_factor: f64,
    pub warm_max_factor: f64,
    pub temp_lru: bool,
    pub temporary_ttl: u32,
    pub idle_timeout: i32,
    pub read_buf_mem_limit: usize,
    pub ssl_wbuf_size: usize,
}

impl Default for InertSettings {
    /// memcached's defaults.
    fn default() -> Self {
        InertSettings {
            hashpower_init: 0,
            slab_reassign: true,
            slab_automove: 1,
            slab_automove_ratio: 0.8,
            slab_automove_window: 10,
            slab_automove_freeratio: 0.01,
            tail_repair_time: 0,
            lru_crawler: true,
            lru_crawler_sleep: 100,
            lru_crawler_tocrawl: 0,
            lru_maintainer: true,
            lru_segmented: true,
            hot_lru_pct: 20,
            warm_lru_pct: 40,
            hot_max_factor: 0.2,
            warm_max_factor: 2.0,
            temp_lru: false,
            temporary_ttl: 61,
            idle_timeout: 0,
            read_buf_mem_limit: 0,
            ssl_wbuf_size: 16 << 10,
        }
    }
}

impl Settings {
    /// Reads the certificates that the settings name; `None` without TLS. To be called while the
    /// process may read their files.
    ///
    /// # Errors
    /// [`TlsError`] if they cannot be used.
    pub fn load_tls(&self) -> Result<Option<Arc<ServerTls>>, TlsError> {
        let Some(tls) = &self.tls else { return Ok(None) };
        ServerTls::load(tls.clone(), &self.certificate_policies()).map(Arc::new).map(Some)
    }

    /// Returns which certificates the clients of a TCP listener must show; `None` if they do not
    /// use TLS.
    pub(crate) fn client_certificates(&self, listen: ListenTls) -> Option<ClientCertificates> {
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

    /// Returns the largest sum of key and value, by memcached's calculation of an item's size. The
    /// store checks it, because only the store knows the length of a value after an append.
    pub(crate) fn joined_bytes_max(&self) -> usize {
        let cas_bytes = if self.cas { 8 } else { 0 };
        self.item_bytes_max.saturating_sub(ITEM_HEADER_BYTES + ITEM_ENDS_BYTES + cas_bytes)
    }

    /// Returns the default of [`connection_bytes_max`](Settings::connection_bytes_max): 64 KiB for
    /// each connection, within 16 and 256 MiB, but enough for the largest value, which is collected
    /// in one buffer for an append.
    pub fn connection_bytes_for(connections_max: usize, item_bytes_max: usize) -> usize {
        let by_count = connections_max.saturating_mul(64 << 10).clamp(16 << 20, 256 << 20);
        by_count.max(item_bytes_max.saturating_add(64 << 10))
    }
}

impl Default for Settings {
    /// memcached's defaults, on the loopback interface.
    fn default() -> Self {
        Settings {
            listen: vec![ListenAddress {
                host: Some("127.0.0.1".into()),
                port: 11211,
                protocol: None,
                tls: ListenTls::AsSet,
            }],
            udp_listen: Vec::new(),
            udp_port: 0,
            udp_reply_bytes_max: 2 << 20,
            interface: Some("127.0.0.1".into()),
            port: 11211,
            protocol: None,
            auth: Auth::default(),
            tls: None,
            unix_path: None,
            unix_mask: 0o700,
            memory_bytes: 64 << 20,
            shared_memory: None,
            memory_file: None,
            huge_pages: false,
            lock_memory: false,
            connections_max: 1024,
            connections_max_fast: true,
            idle_timeout_secs: 0,
            threads: 4,
            item_bytes_max: 1 << 20,
            evict: true,
            eviction_policy: cached_core::kv::policy::NAMES[0],
            cas: true,
            verbosity: 0,
            log: LogTable::default(),
            drain: DrainTimes::default(),
            upgrade_timeout_secs: 30,
            flush_enabled: true,
            dump_enabled: true,
            watch_enabled: true,
            shutdown_command: false,
            cluster_discovery: Discovery::Off,
            debug_clock: false,
            batches_per_wake: 20,
            requests_per_wake: None,
            pin_workers: false,
            backlog: 1024,
            user: None,
            daemon: false,
            core_dumps: false,
            pid_file: None,
            prefix_delimiter: None,
            classes: SlabClasses::default(),
            track_sizes: false,
            watcher_buffer_bytes: 256 << 10,
            worker_buffer_bytes: 64 << 10,
            inert: InertSettings::default(),
            notes: Vec::new(),
            insight: InsightTable::default(),
            connection_bytes_max: Settings::connection_bytes_for(1024, 1 << 20),
            peer_connections_max: 0,
        }
    }
}

// `config get cluster` speaks ElastiCache's protocol, by which clients find the nodes of a cluster.

/// The address that `config get cluster` answers, if any.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Discovery {
    /// None: the command is unknown, as in memcached.
    #[default]
    Off,
    /// The one to which the client is connected.
    Reached,
    /// This one, for clients behind NAT.
    Address {
        /// A name or an IP address.
        host: String,
        /// The TCP port.
        port: u16,
    },
}

/// The longest host: a name of the DNS.
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

/// Returns the reply that names one node. Without `ip` a client has to resolve the host.
pub(crate) fn encode_cluster(version: u64, host: &str, ip: Option<IpAddr>, port: u16) -> Vec<u8> {
    let ip = ip.map(|ip| ip.to_string()).unwrap_or_default();
    let nodes = format!("{version}\n{host}|{ip}|{port}\n");
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
        let reply = encode_cluster(12, "cache.example", Some(IpAddr::from([10, 0, 0, 1])), 11211);
        assert_eq!(reply, b"CONFIG cluster 0 32\r\n12\ncache.example|10.0.0.1|11211\n\r\nEND\r\n");
        assert_eq!(encode_cluster(1, "h", None, 2), b"CONFIG cluster 0 7\r\n1\nh||2\n\r\nEND\r\n");
    }
}
