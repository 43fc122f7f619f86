//! Disks over NBD: the CPU time per request of `cached`, compared with nbdkit's memory disk and
//! qemu-nbd.
//!
//! `cargo run --release --manifest-path benches/Cargo.toml --bin nbd -- [--cached PATH]`
//!
//! Each server has a disk of the same size on a unix socket, and runs on one core: `cached` a
//! volume in its object cache (write-back over a store in memory, no journal), nbdkit its memory
//! plugin, qemu-nbd a raw file on a tmpfs. fio's NBD engine is the client, on another core. Every
//! disk is written once from start to end before anything is measured. The servers alternate within
//! each round; the median of the rounds is printed, and its ratio to nbdkit's. CPU time is that of
//! the process, user and system, over all threads.
//!
//! A connection to each disk stays open, as for a running virtual machine. Without such a
//! connection, `cached` would release the volume at the end of each run of fio and store all of it,
//! which would count for the next run.
//!
//! `cached` occurs twice. The first one has space for a completely dirty disk, and stores nothing
//! during the measurement, so it does the same work as the others. *cached, storing* stores
//! everything beyond half of the disk: every second random write makes a clean bucket dirty and
//! causes another one to be stored, on the same core.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cached_benches::cpu;
use cached_benches::figure::Figure;
use cached_benches::process::CpuClock;
use cached_benches::server::{bind_to_parent, find_program, free_address};
use clap::Parser;
use serde_json::Value;

#[derive(Parser)]
#[command(about = "CPU time per request of disks over NBD, beside nbdkit and qemu-nbd")]
struct Args {
    /// The `cached` to measure
    #[arg(long, default_value = "target/release/cached")]
    cached: PathBuf,
    /// Directory for qemu-nbd's disk, on a tmpfs
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Size of each disk
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    disk_mib: u64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Rounds; the median is printed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
}

/// A load: fio's name of the pattern, the request size, and the number of outstanding requests.
struct Load {
    name: &'static str,
    pattern: &'static str,
    request_bytes: u64,
    depth: u32,
}

const LOADS: [Load; 6] = [
    Load { name: "4 KiB read, depth 1", pattern: "randread", request_bytes: 4096, depth: 1 },
    Load { name: "4 KiB read, depth 32", pattern: "randread", request_bytes: 4096, depth: 32 },
    Load { name: "4 KiB write, depth 1", pattern: "randwrite", request_bytes: 4096, depth: 1 },
    Load { name: "4 KiB write, depth 32", pattern: "randwrite", request_bytes: 4096, depth: 32 },
    Load { name: "128 KiB read, depth 8", pattern: "randread", request_bytes: 128 << 10, depth: 8 },
    Load { name: "128 KiB write, depth 8", pattern: "randwrite", request_bytes: 128 << 10, depth: 8 },
];

/// The index of the server with which the others are compared.
const BASE: usize = 1;
/// The maximum time that a server may take to respond.
const START_LIMIT: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let args = Args::parse();
    let cpus = cpu::usable_cpus()?;
    let (server_cpu, client_cpu) = (cpus[0], *cpus.last().context("a core")?);
    ensure!(server_cpu != client_cpu, "server and client need a core each");
    let directory = tempfile::tempdir_in(&args.dir).context("a directory for the disks")?;
    let path = directory.path();
    let disk_bytes = args.disk_mib << 20;
    // With this limit, flushing starts at half of the dirty limit.
    let servers = [
        Disk::cached("cached", &args, path, server_cpu, disk_bytes / 2 * 5)?,
        Disk::nbdkit(&args, path, server_cpu)?,
        Disk::qemu_nbd(&args, path, server_cpu)?,
        Disk::cached("cached, storing", &args, path, server_cpu, disk_bytes)?,
    ];
    println!(
        "disks of {} MiB, written once, {} s a measurement, {} rounds; server on core {server_cpu}, fio on core {client_cpu}; load {}",
        args.disk_mib,
        args.seconds,
        args.rounds,
        fs::read_to_string("/proc/loadavg").unwrap_or_default().trim()
    );
    for server in &servers {
        let fill = ["--rw=write", "--bs=1m", "--iodepth=8"].map(str::to_owned);
        fio(server, client_cpu, &fill)?;
    }
    for load in &LOADS {
        let mut measured = vec![(Vec::new(), Vec::new()); servers.len()];
        for _ in 0..args.rounds {
            for (server, (cpu_us, rates)) in servers.iter().zip(&mut measured) {
                let (cpu, rate) = measure(server, load, &args, client_cpu)?;
                cpu_us.push(cpu);
                rates.push(rate);
            }
        }
        let medians: Vec<_> =
            measured.into_iter().map(|(cpu_us, rates)| (median(cpu_us), median(rates))).collect();
        let (base_us, base_rate) = medians[BASE];
        for (server, (cpu_us, rate)) in servers.iter().zip(medians) {
            let figure = |what: &str, value: f64, unit: &str| {
                println!("{}", Figure::new(format!("{}: {}, {what}", load.name, server.name), value, unit));
            };
            figure("CPU per request", cpu_us, "us");
            figure("throughput", rate, "requests/s");
            if server.name != servers[BASE].name {
                figure("CPU per request, of nbdkit's", cpu_us / base_us, "");
                figure("throughput, of nbdkit's", rate / base_rate, "");
            }
        }
    }
    Ok(())
}

