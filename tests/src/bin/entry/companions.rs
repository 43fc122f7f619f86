//! The nodes behind an entry, which end with it.

use cached_tests::daemon::write_secret;
use cached_tests::moves::{self, By, Cluster, Options};
use cached_tests::ring::{MapFile, PATIENT};
use cached_tests::server::Start;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// The time between two changes of the nodes' weights.
const EVERY: Duration = Duration::from_secs(2);

/// As many threads as any test asks for.
const LIMITS: &str = "peer_lanes_max = 64\n";

/// The weights of the nodes, one after the other: each loses its slots and gets them back.
const ORDERS: [(&str, &str); 6] =
    [("entry", "0"), ("entry", "1"), ("b", "0"), ("b", "1"), ("c", "0"), ("c", "1")];

/// What the nodes share where clients need a password.
const SECRET: &str = "the secret of a ring for entries";

/// Flags without and with a value that all nodes have: limits, which are those of the owner, clocks and threads.
/// Others are about listeners and files, which are the entry's.
const SWITCHES: [&str; 6] = ["-M", "-C", "-F", "-v", "-vv", "--debug-clock"];
const VALUES: [&str; 7] = ["-m", "-I", "-t", "-f", "-n", "-R", "-o"];

/// Returns the arguments of the entry that the other nodes have as well.
pub(crate) fn shared(arguments: &[OsString]) -> Vec<OsString> {
    let mut shared = Vec::new();
    let mut all = arguments.iter();
    while let Some(argument) = all.next() {
        let text = argument.to_string_lossy();
        if SWITCHES.contains(&&*text) {
            shared.push(argument.clone());
        } else if let Some(flag) = VALUES.iter().find(|flag| text.starts_with(**flag)) {
            // `-m64` or `-m 64`.
            let value = match text.len() > flag.len() {
                true => Some(OsStr::new(&text[flag.len()..]).to_owned()),
                false => all.next().cloned(),
            };
            let is_shared = |value: &OsString| *flag != "-o" || is_shared_option(value);
            if let Some(value) = value.filter(is_shared) {
                shared.extend([OsString::from(flag), value]);
            }
        }
    }
    shared
}

/// Returns whether all nodes have an extended option: those of TLS need the certificates of a listener.
fn is_shared_option(value: &OsStr) -> bool {
    !value.to_string_lossy().contains("ssl_")
}

/// Starts the nodes, prints the path of the entry's configuration, and ends when the entry does.
pub(crate) fn run(arguments: &[OsString]) -> ExitCode {
    let arguments: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    let arguments = arguments.join(" ");
    let is_over = end_of_the_entry();
    match std::env::var("CACHED_TEST_RING").as_deref() {
        Ok("none") => by_map_file(&["b"], &[("0-16383", "b")], &arguments, &is_over),
        Ok("third") => {
            let runs = [("0-5460", "b"), ("5461-10922", "entry"), ("10923-16383", "c")];
            by_map_file(&["b", "c"], &runs, &arguments, &is_over);
        }
        Ok("moves") => by_registry(arguments, &is_over),
        other => {
            eprintln!("CACHED_TEST_RING must be none, third or moves, not {other:?}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Returns what is disconnected at the end of the entry, which holds the other end of this process's input.
fn end_of_the_entry() -> Receiver<()> {
    let (alive, is_over) = channel();
    std::thread::spawn(move || {
        let _alive = alive;
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    });
    is_over
}

/// Lets the entry begin.
fn announce(configuration: &Path) {
    println!("{}", configuration.display());
    std::io::stdout().flush().expect("the entry waits");
}

/// A ring whose owners are fixed.
fn by_map_file(others: &[&str], runs: &[(&str, &str)], arguments: &str, is_over: &Receiver<()>) {
    let names: Vec<&str> = [&["entry"], others].concat();
    let map = MapFile::new(&names, runs);
    let more = format!("{LIMITS}{PATIENT}\n{}", map.secret("secret_file", SECRET));
    let configure = |name: &str| {
        let file = map.path(&format!("{name}.toml"));
        std::fs::write(&file, map.configuration(name, &more)).expect("a configuration");
        file
    };
    let start = |name: &&str| {
        Start::new().args(arguments).args(&format!("--config={}", configure(name).display())).start()
    };
    let _nodes: Vec<_> = others.iter().map(start).collect();
    announce(&configure("entry"));
    let _ = is_over.recv();
}

/// A ring whose slots move.
fn by_registry(arguments: String, is_over: &Receiver<()>) {
    let secret = tempfile::NamedTempFile::new().expect("a file");
    write_secret(secret.path(), SECRET);
    let ring = format!("{LIMITS}{}\nsecret_file = \"{}\"", moves::PATIENT, secret.path().display());
    let options = Options { args: arguments.leak(), ring: ring.leak(), ..Options::default() };
    let cluster = Cluster::start(&["b", "c"], By::Disk, options);
    announce(&cluster.configuration_outside("entry"));
    let mut has_joined = false;
    for (node, weight) in ORDERS.iter().cycle() {
        if is_over.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        // The first order is refused if the entry has not joined yet.
        let (code, said) = cluster.command(0, &["weight", node, weight]);
        assert!(code == 0 || !has_joined, "weight {node} {weight}: {said}");
        has_joined |= code == 0;
    }
}
