//! The output of `-h`, `-i` and `-V`, and the manual page made of it.
//!
//! Tools search the help for words to find out what a server supports, so it names the flags and
//! options that work, and neither those that are refused nor those without effect.

use super::Cli;
use crate::config::settings::MEMCACHED_VERSION;
use cached_process::Exit;
use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};

/// Returns the output of `-V`; clients and tools parse its second word.
pub fn version_text() -> String {
    format!("memcached {MEMCACHED_VERSION} (cached {})\n", env!("CARGO_PKG_VERSION"))
}

/// Returns the output of `-i`.
pub fn license_text() -> String {
    format!("{}\ncached is licensed under MIT or Apache-2.0, at your choice.\n", version_text())
}

/// Returns the output of `-h`.
pub fn help_text() -> String {
    version_text() + FLAGS
}

pub(super) const FLAGS: &str = "\
-p, --port=<num>          TCP port to listen on (default: 11211; 0: none, -1: any free one)
-U, --udp-port=<num>      UDP port to listen on (default: 0, off; -1: any free one)
-s, --unix-socket=<file>  UNIX socket to listen on (disables network support)
-a, --unix-mask=<mask>    access mask for UNIX socket, in octal (default: 700)
-A, --enable-shutdown     enable ascii \"shutdown\" command
-l, --listen=<addr>       interface to listen on (default: all; without any flag at all: 127.0.0.1)
                          several may be given, separated by commas, each with a port and a protocol:
                          proto[ascii|binary|negotiating]:host:port, IPv6 as [address]:port;
                          with -Z, notls: before it is without TLS, btls: without, and mtls:
                          with client certificates
-d, --daemon              run as a daemon
-r, --enable-coredumps    maximize core file limit
-u, --user=<user>         assume identity of <username> (only when run as root)
-m, --memory-limit=<num>  item memory in megabytes (default: 64)
-M, --disable-evictions   return error on memory exhausted instead of evicting
-c, --conn-limit=<num>    max simultaneous connections (default: 1024)
-k, --lock-memory         lock down all paged memory
-v, --verbose             verbose (warnings, refused connections, shutdown)
-vv                       very verbose (also connections that are opened and closed)
-vvv                      extremely verbose
-h, --help                print this help and exit
-i, --license             print license and exit
-V, --version             print version and exit
-P, --pidfile=<file>      save PID in <file>; removed at the end with -d
-f, --slab-growth-factor=<num> growth factor of the size classes in reports (default: 1.25)
-n, --slab-min-size=<bytes> smallest size class in reports: key+value+flags (default: 48)
-e, --memory-file=<file>  keep the items in <file>, on a tmpfs or a disk: the next process takes them over,
                          also after a crash of this one
-L, --enable-largepages   try to use large memory pages (if available)
-D <char>                 use <char> as the delimiter between key prefixes and IDs in
                          \"stats detail\", and start with it turned on (default: \":\", off)
-t, --threads=<num>       number of threads to use (default: 4)
-R, --max-reqs-per-event  how many requests of one connection are executed before others are
                          served (default: as many as 20 reads bring)
-C, --disable-cas         disable use of CAS
-b, --listen-backlog=<num> set the backlog queue limit (default: 1024)
-B, --protocol=<name>     protocol - one of ascii, binary, or auto (default: auto)
-I, --max-item-size=<num> adjusts max item size (default: 1m, min: 1k, max: 1024m)
-S, --enable-sasl         turn on SASL authentication (PLAIN, binary protocol only); users and passwords are
                          in the file that MEMCACHED_SASL_PWDB names, \"user:password\" in each line
-Y, --auth-file=<file>    enable text authentication; users and passwords are in the file,
                          \"user:password\" in each line
