//! `cached` or `synapsed` with an object cache and a journal over a file store, all in one
//! directory, for tests of both programs' journals.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use blocker::Blocker;
use blocker::executor::block_on;
use blocker::metrics::{Number, render};
use synapse::{Address, SynapseBlocker};

use crate::daemon::PATIENT_SYNAPSE;
use crate::outside::kill_with_thread;
use crate::program::workspace_programs;
use crate::{daemon, object_client};

/// The time limit for a start, a shutdown, or another condition on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(240);

/// The two programs that have object caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// `cached`.
    Cached,
    /// `synapsed`.
    Synapsed,
}

impl Daemon {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Cached, Self::Synapsed];

    /// Returns the name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Synapsed => "synapsed",
        }
    }
}

/// A directory with a program's configuration, journal, store, socket and log.
#[derive(Clone, Debug)]
pub struct Site {
    /// The program.
    pub daemon: Daemon,
    /// The directory that contains all of this.
    pub directory: PathBuf,
    /// The journal's directory.
    pub journal: PathBuf,
    /// The store's directory.
    pub store: PathBuf,
    /// Whether the configuration requests the creation of a missing journal.
    pub creates_journal: bool,
    /// The ID of the user under which the program runs.
    pub uid: Option<u32>,
}

/// A started program. Dropping this value kills the process.
#[derive(Debug)]
pub struct Running {
    child: Child,
    log: PathBuf,
    /// The length of the log at the program's start.
    log_begin: usize,
}

impl Site {
    /// Returns a site in the existing directory `directory`, which contains the journal and the
    /// store.
    pub fn new(daemon: Daemon, directory: &Path) -> Self {
        let directory = directory.to_path_buf();
        let (journal, store) = (directory.join("journal"), directory.join("store"));
        Self { daemon, directory, journal, store, creates_journal: true, uid: None }
    }

