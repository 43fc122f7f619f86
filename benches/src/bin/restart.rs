//! Warm restarts: how long a store takes to take over the items of an earlier process.
//!
//! `cargo run --release --manifest-path benches/Cargo.toml --bin restart -- [--memcached PATH]
//! [--cached PATH]`
//!
//! *In process*: a child fills a store in a memory file and is killed, or ends properly; this
//! process opens the file. CPU time counts, so the figure is that of one core. *Servers* are filled
//! over a socket, ended and started again; the time from the start to the first reply counts.
//! memcached keeps its items only if it is ended with SIGUSR1 and starts in a later second than it
//! ended, so each server pauses in between, and the pause does not count.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cached_benches::figure::Figure;
use cached_core::arena::ArenaFile;
use cached_core::clock::SystemClock;
use cached_core::kv::{Kv, KvConfig};
use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};

#[derive(Parser)]
#[command(about = "Warm restarts: the time to take over a memory file, beside memcached's")]
struct Args {
    /// The number of items, each with a key of 20 bytes and a value of 100 bytes
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000))]
    items: u64,
    /// Directory for memory files, on a tmpfs with room for the items twice
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Rounds; the median is printed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// A `cached` to restart; without it only the part in process runs
    #[arg(long)]
    cached: Option<PathBuf>,
    /// A memcached to restart
    #[arg(long)]
    memcached: Option<PathBuf>,
    /// For the child: fill this file
    #[arg(long, hide = true)]
    fill: Option<PathBuf>,
    /// For the child: end as if killed
    #[arg(long, hide = true)]
    abort: bool,
}

const KEY_BYTES: usize = 20;
const VALUE: [u8; 100] = [b'v'; 100];
/// The most memory per item, including headers and slack for memcached's slabs.
const ITEM_BYTES: u64 = 220;
/// Additional memory, because memcached gives a page to each item size.
const BASE_BYTES: u64 = 64 << 20;
/// The maximum time that a server may take to respond after its start, and to exit.
const START_STOP_LIMIT: Duration = Duration::from_secs(600);
/// The pause between an end and the next start, because memcached compares whole seconds.
const PAUSE: Duration = Duration::from_millis(2_100);

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(path) = &args.fill {
        return fill(path, args.items, args.abort);
    }
    let directory = tempfile::tempdir_in(&args.dir).context("a directory for memory files")?;
    in_process(&args, directory.path(), true)?;
    in_process(&args, directory.path(), false)?;
    if let Some(program) = &args.cached {
        server("cached", program, Signal::KILL, &args, directory.path())?;
        server("cached", program, Signal::USR1, &args, directory.path())?;
    }
    if let Some(program) = &args.memcached {
        server("memcached", program, Signal::USR1, &args, directory.path())?;
    }
    Ok(())
}

fn memory_bytes(items: u64) -> usize {
    usize::try_from((items * ITEM_BYTES).next_multiple_of(1 << 20) + BASE_BYTES).unwrap_or(usize::MAX)
}

fn key(n: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'k'; KEY_BYTES];
    key[..16].copy_from_slice(format!("{n:016x}").as_bytes());
    key
}

fn open(path: &Path, items: u64) -> Result<Kv> {
    let file = ArenaFile::open(path)?;
    let clock = Arc::new(SystemClock::starting_at(file.resume_secs()));
    Ok(Kv::new(KvConfig {
        arena_bytes: memory_bytes(items),
        clock,
        file: Some(file),
        ..KvConfig::default()
    })?)
}

/// Fills the store, in the child process.
fn fill(path: &Path, items: u64, abort: bool) -> Result<()> {
    let kv = open(path, items)?;
    (0..items).try_for_each(|n| kv.set(&key(n), &VALUE))?;
    kv.maintain();
    if abort {
        std::process::abort();
    }
    Ok(())
}