-F, --disable-flush-all   disable flush_all and flush_prefix commands
-X, --disable-dumping     disable stats cachedump, stats detail, and lru_crawler metadump
-W, --disable-watch       disable watch commands (live logging)
-Z, --enable-ssl          enable TLS on TCP listeners (see ssl_chain_cert and ssl_key)
-o, --extended            comma separated list of extended options
   - maxconns_fast:       refuse connections above the limit at once (default);
                          no_maxconns_fast lets them wait
   - idle_timeout:        seconds after which an idle TCP connection is closed (default: 0, never)
   - read_buf_mem_limit:  megabytes for unfinished requests and unread replies of all connections
                          (default: 64 KiB for each of -c, within 16 and 256 MiB)
   - watcher_logbuf_size: size in kilobytes of per-watcher write buffer (default: 256)
   - worker_logbuf_size:  size in kilobytes, for each thread, of the lines that watchers have
                          not received yet (default: 64)
   - eviction_policy:     which items stay when memory is full: balanced (default), lru, s3fifo, mru
   - pin_workers:         tie each thread to one of the cores that the process may run on, if there are
                          enough (default: no_pin_workers)
   - cluster_discovery:   what \"config get cluster\" answers: off, reached (the address to which the client
                          is connected) or HOST:PORT (default: off)
   - track_sizes:         enable reports of the \"stats sizes\" command
   - slab_sizes, slab_chunk_max, no_chunked_items: size classes in reports
   - ssl_chain_cert:      file of the certificate chain, PEM
   - ssl_key:             file of the private key, if it is not in the file of the chain
   - ssl_keyformat:       form of the private key: PEM or DER (default: PEM)
   - ssl_verify_mode:     client certificates: 0 none (default), 1 verified if there is one,
                          2 or 3 required
   - ssl_ca_cert:         file of the authorities that sign client certificates, PEM
   - ssl_session_cache:   sessions can be resumed (always, by tickets)
   - ssl_min_version:     2 TLS 1.2 (default), 3 TLS 1.3
   Other options of memcached that tune its slabs, LRU and hash table are accepted without effect
   and named once in the log. docs/memcached-support.md lists all.
-N, --napi-ids            accepted without effect
    --config=<file>       read settings from a TOML file; flags win over it (see deploy/cached.toml)
    --check-config        check flags and file, and start nothing
    --print-config        print the settings of flags and file as such a file, and start nothing
";

// Manual pages and shell completions: the flags of [`Cli`] with the texts of `-h`. Flags that `-h`
// does not name (refused ones, those for tests) are hidden.

/// Returns the command line with a text for each flag that `-h` names.
pub fn command() -> Command {
    let entries = entries();
    let described = |arg: Arg| match entries.iter().find(|entry| entry.names(&arg)) {
        None => arg.hide(true),
        Some(entry) => {
            let arg = match entry.value {
                Some(value) => arg.value_name(value),
                // memcached ignores the value as well.
                None if arg.get_id() == "verbose_long" => arg.value_name("ignored"),
                None => arg,
            };
            // One paragraph for each line that stands for itself; a shell shows the first sentence.
            arg.help(StyledStr::from(entry.text[0].clone())).long_help(entry.text.join("\n\n"))
        }
    };
    Cli::command()
        .version(env!("CARGO_PKG_VERSION"))
        .about("A cache server that any memcached client uses, and a cache of objects in front of slow stores")
        .override_usage("cached [FLAGS]")
        .after_long_help(format!(
            "The flags are memcached's. With any flag and no -l the server listens on all interfaces, without any \
             flag on 127.0.0.1. SIGTERM and SIGINT end it in order: requests that were received are answered, dirty \
             objects are stored. SIGHUP reads the configuration again. SIGUSR2 starts the program at its path, which \
             takes over sockets, memory file and connections; if that fails, the running process goes on.\n\n{}",
            Exit::summary()
        ))
        .mut_args(described)
}

/// A flag in the text of `-h`.
struct Entry {
    /// `-p`, `--port`.
    flags: Vec<String>,
    /// `num`, of `--port=<num>`.
    value: Option<&'static str>,
    /// Its paragraphs; at least one.
    text: Vec<String>,
}