/// Returns the server's CPU time per request in microseconds, and the requests per second.
fn measure(server: &Disk, load: &Load, args: &Args, client_cpu: usize) -> Result<(f64, f64)> {
    let words = [
        format!("--rw={}", load.pattern),
        format!("--bs={}", load.request_bytes),
        format!("--iodepth={}", load.depth),
        "--time_based=1".to_owned(),
        format!("--runtime={}", args.seconds),
        "--norandommap=1".to_owned(),
        // One wake-up of the client takes all available replies.
        format!("--iodepth_batch_complete_max={}", load.depth),
    ];
    let clock = CpuClock::of(server.server.0.id())?;
    let before = clock.now_ns()?;
    let (requests, rate) = fio(server, client_cpu, &words)?;
    let used = clock.now_ns()? - before;
    Ok((used as f64 / 1000.0 / requests, rate))
}

/// Runs fio on a server's disk. Returns the number of requests, and how many were done per second.
fn fio(server: &Disk, client_cpu: usize, words: &[String]) -> Result<(f64, f64)> {
    let mut command = Command::new("fio");
    command.args(["--name=disk", "--ioengine=nbd", "--output-format=json", "--randseed=1"]);
    command.arg(format!("--uri={}", server.uri)).arg(format!("--size={}m", server.disk_mib)).args(words);
    bind_to_parent(&mut command, Some(client_cpu));
    let output = command.stdin(Stdio::null()).output().context("fio cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "fio on {}: {text}{}",
        server.name,
        String::from_utf8_lossy(&output.stderr)
    );
    // Warnings may precede the document.
    let document = text.find('{').map_or("", |start| &text[start..]);
    let report: Value = serde_json::from_str(document).context("fio's report")?;
    let job = &report["jobs"][0];
    ensure!(job["error"] == 0, "fio on {}: error {}", server.name, job["error"]);
    let sum = |field: &str| ["read", "write"].iter().filter_map(|way| job[way][field].as_f64()).sum::<f64>();
    let requests = sum("total_ios");
    ensure!(requests > 0.0, "fio on {} did nothing", server.name);
    Ok((requests, sum("iops")))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A server with one disk. Dropping it ends the server.
struct Disk {
    name: &'static str,
    server: Server,
    uri: String,
    disk_mib: u64,
    /// The connection that keeps the disk in use.
    _connection: UnixStream,
}

/// Opens a disk, and leaves the connection idle.
fn open_disk(socket: &Path, export: &str) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    ensure!(greeting.starts_with(b"NBDMAGICIHAVEOPT"), "no server of fixed newstyle NBD");
    // The fixed newstyle handshake, without zero padding after the server's reply, is followed by
    // the option EXPORT_NAME.
    let mut request = 3_u32.to_be_bytes().to_vec();
    request.extend(b"IHAVEOPT");
    request.extend(1_u32.to_be_bytes());
    request.extend((export.len() as u32).to_be_bytes());
    request.extend(export.as_bytes());
    stream.write_all(&request)?;
    // This skips the disk's size and flags.
    stream.read_exact(&mut [0; 10]).context("the server refused the export")?;
    Ok(stream)
}

