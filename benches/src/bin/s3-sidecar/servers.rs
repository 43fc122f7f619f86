//! The endpoint, and nginx and `cached` in front of it, each on a given core.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cached_benches::process::CpuClock;
use cached_benches::server::{bind_to_parent, find_program, free_address};
use rustix::process::{Pid, Signal, kill_process};

use crate::sign::{HOST, Keys};

const START_LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(5);
/// The cache size of nginx and `cached`.
const CACHE_MIB: u64 = 1024;

/// A server, with the processes whose CPU time counts.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pids: Vec<u32>,
    /// Ends the server when dropped.
    _held: Held,
}

enum Held {
    Process { _process: Process },
    Cluster { _cluster: Cluster },
}

impl Server {
    /// Returns the CPU time of the server's processes in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> Result<u64> {
        self.pids.iter().map(|&pid| CpuClock::of(pid)?.now_ns()).sum()
    }
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // SIGTERM lets nginx end its workers. All three calls fail only if the process has already
        // been waited for.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let begun = Instant::now();
        while begun.elapsed() < END_LIMIT && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program that listens at `address`.
fn start(mut command: Command, address: SocketAddr, log: &Path, cpu: usize) -> Result<Process> {
    let file = fs::File::create(log)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    bind_to_parent(&mut command, Some(cpu));
    let mut process = Process(command.spawn().with_context(|| format!("starting {command:?}"))?);
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() {
        let words = || fs::read_to_string(log).unwrap_or_default();
        if let Some(status) = process.0.try_wait()? {
            bail!("{command:?} has ended ({status}): {}", words());
        }
        ensure!(begun.elapsed() < START_LIMIT, "{command:?} does not listen: {}", words());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(process)
}

/// A one-node Ceph in memory with its S3 gateway, by `deploy/dev/ceph-dev`.
struct Cluster(PathBuf);

impl Cluster {
    fn dev(&self, words: &[&str], cpu: Option<usize>) -> Result<()> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/dev/ceph-dev");
        let mut command = Command::new(script);
        command.arg(words[0]).arg(&self.0).args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null());
        bind_to_parent(&mut command, cpu);
        ensure!(command.status().context("ceph-dev")?.success(), "ceph-dev {words:?} has failed");
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.dev(&["down", "--wipe"], None);
    }
}

/// Starts radosgw.
pub(crate) fn radosgw(directory: &Path, cpu: usize) -> Result<(Server, Keys)> {
    find_program(
        Path::new("radosgw"),
        "Debian has it in the package radosgw; --endpoint versitygw does without",
    )?;
    let cluster = Cluster(directory.join("ceph"));
    let until = std::process::id().to_string();
    cluster.dev(&["up", "--store", "memstore", "--size", "8589934592", "--until", &until], Some(cpu))?;
    cluster.dev(&["rgw", "start"], Some(cpu))?;
    let endpoint = fs::read_to_string(cluster.0.join("rgw/endpoint"))?;
    let address = endpoint.trim().trim_start_matches("http://").parse().context("radosgw's address")?;
    let pid = |name: &str| -> Result<u32> {
        let text = fs::read_to_string(cluster.0.join("run").join(name))?;
        text.split(' ').next().and_then(|pid| pid.parse().ok()).with_context(|| format!("{name}: {text}"))
    };
    let pids = vec![pid("rgw.pid")?, pid("osd.0.pid")?];
    let keys = Keys { access: "cached".into(), secret: "of-ceph-dev".into() };
    Ok((Server { name: "radosgw", address, pids, _held: Held::Cluster { _cluster: cluster } }, keys))
}

/// Starts versitygw over a directory.
pub(crate) fn versitygw(directory: &Path, cpu: usize) -> Result<(Server, Keys)> {
    let program =
        find_program(Path::new("versitygw"), "go install github.com/versity/versitygw/cmd/versitygw@v1.8.0")?;
    let objects = directory.join("versitygw");
    fs::create_dir(&objects)?;
    let keys = Keys { access: "root-of-the-bench".into(), secret: "secret-of-the-bench".into() };
    let address = free_address()?;
    let mut command = Command::new(program);
    command.args(["--port", &address.to_string(), "--quiet", "--keep-alive", "posix"]).arg(objects);
    command.env("ROOT_ACCESS_KEY_ID", &keys.access).env("ROOT_SECRET_ACCESS_KEY", &keys.secret);
    let process = start(command, address, &directory.join("versitygw.log"), cpu)?;
    let pids = vec![process.0.id()];
    Ok((Server { name: "versitygw", address, pids, _held: Held::Process { _process: process } }, keys))
}

