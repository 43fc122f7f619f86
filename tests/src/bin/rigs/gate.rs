//! Compares a server's instructions per request and memory per item with committed figures.
//!
//! Instruction counts are repeatable, unlike times. A figure comes from two new servers under
//! callgrind that get the same preload on one connection, then N and 2N requests: (run of 2N − run
//! of N) ÷ N. Start, preload and end cancel out. The figure is that of the busiest thread, which
//! serves the requests; background threads depend on time, which has no meaning under valgrind.

use cached_tests::checkers::full_path;
use cached_tests::conn::Conn;
use cached_tests::outside::find_program;
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Server, Start};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Counts a server's instructions per request under valgrind, and its memory per item
///
/// Exits with 1 if a figure is above its baseline by more than the gate allows.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The server
    #[arg(long, value_parser = full_path)]
    server: PathBuf,
    /// The file of the committed figures
    #[arg(long)]
    baseline: PathBuf,
    /// How much above its baseline a figure may be, in percent
    #[arg(long, default_value_t = 10.0)]
    gate: f64,
    /// Writes the figures to the file instead of comparing with it
    #[arg(long)]
    write: bool,
}

/// Figures, and the compiler of the measured server: a different compiler generates different
/// instructions.
#[derive(serde::Deserialize, serde::Serialize)]
struct Baseline {
    rustc: String,
    figures: BTreeMap<String, f64>,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match try_run(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("gate: {problem}");
            ExitCode::from(2)
        }
    }
}

fn try_run(arguments: &Arguments) -> Result<bool, String> {
    let Arguments { server, baseline, gate, write } = arguments;
    let valgrind = find_program("valgrind").ok_or("valgrind is not installed")?;
    let mut figures = BTreeMap::new();
    for subject in SUBJECTS {
        let of = |factor| count_instructions(&valgrind, server, subject, REQUESTS / subject.keys * factor);
        let keys = REQUESTS / subject.keys * subject.keys;
        figures.insert(subject.name.to_owned(), (of(2)? - of(1)?) as f64 / keys as f64);
    }
    figures.insert("bytes of memory per item of 100 bytes".to_owned(), memory_per_item(server));
    let rustc = compiler();
    if *write {
        figures.values_mut().for_each(|value| *value = value.round());
        let text = serde_json::to_string_pretty(&Baseline { rustc, figures }).map_err(|it| it.to_string())?;
        fs::write(baseline, text + "\n").map_err(|error| format!("{}: {error}", baseline.display()))?;
        return Ok(true);
    }
    let text = fs::read_to_string(baseline).map_err(|error| format!("{}: {error}", baseline.display()))?;
    let known: Baseline =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", baseline.display()))?;
    if rustc != known.rustc {
        println!("the baseline was made with {}, this is {rustc}", known.rustc);
    }
    let mut is_good = true;
    for (name, value) in &figures {
        let base = known.figures.get(name).ok_or_else(|| format!("the baseline has no `{name}`"))?;
        let percent = (value / base - 1.0) * 100.0;
        let verdict = if percent > *gate { "ABOVE THE GATE" } else { "" };
        println!("{name:<40} {value:>8.0}, baseline {base:>6}: {percent:>+6.1} % {verdict}");
        is_good &= percent <= *gate;
    }
    Ok(is_good)
}

/// The number of keys requested in the shorter of the two runs.
const REQUESTS: usize = 20_000;
const KEYS: usize = 1_000;
const VALUE: [u8; 100] = [b'v'; 100];

/// The measured load: a batch of requests, sent together, that reads or stores `keys` keys.
struct Subject {
    name: &'static str,
    keys: usize,
    kind: Kind,
}

enum Kind {
    Get,
    Multiget,
    Set,
}

const SUBJECTS: &[Subject] = &[
    Subject { name: "instructions of one get", keys: 1, kind: Kind::Get },
    Subject { name: "instructions of one set", keys: 1, kind: Kind::Set },
    Subject { name: "instructions of a get of 16 pipelined", keys: 16, kind: Kind::Get },
    Subject { name: "instructions of a key of 100 in a get", keys: 100, kind: Kind::Multiget },
];

