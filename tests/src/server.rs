//! A running server: started on a free port or a unix socket, ready once it listens, killed on
//! drop.

use crate::conn::Conn;
use crate::daemon::DEADLINE;
use crate::outside::kill_with_thread;
use crate::program::{Flavour, Program};
use crate::tls::{BOTH, Certificates};
use rustls::ClientConfig;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The time limit for a server to listen, or to exit after a request. It is generous, because the
/// machine may be busy.
pub const START_STOP_DEADLINE: Duration = Duration::from_secs(120);

/// The address of a server.
#[derive(Clone, Debug)]
pub enum Address {
    /// A loopback TCP port.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
    /// A loopback TCP port with TLS.
    Tls(SocketAddr, Arc<ClientConfig>),
}

/// A running server. Dropping this value kills the process.
#[derive(Debug)]
pub struct Server {
    /// The address.
    pub address: Address,
    /// The flavour of the server's replies.
    pub flavour: Flavour,
    child: Child,
    dir: tempfile::TempDir,
}

/// The program to start, its arguments and its address.
#[derive(Clone, Debug)]
pub struct Start {
    program: Program,
    args: Vec<String>,
    variables: Vec<(String, PathBuf)>,
    unix: Option<Option<PathBuf>>,
    tls: Option<Arc<ClientConfig>>,
    is_early: bool,
}

impl Start {
    /// Returns the server under test, on a TCP port, with default options.
    pub fn new() -> Self {
        Self::program(Program::under_test().clone())
    }

    /// Returns a start of another server, for comparison.
    pub fn program(program: Program) -> Self {
        Self { program, args: Vec::new(), variables: Vec::new(), unix: None, tls: None, is_early: false }
    }

    /// Adds arguments, separated by blanks.
    pub fn args(mut self, args: &str) -> Self {
        self.args.extend(args.split_whitespace().map(str::to_owned));
        self
    }

    /// Sets an environment variable to a path.
    pub fn variable(mut self, name: &str, path: &Path) -> Self {
        self.variables.push((name.to_owned(), path.to_path_buf()));
        self
    }

    /// Listens on a unix socket instead of a port.
    pub fn unix(mut self) -> Self {
        self.unix = Some(None);
        self
    }

    /// Listens on a unix socket at this path.
    pub fn unix_at(mut self, path: &Path) -> Self {
        self.unix = Some(Some(path.to_path_buf()));
        self
    }

    /// Listens with TLS, under the certificates that this process's servers share.
    pub fn tls(self) -> Self {
        let certificates = Certificates::shared();
        self.tls_with(&certificates.server_args(), certificates.client(None, BOTH))
    }

    /// Listens with TLS; `args` name the certificates. The server's methods connect as `client`.
    pub fn tls_with(mut self, args: &str, client: Arc<ClientConfig>) -> Self {
        self.tls = Some(client);
        self.args(args)
    }

    /// Lets [`start`](Self::start) return as soon as the server listens, before it serves.
    pub fn early(mut self) -> Self {
        self.is_early = true;
        self
    }

    /// Starts the server and waits until it listens and has printed that it serves.
    ///
    /// # Panics
    /// Panics if the server does not start. The message contains its output.
    pub fn start(self) -> Server {
        // Another process may take the port between the search and the server's bind.
        for _attempt in 0..10 {
            if let Some(server) = self.try_start() {
                return server;
            }
        }
        panic!("no free port found in ten attempts");
    }

    /// Runs the server with these arguments until it exits by itself; this is for tests of start
    /// errors.
    ///
    /// # Panics
    /// Panics if the server does not exit.
    pub fn run_to_exit(self) -> (ExitStatus, String) {
        let args = as_root_args();
        self.run_with(args)
    }

    /// Like [`run_to_exit`](Self::run_to_exit), but without naming a user.
    ///
    /// # Panics
    /// Panics if the server does not exit.
    pub fn run_to_exit_as_given(self) -> (ExitStatus, String) {
        self.run_with(&[])
    }

    fn run_with(self, more: &[&str]) -> (ExitStatus, String) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut child = self.command(&dir).args(more).spawn().expect("the server starts");
        let status = wait_for_exit(&mut child);
        if status.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let text = std::fs::read(dir.path().join("stderr")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        (status.unwrap_or_else(|| panic!("the server did not exit; it wrote:\n{text}")), text)
    }

