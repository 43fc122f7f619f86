//! `[memcached]`: the listeners for memcached's protocols. Each key corresponds to one of
//! memcached's flags, with a clear name that includes the unit.
//!
//! Flags that have no effect in this engine have no key; they are accepted only on the command
//! line.

use cached_config::{
    ConfigError, Size, check_tls, config_keys, eviction_policy, invalid, require, unix_mode,
};
use cached_core::kv::{ARENA_BYTES_MIN, ITEM_BYTES_MAX, ITEM_BYTES_MIN};
use cached_memcached::settings::{
    Credentials, Form, IO_URING_SOCKETS_MAX, ListenAddress, ListenTls, Settings, TlsSettings,
};
use cached_proto::Protocol;
use cached_proto::udp::{UDP_DATA_LEN_MAX, UDP_REPLY_LEN_MAX};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::path::PathBuf;

config_keys! {
    /// The table `[memcached]`. An empty string means none.
    pub(crate) struct MemcachedTable over Settings = Settings::default();

    /// `-l` and `-p`, one listener each.
    pub(crate) listen: Vec<String> = made(|settings: &Settings| listeners(&settings.listen, settings.protocol));
    /// `-U`, with the addresses of `-l`.
    pub(crate) udp_listen: Vec<String> = made(|settings: &Settings| listeners(&settings.udp_listen, None));
    /// This key has no flag. Without a limit, replies to datagrams would be unbounded.
    udp_reply_bytes_max: Size = size(udp_reply_bytes_max), in Size::from(UDP_DATA_LEN_MAX)..=Size::from(UDP_REPLY_LEN_MAX);
    /// `-s`; in addition to TCP, not instead of it.
    unix_path: PathBuf = optional(unix_path);
    /// `-a`.
    unix_mode: String = made(|settings: &Settings| format!("{:o}", settings.unix_mask));
    /// `-B`.
    protocol: ListenProtocol = name(protocol);
    /// `-Y`.
    auth_file: PathBuf = made(|settings: &Settings| path_of(settings.auth.text.as_ref()));
    /// `-S`, with the file that MEMCACHED_SASL_PWDB names.
    sasl_file: PathBuf = made(|settings: &Settings| path_of(settings.auth.sasl.as_ref()));
    /// `-m`.
    memory_bytes_max: Size = size(memory_bytes), in Size::from(ARENA_BYTES_MIN)..=Size(MEMORY_BYTES_MAX);
    /// `-e`.
    memory_file: PathBuf = optional(memory_file);
    /// `-L`.
    huge_pages: bool = same(huge_pages);
    /// `-I`.
    item_bytes_max: Size = size(item_bytes_max), in Size::from(ITEM_BYTES_MIN)..=Size::from(ITEM_BYTES_MAX);
    /// Not `-M`.
    evict: bool = same(evict);
    /// `-o eviction_policy`.
    eviction_policy: String = made(|settings: &Settings| settings.eviction_policy.into());
    /// Not `-C`.
    cas: bool = same(cas);
    /// `-t`.
    threads: u32 = count(threads), in 1..=1024;
    /// `-c`.
    connections_max: u32 = count(connections_max), in 1..=i32::MAX as u32;
    /// `-o maxconns_fast` and `no_maxconns_fast`.
    connections_excess: Excess = made(|settings: &Settings| if settings.connections_max_fast { Excess::Refuse } else { Excess::Wait });
    /// This key has no flag; 0 means no limit.
    peer_connections_max: u32 = count(peer_connections_max);
    /// `-o read_buf_mem_limit`; if 0, the limit is derived from `connections_max`.
    connection_bytes_max: Size = size(inert.read_buf_mem_limit);
    /// `-o idle_timeout`.
    idle_timeout_secs: u32 = same(idle_timeout_secs), in 0..=i32::MAX as u32;
    /// `-b`.
    listen_backlog: u32 = same(backlog), in 0..=i32::MAX as u32;
    /// This key has no flag. It is the limit of a drive without `-R`.
    batches_per_wake: u32 = same(batches_per_wake), in 1..=i32::MAX as u32;
    /// `-R`; 0 means no limit.
    requests_per_wake: u32 = optional(requests_per_wake), in 0..=i32::MAX as u32;
    /// `-o io_uring_sockets_min`; 0 means never.
    io_uring_sockets_min: u32 = count(io_uring_sockets_min), in 0..=IO_URING_SOCKETS_MAX as u32;
    /// `-o pin_workers`.
    pin_workers: bool = same(pin_workers);
    /// Not `-F`.
    flush_command: bool = same(flush_enabled);
    /// Not `-X`.
    dump_commands: bool = same(dump_enabled);
    /// Not `-W`.
    watch_command: bool = same(watch_enabled);
    /// `-A`.
    shutdown_command: bool = same(shutdown_command);
    /// `-o cluster_discovery`.
    cluster_discovery: String = made(|settings: &Settings| settings.cluster_discovery.to_string());
    /// `-D`.
    prefix_delimiter: String = made(|settings: &Settings| settings.prefix_delimiter.map(char::from).map(String::from).unwrap_or_default());
    /// `-o watcher_logbuf_size`.
    watcher_buffer_bytes: Size = size(watcher_buffer_bytes), in BUFFER_BYTES;
    /// `-o worker_logbuf_size`.
    worker_buffer_bytes: Size = size(worker_buffer_bytes), in BUFFER_BYTES;
    /// `-f`.
    size_class_factor: f64 = same(classes.factor);
    /// `-n`.
    size_class_bytes_min: Size = size(classes.chunk_bytes_min), in Size(1)..=Size(MIB);
    /// `-o slab_chunk_max`.
    size_class_bytes_max: Size = size(classes.chunk_bytes_max);
    /// `-o slab_sizes`.
    size_classes_bytes: Vec<Size> = made(|settings: &Settings| settings.classes.sizes.iter().copied().map(Size::from).collect());
    /// `-o track_sizes`.
    size_report: bool = same(track_sizes);
    /// `-Z` and `-o ssl_…`; no TLS without this table.
    tls: Option<TlsSettings> = same(tls);
}

