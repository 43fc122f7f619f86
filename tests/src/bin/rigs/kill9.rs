//! kill -9 of the real process under load: see `cached_tests::kill9`.
//!
//! ```text
//! cargo run --release -p cached-tests --bin kill9 -- [--rounds N] [--seed N] [--writers N] [--rados]
//!                                                    [--server PATH] [--dir DIR] [--buffered]
//! ```
//! Kills as often as `--rounds` says (100), over a file store or, with `--rados`, over a one-node Ceph. Prints
//! a line for each round and exits with 1 if anything that was acknowledged is lost or torn.

use std::path::PathBuf;
use std::process::ExitCode;

use cached_tests::ceph::Cluster;
use cached_tests::kill9::{self, Backend, Options};
use cached_tests::program::Program;

fn usage(problem: &str) -> ExitCode {
    eprintln!(
        "{problem}\nkill9 [--rounds N] [--seed N] [--writers N] [--rados] [--server PATH] [--dir DIR] [--buffered]"
    );
    ExitCode::from(2)
}

fn main() -> ExitCode {
    let (mut rounds, mut seed, mut writers, mut is_rados, mut is_direct) = (100, 1, 6, false, true);
    let (mut server, mut parent): (Option<PathBuf>, PathBuf) = (None, std::env::temp_dir());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rados" => is_rados = true,
            "--buffered" => is_direct = false,
            "--rounds" | "--seed" | "--writers" | "--server" | "--dir" => {
                let Some(value) = arguments.next() else {
                    return usage(&format!("{argument} needs a value"));
                };
                let number = value.parse::<u64>();
                match (argument.as_str(), number) {
                    ("--server", _) => server = Some(value.into()),
                    ("--dir", _) => parent = value.into(),
                    ("--rounds", Ok(number)) => rounds = number,
                    ("--seed", Ok(number)) => seed = number,
                    ("--writers", Ok(number)) if number > 0 => writers = number as usize,
                    _ => return usage(&format!("{argument} {value}: a number is needed")),
                }
            }
            _ => return usage(&format!("{argument} is not known")),
        }
    }
    let directory = kill9::directory(&parent, "kill9");
    let cluster = is_rados.then(|| Cluster::up("kill9", &directory));
    let backend = match &cluster {
        None => Backend::File,
        Some(Some(cluster)) => Backend::Rados(cluster.conf()),
        Some(None) => return ExitCode::from(2),
    };
    let program = server.unwrap_or_else(|| Program::under_test().path.clone());
    let run = directory.join("run");
    if let Err(error) = std::fs::create_dir(&run) {
        return usage(&format!("{}: {error}", run.display()));
    }
    println!("seed {seed}, {}, in {}", program.display(), run.display());
    let options = Options {
        program,
        directory: run,
        backend,
        rounds,
        writers,
        seed,
        direct: is_direct,
        is_verbose: true,
    };
    let outcome = kill9::run(&options);
    drop(cluster);
    match outcome {
        Ok(report) if report.is_good() => {
            println!("{report}");
            // What a good run leaves is of no use.
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
