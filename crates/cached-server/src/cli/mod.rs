//! The command line: memcached's flags and long names, and what their values may be.
//!
//! A value that cannot work stops the start with one line, in memcached's words where it has words for it. A flag that
//! tunes a part this engine does not have is checked, accepted, and named once in the log. A flag that guards or
//! keeps data in a way that is not built yet stops the start: nobody shall believe in a lock that is not there.

mod extended;
mod help;
mod listen;
#[cfg(test)]
mod tests;

pub use help::{help_text, license_text, version_text};

use crate::settings::{Settings, SlabClasses};
use clap::{ArgAction, Parser};
use extended::Extended;
use std::path::PathBuf;

/// A memcached-compatible cache.
// The words for `-h` are in `help.rs`. As in `getopt_long`, a flag given twice counts as given last, and a long name
// may be cut short.
#[derive(Parser, Debug)]
#[command(
    name = "cached",
    disable_version_flag = true,
    disable_help_flag = true,
    args_override_self = true,
    infer_long_args = true
)]
pub struct Cli {
    #[arg(short = 'p', long = "port", default_value = "11211", allow_hyphen_values = true)]
    port: String,
    #[arg(short = 'U', long = "udp-port", default_value = "0", allow_hyphen_values = true)]
    udp_port: String,
    #[arg(short = 's', long = "unix-socket")]
    unix_socket: Option<PathBuf>,
    #[arg(short = 'a', long = "unix-mask", default_value = "700")]
    unix_mask: String,
    #[arg(short = 'A', long = "enable-shutdown", action = ArgAction::Count)]
    enable_shutdown: u8,
    #[arg(short = 'l', long = "listen", action = ArgAction::Append)]
    listen: Vec<String>,
    #[arg(short = 'd', long = "daemon", action = ArgAction::Count)]
    daemon: u8,
    #[arg(short = 'r', long = "enable-coredumps", action = ArgAction::Count)]
    core_dumps: u8,
    #[arg(short = 'u', long = "user")]
    user: Option<String>,
    #[arg(short = 'm', long = "memory-limit", default_value = "64", allow_hyphen_values = true)]
    memory_limit: String,
    #[arg(short = 'M', long = "disable-evictions", action = ArgAction::Count)]
    disable_evictions: u8,
    #[arg(short = 'c', long = "conn-limit", default_value = "1024", allow_hyphen_values = true)]
    conn_limit: String,
    #[arg(short = 'k', long = "lock-memory", action = ArgAction::Count)]
    lock_memory: u8,
    #[arg(short = 'v', action = ArgAction::Count)]
    verbose: u8,
    /// memcached's long name takes a value, and does nothing with it.
    #[arg(long = "verbose", num_args = 0..=1, require_equals = true, default_missing_value = "", action = ArgAction::Append)]
    verbose_long: Vec<String>,
    #[arg(short = 'h', long = "help", action = ArgAction::Count)]
    help: u8,
    #[arg(short = 'i', long = "license", action = ArgAction::Count)]
    license: u8,
    #[arg(short = 'V', long = "version", action = ArgAction::Count)]
    version: u8,
    #[arg(short = 'P', long = "pidfile")]
    pid_file: Option<PathBuf>,
    #[arg(short = 'f', long = "slab-growth-factor", allow_hyphen_values = true)]
    growth_factor: Option<String>,
    #[arg(short = 'n', long = "slab-min-size", allow_hyphen_values = true)]
    slab_min_size: Option<String>,
    #[arg(short = 'L', long = "enable-largepages", action = ArgAction::Count)]
    large_pages: u8,
    #[arg(short = 'D', allow_hyphen_values = true)]
    prefix_delimiter: Option<String>,
    #[arg(short = 't', long = "threads", default_value = "4", allow_hyphen_values = true)]
    threads: String,
    #[arg(short = 'R', long = "max-reqs-per-event", default_value = "20", allow_hyphen_values = true)]
    max_reqs_per_event: String,
    #[arg(short = 'C', long = "disable-cas", action = ArgAction::Count)]
    disable_cas: u8,
    #[arg(short = 'F', long = "disable-flush-all", action = ArgAction::Count)]
    disable_flush_all: u8,
    #[arg(short = 'X', long = "disable-dumping", action = ArgAction::Count)]
    disable_dumping: u8,
    #[arg(short = 'W', long = "disable-watch", action = ArgAction::Count)]
    disable_watch: u8,
    #[arg(short = 'b', long = "listen-backlog", default_value = "1024", allow_hyphen_values = true)]
    listen_backlog: String,
    #[arg(short = 'B', long = "protocol", default_value = "auto")]
    protocol: String,
    #[arg(short = 'I', long = "max-item-size", default_value = "1m", allow_hyphen_values = true)]
    max_item_size: String,
    #[arg(short = 'o', long = "extended", action = ArgAction::Append)]
    extended: Vec<String>,
    #[arg(short = 'N', long = "napi-ids", allow_hyphen_values = true)]
    napi_ids: Option<String>,
    #[arg(short = 'S', long = "enable-sasl", action = ArgAction::Count)]
    sasl: u8,
    #[arg(short = 'Z', long = "enable-ssl", action = ArgAction::Count)]
    tls: u8,
    #[arg(short = 'Y', long = "auth-file")]
    auth_file: Option<String>,
    #[arg(short = 'e', long = "memory-file")]
    memory_file: Option<String>,
    /// For tests: the `debugtime` command.
    #[arg(long = "debug-clock", action = ArgAction::Count)]
    debug_clock: u8,
    /// memcached takes no notice of words without a flag.
    rest: Vec<String>,
}

