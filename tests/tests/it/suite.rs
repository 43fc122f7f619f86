//! Runs memcached 1.6.45's own test suite on `cached`: every file must pass, plain and through TLS,
//! except for the failures that `suite/expected.toml` lists with a reason.
//!
//! The suite is in a Debian source package, which the first run downloads into the target
//! directory; `CACHED_MEMCACHED_SOURCE` names another directory with memcached's source.
//! `CACHED_SUITE_ONLY` selects the files whose names contain its value.

use cached_tests::outside;
use cached_tests::program::{Flavour, Program};
use cached_tests::suite::{self, Failures, Pass};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const FETCH_DEADLINE: Duration = Duration::from_secs(600);
/// The number of concurrent files, which sleep most of the time.
const AT_ONCE: usize = 6;
/// The number of repetitions of a file that failed while others ran. The machine may be temporarily
/// slow.
const ATTEMPTS_ALONE: usize = 3;
/// The exit status of `fetch` if Debian has a different version.
const OTHER_VERSION: i32 = 3;

const TEST: &str = "memcached_s_own_suite";

/// Returns memcached's source. If it is missing, prints the reason and returns `None`.
fn source() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("CACHED_MEMCACHED_SOURCE") {
        return Some(PathBuf::from(path));
    }
    let version = suite::expected().version;
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("memcached-{version}"));
    if path.join("t/lib/MemcachedTest.pm").exists() {
        return Some(path);
    }
    if outside::find_program("apt-get").is_none() {
        outside::skip(TEST, "memcached's source is fetched by apt-get, which is missing");
        return None;
    }
    let fetch = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("suite/fetch");
    let run = || outside::run(Command::new(&fetch).arg(&path), FETCH_DEADLINE);
    let mut output = run();
    for _ in 0..3 {
        if matches!(output.status.code(), Some(0 | OTHER_VERSION)) {
            break;
        }
        println!("again: {}", outside::text(&output));
        output = run();
    }
    match output.status.code() {
        Some(0) => Some(path),
        // This is not under the repository's control, so the test does not fail.
        Some(OTHER_VERSION) => {
            outside::announce_skip(TEST, &outside::text(&output));
            None
        }
        _ => {
            outside::skip(
                TEST,
                &format!("memcached's source cannot be fetched:\n{}", outside::text(&output)),
            );
            None
        }
    }
}

/// Returns whether Perl and its TLS module are installed.
fn has_perl() -> bool {
    let modules = Command::new("perl").args(["-MIO::Socket::SSL", "-MTest::More", "-e", "1"]).output();
    let found = modules.is_ok_and(|output| output.status.success());
    if !found {
        outside::skip(
            TEST,
            "perl with IO::Socket::SSL is not installed (Debian package libio-socket-ssl-perl)",
        );
    }
    found
}

#[test]
fn memcached_s_own_suite() {
    judge(&[Pass::Plain]);
}

#[test]
#[ignore = "long: memcached-suite, twice over"]
fn memcached_s_own_suite_plain_and_through_tls() {
    judge(&Pass::ALL);
}

fn judge(passes: &[Pass]) {
    // The suite's files use fixed ports.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if !has_perl() {
        return;
    }
    let Some(source) = source() else { return };
    let expected = suite::expected();
    let mut files: Vec<String> = std::fs::read_dir(source.join("t"))
        .expect("the suite")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".t"))
        .collect();
    files.sort();
    let there: BTreeSet<&str> = files.iter().map(String::as_str).collect();
    let unknown: Vec<&str> = expected.files().difference(&there).copied().collect();
    assert!(unknown.is_empty(), "expected.toml lists files that the suite does not have: {unknown:?}");

    let only = std::env::var("CACHED_SUITE_ONLY").unwrap_or_default();
    let program = Program::under_test();
    let judged = program.flavour == Flavour::Cached;
    let jobs: Vec<(&str, Pass)> = passes
        .iter()
        .copied()
        .flat_map(|pass| files.iter().map(move |file| (file.as_str(), pass)))
        .filter(|(file, pass)| file.contains(&only) && (!judged || expected.skip(file, *pass).is_none()))
        .collect();
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(file, pass)) = jobs.get(number) else { break };
                    let outcome = suite::run(&source, file, pass, number as u32, program);
                    done.lock().expect("a lock").push((pass, file, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("a lock");
    done.sort_by_key(|(pass, file, _)| (*pass, *file));

    let mut problems = String::new();
    let mut ran: BTreeSet<&str> = BTreeSet::new();
    let mut passed = 0;
    for (pass, file, outcome) in &mut done {
        let listed = if judged { expected.failures(file, *pass) } else { Failures::default() };
        for _ in 0..ATTEMPTS_ALONE {
            if outcome.report.skipped.is_some() {
                break;
            }
            let Some(problem) = outcome.problem(&listed) else { break };
            // Many of the suite's files sleep instead of waiting for a condition, so files that
            // fail run once more, alone.
            println!("{pass:?} {file}: {problem}; once more, alone");
            *outcome = suite::run(&source, file, *pass, 0, program);
        }
        let report = &outcome.report;
        let mut line = format!("{pass:?} {file}: {} passed, {:.1} s", report.passed, outcome.seconds);
        if let Some(reason) = &report.skipped {
            println!("{line}; skips itself: {reason}");
            continue;
        }
        ran.insert(file);
        passed += report.passed;
        if report.failures() > 0 {
            let _ = write!(line, "; fails: {:?}", report.failed.keys().collect::<Vec<_>>());
        }
        println!("{line}");
        if let Some(problem) = outcome.problem(&listed) {
            let lines: Vec<&str> = outcome.log.lines().collect();
            let end = lines[lines.len().saturating_sub(40)..].join("\n    ");
            let _ = writeln!(problems, "{pass:?} {file}: {problem}\n    {end}\n");
        }
    }
    println!("{passed} tests of {} files passed", ran.len());
    assert!(problems.is_empty(), "\n{problems}");
    // Some files apply to only one of the passes.
    if only.is_empty() && judged && passes == Pass::ALL {
        let neither: Vec<&&str> = there
            .iter()
            .filter(|file| !ran.contains(*file))
            .filter(|file| passes.iter().any(|pass| expected.skip(file, *pass).is_none()))
            .collect();
        assert!(neither.is_empty(), "they skip themselves, and expected.toml has no reason: {neither:?}");
    }
}