fn in_process(args: &Args, directory: &Path, is_killed: bool) -> Result<()> {
    let path = directory.join("store");
    let mut rates = Vec::new();
    let mut times = Vec::new();
    for _ in 0..args.rounds {
        let mut child = Command::new(std::env::current_exe()?);
        child.args([
            OsString::from("--fill"),
            path.clone().into(),
            "--items".into(),
            args.items.to_string().into(),
        ]);
        if is_killed {
            child.arg("--abort");
        }
        let status = child.stderr(Stdio::null()).status()?;
        ensure!(status.success() != is_killed, "the child that fills ended with {status}");
        let before = cpu_secs();
        let kv = open(&path, args.items)?;
        let used = cpu_secs() - before;
        let restart = kv.restart().context("the store has no memory file")?;
        ensure!(restart.cold.is_none(), "nothing was taken over: {:?}", restart.cold);
        ensure!(restart.items == args.items, "{} items of {}", restart.items, args.items);
        rates.push(args.items as f64 / used / 1e6);
        times.push(restart.took.as_secs_f64());
        drop(kv);
        std::fs::remove_file(&path)?;
    }
    let how = if is_killed { "killed" } else { "clean, with checksums" };
    println!(
        "{}",
        Figure::new(format!("in process, {how}: rebuilt"), median(&mut rates), "million items/s/core")
    );
    println!("{}", Figure::new(format!("in process, {how}: took"), median(&mut times), "s"));
    Ok(())
}

fn server(name: &str, program: &Path, signal: Signal, args: &Args, directory: &Path) -> Result<()> {
    let path = directory.join(format!("{name}-memory"));
    let (mut times, mut ends) = (Vec::new(), Vec::new());
    let (mut running, address, _) = start(program, &path, args.items)?;
    preload(address, args.items)?;
    for _ in 0..args.rounds {
        ends.push(running.end(signal)?.as_secs_f64());
        std::thread::sleep(PAUSE);
        let (next, address, took) = start(program, &path, args.items)?;
        running = next;
        let items = items_of(address)?;
        ensure!(items >= args.items * 99 / 100, "{name} has {items} items of {} after its start", args.items);
        times.push(took.as_secs_f64());
    }
    running.end(Signal::KILL)?;
    for entry in std::fs::read_dir(directory)? {
        std::fs::remove_file(entry?.path())?;
    }
    println!(
        "{}",
        Figure::new(format!("{name}, after {signal:?}: first reply after"), median(&mut times), "s")
    );
    println!("{}", Figure::new(format!("{name}, {signal:?}: ended after"), median(&mut ends), "s"));
    Ok(())
}

/// A server that is killed when dropped, so that an error does not leave it running.
struct Running(Child);

impl Running {
    /// Ends the server, and returns how long this took.
    fn end(&mut self, signal: Signal) -> Result<Duration> {
        let begun = Instant::now();
        kill_process(Pid::from_child(&self.0), signal)?;
        while self.0.try_wait()?.is_none() {
            ensure!(begun.elapsed() < START_STOP_LIMIT, "the server does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(begun.elapsed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The call fails if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server. Returns the server, its address, and the time until its first response.
fn start(program: &Path, file: &Path, items: u64) -> Result<(Running, SocketAddr, Duration)> {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let begun = Instant::now();
    let mut command = Command::new(program);
    command.args(["-l", "127.0.0.1", "-U", "0", "-p", &address.port().to_string(), "-e"]).arg(file);
    command.args(["-m", &(memory_bytes(items) >> 20).to_string()]);
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "root"]);
    }
    // Standard output is not inherited: the reader of a pipe that a server keeps open would never
    // see its end.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = Running(command.spawn().with_context(|| program.display().to_string())?);
    loop {
        if ask(address, "version").is_ok_and(|line| line.starts_with("VERSION")) {
            return Ok((running, address, begun.elapsed()));
        }
        if let Some(status) = running.0.try_wait()? {
            bail!("{} ended with {status}", program.display());
        }
        ensure!(begun.elapsed() < START_STOP_LIMIT, "{} does not answer", program.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn ask(address: SocketAddr, command: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

fn items_of(address: SocketAddr) -> Result<u64> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"stats\r\nquit\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let line = text.lines().find_map(|line| line.strip_prefix("STAT curr_items "));
    Ok(line.context("no curr_items")?.trim().parse()?)
}

fn preload(address: SocketAddr, items: u64) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    let mut batch = Vec::new();
    for n in 0..items {
        batch.extend_from_slice(b"set ");
        batch.extend_from_slice(&key(n));
        batch.extend_from_slice(b" 0 0 100 noreply\r\n");
        batch.extend_from_slice(&VALUE);
        batch.extend_from_slice(b"\r\n");
        if batch.len() > 256 << 10 || n + 1 == items {
            stream.write_all(&batch)?;
            batch.clear();
        }
    }
    stream.write_all(b"version\r\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    ensure!(line.starts_with("VERSION"), "{line}");
    Ok(())
}

/// Returns the CPU time of this process.
fn cpu_secs() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
