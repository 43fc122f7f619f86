//! `cached` or `synapsed` with a configuration file and an admin listener, and `cachectl` commands
//! for it.

use crate::http;
use crate::outside::{kill_with_thread, run, text};
use crate::program::workspace_programs;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The time limit for a condition. It is generous, because the machine may be busy.
pub const DEADLINE: Duration = Duration::from_secs(240);

/// The token of the admin listener of every [`Daemon`].
pub const TOKEN: &str = "0123456789abcdef0123";

/// The beginning of a table `[synapse]`, with a time limit for handshakes that neither a program nor a client
/// exceeds on a busy machine.
pub const PATIENT_SYNAPSE: &str = "[synapse]\nhandshake_timeout_ms = 600000\n";

/// Variables of a program's environment.
pub type Environment = Vec<(&'static str, PathBuf)>;

/// Waits until `get` returns something, and returns it.
///
/// # Panics
/// Panics if `get` returns nothing within [`DEADLINE`].
pub fn wait_for<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = get() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the state of a process as proc(5) has it, for example `Z` once it has exited but is not
/// reaped; `None` if there is no such process.
#[must_use]
pub fn process_state(pid: i32) -> Option<char> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
}

/// Returns the CPU time that a process has used, of all its threads, in hundredths of a second; 0 if
/// there is no such process.
#[must_use]
pub fn process_cpu_ticks(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = status.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    // In user and in system mode, the 14th and the 15th of all fields.
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Writes a file with a secret, which only this user can read.
///
/// # Panics
/// Panics if the file cannot be written.
pub fn write_secret(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a file");
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("its mode");
}

/// A running program. Dropping this value kills the process.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    /// The directory of the program's configuration, log and sockets.
    dir: tempfile::TempDir,
    /// Variables of its environment.
    environment: Environment,
    /// The address of its admin listener.
    pub admin: String,
}

impl Daemon {
    /// Starts `cached`, whose memcached listener is the unix socket `memcached` in its directory,
    /// or `synapsed`, and waits until the start is complete. `configuration` returns the
    /// configuration for the program's directory; the admin listener is added.
    ///
    /// # Panics
    /// Panics if the program does not start. The message contains its log.
    pub fn start(program: &str, configuration: impl FnOnce(&str) -> String) -> Daemon {
        Daemon::start_in(Environment::new(), program, configuration)
    }

    /// Starts a program like [`start`](Self::start), in this directory, which is empty.
    ///
    /// # Panics
    /// Panics if the program does not start. The message contains its log.
    pub fn start_at(
        dir: tempfile::TempDir,
        program: &str,
        configuration: impl FnOnce(&str) -> String,
    ) -> Daemon {
        let mut daemon = Daemon::spawn_at(dir, Environment::new(), program, configuration);
        daemon.wait_until_started();
        daemon
    }

    /// Starts a program like [`start`](Self::start), with further variables in its environment, also
    /// after a restart.
    ///
    /// # Panics
    /// If the program does not start, with its log.
    pub fn start_in(
        environment: Environment,
        program: &str,
        configuration: impl FnOnce(&str) -> String,
    ) -> Daemon {
        let mut daemon = Daemon::spawn_in(environment, program, configuration);
        daemon.wait_until_started();
        daemon
    }