/// The protocol of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ListenProtocol {
    /// The first byte of a connection decides.
    Auto,
    /// Text and meta commands.
    Text,
    Binary,
}

/// The treatment of clients beyond `connections_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Excess {
    Refuse,
    Wait,
}

impl From<Option<Protocol>> for ListenProtocol {
    fn from(protocol: Option<Protocol>) -> ListenProtocol {
        match protocol {
            None => ListenProtocol::Auto,
            Some(Protocol::Text) => ListenProtocol::Text,
            Some(Protocol::Binary) => ListenProtocol::Binary,
        }
    }
}

impl From<ListenProtocol> for Option<Protocol> {
    fn from(protocol: ListenProtocol) -> Option<Protocol> {
        match protocol {
            ListenProtocol::Auto => None,
            ListenProtocol::Text => Some(Protocol::Text),
            ListenProtocol::Binary => Some(Protocol::Binary),
        }
    }
}

fn path_of(credentials: Option<&Credentials>) -> PathBuf {
    credentials.map(|credentials| credentials.path().to_owned()).unwrap_or_default()
}

fn listeners(addresses: &[ListenAddress], protocol: Option<Protocol>) -> Vec<String> {
    addresses.iter().map(|address| listener(address, protocol)).collect()
}

/// Returns an address in the form of `-l`.
fn listener(address: &ListenAddress, protocol: Option<Protocol>) -> String {
    let speaks = match address.protocol {
        own if own == protocol => "",
        None => "proto[negotiating]:",
        Some(Protocol::Text) => "proto[ascii]:",
        Some(Protocol::Binary) => "proto[binary]:",
    };
    let tls = match address.tls {
        ListenTls::AsSet => "",
        ListenTls::Off => "notls:",
        ListenTls::WithoutCertificates => "btls:",
        ListenTls::WithCertificates => "mtls:",
    };
    format!("{tls}{speaks}{}", plain_address(address))
}

