//! Applies the list of mutations, one at a time, and runs the tests that should notice each.
//!
//! ```text
//! cargo run -p cached-tests --bin mutations                    all of them
//! cargo run -p cached-tests --bin mutations -- kv- file-       those whose names begin with these
//! cargo run -p cached-tests --bin mutations -- --list kv-      their names, and what each breaks
//! ```
//!
//! The working tree stays as it is: changes are made in a copy of what git tracks, in `target/mutations`,
//! which has a build directory of its own. First the tests named by the list must pass on the unchanged copy.
//! Then one line is printed for each mutation: its outcome, the seconds it took, and the first test that
//! failed. The exit status is 0 if each was noticed or is shown in the list to change nothing, 1 if not.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use cached_tests::mutations::{Mutation, read_all, repository};

/// How many times as long as without a mutation a test may take before it counts as hanging.
const TIMES_AS_LONG: u32 = 8;
/// The time beyond that.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("mutations: {text}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[String]) -> Result<bool, String> {
    let mut all = read_all(&repository())?;
    let (options, wanted): (Vec<_>, Vec<_>) =
        arguments.iter().partition(|argument| argument.starts_with('-'));
    if let Some(unknown) = options.iter().find(|option| option.as_str() != "--list") {
        return Err(format!(
            "{unknown} is no option; --list is the only one, and names may begin a mutation's"
        ));
    }
    let is_list = !options.is_empty();
    all.retain(|mutation| wanted.is_empty() || wanted.iter().any(|start| mutation.name.starts_with(*start)));
    if all.is_empty() {
        return Err("no mutation's name begins so; --list shows all".into());
    }
    if is_list {
        all.iter().for_each(|mutation| println!("{:<44} {}", mutation.name, mutation.breaks));
        return Ok(true);
    }
    let tree = Tree::make(&repository())?;
    let usual = tree.times_without(&all)?;
    let (mut noticed, mut equivalent, mut bad) = (0, 0, Vec::new());
    for mutation in &all {
        let begun = Instant::now();
        let outcome = tree.try_one(mutation, &usual)?;
        let seconds = begun.elapsed().as_secs();
        println!("{:<44} {seconds:>4} s  {outcome}", mutation.name);
        match (&outcome, &mutation.equivalent) {
            (Outcome::Noticed(_), None) => noticed += 1,
            (Outcome::Unnoticed, Some(_)) => equivalent += 1,
            _ => bad.push(mutation.name.as_str()),
        }
    }
    println!("{} mutations: {noticed} noticed, {equivalent} change nothing, {} wrong", all.len(), bad.len());
    bad.iter().for_each(|name| println!("wrong: {name}"));
    Ok(bad.is_empty())
}

/// The outcome of a mutation.
enum Outcome {
    /// This test failed or hung.
    Noticed(String),
    Unnoticed,
    /// The list is wrong: it does not compile.
    Invalid(String),
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Noticed(test) => write!(f, "noticed: {test}"),
            Self::Unnoticed => f.write_str("UNNOTICED"),
            Self::Invalid(error) => write!(f, "DOES NOT COMPILE: {error}"),
        }
    }
}

/// The copy of the repository in which the changes are made.
struct Tree {
    root: PathBuf,
    target: PathBuf,
}