/// Why the server cannot start with these arguments: one line, and memcached's exit status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}")]
pub struct UsageError {
    line: String,
    /// The status to exit with.
    pub status: u8,
}

/// `EX_USAGE`, with which memcached ends for values that do not go together.
const USAGE: u8 = 64;
/// With which it ends for a value that is wrong in itself.
const FAILURE: u8 = 1;

fn wrong<T>(status: u8, line: impl Into<String>) -> Result<T, UsageError> {
    Err(UsageError { line: line.into(), status })
}

/// What the arguments ask for.
#[derive(Debug)]
pub enum Request {
    /// Print this and exit.
    Print(String),
    /// Serve.
    Serve(Box<Settings>),
}

/// Reads the command line; `arguments` has the program's name first.
///
/// # Errors
/// [`UsageError`] for a flag that is unknown or a value that cannot work.
pub fn read(arguments: &[std::ffi::OsString]) -> Result<Request, UsageError> {
    let cli = Cli::try_parse_from(arguments).map_err(|error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        UsageError {
            line: format!("Illegal argument: {}", line.trim_start_matches("error: ")),
            status: FAILURE,
        }
    })?;
    cli.judge(arguments.len() == 1)
}

impl Cli {
    /// Judges the arguments. `bare` says that there were none at all, which keeps the server to the loopback interface.
    fn judge(self, bare: bool) -> Result<Request, UsageError> {
        if self.help > 0 {
            return Ok(Request::Print(help_text()));
        }
        if self.license > 0 {
            return Ok(Request::Print(license_text()));
        }
        if self.version > 0 {
            return Ok(Request::Print(version_text()));
        }
        self.refuse_what_is_not_built()?;
        let mut notes = Vec::new();
        let mut extended = Extended::default();
        for list in &self.extended {
            extended.read(list)?;
        }

        let port = number("-p", &self.port, &mut notes)?;
        if port > 65535 {
            return wrong(USAGE, format!("ERROR: Invalid port number {port}."));
        }
        if port < -1 {
            return wrong(
                USAGE,
                format!("-p {port}: the TCP port must be 0 to 65535, or -1 for any free one"),
            );
        }
        let Ok(unix_mask) = u32::from_str_radix(self.unix_mask.trim(), 8) else {
            return wrong(USAGE, format!("-a {}: the access mask must be octal", self.unix_mask));
        };
        let memory_mib = number("-m", &self.memory_limit, &mut notes)?.max(0);
        if memory_mib > 4 << 20 {
            return wrong(USAGE, format!("-m {memory_mib}: item memory must be at most 4194304 megabytes"));
        }
        let memory_bytes = (memory_mib as usize) << 20;
        let connections_max = positive("-c", &self.conn_limit, "Maximum connections", &mut notes)? as usize;
        let threads = positive("-t", &self.threads, "Number of threads", &mut notes)?;
        if threads > 1024 {
            return wrong(USAGE, format!("-t {threads}: the number of threads must be at most 1024"));
        }
        let batches_per_wake =
            positive("-R", &self.max_reqs_per_event, "Number of requests per event", &mut notes)?;
        let backlog = number("-b", &self.listen_backlog, &mut notes)?.clamp(0, i64::from(i32::MAX));
        let protocol = match self.protocol.trim() {
            "auto" => None,
            "ascii" => Some(cached_proto::Protocol::Text),
            "binary" => Some(cached_proto::Protocol::Binary),
            other => {
                let line = format!(
                    "Invalid value for binding protocol: {other} -- should be one of auto, binary, or ascii"
                );
                return wrong(USAGE, line);
            }
        };
        let delimiter = match self.prefix_delimiter.as_deref().map(|text| text.trim_start().bytes().next()) {
            Some(None) => return wrong(FAILURE, "No delimiter specified"),
            given => given.flatten(),
        };
        let classes = self.classes(&mut notes, &extended)?;
        let item_bytes_max = item_size(&self.max_item_size, memory_bytes)?;
        extended.check(item_bytes_max)?;
        if let Some(text) = &self.napi_ids {
            let ids = number("-N", text, &mut notes)?;
            if ids <= 0 {
                return wrong(FAILURE, "Maximum number of NAPI IDs must be greater than 0");
            }
            if ids > threads {
                let line =
                    format!("Number of napi_ids({ids}) cannot be greater than number of threads({threads})");
                return wrong(USAGE, line);
            }
            extended.without_effect.push(format!("-N {ids}"));
        }

        let interface = (!self.listen.is_empty()).then(|| self.listen.join(","));
        let listen = match &self.unix_socket {
            Some(_) => Vec::new(),
            None => listen::addresses(&self.listen, port as i32, protocol, bare)?,
        };
        if !self.rest.is_empty() {
            notes.push(format!("words without a flag are ignored: {}", self.rest.join(" ")));
        }
        if !extended.without_effect.is_empty() {
            let names = extended.without_effect.join(", ");
            notes.push(format!("accepted, but without effect in this engine: {names}"));
        }
        let idle_timeout = extended.noted.idle_timeout;
        Ok(Request::Serve(Box::new(Settings {
            interface: interface.or_else(|| bare.then(|| "127.0.0.1".into())),
            listen,
            port: port as i32,
            protocol,
            unix_path: self.unix_socket,
            unix_mask: unix_mask & 0o777,
            memory_bytes,
            huge_pages: self.large_pages > 0,
            lock_memory: self.lock_memory > 0,
            connections_max,
            connections_max_fast: extended.maxconns_fast,
            idle_timeout_secs: u32::try_from(idle_timeout).unwrap_or(0),
            threads: threads as usize,
            item_bytes_max,
            evict: self.disable_evictions == 0,
            eviction_policy: extended.eviction_policy,
            cas: self.disable_cas == 0,
            verbosity: u8::try_from(usize::from(self.verbose) + self.verbose_long.len()).unwrap_or(3).min(3),
            flush_enabled: self.disable_flush_all == 0,
            dump_enabled: self.disable_dumping == 0,
            watch_enabled: self.disable_watch == 0,
            shutdown_command: self.enable_shutdown > 0,
            debug_clock: self.debug_clock > 0,
            batches_per_wake: batches_per_wake as u32,
            backlog: backlog as u32,
            user: self.user.filter(|user| !user.is_empty()),
            daemon: self.daemon > 0,
            core_dumps: self.core_dumps > 0,
            pid_file: self.pid_file,
            prefix_delimiter: delimiter,
            classes,
            track_sizes: extended.track_sizes,
            watcher_buffer_bytes: extended.watcher_buffer_bytes,
            worker_buffer_bytes: extended.worker_buffer_bytes,
            connection_bytes_max: match extended.noted.read_buf_mem_limit {
                0 => Settings::connection_bytes_for(connections_max),
                bytes => bytes,
            },
            noted: extended.noted,
            notes,
        })))
    }