/// Returns an address as `host:port`; the host `*` means every interface.
pub(super) fn plain_address(address: &ListenAddress) -> String {
    match address.host.as_deref().unwrap_or("*") {
        host if host.contains(':') => format!("[{host}]:{}", address.port),
        host => format!("{host}:{}", address.port),
    }
}

const MIB: u64 = 1 << 20;
/// The maximum memory, as for `-m`: a larger number is probably a mistake.
const MEMORY_BYTES_MAX: u64 = 4 << 40;
/// The permitted sizes of a buffer for log lines.
const BUFFER_BYTES: RangeInclusive<Size> = Size(4 << 10)..=Size(1 << 30);
const CLASS_BYTES_MIN: u64 = 48;
const CLASS_BYTES_MAX: u64 = 512 << 10;

impl MemcachedTable {
    /// Validates the table, and copies it to the settings, except for the addresses, which also
    /// depend on flags.
    pub(super) fn settle(&self, settings: &mut Settings) -> Result<(), ConfigError> {
        self.check_ranges("memcached")?;
        self.apply(settings);
        settings.unix_mask = unix_mode("memcached.unix_mode", &self.unix_mode)?;
        let given = |path: &PathBuf| Some(path.clone()).filter(|path| !path.as_os_str().is_empty());
        settings.auth.text = given(&self.auth_file).map(|path| Credentials::new(path, Form::Text));
        settings.auth.sasl = given(&self.sasl_file).map(|path| Credentials::new(path, Form::Sasl));
        settings.eviction_policy = eviction_policy("memcached.eviction_policy", &self.eviction_policy)?;
        settings.connections_max_fast = self.connections_excess == Excess::Refuse;
        self.settle_buffers(settings)?;
        settings.inert.idle_timeout = self.idle_timeout_secs as i32;
        settings.cluster_discovery = match self.cluster_discovery.parse() {
            Ok(discovery) => discovery,
            Err(wrong) => return invalid("memcached.cluster_discovery", wrong),
        };
        settings.prefix_delimiter = match self.prefix_delimiter.as_bytes() {
            [] => None,
            [letter] => Some(*letter),
            _ => return invalid("memcached.prefix_delimiter", "must be a single ASCII character, or empty"),
        };
        self.check_classes()?;
        settings.classes.sizes = self.size_classes_bytes.iter().map(|size| size.to_usize()).collect();
        self.tls.as_ref().map_or(Ok(()), |table| check_tls("memcached.tls", table))
    }

    fn settle_buffers(&self, settings: &mut Settings) -> Result<(), ConfigError> {
        let bytes = self.connection_bytes_max;
        let enough = bytes.0 == 0 || (MIB..=MEMORY_BYTES_MAX).contains(&bytes.0);
        require(enough, "memcached.connection_bytes_max", || {
            format!("is {bytes}; it must be at least 1 MiB, or 0 for 64 KiB for each connection")
        })?;
        settings.set_connection_bytes(bytes.to_usize());
        Ok(())
    }

    fn check_classes(&self) -> Result<(), ConfigError> {
        let factor = self.size_class_factor;
        require(factor.is_finite() && factor > 1.0, "memcached.size_class_factor", || {
            format!("is {factor}; it must be above 1")
        })?;
        let chunk_max = self.size_class_bytes_max;
        let fits = (1024..=MIB).contains(&chunk_max.0) && MIB.is_multiple_of(chunk_max.0);
        require(fits, "memcached.size_class_bytes_max", || {
            format!("is {chunk_max}; it must be at least 1 KiB and divide 1 MiB")
        })?;
        let mut after = 0;
        for size in &self.size_classes_bytes {
            let rising = after == 0 || size.0 > after + 8;
            let known = (CLASS_BYTES_MIN..=CLASS_BYTES_MAX).contains(&size.0);
            require(rising && known, "memcached.size_classes_bytes", || {
                format!(
                    "contains {size}; sizes must be 48 B to 512 KiB, each more than 8 B above the previous one"
                )
            })?;
            after = size.0;
        }
        let count = self.size_classes_bytes.len();
        require(count < 63, "memcached.size_classes_bytes", || {
            format!("has {count} sizes; it must have at most 62")
        })
    }
}
