//! Servers under measurement: child processes on a free loopback port, pinned, always ended.
//!
//! A child is ended by its PID when its [`Server`] is dropped, and by the kernel
//! (`PR_SET_PDEATHSIG`) if this process is killed first. Start servers from the main thread,
//! because that signal is tied to the thread that starts them.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};

use crate::cpu;
use crate::load::Target;
use crate::text_client::TextClient;
use crate::tls;

/// The maximum wait for a server to listen; a server under valgrind takes seconds.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The maximum wait for a server to end by itself before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// The maximum length of a server's messages in an error.
const MESSAGE_BYTES_MAX: usize = 2_000;

/// The parameters for starting a server with memcached's flags.
#[derive(Clone, Debug)]
pub struct ServerSpec {
    /// The program.
    pub program: PathBuf,
    /// The name in the output.
    pub name: String,
    /// Arguments that precede the program, for example valgrind and its options.
    pub wrapper: Vec<OsString>,
    /// The core to which all of the server's threads are pinned.
    pub cpu: Option<usize>,
    /// `-m`, in MiB.
    pub memory_mib: usize,
    /// `-c`.
    pub connections_max: usize,
    /// `-I` in bytes, if not the default of 1 MiB.
    pub item_bytes_max: Option<usize>,
    /// Whether clients use TLS.
    pub is_tls: bool,
    /// Further flags.
    pub extra: Vec<OsString>,
}

impl ServerSpec {
    /// Returns a server with one thread, 1 GiB, and 4096 connections.
    pub fn new(name: &str, program: &Path) -> Self {
        Self {
            program: program.to_owned(),
            name: name.to_owned(),
            wrapper: Vec::new(),
            cpu: None,
            memory_mib: 1024,
            connections_max: 4096,
            item_bytes_max: None,
            is_tls: false,
            extra: Vec::new(),
        }
    }

    /// Returns the same server with TLS.
    ///
    /// # Errors
    /// Fails if no certificate can be created.
    pub fn with_tls(&self) -> Result<Self> {
        let mut spec = Self { is_tls: true, ..self.clone() };
        spec.extra.extend(tls::server_flags()?.into_iter().map(OsString::from));
        Ok(spec)
    }

    /// Starts the server on a free loopback port and waits until it responds.
    ///
    /// # Errors
    /// Fails if the server cannot be started, exits immediately (the error contains its messages),
    /// or does not respond in time.
    pub fn start(&self) -> Result<Server> {
        let address = free_address().context("looking for a free port")?;
        let mut words: Vec<OsString> = self.wrapper.clone();
        words.push(self.program.clone().into());
        let flags = ["-t", "1", "-U", "0", "-l", "127.0.0.1", "-p"].map(OsString::from);
        words.extend(flags);
        words.extend(
            [address.port().to_string(), "-m".into(), self.memory_mib.to_string()].map(OsString::from),
        );
        words.extend(["-c".into(), self.connections_max.to_string()].map(OsString::from));
        if rustix::process::geteuid().is_root() {
            // memcached does not run as root without this flag.
            words.extend(["-u", "root"].map(OsString::from));
        }
        if let Some(bytes) = self.item_bytes_max {
            words.extend(["-I".into(), bytes.to_string()].map(OsString::from));
        }
        words.extend(self.extra.iter().cloned());
        let target = if self.is_tls { Target::Tls(address) } else { Target::Tcp(address) };
        Server::spawn_at(&self.name, &words, self.cpu, address, target, Greeting::MEMCACHED)
    }
}

/// A request of one line, and how a server that is ready begins its reply.
#[derive(Clone, Copy, Debug)]
pub struct Greeting {
    request: &'static str,
    reply: &'static str,
}

impl Greeting {
    /// What servers with memcached's text protocol answer.
    pub const MEMCACHED: Self = Self { request: "version", reply: "VERSION " };
    /// What servers with Valkey's protocol answer.
    pub const RESP: Self = Self { request: "PING", reply: "+PONG" };
}

/// A running server. Dropping it ends the server.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
    address: SocketAddr,
    target: Target,
    messages: File,
}

impl Server {
    /// Starts the program `words[0]` with the other words as arguments, and waits until `address`
    /// responds to the greeting.
    ///
    /// # Errors
    /// Returns the errors of [`ServerSpec::start`].
    pub fn spawn(
        name: &str,
        words: &[OsString],
        cpu: Option<usize>,
        address: SocketAddr,
        greeting: Greeting,
    ) -> Result<Self> {
        Self::spawn_at(name, words, cpu, address, Target::Tcp(address), greeting)
    }