    fn wait_until_started(&mut self) {
        wait_for("the start", || {
            let probed = http::get(&self.admin, "/startupz").0 == 200;
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none(), "the program has ended:\n{}", self.log());
            probed.then_some(())
        });
    }

    /// Ends the program by a signal, and starts it again in its directory.
    ///
    /// # Panics
    /// Panics if the program does not end, or does not start.
    pub fn restart(self, program: &str, signal: i32) -> Daemon {
        self.signal(signal);
        let mut ended = self;
        wait_for("the end", || ended.child.try_wait().expect("a child"));
        let dir = std::mem::replace(&mut ended.dir, tempfile::tempdir().expect("a temporary directory"));
        let environment = std::mem::take(&mut ended.environment);
        drop(ended);
        let mut daemon = Daemon::launch(environment, program, dir);
        daemon.wait_until_started();
        daemon
    }

    /// Starts a program like [`start`](Self::start), but waits only for its admin listener.
    ///
    /// # Panics
    /// Panics if the program does not start. The message contains its log.
    pub fn spawn(program: &str, configuration: impl FnOnce(&str) -> String) -> Daemon {
        Daemon::spawn_in(Environment::new(), program, configuration)
    }

    fn spawn_in(
        environment: Environment,
        program: &str,
        configuration: impl FnOnce(&str) -> String,
    ) -> Daemon {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Daemon::spawn_at(dir, environment, program, configuration)
    }

    fn spawn_at(
        dir: tempfile::TempDir,
        environment: Environment,
        program: &str,
        configuration: impl FnOnce(&str) -> String,
    ) -> Daemon {
        let place = dir.path().display().to_string();
        let token = dir.path().join("token");
        std::fs::write(&token, format!("{TOKEN}\n")).expect("a token");
        let text = configuration(&place).replace("[synapse]\n", PATIENT_SYNAPSE);
        // In the file, keys without a table come first.
        let admin = format!("[admin]\nlisten = [\"127.0.0.1:0\"]\ntoken_file = \"{}\"\n", token.display());
        let file = dir.path().join("config.toml");
        std::fs::write(&file, format!("{text}\n{admin}")).expect("a configuration");
        Daemon::launch(environment, program, dir)
    }

    /// Starts a program in a directory with its configuration, and waits for its admin listener.
    fn launch(environment: Environment, program: &str, dir: tempfile::TempDir) -> Daemon {
        let file = dir.path().join("config.toml");
        let log = File::create(dir.path().join("log")).expect("a log");
        let mut command = Command::new(workspace_programs().join(program));
        command.arg("--config").arg(&file).stdin(Stdio::null());
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        if program == "cached" {
            command.arg("-s").arg(dir.path().join("memcached"));
        }
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        kill_with_thread(&mut command);
        let child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
        let mut daemon = Daemon { child, dir, environment, admin: String::new() };
        let path = daemon.path("log");
        daemon.admin = wait_for("the admin listener", || {
            let ended = daemon.child.try_wait().expect("a child").is_some();
            let log = std::fs::read_to_string(&path).unwrap_or_default();
            let address = log.lines().find_map(|line| line.split_once("admin on http://127.0.0.1:"));
            let port = |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next().map(str::to_owned);
            let address = address.and_then(|(_, rest)| Some(format!("127.0.0.1:{}", port(rest)?)));
            assert!(address.is_some() || !ended, "{program} has ended:\n{log}");
            address
        });
        daemon
    }

    /// Returns the path of a file in the program's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits for the log's line that announces a listener and begins with these words; returns the
    /// first address after them.
    ///
    /// # Panics
    /// Panics if the log has no such line in time.
    pub fn announced(&self, words: &str) -> String {
        wait_for(words, || {
            let log = self.log();
            let address = |line: &str| {
                let rest = line.strip_prefix("synapsed: ").unwrap_or(line).strip_prefix(words)?;
                rest.split([' ', ',']).next().map(str::to_owned)
            };
            log.lines().find_map(address)
        })
    }

    /// Replaces the configuration.
    pub fn configure(&self, change: impl FnOnce(String) -> String) {
        let text = std::fs::read_to_string(self.path("config.toml")).expect("its configuration");
        std::fs::write(self.path("new.toml"), change(text)).expect("a configuration");
        std::fs::rename(self.path("new.toml"), self.path("config.toml")).expect("a configuration");
    }

    /// Runs a `cachectl` command for the program; returns the exit status and the output.
    pub fn cachectl(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = Command::new(workspace_programs().join("cachectl"));
        command
            .args(["--admin", &self.admin])
            .arg("--admin-token-file")
            .arg(self.path("token"))
            .args(arguments);
        let output = run(&mut command, DEADLINE);
        (output.status.code().expect("an exit status"), text(&output))
    }

    /// Returns a document of the admin listener, requested with the token.
    ///
    /// # Panics
    /// Panics if the document is not JSON.
    pub fn json(&self, path: &str) -> serde_json::Value {
        let token = std::fs::read_to_string(self.path("token")).expect("a token");
        let header = format!("Authorization: Bearer {}\r\n", token.trim());
        let (status, body) = http::get_with(&self.admin, path, &header);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    }

    /// Sends a POST with the token; returns the status and the body of the response, which is JSON.
    ///
    /// # Panics
    /// Panics if the response is not JSON.
    pub fn post(&self, path: &str, body: &serde_json::Value) -> (u16, serde_json::Value) {
        let token = std::fs::read_to_string(self.path("token")).expect("a token");
        let header = format!("Authorization: Bearer {}\r\n", token.trim());
        let (status, body) = http::post(&self.admin, path, &header, &body.to_string());
        let value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"));
        (status, value)
    }

    /// Returns the value of a series of `/metrics`, by its name and labels as written there.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let token = std::fs::read_to_string(self.path("token")).expect("a token");
        let header = format!("Authorization: Bearer {}\r\n", token.trim());
        let (status, text) = http::get_with(&self.admin, "/metrics", &header);
        assert_eq!(status, 200);
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        Some(value.parse().expect("a number"))
    }

    /// Returns the process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Returns whether the process runs, which means that it has neither exited nor been stopped.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !matches!(process_state(self.pid()), None | Some('T' | 't' | 'Z' | 'X'))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill accesses no memory; only this value waits for the child, so the PID is still
        // the child's.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0, "a signal to the program");
    }

    /// Waits until the program exits; returns its status and log.
    ///
    /// # Panics
    /// Panics if the program does not end.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let status = wait_for("the end", || self.child.try_wait().expect("a child"));
        (status, self.log())
    }

    /// Requests the program's shutdown, and waits until the program exits.
    pub fn end(self) -> (ExitStatus, String) {
        self.signal(libc::SIGTERM);
        self.wait()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Unless the test has failed, the program has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
