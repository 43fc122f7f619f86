//! The command line: memcached's flags and long names, and the values that they accept. It ends
//! with a [`Config`], or with a text to print.
//!
//! An invalid value prevents the start with one line, which is memcached's message where memcached
//! has one. A flag that tunes a part this engine does not have is checked, accepted, and named once
//! in the log. A flag that protects or persists data in a way that is not implemented prevents the
//! start: an operator must not rely on a protection that is missing.
//!
//! To add a setting: a field in [`Settings`](cached_memcached::Settings), a key in
//! `config/memcached.rs`, a line in `deploy/cached.toml`, and, if memcached has a flag for it, the
//! flag here and in `overlay`.

mod extended;
mod help;
mod listen;
mod overlay;
#[cfg(test)]
mod tests;

pub use help::{command, help_text, license_text, version_text};

use crate::config::{Config, File};
use cached_config::read_config;
use cached_process::log::Format;
use cached_process::{Exit, Failure};
use clap::parser::ValueSource;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use std::fmt;
use std::path::{Path, PathBuf};

/// A memcached-compatible cache.
// As in `getopt_long`, the last value of a repeated flag counts, and a long name may be
// abbreviated. Tools search the help for words to find out what a server supports. Therefore the
// help names only flags and options that work: neither refused ones nor those without effect.
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
    /// TCP port to listen on (default: 11211; 0: none, -1: any free one)
    #[arg(short, long, value_name = "num", allow_hyphen_values = true)]
    port: Option<String>,
    /// UDP port to listen on (default: 0, off; -1: any free one)
    #[arg(short = 'U', long, value_name = "num", allow_hyphen_values = true)]
    udp_port: Option<String>,
    /// UNIX socket to listen on (disables network support)
    #[arg(short = 's', long, value_name = "file")]
    unix_socket: Option<PathBuf>,
    /// access mask for UNIX socket, in octal (default: 700)
    #[arg(short = 'a', long, value_name = "mask")]
    unix_mask: Option<String>,
    /// enable ascii "shutdown" command
    #[arg(short = 'A', long)]
    enable_shutdown: bool,
    /// interface to listen on (default: all; without any flag at all: 127.0.0.1); several may be
    /// given, separated by commas, each with a port and a protocol:
    /// proto[ascii|binary|negotiating]:host:port, IPv6 as [address]:port; with -Z, notls: before an
    /// address disables TLS, btls: disables client certificates, and mtls: requires them
    #[arg(short, long, value_name = "addr", action = ArgAction::Append)]
    listen: Vec<String>,
    /// run as a daemon
    #[arg(short, long)]
    daemon: bool,
    /// maximize core file limit
    #[arg(short = 'r', long)]
    enable_coredumps: bool,
    /// assume the identity of this user (only when run as root)
    #[arg(short, long, value_name = "user")]
    user: Option<String>,
    /// item memory in megabytes (default: 64)
    #[arg(short, long, value_name = "num", allow_hyphen_values = true)]
    memory_limit: Option<String>,
    /// return error on memory exhausted instead of evicting
    #[arg(short = 'M', long)]
    disable_evictions: bool,
    /// max simultaneous connections (default: 1024)
    #[arg(short, long, value_name = "num", allow_hyphen_values = true)]
    conn_limit: Option<String>,
    /// lock down all paged memory
    #[arg(short = 'k', long)]
    lock_memory: bool,
    /// verbose (warnings, refused connections, shutdown)
    ///
    /// - -vv: very verbose (also connections that are opened and closed)
    ///
    /// - -vvv: extremely verbose
    #[arg(short = 'v', action = ArgAction::Count)]
    verbose: u8,
    /// the same as -v; a value is ignored, as in memcached
    #[arg(long = "verbose", value_name = "ignored", num_args = 0..=1, require_equals = true, default_missing_value = "", action = ArgAction::Append)]
    verbose_long: Vec<String>,
    /// print this help and exit
    #[arg(short, long)]
    help: bool,
    /// print license and exit
    #[arg(short = 'i', long)]
    license: bool,
    /// print version and exit
    #[arg(short = 'V', long)]
    version: bool,
    /// write the process ID to this file; removed at the end with -d
    #[arg(short = 'P', long, value_name = "file")]
    pidfile: Option<PathBuf>,
    /// growth factor of the size classes in reports (default: 1.25)
    #[arg(short = 'f', long, value_name = "num", allow_hyphen_values = true)]
    slab_growth_factor: Option<String>,
    /// smallest size class in reports: key+value+flags (default: 48)
    #[arg(short = 'n', long, value_name = "bytes", allow_hyphen_values = true)]
    slab_min_size: Option<String>,
    /// keep the items in this file, on a tmpfs or a disk: the next process takes them over, also
    /// after a crash of this one
    #[arg(short = 'e', long, value_name = "file")]
    memory_file: Option<PathBuf>,
    /// try to use large memory pages (if available)
    #[arg(short = 'L', long)]
    enable_largepages: bool,
    /// use this character as the delimiter between key prefixes and IDs in "stats detail", and
    /// start with it turned on (default: ":", off)
    #[arg(short = 'D', value_name = "char", allow_hyphen_values = true)]
    prefix_delimiter: Option<String>,
    /// number of threads to use (default: 4)
    #[arg(short, long, value_name = "num", allow_hyphen_values = true)]
    threads: Option<String>,
    /// how many requests of one connection are executed before others are served (default: as many
    /// as 20 reads contain)
    #[arg(short = 'R', long, value_name = "num", allow_hyphen_values = true)]
    max_reqs_per_event: Option<String>,
    /// disable use of CAS
    #[arg(short = 'C', long)]
    disable_cas: bool,
    /// set the backlog queue limit (default: 1024)
    #[arg(short = 'b', long, value_name = "num", allow_hyphen_values = true)]
    listen_backlog: Option<String>,
    /// protocol - one of ascii, binary, or auto (default: auto)
    #[arg(short = 'B', long, value_name = "name")]
    protocol: Option<String>,
    /// adjusts max item size (default: 1m, min: 1k, max: 1024m)
    #[arg(short = 'I', long, value_name = "num", allow_hyphen_values = true)]
    max_item_size: Option<String>,
    /// turn on SASL authentication (PLAIN, binary protocol only); users and passwords are in the
    /// file that MEMCACHED_SASL_PWDB names, "user:password" in each line
    #[arg(short = 'S', long)]
    enable_sasl: bool,
    /// enable text authentication; users and passwords are in this file, "user:password" in each
    /// line
    #[arg(short = 'Y', long, value_name = "file")]
    auth_file: Option<String>,
    /// disable flush_all and flush_prefix commands
    #[arg(short = 'F', long)]
    disable_flush_all: bool,
    /// disable stats cachedump, stats detail, and lru_crawler metadump
    #[arg(short = 'X', long)]
    disable_dumping: bool,
    /// disable watch commands (live logging)
    #[arg(short = 'W', long)]
    disable_watch: bool,
    /// enable TLS on TCP listeners (see ssl_chain_cert and ssl_key)
    #[arg(short = 'Z', long)]
    enable_ssl: bool,
    /// comma separated list of extended options
    ///
    /// - maxconns_fast: refuse connections above the limit at once (default); no_maxconns_fast lets
    ///   them wait
    ///
    /// - idle_timeout: seconds after which an idle TCP connection is closed (default: 0, never)
    ///
    /// - read_buf_mem_limit: megabytes for unfinished requests and unread replies of all
    ///   connections (default: 64 KiB for each of -c, within 16 and 256 MiB)
    ///
    /// - watcher_logbuf_size: size in kilobytes of per-watcher write buffer (default: 256)
    ///
    /// - worker_logbuf_size: size in kilobytes, for each thread, of the lines that watchers have
    ///   not received yet (default: 64)
    ///
    /// - eviction_policy: which items stay when memory is full: balanced (default), lru, s3fifo,
    ///   mru
    ///
    /// - io_uring_sockets_min: the minimum number of ready connections that a thread serves
    ///   together through io_uring (default: 4; at most 32; 0 for never)
    ///
    /// - pin_workers: tie each thread to one of the cores that the process may run on, if there are
    ///   enough (default: no_pin_workers)
    ///
    /// - cluster_discovery: what "config get cluster" answers: off, reached (the address to which
    ///   the client is connected) or HOST:PORT (default: off)
    ///
    /// - track_sizes: enable reports of the "stats sizes" command
    ///
    /// - slab_sizes, slab_chunk_max, no_chunked_items: size classes in reports
    ///
    /// - ssl_chain_cert: file of the certificate chain, PEM
    ///
    /// - ssl_key: file of the private key, if it is not in the file of the chain
    ///
    /// - ssl_keyformat: form of the private key: PEM or DER (default: PEM)
    ///
    /// - ssl_verify_mode: client certificates: 0 none (default), 1 verified if there is one, 2 or 3
    ///   required
    ///
    /// - ssl_ca_cert: file of the authorities that sign client certificates, PEM
    ///
    /// - ssl_session_cache: sessions can be resumed (always, by tickets)
    ///
    /// - ssl_min_version: 2 TLS 1.2 (default), 3 TLS 1.3
    ///
    /// Other options of memcached that tune its slabs, LRU and hash table are accepted without
    /// effect and named once in the log. docs/memcached-support.md lists all.
    #[arg(short = 'o', long, value_name = "options", action = ArgAction::Append)]
    extended: Vec<String>,
    /// accepted without effect
    #[arg(short = 'N', long, value_name = "num", allow_hyphen_values = true)]
    napi_ids: Option<String>,
    /// read settings from a TOML file; flags override it (see deploy/cached.toml)
    #[arg(long, value_name = "file")]
    config: Option<PathBuf>,
    /// check flags and file, and start nothing
    #[arg(long)]
    check_config: bool,
    /// print the settings of flags and file as such a file, and start nothing
    #[arg(long)]
    print_config: bool,
    /// For tests: the `debugtime` command.
    #[arg(long, hide = true)]
    debug_clock: bool,
    /// Words without a flag, which memcached ignores.
    #[arg(hide = true)]
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

