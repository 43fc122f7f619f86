//! memcached's own test suite, written in Perl, run against the server under test.
//!
//! `suite/fetch` downloads memcached's source package with the suite; `suite/expected.toml` lists
//! the parts that do not apply, with reasons. Each file runs in a directory of its own that
//! resembles memcached's build: its `memcached-debug` starts the server under test. A pass with TLS
//! encrypts every connection of every file, like memcached's `make test_tls`.

use crate::outside::kill_with_thread;
use crate::program::{Flavour, Program};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The time limit of a file. The slowest files take half a minute on an idle machine.
const FILE_DEADLINE: Duration = Duration::from_secs(600);
/// Ports of all files, below the range of outgoing connections.
const PORTS: std::ops::Range<u32> = 10_000..32_000;
/// The number of ports of one file.
const PORTS_PER_FILE: u32 = 40;

/// The parts of the suite that do not apply.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The version of memcached to which the list applies.
    pub version: String,
    /// Files that do not run.
    pub skipped: Vec<Skipped>,
    /// Single tests that are expected to fail.
    #[serde(default)]
    pub differs: Vec<Differs>,
}

/// Files that do not run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// The names of the files in `t`.
    pub files: Vec<String>,
    /// The reason why they do not apply.
    pub reason: String,
    /// The only pass in which they do not apply; if absent, both passes.
    pub pass: Option<Pass>,
    /// Whether they do not apply only to an entry of a ring.
    #[serde(default)]
    pub ring: bool,
}

/// Tests of a file that are expected to fail.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Differs {
    /// The file's name in `t`.
    pub file: String,
    /// The descriptions of the tests, or the beginnings of the descriptions, before `…`. A test
    /// without a description is named by its number.
    pub tests: Vec<String>,
    /// Whether the number of executed tests may differ from the announced number.
    #[serde(default)]
    pub other_plan: bool,
    /// The reason.
    pub reason: String,
    /// The only pass in which they fail; if absent, both passes.
    pub pass: Option<Pass>,
}

/// A run through all files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// Unix sockets and TCP, including SASL.
    Plain,
    /// TLS on every connection.
    Tls,
}

impl Pass {
    /// Both passes.
    pub const ALL: [Pass; 2] = [Pass::Plain, Pass::Tls];
}

/// Returns the committed list.
///
/// # Panics
/// Panics if the list cannot be read.
pub fn expected() -> Expected {
    toml::from_str(include_str!("../suite/expected.toml"))
        .unwrap_or_else(|err| panic!("expected.toml: {err}"))
}

impl Expected {
    /// Returns the reason why a file does not run in a pass with the server under test.
    pub fn skip(&self, file: &str, pass: Pass) -> Option<&str> {
        let at_ring = Program::under_test().is_entry();
        self.skipped
            .iter()
            .find(|skipped| {
                skipped.pass.is_none_or(|only| only == pass)
                    && (at_ring || !skipped.ring)
                    && skipped.files.iter().any(|name| name == file)
            })
            .map(|skipped| skipped.reason.as_str())
    }

    /// Returns the expected failures of a file in a pass.
    pub fn failures(&self, file: &str, pass: Pass) -> Failures<'_> {
        let mut failures = Failures::default();
        for differs in &self.differs {
            if differs.file == file && differs.pass.is_none_or(|only| only == pass) {
                failures.tests.extend(differs.tests.iter().map(String::as_str));
                failures.other_plan |= differs.other_plan;
            }
        }
        failures
    }

    /// Returns the names of all files in the list.
    pub fn files(&self) -> BTreeSet<&str> {
        let skipped = self.skipped.iter().flat_map(|skipped| skipped.files.iter().map(String::as_str));
        skipped.chain(self.differs.iter().map(|differs| differs.file.as_str())).collect()
    }
}

/// The expected failures of a file.
#[derive(Debug, Default)]
pub struct Failures<'a> {
    /// The descriptions of tests.
    pub tests: Vec<&'a str>,
    /// Whether the number of executed tests may differ from the announced number.
    pub other_plan: bool,
}

/// Returns whether a test's description is the listed one.
fn is_listed(description: &str, listed: &str) -> bool {
    match listed.strip_suffix('…') {
        Some(beginning) => description.starts_with(beginning),
        None => description == listed,
    }
}

