//! What the server was told to do: command line and configuration file, judged and in plain types.

use cached_proto::Protocol;
use std::path::PathBuf;

/// The version that `version`, `stats` and `-V` report: memcached's, because clients parse it to learn what a
/// server can do.
pub const MEMCACHED_VERSION: &str = "1.6.45";

/// What memcached counts for an item besides key, flags, value and CAS value.
pub(crate) const ITEM_HEADER_BYTES: usize = 48;
/// And behind its key and its value.
pub(crate) const ITEM_ENDS_BYTES: usize = 1 + 2;

/// How the server is to run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where to listen for TCP; empty with `unix_path`, or when TCP is off.
    pub listen: Vec<ListenAddress>,
    /// What `-l` said, for `stats settings`.
    pub interface: Option<String>,
    /// The TCP port as given: 0 is off, -1 any free one.
    pub port: i32,
    /// What clients speak; `None` to tell by their first byte. Listeners may have their own.
    pub protocol: Option<Protocol>,
    /// A unix socket, instead of TCP.
    pub unix_path: Option<PathBuf>,
    /// The unix socket's permissions.
    pub unix_mask: u32,
    /// Memory for items.
    pub memory_bytes: usize,
    /// Ask for large pages.
    pub huge_pages: bool,
    /// Keep the process's memory from being paged out.
    pub lock_memory: bool,
    /// Connections at the same time.
    pub connections_max: usize,
    /// Turn clients away when there are that many; otherwise they wait.
    pub connections_max_fast: bool,
    /// After how many idle seconds a TCP connection is closed; 0 for never.
    pub idle_timeout_secs: u32,
    /// Worker threads.
    pub threads: usize,
    /// The largest item, key and header included.
    pub item_bytes_max: usize,
    /// Make room by evicting; otherwise refuse to store.
    pub evict: bool,
    /// Which items stay, one of [`cached_core::kv::policy::NAMES`].
    pub eviction_policy: &'static str,
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
    /// Whether `debugtime` works: for tests.
    pub debug_clock: bool,
    /// Batches (one read, or one full output buffer) that a connection may take before others get their turn.
    pub batches_per_wake: u32,
    /// Requests that it may have carried out besides; `None` for as many as the batches hold.
    pub requests_per_wake: Option<u32>,
    /// Tie each worker thread to one of the cores that the process may run on.
    pub pin_workers: bool,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// The user to become, when started as root.
    pub user: Option<String>,
    /// Leave the terminal.
    pub daemon: bool,
    /// Allow core files of any size.
    pub core_dumps: bool,
    /// Where to write the process's number.
    pub pid_file: Option<PathBuf>,
    /// What ends a key's prefix in `stats detail`, which is then on from the start.
    pub prefix_delimiter: Option<u8>,
    /// The size classes of reports.
    pub classes: SlabClasses,
    /// Whether `stats sizes` has something to say.
    pub track_sizes: bool,
    /// Log lines kept for one watcher.
    pub watcher_buffer_bytes: usize,
    /// Log lines kept for each worker until watchers have been handed them.
    pub worker_buffer_bytes: usize,
    /// What is only shown.
    pub inert: InertSettings,
    /// What to say once in the log.
    pub notes: Vec<String>,
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
    /// What clients speak there; `None` to tell by their first byte.
    pub protocol: Option<Protocol>,
}

/// How memcached would cut its pages, so that size classes in reports have its numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct SlabClasses {
    /// From one class to the next.
    pub factor: f64,
    /// The smallest key, value and flags.
    pub chunk_bytes_min: usize,
    /// The largest chunk.
    pub chunk_bytes_max: usize,
    /// The classes one by one, if not empty.
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
        }
    }
}

impl Settings {
    /// The most that key and value may have together, by memcached's reckoning of what an item takes besides:
    /// what a value comes to by appending is known to the store alone.
    pub(crate) fn joined_bytes_max(&self) -> usize {
        let cas_bytes = if self.cas { 8 } else { 0 };
        self.item_bytes_max.saturating_sub(ITEM_HEADER_BYTES + ITEM_ENDS_BYTES + cas_bytes)
    }

    /// Buffers of all connections together, unless set: 64 KiB each, within 16 and 256 MiB, but enough for
    /// the largest value, which is collected in one when it is to be appended.
    pub fn connection_bytes_for(connections_max: usize, item_bytes_max: usize) -> usize {
        let by_count = connections_max.saturating_mul(64 << 10).clamp(16 << 20, 256 << 20);
        by_count.max(item_bytes_max.saturating_add(64 << 10))
    }
}

impl Default for Settings {
    /// memcached's defaults, on the loopback interface.
    fn default() -> Self {
        Settings {
            listen: vec![ListenAddress { host: Some("127.0.0.1".into()), port: 11211, protocol: None }],
            interface: Some("127.0.0.1".into()),
            port: 11211,
            protocol: None,
            unix_path: None,
            unix_mask: 0o700,
            memory_bytes: 64 << 20,
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
            flush_enabled: true,
            dump_enabled: true,
            watch_enabled: true,
            shutdown_command: false,
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
            connection_bytes_max: Settings::connection_bytes_for(1024, 1 << 20),
        }
    }
}
