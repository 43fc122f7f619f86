//! `[memcached]`: the listeners for memcached's protocols. Each key stands for one of memcached's flags, with
//! a clear name and its unit.
//!
//! Flags without effect in this engine have no key; they are accepted on command lines only.

use super::auth::Credentials;
use super::settings::{InertSettings, ListenAddress, ListenTls, Settings, SlabClasses};
use cached_config::{ConfigError, Size, TlsTable, eviction_policy, invalid, require, unix_mode, within};
use cached_core::kv::{ARENA_BYTES_MIN, ITEM_BYTES_MAX, ITEM_BYTES_MIN};
use cached_proto::Protocol;
use cached_proto::udp::{UDP_DATA_LEN_MAX, UDP_REPLY_LEN_MAX};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The table. An empty string means none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(crate) struct MemcachedTable {
    /// `-l` and `-p`, one listener each.
    pub(crate) listen: Vec<String>,
    /// `-U`, with the addresses of `-l`.
    pub(crate) udp_listen: Vec<String>,
    /// No flag; without it replies to datagrams would have no limit.
    udp_reply_bytes_max: Size,
    /// `-s`; in addition to TCP, not instead of it.
    unix_path: PathBuf,
    /// `-a`.
    unix_mode: String,
    /// `-B`.
    protocol: ListenProtocol,
    /// `-Y`.
    auth_file: PathBuf,
    /// `-S`, with the file that MEMCACHED_SASL_PWDB names.
    sasl_file: PathBuf,
    /// `-m`.
    memory_bytes_max: Size,
    /// `-e`.
    memory_file: PathBuf,
    /// `-L`.
    huge_pages: bool,
    /// `-I`.
    item_bytes_max: Size,
    /// Not `-M`.
    evict: bool,
    /// `-o eviction_policy`.
    eviction_policy: String,
    /// Not `-C`.
    cas: bool,
    /// `-t`.
    threads: u32,
    /// `-c`.
    connections_max: u32,
    /// `-o maxconns_fast` and `no_maxconns_fast`.
    connections_excess: Excess,
    /// No flag; 0 is without limit.
    peer_connections_max: u32,
    /// `-o read_buf_mem_limit`; with 0 it follows from `connections_max`.
    connection_bytes_max: Size,
    /// `-o idle_timeout`.
    idle_timeout_secs: u32,
    /// `-b`.
    listen_backlog: u32,
    /// No flag; the limit of a drive without `-R`.
    batches_per_wake: u32,
    /// `-R`; 0 is without limit.
    requests_per_wake: u32,
    /// `-o pin_workers`.
    pin_workers: bool,
    /// Not `-F`.
    flush_command: bool,
    /// Not `-X`.
    dump_commands: bool,
    /// Not `-W`.
    watch_command: bool,
    /// `-A`.
    shutdown_command: bool,
    /// `-o cluster_discovery`.
    cluster_discovery: String,
    /// `-D`.
    prefix_delimiter: String,
    /// `-o watcher_logbuf_size`.
    watcher_buffer_bytes: Size,
    /// `-o worker_logbuf_size`.
    worker_buffer_bytes: Size,
    /// `-f`.
    size_class_factor: f64,
    /// `-n`.
    size_class_bytes_min: Size,
    /// `-o slab_chunk_max`.
    size_class_bytes_max: Size,
    /// `-o slab_sizes`.
    size_classes_bytes: Vec<Size>,
    /// `-o track_sizes`.
    size_report: bool,
    /// `-Z` and `-o ssl_…`; no TLS without this table.
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<TlsTable>,
}

/// The protocol of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ListenProtocol {
    /// The first byte of a connection decides.
    Auto,
    /// Text and meta.
    Text,
    Binary,
}

/// The treatment of clients above `connections_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Excess {
    Refuse,
    Wait,
}

impl Default for MemcachedTable {
    fn default() -> Self {
        MemcachedTable::from(&Settings::default())
    }
}