/// The output of a file, in Perl's test protocol.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of tests that passed.
    pub passed: usize,
    /// The descriptions of the failed tests, with the number of failures.
    pub failed: BTreeMap<String, usize>,
    /// The number of tests that were announced.
    pub planned: Option<usize>,
    /// The reason why the file skipped itself.
    pub skipped: Option<String>,
}

impl Report {
    /// Reads a file's standard output.
    pub fn parse(text: &str) -> Report {
        let mut report = Report::default();
        for line in text.lines() {
            if let Some(plan) = line.strip_prefix("1..") {
                let (count, reason) = plan.split_once('#').unwrap_or((plan, ""));
                report.planned = count.trim().parse().ok();
                let reason = reason.trim();
                report.skipped = reason.strip_prefix("SKIP").map(|reason| reason.trim().to_owned());
                continue;
            }
            let (failed, rest) = match (line.strip_prefix("not ok "), line.strip_prefix("ok ")) {
                (Some(rest), _) => (!rest.contains("# TODO"), rest),
                (_, Some(rest)) => (false, rest),
                _ => continue,
            };
            if failed {
                let (number, description) = rest.split_once(" - ").unwrap_or((rest, ""));
                let description = if description.is_empty() { number } else { description };
                *report.failed.entry(description.replace("\\#", "#")).or_default() += 1;
            } else {
                report.passed += 1;
            }
        }
        report
    }

    /// Returns the number of tests that failed.
    pub fn failures(&self) -> usize {
        self.failed.values().sum()
    }
}

/// The results of one file.
#[derive(Debug)]
pub struct Outcome {
    /// The report.
    pub report: Report,
    /// The remaining output: diagnostics and the server's log.
    pub log: String,
    /// The exit status.
    pub status: Option<i32>,
    /// The duration.
    pub seconds: f64,
}

impl Outcome {
    /// Returns a description of the problem, unless exactly the expected tests fail.
    pub fn problem(&self, expected: &Failures<'_>) -> Option<String> {
        let failed = || self.report.failed.keys().map(String::as_str);
        let unlisted: Vec<&str> =
            failed().filter(|test| !expected.tests.iter().any(|listed| is_listed(test, listed))).collect();
        let passing: Vec<&&str> =
            expected.tests.iter().filter(|listed| !failed().any(|test| is_listed(test, listed))).collect();
        let ran = self.report.passed + self.report.failures();
        // Perl's exit status is the number of failed tests.
        let status = i32::try_from(self.report.failures()).unwrap_or(i32::MAX).min(254);
        if !unlisted.is_empty() {
            Some(format!("fails: {unlisted:?}"))
        } else if self.report.planned != Some(ran) && !expected.other_plan {
            Some(format!("ran {ran} of {:?} tests, status {:?}", self.report.planned, self.status))
        } else if self.status != Some(status) {
            Some(format!("ended with {:?}", self.status))
        } else if !passing.is_empty() {
            Some(format!("passes, and expected.toml lists as failing: {passing:?}"))
        } else {
            None
        }
    }
}

/// Runs one file in a pass. Files that run concurrently must have different `number`s.
///
/// # Panics
/// Panics if Perl cannot be run.
pub fn run(source: &Path, file: &str, pass: Pass, number: u32, program: &Program) -> Outcome {
    let build = build_folder(source, program).expect("a folder that looks like memcached's build");
    let folder = build.path();
    let begun = Instant::now();
    let [out, err] = ["out", "err"].map(|name| folder.join(name));
    let create = |path: &Path| fs::File::create(path).expect("a file for the output");
    let files = (PORTS.end - PORTS.start) / PORTS_PER_FILE;
    let first = PORTS.start + (std::process::id() + number) % files * PORTS_PER_FILE;
    let tools = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("perl");
    command
        .args(["-I", "t/lib", "-I"])
        .arg(suite_folder())
        .arg("-MOwnPorts")
        .arg(format!("t/{file}"))
        .current_dir(folder)
        .env("SUITE_PORTS", format!("{first}-{}", first + PORTS_PER_FILE))
        .env("SUITE_SERVER", &program.path)
        .env("TMPDIR", folder)
        .env("PATH", format!("{}:{tools}", folder.join("bin").display()))
        .stdin(Stdio::null())
        .stdout(create(&out))
        .stderr(create(&err))
        .process_group(0);
    match pass {
        Pass::Plain => {
            command.env("RUN_SASL_TESTS", "1").env("MEMCACHED_SASL_PWDB", folder.join("passwords"));
        }
        Pass::Tls => {
            command.env("SSL_TEST", "1");
        }
    }
    kill_with_thread(&mut command);
    let mut child = command.spawn().expect("perl runs");
    let group = i32::try_from(child.id()).expect("a process id");
    let status = loop {
        match child.try_wait().expect("the state of perl") {
            Some(status) => break status.code(),
            None if begun.elapsed() < FILE_DEADLINE => std::thread::sleep(Duration::from_millis(10)),
            None => break None,
        }
    };
    // Kills servers that the file has left. SAFETY: the call accesses no memory; the group contains
    // only processes that this one has started.
    unsafe { libc::kill(-group, libc::SIGKILL) };
    let _ = child.wait();
    let read = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let report = Report::parse(&read(&out));
    Outcome { report, log: read(&err), status, seconds: begun.elapsed().as_secs_f64() }
}

