//! The command line: memcached's flags and long names, and what their values may be.
//!
//! A value that cannot work stops the start with one line that says what would.

use crate::settings::{ListenAddress, MEMCACHED_VERSION, Settings};
use clap::{ArgAction, Parser};
use std::path::PathBuf;

/// A memcached-compatible cache.
#[derive(Parser, Debug)]
#[command(name = "cached", disable_version_flag = true, disable_help_flag = true, max_term_width = 100)]
pub struct Cli {
    /// TCP port to listen on; 0 for none, -1 for any free one
    #[arg(
        short = 'p',
        long = "port",
        value_name = "num",
        default_value = "11211",
        allow_hyphen_values = true
    )]
    port: String,
    /// UDP port to listen on; only 0 (off) is possible
    #[arg(short = 'U', long = "udp-port", value_name = "num", default_value = "0")]
    udp_port: String,
    /// UNIX socket to listen on (disables network support)
    #[arg(short = 's', long = "unix-socket", value_name = "file")]
    unix_socket: Option<PathBuf>,
    /// access mask for UNIX socket, in octal
    #[arg(short = 'a', long = "unix-mask", value_name = "mask", default_value = "700")]
    unix_mask: String,
    /// enable the "shutdown" command
    #[arg(short = 'A', long = "enable-shutdown")]
    enable_shutdown: bool,
    /// interfaces to listen on, comma separated: host, host:port, [v6], [v6]:port (default: all, but
    /// 127.0.0.1 when started without any argument)
    #[arg(short = 'l', long = "listen", value_name = "addr", action = ArgAction::Append)]
    listen: Vec<String>,
    /// assume identity of this user (only when run as root)
    #[arg(short = 'u', long = "user", value_name = "user")]
    user: Option<String>,
    /// item memory in megabytes
    #[arg(short = 'm', long = "memory-limit", value_name = "num", default_value = "64")]
    memory_limit: String,
    /// return error on memory exhausted instead of evicting
    #[arg(short = 'M', long = "disable-evictions")]
    disable_evictions: bool,
    /// max simultaneous connections
    #[arg(short = 'c', long = "conn-limit", value_name = "num", default_value = "1024")]
    conn_limit: String,
    /// verbose; twice for more, three times for most
    #[arg(short = 'v', long = "verbose", action = ArgAction::Count)]
    verbose: u8,
    /// print this help and exit
    #[arg(short = 'h', long = "help", action = ArgAction::Help)]
    help: Option<bool>,
    /// print version and exit
    #[arg(short = 'V', long = "version")]
    version: bool,
    /// number of threads to use
    #[arg(short = 't', long = "threads", value_name = "num", default_value = "4")]
    threads: String,
    /// how much one connection may do before others get their turn, in batches of requests
    #[arg(short = 'R', long = "max-reqs-per-event", value_name = "num", default_value = "20")]
    max_reqs_per_event: String,
    /// disable use of CAS
    #[arg(short = 'C', long = "disable-cas")]
    disable_cas: bool,
    /// disable flush_all command
    #[arg(short = 'F', long = "disable-flush-all")]
    disable_flush_all: bool,
    /// disable stats cachedump, stats detail, and lru_crawler metadump
    #[arg(short = 'X', long = "disable-dumping")]
    disable_dumping: bool,
    /// disable watch commands
    #[arg(short = 'W', long = "disable-watch")]
    disable_watch: bool,
    /// set the backlog queue limit
    #[arg(short = 'b', long = "listen-backlog", value_name = "num", default_value = "1024")]
    listen_backlog: String,
    /// max item size: bytes, or with k, m, g (min: 1k, max: 1024m)
    #[arg(short = 'I', long = "max-item-size", value_name = "num", default_value = "1m")]
    max_item_size: String,
}

/// Why the server cannot start with these arguments: one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(String);

fn wrong<T>(line: impl Into<String>) -> Result<T, UsageError> {
    Err(UsageError(line.into()))
}

/// What the arguments ask for.
#[derive(Debug)]
pub enum Request {
    /// Print the version and exit.
    Version,
    /// Serve.
    Serve(Box<Settings>),
}

/// What `-V` prints: clients and tools parse the second word.
pub fn version_text() -> String {
    format!("memcached {MEMCACHED_VERSION} (cached {})", env!("CARGO_PKG_VERSION"))
}

