//! The server that has the guests' disks, and copies of them in files.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::lines::Lines;
use super::system::succeeded;
use crate::program::example;

/// A server of volumes over a directory: the example `serve`. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    answers: Lines,
}

impl Server {
    /// Starts a server on `socket` over the volumes in `directory`; a disk `base` of this size is made if
    /// there is none.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(directory: &Path, socket: &Path, base_mebibytes: u64) -> Self {
        let mut child = Command::new(example("cached-volume-exports", "serve"))
            .arg(directory)
            .arg(format!("unix:{}", socket.display()))
            .arg(format!("base={base_mebibytes}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the server starts");
        let mut answers = Lines::of(child.stdout.take().expect("piped"), "the server");
        answers.wait_for("listening on ", "Error");
        Self { child, answers }
    }

    /// Gives the server a command, which it must carry out.
    ///
    /// # Panics
    /// If it does not.
    pub fn command(&mut self, command: &str) {
        let mut input = self.child.stdin.as_ref().expect("piped");
        writeln!(input, "{command}").expect("the server takes a command");
        let rest = self.answers.wait_for("", "");
        assert_eq!(rest, "ok", "{command}");
    }

    /// Kills the server at once.
    ///
    /// # Panics
    /// If it has ended before.
    pub fn kill(mut self) {
        assert!(self.child.try_wait().expect("the server's state").is_none(), "the server ended by itself");
        self.child.kill().expect("the server is there");
        self.child.wait().expect("the server's end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The bytes of a disk, in a file.
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
}

impl Image {
    /// Returns a copy of a disk that a server has.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn of(socket: &Path, disk: &str, path: PathBuf) -> Self {
        let uri = format!("nbd+unix:///{disk}?socket={}", socket.display());
        succeeded(Command::new("nbdcopy").arg(uri).arg(&path)).unwrap_or_else(|why| panic!("{why}"));
        Self { path }
    }

    /// Returns whether two disks have the same bytes.
    ///
    /// # Panics
    /// If they cannot be read.
    pub fn is_same(&self, other: &Self) -> bool {
        let status = Command::new("cmp").arg(&self.path).arg(&other.path).status();
        status.expect("cmp runs").success()
    }

    /// Does what a mount does first: replays the journal of the file system. Then checks the file system, which
    /// must have no fault.
    ///
    /// # Panics
    /// If it has one.
    pub fn check_after_replay(&self) {
        let mut replay = Command::new("e2fsck");
        replay.args(["-y", "-E", "journal_only"]).arg(&self.path);
        succeeded(&mut replay).unwrap_or_else(|why| panic!("{why}"));
        succeeded(Command::new("e2fsck").arg("-fn").arg(&self.path)).unwrap_or_else(|why| panic!("{why}"));
    }

    /// Copies the files of the file system into a folder.
    ///
    /// # Panics
    /// If that fails.
    pub fn extract(&self, into: &Path) {
        std::fs::create_dir_all(into).expect("a folder");
        let mut dump = Command::new("debugfs");
        dump.arg("-R").arg(format!("rdump / {}", into.display())).arg(&self.path);
        succeeded(&mut dump).unwrap_or_else(|why| panic!("{why}"));
    }
}