fn key(number: usize) -> String {
    format!("key-{number:016}")
}

fn append_set(out: &mut Vec<u8>, number: usize, more: &str) {
    out.extend(format!("set {} 0 0 {}{more}\r\n", key(number), VALUE.len()).bytes());
    out.extend(VALUE);
    out.extend(b"\r\n");
}

/// Returns a batch whose keys begin at a given key, and the expected reply.
fn batch(subject: &Subject, first: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut request, mut reply) = (Vec::new(), Vec::new());
    if let Kind::Multiget = subject.kind {
        request.extend(b"get");
    }
    for number in (first..first + subject.keys).map(|number| number % KEYS) {
        let append_value = |reply: &mut Vec<u8>| {
            reply.extend(format!("VALUE {} 0 {}\r\n", key(number), VALUE.len()).bytes());
            reply.extend(VALUE);
            reply.extend(b"\r\n");
        };
        match subject.kind {
            Kind::Get => {
                request.extend(format!("get {}\r\n", key(number)).bytes());
                append_value(&mut reply);
                reply.extend(b"END\r\n");
            }
            Kind::Multiget => {
                request.extend(format!(" {}", key(number)).bytes());
                append_value(&mut reply);
            }
            Kind::Set => {
                append_set(&mut request, number, "");
                reply.extend(b"STORED\r\n");
            }
        }
    }
    if let Kind::Multiget = subject.kind {
        request.extend(b"\r\n");
        reply.extend(b"END\r\n");
    }
    (request, reply)
}

fn start(program: &Path, args: &str) -> Server {
    Start::program(Program { path: program.to_path_buf(), flavour: Flavour::Cached }).args(args).start()
}

/// Returns the instructions of the server's busiest thread, from start to end, with a preload and
/// `batches` batches in between.
fn count_instructions(
    valgrind: &Path,
    server: &Path,
    subject: &Subject,
    batches: usize,
) -> Result<u64, String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    // Valgrind runs one thread at a time; fair scheduling prevents others from starving the
    // measured one.
    let args = format!(
        "--tool=callgrind -q --fair-sched=yes --separate-threads=yes --callgrind-out-file={}/out {} -t 1 -m 64 -c 64",
        directory.path().display(),
        server.display()
    );
    let mut server = start(valgrind, &args);
    let mut conn = server.connect();
    preload(&mut conn, KEYS);
    for number in 0..batches {
        let (request, reply) = batch(subject, number * subject.keys);
        conn.ask(&request, &reply);
    }
    drop(conn);
    server.signal(libc::SIGTERM);
    let status = server.wait_exit();
    if !status.success() {
        return Err(format!("the server has ended with {status}:\n{}", server.log()));
    }
    let mut most = None;
    for entry in fs::read_dir(directory.path()).map_err(|error| error.to_string())?.flatten() {
        let text = fs::read_to_string(entry.path()).map_err(|error| error.to_string())?;
        most = most.max(total(&text));
    }
    most.ok_or_else(|| "callgrind has written no totals".to_owned())
}

/// Returns the number of the `totals:` line of callgrind's output.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().rev().find_map(|line| line.strip_prefix("totals: "))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Stores keys from 0 on; returns when all are stored.
fn preload(conn: &mut Conn, count: usize) {
    for first in (0..count).step_by(1000) {
        let mut request = Vec::new();
        (first..(first + 1000).min(count)).for_each(|number| append_set(&mut request, number, " noreply"));
        request.extend(b"mn\r\n");
        conn.ask(&request, b"MN\r\n");
    }
}

/// Returns the growth of a server's resident memory per item, in bytes.
fn memory_per_item(server: &Path) -> f64 {
    const ITEMS: usize = 500_000;
    let server = start(server, "-t 1 -m 256");
    let mut conn = server.connect();
    preload(&mut conn, KEYS);
    let before = server.rss_kib();
    preload(&mut conn, ITEMS);
    let growth = server.rss_kib().saturating_sub(before);
    (growth * 1024) as f64 / (ITEMS - KEYS) as f64
}

/// Returns the version that `rustc` reports.
fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output();
    output.map_or_else(
        |_| "an unknown compiler".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