    fn try_start(&self) -> Option<Server> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut command = self.command(&dir);
        let address = if let Some(path) = &self.unix {
            let path = path.clone().unwrap_or_else(|| dir.path().join("socket"));
            command.arg("-s").arg(&path);
            Address::Unix(path)
        } else {
            let address = free_port();
            command.args(["-l", "127.0.0.1", "-p", &address.port().to_string()]);
            match &self.tls {
                None => Address::Tcp(address),
                Some(client) => Address::Tls(address, client.clone()),
            }
        };
        command.args(as_root_args());
        let child =
            command.spawn().unwrap_or_else(|err| panic!("cannot run {}: {err}", self.program.path.display()));
        let mut server = Server { address, flavour: self.program.flavour, child, dir };
        server.wait_until_listening(self.is_early).then_some(server)
    }

    fn command(&self, dir: &tempfile::TempDir) -> Command {
        let stderr = File::create(dir.path().join("stderr")).expect("a log file");
        let stdout = stderr.try_clone().expect("a log file");
        let mut command = Command::new(&self.program.path);
        command.envs(self.variables.iter().map(|(name, path)| (name, path)));
        if self.program.flavour == Flavour::Cached
            && let Ok(args) = std::env::var("CACHED_TEST_ARGS")
        {
            command.args(args.split_whitespace());
        }
        command.args(&self.args).current_dir(dir.path()).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        kill_with_thread(&mut command);
        command
    }
}

impl Default for Start {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// Starts the server under test with the default options and these arguments.
    pub fn start(args: &str) -> Self {
        Start::new().args(args).start()
    }

    /// Returns a new connection.
    pub fn connect(&self) -> Conn {
        Conn::open(&self.address).unwrap_or_else(|err| panic!("connecting to {:?}: {err}", self.address))
    }

    /// Returns the address of the server's UDP socket.
    ///
    /// # Panics
    /// Panics if the server has no UDP socket.
    pub fn udp_address(&self) -> SocketAddr {
        let mut conn = self.connect();
        conn.send(b"stats conns\r\n");
        conn.skip_until_seen(b":addr udp:", 1);
        let address = String::from_utf8_lossy(&conn.read_line()).into_owned();
        address.parse().unwrap_or_else(|err| panic!("{address}: {err}"))
    }

    /// Returns the TCP port.
    ///
    /// # Panics
    /// Panics if the server listens on a unix socket.
    pub fn port(&self) -> u16 {
        match &self.address {
            Address::Tcp(address) | Address::Tls(address, _) => address.port(),
            Address::Unix(path) => panic!("{} has no port", path.display()),
        }
    }

    /// Returns the process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Returns the resident memory in KiB, as counted by the kernel.
    pub fn rss_kib(&self) -> u64 {
        self.status_kib("VmRSS:")
    }

    /// Returns the peak of the resident memory, in KiB.
    pub fn rss_peak_kib(&self) -> u64 {
        self.status_kib("VmHWM:")
    }