impl From<&Settings> for MemcachedTable {
    fn from(settings: &Settings) -> Self {
        let speaks = |protocol| match protocol {
            None => ListenProtocol::Auto,
            Some(Protocol::Text) => ListenProtocol::Text,
            Some(Protocol::Binary) => ListenProtocol::Binary,
        };
        MemcachedTable {
            listen: settings.listen.iter().map(|address| listener(address, settings.protocol)).collect(),
            udp_listen: settings.udp_listen.iter().map(|address| listener(address, None)).collect(),
            udp_reply_bytes_max: settings.udp_reply_bytes_max.into(),
            unix_path: settings.unix_path.clone().unwrap_or_default(),
            unix_mode: format!("{:o}", settings.unix_mask),
            protocol: speaks(settings.protocol),
            auth_file: settings.auth.text_path(),
            sasl_file: settings.auth.sasl_path(),
            memory_bytes_max: settings.memory_bytes.into(),
            memory_file: settings.memory_file.clone().unwrap_or_default(),
            huge_pages: settings.huge_pages,
            item_bytes_max: settings.item_bytes_max.into(),
            evict: settings.evict,
            eviction_policy: settings.eviction_policy.into(),
            cas: settings.cas,
            threads: u32::try_from(settings.threads).unwrap_or(u32::MAX),
            connections_max: u32::try_from(settings.connections_max).unwrap_or(u32::MAX),
            peer_connections_max: u32::try_from(settings.peer_connections_max).unwrap_or(u32::MAX),
            connections_excess: if settings.connections_max_fast { Excess::Refuse } else { Excess::Wait },
            connection_bytes_max: settings.inert.read_buf_mem_limit.into(),
            idle_timeout_secs: settings.idle_timeout_secs,
            listen_backlog: settings.backlog,
            batches_per_wake: settings.batches_per_wake,
            requests_per_wake: settings.requests_per_wake.unwrap_or(0),
            pin_workers: settings.pin_workers,
            flush_command: settings.flush_enabled,
            dump_commands: settings.dump_enabled,
            watch_command: settings.watch_enabled,
            shutdown_command: settings.shutdown_command,
            cluster_discovery: settings.cluster_discovery.to_string(),
            prefix_delimiter: settings.prefix_delimiter.map(char::from).map(String::from).unwrap_or_default(),
            watcher_buffer_bytes: settings.watcher_buffer_bytes.into(),
            worker_buffer_bytes: settings.worker_buffer_bytes.into(),
            size_class_factor: settings.classes.factor,
            size_class_bytes_min: settings.classes.chunk_bytes_min.into(),
            size_class_bytes_max: settings.classes.chunk_bytes_max.into(),
            size_classes_bytes: settings.classes.sizes.iter().map(|size| Size::from(*size)).collect(),
            size_report: settings.track_sizes,
            tls: settings.tls.as_ref().map(TlsTable::from),
        }
    }
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
    let port = address.port;
    match address.host.as_deref().unwrap_or("*") {
        host if host.contains(':') => format!("{tls}{speaks}[{host}]:{port}"),
        host => format!("{tls}{speaks}{host}:{port}"),
    }
}

const MIB: u64 = 1 << 20;
/// As for `-m`: a larger number is more likely a mistake than intended.
const MEMORY_BYTES_MAX: u64 = 4 << 40;
const LOG_BYTES_MAX: u64 = 1 << 30;
const CLASS_BYTES_MIN: u64 = 48;
const CLASS_BYTES_MAX: u64 = 512 << 10;