impl Tree {
    /// Brings the copy up to date. Files that have not changed keep their times, so that cargo builds little.
    fn make(repository: &Path) -> Result<Self, String> {
        let work = repository.join("target/mutations");
        let tree = Self { root: work.join("tree"), target: work.join("target") };
        let listed = Command::new("git").arg("-C").arg(repository).arg("ls-files").arg("-z").output();
        let listed = listed.map_err(|error| format!("git ls-files: {error}"))?;
        let mut kept = HashSet::new();
        for name in listed.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let name = Path::new(std::str::from_utf8(name).map_err(|error| error.to_string())?);
            let (from, to) = (repository.join(name), tree.root.join(name));
            // Deleted, but not committed yet.
            let Ok(bytes) = fs::read(&from) else { continue };
            kept.insert(to.clone());
            if fs::read(&to).is_ok_and(|there| there == bytes) {
                continue;
            }
            fs::create_dir_all(to.parent().unwrap_or(&tree.root)).map_err(|error| error.to_string())?;
            fs::copy(&from, &to).map_err(|error| format!("{}: {error}", to.display()))?;
        }
        remove_others(&tree.root, &kept).map_err(|error| format!("{}: {error}", tree.root.display()))?;
        Ok(tree)
    }

    /// Runs every test command once on the unchanged copy. Returns how long each took.
    fn times_without(&self, all: &[Mutation]) -> Result<BTreeMap<String, Duration>, String> {
        let mut times = BTreeMap::new();
        for command in all.iter().flat_map(|mutation| &mutation.tests) {
            if times.contains_key(command) {
                continue;
            }
            self.build(command)?.map_err(|error| format!("cargo test {command}: {error}"))?;
            let begun = Instant::now();
            if let Some(test) = self.test(command, Duration::from_secs(1800))? {
                return Err(format!("cargo test {command} fails without any mutation: {test}"));
            }
            println!("{:<44} {:>4} s  unchanged", command, begun.elapsed().as_secs());
            times.insert(command.clone(), begun.elapsed());
        }
        Ok(times)
    }

    fn try_one(&self, mutation: &Mutation, usual: &BTreeMap<String, Duration>) -> Result<Outcome, String> {
        let path = self.root.join(&mutation.file);
        let right = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let wrong = mutation.apply(&right)?;
        fs::write(&path, wrong).map_err(|error| error.to_string())?;
        let outcome = self.outcome(mutation, usual);
        self.forget_failures();
        fs::write(&path, right).map_err(|error| error.to_string())?;
        outcome
    }

    /// Removes the failing cases that proptest has kept, so that each mutation is found anew.
    fn forget_failures(&self) {
        let crates = fs::read_dir(self.root.join("crates")).into_iter().flatten().flatten();
        crates.for_each(|each| {
            // Most crates have none.
            let _ = fs::remove_dir_all(each.path().join("proptest-regressions"));
        });
    }

    fn outcome(&self, mutation: &Mutation, usual: &BTreeMap<String, Duration>) -> Result<Outcome, String> {
        for command in &mutation.tests {
            if let Err(error) = self.build(command)? {
                return Ok(Outcome::Invalid(error));
            }
            if let Some(test) = self.test(command, usual[command] * TIMES_AS_LONG + PATIENCE)? {
                return Ok(Outcome::Noticed(test));
            }
        }
        Ok(Outcome::Unnoticed)
    }

    fn cargo(&self, command: &str, is_build: bool) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let (options, filters) = command.split_once(" -- ").unwrap_or((command, ""));
        cargo.arg("test").args(options.split_whitespace());
        if is_build {
            cargo.arg("--no-run");
        } else {
            cargo.arg("--").args(filters.split_whitespace());
        }
        cargo.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target).env("CARGO_TERM_COLOR", "never");
        // A process group of its own, to be killed as a whole; the first failure is enough.
        cargo.stdin(Stdio::null()).process_group(0);
        cargo
    }

    fn build(&self, command: &str) -> Result<Result<(), String>, String> {
        let built = self.cargo(command, true).output().map_err(|error| format!("cargo: {error}"))?;
        if built.status.success() {
            return Ok(Ok(()));
        }
        let text = String::from_utf8_lossy(&built.stderr).into_owned();
        let first = text.lines().find(|line| line.starts_with("error")).unwrap_or("the build failed");
        Ok(Err(first.to_owned()))
    }

    /// Returns the first test that failed, or that the command hung; `None` if all passed.
    fn test(&self, command: &str, limit: Duration) -> Result<Option<String>, String> {
        let mut cargo = self.cargo(command, false);
        cargo.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = cargo.spawn().map_err(|error| format!("cargo: {error}"))?;
        let group = i32::try_from(child.id()).map_err(|error| error.to_string())?;
        let mut stdout = child.stdout.take().ok_or("no pipe to cargo")?;
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stdout.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                break Some(status);
            }
            if begun.elapsed() > limit {
                // SAFETY: kill(2) reads no memory; the group is that of the child, which has not been waited
                // for.
                unsafe { libc::kill(-group, libc::SIGKILL) };
                child.wait().map_err(|error| error.to_string())?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let text = reader.join().unwrap_or_default();
        let failed = text.lines().find_map(|line| {
            let test = line.strip_prefix("test ")?.split_once(" ... FAILED")?.0;
            Some(test.to_owned())
        });
        Ok(match status {
            Some(status) if status.success() => None,
            Some(_) => Some(failed.unwrap_or_else(|| "the test program ended in failure".into())),
            None => Some(failed.map_or("it hangs".into(), |test| format!("{test}, then it hangs"))),
        })
    }
}

/// Removes every file below `dir` that is not in `kept`: a module that has moved must not be found in its old place.
fn remove_others(dir: &Path, kept: &HashSet<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_others(&entry.path(), kept)?;
            // A crate's folder without its manifest would be an error; one that still holds files stays.
            let _ = fs::remove_dir(entry.path());
        } else if !kept.contains(&entry.path()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
