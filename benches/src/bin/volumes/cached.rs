//! Servers with a disk over NBD: `cached` with volumes, and any other program that listens on a
//! unix socket.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cached_benches::server::{bind_to_parent, find_program, free_address};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::Arguments;

/// The maximum time that a server may take to listen, or to exit, which includes storing its dirty
/// data.
const LIMIT: Duration = Duration::from_secs(300);
const TOKEN: &str = "a-token-of-the-bench-for-volumes";

/// A server on a unix socket. Dropping it kills it.
pub(crate) struct Server {
    child: Child,
    name: String,
    pub(crate) socket: PathBuf,
    log: PathBuf,
}

impl Server {
    /// Starts a server that has to listen on the socket.
    pub(crate) fn start(name: &str, mut command: Command, socket: PathBuf) -> Result<Self> {
        // A killed server may have left the file.
        let _ = fs::remove_file(&socket);
        let log = socket.with_extension("log");
        let file = fs::File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        bind_to_parent(&mut command, None);
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        let mut server = Self { child, name: name.to_owned(), socket, log };
        let begun = Instant::now();
        while UnixStream::connect(&server.socket).is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("{name} has ended ({status}): {}", server.words());
            }
            ensure!(begun.elapsed() < LIMIT, "{name} does not listen: {}", server.words());
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Returns the NBD URI of an export.
    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// Shuts the server down in order, and waits until it has exited.
    pub(crate) fn end(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "{} ended with {status}: {}", self.name, self.words());
                return Ok(());
            }
            ensure!(begun.elapsed() < LIMIT, "{} does not end: {}", self.name, self.words());
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn words(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if the child has already been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The configuration of a `cached`: lines of `[objects]` and of its subtables.
pub(crate) struct Configuration {
    pub(crate) memory_mib: u64,
    pub(crate) dirty_mib: u64,
    pub(crate) backend: String,
    pub(crate) has_journal: bool,
    pub(crate) more: &'static str,
}

/// A `cached` with volumes.
pub(crate) struct Cached {
    pub(crate) server: Server,
    admin: SocketAddr,
}

impl Cached {
    pub(crate) fn start(arguments: &Arguments, directory: &Path, wanted: &Configuration) -> Result<Self> {
        let hint = "build it with `cargo build --release -p cached-server`, or name it by --cached";
        let program = find_program(&arguments.cached, hint)?;
        let (socket, token) = (directory.join("cached.sock"), directory.join("token"));
        fs::write(&token, format!("{TOKEN}\n"))?;
        fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let (memcached, admin) = (free_address()?, free_address()?);
        let Configuration { memory_mib, dirty_mib, backend, has_journal, more } = wanted;
        // The earlier process has exited properly, so its journal contains nothing that the store
        // lacks.
        let folder = directory.join("journal");
        let _ = fs::remove_dir_all(&folder);
        let journal = match has_journal {
            // The journal has space for twice the dirty limit, and for four more segments.
            true => format!(
                "journal = {{ create = true, directory = \"{}\", limit_bytes = {} }}\n",
                folder.display(),
                (dirty_mib * 2 + 512) << 20
            ),
            false => String::new(),
        };
        let text = format!(
            "[memcached]\nlisten = [\"{memcached}\"]\nthreads = 1\n\
             [objects]\nwrite = \"back\"\nwriter = \"cache\"\nmemory_bytes_max = {}\ndirty_bytes_max = {}\n\
             shutdown_flush_secs = 240\nbackend = {backend}\n{more}{journal}\
             [volumes]\n[nbd]\nlisten = [\"unix:{}\"]\n[admin]\nlisten = [\"{admin}\"]\ntoken_file = \"{}\"\n",
            memory_mib << 20,
            dirty_mib << 20,
            socket.display(),
            token.display()
        );
        let config = directory.join("cached.toml");
        fs::write(&config, text)?;
        let mut command = Command::new(program);
        command.arg("--config").arg(&config);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        let cached = Self { server: Server::start("cached", command, socket)?, admin };
        // The server listens for NBD before its store is available.
        let begun = Instant::now();
        while !cached.ask("GET /startupz HTTP/1.1\r\n", "")?.starts_with("HTTP/1.1 200") {
            ensure!(begun.elapsed() < LIMIT, "cached does not start: {}", cached.server.words());
            thread::sleep(Duration::from_millis(5));
        }
        Ok(cached)
    }

    /// Creates a volume.
    pub(crate) fn create(&self, name: &str, size_bytes: u64) -> Result<()> {
        self.post("/volumes/create", &format!("{{\"name\": \"{name}\", \"size_bytes\": {size_bytes}}}"))?;
        Ok(())
    }

    /// Sends a request that must succeed, and waits until the operation is complete. Returns the
    /// duration.
    pub(crate) fn post(&self, path: &str, body: &str) -> Result<Duration> {
        let begun = Instant::now();
        let begin = format!(
            "POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        );
        let answer = self.ask(&begin, body)?;
        if answer.starts_with("HTTP/1.1 202") {
            // The operation continues as a job.
            let job = format!("/volumes/job?id={}", json(&answer)?["job"]);
            while self.get(&job)?["state"] == "running" {
                ensure!(begun.elapsed() < LIMIT, "{path} {body} takes too long");
                thread::sleep(Duration::from_millis(20));
            }
            let state = &self.get(&job)?["state"];
            ensure!(*state == "done", "{path} {body}: {state}\n{}", self.server.words());
        } else {
            ensure!(answer.starts_with("HTTP/1.1 200"), "{path} {body}: {answer}\n{}", self.server.words());
        }
        Ok(begun.elapsed())
    }

    fn get(&self, path: &str) -> Result<Value> {
        json(&self.ask(&format!("GET {path} HTTP/1.1\r\n"), "")?)
    }

    /// Waits until no connection uses the volume, and all of its data are stored.
    pub(crate) fn wait_until_detached(&self, name: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            let shown = self.get(&format!("/volumes/show?name={name}"))?;
            if shown["connections"] == 0 && shown["attached"] == false {
                return Ok(());
            }
            ensure!(begun.elapsed() < LIMIT, "the volume is not given up: {shown}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the sum of the `/metrics` series whose names start with `begin`.
    pub(crate) fn sum(&self, begin: &str) -> Result<f64> {
        let answer = self.ask("GET /metrics HTTP/1.1\r\n", "")?;
        let values = answer.lines().filter(|line| line.starts_with(begin));
        Ok(values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    fn ask(&self, begin: &str, body: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.admin).context("the admin listener of cached")?;
        let more = format!("Host: bench\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n");
        stream.write_all(format!("{begin}{more}\r\n{body}").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

/// Parses the body of a response of the admin listener.
fn json(answer: &str) -> Result<Value> {
    let document = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    serde_json::from_str(document).with_context(|| format!("the answer: {answer}"))
}