impl Disk {
    /// Starts `cached` with a volume that is completely in its cache, of which up to
    /// `dirty_bytes_max` may be dirty.
    fn cached(
        name: &'static str,
        args: &Args,
        directory: &Path,
        cpu: usize,
        dirty_bytes_max: u64,
    ) -> Result<Self> {
        let program = find_program(
            &args.cached,
            "build it with `cargo build --release`, or give its place by --cached",
        )?;
        let file = |what: &str| directory.join(format!("{}.{what}", name.replace(", ", "-")));
        let (socket, token) = (file("sock"), file("token"));
        fs::write(&token, "a-token-of-the-bench-for-nbd\n")?;
        fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let (memcached, admin) = (free_address()?, free_address()?);
        let config = file("toml");
        fs::write(
            &config,
            format!(
                "[memcached]\nlisten = [\"{memcached}\"]\nthreads = 1\n\
                 [objects]\nwrite = \"back\"\nwriter = \"cache\"\nmemory_bytes_max = {}\ndirty_bytes_max = {}\n\
                 dirty_age_ms_max = 3600000\nbackend = {{ kind = \"memory\" }}\n\
                 [volumes]\n[nbd]\nlisten = [\"unix:{}\"]\n\
                 [admin]\nlisten = [\"{admin}\"]\ntoken_file = \"{}\"\n",
                dirty_bytes_max + (args.disk_mib << 20),
                dirty_bytes_max,
                socket.display(),
                token.display()
            ),
        )?;
        let mut command = Command::new(program);
        command.arg("--config").arg(&config);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        let body = format!("{{\"name\": \"disk\", \"size_bytes\": {}}}", args.disk_mib << 20);
        let request = format!(
            "POST /volumes/create HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\
             Authorization: Bearer a-token-of-the-bench-for-nbd\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let make = || {
            let mut stream = TcpStream::connect(admin).context("the admin listener of cached")?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            ensure!(answer.starts_with("HTTP/1.1 200"), "the volume cannot be made: {answer}");
            Ok(())
        };
        Self::start(name, command, &socket, "disk", args, cpu, make)
    }

    fn nbdkit(args: &Args, directory: &Path, cpu: usize) -> Result<Self> {
        let socket = directory.join("nbdkit.sock");
        let mut command =
            Command::new(find_program(Path::new("nbdkit"), "Debian has it in the package nbdkit")?);
        command.args(["-f", "-U"]).arg(&socket).arg("memory").arg(format!("{}M", args.disk_mib));
        Self::start("nbdkit", command, &socket, "", args, cpu, || Ok(()))
    }

    fn qemu_nbd(args: &Args, directory: &Path, cpu: usize) -> Result<Self> {
        let (socket, image) = (directory.join("qemu-nbd.sock"), directory.join("disk.raw"));
        fs::File::create(&image)?.set_len(args.disk_mib << 20)?;
        let mut command =
            Command::new(find_program(Path::new("qemu-nbd"), "Debian has it in the package qemu-utils")?);
        command.args(["-f", "raw", "-t", "-e", "4", "-k"]).arg(&socket).arg(&image);
        Self::start("qemu-nbd", command, &socket, "", args, cpu, || Ok(()))
    }

    /// Starts a server. `make` creates its disk once it listens.
    fn start(
        name: &'static str,
        mut command: Command,
        socket: &Path,
        export: &str,
        args: &Args,
        cpu: usize,
        make: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        let log = socket.with_extension("log");
        let file = fs::File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        bind_to_parent(&mut command, Some(cpu));
        let mut server = Server(command.spawn().with_context(|| format!("starting {name}"))?);
        let uri = format!("nbd+unix:///{export}?socket={}", socket.display());
        let begun = Instant::now();
        while UnixStream::connect(socket).is_err() {
            let words = || fs::read_to_string(&log).unwrap_or_default();
            if let Some(status) = server.0.try_wait()? {
                bail!("{name} has ended ({status}): {}", words());
            }
            ensure!(begun.elapsed() < START_LIMIT, "{name} does not listen: {}", words());
            thread::sleep(Duration::from_millis(5));
        }
        make()?;
        let connection = open_disk(socket, export).with_context(|| format!("the disk of {name}"))?;
        Ok(Self { name, server, uri, disk_mib: args.disk_mib, _connection: connection })
    }
}

/// A process. Dropping it ends the process.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if the child has already been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
