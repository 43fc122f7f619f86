//! The command line: memcached's flags and long names, and what their values may be.
//!
//! A value that cannot work stops the start with one line, in memcached's words where it has words for it. A flag that
//! tunes a part this engine does not have is checked, accepted, and named once in the log. A flag that guards or
//! keeps data in a way that is not built yet stops the start: nobody shall believe in a lock that is not there.

mod extended;
mod help;
mod listen;
mod overlay;
#[cfg(test)]
mod tests;

pub use help::{help_text, license_text, version_text};

use crate::config::{Config, ConfigFileError, File};
use clap::parser::ValueSource;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use std::path::{Path, PathBuf};

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
#[group(skip)]
pub struct Cli {
    #[arg(short = 'p', long = "port", allow_hyphen_values = true)]
    port: Option<String>,
    #[arg(short = 'U', long = "udp-port", allow_hyphen_values = true)]
    udp_port: Option<String>,
    #[arg(short = 's', long = "unix-socket")]
    unix_socket: Option<PathBuf>,
    #[arg(short = 'a', long = "unix-mask")]
    unix_mask: Option<String>,
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
    #[arg(short = 'm', long = "memory-limit", allow_hyphen_values = true)]
    memory_limit: Option<String>,
    #[arg(short = 'M', long = "disable-evictions", action = ArgAction::Count)]
    disable_evictions: u8,
    #[arg(short = 'c', long = "conn-limit", allow_hyphen_values = true)]
    conn_limit: Option<String>,
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
    #[arg(short = 't', long = "threads", allow_hyphen_values = true)]
    threads: Option<String>,
    #[arg(short = 'R', long = "max-reqs-per-event", allow_hyphen_values = true)]
    max_reqs_per_event: Option<String>,
    #[arg(short = 'C', long = "disable-cas", action = ArgAction::Count)]
    disable_cas: u8,
    #[arg(short = 'F', long = "disable-flush-all", action = ArgAction::Count)]
    disable_flush_all: u8,
    #[arg(short = 'X', long = "disable-dumping", action = ArgAction::Count)]
    disable_dumping: u8,
    #[arg(short = 'W', long = "disable-watch", action = ArgAction::Count)]
    disable_watch: u8,
    #[arg(short = 'b', long = "listen-backlog", allow_hyphen_values = true)]
    listen_backlog: Option<String>,
    #[arg(short = 'B', long = "protocol")]
    protocol: Option<String>,
    #[arg(short = 'I', long = "max-item-size", allow_hyphen_values = true)]
    max_item_size: Option<String>,
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
    /// Ours: a file with settings, below the flags.
    #[arg(long = "config")]
    config: Option<PathBuf>,
    /// Ours: judge, and start nothing.
    #[arg(long = "check-config", action = ArgAction::Count)]
    check_config: u8,
    /// Ours: print what flags and file come to, and start nothing.
    #[arg(long = "print-config", action = ArgAction::Count)]
    print_config: u8,
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

/// Of a configuration file that cannot be used: `EX_CONFIG`, which service managers know by name.
const CONFIGURATION: u8 = 78;

impl From<ConfigFileError> for UsageError {
    fn from(error: ConfigFileError) -> UsageError {
        UsageError { line: error.to_string(), status: CONFIGURATION }
    }
}

/// What the arguments ask for.
#[derive(Debug)]
pub enum Request {
    /// Print this and exit.
    Print(String),
    /// Serve.
    Serve(Box<Config>),
}

/// Reads the command line; `arguments` has the program's name first. Reads the file that `--config` names, too.
///
/// # Errors
/// [`UsageError`] for a flag that is unknown or a value that cannot work.
pub fn read(arguments: &[std::ffi::OsString]) -> Result<Request, UsageError> {
    let illegal = |error: clap::Error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        UsageError {
            line: format!("Illegal argument: {}", line.trim_start_matches("error: ")),
            status: FAILURE,
        }
    };
    let matches = Cli::command().try_get_matches_from(arguments).map_err(illegal)?;
    let cli = Cli::from_arg_matches(&matches).map_err(illegal)?;
    let bare = !matches.ids().any(|id| {
        let given = matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        given && !["config", "check_config", "print_config"].contains(&id.as_str())
    });
    cli.judge(bare)
}

impl Cli {
    /// Judges the arguments. `bare` says that there were none of memcached's, which keeps the server to the loopback interface.
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
        let path = self.config.clone();
        let (check, print) = (self.check_config > 0, self.print_config > 0);
        let file = match &path {
            Some(path) => Some((path.as_path(), File::read(path)?)),
            None => None,
        };
        let config = self.overlay(file, bare)?;
        if print {
            let text = config.to_toml();
            return text.map(Request::Print).or_else(|error| wrong(USAGE, error.to_string()));
        }
        if check {
            let what = path.as_deref().map_or("the command line".into(), Path::to_string_lossy);
            return Ok(Request::Print(format!("{what}: nothing is wrong with the configuration\n")));
        }
        Ok(Request::Serve(Box::new(config)))
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
        if let Some(port) = self.udp_port.as_deref().filter(|port| port.trim() != "0") {
            return wrong(USAGE, format!("-U {port}: UDP is not available; the UDP port must be 0 (off)."));
        }
        Ok(())
    }
}