impl Cli {
    /// Judges the arguments. `bare` says that there were none at all, which keeps the server to the loopback interface.
    ///
    /// # Errors
    /// [`UsageError`] for a value that cannot work.
    pub fn judge(self, bare: bool) -> Result<Request, UsageError> {
        if self.version {
            return Ok(Request::Version);
        }
        let port = match self.port.parse::<i32>() {
            Ok(port @ -1..=65535) => port,
            _ => {
                return wrong(format!(
                    "-p {}: the TCP port must be 0 to 65535, or -1 for any free one",
                    self.port
                ));
            }
        };
        if self.udp_port != "0" {
            return wrong(format!(
                "-U {}: UDP is not available; the UDP port must be 0 (off)",
                self.udp_port
            ));
        }
        let Ok(unix_mask @ 0..=0o777) = u32::from_str_radix(&self.unix_mask, 8) else {
            return wrong(format!("-a {}: the access mask must be octal, 0 to 777", self.unix_mask));
        };
        let memory_mib = number("-m", "item memory in megabytes", &self.memory_limit, 8, 4 << 20)?;
        let memory_bytes = (memory_mib as usize) << 20;
        let connections_max =
            number("-c", "the number of connections", &self.conn_limit, 1, 1 << 24)? as usize;
        let threads = number("-t", "the number of threads", &self.threads, 1, 1024)? as usize;
        let batches_per_wake =
            number("-R", "requests per event", &self.max_reqs_per_event, 1, 1 << 30)? as u32;
        let backlog = number("-b", "the backlog", &self.listen_backlog, 1, i32::MAX as u64)? as u32;
        let item_bytes_max = item_size(&self.max_item_size, memory_bytes)?;

        let interface = (!self.listen.is_empty()).then(|| self.listen.join(","));
        let listen = match &self.unix_socket {
            Some(_) => Vec::new(),
            None => listeners(&self.listen, port, bare)?,
        };
        Ok(Request::Serve(Box::new(Settings {
            interface: interface.or_else(|| bare.then(|| "127.0.0.1".into())),
            listen,
            port,
            unix_path: self.unix_socket,
            unix_mask,
            memory_bytes,
            connections_max,
            threads,
            item_bytes_max,
            evict: !self.disable_evictions,
            cas: !self.disable_cas,
            verbosity: self.verbose.min(3),
            flush_enabled: !self.disable_flush_all,
            dump_enabled: !self.disable_dumping,
            watch_enabled: !self.disable_watch,
            shutdown_command: self.enable_shutdown,
            batches_per_wake,
            backlog,
            user: self.user,
            connection_bytes_max: Settings::connection_bytes_for(connections_max),
        })))
    }
}

fn number(flag: &str, what: &str, text: &str, min: u64, max: u64) -> Result<u64, UsageError> {
    match text.parse::<u64>() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => wrong(format!("{flag} {text}: {what} must be a number from {min} to {max}")),
    }
}

/// `-I`: bytes, or kibi-, mebi-, gibibytes with a letter.
fn item_size(text: &str, memory_bytes: usize) -> Result<usize, UsageError> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1usize << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let Some(bytes) = digits.parse::<usize>().ok().and_then(|count| count.checked_mul(unit)) else {
        return wrong(format!("-I {text}: the item size must be a number of bytes, or one with k, m or g"));
    };
    // memcached's own words, which scripts may look for.
    if bytes < 1024 {
        return wrong("Item max size cannot be less than 1024 bytes.");
    }
    if bytes > memory_bytes / 2 {
        return wrong("Cannot set item size limit higher than 1/2 of memory max.");
    }
    if bytes > 1 << 30 {
        return wrong("Cannot set item size limit higher than a gigabyte.");
    }
    Ok(bytes)
}

fn listeners(arguments: &[String], port: i32, bare: bool) -> Result<Vec<ListenAddress>, UsageError> {
    if port == 0 {
        return Ok(Vec::new());
    }
    let port = u16::try_from(port).unwrap_or(0);
    if arguments.is_empty() {
        let host = bare.then(|| "127.0.0.1".into());
        return Ok(vec![ListenAddress { host, port }]);
    }
    let parts =
        arguments.iter().flat_map(|argument| argument.split([',', ';', ' '])).filter(|part| !part.is_empty());
    parts.map(|part| listener(part, port)).collect()
}