    fn refuse_what_is_not_built(&self) -> Result<(), UsageError> {
        // The first two in memcached's words, for a build without.
        if self.sasl > 0 {
            return wrong(USAGE, "This server is not built with SASL support.");
        }
        if self.tls > 0 {
            return wrong(USAGE, "This server is not built with TLS support.");
        }
        if self.auth_file.is_some() {
            return wrong(USAGE, "-Y: this server cannot ask clients for a password yet.");
        }
        if self.memory_file.is_some() {
            return wrong(USAGE, "-e: this server cannot keep items in a file yet.");
        }
        if self.udp_port.trim() != "0" {
            let port = &self.udp_port;
            return wrong(USAGE, format!("-U {port}: UDP is not available; the UDP port must be 0 (off)."));
        }
        Ok(())
    }

    /// `-f`, `-n`, and what `-o` says of chunks: they name size classes here, and place nothing.
    fn classes(&self, notes: &mut Vec<String>, extended: &Extended) -> Result<SlabClasses, UsageError> {
        let mut classes = SlabClasses::default();
        if let Some(text) = &self.growth_factor {
            classes.factor = extended::leading_f64(text);
            if classes.factor.is_nan() || classes.factor <= 1.0 {
                return wrong(FAILURE, "Factor must be greater than 1");
            }
        }
        if let Some(text) = &self.slab_min_size {
            let bytes = positive("-n", text, "Chunk size", notes)?;
            classes.chunk_bytes_min = usize::try_from(bytes).unwrap_or(usize::MAX).min(1 << 20);
        }
        classes.chunk_bytes_max = extended.chunk_bytes_max;
        classes.sizes = extended.slab_sizes.clone();
        Ok(classes)
    }
}

