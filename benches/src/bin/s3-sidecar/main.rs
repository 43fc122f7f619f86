//! The S3 sidecar compared with nginx's `proxy_cache` and the endpoint itself: CPU time per
//! request, throughput, latency.
//!
//! `cargo run --release --manifest-path benches/Cargo.toml --bin s3-sidecar -- [--cached PATH]
//! [--auth gateway]`
//!
//! The endpoint (radosgw with one OSD in memory, or versitygw over a directory in `--dir`) has the
//! same objects in all measurements. nginx keeps its files in `--dir`, has one worker and does not
//! check signatures; `cached` has one thread. All servers are on one core and the load on another,
//! unless `--cores apart` gives each server its own core, as if the endpoint were on another
//! machine. Requests are signed in advance by a header and read random objects of one size, one at
//! a time per connection; the length, the first and the last bytes of every body are checked. nginx
//! must state `HIT` in each response, and the sidecar's own count of hits must equal the number of
//! requests. The servers alternate within each round, and the median of the rounds counts.
//!
//! CPU time is that of the named processes, user and system; radosgw's includes that of the OSD.
//! The endpoint's share of a hit that makes a request to it is a separate figure. `cold` reads each
//! object once from the endpoint, through nginx and through `cached`, alternately, one at a time.

mod client;
mod data;
mod servers;
mod sign;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cached_benches::cpu;
use cached_benches::figure::Figure;
use cached_benches::machine::Machine;
use cached_benches::statistics::Spread;
use clap::{Parser, ValueEnum};

use client::{Connection, Get, Outcome, run};
use data::{BUCKET, COLD, Objects, WARM};
use servers::Server;
use sign::Keys;