/// One address of `-l`.
fn listener(text: &str, port: u16) -> Result<ListenAddress, UsageError> {
    let bad =
        || UsageError(format!("-l {text}: an address must be a host, host:port, [IPv6] or [IPv6]:port"));
    let with = |host: &str, given: Option<&str>| {
        let port = given.map_or(Ok(port), |given| given.parse().map_err(|_| bad()))?;
        Ok(ListenAddress { host: (host != "*").then(|| host.to_owned()), port })
    };
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
        return match rest.strip_prefix(':') {
            Some(given) => with(host, Some(given)),
            None if rest.is_empty() => with(host, None),
            None => Err(bad()),
        };
    }
    match text.split_once(':') {
        // An IPv6 address without brackets.
        Some((_, rest)) if rest.contains(':') => with(text, None),
        Some((host, given)) if !host.is_empty() => with(host, Some(given)),
        Some(_) => Err(bad()),
        None => with(text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(arguments: &[&str]) -> Result<Request, UsageError> {
        let all = std::iter::once("cached").chain(arguments.iter().copied());
        Cli::try_parse_from(all).expect("known flags").judge(arguments.is_empty())
    }

    fn settings(arguments: &[&str]) -> Settings {
        match judge(arguments) {
            Ok(Request::Serve(settings)) => *settings,
            other => panic!("{other:?}"),
        }
    }

    fn complaint(arguments: &[&str]) -> String {
        judge(arguments).expect_err("a usage error").to_string()
    }

    fn address(host: Option<&str>, port: u16) -> ListenAddress {
        ListenAddress { host: host.map(Into::into), port }
    }

    #[test]
    fn without_arguments_only_this_host_is_served() {
        let settings = settings(&[]);
        assert_eq!(settings.listen, [address(Some("127.0.0.1"), 11211)]);
        assert_eq!(
            (settings.memory_bytes, settings.item_bytes_max, settings.threads),
            (64 << 20, 1 << 20, 4)
        );
        assert!(settings.evict && settings.cas && !settings.shutdown_command);
    }

    #[test]
    fn with_any_argument_all_interfaces_are() {
        assert_eq!(settings(&["-m", "100"]).listen, [address(None, 11211)]);
    }

    #[test]
    fn addresses() {
        let listen = |text: &str| settings(&["-p", "7", "-l", text]).listen;
        assert_eq!(listen("127.0.0.1"), [address(Some("127.0.0.1"), 7)]);
        assert_eq!(listen("localhost:8,[::1]:9"), [address(Some("localhost"), 8), address(Some("::1"), 9)]);
        assert_eq!(listen("[::1]"), [address(Some("::1"), 7)]);
        assert_eq!(listen("fe80::1"), [address(Some("fe80::1"), 7)]);
        assert_eq!(listen("*:8"), [address(None, 8)]);
        assert!(settings(&["-p", "0", "-l", "::1"]).listen.is_empty());
        assert_eq!(settings(&["-p", "-1"]).listen, [address(None, 0)]);
        assert!(complaint(&["-l", "host:x"]).starts_with("-l host:x: an address must be"));
    }

    #[test]
    fn flags_may_be_joined_to_their_values() {
        let settings =
            settings(&["-p22122", "-m256", "-vv", "-U0", "-I", "2m", "-Mt", "8", "-C", "-A", "-s", "/tmp/x"]);
        assert_eq!((settings.port, settings.memory_bytes, settings.verbosity), (22122, 256 << 20, 2));
        assert_eq!((settings.item_bytes_max, settings.threads), (2 << 20, 8));
        assert!(!settings.evict && !settings.cas && settings.shutdown_command);
        assert!(settings.listen.is_empty(), "a unix socket disables the network");
    }

    #[test]
    fn long_names() {
        let arguments = [
            "--port=5",
            "--listen=::1",
            "--memory-limit=128",
            "--conn-limit=9",
            "--threads=2",
            "--max-item-size=4k",
        ];
        let settings = settings(&arguments);
        assert_eq!((settings.listen, settings.connections_max), (vec![address(Some("::1"), 5)], 9));
        assert_eq!(settings.item_bytes_max, 4096);
    }

    #[test]
    fn bad_values_are_named() {
        assert_eq!(complaint(&["-I", "1000"]), "Item max size cannot be less than 1024 bytes.");
        assert_eq!(complaint(&["-I", "33m"]), "Cannot set item size limit higher than 1/2 of memory max.");
        assert_eq!(
            complaint(&["-m", "8000", "-I", "2g"]),
            "Cannot set item size limit higher than a gigabyte."
        );
        assert_eq!(complaint(&["-t", "0"]), "-t 0: the number of threads must be a number from 1 to 1024");
        assert_eq!(
            complaint(&["-U", "11211"]),
            "-U 11211: UDP is not available; the UDP port must be 0 (off)"
        );
        for bad in [
            &["-p", "65536"][..],
            &["-p", "x"],
            &["-a", "9"],
            &["-a", "1000"],
            &["-m", "x"],
            &["-m", "0"],
            &["-c", "0"],
            &["-I", "x"],
        ] {
            assert!(complaint(bad).contains("must be"), "{bad:?}");
        }
    }

    #[test]
    fn the_version_is_parsable() {
        assert!(matches!(judge(&["-V"]), Ok(Request::Version)));
        assert_eq!(version_text().split(' ').nth(1), Some("1.6.45"));
    }
}
