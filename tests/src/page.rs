//! The shell examples of a page, and a shell that runs them.
//!
//! A page's block without a language is an example, which a test runs: `$ ` begins a command, and
//! the lines after it are the output. A line that ends with `\`, and a document (`<<'END'`), belong
//! to the command that they continue. Blocks of commands that no test runs name a language (`sh`)
//! and the reason.

use crate::outside::{are_installed, skip};
use crate::program::workspace_programs;
use crate::server::is_root;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The time limit for a server's start.
const START_DEADLINE: Duration = Duration::from_secs(120);

/// A command on a page, and the output shown below it.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// The command, of one or more lines.
    pub command: String,
    /// The lines of the command's output.
    pub shown: Vec<String>,
}

impl Step {
    /// Returns whether the command starts a server: apart from a comment, such a command ends with
    /// `&`.
    #[must_use]
    pub fn starts_server(&self) -> bool {
        without_comment(&self.command).ends_with('&')
    }
}

fn without_comment(command: &str) -> &str {
    command.split("  #").next().unwrap_or_default().trim_end()
}

/// The directories in which examples have their files. A test replaces them by directories of its
/// own.
pub const PLACES: [&str; 7] =
    ["/dev/shm/", "/etc/cached/", "/run/", "/srv/", "/tmp/", "/usr/bin/", "/var/lib/"];

/// Returns the command, with absolute paths in [`PLACES`] leading into the directory `root`.
#[must_use]
pub fn localized(command: &str, root: &str) -> String {
    let mut text = String::new();
    let mut rest = command;
    while let Some(at) = rest.find('/') {
        let (before, from) = rest.split_at(at);
        text.push_str(before);
        let is_absolute = !text.ends_with(|last: char| last.is_alphanumeric() || "/._-}*".contains(last));
        if is_absolute && PLACES.iter().any(|place| from.starts_with(place)) {
            text.push_str(root);
        }
        text.push('/');
        rest = &from[1..];
    }
    text + rest
}

/// Returns whether the printed lines have the form of the shown lines. Numbers (and long
/// hexadecimal ones) may differ, and so may the width of columns. In a line, `…` stands for any
/// text; alone, for any lines.
#[must_use]
pub fn has_form(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line.trim() == "…" => {
            (0..=printed.len()).any(|count| has_form(rest, &printed[count..]))
        }
        Some((line, rest)) => printed
            .split_first()
            .is_some_and(|(first, others)| has_line_form(line, first) && has_form(rest, others)),
    }
}

fn has_line_form(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (form(shown), form(printed));
    let mut parts = shown.split('…');
    let Some(mut rest) = parts.next().and_then(|first| printed.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

/// Returns a line with `#` for each number, and one space for several spaces.
fn form(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        if word.len() >= 12 && word.chars().all(|letter| letter.is_ascii_hexdigit()) {
            return "#".to_owned();
        }
        let mut text = String::new();
        for letter in word.chars() {
            let continues = text.ends_with('#') && (letter == '.' || letter == ',');
            match letter.is_ascii_digit() {
                true if text.ends_with('#') => {}
                true => text.push('#'),
                false if continues => {}
                false => text.push(letter),
            }
        }
        text
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the blocks of a page: the words after the fence, and the text.
pub fn blocks(page: &str) -> impl Iterator<Item = (&str, &str)> {
    // Every second part is between fences.
    let blocks = page.split("\n```").skip(1).step_by(2);
    blocks.map(|block| block.split_once('\n').expect("a block has lines"))
}

/// Returns the steps of a page's examples.
///
/// # Panics
/// Panics if an example does not begin with a command.
#[must_use]
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (_, text) in blocks(page).filter(|(language, _)| language.is_empty()) {
        let mut document_end: Option<String> = None;
        let mut is_new = true;
        for line in text.lines() {
            match (&document_end, steps.last_mut()) {
                (Some(end), Some(step)) => {
                    step.command += &format!("\n{line}");
                    if line == end {
                        document_end = None;
                    }
                }
                (None, Some(step)) if !is_new && step.shown.is_empty() && step.command.ends_with('\\') => {
                    step.command += &format!("\n{line}");
                }
                (_, last) => match (line.strip_prefix("$ "), last) {
                    (Some(command), _) => {
                        let document = command.split_once("<<'").and_then(|(_, rest)| rest.split_once('\''));
                        document_end = document.map(|(end, _)| end.to_owned());
                        steps.push(Step { command: command.to_owned(), shown: Vec::new() });
                    }
                    (None, Some(step)) if !is_new => step.shown.push(line.to_owned()),
                    _ => panic!("a block begins without a command: {text}"),
                },
            }
            is_new = false;
        }
    }
    steps
}

/// Returns a command that runs the following words in a network namespace; without root, in a user
/// namespace too.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.arg("--net").args((!is_root()).then_some("--map-root-user"));
    command
}

/// Returns whether this user may make network namespaces and these programs are installed; otherwise
/// the test is skipped.
///
/// # Panics
/// Panics with `CACHED_REQUIRE_ALL=1` if the test would be skipped.
#[must_use]
pub fn can_run(test: &str, programs: &[&str]) -> bool {
    if !are_installed(test, programs) {
        return false;
    }
    let is_possible = unshare().arg("true").output().is_ok_and(|output| output.status.success());
    if !is_possible {
        skip(test, "this user may not make a network of its own");
    }
    is_possible
}

/// Creates the directories of a shell at `place`: `clone`, `programs` and those of [`PLACES`].
///
/// # Panics
/// Panics if the directories cannot be created.
pub fn make_directories(place: &Path) {
    for directory in ["clone", "programs"].into_iter().chain(PLACES.map(|place| &place[1..])) {
        fs::create_dir_all(place.join(directory)).expect("a directory");
    }
}

/// A shell in its own network namespace. Dropping this value kills all processes that the shell has
/// started.
#[derive(Debug)]
pub struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    started: UnixDatagram,
    errors: PathBuf,
}