/// Reads the command line; `arguments` begins with the program's name. Also reads the file that
/// `--config` names; its log format applies to the lines of this process from then on. If `file`,
/// the path and text of that file, is given, reads nothing, because the process may have left the
/// directory in which it was started.
///
/// # Errors
/// Returns [`Failure`] for an unknown flag or an unusable value, with memcached's exit status if
/// memcached has one.
pub fn read(arguments: &[std::ffi::OsString], file: Option<(&Path, &str)>) -> Result<Request, Failure> {
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
    /// Checks the arguments. `bare` is set if none of them is a flag of memcached; the server then
    /// listens on the loopback interface only. `text` is the content of the configuration file;
    /// `None` to read the file.
    fn check(self, bare: bool, mut text: Option<String>) -> Result<Request, Failure> {
        if self.help {
            return Ok(Request::Print(help_text()));
        }
        if self.license {
            return Ok(Request::Print(license_text()));
        }
        if self.version {
            return Ok(Request::Print(version_text()));
        }
        let path = self.config.clone();
        let is_start = text.is_none();
        let (check, print) = (self.check_config, self.print_config);
        let file = match &path {
            Some(path) => {
                let text = match &mut text {
                    Some(text) => text,
                    absent => absent.insert(read_config(path)?),
                };
                // The output of a check is meant for people, whatever the format of a server's log.
                if !check && !print && is_start {
                    Format::of_file(text).use_outside();
                }
                Some(File::parse(path, text)?)
            }
            None => None,
        };
        let mut config = self.overlay(file, bare)?;
        // Without a current directory, the path stays as it is.
        config.path = path.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
        config.text = text;
        if print {
            let text = config.to_toml();
            return text.map(Request::Print).or_else(|error| wrong(Exit::Usage, error));
        }
        if check {
            config.load()?;
            let what = path.as_deref().map_or("the command line".into(), Path::to_string_lossy);
            return Ok(Request::Print(format!("{what}: the configuration is valid\n")));
        }
        Ok(Request::Serve(Box::new(config)))
    }
}
