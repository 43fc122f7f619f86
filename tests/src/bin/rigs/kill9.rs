//! kill -9 of the real process under load: see `cached_tests::kill9`.

use std::path::PathBuf;
use std::process::ExitCode;

use cached_tests::ceph::Cluster;
use cached_tests::checkers::full_path;
use cached_tests::kill9::{self, Backend, Options};
use cached_tests::program::Program;

/// Kills the real process by kill -9 under load, and also while it recovers
///
/// Prints a line for each round, and exits with status 1 if acknowledged data are lost or torn.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The number of kills
    #[arg(long, default_value_t = 100)]
    rounds: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of concurrent clients
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..))]
    writers: u16,
    /// Use a one-node Ceph instead of a file store
    #[arg(long)]
    rados: bool,
    /// Let the journal write through the page cache
    #[arg(long)]
    buffered: bool,
    /// The server; the default is this workspace's `cached`
    #[arg(long, value_parser = full_path)]
    server: Option<PathBuf>,
    /// The directory for journal and store; the default is the system's temporary directory
    #[arg(long)]
    dir: Option<PathBuf>,
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let Arguments { rounds, seed, writers, rados, buffered, server, dir } = arguments;
    let directory = kill9::directory(&dir.unwrap_or_else(std::env::temp_dir), "kill9");
    let cluster = rados.then(|| Cluster::up("kill9", &directory));
    let backend = match &cluster {
        None => Backend::File,
        Some(Some(cluster)) => Backend::Rados(cluster.conf()),
        Some(None) => return ExitCode::from(2),
    };
    let program = server.unwrap_or_else(|| Program::under_test().path.clone());
    let run = directory.join("run");
    if let Err(error) = std::fs::create_dir(&run) {
        eprintln!("{}: {error}", run.display());
        return ExitCode::from(2);
    }
    println!("seed {seed}, {}, in {}", program.display(), run.display());
    let options = Options {
        program,
        directory: run,
        backend,
        rounds,
        writers: writers.into(),
        seed,
        direct: !buffered,
        is_verbose: true,
    };
    let outcome = kill9::run(&options);
    drop(cluster);
    match outcome {
        Ok(report) if report.is_good() => {
            println!("{report}");
            // After a successful run the run's files are not needed.
            let _ = std::fs::remove_dir_all(&directory);
            ExitCode::SUCCESS
        }
        Ok(report) => {
            println!("{report}\nthe state is kept in {}", directory.display());
            ExitCode::FAILURE
        }
        Err(problem) => {
            eprintln!("{problem}\nthe state is kept in {}", directory.display());
            ExitCode::FAILURE
        }
    }
}