    fn spawn_at(
        name: &str,
        words: &[OsString],
        cpu: Option<usize>,
        address: SocketAddr,
        target: Target,
        greeting: Greeting,
    ) -> Result<Self> {
        let messages = tempfile::tempfile().context("a file for the server's messages")?;
        let (program, arguments) = words.split_first().context("no program to start")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages.try_clone()?);
        bind_to_parent(&mut command, cpu);
        let child = command.spawn().with_context(|| format!("starting {name}: {}", program.display()))?;
        let mut server = Self { name: name.to_owned(), child, address, target, messages };
        server.wait_until_listening(greeting)?;
        Ok(server)
    }

    /// Returns the server's name in the output.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the PID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the target at which the server listens.
    pub fn target(&self) -> Target {
        self.target.clone()
    }

    /// Returns the address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a new connection for commands.
    ///
    /// # Errors
    /// Fails if the server does not accept the connection.
    pub fn client(&self) -> Result<TextClient> {
        TextClient::connect(&self.target()).with_context(|| format!("connecting to {}", self.name))
    }

    /// Ends the server by SIGTERM, and kills it if it has not exited after thirty seconds.
    ///
    /// # Errors
    /// Fails if the server had to be killed.
    pub fn stop(mut self) -> Result<ExitStatus> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).with_context(|| format!("ending {}", self.name))?;
        let start = Instant::now();
        while start.elapsed() < STOP_LIMIT {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
        bail!("{} did not end within {} s of SIGTERM", self.name, STOP_LIMIT.as_secs())
    }

    fn wait_until_listening(&mut self, greeting: Greeting) -> Result<()> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended at once ({status}): {}", self.name, self.message_tail());
            }
            let error = match TextClient::connect(&self.target()) {
                Ok(mut client) => {
                    let Greeting { request, reply } = greeting;
                    let line = client.ask(request).with_context(|| format!("{}: `{request}`", self.name))?;
                    ensure!(line.starts_with(reply), "{} answers `{request}` with `{line}`", self.name);
                    return Ok(());
                }
                Err(error) => error,
            };
            if start.elapsed() > START_LIMIT {
                return Err(error.context(format!("{} does not listen: {}", self.name, self.message_tail())));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the end of the server's log.
    fn message_tail(&self) -> String {
        // The file is read at a given position, because the child writes at the shared file offset.
        let length = self.messages.metadata().map_or(0, |metadata| metadata.len());
        let start = length.saturating_sub(MESSAGE_BYTES_MAX as u64);
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let read = self.messages.read_at(&mut bytes, start).unwrap_or(0);
        match read {
            0 => "it logged nothing".to_owned(),
            _ => String::from_utf8_lossy(&bytes[..read]).trim().to_owned(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if the child has already been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a command's process end with this one, and run on one core.
pub fn bind_to_parent(command: &mut Command, cpu: Option<usize>) {
    let parent = rustix::process::getpid();
    let prepare = move || -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(parent) {
            return Err(io::Error::other("the bench ended while it started a server"));
        }
        cpu.map_or(Ok(()), cpu::pin_current_thread)
    };
    // SAFETY: between fork and exec, `prepare` makes three system calls on values it owns; it takes no lock and
    // allocates nothing unless it fails, when the child ends immediately.
    unsafe { command.pre_exec(prepare) };
}

/// Returns a loopback address with a currently free port, for a program that does not support port
/// 0.
///
/// The port is below the range of outgoing connections (`net.ipv4.ip_local_port_range`), which
/// could otherwise take it before the program does. Calls in one process return different ports.
///
/// # Errors
/// Fails if no port is free.
pub fn free_address() -> io::Result<SocketAddr> {
    const PORTS: std::ops::Range<u32> = 10_000..20_000;
    static TRIED: AtomicU32 = AtomicU32::new(0);
    // Concurrent processes begin the search at different ports.
    let first = std::process::id().wrapping_mul(0x9e37_79b1) >> 8;
    for _ in PORTS {
        let number = first.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % (PORTS.end - PORTS.start);
        let port = u16::try_from(PORTS.start + number).map_err(io::Error::other)?;
        // The port must be free for every address, because the program may listen on any of them.
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("all ports of {PORTS:?} are taken")))
}

/// Finds a program by its path, or by a plain name in PATH.
///
/// # Errors
/// Fails if the program is missing; the hint is part of the message.
pub fn find_program(name: &Path, hint: &str) -> Result<PathBuf> {
    if name.components().count() > 1 {
        return match name.is_file() {
            true => Ok(name.to_owned()),
            false => bail!("there is no program {}; {hint}", name.display()),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("`{}` is not in PATH; {hint}", name.display()))
}

/// Returns this workspace's release binary of `cached`, which is built first unless `is_built`.
///
/// # Errors
/// Fails if the binary cannot be built, or is missing.
pub fn workspace_cached(is_built: bool) -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding this program")?;
    let profile_directory = own.parent().context("this program lies in no directory")?;
    let target_directory = profile_directory.parent().context("this program lies in no target directory")?;
    if !is_built {
        eprintln!("building cached (--no-build leaves that out)");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let status = Command::new(cargo)
            .args(["build", "--release", "--quiet", "-p", "cached-server", "--manifest-path"])
            .arg(manifest)
            .arg("--target-dir")
            .arg(target_directory)
            .status()
            .context("starting cargo")?;
        anyhow::ensure!(status.success(), "cargo build -p cached-server failed: {status}");
    }
    find_program(
        &target_directory.join("release/cached"),
        "build it, or give the path of another one (--help names the option)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_at_once_is_an_error_with_its_words() {
        let words = ["sh", "-c", "echo no memory today >&2; exit 3"].map(OsString::from);
        let address = free_address().unwrap();
        let error =
            Server::spawn("fake", &words, None, address, Greeting::MEMCACHED).unwrap_err().to_string();
        assert!(error.contains("no memory today") && error.contains("fake"), "{error}");
    }

    #[test]
    fn free_addresses_differ_and_lie_below_the_ports_of_outgoing_connections() {
        let (first, second) = (free_address().unwrap(), free_address().unwrap());
        assert!(first != second && first.port() < 20_000 && second.port() < 20_000, "{first} {second}");
    }

    #[test]
    fn programs_are_found_in_path_or_not_at_all() {
        assert!(find_program(Path::new("sh"), "").is_ok());
        assert!(
            find_program(Path::new("no-such-program-here"), "hint").unwrap_err().to_string().contains("hint")
        );
        assert!(find_program(Path::new("/no/such/program"), "hint").is_err());
    }
}
