//! Checks that a server returns the values that were stored: see `cached_tests::check`.
//!
//! ```text
//! check-values [--seconds N | --operations N] [--only NAME] [--seed N] [--server PATH]
//! ```
//! Runs every configuration in turn (the time or the operations are shared among them), prints a line for
//! each count, and exits with 1 if there was a violation. Without `--server` the workspace's own `cached` is
//! built and tested.

use cached_tests::check::{self, Until};
use cached_tests::configurations::{self, Configuration};
use cached_tests::program::Program;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let arguments = match cached_tests::checkers::Arguments::read() {
        Ok(arguments) => arguments,
        Err(line) => {
            eprintln!("{line}");
            return ExitCode::from(2);
        }
    };
    let program = match &arguments.server {
        Some(path) => Program::at(path),
        None => Program::under_test().clone(),
    };
    let chosen: Vec<&Configuration> =
        configurations::ALL.iter().filter(|it| arguments.plays(it.name)).collect();
    let count = u32::try_from(chosen.len().max(1)).unwrap_or(1);
    let until = match arguments.operations {
        Some(operations) => Until::Operations(operations / u64::from(count)),
        None => Until::Time(Duration::from_secs(arguments.seconds) / count),
    };
    println!("seed {}", arguments.seed);
    let good: Vec<bool> = chosen.iter().map(|it| check::run(&program, it, until, arguments.seed)).collect();
    if !good.is_empty() && good.iter().all(|good| *good) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
