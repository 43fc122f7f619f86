//! The two checkers, for `CACHED_CHECKERS_SECONDS` seconds each (10 by default). By hand they run for any
//! time: `cargo run -p cached-tests -- check-values --seconds 3600`, and the same with `lockstep`.

use cached_tests::outside;
use cached_tests::program::{Flavour, Program};
use std::process::Command;
use std::time::Duration;

fn seconds() -> u64 {
    std::env::var("CACHED_CHECKERS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

fn run(checker: &str) {
    let program = Program::under_test();
    let seconds = seconds();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rigs"));
    command.arg(checker).args(["--seconds", &seconds.to_string()]).arg("--server").arg(&program.path);
    let output = outside::run(&mut command, Duration::from_secs(900 + 4 * seconds));
    println!("{}", outside::text(&output));
    assert!(output.status.success(), "{}\n{}", output.status, outside::text(&output));
}

#[test]
fn values_are_what_was_stored() {
    if Program::under_test().flavour == Flavour::Cached {
        run("check-values");
    }
}

#[test]
fn replies_equal_memcacheds() {
    if outside::are_installed("replies_equal_memcacheds", &["memcached"]) {
        run("lockstep");
    }
}