    /// Returns a path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes the configuration. The cache writes back after `age_ms`; `objects` are further lines of
    /// `[objects]`, `journal` of `[objects.journal]`, `tables` further tables.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn configure(&self, age_ms: u64, objects: &str, journal: &str, tables: &str) {
        let create = if self.creates_journal { "create = true\n" } else { "" };
        let objects = format!(
            "[objects]\nwrite = \"back\"\nwriter = \"cache\"\nmemory_bytes_max = \"16 MiB\"\ndirty_bytes_max = \"2 MiB\"\n\
             object_bytes_max = \"64 KiB\"\ndirty_age_ms_max = {age_ms}\n{objects}\n\
             [objects.journal]\n{create}directory = {:?}\nsegment_bytes = \"1 MiB\"\nlimit_bytes = \"8 MiB\"\n\
             journaled_bytes_max = \"256 KiB\"\ncommit_timeout_secs = 600\n{journal}\n",
            self.journal
        );
        let (store, socket) = (&self.store, self.path("socket"));
        let socket = format!("{PATIENT_SYNAPSE}listen = [\"unix:{}\"]\nthreads = 1\n", socket.display());
        let text = match self.daemon {
            Daemon::Cached => format!(
                "[memcached]\nthreads = 1\nlisten = []\nunix_path = {:?}\n{objects}\n\
                 [objects.backend]\nkind = \"file\"\ncreate = true\npath = {store:?}\n{socket}{tables}",
                self.path("memcached")
            ),
            Daemon::Synapsed => format!(
                "backend = {{ kind = \"file\", create = true, path = \"{}\" }}\n{objects}{socket}{tables}",
                store.display()
            ),
        };
        std::fs::write(self.path("config.toml"), text).expect("a configuration");
    }

    /// Starts the program, without waiting until it listens.
    ///
    /// # Panics
    /// Panics if the program cannot be started.
    pub fn spawn(&self) -> Running {
        // The socket of the previous process must not be mistaken for that of this one.
        let _ = std::fs::remove_file(self.path("socket"));
        let log = self.path("log");
        let out = File::options().create(true).append(true).open(&log).expect("a log file");
        let err = out.try_clone().expect("a log file");
        let log_begin = out.metadata().expect("its length").len() as usize;
        let mut command = Command::new(workspace_programs().join(self.daemon.name()));
        command.arg(format!("--config={}", self.path("config.toml").display()));
        if self.daemon == Daemon::Cached && self.uid.is_none() && crate::server::is_root() {
            command.args(["-u", "root"]);
        }
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        kill_with_thread(&mut command);
        Running { child: command.spawn().expect("the program starts"), log, log_begin }
    }

    /// Starts the program, and waits until it listens.
    ///
    /// # Panics
    /// Panics if the program exits, or takes too long.
    pub fn start(&self) -> Running {
        let mut running = self.spawn();
        wait_for("the listener", || {
            if let Some(status) = running.try_wait() {
                panic!("{} ended with {status}:\n{}", self.daemon.name(), running.log());
            }
            UnixStream::connect(self.path("socket")).is_ok()
        });
        running
    }

    /// Starts the program, which must refuse to start; returns its exit status and the line with
    /// the reason.
    ///
    /// # Panics
    /// Panics if the program starts, takes too long, panics, or does not print exactly one such
    /// line.
    pub fn refused(&self) -> (i32, String) {
        let mut running = self.spawn();
        let mut status = None;
        wait_for("the end of a refused start", || {
            status = running.try_wait();
            status.is_some()
        });
        let log = running.log();
        assert!(!log.contains("panicked"), "{log}");
        // A line of the log begins with the time.
        let is_own = |line: &&str| !line.starts_with(|letter: char| letter.is_ascii_digit());
        let lines: Vec<_> = log.lines().filter(is_own).collect();
        assert_eq!(lines.len(), 1, "one line states why:\n{log}");
        assert_eq!(log.lines().last(), Some(lines[0]), "it is the last one:\n{log}");
        let code = status.and_then(|status| status.code());
        (code.unwrap_or_else(|| panic!("{status:?}:\n{log}")), lines[0].to_owned())
    }

    /// Connects a client that gives up soon after the program has ended.
    ///
    /// # Panics
    /// Panics if the client cannot connect.
    pub fn connect(&self) -> SynapseBlocker {
        let mut config = object_client::config(Address::Unix(self.path("socket")));
        config.reconnect_timeout = Duration::from_millis(50);
        config.call_timeout = Some(DEADLINE);
        SynapseBlocker::connect_on_thread(config).expect("a connection")
    }

    /// Runs `cachectl`, and returns its exit status and output.
    ///
    /// # Panics
    /// Panics if `cachectl` cannot be run, or takes too long.
    pub fn cachectl(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = Command::new(workspace_programs().join("cachectl"));
        let output = crate::outside::run(command.args(arguments), DEADLINE);
        let text = crate::outside::text(&output);
        assert!(!text.contains("panicked"), "{text}");
        (output.status.code().unwrap_or_else(|| panic!("{arguments:?}: {text}")), text)
    }
}

impl Running {
    /// Returns the program's log since its start.
    ///
    /// # Panics
    /// Panics if the log cannot be read.
    pub fn log(&self) -> String {
        let log = std::fs::read(&self.log).expect("the log");
        String::from_utf8_lossy(&log[self.log_begin..]).into_owned()
    }

    /// Returns the exit status, if the program has ended.
    ///
    /// # Panics
    /// Panics if the status cannot be obtained.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child")
    }

    /// Kills the program as a crash would, and waits until it has ended.
    pub fn kill(&mut self) {
        // This fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Shuts the program down.
    ///
    /// # Panics
    /// Panics if the program does not end, or not with status 0.
    pub fn end(mut self) {
        let pid = libc::pid_t::try_from(self.child.id()).expect("a process id");
        // SAFETY: the process is our child, not yet waited for, so the PID is still its own.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let mut status = None;
        wait_for("an orderly end", || {
            status = self.try_wait();
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()), "{status:?}:\n{}", self.log());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until a condition holds.
///
/// # Panics
/// Panics if the condition does not hold within [`DEADLINE`].
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    daemon::wait_for(what, || holds().then_some(()));
}

/// Returns a metric of a server, without decimals.
///
/// # Panics
/// Panics if the metric does not exist, or the server cannot be queried.
pub fn metric(client: &dyn Blocker, name: &str) -> u64 {
    let families = block_on(client.control().metrics()).expect("metrics");
    let pairs = render::pairs(&families);
    let found = pairs.iter().find(|pair| pair.name == name);
    match found.unwrap_or_else(|| panic!("no metric {name}")).value {
        Number::Integer(number) => number,
        Number::Float(number) => number as u64,
    }
}