/// A number as `atoi` reads it; letters behind it are ignored as there, but noted.
fn number(flag: &str, text: &str, notes: &mut Vec<String>) -> Result<i64, UsageError> {
    let Some((number, rest)) = extended::leading_number(text) else {
        return wrong(USAGE, format!("{flag} {text}: must be a number"));
    };
    if !rest.is_empty() {
        notes.push(format!("{flag} {text} is read as {number}"));
    }
    Ok(number)
}

fn positive(flag: &str, text: &str, what: &str, notes: &mut Vec<String>) -> Result<i64, UsageError> {
    match number(flag, text, notes) {
        Ok(number @ 1..=0x7fff_ffff) => Ok(number),
        Ok(number @ 0x8000_0000..) => wrong(FAILURE, format!("{flag} {number}: too large")),
        _ => wrong(FAILURE, format!("{what} must be greater than 0")),
    }
}

/// `-I`: bytes, or kibi-, mebi-, gibibytes with a letter.
fn item_size(text: &str, memory_bytes: usize) -> Result<usize, UsageError> {
    let (number, rest) = extended::leading_number(text).unwrap_or((0, ""));
    let unit = match rest {
        "k" | "K" => 1i64 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => 1,
    };
    let bytes = number.saturating_mul(unit);
    if bytes < 1024 {
        return wrong(USAGE, "Item max size cannot be less than 1024 bytes.");
    }
    if bytes > (memory_bytes / 2) as i64 {
        return wrong(USAGE, "Cannot set item size limit higher than 1/2 of memory max.");
    }
    if bytes > 1 << 30 {
        return wrong(USAGE, "Cannot set item size limit higher than a gigabyte.");
    }
    Ok(bytes as usize)
}