    /// Returns the server's standard output and standard error.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir.path().join("stderr")).unwrap_or_default())
            .into_owned()
    }

    /// Returns one number of plain `stats`.
    pub fn stat(&self, name: &str) -> u64 {
        let mut conn = self.connect();
        conn.send(b"stats\r\n");
        let mut found = None;
        loop {
            let line = conn.read_line();
            let line = String::from_utf8_lossy(&line).into_owned();
            if line == "END" {
                break;
            }
            let mut words = line.split(' ').skip(1);
            if words.next() == Some(name) {
                found = words.next().and_then(|value| value.parse().ok());
            }
        }
        found.unwrap_or_else(|| panic!("no number called {name} in stats"))
    }

    /// Asserts that the process runs and replies to a new client.
    pub fn assert_serves(&mut self, after: &str) {
        if let Some(status) = self.child.try_wait().expect("the state of the server") {
            panic!("the server ended ({status}) after {after}; its log:\n{}", self.log_tail());
        }
        let mut conn = self.connect();
        conn.send(b"set alive 0 0 2\r\nok\r\nget alive\r\n");
        conn.expect(b"STORED\r\nVALUE alive 0 2\r\nok\r\nEND\r\n", after);
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: the process is our child, not yet waited for, so the PID is still its own.
        let sent = unsafe { libc::kill(self.pid(), signal) };
        assert_eq!(sent, 0, "signal {signal}: {}", std::io::Error::last_os_error());
    }

    /// Waits until the process exits by itself.
    ///
    /// # Panics
    /// Panics if the process does not end in time.
    pub fn wait_exit(&mut self) -> ExitStatus {
        wait_for_exit(&mut self.child).unwrap_or_else(|| panic!("no exit in time; log:\n{}", self.log_tail()))
    }

    /// Waits until the log contains these words.
    ///
    /// # Panics
    /// Panics if the words are not logged in time, with the log.
    pub fn wait_until_logged(&self, words: &str) {
        let deadline = Instant::now() + START_STOP_DEADLINE;
        while !self.log().contains(words) {
            assert!(Instant::now() < deadline, "{words:?} is not logged in time; log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn status_kib(&self, field: &str) -> u64 {
        status_kib(self.pid(), field)
            .unwrap_or_else(|| panic!("no {field} for the server: has it ended? Log:\n{}", self.log_tail()))
    }

    /// Returns true once the server listens and, unless it `is_early`, has printed that it serves.
    /// Returns false if it exited before, usually because its port was in use.
    fn wait_until_listening(&mut self, is_early: bool) -> bool {
        let deadline = Instant::now() + START_STOP_DEADLINE;
        loop {
            // The server prints this after it has opened its sockets.
            let has_printed = || {
                is_early
                    || self.flavour == Flavour::Memcached
                    || self
                        .log()
                        .lines()
                        .any(|line| line.starts_with("memory: ") || line.contains("\"message\":\"memory: "))
            };
            let listens = || match &self.address {
                Address::Tcp(address) | Address::Tls(address, _) => {
                    listens_on(self.child.id(), address.port())
                }
                Address::Unix(_) => Conn::open(&self.address).is_ok(),
            };
            if has_printed() && listens() {
                return true;
            }
            if let Some(status) = self.child.try_wait().expect("the state of the server") {
                let log = self.log_tail();
                assert!(log.contains("in use"), "the server ended at once ({status}); it wrote:\n{log}");
                return false;
            }
            assert!(Instant::now() < deadline, "not listening in time; log:\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().filter(|line| !line.starts_with("slab class")).collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log_tail();
            if !log.is_empty() {
                eprintln!("--- the server's log ends ---\n{log}\n---");
            }
        }
    }
}

/// Returns a loopback address and port that no other test uses: only this process uses the address,
/// and each call returns a different port.
pub fn own_address() -> SocketAddr {
    const FIRST: u32 = u32::from_be_bytes([127, 64, 0, 0]);
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    // PIDs have 22 bits.
    let address = Ipv4Addr::from(FIRST + (std::process::id() & 0x3f_ffff));
    (address, NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

/// Returns the arguments that permit memcached to run as root.
fn as_root_args() -> &'static [&'static str] {
    if is_root() { &["-u", "root"] } else { &[] }
}

/// Returns whether the tests run as root.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Returns a loopback address with a currently free port, for a program that does not support port
/// 0.
///
/// The port is below the range of outgoing connections, which could otherwise take it before the
/// program does. Calls in one process return different ports.
///
/// # Panics
/// Panics if all ports are in use.
pub fn free_port() -> SocketAddr {
    const PORTS: std::ops::Range<u32> = 10_000..20_000;
    static TRIED: AtomicU32 = AtomicU32::new(0);
    // Concurrent processes begin the search at different ports.
    let first = std::process::id().wrapping_mul(0x9e37_79b1) >> 8;
    for _ in PORTS {
        let number = first.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % (PORTS.end - PORTS.start);
        let port = u16::try_from(PORTS.start + number).expect("the range is one of ports");
        // The port must be free for every address and both protocols, because the program may
        // listen on any of them.
        let tcp = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
        let udp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
        if tcp.is_ok() && udp.is_ok() {
            return SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        }
    }
    panic!("all ports of {PORTS:?} are taken");
}

/// Starts a program that does not support port 0. `attempt` gets a free port, and returns `None` if
/// the program has exited, as it does if another program has taken the port in the meantime.
///
/// # Panics
/// Panics if no attempt succeeds.
pub fn bring_up<T>(what: &str, mut attempt: impl FnMut(u16) -> Option<T>) -> T {
    const ATTEMPTS: usize = 5;
    let mut attempts = (0..ATTEMPTS).filter_map(|_| attempt(free_port().port()));
    attempts.next().unwrap_or_else(|| panic!("{what} has ended, {ATTEMPTS} times"))
}

/// Waits until a program listens on a loopback port. Returns false if the program has exited, in
/// which case another program may have the port.
///
/// # Panics
/// Panics if the program neither listens nor exits in time.
pub fn is_up(child: &mut Child, port: u16) -> bool {
    let mut lives = || child.try_wait().expect("the state of a child").is_none();
    let deadline = Instant::now() + DEADLINE;
    while lives() {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return lives();
        }
        assert!(Instant::now() < deadline, "the program does not listen on port {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

fn wait_for_exit(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + START_STOP_DEADLINE;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("the state of the server") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// Returns an amount of memory from the kernel's description of a process, for example `VmRSS:`, in
/// KiB; `None` if the process has ended.
pub(crate) fn status_kib(pid: i32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let rest = status.lines().find_map(|line| line.strip_prefix(field))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns whether this process listens on the port; another process on the same port does not
/// count.
fn listens_on(pid: u32, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    // Another process may have the port at another address.
    let wanted = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let local_port = fields.get(1)?.rsplit(':').next()?;
        let local_port = u16::from_str_radix(local_port, 16).ok()?;
        let is_listener = local_port == port && *fields.get(3)? == LISTEN;
        is_listener.then(|| Some(format!("socket:[{}]", fields.get(9)?)))?
    });
    let wanted: Vec<String> = wanted.collect();
    !wanted.is_empty()
        && std::fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|entries| {
            entries
                .filter_map(Result::ok)
                .filter_map(|entry| std::fs::read_link(entry.path()).ok())
                .any(|link| wanted.iter().any(|wanted| link.to_string_lossy() == *wanted))
        })
}
