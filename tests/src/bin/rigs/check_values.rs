//! Checks that a server returns the stored values: see `cached_tests::check`.

use cached_tests::check::{self, Until};
use cached_tests::checkers::Run;
use std::process::ExitCode;
use std::time::Duration;

/// Reads and changes self-describing values from many clients, in every configuration in turn
///
/// The configurations share the time or the operations. Prints a line for each count, and exits with 1 if a value was wrong.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    run: Run,
}

pub(crate) fn run(Arguments { run }: &Arguments) -> ExitCode {
    let (program, configurations) = run.begin();
    let count = u32::try_from(configurations.len()).unwrap_or(1);
    let until = match run.operations {
        Some(operations) => Until::Operations(operations / u64::from(count)),
        None => Until::Time(Duration::from_secs(run.seconds) / count),
    };
    let good: Vec<bool> = configurations.iter().map(|it| check::run(&program, it, until, run.seed)).collect();
    if good.iter().all(|good| *good) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