impl MemcachedTable {
    /// Copies the table to the settings, except for the addresses, which depend on flags as well.
    pub(super) fn apply(&self, settings: &mut Settings) -> Result<(), ConfigError> {
        settings.unix_path = Some(self.unix_path.clone()).filter(|path| !path.as_os_str().is_empty());
        settings.unix_mask = unix_mode("memcached.unix_mode", &self.unix_mode)?;
        settings.protocol = match self.protocol {
            ListenProtocol::Auto => None,
            ListenProtocol::Text => Some(Protocol::Text),
            ListenProtocol::Binary => Some(Protocol::Binary),
        };
        let (least, most) = (Size::from(UDP_DATA_LEN_MAX), Size::from(UDP_REPLY_LEN_MAX));
        let reply = within("memcached.udp_reply_bytes_max", self.udp_reply_bytes_max, least..=most)?;
        settings.udp_reply_bytes_max = reply.to_usize();
        let given = |path: &PathBuf| Some(path.clone()).filter(|path| !path.as_os_str().is_empty());
        settings.auth.text = given(&self.auth_file).map(Credentials::text);
        settings.auth.sasl = given(&self.sasl_file).map(Credentials::sasl);
        let least = Size::from(ARENA_BYTES_MIN);
        let memory =
            within("memcached.memory_bytes_max", self.memory_bytes_max, least..=Size(MEMORY_BYTES_MAX))?;
        settings.memory_bytes = memory.to_usize();
        settings.memory_file = given(&self.memory_file);
        settings.huge_pages = self.huge_pages;
        let (least, most) = (Size::from(ITEM_BYTES_MIN), Size::from(ITEM_BYTES_MAX));
        settings.item_bytes_max =
            within("memcached.item_bytes_max", self.item_bytes_max, least..=most)?.to_usize();
        settings.evict = self.evict;
        settings.eviction_policy = eviction_policy("memcached.eviction_policy", &self.eviction_policy)?;
        settings.cas = self.cas;
        settings.threads = within("memcached.threads", self.threads, 1..=1024)? as usize;
        settings.connections_max =
            within("memcached.connections_max", self.connections_max, 1..=i32::MAX as u32)? as usize;
        settings.connections_max_fast = self.connections_excess == Excess::Refuse;
        settings.peer_connections_max = self.peer_connections_max as usize;
        self.apply_buffers(settings)?;
        let idle = within("memcached.idle_timeout_secs", self.idle_timeout_secs, 0..=i32::MAX as u32)?;
        settings.idle_timeout_secs = idle;
        settings.inert = InertSettings { idle_timeout: idle as i32, ..settings.inert.clone() };
        settings.backlog = within("memcached.listen_backlog", self.listen_backlog, 0..=i32::MAX as u32)?;
        settings.batches_per_wake =
            within("memcached.batches_per_wake", self.batches_per_wake, 1..=i32::MAX as u32)?;
        let requests = within("memcached.requests_per_wake", self.requests_per_wake, 0..=i32::MAX as u32)?;
        settings.requests_per_wake = Some(requests).filter(|requests| *requests > 0);
        settings.pin_workers = self.pin_workers;
        settings.flush_enabled = self.flush_command;
        settings.dump_enabled = self.dump_commands;
        settings.watch_enabled = self.watch_command;
        settings.shutdown_command = self.shutdown_command;
        settings.cluster_discovery = match self.cluster_discovery.parse() {
            Ok(discovery) => discovery,
            Err(wrong) => return invalid("memcached.cluster_discovery", wrong),
        };
        settings.prefix_delimiter = match self.prefix_delimiter.as_bytes() {
            [] => None,
            [letter] => Some(*letter),
            _ => return invalid("memcached.prefix_delimiter", "must be one ASCII letter or sign, or empty"),
        };
        settings.classes = self.classes()?;
        settings.track_sizes = self.size_report;
        let tls = self.tls.as_ref().map(|table| table.settings("memcached.tls")).transpose()?;
        settings.tls = tls;
        Ok(())
    }

    fn apply_buffers(&self, settings: &mut Settings) -> Result<(), ConfigError> {
        let bytes = self.connection_bytes_max;
        let enough = bytes.0 == 0 || (MIB..=MEMORY_BYTES_MAX).contains(&bytes.0);
        require(enough, "memcached.connection_bytes_max", || {
            format!("is {bytes}; it must be at least 1 MiB, or 0 for 64 KiB for each connection")
        })?;
        settings.inert.read_buf_mem_limit = bytes.to_usize();
        settings.connection_bytes_max = match bytes.to_usize() {
            0 => Settings::connection_bytes_for(settings.connections_max, settings.item_bytes_max),
            bytes => bytes,
        };
        let range = Size(4 << 10)..=Size(LOG_BYTES_MAX);
        let watcher = within("memcached.watcher_buffer_bytes", self.watcher_buffer_bytes, range.clone())?;
        let worker = within("memcached.worker_buffer_bytes", self.worker_buffer_bytes, range)?;
        settings.watcher_buffer_bytes = watcher.to_usize();
        settings.worker_buffer_bytes = worker.to_usize();
        Ok(())
    }

    fn classes(&self) -> Result<SlabClasses, ConfigError> {
        let factor = self.size_class_factor;
        require(factor.is_finite() && factor > 1.0, "memcached.size_class_factor", || {
            format!("is {factor}; it must be above 1")
        })?;
        let chunk_min =
            within("memcached.size_class_bytes_min", self.size_class_bytes_min, Size(1)..=Size(MIB))?;
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
                format!("has {size}; sizes must be from 48 to 512 KiB, each more than 8 above the one before")
            })?;
            after = size.0;
        }
        let count = self.size_classes_bytes.len();
        require(count < 63, "memcached.size_classes_bytes", || format!("has {count} sizes; at most 62 do"))?;
        Ok(SlabClasses {
            factor,
            chunk_bytes_min: chunk_min.to_usize(),
            chunk_bytes_max: chunk_max.to_usize(),
            sizes: self.size_classes_bytes.iter().map(|size| size.to_usize()).collect(),
        })
    }
}