impl Shell {
    /// Starts a shell in the directory `clone` of `place`. `path` is its `PATH`.
    ///
    /// # Panics
    /// Panics if the shell cannot be started.
    #[must_use]
    pub fn start(place: &Path, path: &str) -> Shell {
        let notify = place.join("notify");
        let started = UnixDatagram::bind(&notify).expect("a socket");
        started.set_read_timeout(Some(START_DEADLINE)).expect("a timeout");
        let errors = place.join("errors");
        let mut child = unshare()
            .args(["bash", "-c", "ip link set lo up && exec bash"])
            .current_dir(place.join("clone"))
            .env("PATH", path)
            .env("PROGRAMS", workspace_programs())
            .env("NOTIFY_SOCKET", &notify)
            // The command does not use the user's contexts of `cachectl`.
            .env("HOME", place)
            .env_remove("XDG_CONFIG_HOME")
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

    /// Runs a command; returns its status and the lines of its output. If the command starts a
    /// server in the background, waits until the server is ready.
    ///
    /// # Panics
    /// Panics if the shell ends, or the server is not ready in time.
    pub fn run(&mut self, command: &str) -> (String, Vec<String>) {
        let server = without_comment(command).strip_suffix('&');
        // The server's log lines must not be mistaken for a later command's output.
        let command = server.map_or_else(|| command.to_owned(), |server| format!("{server}>&2 &"));
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
        // The marker is at the beginning of a line.
        if lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        if server.is_some() {
            self.wait_for_start(&command);
        }
        (status, lines)
    }

    /// Waits until a server serves that was started in the background, or that takes over from
    /// another one.
    ///
    /// # Panics
    /// Panics if the server takes too long.
    pub fn wait_for_start(&self, command: &str) {
        let mut message = [0; 4096];
        loop {
            let count = self.started.recv(&mut message);
            let count = count.unwrap_or_else(|error| panic!("`{command}`: {error}\n{}", self.errors()));
            if message[..count].split(|byte| *byte == b'\n').any(|line| line == b"READY=1") {
                return;
            }
        }
    }

    /// Returns the text that the commands have written to standard error.
    #[must_use]
    pub fn errors(&self) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_continue_and_have_output() {
        let page = "words\n```\n$ a \\\n  b\nout\n$ cat > f <<'END'\n$ no\nEND\n$ s &  # ends\n```\n```sh (no)\n$ not\n```\n```\n$ c\n```\n";
        let steps = steps(page);
        let commands: Vec<&str> = steps.iter().map(|step| &step.command[..]).collect();
        assert_eq!(commands, ["a \\\n  b", "cat > f <<'END'\n$ no\nEND", "s &  # ends", "c"]);
        assert_eq!(steps[0].shown, ["out"]);
        assert_eq!(steps.iter().map(Step::starts_server).collect::<Vec<_>>(), [false, false, true, false]);
    }

    #[test]
    fn only_absolute_paths_are_replaced() {
        let local =
            localized("a=/etc/cached/x target/tmp/y '/tmp/z' nbd+unix:///vm?socket=/run/s /etc/passwd", "/r");
        assert_eq!(
            local,
            "a=/r/etc/cached/x target/tmp/y '/r/tmp/z' nbd+unix:///vm?socket=/r/run/s /etc/passwd"
        );
    }

    #[test]
    fn forms_ignore_numbers_only() {
        let has = |shown: &str, printed: &str| {
            let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
            has_form(&lines(shown), &lines(printed))
        };
        assert!(has("STAT share 0.4375", "STAT share 1.0"));
        assert!(has("a  1 b", "a 12,000 b"));
        assert!(!has("a 1 b", "a 1 c"));
        assert!(!has("a 1", "a"));
        assert!(!has("a", "a\nb"));
        assert!(has("a\n…", "a\nb\nc"));
        assert!(has("a\n…\nc", "a\nc"));
        assert!(!has("a\n…\nc", "a\nb"));
        assert!(has("cached … ready …", "cached 0.1.0 is ready now"));
        assert!(!has("cached … ready", "cached 0.1.0 is ready now"));
        assert!(has("journal f36a401b790bf0b4 in x", "journal 0123456789abcdef in x"));
    }
}