impl Entry {
    fn names(&self, arg: &Arg) -> bool {
        let short = arg.get_short().map(|short| format!("-{short}"));
        let long = arg.get_long().map(|long| format!("--{long}"));
        self.flags.iter().any(|flag| Some(flag) == short.as_ref() || Some(flag) == long.as_ref())
    }
}

/// Reads the text of `-h`.
fn entries() -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for line in FLAGS.lines() {
        let trimmed = line.trim_start();
        let flag = line.starts_with('-') || line.starts_with("    --");
        let Some(last) = entries.last_mut() else {
            entries.extend(flag.then(|| entry(trimmed)));
            continue;
        };
        let repeated = line.starts_with("-vv");
        if flag && !repeated {
            entries.push(entry(trimmed));
        } else if repeated || trimmed.starts_with("- ") || line.starts_with("   Other") {
            last.text.push(words(trimmed));
        } else if let Some(text) = last.text.last_mut() {
            text.push(' ');
            text.push_str(trimmed);
        }
    }
    entries
}

/// Reads the first line of a flag: names and value, two spaces or the end of the value, text.
fn entry(line: &'static str) -> Entry {
    let end = match (line.find("  "), line.find("> ")) {
        (Some(spaces), Some(value)) => spaces.min(value + 1),
        (Some(end), None) => end,
        (None, Some(value)) => value + 1,
        (None, None) => line.len(),
    };
    let (names, text) = line.split_at(end);
    let value = names.split_once('<').map(|(_, value)| value.trim_end_matches('>'));
    let names = names.split_once('<').map_or(names, |(names, _)| names);
    let flags = names.split(", ").map(|flag| flag.trim_end_matches(['=', ' ']).to_owned()).collect();
    Entry { flags, value, text: vec![words(text)] }
}

/// Returns a text with single spaces between its words.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_parsable() {
        assert_eq!(version_text().split(' ').nth(1), Some("1.6.45"));
    }

    #[test]
    fn only_what_works_is_named() {
        let help = help_text().to_lowercase();
        for works in [
            "unix-socket",
            "shutdown",
            "--pidfile",
            "idle_timeout",
            "--daemon",
            "--disable-watch",
            "--enable-ssl",
            "memory-file",
        ] {
            assert!(help.contains(works), "{works}");
        }
        for missing in ["ext_path", "proxy", "drop_privileges"] {
            assert!(!help.contains(missing), "{missing}");
        }
    }

    #[test]
    fn every_flag_of_the_help_has_its_text_and_value() {
        let command = command();
        let find = |name: &str| {
            let found = command.get_arguments().find(|arg| arg.get_long() == Some(name));
            found.unwrap_or_else(|| panic!("{name}"))
        };
        let text = |name: &str| find(name).get_help().map(ToString::to_string).unwrap_or_default();
        assert_eq!(
            text("slab-growth-factor"),
            "growth factor of the size classes in reports (default: 1.25)"
        );
        assert_eq!(text("memory-limit"), "item memory in megabytes (default: 64)");
        assert!(text("listen").ends_with("with client certificates"), "{}", text("listen"));
        assert_eq!(text("check-config"), "check flags and file, and start nothing");
        assert_eq!(find("port").get_value_names().map(|names| names[0].to_string()).as_deref(), Some("num"));
        assert!(!find("memory-file").is_hide_set() && find("debug-clock").is_hide_set());
        let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
        for arg in shown {
            let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(!text.is_empty(), "{arg} has no text");
        }
    }

    #[test]
    fn every_entry_of_the_help_belongs_to_a_flag() {
        let command = command();
        for entry in entries() {
            let found = command.get_arguments().any(|arg| entry.names(arg) && !arg.is_hide_set());
            assert!(found, "{:?}", entry.flags);
        }
    }
}