/// Starts nginx with `proxy_cache` in front of an endpoint, with one worker, its files in
/// `directory`, and no log.
pub(crate) fn nginx(directory: &Path, endpoint: SocketAddr, cpu: usize) -> Result<Server> {
    let program =
        find_program(Path::new("nginx"), "Debian has it in the package nginx-light").or_else(|_| {
            find_program(Path::new("/usr/sbin/nginx"), "Debian has it in the package nginx-light")
        })?;
    let place = directory.join("nginx");
    fs::create_dir(&place)?;
    let address = free_address()?;
    let user = if rustix::process::geteuid().is_root() { "user root;\n" } else { "" };
    let dir = place.display();
    let config = format!(
        "{user}worker_processes 1;\ndaemon off;\npid {dir}/pid;\nerror_log {dir}/error.log;\n\
         events {{ worker_connections 512; }}\n\
         http {{\n\
         access_log off;\nsendfile on;\ntcp_nopush off;\ntcp_nodelay on;\n\
         keepalive_timeout 1h;\nkeepalive_requests 1000000000;\n\
         client_body_temp_path {dir}/1;\nproxy_temp_path {dir}/2;\nfastcgi_temp_path {dir}/3;\n\
         uwsgi_temp_path {dir}/4;\nscgi_temp_path {dir}/5;\n\
         proxy_cache_path {dir}/cache levels=1:2 keys_zone=s3:16m max_size={CACHE_MIB}m inactive=1d use_temp_path=off;\n\
         upstream s3 {{ server {endpoint}; keepalive 32; }}\n\
         server {{\nlisten {address};\nlocation / {{\nproxy_pass http://s3;\nproxy_http_version 1.1;\n\
         proxy_set_header Connection \"\";\nproxy_set_header Host $http_host;\n\
         proxy_cache s3;\nproxy_cache_key $uri;\nproxy_cache_valid 200 1d;\n\
         proxy_ignore_headers Cache-Control Expires Set-Cookie Vary;\n\
         add_header X-Cache $upstream_cache_status;\n}}\n}}\n}}\n"
    );
    let file = place.join("nginx.conf");
    fs::write(&file, config)?;
    let mut command = Command::new(program);
    command.arg("-c").arg(&file).arg("-p").arg(&place);
    let process = start(command, address, &directory.join("nginx.log"), cpu)?;
    let master = process.0.id();
    let pids = vec![worker_of(master)?];
    Ok(Server { name: "nginx", address, pids, _held: Held::Process { _process: process } })
}

/// Waits for nginx's worker, and returns it.
fn worker_of(master: u32) -> Result<u32> {
    let begun = Instant::now();
    loop {
        let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children"))?;
        let is_worker = |pid: &u32| {
            let title = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            title.contains("worker process")
        };
        if let Some(pid) = children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_worker) {
            return Ok(pid);
        }
        ensure!(begun.elapsed() < START_LIMIT, "nginx has no worker");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts `cached` in front of an endpoint. `more` contains further lines of `[s3]` and the tables
/// after it.
pub(crate) fn cached(
    program: &Path,
    directory: &Path,
    endpoint: SocketAddr,
    more: &str,
    cpu: usize,
) -> Result<(Server, SocketAddr)> {
    let program =
        find_program(program, "build it with `cargo build --release`, or give its place by --cached")?;
    let [address, memcached, admin] = [free_address()?, free_address()?, free_address()?];
    let file = directory.join("cached.toml");
    let text = format!(
        "[memcached]\nlisten = [\"{memcached}\"]\nthreads = 1\nmemory_bytes_max = \"16 MiB\"\n\
         [admin]\nlisten = [\"{admin}\"]\n\
         [s3]\nlisten = [\"{address}\"]\nupstream = \"http://{endpoint}\"\ndomains = [\"{HOST}\"]\nthreads = 1\n\
         memory_bytes_max = \"{CACHE_MIB} MiB\"\n{more}\n"
    );
    fs::write(&file, text)?;
    let mut command = Command::new(program);
    command.arg("--config").arg(&file);
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "root"]);
    }
    let process = start(command, address, &directory.join("cached.log"), cpu)?;
    let pids = vec![process.0.id()];
    Ok((Server { name: "cached", address, pids, _held: Held::Process { _process: process } }, admin))
}
