//! An etcd for tests, which can be killed and started again.

use crate::outside::{are_installed, kill_with_thread};
use crate::server::{bring_up, is_up};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// One etcd. Dropping this value kills it.
#[derive(Debug)]
pub struct Etcd {
    child: Child,
    host: Ipv4Addr,
    /// Its port on loopback.
    pub port: u16,
    dir: tempfile::TempDir,
}

impl Etcd {
    /// Starts an etcd. If it is not installed, returns `None`, and prints that `test` is skipped.
    ///
    /// # Panics
    /// Panics if the program does not start.
    pub fn start(test: &str) -> Option<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST, test)
    }

    /// Like [`start`](Self::start), but the program listens at this address, which includes loopback.
    ///
    /// # Panics
    /// Panics if the program does not start.
    pub fn start_at(host: Ipv4Addr, test: &str) -> Option<Self> {
        if !are_installed(test, &["etcd"]) {
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let (child, port) = bring_up("etcd", |port| Some((Self::spawn(dir.path(), host, port)?, port)));
        Some(Self { child, host, port, dir })
    }

    /// Starts the program, and waits until it listens; `None` if it ends instead.
    fn spawn(dir: &Path, host: Ipv4Addr, port: u16) -> Option<Child> {
        let listens = format!("http://{host}:{port}");
        let url = format!("http://127.0.0.1:{port}");
        let log = std::fs::File::create(dir.join("log")).expect("a log");
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(dir.join("data"));
        command.args(["--listen-client-urls", &listens, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", "http://127.0.0.1:0"]);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        kill_with_thread(&mut command);
        let mut child = command.spawn().expect("etcd runs");
        is_up(&mut child, port).then_some(child)
    }

    /// Kills the program.
    pub fn kill(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends a signal to the program.
    ///
    /// # Panics
    /// Panics if the program has been killed.
    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        // SAFETY: only this value waits for the child, so the PID is still its own.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "a signal to etcd");
    }

    /// Starts the program again, after [`kill`](Etcd::kill).
    ///
    /// # Panics
    /// Panics if the program does not start.
    pub fn restart(&mut self) {
        self.child = Self::spawn(self.dir.path(), self.host, self.port).expect("etcd starts again");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}
