//! The command line: memcached's flags and long names, and the values that they accept. It ends
//! with a [`Config`], or with a text to print.
//!
//! An invalid value stops the start with one line, which is memcached's message where memcached has
//! one. A flag that tunes a part this engine does not have is checked, accepted, and named once in
//! the log. A flag that protects or persists data in a way that is not implemented stops the start:
//! an operator must not rely on a lock that is missing.
//!
//! To add a setting: a field in [`Settings`](crate::Settings), a key in `config/memcached.rs`, a
//! line in `deploy/cached.toml`, and, if memcached has a flag for it, the flag here and in
//! `overlay`.

mod extended;
mod help;
mod listen;
mod overlay;
#[cfg(test)]
mod tests;

pub use help::{command, help_text, license_text, version_text};

use crate::config::{Config, File};
use cached_config::read_config;
use cached_process::{Exit, Failure};
use clap::parser::ValueSource;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use std::fmt;
use std::path::{Path, PathBuf};

/// A memcached-compatible cache.
// The text of `-h` is in `help.rs`. As in `getopt_long`, the last of two values of a flag counts,
// and a long name may be abbreviated.
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
    memory_file: Option<PathBuf>,
    /// Not memcached's: a file with settings, which flags override.
    #[arg(long = "config")]
    config: Option<PathBuf>,
    /// Not memcached's: check the configuration, and start nothing.
    #[arg(long = "check-config", action = ArgAction::Count)]
    check_config: u8,
    /// Not memcached's: print the resulting configuration, and start nothing.
    #[arg(long = "print-config", action = ArgAction::Count)]
    print_config: u8,
    /// For tests: the `debugtime` command.
    #[arg(long = "debug-clock", action = ArgAction::Count)]
    debug_clock: u8,
    /// Words without a flag, which memcached ignores.
    rest: Vec<String>,
}

fn wrong<T>(exit: Exit, line: impl fmt::Display) -> Result<T, Failure> {
    Err(Failure::new(exit, line))
}

/// The task of the program.
#[derive(Debug)]
pub enum Request {
    /// Print this and exit.
    Print(String),
    /// Serve.
    Serve(Box<Config>),
}

/// Reads the command line; `arguments` has the program's name first. Reads the file that `--config`
/// names, too.
///
/// # Errors
/// [`Failure`] for a flag that is unknown or a value that cannot work, with memcached's exit status
/// where it has one.
pub fn read(arguments: &[std::ffi::OsString]) -> Result<Request, Failure> {
    read_with(arguments, None)
}

/// Does the same with the file's path and text, if they are given, in place of the file that
/// `--config` names: the process may have left the directory in which it was started.
pub(crate) fn read_with(
    arguments: &[std::ffi::OsString],
    file: Option<(&Path, &str)>,
) -> Result<Request, Failure> {
    let illegal = |error: clap::Error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        let line = line.trim_start_matches("error: ");
        Failure::new(Exit::FlagValue, format_args!("Illegal argument: {line}"))
    };
    let matches = Cli::command().try_get_matches_from(arguments).map_err(illegal)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(illegal)?;
    let mut text = None;
    if let Some((path, given)) = file {
        (cli.config, text) = (Some(path.to_owned()), Some(given.to_owned()));
    }
    let bare = !matches.ids().any(|id| {
        let given = matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        given && !["config", "check_config", "print_config"].contains(&id.as_str())
    });
    cli.check(bare, text)
}

impl Cli {
    /// Checks the arguments. `bare` is set if none of them is memcached's; the server then listens
    /// on the loopback interface only. `text` is the file's, read if it is absent.
    fn check(self, bare: bool, mut text: Option<String>) -> Result<Request, Failure> {
        if self.help > 0 {
            return Ok(Request::Print(help_text()));
        }
        if self.license > 0 {
            return Ok(Request::Print(license_text()));
        }
        if self.version > 0 {
            return Ok(Request::Print(version_text()));
        }
        let path = self.config.clone();
        let (check, print) = (self.check_config > 0, self.print_config > 0);
        let file = match &path {
            Some(path) => {
                let text = match &mut text {
                    Some(text) => text,
                    absent => absent.insert(read_config(path)?),
                };
                Some(File::parse(path, text)?)
            }
            None => None,
        };
        let mut config = self.overlay(file, bare)?;
        // Without a current directory it stays as it is.
        config.path = path.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
        config.text = text;
        if print {
            let text = config.to_toml();
            return text.map(Request::Print).or_else(|error| wrong(Exit::Usage, error));
        }
        if check {
            config.load()?;
            let what = path.as_deref().map_or("the command line".into(), Path::to_string_lossy);
            return Ok(Request::Print(format!("{what}: nothing is wrong with the configuration\n")));
        }
        Ok(Request::Serve(Box::new(config)))
    }
}
