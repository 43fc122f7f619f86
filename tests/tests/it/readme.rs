//! Runs every shell example of `README.md` in order, in a separate network namespace, as after a
//! fresh clone: each command must succeed and print the output on the page.

use cached_tests::outside::{find_program, skip};
use cached_tests::program::{repository, workspace_programs};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const TEST: &str = "the examples of README.md";
/// The time limit for a server's start.
const START_DEADLINE: Duration = Duration::from_secs(120);
/// The programs that the examples need in addition to a Rust toolchain.
const OUTSIDE: [&str; 6] = ["unshare", "ip", "nc", "qemu-io", "python3", "curl"];
/// The only block of the page that is not an example: it would run this test.
const NOT_RUN: &str = "cargo test --workspace";

/// A command of the page, and the output shown there.
#[derive(Debug, Default)]
struct Step {
    command: String,
    shown: Vec<String>,
}

/// Returns the steps of all blocks except those in another language and [`NOT_RUN`].
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    // Every second part is between fences.
    for block in page.split("\n```").skip(1).step_by(2) {
        let (language, text) = block.split_once('\n').expect("a block has lines");
        if !language.is_empty() || text.trim() == NOT_RUN {
            continue;
        }
        let mut document_end: Option<String> = None;
        for line in text.lines() {
            if let (Some(end), Some(step)) = (&document_end, steps.last_mut()) {
                step.command += &format!("\n{line}");
                if line == end {
                    document_end = None;
                }
            } else if let Some(command) = line.strip_prefix("$ ") {
                document_end =
                    command.split_once("<<'").and_then(|(_, rest)| Some(rest.split_once('\'')?.0.to_owned()));
                steps.push(Step { command: command.to_owned(), shown: Vec::new() });
            } else {
                let step =
                    steps.last_mut().unwrap_or_else(|| panic!("a block begins without a command: {text}"));
                step.shown.push(line.to_owned());
            }
        }
    }
    steps
}

/// A shell in its own network namespace. Dropping this value kills all processes that the shell has
/// started.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    started: UnixDatagram,
    errors: PathBuf,
}

impl Shell {
    fn start(place: &Path, path: &str) -> Shell {
        let notify = place.join("notify");
        let started = UnixDatagram::bind(&notify).expect("a socket");
        started.set_read_timeout(Some(START_DEADLINE)).expect("a timeout");
        let errors = place.join("errors");
        let mut child = Command::new("unshare")
            .args(["--net", "bash", "-c", "ip link set lo up && exec bash"])
            .current_dir(place.join("clone"))
            .env("PATH", path)
            .env("PROGRAMS", workspace_programs())
            .env("NOTIFY_SOCKET", &notify)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&errors).expect("a file"))
            .process_group(0)
            .spawn()
            .expect("a shell");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Shell { child, input, output, started, errors }
    }

    /// Runs a command; returns its status and the lines of its output. For a background command,
    /// waits until its server is ready.
    fn run(&mut self, command: &str) -> (String, Vec<String>) {
        let is_server = command.trim_end().ends_with('&');
        // The server's log lines must not be mistaken for a later command's output.
        let command = if is_server { command.replacen('&', ">&2 &", 1) } else { command.to_owned() };
        writeln!(self.input, "{command}\nprintf '\\n@@ %s\\n' $?").expect("the shell reads");
        let mut lines = Vec::new();
        let status = loop {
            let mut line = String::new();
            let count = self.output.read_line(&mut line).expect("its output is text");
            assert!(count > 0, "the shell has ended at `{command}`:\n{}", self.errors());
            match line.trim_end().strip_prefix("@@ ") {
                Some(status) => break status.to_owned(),
                None => lines.push(line.trim_end_matches(['\r', '\n']).to_owned()),
            }
        };
        // The marker begins a line.
        if lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        if is_server {
            self.wait_for_start(&command);
        }
        (status, lines)
    }

    fn wait_for_start(&self, command: &str) {
        let mut message = [0; 4096];
        loop {
            let count = self.started.recv(&mut message);
            let count = count.unwrap_or_else(|error| panic!("`{command}`: {error}\n{}", self.errors()));
            if message[..count].split(|byte| *byte == b'\n').any(|line| line == b"READY=1") {
                return;
            }
        }
    }

    fn errors(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // SAFETY: kill accesses no memory; the child leads its group and has not been waited for.
        unsafe { libc::kill(-self.child.id().cast_signed(), libc::SIGKILL) };
        let _ = self.child.wait();
    }
}

/// Prepares the environment of the examples: a clone, a `cargo` with built programs, and an `aws`.
/// Returns the `PATH`.
fn prepare(place: &Path) -> String {
    let programs = place.join("programs");
    for directory in ["clone", "tmp", "programs"] {
        fs::create_dir_all(place.join(directory)).expect("a directory");
    }
    for name in ["Cargo.lock", "deploy"] {
        symlink(repository().join(name), place.join("clone").join(name)).expect("a link");
    }
    for name in ["cargo", "aws"] {
        symlink(repository().join("tests/src/readme").join(name), programs.join(name)).expect("a link");
    }
    format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default())
}

#[test]
fn every_example_runs_and_prints_what_is_shown() {
    if let Some(missing) = OUTSIDE.into_iter().find(|program| find_program(program).is_none()) {
        return skip(TEST, &format!("{missing} is not installed"));
    }
    let network = Command::new("unshare").args(["--net", "true"]).output();
    if !network.is_ok_and(|output| output.status.success()) {
        return skip(TEST, "this user may not make a network of its own");
    }
    let page = fs::read_to_string(repository().join("README.md")).expect("README.md");
    let steps = steps(&page);
    assert!(steps.len() > 15, "{steps:?}");

    let place = tempfile::Builder::new()
        .prefix("readme")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a directory");
    let path = prepare(place.path());
    let mut shell = Shell::start(place.path(), &path);
    let endpoint = repository().join("tests/src/readme/endpoint.py");
    let endpoint = format!("coproc python3 {}; head -1 <&${{COPROC[0]}}", endpoint.display());
    let (_, ready) = shell.run(&format!("shopt -s expand_aliases; {endpoint}"));
    assert_eq!(ready, ["ready"], "{}", shell.errors());

    let own_tmp = format!("{}/", place.path().join("tmp").display());
    for Step { command, shown } in steps {
        let (status, lines) = shell.run(&command.replace("/tmp/", &own_tmp));
        assert_eq!(status, "0", "`{command}`:\n{}\n{}", lines.join("\n"), shell.errors());
        assert!(shown.is_empty() || lines == shown, "`{command}`:\n{lines:#?}\nREADME.md shows:\n{shown:#?}");
    }
}
