//! Runs every shell example of `README.md` in order, in a separate network namespace, as after a
//! fresh clone: each command must succeed and print the output on the page.

use cached_tests::page::{Shell, Step, can_run, localized, make_directories, steps};
use cached_tests::program::repository;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The programs that the examples need in addition to a Rust toolchain.
const OUTSIDE: [&str; 7] = ["unshare", "bash", "ip", "nc", "qemu-io", "python3", "curl"];

/// Prepares the environment of the examples: a clone, a `cargo` with built programs, and an `aws`.
/// Returns the `PATH`.
fn prepare(place: &Path) -> String {
    let programs = place.join("programs");
    make_directories(place);
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
    if !can_run("the examples of README.md", &OUTSIDE) {
        return;
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

    let root = place.path().display().to_string();
    for Step { command, shown } in steps {
        let (status, lines) = shell.run(&localized(&command, &root));
        assert_eq!(status, "0", "`{command}`:\n{}\n{}", lines.join("\n"), shell.errors());
        assert!(shown.is_empty() || lines == shown, "`{command}`:\n{lines:#?}\nREADME.md shows:\n{shown:#?}");
    }
}
