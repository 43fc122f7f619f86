//! An etcd for tests, which can be killed and started again.

use crate::outside::{find_program, kill_with_thread, skip};
use crate::server::{bring_up, is_up};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// One etcd. Dropping this value kills it.
#[derive(Debug)]
pub struct Etcd {
    child: Child,
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
        if find_program("etcd").is_none() {
            skip(test, "etcd is not installed (Debian: etcd-server)");
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let (child, port) = bring_up("etcd", |port| Some((Self::spawn(dir.path(), port)?, port)));
        Some(Self { child, port, dir })
    }

    /// Starts the program, and waits until it listens; `None` if it ends instead.
    fn spawn(dir: &Path, port: u16) -> Option<Child> {
        let url = format!("http://127.0.0.1:{port}");
        let log = std::fs::File::create(dir.join("log")).expect("a log");
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(dir.join("data"));
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
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

    /// Starts the program again, after [`kill`](Etcd::kill).
    ///
    /// # Panics
    /// Panics if the program does not start.
    pub fn restart(&mut self) {
        self.child = Self::spawn(self.dir.path(), self.port).expect("etcd starts again");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}
