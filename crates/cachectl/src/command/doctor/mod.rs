//! `doctor`: checks a server and its host, and packs what a support request needs.
//!
//! | module | content |
//! |---|---|
//! | `settings` | the configuration of the running server, or of a file |
//! | `host` | clocks, limits, memory, the kernel's settings, certificates, files of secrets |
//! | `disks` | the directories of the store and the journal, and their file systems |
//! | `bundle` | the archive, without secrets |
//!
//! Each check is a function of values that were read before it, and returns one line, which states
//! what to do. The host is checked only if the server runs on it, or if there is no server to
//! contact.

mod bundle;
mod disks;
mod host;
mod settings;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::{Value, json};

use crate::admin::{line_of, list};
use crate::command::Call;
use crate::output::Failure;
use host::Process;
use settings::Settings;

#[derive(Args)]
pub(crate) struct Doctor {
    /// Check the directories, files and kernel settings that this configuration file needs, for
    /// example before the first start, instead of those of the running server.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Also write a support bundle: the checks, the configuration without secrets, status and
    /// metrics. An existing file is not replaced.
    #[arg(long, value_name = "FILE.tar.gz")]
    bundle: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    Ok,
    Warning,
    Problem,
}

/// The result of a check, in one line.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Check {
    name: &'static str,
    level: Level,
    line: String,
}

impl Check {
    fn new(level: Level, name: &'static str, line: impl Into<String>) -> Self {
        Self { name, level, line: line.into() }
    }

    fn ok(name: &'static str, line: impl Into<String>) -> Self {
        Self::new(Level::Ok, name, line)
    }

    fn warning(name: &'static str, line: impl Into<String>) -> Self {
        Self::new(Level::Warning, name, line)
    }

    fn problem(name: &'static str, line: impl Into<String>) -> Self {
        Self::new(Level::Problem, name, line)
    }

    fn level(&self) -> &'static str {
        match self.level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Problem => "problem",
        }
    }

    fn text(&self) -> String {
        format!("{:<8} {:<13} {}", self.level(), self.name, self.line)
    }

    fn value(&self) -> Value {
        json!({ "check": self.name, "result": self.level(), "line": self.line })
    }
}

/// The responses of a running server.
struct Server {
    status: Value,
    config: Value,
    metrics: String,
    /// The client's clock when the server wrote its status, in milliseconds of Unix time, and the
    /// error of this time.
    asked_unix_ms: u64,
    error_ms: u64,
}

impl Server {
    fn ask(call: &Call<'_>) -> Result<Self, Failure> {
        let admin = call.admin()?;
        // The connection is made first, so that it does not count in the comparison of the clocks.
        let config = admin.get("/config.json")?;
        let before = unix_ms();
        let status = admin.get("/status.json")?;
        let error_ms = unix_ms().saturating_sub(before) / 2;
        Ok(Self {
            status,
            config,
            metrics: admin.text("/metrics")?,
            asked_unix_ms: before + error_ms,
            error_ms,
        })
    }

    /// Returns the server's process, if it is visible here.
    fn process(&self) -> Option<Process> {
        let is_here = self.status["host"].as_str() == rustix::system::uname().nodename().to_str().ok();
        let (pid, program) = (self.status["pid"].as_u64()?, self.status["program"].as_str()?);
        is_here.then(|| Process::read(pid, program)).flatten()
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Doctor {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        let mut checks = Vec::new();
        let server = match Server::ask(call) {
            Ok(server) => {
                checks.extend(of_server(&server.status));
                checks.push(host::clock(&server));
                Some(server)
            }
            // Before the first start, there is no server to ask.
            Err(failure) if self.config.is_some() => {
                checks.push(Check::warning("server", format!("not asked: {failure}")));
                None
            }
            Err(failure) => {
                checks.push(Check::problem("server", failure.to_string()));
                None
            }
        };
        let process = server.as_ref().and_then(Server::process);
        let directory = process.as_ref().map_or(Path::new(""), |process| &process.directory);
        let of_file = self.config.as_deref().map(|file| Settings::of_file(file, directory)).transpose()?;
        let in_force = server.as_ref().map(|server| Settings::of_server(&server.config, directory));
        let settings = of_file.as_ref().or(in_force.as_ref());
        // Without a server, the file is meant for this host.
        if process.is_some() || server.is_none() {
            checks.push(host::synchronised());
            // The needs of the process depend on the configuration in force, not on a file.
            if let (Some(server), Some(in_force), Some(process)) = (&server, &in_force, &process) {
                checks.extend(host::limits(in_force, &server.status, process));
            }
            if let Some(settings) = settings {
                checks.extend(host::kernel(settings, process.as_ref()));
                checks.extend(disks::all(settings, process.as_ref()));
                checks.extend(host::certificates(settings, unix_ms() / 1000));
                checks.extend(host::secrets(settings));
            }
        } else if let Some(server) = &server {
            let line = format!(
                "not checked: the server's process {} on {} is not visible here; run cachectl doctor on its host (in \
                 its container, if it has one), as root or as the server's user",
                server.status["pid"],
                line_of(server.status["host"].as_str().unwrap_or("another host"))
            );
            checks.push(Check::warning("host", line));
        }
        for check in &checks {
            call.output.write(check.text(), &check.value())?;
        }
        if let Some(path) = &self.bundle {
            bundle::write(path, &checks, settings, server.as_ref())?;
            let text = format!("the support bundle is {}", path.display());
            call.output.write(text, &json!({ "bundle": path.to_string_lossy() }))?;
        }
        match checks.iter().filter(|check| check.level == Level::Problem).count() as u64 {
            0 => Ok(()),
            count => Err(Failure::problems(count, false)),
        }
    }
}

/// Checks the server's own statements, and its version.
fn of_server(status: &Value) -> Vec<Check> {
    let text = |value: &Value| line_of(value.as_str().unwrap_or("unknown"));
    let (program, version, state) =
        (text(&status["program"]), text(&status["version"]), text(&status["state"]));
    let mut checks = vec![match status["health"]["ready"] == true {
        true => Check::ok("server", format!("{program} is {state}")),
        false => {
            let reasons: Vec<String> = list(&status["health"], "reasons").iter().map(text).collect();
            Check::problem("server", format!("{program} is not ready: {}", reasons.join("; ")))
        }
    }];
    let own = env!("CARGO_PKG_VERSION");
    checks.push(match version == own {
        true => Check::ok("versions", format!("cachectl and {program} are {own}")),
        false => Check::warning(
            "versions",
            format!("cachectl is {own}, {program} is {version}: upgrade the older one"),
        ),
    });
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_ready_and_another_version_are_named() {
        let own = env!("CARGO_PKG_VERSION");
        let status = |ready: bool, version: &str| {
            json!({ "program": "cached", "version": version, "state": "serving",
                "health": { "ready": ready, "reasons": ["the store is away"] } })
        };
        let levels = |status: &Value| of_server(status).iter().map(|check| check.level).collect::<Vec<_>>();
        assert_eq!(levels(&status(true, own)), [Level::Ok, Level::Ok]);
        assert_eq!(levels(&status(false, "0.0.1")), [Level::Problem, Level::Warning]);
        let shown = of_server(&status(false, own))[0].text();
        assert_eq!(shown, "problem  server        cached is not ready: the store is away");
    }
}