#[derive(Parser)]
#[command(about = "The S3 sidecar beside nginx's proxy_cache and the endpoint itself")]
struct Args {
    /// The `cached` to measure
    #[arg(long, default_value = "target/release/cached")]
    cached: PathBuf,
    /// The endpoint
    #[arg(long, value_enum, default_value_t = Endpoint::Radosgw)]
    endpoint: Endpoint,
    /// The value of `s3.auth`; with `listener` the sidecar checks signatures, and revalidates once
    /// an hour
    #[arg(long, value_enum, default_value_t = Auth::Gateway)]
    auth: Auth,
    /// Directory for nginx's files, on a tmpfs
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Rounds; the median is printed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// The assignment of cores to servers
    #[arg(long, value_enum, default_value_t = Cores::Shared)]
    cores: Cores,
    /// Only loads whose name contains this: 4 KiB, 64 KiB, 4 MiB, 64 MiB, 64 KiB of 64 MiB, cold
    #[arg(long, default_value = "")]
    only: String,
    /// Connections
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    connections: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Endpoint {
    Radosgw,
    Versitygw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Auth {
    Gateway,
    Listener,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cores {
    /// One core for all servers, one for the load
    Shared,
    /// One core for each server, one for the load
    Apart,
}

impl Cores {
    /// Chooses the cores of the endpoint, nginx, `cached` and the load from the usable ones.
    fn choose(self, usable: &[usize]) -> Result<[usize; 4]> {
        let (first, last) = (usable[0], *usable.last().context("a core")?);
        ensure!(first != last, "servers and load need a core each");
        if self == Self::Shared {
            return Ok([first, first, first, last]);
        }
        ensure!(usable.len() >= 4, "--cores apart needs four cores, and {} can be used", usable.len());
        // The cores are as far apart as possible, because neighbouring CPUs may be threads of one
        // core.
        Ok([0, 1, 2, 3].map(|server| usable[server * usable.len() / 4]))
    }
}

/// A load, which reads parts of objects.
struct Load {
    name: &'static str,
    objects: Objects,
    /// The size of each part; the whole object if `None`.
    part_bytes: Option<u64>,
}

const LOADS: [Load; 5] = [
    Load { name: "4 KiB", objects: WARM[0], part_bytes: None },
    Load { name: "64 KiB", objects: WARM[1], part_bytes: None },
    Load { name: "4 MiB", objects: WARM[2], part_bytes: None },
    Load { name: "64 MiB", objects: WARM[3], part_bytes: None },
    Load { name: "64 KiB of 64 MiB", objects: WARM[3], part_bytes: Some(64 << 10) },
];

fn main() -> Result<()> {
    let args = Args::parse();
    let cpus = cpu::usable_cpus()?;
    let cores @ [endpoint_cpu, nginx_cpu, cached_cpu, client_cpu] = args.cores.choose(&cpus)?;
    let directory = tempfile::tempdir_in(&args.dir).context("a directory for the servers")?;
    let path = directory.path();
    let (endpoint, keys) = match args.endpoint {
        Endpoint::Radosgw => servers::radosgw(path, endpoint_cpu)?,
        Endpoint::Versitygw => servers::versitygw(path, endpoint_cpu)?,
    };
    let nginx = servers::nginx(path, endpoint.address, nginx_cpu)?;
    let (more, cached_keys) = settings(args.auth, path, &keys)?;
    let (cached, admin) = servers::cached(&args.cached, path, endpoint.address, &more, cached_cpu)?;
    println!("{}", Machine::read());
    // The load's threads inherit the core.
    cpu::pin_current_thread(client_cpu)?;
    println!(
        "auth = {:?}, {} connections, {} s, {} rounds; cores of the endpoint, nginx, cached and the load: {cores:?}; machine's load {}",
        args.auth,
        args.connections,
        args.seconds,
        args.rounds,
        fs::read_to_string("/proc/loadavg").unwrap_or_default().trim()
    );
    fill(&endpoint, &keys)?;
    let all = Servers { endpoint, nginx, cached, admin, keys, cached_keys };
    for load in LOADS.iter().filter(|load| load.name.contains(&args.only)) {
        all.measure(load, &args)?;
    }
    if "cold".contains(&args.only) {
        COLD.iter().try_for_each(|objects| all.measure_cold(objects))?;
    }
    Ok(())
}

/// Returns the lines of `[s3]` that determine who checks signatures, and the keys for the sidecar's
/// clients. Writes the files named in these lines.
fn settings(auth: Auth, directory: &Path, keys: &Keys) -> Result<(String, Keys)> {
    if auth == Auth::Gateway {
        return Ok(("auth = \"gateway\"".into(), keys.clone()));
    }
    let own = Keys { access: "client-of-the-bench".into(), secret: "secret-of-the-client".into() };
    let [secret_file, keys_file] = ["upstream-secret", "keys.toml"].map(|name| directory.join(name));
    let list = format!(
        "[[keys]]\naccess_key = \"{}\"\nsecret_key = \"{}\"\nread = [\"{BUCKET}\"]\n",
        own.access, own.secret
    );
    for (path, text) in [(&secret_file, format!("{}\n", keys.secret)), (&keys_file, list)] {
        fs::write(path, text)?;
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    }
    let lines = format!(
        "auth = \"listener\"\nkeys_file = \"{}\"\nupstream_access_key = \"{}\"\nupstream_secret_file = \"{}\"\n\
         [[s3.buckets]]\nname = \"{BUCKET}\"\nfresh_secs = 3600",
        keys_file.display(),
        keys.access,
        secret_file.display()
    );
    Ok((lines, own))
}

/// Creates the bucket and its objects.
fn fill(endpoint: &Server, keys: &Keys) -> Result<()> {
    let mut connection = Connection::open(endpoint.address)?;
    let mut put = |path: &str, body: &[u8]| -> Result<()> {
        let (status, text) = connection.send(&keys.signed("PUT", path), body)?;
        ensure!(matches!(status, 200 | 204), "PUT {path} was answered {status}: {text}");
        Ok(())
    };
    put(&format!("/{BUCKET}"), &[])?;
    for objects in WARM.iter().chain(&COLD) {
        for number in 0..objects.count {
            put(&objects.path(number), &objects.body(number))?;
        }
    }
    Ok(())
}

/// Returns one read of an object, or of a part of it.
fn get(keys: &Keys, objects: &Objects, number: usize, part: Option<(u64, u64)>) -> Get {
    let (from, bytes) = part.unwrap_or((0, objects.bytes));
    let range = part.map(|_| format!("Range: bytes={from}-{}\r\n", from + bytes - 1)).unwrap_or_default();
    let head = format!("{}{range}\r\n", keys.signed("GET", &objects.path(number)));
    Get { head, bytes, ends: [objects.word(number, from), objects.word(number, from + bytes - 8)] }
}

fn gets(keys: &Keys, load: &Load) -> Vec<Get> {
    let objects = &load.objects;
    let mut all = Vec::new();
    for number in 0..objects.count {
        match load.part_bytes {
            None => all.push(get(keys, objects, number, None)),
            Some(bytes) => {
                let parts = (0..objects.bytes / bytes).step_by(7);
                all.extend(parts.map(|part| get(keys, objects, number, Some((part * bytes, bytes)))));
            }
        }
    }
    all
}

struct Servers {
    endpoint: Server,
    nginx: Server,
    cached: Server,
    admin: SocketAddr,
    keys: Keys,
    /// The keys of `cached`'s clients.
    cached_keys: Keys,
}

/// The medians of a server's rounds.
struct Medians {
    cpu_us: f64,
    endpoint_cpu_us: f64,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Servers {
    /// Measures a load on the endpoint, nginx and the sidecar, and prints the results.
    fn measure(&self, load: &Load, args: &Args) -> Result<()> {
        for server in [&self.nginx, &self.cached] {
            let all = gets(self.keys_of(server), load);
            let mut connection = Connection::open(server.address)?;
            // An object that is cached late is certainly present once it has been read again.
            for _ in 0..2 {
                all.iter().try_for_each(|get| connection.get(get, None))?;
            }
        }
        let servers = [&self.endpoint, &self.nginx, &self.cached];
        let mut rounds: [Vec<(Outcome, f64, f64)>; 3] = Default::default();
        for _ in 0..args.rounds {
            for (server, rounds) in servers.iter().zip(&mut rounds) {
                // The requests are signed again for each run, because a signature is valid for
                // fifteen minutes.
                let all = gets(self.keys_of(server), load);
                rounds.push(self.round(server, &all, args)?);
            }
        }
        let [endpoint, nginx, cached] = rounds.map(|rounds| medians(&rounds));
        for (server, it) in servers.iter().zip([&endpoint, &nginx, &cached]) {
            let print = |what: &str, value: f64, unit: &str| {
                println!("{}", Figure::new(format!("{}: {}, {what}", load.name, server.name), value, unit));
            };
            print("CPU per request", it.cpu_us, "us");
            if server.name != self.endpoint.name {
                print("the endpoint's CPU for it", it.endpoint_cpu_us, "us");
            }
            print("throughput", it.per_second, "requests/s");
            print("p50", it.p50_us, "us");
            print("p99", it.p99_us, "us");
        }
        let bytes = load.part_bytes.unwrap_or(load.objects.bytes);
        let bar = |is_here: bool, bar: Bar| is_here.then_some(bar);
        let is_listener = args.auth == Auth::Listener;
        let whole = load.part_bytes.is_none() && bytes <= 4 << 20;
        let cpu_max = if bytes >= 4 << 20 { 1.3 } else { 1.0 };
        let ratio = |what: &str, value: f64, bar: Option<Bar>| judged(load.name, what, value, bar);
        ratio(
            "CPU per request, cached / nginx",
            cached.cpu_us / nginx.cpu_us,
            bar(is_listener && whole, Bar::Most(cpu_max)),
        );
        ratio("p99, cached / nginx", cached.p99_us / nginx.p99_us, bar(is_listener && whole, Bar::Most(1.0)));
        ratio("throughput, cached / nginx", cached.per_second / nginx.per_second, None);
        let least = match (args.auth, bytes) {
            _ if !whole || args.endpoint != Endpoint::Radosgw => None,
            (Auth::Listener, 4096) => Some(Bar::Least(20.0)),
            (Auth::Gateway, 4_194_304) => Some(Bar::Least(3.0)),
            _ => None,
        };
        let what = format!("throughput, cached / {}", self.endpoint.name);
        ratio(&what, cached.per_second / endpoint.per_second, least);
        Ok(())
    }

    fn keys_of(&self, server: &Server) -> &Keys {
        if server.name == self.cached.name { &self.cached_keys } else { &self.keys }
    }

    /// Makes one measurement, including the CPU time per request in microseconds of the server and
    /// of the endpoint behind it.
    fn round(&self, server: &Server, all: &[Get], args: &Args) -> Result<(Outcome, f64, f64)> {
        let must_have = (server.name == self.nginx.name).then_some("x-cache: hit");
        let hits = self.hits()?;
        let (cpu, endpoint_cpu) = (server.cpu_ns()?, self.endpoint.cpu_ns()?);
        let time = Duration::from_secs(args.seconds);
        let outcome = run(server.address, all, args.connections as usize, time, must_have)
            .with_context(|| format!("the load on {}", server.name))?;
        let per_request = |ns: u64| ns as f64 / 1000.0 / outcome.requests as f64;
        let cpu_us = per_request(server.cpu_ns()? - cpu);
        let endpoint_cpu_us = per_request(self.endpoint.cpu_ns()? - endpoint_cpu);
        if server.name == self.cached.name {
            let hits = self.hits()? - hits;
            ensure!(hits == outcome.requests, "{hits} hits of {} requests", outcome.requests);
        }
        Ok((outcome, cpu_us, endpoint_cpu_us))
    }

    /// Returns how many requests the sidecar has served from memory.
    fn hits(&self) -> Result<u64> {
        let mut stream = TcpStream::connect(self.admin).context("the admin listener of cached")?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let name = "cached_s3_sidecar_requests_total{result=\"hit\"} ";
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        value.with_context(|| format!("no {name} in {text}"))
    }

    /// Reads objects that were never read before, one at a time, alternately from the endpoint,
    /// through nginx and through the sidecar.
    fn measure_cold(&self, objects: &Objects) -> Result<()> {
        let servers = [&self.endpoint, &self.nginx, &self.cached];
        let connections = servers.map(|server| Connection::open(server.address));
        let mut connections = connections.into_iter().collect::<Result<Vec<_>>>()?;
        let mut times: [Vec<f64>; 3] = Default::default();
        for number in 0..objects.count {
            for turn in [0, 1, 2].map(|turn| (number + turn) % 3) {
                let get = get(self.keys_of(servers[turn]), objects, number, None);
                let begun = Instant::now();
                connections[turn].get(&get, None)?;
                times[turn].push(begun.elapsed().as_secs_f64() * 1e6);
            }
        }
        let spread = |times: &[f64]| Spread::of(times.iter().copied()).context("no objects");
        let [direct, nginx, through] =
            [spread(&times[0])?.median, spread(&times[1])?.median, spread(&times[2])?.median];
        let name = format!("cold, {} KiB", objects.bytes >> 10);
        for (server, median) in servers.iter().zip([direct, nginx, through]) {
            println!("{}", Figure::new(format!("{name}: {}, median", server.name), median, "us"));
        }
        judged(&name, "latency, cached / the endpoint", through / direct, Some(Bar::Most(1.1)));
        judged(&name, "latency, nginx / the endpoint", nginx / direct, None);
        Ok(())
    }
}

/// The required value of a ratio.
#[derive(Clone, Copy, Debug)]
enum Bar {
    Most(f64),
    Least(f64),
}

/// Prints a ratio, and whether it reaches its required value.
fn judged(load: &str, what: &str, value: f64, bar: Option<Bar>) {
    let figure = Figure::new(format!("{load}: {what}"), value, "x");
    let word = |is_met| if is_met { "met" } else { "missed" };
    match bar {
        None => println!("{figure}"),
        Some(Bar::Most(most)) => println!("{figure}  bar at most {most}: {}", word(value <= most)),
        Some(Bar::Least(least)) => println!("{figure}  bar at least {least}: {}", word(value >= least)),
    }
}

fn medians(rounds: &[(Outcome, f64, f64)]) -> Medians {
    let median = |value: &dyn Fn(&(Outcome, f64, f64)) -> f64| {
        Spread::of(rounds.iter().map(value)).map_or(f64::NAN, |spread| spread.median)
    };
    Medians {
        cpu_us: median(&|round| round.1),
        endpoint_cpu_us: median(&|round| round.2),
        per_second: median(&|round| round.0.per_second()),
        p50_us: median(&|round| round.0.quantile_us(0.5)),
        p99_us: median(&|round| round.0.quantile_us(0.99)),
    }
}
