//! The process that is killed: `cached` with a journal, over a store, with its sockets in a directory.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::daemon::PATIENT_SYNAPSE;
use crate::object_client;
use crate::outside::kill_with_thread;
use synapse::{Address, SynapseBlocker};

/// The time limit for a start or an orderly end on a busy machine.
const DEADLINE: Duration = Duration::from_secs(240);

/// The program and the directory of its configuration.
#[derive(Debug)]
pub struct Place {
    directory: PathBuf,
    program: PathBuf,
}

/// A started `cached`. Dropping this value kills the process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Place {
    /// Returns the place for starts of `program` in `directory`.
    pub fn new(directory: &Path, program: &Path) -> Self {
        Self { directory: directory.into(), program: program.into() }
    }

    /// Returns a path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes the configuration: `objects` are lines of `[objects]` and tables below it.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn configure(&self, objects: &str) {
        let text = format!(
            "[log]\nlevel = \"info\"\n[memcached]\nthreads = 1\nlisten = []\nunix_path = \"{}\"\n{objects}\n\
             {PATIENT_SYNAPSE}listen = [\"unix:{}\"]\nthreads = 2\n",
            self.path("memcached").display(),
            self.path("socket").display()
        );
        std::fs::write(self.path("cached.toml"), text).expect("a configuration");
    }

    /// Starts the program, without waiting until it listens.
    ///
    /// # Panics
    /// Panics if the program cannot be started.
    pub fn spawn(&self) -> Process {
        // The socket of the previous process must not be mistaken for that of this one.
        let _ = std::fs::remove_file(self.path("socket"));
        let log = self.path("log");
        let out = File::options().create(true).append(true).open(&log).expect("a log file");
        let err = out.try_clone().expect("a log file");
        let mut command = Command::new(&self.program);
        command.arg(format!("--config={}", self.path("cached.toml").display()));
        if crate::server::is_root() {
            command.args(["-u", "root"]);
        }
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        kill_with_thread(&mut command);
        Process { child: command.spawn().expect("cached starts"), log }
    }

    /// Waits until the process listens.
    ///
    /// # Errors
    /// Returns the process's output, if it exited or took too long.
    pub fn wait(&self, process: &mut Process) -> Result<(), String> {
        let begun = Instant::now();
        while UnixStream::connect(self.path("socket")).is_err() {
            if let Ok(Some(status)) = process.child.try_wait() {
                return Err(format!("the server ended with {status}: {}", process.log_tail()));
            }
            if begun.elapsed() > DEADLINE {
                return Err(format!("the server does not listen: {}", process.log_tail()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Connects a client that gives up soon after the server has ended.
    ///
    /// # Errors
    /// Returns the client's error.
    pub fn connect(&self) -> blocker::Result<SynapseBlocker> {
        let mut config = object_client::config(Address::Unix(self.path("socket")));
        config.reconnect_timeout = Duration::from_millis(50);
        config.call_timeout = Some(DEADLINE);
        SynapseBlocker::connect_on_thread(config)
    }
}

impl Process {
    /// Kills the process as a crash would, and waits until it has ended.
    pub fn kill(&mut self) {
        // This fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends the process properly.
    ///
    /// # Errors
    /// Returns the process's output, if it does not end.
    pub fn end(mut self) -> Result<ExitStatus, String> {
        let pid = i32::try_from(self.child.id()).map_err(|error| error.to_string())?;
        // SAFETY: the process is our child, not yet waited for, so the PID is still its own.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                _ if begun.elapsed() > DEADLINE => {
                    return Err(format!("the server does not end: {}", self.log_tail()));
                }
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Returns the last lines of the log.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