fn suite_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("suite")
}

/// Creates the working directory that the suite expects, with the suite's own files, and
/// replacements for the programs of memcached's build.
fn build_folder(source: &Path, program: &Program) -> std::io::Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("mcs").tempdir()?;
    let path = folder.path();
    symlink(source.join("t"), path.join("t"))?;
    // The suite advances memcached's clock by `debugtime`, which needs a flag here and a debug
    // build in memcached.
    let clock = if program.flavour == Flavour::Cached { " --debug-clock" } else { "" };
    let script = |name: &str, text: &str| {
        let file = path.join(name);
        fs::write(&file, format!("#!/bin/sh\n{text}\n"))?;
        fs::set_permissions(file, fs::Permissions::from_mode(0o755))
    };
    script("memcached-debug", &format!("exec \"$SUITE_SERVER\"{clock} \"$@\""))?;
    // This program ends its command after some seconds; here the whole process group is killed.
    script("timedrun", "shift\nexec \"$@\"")?;
    // The SASL test calls this program to create a user in libsasl's own database.
    fs::create_dir(path.join("bin"))?;
    script("bin/saslpasswd2", "cat > /dev/null")?;
    fs::write(path.join("passwords"), "testuser@memcached.realm:testpass\n")?;
    fs::set_permissions(path.join("passwords"), fs::Permissions::from_mode(0o600))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str =
        "ok 1 - a\nnot ok 2 - b \\# c\n# why\nok 3\nnot ok 4 - later # TODO some day\nnot ok 5\n1..5\n";

    #[test]
    fn a_report_is_read() {
        let report = Report::parse(OUTPUT);
        assert_eq!((report.passed, report.failures(), report.planned), (3, 2, Some(5)));
        assert_eq!(report.failed.keys().collect::<Vec<_>>(), ["5", "b # c"]);
        let skipped = Report::parse("1..0 # SKIP no extstore\n");
        assert_eq!(skipped.skipped.as_deref(), Some("no extstore"));
    }

    #[test]
    fn only_listed_failures_are_accepted() {
        let problem = |text: &str, status, tests: &[&str]| {
            let report = Report::parse(text);
            let outcome = Outcome { report, log: String::new(), status, seconds: 0.0 };
            outcome.problem(&Failures { tests: tests.to_vec(), other_plan: false }).unwrap_or_default()
        };
        let listed = ["5", "b # c"];
        assert_eq!(problem(OUTPUT, Some(2), &listed), "");
        assert_eq!(problem(OUTPUT, Some(2), &["5", "b…"]), "");
        assert!(problem(OUTPUT, Some(2), &["5"]).contains("b # c"));
        assert!(problem(OUTPUT, Some(2), &["5", "b #"]).contains("b # c"));
        assert!(problem(OUTPUT, Some(255), &listed).contains("ended with"));
        assert!(problem(OUTPUT, None, &listed).contains("ended with"));
        assert!(problem(OUTPUT, Some(2), &["5", "b # c", "x"]).contains("passes"));
        assert!(problem("ok 1\n1..2\n", Some(0), &[]).contains("1 of Some(2)"));
        assert!(problem("ok 1\n", Some(0), &[]).contains("1 of None"));
    }
}
