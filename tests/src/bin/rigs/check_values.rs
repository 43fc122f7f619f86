//! Checks that a server returns the values that were stored: see `cached_tests::check`.
//!
//! ```text
//! check-values [--seconds N | --operations N] [--only NAME] [--seed N] [--server PATH]
//! ```
//! Runs every configuration in turn (the time or the operations are shared among them), prints a line for
//! each count, and exits with 1 if there was a violation. Without `--server` the workspace's own `cached` is
//! built and tested.

use cached_tests::check::{self, Until};
use cached_tests::checkers::Run;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let Run { arguments, program, configurations } = match Run::read() {
        Ok(run) => run,
        Err(status) => return status,
    };
    let count = u32::try_from(configurations.len().max(1)).unwrap_or(1);
    let until = match arguments.operations {
        Some(operations) => Until::Operations(operations / u64::from(count)),
        None => Until::Time(Duration::from_secs(arguments.seconds) / count),
    };
    let good: Vec<bool> =
        configurations.iter().map(|it| check::run(&program, it, until, arguments.seed)).collect();
    if !good.is_empty() && good.iter().all(|good| *good) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
