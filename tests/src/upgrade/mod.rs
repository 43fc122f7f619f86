//! New processes take over from running ones: a server whose program is replaced, under a load that
//! must not notice.
//!
//! The server runs in its own directory, in which its program can be replaced. Each new process is
//! a child of the previous one; once that one has ended, this process is the new one's parent (as a
//! subreaper).

pub mod load;
pub mod objects;
pub mod others;

use crate::conn::Conn;
use crate::daemon::wait_for;
use crate::program::Program;
use crate::server::{Address, is_root};
use std::fs::OpenOptions;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A server that can be upgraded. Dropping this value kills the current process.
#[derive(Debug)]
pub struct Upgradable {
    dir: tempfile::TempDir,
    /// The arguments in addition to those that every such server has.
    args: String,
    /// Where it listens.
    host: IpAddr,
    /// The TCP port; 0 if the server also has a unix socket.
    pub port: u16,
    /// The UDP port; 0 if the server has none.
    pub udp_port: u16,
    /// The current process.
    pub pid: i32,
    /// The notifications that the server's processes have sent to the service manager.
    notes: Arc<Mutex<Vec<String>>>,
}

impl Upgradable {
    /// Starts the server under test with these arguments and this configuration, on any free port. `DIR` in both is the
    /// server's directory.
    ///
    /// # Panics
    /// Panics if the server does not start. The message contains its log.
    pub fn start(args: &str, configuration: &str) -> Upgradable {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), args, configuration)
    }

    /// Like [`start`](Self::start), but the server listens at this address.
    ///
    /// # Panics
    /// Panics if the server does not start. The message contains its log.
    pub fn start_at(host: IpAddr, args: &str, configuration: &str) -> Upgradable {
        // SAFETY: the arguments are plain numbers; the call changes the parent of orphans.
        let code = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
        assert_eq!(code, 0, "to be the parent of orphans");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (args, notes) = (args.to_owned(), Arc::default());
        let mut server = Upgradable { dir, args, host, port: 0, udp_port: 0, pid: 0, notes };
        server.collect_notes();
        server.use_program();
        server.configure(configuration);
        server.start_again();
        server
    }

    /// Starts a new process after the previous one has ended.
    ///
    /// # Panics
    /// Panics if the server does not start. The message contains its log.
    pub fn start_again(&mut self) {
        let log = OpenOptions::new().create(true).append(true).open(self.path("log")).expect("a log");
        let place = self.dir.path().display().to_string();
        let mut command = Command::new(self.path("cached"));
        command.args(["-l", &self.host.to_string(), "-p", "-1", "--config"]).arg(self.path("config.toml"));
        command.arg("-P").arg(self.path("pid")).env("MEMCACHED_PORT_FILENAME", self.path("ports"));
        command.args(self.args.replace("DIR", &place).split_whitespace()).stdin(Stdio::null());
        command.env("NOTIFY_SOCKET", self.path("notify"));
        if is_root() {
            command.args(["-u", "root"]);
        }
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        let mut child = command.spawn().expect("the server starts");
        self.pid = i32::try_from(child.id()).expect("a process id");
        wait_for("the start", || {
            assert!(child.try_wait().expect("a child").is_none(), "it has ended:\n{}", self.log());
            self.written_pid().filter(|pid| *pid == self.pid)
        });
        // This is written before the PID file, unless there is a unix socket.
        let ports = std::fs::read_to_string(self.path("ports")).unwrap_or_default();
        let port = |kind: &str| ports.lines().find_map(|line| line.strip_prefix(kind)?.trim().parse().ok());
        self.port = port("TCP INET:").unwrap_or_default();
        self.udp_port = port("UDP INET:").unwrap_or_default();
    }

    /// Returns the address of the TCP port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (self.host, self.port).into()
    }

    /// Returns a new connection to the TCP port.
    ///
    /// # Panics
    /// Panics if the server cannot be reached.
    pub fn connect(&self) -> Conn {
        Conn::open(&Address::Tcp(self.address())).expect("a connection")
    }

    /// Returns the path of a file in the server's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the log of all processes.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Replaces the configuration.
    pub fn configure(&self, text: &str) {
        let text = text.replace("DIR", &self.dir.path().display().to_string());
        std::fs::write(self.path("new.toml"), text).expect("a configuration");
        std::fs::rename(self.path("new.toml"), self.path("config.toml")).expect("a configuration");
    }

    /// Replaces the program by the server under test.
    pub fn use_program(&self) {
        let from = &Program::under_test().path;
        // A rename onto another link to the same file has no effect. It would leave this name in
        // place, and a copy would truncate the file.
        let _ = std::fs::remove_file(self.path("new"));
        if std::fs::hard_link(from, self.path("new")).is_err() {
            // The directory may be on another file system. A copy would take long, because a
            // program with debug information is large.
            std::os::unix::fs::symlink(from, self.path("new")).expect("a link to the program");
        }
        std::fs::rename(self.path("new"), self.path("cached")).expect("the program in its place");
    }

    /// Replaces the program by a shell script, in which `$REAL` is the server under test.
    pub fn use_script(&self, script: &str) {
        let real = Program::under_test().path.display().to_string();
        self.use_bytes(format!("#!/bin/sh\n{}\n", script.replace("$REAL", &real)).as_bytes());
    }

    /// Replaces the program by an executable file with these bytes.
    pub fn use_bytes(&self, bytes: &[u8]) {
        // The file may be a link to the server under test.
        let _ = std::fs::remove_file(self.path("new"));
        std::fs::write(self.path("new"), bytes).expect("a program");
        std::fs::set_permissions(self.path("new"), std::fs::Permissions::from_mode(0o755))
            .expect("a program");
        std::fs::rename(self.path("new"), self.path("cached")).expect("the program in its place");
    }

    /// Collects the notifications that the server's processes send to the service manager, because
    /// the log suppresses repeated lines.
    fn collect_notes(&self) {
        let manager = UnixDatagram::bind(self.path("notify")).expect("a socket");
        manager.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        let notes = Arc::downgrade(&self.notes);
        std::thread::spawn(move || {
            let mut note = vec![0; 1 << 16];
            while let Some(notes) = notes.upgrade() {
                // The call fails if nothing has arrived for a while.
                if let Ok(bytes) = manager.recv(&mut note) {
                    let text = String::from_utf8_lossy(&note[..bytes]).into_owned();
                    notes.lock().unwrap_or_else(PoisonError::into_inner).push(text);
                }
            }
        });
    }

    /// Returns the notifications to the service manager, in order.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn written_pid(&self) -> Option<i32> {
        std::fs::read_to_string(self.path("pid")).ok()?.trim().parse().ok()
    }

    /// Sends a signal to the current process.
    pub fn signal(&self, signal: i32) {
        // SAFETY: the process is our descendant, for which only this value waits, so the PID is
        // still its own.
        assert_eq!(unsafe { libc::kill(self.pid, signal) }, 0, "a signal to the server:\n{}", self.log());
    }

    /// Requests an upgrade, and waits until the new process has taken over and the old one has
    /// ended. Returns the duration.
    ///
    /// # Panics
    /// Panics if the upgrade fails, with the log.
    pub fn upgrade(&mut self) -> Duration {
        let begun = Instant::now();
        assert!(self.try_upgrade(), "the upgrade has failed:\n{}", self.log());
        begun.elapsed()
    }

    /// Requests an upgrade, which its time limit may end, and waits until the new process has taken
    /// over and the old one has exited. Returns whether this has happened; otherwise the old
    /// process continues.
    ///
    /// # Panics
    /// Panics if the upgrade neither succeeds nor fails in time. The message contains the log.
    pub fn try_upgrade(&mut self) -> bool {
        let begun = self.begin_upgrade();
        self.end_upgrade(begun)
    }

    /// Requests an upgrade.
    pub fn begin_upgrade(&self) -> UpgradeBegun {
        let begun = UpgradeBegun { failures: self.failures() };
        self.signal(libc::SIGUSR2);
        begun
    }

    /// Waits for the end of an upgrade, as [`try_upgrade`](Self::try_upgrade) does.
    ///
    /// # Panics
    /// Panics if the upgrade neither succeeds nor fails in time. The message contains the log.
    pub fn end_upgrade(&mut self, begun: UpgradeBegun) -> bool {
        let (UpgradeBegun { failures: failed }, old) = (begun, self.pid);
        let new = wait_for("another process", || {
            let new = self.written_pid().filter(|pid| *pid != old);
            new.map(Some).or_else(|| (self.failures() > failed).then_some(None))
        });
        let Some(new) = new else { return false };
        assert_eq!(self.wait_exit(), 0, "the end of the old process:\n{}", self.log());
        self.pid = new;
        true
    }

    /// Requests an upgrade that must fail; returns the notification to the service manager.
    ///
    /// # Panics
    /// Panics if the upgrade succeeds.
    pub fn upgrade_in_vain(&mut self) -> String {
        let failed = self.failures();
        self.signal(libc::SIGUSR2);
        wait_for("a failed upgrade", || {
            assert_eq!(self.written_pid(), Some(self.pid), "another process has taken over:\n{}", self.log());
            (self.failures() > failed).then_some(())
        });
        self.notes().into_iter().rfind(|note| note.contains(FAILED)).unwrap_or_default()
    }

    /// Returns the number of failed upgrades.
    pub fn failures(&self) -> usize {
        self.notes().iter().filter(|note| note.contains(FAILED)).count()
    }

    /// Waits until the current process exits. Returns its exit status, or 128 plus the number of
    /// the signal that has ended it.
    ///
    /// # Panics
    /// Panics if the process does not exit.
    pub fn wait_exit(&self) -> i32 {
        wait_for("the end of a process", || {
            let mut status = 0;
            // SAFETY: the pointer refers to a live integer.
            let waited = unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) };
            assert!(waited >= 0, "no child: {}", std::io::Error::last_os_error());
            let ended = if libc::WIFEXITED(status) {
                libc::WEXITSTATUS(status)
            } else {
                128 + libc::WTERMSIG(status)
            };
            (waited == self.pid).then_some(ended)
        })
    }

    /// Shuts the server down.
    ///
    /// # Panics
    /// Panics if the shutdown fails.
    pub fn end(mut self) {
        self.signal(libc::SIGTERM);
        assert_eq!(self.wait_exit(), 0, "{}", self.log());
        self.pid = 0;
    }
}

/// An upgrade that was requested.
#[derive(Debug)]
pub struct UpgradeBegun {
    /// The number of upgrades that had failed before.
    failures: usize,
}

/// The notification to the service manager after a failed upgrade.
const FAILED: &str = "an upgrade has failed";

impl Drop for Upgradable {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the server's log ---\n{}\n---", self.log());
        }
        if self.pid > 0 {
            // SAFETY: the process is our descendant, as above.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            let mut status = 0;
            // SAFETY: the pointer refers to a live integer.
            unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        }
    }
}
