//! Kills a process with a memory file by SIGKILL, any number of times: see `cached_tests::warm`.

use cached_tests::warm;
use std::path::PathBuf;
use std::process::ExitCode;

/// Kills a process with a memory file by kill -9
///
/// Prints a line for each round, and exits with status 1 if data were lost or wrong. Name a
/// directory on a tmpfs.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(long, default_value_t = 100)]
    rounds: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of concurrent clients
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..))]
    clients: u16,
    /// The directory of the memory file (default: the system's temporary directory)
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Arguments of the server
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, default_value = "-m 16 -t 4")]
    server: Vec<String>,
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let Arguments { rounds, seed, clients, dir, server } = arguments;
    let parent = dir.unwrap_or_else(std::env::temp_dir);
    let directory = match tempfile::tempdir_in(&parent) {
        Ok(directory) => directory,
        Err(error) => {
            eprintln!("{}: {error}", parent.display());
            return ExitCode::from(2);
        }
    };
    let report =
        warm::run(&directory.path().join("memory"), &server.join(" "), rounds, clients.into(), seed, true);
    println!("{report}");
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
