//! Compares a server with a memcached, request by request: see `cached_tests::lockstep`.

use cached_tests::checkers::{Run, full_path};
use cached_tests::lockstep::{self, Kind, Play};
use cached_tests::outside;
use cached_tests::program::Program;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The number of batches in a sequence, which begins with new servers. A short run has fewer, so
/// that every configuration runs.
const BATCHES: usize = 2000;
const BATCHES_SHORT: usize = 20;
const CONNECTIONS: usize = 3;

/// Plays random sequences of text, meta and binary requests to a server and to a memcached, in every configuration in turn
///
/// The configurations share the time or the operations. Prints a line for each count, and exits with 1 if any reply differs.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    run: Run,
    /// The memcached to compare with; the default is the installed one
    #[arg(long, value_parser = full_path)]
    reference: Option<PathBuf>,
    /// Let the server's clients authenticate first; configurations with load from other clients are
    /// omitted
    #[arg(long)]
    password: bool,
}

pub(crate) fn run(Arguments { run, reference, password }: &Arguments) -> ExitCode {
    let found = reference.clone().or_else(|| outside::find_program("memcached"));
    let Some(reference) = found.map(Program::at) else {
        eprintln!("no memcached is installed; --reference names one");
        return ExitCode::from(2);
    };
    let (program, configurations) = run.begin();
    let count = configurations.len() as u64;
    let mut good = true;
    for (number, configuration) in configurations.into_iter().enumerate() {
        if *password && !configuration.is_alone() {
            continue;
        }
        let play = Play {
            program: &program,
            reference: &reference,
            configuration,
            connections: CONNECTIONS,
            password: *password,
            batches: if run.operations.is_none() && run.seconds < 60 { BATCHES_SHORT } else { BATCHES },
        };
        let (begun, mut requests, mut sequences, mut differences) = (Instant::now(), 0, 0, 0);
        let time = Duration::from_secs(run.seconds) / count as u32;
        // Every configuration gets two kinds of requests at least, and the next one the other two; with
        // another seed it is the other way round.
        let first = run.seed.wrapping_add(number as u64).wrapping_mul(2);
        let sequences_min = if *password { Kind::ALL.len() as u64 } else { 2 };
        while differences < 3
            && (sequences < sequences_min
                || match run.operations {
                    Some(operations) => requests < operations / count,
                    None => begun.elapsed() < time,
                })
        {
            let kind = Kind::ALL[(first.wrapping_add(sequences) % Kind::ALL.len() as u64) as usize];
            match lockstep::play(&play, kind, run.seed.wrapping_add(sequences)) {
                Ok(played) => requests += played,
                Err(problem) => {
                    differences += 1;
                    println!("{} difference: {problem}", configuration.name);
                }
            }
            sequences += 1;
        }
        println!("{} seconds {:.1}", configuration.name, begun.elapsed().as_secs_f64());
        println!("{} sequences {sequences}", configuration.name);
        println!("{} requests {requests}", configuration.name);
        println!("{} differences {differences}", configuration.name);
        good &= differences == 0;
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
